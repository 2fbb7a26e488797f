//! The messages in the section on troubleshooting of docs/OPERATING.md are those of the programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use telexec_tests::{Agent, AgentBuilder, Ca, Certs, Leaf, Pair, Proxy, is_root, telexecd, until, within};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::{Said, say, telexec};

const PAGE: &str = include_str!("../../../docs/OPERATING.md");
/// What stands for other words on the page.
const PLACEHOLDERS: &[&str] = &["…", "AGENT", "RULE", "NAME", "FILE:LINE", "KEY", " N "];

/// The messages of the page.
fn messages() -> Vec<&'static str> {
    let section = PAGE.split_once("\n## 11. Troubleshooting\n").unwrap().1;
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).map(|(cell, _)| cell);
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    quoted.filter(|text| !text.starts_with("--")).collect()
}

/// Asserts that this is the page's message, and that a program has written it here.
#[track_caller]
pub(crate) fn shows(message: &str, written: &str) {
    assert!(messages().contains(&message), "not on the page: {message}");
    let pattern = PLACEHOLDERS.iter().fold(message.to_owned(), |text, word| text.replace(word, "\0"));
    let mut rest = written;
    for piece in pattern.split('\0').map(|piece| piece.trim_matches([' ', ';'])).filter(|piece| !piece.is_empty()) {
        let Some(at) = rest.find(piece) else { panic!("{piece:?} of the message {message:?} is not in:\n{written}") };
        rest = &rest[at + piece.len()..];
    }
}

#[test]
fn each_message_of_the_page_is_shown_by_a_test() {
    fn sources(directory: &Path, all: &mut String) {
        for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                sources(&entry, all);
            } else {
                all.push_str(&std::fs::read_to_string(entry).unwrap());
            }
        }
    }
    let mut tests = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("suites"), &mut tests);
    let tests = tests.split_whitespace().collect::<Vec<_>>().join(" ").replace("shows( ", "shows(");
    let messages = messages();
    assert!(messages.len() > 40, "the page is read: {messages:?}");
    let missing: Vec<_> = messages.iter().filter(|message| !tests.contains(&format!("shows(\"{message}\","))).collect();
    assert!(missing.is_empty(), "no test shows: {missing:#?}");
}

/// An agent with mTLS, and what callers of it need.
struct Site {
    certs: Certs,
    agent: Agent,
}

impl Site {
    fn new(more: impl FnOnce(AgentBuilder) -> AgentBuilder) -> Self {
        let certs = Certs::new();
        Self { agent: more(Agent::builder().mtls(&certs)).start(), certs }
    }

    fn caller(&self, name: &str) -> Pair {
        self.certs.ca.issue(Leaf::client(name))
    }

    /// What `telexec` says to a caller with this certificate who trusts this CA.
    async fn said(&self, pair: &Pair, ca: &Ca, args: &[&str]) -> String {
        let mut command = telexec(args.iter().map(|word| if *word == "TARGET" { self.agent.address() } else { word }));
        command.env("TELEXEC_CERT", &pair.cert).env("TELEXEC_KEY", &pair.key).env("TELEXEC_CA", ca.cert());
        Said::by(command).await.stderr().to_owned()
    }

    async fn ping(&self, pair: &Pair) -> String {
        self.said(pair, &self.certs.ca, &["ping", "TARGET"]).await
    }
}

async fn unix(agent: &Agent, command: &[&str]) -> String {
    let mut words = vec!["exec", agent.uri()];
    words.extend(command);
    say(&words).await.stderr().to_owned()
}

