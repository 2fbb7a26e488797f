use super::*;

/// Each request, with the question that it asks first: nothing is done, and the answer names the path.
#[test]
fn what_is_denied_is_not_touched() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("dir")).unwrap();
    std::fs::write(scene.path("dir/file"), "content").unwrap();
    symlink("dir/file", scene.path("link")).unwrap();
    let (link, new) = (scene.bytes("link"), scene.bytes("new"));
    let some = Attributes { mode: Some(0o600), ..Attributes::default() };
    let requests = |build: &dyn Fn(&mut Requests) -> &mut Requests| {
        let mut requests = Requests::new();
        build(&mut requests);
        requests
    };
    let (read, write, list) = (Access::Read, Access::Write, Access::List);
    for (requests, access, real) in [
        (requests(&|r| r.open(&link, open::READ)), read, "dir/file"),
        (requests(&|r| r.open(&link, 0)), read, "dir/file"),
        (requests(&|r| r.open(&link, NEW)), write, "dir/file"),
        (requests(&|r| r.open(&new, open::CREATE)), write, "new"),
        (requests(&|r| r.path(request::OPENDIR, &scene.bytes("dir"))), list, "dir"),
        (requests(&|r| r.path(request::STAT, &link)), list, "dir/file"),
        (requests(&|r| r.path(request::LSTAT, &link)), list, "link"),
        (requests(&|r| r.path(request::READLINK, &link)), list, "link"),
        (requests(&|r| r.set(request::SETSTAT, &link, &some)), write, "dir/file"),
        (requests(&|r| r.path(request::REMOVE, &link)), write, "link"),
        (requests(&|r| r.path(request::RMDIR, &scene.bytes("dir"))), write, "dir"),
        (requests(&|r| r.set(request::MKDIR, &new, &some)), write, "new"),
        (requests(&|r| r.two(request::RENAME, &link, &new)), write, "link"),
        (requests(&|r| r.two(request::SYMLINK, b"x", &new)), write, "new"),
        (requests(&|r| r.extended("posix-rename@openssh.com", |p| p.string(&link).string(&new))), write, "link"),
        (requests(&|r| r.extended("hardlink@openssh.com", |p| p.string(&link).string(&new))), read, "link"),
        (requests(&|r| r.extended("statvfs@openssh.com", |p| p.string(&link))), list, "dir/file"),
        (requests(&|r| r.extended("lsetstat@openssh.com", |p| p.string(&link).attributes(&some))), write, "link"),
    ] {
        let mut judge = Judge { denies: true, ..Judge::default() };
        let answers = requests.answers(&mut judge);
        assert_eq!(judge.questions, [(access, scene.bytes(real))]);
        assert!(answers[0].is(Status::PermissionDenied), "{answers:?}");
        let text = answers[0].text();
        assert!(text.contains("the policy denied") && text.ends_with(scene.path(real).to_str().unwrap()), "{text}");
    }
    assert_eq!(scene.names(), ["dir", "link"]);
    assert_eq!(std::fs::read(scene.path("link")).unwrap(), b"content");
}

/// The second path of two is asked about as well.
#[test]
fn both_paths_are_asked_about() {
    let scene = Scene::new();
    std::fs::write(scene.path("a"), "").unwrap();
    let (a, b) = (scene.bytes("a"), scene.bytes("b"));
    let mut judge = Judge::default();
    Requests::new().two(request::RENAME, &a, &b).answers(&mut judge);
    Requests::new().extended("hardlink@openssh.com", |packet| packet.string(&b).string(&a)).answers(&mut judge);
    let (read, write) = (Access::Read, Access::Write);
    assert_eq!(judge.questions, [(write, a.clone()), (write, b.clone()), (read, b.clone()), (write, b), (write, a)]);
}

struct Broken;

impl Gate for Broken {
    fn permit(&mut self, _: Access, _: &[u8]) -> io::Result<bool> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn closed(&mut self, _: ClosedFile) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn without_a_verdict_the_session_ends() {
    let mut requests = Requests::new();
    requests.path(request::STAT, b"/");
    let error = serve(&requests.bytes[..], io::sink(), &mut Broken).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}
