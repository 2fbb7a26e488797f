//! The life of an agent: accept, serve, drain, shut down.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::time::{Duration, SystemTime};

use telexec_engine::Workers;
use telexec_engine::{HELD_MEMORY, Keeper, LocalExecutor};
use telexec_proto::FILE_DESCRIPTOR_SET;
use telexec_proto::v1::agent_service_server::{self, AgentServiceServer};
use telexec_proto::v1::approval_service_server::{self, ApprovalServiceServer};
use telexec_proto::v1::execution_service_server::{self, ExecutionServiceServer};
use telexec_proto::v1::file_service_server::{self, FileServiceServer};
use telexec_proto::v1::forward_service_server::{self, ForwardServiceServer};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

use crate::admission::Stack;
use crate::admission::call_limiter::CallLimiter;
use crate::admission::policy_evaluator;
use crate::admission::policy_evaluator::PolicyEvaluator;
use crate::admission::start_limiter::StartLimiter;
use crate::approvals::Approvals;
use crate::approvals::service::ApprovalRpcs;
use crate::audit::{Audit, AuditError, Collector, LogsServer};
use crate::config::{Config, ConfigError};
use crate::files::FileRpcs;
use crate::forward::Forwards;
use crate::handshake::{HandshakeError, handshake};
use crate::http2::admission::Admission;
use crate::http2::connection::{self, Shared};
use crate::http2::preface::PendingAdmission;
use crate::http2::turns::BodyTurns;
use crate::identity::Identity;
use crate::invalid::InvalidSetting;
use crate::listen::bound::BoundSocket;
use crate::listen::connection_limiter::ConnectionLimiter;
use crate::listen::descriptors::Descriptors;
use crate::listen::pending::{PendingConnection, PendingConnections};
use crate::listen::{Accepted, Listener, Listeners, Remote};
use crate::metrics::{HandshakeResult, Metrics, Refusal};
use crate::named_command::NamedCommands;
use crate::receipts::Receipts;
use crate::reload::{ReloadStates, Watched};
use crate::request_memory::RequestMemory;
use crate::rpc::agent_service::Agent;
use crate::rpc::execution_service::Executions;
use crate::rpc::health_service::HealthRpcs;
use crate::scrape::{self, AgentCollector};
use crate::tls::Tls;
use crate::tls::expiry::warn_of_expiry;
use crate::token::TokenIssuers;
use crate::trace::Traces;

/// Pending handshakes per listener; above it, older ones are displaced.
const MAX_HANDSHAKES: u64 = 1024;
/// Threads for reads that may block on a network file system: one at a time per reload source and per scrape.
const MAX_WORKERS: usize = 16;
/// How long to wait for processes after SIGKILL. One in uninterruptible sleep may never end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last responses may take to be sent after all executions have ended.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Before an agent hands over: for calls that are about to be answered, while new ones wait.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(250);

/// An agent that could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine cannot be created.
    #[error("cannot run commands on this machine")]
    Engine(#[source] io::Error),
    /// Worker threads cannot be started.
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The descriptors for reflection are malformed.
    #[error("cannot offer reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
}

/// What ends an agent.
#[derive(Debug)]
pub enum Ending {
    /// It was asked to end: what runs is ended.
    Shutdown,
    /// The program on disk is to take its place, and to continue what need not end with its call. This gets a message when
    /// the process may exit, and is to do so: nothing may be dropped before.
    HandOver(oneshot::Sender<()>),
}

impl From<()> for Ending {
    fn from((): ()) -> Self {
        Self::Shutdown
    }
}

