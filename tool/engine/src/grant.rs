//! On whose behalf a command is started, and what it may use.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use telexec_executor::{ExecutionId, TraceContext};

use crate::lock::lock;
use crate::observer::ExecutionObserver;
use crate::share::Share;

/// What the admission adds to a command: none of it is the caller's choice. Given to
/// [`execute_granted`](crate::LocalExecutor::execute_granted). The default has no identity, no limit
/// and no observer.
#[derive(Default)]
pub struct Grant {
    /// Owns the execution, whoever the engine [acts as](crate::LocalExecutor::acting_as); empty: this process itself.
    pub identity: String,
    /// For a command that names no id itself. Must be new; `None`: the engine makes one.
    pub id: Option<ExecutionId>,
    /// What the command may use at most.
    pub allowance: Allowance,
    /// The span of the execution; `None`: [`Command::trace`](telexec_executor::Command::trace).
    pub trace: Option<TraceContext>,
    /// Of the call that starts it.
    pub connection: ConnectionState,
    /// Get every event, in this order.
    pub observers: Vec<Box<dyn ExecutionObserver>>,
    /// Its standard input, such as a socket, for a command that has neither input nor a terminal; `None`: `/dev/null`.
    pub stdin: Option<OwnedFd>,
    /// It is a means of the admission for this identity, not what that asked for: it is in no list, is found by its owner alone, and is
    /// not remembered after its end. It counts for this identity, in place of its owner.
    pub internal_of: Option<String>,
    /// It may only be answered with what was started with its id before: nothing new is started.
    pub repeats: bool,
}

/// Whether the connection of a call was lost: a call whose [`Execution`](telexec_executor::Execution) is dropped after
/// that is not cancelled, and may be made up for within
/// [`Command::disconnect_grace`](telexec_executor::Command::disconnect_grace). All clones belong to the same call. By default
/// the connection counts as never lost.
#[derive(Clone, Debug, Default)]
pub struct ConnectionState(Arc<Inner>);

#[derive(Default)]
struct Inner {
    is_lost: AtomicBool,
    is_live: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    checks: Mutex<Vec<Check>>,
}

/// Makes what resolves when the call is refused.
type Check = Box<dyn Fn() -> BoxFuture<'static, ()> + Send>;

impl ConnectionState {
    /// Of a connection whose peer may vanish without an end: `is_live` says whether the peer was heard from lately.
    pub fn observed(is_live: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { is_live: Some(Box::new(is_live)), ..Inner::default() }))
    }

    /// The connection was lost.
    pub fn set_lost(&self) {
        self.0.is_lost.store(true, Ordering::Release);
    }

    /// While a command waits for its caller after that, it is ended when what this makes resolves. `check` may not hold a
    /// clone of this, which would keep both for ever.
    pub fn wait_until(&self, check: impl Fn() -> BoxFuture<'static, ()> + Send + 'static) {
        lock(&self.0.checks).push(Box::new(check));
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Acquire)
    }

    /// Whether another call has no reason to take this one's place.
    pub(crate) fn is_live(&self) -> bool {
        !self.is_lost() && self.0.is_live.as_ref().is_none_or(|is_live| is_live())
    }

    /// Resolves when the caller is no longer to be waited for.
    pub(crate) fn refused(&self) -> BoxFuture<'static, ()> {
        let checks: Vec<_> = lock(&self.0.checks).iter().map(|check| check()).collect();
        match checks.is_empty() {
            true => std::future::pending().boxed(),
            false => select_all(checks).map(drop).boxed(),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionState").field("is_lost", &self.is_lost).finish_non_exhaustive()
    }
}

/// What a command may use at most, whatever it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Allowance {
    /// Longer timeouts, and none, are cut to this, and processes that the command leaves behind are ended then too; `None`:
    /// no limit.
    pub timeout: Option<Duration>,
    /// For each stream, in bytes: more is dropped and counted; `None`: no limit.
    pub output_bytes: Option<u64>,
    /// Executions of its identity that may run or linger, this one included; `None`: no limit.
    pub concurrent: Option<u32>,
    /// What part of the machine its identity gets from now on, where identities want more than there is; `None`:
    /// [the default](Share::default). The kernel divides the processors so where there are cgroups of version 2 with the controller
    /// `cpu`.
    pub share: Option<Share>,
}

impl Allowance {
    /// The smaller of each two limits.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self {
            timeout: least(self.timeout, other.timeout),
            output_bytes: least(self.output_bytes, other.output_bytes),
            concurrent: least(self.concurrent, other.concurrent),
            share: least(self.share, other.share),
        }
    }
}
