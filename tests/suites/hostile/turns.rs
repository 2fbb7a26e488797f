//! A caller with a lot of work for the agent: others have their turns in between.

use std::iter;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::process::Signal;
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

/// The address that the flood comes from.
const FLOODING: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

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
    let mut certs = Certs::new();
    // so that it is the handshakes that take the time, in a build without optimization too
    certs.agent = certs.ca.issue(Leaf::server("localhost").rsa());
    let agent = Agent::builder().mtls(&certs).start();
    let config = certs.config(Some(&certs.client));
    let mut hello = Vec::new();
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::clone(&config), name).unwrap().write_tls(&mut hello).unwrap();
    let mut all = Vec::new();
    for source in iter::repeat_n(FLOODING, HANDSHAKES).chain([Ipv4Addr::LOCALHOST]) {
        all.push(Wire::dial_from(source, &agent).await);
    }
    // all of them wait when it goes on
    agent.signal(Signal::STOP);
    for stream in &mut all {
        stream.write_all(&hello).await.unwrap();
    }
    agent.signal(Signal::CONT);
    for stream in &mut all {
        within(stream.read_u8()).await.unwrap();
    }
    let (of_flood, of_other): (Vec<_>, Vec<_>) =
        since_answers(&agent).into_iter().partition(|(source, _)| *source == FLOODING);
    let (_, since_other) = of_other.into_iter().next().unwrap();
    let before = of_flood.iter().filter(|(_, since)| *since > since_other).count();
    eprintln!("{before} of {} handshakes went before", of_flood.len());
    assert_eq!(of_flood.len(), HANDSHAKES);
    assert!(before < HANDSHAKES / 2, "{before} of {HANDSHAKES} handshakes went before");
    let name = ServerName::try_from("localhost").unwrap();
    within(TlsConnector::from(config).connect(name, Wire::dial(&agent).await)).await.unwrap();
}

/// How many milliseconds ago the agent has answered each connection, however late this process read it.
fn since_answers(agent: &Agent) -> Vec<(Ipv4Addr, u64)> {
    let output = Command::new("ss").args(["-tinHO", "dst", agent.address()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let source = line.split_whitespace().nth(3)?.split(':').next()?.parse().ok()?;
        // 0 is not printed
        let since = line.split_whitespace().find_map(|word| word.strip_prefix("lastrcv:"));
        Some((source, since.map_or(0, |since| since.parse().unwrap())))
    };
    text.lines().filter_map(line).collect()
}
