//! The places that a command can run at, behind one trait: what holds on one must hold on all.

use std::future::Future;
use std::sync::Arc;

use telexec_tool::Executor;
use telexec_tool::local::{LocalConfig, LocalExecutor};

use crate::{Agent, Certs, within};

/// An executor, and what it needs to exist.
pub struct Place {
    executor: Arc<dyn Executor>,
    engine: Option<LocalExecutor>,
    agent: Option<Agent>,
    _certs: Option<Certs>,
}

impl Place {
    /// The engine in this process.
    ///
    /// # Panics
    /// There can be none.
    #[allow(clippy::unused_async, reason = "the same form for every place")]
    pub async fn local() -> Self {
        let engine = LocalExecutor::new(LocalConfig::default()).unwrap();
        Self { executor: Arc::new(engine.clone()), engine: Some(engine), agent: None, _certs: None }
    }

    /// An agent behind a Unix socket.
    pub async fn unix() -> Self {
        Self::remote(Agent::start(), None).await
    }

    /// An agent behind TCP without TLS.
    pub async fn tcp() -> Self {
        Self::remote(Agent::builder().tcp().start(), None).await
    }

    /// An agent behind TCP with certificates on both sides.
    pub async fn mtls() -> Self {
        let certs = Certs::new();
        Self::remote(Agent::builder().mtls(&certs).start(), Some(certs)).await
    }

    async fn remote(agent: Agent, certs: Option<Certs>) -> Self {
        let executor = Arc::new(agent.executor().await);
        Self { executor, engine: None, agent: Some(agent), _certs: certs }
    }

    /// Where commands run.
    pub fn executor(&self) -> Arc<dyn Executor> {
        Arc::clone(&self.executor)
    }

    /// Shuts it down, and sees that this works whatever was done to it.
    ///
    /// # Panics
    /// It does not.
    pub async fn close(mut self) {
        if let Some(engine) = &self.engine {
            within(engine.shutdown()).await;
        }
        if let Some(agent) = &mut self.agent {
            let status = agent.terminate().await;
            assert!(status.success(), "the agent ended with {status}:\n{}", agent.log());
        }
    }
}

/// Runs a test case at a place.
///
/// # Panics
/// The case fails, or hangs.
pub async fn at<F: Future<Output = ()>>(place: impl Future<Output = Place>, case: impl FnOnce(Arc<dyn Executor>) -> F) {
    let place = place.await;
    within(case(place.executor())).await;
    place.close().await;
}

/// Makes one test of each case at one [`Place`]: `at_place!(mtls: cancel_leaves_nothing)` makes
/// `mtls::cancel_leaves_nothing`. A case is an `async fn(Arc<dyn Executor>)` in the same module.
#[macro_export]
macro_rules! at_place {
    ($place:ident: $($case:ident),+ $(,)?) => {
        mod $place {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    $crate::at($crate::Place::$place(), super::$case).await;
                }
            )+
        }
    };
}

/// Makes one test of each case at every [`Place`].
#[macro_export]
macro_rules! everywhere {
    ($($case:ident),+ $(,)?) => {
        $crate::at_place!(local: $($case),+);
        $crate::at_place!(unix: $($case),+);
        $crate::at_place!(tcp: $($case),+);
        $crate::at_place!(mtls: $($case),+);
    };
}
