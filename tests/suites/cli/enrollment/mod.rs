//! Machines that get and renew their certificates: `telexec certs token` and `serve`, `telexecd enroll`.

mod renewal;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures_util::future::join_all;
use telexec_tests::{Agent, rounds, telexecd, within};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

use super::troubleshooting::shows;
use super::{Said, say, telexec};

/// A directory with CAs and machines.
struct Place(TempDir);

/// A CA's service.
struct Service {
    child: Child,
    address: String,
    log: BufReader<tokio::process::ChildStderr>,
}

impl Service {
    /// Waits for a line of its log.
    async fn says(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(within(self.log.read_line(&mut line)).await.unwrap(), 0, "it ended before {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Place {
    async fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.certs(&["init"], "ca").await.answer();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    async fn certs(&self, args: &[&str], ca: &str) -> Said {
        Said::by(telexec(["certs"].iter().chain(args).chain(&["--dir", &self.text(ca)]))).await
    }

    async fn serve(&self, ca: &str, args: &[&str]) -> Service {
        self.serve_at("127.0.0.1:0", ca, args).await
    }

    async fn serve_at(&self, address: &str, ca: &str, args: &[&str]) -> Service {
        let listen = format!("tcp://{address}");
        let line = ["certs", "serve", "--listen", &listen, "--dir", &self.text(ca)];
        let mut child = telexec(line.iter().chain(args)).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        within(log.read_line(&mut first)).await.unwrap();
        let address = first.trim().strip_prefix("telexec: listening on tcp://").unwrap_or_else(|| panic!("{first}"));
        Service { child, address: address.to_owned(), log }
    }

    /// A token in a file.
    async fn token(&self, ca: &str, args: &[&str]) -> String {
        let path = self.text(&format!("{}.token", telexec_tests::marker()));
        self.certs(&[&["token"], args, &["--out", &path]].concat(), ca).await.answer();
        path
    }

    fn enroll_command(&self, server: &str, machine: &str, args: &[&str]) -> Command {
        let mut command = Command::from(telexecd());
        command.args(["enroll", "--server", server, "--dir", &self.text(machine)]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    async fn enroll(&self, server: &str, machine: &str, args: &[&str]) -> Said {
        Said::by(self.enroll_command(server, machine, args)).await
    }

    /// Makes a key and a signing request.
    async fn request(&self, args: &[&str]) -> Said {
        let mut command = Command::from(telexecd());
        command.args(["enroll", "--csr", "--name", "web1", "--dir", &self.text("web1")]).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Said::by(command).await
    }

    async fn listed(&self, ca: &str) -> Vec<[String; 2]> {
        let said = self.certs(&["list", "--all", "--json"], ca).await;
        let rows = said.answer().lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        rows.filter(|row| row["usage"] != "ca").map(|row| [text(&row, "name"), text(&row, "status")]).collect()
    }

    /// An agent with what its machine has.
    fn agent(&self, machine: &str, name: &str) -> Agent {
        let file = |name: &str| self.text(&format!("{machine}/{name}"));
        let tls = ["--tls-cert", &file(&format!("{name}.pem")), "--tls-key", &file(&format!("{name}.key"))];
        let args = tls.into_iter().map(str::to_owned);
        let args = args.chain(["--client-ca".into(), file("ca.pem"), "--client-crl".into(), file("crl.pem")]);
        Agent::builder().listen("tcp://127.0.0.1:0").args(args).start()
    }

    async fn exec(&self, agent: &Agent, caller: &str, name: &str) -> Said {
        let file = |name: &str| self.text(&format!("{caller}/{name}"));
        let (cert, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        let tls = ["exec", "--cert", &cert, "--key", &key, "--ca", &file("ca.pem"), "--server-name", "web1.test"];
        say(&[&tls[..], &[agent.address(), "echo", "hi"]].concat()).await
    }
}

const WEB1: [&str; 4] = ["web1", "--server", "--dns", "web1.test"];

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_and_a_caller_enrol_and_meet() {
    let place = Place::new().await;
    let mut service = place.serve("ca", &[]).await;
    let (web1, alice) = (place.token("ca", &WEB1).await, place.token("ca", &["alice", "--client"]).await);
    assert_eq!(mode(Path::new(&web1)), 0o600);
    let said = place.enroll(&service.address, "web1", &["--token-file", &web1]).await;
    for (key, file) in
        [("tls_cert", "web1.pem"), ("tls_key", "web1.key"), ("client_ca", "ca.pem"), ("client_crl", "crl.pem")]
    {
        let line = format!("{key} = {:?}", place.text(&format!("web1/{file}")));
        assert!(said.answer().contains(&line), "{line}: {said:?}");
    }
    assert_eq!([mode(&place.path("web1")), mode(&place.path("web1/web1.key"))], [0o700, 0o600]);
    assert!(!place.path("web1/web1.key.new").exists());
    let line = service.says("enrolled web1").await;
    assert!(line.contains("server; dns web1.test") && line.contains("127.0.0.1:"), "{line}");

    // the token from standard input, on the operator's machine
    let mut command = telexec(["certs", "enroll", "--server", &service.address, "--token-file", "-", "--dir"]);
    let mut child = command.arg(place.path("alice")).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&std::fs::read(&alice).unwrap()).await.unwrap();
    drop(stdin);
    assert!(Said::by_child(child).await.answer().contains("alice.pem"));

    let agent = place.agent("web1", "web1");
    assert_eq!(place.exec(&agent, "alice", "alice").await.answer(), "hi\n");
    // what the token was for, and nothing else: an agent's is no caller's
    assert!(place.exec(&agent, "web1", "web1").await.failure(2).contains("is not for a client"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_serves_one_machine_however_many_use_it_at_once() {
    let place = Place::new().await;
    let service = place.serve("ca", &[]).await;
    let token = place.token("ca", &WEB1).await;
    let machines: Vec<_> = (0..8).map(|number| format!("machine{number}")).collect();
    let enrolling =
        machines.iter().map(async |machine| place.enroll(&service.address, machine, &["--token-file", &token]).await);
    let said = join_all(enrolling).await;
    assert_eq!(said.iter().filter(|said| said.code == 0).count(), 1, "{said:#?}");
    for said in said.iter().filter(|said| said.code != 0) {
        assert_eq!(said.code, 1, "{said:?}");
        shows("the token is unknown, has expired, or was used by another machine", said.stderr());
    }
    assert_eq!(place.listed("ca").await, [["web1".to_owned(), "valid".to_owned()]]);
    // nothing of a refused one looks like a certificate
    let enrolled = machines.iter().filter(|machine| place.path(machine).join("web1.pem").exists());
    assert_eq!(enrolled.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enrolment_survives_a_service_or_a_machine_that_is_killed() {
    let place = Place::new().await;
    let mut service = place.serve("ca", &[]).await;
    let address = service.address.clone();
    for round in 0..rounds(20) {
        let (name, machine) = (format!("host{round}"), format!("machine{round}"));
        let token = place.token("ca", &[&name, "--server"]).await;
        let mut enrolling =
            place.enroll_command(&address, &machine, &["--token-file", &token, "--timeout", "60s"]).spawn().unwrap();
        for _ in 0..round * 331 % 4000 {
            tokio::task::yield_now().await;
        }
        if round % 2 == 0 {
            service.child.kill().await.unwrap();
            service = place.serve_at(&address, "ca", &[]).await;
        } else {
            enrolling.kill().await.unwrap();
        }
        let first = within(enrolling.wait_with_output()).await.unwrap();
        if !first.status.success() {
            // the same token again, unless all was done
            let again = place.enroll(&address, &machine, &["--token-file", &token]).await;
            assert!(again.code == 0 || again.stderr().contains("exists: renew it"), "{round}: {first:?} {again:?}");
        }
        let ours = place.listed("ca").await.into_iter().filter(|[listed, _]| *listed == name).count();
        assert_eq!(ours, 1, "{name}");
        place.agent(&machine, &name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_expired_withdrawn_or_made_up_is_worth_nothing() {
    let place = Place::new().await;
    let mut service = place.serve("ca", &[]).await;
    let good = place.token("ca", &["good", "--server"]).await;
    let expired = place.token("ca", &["expired", "--server", "--ttl", "1ms"]).await;
    let withdrawn = place.token("ca", &["withdrawn", "--server"]).await;
    let said = place.certs(&["revoke", "withdrawn"], "ca").await;
    assert!(said.answer().contains("withdrew 1 token"), "{said:?}");
    let text = std::fs::read_to_string(&good).unwrap();
    // the secret of another
    let (start, _) = text.trim().rsplit_once('/').unwrap();
    let made_up = place.text("made-up.token");
    std::fs::write(&made_up, format!("{start}/{}", "A".repeat(43))).unwrap();
    for (number, token) in [&expired, &withdrawn, &made_up].into_iter().enumerate() {
        let said = place.enroll(&service.address, &format!("machine{number}"), &["--token-file", token]).await;
        assert!(said.code == 1 && said.stderr().contains("unknown, has expired, or was used"), "{said:?}");
        assert!(!place.path(&format!("machine{number}")).exists(), "what a refused one made is gone");
    }
    service.says("the token for expired has expired").await;
    service.says("the token is unknown").await;
    // the secret is nowhere in the CA's directory
    let (_, secret) = text.trim().rsplit_once('/').unwrap();
    let index = place.read("ca/index.json");
    assert!(!index.contains(secret) && index.contains("\"good\"") && mode(&place.path("ca/index.json")) == 0o600);

    std::fs::write(place.path("nothing"), "nothing").unwrap();
    let said = place.enroll(&service.address, "machine", &["--token-file", &place.text("nothing")]).await;
    assert!(
        said.code == 1 && said.stderr().contains("not a token") && !said.stderr().contains("nothing\n"),
        "{said:?}"
    );
    place.enroll(&service.address, "machine", &["--token-file", &good]).await.answer();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_ca_of_the_token_gets_it() {
    let place = Place::new().await;
    place.certs(&["init"], "other").await.answer();
    let (ours, theirs) = (place.serve("ca", &[]).await, place.serve("other", &[]).await);
    let token = place.token("ca", &WEB1).await;
    let said = place.enroll(&theirs.address, "web1", &["--token-file", &token]).await;
    assert!(said.code == 1 && said.stderr().contains("nothing was sent to it"), "{said:?}");
    shows("… is not the CA that this machine is to trust", said.stderr());
    assert!(!place.path("web1").exists());
    // neither does a machine that has a certificate of the right one: this name is for nobody
    for name in ["enrollment.telexec.invalid", "*.telexec.invalid"] {
        let said = place.certs(&["issue", "web2", "--server", "--dns", name], "ca").await;
        assert!(said.failure(2).contains("for the CA itself"), "{said:?}");
    }
    place.enroll(&ours.address, "web1", &["--token-file", &token]).await.answer();
    // a machine keeps the CA that it trusts
    let token = place.token("other", &["web2", "--server"]).await;
    let said = place.enroll(&theirs.address, "web1", &["--token-file", &token]).await;
    assert!(said.code == 1 && said.stderr().contains("is of another CA"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_say_nothing_or_nonsense_keep_nobody_waiting() {
    let place = Place::new().await;
    let mut service = place.serve("ca", &[]).await;
    let mut silent = Vec::new();
    // of several sources, each of which may have a hundred at once: more than are served
    for source in 1..=4 {
        for _ in 0..80 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("127.0.0.{source}:0").parse().unwrap()).unwrap();
            silent.push(socket.connect(service.address.parse().unwrap()).await.unwrap());
        }
    }
    for stream in &mut silent[..10] {
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
    }
    service.says("refused 127.0.0.1").await;
    let token = place.token("ca", &WEB1).await;
    place.enroll(&service.address, "web1", &["--token-file", &token]).await.answer();
    // nobody listens there
    service.child.kill().await.unwrap();
    let said = place.enroll(&service.address, "web1", &["--renew", "--timeout", "1ms"]).await;
    assert!(said.code == 1 && said.stderr().contains("telexec certs serve"), "{said:?}");
}

#[tokio::test]
async fn no_token_is_taken_from_the_command_line_and_no_key_from_elsewhere() {
    let place = Place::new().await;
    for line in [&["--token", "x"][..], &["--key", "x"]] {
        let said = place.enroll("127.0.0.1:1", "web1", line).await;
        assert_eq!(said.code, 2, "{said:?}");
    }
    let said = place.enroll("127.0.0.1:1", "ca", &["--renew"]).await;
    assert!(said.code == 1 && said.stderr().contains("directory of a CA"), "{said:?}");
    let said = place.enroll("127.0.0.1:1", "web1", &[]).await;
    assert!(said.code == 2 && said.stderr().contains("TELEXEC_ENROLL_TOKEN"), "{said:?}");
    for name in ["ca", "crl"] {
        let said = place.enroll("127.0.0.1:1", "web1", &["--name", name]).await;
        assert!(said.stderr().contains(&format!("{name}.pem is for the CA")), "{said:?}");
    }
}

/// Whoever can write to the directory must not choose the key that is certified.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_somebody_else_has_put_there_is_refused() {
    let place = Place::new().await;
    let service = place.serve("ca", &[]).await;
    let token = place.token("ca", &WEB1).await;
    std::fs::create_dir(place.path("web1")).unwrap();
    for planted in ["web1/web1.key.new", "web1/web1.key"] {
        std::fs::copy(place.path("ca/ca.key"), place.path(planted)).unwrap();
        std::os::unix::fs::chown(place.path(planted), Some(65534), None).unwrap();
        let said = place.enroll(&service.address, "web1", &["--token-file", &token]).await;
        assert!(said.stderr().contains("is not a private file of this user"), "{said:?}");
        std::fs::remove_file(place.path(planted)).unwrap();
    }
    place.enroll(&service.address, "web1", &["--token-file", &token]).await.answer();
}

#[tokio::test]
async fn a_signing_request_is_for_a_key_that_stays() {
    let place = Place::new().await;
    place.request(&["--dns", "web1.test", "--ip", "10.0.0.7"]).await.answer();
    let (key, first) = (place.read("web1/web1.key"), place.read("web1/web1.csr"));
    assert_eq!(mode(&place.path("web1/web1.key")), 0o600);
    assert!(first.starts_with("-----BEGIN CERTIFICATE REQUEST-----"), "{first}");
    place.request(&[]).await.answer();
    assert!(place.read("web1/web1.key") == key && place.read("web1/web1.csr") != first);
}

/// Its group may read the key, if the configuration beside the key says that the agent runs as it.
#[tokio::test]
async fn an_agent_that_is_not_root_may_read_its_key() {
    if !telexec_tests::is_root() {
        return;
    }
    let place = Place::new().await;
    let key = place.path("web1/web1.key");
    let access = || (mode(&key), std::os::unix::fs::MetadataExt::gid(&key.metadata().unwrap()));
    place.request(&[]).await.answer();
    assert_eq!(access(), (0o600, 0));
    std::fs::write(place.path("web1/telexecd.toml"), "agent_user = \"games\"\n").unwrap();
    let said = place.request(&[]).await;
    assert!(
        said.stderr().contains("games has no access to") && said.stderr().contains("a directory above"),
        "{said:?}"
    );
    for directory in [key.parent().unwrap(), key.parent().unwrap().parent().unwrap()] {
        std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    std::os::unix::fs::chown(&key, Some(0), Some(0)).unwrap();
    for _ in 0..2 {
        place.request(&[]).await.answer();
        assert_eq!(access(), (0o640, 60));
    }
    std::fs::write(place.path("web1/telexecd.toml"), "agent_user = \"nobody-at-all\"\n").unwrap();
    let said = place.request(&[]).await;
    assert!(said.code == 0 && said.stderr().contains("warning: the agent may be unable to read"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worthless_token_does_not_wait_for_the_ca() {
    let place = Place::new().await;
    let service = place.serve("ca", &[]).await;
    let token = place.token("ca", &WEB1).await;
    place.certs(&["revoke", "web1"], "ca").await.answer();
    let lock = std::fs::File::open(place.path("ca")).unwrap();
    lock.lock().unwrap();
    let said = place.enroll(&service.address, "web1", &["--token-file", &token]).await;
    assert!(said.code == 1 && said.stderr().contains("unknown, has expired, or was used"), "{said:?}");
}

#[tokio::test]
async fn the_first_failure_is_reported_while_it_is_tried_again() {
    let place = Place::new().await;
    let token = place.token("ca", &WEB1).await;
    // it accepts, and says nothing
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    for server in ["127.0.0.1:1", &silent] {
        let mut enrolling =
            place.enroll_command(server, "web1", &["--token-file", &token, "--timeout", "600"]).spawn().unwrap();
        let mut lines = BufReader::new(enrolling.stderr.take().unwrap()).lines();
        let line = within(lines.next_line()).await.unwrap().unwrap();
        assert!(line.contains(&format!("{server} is unreachable: ")) && line.contains("; trying again for"), "{line}");
        assert!(line.ends_with(" s: is `telexec certs serve` running there?"), "{line}");
        enrolling.kill().await.unwrap();
        // for the next attempt
        assert!(place.path("web1/web1.key.new").exists());
    }
    let said = place.enroll("no-such-host.invalid", "web2", &["--token-file", &token, "--timeout", "600"]).await;
    let line = "telexecd: no host named \"no-such-host.invalid\" was found: check the spelling\n";
    assert_eq!((said.code, said.stderr()), (1, line));
    assert!(!place.path("web2").exists());
    let said = place.enroll("127.0.0.1:1", "web1", &["--token-file", &token, "--timeout", "soon"]).await;
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.stderr().contains("--timeout <DUR>") && said.stderr().contains("such as 500ms, 10s"), "{said:?}");
}
