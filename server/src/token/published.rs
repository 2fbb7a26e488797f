//! Keys where an issuer publishes them: fetched now and then, and when a token names one that is not known.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use telexec_executor::text::error_chain;
use tokio::sync::{Notify, Semaphore, watch};
use tracing::{info, warn};

use super::http::{HttpClient, check_url};
use super::key_set::KeySet;
use crate::lock::lock;
use crate::reload::Changes;

/// Between two fetches.
const FETCH_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Between two fetches at least, and after one that failed.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(10);
/// Older keys are not used: the issuer may have withdrawn them long since.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a call waits for a fetch, and how many do.
const FETCH_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_WAITING: usize = 64;

/// The keys that an issuer publishes.
#[derive(Debug)]
pub(super) struct PublishedKeys {
    http: HttpClient,
    issuer: String,
    /// `None`: its OpenID Connect configuration says where.
    url: Option<String>,
    current: watch::Sender<Arc<KeySet>>,
    /// How often they were asked for, with or without success.
    attempts: watch::Sender<u64>,
    state: Mutex<State>,
    wanted: Notify,
    waiting: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    fetched: Option<Instant>,
    attempted: Option<Instant>,
    is_fetching: bool,
    /// Why the last fetch failed.
    failure: Option<String>,
}

/// What matters of an OpenID Connect configuration (OpenID Connect Discovery 1.0, section 3).
#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

impl PublishedKeys {
    /// # Errors
    /// What is wrong with a setting, which begins with its key.
    pub(super) fn new(issuer: &str, url: Option<&str>, http: HttpClient) -> Result<Self, String> {
        match url {
            Some(url) => check_url(url).map_err(|error| format!("keys_url: {error}"))?,
            None => check_url(issuer).map_err(|error| format!("issuer: {error}; or set keys_file or keys_url"))?,
        }
        Ok(Self {
            http,
            issuer: issuer.to_owned(),
            url: url.map(str::to_owned),
            current: watch::Sender::default(),
            attempts: watch::Sender::default(),
            state: Mutex::new(State { is_fetching: true, ..State::default() }),
            wanted: Notify::new(),
            waiting: Semaphore::new(MAX_WAITING),
        })
    }

    /// The last that were fetched, however old.
    pub(super) fn last(&self) -> Arc<KeySet> {
        Arc::clone(&self.current.borrow())
    }

    pub(super) fn changes(&self) -> Changes<KeySet> {
        Changes::of(&self.current)
    }

    /// The keys, fetched again before if `suffice` says that these do not, and they were not just now.
    ///
    /// # Errors
    /// There are none that may be used, and why.
    pub(super) async fn get(&self, suffice: impl Fn(&KeySet) -> bool) -> Result<Arc<KeySet>, String> {
        let mut attempts = self.attempts.subscribe();
        let attempt = *attempts.borrow_and_update();
        if !self.current().is_ok_and(|keys| suffice(&keys))
            && !self.was_just_asked()
            && let Ok(_waiting) = self.waiting.try_acquire()
        {
            if !lock(&self.state).is_fetching {
                self.wanted.notify_one();
            }
            let _ = tokio::time::timeout(FETCH_WAIT_TIMEOUT, attempts.wait_for(|done| *done > attempt)).await;
        }
        self.current()
    }

    fn was_just_asked(&self) -> bool {
        lock(&self.state).attempted.is_some_and(|attempted| attempted.elapsed() < MIN_FETCH_INTERVAL)
    }

    /// Those that may be used now.
    ///
    /// # Errors
    /// There are none, and why.
    pub(super) fn current(&self) -> Result<Arc<KeySet>, String> {
        let state = lock(&self.state);
        match state.fetched {
            Some(fetched) if fetched.elapsed() <= MAX_AGE => Ok(self.last()),
            Some(_) => Err(format!("the last ones are older than {} h", MAX_AGE.as_secs() / 3600)),
            None => Err(state.failure.clone().unwrap_or_else(|| "they have not been fetched yet".to_owned())),
        }
    }

    /// Fetches them now and then, and when they are wanted. Never returns.
    pub(super) async fn follow(&self) {
        loop {
            lock(&self.state).is_fetching = true;
            let fetched = self.fetch().await;
            let interval = if fetched.is_ok() { FETCH_INTERVAL } else { MIN_FETCH_INTERVAL };
            self.settle(fetched);
            tokio::time::sleep(MIN_FETCH_INTERVAL).await;
            let _ = tokio::time::timeout(interval - MIN_FETCH_INTERVAL, self.wanted.notified()).await;
        }
    }

    fn settle(&self, fetched: Result<KeySet, String>) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        (state.attempted, state.is_fetching) = (Some(now), false);
        let issuer = &self.issuer;
        match fetched {
            Ok(keys) => {
                if state.failure.take().is_some() || state.fetched.is_none() {
                    info!(issuer, "fetched the keys of a token issuer");
                }
                state.fetched = Some(now);
                // a change is verified by all open calls
                self.current.send_if_modified(|current| {
                    let is_new = **current != keys;
                    if is_new {
                        *current = Arc::new(keys);
                    }
                    is_new
                });
            }
            Err(reason) => {
                if state.failure.as_ref() != Some(&reason) {
                    warn!(issuer, reason, "cannot fetch the keys of a token issuer; trying again");
                }
                state.failure = Some(reason);
            }
        }
        drop(state);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    async fn fetch(&self) -> Result<KeySet, String> {
        let discovered;
        let url = match &self.url {
            Some(url) => url,
            None => {
                discovered = self.discover().await?;
                &discovered
            }
        };
        KeySet::parse(&self.http.get(url).await?, url).map_err(|error| error_chain(&error))
    }

    async fn discover(&self) -> Result<String, String> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let answer = self.http.get(&url).await?;
        let Discovered { issuer, jwks_uri } = serde_json::from_slice(&answer)
            .map_err(|error| format!("{url} is not an OpenID Connect configuration: {error}"))?;
        if issuer != self.issuer {
            return Err(format!("{url} is of another issuer, {issuer:?}"));
        }
        // who has the port of another loopback address may be anybody
        if self.issuer.starts_with("https:") && !jwks_uri.starts_with("https:") {
            return Err(format!("{url}: jwks_uri is not https://"));
        }
        Ok(jwks_uri)
    }
}
