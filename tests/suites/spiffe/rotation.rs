//! What is issued while the agent runs.

use std::time::{Duration, Instant};

use rcgen::KeyUsagePurpose;
use rustix::process::Signal;
use telexec_executor::{Command, Execution, Executor, ExecutorError};
use telexec_tests::{
    MARK, TrustDomain, WorkloadServer, collect, exit_of, marker, processes_with, until, until_output, within,
};

use super::{AGENT, CALLER, Mesh, SHORT, agent, connect, documented, identity, text};

/// A command that ends with 3 once this file is there.
async fn waiting(agent: &telexec_client::Agent, mark: &str, gate: &std::path::Path) -> Execution {
    let text = format!("echo begun; until [ -e {} ]; do sleep 0.01; done; exit 3", gate.display());
    let command = Command::shell(text).env(MARK, mark).build().unwrap();
    let mut execution = within(agent.executor().execute(command)).await.unwrap();
    until_output(&mut execution, "begun").await;
    execution
}

fn loaded(mesh: &Mesh) -> usize {
    mesh.agent.log().matches("X.509-SVID loaded").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn svids_are_replaced_without_an_interruption() {
    let mesh = Mesh::start();
    let first = mesh.connect().await;
    let gate = mesh.caller_api.directory().join("gate");
    let open = waiting(&first, &marker(), &gate).await;
    for round in 1..4 {
        mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[]);
        mesh.caller_api.issue(&mesh.domain, [mesh.domain.leaf(CALLER)], &[]);
        until("the agent has the next one", async || loaded(&mesh) == 1 + round).await;
        assert_eq!(identity(&mesh.connect().await).await.unwrap(), mesh.domain.id(CALLER));
        assert_eq!(identity(&first).await.unwrap(), mesh.domain.id(CALLER));
    }
    // what is the same changes nothing
    mesh.agent.signal(Signal::HUP);
    until("the agent asks again", async || mesh.agent_api.asked() > 2).await;
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[]);
    until("the agent has the last one", async || loaded(&mesh) >= 5).await;
    std::fs::write(gate, "").unwrap();
    assert_eq!(exit_of(open).await.exit_code(), 3);
    assert_eq!(loaded(&mesh), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_that_is_withdrawn_ends_the_calls_of_its_callers() {
    let mesh = Mesh::start();
    let partner = TrustDomain::new("partner.example");
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[&partner]);
    until("the agent has both", async || mesh.agent.log().contains("partner.example")).await;
    let anna = mesh.connect_as(&partner.ca().issue(partner.leaf(CALLER))).await.unwrap();
    let mark = marker();
    let gate = mesh.caller_api.directory().join("gate");
    let open = waiting(&anna, &mark, &gate).await;
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[]);
    let ended = collect(open).await.unwrap_err();
    let ExecutorError::Unauthenticated { reason } = ended else { panic!("{ended:?}") };
    assert!(reason.contains("is not federated with the agent's"), "{reason}");
    until("nothing of it is left", async || processes_with(&mark).is_empty()).await;
    assert!(matches!(identity(&anna).await, Err(ExecutorError::Unauthenticated { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_outlasts_its_svid_and_the_next_one_has_the_next_svid() {
    let mesh = Mesh::start();
    mesh.caller_api.issue(&mesh.domain, [mesh.domain.leaf(CALLER).ends_in(SHORT)], &[]);
    let caller = mesh.connect().await;
    let gate = mesh.caller_api.directory().join("gate");
    let open = waiting(&caller, &marker(), &gate).await;
    mesh.caller_api.issue(&mesh.domain, [mesh.domain.leaf(CALLER)], &[]);
    // the client is told in time to connect again
    let asked = mesh.caller_api.asked();
    until("the client has connected again", async || {
        assert_eq!(identity(&caller).await.unwrap(), mesh.domain.id(CALLER));
        mesh.caller_api.asked() > asked
    })
    .await;
    tokio::time::sleep(SHORT).await;
    std::fs::write(gate, "").unwrap();
    assert_eq!(exit_of(open).await.exit_code(), 3);
    assert_eq!(identity(&caller).await.unwrap(), mesh.domain.id(CALLER));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_grace_a_call_ends_with_its_svid() {
    let mesh = Mesh::start_with("call_grace = \"0s\"", |builder| builder);
    mesh.caller_api.issue(&mesh.domain, [mesh.domain.leaf(CALLER).ends_in(SHORT)], &[]);
    let caller = mesh.connect().await;
    let (mark, gate) = (marker(), mesh.caller_api.directory().join("gate"));
    let open = waiting(&caller, &mark, &gate).await;
    let ended = collect(open).await.unwrap_err();
    let ExecutorError::Unauthenticated { reason } = ended else { panic!("{ended:?}") };
    documented("the certificate of this call has expired: call again with a new one", &reason);
    until("nothing of it is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_for_their_grace() {
    let mesh = Mesh::start_with("call_grace = \"2s\"", |builder| builder);
    let begin = Instant::now();
    mesh.caller_api.issue(&mesh.domain, [mesh.domain.leaf(CALLER).ends_in(SHORT)], &[]);
    let caller = mesh.connect().await;
    let (mark, gate) = (marker(), mesh.caller_api.directory().join("gate"));
    let open = waiting(&caller, &mark, &gate).await;
    let ended = collect(open).await.unwrap_err();
    let ExecutorError::Unauthenticated { reason } = ended else { panic!("{ended:?}") };
    assert_eq!(reason, "the certificate of this call has expired: call again with a new one");
    assert!(begin.elapsed() > SHORT + Duration::from_secs(1), "{:?}", begin.elapsed());
    until("nothing of it is left", async || processes_with(&mark).is_empty()).await;
}

/// Neither is an expired certificate that was presented with the SVID, nor that it has expired itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_trust_domain_that_is_withdrawn_ends_calls_whatever_has_expired() {
    let mesh = Mesh::start();
    let (partner, junk) = (TrustDomain::new("partner.example"), TrustDomain::new("junk.example"));
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[&partner]);
    until("the agent has both", async || mesh.agent.log().contains("partner.example")).await;
    let (long, short) =
        (partner.ca().issue(partner.leaf(CALLER)), partner.ca().issue(partner.leaf(CALLER).ends_in(SHORT)));
    let ca = junk.leaf("ca").with_key_usages(&[KeyUsagePurpose::KeyCertSign]).ends_in(SHORT);
    long.append(&std::fs::read_to_string(junk.ca().issue_ca(ca).cert).unwrap());
    let gate = mesh.caller_api.directory().join("gate");
    let mut open = Vec::new();
    for pair in [long, short] {
        let agent = mesh.connect_as(&pair).await.unwrap();
        open.push(waiting(&agent, &marker(), &gate).await);
    }
    tokio::time::sleep(SHORT + Duration::from_secs(1)).await;
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[]);
    for open in open {
        let ended = collect(open).await.unwrap_err();
        let ExecutorError::Unauthenticated { reason } = ended else { panic!("{ended:?}") };
        assert!(reason.contains("is not federated with the agent's"), "{reason}");
    }
}

/// A CA is replaced after the last of its SVIDs has expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_outlasts_the_ca_of_its_svid() {
    let mesh = Mesh::start();
    mesh.caller_api.issue(&mesh.domain, [mesh.domain.leaf(CALLER).ends_in(SHORT)], &[]);
    let caller = mesh.connect().await;
    let gate = mesh.caller_api.directory().join("gate");
    let open = waiting(&caller, &marker(), &gate).await;
    tokio::time::sleep(SHORT + Duration::from_secs(1)).await;
    let next = TrustDomain::new("example.org");
    mesh.agent_api.issue(&next, [next.leaf(AGENT)], &[]);
    until("the agent has the next CA", async || loaded(&mesh) == 2).await;
    mesh.caller_api.issue(&next, [next.leaf(CALLER)], &[]);
    assert_eq!(identity(&mesh.connect().await).await.unwrap(), mesh.domain.id(CALLER));
    std::fs::write(gate, "").unwrap();
    assert_eq!(exit_of(open).await.exit_code(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_is_withdrawn_is_not_used_any_more() {
    for more in ["", "call_grace = \"0s\""] {
        withdraw(&Mesh::start_with(more, |builder| builder)).await;
    }
}

async fn withdraw(mesh: &Mesh) {
    let caller = mesh.connect().await;
    let gate = mesh.caller_api.directory().join("gate");
    let open = waiting(&caller, &marker(), &gate).await;
    mesh.agent_api.deny();
    let says = "the agent has no X.509-SVID, and refuses callers over TLS; trying again";
    until("the agent says so", async || mesh.agent.log().contains(says)).await;
    documented("… issues no identity to this process: register the workload", &mesh.agent.log());
    let error = connect(&mesh.agent, mesh.caller_api.options(&mesh.agent_id())).await.unwrap_err();
    assert!(text(&error).contains("AccessDenied"), "{}", text(&error));
    // nothing says that the caller is not to be trusted any more, but nothing says that it is
    assert!(matches!(identity(&caller).await, Err(ExecutorError::Unauthenticated { .. })));
    std::fs::write(gate, "").unwrap();
    assert_eq!(exit_of(open).await.exit_code(), 3);
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[]);
    mesh.agent.signal(Signal::HUP);
    until("the caller is known again", async || identity(&caller).await.is_ok()).await;
    identity(&mesh.connect().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_starts_before_its_workload_api() {
    let domain = TrustDomain::new("example.org");
    let mut agent_api = WorkloadServer::with(&domain, AGENT);
    let caller_api = WorkloadServer::with(&domain, CALLER);
    agent_api.stop().await;
    let socket = agent_api.directory().join("agent.sock");
    let agent = agent(&agent_api, "").listen(&format!("unix://{}", socket.display())).start();
    documented("the agent has no X.509-SVID, and refuses callers over TLS; trying again", &agent.log());
    assert!(agent.log().contains("No such file or directory"), "{}", agent.log());
    let error = connect(&agent, caller_api.options(&domain.id(AGENT))).await.unwrap_err();
    assert!(text(&error).contains("AccessDenied"), "{}", text(&error));
    until("the refusal is logged", async || agent.log().contains("rejected a connection")).await;
    documented("rejected a connection … the agent has no X.509-SVID", &agent.log());
    // by its other address it works
    let target = format!("unix://{}", socket.display()).parse().unwrap();
    let local = telexec_client::Agent::connect(&target, Default::default()).await.unwrap();
    assert_eq!(local.info().await.unwrap().certificate_expire_time, None);
    agent_api.listen();
    until("it is known", async || connect(&agent, caller_api.options(&domain.id(AGENT))).await.is_ok()).await;
    assert!(local.info().await.unwrap().certificate_expire_time.is_some());
    // a reason is logged once
    assert_eq!(agent.log().matches("trying again").count(), 1, "{}", agent.log());
    agent_api.stop().await;
    until("it says that it cannot renew it", async || {
        agent.log().contains("cannot renew the agent's X.509-SVID; trying again")
    })
    .await;
    identity(&connect(&agent, caller_api.options(&domain.id(AGENT))).await.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_api_that_hangs_holds_up_nothing_for_long() {
    let (agent_api, caller_api) = (WorkloadServer::start(), WorkloadServer::start());
    let domain = TrustDomain::new("example.org");
    let agent = agent(&agent_api, "").start();
    documented("the SPIFFE Workload API at … did not answer within 5 s", &agent.log());
    let error = connect(&agent, caller_api.options("spiffe://example.org/a")).await.unwrap_err();
    let expected = format!("the SPIFFE Workload API at {} did not answer within 5 s", caller_api.socket());
    assert!(text(&error).contains(&expected), "{}", text(&error));
    agent_api.issue(&domain, [domain.leaf(AGENT)], &[]);
    caller_api.issue(&domain, [domain.leaf(CALLER)], &[]);
    until("they know each other", async || connect(&agent, caller_api.options(&domain.id(AGENT))).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_identities_is_chosen() {
    let mesh = Mesh::start_with("id = \"spiffe://example.org/agents/web-2\"", |builder| builder);
    until("the agent says what it is issued", async || {
        mesh.agent.log().contains(
            "does not issue spiffe://example.org/agents/web-2 to this process, but spiffe://example.org/agents/web-1",
        )
    })
    .await;
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT), mesh.domain.leaf("agents/web-2")], &[]);
    let id = mesh.domain.id("agents/web-2");
    until("it has it", async || connect(&mesh.agent, mesh.caller_api.options(&id)).await.is_ok()).await;
    // only the other one is left
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[]);
    until("it is withdrawn", async || connect(&mesh.agent, mesh.caller_api.options(&id)).await.is_err()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_not() {
    let mesh = Mesh::start();
    let issue = |pair: telexec_tests::Pair| mesh.agent_api.issue_pair(&mesh.domain, &pair);
    // for clients alone
    issue(mesh.domain.ca().issue(mesh.domain.leaf(AGENT).for_clients()));
    until("it says so", async || mesh.agent.log().contains("is not for a server (extended key usage serverAuth)"))
        .await;
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[]);
    until("it has another", async || loaded(&mesh) == 2).await;
    identity(&mesh.connect().await).await.unwrap();
    // somebody else's key
    let (one, mut other) =
        (mesh.domain.ca().issue(mesh.domain.leaf(AGENT)), mesh.domain.ca().issue(mesh.domain.leaf(AGENT)));
    other.key = one.key;
    issue(other);
    mesh.agent.signal(Signal::HUP);
    until("it says so", async || mesh.agent.log().contains("the X.509-SVID cannot be used")).await;
    connect(&mesh.agent, mesh.caller_api.options(&mesh.agent_id())).await.unwrap_err();
}
