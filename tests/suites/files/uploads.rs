//! Uploads that lose their call, and go on where they were.

use futures_util::{StreamExt, stream};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::{ExecutionId, ExecutorError, FilePiece, FilePieces, FileRange, Files, WriteOptions};
use telexec_tests::{Agent, children, stop, until, within};

use super::{failed, names, pieces, read, sha256, target};

fn options(id: &ExecutionId, offset: u64) -> WriteOptions {
    WriteOptions { upload: Some((id.clone(), offset)), ..WriteOptions::default() }
}

/// This content, after which nothing comes.
fn stuck(data: &[u8]) -> FilePieces {
    let pieces: Vec<_> = data.chunks(50_000).map(|piece| Ok(FilePiece::Data(piece.to_vec().into()))).collect();
    stream::iter(pieces).chain(stream::pending()).boxed()
}

#[tokio::test]
async fn an_upload_that_is_cut_ten_times_is_complete() {
    let agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    let (file, id) = (dir.path().join("file"), ExecutionId::generate());
    let content: Vec<u8> = (0..500_000u32).flat_map(u32::to_le_bytes).collect();
    let mut offset = 0;
    for round in 1..=10 {
        let files = agent.connect().await.files();
        let end = content.len() * round / 11;
        let sending = files.write(target(&file), options(&id, offset as u64), stuck(&content[offset..end]));
        // another call asks where to go on, and thereby ends this one
        let other = agent.connect().await.files();
        let until_there = async {
            until("all of it has arrived", async || other.upload(&id).await.is_ok_and(|there| there > offset as u64))
                .await;
        };
        tokio::select! {
            done = sending => assert!(matches!(done, Err(ExecutorError::FailedPrecondition { .. })), "{done:?}"),
            () = until_there => {}
        }
        // what has arrived already is sent again, in part
        offset = usize::try_from(within(other.upload(&id)).await.unwrap()).unwrap().saturating_sub(1000);
        assert!(names(dir.path()).is_empty());
    }
    let files = agent.connect().await.files();
    let rest = pieces(content[offset..].to_vec());
    let written = within(files.write(target(&file), options(&id, offset as u64), rest)).await.unwrap();
    assert_eq!(written.sha256, sha256(&content));
    assert!(read(&files, target(&file), FileRange::default()).await.unwrap().0 == content);
    // its answer may have been lost: it is given again
    let length = content.len() as u64;
    assert_eq!(within(files.upload(&id)).await.unwrap(), length);
    let again = within(files.write(target(&file), options(&id, length), pieces(""))).await.unwrap();
    assert_eq!(again, written);
    assert_eq!(names(dir.path()), ["file"]);
}

/// Sends this content, until the agent has it and waits for the rest. Who asks for that ends the call that sends, perhaps before
/// all has arrived.
async fn begin(files: &impl Files, other: &impl Files, file: &std::path::Path, id: &ExecutionId, content: &[u8]) {
    let has_all = async || other.upload(id).await.is_ok_and(|there| there == content.len() as u64);
    while !has_all().await {
        tokio::select! {
            done = files.write(target(file), options(id, 0), stuck(content)) => assert!(done.is_err(), "{done:?}"),
            () = until("all of it has arrived", has_all) => {}
        }
    }
}

/// The call that sent the end is lost before it is answered.
#[tokio::test]
async fn an_upload_that_is_cut_at_its_end_is_complete() {
    let agent = Agent::start();
    let (files, dir, id) = (agent.connect().await.files(), tempfile::tempdir().unwrap(), ExecutionId::generate());
    let file = dir.path().join("file");
    let other = agent.connect().await.files();
    begin(&files, &other, &file, &id, b"content").await;
    until("its process is the only one", async || children(agent.pid()).len() == 1).await;
    let helper = children(agent.pid())[0].pid;
    let stdin = std::fs::File::open(format!("/proc/{helper}/fd/0")).unwrap();
    // or what is there then could be taken for the end
    until("it has read what has come", async || ioctl_fionread(&stdin).unwrap() == 0).await;
    stop(helper).await;
    tokio::select! {
        done = files.write(target(&file), options(&id, 7), pieces("")) => panic!("{done:?}"),
        // with all that has not gone there before
        () = until("the end is there", async || ioctl_fionread(&stdin).unwrap() >= 5) => {}
    }
    drop(stdin);
    kill_process(Pid::from_raw(helper).unwrap(), Signal::CONT).unwrap();
    until("it is written", async || names(dir.path()) == ["file"]).await;
    assert_eq!(within(other.upload(&id)).await.unwrap(), 7);
    let written = within(other.write(target(&file), options(&id, 7), pieces(""))).await.unwrap();
    assert_eq!(written.sha256, sha256(b"content"));
}

