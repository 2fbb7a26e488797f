//! Certificates that are replaced, revoked or run out while the agent runs.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, ServerName};
use telexec_proto::v1::{ExecuteRequest, ExecutionEvent, GetAgentRequest};
use telexec_tests::{
    Agent, Ca, Certs, Followed, Leaf, MARK, Pair, Wire, follow, marker, processes_with, until, within,
};
use tokio_rustls::TlsConnector;
use tonic::{Code, Status, Streaming};

use crate::cli::troubleshooting::shows;

/// What the agent reads, in a directory that is replaced as a whole, as Kubernetes does it with mounted secrets.
struct Mounted {
    certs: Certs,
    directory: PathBuf,
}

impl Mounted {
    fn new() -> Self {
        let certs = Certs::new();
        let directory = certs.ca.directory().join("mounted");
        let mounted = Self { directory, certs };
        mounted.replace(&mounted.certs.agent, &[]);
        mounted
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Now these are there instead: the agent's, and those revoked.
    fn replace(&self, agent: &Pair, revoked: &[&Pair]) {
        let version = tempfile::tempdir_in(self.certs.ca.directory()).unwrap().keep();
        std::fs::copy(&agent.cert, version.join("agent.pem")).unwrap();
        std::fs::copy(&agent.key, version.join("agent.key")).unwrap();
        std::fs::copy(self.certs.ca.cert(), version.join("ca.pem")).unwrap();
        std::fs::write(version.join("crl.pem"), self.certs.ca.revocation_list(revoked)).unwrap();
        let link = version.join("link");
        symlink(&version, &link).unwrap();
        std::fs::rename(link, &self.directory).unwrap();
    }

    fn start(&self) -> Agent {
        let files = [("--tls-cert", "agent.pem"), ("--tls-key", "agent.key"), ("--client-ca", "ca.pem")];
        let files = files.into_iter().chain([("--client-crl", "crl.pem")]);
        let args = files.flat_map(|(flag, name)| [flag.to_owned(), self.path(name).to_str().unwrap().to_owned()]);
        Agent::builder().listen("tcp://127.0.0.1:0").args(args).start()
    }

    async fn connect(&self, agent: &Agent, pair: &Pair) -> std::io::Result<Wire> {
        Wire::connect_tls(agent, self.certs.config(Some(pair))).await
    }

    /// The certificate that the agent shows now.
    async fn shown(&self, agent: &Agent) -> CertificateDer<'static> {
        let connector = TlsConnector::from(self.certs.config(Some(&self.certs.client)));
        let name = ServerName::try_from("localhost").unwrap();
        let stream = within(connector.connect(name, Wire::dial(agent).await)).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    }
}

async fn ask(wire: &Wire) -> Result<String, Status> {
    Ok(within(wire.agent().get_agent(GetAgentRequest {})).await?.into_inner().identity)
}

/// Numbers, line by line, until a file appears.
async fn count(wire: &Wire, stop: &Path) -> tokio::task::JoinHandle<Followed> {
    let stop = stop.display();
    let command = format!("i=0; until [ -e {stop} ]; do i=$((i+1)); echo $i; sleep 0.01; done");
    let request = ExecuteRequest { command, ..Default::default() };
    let stream = within(wire.executions().execute(request)).await.unwrap().into_inner();
    tokio::spawn(follow(stream))
}

/// It came to its end, and nothing of it is missing.
fn assert_whole(counted: &Followed) {
    assert_eq!(counted.exited().map(|exited| exited.exit_code), Some(0), "{:?}", counted.status);
    let stdout = String::from_utf8(counted.stdout()).unwrap();
    assert!(stdout.lines().zip(1..).all(|(line, i)| line == i.to_string()), "{stdout}");
}

/// The agent reads its files again, and this is what it says then.
async fn reloaded(agent: &Agent, message: &str) {
    let before = agent.log().matches(message).count();
    agent.signal(Signal::HUP);
    until("it is reloaded", async || agent.log().matches(message).count() > before).await;
}

