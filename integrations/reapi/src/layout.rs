//! The directory of one action on the target: directories, symbolic links, and hard links to blobs.

use std::collections::HashSet;

use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;

use crate::cache::{Cache, CacheError, Pins};
use crate::cas::Cas;
use crate::failure::Failure;
use crate::sftp::{Owner, Sftp, SftpError, all_done};
use crate::tree::{Blob, Layout, check_length, relative_path};

/// A blob may have been changed or removed by what runs there; it is brought again so often.
const ATTEMPTS: usize = 3;

/// Adds the directories that the command expects: its own, and those that its outputs are in.
pub(crate) fn add_expected(layout: &mut Layout, command: &reapi::Command) -> Result<(), Failure> {
    let own = relative_path("the working directory", &command.working_directory)?;
    let mut known: HashSet<String> = layout.directories.iter().cloned().collect();
    let others: HashSet<String> =
        layout.files.iter().map(|(path, _)| path).chain(layout.links.iter().map(|(path, _)| path)).cloned().collect();
    let (mut wanted, mut outputs) = (vec![own.to_owned()], HashSet::new());
    for path in output_paths(command) {
        let path = below(own, relative_path("an output", path)?);
        check_length(&path)?;
        if !outputs.insert(path.clone()) {
            return Err(Failure::Invalid(format!("the output {path:?} is there twice")));
        }
        wanted.push(path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).unwrap_or_default());
    }
    for path in &wanted {
        for (end, _) in path.match_indices('/').chain(std::iter::once((path.len(), ""))) {
            let parent = path.get(..end).unwrap_or_default();
            if others.contains(parent) {
                return Err(Failure::Invalid(format!("{path:?} is to be a directory, and {parent:?} is an input")));
            }
            if !parent.is_empty() && known.insert(parent.to_owned()) {
                layout.directories.push(parent.to_owned());
            }
        }
    }
    Ok(())
}

/// What the command says that it makes, in the form of its version.
#[allow(deprecated, reason = "clients of version 2.0 have nothing else")]
pub(crate) fn output_paths(command: &reapi::Command) -> impl Iterator<Item = &String> {
    let older = command.output_paths.is_empty();
    let older = command.output_files.iter().chain(&command.output_directories).filter(move |_| older);
    command.output_paths.iter().chain(older)
}

/// The path of something in a directory, either of which may be the root.
pub(crate) fn below(directory: &str, path: &str) -> String {
    match (directory, path) {
        ("", path) | (path, "") => path.to_owned(),
        (directory, path) => format!("{directory}/{path}"),
    }
}

/// Lays out all there is, in a directory that is made for it. `owner`: whose processes are to write there, and nobody else's;
/// otherwise the agent's user.
pub(crate) async fn lay_out(
    root: &str,
    layout: &Layout,
    owner: Option<Owner>,
    cache: &Cache,
    cas: &Cas,
    sftp: &Sftp,
) -> Result<(), CacheError> {
    let pins = cache.ensure(layout.files.iter().map(|(_, blob)| *blob).collect(), cas, sftp).await?;
    let mut replies = Vec::new();
    // all below it is out of the reach of others before it is there
    replies.push(sftp.make_directory(root, 0o700).await);
    for path in &layout.directories {
        replies.push(sftp.make_directory(&below(root, path), 0o755).await);
    }
    for path in owner.is_some().then_some("").into_iter().chain(layout.directories.iter().map(String::as_str)) {
        if let Some(owner) = owner {
            replies.push(sftp.give(&below(root, path), owner, if path.is_empty() { 0o700 } else { 0o755 }).await);
        }
    }
    for (path, target) in &layout.links {
        replies.push(sftp.symlink(&below(root, path), target).await);
    }
    let linked = link(root, layout.files.iter(), &pins, sftp).await;
    // why there is no directory says more than that there is none
    all_done(replies).await?;
    let (mut unusable, mut pins) = (linked?, pins);
    for _ in 1..ATTEMPTS {
        if unusable.is_empty() {
            break;
        }
        (unusable, pins) = replace(root, &unusable, pins, cache, cas, sftp).await?;
    }
    match unusable.first() {
        None => Ok(()),
        Some((_, blob)) => Err(CacheError::Unstable { path: pins.path(blob) }),
    }
}

