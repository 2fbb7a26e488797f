//! Flags, environment and file.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use telexec_executor::{Command, CommandBuilder, Executor, ExitCause};
use telexec_tests::{Agent, Ca, Certs, Leaf, MARK, Pair, collect, marker, processes_with, run, until, until_output};

use super::telexecd;

/// A private directory with a configuration file of this text.
fn file(toml: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("telexecd.toml");
    std::fs::write(&path, toml).unwrap();
    (directory, path.to_str().unwrap().to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_valid_configuration_is_checked_and_nothing_more() {
    let certs = Certs::new();
    let (directory, _) = file("");
    let socket = directory.path().join("agent.sock");
    let listen = format!("unix://{}", socket.display());
    let (cert, key, ca) = (text(&certs.agent.cert), text(&certs.agent.key), certs.ca.cert());
    let tls = ["--tls-cert", cert, "--tls-key", key, "--client-ca", text(&ca)];
    for args in [&["--listen", &listen][..], &[&["--listen", "tcp://0.0.0.0:0"][..], &tls].concat()] {
        let (code, log) = telexecd(&[&["--check-config"], args].concat(), &[]).await;
        assert_eq!(code, 0, "{log}");
        assert!(!log.contains("listening on"), "{log}");
    }
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_are_relative_to_the_file() {
    let (directory, path) = file("listen = [\"unix:///tmp/never.sock\"]\npolicy = \"policy.cedar\"");
    let (code, log) = telexecd(&["--check-config", "--config", &path], &[]).await;
    let policy = directory.path().join("policy.cedar");
    assert!(code == 78 && log.contains(text(&policy)), "{log}");

    std::fs::write(&policy, "permit(principal, action, resource);").unwrap();
    let (code, log) = telexecd(&["--check-config", "--config", &path], &[]).await;
    assert_eq!(code, 0, "{log}");
}

async fn fault(toml: &str) -> String {
    let (_directory, path) = file(toml);
    let (code, log) = telexecd(&["--check-config", "--config", &path], &[]).await;
    assert_eq!(code, 78, "{toml}: {log}");
    log
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_file_are_named() {
    const LISTEN: &str = "listen = [\"unix:///tmp/never.sock\"]\n";
    for (toml, named) in [
        ("colour = 1", "colour"),
        ("socket_mode = 0600", "socket_mode: a number cannot begin with 0, and a string is in double quotes"),
        ("socket_mode = 600", "socket_mode: invalid type, expected a string in double quotes"),
        (
            "roles = { ops = [\"unix:uid=root\"] }",
            "roles.ops: \"unix:uid=root\": is not an identity: local users are unix:uid=N, ",
        ),
        ("listn = []", "listn: unknown field `listn`: did you mean `listen`?"),
        ("[audit]\nfil = \"/a\"", "did you mean `file`?"),
        ("listen = \"unix:///a.sock\"", "listen: invalid type, expected a list such as [\"...\"]"),
        ("max_timeout = 600", "max_timeout: invalid type, expected a duration such as \"10m\""),
        ("listen =", "telexecd.toml"),
        ("listen = [\"http://a:1\"]", "http://a:1"),
        ("listen = [\"unix://relative.sock\"]", "relative.sock"),
        ("", "no address to listen on"),
        ("listen = [\"tcp://0.0.0.0:0\"]", "--tls-cert"),
        ("kill_grace = \"soon\"", "kill_grace: invalid value, expected a duration such as \"10m\""),
        ("max_executions = 0", "max_executions"),
        ("default_timeout = \"0s\"", "default_timeout"),
        ("working_directory = \"relative\"", "working_directory"),
        ("max_connections = 0", "max_connections"),
        ("containment = \"process-group\"\nrequire_containment = \"cgroup\"", "does not satisfy require_containment"),
        ("shell = \"\"", "shell"),
        ("log_format = \"xml\"", "xml"),
        ("log_level = \"a=b=c\"", "log_level"),
        ("log_level = \"foo\"", "expected error, warn, info, debug, trace or off"),
        ("max_request_bytes_in_flight = 1", "max_request_bytes_in_flight: must be at least 65536"),
        ("max_request_fields = 63", "max_request_fields: must be at least 64"),
        ("[environment]\n\"A=B\" = \"c\"", "environment"),
        ("[audit]\nfile = \"relative\"", "audit.file"),
        ("[audit]\nfile = \"/\"", "audit.file"),
        ("[audit]\nredact = [\"(\"]", "audit.redact"),
        ("[audit]\nwhen_full = \"wait\"", "when_full"),
        ("[audit]\nfiles = \"/a\"", "files"),
        ("tls_cert = \"/no/such.pem\"", "must be given together"),
        ("client_crl = \"/no/such.pem\"", "--client-crl needs --client-ca"),
        ("tls_cert = \"/no/such.pem\"\ntls_key = \"/no/such.key\"\nclient_ca = \"/no/ca.pem\"", "/no/"),
    ] {
        let toml = if toml.contains("listen") || toml.is_empty() { toml.to_owned() } else { format!("{LISTEN}{toml}") };
        let log = fault(&toml).await;
        assert!(log.contains(named), "{toml}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_flags_and_environment_are_faults_of_the_configuration() {
    for (args, environment) in [
        (&["--listen", "http://a:1"][..], &[][..]),
        (&[], &[("TELEXECD_LISTEN", "http://a:1")]),
        (&["--config", "/no/such/telexecd.toml"], &[]),
        (&["--listen", "unix:///tmp/never.sock", "--log-level", "foo"], &[]),
        (&["--listen", "unix:///tmp/never.sock"], &[("TELEXECD_LOG_LEVEL", "telexec_engine=foo")]),
    ] {
        let (code, log) = telexecd(&[&["--check-config"], args].concat(), environment).await;
        assert_eq!(code, 78, "{args:?} {environment:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_certificates_are_named() {
    let (certs, another) = (Certs::new(), Ca::new("another"));
    let (ca, stranger) = (certs.ca.cert(), another.issue(Leaf::server("localhost")));
    let empty = certs.ca.directory().join("empty.pem");
    std::fs::write(&empty, "no certificate\n").unwrap();
    std::fs::set_permissions(&empty, Permissions::from_mode(0o600)).unwrap();
    for (cert, key, ca, named) in [
        (&certs.agent.cert, &stranger.key, &ca, "does not belong to the certificate"),
        (&certs.agent.cert, &"/no.key".into(), &ca, "cannot read a private key from /no.key: No such file"),
        (&empty, &certs.agent.key, &ca, "empty.pem"),
        (&certs.agent.cert, &empty, &ca, "empty.pem"),
        (&certs.agent.cert, &certs.agent.key, &empty, "empty.pem"),
        (&certs.agent.key, &certs.agent.key, &ca, ".key"),
    ] {
        let toml =
            format!("listen = [\"tcp://0.0.0.0:0\"]\ntls_cert = {cert:?}\ntls_key = {key:?}\nclient_ca = {ca:?}");
        let log = fault(&toml).await;
        assert!(log.contains(named), "{named}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_revocation_lists_are_named() {
    let (certs, namesake) = (Certs::new(), Ca::new("telexec tests"));
    let crl = certs.ca.directory().join("crl.pem");
    let Pair { cert, key, .. } = &certs.agent;
    let toml = format!(
        "listen = [\"tcp://0.0.0.0:0\"]\ntls_cert = {cert:?}\ntls_key = {key:?}\nclient_ca = {:?}\nclient_crl = {crl:?}",
        certs.ca.cert()
    );
    assert!(fault(&toml).await.contains("cannot read a revocation list from"), "there is no file");
    let list = certs.ca.revocation_list(&[&certs.client]);
    let cut = format!("{}-----END X509 CRL-----\n", &list[..list.len() / 2]);
    for (content, named) in [
        ("nothing", "contains no PEM revocation list"),
        (&cut, "revocation list"),
        (&namesake.revocation_list(&[]), "no revocation list signed by CN=telexec tests"),
    ] {
        std::fs::write(&crl, content).unwrap();
        let log = fault(&toml).await;
        assert!(log.contains(named) && log.contains("crl.pem"), "{named}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_key_that_others_can_use_is_refused() {
    let certs = Certs::new();
    let (cert, key, ca) = (text(&certs.agent.cert), &certs.agent.key, certs.ca.cert());
    let tls = ["--listen", "tcp://0.0.0.0:0", "--tls-cert", cert, "--tls-key", text(key), "--client-ca", text(&ca)];
    let check = async |mode| {
        std::fs::set_permissions(key, Permissions::from_mode(mode)).unwrap();
        telexecd(&[&["--check-config"], &tls[..]].concat(), &[]).await
    };
    for mode in [0o644, 0o604, 0o660, 0o602] {
        let (code, log) = check(mode).await;
        assert_eq!(code, 78, "{mode:o}: {log}");
        assert!(log.contains(&format!("chmod 600 {}", key.display())), "{mode:o}: {log}");
    }
    for mode in [0o600, 0o400] {
        assert_eq!(check(mode).await.0, 0, "{mode:o}");
    }
    let of_root = rustix::process::getuid().is_root();
    assert_eq!(check(0o640).await.0, if of_root { 0 } else { 78 }, "a group may read it if it is root's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_callers_would_refuse_is_refused() {
    let certs = Certs::new();
    let ca = certs.ca.cert();
    for (pair, expected) in [(&certs.agent, 0), (&certs.client, 78)] {
        let tls = ["--tls-cert", text(&pair.cert), "--tls-key", text(&pair.key), "--client-ca", text(&ca)];
        let args = [&["--check-config", "--listen", "tcp://0.0.0.0:0"], &tls[..]].concat();
        let (code, log) = telexecd(&args, &[]).await;
        assert_eq!(code, expected, "{log}");
        assert_eq!(log.contains("is not for a server (extended key usage serverAuth)"), expected != 0, "{log}");
    }
    let expired = certs.ca.issue(Leaf::server("localhost").expired());
    for (cert, fault) in
        [(&expired.cert, "expired on Jan  1"), (&certs.agent.cert, "does not belong to the certificate")]
    {
        let tls = ["--tls-cert", text(cert), "--tls-key", text(&expired.key), "--client-ca", text(&ca)];
        let args = [&["--check-config", "--listen", "tcp://0.0.0.0:0"], &tls[..]].concat();
        let (code, log) = telexecd(&args, &[]).await;
        assert!(code == 78 && log.contains(fault), "{log}");
    }
}

#[test]
fn a_flag_goes_before_the_environment_and_that_before_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let [file, environment, flag] =
        ["file", "environment", "flag"].map(|name| format!("unix://{}/{name}.sock", directory.path().display()));
    let of_file = || Agent::builder().config(format!("listen = [{file:?}]"));
    let of_environment = || of_file().env("TELEXECD_LISTEN", &environment);
    assert_eq!(of_file().listen_as_configured(1).start().uris(), [file.as_str()]);
    assert_eq!(of_environment().listen_as_configured(1).start().uris(), [environment.as_str()]);
    assert_eq!(of_environment().listen(&flag).start().uris(), [flag]);
}

#[test]
fn the_environment_can_switch_off_what_the_file_switches_on() {
    let insecure = || Agent::builder().listen("tcp://127.0.0.1:0").config("insecure = true");
    insecure().start();
    let refused = insecure().env("TELEXECD_INSECURE", "false").try_start().expect_err("it does not listen");
    assert!(refused.log.contains("--tls-cert"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flag_has_its_variable() {
    let certs = Certs::new();
    let directory = tempfile::tempdir().unwrap();
    let (config, state) = (directory.path().join("telexecd.toml"), directory.path().join("state"));
    std::fs::write(&config, "max_executions = 7").unwrap();
    let crl = directory.path().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[])).unwrap();
    let variables = [
        ("CONFIG", text(&config)),
        ("LISTEN", "tcp://127.0.0.1:0"),
        ("TLS_CERT", text(&certs.agent.cert)),
        ("TLS_KEY", text(&certs.agent.key)),
        ("CLIENT_CA", text(&certs.ca.cert())),
        ("CLIENT_CRL", text(&crl)),
        ("STATE_DIR", text(&state)),
        ("LOG_FORMAT", "json"),
        ("LOG_LEVEL", "debug"),
        ("CHECK_CONFIG", "true"),
    ]
    .map(|(name, value)| (format!("TELEXECD_{name}"), value.to_owned()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    let (code, log) = telexecd(&[], &variables).await;
    assert_eq!(code, 0, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_start_from_what_is_configured() {
    let toml = "shell = \"sh\"\nworking_directory = \"/usr\"\n[environment]\nPATH = \"/bin:/usr/bin\"\nA = \"b c\"";
    let agent = Agent::builder().config(toml).start();
    let outcome = run(&agent.executor().await, Command::shell("echo $0 $PWD $PATH $A")).await.unwrap();
    assert_eq!(outcome.text(), "sh /usr /bin:/usr/bin b c\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_are_cut_to_the_longest() {
    let agent = Agent::builder().config("max_timeout = \"300ms\"\nkill_grace = \"0s\"").start();
    let executor = agent.executor().await;
    let endless = || Command::argv(["sleep", "300"]);
    for command in [endless(), endless().timeout(std::time::Duration::from_secs(300))] {
        assert_eq!(run(&executor, command).await.unwrap().exited.cause, ExitCause::TimedOut);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graces_are_cut_to_the_longest() {
    const HOUR: Duration = Duration::from_secs(3600);
    // the default of commands that do not say is cut too
    let config = "max_timeout = \"1s\"\nkill_grace = \"1h\"\nmax_kill_grace = \"200ms\"";
    let agent = Agent::builder().config(config).start();
    let executor = agent.executor().await;
    let stubborn = |mark: &str| Command::shell("trap '' TERM; echo ready; sleep 300; sleep 300").env(MARK, mark);
    for asked in [None, Some(HOUR)] {
        let mark = marker();
        let command = || asked.into_iter().fold(stubborn(&mark), CommandBuilder::kill_grace);
        let outcome = run(&executor, command()).await.unwrap();
        assert_eq!(outcome.exited.cause, ExitCause::TimedOut);
        let mut execution = executor.execute(command().build().unwrap()).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        drop(execution);
        until("what was cancelled is gone", async || processes_with(&mark).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_hold_for_commands_that_do_not_say() {
    let agent = Agent::builder().config("default_timeout = \"300ms\"\nmax_output_bytes = 3").start();
    let executor = agent.executor().await;
    assert_eq!(run(&executor, Command::argv(["sleep", "300"])).await.unwrap().exited.cause, ExitCause::TimedOut);
    let said = Command::shell("printf 12345").timeout(std::time::Duration::from_secs(300));
    assert_eq!(run(&executor, said.clone()).await.unwrap().text(), "123");
    assert_eq!(run(&executor, said.max_output_bytes(4)).await.unwrap().text(), "1234");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_ended_executions_are_forgotten() {
    let agent = Agent::builder().config("retention_count = 2").start();
    let executor = agent.executor().await;
    let running = executor.execute(Command::argv(["sleep", "300"]).build().unwrap()).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..4 {
        let execution = executor.execute(Command::argv(["true"]).build().unwrap()).await.unwrap();
        ids.push(collect(execution).await.unwrap().started.id);
    }
    let mut known = Vec::new();
    for id in ids.iter().chain([running.id()]) {
        known.push(executor.get(id).await.is_ok());
    }
    assert_eq!(known, [false, false, true, true, true], "the last one still runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_reported_without_its_value() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("telexecd.toml");
    for (text, line) in [
        ("[environment]\nPASSWORD = \"hunter2\"x", 2),
        ("[environment]\nPASSWORD = [\"hunter2\"]", 2),
        ("listen = []\n[environment]\nPASSWORD = 'hunter2", 3),
        ("max_executions = \"hunter2\"", 1),
    ] {
        std::fs::write(&path, text).unwrap();
        let (code, log) = telexecd(&["--check-config", "--config", path.to_str().unwrap()], &[]).await;
        assert_eq!(code, 78, "{log}");
        assert!(log.contains(&format!("telexecd.toml:{line}: ")) && !log.contains("hunter2"), "{log}");
    }
}