/// Serves calls until `shutdown` completes, lets commands run on for the configured `shutdown_grace`, ends the rest, and
/// returns, in bounded time whatever peers and commands do. `shutdown` is first polled once the agent serves.
///
/// Dropping the future closes all connections, which ends their commands in the background.
///
/// # Errors
/// The agent could not start; nothing was served.
pub async fn serve(
    config: Config,
    listeners: Listeners,
    shutdown: impl Future<Output: Into<Ending>> + Send,
) -> Result<(), ServeError> {
    config.check()?;
    let engine = LocalExecutor::new(config.local()).map_err(ServeError::Engine)?;
    let workers = Workers::new("files", 1, MAX_WORKERS).map_err(ServeError::Threads)?;
    let policy = config
        .policy_file()?
        .map(|file| file.of_agent(&engine))
        .map(Watched::load)
        .transpose()
        .map_err(ConfigError::from)?;
    if policy.is_none() {
        warn_of_no_policy(&listeners, engine.user());
    }
    let named_commands = config.named_commands()?;
    warn_of_named_commands(named_commands.clone(), config.environment.clone());
    let audit = Audit::open(&config.audit, engine.containment().as_str())?;
    let collector = config.audit_collector.clone().map(Collector::open).transpose()?;
    let start_limiter = StartLimiter::new(config.max_starts_per_second);
    let evaluator = PolicyEvaluator::new().map_err(ServeError::Engine)?;
    let metrics = Metrics::new(listeners.metrics.is_some());
    let traces =
        Traces::to(config.otlp_endpoint.as_deref()).map_err(|error| ConfigError::from(InvalidSetting(error)))?;
    let stack = Stack {
        engine: engine.clone(),
        start_limiter,
        policy,
        audit: audit.clone(),
        evaluator,
        named_commands,
        approvals: Approvals::default(),
        receipts: Receipts::open(config.receipt_key.as_deref())?,
        body_turns: BodyTurns::new(config.worker_threads),
        metrics: metrics.clone(),
        traces: traces.clone(),
    };
    let continuing = stack.clone();
    let forwards = Forwards::new(&config, &engine, listeners.unix_paths()).map_err(ServeError::Engine)?;
    let health = HealthReporter::new();
    let tokens = TokenIssuers::load(&config.token_issuers).map_err(ConfigError::from)?;
    let of_policy = stack.policy.as_ref().map(Watched::state);
    let of_tls = listeners.tls.as_ref().and_then(Tls::reload_state);
    let reloads = ReloadStates::new(of_policy.into_iter().chain(of_tls).chain(tokens.reload_states()));
    let agent = Agent::new(stack.clone(), listeners.tls.clone(), reloads.clone(), &config, SystemTime::now());
    let routes = routes(&config, &stack, &forwards, agent, collector.clone(), &health).await?;
    let handshakes = Workers::new("handshakes", 1, policy_evaluator::processors()).map_err(ServeError::Engine)?;
    let connections = Connections::new(routes, handshakes, tokens.clone(), &config, &stack);
    let _closes = connections.close.clone().drop_guard();
    let mut following = JoinSet::new();
    following.spawn(HELD_MEMORY.give_back());
    let mut metrics_socket = None;
    if let Some((listener, bound)) = listeners.metrics {
        metrics_socket = Some(bound);
        let collector = AgentCollector::new(
            &config,
            &stack,
            &connections.connection_limiter,
            &forwards.limiter,
            collector.clone(),
            listeners.tls.clone(),
            reloads,
        );
        following.spawn(scrape::serve(listener, metrics, collector, workers.clone()));
    }
    if let Some(tls) = listeners.tls {
        following.spawn(warn_of_expiry(tls.clone()));
        following.spawn(tls.follow(listeners.reload.clone(), workers.clone()));
    }
    if let Some(policy) = stack.policy {
        following.spawn(policy.follow(listeners.reload.clone(), workers.clone()));
    }
    if !tokens.is_empty() {
        following.spawn(tokens.follow(listeners.reload.clone(), workers.clone()));
    }
    following.spawn(audit.clone().follow(listeners.reload));
    if let Some(collector) = collector {
        following.spawn(collector.follow());
    }
    let mut following_keeper = JoinSet::new();
    if let Some(responds) = engine.keeper_responds() {
        following_keeper.spawn(follow_keeper(health.clone(), responds, config.serves_files));
    }
    // last: after a failure to start, the next agent finds them as they were
    continuing.continue_executions();
    let sockets = listeners.bound;
    let mut accepting = JoinSet::new();
    let count = listeners.all.len();
    for listener in listeners.all {
        accepting.spawn(connections.clone().accept(listener, count));
    }
    info!(
        containment = %engine.containment(),
        limits = engine.limits().join(","),
        max_executions = config.max_executions,
        keeper = config.kept_by.is_some(),
        default_user = engine.user(),
        "ready"
    );
    if config.kept_by.as_ref().is_some_and(Keeper::is_of_another_user) && engine.limits().is_empty() {
        warn!("agent_user: commands can have no limits here: memory and pids are controllers of cgroup v1");
    }

    let ending = tokio::select! {
        ending = shutdown => ending.into(),
        // it has all exit statuses, and nothing can be started without it
        () = engine.keeper_lost() => Ending::Shutdown,
    };

    if let Ending::HandOver(may_exit) = ending {
        info!("handing over to the program on disk");
        tokio::select! {
            () = engine.hand_over(config.shutdown_grace) => {
                accepting.shutdown().await;
                forwards.closing.cancel();
                connections.shared.goaway.cancel();
                connections.tracker.close();
                // calls that follow a command do not end
                let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, connections.tracker.wait()).await;
                engine.leave().await;
                audit.close().await;
                traces.close(&workers).await;
                let _ = may_exit.send(());
                return std::future::pending().await;
            }
            // it would have started the next one
            () = engine.keeper_lost() => {}
        }
    }
    info!(running = engine.running(), "shutting down");
    accepting.shutdown().await;
    // of vsock connections wait until there is no keeper
    sockets.into_iter().for_each(|socket| drop(socket.close()));
    following_keeper.shutdown().await;
    not_serving(&health).await;
    engine.close();
    // what no one may wait for
    forwards.closing.cancel();
    connections.shared.goaway.cancel();
    tokio::select! {
        biased;
        () = engine.idle() => {}
        () = engine.keeper_lost() => warn!(running = engine.running(), "ending the remaining commands"),
        () = tokio::time::sleep(config.shutdown_grace) => warn!(running = engine.running(), "ending the remaining commands"),
    }
    let limit = config.kill_grace.min(config.max_kill_grace).saturating_add(KILL_TIMEOUT);
    if tokio::time::timeout(limit, engine.shutdown()).await.is_err() {
        warn!(running = engine.running(), "gave up waiting for processes to end");
    }
    connections.close().await;
    audit.close().await;
    traces.close(&workers).await;
    engine.leave().await;
    following.shutdown().await;
    drop(metrics_socket.map(BoundSocket::close));
    Ok(())
}

