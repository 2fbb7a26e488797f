//! Many files in one call.

use telexec_client::{RemoteFiles, TransferAnswer};
use telexec_executor::{DirectoryQuery, ExecutorError, FilePath, FilePiece, FileRange, WriteOptions};
use telexec_tests::{Agent, within};

use super::{names, path};

async fn answers(mut answers: telexec_client::TransferAnswers) -> Result<Vec<TransferAnswer>, ExecutorError> {
    let mut all = Vec::new();
    while let Some(answer) = within(answers.next()).await? {
        all.push(answer);
    }
    Ok(all)
}

async fn agent() -> (Agent, RemoteFiles, tempfile::TempDir) {
    let agent = Agent::start();
    let files = agent.connect().await.files();
    (agent, files, tempfile::tempdir().unwrap())
}

#[tokio::test]
async fn each_request_has_its_answer_in_order() {
    let (_agent, files, dir) = agent().await;
    let at = |name: &str| path(&dir.path().join(name));
    let (requests, coming) = within(files.transfer(None)).await.unwrap();
    let asking = async {
        requests.make_directory(at("d"), None).await;
        for number in 0..300 {
            requests.write(at(&format!("d/{number:03}")), WriteOptions::default()).await;
            requests.data(format!("content {number}").into()).await;
            requests.end().await;
        }
        // these fail, and what follows is done
        requests.write(at("none/x"), WriteOptions::default()).await;
        requests.data("lost".into()).await;
        requests.end().await;
        requests.make_link(at("d/link"), FilePath::new("007")).await;
        requests.read(at("none"), FileRange::default()).await;
        requests.read(at("d/link"), FileRange::default()).await;
        requests.list(at("d"), DirectoryQuery::default()).await;
        drop(requests);
    };
    let ((), all) = tokio::join!(asking, answers(coming));
    let all = all.unwrap();
    assert!(matches!(all[0], TransferAnswer::Done));
    assert!(all[1..=300].iter().all(|answer| matches!(answer, TransferAnswer::Written(_))));
    assert!(matches!(&all[301], TransferAnswer::Failed(ExecutorError::File(error)) if error.path == at("none/x")));
    assert!(matches!(all[302], TransferAnswer::Done));
    assert!(matches!(&all[303], TransferAnswer::Failed(ExecutorError::File(error)) if error.path == at("none")));
    assert!(matches!(all[304], TransferAnswer::Opened(_)));
    assert!(matches!(&all[305], TransferAnswer::Piece(FilePiece::Data(data)) if data == "content 7"));
    assert!(matches!(all[306], TransferAnswer::Piece(FilePiece::End { .. })));
    assert!(matches!(&all[307], TransferAnswer::Listed(page) if page.entries.len() == 301));
    assert_eq!(all.len(), 308);
    assert_eq!(names(dir.path()), ["d"]);
}

#[tokio::test]
async fn a_transfer_that_breaks_its_order_ends() {
    let (_agent, files, dir) = agent().await;
    let at = |name: &str| path(&dir.path().join(name));
    let (requests, coming) = within(files.transfer(None)).await.unwrap();
    requests.write(at("file"), WriteOptions::default()).await;
    requests.data("part".into()).await;
    requests.make_directory(at("d"), None).await;
    let error = answers(coming).await.unwrap_err();
    assert!(matches!(&error, ExecutorError::Invalid(error) if error.field == "step"), "{error:?}");
    let (requests, coming) = within(files.transfer(None)).await.unwrap();
    requests.write(at("file"), WriteOptions::default()).await;
    requests.data("part".into()).await;
    drop(requests);
    assert!(matches!(answers(coming).await, Err(ExecutorError::Invalid(_))));
    assert!(names(dir.path()).is_empty());
}
