//! Who was turned away before a policy was asked.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::{Value, json};
use telexec_proto::v1::GetAgentRequest;
use telexec_tests::{Ca, Certs, Leaf, Scrape, Wire, run, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Audit, assert_whole};
use crate::transport::as_another_user;

fn shown(record: &Value) -> [&str; 4] {
    ["transport", "error", "certificate_name", "message"].map(|name| record[name].as_str().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_fail_are_reported_with_what_was_presented() {
    let (audit, certs) = (Audit::new(), Certs::new());
    let revoked = certs.ca.issue(Leaf::client("revoked"));
    let crl = certs.ca.directory().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[&revoked])).unwrap();
    let agent = audit.agent("").mtls(&certs).args(["--client-crl", crl.to_str().unwrap()]).start();
    let mut seen = 0;
    for (pair, error, name, message) in [
        (None, "tls", "", "peer sent no certificates"),
        (Some(Ca::new("others").issue(Leaf::client("eve"))), "tls", "eve", "UnknownIssuer"),
        (Some(certs.ca.issue(Leaf::client("late").expired())), "tls", "late", "expired"),
        (Some(revoked), "tls", "revoked", "Revoked"),
        (Some(certs.ca.issue(Leaf::client("x").nameless())), "nameless", "", "no usable identity"),
    ] {
        let config = certs.config(pair.as_ref());
        if let Ok(wire) = Wire::connect_tls(&agent, config).await {
            within(wire.agent().get_agent(GetAgentRequest {})).await.unwrap_err();
        }
        seen += 1;
        let record = audit.wait("rejected", seen).await.pop().unwrap();
        assert_eq!(shown(&record)[..3], ["mtls", error, name], "{record}");
        assert!(shown(&record)[3].contains(message), "{message}: {record}");
        assert!(record["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{record}");
        let presented = [&record["certificate_serial"], &record["certificate_fingerprint"]];
        assert!(presented.iter().all(|value| value.is_string() == pair.is_some()), "{record}");
        assert!(record["identity"].is_null(), "{record}");
    }
    // whoever goes away by itself was not turned away
    drop(Wire::dial(&agent).await);
    let trusting = Certs::new();
    Wire::connect_tls(&agent, trusting.config(Some(&trusting.client))).await.map(drop).unwrap_err();
    let mut other = Wire::dial(&agent).await;
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = within(other.read_to_end(&mut Vec::new())).await;
    let records = audit.wait("rejected", seen + 1).await;
    assert_eq!((records.len(), &records[seen]["error"]), (seen + 1, &json!("tls")));
    drop(agent);
    assert_whole(&audit).await;
    let mut search = tokio::process::Command::from(telexec_tests::telexecd());
    search.args(["audit", "search", "--event", "rejected", "--text", "eve"]).arg(audit.file());
    let found = String::from_utf8(within(search.output()).await.unwrap().stdout).unwrap();
    assert!(found.contains(" as eve: TLS: ") && found.lines().count() == 1, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_revoked_certificate_are_reported() {
    let (audit, certs) = (Audit::new(), Certs::new());
    let anna = certs.ca.issue(Leaf::client("anna"));
    let crl = certs.ca.directory().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[])).unwrap();
    let agent = audit.agent("").mtls(&certs).args(["--client-crl", crl.to_str().unwrap()]).start();
    let wire = Wire::connect_tls(&agent, certs.config(Some(&anna))).await.unwrap();
    within(wire.agent().get_agent(GetAgentRequest {})).await.unwrap();
    std::fs::write(&crl, certs.ca.revocation_list(&[&anna])).unwrap();
    agent.signal(Signal::HUP);
    // the first one may be under way while the list is read
    until("one is reported", async || {
        let _ = within(wire.agent().get_agent(GetAgentRequest {})).await;
        !audit.events("rejected").is_empty()
    })
    .await;
    let record = audit.wait("rejected", 1).await.swap_remove(0);
    let origin = ["identity", "rpc", "error", "transport"].map(|name| record[name].as_str().unwrap_or_default());
    assert_eq!(origin, ["anna", "GetAgent", "unauthenticated", "mtls"], "{record}");
    assert!(record["message"].as_str().unwrap().contains("has been revoked"), "{record}");
    assert!(record["certificate_serial"].is_string(), "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_of_a_socket_are_reported() {
    if !rustix::process::getuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let audit = Audit::new();
    let agent = audit.agent("").start();
    for (path, mode) in [(agent.directory().to_str().unwrap(), 0o755), (agent.address(), 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    assert_eq!(as_another_user(agent.address().to_owned()).unwrap(), b"");
    let record = audit.wait("rejected", 1).await.swap_remove(0);
    assert_eq!(shown(&record)[..2], ["unix", "foreign"], "{record}");
    assert!(record["peer_uid"].as_u64().is_some_and(|uid| uid > 0), "{record}");
}

/// A scan of ports fills no log, and takes no share of callers.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_them_is_counted() {
    let (audit, certs) = (Audit::new(), Certs::new());
    let agent = audit.agent("max_bytes_per_identity = 65536").mtls(&certs);
    let mut agent = agent.args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let stranger = certs.config(Some(&Ca::new("others").issue(Leaf::client("eve"))));
    let knock = async |source: Ipv4Addr| {
        if let Ok(wire) = Wire::connect_tls_from(source, &agent, stranger.clone()).await {
            let _ = within(wire.agent().get_agent(GetAgentRequest {})).await;
        }
    };
    for _ in 0..40 {
        knock(Ipv4Addr::LOCALHOST).await;
    }
    for last in 2..100 {
        knock(Ipv4Addr::new(127, 0, 0, last)).await;
    }
    let rejected = "telexec_handshakes_total{result=\"tls\"}";
    until("all are turned away", async || Scrape::of(&agent).await.value(rejected) == 138.0).await;
    // which has a share of its own
    let executor = agent.connect_as(&certs.client).await.executor();
    assert!(run(&executor, telexec_executor::Command::argv(["true"])).await.is_ok());
    assert!(agent.terminate().await.success());
    let records = audit.events("rejected");
    let more = audit.events("more").iter().map(|record| record["denied"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(u64::try_from(records.len()).unwrap() + more, 138, "all are counted");
    let bytes: usize = records.iter().map(|record| record.to_string().len()).sum();
    assert!(bytes < 65536, "{bytes}");
    assert_whole(&audit).await;
}
