use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use prost::Message;
use telexec_executor::{FileError, FileErrorKind, FileInfo, FileType};
use tempfile::TempDir;

use crate::frame::{self, Kind};
use crate::message::*;
use crate::serve;

struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.path(name).as_os_str().as_bytes().to_vec()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn writing(&self, name: &str) -> WriteTask {
        WriteTask { path: self.bytes(name), ..WriteTask::default() }
    }
}

/// What comes for these frames; the pipe ends after them.
fn frames(asks: bool, task: Task, rest: &[(Kind, &[u8])]) -> Vec<(Kind, Vec<u8>)> {
    let mut input = Vec::new();
    let request = Request { asks, task: Some(task), ..Request::default() };
    frame::write(&mut input, Kind::Request, &request.encode_to_vec()).unwrap();
    for (kind, data) in rest {
        frame::write(&mut input, *kind, data).unwrap();
    }
    let mut output = Vec::new();
    let _ = serve(&input[..], &mut output);
    let (mut from, mut data, mut all) = (&output[..], Vec::new(), Vec::new());
    while let Some(kind) = frame::read(&mut from, &mut data).unwrap() {
        all.push((kind, data.clone()));
    }
    all
}

fn outcome((kind, data): &(Kind, Vec<u8>)) -> Outcome {
    assert_eq!(*kind, Kind::Answer);
    Answer::decode(&data[..]).unwrap().outcome.unwrap()
}

fn done(task: Task) -> Outcome {
    let frames = frames(false, task, &[]);
    assert_eq!(frames.len(), 1);
    outcome(&frames[0])
}

fn written(task: WriteTask, data: &[u8]) -> Outcome {
    let (one, two) = data.split_at(data.len() / 2);
    let frames = frames(false, Task::Write(task), &[(Kind::Data, one), (Kind::Data, two), (Kind::End, b"")]);
    assert_eq!(frames.len(), 1);
    outcome(&frames[0])
}

