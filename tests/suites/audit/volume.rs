//! How much of the log one caller may fill.

use serde_json::{Value, json};
use telexec_executor::{Command, ExecutorError};
use telexec_tests::{Agent, Certs, Leaf, run};

use super::{Audit, assert_whole, digest_of};
use crate::cli::troubleshooting::shows;

/// Long commands that are permitted: as many as once pushed out everything.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_run_anything_does_not_push_out_the_records_of_others() {
    let (audit, certs) = (Audit::new(), Certs::new());
    let mut agent = Agent::builder().mtls(&certs).config(audit.config("max_bytes = 400000\nkeep = 4")).start();
    let [anna, flood] = ["anna", "flood"].map(|name| certs.ca.issue(Leaf::client(name)));
    let (anna, flood) = (agent.connect_as(&anna).await.executor(), agent.connect_as(&flood).await.executor());
    run(&anna, Command::argv(["true"])).await.unwrap();
    let text = format!(": '{}'", "\u{7f}".repeat(20_000));
    let mut refused = 0;
    while refused < 20 {
        match run(&flood, Command::shell(&text)).await {
            Ok(_) => {}
            Err(ExecutorError::Exhausted { reason, retry_after: Some(_) }) => {
                assert!(reason.contains("audit.max_bytes_per_identity"), "{reason}");
                shows("… its share of the audit log", &reason);
                refused += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
        assert!(audit.file().with_file_name("audit.log.000000000001").exists() || audit.records()[0]["seq"] == 1);
    }
    // others continue, and are recorded in full
    run(&anna, Command::shell("echo anna")).await.unwrap();
    assert!(agent.terminate().await.success());
    assert_whole(&audit).await;

    let records = audit.all_records();
    let of = |event: &str, identity: &str| {
        let of = |record: &&Value| record["event"] == event && record["identity"] == identity;
        records.iter().filter(of).collect::<Vec<_>>()
    };
    let annas = of("start", "anna");
    assert_eq!((&annas[0]["argv"], &annas[1]["command"]), (&json!(["true"]), &json!("echo anna")));
    let (shortened, whole): (Vec<_>, Vec<_>) =
        of("start", "flood").into_iter().partition(|start| start["shortened"] == true);
    assert!(whole.len() > 1 && shortened.len() > 10, "{} {}", whole.len(), shortened.len());
    let (_, digest) = digest_of(&audit.file(), &[], &text).await;
    assert!(shortened.iter().all(|start| start["command_hmac_sha256"] == digest && start["command"].is_null()));
    let left_out: u64 = of("more", "flood").iter().filter_map(|record| record["denied"].as_u64()).sum();
    assert_eq!((left_out, of("more", "anna").len()), (20, 0));
}
