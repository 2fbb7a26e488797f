//! All targets: which of them a client gets, and which one is a sandbox.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::args::Args;
use crate::auth;
use crate::claim::Claim;
use crate::failure::{Code, Failure};
use crate::home::SUFFIX_BYTES;
use crate::sandbox::Sandbox;
use crate::target::{Patience, Settings, Target, TargetError};

/// Of the target's name, in the id of a sandbox, which is part of a host name.
const MAX_NAME_BYTES: usize = 32;
/// While another target may be free.
const HASTE: Patience = Patience { busy: Duration::ZERO, answer: Duration::from_secs(1) };
/// When none was.
const PATIENCE: Patience = Patience { busy: Duration::from_secs(2), answer: Duration::from_secs(10) };

pub(crate) struct Pool {
    targets: Vec<Arc<Target>>,
    /// Idempotency keys of sandboxes that are being created.
    creating: Mutex<HashSet<String>>,
    tasks: TaskTracker,
}

impl Pool {
    pub(crate) fn new(args: &Args, settings: &Arc<Settings>) -> Self {
        let mut templates: HashMap<_, Vec<String>> = HashMap::new();
        for (name, target) in &args.templates {
            templates.entry(target).or_default().push(name.clone());
        }
        let all = args.targets.iter().chain(args.templates.iter().map(|(_, target)| target));
        let mut seen = HashSet::new();
        let targets = all.filter(|target| seen.insert(*target)).map(|target| {
            let templates = templates.get(target).cloned().unwrap_or_default();
            Arc::new(Target::new(target.clone(), templates, Arc::clone(settings)))
        });
        Self { targets: targets.collect(), creating: Mutex::default(), tasks: TaskTracker::new() }
    }

    /// Looks after all targets until the stop.
    pub(crate) fn keep(&self, stop: &CancellationToken) {
        for target in &self.targets {
            let (target, stop) = (Arc::clone(target), stop.clone());
            self.tasks.spawn(async move { target.keep(stop).await });
        }
    }

    /// What was begun is at its end.
    pub(crate) async fn settled(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Everything that is a sandbox now, with its target.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = (&Arc<Target>, Arc<Sandbox>)> {
        self.targets.iter().filter_map(|target| target.current().map(|sandbox| (target, sandbox)))
    }

    pub(crate) fn find(&self, id: &str) -> Option<(&Arc<Target>, Arc<Sandbox>)> {
        self.sandboxes().find(|(_, sandbox)| sandbox.id() == id)
    }

    /// Takes a free target. Who goes meanwhile leaves a sandbox that ends by its timeout.
    pub(crate) async fn create(self: &Arc<Self>, new: Claim) -> Result<Arc<Sandbox>, Failure> {
        let pool = Arc::clone(self);
        self.run(async move { pool.create_once(new).await }).await?
    }

    /// To its end, whatever becomes of who asked for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Failure> {
        self.tasks.spawn(work).await.map_err(|_| Failure::new(Code::Internal, "telexec-e2b is shutting down"))
    }

    async fn create_once(&self, new: Claim) -> Result<Arc<Sandbox>, Failure> {
        let Some(key) = new.idempotency_key.clone() else { return self.take(new).await };
        let begins = self.creating.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        if !begins {
            return Err(Failure::new(
                Code::Unavailable,
                "a sandbox with this idempotency key is being created: try again",
            ));
        }
        let earlier = self.sandboxes().find(|(_, sandbox)| sandbox.claim.idempotency_key.as_ref() == Some(&key));
        let taken = match earlier {
            Some((_, sandbox)) => Ok(sandbox),
            None => self.take(new).await,
        };
        self.creating.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        taken
    }

    async fn take(&self, mut new: Claim) -> Result<Arc<Sandbox>, Failure> {
        let is_named = self.targets.iter().any(|target| target.templates.contains(&new.template));
        let serves = |target: &&Arc<Target>| match is_named {
            true => target.templates.contains(&new.template),
            false => target.templates.is_empty(),
        };
        let candidates: Vec<_> = self.targets.iter().filter(serves).collect();
        if candidates.is_empty() {
            let message = format!("template {:?} has no targets: see --template of telexec-e2b", new.template);
            return Err(Failure::new(Code::NotFound, message));
        }
        let mut left = candidates.clone();
        for patience in [HASTE, PATIENCE] {
            for target in std::mem::take(&mut left) {
                // one for each attempt: what is left of an earlier one is cleaned by its id
                let suffix: String = auth::secret()?.chars().take(SUFFIX_BYTES).collect();
                new.id = format!("{}-{suffix}", host_label(&target.name));
                match target.take(&new, patience).await {
                    Ok(Some(sandbox)) => return Ok(sandbox),
                    Ok(None) => {}
                    Err(TargetError::Busy) => left.push(target),
                    Err(error) => {
                        warn!("{}: {}; another one is tried", target.name, crate::chain(&error));
                        if matches!(error, TargetError::NoAnswer(_)) {
                            left.push(target);
                        }
                    }
                }
            }
        }
        Err(none_free(&candidates))
    }
}

/// Why there is none, where that is not that all are in use.
fn none_free(candidates: &[&Arc<Target>]) -> Failure {
    let troubles: Option<Vec<_>> = candidates.iter().map(|target| target.trouble()).collect();
    let message = match troubles.as_deref() {
        Some([trouble, ..]) => format!("no target can be used, {} in all; of the first: {trouble}", candidates.len()),
        _ => "no target is free: kill a sandbox, or try again later".to_owned(),
    };
    Failure::new(Code::Unavailable, message)
}

/// A name as it may be in a host name, which sandbox ids are part of: the last part of a path, or the host.
fn host_label(target: &str) -> String {
    let name = match target.split_once("://") {
        Some(("unix", path)) => path.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default(),
        Some((_, rest)) => rest.rsplit_once(':').map_or(rest, |(host, _)| host),
        None => target,
    };
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    let plain: String = plain.take(MAX_NAME_BYTES).collect();
    match plain.trim_matches('-') {
        "" => "target".to_owned(),
        label => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parts_of_host_names() {
        for (target, label) in [
            ("unix:///run/Agent_1.sock", "agent-1"),
            ("tcp://build7.example.org:7443", "build7-example-org"),
            ("tcp://[::1]:7443", "1"),
            ("vsock://3:7443", "3"),
            ("unix:///run/.sock", "target"),
        ] {
            assert_eq!(host_label(target), label);
        }
    }
}
