//! `telexec cp`: files and directories, to and from a machine.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use telexec_tests::{Agent, Proxy, Scrape, children, until, within};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Said, telexec};

struct Scene {
    agent: Agent,
    here: TempDir,
    there: TempDir,
}

impl Scene {
    fn start() -> Self {
        Self { agent: Agent::start(), here: tempfile::tempdir().unwrap(), there: tempfile::tempdir().unwrap() }
    }

    fn here(&self, name: &str) -> PathBuf {
        self.here.path().join(name)
    }

    fn there(&self, name: &str) -> PathBuf {
        self.there.path().join(name)
    }

    /// This path at the target.
    fn remote(&self, name: &str) -> String {
        format!("{}:{}", self.agent.uri(), self.there(name).display())
    }

    fn cp(&self, args: &[&str]) -> Command {
        let mut command = telexec(["cp"].iter().chain(args));
        command.current_dir(self.here.path());
        command
    }

    async fn copy(&self, args: &[&str]) -> Said {
        Said::by(self.cp(args)).await
    }
}

fn random(length: usize) -> Vec<u8> {
    std::iter::repeat_with(|| fastrand::u8(..)).take(length).collect()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Nothing is in it beside these.
#[track_caller]
fn only(directory: &Path, expected: &[&str]) {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_there_and_comes_back() {
    let scene = Scene::start();
    let content = random(3_000_000);
    std::fs::write(scene.here("program"), &content).unwrap();
    std::fs::set_permissions(scene.here("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
    scene.copy(&["program", &scene.remote("")]).await.answer();
    assert!(std::fs::read(scene.there("program")).unwrap() == content);
    assert_eq!(mode(&scene.there("program")), 0o755);
    // the second copy of the same file is one too
    std::fs::remove_file(scene.there("program")).unwrap();
    scene.copy(&["program", &scene.remote("")]).await.answer();
    assert!(std::fs::read(scene.there("program")).unwrap() == content);
    scene.copy(&["--checksum", "program", &scene.remote("other")]).await.answer();
    scene.copy(&[&scene.remote("other"), "back"]).await.answer();
    assert!(std::fs::read(scene.here("back")).unwrap() == content);
    assert_eq!(mode(&scene.here("back")), 0o755);
    // into a directory that a link leads to
    std::fs::create_dir(scene.there("dir")).unwrap();
    symlink("dir", scene.there("link")).unwrap();
    std::fs::write(scene.here("a:b"), "colon").unwrap();
    scene.copy(&["./a:b", "back", &scene.remote("link")]).await.answer();
    only(&scene.there("dir"), &["a:b", "back"]);
    scene.copy(&[&scene.remote("dir/a:b"), "."]).await.answer();
    only(scene.here.path(), &["a:b", "back", "program"]);
    only(scene.there.path(), &["dir", "link", "other", "program"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_and_output_are_files_too() {
    let scene = Scene::start();
    std::fs::write(scene.here("input"), random(1_000_000)).unwrap();
    let mut cp = scene.cp(&["-", &scene.remote("file")]);
    cp.stdin(std::fs::File::open(scene.here("input")).unwrap());
    Said::by(cp).await.answer();
    let said = scene.copy(&[&scene.remote("file"), "-"]).await;
    assert!(said.code == 0 && said.stdout == std::fs::read(scene.here("input")).unwrap(), "{}", said.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_goes_there_and_comes_back() {
    let scene = Scene::start();
    let tree = scene.here("tree");
    std::fs::create_dir_all(tree.join("sub/empty")).unwrap();
    for number in 0..1500 {
        std::fs::write(tree.join(format!("sub/{number}")), number.to_string()).unwrap();
    }
    let content = random(2_000_000);
    std::fs::write(tree.join("large"), &content).unwrap();
    std::fs::write(tree.join(std::ffi::OsStr::from_bytes(b"new\nline\xff")), "odd").unwrap();
    std::fs::set_permissions(tree.join("sub/7"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(tree.join("sub/empty"), std::fs::Permissions::from_mode(0o500)).unwrap();
    symlink("/nowhere", tree.join("link")).unwrap();
    let same = |one: &Path, other: &Path| {
        let diff = std::process::Command::new("diff").args(["-r", "--no-dereference"]).arg(one).arg(other).output();
        let diff = diff.unwrap();
        assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
        assert_eq!((mode(&other.join("sub/7")), mode(&other.join("sub/empty"))), (0o700, 0o500));
    };
    let refused = scene.copy(&["tree", &scene.remote("")]).await;
    assert!(refused.failure(1).contains("use -r"), "{refused:?}");
    scene.copy(&["-r", "tree", &scene.remote("")]).await.answer();
    same(&tree, &scene.there("tree"));
    // again, over what is there
    scene.copy(&["-r", "tree", &scene.remote("")]).await.answer();
    scene.copy(&["-r", &scene.remote("tree"), "back"]).await.answer();
    same(&tree, &scene.here("back"));
    scene.copy(&["-r", &scene.remote("tree/"), "."]).await.answer();
    only(scene.there.path(), &["tree"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_copied_is_named_and_the_rest_is_copied() {
    let scene = Scene::start();
    std::fs::write(scene.here("good"), "good").unwrap();
    let said = scene.copy(&["none", "good", &scene.remote("")]).await;
    assert_eq!(said.failure(1), "telexec: cannot open none: no such file or directory\n");
    only(scene.there.path(), &["good"]);
    let said = scene.copy(&[&scene.remote("none"), &scene.remote("good"), "."]).await;
    assert!(said.failure(1).contains("none: no such file or directory"), "{said:?}");
    let said = scene.copy(&["good", &scene.remote("none/x")]).await;
    assert!(said.failure(1).contains("there is no directory"), "{said:?}");
    let said = scene.copy(&["-l", "nobody-here", "good", &scene.remote("x")]).await;
    assert!(said.failure(125).contains("no such user"), "{said:?}");
    for (args, why) in [
        (&["good", "bad"][..], "one side must be TARGET:PATH"),
        (&["a:x", "b:y"], "one side must be here"),
        (&["a:x", "b:y", "."], "all sources must be of one target"),
        (&["a:x", "a:y", "no-directory"], "is not a directory"),
    ] {
        let said = scene.copy(args).await;
        assert!(said.failure(2).contains(why), "{said:?}");
    }
    std::fs::create_dir(scene.here("tree")).unwrap();
    std::fs::write(scene.here("tree/file"), "x").unwrap();
    std::fs::create_dir_all(scene.there("tree/file")).unwrap();
    std::fs::write(scene.here("tree/other"), "x").unwrap();
    let said = scene.copy(&["-r", "tree", &scene.remote("")]).await;
    assert!(said.failure(1).contains("file: is a directory"), "{said:?}");
    assert!(scene.there("tree/other").is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_deep_is_named_and_the_rest_is_copied() {
    let scene = Scene::start();
    let deep = ["d".repeat(200).as_str(); 12].join("/");
    for root in [scene.here.path(), scene.there.path()] {
        for name in ["tree", "more"] {
            std::fs::create_dir_all(root.join(name).join(&deep)).unwrap();
        }
        std::fs::rename(root.join("more"), root.join("tree").join(&deep).join("more")).unwrap();
        std::fs::write(root.join("tree/file"), "x").unwrap();
    }
    for (args, copied) in [
        (["-rq", "tree", &scene.remote("copy")], scene.there("copy/file")),
        (["-rq", &scene.remote("tree"), "copy"], scene.here("copy/file")),
    ] {
        let said = scene.copy(&args).await;
        assert!(said.failure(1).contains("file name too long"), "{said:?}");
        assert!(copied.is_file());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_stay_holes() {
    let scene = Scene::start();
    let sparse = std::fs::File::create(scene.here("sparse")).unwrap();
    sparse.write_all_at(b"middle", 2 << 30).unwrap();
    sparse.set_len(3 << 30).unwrap();
    scene.copy(&["sparse", &scene.remote("there")]).await.answer();
    scene.copy(&[&scene.remote("there"), "back"]).await.answer();
    for copy in [scene.there("there"), scene.here("back")] {
        let found = std::fs::metadata(&copy).unwrap();
        assert_eq!(found.len(), 3 << 30);
        assert!(found.blocks() < 1000, "{}", found.blocks());
        let mut middle = [0; 6];
        std::fs::File::open(copy).unwrap().read_exact_at(&mut middle, 2 << 30).unwrap();
        assert_eq!(&middle, b"middle");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_exact_through_cuts() {
    let scene = Scene::start();
    let proxy = Proxy::before(&scene.agent).await;
    let remote = |name: &str| format!("{}:{}", proxy.uri(), scene.there(name).display());
    std::fs::write(scene.here("file"), random(60_000_000)).unwrap();
    std::fs::create_dir(scene.here("tree")).unwrap();
    for number in 0..300 {
        std::fs::write(scene.here(&format!("tree/{number}")), random(30_000)).unwrap();
    }
    let cuts = async || {
        // who cannot connect at first is told so
        until("the copy has begun", async || !children(scene.agent.pid()).is_empty()).await;
        for pause in (0..10).map(|round| 40 + 10 * round) {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            proxy.cut();
        }
        std::future::pending::<()>().await;
    };
    for args in [
        ["-q", "file", &remote("file")],
        ["-q", &remote("file"), "back"],
        ["-qr", "tree", &remote("tree")],
        ["-qr", &remote("tree"), "tree-back"],
    ] {
        until("the one before has ended", async || children(scene.agent.pid()).is_empty()).await;
        let said = tokio::select! {
            said = scene.copy(&args) => said,
            () = cuts() => unreachable!(),
        };
        said.answer();
    }
    assert!(std::fs::read(scene.here("file")).unwrap() == std::fs::read(scene.here("back")).unwrap());
    for (one, other) in [(scene.here("tree"), scene.there("tree")), (scene.there("tree"), scene.here("tree-back"))] {
        let diff = std::process::Command::new("diff").arg("-r").args([one, other]).output().unwrap();
        assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    }
    only(scene.there.path(), &["file", "tree"]);
    only(scene.here.path(), &["back", "file", "tree", "tree-back"]);
}

/// Begins to copy it, and stops while it is being copied.
async fn interrupted(scene: &Scene, from: &str, to: &str, signal: Signal, has_begun: impl AsyncFn() -> bool) {
    let mut child = scene.cp(&["-q", from, to]).spawn().unwrap();
    until("a part has arrived", async || has_begun().await).await;
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
    assert!(!within(child.wait()).await.unwrap().success());
}

/// In both directions: by how much the agent has received and sent, little is copied twice.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_copy_continues_when_it_is_repeated() {
    let mut scene = Scene::start();
    scene.agent = Agent::builder().args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let content = random(150_000_000);
    std::fs::write(scene.here("file"), &content).unwrap();
    let remote = scene.remote("file");
    for (way, from, to) in [("received", "file", &remote[..]), ("sent", &remote, "back")] {
        let counted = async || Scrape::of(&scene.agent).await.value(&format!("telexec_file_{way}_bytes_total"));
        for (round, signal) in [(1.0, Signal::KILL), (2.0, Signal::INT)] {
            interrupted(&scene, from, to, signal, async || counted().await > round * 45_000_000.0).await;
            assert!(!scene.here("back").exists() && scene.there("file").exists() == (way == "sent"), "{way}");
        }
        scene.copy(&["-q", from, to]).await.answer();
        let all = counted().await;
        // anew it would be more than 45 + 90 + 150
        assert!(all < 240_000_000.0, "{way} {all} bytes");
    }
    assert!(std::fs::read(scene.here("back")).unwrap() == content);
    only(scene.there.path(), &["file"]);
    only(scene.here.path(), &["back", "file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_files_are_replaced_and_links_are_followed() {
    let scene = Scene::start();
    std::fs::write(scene.there("file"), "new").unwrap();
    std::fs::set_permissions(scene.there("file"), std::fs::Permissions::from_mode(0o750)).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(scene.here("fifo")).status();
    assert!(fifo.unwrap().success());
    symlink("fifo", scene.here("link")).unwrap();
    for name in ["fifo", "link"] {
        let said = scene.copy(&["-q", &scene.remote("file"), name]).await;
        assert!(said.failure(1).contains("not a regular file"), "{said:?}");
        assert!(!scene.here(name).metadata().unwrap().is_file());
    }
    // on another file system, and to what is not there yet
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(elsewhere.path().join("old"), "old").unwrap();
    std::fs::set_permissions(elsewhere.path().join("old"), std::fs::Permissions::from_mode(0o600)).unwrap();
    for name in ["old", "none"] {
        symlink(elsewhere.path().join(name), scene.here(name)).unwrap();
        scene.copy(&["-q", &scene.remote("file"), name]).await.answer();
        assert_eq!(std::fs::read(elsewhere.path().join(name)).unwrap(), b"new");
        assert!(scene.here(name).is_symlink());
    }
    // a file that is replaced is executable for whoever may read it; a new one has the permissions of its source
    assert_eq!((mode(&elsewhere.path().join("old")), mode(&elsewhere.path().join("none"))), (0o700, 0o750));
    std::fs::write(scene.here("private"), "x").unwrap();
    std::fs::set_permissions(scene.here("private"), std::fs::Permissions::from_mode(0o600)).unwrap();
    scene.copy(&["-q", "private", &scene.remote("private")]).await.answer();
    assert_eq!(mode(&scene.there("private")), 0o600);
    std::fs::create_dir(scene.here("tree")).unwrap();
    for (from, to, text) in [
        ("private", &scene.remote("no/file")[..], "there is no directory"),
        ("tree", &scene.remote("no/tree"), "there is no directory"),
        (&scene.remote("file"), "no/file", "there is no directory no"),
        (&scene.remote("*"), "x", "patterns are not expanded"),
        (&format!("{}:~/none", scene.agent.uri()), "x", "~ is not expanded"),
    ] {
        let said = scene.copy(&["-qr", from, to]).await;
        assert!(said.failure(1).contains(text), "{said:?}");
    }
    assert!(!scene.there("no").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_copy_has_left_is_used_for_the_same_content_alone() {
    let scene = Scene::start();
    std::fs::write(scene.there("file"), random(120_000_000)).unwrap();
    let parts = || {
        let names = std::fs::read_dir(scene.here.path()).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.file_name().unwrap() != "file").collect::<Vec<_>>()
    };
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
    let has_begun = async || parts().first().is_some_and(|part| size(part) > 8_000_000);
    // of the same size
    let content = random(120_000_000);
    interrupted(&scene, &scene.remote("file"), "file", Signal::KILL, has_begun).await;
    std::fs::write(scene.there("file"), &content).unwrap();
    scene.copy(&["-q", &scene.remote("file"), "file"]).await.answer();
    assert!(std::fs::read(scene.here("file")).unwrap() == content);
    only(scene.here.path(), &["file"]);
    // shorter than what is kept
    interrupted(&scene, &scene.remote("file"), "file", Signal::KILL, has_begun).await;
    std::fs::write(scene.there("file"), b"short").unwrap();
    scene.copy(&["-q", &scene.remote("file"), "file"]).await.answer();
    assert_eq!(std::fs::read(scene.here("file")).unwrap(), b"short");
    // a source that is gone leaves nothing
    std::fs::write(scene.there("file"), &content).unwrap();
    interrupted(&scene, &scene.remote("file"), "file", Signal::KILL, has_begun).await;
    std::fs::remove_file(scene.there("file")).unwrap();
    assert_eq!(scene.copy(&["-q", &scene.remote("file"), "file"]).await.code, 1);
    only(scene.here.path(), &["file"]);
    // planted: a link would lead elsewhere
    std::fs::write(scene.there("file"), &content).unwrap();
    interrupted(&scene, &scene.remote("file"), "file", Signal::KILL, has_begun).await;
    let part = parts().remove(0);
    std::fs::remove_file(&part).unwrap();
    symlink(scene.there("victim"), &part).unwrap();
    scene.copy(&["-q", &scene.remote("file"), "file"]).await.answer();
    assert!(std::fs::read(scene.here("file")).unwrap() == content && !scene.there("victim").exists());
}
