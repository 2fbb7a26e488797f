//! Follows one execution by its messages.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Ordered;
use futures_util::{Stream, StreamExt, stream};
use telexec_proto::v1::{ExecutionEvent, GetAgentRequest, GetAgentResponse, Promoted, execution_event};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tonic::Status;

use super::answers::{already_exists, not_found};
use super::{Gateway, Shared};
use crate::agent::Options;
use crate::cancel::CancelOnDrop;
use crate::events::{First, Item, after, is_last};
use crate::nats::{Nats, Withdrawal};

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
    digests: Option<[String; 2]>,
    /// Output before this position is not wanted.
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
            id: id.to_owned(),
            messages: nats.events(id, 0).await?,
            connected,
            is_stale: false,
            sequence: 0,
            agent: None,
            digests: None,
            position: 0,
            promotion: None,
            away: None,
            cancel,
            options: options.clone(),
        })
    }

    /// The request that is to be followed, and no other with its ID.
    pub(super) fn expect(&mut self, digests: [String; 2]) {
        self.digests = Some(digests);
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
        let taken = timeout_at(Instant::now() + within + MARGIN, self.taken()).await;
        match taken {
            Ok(Some(event)) => return event,
            Ok(None) => {}
            Err(_) => match self.nats.withdraw(&self.id).await {
                Withdrawal::Withdrawn => {
                    self.cancel.disarm();
                    let cause = format!("no agent has taken the command within {within:?}: it is withdrawn");
                    return Err(self.nats.unreachable(&self.address, &cause));
                }
                // its start comes, or its failure
                Withdrawal::TooLate | Withdrawal::Unknown => {}
            },
        }
        self.next().await
    }

    /// The start of what is attached to, which may have to be waited for.
    pub(super) async fn await_start(&mut self, within: Option<Duration>) -> Result<ExecutionEvent, Status> {
        let Some(within) = within else { return self.next().await };
        match timeout_at(Instant::now() + within, self.taken()).await {
            Ok(Some(event)) => event,
            Ok(None) => self.next().await,
            Err(_) => {
                self.cancel.disarm();
                Err(not_found(&self.id))
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
        loop {
            let promotion = self.promotion;
            let item = tokio::select! {
                item = self.item() => item,
                () = until(promotion) => {
                    self.cancel.disarm();
                    let promoted = Promoted { execution_id: self.id.clone() };
                    return Ok(ExecutionEvent { event: Some(execution_event::Event::Promoted(promoted)), position: 0 });
                }
                () = sleep(SILENCE) => {
                    self.check_agent().await?;
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

    /// An agent has it.
    ///
    /// # Errors
    /// It has another request with this ID, which is not ended in turn.
    fn claimed(&mut self, first: First) -> Result<(), Status> {
        let is_other = |digests: &[String; 2]| first.request.as_ref().is_some_and(|request| !digests.contains(request));
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
            Item::Failed(status) => {
                self.cancel.disarm();
                Some(Err(status))
            }
            Item::Event(event) => {
                if is_last(&event) {
                    self.cancel.disarm();
                }
                after(event, self.position).map(Ok)
            }
        }
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

    /// # Errors
    /// It has not answered for too long, and nobody wants to wait.
    async fn check_agent(&mut self) -> Result<(), Status> {
        let Some(agent) = self.agent.clone().filter(|_| self.options.queue.is_none()) else { return Ok(()) };
        let asked = Instant::now();
        let answer = self
            .nats
            .ask::<GetAgentResponse>(&agent, "GetAgent", &GetAgentRequest {}, self.options.connect_timeout)
            .await;
        if answer.is_ok() {
            self.away = None;
            return Ok(());
        }
        let away = *self.away.get_or_insert(asked);
        if away.elapsed() < self.options.give_up_after {
            return Ok(());
        }
        // there is nobody to end it
        self.cancel.disarm();
        let text = format!("{agent} has not answered for {:?}; the command may still be running", away.elapsed());
        Err(Status::unavailable(text))
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
