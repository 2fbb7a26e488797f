//! A network that fails: what is between a client and an agent.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::{Agent, Stream};

/// Carries bytes to an agent and back, from an address of its own, until it is made to fail.
pub struct Proxy {
    shared: Arc<Shared>,
    uri: String,
    task: AbortHandle,
    _directory: TempDir,
}

struct Shared {
    state: Mutex<State>,
    accepted: AtomicU32,
}

struct State {
    /// Where the agent listens.
    agent: String,
    is_up: bool,
    /// After how many bytes to the client a new connection is cut; chosen at random.
    lives: Option<(Range<usize>, fastrand::Rng)>,
    /// What the connections that there are let through; those that come get the last.
    flows: Vec<watch::Sender<Flow>>,
}

/// What a connection lets through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    All,
    ToAgent,
    Nothing,
    /// It is closed.
    Cut,
}

impl Proxy {
    /// Before this agent, on the same kind of socket.
    ///
    /// # Panics
    /// It cannot listen.
    pub async fn before(agent: &Agent) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = State { agent: agent.uri().to_owned(), is_up: true, lives: None, flows: Vec::new() };
        let shared = Arc::new(Shared { state: Mutex::new(state), accepted: AtomicU32::new(0) });
        shared.state().renew();
        let (uri, task) = if agent.uri().starts_with("unix:") {
            let path = directory.path().join("proxy.sock");
            let listener = UnixListener::bind(&path).unwrap();
            let accept = async move || Box::new(listener.accept().await.unwrap().0) as Box<dyn Stream>;
            (format!("unix://{}", path.display()), tokio::spawn(serve(Arc::clone(&shared), accept)))
        } else {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let uri = format!("tcp://{}", listener.local_addr().unwrap());
            let accept = async move || Box::new(listener.accept().await.unwrap().0) as Box<dyn Stream>;
            (uri, tokio::spawn(serve(Arc::clone(&shared), accept)))
        };
        Self { shared, uri, task: task.abort_handle(), _directory: directory }
    }

    /// Where it listens.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// How many connections were tried.
    pub fn accepted(&self) -> u32 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.shared.state().flow(Flow::Cut);
    }

    /// Closes all connections, and turns those that come away.
    pub fn down(&self) {
        self.shared.state().is_up = false;
        self.cut();
    }

    /// Lets connections through again.
    pub fn up(&self) {
        self.shared.state().is_up = true;
    }

    /// Holds what the agent says on the connections that there are.
    pub fn mute(&self) {
        self.shared.state().flow(Flow::ToAgent);
    }

    /// Holds everything on the connections that there are, and leaves them open.
    pub fn freeze(&self) {
        self.shared.state().flow(Flow::Nothing);
    }

    /// Cuts each connection that comes after so many bytes to the client, chosen at random.
    pub fn cut_each_after(&self, bytes: Range<usize>, seed: u64) {
        self.shared.state().lives = Some((bytes, fastrand::Rng::with_seed(seed)));
    }

    /// Leads connections that come to another agent.
    pub fn lead_to(&self, agent: &Agent) {
        self.shared.state().agent = agent.uri().to_owned();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    /// For the connections that there are; those that come are whole.
    fn flow(&mut self, flow: Flow) {
        for connections in &self.flows {
            connections.send_replace(flow);
        }
        self.renew();
    }

    fn renew(&mut self) {
        self.flows.retain(|connections| connections.receiver_count() > 0);
        self.flows.push(watch::Sender::new(Flow::All));
    }
}

async fn serve(shared: Arc<Shared>, mut accept: impl AsyncFnMut() -> Box<dyn Stream>) {
    loop {
        let client = accept().await;
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let mut state = shared.state();
        if !state.is_up {
            continue;
        }
        let life = state.lives.as_mut().map_or(usize::MAX, |(bytes, random)| random.usize(bytes.clone()));
        let flow = state.flows.last().unwrap().subscribe();
        tokio::spawn(carry(client, state.agent.clone(), flow, life));
    }
}

/// Until either side closes, or it is cut.
async fn carry(client: Box<dyn Stream>, agent: String, mut flow: watch::Receiver<Flow>, life: usize) {
    let Some(agent) = dial(&agent).await else { return };
    let (from_client, to_client) = tokio::io::split(client);
    let (from_agent, to_agent) = tokio::io::split(agent);
    let (up, down) = (flow.clone(), flow.clone());
    tokio::select! {
        () = pass(from_client, to_agent, up, &[Flow::All, Flow::ToAgent], usize::MAX) => {}
        () = pass(from_agent, to_client, down, &[Flow::All], life) => {}
        _ = flow.wait_for(|flow| *flow == Flow::Cut) => {}
    }
}

async fn dial(uri: &str) -> Option<Box<dyn Stream>> {
    match uri.split_once("://")? {
        ("unix", path) => Some(Box::new(UnixStream::connect(path).await.ok()?)),
        (_, address) => Some(Box::new(TcpStream::connect(address).await.ok()?)),
    }
}

/// At most `life` bytes, while the flow is one of these.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut flow: watch::Receiver<Flow>,
    open: &[Flow],
    mut life: usize,
) {
    let mut buffer = vec![0; 16 * 1024];
    while life > 0 {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        let passed = read.min(life);
        if flow.wait_for(|flow| open.contains(flow)).await.is_err() || to.write_all(&buffer[..passed]).await.is_err() {
            return;
        }
        life -= passed;
    }
}
