//! The configuration: names for targets, how they resolve, and how mistakes are reported.

use std::path::Path;

use serde_json::{Value, json};
use telexec_tests::{Agent, Ca, Certs};
use tempfile::TempDir;
use tokio::process::Command;

use super::{Said, telexec};

/// A configuration file in a directory of its own.
struct Configured {
    directory: TempDir,
}

impl Configured {
    fn new(toml: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.toml"), toml).unwrap();
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn telexec(&self, args: &[&str]) -> Command {
        let mut command = telexec(args);
        command.env("TELEXEC_CONFIG", self.path().join("config.toml"));
        command
    }

    async fn say(&self, args: &[&str]) -> Said {
        Said::by(self.telexec(args)).await
    }
}

/// A target over mTLS with everything that it needs, and one on a Unix socket.
fn with_certs(certs: &Certs, tcp: &Agent, unix: &Agent) -> Configured {
    let (cert, key) = (certs.client.cert.display(), certs.client.key.display());
    Configured::new(&format!(
        "[defaults]\ncredentials = 'me'\n\
         [credentials.me]\ncert = '{cert}'\nkey = '{key}'\nca = '{ca}'\n\
         [targets.build-7]\naddress = '{tcp}'\nserver_name = 'localhost'\n\
         [targets.here]\naddress = '{unix}'\n\
         [groups]\nboth = ['build-7', 'here']\n",
        ca = certs.ca.cert().display(),
        tcp = tcp.address(),
        unix = unix.uri()
    ))
}

#[tokio::test]
async fn a_name_stands_for_an_address_and_its_credentials() {
    let certs = Certs::new();
    let (tcp, unix) = (Agent::builder().mtls(&certs).start(), Agent::start());
    let configured = with_certs(&certs, &tcp, &unix);
    for target in ["build-7", "here"] {
        assert_eq!(configured.say(&["exec", target, "-c", "echo hello"]).await.answer(), "hello\n");
        assert!(configured.say(&["ping", target]).await.answer().starts_with(&format!("{target}: serving")));
        let id = configured.say(&["exec", "-d", target, "-c", "echo again"]).await.answer().trim().to_owned();
        assert_eq!(configured.say(&["attach", target, &id]).await.answer(), "again\n");
        assert_eq!(configured.say(&["ps", "-aq", target]).await.answer().lines().last(), Some(&*id));
    }
    let advice = configured.say(&["exec", "--yield-after", "0", "here", "-c", "sleep 2"]).await;
    assert!(advice.remark().contains("`telexec attach here "), "{advice:?}");
}

#[tokio::test]
async fn a_flag_goes_before_the_environment_and_that_before_the_file() {
    let certs = Certs::new();
    let (tcp, unix) = (Agent::builder().mtls(&certs).start(), Agent::start());
    let configured = with_certs(&certs, &tcp, &unix);
    let shown = async |args: &[&str], variable: Option<&str>| {
        let mut command = configured.telexec(&[&["config", "show", "--json"], args].concat());
        command.envs(variable.map(|value| ("TELEXEC_SERVER_NAME", value)));
        let shown: Value = serde_json::from_str(Said::by(command).await.answer()).unwrap();
        [&shown["targets"]["build-7"]["server_name"], &shown["targets"]["here"]["server_name"]].map(Value::clone)
    };
    assert_eq!(shown(&[], None).await, [json!("localhost"), json!(null)]);
    assert_eq!(shown(&[], Some("env")).await, [json!("env"), json!("env")]);
    assert_eq!(shown(&["--server-name", "flag"], Some("env")).await, [json!("flag"), json!("flag")]);
    let refused = configured.say(&["exec", "--server-name", "other", "build-7", "-c", "true"]).await;
    assert!(refused.failure(255).contains("is not for other, but for "), "{refused:?}");

    // what is wrong in the file is said to be there
    let another = Ca::new("another");
    let ca = another.cert().display().to_string();
    let file = configured.path().join("config.toml");
    let toml = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, toml.replace(&certs.ca.cert().display().to_string(), &ca)).unwrap();
    let said = configured.say(&["exec", "build-7", "-c", "true"]).await;
    assert!(said.failure(255).contains(&format!("ca = {ca:?} in {} must", file.display())), "{said:?}");
}

#[tokio::test]
async fn what_is_shown_is_a_configuration() {
    let certs = Certs::new();
    let (tcp, unix) = (Agent::builder().mtls(&certs).start(), Agent::start());
    let configured = with_certs(&certs, &tcp, &unix);
    let shown = configured.say(&["config", "show"]).await.answer().to_owned();
    let again = Configured::new(&shown);
    assert_eq!(again.say(&["exec", "build-7", "-c", "echo hello"]).await.answer(), "hello\n");
    let rest = |shown: &str| shown.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rest(again.say(&["config", "show"]).await.answer()), rest(&shown));
    for default in ["connect_timeout = \"10s\"\n", "port = 7443\n", "fanout = 64\n"] {
        assert!(shown.contains(default), "{shown}");
    }
    let path = configured.path().join("config.toml");
    assert_eq!(configured.say(&["config", "path"]).await.answer(), format!("{}\n", path.display()));
}

