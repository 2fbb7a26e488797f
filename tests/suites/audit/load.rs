//! Many executions at once.

use futures_util::future::join_all;
use telexec_executor::Command;
use telexec_tests::run;

use super::{Audit, assert_whole, verify};

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_at_once_are_all_recorded() {
    let audit = Audit::new();
    let agent = audit.agent("sync = true").start();
    let executor = agent.executor().await;
    for outcome in join_all((0..1000).map(|_| run(&executor, Command::argv(["true"])))).await {
        outcome.unwrap();
    }
    assert_eq!(audit.wait("end", 1000).await.len(), 1000);
    assert_eq!(audit.events("start").len(), 1000);
    assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_under_load_keeps_the_chain() {
    let audit = Audit::new();
    let mut agent = audit.agent("max_bytes = 10000\nkeep = 0").start();
    let executor = agent.executor().await;
    let running = join_all((0..200).map(|_| run(&executor, Command::argv(["true"]))));
    let verifying = async {
        for _ in 0..10 {
            let (code, said) = audit.verify().await;
            assert!(code == 0, "while it is written: {said}");
        }
    };
    let (outcomes, ()) = tokio::join!(running, verifying);
    assert!(outcomes.into_iter().all(|outcome| outcome.is_ok()));
    assert!(agent.terminate().await.success());
    assert_whole(&audit).await;
    let (_, said) = audit.verify().await;
    assert!(said.contains("valid: 402 records in "), "{said}");

    let directory = audit.file().parent().unwrap().to_owned();
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().unwrap() != "lock" && path.extension().unwrap() != "key");
    // the newest has no number
    files.sort();
    files.rotate_left(1);
    assert!(files.len() > 10);
    let paths: Vec<_> = files.iter().map(std::path::PathBuf::as_path).collect();
    assert_eq!(verify(&paths).await.0, 0);
    std::fs::remove_file(&files[5]).unwrap();
    let (code, said) = audit.verify().await;
    assert!(code == 1 && said.contains(files[6].to_str().unwrap()) && said.contains("missing"), "{said}");
}
