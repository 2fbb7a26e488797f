//! Sessions, which clients of MCP before 2026-07-28 begin: bounded, and ended once their client has not been there for a
//! while. That ends their calls.

mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId};
use rustls::pki_types::CertificateDer;
use tokio::task::JoinHandle;
use tokio::time::sleep;

pub(super) use self::table::Chain;
use self::table::{Table, TooMany};
use super::caller::Caller;

const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The open sessions; clones share them.
#[derive(Clone)]
pub(super) struct Sessions {
    local: Arc<LocalSessionManager>,
    table: Arc<Mutex<Table>>,
    /// From the end of the last stream of a session to its end.
    timeout: Duration,
}

/// The sessions of a caller.
#[derive(Clone)]
pub(super) struct CallerSessions {
    sessions: Sessions,
    caller: Caller,
    chain: Chain,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SessionsError {
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

impl Sessions {
    pub(super) fn new(timeout: Duration) -> Self {
        let mut local = LocalSessionManager::default();
        // its own timeout would also end a session whose call is silent for long
        local.session_config.keep_alive = None;
        Self { local: Arc::new(local), table: Arc::default(), timeout }
    }

    pub(super) fn of(&self, caller: Caller, chain: Chain) -> CallerSessions {
        CallerSessions { sessions: self.clone(), caller, chain }
    }

    /// Ends those whose certificates are not accepted any more, with their commands.
    pub(super) fn refuse(&self, is_accepted: impl Fn(&[CertificateDer<'_>]) -> bool) {
        let refused = self.table().refuse(is_accepted);
        refused.into_iter().for_each(|id| drop(self.close(id)));
    }

    /// Ends sessions without a client. Never returns.
    pub(super) async fn expire(&self) {
        loop {
            sleep(CHECK_INTERVAL).await;
            let gone = self.table().expire(self.timeout);
            for id in gone {
                let _ = self.close(id).await;
            }
        }
    }

    /// Closes one that is not in the table any more, even if the request that removed it is dropped.
    fn close(&self, id: SessionId) -> JoinHandle<Result<(), LocalSessionManagerError>> {
        let local = Arc::clone(&self.local);
        tokio::spawn(async move { local.close_session(&id).await })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallerSessions {
    /// Counts a stream.
    ///
    /// # Errors
    /// The session has ended.
    fn count(&self, id: &SessionId) -> Result<Counted, SessionsError> {
        let mut table = self.sessions.table();
        match table.touch(id, &self.caller, 1) {
            true => {
                table.vouch(id, &self.chain);
                Ok(Counted { sessions: self.clone(), id: id.clone() })
            }
            false => Err(LocalSessionManagerError::SessionNotFound(id.clone()).into()),
        }
    }
}

/// A stream, from before it exists: while there is one, the client of the session is there.
struct Counted {
    sessions: CallerSessions,
    id: SessionId,
}

impl Counted {
    fn until_end_of<S: Stream<Item = ServerSseMessage> + Send + Sync + 'static>(
        self,
        stream: S,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static {
        stream.map(move |message| {
            let _counted = &self;
            message
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sessions.sessions.table().touch(&self.id, &self.sessions.caller, -1);
    }
}

impl SessionManager for CallerSessions {
    type Error = SessionsError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let (id, transport) = self.sessions.local.create_session().await?;
        let begun = self.sessions.table().begin(&id, &self.caller, Arc::clone(&self.chain));
        match begun {
            Ok(displaced) => {
                if let Some(displaced) = displaced {
                    self.sessions.close(displaced);
                }
                Ok((id, transport))
            }
            Err(refusal) => {
                self.sessions.close(id);
                Err(refusal.into())
            }
        }
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        Ok(self.sessions.local.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        Ok(self.sessions.table().has(id, &self.caller))
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        let is_open = self.sessions.table().end(id, &self.caller);
        match is_open {
            true => Ok(self.sessions.close(id.clone()).await.unwrap_or(Ok(()))?),
            false => Ok(()),
        }
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let counted = self.count(id)?;
        Ok(counted.until_end_of(self.sessions.local.create_stream(id, message).await?))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        let _counted = self.count(id)?;
        Ok(self.sessions.local.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let counted = self.count(id)?;
        Ok(counted.until_end_of(self.sessions.local.create_standalone_stream(id).await?))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let counted = self.count(id)?;
        Ok(counted.until_end_of(self.sessions.local.resume(id, last_event_id).await?))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::table::{MAX_PER_CALLER, MAX_SESSIONS};
    use super::*;

    fn of(sessions: &Sessions, last: u8) -> CallerSessions {
        sessions.of(Caller::Source([192, 0, 2, last].into()), Arc::new([]))
    }

    #[tokio::test]
    async fn a_new_session_takes_the_place_of_the_one_that_is_idle_the_longest() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let [first, second] = [1, 2].map(|last| of(&sessions, last));
        let mut ids = Vec::new();
        for number in 0..MAX_SESSIONS {
            let caller = if number % 2 == 0 { &first } else { &second };
            ids.push(caller.create_session().await.unwrap().0);
        }
        let followed = first.count(&ids[0]).unwrap();
        drop(first.count(&ids[2]).unwrap());
        let (newest, _transport) = first.create_session().await.unwrap();
        let is_open = async |id| first.has_session(id).await.unwrap();
        assert!(is_open(&ids[0]).await && is_open(&ids[2]).await && !is_open(&ids[4]).await && is_open(&newest).await);
        assert!(is_open(&ids[1]).await, "another caller's");

        ids[4] = newest;
        let _followed: Vec<_> = ids.iter().map(|id| first.count(id).unwrap()).collect();
        assert!(matches!(first.create_session().await, Err(SessionsError::TooMany(_))));
        drop(followed);
    }

    #[tokio::test]
    async fn sessions_that_begin_at_once_are_not_too_many() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let [first, second] = [1, 2].map(|last| of(&sessions, last));
        let begin = |number| if number % 4 == 0 { second.create_session() } else { first.create_session() };
        let begun = join_all((0..4 * MAX_SESSIONS).map(begin)).await;
        assert!(begun.iter().all(Result::is_ok));
        let mut open = 0;
        for (id, _) in begun.iter().flatten() {
            open += usize::from(first.has_session(id).await.unwrap());
        }
        assert_eq!((open, sessions.table().len()), (MAX_SESSIONS, MAX_SESSIONS));
        for (id, _) in begun.iter().flatten() {
            first.close_session(id).await.unwrap();
        }
        assert_eq!(sessions.table().len(), 0);
    }

    #[tokio::test]
    async fn a_caller_has_its_share() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let begun =
            join_all((0..MAX_SESSIONS).map(|_| of(&sessions, 1)).map(async |caller| caller.create_session().await));
        assert!(begun.await.iter().all(Result::is_ok));
        assert_eq!(sessions.table().len(), MAX_PER_CALLER);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_nobody_was_there_for_a_while() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let caller = of(&sessions, 1);
        let (id, _transport) = caller.create_session().await.unwrap();
        let followed = caller.count(&id).unwrap();
        let is_open_after = async |seconds| {
            let _ = tokio::time::timeout(Duration::from_secs(seconds), sessions.expire()).await;
            caller.has_session(&id).await.unwrap()
        };
        assert!(is_open_after(600).await);
        drop(followed);
        assert!(is_open_after(59).await);
        assert!(!is_open_after(2).await);
        assert!(caller.count(&id).is_err(), "no stream begins after the end");
    }
}
