//! A bot session: the server's leases for one target.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bazel_remote_apis::google::protobuf::Any;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing::{info, warn};

use crate::action::{Outcome, Runner, Worker};
use crate::failure::Failure;
use crate::remoteworkers as wire;
use crate::target::{GIVE_UP_AFTER, Pause, Target};
use wire::bots_client::BotsClient;
use wire::{BotStatus, LeaseState};

/// How long a server may wait for work before it answers. BuildGrid does so for 0.8 of it.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The same while a lease runs, since a server does not answer earlier because it takes one back. With less than 4 s
/// BuildGrid hands out no leases.
const BUSY_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// For a call that tells how leases have ended.
const TELL_TIMEOUT: Duration = Duration::from_secs(30);
/// Between calls that a server answers at once, as it does when a bot has all the leases that it can have.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// What one call may tell of leases that have ended: servers take messages of 4 MiB.
const MAX_TOLD_BYTES: usize = 3 * 1024 * 1024 + 512 * 1024;
/// A server may be exhausted by what it is told: after so many refusals in a row it is found out whether it is.
const MAX_REFUSALS: u32 = 5;
const SHORT_BYTES: usize = 16 * 1024;
/// How long the leases of a session may take to end: longer than with an agent that is lost, which is waited for when an action
/// is started, when its end is asked for, and when that is to be told.
const END_TIMEOUT: Duration = Duration::from_secs(3 * GIVE_UP_AFTER.as_secs() + 1);
/// How long outcomes are told to a server that does not answer, before this program ends.
const LAST_TIMEOUT: Duration = Duration::from_secs(8);
/// Leases are run that a server hands out in surplus, up to so many.
const SURPLUS: usize = 4;

/// What a bot does with its leases.
pub(crate) struct Bot {
    client: BotsClient<Channel>,
    instance: String,
    id: String,
    worker: Arc<Worker>,
    target: Arc<Target>,
    leases: HashMap<String, Lease>,
    /// Told by tasks of the leases that have ended.
    ended: mpsc::Receiver<Ended>,
    /// Keeps outcomes to itself for once: see [`Bot::refused`].
    is_probing: bool,
    /// The server takes calls that say less.
    takes_less: bool,
    ending: mpsc::Sender<Ended>,
    tasks: TaskTracker,
    runs: u64,
    stop: CancellationToken,
}

struct Ended {
    lease: String,
    run: u64,
    outcome: Outcome,
}

/// A lease of the session.
struct Lease {
    /// An id may be leased again.
    run: u64,
    let_go: CancellationToken,
    outcome: Option<Outcome>,
}

/// How a session went.
enum Session {
    /// The server knows it no more: its leases are others' by now.
    Lost(Status),
    Stopped,
}

/// What happened between two calls.
enum Woken {
    Answered(Result<wire::BotSession, Status>),
    /// There is something to tell.
    News,
}

impl Bot {
    pub(crate) fn new(
        channel: Channel,
        instance: &str,
        id: String,
        worker: Arc<Worker>,
        target: Arc<Target>,
        stop: CancellationToken,
    ) -> Self {
        let client = BotsClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let (ending, ended) = mpsc::channel(target.capacity + SURPLUS);
        let (leases, tasks) = (HashMap::new(), TaskTracker::new());
        let (is_probing, takes_less, instance) = (false, false, instance.to_owned());
        Self {
            client,
            instance,
            id,
            worker,
            target,
            leases,
            ended,
            is_probing,
            takes_less,
            ending,
            tasks,
            runs: 0,
            stop,
        }
    }

