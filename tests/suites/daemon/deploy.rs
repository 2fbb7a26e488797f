//! The files that are shipped beside the programs.

use std::path::{Path, PathBuf};

use telexec_tests::{Certs, TokenIssuer};

use super::telexecd;
use crate::receipts::Key;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy")
}

/// The certificates and the policy that it names are not there yet, so others stand in for them.
async fn check(config: &Path) -> (i32, String) {
    let certs = Certs::new();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (cert, key, ca) = (text(&certs.agent.cert), text(&certs.agent.key), text(&certs.ca.cert()));
    let crl = certs.ca.directory().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[])).unwrap();
    let policy = certs.ca.directory().join("policy.cedar");
    std::fs::write(&policy, "permit(principal, action, resource);").unwrap();
    let (crl, policy) = (text(&crl), text(&policy));
    let files = ["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca, "--client-crl", &crl, "--policy", &policy];
    telexecd(&[&["--check-config", "--config", config.to_str().unwrap()], &files[..]].concat(), &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_configuration_is_valid() {
    let (code, log) = check(&deploy().join("telexecd.toml")).await;
    assert_eq!(code, 0, "{log}");
}

/// A line's key, if it sets one.
fn key(line: &str) -> Option<&str> {
    let (key, _) = line.split_once(" = ")?;
    key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(key)
}

/// A table that is commented out as a whole.
fn is_table(line: &str) -> bool {
    line.starts_with("[commands.")
        || line.starts_with("[token_issuers.")
        || line == "[audit.syslog]"
        || line == "[audit.otlp]"
        || line == "[audit_collector]"
}

/// What is commented out in it, `# key = value`, is no less true, and goes before what is not.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_configuration_is_valid_with_what_is_commented_out() {
    let (certs, receipts) = (Certs::new(), Key::new());
    let mut text = std::fs::read_to_string(deploy().join("telexecd.toml")).unwrap();
    // these are not there either
    let token_keys = certs.ca.directory().join("keys.json");
    std::fs::write(&token_keys, TokenIssuer::key_set(&[&TokenIssuer::new("https://login.example.org")])).unwrap();
    for (name, file) in [
        ("corp-keys.json", token_keys),
        ("ci-ca.pem", certs.ca.cert()),
        ("logs-ca.pem", certs.ca.cert()),
        ("web1.pem", certs.agent.cert),
        ("web1.key", certs.agent.key),
        ("receipt.key", receipts.path()),
    ] {
        text = text.replace(&format!("/etc/telexec/{name}"), file.to_str().unwrap());
    }
    // these certificates are instead of the others
    let text = text.replace(&spiffe_table(&text), "");
    let (mut lines, mut in_table) = (Vec::<&str>::new(), false);
    for line in text.lines() {
        // not the user and the controllers, which may not be here, and what needs the keeper that is switched off here
        let elsewhere = ["agent_user", "keeper_syslog", "max_processes_per_identity", "max_memory_bytes_per_identity"];
        let is_set = |code: &&str| key(code).is_some_and(|key| !elsewhere.contains(&key)) || is_table(code);
        let code = line.strip_prefix("# ").filter(is_set).unwrap_or(line);
        // which has keys of its own
        if code.starts_with('[') {
            in_table = is_table(code);
        }
        if !in_table {
            lines.retain(|earlier| key(earlier).is_none() || key(earlier) != key(code));
        }
        lines.push(code);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("telexecd.toml");
    std::fs::write(&path, lines.join("\n")).unwrap();
    let (code, log) = check(&path).await;
    assert_eq!(code, 0, "{log}");
}

/// The table `[spiffe]`, commented out, to the next empty line.
fn spiffe_table(text: &str) -> String {
    let (_, table) = text.split_once("# [spiffe]\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    format!("# [spiffe]\n{table}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_spiffe_is_valid() {
    let example = std::fs::read_to_string(deploy().join("telexecd.toml")).unwrap();
    let table = spiffe_table(&example);
    let lines =
        table.lines().map(|line| line.strip_prefix("# ").filter(|line| key(line).is_some() || line.starts_with('[')));
    let lines: Vec<_> = ["listen = [\"tcp://0.0.0.0:7443\"]"].into_iter().chain(lines.flatten()).collect();
    assert!(lines.len() > 5, "{lines:?}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("telexecd.toml");
    std::fs::write(&path, lines.join("\n")).unwrap();
    let (code, log) = telexecd(&["--check-config", "--config", path.to_str().unwrap()], &[]).await;
    assert_eq!(code, 0, "{log}");
}

/// The agent names its keys when it is given one that it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_configuration_shows_every_key() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("telexecd.toml");
    let example = std::fs::read_to_string(deploy().join("telexecd.toml")).unwrap();
    for (unknown, least) in [("colour = 1", 20), ("[audit]\ncolour = 1", 7)] {
        std::fs::write(&path, unknown).unwrap();
        let (_, log) = check(&path).await;
        let keys = log.split_once("expected one of ").unwrap().1;
        let keys: Vec<&str> = keys.split('`').skip(1).step_by(2).collect();
        let shown = |key: &&str| example.contains(&format!("{key} = ")) || example.contains(&format!("{key}]\n"));
        let shown = |key: &&str| shown(key) || example.contains(&format!("[{key}."));
        let missing: Vec<_> = keys.iter().filter(|key| !shown(key)).collect();
        assert!(keys.len() > least && missing.is_empty(), "of {keys:?}: {missing:?}");
    }
}
