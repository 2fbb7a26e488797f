//! More connections than there may be.

use telexec_proto::v1::GetAgentRequest;
use telexec_tests::{Agent, Certs, Wire, until, within};

const FULL: &str = "setting=\"max_connections\"";

async fn is_served(wire: &Wire) -> bool {
    within(wire.agent().get_agent(GetAgentRequest {})).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limit_are_closed_and_the_log_says_so_once() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).config("max_connections = 2").start();
    let gets_in = async || {
        let wire = Wire::connect_tls(&agent, certs.config(Some(&certs.client))).await.ok()?;
        is_served(&wire).await.then_some(wire)
    };
    // strangers take no place
    let mut strangers = Vec::new();
    for _ in 0..10 {
        strangers.push(Wire::dial(&agent).await);
    }
    let (first, second) = (gets_in().await.unwrap(), gets_in().await.unwrap());
    for _ in 0..10 {
        assert!(gets_in().await.is_none());
    }
    assert!(is_served(&first).await && is_served(&second).await);
    until("it is logged", async || agent.log().matches(FULL).count() == 1).await;
    second.cut();
    let mut third = None;
    until("there is a place", async || {
        third = gets_in().await;
        third.is_some()
    })
    .await;
    assert!(gets_in().await.is_none());
    until("it is logged again", async || agent.log().matches(FULL).count() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_callers_have_their_place() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    let mut wires = Vec::new();
    for _ in 0..300 {
        wires.push(Wire::connect_tls(&agent, certs.config(Some(&certs.client))).await.unwrap());
    }
    for wire in &wires {
        assert!(is_served(wire).await);
    }
}
