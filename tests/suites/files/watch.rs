//! What changes in files is told, as far as the caller may know.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use rustix::process::{Pid, Signal, kill_process};
use telexec_client::RemoteFiles;
use telexec_executor::FileChange::{AttributesChanged, Created, Removed, Renamed, Written};
use telexec_executor::{ExecutorError, FileChange, FileErrorKind, FileTarget, Files, Watched, WatchedFiles};
use telexec_proto::v1::WatchFilesRequest;
use telexec_tests::{Agent, Certs, Leaf, Wire, children, is_root, lines, stop, until, within};
use tonic::Code;

use super::{failed, of_user, target};

fn directory() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    (dir, root)
}

/// A watch, whose events are told by their path below a directory.
struct Scene {
    watched: WatchedFiles,
    root: PathBuf,
}

impl Scene {
    async fn start(files: &RemoteFiles, root: &Path, recursive: bool) -> Self {
        let watched = within(files.watch(target(root), recursive)).await.unwrap();
        Self { watched, root: root.to_owned() }
    }

    async fn next(&mut self) -> (FileChange, String) {
        match within(self.watched.next()).await {
            Some(Ok(Watched::Event(event))) => {
                let path = event.path.as_bytes().strip_prefix(self.root.as_os_str().as_bytes()).unwrap();
                let path = path.strip_prefix(b"/").unwrap_or(path);
                (event.change, String::from_utf8_lossy(path).into_owned())
            }
            other => panic!("{other:?}"),
        }
    }