const LOADED: &str = "certificates loaded";
const KEPT: &str = "certificates reload failed";

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_under_load() {
    let mounted = Mounted::new();
    let agent = mounted.start();
    let stop = mounted.certs.ca.directory().join("stop");
    let mut counting = Vec::new();
    for _ in 0..4 {
        let wire = mounted.connect(&agent, &mounted.certs.client).await.unwrap();
        counting.push(count(&wire, &stop).await);
    }
    let mut shown = vec![mounted.certs.agent.der()];
    for _ in 0..3 {
        let next = mounted.certs.ca.issue(Leaf::server("localhost"));
        mounted.replace(&next, &[]);
        until("the next one is shown", async || {
            let now = mounted.shown(&agent).await;
            assert!(now == next.der() || shown.last() == Some(&now), "no other one in between");
            now == next.der()
        })
        .await;
        for _ in 0..10 {
            assert_eq!(mounted.shown(&agent).await, next.der());
        }
        shown.push(next.der());
    }
    std::fs::write(&stop, "").unwrap();
    for counted in counting {
        assert_whole(&within(counted).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_leaves_the_old_ones_in_use() {
    let mounted = Mounted::new();
    let agent = mounted.start();
    let another = mounted.certs.ca.issue(Leaf::server("localhost"));
    let key = mounted.path("agent.key");
    let write = |name: &str, text: &str| std::fs::write(mounted.path(name), text).unwrap();
    let bad: [(&str, &dyn Fn()); 5] = [
        ("does not belong to the certificate", &|| write("agent.key", &std::fs::read_to_string(&another.key).unwrap())),
        ("contains no PEM certificate", &|| write("agent.pem", "nothing")),
        ("contains no PEM revocation list", &|| write("crl.pem", "")),
        ("cannot read", &|| std::fs::remove_file(mounted.path("ca.pem")).unwrap()),
        ("chmod 600", &|| std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap()),
    ];
    for (why, spoil) in bad {
        mounted.replace(&mounted.certs.agent, &[]);
        reloaded(&agent, LOADED).await;
        spoil();
        reloaded(&agent, KEPT).await;
        let log = agent.log();
        let line = log.lines().rfind(|line| line.contains(KEPT)).unwrap();
        assert!(line.contains(why), "{line}");
        assert_eq!(mounted.shown(&agent).await, mounted.certs.agent.der());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_cannot_be_used_is_reported_once() {
    let mounted = Mounted::new();
    let agent = mounted.start();
    std::fs::write(mounted.path("agent.pem"), "nothing").unwrap();
    until("it is logged", async || agent.log().contains(KEPT)).await;
    let next = mounted.certs.ca.issue(Leaf::server("localhost"));
    mounted.replace(&next, &[]);
    until("the good one is shown", async || mounted.shown(&agent).await == next.der()).await;
    assert_eq!(agent.log().matches(KEPT).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reads_the_files_at_once() {
    let mounted = Mounted::new();
    let agent = mounted.start();
    reloaded(&agent, LOADED).await;
    let next = mounted.certs.ca.issue(Leaf::server("localhost"));
    mounted.replace(&next, &[]);
    reloaded(&agent, LOADED).await;
    assert_eq!(mounted.shown(&agent).await, next.der());
    std::fs::write(mounted.path("agent.pem"), "nothing").unwrap();
    reloaded(&agent, KEPT).await;
    assert_eq!(mounted.shown(&agent).await, next.der());
}

/// A bound command, by its mark, which is in the environment of its processes.
async fn sleep(wire: &Wire, mark: &str) -> Streaming<ExecutionEvent> {
    let environment = [(MARK.to_owned(), mark.to_owned())].into();
    let request =
        ExecuteRequest { argv: ["sleep", "300"].map(str::to_owned).into(), environment, ..Default::default() };
    within(wire.executions().execute(request)).await.unwrap().into_inner()
}

/// Its caller was refused as a new call is, and no process of it is left.
async fn assert_ended(stream: Streaming<ExecutionEvent>, mark: &str, why: &str) {
    let status = follow(stream).await.status;
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    assert!(status.message().contains(why), "{status:?}");
    until("nothing is left", async || processes_with(mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_serves_for_nothing_on_an_open_connection() {
    let mounted = Mounted::new();
    let Certs { ca, agent: shown, client } = &mounted.certs;
    let other = ca.issue(Leaf::client("other"));
    let agent = mounted.start();
    let [wire, others] = [client, &other].map(|pair| mounted.connect(&agent, pair));
    let (wire, others) = (wire.await.unwrap(), others.await.unwrap());
    let stop = ca.directory().join("stop");
    let counting = count(&others, &stop).await;
    let mark = marker();
    let open = sleep(&wire, &mark).await;
    assert_eq!(ask(&wire).await.unwrap(), "client");

    mounted.replace(shown, &[client]);
    reloaded(&agent, LOADED).await;
    assert_ended(open, &mark, "has been revoked").await;
    for _ in 0..2 {
        let status = ask(&wire).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains("has been revoked"), "{status}");
    }
    let request = ExecuteRequest { command: "true".into(), ..Default::default() };
    assert_eq!(wire.executions().execute(request).await.unwrap_err().code(), Code::Unauthenticated);
    let reported = async || agent.log().matches("refusing the calls of an open connection").count() == 1;
    until("it is logged once", reported).await;
    let again = match mounted.connect(&agent, client).await {
        Ok(wire) => ask(&wire).await.map_err(|status| status.to_string()),
        Err(error) => Err(error.to_string()),
    };
    assert!(again.is_err(), "{again:?}");
    assert_eq!(ask(&others).await.unwrap(), "other");

    std::fs::write(&stop, "").unwrap();
    assert_whole(&within(counting).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_a_ca_that_is_gone_are_refused_on_open_connections() {
    let mounted = Mounted::new();
    let agent = mounted.start();
    let wire = mounted.connect(&agent, &mounted.certs.client).await.unwrap();
    assert_eq!(ask(&wire).await.unwrap(), "client");
    let mark = marker();
    let open = sleep(&wire, &mark).await;
    let successor = Ca::new("successor");
    std::fs::copy(successor.cert(), mounted.path("ca.pem")).unwrap();
    std::fs::write(mounted.path("crl.pem"), successor.revocation_list(&[])).unwrap();
    reloaded(&agent, LOADED).await;
    assert_ended(open, &mark, "not accepted any more").await;
    let status = ask(&wire).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("not accepted any more"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_expires_serves_for_nothing_on_an_open_connection() {
    let mounted = Mounted::new();
    let agent = mounted.start();
    let brief = mounted.certs.ca.issue(Leaf::client("brief").ends_in(Duration::from_secs(3)));
    let wire = mounted.connect(&agent, &brief).await.unwrap();
    let mark = marker();
    // there are no calls meanwhile: the end comes by itself
    assert_ended(sleep(&wire, &mark).await, &mark, "has expired").await;
    let status = ask(&wire).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    shows("has expired", status.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_when_the_agents_certificate_runs_out() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let mounted = Mounted::new();
    let agent = mounted.start();
    let issue = |leaf| mounted.certs.ca.issue(leaf);
    for (leaf, reported) in [
        (Leaf::server("localhost").ends_in(3 * DAY), "the agent's certificate expires soon"),
        (Leaf::server("localhost").expired(), "the agent's certificate has expired"),
    ] {
        assert!(!agent.log().contains(reported), "{reported}");
        mounted.replace(&issue(leaf), &[]);
        agent.signal(Signal::HUP);
        until(reported, async || agent.log().contains(reported)).await;
    }
    let log = agent.log();
    let loaded: Vec<_> = log.lines().filter(|line| line.contains(LOADED)).collect();
    for (line, end) in [(loaded[0], "4096"), (loaded[loaded.len() - 1], "2001")] {
        let reported = ["CN=localhost", "serial=", "not_after=", end];
        assert!(reported.iter().all(|part| line.contains(part)), "{line}");
    }
}

/// Three CAs in one file, of which two are bound to names.
struct Bound {
    ours: Certs,
    build: Ca,
    stray: Ca,
}

impl Bound {
    fn new() -> Self {
        Self { ours: Certs::new(), build: Ca::new("build"), stray: Ca::new("stray") }
    }

    /// Puts it under this name, at once.
    fn place(&self, name: &str, text: &str) -> PathBuf {
        let path = self.ours.ca.directory().join(name);
        std::fs::write(path.with_extension("new"), text).unwrap();
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        path
    }

    fn start(&self, config: &str) -> Agent {
        let read = |ca: &Ca| std::fs::read_to_string(ca.cert()).unwrap();
        let all = [&self.ours.ca, &self.build, &self.stray].map(read).concat();
        let all = self.place("all.pem", &all);
        let (cert, key) = (&self.ours.agent.cert, &self.ours.agent.key);
        let args = [("--tls-cert", cert), ("--tls-key", key), ("--client-ca", &all)];
        let args = args.into_iter().flat_map(|(flag, path)| [flag.to_owned(), path.to_str().unwrap().to_owned()]);
        Agent::builder().listen("tcp://127.0.0.1:0").args(args).config(config).start()
    }

    /// The identity that the agent takes the holder for, if it lets it in.
    async fn known(&self, agent: &Agent, pair: &Pair) -> Result<String, String> {
        let wire = Wire::connect_tls(agent, self.ours.config(Some(pair))).await.map_err(|error| error.to_string())?;
        ask(&wire).await.map_err(|status| status.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_bound_to_their_ca() {
    let bound = Bound::new();
    let leaf = |ca: &Ca, name: &str| ca.issue(Leaf::client(name));
    let (anna, build) = (leaf(&bound.ours.ca, "anna"), leaf(&bound.build, "build-7"));
    let forged = [
        leaf(&bound.build, "anna"),
        leaf(&bound.ours.ca, "build-7"),
        bound.build.issue(Leaf::client("build-7").uri("spiffe://example.org/anna")),
        leaf(&bound.stray, "anna"),
        leaf(&bound.stray, "stray"),
    ];
    // without the table any CA may name anyone
    let unbound = bound.start("");
    assert_eq!(bound.known(&unbound, &forged[0]).await.unwrap(), "anna");
    drop(unbound);

    let [ours, builds] = [bound.ours.ca.cert(), bound.build.cert()];
    let builds = bound.place("build.pem", &std::fs::read_to_string(builds).unwrap());
    let config = format!("[identities]\n{ours:?} = [\"anna\", \"client\"]\n{builds:?} = [\"build-*\"]");
    let agent = bound.start(&config);
    assert_eq!(bound.known(&agent, &anna).await.unwrap(), "anna");
    let wire = Wire::connect_tls(&agent, bound.ours.config(Some(&build))).await.unwrap();
    assert_eq!(ask(&wire).await.unwrap(), "build-7");
    for (count, pair) in forged.iter().enumerate() {
        let known = bound.known(&agent, pair).await;
        assert!(known.is_err(), "{known:?}");
        let reported = async || agent.log().matches("may not issue certificates for the name").count() == count + 1;
        until("the log says why", reported).await;
    }

    // the builds have another CA from now on
    let mark = marker();
    let open = sleep(&wire, &mark).await;
    bound.place("build.pem", &std::fs::read_to_string(bound.stray.cert()).unwrap());
    reloaded(&agent, LOADED).await;
    assert_ended(open, &mark, "may not issue certificates for the name \"build-7\"").await;
    assert_eq!(ask(&wire).await.unwrap_err().code(), Code::Unauthenticated);
    assert!(bound.known(&agent, &build).await.is_err());
    assert_eq!(bound.known(&agent, &leaf(&bound.stray, "build-8")).await.unwrap(), "build-8");
    assert_eq!(bound.known(&agent, &anna).await.unwrap(), "anna");
}
