//! Records that are sent to syslog: rsyslogd, unmodified, receives them.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::Signal;
use telexec_executor::Command;
use telexec_tests::{Agent, Ca, Leaf, Pair, run, until};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::process::Child;

use super::{Audit, records, verify};

/// A server with a port of its own, which is the same after a restart.
struct Server {
    directory: TempDir,
    /// Of its own: other tests take no port of it.
    address: SocketAddr,
    /// With TLS: the CA, this side's certificate, and the agent's, which it asks for.
    tls: Option<(PathBuf, Pair, Pair)>,
    child: Option<Child>,
}

impl Server {
    fn new(tls: Option<(PathBuf, Pair, Pair)>) -> Self {
        let address = (Ipv4Addr::new(127, 88, fastrand::u8(..), fastrand::u8(1..255)), 6514).into();
        Self { directory: tempfile::tempdir().unwrap(), address, tls, child: None }
    }

    fn received(&self) -> PathBuf {
        self.directory.path().join("received")
    }

    /// Starts it, and waits until it listens.
    async fn start(&mut self) {
        let (path, ip, port) = (self.directory.path().display(), self.address.ip(), self.address.port());
        let driver = match &self.tls {
            None => String::new(),
            Some((ca, pair, _)) => format!(
                r#"global(defaultNetstreamDriver="gtls" defaultNetstreamDriverCAFile="{}"
                          defaultNetstreamDriverCertFile="{}" defaultNetstreamDriverKeyFile="{}")"#,
                ca.display(),
                pair.cert.display(),
                pair.key.display()
            ),
        };
        let mode = match &self.tls {
            None => "",
            Some(_) => r#"StreamDriver.Name="gtls" StreamDriver.Mode="1" StreamDriver.AuthMode="x509/certvalid""#,
        };
        let config = format!(
            r#"{driver}
            global(workDirectory="{path}" maxMessageSize="1m")
            module(load="imtcp" MaxSessions="50" {mode})
            template(name="line" type="string" string="%msg%\n")
            template(name="header" type="string" string="%pri% %hostname% %app-name% %msgid% %timestamp:::date-rfc3339%\n")
            input(type="imtcp" port="{port}" address="{ip}")
            action(type="omfile" file="{path}/received" template="line")
            action(type="omfile" file="{path}/headers" template="header")
            "#
        );
        let file = self.directory.path().join("rsyslog.conf");
        std::fs::write(&file, config).unwrap();
        let mut server = tokio::process::Command::new("/usr/sbin/rsyslogd");
        server.arg("-n").arg("-f").arg(&file).arg("-i").arg(self.directory.path().join("pid"));
        self.child = Some(server.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap());
        until("rsyslogd listens", async || tokio::net::TcpStream::connect(self.address).await.is_ok()).await;
    }

    async fn kill(&mut self) {
        self.child.take().unwrap().kill().await.unwrap();
    }

    fn config(&self) -> String {
        match &self.tls {
            None => format!("[audit.syslog]\naddress = \"tcp://{}\"", self.address),
            Some((ca, _, Pair { cert, key, .. })) => {
                let name = "server_name = \"logs.example.org\"";
                let files = format!("ca = {ca:?}\ncert = {cert:?}\nkey = {key:?}");
                format!("[audit.syslog]\naddress = \"tls://{}\"\n{files}\n{name}", self.address)
            }
        }
    }

    /// The lines, each once: after a lost connection some come again.
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.received()).unwrap_or_default();
        let mut seen = HashSet::new();
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        whole.filter(|line| seen.insert(line.to_owned())).map(str::to_owned).collect()
    }

    /// Waits until it has all that the log has, in its order.
    async fn has_all_of(&self, audit: &Audit) {
        let file = audit.file();
        let all = || std::fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
        until("rsyslogd has all records", async || self.lines() == all()).await;
    }
}