type File = (String, Blob);

/// Links files, and returns those whose blob is not there any more, is not what it was, or takes no more links.
async fn link<'a>(
    root: &str,
    files: impl Iterator<Item = &'a File>,
    pins: &Pins<'_>,
    sftp: &Sftp,
) -> Result<Vec<File>, SftpError> {
    let mut replies = Vec::new();
    for file in files {
        let kept = pins.path(&file.1);
        replies.push((file, sftp.attributes(&kept).await, sftp.hard_link(&kept, &below(root, &file.0)).await));
    }
    let mut unusable = Vec::new();
    for (file, attributes, linked) in replies {
        match (attributes.attributes().await, linked.done().await) {
            (Ok(attributes), Ok(())) if Cache::is_intact(&file.1, &attributes) => {}
            (Ok(_), Ok(())) => unusable.push(file.clone()),
            (Err(error), _) if error.is_not_found() => unusable.push(file.clone()),
            // denied: somebody has made it immutable
            (Ok(_), Err(error)) if error.is_not_found() || error.is_denied() || error.has_too_many_links() => {
                unusable.push(file.clone());
            }
            (Err(error), _) | (_, Err(error)) => return Err(error),
        }
    }
    Ok(unusable)
}

/// Brings these blobs again, and links them.
async fn replace<'a>(
    root: &str,
    files: &[File],
    pins: Pins<'_>,
    cache: &'a Cache,
    cas: &Cas,
    sftp: &Sftp,
) -> Result<(Vec<File>, Pins<'a>), CacheError> {
    for (path, blob) in files {
        tracing::warn!(
            path = pins.path(blob),
            "a blob cannot be linked, or was changed on the target: fetching it again"
        );
        pins.forget(blob, sftp).await?;
        // what was linked of it, if anything was
        let _ = sftp.remove(&below(root, path)).await.done().await;
    }
    drop(pins);
    let pins = cache.ensure(files.iter().map(|(_, blob)| *blob).collect(), cas, sftp).await?;
    let unusable = link(root, files.iter(), &pins, sftp).await?;
    Ok((unusable, pins))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(working_directory: &str, outputs: &[&str]) -> reapi::Command {
        let output_paths = outputs.iter().map(|path| (*path).to_owned()).collect();
        reapi::Command { working_directory: working_directory.to_owned(), output_paths, ..Default::default() }
    }

    #[test]
    fn directories_of_outputs_are_made_with_their_parents() {
        let mut layout = Layout { directories: vec!["w".to_owned()], ..Layout::default() };
        add_expected(&mut layout, &command("w", &["a/b/c", "a/d", "e"])).unwrap();
        assert_eq!(layout.directories, ["w", "w/a", "w/a/b"]);
    }

    #[test]
    fn outputs_outside_of_the_root_are_refused() {
        for (directory, output) in [("..", "a"), ("/", "a"), ("w", "../a"), ("w", "/etc/x"), ("", "a/../../b")] {
            let failed = add_expected(&mut Layout::default(), &command(directory, &[output]));
            assert!(matches!(failed, Err(Failure::Invalid(_))), "{directory} {output}");
        }
    }

    #[test]
    fn outputs_are_there_once_and_have_paths_that_linux_takes() {
        let long = vec!["a"; 1_500].join("/");
        for (directory, outputs) in [("", vec!["a", "b", "a"]), (long.as_str(), vec![long.as_str()])] {
            let failed = add_expected(&mut Layout::default(), &command(directory, &outputs));
            assert!(matches!(failed, Err(Failure::Invalid(_))));
        }
    }

    #[test]
    fn no_output_is_below_a_file() {
        let blob = Blob { digest: crate::args::DigestFunction::Sha256.digest(b""), executable: false };
        let mut layout = Layout { files: vec![("a".to_owned(), blob)], ..Layout::default() };
        assert!(matches!(add_expected(&mut layout, &command("", &["a/b"])), Err(Failure::Invalid(_))));
    }
}
