//! `telexec certs`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use telexec_tests::lines;

use super::{Said, Site, say, telexec};

async fn certs(args: &[&str], directory: &Path) -> Said {
    let mut command = telexec(["certs"].iter().chain(args));
    command.arg("--dir").arg(directory);
    Said::by(command).await
}

#[tokio::test]
async fn keys_are_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let certs_directory = directory.path().join("new/certs");
    certs(&["init"], &certs_directory).await.answer();
    certs(&["issue", "web-1", "--server"], &certs_directory).await.answer();
    for (name, mode) in [("", 0o700), ("ca.key", 0o600), ("web-1.key", 0o600), ("ca.pem", 0o644), ("web-1.pem", 0o644)]
    {
        let file = certs_directory.join(name).metadata().unwrap();
        assert_eq!(format!("{:o}", file.permissions().mode() & 0o777), format!("{mode:o}"), "{name}");
    }
}

#[tokio::test]
async fn certificates_are_not_overwritten_unless_forced() {
    let directory = tempfile::tempdir().unwrap();
    let contents = || ["ca.pem", "ca.key", "a.pem", "a.key"].map(|name| lines(&directory.path().join(name)));
    let both = [&["init"][..], &["issue", "a", "--both"]];
    for line in both {
        certs(line, directory.path()).await.answer();
    }
    let before = contents();
    for line in both {
        assert!(certs(line, directory.path()).await.failure(1).contains("--force"));
    }
    assert_eq!(contents(), before);
    for line in both {
        certs(&[line, &["--force"]].concat(), directory.path()).await.answer();
    }
    assert!(contents().iter().zip(&before).all(|(new, old)| new != old && !new.is_empty()));
}

#[tokio::test]
async fn a_certificate_is_for_the_side_that_was_said() {
    let directory = tempfile::tempdir().unwrap();
    certs(&["init"], directory.path()).await.answer();
    let said = certs(&["issue", "a"], directory.path()).await;
    assert!(said.code == 2 && said.stderr().contains("--server|--client|--both"), "{said:?}");
    assert!(!directory.path().join("a.pem").exists());
    for (side, usages) in [
        ("--server", "server authentication"),
        ("--client", "client authentication"),
        ("--both", "server authentication, client authentication"),
    ] {
        certs(&["issue", "a", side, "--force"], directory.path()).await.answer();
        let said = say(&["certs", "show", directory.path().join("a.pem").to_str().unwrap()]).await;
        let shown = said.answer().lines().find(|line| line.starts_with("usages:")).unwrap();
        assert!(shown.ends_with(&format!("digital signature, {usages}")), "{side}: {shown}");
    }
}

