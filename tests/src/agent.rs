//! A real agent: the program `telexecd`, on an address and in a directory of its own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use telexec_client::{ConnectOptions, RemoteExecutor, Target, TlsCredentials, TlsOptions};
use tempfile::TempDir;

use crate::agent_log::Log;
use crate::wait::until_blocking;
use crate::{Certs, Pair, Proxy, children, until, within};

/// As whom an agent runs that is not to be root: one of whom nothing else runs.
pub const AGENT_USER: &str = "games";

/// How long an agent may take to say that it listens, or to end: far longer than it does.
const LIMIT: Duration = Duration::from_secs(30);

/// Makes sockets, and becomes the rest of its arguments with them as descriptors from 3 on, as sd_listen_fds(3) has it.
const PASS: &str = "
import fcntl, os, socket, sys
made = []
for kind in sys.argv[1].split():
    kind, _, address = kind.partition(':')
    if kind == 'pair':
        made.append(socket.socketpair()[0])
        continue
    if kind == 'unix':
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].bind(address)
    elif kind == 'vsock':
        made.append(socket.socket(socket.AF_VSOCK))
        made[-1].bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
    else:
        made.append(socket.socket())
        made[-1].bind((address, 0))
    made[-1].listen()
# out of the way of where they are to be
away = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 50) for one in made]
for at, descriptor in enumerate(away):
    os.dup2(descriptor, 3 + at)
os.closerange(3 + len(away), 100)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(away)))
os.execvp(sys.argv[2], sys.argv[2:])
";

/// A program of this workspace, beside the test program.
///
/// # Panics
/// It is not built.
pub fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    // target/<profile>/deps/<test program>
    let program = tests.parent().and_then(Path::parent).unwrap().join(name);
    assert!(program.is_file(), "{} is not built: run tests/run, or cargo build --bins", program.display());
    program
}

/// `telexecd`, with an environment that configures nothing but that there is no keeper, unless its arguments ask for one.
pub fn telexecd() -> Command {
    let mut command = Command::new(program("telexecd"));
    set_environment(&mut command);
    command
}

fn set_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TELEXECD_") || name == "NOTIFY_SOCKET" {
            command.env_remove(name);
        }
    }
    command.env("TELEXECD_KEEPER", "off");
}

/// An agent that is to be.
#[derive(Default)]
#[must_use = "nothing starts until `start`"]
pub struct AgentBuilder {
    through: Vec<String>,
    args: Vec<String>,
    listens: usize,
    user: Option<u32>,
    forks: bool,
    kept: bool,
    agent_user: bool,
    config: Option<String>,
    policy: Option<String>,
    environment: Vec<(String, String)>,
    tls: Option<TlsOptions>,
}

impl AgentBuilder {
    /// Listens on a loopback port without TLS, instead of on a Unix socket.
    pub fn tcp(self) -> Self {
        self.listen("tcp://127.0.0.1:0").args(["--insecure"])
    }

