//! Many connections from one address, or of one caller: others come in all the same.

use std::net::Ipv4Addr;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use telexec_proto::v1::{GetAgentRequest, InteractRequest};
use telexec_tests::{Agent, Certs, Leaf, Wire, until, within};
use tokio::io::AsyncWriteExt;
use tonic::Code;

const FLOODED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

async fn is_served(wire: &Wire) -> bool {
    within(wire.agent().get_agent(GetAgentRequest {})).await.is_ok()
}

/// With so many descriptors there may be half as many connections in their handshake.
const DESCRIPTORS: usize = 256;

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_make_way_for_those_of_other_addresses() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).after(&format!("ulimit -n {DESCRIPTORS}")).start();
    // from one that has few
    let mut early = Wire::dial_from(OTHER, &agent).await;
    let mut silent = Vec::new();
    for _ in 0..DESCRIPTORS {
        silent.push(Wire::dial_from(FLOODED, &agent).await);
    }
    let other = Wire::connect_tls_from(OTHER, &agent, certs.config(Some(&certs.client))).await.unwrap();
    assert!(is_served(&other).await);
    let same = Wire::connect_tls_from(FLOODED, &agent, certs.config(Some(&certs.client))).await.unwrap();
    assert!(is_served(&same).await, "who says something is served wherever it comes from");
    // not waited for until its time is over
    until("the oldest are displaced", async || agent.log().contains("displaced by others")).await;
    early.write_all(b"\x16\x03\x01").await.expect("no other source makes way");
}

/// As TLS has it, these are turned away one by one; the log has some of them, and how many more there were.
#[tokio::test(flavor = "multi_thread")]
async fn lines_of_one_kind_are_bounded_and_those_left_out_are_counted() {
    const CONNECTIONS: usize = 1000;
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    for _ in 0..CONNECTIONS / 50 {
        let garbage = (0..50).map(async |_| {
            let _ = Wire::dial(&agent).await.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
        });
        join_all(garbage).await;
    }
    let (mut reported, mut left_out) = (0, 0);
    until("each is logged or counted", async || {
        (reported, left_out) = agent.reported("rejected a connection");
        reported + left_out == CONNECTIONS
    })
    .await;
    assert!(reported < left_out, "{reported} lines, {left_out} left out");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_take_no_place_on_a_unix_socket() {
    let agent = Agent::builder().config("max_connections = 2").start();
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(Wire::dial(&agent).await);
    }
    assert!(is_served(&Wire::connect(&agent).await.unwrap()).await);
}

/// Several callers, as behind one NAT.
#[tokio::test(flavor = "multi_thread")]
async fn one_address_does_not_take_all_places() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).config("max_connections = 4").start();
    let issue = |name| certs.config(Some(&certs.ca.issue(Leaf::client(name))));
    let [anna, bob, eve] = ["anna", "bob", "eve"].map(issue);
    let gets_in = async |source, config: &_| {
        let wire = Wire::connect_tls_from(source, &agent, std::sync::Arc::clone(config)).await.ok()?;
        is_served(&wire).await.then_some(wire)
    };
    let mut wires = Vec::new();
    for who in [&anna, &anna, &bob] {
        wires.push(gets_in(FLOODED, who).await.expect("there is a place"));
    }
    assert!(gets_in(FLOODED, &bob).await.is_none(), "one place is for other addresses");
    assert!(gets_in(OTHER, &eve).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_caller_are_bounded_over_all_its_connections() {
    const MOST: usize = 8;
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).config(format!("max_calls_per_identity = {MOST}")).start();
    let wire = async |name| {
        let config = certs.config(Some(&certs.ca.issue(Leaf::client(name))));
        Wire::connect_tls(&agent, config).await.unwrap()
    };
    let wires = [wire("anna").await, wire("anna").await];
    let open = |wire: &Wire| {
        let mut executions = wire.executions();
        // waits for what comes first
        async move { executions.interact(futures_util::stream::pending::<InteractRequest>()).await }
    };
    // all but one wait
    let mut calls: FuturesUnordered<_> = (0..=MOST).map(|at| open(&wires[at % 2])).collect();
    let refused = within(calls.next()).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("max_calls_per_identity"), "{refused:?}");
    let asked = async |wire: &Wire| within(wire.agent().get_agent(GetAgentRequest {})).await.map(drop);
    assert_eq!(asked(&wires[1]).await.unwrap_err().code(), Code::ResourceExhausted);
    asked(&wire("bob").await).await.expect("another is served");
    wires[0].cut();
    until("there is room again", async || asked(&wires[1]).await.is_ok()).await;
}
