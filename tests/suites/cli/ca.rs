//! `telexec certs` after the first day: what was issued is listed, renewed and revoked.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use telexec_tests::{Agent, lines};
use tempfile::TempDir;

use super::{Said, Site, say, telexec};

/// A CA in a directory of its own.
struct Ca(TempDir);

impl Ca {
    async fn new() -> Self {
        let ca = Self(tempfile::tempdir().unwrap());
        ca.certs(&["init"]).await.answer();
        ca
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    async fn certs(&self, args: &[&str]) -> Said {
        Said::by(certs(args, self.0.path())).await
    }

    /// `[name, status]` of everything that it has issued, the CA itself left out.
    async fn listed(&self) -> Vec<[String; 2]> {
        let said = self.certs(&["list", "--all", "--json"]).await;
        let rows = said.answer().lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        rows.filter(|row| row["usage"] != "ca").map(|row| [text(&row, "name"), text(&row, "status")]).collect()
    }

    /// What `certs show` says of a certificate, by its key.
    async fn shown(&self, name: &str, key: &str) -> String {
        let said = say(&["certs", "show", self.path(name).to_str().unwrap()]).await;
        let line = said.answer().lines().find_map(|line| line.strip_prefix(&format!("{key}:"))).unwrap();
        line.trim().to_owned()
    }
}

fn certs(args: &[&str], directory: &Path) -> tokio::process::Command {
    let mut command = telexec(["certs"].iter().chain(args));
    command.arg("--dir").arg(directory);
    command
}

fn listed(rows: &[[&str; 2]]) -> Vec<[String; 2]> {
    rows.iter().map(|row| row.map(str::to_owned)).collect()
}

/// An agent that reads the list of this CA.
async fn agent_with_list(ca: &Ca) -> (Agent, Vec<String>) {
    for line in
        [&["issue", "127.0.0.1", "--server"][..], &["issue", "alice", "--client"], &["issue", "bob", "--client"]]
    {
        ca.certs(line).await.answer();
    }
    let file = |name: &str| ca.path(name).to_str().unwrap().to_owned();
    let args = ["--tls-cert", &file("127.0.0.1.pem"), "--tls-key", &file("127.0.0.1.key"), "--client-ca"];
    let args = args.map(str::to_owned).into_iter().chain([file("ca.pem"), "--client-crl".into(), file("crl.pem")]);
    let agent = Agent::builder().listen("tcp://127.0.0.1:0").args(args).start();
    let target = ["--cert", &file("alice.pem"), "--key", &file("alice.key"), "--ca", &file("ca.pem")];
    let target = target.into_iter().chain([agent.address()]).map(str::to_owned).collect();
    (agent, target)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_caller_is_refused_on_its_open_connection_too() {
    let ca = Ca::new().await;
    let (agent, target) = agent_with_list(&ca).await;
    let site = Site { target, directory: tempfile::tempdir().unwrap(), agent: Some(agent) };
    let (child, _stdout) = site.running(&["-c", "echo ready; sleep 300"]).await;

    let said = ca.certs(&["revoke", "alice"]).await;
    for part in ["revoked alice, serial ", "crl.pem: 1 certificate revoked", "client_crl"] {
        assert!(said.answer().contains(part), "{said:?}");
    }
    // the agent has seen the file change
    let ended = Said::by_child(child).await;
    assert!(ended.code == 255 && ended.stderr().contains("has been revoked"), "{ended:?}");
    let again = site.exec(&["--", "true"]).await;
    assert!(again.failure(255).contains("revoked"), "{again:?}");

    // others are not: alice's files of the past, now with bob's certificate
    let bob = site.target.iter().map(|arg| arg.replace("alice", "bob")).collect();
    let bob = Site { target: bob, ..site };
    bob.exec(&["--", "true"]).await.answer();
    // and neither is who gets a new certificate for the name
    ca.certs(&["issue", "alice", "--client", "--force"]).await.answer();
    let alice = bob.target.iter().map(|arg| arg.replace("bob", "alice")).collect();
    Site { target: alice, ..bob }.exec(&["--", "true"]).await.answer();
}

#[tokio::test]
async fn a_name_revokes_all_that_was_issued_for_it_and_a_serial_one() {
    let ca = Ca::new().await;
    for name in ["alice", "bob"] {
        ca.certs(&["issue", name, "--client"]).await.answer();
    }
    ca.certs(&["renew", "alice", "bob"]).await.answer();
    let serial = ca.shown("bob.pem", "serial").await;
    let said = ca.certs(&["revoke", "alice", &serial]).await;
    assert_eq!(said.answer().matches("revoked alice").count(), 2, "{said:?}");
    let all = [["alice", "revoked"], ["bob", "valid"], ["alice", "revoked"], ["bob", "revoked"]];
    assert_eq!(ca.listed().await, listed(&all));
    // repeated, it writes the list again
    std::fs::remove_file(ca.path("crl.pem")).unwrap();
    assert!(ca.certs(&["revoke", "alice"]).await.answer().contains(", was revoked on "));
    assert!(ca.path("crl.pem").exists());
    // one that the index does not know, as an earlier version issued it
    let elsewhere = "4f".repeat(16);
    assert!(ca.certs(&["revoke", &elsewhere]).await.answer().contains("4 certificates revoked"));
    for unknown in ["carol", "4f4f", ""] {
        let said = ca.certs(&["revoke", unknown]).await;
        assert!(said.failure(1).contains("no certificate"), "{said:?}");
        assert!(said.stderr().contains("`telexec certs list --all --dir /"), "{said:?}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_for_the_same_key_names_and_side() {
    let ca = Ca::new().await;
    let names = ["--dns", "web.example.org", "--ip", "10.0.0.7", "--uri", "spiffe://example.org/web"];
    ca.certs(&[&["issue", "web1", "--server", "--days", "10"], &names[..]].concat()).await.answer();
    let (key, before) = (ca.read("web1.key"), ca.read("web1.pem"));
    let mut fields = Vec::new();
    for field in ["subject", "names", "usages"] {
        fields.push((field, ca.shown("web1.pem", field).await));
    }
    assert!(ca.certs(&["renew", "web1"]).await.answer().contains("for the same key"));
    assert!(ca.read("web1.key") == key && ca.read("web1.pem") != before);
    for (field, value) in fields {
        assert_eq!(ca.shown("web1.pem", field).await, value, "{field}");
    }
    assert_eq!(ca.listed().await, listed(&[["web1", "renewed"], ["web1", "valid"]]));
    // both fit together
    let tls = ["--tls-cert", "web1.pem", "--tls-key", "web1.key", "--client-ca", "ca.pem", "--client-crl", "crl.pem"];
    let tls = tls.map(|arg| if arg.starts_with('-') { arg.into() } else { ca.path(arg).to_str().unwrap().to_owned() });
    drop(Agent::builder().listen("tcp://127.0.0.1:0").args(tls).start());

    let out = ca.path("out");
    ca.certs(&["renew", "web1", "--new-key", "--out", out.to_str().unwrap()]).await.answer();
    assert_ne!(lines(&out.join("web1.key")), lines(&ca.path("web1.key")));
    assert_eq!(out.join("web1.key").metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn only_what_is_due_is_renewed_and_nothing_that_is_revoked() {
    let ca = Ca::new().await;
    for (name, days) in [("soon", "10"), ("late", "100"), ("gone", "10")] {
        ca.certs(&["issue", name, "--client", "--days", days]).await.answer();
    }
    ca.certs(&["revoke", "gone"]).await.answer();
    let said = ca.certs(&["renew", "--all", "--within", "30d"]).await;
    let renewed: Vec<_> = said.answer().lines().filter(|line| line.starts_with("renewed ")).collect();
    assert!(renewed.len() == 1 && renewed[0].contains("soon.pem"), "{said:?}");
    assert!(ca.certs(&["renew", "gone"]).await.failure(1).contains("revoked"));
    assert!(ca.certs(&["renew", "--all", "--within", "1d"]).await.answer().contains("nothing is due"));
    assert_eq!(ca.certs(&["renew"]).await.code, 2);
    // the same name for both sides
    ca.certs(&["issue", "late", "--server", "--force"]).await.answer();
    assert!(ca.certs(&["renew", "late"]).await.failure(1).contains("serial"));
}

#[tokio::test]
async fn a_certificate_that_the_ca_cuts_short_is_reported() {
    let ca = Ca(tempfile::tempdir().unwrap());
    ca.certs(&["init", "--days", "5"]).await.answer();
    let said = ca.certs(&["issue", "web1", "--server"]).await;
    assert!(said.code == 0 && said.remark().contains("the end of the CA"), "{said:?}");
    // a new certificate of the CA has the same key: nothing that it has issued is lost
    let before = ca.read("ca.pem");
    assert!(ca.certs(&["renew", "--ca"]).await.answer().contains("for the same key"));
    assert_ne!(ca.read("ca.pem"), before);
    ca.certs(&["issue", "web2", "--server"]).await.answer();
    assert_eq!(ca.listed().await, listed(&[["web1", "valid"], ["web2", "valid"]]));
}

#[tokio::test]
async fn a_ca_of_an_earlier_version_gets_its_index_from_its_directory() {
    let ca = Ca::new().await;
    for name in ["alice", "bob"] {
        ca.certs(&["issue", name, "--client"]).await.answer();
    }
    for file in ["index.json", "crl.pem"] {
        std::fs::remove_file(ca.path(file)).unwrap();
    }
    std::fs::write(ca.path("notes.pem"), "nothing").unwrap();
    ca.certs(&["revoke", "alice"]).await.answer();
    let mut rows = ca.listed().await;
    rows.sort();
    assert_eq!(rows, listed(&[["alice", "revoked"], ["bob", "valid"]]));
    // another CA in the same place has nothing to do with them
    ca.certs(&["init", "--force"]).await.answer();
    assert_eq!(ca.listed().await, listed(&[]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_many_issue_at_once_is_all_in_the_index() {
    let ca = Ca::new().await;
    let names: Vec<_> = (0..12).map(|number| format!("host{number}")).collect();
    let issuing = names.iter().map(async |name| ca.certs(&["issue", name, "--server"]).await);
    for said in futures_util::future::join_all(issuing).await {
        said.answer();
    }
    let mut listed: Vec<_> = ca.listed().await.into_iter().map(|[name, _]| name).collect();
    listed.sort();
    let mut expected = names;
    expected.sort();
    assert_eq!(listed, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_that_is_killed_at_any_moment_knows_what_it_has_issued() {
    let ca = Ca::new().await;
    for number in 0..telexec_tests::rounds(40) {
        let name = format!("host{number}");
        let mut child = certs(&["issue", &name, "--server"], ca.0.path()).spawn().unwrap();
        for _ in 0..number * 97 % 1500 {
            tokio::task::yield_now().await;
        }
        let _ = child.kill().await;
        let known = ca.listed().await;
        let has_cert = ca.path(&format!("{name}.pem")).exists();
        assert!(!has_cert || known.contains(&[name.clone(), "valid".to_owned()]), "{name} is not in the index");
    }
}

/// The lines that `telexec` says on standard error.
fn warnings(said: &Said) -> Vec<&str> {
    said.stderr().lines().filter(|line| line.contains("warning: ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_warned_once_before_its_certificate_or_the_ca_expires() {
    let ca = Ca(tempfile::tempdir().unwrap());
    ca.certs(&["init", "--days", "30"]).await.answer();
    for line in [&["127.0.0.1", "--server", "--days", "20"][..], &["alice", "--client", "--days", "6"]] {
        ca.certs(&[&["issue"], line].concat()).await.answer();
    }
    let file = |name: &str| ca.path(name).to_str().unwrap().to_owned();
    let args =
        ["--tls-cert", &file("127.0.0.1.pem"), "--tls-key", &file("127.0.0.1.key"), "--client-ca", &file("ca.pem")];
    let agents = [0, 1].map(|_| Agent::builder().listen("tcp://127.0.0.1:0").args(args).start());
    let tls = ["--cert", &file("alice.pem"), "--key", &file("alice.key"), "--ca", &file("ca.pem")];
    let config = ca.path("config.toml");
    let run = async |config_text: &str, line: &[&str]| {
        std::fs::write(&config, config_text).unwrap();
        let mut command = telexec(line);
        Said::by({
            command.env("TELEXEC_CONFIG", &config);
            command
        })
        .await
    };
    let exec = [&["exec"], &tls[..], &[agents[0].address(), "echo", "hi"]].concat();
    let said = run("", &exec).await;
    assert_eq!((said.code, said.stdout()), (0, "hi\n"), "{said:?}");
    let [one] = warnings(&said)[..] else { panic!("{said:?}") };
    assert!(one.contains("alice.pem expires in 5 days") && one.starts_with("telexec: "), "{one}");
    // both, if there is less time than that
    assert_eq!(warnings(&run("[defaults]\nexpiry_warning = \"60d\"", &exec).await).len(), 2);
    assert_eq!(run("[defaults]\nexpiry_warning = \"0s\"", &exec).await.answer(), "hi\n");

    let hosts = agents.each_ref().map(|agent| agent.address()).join(",");
    let fleet = [&["fleet"], &tls[..], &["--json", "-w", &hosts, "echo", "hi"]].concat();
    let said = run("", &fleet).await;
    assert!(said.code == 0 && warnings(&said).len() == 1, "{said:?}");
    assert!(said.stdout().lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{said:?}");

    let said = run("", &[&["info", "--json"], &tls[..], &[agents[0].address()]].concat()).await;
    let info: serde_json::Value = serde_json::from_str(said.stdout()).unwrap();
    let [agents_end, own] =
        ["certificate_expire_time", "own_certificate_expire_time"].map(|key| info[key].as_str().unwrap());
    assert!(own < agents_end, "{info}");
    let said = run("", &[&["info"], &tls[..], &[agents[0].address()]].concat()).await;
    assert!(said.stdout().contains(&format!("your cert:    expires {own}")), "{said:?}");
    assert!(!said.stdout().contains("access:") && info["caller_expire_time"] == own, "{said:?} {info}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_certificate_is_no_callers() {
    let ca = Ca::new().await;
    let (_agent, mut target) = agent_with_list(&ca).await;
    let file = |name: &str| ca.path(name).to_str().unwrap().to_owned();
    (target[1], target[3]) = (file("127.0.0.1.pem"), file("127.0.0.1.key"));
    let target: Vec<_> = target.iter().map(String::as_str).collect();
    let [tls @ .., address] = &target[..] else { panic!("{target:?}") };
    for line in [&["exec", address, "true"][..], &["ping", address], &["fleet", "-w", address, "true"]] {
        let said = say(&[&line[..1], tls, &line[1..]].concat()).await;
        assert!(said.failure(2).contains("is not for a client (extended key usage clientAuth)"), "{said:?}");
    }
}