#[tokio::test]
async fn without_a_ca_nothing_is_issued() {
    let directory = tempfile::tempdir().unwrap();
    assert!(certs(&["issue", "a", "--client"], directory.path()).await.failure(1).contains("telexec certs init"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// As an enrolled machine has it: it must not be led to make a CA of its own.
#[tokio::test]
async fn where_the_key_of_the_ca_is_elsewhere_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    certs(&["init"], directory.path()).await.answer();
    std::fs::remove_file(directory.path().join("ca.key")).unwrap();
    let ca = std::fs::read(directory.path().join("ca.pem")).unwrap();
    for args in
        [&["issue", "a", "--client"][..], &["revoke", "a"], &["renew", "a"], &["token", "a", "--client"], &["crl"]]
    {
        let said = certs(args, directory.path()).await;
        let failure = said.failure(1);
        assert!(failure.contains("ca.key does not exist") && failure.contains("--dir"), "{args:?}: {failure}");
    }
    let said = certs(&["init"], directory.path()).await;
    let failure = said.failure(1);
    assert!(failure.contains("another machine") && !failure.contains("--force"), "{failure}");
    assert!(std::fs::read(directory.path().join("ca.pem")).unwrap() == ca);
}

#[tokio::test]
async fn certificates_are_kept_in_the_configuration_directory() {
    let directory = tempfile::tempdir().unwrap();
    for (variable, path) in [("XDG_CONFIG_HOME", "telexec/certs"), ("HOME", ".config/telexec/certs")] {
        let mut command = telexec(["certs", "init"]);
        command.env_remove("XDG_CONFIG_HOME").env(variable, directory.path());
        Said::by(command).await.answer();
        assert!(directory.path().join(path).join("ca.key").is_file(), "{variable}");
    }
}

#[tokio::test]
async fn certificates_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    certs(&["init", "--name", "our machines"], directory.path()).await.answer();
    let names = ["--dns", "web.example.org", "--ip", "10.0.0.7", "--uri", "spiffe://example.org/web"];
    certs(&[&["issue", "web-1", "--server"], &names[..]].concat(), directory.path()).await.answer();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let said = say(&["certs", "show", &file("ca.pem"), &file("web-1.pem")]).await;
    let shown: Vec<String> =
        said.answer().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "subject: CN=our machines",
        "subject: CN=web-1",
        "names: dns web.example.org, ip 10.0.0.7, uri spiffe://example.org/web",
        "issuer: CN=our machines",
    ] {
        assert!(shown.iter().any(|shown| shown == line), "{line}: {shown:#?}");
    }
    assert_eq!(shown.iter().filter(|line| line.starts_with("validity: ") && line.ends_with("(valid now)")).count(), 2);
    certs(&["revoke", "--reason", "key-compromise", "web-1"], directory.path()).await.answer();
    let said = say(&["certs", "show", &file("crl.pem")]).await;
    for part in [
        "list of:     CN=our machines\n",
        "next by:     20",
        "revoked:     1 certificate\nserial:      ",
        "(KeyCompromise)",
    ] {
        assert!(said.answer().contains(part), "{part}: {said:?}");
    }
    say(&["certs", "show", &file("ca.key")]).await.failure(1);
    assert!(say(&["certs", "show", &file("none.pem")]).await.failure(1).contains("none.pem"));
}

#[tokio::test]
async fn a_caller_whom_the_agent_cannot_trust_gets_an_error() {
    let site = Site::mtls().await;
    let [.., address] = &site.target[..] else { panic!("{:?}", site.target) };
    let said = say(&["exec", address, "--", "true"]).await;
    assert!(said.failure(255).contains("--cert"), "{said:?}");

    let other = tempfile::tempdir().unwrap();
    for line in [&["init"][..], &["issue", "mallory", "--client"]] {
        certs(line, other.path()).await.answer();
    }
    let file = |name: &str| other.path().join(name).to_str().unwrap().to_owned();
    let ours = site.path().join("certs/ca.pem");
    let cert = ["exec", "--cert", &file("mallory.pem"), "--key", &file("mallory.key"), "--ca"];
    let said = say(&[&cert[..], &[ours.to_str().unwrap(), address, "--", "true"]].concat()).await;
    assert!(said.failure(255).contains("refused your certificate"), "{said:?}");
    let said = say(&[&cert[..], &[&file("ca.pem"), address, "--", "true"]].concat()).await;
    assert!(said.failure(255).contains("--ca"), "{said:?}");

    // what is wrong on this side alone
    let key = file("mallory.key");
    for (flags, what) in [
        (["nope", &key, &file("ca.pem")], "cannot use nope: No such file"),
        ([&file("mallory.pem"), &file("ca.key"), &file("ca.pem")], "this key does not belong to the certificate"),
        ([&file("mallory.pem"), &key, &key], "it contains no PEM certificate"),
    ] {
        let [cert, key, ca] = flags;
        let said = say(&["exec", "--cert", cert, "--key", key, "--ca", ca, address, "--", "true"]).await;
        assert!(said.failure(2).contains(what), "{said:?}");
    }
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let said = say(&[&cert[..], &[ours.to_str().unwrap(), address, "--", "true"]].concat()).await;
    let warning = format!("telexec: warning: others may use the private key {key}: chmod 600 {key}\n");
    assert!(said.failure(255).contains(&warning), "{said:?}");
}