/// In a thread of its own: a program may be on a network file system that does not answer.
fn warn_of_named_commands(commands: NamedCommands, environment: BTreeMap<String, String>) {
    let warn = move || {
        for warning in commands.warnings(&environment) {
            warn!("possible mistake: {warning}");
        }
    };
    // without a thread there is no warning
    let _ = std::thread::Builder::new().name("commands".into()).spawn(warn);
}

fn warn_of_no_policy(listeners: &Listeners, user: &str) {
    let (open, others): (Vec<_>, Vec<_>) = listeners.all.iter().partition(|listener| listener.is_open());
    if !others.is_empty() {
        warn!("no policy: every authenticated caller may run anything");
    }
    for listener in open {
        let address = listener.address();
        warn!(%address, "no policy, and nobody is authenticated: any user of this machine may run anything, by default as {user}");
    }
}

/// The services that every agent has; some have that for files too.
const SERVICES: [&str; 4] = [
    execution_service_server::SERVICE_NAME,
    agent_service_server::SERVICE_NAME,
    approval_service_server::SERVICE_NAME,
    forward_service_server::SERVICE_NAME,
];

async fn routes(
    config: &Config,
    stack: &Stack,
    forwards: &Forwards,
    agent: Agent,
    collector: Option<Collector>,
    health: &HealthReporter,
) -> Result<Routes, ServeError> {
    let files = config.serves_files.then(|| FileRpcs::new(stack.clone(), config.max_disconnect_grace));
    let optional = [
        files.as_ref().map(|_| file_service_server::SERVICE_NAME),
        collector.as_ref().map(|_| <LogsServer as NamedService>::NAME),
    ];
    for name in SERVICES.into_iter().chain(optional.into_iter().flatten()) {
        health.set_service_status(name, ServingStatus::Serving).await;
    }
    let health = HealthRpcs::new(health.clone(), agent.start_time());
    let mut routes = Routes::new(ExecutionServiceServer::new(Executions { stack: stack.clone() }))
        .add_service(AgentServiceServer::new(agent))
        .add_service(ApprovalServiceServer::new(ApprovalRpcs { stack: stack.clone() }))
        .add_service(ForwardServiceServer::new(forwards.rpcs(stack.clone())))
        .add_service(tonic_health::pb::health_server::HealthServer::new(health));
    if let Some(files) = files {
        routes = routes.add_service(FileServiceServer::new(files));
    }
    if let Some(collector) = collector {
        routes = routes.add_service(LogsServer::new(stack.clone(), collector));
    }
    if config.reflection {
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                // for the details of errors
                .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        };
        routes = routes
            .add_service(reflection().build_v1().map_err(ServeError::Reflection)?)
            .add_service(reflection().build_v1alpha().map_err(ServeError::Reflection)?);
    }
    Ok(routes.prepare())
}