    /// Until this program is to end: then all leases are given back.
    pub(crate) async fn serve(mut self) {
        let mut pause = Pause::default();
        while !self.stop.is_cancelled() {
            let created = {
                let call = self.create();
                tokio::select! {
                    created = call => created,
                    () = self.stop.cancelled() => break,
                }
            };
            match created {
                Ok(session) => {
                    info!(bot = self.id, session = session.name, "the server knows this bot");
                    pause = Pause::default();
                    if let Session::Lost(status) = self.follow(session).await {
                        warn!(bot = self.id, %status, "the session is over");
                    }
                    self.end_all().await;
                }
                Err(status) if pause.is_first() => {
                    warn!(bot = self.id, %status, "cannot begin a session: trying again")
                }
                Err(_) => {}
            }
            let stop = self.stop.clone();
            stop.run_until_cancelled(pause.wait()).await;
        }
    }

    /// Ends what still runs: another session may be told to run the same.
    async fn end_all(&mut self) {
        self.leases.drain().for_each(|(_, lease)| lease.let_go.cancel());
        self.tasks.close();
        let (tasks, ended) = (&self.tasks, &mut self.ended);
        let all = async {
            tokio::select! {
                () = tasks.wait() => {}
                // nobody wants to know any more, and they do not end before they have told
                () = async { while ended.recv().await.is_some() {} } => {}
            }
        };
        if timeout(END_TIMEOUT, all).await.is_err() {
            warn!(bot = self.id, "what ran in the session has not ended yet");
        }
        self.tasks.reopen();
    }

    fn create(&self) -> impl Future<Output = Result<wire::BotSession, Status>> + use<> {
        // it takes no leases yet: a server would wait for some before it says that there is a session
        let session = wire::BotSession { status: BotStatus::Unhealthy.into(), leases: Vec::new(), ..self.session() };
        let mut request =
            Request::new(wire::CreateBotSessionRequest { parent: self.instance.clone(), bot_session: Some(session) });
        request.set_timeout(CALL_TIMEOUT);
        let mut client = self.client.clone();
        async move {
            let answer = timeout(CALL_TIMEOUT, client.create_bot_session(request)).await;
            Ok(answer.map_err(|_| Status::deadline_exceeded("no answer"))??.into_inner())
        }
    }

    /// The session as this side sees it, without its name and version.
    fn session(&self) -> wire::BotSession {
        let is_fit = *self.target.is_fit.borrow();
        let status = match (self.stop.is_cancelled(), is_fit) {
            (true, _) => BotStatus::BotTerminating,
            (false, true) => BotStatus::Ok,
            (false, false) => BotStatus::Unhealthy,
        };
        let property =
            |(key, value): &(String, String)| wire::device::Property { key: key.clone(), value: value.clone() };
        let device = wire::Device {
            handle: self.target.name.clone(),
            properties: self.target.platform.announced().iter().map(property).collect(),
        };
        let capacity = wire::worker::Config { key: "capacity".to_owned(), value: self.target.capacity.to_string() };
        let worker = wire::Worker { devices: vec![device], properties: Vec::new(), configs: vec![capacity] };
        wire::BotSession {
            bot_id: self.id.clone(),
            status: status.into(),
            worker: Some(worker),
            leases: self.leases(),
            ..Default::default()
        }
    }

    /// All leases. The ends of some are told later if there is too much to tell.
    fn leases(&self) -> Vec<wire::Lease> {
        let mut told = 0;
        let leases = self.leases.iter().map(|(id, lease)| {
            let size = lease.outcome.as_ref().map_or(0, Outcome::size);
            let has_room = !self.is_probing && (told == 0 || told + size <= MAX_TOLD_BYTES);
            told += if has_room { size } else { 0 };
            lease_to_wire(id, lease.outcome.as_ref().filter(|_| has_room))
        });
        leases.collect()
    }

