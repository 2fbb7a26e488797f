//! What a policy says of files, and what the audit log has of them.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use telexec_executor::{ExecutorError, FileRange, Files};
use telexec_tests::{Agent, Certs, Leaf, lines, until, within};

use super::{read, sha256, target, write};

/// A caller named reader may read below the directory `open`, and one named writer may write there.
struct Scene {
    agent: Agent,
    certs: Certs,
    dir: tempfile::TempDir,
}

fn policy(dir: &std::path::Path) -> String {
    let open = dir.join("open");
    let open = open.display();
    format!(
        r#"
        @id("read") permit(principal == Identity::"reader", action in [Action::"ReadFile", Action::"ListFiles"], resource)
        when {{ context.path like "{open}/*" && context.user == "root" }};
        @id("write") permit(principal == Identity::"writer", action == Action::"WriteFile", resource)
        when {{ context.path like "{open}/*" }};
        "#
    )
}

impl Scene {
    fn start() -> Self {
        let (certs, dir) = (Certs::new(), tempfile::tempdir().unwrap());
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("open")).unwrap();
        std::fs::write(root.join("open/file"), "public").unwrap();
        std::fs::write(root.join("secret"), "secret").unwrap();
        symlink(root.join("secret"), root.join("open/link")).unwrap();
        let config = format!("[audit]\nfile = {:?}\n", root.join("audit.log"));
        let agent = Agent::builder().mtls(&certs).policy(policy(&root)).config(config).start();
        Self { agent, certs, dir }
    }

    async fn files(&self, name: &str) -> telexec_client::RemoteFiles {
        self.agent.connect_as(&self.certs.ca.issue(Leaf::client(name))).await.files()
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Waits for a record with all of these.
    async fn recorded(&self, parts: &[&str]) {
        let has_all = |line: &String| parts.iter().all(|part| line.contains(part));
        until(&format!("{parts:?} is recorded"), async || lines(&self.at("audit.log")).iter().any(has_all)).await;
    }
}