async fn run_some(agent: &Agent, count: usize) {
    let executor = agent.executor().await;
    for number in 0..count {
        run(&executor, Command::shell(format!("echo {number} 'é\"\t'"))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_records_are_verified_where_they_arrive() {
    let (mut server, audit) = (Server::new(None), Audit::new());
    server.start().await;
    let agent = audit.agent(&server.config()).start();
    run_some(&agent, 20).await;
    audit.wait("end", 20).await;
    server.has_all_of(&audit).await;
    let (code, said) = verify(&[&server.received()]).await;
    assert!(code == 0 && said.starts_with("valid: 41 records"), "{said}");
    let headers = std::fs::read_to_string(server.directory.path().join("headers")).unwrap();
    let first = headers.lines().next().unwrap();
    assert!(first.starts_with("110 ") && first.contains(" telexecd opened "), "{first}");
}

/// As when the machine with the server is restarted, and the agent too.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_missing_after_lost_connections_and_restarts() {
    let (mut server, audit) = (Server::new(None), Audit::new());
    // nobody listens yet
    let mut agent = audit.agent(&server.config()).start();
    run_some(&agent, 5).await;
    server.start().await;
    server.has_all_of(&audit).await;
    for _ in 0..3 {
        run_some(&agent, 10).await;
        // not what it has read, and not written yet
        server.has_all_of(&audit).await;
        server.kill().await;
        run_some(&agent, 10).await;
        server.start().await;
    }
    server.has_all_of(&audit).await;
    // the last records are sent before it ends, and not again
    agent.terminate().await;
    assert!(
        agent.log().contains("cannot be sent to syslog") && agent.log().contains("the audit log is sent to syslog")
    );
    server.has_all_of(&audit).await;
    let before = std::fs::read_to_string(server.received()).unwrap().lines().count();
    let mut agent = audit.agent(&server.config()).start();
    run_some(&agent, 1).await;
    agent.terminate().await;
    server.has_all_of(&audit).await;
    let after = std::fs::read_to_string(server.received()).unwrap().lines().count();
    assert_eq!(after - before, 4, "opened, start, end, closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_right_server_gets_the_records() {
    let (ca, other) = (Ca::new("logs"), Ca::new("other"));
    let tls = (ca.cert(), ca.issue(Leaf::server("logs.example.org")), ca.issue(Leaf::client("web1")));
    let (mut server, audit) = (Server::new(Some(tls)), Audit::new());
    server.start().await;
    let right = server.config();
    let wrong = right.replace(&format!("{:?}", ca.cert()), &format!("{:?}", other.cert()));
    for config in [wrong, right.replace("logs.example.org", "elsewhere.example.org")] {
        let agent = audit.agent(&config).start();
        run_some(&agent, 1).await;
        until("it is reported", async || agent.log().contains("cannot be sent to syslog")).await;
        assert!(agent.log().contains("certificate"), "{}", agent.log());
    }
    // nor does a server that does not want this agent's records have to say so soon
    let nameless = right.lines().filter(|line| !line.starts_with("cert") && !line.starts_with("key"));
    let mut agent = audit.agent(&nameless.collect::<Vec<_>>().join("\n")).start();
    run_some(&agent, 1).await;
    until("it is reported", async || agent.log().contains("cannot be sent to syslog")).await;
    agent.terminate().await;
    assert!(server.lines().is_empty());
    let agent = audit.agent(&right).start();
    run_some(&agent, 1).await;
    server.has_all_of(&audit).await;
    drop(agent);
    assert_eq!(verify(&[&server.received()]).await.0, 0);
}

/// A server that takes the connection and reads nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stalls_holds_up_nothing() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let audit = Audit::new();
    let port = listener.local_addr().unwrap().port();
    let mut agent = audit.agent(&format!("[audit.syslog]\naddress = \"tcp://127.0.0.1:{port}\"")).start();
    let executor = agent.executor().await;
    // more than the buffers of the sockets take
    let long = "x".repeat(60_000);
    for _ in 0..150 {
        run(&executor, Command::argv(["true", &long])).await.unwrap();
    }
    audit.wait("end", 150).await;
    agent.terminate().await;
    super::assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_removed_before_it_was_sent_is_reported() {
    let (mut server, audit) = (Server::new(None), Audit::new());
    let config = format!("max_bytes = 20000\nkeep = 1\n{}", server.config());
    let agent = audit.agent(&config).start();
    run_some(&agent, 100).await;
    server.start().await;
    until("it is reported", async || agent.log().contains("records of the audit log were removed before")).await;
    let last = audit.records().last().unwrap()["seq"].clone();
    until("the last record arrives", async || records(&server.received()).iter().any(|record| record["seq"] == last))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_refused() {
    for (table, fault) in [
        ("address = \"udp://localhost:514\"", "audit.syslog.address: expected tls://HOST:PORT"),
        ("address = \"tcp://192.0.2.1:601\"", "use tls://"),
        ("address = \"tls://localhost:6514\"", "audit.syslog.ca: is required"),
        ("address = \"tls://localhost:6514\"\nca = \"missing.pem\"", "missing.pem"),
        ("ca = \"x\"", "address"),
        ("address = \"tcp://localhost:601\"\nsever_name = \"x\"", "sever_name"),
    ] {
        let refused = Audit::new().agent(&format!("[audit.syslog]\n{table}")).try_start().err().unwrap();
        assert!(refused.log.contains(fault), "{table}: {}", refused.log);
    }
    let refused =
        Agent::builder().config("[audit.syslog]\naddress = \"tcp://localhost:601\"").try_start().err().unwrap();
    assert!(refused.log.contains("audit.syslog: requires audit.file"), "{}", refused.log);
}

/// As a proxy that closes what is idle, and a server that closes at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_closed_early_is_made_up_for() {
    let audit = Audit::new();
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut read = [0; 65536];
                let idle = std::time::Duration::from_millis(200);
                while matches!(tokio::time::timeout(idle, stream.read(&mut read)).await, Ok(Ok(1..))) {}
            });
        }
    });
    let agent = audit.agent(&format!("[audit.syslog]\naddress = \"tcp://127.0.0.1:{port}\"")).start();
    let state = audit.file().with_file_name("audit.log.syslog");
    for _ in 0..3 {
        run_some(&agent, 3).await;
        until("all is delivered", async || {
            let last = audit.records().last().unwrap()["seq"].to_string();
            std::fs::read_to_string(&state).is_ok_and(|text| text.starts_with(&format!("{last} ")))
        })
        .await;
    }
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_while_the_log_is_moved_away_arrives() {
    let (mut server, audit) = (Server::new(None), Audit::new());
    server.start().await;
    let agent = audit.agent(&server.config()).start();
    run_some(&agent, 2).await;
    let moved = audit.file().with_file_name("moved");
    std::fs::rename(audit.file(), &moved).unwrap();
    run_some(&agent, 3).await;
    agent.signal(Signal::HUP);
    until("there is a new file", async || audit.file().exists()).await;
    run_some(&agent, 2).await;
    until("all arrive", async || {
        let text = [&moved, &audit.file()].map(|path| std::fs::read_to_string(path).unwrap()).concat();
        server.lines() == text.lines().collect::<Vec<_>>()
    })
    .await;
    assert!(!agent.log().contains("were removed"), "{}", agent.log());
}