    /// Tells the server how its leases are, and takes others, until the session is over.
    async fn follow(&mut self, mut known: wire::BotSession) -> Session {
        let (mut pause, mut refusals) = (Pause::default(), 0);
        let mut last: Option<Instant> = None;
        self.take(&known, &[]);
        loop {
            self.note_ended();
            let was_fit = *self.target.is_fit.borrow();
            let is_last = self.stop.is_cancelled();
            if is_last {
                self.is_probing = false;
                self.give_back().await;
                last.get_or_insert_with(Instant::now);
            }
            let session =
                wire::BotSession { name: known.name.clone(), version: known.version.clone(), ..self.session() };
            let told = session.leases.iter().filter(|lease| lease.state() == LeaseState::Completed);
            let told: Vec<String> = told.map(|lease| lease.id.clone()).collect();
            let asked = Instant::now();
            // what has something to tell is answered at once, and must not be cut off
            let waits = told.is_empty() && !is_last;
            match self.update(session, waits, was_fit).await {
                Woken::News => continue,
                Woken::Answered(Ok(_)) if is_last && told.len() == self.leases.len() => return Session::Stopped,
                Woken::Answered(Ok(answer)) => {
                    (pause, refusals) = (Pause::default(), 0);
                    self.takes_less = std::mem::take(&mut self.is_probing);
                    let is_new = self.take(&answer, &told) || !told.is_empty();
                    known = answer;
                    if !is_new && asked.elapsed() < POLL_INTERVAL {
                        self.until_news(POLL_INTERVAL, was_fit).await;
                    }
                }
                Woken::Answered(Err(status))
                    if last.is_some_and(|last| told.is_empty() || last.elapsed() > LAST_TIMEOUT) =>
                {
                    return Session::Lost(status);
                }
                Woken::Answered(Err(status)) if is_transient(&status) => {
                    if status.code() == Code::ResourceExhausted && !is_last {
                        refusals += 1;
                        self.refused(refusals);
                    }
                    if pause.is_first() {
                        warn!(bot = self.id, %status, "the server does not answer: trying again");
                    }
                    match is_last {
                        true => pause.wait().await,
                        false => drop(self.stop.clone().run_until_cancelled(pause.wait()).await),
                    }
                }
                Woken::Answered(Err(status)) => return Session::Lost(status),
            }
        }
    }

    /// The server is exhausted by a call: since it has much to do, or by what it is told. If it has taken the same call without
    /// the outcomes just now, it is these.
    fn refused(&mut self, times: u32) {
        if std::mem::take(&mut self.takes_less) {
            self.shorten();
        }
        self.is_probing = times > MAX_REFUSALS;
    }

    /// Replaces the largest outcome, which the server does not take, by one that is short.
    fn shorten(&mut self) {
        let ended = self.leases.iter_mut().filter_map(|(id, lease)| Some((id, lease.outcome.as_mut()?)));
        let Some((id, outcome)) = ended.max_by_key(|(_, outcome)| outcome.size()) else { return };
        if outcome.size() > SHORT_BYTES {
            warn!(
                bot = self.id,
                lease = id,
                bytes = outcome.size(),
                "the server does not take the outcome of the lease"
            );
            *outcome =
                Outcome::failed(&Failure::TooLarge("the server does not take the result of the action".to_owned()));
        }
    }

    /// Calls the server, and waits for its answer; if it `waits`, only until there is something to tell it.
    async fn update(&mut self, session: wire::BotSession, waits: bool, was_fit: bool) -> Woken {
        let name = session.name.clone();
        let request = wire::UpdateBotSessionRequest { name, bot_session: Some(session), update_mask: None };
        let mut request = Request::new(request);
        request.set_timeout(if self.leases.is_empty() { CALL_TIMEOUT } else { BUSY_CALL_TIMEOUT });
        let mut client = self.client.clone();
        let limit = if waits { CALL_TIMEOUT } else { TELL_TIMEOUT };
        let call = async {
            // the deadline of the request is the server's to keep
            let answer = timeout(limit, client.update_bot_session(request)).await;
            Ok(answer.map_err(|_| Status::deadline_exceeded("no answer"))??.into_inner())
        };
        if !waits {
            return Woken::Answered(call.await);
        }
        tokio::select! {
            biased;
            answer = call => Woken::Answered(answer),
            () = self.news(was_fit) => Woken::News,
        }
    }

