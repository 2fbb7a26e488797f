use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::io::Errno;

use super::super::paths::rename_in_steps;
use super::*;
use crate::place::{Links, Place};

#[test]
fn directories_are_read_with_names_of_any_bytes() {
    let scene = Scene::new();
    let odd = [&b"new\nline"[..], b"\xff\xfe", b" "];
    odd.iter().for_each(|name| std::fs::write(scene.path("").join(OsString::from_vec(name.to_vec())), "x").unwrap());
    (0..1000).for_each(|n| std::fs::write(scene.path(&format!("{n:04}")), "").unwrap());
    let mut requests = Requests::new();
    requests.path(request::OPENDIR, &scene.bytes(""));
    for _ in 0..20 {
        requests.handle(request::READDIR, 0);
    }
    let answers = requests.done();
    let pages = answers[1..].iter().filter_map(|answer| match answer {
        Answer::Names(names) => Some(names.clone()),
        other => {
            assert!(other.is(Status::Eof));
            None
        }
    });
    let mut names: Vec<_> = pages.flatten().collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(names.len(), 1000 + odd.len() + 2);
    for name in odd.into_iter().chain([&b"."[..], b"..", b"0999"]) {
        assert!(names.iter().any(|(other, long, _)| other == name && long.ends_with(name)));
    }
    let (_, long, attributes) = names.iter().find(|(name, ..)| name == odd[1]).unwrap();
    assert_eq!((attributes.size, attributes.mode.map(|mode| mode & 0o170_000)), (Some(1), Some(0o100_000)));
    assert!(long.starts_with(b"-rw"));
}