#[track_caller]
fn denied<T: std::fmt::Debug>(result: Result<T, ExecutorError>) -> String {
    match result {
        Err(ExecutorError::Denied { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn files_are_judged_by_where_they_really_are() {
    let scene = Scene::start();
    let reader = scene.files("reader").await;
    let range = FileRange::default();
    assert_eq!(read(&reader, target(&scene.at("open/file")), range).await.unwrap().0, b"public");
    assert_eq!(read(&reader, target(&scene.at("open/../open/./file")), range).await.unwrap().0, b"public");
    for hidden in ["secret", "open/link", "open/../secret", "audit.log"] {
        let reason = denied(read(&reader, target(&scene.at(hidden)), range).await);
        assert!(reason.contains("ReadFile"), "{reason}");
    }
    // whether there is one is not told either
    denied(read(&reader, target(&scene.at("none")), range).await);
    denied(read(&reader, target(&scene.at("none/x")), range).await);
    denied(within(reader.info(super::of_user(&scene.at("open/file"), "no-such-user"))).await);
    let missing = read(&reader, target(&scene.at("open/none")), range).await;
    assert!(matches!(missing, Err(ExecutorError::File(_))), "{missing:?}");
    assert!(within(reader.info(target(&scene.at("open/link")))).await.is_ok());

    denied(write(&reader, target(&scene.at("open/new")), b"x").await);
    let writer = scene.files("writer").await;
    write(&writer, target(&scene.at("open/new")), b"x").await.unwrap();
    denied(write(&writer, target(&scene.at("open/link")), b"x").await);
    denied(within(writer.rename(target(&scene.at("open/new")), super::path(&scene.at("moved")), false)).await);
    denied(within(writer.rename(target(&scene.at("secret")), super::path(&scene.at("open/moved")), false)).await);
    denied(within(writer.remove(target(&scene.at("secret")), false)).await);
    denied(read(&writer, target(&scene.at("open/file")), range).await);
    let stranger = scene.files("stranger").await;
    denied(within(stranger.make_directory(target(&scene.at("open/d")), None, true)).await);
    assert_eq!(std::fs::read(scene.at("secret")).unwrap(), b"secret");
}

#[tokio::test]
async fn what_is_forbidden_does_not_move_or_go_with_a_directory() {
    let (certs, dir) = (Certs::new(), tempfile::tempdir().unwrap());
    let root = dir.path().canonicalize().unwrap();
    let shown = root.display();
    let policy = format!(
        r#"
        permit(principal, action in Action::"files", resource) when {{ context.path like "{shown}/*" }};
        forbid(principal, action == Action::"ReadFile", resource) when {{ context.path like "{shown}/unread*" }};
        forbid(principal, action in Action::"files", resource) when {{ context.path like "{shown}/d/secret/*" }};
        forbid(principal, action == Action::"WriteFile", resource) when {{ context.path like "{shown}/kept/*" }};
        "#
    );
    let agent = Agent::builder().mtls(&certs).policy(policy).start();
    for file in ["unread", "d/secret/file", "d/open", "e/deep/file", "kept/file"] {
        std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        std::fs::write(root.join(file), "x").unwrap();
    }
    let files = agent.connect_as(&certs.ca.issue(Leaf::client("someone"))).await.files();
    let rename = async |from: &str, to: &str| {
        within(files.rename(target(&root.join(from)), super::path(&root.join(to)), false)).await
    };
    assert!(denied(rename("unread", "read").await).contains("ReadFile"));
    for directory in ["d", "d/secret"] {
        let reason = denied(rename(directory, "moved").await);
        assert!(reason.contains("ReadFile") || reason.contains("WriteFile"), "{reason}");
        denied(within(files.remove(target(&root.join(directory)), true)).await);
    }
    denied(rename("e", "kept/e").await);
    assert!(["unread", "d/secret/file", "d/open", "e/deep/file"].iter().all(|file| root.join(file).exists()));
    rename("e", "f").await.unwrap();
    assert!(root.join("f/deep/file").exists());
    within(files.remove(target(&root.join("f")), true)).await.unwrap();
    assert!(!root.join("f").exists());
}

/// What a name leads to changes all the time; what is permitted is what is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_swapped_in_leads_nowhere() {
    let scene = Scene::start();
    std::fs::create_dir(scene.at("open/dir")).unwrap();
    std::fs::write(scene.at("open/dir/file"), "public").unwrap();
    std::fs::create_dir(scene.at("hidden")).unwrap();
    std::fs::write(scene.at("hidden/file"), "secret").unwrap();
    symlink(scene.at("hidden"), scene.at("open/other")).unwrap();
    let (one, other) = (scene.at("open/dir"), scene.at("open/other"));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let swapping = std::thread::spawn(move || {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        while !over.load(Ordering::Relaxed) {
            renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        }
    });
    let (reader, writer) = (scene.files("reader").await, scene.files("writer").await);
    let mut outcomes = [0; 2];
    for _ in 0..150 {
        match read(&reader, target(&scene.at("open/dir/file")), FileRange::default()).await {
            Ok((content, _)) => {
                assert_eq!(content, b"public");
                outcomes[0] += 1;
            }
            Err(ExecutorError::Denied { .. }) => outcomes[1] += 1,
            // it was not there for a moment
            Err(ExecutorError::File(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
        let _ = write(&writer, target(&scene.at("open/dir/new")), b"x").await;
    }
    is_over.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
    assert_eq!(super::names(&scene.at("hidden")), ["file"]);
}

#[tokio::test]
async fn the_audit_log_has_what_was_read_and_written() {
    let scene = Scene::start();
    let (reader, writer) = (scene.files("reader").await, scene.files("writer").await);
    read(&reader, target(&scene.at("open/file")), FileRange::default()).await.unwrap();
    let hex = |digest: [u8; 32]| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let path = format!("\"path\":\"{}\"", scene.at("open/file").display());
    let digest = format!("\"sha256\":\"{}\"", hex(sha256(b"public")));
    let who = "\"identity\":\"reader\"";
    scene.recorded(&["\"event\":\"call\"", who, "\"action\":\"ReadFile\"", &path, "\"rules\":[\"read\"]"]).await;
    scene.recorded(&["\"event\":\"file\"", who, "\"action\":\"ReadFile\"", &path, "\"bytes\":6", &digest]).await;
    write(&writer, target(&scene.at("open/file")), b"changed").await.unwrap();
    let digest = format!("\"sha256\":\"{}\"", hex(sha256(b"changed")));
    scene
        .recorded(&[
            "\"event\":\"file\"",
            "\"action\":\"WriteFile\"",
            &path,
            "\"bytes\":7",
            &digest,
            "\"user\":\"root\"",
        ])
        .await;
    denied(read(&reader, target(&scene.at("secret")), FileRange::default()).await);
    let path = format!("\"path\":\"{}\"", scene.at("secret").display());
    scene.recorded(&["\"event\":\"call\"", "\"decision\":\"deny\"", "\"action\":\"ReadFile\"", &path]).await;
}