#[track_caller]
fn failed(outcome: Outcome, text: &str) -> FileErrorKind {
    let Outcome::Failed(failed) = outcome else { panic!("{outcome:?}") };
    let error = FileError::from(failed);
    assert!(error.to_string().contains(text), "{error}");
    error.kind()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_file_is_written_with_its_mode_and_digest() {
    let scene = Scene::new();
    let Outcome::Written(first) = written(scene.writing("new"), b"some data") else { panic!() };
    assert_eq!(first.sha256, digest(&SHA256, b"some data").as_ref());
    let info = FileInfo::from(first.info.unwrap());
    assert_eq!((info.kind, info.size, info.mode), (FileType::Regular, 9, mode(&scene.path("new"))));
    assert_eq!(std::fs::read(scene.path("new")).unwrap(), b"some data");

    // of an existing file the mode is kept, unless another is asked for
    std::fs::set_permissions(scene.path("new"), std::fs::Permissions::from_mode(0o750)).unwrap();
    written(scene.writing("new"), b"other");
    assert_eq!((mode(&scene.path("new")), std::fs::read(scene.path("new")).unwrap()), (0o750, b"other".to_vec()));
    written(WriteTask { mode: Some(0o4711), ..scene.writing("new") }, b"");
    assert_eq!((mode(&scene.path("new")), std::fs::read(scene.path("new")).unwrap()), (0o4711, Vec::new()));

    written(WriteTask { make_parents: true, ..scene.writing("a/b/c") }, b"deep");
    assert_eq!(std::fs::read(scene.path("a/b/c")).unwrap(), b"deep");
    symlink("new", scene.path("link")).unwrap();
    written(scene.writing("link"), b"through");
    assert_eq!(std::fs::read(scene.path("new")).unwrap(), b"through");
    assert_eq!(scene.names(), ["a", "link", "new"]);
}

#[test]
fn what_cannot_be_written_whole_changes_nothing() {
    let scene = Scene::new();
    std::fs::write(scene.path("old"), "old").unwrap();
    std::fs::create_dir(scene.path("dir")).unwrap();
    let exclusive = WriteTask { exclusive: true, ..scene.writing("old") };
    assert_eq!(failed(written(exclusive, b"new"), "file exists"), FileErrorKind::AlreadyExists);
    assert_eq!(failed(written(scene.writing("dir"), b"new"), "is a directory"), FileErrorKind::WrongState);
    assert_eq!(failed(written(scene.writing("none/x"), b"new"), "no such file"), FileErrorKind::NotFound);
    assert_eq!(failed(written(scene.writing("old/x"), b"new"), "not a directory"), FileErrorKind::NotFound);
    let Outcome::Written(other) = written(WriteTask { sha256: vec![1; 32], ..scene.writing("old") }, b"new") else {
        panic!()
    };
    assert!(other.is_other && other.info.is_none());
    // the caller goes in the middle of it
    assert!(frames(false, Task::Write(scene.writing("old")), &[(Kind::Data, b"new")]).is_empty());
    assert_eq!(std::fs::read(scene.path("old")).unwrap(), b"old");
    assert_eq!(scene.names(), ["dir", "old"]);
    let exclusive = WriteTask { exclusive: true, ..scene.writing("first") };
    assert!(matches!(written(exclusive, b"new"), Outcome::Written(written) if !written.is_other));
}

#[test]
fn after_a_refused_file_comes_the_next_request() {
    let scene = Scene::new();
    let next = Request { asks: false, task: Some(Task::Info(scene.bytes(""))), ..Request::default() }.encode_to_vec();
    let task = Task::Write(scene.writing("none/x"));
    let frames = frames(false, task, &[(Kind::Data, b"abc"), (Kind::End, b""), (Kind::Request, &next)]);
    assert!(matches!(outcome(&frames[0]), Outcome::Failed(_)));
    assert!(matches!(outcome(&frames[1]), Outcome::Info(_)));
}

#[test]
fn a_file_is_read_from_an_offset() {
    let scene = Scene::new();
    let content: Vec<u8> = (0..600_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(scene.path("file"), &content).unwrap();
    for (offset, length) in [(0, 0), (1_000_003, 0), (5, 700_000), (content.len() as u64, 0), (1 << 40, 0)] {
        let frames = frames(
            false,
            Task::Read(ReadTask { path: scene.bytes("file"), offset, length, ..ReadTask::default() }),
            &[],
        );
        assert!(matches!(outcome(&frames[0]), Outcome::Info(info) if info.size == content.len() as u64));
        let data: Vec<u8> =
            frames.iter().filter(|(kind, _)| *kind == Kind::Data).flat_map(|(_, data)| data.clone()).collect();
        let from = content.get(offset as usize..).unwrap_or_default();
        let expected = if length == 0 { from } else { &from[..length as usize] };
        assert!(data == expected, "{offset}");
        let Outcome::Read(read) = outcome(frames.last().unwrap()) else { panic!() };
        assert_eq!(read.sha256, digest(&SHA256, expected).as_ref());
    }
    let read = |path: &str| done(Task::Read(ReadTask { path: path.into(), ..ReadTask::default() }));
    assert_eq!(failed(read(scene.0.path().to_str().unwrap()), "is a directory"), FileErrorKind::WrongState);
    assert_eq!(failed(read("/dev/zero"), "not a regular file"), FileErrorKind::WrongState);
    assert_eq!(failed(read("/nowhere"), "cannot open /nowhere: no such file"), FileErrorKind::NotFound);
}

#[test]
fn holes_are_sent_and_written_as_such() {
    const MIB: u64 = 1024 * 1024;
    let scene = Scene::new();
    let file = std::fs::File::create(scene.path("sparse")).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"middle", 64 * MIB).unwrap();
    file.set_len(512 * MIB).unwrap();
    let read = ReadTask { path: scene.bytes("sparse"), holes: true, ..ReadTask::default() };
    let frames = frames(false, Task::Read(read), &[]);
    let is_content = |kind| matches!(kind, Kind::Data | Kind::Hole);
    let content: Vec<_> = frames.iter().filter(|(kind, _)| is_content(*kind)).cloned().collect();
    let sent: u64 = content.iter().filter(|(kind, _)| *kind == Kind::Data).map(|(_, data)| data.len() as u64).sum();
    let holes: u64 = content.iter().filter(|(kind, _)| *kind == Kind::Hole).map(|(_, d)| frame::hole(d).unwrap()).sum();
    assert_eq!(sent + holes, 512 * MIB);
    assert!(sent < MIB, "{sent}");
    let Outcome::Read(read) = outcome(frames.last().unwrap()) else { panic!() };

    let mut pieces: Vec<(Kind, &[u8])> = content.iter().map(|(kind, data)| (*kind, &data[..])).collect();
    pieces.push((Kind::End, b""));
    let task = Task::Write(WriteTask { is_synced_later: true, ..scene.writing("copy") });
    let Outcome::Written(written) = outcome(&self::frames(false, task, &pieces)[0]) else { panic!() };
    assert_eq!(written.sha256, read.sha256);
    let copy = std::fs::metadata(scene.path("copy")).unwrap();
    assert_eq!(copy.len(), 512 * MIB);
    assert!(copy.blocks() * 512 < MIB, "{}", copy.blocks());
    let mut middle = [0; 7];
    std::fs::File::open(scene.path("copy")).unwrap().read_exact_at(&mut middle, 64 * MIB).unwrap();
    assert_eq!(&middle, b"middle\0");
}

#[test]
fn links_are_made_in_place_of_files_but_not_of_directories() {
    let scene = Scene::new();
    let link = |target: &str| {
        done(Task::MakeLink(MakeLinkTask { path: scene.bytes("link"), target: target.as_bytes().to_vec() }))
    };
    for target in ["one", "two"] {
        assert_eq!(link(target), Outcome::Done(Done {}));
        assert_eq!(std::fs::read_link(scene.path("link")).unwrap(), Path::new(target));
    }
    std::fs::remove_file(scene.path("link")).unwrap();
    std::fs::create_dir(scene.path("link")).unwrap();
    assert_eq!(failed(link("three"), "cannot make link"), FileErrorKind::AlreadyExists);
    assert_eq!(scene.names(), ["link"]);
    assert_eq!(done(Task::Sync(Done {})), Outcome::Done(Done {}));
}

#[test]
fn a_directory_is_listed_in_pages() {
    let scene = Scene::new();
    for number in 0..25 {
        std::fs::write(scene.path(&format!("{number:02}")), "x").unwrap();
    }
    symlink("nowhere", scene.path("link")).unwrap();
    let (mut after, mut names) = (Vec::new(), Vec::new());
    loop {
        let Outcome::Listed(page) = done(Task::List(ListTask { path: scene.bytes(""), after, limit: 10 })) else {
            panic!()
        };
        names.extend(page.entries.iter().map(|entry| String::from_utf8(entry.path.clone()).unwrap()));
        after = page.entries.last().unwrap().path.clone();
        if !page.has_more {
            assert_eq!(page.entries.last().unwrap().link_target.as_deref(), Some(&b"nowhere"[..]));
            break;
        }
        assert_eq!(page.entries.len(), 10);
    }
    assert_eq!(names, scene.names());
}

#[test]
fn directories_are_made_and_files_moved_and_removed() {
    let scene = Scene::new();
    let make = |name: &str, mode, make_parents| {
        done(Task::MakeDirectory(MakeDirectoryTask { path: scene.bytes(name), mode, make_parents }))
    };
    assert!(matches!(make("a", Some(0o2770), false), Outcome::Done(_)));
    assert_eq!(mode(&scene.path("a")), 0o2770);
    assert_eq!(failed(make("a", None, false), "file exists"), FileErrorKind::AlreadyExists);
    assert_eq!(failed(make("b/c", None, false), "no such file"), FileErrorKind::NotFound);
    assert!(matches!(make("b/c", None, true), Outcome::Done(_)));
    assert!(matches!(make("b/c", None, true), Outcome::Done(_)));
    std::fs::write(scene.path("file"), "x").unwrap();
    std::fs::write(scene.path("b/c/other"), "x").unwrap();
    let rename = |from: &str, to: &str, replace| {
        done(Task::Move(MoveTask { source: scene.bytes(from), destination: scene.bytes(to), replace }))
    };
    assert_eq!(failed(rename("file", "b/c/other", false), "b/c/other"), FileErrorKind::AlreadyExists);
    assert!(matches!(rename("file", "b/c/other", true), Outcome::Done(_)));
    let remove = |name: &str, recursive| done(Task::Remove(RemoveTask { path: scene.bytes(name), recursive }));
    assert_eq!(failed(remove("b", false), "not empty"), FileErrorKind::WrongState);
    symlink(scene.path("b"), scene.path("link")).unwrap();
    assert!(matches!(remove("link", true), Outcome::Done(_)));
    assert!(matches!(remove("a", false), Outcome::Done(_)));
    assert_eq!(scene.names(), ["b"]);
    assert!(matches!(remove("b", true), Outcome::Done(_)));
    assert_eq!(failed(remove("b", true), "no such file"), FileErrorKind::NotFound);
}

/// With the path that a file really has.
#[test]
fn it_asks_before_it_touches_a_file() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("dir")).unwrap();
    std::fs::write(scene.path("dir/file"), "secret").unwrap();
    symlink("dir/file", scene.path("link")).unwrap();
    let path = scene.bytes("link");
    let reading = || Task::Read(ReadTask { path: path.clone(), ..ReadTask::default() });
    for (task, access, real) in [
        (reading(), Access::Read, "dir/file"),
        (Task::Write(WriteTask { path: path.clone(), ..WriteTask::default() }), Access::Write, "dir/file"),
        (Task::Info(path.clone()), Access::List, "link"),
        (Task::Remove(RemoveTask { path: path.clone(), recursive: true }), Access::Write, "link"),
    ] {
        let frames = frames(true, task, &[(Kind::Verdict, &[0])]);
        assert_eq!(frames[0].0, Kind::Question);
        let question = Question::decode(&frames[0].1[..]).unwrap();
        assert_eq!((question.access(), question.path), (access, scene.bytes(real)));
        assert_eq!((frames.len(), outcome(&frames[1])), (2, Outcome::Denied(scene.bytes(real))));
    }
    let frames = frames(true, reading(), &[(Kind::Verdict, &[1])]);
    assert!(frames.iter().any(|(kind, data)| *kind == Kind::Data && data == b"secret"));
    assert_eq!(scene.names(), ["dir", "link"]);
}
