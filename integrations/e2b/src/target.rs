//! A machine that is a sandbox, or will be one.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use telexec_client::TlsOptions;
use tokio::sync::{Mutex, Notify};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::claim::{Claim, ClaimError, ClaimState};
use crate::cleaning;
use crate::connected::Connected;
use crate::failure::{Code, Failure};
use crate::home::HomeError;
use crate::metrics::Machine;
use crate::sandbox::{Sandbox, Shared};
use crate::times::later;

/// From one attempt to reach an agent, or to clean its machine, to the next.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// What has not ended by then is looked at again.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// In which other gateways leave a target alone that is being cleaned.
const CLEANING_TIME: Duration = Duration::from_secs(300);
/// For one step of a claim.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    #[error(transparent)]
    Connect(#[from] telexec_client::ConnectError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Failure(#[from] Failure),
    #[error("the target did not answer within {} s", STEP_TIMEOUT.as_secs())]
    TooSlow,
    #[error("the target did not answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    #[error("another gateway has taken the target")]
    TakenOver,
    #[error("the target is being taken, or freed")]
    Busy,
}

/// How long whoever wants a target waits for it.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// For others who take it, or free it.
    pub(crate) busy: Duration,
    /// For what it says first.
    pub(crate) answer: Duration,
}

/// What all targets have in common.
pub(crate) struct Settings {
    pub(crate) owner: String,
    pub(crate) user: Option<String>,
    pub(crate) home: Option<String>,
    pub(crate) state_directory: Option<String>,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) max_pause: Duration,
}

/// What this gateway knows of who has the target. Only one task at a time changes it.
enum Slot {
    /// Not looked at yet.
    Unknown,
    /// Not this gateway's.
    Open,
    Taken {
        number: u64,
        id: String,
    },
    Ending {
        number: u64,
        claim: Box<Claim>,
        shared: Arc<Shared>,
    },
}

impl Slot {
    /// Of one that this gateway has started nothing in.
    fn ending(number: u64, claim: Claim) -> Self {
        Self::Ending { number, claim: Box::new(claim), shared: Arc::default() }
    }
}

pub(crate) struct Target {
    pub(crate) name: String,
    /// Those that it is for; none: all that have no targets of their own.
    pub(crate) templates: Vec<String>,
    address: telexec_client::Target,
    settings: Arc<Settings>,
    connected: RwLock<Option<Connected>>,
    slot: Mutex<Slot>,
    current: RwLock<Option<Arc<Sandbox>>>,
    wake: Notify,
    /// Why it cannot be used.
    trouble: RwLock<Option<String>>,
}

impl Target {
    pub(crate) fn new(address: telexec_client::Target, templates: Vec<String>, settings: Arc<Settings>) -> Self {
        Self {
            name: address.to_string(),
            templates,
            address,
            settings,
            connected: RwLock::default(),
            slot: Mutex::new(Slot::Unknown),
            current: RwLock::default(),
            wake: Notify::new(),
            trouble: RwLock::default(),
        }
    }