    /// The next events are these.
    #[track_caller]
    fn expect(&mut self, expected: &[(FileChange, &str)]) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        async move {
            for (change, path) in expected {
                assert_eq!(self.next().await, (*change, (*path).to_owned()), "{at}");
            }
        }
    }

    /// Events until this one.
    async fn until(&mut self, last: (FileChange, &str)) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        loop {
            let (change, path) = self.next().await;
            if (change, &path[..]) == last {
                return all;
            }
            all.insert(format!("{change:?} {path}"));
        }
    }

    async fn end(mut self) -> ExecutorError {
        match within(self.watched.next()).await {
            Some(Err(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_changes_in_a_directory_is_told() {
    let agent = Agent::start();
    let (files, (_dir, root)) = (agent.connect().await.files(), directory());
    std::fs::create_dir(root.join("below")).unwrap();
    let mut scene = Scene::start(&files, &root, false).await;
    let odd = root.join(std::ffi::OsStr::from_bytes(b"new\nline\xff"));
    std::fs::write(root.join("a"), "x").unwrap();
    std::fs::set_permissions(root.join("a"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(root.join("a"), &odd).unwrap();
    std::fs::write(root.join("below/none"), "x").unwrap();
    std::fs::remove_file(&odd).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o700)).unwrap();
    let shown = "new\nline\u{fffd}";
    let expected = [(Created, "a"), (Written, "a"), (AttributesChanged, "a"), (Renamed, "a")];
    scene.expect(&expected).await;
    scene.expect(&[(Created, shown), (Removed, shown), (AttributesChanged, "")]).await;
    // of one that is gone there is nothing more to tell
    std::fs::remove_dir_all(root.join("below")).unwrap();
    std::fs::remove_dir(&root).unwrap();
    scene.expect(&[(Removed, "below"), (Removed, "")]).await;
    assert_eq!(failed::<()>(Err(scene.end().await)).kind(), FileErrorKind::NotFound);
    for (path, kind) in [("none", FileErrorKind::NotFound), ("none/x", FileErrorKind::NotFound)] {
        assert_eq!(failed(within(files.watch(target(&root.join(path)), false)).await.map(drop)).kind(), kind);
    }
    let invalid = within(files.watch(FileTarget::new("a\0"), true)).await.err();
    assert!(matches!(&invalid, Some(ExecutorError::Invalid(invalid)) if invalid.field == "path"), "{invalid:?}");
    until("no process is left", async || children(agent.pid()).is_empty()).await;
}

#[tokio::test]
async fn a_file_is_watched_until_it_is_gone() {
    let agent = Agent::start();
    let (files, (_dir, root)) = (agent.connect().await.files(), directory());
    let file = root.join("file");
    std::fs::write(&file, "x").unwrap();
    symlink("file", root.join("link")).unwrap();
    let mut scene = Scene::start(&files, &root.join("link"), true).await;
    std::fs::write(root.join("other"), "").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    scene.expect(&[(AttributesChanged, "")]).await;
    // open here, so that it has no name any more but is not deleted
    let open = std::fs::File::open(&file).unwrap();
    std::fs::rename(root.join("other"), &file).unwrap();
    scene.expect(&[(Removed, "")]).await;
    let gone = failed::<()>(Err(scene.end().await));
    assert_eq!((gone.errno_name().as_ref(), gone.path), ("ENOENT", target(&root.join("link")).path));
    drop(open);
    let mut scene = Scene::start(&files, &file, false).await;
    std::fs::rename(&file, root.join("moved")).unwrap();
    scene.expect(&[(Renamed, "")]).await;
    assert_eq!(failed::<()>(Err(scene.end().await)).errno_name(), "ENOENT");
}

#[tokio::test]
async fn directories_below_are_watched_as_they_come_and_move() {
    let agent = Agent::start();
    let (files, (_dir, root)) = (agent.connect().await.files(), directory());
    let (_other, outside) = directory();
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::create_dir(outside.join("dir")).unwrap();
    symlink(&outside, root.join("link")).unwrap();
    let mut scene = Scene::start(&files, &root, true).await;
    // nothing is told of what a link leads to
    std::fs::write(outside.join("dir/hidden"), "x").unwrap();
    std::fs::write(outside.join("hidden"), "x").unwrap();
    std::fs::File::create(root.join("a/b/file")).unwrap();
    scene.expect(&[(Created, "a/b/file")]).await;
    // made and filled before anybody can watch it
    std::fs::create_dir(root.join("c")).unwrap();
    for deep in ["c/d/e/f", "c/x"] {
        std::fs::create_dir_all(root.join(deep)).unwrap();
    }
    std::fs::File::create(root.join("c/d/e/f/file")).unwrap();
    std::fs::create_dir(root.join("last")).unwrap();
    let mut told = scene.until((Created, "last")).await;
    while !told.contains("Created c/d/e/f/file") {
        let (change, path) = scene.next().await;
        told.insert(format!("{change:?} {path}"));
    }
    for path in ["c", "c/d", "c/d/e", "c/d/e/f"] {
        assert!(told.contains(&format!("Created {path}")), "{path}: {told:?}");
    }
    // with its new name, and what is in it
    std::fs::rename(root.join("a"), root.join("last/moved")).unwrap();
    let told = scene.until((Created, "last/moved/b/file")).await;
    assert!(told.contains("Renamed a") && told.contains("Created last/moved"), "{told:?}");
    let mut file = std::fs::File::options().append(true).open(root.join("last/moved/b/file")).unwrap();
    file.write_all(b"x").unwrap();
    scene.expect(&[(Written, "last/moved/b/file")]).await;
    // what leaves the tree is watched no more, and what comes into it is
    std::fs::rename(root.join("last/moved"), outside.join("moved")).unwrap();
    scene.expect(&[(Renamed, "last/moved")]).await;
    std::fs::write(outside.join("moved/b/file"), "other").unwrap();
    std::fs::rename(outside.join("dir"), root.join("dir")).unwrap();
    scene.expect(&[(Created, "dir"), (Created, "dir/hidden")]).await;
    std::fs::remove_dir_all(root.join("dir")).unwrap();
    scene.expect(&[(Removed, "dir/hidden"), (Removed, "dir")]).await;
    drop(scene);
    until("no process is left", async || children(agent.pid()).is_empty()).await;
}

#[tokio::test]
async fn what_a_policy_denies_is_not_told() {
    let (certs, (_dir, root)) = (Certs::new(), directory());
    for name in ["open/closed", "open/later", "other"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    symlink("../other", root.join("open/link")).unwrap();
    let shown = root.display();
    let policy = |closed: &str| {
        format!(
            r#"
            permit(principal == Identity::"reader", action == Action::"WatchFiles", resource)
            when {{ context.path like "{shown}/open*" }};
            forbid(principal, action, resource) when {{
                action == Action::"WatchFiles" && (context.path like "{shown}/open/closed*" || {closed})
            }};
            permit(principal == Identity::"lister", action == Action::"ListFiles", resource);
            "#
        )
    };
    let log = root.join("audit.log");
    let config = format!("[audit]\nfile = {log:?}\n");
    let agent = Agent::builder().mtls(&certs).policy(policy("false")).config(config).start();
    let files = agent.connect_as(&certs.ca.issue(Leaf::client("reader"))).await.files();
    let lister = agent.connect_as(&certs.ca.issue(Leaf::client("lister"))).await.files();
    for (files, path) in [(&files, "other"), (&files, "none"), (&files, "open/link/"), (&lister, "open")] {
        let denied = within(files.watch(target(&root.join(path)), true)).await.err();
        assert!(matches!(denied, Some(ExecutorError::Denied { .. })), "{path}: {denied:?}");
    }
    let mut scene = Scene::start(&files, &root.join("open"), true).await;
    for name in ["open/closed/a", "open/later/a"] {
        std::fs::File::create(root.join(name)).unwrap();
    }
    std::fs::create_dir_all(root.join("open/closed2/below")).unwrap();
    std::fs::File::create(root.join("open/last")).unwrap();
    scene.expect(&[(Created, "later/a"), (Created, "closed2"), (Created, "last")]).await;
    // what is denied by now is told no more
    std::fs::write(agent.policy(), policy(&format!("context.path == \"{shown}/open/later\""))).unwrap();
    agent.signal(Signal::HUP);
    let later = target(&root.join("open/later"));
    until("the policy is another", async || files.watch(later.clone(), false).await.is_err()).await;
    std::fs::File::create(root.join("open/later/b")).unwrap();
    std::fs::File::create(root.join("open/after")).unwrap();
    scene.expect(&[(Created, "after")]).await;
    std::fs::write(agent.policy(), "").unwrap();
    agent.signal(Signal::HUP);
    assert!(matches!(scene.end().await, ExecutorError::Denied { .. }));
    let recorded = |event: &str, path: &str| {
        let parts = [format!("\"event\":\"{event}\""), format!("\"path\":\"{shown}/{path}\"")];
        lines(&log).iter().any(|line| line.contains("WatchFiles") && parts.iter().all(|part| line.contains(part)))
    };
    until("the watch is recorded", async || recorded("call", "open") && recorded("file", "open")).await;
    assert!(recorded("call", "other") && !recorded("call", "open/closed"));
    until("its process has ended", async || children(agent.pid()).is_empty()).await;
}

#[tokio::test]
async fn what_the_user_may_not_read_is_not_watched() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let (files, (dir, root)) = (agent.connect().await.files(), directory());
    std::fs::create_dir_all(root.join("closed/below")).unwrap();
    std::fs::set_permissions(root.join("closed"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let watched = within(files.watch(of_user(&root, "nobody"), true)).await.unwrap();
    let mut scene = Scene { watched, root: root.clone() };
    std::fs::File::create(root.join("closed/below/file")).unwrap();
    std::fs::File::create(root.join("file")).unwrap();
    scene.expect(&[(Created, "file")]).await;
    // once it is within reach, what is in it is new
    std::fs::set_permissions(root.join("closed"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let seen = scene.until((Created, "closed/below/file")).await;
    assert!(seen.contains("Created closed/below"), "{seen:?}");
    std::fs::write(root.join("closed/below/later"), "").unwrap();
    scene.until((Created, "closed/below/later")).await;
    std::fs::set_permissions(root.join("closed"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let closed = within(files.watch(of_user(&root.join("closed"), "nobody"), true)).await;
    assert_eq!(failed(closed.map(drop)).kind(), FileErrorKind::AccessDenied);
}

#[tokio::test]
async fn what_is_lost_is_told_and_nothing_after_it_is() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let (files, (_dir, root)) = (agent.connect().await.files(), directory());
    std::fs::create_dir(root.join("old")).unwrap();
    let mut scene = Scene::start(&files, &root, true).await;
    // an earlier one may have ended, and not be reaped
    until("only the process that watches is left", async || children(agent.pid()).len() == 1).await;
    let helper = children(agent.pid()).first().unwrap().pid;
    stop(helper).await;
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    for number in 0..=most.trim().parse::<usize>().unwrap() {
        let name = root.join(if number % 2 == 0 { "a" } else { "b" });
        std::fs::create_dir(&name).unwrap();
        std::fs::remove_dir(&name).unwrap();
    }
    std::fs::rename(root.join("old"), root.join("moved")).unwrap();
    std::fs::create_dir_all(root.join("new/deep")).unwrap();
    kill_process(Pid::from_raw(helper).unwrap(), Signal::CONT).unwrap();
    while within(scene.watched.next()).await.unwrap().unwrap() != Watched::Lost {}
    for name in ["moved/file", "new/deep/file"] {
        std::fs::File::create(root.join(name)).unwrap();
        scene.expect(&[(Created, name)]).await;
    }
}

#[tokio::test]
async fn it_ends_at_its_deadline() {
    let agent = Agent::start();
    let (wire, (_dir, root)) = (Wire::connect(&agent).await.unwrap(), directory());
    let path = root.to_str().unwrap().to_owned();
    let mut request = tonic::Request::new(WatchFilesRequest { path, ..WatchFilesRequest::default() });
    request.metadata_mut().insert("grpc-timeout", "500m".parse().unwrap());
    let late = match within(wire.files().watch_files(request)).await {
        Ok(answers) => {
            let mut answers = answers.into_inner();
            loop {
                match within(answers.message()).await {
                    Ok(Some(_)) => {}
                    ended => break ended.unwrap_err(),
                }
            }
        }
        Err(status) => status,
    };
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late:?}");
    until("its process has ended", async || children(agent.pid()).is_empty()).await;
}
