//! Files that change while they are read, readers that stop, callers that vanish, and many files.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use futures_util::StreamExt;
use telexec_executor::{DirectoryQuery, FileContent, FilePiece, FileRange, Files};
use telexec_tests::{Agent, Memory, children, program, until, within};

use super::{read, sha256, target, write};

/// More than all buffers between the caller and the disk hold together.
const LARGE_BYTES: usize = 96 * 1024 * 1024;

fn large(path: &Path) -> Vec<u8> {
    let data: Vec<u8> = (0..LARGE_BYTES / 8).flat_map(|number| number.to_le_bytes()).collect();
    std::fs::write(path, &data).unwrap();
    data
}

async fn first(content: &mut FileContent) -> Vec<u8> {
    match within(content.pieces.next()).await {
        Some(Ok(FilePiece::Data(data))) => data.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// The rest of a file, whose digest is that of all that came.
async fn rest(mut content: FileContent, mut data: Vec<u8>) -> Vec<u8> {
    loop {
        match within(content.pieces.next()).await {
            Some(Ok(FilePiece::Data(piece))) => data.extend_from_slice(&piece),
            Some(Ok(FilePiece::Hole(length))) => data.resize(data.len() + usize::try_from(length).unwrap(), 0),
            Some(Ok(FilePiece::End { sha256: digest })) => {
                assert_eq!(digest, sha256(&data));
                return data;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_file_that_grows_or_shrinks_while_it_is_read_is_as_long_as_its_digest_says() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let path = dir.path().join("file");
    let data = large(&path);
    let mut content = within(files.read(target(&path), FileRange::default())).await.unwrap();
    let begun = first(&mut content).await;
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(LARGE_BYTES as u64 / 2).unwrap();
    let shrunk = rest(content, begun).await;
    assert!(shrunk.len() < LARGE_BYTES && data.starts_with(&shrunk), "{} bytes", shrunk.len());

    large(&path);
    let mut content = within(files.read(target(&path), FileRange::default())).await.unwrap();
    let begun = first(&mut content).await;
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    let grown = rest(content, begun).await;
    assert!(grown.starts_with(&data) && [&b""[..], b"more"].contains(&&grown[LARGE_BYTES..]), "{} bytes", grown.len());
}

#[tokio::test]
async fn a_reader_that_stops_holds_up_nobody_else() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let (path, other) = (dir.path().join("file"), dir.path().join("other"));
    let data = large(&path);
    let before = Memory::of(agent.pid()).resident;
    let mut content = within(files.read(target(&path), FileRange::default())).await.unwrap();
    let begun = first(&mut content).await;
    // on the same connection
    for round in 0..10_u8 {
        write(&files, target(&other), &[round; 300_000]).await.unwrap();
        assert_eq!(read(&files, target(&other), FileRange::default()).await.unwrap().0, [round; 300_000]);
    }
    let grown = Memory::of(agent.pid()).resident.saturating_sub(before);
    assert!(grown < LARGE_BYTES as u64 / 2, "the agent holds {grown} bytes more");
    assert!(rest(content, begun).await == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_callers_that_vanish() {
    // for as long an upload is kept that was cut early
    let agent = Agent::builder().config("max_disconnect_grace = \"1s\"").start();
    let dir = tempfile::tempdir().unwrap();
    let (source, there) = (dir.path().join("source"), dir.path().join("there"));
    // sparse, and more than is copied before it is killed
    std::fs::File::create(&source).unwrap().set_len(64 << 30).unwrap();
    std::fs::create_dir(&there).unwrap();
    let remote = |path: &Path| format!("{}:{}", agent.uri(), path.display());
    let copies = [
        [source.display().to_string(), remote(&there.join("copy"))],
        [remote(&source), there.join("copy").display().to_string()],
        // held open by its writer, so that it never ends
        ["-".to_owned(), remote(&there.join("copy"))],
    ];
    for [from, to] in copies {
        let mut copy = tokio::process::Command::new(program("telexec"));
        copy.args(["cp", "-q", &from, &to]).stdin(Stdio::piped()).kill_on_drop(true);
        let mut copy = copy.spawn().unwrap();
        until("the copy has begun", async || !children(agent.pid()).is_empty()).await;
        copy.start_kill().unwrap();
        within(copy.wait()).await.unwrap();
        until("its process has ended", async || children(agent.pid()).is_empty()).await;
        assert!(!there.join("copy").exists(), "{from} {to}: a part has the final name");
    }
}

/// A file has a name for a moment before it gets its own.
#[tokio::test]
async fn copies_that_are_killed_leave_whole_files() {
    let agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    let (source, there) = (dir.path().join("source"), dir.path().join("there"));
    std::fs::create_dir(&source).unwrap();
    for number in 0..500 {
        std::fs::write(source.join(number.to_string()), "content").unwrap();
    }
    let to = format!("{}:{}", agent.uri(), there.display());
    let names = || std::fs::read_dir(&there).into_iter().flatten().map(|entry| entry.unwrap().path());
    for round in 1..=25 {
        let mut copy = tokio::process::Command::new(program("telexec"));
        copy.args(["cp", "-qr", &format!("{}/", source.display()), &to]).kill_on_drop(true);
        let mut copy = copy.spawn().unwrap();
        until("some files are there", async || names().count() > round * 10).await;
        copy.start_kill().unwrap();
        within(copy.wait()).await.unwrap();
        until("its process has ended", async || children(agent.pid()).is_empty()).await;
        for path in names() {
            assert!(source.join(path.file_name().unwrap()).exists(), "{path:?} is left");
            assert_eq!(std::fs::read(&path).unwrap(), b"content", "{path:?}");
        }
        std::fs::remove_dir_all(&there).unwrap();
    }
}

#[tokio::test]
async fn a_hundred_thousand_files_are_listed_and_removed() {
    let agent = Agent::start();
    let (files, dir) = (agent.connect().await.files(), tempfile::tempdir().unwrap());
    let root = dir.path().join("many");
    std::fs::create_dir(&root).unwrap();
    for number in 0..100_000 {
        std::fs::File::create(root.join(format!("{number:05}"))).unwrap();
    }
    let (mut query, mut listed) = (DirectoryQuery::default(), 0);
    loop {
        let page = within(files.list(target(&root), query.clone())).await.unwrap();
        for entry in &page.entries {
            assert_eq!(entry.path.as_bytes(), format!("{listed:05}").as_bytes());
            listed += 1;
        }
        if page.next_page_token.is_empty() {
            break;
        }
        query.page_token = page.next_page_token;
    }
    assert_eq!(listed, 100_000);
    within(files.remove(target(&root), true)).await.unwrap();
    assert!(!root.exists());
}
