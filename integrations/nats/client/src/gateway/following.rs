//! Follows one execution by its messages.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Ordered;
use futures_util::{Stream, StreamExt, stream};
use telexec_proto::v1::{ExecutionEvent, Gap, GetAgentRequest, GetAgentResponse, Promoted, execution_event};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tonic::{Code, Status};

use super::answers::already_exists;
use super::{Gateway, Shared};
use crate::Address;
use crate::agent::Options;
use crate::cancel::CancelOnDrop;
use crate::events::{First, Item, after, is_last};
use crate::nats::{Digests, Nats, Withdrawal};

/// After as long without a message, the agent is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(10);
/// Before messages are asked for again that cannot be read.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// What an agent takes at the last moment is heard of within this time.
const MARGIN: Duration = Duration::from_secs(3);

/// The messages of one execution.
pub(super) struct Following {
    nats: Arc<Nats>,
    /// The agent that was asked for, or the label.
    address: String,
    /// The agent, if one was asked for.
    name: Option<String>,
    id: String,
    messages: Ordered,
    connected: watch::Receiver<()>,
    /// The messages are to be asked for again.
    is_stale: bool,
    /// Of the last message.
    sequence: u64,
    /// The agent that has it, once that is known.
    agent: Option<String>,
    /// Those of the request, if it is this side's.
    digests: Option<Digests>,
    /// Its sequence in the queue.
    request: Option<u64>,
    /// An event that was held up by a gap before it.
    late: Option<ExecutionEvent>,
    /// Output before this position is not wanted, or was delivered.
    position: u64,
    promotion: Option<Instant>,
    /// Since then the agent does not answer.
    away: Option<Instant>,
    /// Ends the command if this is dropped before the end.
    cancel: CancelOnDrop,
    options: Options,
}

impl Following {
    /// From its first message on.
    ///
    /// # Errors
    /// The messages cannot be read.
    pub(super) async fn open(gateway: &Gateway, id: &str, cancel: CancelOnDrop) -> Result<Self, Status> {
        let Shared { nats, address, options, .. } = &*gateway.0;
        let mut connected = nats.connected.clone();
        connected.mark_unchanged();
        Ok(Self {
            nats: Arc::clone(nats),
            address: address.subject(),
            name: match address {
                Address::Agent(name) => Some(name.clone()),
                Address::Label(_) => None,
            },
            id: id.to_owned(),
            messages: nats.events(id, 0).await?,
            connected,
            is_stale: false,
            sequence: 0,
            agent: None,
            digests: None,
            request: None,
            late: None,
            position: 0,
            promotion: None,
            away: None,
            cancel,
            options: options.clone(),
        })
    }

    /// The request that is to be followed, and no other with its ID; `sequence` is that in its queue.
    pub(super) fn expect(&mut self, digests: Digests, sequence: u64) {
        (self.digests, self.request) = (Some(digests), Some(sequence));
    }

    pub(super) fn skip_to(&mut self, position: u64) {
        self.position = position;
    }

    /// From now, once the command has started.
    pub(super) fn promote_after(&mut self, delay: Option<Duration>) {
        self.promotion = delay.and_then(|delay| Instant::now().checked_add(delay));
    }

    /// The start. If no agent has taken the request in time, it is withdrawn.
    pub(super) async fn start(&mut self, within: Duration) -> Result<ExecutionEvent, Status> {
        match timeout_at(Instant::now() + within + MARGIN, self.taken()).await {
            Ok(Some(event)) => return self.unless_expired(event),
            Ok(None) => {}
            Err(_) => self.withdraw(within).await?,
        }
        let event = self.next().await;
        self.unless_expired(event)
    }

    /// A command that an agent has found too late has not timed out: it has not run.
    fn unless_expired(&self, event: Result<ExecutionEvent, Status>) -> Result<ExecutionEvent, Status> {
        event.map_err(|status| match status.code() {
            Code::DeadlineExceeded => self.nats.unreachable(&self.address, status.message()),
            _ => status,
        })
    }

    /// # Errors
    /// It will not be started. Otherwise an agent has it.
    async fn withdraw(&mut self, within: Duration) -> Result<(), Status> {
        let begin = Instant::now();
        loop {
            let cause = match self.nats.withdraw(&self.id).await {
                Withdrawal::TooLate => return Ok(()),
                Withdrawal::Withdrawn => {
                    if let Some(sequence) = self.request {
                        self.nats.remove(sequence).await;
                    }
                    "it is withdrawn"
                }
                Withdrawal::Unknown => match self.nats.first(&self.id).await {
                    Ok(Some(_)) => return Ok(()),
                    Ok(None) => "it has expired",
                    Err(status) if begin.elapsed() >= self.options.give_up_after => return Err(status),
                    Err(_) => {
                        sleep(RETRY_DELAY).await;
                        continue;
                    }
                },
            };
            self.cancel.disarm();
            let cause = format!("no agent has taken the command within {within:?} (it may be busy): {cause}");
            return Err(self.nats.unreachable(&self.address, &cause));
        }
    }

    /// The start of what is attached to, which may have to be waited for.
    pub(super) async fn await_start(&mut self, within: Option<Duration>) -> Result<ExecutionEvent, Status> {
        let Some(within) = within else { return self.next().await };
        match timeout_at(Instant::now() + within, self.taken()).await {
            Ok(Some(event)) => event,
            Ok(None) => self.next().await,
            Err(_) => {
                self.cancel.disarm();
                let cause = format!("{} has not started within {within:?}; it may still be in the queue", self.id);
                Err(self.nats.unreachable(&self.address, &cause))
            }
        }
    }

