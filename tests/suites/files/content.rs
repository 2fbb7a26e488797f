//! What is read is what the file has, and what is written is all or nothing.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use futures_util::{StreamExt, stream};
use telexec_executor::{
    DirectoryQuery, Executor, ExecutorError, FileErrorKind, FilePath, FilePiece, FileRange, FileTarget, FileType,
    Files, ListQuery, WriteOptions,
};
use telexec_proto::v1::file_service_client::FileServiceClient;
use telexec_tests::{Agent, children, is_root, until, within};

use super::{failed, names, of_user, path, pieces, read, sha256, target, write};

#[tokio::test]
async fn a_file_comes_back_as_it_was_sent() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let content: Vec<u8> = (0..1_300_000u32).flat_map(u32::to_le_bytes).collect();
    let file = dir.path().join("file");
    let written = write(&files, target(&file), &content).await.unwrap();
    assert_eq!((written.info.size, written.info.kind), (content.len() as u64, FileType::Regular));
    assert_eq!(written.sha256, sha256(&content));
    assert!(std::fs::read(&file).unwrap() == content);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o644);

    let (all, digest) = read(&files, target(&file), FileRange::default()).await.unwrap();
    assert!(all == content);
    assert_eq!(digest, sha256(&content));
    let range = FileRange { offset: 1_000_001, length: 300_000, ..FileRange::default() };
    assert!(read(&files, target(&file), range).await.unwrap().0 == content[1_000_001..1_300_001]);

    let empty = dir.path().join("empty");
    write(&files, target(&empty), b"").await.unwrap();
    assert_eq!(read(&files, target(&empty), FileRange::default()).await.unwrap().0, b"");
    // the processes that did it are nobody's executions
    let all = ListQuery { include_exited: true, ..ListQuery::default() };
    assert!(within(agent.executor().await.list(all)).await.unwrap().executions.is_empty());
    assert_eq!(names(dir.path()), ["empty", "file"]);
}

#[tokio::test]
async fn what_fails_names_the_path_and_the_errno_and_changes_nothing() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("old"), "old").unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    let range = FileRange::default();
    for (name, kind, errno) in [
        ("none", FileErrorKind::NotFound, "ENOENT"),
        ("old/x", FileErrorKind::NotFound, "ENOTDIR"),
        ("dir", FileErrorKind::WrongState, "EISDIR"),
    ] {
        let error = failed(read(&files, target(&at(name)), range).await);
        assert_eq!((error.kind(), &*error.errno_name()), (kind, errno), "{name}");
        assert_eq!(error.path, path(&at(name)));
    }
    assert_eq!(failed(write(&files, target(&at("dir")), b"x").await).errno_name(), "EISDIR");
    assert_eq!(failed(write(&files, target(&at("none/x")), b"x").await).errno_name(), "ENOENT");
    assert_eq!(failed(read(&files, FileTarget::new("/dev/zero"), range).await).errno_name(), "EINVAL");
    if is_root() {
        assert_eq!(failed(write(&files, FileTarget::new("/dev/full"), b"x").await).errno_name(), "EINVAL");
    }

    let exclusive = WriteOptions { exclusive: true, ..WriteOptions::default() };
    let exists = within(files.write(target(&at("old")), exclusive, pieces("new"))).await;
    assert_eq!(failed(exists).kind(), FileErrorKind::AlreadyExists);
    let other = WriteOptions { sha256: Some([7; 32]), ..WriteOptions::default() };
    let corrupted = within(files.write(target(&at("old")), other, pieces("new"))).await;
    assert!(matches!(&corrupted, Err(ExecutorError::Corrupted { path: at_path }) if *at_path == path(&at("old"))));
    for (bad, field) in [("", "path"), ("a\0b", "path")] {
        let invalid = within(files.info(FileTarget::new(bad))).await;
        assert!(matches!(&invalid, Err(ExecutorError::Invalid(invalid)) if invalid.field == field), "{invalid:?}");
    }
    let unknown = within(files.info(of_user(dir.path(), "nobody-here"))).await;
    assert!(matches!(&unknown, Err(ExecutorError::Spawn(error)) if error.is_not_found()), "{unknown:?}");
    assert_eq!(std::fs::read(at("old")).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["dir", "old"]);
}