/// What an agent writes that refuses to start.
fn refusal(builder: AgentBuilder) -> String {
    builder.try_start().expect_err("it refuses").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_agents_that_cannot_be_reached() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    shows("… is unreachable: Connection refused", say(&["ping", &unused]).await.stderr());
    let said = say(&["ping", "unix:///no/such.sock"]).await;
    shows("… is unreachable: No such file or directory", said.stderr());
    let site = Site::new(|builder| builder);
    let plain = Agent::builder().listen("tcp://127.0.0.1:0").args(["--insecure"]).start();
    let said = site.said(&site.certs.client, &site.certs.ca, &["ping", plain.address()]).await;
    shows("TLS authentication with … failed: what listens there does not speak TLS", &said);
    assert!(said.contains("one started with --insecure is reached without credentials; leave out --cert, "), "{said}");
    let said = site.said(&site.certs.client, &site.certs.ca, &["ping", "no-such-host.invalid"]).await;
    shows("no target named … in the configuration, and no host of that name was found: …", &said);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_certificates_that_are_refused_by_the_caller() {
    let site = Site::new(|builder| builder);
    let said = say(&["ping", site.agent.address()]).await;
    shows("TLS authentication with … failed: no answer within 3s", said.stderr());
    let args = ["ping", "--server-name", "other.example", "TARGET"];
    let said = site.said(&site.certs.client, &site.certs.ca, &args).await;
    shows("the agent's certificate is not for …, but for …", &said);
    let said = site.said(&site.certs.client, &Ca::new("telexec tests"), &["ping", "TARGET"]).await;
    shows("another CA of the same name issued the agent's certificate", &said);
    let said = site.said(&site.certs.client, &Ca::new("another"), &["ping", "TARGET"]).await;
    shows("your CA did not issue the agent's certificate", &said);
    let said = site.ping(&site.certs.agent).await;
    shows("cannot use …: its certificate is not for a client (extended key usage clientAuth)", &said);
    let soon = site.certs.ca.issue(Leaf::client("soon").ends_in(std::time::Duration::from_secs(3600 * 24)));
    shows("warning: … expires in …", &site.ping(&soon).await);
    std::fs::set_permissions(&soon.key, std::fs::Permissions::from_mode(0o640)).unwrap();
    shows("warning: others may use the private key …", &site.ping(&soon).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_certificates_that_are_refused_by_the_agent() {
    let certs = Certs::new();
    let revoked = certs.ca.issue(Leaf::client("revoked"));
    let later = certs.ca.issue(Leaf::client("later"));
    let crl = certs.ca.directory().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[&revoked])).unwrap();
    let config = format!("[identities]\n{:?} = [\"revoked\", \"later\", \"ended\", \"client\"]", certs.ca.cert());
    let agent = Agent::builder().mtls(&certs).args(["--client-crl", crl.to_str().unwrap()]).config(config).start();
    let site = Site { agent, certs };
    shows("the agent refused your certificate: it has been revoked", &site.ping(&revoked).await);
    let said = site.ping(&site.caller("nobody")).await;
    shows(
        "the agent refused your certificate: this name may not call, or its CA may not issue certificates for it",
        &said,
    );
    shows("it has expired", &site.ping(&site.certs.ca.issue(Leaf::client("ended").expired())).await);
    let said = site.ping(&Ca::new("telexec tests").issue(Leaf::client("client"))).await;
    shows("another CA of the same name issued it", &said);
    let said = site.ping(&Ca::new("another").issue(Leaf::client("client"))).await;
    shows("the agent refused your certificate: it does not trust the CA that issued it", &said);

    let mut command = telexec(["exec", site.agent.address(), "-c", "echo started; exec sleep 1000"]);
    command.env("TELEXEC_CERT", &later.cert).env("TELEXEC_KEY", &later.key);
    let mut child = command.env("TELEXEC_CA", site.certs.ca.cert()).spawn().unwrap();
    within(child.stdout.as_mut().unwrap().read_exact(&mut [0; 8])).await.unwrap();
    std::fs::write(&crl, site.certs.ca.revocation_list(&[&later])).unwrap();
    site.agent.signal(rustix::process::Signal::HUP);
    let said = Said::by_child(child).await;
    shows("the certificate of this connection has been revoked", said.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_policies() {
    let site = Site::new(|builder| {
        let policy = r#"
            @id("incident") permit(principal == Identity::"anna", action == Action::"Execute", resource)
            when { context.reason like "INC-*" && ["df", "perl"].containsAll(context.programs) };
            @id("no-sudo") forbid(principal == Identity::"anna", action == Action::"Execute", resource)
            when { context.uses_sudo };"#;
        builder.policy(policy)
    });
    let anna = site.caller("anna");
    let run = async |args: &[&str]| site.said(&anna, &site.certs.ca, &[&["exec"], args].concat()).await;
    shows(
        "no rule of the policy permits Execute on AGENT for …; the closest rule is RULE; not met: …",
        &run(&["TARGET", "df"]).await,
    );
    shows("the policy forbids Execute on AGENT for …: RULE; not met: …", &run(&["TARGET", "sudo", "df"]).await);
    let said = run(&["--reason", "INC-1", "TARGET", "-c", "$x"]).await;
    shows("… (what the command runs cannot be determined: …)", &said);
    let said = run(&["--reason", "INC-1", "-e", "PERL5OPT=x", "TARGET", "perl"]).await;
    shows("… @environment (the command sets PERL5OPT)", &said);
    let said = site.said(&anna, &site.certs.ca, &["attach", "TARGET", "x"]).await;
    shows("…; no rule for this identity covers …", &said);
    let said = site.said(&site.caller("eve"), &site.certs.ca, &["exec", "TARGET", "df"]).await;
    shows("… for NAME (no role); no rule applies to this identity", &said);

    let free = Site::new(|builder| builder);
    let said = free.said(&free.caller("anna"), &free.certs.ca, &["check", "--as", "eve", "TARGET", "df"]).await;
    shows("there is no policy: only root … may ask for others", &said);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_commands_that_cannot_run() {
    let agent = Agent::start();
    if is_root() {
        let said = say(&["exec", "-u", "no-such-user", agent.uri(), "true"]).await;
        shows("cannot look up the user …", said.stderr());
    }
    let said = say(&["exec", "--workdir", "/no/such", agent.uri(), "true"]).await;
    shows("cannot enter the directory …", said.stderr());
    shows("cannot run …", &unix(&agent, &["/no/such"]).await);
    let said = say(&["attach", agent.uri(), "no-such-id"]).await;
    shows("no execution …", said.stderr());
    let said = say(&["exec", "--timeout", "100ms", agent.uri(), "sleep", "1000"]).await;
    assert_eq!(said.code, 124, "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_limits() {
    let busy = Agent::builder().config("max_executions_per_identity = 1").start();
    say(&["exec", "-d", busy.uri(), "sleep", "1000"]).await.answer();
    shows("… already has N running, the limit …", &unix(&busy, &["true"]).await);

    let rate = Agent::builder().config("max_starts_per_second = 2").start();
    let mut said = String::new();
    within(async {
        while said.is_empty() {
            said = unix(&rate, &["true"]).await;
        }
    })
    .await;
    shows("rate limit: … may start N commands per second", &said);

    let calls = Agent::builder().config("max_calls_per_identity = 1").start();
    let mut child = telexec(["exec", calls.uri(), "-c", "echo started; exec sleep 1000"]).spawn().unwrap();
    within(child.stdout.as_mut().unwrap().read_exact(&mut [0; 8])).await.unwrap();
    shows("… calls open, the limit", &unix(&calls, &["true"]).await);

    let bytes = Agent::builder().config("max_request_bytes_in_flight_per_identity = 65536").start();
    let long = format!("A={}", "x".repeat(100_000));
    let said = say(&["exec", "-e", &long, bytes.uri(), "true"]).await;
    shows("requests would hold more than …", said.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_connections_that_are_lost() {
    let agent = Agent::builder().config("max_disconnect_grace = \"0s\"").start();
    let proxy = Proxy::before(&agent).await;
    let mut child = telexec(["exec", proxy.uri(), "-c", "echo started; exec sleep 1000"]).spawn().unwrap();
    within(child.stdout.as_mut().unwrap().read_exact(&mut [0; 8])).await.unwrap();
    proxy.cut();
    let said = Said::by_child(child).await;
    shows(
        "the connection to … was lost: the agent ended the command because the connection was lost for too long",
        said.stderr(),
    );

    let full = Agent::builder().config("max_connections = 1").start();
    let mut child = telexec(["exec", full.uri(), "-c", "echo started; exec sleep 1000"]).spawn().unwrap();
    within(child.stdout.as_mut().unwrap().read_exact(&mut [0; 8])).await.unwrap();
    let said = say(&["exec", "--reconnect", "0", full.uri(), "true"]).await;
    // it may have been sent a request before it was closed
    if said.stderr().contains("unreachable") {
        shows("… is unreachable: connection closed", said.stderr());
    } else {
        shows("the connection to … was lost: the other side closed it", said.stderr());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_agents_that_do_not_start() {
    let certs = Certs::new();
    let open = certs.ca.issue(Leaf::server("localhost"));
    std::fs::set_permissions(&open.key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let with = |pair: Pair| Certs { agent: pair, ca: Ca::new("unused"), client: certs.client.clone() };
    shows("others may use the private key …", &refusal(Agent::builder().mtls(&with(open))));
    shows("tcp:// needs --tls-cert, --tls-key and --client-ca", &refusal(Agent::builder().listen("tcp://127.0.0.1:0")));
    shows(
        "the certificate … is not for a server (extended key usage serverAuth)",
        &refusal(Agent::builder().mtls(&with(certs.client.clone()))),
    );
    let said = refusal(Agent::builder().listen("tcp://0.0.0.0:0").args(["--insecure"]));
    shows("… is not a loopback address: listening there needs TLS", &said);
    let mut mixed = certs.agent.clone();
    mixed.key = certs.client.key.clone();
    let said = refusal(Agent::builder().mtls(&with(mixed)));
    shows("the key … does not belong to the certificate …", &said);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    let said = refusal(Agent::builder().listen(&address).args(["--insecure"]));
    shows("cannot listen on …: Address already in use", &said);
    shows("FILE:LINE: KEY: unknown field", &refusal(Agent::builder().config("colour = 1")));
    let directory = telexec_tests::directory();
    let state = directory.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let said = refusal(Agent::builder().args(["--state-dir", state.to_str().unwrap()]));
    shows("… must be a directory that no one else can write to", &said);
    if is_root() {
        let builder = Agent::builder().user(telexec_tests::NOBODY);
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let said = refusal(builder.args(["--state-dir", state.to_str().unwrap()]));
        shows("… belongs to uid …, but this process runs as uid …", &said);
    }
    // where no cgroup can be made
    if is_root() {
        let without = Agent::builder().through([
            "unshare",
            "--mount",
            "sh",
            "-c",
            "umount -l -a -t cgroup,cgroup2; exec \"$@\"",
            "sh",
        ]);
        let said = refusal(without.config("require_containment = \"cgroup\""));
        shows("the configuration requires …, which does not work here: …", &said);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_policies_in_files() {
    let agent = Agent::builder().policy("permit(principal, action, resource);").start();
    std::fs::write(agent.policy(), "permit(").unwrap();
    agent.signal(rustix::process::Signal::HUP);
    until("a failed reload", async || agent.log().contains("policy reload failed")).await;
    shows("policy reload failed, keeping what was read before", &agent.log());

    let directory = telexec_tests::directory();
    let check = async |policy: &str| {
        let (config, file) = (directory.path().join("telexecd.toml"), directory.path().join("policy.cedar"));
        std::fs::write(&config, "policy = \"policy.cedar\"").unwrap();
        std::fs::write(file, policy).unwrap();
        let mut command = Command::from(telexecd());
        command.arg("--config").arg(config).args(["policy", "check"]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Said::by(command).await
    };
    let said = check("forbid(principal, action, resource);").await;
    shows("no rule permits anything: every call would be denied", said.stdout());
    let said = check(r#"permit(principal in Role::"no-such", action, resource);"#).await;
    shows("the configuration has no role …", said.stderr());
}