    /// Waits until an agent has it; the start, if that is known already.
    async fn taken(&mut self) -> Option<Result<ExecutionEvent, Status>> {
        loop {
            match self.item().await {
                Item::Claimed(first) => return self.claimed(first).err().map(Err),
                item => {
                    if let Some(event) = self.event(item) {
                        return Some(event);
                    }
                }
            }
        }
    }

    /// The next event. Must not be called after the last, or an error.
    async fn next(&mut self) -> Result<ExecutionEvent, Status> {
        if let Some(event) = self.late.take() {
            return Ok(event);
        }
        loop {
            let promotion = self.promotion;
            let silence = self.silence();
            let item = tokio::select! {
                item = self.item() => item,
                () = until(promotion) => {
                    self.cancel.disarm();
                    let promoted = Promoted { execution_id: self.id.clone() };
                    return Ok(ExecutionEvent { event: Some(execution_event::Event::Promoted(promoted)), position: 0 });
                }
                (asked, is_there) = silence => {
                    self.note(asked, is_there)?;
                    continue;
                }
            };
            self.away = None;
            if let Item::Claimed(first) = item {
                self.claimed(first)?;
            } else if let Some(event) = self.event(item) {
                return event;
            }
        }
    }

    /// Asks the agent whether it is there, after a while without messages: when it was asked, and whether it answered.
    fn silence(&self) -> impl Future<Output = (Instant, bool)> + use<> {
        let (nats, timeout) = (Arc::clone(&self.nats), self.options.connect_timeout);
        // with a queue it is waited for
        let agent = self.agent.clone().filter(|_| self.options.queue.is_none());
        async move {
            sleep(SILENCE).await;
            let asked = Instant::now();
            let Some(agent) = agent else { return (asked, true) };
            let answer = nats.ask::<GetAgentResponse>(&agent, "GetAgent", &GetAgentRequest {}, timeout).await;
            (asked, answer.is_ok())
        }
    }

    /// # Errors
    /// The agent has not answered for too long.
    fn note(&mut self, asked: Instant, is_there: bool) -> Result<(), Status> {
        if is_there {
            self.away = None;
            return Ok(());
        }
        let away = *self.away.get_or_insert(asked);
        if away.elapsed() < self.options.give_up_after {
            return Ok(());
        }
        let agent = self.agent.as_deref().unwrap_or(&self.address);
        let text = format!("{agent} has not answered for {:?}; the command may still be running", away.elapsed());
        Err(Status::unavailable(text))
    }

    /// An agent has it.
    ///
    /// # Errors
    /// It has another request with this ID, or another agent has it: that is not ended in turn.
    fn claimed(&mut self, first: First) -> Result<(), Status> {
        let is_other = |digests: &Digests| {
            let other_request = first.request.as_ref().is_some_and(|request| !digests.contains(request));
            let other_agent =
                first.agent.as_ref().is_some_and(|agent| self.name.as_ref().is_some_and(|name| name != agent));
            other_request || other_agent
        };
        if self.digests.as_ref().is_some_and(is_other) {
            self.cancel.disarm();
            return Err(already_exists(&self.id));
        }
        self.agent = first.agent;
        Ok(())
    }

    /// What a message says, unless that is not wanted.
    fn event(&mut self, item: Item) -> Option<Result<ExecutionEvent, Status>> {
        match item {
            Item::Claimed(_) => None,
            Item::Malformed(status) => Some(Err(status)),
            Item::Failed(status) => {
                self.cancel.disarm();
                Some(Err(status))
            }
            Item::Event(event) => {
                if is_last(&event) {
                    self.cancel.disarm();
                }
                after(*event, self.position).map(|event| Ok(self.in_order(event)))
            }
        }
    }

    /// The event, or a gap before it where messages are missing.
    fn in_order(&mut self, event: ExecutionEvent) -> ExecutionEvent {
        use execution_event::Event;
        let end = match &event.event {
            Some(Event::Stdout(data) | Event::Stderr(data)) => event.position.saturating_add(data.len() as u64),
            Some(Event::Gap(gap)) => gap.resume_position,
            _ => return event,
        };
        let is_output = !matches!(event.event, Some(Event::Gap(_)));
        let missing = is_output && event.position > self.position;
        self.position = end;
        if !missing {
            return event;
        }
        let gap = Gap { resume_position: event.position };
        self.late = Some(event);
        ExecutionEvent { event: Some(Event::Gap(gap)), position: 0 }
    }

    /// The next message, however long the server is away. May be dropped at any time.
    async fn item(&mut self) -> Item {
        loop {
            if self.is_stale {
                match self.nats.events(&self.id, self.sequence).await {
                    Ok(messages) => (self.messages, self.is_stale) = (messages, false),
                    Err(_) => {
                        sleep(RETRY_DELAY).await;
                        continue;
                    }
                }
            }
            let message = tokio::select! {
                message = self.messages.next() => message,
                // the library would notice only by what does not come
                Ok(()) = self.connected.changed() => None,
            };
            if let Some(Ok(message)) = message {
                self.sequence = message.info().map_or(self.sequence, |info| info.stream_sequence);
                return Item::of(&message);
            }
            self.is_stale = true;
        }
    }

    /// The remaining events, to the last or the first error.
    pub(super) fn into_events(self) -> impl Stream<Item = Result<ExecutionEvent, Status>> + Send {
        stream::unfold(Some(self), |following| async move {
            let mut following = following?;
            let event = following.next().await;
            let goes_on = event.as_ref().is_ok_and(|event| !is_last(event));
            Some((event, goes_on.then_some(following)))
        })
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