/// Those that were there, and those of another log with the same numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_not_of_this_log_hides_nothing() {
    let (mut server, audit) = (Server::new(None), Audit::new());
    server.start().await;
    let state = audit.file().with_file_name("audit.log.syslog");
    let victim = audit.file().with_file_name("victim");
    let mut agent = audit.agent(&server.config()).start();
    run_some(&agent, 3).await;
    agent.terminate().await;
    assert!(std::fs::read_to_string(&state).unwrap().starts_with("8 "));
    // each time another log
    for damage in ["another", "text", "symlink", "fifo"] {
        std::fs::remove_file(audit.file()).unwrap();
        std::fs::write(&victim, "precious").unwrap();
        if damage != "another" {
            std::fs::remove_file(&state).unwrap();
        }
        match damage {
            "text" => std::fs::write(&state, "999999999999 x\n".repeat(1000)).unwrap(),
            "symlink" => {
                std::os::unix::fs::symlink(&victim, &state).unwrap();
                std::os::unix::fs::symlink(&victim, state.with_file_name("audit.log.syslog.new")).unwrap();
            }
            "fifo" => rustix::fs::mknodat(CWD, &state, FileType::Fifo, Mode::RWXU, 0).unwrap(),
            _ => {}
        }
        std::fs::remove_file(server.received()).unwrap();
        server.kill().await;
        server.start().await;
        let mut agent = audit.agent(&server.config()).start();
        run_some(&agent, 3).await;
        server.has_all_of(&audit).await;
        agent.terminate().await;
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{damage}");
    }
}