#[tokio::test]
async fn a_write_that_its_caller_gives_up_changes_nothing() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let file = dir.path().join("file");
    std::fs::write(&file, "old").unwrap();
    for round in 0..100 {
        // cancelled at various moments after the last piece that comes
        let pieces = stream::iter([Ok(FilePiece::Data("new".into()))]).chain(stream::pending()).boxed();
        let write = files.write(target(&file), WriteOptions::default(), pieces);
        let given_up = tokio::time::timeout(std::time::Duration::from_micros(round * 100), write).await;
        assert!(given_up.is_err(), "{given_up:?}");
    }
    let failing = stream::iter([
        Ok(FilePiece::Data("new".into())),
        Err(ExecutorError::Internal("the disk of this side fails".to_owned())),
    ]);
    let failure = within(files.write(target(&file), WriteOptions::default(), failing.boxed())).await.unwrap_err();
    assert_eq!(failure.to_string(), "the disk of this side fails");
    until("no process is left", async || children(agent.pid()).is_empty()).await;
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["file"]);
}

#[tokio::test]
async fn directories_are_made_listed_moved_and_removed() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let at = |name: &str| dir.path().join(name);
    within(files.make_directory(target(&at("a/b")), Some(0o700), true)).await.unwrap();
    within(files.make_directory(target(&at("a/b")), None, true)).await.unwrap();
    assert_eq!(std::fs::metadata(at("a/b")).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(failed(within(files.make_directory(target(&at("a")), None, false)).await).errno_name(), "EEXIST");
    for number in 0..25 {
        write(&files, target(&at(&format!("a/{number:02}"))), b"x").await.unwrap();
    }
    symlink("nowhere", at("a/link")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"new\nline\xff");
    std::fs::write(at("a").join(odd), "odd").unwrap();
    let (mut query, mut listed) = (DirectoryQuery { page_size: 7, ..DirectoryQuery::default() }, Vec::new());
    loop {
        let page = within(files.list(target(&at("a")), query.clone())).await.unwrap();
        listed.extend(page.entries);
        if page.next_page_token.is_empty() {
            break;
        }
        query.page_token = page.next_page_token;
    }
    assert_eq!(listed.len(), 28);
    assert!(listed.is_sorted_by_key(|entry| entry.path.clone()));
    let entry = |name: &[u8]| listed.iter().find(|entry| entry.path.as_bytes() == name).unwrap();
    assert_eq!(entry(b"link").link_target, Some(FilePath::new("nowhere")));
    assert_eq!((entry(odd.as_bytes()).size, entry(b"b").kind), (3, FileType::Directory));
    let odd_file = target(&at("a").join(odd));
    assert_eq!(read(&files, odd_file.clone(), FileRange::default()).await.unwrap().0, b"odd");

    within(files.rename(odd_file, path(&at("a/even")), false)).await.unwrap();
    let taken = within(files.rename(target(&at("a/even")), path(&at("a/00")), false)).await;
    assert_eq!(failed(taken).kind(), FileErrorKind::AlreadyExists);
    within(files.rename(target(&at("a/even")), path(&at("a/00")), true)).await.unwrap();
    assert_eq!(std::fs::read(at("a/00")).unwrap(), b"odd");
    assert_eq!(failed(within(files.remove(target(&at("a")), false)).await).errno_name(), "ENOTEMPTY");
    symlink("/etc", at("a/etc")).unwrap();
    within(files.remove(target(&at("a")), true)).await.unwrap();
    assert!(names(dir.path()).is_empty() && std::fs::exists("/etc/passwd").unwrap());
    assert_eq!(failed(within(files.info(target(&at("a")))).await).kind(), FileErrorKind::NotFound);
}

