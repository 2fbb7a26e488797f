//! A target's agent, once it was reached, and what is known of its machine.

use std::sync::Arc;
use std::time::Duration;

use telexec_client::{Agent, ConnectOptions, Resume, Target};
use telexec_executor::{FilePath, FileTarget, Files};
use tracing::warn;

use crate::claim::Claims;
use crate::failure::Failure;
use crate::home::Homes;
use crate::metrics::{self, Machine};
use crate::sandbox::{Link, start_directory};
use crate::target::{Settings, TargetError, step};

const STATE_DIRECTORY: &str = ".telexec-e2b";
const HOMES: &str = "telexec-e2b";
/// An agent that is gone is found to be so: commands that it ran are reported as lost then.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Connected {
    pub(crate) link: Link,
    pub(crate) claims: Arc<Claims>,
    pub(crate) homes: Homes,
    pub(crate) machine: Machine,
}

impl Connected {
    pub(crate) async fn new(address: &Target, settings: &Settings) -> Result<Self, TargetError> {
        let options = ConnectOptions { tls: settings.tls.clone(), ..ConnectOptions::default() };
        let agent = Agent::connect(address, options).await?;
        let resume = Resume { give_up_after: GIVE_UP_AFTER, ..Resume::default() };
        let (executor, files) = (agent.executor().resuming(resume), agent.files());
        let link = Link { agent, executor, files };
        let state = settings.state_directory.clone().unwrap_or_else(|| STATE_DIRECTORY.to_owned());
        let start = start_directory(&link.executor, settings.user.as_deref()).await?;
        let machine = metrics::machine(&link.executor).await?;
        let claims = Arc::new(Claims::new(link.files.clone(), state));
        let homes = match &settings.home {
            Some(home) => {
                step(claims.own_home(home, settings.user.clone())).await?;
                Homes::Fixed(home.clone())
            }
            None => {
                let directory = format!("{}/{HOMES}", start.trim_end_matches('/'));
                let user = settings.user.clone();
                // now rather than with the first sandbox
                let file = FileTarget { path: FilePath::new(directory.as_str()), user };
                link.files.make_directory(file, None, true).await.map_err(Failure::from)?;
                Homes::Below(directory)
            }
        };
        Ok(Self { link, claims, homes, machine })
    }

    /// A policy may keep this gateway from asking.
    pub(crate) async fn warn_of_escapes(&self, name: &str) {
        if let Ok(info) = self.link.agent.info().await
            && !info.containment.starts_with("cgroup")
        {
            let kind = info.containment;
            warn!("{name}: processes are held by {kind}: those that hide outlive a sandbox; give the agent a cgroup");
        }
    }
}
