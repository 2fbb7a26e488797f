//! Sessions, which clients of MCP before 2026-07-28 begin: bounded, and ended once their client has not been there for a
//! while. That ends their calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId};
use tokio::time::{Instant, sleep};

/// More clients than one server has; each may hold some megabytes.
const MAX_SESSIONS: usize = 64;
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The open sessions.
pub(super) struct Sessions {
    local: LocalSessionManager,
    presence: Arc<Mutex<HashMap<SessionId, Presence>>>,
    /// From the end of the last stream of a session to its end.
    timeout: Duration,
    /// Held while a session begins: otherwise many that begin at once could exceed the limit.
    beginning: tokio::sync::Mutex<()>,
}

/// Whether a client is there.
struct Presence {
    /// Responses that it receives.
    streams: usize,
    /// It last sent something, or stopped to receive something.
    since: Instant,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SessionsError {
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
    #[error("there are {MAX_SESSIONS} sessions with a client already")]
    TooMany,
}

impl Sessions {
    pub(super) fn new(timeout: Duration) -> Self {
        let mut local = LocalSessionManager::default();
        // its own timeout would also end a session whose call is silent for long
        local.session_config.keep_alive = None;
        Self { local, presence: Arc::default(), timeout, beginning: tokio::sync::Mutex::default() }
    }

    /// Ends sessions without a client. Never returns.
    pub(super) async fn expire(&self) {
        loop {
            sleep(CHECK_INTERVAL).await;
            let mut gone = Vec::new();
            for (id, presence) in self.presence().iter() {
                if presence.streams == 0 && presence.since.elapsed() >= self.timeout {
                    gone.push(id.clone());
                }
            }
            for id in gone {
                let _ = self.close_session(&id).await;
            }
        }
    }

    /// The session that nobody follows for the longest time.
    fn idlest(&self) -> Option<SessionId> {
        let presence = self.presence();
        let idle = presence.iter().filter(|(_, presence)| presence.streams == 0);
        idle.min_by_key(|(_, presence)| presence.since).map(|(id, _)| id.clone())
    }

    fn presence(&self) -> MutexGuard<'_, HashMap<SessionId, Presence>> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self, id: &SessionId) {
        if let Some(presence) = self.presence().get_mut(id) {
            presence.since = Instant::now();
        }
    }

    /// The same stream; as long as it exists, its client is there.
    fn counted<S: Stream<Item = ServerSseMessage> + Send + Sync + 'static>(
        &self,
        id: &SessionId,
        stream: S,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static + use<S> {
        let counted = Counted::new(&self.presence, id);
        stream.map(move |message| {
            let _counted = &counted;
            message
        })
    }
}

struct Counted {
    presence: Arc<Mutex<HashMap<SessionId, Presence>>>,
    id: SessionId,
}

impl Counted {
    fn new(presence: &Arc<Mutex<HashMap<SessionId, Presence>>>, id: &SessionId) -> Self {
        let this = Self { presence: Arc::clone(presence), id: id.clone() };
        this.change(|streams| streams + 1);
        this
    }

    fn change(&self, change: impl Fn(usize) -> usize) {
        if let Some(presence) = self.presence.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&self.id) {
            *presence = Presence { streams: change(presence.streams), since: Instant::now() };
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.change(|streams| streams.saturating_sub(1));
    }
}

impl SessionManager for Sessions {
    type Error = SessionsError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let _beginning = self.beginning.lock().await;
        let is_full = self.presence().len() >= MAX_SESSIONS;
        if is_full {
            let idlest = self.idlest().ok_or(SessionsError::TooMany)?;
            self.close_session(&idlest).await?;
        }
        let (id, transport) = self.local.create_session().await?;
        self.presence().insert(id.clone(), Presence { streams: 0, since: Instant::now() });
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        Ok(self.local.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.presence().remove(id);
        Ok(self.local.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.counted(id, self.local.create_stream(id, message).await?))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.touch(id);
        Ok(self.local.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.counted(id, self.local.create_standalone_stream(id).await?))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.counted(id, self.local.resume(id, last_event_id).await?))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn a_new_session_takes_the_place_of_the_one_that_is_idle_the_longest() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let mut ids = Vec::new();
        for _ in 0..MAX_SESSIONS {
            ids.push(sessions.create_session().await.unwrap().0);
        }
        let followed = Counted::new(&sessions.presence, &ids[0]);
        sessions.touch(&ids[1]);
        let (newest, _transport) = sessions.create_session().await.unwrap();
        let is_open = async |id| sessions.has_session(id).await.unwrap();
        assert!(is_open(&ids[0]).await && is_open(&ids[1]).await && !is_open(&ids[2]).await && is_open(&newest).await);

        let all: Vec<_> = sessions.presence().keys().cloned().collect();
        let _followed: Vec<_> = all.iter().map(|id| Counted::new(&sessions.presence, id)).collect();
        assert!(matches!(sessions.create_session().await, Err(SessionsError::TooMany)));
        drop(followed);
    }

    #[tokio::test]
    async fn sessions_that_begin_at_once_are_not_too_many() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let begun = join_all((0..2 * MAX_SESSIONS).map(|_| sessions.create_session())).await;
        assert!(begun.iter().all(Result::is_ok));
        let mut open = 0;
        for (id, _) in begun.iter().flatten() {
            open += usize::from(sessions.has_session(id).await.unwrap());
        }
        assert_eq!((open, sessions.presence().len()), (MAX_SESSIONS, MAX_SESSIONS));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_nobody_was_there_for_a_while() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let (id, _transport) = sessions.create_session().await.unwrap();
        let followed = Counted::new(&sessions.presence, &id);
        let is_open_after = async |seconds| {
            let _ = tokio::time::timeout(Duration::from_secs(seconds), sessions.expire()).await;
            sessions.has_session(&id).await.unwrap()
        };
        assert!(is_open_after(600).await);
        drop(followed);
        assert!(is_open_after(59).await);
        assert!(!is_open_after(2).await);
    }
}