#[test]
fn names_are_made_moved_and_removed() {
    let scene = Scene::new();
    let at = |name: &str| scene.bytes(name);
    let ok = |answer: Answer| assert!(answer.is(Status::Ok), "{answer:?}");
    let fails = |answer: Answer, text: &str| assert!(answer.text().contains(text), "{answer:?}");
    std::fs::write(scene.path("a"), "a").unwrap();
    std::fs::write(scene.path("b"), "b").unwrap();
    fails(Requests::new().two(request::RENAME, &at("a"), &at("b")).one(), "file exists");
    assert_eq!(std::fs::read(scene.path("b")).unwrap(), b"b");
    ok(Requests::new().two(request::RENAME, &at("a"), &at("c")).one());
    let posix = |from: &str, to: &str| {
        Requests::new().extended("posix-rename@openssh.com", |packet| packet.string(&at(from)).string(&at(to))).one()
    };
    ok(posix("c", "b"));
    assert_eq!(std::fs::read(scene.path("b")).unwrap(), b"a");
    let hard = |from: &str, to: &str| {
        Requests::new().extended("hardlink@openssh.com", |packet| packet.string(&at(from)).string(&at(to))).one()
    };
    ok(hard("b", "hard"));
    assert_eq!(scene.path("b").metadata().unwrap().nlink(), 2);
    fails(hard("b", "hard"), "file exists");
    ok(Requests::new().two(request::SYMLINK, b"some/where", &at("soft")).one());
    assert_eq!(Requests::new().path(request::READLINK, &at("soft")).one().name(), b"some/where");
    assert!(Requests::new().path(request::READLINK, &at("b")).one().is(Status::BadMessage));

    let mode = |mode| Attributes { mode: Some(mode), ..Attributes::default() };
    ok(Requests::new().set(request::MKDIR, &at("dir/"), &mode(0o40_700)).one());
    assert_eq!(scene.path("dir").metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    fails(Requests::new().set(request::MKDIR, &at("dir"), &mode(0o700)).one(), "file exists");
    ok(Requests::new().set(request::MKDIR, &at("less"), &Attributes::default()).one());
    std::fs::create_dir(scene.path("the umask")).unwrap();
    assert_eq!(scene.path("less").metadata().unwrap().mode(), scene.path("the umask").metadata().unwrap().mode());
    ok(Requests::new().path(request::RMDIR, &at("less")).path(request::RMDIR, &at("the umask")).one());
    ok(Requests::new().two(request::SYMLINK, b"dir", &at("link")).one());
    fails(Requests::new().path(request::RMDIR, &at("link/")).one(), "not a directory");
    fails(Requests::new().path(request::REMOVE, &at("b/")).one(), "not a directory");
    fails(Requests::new().path(request::REMOVE, &at("dir")).one(), "is a directory");
    ok(Requests::new().path(request::RMDIR, &at("dir")).one());
    for name in ["b", "hard", "soft", "link"] {
        ok(Requests::new().path(request::REMOVE, &at(name)).one());
    }
    fails(Requests::new().path(request::REMOVE, &at("b")).one(), "no such file");
    assert!(scene.names().is_empty());
}

/// As where the file system cannot rename without replacing.
#[test]
fn renaming_in_steps_replaces_nothing_either() {
    let scene = Scene::new();
    ["a", "b"].iter().for_each(|name| std::fs::write(scene.path(name), name).unwrap());
    ["dir", "other"].iter().for_each(|name| std::fs::create_dir(scene.path(name)).unwrap());
    let rename = |from: &str, to: &str| {
        let place = |name: &str| Place::of(&scene.bytes(name), Links::Keep).unwrap();
        rename_in_steps(&place(from), &place(to))
    };
    assert_eq!(rename("a", "b"), Err(Errno::EXIST));
    assert_eq!(rename("dir", "other"), Err(Errno::EXIST));
    assert_eq!(rename("none", "b"), Err(Errno::NOENT));
    assert_eq!(std::fs::read(scene.path("b")).unwrap(), b"b");
    assert_eq!((rename("a", "c"), rename("dir", "moved")), (Ok(()), Ok(())));
    assert_eq!(scene.names(), ["b", "c", "moved", "other"]);
}

#[test]
fn paths_are_resolved_without_a_question() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("dir")).unwrap();
    symlink("dir", scene.path("link")).unwrap();
    let mut judge = Judge { denies: true, ..Judge::default() };
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    let here = here.as_os_str().as_bytes();
    for (path, expected) in [
        (&b""[..], here.to_vec()),
        (b".", here.to_vec()),
        (b"/", b"/".to_vec()),
        (b"//", b"/".to_vec()),
        (&scene.bytes("link/none"), scene.bytes("dir/none")),
        (&scene.bytes("link//"), scene.bytes("dir")),
        (
            &scene.bytes("dir/../link/.."),
            scene.path("").parent().unwrap().join(scene.path("").file_name().unwrap()).into_os_string().into_vec(),
        ),
    ] {
        let answers = Requests::new().path(request::REALPATH, path).answers(&mut judge);
        assert_eq!(answers[0].name().escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
    assert!(Requests::new().path(request::REALPATH, &scene.bytes("none/x")).one().is(Status::NoSuchFile));
    let expand = |path: &[u8]| Requests::new().extended("expand-path@openssh.com", |packet| packet.string(path)).one();
    assert_eq!(expand(b"~").name(), here);
    assert_eq!(expand(b"~/x").name(), [here, b"/x"].concat());
    assert_eq!(expand(b"~root/x").name(), b"/root/x");
    let long = Requests::new().path(request::REALPATH, &vec![b'x'; 200_000]).one();
    assert!(long.is(Status::BadMessage) && long.text().len() == 1024);
    assert!(expand(b"~\xff").is(Status::NoSuchFile));
    assert!(judge.questions.is_empty());
}

#[test]
fn extensions_answer() {
    let limits = Requests::new().extended("limits@openssh.com", |packet| packet).one();
    let Answer::Extended(limits) = limits else { panic!() };
    let numbers: Vec<u64> = limits.chunks(8).map(|chunk| u64::from_be_bytes(chunk.try_into().unwrap())).collect();
    assert_eq!(numbers[..3], [262_144, 261_120, 261_120]);
    let home = |user: &[u8]| Requests::new().extended("home-directory", |packet| packet.string(user)).one();
    assert_eq!(home(b"root").name(), b"/root");
    assert!(home(b"nobody-has-this-name").is(Status::NoSuchFile) && home(b"a\0b").is(Status::NoSuchFile));
    assert!(home(b"").name().starts_with(b"/"));
    let ids = |users: &[u8], groups: &[u8]| {
        Requests::new().extended("users-groups-by-id@openssh.com", |packet| packet.string(users).string(groups)).one()
    };
    let Answer::Extended(names) = ids(&[0, 0, 0, 0, 0xff, 0, 0, 1], &[0, 0, 0, 0]) else { panic!() };
    let mut fields = Fields::of(&names);
    assert_eq!(fields.string().unwrap(), b"\0\0\0\x04root\0\0\0\0");
    assert_eq!(fields.string().unwrap(), b"\0\0\0\x04root");
    assert!(ids(&vec![0; 240_000], b"").is(Status::Failure));
    let statvfs = Requests::new().extended("statvfs@openssh.com", |packet| packet.string(b"/")).one();
    assert!(matches!(statvfs, Answer::Extended(numbers) if numbers.len() == 88));
    assert!(Requests::new().extended("unheard-of@example.com", |packet| packet).one().is(Status::Unsupported));
    assert!(Requests::new().add(99, |packet| packet).one().is(Status::Unsupported));
}
