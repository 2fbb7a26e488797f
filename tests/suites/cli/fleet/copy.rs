//! `fleet cp` and `fleet get`.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::{Fleet, summary};

/// A fleet of three, and two of which it hears nothing good: one that nobody answers for, and one whose policy refuses.
struct Scene {
    fleet: Fleet,
    _strict: telexec_tests::Agent,
}

impl Scene {
    fn start() -> Self {
        let fleet = Fleet::of(3);
        fleet.add("gone", "127.0.0.1:1");
        let strict = telexec_tests::Agent::builder().mtls(&fleet.certs).policy("").start();
        fleet.add("strict", strict.address());
        std::fs::create_dir(fleet.path().join("there")).unwrap();
        Self { fleet, _strict: strict }
    }

    fn path(&self, name: &str) -> String {
        self.fleet.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_to_all_hosts_and_one_that_fails_is_named() {
    let scene = Scene::start();
    let (file, script) = (scene.write("file", "content"), scene.write("script", "#!/bin/sh\n"));
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let there = scene.path("there");
    let said = scene.fleet.say(&["cp", "-w", "@web", &file, &script, &there]).await;
    assert_eq!((said.code, summary(&said)), (0, vec!["3 of 3 ok".to_owned()]));
    assert_eq!(scene.read("there/file"), "content");
    assert_eq!(std::fs::metadata(scene.path("there/script")).unwrap().permissions().mode() & 0o777, 0o755);
    scene.write("tree/sub/one", "1");
    scene.write("tree/two", "2");
    scene.fleet.say(&["cp", "-r", "-q", "-w", "web01", &scene.path("tree"), &there]).await.answer();
    assert_eq!((scene.read("there/tree/sub/one"), scene.read("there/tree/two")), ("1".to_owned(), "2".to_owned()));
    // the others are copied to
    std::fs::remove_file(scene.path("there/file")).unwrap();
    let said = scene.fleet.say(&["cp", "-w", "@web,gone,strict", &file, &there]).await;
    assert_eq!(said.code, 1);
    assert!(said.stderr().contains("gone: unreachable"), "{}", said.stderr());
    assert!(said.stderr().contains("strict: refused"), "{}", said.stderr());
    assert!(said.stderr().contains("3 of 5 ok"), "{}", said.stderr());
    assert_eq!(scene.read("there/file"), "content");
    let said = scene.fleet.say(&["cp", "-w", "@web", &file, "/no-such-directory/x"]).await;
    assert_eq!(said.code, 1);
    assert!(said.stderr().contains("web[01-03]: failed: there is no directory"), "{}", said.stderr());
    assert!(said.stderr().contains("/no-such-directory"), "{}", said.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_copied_to_any_host_is_refused_at_once() {
    let scene = Scene::start();
    for (args, reason) in [
        (&["cp", "-w", "@web", "-", "/tmp/x"][..], "standard input"),
        (&["cp", "-w", "@web", "/no-such-file", "/tmp/x"], "cannot open /no-such-file: no such file"),
        (&["cp", "-w", "@web", "only"], "needs a source and a destination"),
        (&["cp", "/etc/hostname", "/tmp/x"], "no hosts given"),
        (&["get", "-w", "@web", "/etc/hostname"], "<DIR>"),
        (&["get", "-w", "@web", "/etc/hostname", "-"], "needs a directory"),
    ] {
        let said = scene.fleet.say(args).await;
        assert_eq!(said.code, 2, "{args:?}: {}", said.stderr());
        assert!(said.stderr().to_lowercase().contains(&reason.to_lowercase()), "{args:?}: {}", said.stderr());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_come_from_all_hosts_to_directories_of_their_own() {
    let scene = Scene::start();
    let (file, logs) = (scene.write("there/file", "content"), scene.path("logs"));
    scene.write("there/tree/sub/one", "1");
    let said = scene.fleet.say(&["get", "-w", "@web,gone", &file, &logs]).await;
    assert_eq!(said.code, 1);
    assert!(said.stderr().contains("gone: unreachable"), "{}", said.stderr());
    for host in ["web01", "web02", "web03"] {
        assert_eq!(scene.read(&format!("logs/{host}/file")), "content");
    }
    // a host of which nothing has come has no directory
    let mut names: Vec<_> = std::fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["web01", "web02", "web03"]);
    scene.fleet.say(&["get", "-r", "-q", "-w", "@web", &scene.path("there/tree"), &logs]).await.answer();
    assert_eq!(scene.read("logs/web02/tree/sub/one"), "1");
    let said = scene.fleet.say(&["get", "-w", "web01", "/no-such-file", &scene.path("none")]).await;
    assert_eq!(said.code, 1);
    assert!(said.stderr().contains("cannot open /no-such-file: no such file"), "{}", said.stderr());
    assert!(!std::path::Path::new(&scene.path("none/web01")).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_a_host_has_sent_leads_nowhere() {
    let scene = Scene::start();
    let (victim, logs) = (scene.write("victim", "mine"), scene.path("logs"));
    scene.write("there/tree/x", "theirs");
    std::fs::create_dir_all(scene.path("logs/web01")).unwrap();
    symlink(&victim, scene.path("logs/web01/x")).unwrap();
    symlink(scene.path("there"), scene.path("logs/web01/tree")).unwrap();
    for (args, path) in [(&["get"][..], "there/tree/x"), (&["get", "-r"], "there/tree")] {
        let said = scene.fleet.say(&[args, &["-w", "web01", &scene.path(path), &logs]].concat()).await;
        assert_eq!(said.code, 1);
        assert!(said.stderr().contains("is a symbolic link: remove it first"), "{}", said.stderr());
    }
    assert_eq!(scene.read("victim"), "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_get_a_line_for_each_host() {
    let scene = Scene::start();
    let file = scene.write("file", "content");
    let said = scene.fleet.say(&["cp", "--json", "-w", "web01,gone", &file, &scene.path("there")]).await;
    assert_eq!(said.code, 1);
    let lines: Vec<serde_json::Value> =
        String::from_utf8(said.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let outcome = |host: &str| lines.iter().find(|line| line["host"] == host).map(|line| line["outcome"].clone());
    assert_eq!(outcome("web01").unwrap(), "ok");
    assert_eq!(outcome("gone").unwrap(), "unreachable");
    assert_eq!(lines.last().unwrap()["event"], "summary");
}