    /// Listens on a loopback port with mTLS, instead of on a Unix socket; [`Agent::connect`] is `certs.client`.
    pub fn mtls(self, certs: &Certs) -> Self {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (cert, key, ca) = (text(&certs.agent.cert), text(&certs.agent.key), text(&certs.ca.cert()));
        let this = self.listen("tcp://127.0.0.1:0");
        let this = this.args(["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca]);
        Self { tls: Some(certs.options(&certs.client)), ..this }
    }

    /// Listens on a loopback port with TLS, instead of on a Unix socket, and asks for no client certificates.
    pub fn tls(self, certs: &Certs) -> Self {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let this = self.listen("tcp://127.0.0.1:0");
        this.args(["--tls-cert", &text(&certs.agent.cert), "--tls-key", &text(&certs.agent.key)])
    }

    /// Listens here, instead of on a Unix socket of its own; may be repeated.
    pub fn listen(self, uri: &str) -> Self {
        Self { listens: self.listens + 1, ..self.args(["--listen", uri]) }
    }

    /// Listens where its configuration or environment says, at so many addresses.
    pub fn listen_as_configured(self, addresses: usize) -> Self {
        Self { listens: addresses, ..self }
    }

    /// Listens on sockets that it is passed as systemd would; each is `unix:PATH`, `tcp:ADDRESS`, `vsock` or, which is none to
    /// listen on, `pair`.
    pub fn passed(self, sockets: &[&str]) -> Self {
        let this = self.listen("systemd:").through(["python3", "-c", PASS, &sockets.join(" ")]);
        Self { listens: this.listens - 1 + sockets.len(), ..this }
    }

    /// Runs as this user; only root can do that.
    pub fn user(self, uid: u32) -> Self {
        let id = uid.to_string();
        let this = self.through(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
        Self { user: Some(uid), ..this }
    }

    /// Is the first process of a pid namespace of its own; only root can do that.
    pub fn in_pid_namespace(self) -> Self {
        let this = self.through(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        Self { forks: true, ..this }
    }

    /// Has a keeper, which is its process in [`Agent::pid`].
    pub fn kept(self) -> Self {
        self.kept_by("on")
    }

    /// The same, by this value of `--keeper`.
    pub fn kept_by(self, mode: &str) -> Self {
        Self { kept: true, ..self.args(["--keeper", mode]) }
    }

    /// The same, and runs as [`AGENT_USER`]; only root can do that, where there are cgroups of version 2.
    pub fn agent_user(self) -> Self {
        Self { agent_user: true, ..self.kept().args(["--agent-user", AGENT_USER]) }
    }

    /// More arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// The text of its configuration file.
    pub fn config(self, toml: impl Into<String>) -> Self {
        Self { config: Some(toml.into()), ..self }
    }

    /// The text of its policy, in [`Agent::policy`].
    pub fn policy(self, cedar: impl Into<String>) -> Self {
        Self { policy: Some(cedar.into()), ..self }
    }

    /// A variable of its own environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Starts it by another program that becomes it, such as `env --block-signal=TERM`.
    pub fn through(mut self, argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.through.extend(argv.into_iter().map(Into::into));
        self
    }

    /// Starts it from a shell that does this first, such as `umask 077`.
    pub fn after(self, shell_text: &str) -> Self {
        self.through(["sh", "-c", &format!("{shell_text}; exec \"$@\""), "sh"])
    }

    /// Starts it, and waits until it listens.
    ///
    /// # Panics
    /// It does not.
    pub fn start(self) -> Agent {
        self.try_start().unwrap_or_else(|refused| panic!("telexecd does not start: {refused}"))
    }

    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    /// It ended instead.
    ///
    /// # Panics
    /// It does neither.
    pub fn try_start(mut self) -> Result<Agent, Refused> {
        let directory = tempfile::Builder::new().prefix("telexec-agent-").tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), self.user, self.user).unwrap();
        if self.agent_user {
            // what is in it is given by the keeper
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(directory.path(), mode).unwrap();
            if self.listens == 0 {
                self = self.listen(&format!("unix://{}/socket/agent.sock", directory.path().display()));
            }
        }
        if self.listens == 0 {
            self = self.listen(&format!("unix://{}/agent.sock", directory.path().display()));
        }
        let mut child = self.command(directory.path()).spawn().expect("telexecd starts");
        let log = Log::follow(child.stderr.take().unwrap());
        let (pid, serving) = (id(&child), 0);
        let mut agent = Agent { pid, serving, child, log, addresses: Vec::new(), tls: self.tls, directory };
        match agent.log.wait(|text| Some(addresses(text)).filter(|found| found.len() >= self.listens)) {
            Some(addresses) => {
                agent.addresses = addresses;
                if self.forks {
                    agent.pid = children(agent.pid)[0].pid;
                }
                agent.serving = if self.kept { children(agent.pid)[0].pid } else { agent.pid };
                Ok(agent)
            }
            None => Err(Refused { status: agent.child.wait().unwrap(), log: agent.log() }),
        }
    }

    fn command(&self, directory: &Path) -> Command {
        let telexecd = program("telexecd").to_str().unwrap().to_owned();
        let mut argv = self.through.iter().chain([&telexecd]).chain(&self.args);
        let mut command = Command::new(argv.next().unwrap());
        set_environment(&mut command);
        command.args(argv);
        if !self.args.iter().any(|arg| arg == "--state-dir") {
            command.arg("--state-dir").arg(directory.join("state"));
        }
        if let Some(toml) = &self.config {
            let path = directory.join("telexecd.toml");
            std::fs::write(&path, toml).unwrap();
            command.arg("--config").arg(path);
        }
        if let Some(cedar) = &self.policy {
            let path = directory.join("policy.cedar");
            std::fs::write(&path, cedar).unwrap();
            command.arg("--policy").arg(path);
        }
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

fn id(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

/// Where the log says that the agent listens.
fn addresses(log: &str) -> Vec<String> {
    let whole_lines = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
    whole_lines.lines().filter_map(|line| line.strip_prefix("listening on ")).map(str::to_owned).collect()
}

/// An agent that ended instead of listening.
#[derive(Clone, Debug)]
pub struct Refused {
    /// How.
    pub status: ExitStatus,
    /// What it wrote to standard error.
    pub log: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.status, self.log)
    }
}

/// A running agent; ended when dropped.
pub struct Agent {
    /// It, or what has started it.
    child: Child,
    pid: i32,
    /// The same, or the child of its keeper that serves.
    serving: i32,
    log: Arc<Log>,
    addresses: Vec<String>,
    tls: Option<TlsOptions>,
    directory: TempDir,
}

impl Agent {
    /// One on a Unix socket of its own.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// One with further arguments.
    pub fn builder() -> AgentBuilder {
        AgentBuilder::default()
    }

    /// Where it listens first, such as `tcp://127.0.0.1:40123`.
    pub fn uri(&self) -> &str {
        &self.addresses[0]
    }

    /// Everywhere that it listens.
    pub fn uris(&self) -> &[String] {
        &self.addresses
    }

    /// The path of its Unix socket, or its host and port.
    pub fn address(&self) -> &str {
        self.uri().split_once("://").unwrap().1
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The process that served at first: another one, where it has a keeper.
    pub fn serving_pid(&self) -> i32 {
        self.serving
    }

    /// A directory that is removed after it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The file of its policy.
    pub fn policy(&self) -> PathBuf {
        self.directory().join("policy.cedar")
    }

    /// What it has written to standard error.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// What it writes to standard error is not read, until this is dropped.
    pub fn hold_log(&self) -> impl Drop + '_ {
        self.log.reading.lock().unwrap()
    }

    /// How many lines of its log have this message, and how many more the log says were left out.
    ///
    /// # Panics
    /// It does not say how many.
    pub fn reported(&self, message: &str) -> (usize, usize) {
        let (left_out, reported): (Vec<_>, Vec<_>) = self
            .log()
            .lines()
            .filter(|line| line.contains(message))
            .map(str::to_owned)
            .partition(|line| line.contains("suppressed="));
        let number = |line: &String| line.split_once("suppressed=").unwrap().1.parse::<usize>().unwrap();
        (reported.len(), left_out.iter().map(number).sum())
    }

    /// Connects to it, with the client's certificate if it wants one.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn connect(&self) -> telexec_client::Agent {
        self.connect_with(self.uri(), self.tls.clone()).await
    }

    /// The same by way of a proxy.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn connect_through(&self, proxy: &Proxy) -> telexec_client::Agent {
        self.connect_with(proxy.uri(), self.tls.clone()).await
    }

    /// Connects to it with this certificate of a CA that it trusts.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn connect_as(&self, pair: &Pair) -> telexec_client::Agent {
        let Some(TlsCredentials::Files { ca, .. }) = self.tls.as_ref().map(|tls| &tls.credentials) else {
            panic!("the agent has no mTLS with files")
        };
        self.connect_with(self.uri(), Some(TlsOptions::new(&pair.cert, &pair.key, ca))).await
    }

    async fn connect_with(&self, uri: &str, tls: Option<TlsOptions>) -> telexec_client::Agent {
        let target: Target = uri.parse().unwrap();
        let options = ConnectOptions { tls, ..Default::default() };
        within(telexec_client::Agent::connect(&target, options)).await.expect("the agent answers")
    }

    /// Its machine, over a new connection.
    pub async fn executor(&self) -> RemoteExecutor {
        self.connect().await.executor()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the agent has ended", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Ends it in an orderly way.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Ends it at once, as a power cut would; what it ran is left.
    ///
    /// # Panics
    /// It has ended before.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("addresses", &self.addresses).field("log", &self.log()).finish_non_exhaustive()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process(Pid::from_raw(self.pid).unwrap(), Signal::TERM);
            if !until_blocking(LIMIT, || !matches!(self.child.try_wait(), Ok(None))) {
                self.kill();
                eprintln!("the agent did not end by SIGTERM");
            }
        }
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log());
        }
    }
}