    /// The sandbox that it is now.
    pub(crate) fn current(&self) -> Option<Arc<Sandbox>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        current.filter(|sandbox| !sandbox.claim.is_over())
    }

    /// What it is made of, once that is known.
    pub(crate) fn machine(&self) -> Machine {
        self.connected().map(|connected| connected.machine).unwrap_or_default()
    }

    /// Why it cannot be used, if so.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.write().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn connected(&self) -> Option<Connected> {
        self.connected.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_current(&self, sandbox: Arc<Sandbox>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(sandbox);
    }

    /// The sandbox in another state; `false`: it was let go of meanwhile, and does not come back.
    fn replace_current(&self, sandbox: &Arc<Sandbox>) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.as_mut().map(|current| *current = Arc::clone(sandbox)).is_some()
    }

    /// From now on it is gone for clients. `None`: it was before.
    fn let_go(&self, id: &str) -> Option<Arc<Sandbox>> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let gone = current.take_if(|sandbox| sandbox.id() == id)?;
        gone.shared.ended.cancel();
        gone.shared.watchers.clear();
        Some(gone)
    }

    /// The sandbox, while it is one.
    fn expect_current(&self, id: &str) -> Result<Arc<Sandbox>, Failure> {
        self.current().filter(|sandbox| sandbox.id() == id).ok_or_else(Failure::gone)
    }

    /// Connects, takes up what was this gateway's before, and ends sandboxes whose time is over; for ever.
    pub(crate) async fn keep(&self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            self.open().await;
            loop {
                let left =
                    self.current.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|sandbox| sandbox.left());
                let _ = timeout(left.unwrap_or(MAX_SLEEP).min(MAX_SLEEP), self.wake.notified()).await;
                let looked_after = self.look_after().await;
                let failed = looked_after.is_err();
                self.set_trouble(looked_after.err().map(|error| crate::chain(&error)));
                if failed {
                    warn!("{}: {}; it is tried again", self.name, self.trouble().unwrap_or_default());
                    sleep(RETRY_PAUSE).await;
                    self.wake.notify_one();
                }
            }
        })
        .await;
    }

    async fn open(&self) {
        loop {
            let opened = match Connected::new(&self.address, &self.settings).await {
                Ok(connected) => {
                    *self.connected.write().unwrap_or_else(PoisonError::into_inner) = Some(connected);
                    self.look_after().await
                }
                Err(error) => Err(error),
            };
            let Err(error) = opened else {
                self.set_trouble(None);
                if let Some(connected) = self.connected() {
                    connected.warn_of_escapes(&self.name).await;
                }
                return info!("{}: ready", self.name);
            };
            let error = crate::chain(&error);
            if self.trouble().as_ref() != Some(&error) {
                warn!("{}: {error}; it is tried again", self.name);
                self.set_trouble(Some(error));
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Whatever is to be done now.
    async fn look_after(&self) -> Result<(), TargetError> {
        let mut slot = self.slot.lock().await;
        if matches!(*slot, Slot::Unknown) {
            *slot = self.adopt().await?;
        }
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let over = current.filter(|sandbox| sandbox.claim.is_over());
        if let Some(sandbox) = over.and_then(|sandbox| self.let_go(sandbox.id())) {
            info!("{}: the time of {} is over", self.name, sandbox.id());
            begin_end(&mut slot, &sandbox);
        }
        self.clean(&mut slot).await
    }

    /// What this gateway had before it was restarted.
    async fn adopt(&self) -> Result<Slot, TargetError> {
        let connected = self.expect_connected()?;
        let (number, claim) = connected.claims.latest().await?;
        let claim = match claim {
            Some(claim) if claim.state != ClaimState::Free && claim.owner == self.settings.owner => claim,
            _ => return Ok(Slot::Open),
        };
        connected.homes.check(&claim)?;
        if matches!(claim.state, ClaimState::Starting | ClaimState::Ending) || claim.is_over() {
            return Ok(Slot::ending(number, claim));
        }
        let sandbox = self.sandbox(&connected, claim, Arc::default());
        if sandbox.is_paused {
            // the claim may have been made, and its processes not stopped
            sandbox.shared.set_paused(true);
            cleaning::stop_all(&connected.link, sandbox.id()).await?;
        }
        let id = sandbox.id().to_owned();
        info!("{}: {id} is taken up again", self.name);
        self.set_current(sandbox);
        Ok(Slot::Taken { number, id })
    }

    fn sandbox(&self, connected: &Connected, claim: Claim, shared: Arc<Shared>) -> Arc<Sandbox> {
        let (link, default_user) = (connected.link.clone(), self.settings.user.clone());
        let is_paused = claim.state == ClaimState::Paused;
        Arc::new(Sandbox { link, claim, default_user, is_paused, shared })
    }

    fn expect_connected(&self) -> Result<Connected, TargetError> {
        self.connected().ok_or_else(|| Failure::no_port("its agent was not reached yet").into())
    }

    /// Takes it, if it is free. `None`: it is not.
    pub(crate) async fn take(&self, new: &Claim, patience: Patience) -> Result<Option<Arc<Sandbox>>, TargetError> {
        let Ok(mut slot) = timeout(patience.busy, self.slot.lock()).await else { return Err(TargetError::Busy) };
        let (Slot::Open, Some(connected)) = (&*slot, self.connected()) else { return Ok(None) };
        let taken = self.take_open(&mut slot, &connected, new, patience.answer).await;
        if let Err(error) = &taken {
            self.set_trouble(Some(crate::chain(error)));
            if matches!(*slot, Slot::Open) {
                // nobody tries it before it was reached again
                *slot = Slot::Unknown;
            }
            self.wake.notify_one();
        }
        taken
    }

    async fn take_open(
        &self,
        slot: &mut Slot,
        connected: &Connected,
        new: &Claim,
        answer: Duration,
    ) -> Result<Option<Arc<Sandbox>>, TargetError> {
        let (owner, home) = (self.settings.owner.clone(), connected.homes.of(&new.id));
        let claim = Claim { state: ClaimState::Starting, owner, home, ..new.clone() };
        let Some(number) = self.free_number(connected, slot, answer).await? else { return Ok(None) };
        // it may be taken though the answer is lost
        *slot = Slot::ending(number, claim.clone());
        let Some(number) = step(connected.claims.advance(number, &claim)).await? else {
            *slot = Slot::Open;
            return Ok(None);
        };
        *slot = Slot::ending(number, claim.clone());
        cleaning::prepare(&connected.link, &claim, &connected.homes, self.settings.user.as_deref()).await?;
        // only now: what is taken up again after a restart has a home
        let claim = Claim { state: ClaimState::Running, ..claim };
        let Some(number) = step(connected.claims.advance(number, &claim)).await? else {
            *slot = Slot::Open;
            return Ok(None);
        };
        let sandbox = self.sandbox(connected, claim, Arc::default());
        self.set_current(Arc::clone(&sandbox));
        *slot = Slot::Taken { number, id: sandbox.id().to_owned() };
        self.wake.notify_one();
        info!("{}: it is {} now", self.name, sandbox.id());
        Ok(Some(sandbox))
    }

    /// From which it can be taken. What another gateway left behind becomes this one's, and is ended first.
    async fn free_number(
        &self,
        connected: &Connected,
        slot: &mut Slot,
        answer: Duration,
    ) -> Result<Option<u64>, TargetError> {
        let looked = timeout(answer, connected.claims.latest()).await;
        let (number, last) = looked.map_err(|_| TargetError::NoAnswer(answer))??;
        let Some(last) = last.filter(|last| last.state != ClaimState::Free) else { return Ok(Some(number)) };
        if !last.is_abandoned() {
            return Ok(None);
        }
        connected.homes.check(&last)?;
        warn!("{}: {} of {} was left behind", self.name, last.id, last.owner);
        let last = Claim { owner: self.settings.owner.clone(), ..last };
        *slot = Slot::ending(number, Claim { state: ClaimState::Running, ..last });
        self.clean(slot).await?;
        let (number, last) = step(connected.claims.latest()).await?;
        let is_free = last.is_none_or(|last| last.state == ClaimState::Free);
        Ok((is_free && matches!(slot, Slot::Open)).then_some(number))
    }

    /// Changes the sandbox's claim: its deadline, or its state.
    pub(crate) async fn change(&self, id: &str, change: impl FnOnce(&mut Claim)) -> Result<Arc<Sandbox>, TargetError> {
        let mut slot = self.slot.lock().await;
        self.change_in(&mut slot, id, change).await
    }

    async fn change_in(
        &self,
        slot: &mut Slot,
        id: &str,
        change: impl FnOnce(&mut Claim),
    ) -> Result<Arc<Sandbox>, TargetError> {
        let sandbox = self.expect_current(id)?;
        let (Slot::Taken { number, .. }, connected) = (&mut *slot, self.expect_connected()?) else {
            return Err(Failure::gone().into());
        };
        let mut claim = sandbox.claim.clone();
        change(&mut claim);
        let Some(next) = step(connected.claims.advance(*number, &claim)).await? else {
            warn!("{}: another gateway has taken it from {id}", self.name);
            self.let_go(id);
            *slot = Slot::Unknown;
            self.wake.notify_one();
            return Err(TargetError::TakenOver);
        };
        *number = next;
        let changed = self.sandbox(&connected, claim, Arc::clone(&sandbox.shared));
        if !self.replace_current(&changed) {
            return Err(Failure::gone().into());
        }
        self.wake.notify_one();
        Ok(changed)
    }

    /// Stops its processes, and keeps it.
    pub(crate) async fn pause(&self, id: &str) -> Result<(), TargetError> {
        let mut slot = self.slot.lock().await;
        let sandbox = self.expect_current(id)?;
        if sandbox.is_paused {
            return Err(Failure::new(Code::AlreadyExists, format!("sandbox {id:?} is paused already")).into());
        }
        // before all else: what is to be stopped does not become more
        sandbox.shared.set_paused(true);
        let paused = self.pause_in(&mut slot, &sandbox).await;
        sandbox.shared.set_paused(self.current().is_some_and(|sandbox| sandbox.is_paused));
        paused
    }

    async fn pause_in(&self, slot: &mut Slot, sandbox: &Sandbox) -> Result<(), TargetError> {
        let (id, before, deadline) = (sandbox.id(), sandbox.claim.deadline, later(self.settings.max_pause));
        timeout(STEP_TIMEOUT, sandbox.shared.settled()).await.map_err(|_| TargetError::TooSlow)?;
        self.change_in(slot, id, |claim| (claim.state, claim.deadline) = (ClaimState::Paused, deadline)).await?;
        let stopped = cleaning::stop_all(&sandbox.link, id).await;
        if stopped.is_err()
            && let Err(error) = self.resume_in(slot, id, before).await
        {
            warn!("{}: {id} stays paused: {}", self.name, crate::chain(&error));
        }
        Ok(stopped?)
    }

    pub(crate) async fn resume(&self, id: &str, deadline: SystemTime) -> Result<Arc<Sandbox>, TargetError> {
        let mut slot = self.slot.lock().await;
        self.resume_in(&mut slot, id, deadline).await
    }

    async fn resume_in(&self, slot: &mut Slot, id: &str, deadline: SystemTime) -> Result<Arc<Sandbox>, TargetError> {
        let sandbox = self.expect_current(id)?;
        if !sandbox.is_paused {
            return self.change_in(slot, id, |claim| claim.deadline = claim.deadline.max(deadline)).await;
        }
        // first: one that counts as running is not continued again
        cleaning::continue_all(&sandbox.link, id).await?;
        let resumed =
            self.change_in(slot, id, |claim| (claim.state, claim.deadline) = (ClaimState::Running, deadline)).await;
        match resumed {
            Ok(_) => sandbox.shared.set_paused(false),
            // it counts as paused still
            Err(_) => cleaning::stop_all(&sandbox.link, id).await?,
        }
        resumed
    }

    /// Ends the sandbox: at once for clients, and when this returns also on the target, if that can be reached.
    pub(crate) async fn end(&self, id: &str) -> Result<(), TargetError> {
        // whatever else is being done with it, which may take long
        let sandbox = self.let_go(id).ok_or_else(Failure::gone)?;
        let mut slot = self.slot.lock().await;
        begin_end(&mut slot, &sandbox);
        if let Err(error) = self.clean(&mut slot).await {
            warn!("{}: {}; it is tried again", self.name, crate::chain(&error));
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Frees it, if it is to be freed.
    async fn clean(&self, slot: &mut Slot) -> Result<(), TargetError> {
        let Slot::Ending { number, claim, shared } = slot else { return Ok(()) };
        let connected = self.expect_connected()?;
        // each time: another gateway may have taken it since the last attempt
        let ending = claim.ending(later(CLEANING_TIME));
        let Some(next) = step(connected.claims.advance(*number, &ending)).await? else {
            warn!("{}: another gateway has taken it from {}", self.name, claim.id);
            *slot = Slot::Unknown;
            self.wake.notify_one();
            return Ok(());
        };
        (*number, **claim) = (next, ending);
        timeout(STEP_TIMEOUT, shared.settled()).await.map_err(|_| TargetError::TooSlow)?;
        cleaning::clean(&connected.link, claim, &connected.homes, self.settings.user.as_deref()).await?;
        let (id, free) = (claim.id.clone(), Claim { state: ClaimState::Free, ..(**claim).clone() });
        if step(connected.claims.advance(*number, &free)).await?.is_some() {
            info!("{}: {id} is gone", self.name);
        }
        *slot = Slot::Open;
        Ok(())
    }
}

/// Of a sandbox that was let go of; another gateway may have taken the target from it.
fn begin_end(slot: &mut Slot, sandbox: &Sandbox) {
    if let Slot::Taken { number, id } = slot
        && id == sandbox.id()
    {
        let (claim, shared) = (Box::new(sandbox.claim.clone()), Arc::clone(&sandbox.shared));
        *slot = Slot::Ending { number: *number, claim, shared };
    }
}

pub(crate) async fn step<T>(step: impl Future<Output = Result<T, ClaimError>>) -> Result<T, TargetError> {
    Ok(timeout(STEP_TIMEOUT, step).await.map_err(|_| TargetError::TooSlow)??)
}
