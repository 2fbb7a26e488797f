//! A caller with a lot of work for the agent: others have their turns in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use telexec_proto::v1::{CheckCommandRequest, ExecuteRequest};
use telexec_tests::{Agent, Certs, Leaf, Wire, follow, within};

/// How many requests one caller has waiting.
const WAITING: usize = 200;

/// A text that takes its time to be judged.
fn long_text() -> String {
    "true; ".repeat(300)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_checks_does_not_hold_up_the_command_of_another() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).policy("permit(principal, action, resource);").start();
    let wire = async |name| {
        let config = certs.config(Some(&certs.authority.issue(Leaf::client(name))));
        Wire::connect_tls(&agent, config).await.unwrap()
    };
    let (flooding, other) = (wire("anna").await, wire("bob").await);
    let mut checks: FuturesUnordered<_> = (0..WAITING)
        .map(|_| {
            let mut client = flooding.agent();
            let request = Some(ExecuteRequest { command: long_text(), ..Default::default() });
            async move { client.check_command(CheckCommandRequest { request }).await }
        })
        .collect();
    let answered = Arc::new(AtomicUsize::new(0));
    // the flood is under way
    within(checks.next()).await.unwrap().unwrap();
    let counted = Arc::clone(&answered);
    let rest = tokio::spawn(async move {
        while let Some(check) = checks.next().await {
            check.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let command = ExecuteRequest { command: "true".into(), ..Default::default() };
    let followed =
        within(async { follow(other.executions().execute(command).await.unwrap().into_inner()).await }).await;
    let before = answered.load(Ordering::Relaxed);
    assert!(followed.exited().is_some());
    eprintln!("{before} of {WAITING} checks went before");
    assert!(before < WAITING / 2, "{before} of {WAITING} checks went before");
    within(rest).await.unwrap();
}
