//! Agents are known by SPIFFE IDs, or by DNS names in their SVIDs.

use telexec_client::TlsOptions;
use telexec_tests::{Agent, Certs, TrustDomain, until};

use super::{AGENT, CALLER, Mesh, connect, documented, identity, text};

#[tokio::test(flavor = "multi_thread")]
async fn another_process_of_the_trust_domain_is_no_agent() {
    let mesh = Mesh::start();
    for expected in ["spiffe://example.org/agents/web-2", "spiffe://example.org/agents/web-1/x"] {
        let error = connect(&mesh.agent, mesh.caller_api.options(expected)).await.unwrap_err();
        documented("the agent is …, not …", &text(&error));
        assert!(
            text(&error).ends_with(&format!("the agent is {}, not {expected}", mesh.agent_id())),
            "{}",
            text(&error)
        );
    }
    for (malformed, reason) in [
        ("spiffe://example.org/a/../b", "is not a SPIFFE ID: path cannot contain dot segments"),
        ("spiffe://example.org/agents/{hots}", "is not a SPIFFE ID: path segment characters"),
        ("spiffe://example.org", "is not a SPIFFE ID: it has no path"),
        ("spiffe://other.example/a", "there is no trust bundle of other.example"),
        ("a name", "cannot be the name in a certificate"),
    ] {
        let error = connect(&mesh.agent, mesh.caller_api.options(malformed)).await.unwrap_err();
        assert!(text(&error).contains(reason), "{}", text(&error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_federated_agent_is_verified_by_its_own_bundle() {
    let mesh = Mesh::start();
    let partner = TrustDomain::new("partner.example");
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT)], &[&partner]);
    until("the agent has both", async || mesh.agent.log().contains("example.org partner.example")).await;
    // without the agent's bundle, then with it
    mesh.caller_api.issue(&partner, [partner.leaf(CALLER)], &[]);
    let error = connect(&mesh.agent, mesh.caller_api.options(&mesh.agent_id())).await.unwrap_err();
    documented("there is no trust bundle of …, the trust domain of the agent's SPIFFE ID", &text(&error));
    mesh.caller_api.issue(&partner, [partner.leaf(CALLER)], &[&mesh.domain]);
    assert_eq!(identity(&mesh.connect().await).await.unwrap(), "spiffe://partner.example/ops/anna");
    // it is not the caller's own, so it says nothing about DNS names
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT).dns("localhost")], &[&partner]);
    let error = connect(&mesh.agent, mesh.caller_api.options("localhost")).await.unwrap_err();
    assert!(text(&error).contains("UnknownIssuer"), "{}", text(&error));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_may_have_the_name_of_its_host() {
    let domain = TrustDomain::new("example.org");
    let (agent_api, caller_api) =
        (telexec_tests::WorkloadServer::start(), telexec_tests::WorkloadServer::with(&domain, CALLER));
    agent_api.issue(&domain, [domain.leaf("agents/127.0.0.1").dns("web-1.example.org")], &[]);
    let agent = super::agent(&agent_api, "").start();
    for name in ["web-1.example.org", "spiffe://example.org/agents/{host}"] {
        assert_eq!(
            identity(&connect(&agent, caller_api.options(name)).await.unwrap()).await.unwrap(),
            domain.id(CALLER)
        );
    }
    for name in ["web-2.example.org", "{host}", "localhost"] {
        let error = connect(&agent, caller_api.options(name)).await.unwrap_err();
        assert!(text(&error).contains("not valid for name"), "{}", text(&error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_not_enough_without_an_svid() {
    let mesh = Mesh::start();
    let leaf = || telexec_tests::Leaf::server("localhost");
    for (pair, reason) in [
        (mesh.domain.ca().issue(leaf()), "the certificate has no usable SPIFFE ID"),
        (mesh.domain.ca().issue(leaf().uri("spiffe://partner.example/a")), "not of the trust domain example.org"),
    ] {
        let args = [("--tls-cert", &pair.cert), ("--tls-key", &pair.key), ("--client-ca", &mesh.domain.ca().cert())];
        let args = args.into_iter().flat_map(|(flag, path)| [flag.to_owned(), path.to_str().unwrap().to_owned()]);
        let agent = Agent::builder().listen("tcp://127.0.0.1:0").args(args).start();
        let error = connect(&agent, mesh.caller_api.options("localhost")).await.unwrap_err();
        assert!(text(&error).contains(reason), "{}", text(&error));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spiffe_ids_work_with_files_as_well() {
    let certs = Certs::new();
    let leaf = telexec_tests::Leaf::svid("spiffe://example.org/agents/web-1");
    let pair = certs.ca.issue(leaf);
    let args = [("--tls-cert", &pair.cert), ("--tls-key", &pair.key), ("--client-ca", &certs.ca.cert())];
    let args = args.into_iter().flat_map(|(flag, path)| [flag.to_owned(), path.to_str().unwrap().to_owned()]);
    let agent = Agent::builder().listen("tcp://127.0.0.1:0").args(args).start();
    let named = |name: &str| TlsOptions { server_name: Some(name.to_owned()), ..certs.options(&certs.client) };
    let connected = connect(&agent, named("spiffe://example.org/agents/web-1")).await.unwrap();
    assert_eq!(identity(&connected).await.unwrap(), "client");
    let error = connect(&agent, named("spiffe://example.org/agents/web-2")).await.unwrap_err();
    assert!(text(&error).contains("not spiffe://example.org/agents/web-2"), "{}", text(&error));
    // a CA of files may be that of any trust domain
    let stranger = Certs::new();
    let tls = TlsOptions {
        server_name: Some("spiffe://example.org/agents/web-1".to_owned()),
        ..stranger.options(&certs.client)
    };
    let error = connect(&agent, tls).await.unwrap_err();
    assert!(text(&error).contains("BadSignature"), "{}", text(&error));
}
