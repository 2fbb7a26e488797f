use std::os::unix::fs::MetadataExt;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

#[test]
fn files_are_written_and_read() {
    let scene = Scene::new();
    let path = scene.bytes("file");
    let mut judge = Judge::default();
    let answers = Requests::new()
        .open(&path, NEW | open::READ)
        .write(0, 5, b"world")
        .write(0, 0, b"hello")
        .read(0, 0, 100)
        .read(0, 3, 4)
        .read(0, 10, 1)
        .read(0, 0, 0)
        .extended("fsync@openssh.com", |packet| packet.string(&0u64.to_be_bytes()))
        .handle(request::CLOSE, 0)
        .read(0, 0, 1)
        .open(&path, open::READ)
        .read(1, 0, 1)
        .answers(&mut judge);
    assert_eq!(answers[0], Answer::Handle(0));
    assert!(answers[1].is(Status::Ok) && answers[2].is(Status::Ok));
    assert_eq!(answers[3], Answer::Data(b"helloworld".to_vec()));
    assert_eq!(answers[4], Answer::Data(b"lowo".to_vec()));
    assert!(answers[5].is(Status::Eof));
    assert_eq!(answers[6], Answer::Data(Vec::new()));
    assert!(answers[7].is(Status::Ok) && answers[8].is(Status::Ok));
    assert!(answers[9].is(Status::Failure) && answers[9].text().contains("no such handle"));
    let closed = |bytes_read, bytes_written| ClosedFile { path: path.clone(), bytes_read, bytes_written };
    assert_eq!(judge.closed, [closed(14, 10), closed(1, 0)]);
    let asked: Vec<_> = judge.questions.iter().map(|(access, _)| *access).collect();
    assert_eq!(asked, [Access::Read, Access::Write, Access::Read]);
}

#[test]
fn files_are_opened_as_asked() {
    let scene = Scene::new();
    std::fs::write(scene.path("old"), "old").unwrap();
    symlink("nowhere", scene.path("dangling")).unwrap();
    let private = Attributes { mode: Some(0o100_600), ..Attributes::default() };
    let answers = Requests::new()
        .open(&scene.bytes("old"), NEW | open::EXCLUSIVE)
        .open(&scene.bytes("dangling"), NEW | open::EXCLUSIVE)
        .open(&scene.bytes("old"), open::WRITE | open::APPEND)
        .write(0, 0, b"er")
        .add(request::OPEN, |packet| packet.string(&scene.bytes("new")).u32(NEW).attributes(&private))
        .open(&scene.bytes("dangling"), NEW)
        .open(&scene.bytes("none"), open::READ)
        .open(&scene.bytes("none/"), NEW)
        .open(&scene.bytes(""), open::WRITE)
        .open(&scene.bytes("old"), open::READ)
        .write(3, 0, b"x")
        .done();
    assert!(answers[0].text().contains("file exists") && answers[1].text().contains("file exists"), "{answers:?}");
    assert_eq!(std::fs::read(scene.path("old")).unwrap(), b"older");
    assert_eq!(scene.path("new").metadata().unwrap().mode(), 0o100_600);
    // less the umask, which the old one was too
    assert_eq!(scene.path("nowhere").metadata().unwrap().mode(), scene.path("old").metadata().unwrap().mode());
    assert!(answers[6].is(Status::NoSuchFile) && answers[7].is(Status::NoSuchFile));
    assert!(answers[8].is(Status::Failure) && answers[8].text().contains("is a directory"));
    assert_eq!(answers[9], Answer::Handle(3));
    assert!(answers[10].is(Status::NoSuchFile));
    assert_eq!(scene.names().len(), 4);
}