/// What starts commands, and the whole agent, serve only while the keeper responds.
async fn follow_keeper(health: HealthReporter, mut responds: watch::Receiver<bool>, serves_files: bool) {
    let files = serves_files.then_some(file_service_server::SERVICE_NAME);
    // until there is no engine
    while responds.changed().await.is_ok() {
        let status = if *responds.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in ["", execution_service_server::SERVICE_NAME].into_iter().chain(files) {
            health.set_service_status(name, status).await;
        }
    }
}

/// All services, and the empty name for the whole agent.
async fn not_serving(health: &HealthReporter) {
    for name in SERVICES.into_iter().chain(["", file_service_server::SERVICE_NAME, <LogsServer as NamedService>::NAME])
    {
        health.set_service_status(name, ServingStatus::NotServing).await;
    }
}

/// All open connections.
#[derive(Clone)]
struct Connections {
    shared: Shared,
    /// Whether other local users may connect, because a policy decides what they may do.
    strangers: bool,
    /// All connections are closed.
    close: CancellationToken,
    tracker: TaskTracker,
    connection_limiter: ConnectionLimiter,
}

impl Connections {
    fn new(routes: Routes, handshakes: Workers, tokens: TokenIssuers, config: &Config, stack: &Stack) -> Self {
        let shared = Shared {
            routes,
            call_limiter: CallLimiter::new(config.max_calls_per_identity),
            request_memory: RequestMemory::new(config.request_limits()),
            body_turns: stack.body_turns.clone(),
            tokens,
            handshakes,
            audit: stack.audit.clone(),
            metrics: stack.metrics.clone(),
            goaway: CancellationToken::new(),
        };
        Self {
            shared,
            strangers: stack.policy.is_some(),
            close: CancellationToken::new(),
            tracker: TaskTracker::new(),
            connection_limiter: ConnectionLimiter::new(config),
        }
    }

    /// Accepts connections, as one of so many listeners. Never returns.
    async fn accept(self, listener: Listener, listeners: usize) {
        // per listener: strangers on one must not block callers on another
        let descriptors = Descriptors::new();
        let [max, max_in_reserve] =
            [descriptors.max_pending(MAX_HANDSHAKES), descriptors.max_in_reserve() / listeners.max(1)];
        let handshakes = PendingConnections::new(max, max_in_reserve);
        let mut accepts = true;
        loop {
            let accepted = listener.accept().await;
            if let Err(error) = &accepted
                && accepts
            {
                warn!(%error, "cannot accept connections; trying again");
            }
            accepts = accepted.is_ok();
            match accepted {
                Ok((accepted, remote)) => {
                    let close = self.close.clone();
                    let pending = handshakes.enter(remote.source, !descriptors.are_few());
                    let answer = self.clone().answer(accepted, remote, pending);
                    self.tracker.spawn(async move { close.run_until_cancelled(answer).await });
                    // a flood of connections must not starve other tasks
                    tokio::task::yield_now().await;
                }
                // most likely out of descriptors: some will be closed soon
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn answer(self, accepted: Accepted, remote: Remote, pending: PendingConnection) {
        let displaced = pending.displaced();
        let (transport, audit, metrics) =
            (accepted.transport(), self.shared.audit.clone(), self.shared.metrics.clone());
        let peer = tokio::select! {
            peer = handshake(accepted, &remote, self.strangers, &self.shared.handshakes) => peer,
            () = displaced.cancelled() => Err(HandshakeError::Displaced),
        };
        metrics.handshake(peer.as_ref().err().map_or(HandshakeResult::Ok, HandshakeError::result));
        let peer = match peer {
            Ok(peer) => peer,
            Err(reason) => {
                drop(pending);
                info!(from = remote.address, %reason, "rejected a connection");
                return audit.record_rejected_peer(transport, &remote, &reason).await;
            }
        };
        let (identity, connections) = (peer.identity().cloned(), self.connection_limiter);
        let acquire_permit = move |identity: &Identity| {
            let permit = connections.acquire(identity, &remote, &pending);
            drop(pending);
            if permit.is_none() {
                metrics.refused(Refusal::Connections);
            }
            permit
        };
        let admission = Admission::new(Box::new(acquire_permit));
        connection::serve(peer, PendingAdmission { displaced, identity, admission }, self.shared).await;
    }

    /// Waits for the last responses to be sent, then closes all connections.
    async fn close(self) {
        self.tracker.close();
        if tokio::time::timeout(FLUSH_TIMEOUT, self.tracker.wait()).await.is_err() {
            self.close.cancel();
            self.tracker.wait().await;
        }
    }
}
