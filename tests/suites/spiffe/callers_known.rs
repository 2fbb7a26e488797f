//! Callers are known by X.509-SVIDs, and by nothing else.

use rcgen::KeyUsagePurpose;
use telexec_executor::Command;
use telexec_tests::{Leaf, TrustDomain, WorkloadServer, run, until};

use super::{CALLER, Mesh, connect, documented, identity};

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_its_spiffe_id() {
    let mesh = Mesh::start();
    let agent = mesh.connect().await;
    assert_eq!(identity(&agent).await.unwrap(), "spiffe://example.org/ops/anna");
    let outcome = run(&agent.executor(), Command::shell("echo to; exit 3")).await.unwrap();
    assert_eq!((outcome.exited.exit_code(), outcome.text()), (3, "to\n"));
    let log = mesh.agent.log();
    assert!(log.contains("trust bundles loaded trust_domains=\"example.org\""), "{log}");
    let loaded = log.lines().find(|line| line.contains("X.509-SVID loaded")).unwrap();
    for part in ["id=spiffe://example.org/agents/web-1", "serial=", "not_after="] {
        assert!(loaded.contains(part), "{loaded}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_who_are_listed_may_call() {
    let mesh = Mesh::start();
    let issue = |path: &str| mesh.domain.ca().issue(mesh.domain.leaf(path));
    for path in ["batch/anna", "ops/anna/more", "ops", "agents/web-1", "xops/anna"] {
        let refusal = mesh.refusal(&issue(path)).await;
        documented("… is not among the callers in [spiffe] of the agent's configuration", &refusal);
        assert!(refusal.contains(&mesh.domain.id(path)), "{refusal}");
    }
    assert_eq!(identity(&mesh.connect_as(&issue(CALLER)).await.unwrap()).await.unwrap(), mesh.domain.id(CALLER));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_svid_is_refused() {
    let mesh = Mesh::start();
    let (domain, ca) = (&mesh.domain, mesh.domain.ca());
    let leaf = || domain.leaf(CALLER);
    let usages = |usages: &[KeyUsagePurpose]| ca.issue(leaf().with_key_usages(usages));
    let (sign, issue) = (KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign);
    for (pair, reason) in [
        (ca.issue_ca(leaf()), "is a CA certificate"),
        (usages(&[sign, issue]), "is a CA certificate"),
        (usages(&[sign, KeyUsagePurpose::CrlSign]), "is a CA certificate"),
        (usages(&[]), "is not for digital signatures"),
        (usages(&[KeyUsagePurpose::KeyEncipherment]), "is not for digital signatures"),
        (ca.issue(leaf().uri(&domain.id("ops/bob"))), "the certificate has no usable SPIFFE ID"),
        (ca.issue(leaf().uri("https://example.org")), "the certificate has no usable SPIFFE ID"),
        (ca.issue(Leaf::svid("spiffe://example.org")), "is the SPIFFE ID of a trust domain"),
        (ca.issue(Leaf::svid("spiffe://example.org/ops/../x")), "the certificate has no usable SPIFFE ID"),
        (ca.issue(Leaf::svid("https://example.org/ops/anna")), "the certificate has no usable SPIFFE ID"),
        (ca.issue(Leaf::client("anna")), "the certificate has no usable SPIFFE ID"),
        // otherwise its identity would be another one
        (
            ca.issue(Leaf::svid("SPIFFE://example.org/ops/anna").dns("root")),
            "its SPIFFE ID is not written as spiffe://example.org/ops/anna",
        ),
        (
            ca.issue(Leaf::svid("spiffe://Example.org/ops/anna")),
            "its SPIFFE ID is not written as spiffe://example.org/ops/anna",
        ),
        (ca.issue(leaf().expired()), "expired"),
        (ca.issue(leaf().not_yet_valid()), "not valid yet"),
    ] {
        let refusal = mesh.refusal(&pair).await;
        assert!(refusal.contains(reason), "{reason}: {refusal}");
    }
    identity(&mesh.connect().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn intermediate_cas_may_issue_svids() {
    let mesh = Mesh::start();
    let [sign, issue] = [KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    let connect = async |usages: &[KeyUsagePurpose]| {
        let pair = mesh.domain.ca().intermediate(usages, mesh.domain.leaf(CALLER));
        mesh.connect_as(&pair).await.map(drop).map_err(|_| mesh.refusals().last().cloned().unwrap_or_default())
    };
    connect(&[issue]).await.unwrap();
    connect(&[sign]).await.unwrap_err();
    until("the refusal is logged", async || {
        mesh.refusals().iter().any(|line| line.contains("is not for issuing certificates (key usage)"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_trust_domain_speaks_for_itself_alone() {
    let mesh = Mesh::start();
    let (partner, stranger) = (TrustDomain::new("partner.example"), TrustDomain::new("stranger.example"));
    // another CA by the same name
    let impostor = TrustDomain::new("example.org");
    let leaf = mesh.domain.leaf(super::AGENT);
    mesh.agent_api.issue(&mesh.domain, [leaf], &[&partner]);
    until("the agent has both", async || mesh.agent.log().contains("example.org partner.example")).await;
    let anna = mesh.connect_as(&partner.ca().issue(partner.leaf(CALLER))).await.unwrap();
    assert_eq!(identity(&anna).await.unwrap(), "spiffe://partner.example/ops/anna");
    let foreign = mesh.refusal(&stranger.ca().issue(stranger.leaf(CALLER))).await;
    documented("the trust domain of … is not federated with the agent's", &foreign);
    for (ca, domain) in [(&partner, &mesh.domain), (&mesh.domain, &partner), (&impostor, &mesh.domain)] {
        let refusal = mesh.refusal(&ca.ca().issue(domain.leaf(CALLER))).await;
        assert!(refusal.contains("UnknownIssuer") || refusal.contains("BadSignature"), "{refusal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_certificate_is_refused() {
    let mesh = Mesh::start();
    let files = telexec_client::TlsOptions::without_certificate(mesh.domain.ca().cert());
    let tls = telexec_client::TlsOptions { server_name: Some(mesh.agent_id()), ..files };
    let error = connect(&mesh.agent, tls).await.unwrap_err();
    assert!(super::text(&error).contains("CertificateRequired"), "{}", super::text(&error));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_another_user_has_an_svid_too() {
    if !telexec_tests::is_root() {
        return;
    }
    let domain = TrustDomain::new("example.org");
    let (agent_api, caller_api) = (WorkloadServer::with(&domain, super::AGENT), WorkloadServer::with(&domain, CALLER));
    let agent = super::agent(&agent_api, "").agent_user().start();
    let connected = connect(&agent, caller_api.options(&domain.id(super::AGENT))).await.unwrap();
    assert_eq!(run(&connected.executor(), Command::shell("id -u")).await.unwrap().text(), "0\n");
}
