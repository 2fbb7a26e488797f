//! A caller with a lot of work for the agent: others have their turns in between.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use telexec_proto::v1::{CheckCommandRequest, ExecuteRequest};
use telexec_tests::{Agent, Certs, Leaf, Wire, follow, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

/// How many requests one caller has waiting.
const WAITING: usize = 200;

/// How many handshakes one address has begun.
const HANDSHAKES: usize = 500;

/// A text that takes its time to be judged.
fn long_text() -> String {
    "true; ".repeat(300)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_checks_does_not_hold_up_the_command_of_another() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).policy("permit(principal, action, resource);").start();
    let wire = async |name| {
        let config = certs.config(Some(&certs.ca.issue(Leaf::client(name))));
        Wire::connect_tls(&agent, config).await.unwrap()
    };
    let (flooding, other) = (wire("anna").await, wire("bob").await);
    let mut checks: FuturesUnordered<_> = (0..WAITING)
        .map(|_| {
            let mut client = flooding.agent();
            let request = Some(ExecuteRequest { command: long_text(), ..Default::default() });
            async move { client.check_command(CheckCommandRequest { request, ..Default::default() }).await }
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

/// The first step of a handshake costs the peer nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_handshakes_does_not_hold_up_that_of_another_address() {
    let certs = Certs::new();
    // on a busy machine too this test is to be faster than the agent: it counts what went before its own
    let agent = Agent::builder().mtls(&certs).through(["nice", "-n", "19"]).start();
    let config = certs.config(Some(&certs.client));
    let mut hello = Vec::new();
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::clone(&config), name).unwrap().write_tls(&mut hello).unwrap();
    let mut flood = Vec::new();
    for _ in 0..HANDSHAKES {
        flood.push(Wire::dial_from(Ipv4Addr::new(127, 0, 0, 2), &agent).await);
    }
    let mut other = Wire::dial(&agent).await;
    let answered = Arc::new(AtomicUsize::new(0));
    let (mut answers, mut writers) = (Vec::new(), Vec::new());
    for stream in flood {
        let (mut reader, writer) = tokio::io::split(stream);
        writers.push(writer);
        let answered = Arc::clone(&answered);
        answers.push(tokio::spawn(async move {
            within(reader.read_u8()).await.unwrap();
            answered.fetch_add(1, Ordering::Relaxed);
            reader
        }));
    }
    for writer in &mut writers {
        writer.write_all(&hello).await.unwrap();
    }
    let earlier = answered.load(Ordering::Relaxed);
    // one step, like theirs: between those of a whole handshake others go on
    other.write_all(&hello).await.unwrap();
    within(other.read_u8()).await.unwrap();
    // of those that waited when it came
    let (before, waiting) = (answered.load(Ordering::Relaxed) - earlier, HANDSHAKES - earlier);
    eprintln!("{before} of {waiting} handshakes went before");
    assert!(before < waiting / 2, "{before} of {waiting} handshakes went before");
    let name = ServerName::try_from("localhost").unwrap();
    within(TlsConnector::from(config).connect(name, Wire::dial(&agent).await)).await.unwrap();
    for answer in answers {
        drop(within(answer).await.unwrap());
    }
}
