//! The calls that an execution is bound to: the end of the last one ends it, or the end of its grace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::record::Record;
use crate::grant::ConnectionState;
use crate::lock::lock;
use crate::wait::when;

/// How often an heir looks whether the owner's connection is live.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

/// The calls whose end ends it.
#[derive(Default)]
pub(super) struct Bindings {
    /// Of the call that started it, or of the last one that has taken its place.
    owner: Option<ConnectionState>,
    others: usize,
    /// Of the others: those that take the owner's place once that is free.
    heirs: usize,
    /// How many there have been.
    all: u64,
    /// From then on their ends do not end it: it goes to the background.
    released_at: Option<Instant>,
}

/// What a call finds that would be the owner.
pub(crate) enum Place {
    /// It is this owner of the transcript now.
    Taken(u64),
    /// The owner's connection is live.
    Occupied,
    /// The execution waits for none.
    None,
}

impl Record {
    /// Another call whose end ends it; returns how many there have been. `owner`: the connection of the one that starts it.
    pub(crate) fn bind(&self, owner: Option<&ConnectionState>) -> u64 {
        let mut bindings = lock(&self.bindings);
        match owner {
            Some(connection) => bindings.owner = Some(connection.clone()),
            None => bindings.others += 1,
        }
        bindings.all += 1;
        let all = bindings.all;
        drop(bindings);
        self.bound.notify_waiters();
        all
    }

    /// Such a call takes the place of the owner, whose end then does nothing any more; or is an heir from now on, while the
    /// connection of the owner is live. `position`: where it reads; `None`: where the owner has.
    pub(crate) fn take_over(&self, position: Option<u64>, connection: &ConnectionState, is_heir: bool) -> Place {
        let mut bindings = lock(&self.bindings);
        bindings.heirs -= usize::from(is_heir);
        if !self.transcript.retains() {
            return Place::None;
        }
        if bindings.owner.as_ref().is_some_and(ConnectionState::is_live) {
            bindings.heirs += 1;
            return Place::Occupied;
        }
        bindings.others = bindings.others.saturating_sub(1);
        bindings.owner = Some(connection.clone());
        Place::Taken(self.transcript.take_over(position))
    }

    /// An heir goes.
    pub(crate) fn resign(&self) {
        lock(&self.bindings).heirs -= 1;
    }

    /// Returns when the place of the owner is free: its call is over, or its connection is no longer live.
    pub(crate) async fn vacated(&self) {
        let is_vacant = || !lock(&self.bindings).owner.as_ref().is_some_and(ConnectionState::is_live);
        loop {
            let vacated = when(&self.bound, || is_vacant().then_some(()));
            if tokio::time::timeout(LIVENESS_INTERVAL, vacated).await.is_ok() {
                return;
            }
        }
    }

    /// The command does not wait for this owner any more, but for its heir, if there is one.
    pub(crate) fn leave(&self, owner: u64) {
        let bindings = lock(&self.bindings);
        if bindings.heirs == 0 {
            self.transcript.leave(owner);
        }
    }

    /// It goes to the background at this time, and a little later is [promoted](Transcript::promote). Callers know the time.
    pub(crate) fn release_at(&self, time: Instant) {
        lock(&self.bindings).released_at = Some(time);
    }

    /// It is in the background, or is about to go there: the end of a call that it was bound to does not end it any more.
    pub(crate) fn is_released(&self) -> bool {
        let released_at = lock(&self.bindings).released_at;
        released_at.is_some_and(|time| time <= Instant::now()) || self.transcript.is_promoted()
    }

    /// Such a call is over. The last one ends the execution.
    pub(crate) fn unbind(&self, owner: Option<u64>) {
        if self.remove_binding(owner).is_some() && !self.is_released() {
            self.cancel.cancel();
        }
    }

    /// Such a call has lost its connection. If it was the last one, the execution is ended after the grace, or when the
    /// caller is `refused`, unless another call binds it until then; in the background only if `also_in_background`. For
    /// that time the command waits to be read, unless another reader takes this one's place. `heir`: it was the heir, and ends
    /// it also if it was not the last, unless there have been more calls than these.
    pub(crate) fn unbind_after(
        self: &Arc<Self>,
        owner: Option<u64>,
        heir: Option<u64>,
        grace: Duration,
        also_in_background: bool,
        refused: impl Future<Output = ()> + Send + 'static,
    ) {
        let last = self.remove_binding(owner).or(heir);
        let this = Arc::clone(self);
        let wait = async move {
            let over = tokio::time::sleep(grace);
            match last {
                Some(all) => this.end_after(over, also_in_background, refused, all).await,
                None => over.await,
            }
            owner.into_iter().for_each(|owner| this.leave(owner));
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(wait)),
            Err(_) => {
                if last.is_some() && (also_in_background || !self.is_released()) {
                    self.cancel.cancel();
                }
                owner.into_iter().for_each(|owner| self.leave(owner));
            }
        }
    }

    /// Ends it when no call has come to be bound to, after `all` that there have been. Returns when nothing is to be waited
    /// for any more.
    async fn end_after(
        &self,
        over: impl Future<Output = ()>,
        also_in_background: bool,
        refused: impl Future<Output = ()>,
        all: u64,
    ) {
        tokio::pin!(over);
        let needless = async {
            tokio::select! {
                () = self.bound_after(all) => {}
                () = self.transcript.concluded(), if !also_in_background => {}
                () = self.transcript.finished() => {}
            }
        };
        tokio::select! {
            biased;
            () = needless => return over.await,
            () = &mut over => {}
            () = refused => {}
        }
        if also_in_background || !self.is_released() {
            self.cancel.cancel();
        }
    }

    /// Returns when there have been more bindings than these.
    async fn bound_after(&self, all: u64) {
        when(&self.bound, || (lock(&self.bindings).all != all).then_some(())).await;
    }

    /// `Some`, with how many there have been: it was the last one.
    fn remove_binding(&self, owner: Option<u64>) -> Option<u64> {
        let mut bindings = lock(&self.bindings);
        match owner {
            Some(owner) if self.transcript.generation() != owner => return None,
            Some(_) => bindings.owner = None,
            None => bindings.others = bindings.others.saturating_sub(1),
        }
        let last = (bindings.owner.is_none() && bindings.others == 0).then_some(bindings.all);
        drop(bindings);
        self.bound.notify_waiters();
        last
    }
}