#[tokio::test]
async fn an_upload_is_no_shorter_than_what_the_agent_has() {
    let agent = Agent::start();
    let (files, dir, id) = (agent.connect().await.files(), tempfile::tempdir().unwrap(), ExecutionId::generate());
    let file = dir.path().join("file");
    let other = agent.connect().await.files();
    begin(&files, &other, &file, &id, &[1; 1000]).await;
    let short = within(other.write(target(&file), options(&id, 0), pieces(vec![2; 10]))).await;
    assert!(matches!(short, Err(ExecutorError::FailedPrecondition { .. })), "{short:?}");
    assert!(names(dir.path()).is_empty());
}

/// Which cost their caller nothing, and the process its time.
#[tokio::test]
async fn an_upload_of_very_many_zeros_ends_with_its_call() {
    let agent = Agent::start();
    let (files, dir, id) = (agent.connect().await.files(), tempfile::tempdir().unwrap(), ExecutionId::generate());
    let file = dir.path().join("file");
    let too_large = stream::iter([Ok(FilePiece::Hole(1 << 62)), Ok(FilePiece::Data("x".into()))]).boxed();
    let error = failed(within(files.write(target(&file), WriteOptions::default(), too_large)).await);
    assert!(["EFBIG", "EINVAL"].contains(&&*error.errno_name()), "{error}");
    let zeros = stream::iter([Ok(FilePiece::Hole(1 << 40))]).chain(stream::pending()).boxed();
    {
        let mut sending = std::pin::pin!(files.write(target(&file), options(&id, 0), zeros));
        tokio::select! {
            done = &mut sending => panic!("{done:?}"),
            () = until("it has begun", async || !children(agent.pid()).is_empty()) => {}
        }
        // the hole is on its way
        let _ = tokio::time::timeout(std::time::Duration::from_millis(500), sending).await;
    }
    until("its process has ended", async || children(agent.pid()).is_empty()).await;
    assert!(matches!(within(files.upload(&id)).await, Err(ExecutorError::NoUpload(_))));
    assert!(names(dir.path()).is_empty());
}

#[tokio::test]
async fn an_upload_that_nobody_continues_leaves_nothing() {
    let agent = Agent::builder().config("max_disconnect_grace = \"1s\"").start();
    let (files, dir, id) = (agent.connect().await.files(), tempfile::tempdir().unwrap(), ExecutionId::generate());
    let file = dir.path().join("file");
    {
        let sending = files.write(target(&file), options(&id, 0), stuck(b"something"));
        let other = agent.connect().await.files();
        tokio::select! {
            done = sending => assert!(matches!(done, Err(ExecutorError::FailedPrecondition { .. })), "{done:?}"),
            () = until("it has begun", async || other.upload(&id).await.is_ok_and(|there| there == 9)) => {}
        }
    }
    // to ask for it would keep it
    until("its process has ended", async || children(agent.pid()).is_empty()).await;
    assert!(matches!(within(files.upload(&id)).await, Err(ExecutorError::NoUpload(_))));
    assert!(names(dir.path()).is_empty());
    let late = within(files.write(target(&file), options(&id, 9), pieces(" else"))).await;
    assert!(matches!(late, Err(ExecutorError::NoUpload(_))), "{late:?}");
}

#[tokio::test]
async fn an_upload_is_of_one_file_and_one_caller() {
    let agent = Agent::start();
    let (files, dir, id) = (agent.connect().await.files(), tempfile::tempdir().unwrap(), ExecutionId::generate());
    let file = dir.path().join("file");
    within(files.write(target(&file), options(&id, 0), pieces("content"))).await.unwrap();
    let other = within(files.write(target(&dir.path().join("other")), options(&id, 7), pieces(""))).await;
    assert!(matches!(&other, Err(ExecutorError::Invalid(error)) if error.field == "header.upload_id"), "{other:?}");
    let beyond = within(files.write(target(&file), options(&id, 8), pieces(""))).await;
    assert!(matches!(beyond, Err(ExecutorError::OutOfRange { end: 7, .. })), "{beyond:?}");
    let unknown = within(files.upload(&ExecutionId::generate())).await;
    assert!(matches!(unknown, Err(ExecutorError::NoUpload(_))), "{unknown:?}");
}