#[tokio::test]
async fn a_file_that_is_replaced_while_it_is_read_is_one_of_the_two() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let file = dir.path().join("file");
    let contents = [vec![b'a'; 700_000], vec![b'b'; 900_000]];
    write(&files, target(&file), &contents[0]).await.unwrap();
    let writer = async {
        for round in 0..20 {
            write(&files, target(&file), &contents[round % 2]).await.unwrap();
        }
    };
    let reader = async {
        for _ in 0..20 {
            let (data, digest) = read(&files, target(&file), FileRange::default()).await.unwrap();
            assert!(contents.contains(&data));
            assert_eq!(digest, sha256(&data));
        }
    };
    tokio::join!(writer, reader);
    assert_eq!(names(dir.path()), ["file"]);
}

#[tokio::test]
async fn files_are_opened_by_the_user_that_the_call_names() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (secret, own) = (dir.path().join("secret"), dir.path().join("own"));
    std::fs::write(&secret, "root's").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let denied = failed(read(&files, of_user(&secret, "nobody"), FileRange::default()).await);
    assert_eq!((denied.kind(), &*denied.errno_name()), (FileErrorKind::AccessDenied, "EACCES"));
    let written = write(&files, of_user(&own, "nobody"), b"mine").await.unwrap();
    assert_eq!(written.info.owner, "nobody");
    symlink(&secret, dir.path().join("link")).unwrap();
    let denied = failed(read(&files, of_user(&dir.path().join("link"), "nobody"), FileRange::default()).await);
    assert_eq!(denied.kind(), FileErrorKind::AccessDenied);
    // an existing file of somebody else's keeps its owner when root replaces it
    let replaced = write(&files, target(&own), b"root was here").await.unwrap();
    assert_eq!(replaced.info.owner, "nobody");
}

#[tokio::test]
async fn a_full_disk_keeps_the_old_file() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let mount = |program: &str, args: &[&str]| {
        assert!(std::process::Command::new(program).args(args).arg(dir.path()).status().unwrap().success());
    };
    mount("mount", &["-t", "tmpfs", "-o", "size=1m", "none"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "old").unwrap();
    let error = failed(write(&files, target(&file), &vec![7; 4_000_000]).await);
    assert_eq!((error.kind(), &*error.errno_name()), (FileErrorKind::Full, "ENOSPC"));
    until("its process has ended", async || children(agent.pid()).is_empty()).await;
    let left = (std::fs::read(&file).unwrap(), names(dir.path()));
    mount("umount", &[]);
    assert_eq!(left, (b"old".to_vec(), vec!["file".to_owned()]));
}

#[tokio::test]
async fn an_end_that_was_not_sent_is_no_end() {
    use telexec_proto::v1::{WriteFileHeader, WriteFileRequest, write_file_request::Step};
    let agent = Agent::builder().tcp().start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let step = |step| WriteFileRequest { step: Some(step) };
    let header = WriteFileHeader { path: file.to_str().unwrap().to_owned(), ..WriteFileHeader::default() };
    for _ in 0..50 {
        // its connection goes with it
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", agent.address())).unwrap();
        let mut client = FileServiceClient::new(channel.connect().await.unwrap());
        let (sent, all_sent) = tokio::sync::oneshot::channel();
        let mut sent = Some(sent);
        let requests = stream::iter([step(Step::Header(header.clone())), step(Step::Data("part".into()))]).chain(
            stream::poll_fn(move |_| {
                sent.take().map(|sent| sent.send(()));
                std::task::Poll::Pending
            }),
        );
        tokio::select! {
            answer = client.write_file(requests) => panic!("{answer:?}"),
            _ = all_sent => {}
        }
    }
    drop(agent);
    assert!(names(dir.path()).is_empty());
}