/// A test that hangs fails.
#[test]
fn pipes_and_devices_hang_nobody() {
    let scene = Scene::new();
    mknodat(CWD, scene.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let answers = Requests::new()
        .open(&scene.bytes("fifo"), open::READ)
        .read(0, 0, 10)
        .open(&scene.bytes("fifo"), open::WRITE)
        .open(b"/dev/zero", open::READ | open::WRITE)
        .read(2, 1 << 40, 4)
        .write(2, 0, b"gone")
        .set(request::SETSTAT, &scene.bytes("fifo"), &Attributes { size: Some(0), ..Attributes::default() })
        .path(request::STAT, b"/proc/self/fd/0")
        .done();
    assert_eq!(answers[0], Answer::Handle(0));
    assert!(answers[1].is(Status::Failure) && answers[6].is(Status::BadMessage));
    assert_eq!(answers[2], Answer::Handle(1)); // somebody reads it: the first handle
    assert_eq!(answers[4], Answer::Data(vec![0; 4]));
    assert!(answers[5].is(Status::Ok));
    assert!(Requests::new().open(&scene.bytes("fifo"), open::WRITE).one().is(Status::Failure));
}

#[test]
fn attributes_are_set_of_what_was_named() {
    let scene = Scene::new();
    std::fs::write(scene.path("file"), "content").unwrap();
    symlink("file", scene.path("link")).unwrap();
    let (file, link) = (scene.bytes("file"), scene.bytes("link"));
    let times = |seconds| Attributes { times: Some((seconds, seconds + 1)), ..Attributes::default() };
    let mode = |mode| Attributes { mode: Some(mode), ..Attributes::default() };
    let keeps_owner = Attributes { owner: Some((u32::MAX, u32::MAX)), ..mode(0o4711) };
    let all = Attributes { size: Some(3), ..times(1_000_000) };
    let lsetstat = |attributes: Attributes| {
        let build = |packet: Packet| packet.string(&link).attributes(&attributes);
        Requests::new().extended("lsetstat@openssh.com", build).one()
    };
    assert!(Requests::new().set(request::SETSTAT, &link, &all).one().is(Status::Ok));
    assert!(Requests::new().set(request::SETSTAT, &link, &keeps_owner).one().is(Status::Ok));
    assert!(lsetstat(times(5)).is(Status::Ok));
    assert!(lsetstat(Attributes { size: Some(1), ..Attributes::default() }).is(Status::BadMessage));
    let stat = |path: &str| scene.path(path).symlink_metadata().unwrap();
    assert_eq!((stat("file").len(), stat("file").mtime(), stat("file").mode()), (3, 1_000_001, 0o104_711));
    assert_eq!((stat("link").atime(), stat("link").mtime()), (5, 6));
    let size = |size| Attributes { size: Some(size), ..Attributes::default() };
    assert!(Requests::new().set(request::SETSTAT, &scene.bytes(""), &size(0)).one().is(Status::Failure));

    let handle = 0u64.to_be_bytes();
    let mut judge = Judge::default();
    let answers = Requests::new()
        .open(&file, open::READ)
        .set(request::FSETSTAT, &handle, &mode(0o600))
        .set(request::FSETSTAT, &handle, &times(7))
        .set(request::FSETSTAT, &handle, &size(u64::MAX))
        .handle(request::FSTAT, 0)
        .answers(&mut judge);
    // what was opened to be read may not be changed without another question
    let questions = [(Access::Read, file.clone()), (Access::Write, file.clone())];
    assert_eq!(judge.questions, questions);
    assert!(answers[1].is(Status::Ok) && answers[2].is(Status::Ok) && !answers[3].is(Status::Ok));
    let Answer::Attributes(known) = &answers[4] else { panic!() };
    assert_eq!((known.mode, known.times), (Some(0o100_600), Some((7, 8))));
}

#[test]
fn data_is_copied_between_handles() {
    let scene = Scene::new();
    std::fs::write(scene.path("from"), "0123456789").unwrap();
    std::fs::write(scene.path("log"), "log:").unwrap();
    symlink("from", scene.path("same")).unwrap();
    let mut judge = Judge::default();
    let answers = Requests::new()
        .open(&scene.bytes("from"), open::READ)
        .open(&scene.bytes("to"), NEW)
        .open(&scene.bytes("log"), open::WRITE | open::APPEND)
        .open(&scene.bytes("same"), open::WRITE)
        .open(b"/proc/cpuinfo", open::READ)
        .copy((0, 2), 0, (1, 0))
        .copy((0, 0), 3, (1, 8))
        .copy((0, 5), 0, (2, 0))
        .copy((0, 5), 100, (2, 0))
        .copy((0, 0), 0, (3, 0))
        .copy((4, 0), 0, (1, 0))
        .answers(&mut judge);
    assert!(answers[5..8].iter().all(|answer| answer.is(Status::Ok)), "{answers:?}");
    assert!(answers[8].is(Status::Eof) && answers[9].is(Status::Failure) && answers[10].is(Status::Ok), "{answers:?}");
    assert_eq!(std::fs::read(scene.path("log")).unwrap(), b"log:5678956789");
    assert!(std::fs::read(scene.path("to")).unwrap().starts_with(b"processor"));
    assert_eq!((judge.closed[0].bytes_read, judge.closed[2].bytes_written), (21, 10));
    assert_eq!(std::fs::read(scene.path("from")).unwrap(), b"0123456789");
}
