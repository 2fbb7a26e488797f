//! The places that a command can run at, behind one trait: what holds on one must hold on all.

use std::future::Future;
use std::sync::Arc;

use telexec_engine::{LocalConfig, LocalExecutor};
use telexec_executor::Executor;

use crate::{Agent, AgentBuilder, ByNats, Certs, Hierarchy, NOBODY, Subtree, cgroups_named, is_root, until, within};

/// An executor, and what it needs to exist.
pub struct Place {
    executor: Arc<dyn Executor>,
    engine: Option<LocalExecutor>,
    agent: Option<Agent>,
    /// After the agent: it ends what is left in it.
    subtree: Option<Subtree>,
    _certs: Option<Certs>,
    by_nats: Option<ByNats>,
}

impl Place {
    /// The engine in this process.
    ///
    /// # Panics
    /// There can be none.
    #[allow(clippy::unused_async, reason = "the same form for every place")]
    pub async fn local() -> Self {
        let engine = LocalExecutor::new(LocalConfig::default()).unwrap();
        Self {
            executor: Arc::new(engine.clone()),
            engine: Some(engine),
            agent: None,
            subtree: None,
            _certs: None,
            by_nats: None,
        }
    }

    /// An agent behind a Unix socket.
    pub async fn unix() -> Self {
        Self::remote(Agent::start(), None).await
    }

    /// An agent with a keeper, behind TCP without TLS.
    pub async fn kept() -> Self {
        Self::remote(Agent::builder().kept().tcp().start(), None).await
    }

    /// An agent that is not root, and has a keeper that is.
    pub async fn agent_user() -> Option<Self> {
        if Hierarchy::Unified.usable().is_none() || !is_root() {
            return skip("no cgroup-v2 here, or not root");
        }
        Some(Self::contained(Agent::builder().agent_user(), "cgroup-v2").await)
    }

    /// An agent behind TCP with certificates on both sides.
    pub async fn mtls() -> Self {
        let certs = Certs::new();
        Self::remote(Agent::builder().mtls(&certs).start(), Some(certs)).await
    }

    /// An agent behind a Unix socket, by way of a NATS server.
    pub async fn nats() -> Option<Self> {
        let place = Self::remote(Agent::start(), None).await;
        let Some(by_nats) = ByNats::connect(place.agent()).await else {
            return skip("no NATS server: NATS_PYTHON does not name a Python with one beside it");
        };
        Some(Self { executor: Arc::new(by_nats.executor()), by_nats: Some(by_nats), ..place })
    }

    async fn remote(agent: Agent, certs: Option<Certs>) -> Self {
        let executor = Arc::new(agent.executor().await);
        Self { executor, engine: None, agent: Some(agent), subtree: None, _certs: certs, by_nats: None }
    }

    /// An agent of root that uses cgroups of version 2.
    pub async fn cgroup_v2() -> Option<Self> {
        let there = Hierarchy::Unified.usable().is_some();
        Self::of_root("cgroup-v2", there).await
    }

    /// An agent of root that uses cgroups of version 1.
    pub async fn cgroup_v1() -> Option<Self> {
        let there = Hierarchy::Freezer.usable().is_some();
        Self::of_root("cgroup-v1", there).await
    }

    /// An agent of root that uses no cgroups.
    pub async fn process_group() -> Option<Self> {
        Self::of_root("process-group", true).await
    }

    /// An agent of a user who was given a part of the cgroups of version 2.
    pub async fn unprivileged_delegated() -> Option<Self> {
        let subtree = Subtree::new(NOBODY).filter(|_| is_root());
        let Some(subtree) = subtree else { return skip("no part of the cgroups of version 2 can be given away here") };
        let builder = Agent::builder().after(&subtree.enter()).user(NOBODY);
        Some(Self { subtree: Some(subtree), ..Self::contained(builder, "cgroup-v2").await })
    }

    /// An agent of a user who was given nothing.
    pub async fn unprivileged() -> Option<Self> {
        if !is_root() {
            return skip("only root can start an agent of another user");
        }
        Some(Self::contained(Agent::builder().user(NOBODY), "process-group").await)
    }

    async fn of_root(containment: &str, there: bool) -> Option<Self> {
        if !there || !is_root() {
            return skip(&format!("no {containment} here, or not root"));
        }
        let builder = Agent::builder().config(format!("containment = {containment:?}"));
        Some(Self::contained(builder, containment).await)
    }

    /// # Panics
    /// It does not keep processes together in this way.
    async fn contained(builder: AgentBuilder, containment: &str) -> Self {
        let place = Self::remote(builder.start(), None).await;
        let used = within(place.agent().connect().await.info()).await.unwrap().containment;
        assert_eq!(used, containment, "{}", place.agent().log());
        place
    }

    /// The agent.
    ///
    /// # Panics
    /// It is the engine in this process.
    pub fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("there is an agent")
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
        drop(self.by_nats.take());
        if let Some(agent) = &mut self.agent {
            let status = agent.terminate().await;
            assert!(status.success(), "the agent ended with {status}:\n{}", agent.log());
            let own = format!("telexec.{}.", agent.serving_pid());
            until("the agent's cgroups are gone", async || cgroups_named(&own).is_empty()).await;
        }
        if let Some(subtree) = &self.subtree {
            assert!(subtree.left().is_empty(), "{:?}", subtree.left());
        }
    }
}

fn skip(why: &str) -> Option<Place> {
    eprintln!("skipped: {why}");
    None
}

/// Runs a test case at a place, unless it is one that this machine does not have.
///
/// # Panics
/// The case fails, or hangs.
pub async fn at<P: Into<Option<Place>>, F: Future<Output = ()>>(
    place: impl Future<Output = P>,
    case: impl FnOnce(Arc<dyn Executor>) -> F,
) {
    let Some(place) = place.await.into() else { return };
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

/// Makes one test of each case behind every transport, with the best containment of this machine.
#[macro_export]
macro_rules! everywhere {
    ($($case:ident),+ $(,)?) => {
        $crate::at_place!(local: $($case),+);
        $crate::at_place!(unix: $($case),+);
        $crate::at_place!(kept: $($case),+);
        $crate::at_place!(agent_user: $($case),+);
        $crate::at_place!(mtls: $($case),+);
    };
}

/// Makes one test of each case with every containment, and with those that a user other than root has.
#[macro_export]
macro_rules! contained {
    ($($case:ident),+ $(,)?) => {
        $crate::at_place!(cgroup_v2: $($case),+);
        $crate::at_place!(cgroup_v1: $($case),+);
        $crate::at_place!(process_group: $($case),+);
        $crate::at_place!(unprivileged_delegated: $($case),+);
        $crate::at_place!(unprivileged: $($case),+);
    };
}
