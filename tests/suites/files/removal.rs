//! Removing a directory with all that it contains.

use std::iter::repeat_n;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use telexec_client::RemoteFiles;
use telexec_executor::{FileErrorKind, FileOperation, Files};
use telexec_tests::{Agent, Certs, Leaf, is_root, within};

use super::{failed, of_user, path, target};

fn open(directory: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> OwnedFd {
    openat(directory, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Makes directories of these names in one another.
fn make_deep<'a>(root: &Path, names: impl Iterator<Item = &'a str>) {
    std::fs::create_dir(root).unwrap();
    let mut directory = open(CWD, root);
    for name in names {
        mkdirat(&directory, name, Mode::RWXU | Mode::RWXG | Mode::RWXO).unwrap();
        directory = open(&directory, name);
    }
}

/// Whoever the agent runs as, and another user.
fn users(path: &Path) -> Vec<telexec_executor::FileTarget> {
    let other = is_root().then(|| of_user(path, "nobody"));
    [target(path)].into_iter().chain(other).collect()
}

#[tokio::test]
async fn no_directory_is_too_deep_to_be_removed() {
    let (agent, dir) = (Agent::start(), tempfile::tempdir().unwrap());
    let files = agent.connect().await.files();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let root = dir.path().join("root");
    for file in users(&root) {
        make_deep(&root, repeat_n("d", 10_000));
        if file.user.is_some() {
            own(&root);
        }
        within(files.remove(file, true)).await.unwrap();
        assert!(!root.exists());
    }
}

/// Gives all that is below to the user `nobody`.
fn own(root: &Path) {
    let status = std::process::Command::new("chown").args(["-R", "nobody"]).arg(root).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn what_cannot_be_removed_is_named() {
    if !is_root() {
        return;
    }
    let (agent, dir) = (Agent::start(), tempfile::tempdir().unwrap());
    let files = agent.connect().await.files();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let (root, closed) = (dir.path().join("root"), dir.path().join("root/a/closed"));
    std::fs::create_dir_all(closed.join("b")).unwrap();
    own(&root);
    chown(&closed, Some(0), None).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let error = failed(within(files.remove(of_user(&root, "nobody"), true)).await);
    assert_eq!((error.operation, error.kind()), (FileOperation::Remove, FileErrorKind::AccessDenied));
    assert_eq!((&*error.errno_name(), error.path), ("EACCES", path(&closed)));
    assert!(closed.join("b").exists());
    // one that is empty has nothing that would have to be read
    std::fs::remove_dir(closed.join("b")).unwrap();
    within(files.remove(of_user(&root, "nobody"), true)).await.unwrap();
    assert!(!root.exists());
}

/// Rules are asked about every path, however long that is.
#[tokio::test]
async fn rules_decide_about_what_is_deep() {
    let (certs, dir) = (Certs::new(), tempfile::tempdir().unwrap());
    let root = dir.path().canonicalize().unwrap().join("root");
    let policy = format!(
        r#"
        permit(principal, action in Action::"files", resource);
        forbid(principal, action in Action::"files", resource) when {{ context.path like "{}/kept/*/secret" }};
        "#,
        root.parent().unwrap().display()
    );
    let agent = Agent::builder().mtls(&certs).policy(policy).start();
    let files: RemoteFiles = agent.connect_as(&certs.ca.issue(Leaf::client("someone"))).await.files();
    make_deep(&root, repeat_n("d", 3000));
    within(files.remove(target(&root), true)).await.unwrap();
    assert!(!root.exists());
    let kept = root.with_file_name("kept");
    make_deep(&kept, repeat_n("directory", 3000).chain(["secret"]));
    let denied = within(files.remove(target(&kept), true)).await.unwrap_err();
    assert!(matches!(denied, telexec_executor::ExecutorError::Denied { .. }), "{denied:?}");
    // with more than can be decided about
    make_deep(&root, repeat_n("d", 10_000));
    let error = failed(within(files.remove(target(&root), true)).await);
    assert_eq!(error.errno_name(), "E2BIG");
    // it has more directories than a watch or a copy could name
    let watched = failed(within(files.watch(target(&root), true)).await.map(drop));
    assert_eq!((watched.operation, &*watched.errno_name()), (FileOperation::Watch, "ENAMETOOLONG"));
    for left in [root, kept] {
        let status = std::process::Command::new("rm").arg("-r").arg(left).status().unwrap();
        assert!(status.success());
    }
}