#[tokio::test]
async fn the_users_are_as_configured() {
    let unix = Agent::start();
    let configured = Configured::new(&format!("[targets.a]\naddress = '{}'\nuser = 'no-such-user'", unix.uri()));
    let refused = configured.say(&["exec", "a", "-c", "true"]).await;
    assert!(refused.failure(125).contains("no-such-user"), "{refused:?}");
    let own = String::from_utf8(Command::new("id").arg("-un").output().await.unwrap().stdout).unwrap();
    assert_eq!(configured.say(&["exec", "-u", own.trim(), "a", "-c", "id -un"]).await.answer(), own);
}

#[tokio::test]
async fn mistakes_are_reported_with_file_and_key() {
    let configured = Configured::new("[targets.a]\naddress = 'a:1'\ncolour = 'red'\n");
    let file = configured.path().join("config.toml");
    let said = configured.say(&["exec", "a", "-c", "true"]).await;
    assert!(said.failure(2).contains(&format!("{}:3: unknown field `colour`", file.display())), "{said:?}");
    // what needs no configuration does not care
    assert_eq!(configured.say(&["config", "path"]).await.code, 0);
}

#[tokio::test]
async fn a_name_that_is_not_there_is_taken_for_a_host_and_said_to_be_none() {
    let configured = Configured::new("[targets.build-7]\naddress = 'a:1'\n[targets.web1]\naddress = 'a:1'");
    let said = configured.say(&["exec", "bild-7", "true"]).await;
    for part in
        ["tcp://bild-7:7443", "--cert", "bild-7 is no target", "similar targets in the configuration: build-7\n"]
    {
        assert!(said.failure(2).contains(part), "{said:?}");
    }
    let grouped = Configured::new("[targets.web1]\naddress = 'a:1'\n[groups]\nweb = ['web1']");
    let said = grouped.say(&["exec", "web", "true"]).await;
    assert!(said.failure(2).contains("web is a group in the configuration: for its hosts, use telexec fleet -w @web"));
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    let configured = with_certs(&certs, &agent, &Agent::start());
    // no resolver has to be asked about this one
    let said = configured.say(&["exec", "--server-name", "x", "build..7", "true"]).await;
    let expected = "no target named \"build..7\" in the configuration, and no host of that name was found: ";
    assert!(said.failure(255).contains(expected), "{said:?}");
    assert!(said.failure(255).contains("similar targets in the configuration: build-7\n"), "{said:?}");
    let said = configured.say(&["exec", "--server-name", "x", "build..7:7443", "true"]).await;
    assert!(said.failure(255).contains("no host named \"build..7\" was found: "), "{said:?}");
}

#[tokio::test]
async fn hosts_without_a_port_are_at_the_default_port() {
    let agent = Agent::builder().listen("tcp://127.0.0.1:0").args(["--insecure"]).start();
    let port = agent.address().rsplit_once(':').unwrap().1.to_owned();
    let configured = Configured::new(&format!(
        "[defaults]\nport = {port}\n[targets.a]\naddress = '127.0.0.1'\n[targets.localhost]\naddress = '127.0.0.1:1'"
    ));
    for target in ["127.0.0.1", "tcp://127.0.0.1", "a"] {
        assert_eq!(configured.say(&["exec", target, "echo", "hello"]).await.answer(), "hello\n", "{target}");
    }
    // a configured name goes before a host of that name, unless it is written as an address
    let said = configured.say(&["ping", "localhost"]).await;
    assert!(said.failure(255).contains("tcp://127.0.0.1:1 "), "{said:?}");
    assert!(configured.say(&["ping", "tcp://localhost"]).await.answer().contains("serving"));
    let said = Configured::new("").say(&["--help"]).await;
    assert!(said.answer().contains("7443"), "{said:?}");
}

#[tokio::test]
async fn a_file_that_is_not_there_is_an_error_if_it_was_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("nothing.toml");
    let mut named = telexec(["config", "show"]);
    named.env("TELEXEC_CONFIG", &missing);
    let said = Said::by(named).await;
    assert!(said.failure(2).contains(missing.to_str().unwrap()), "{said:?}");
    let mut usual = telexec(["config", "show"]);
    usual.env_remove("TELEXEC_CONFIG").env("XDG_CONFIG_HOME", directory.path());
    assert!(Said::by(usual).await.answer().contains("no configuration file"));
}