    /// Waits until there is something to tell the server.
    async fn news(&mut self, was_fit: bool) {
        let mut is_fit = self.target.is_fit.subscribe();
        tokio::select! {
            ended = self.ended.recv() => if let Some(ended) = ended { self.note(ended) },
            _ = is_fit.wait_for(|is_fit| *is_fit != was_fit) => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn until_news(&mut self, most: Duration, was_fit: bool) {
        let _ = timeout(most, self.news(was_fit)).await;
    }

    fn note_ended(&mut self) {
        while let Ok(ended) = self.ended.try_recv() {
            self.note(ended);
        }
    }

    fn note(&mut self, Ended { lease, run, outcome }: Ended) {
        if let Some(lease) = self.leases.get_mut(&lease).filter(|lease| lease.run == run) {
            lease.outcome = Some(outcome);
        }
    }

    /// Forgets the leases that the server was told the end of, ends those that it has taken back, and begins new ones.
    /// Returns whether there was anything to do.
    fn take(&mut self, answer: &wire::BotSession, told: &[String]) -> bool {
        for id in told {
            self.leases.remove(id);
        }
        let is_live = |lease: &wire::Lease| matches!(lease.state(), LeaseState::Pending | LeaseState::Active);
        let mut is_new = false;
        self.leases.retain(|id, lease| {
            let is_kept = answer.leases.iter().any(|other| other.id == *id && is_live(other));
            if !is_kept {
                info!(lease = id, "the server has taken the lease back");
                lease.let_go.cancel();
                is_new = true;
            }
            is_kept
        });
        for lease in answer.leases.iter().filter(|lease| is_live(lease)) {
            if self.leases.contains_key(&lease.id) {
                continue;
            }
            match self.leases.len() < self.target.capacity + SURPLUS {
                true => self.begin(lease.id.clone(), lease.payload.clone()),
                false => self.refuse(lease.id.clone()),
            }
            is_new = true;
        }
        is_new
    }

    fn begin(&mut self, id: String, payload: Option<Any>) {
        self.runs += 1;
        let (run, let_go) = (self.runs, CancellationToken::new());
        let runner = Runner {
            worker: Arc::clone(&self.worker),
            target: Arc::clone(&self.target),
            bot_id: self.id.clone(),
            lease_id: id.clone(),
            let_go: let_go.clone(),
            stop: self.stop.clone(),
        };
        let (ending, lease) = (self.ending.clone(), id.clone());
        self.tasks.spawn(async move {
            let outcome = runner.outcome(payload).await;
            // nobody listens once the bot is gone
            let _ = ending.send(Ended { lease, run, outcome }).await;
        });
        self.leases.insert(id, Lease { run, let_go, outcome: None });
    }

    /// The server hands it to others.
    fn refuse(&mut self, id: String) {
        warn!(bot = self.id, lease = id, "the server leases more than this bot has room for");
        self.runs += 1;
        let outcome = Some(Outcome::failed(&Failure::Surplus));
        self.leases.insert(id, Lease { run: self.runs, let_go: CancellationToken::new(), outcome });
    }

    /// Ends what runs. The server hands it to others.
    async fn give_back(&mut self) {
        self.leases.values().for_each(|lease| lease.let_go.cancel());
        while self.leases.values().any(|lease| lease.outcome.is_none()) {
            match self.ended.recv().await {
                Some(ended) => self.note(ended),
                None => break,
            }
        }
    }
}

/// A lease that runs, or has ended.
fn lease_to_wire(id: &str, outcome: Option<&Outcome>) -> wire::Lease {
    let mut lease = wire::Lease { id: id.to_owned(), ..Default::default() };
    lease.set_state(outcome.map_or(LeaseState::Active, |_| LeaseState::Completed));
    lease.status = outcome.map(|outcome| outcome.status.clone());
    lease.result = outcome.and_then(|outcome| outcome.result.clone());
    lease
}

/// Whether the server may know the session still.
fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::ResourceExhausted
            | Code::Internal
            | Code::Unknown
    )
}
