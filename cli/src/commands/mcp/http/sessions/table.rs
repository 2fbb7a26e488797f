//! Who is there: the open sessions, whose they are, and whether their client follows them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rmcp::transport::streamable_http_server::session::SessionId;
use rustls::pki_types::CertificateDer;
use tokio::time::Instant;

use super::super::caller::Caller;

/// More clients than one server has; each may hold some megabytes.
pub(super) const MAX_SESSIONS: usize = 64;
/// Of one caller: the rest is for others.
pub(super) const MAX_PER_CALLER: usize = MAX_SESSIONS - MAX_SESSIONS / 4;

/// The certificates that a caller came with, which may be none.
pub(in super::super) type Chain = Arc<[CertificateDer<'static>]>;

#[derive(Default)]
pub(super) struct Table(HashMap<SessionId, Session>);

struct Session {
    owner: Caller,
    /// Of its last request.
    chain: Chain,
    /// Responses that its client receives.
    streams: usize,
    /// Its client last sent something, or stopped to receive something.
    since: Instant,
}

#[derive(Debug, thiserror::Error)]
#[error("there are too many sessions with a client already: at most {MAX_SESSIONS}, {MAX_PER_CALLER} of one caller")]
pub(in super::super) struct TooMany;

impl Table {
    /// Adds a session. If there are too many, one that nobody follows has to go: of this caller if it has its share, or
    /// of the caller with the most of them, the one that has been idle the longest.
    ///
    /// # Errors
    /// All are followed.
    pub(super) fn begin(&mut self, id: &SessionId, owner: &Caller, chain: Chain) -> Result<Option<SessionId>, TooMany> {
        let mut shares: HashMap<&Caller, usize> = HashMap::from([(owner, 1)]);
        for session in self.0.values() {
            *shares.entry(&session.owner).or_default() += 1;
        }
        let share = |caller| shares.get(caller).copied().unwrap_or_default();
        let is_over = share(owner) > MAX_PER_CALLER;
        let displaced = (is_over || self.0.len() >= MAX_SESSIONS).then(|| {
            let idle =
                self.0.iter().filter(|(_, session)| session.streams == 0 && (!is_over || session.owner == *owner));
            let next = idle.max_by_key(|(_, session)| (share(&session.owner), session.since.elapsed()));
            next.map(|(id, _)| id.clone()).ok_or(TooMany)
        });
        let displaced = displaced.transpose()?;
        if let Some(id) = &displaced {
            self.0.remove(id);
        }
        self.0.insert(id.clone(), Session { owner: owner.clone(), chain, streams: 0, since: Instant::now() });
        Ok(displaced)
    }

    /// Removes those that nobody has followed for this long.
    pub(super) fn expire(&mut self, timeout: Duration) -> Vec<SessionId> {
        let is_gone = |session: &mut Session| session.streams == 0 && session.since.elapsed() >= timeout;
        self.0.extract_if(|_, session| is_gone(session)).map(|(id, _)| id).collect()
    }

    /// Removes those whose certificates are not accepted any more.
    pub(super) fn refuse(&mut self, is_accepted: impl Fn(&[CertificateDer<'_>]) -> bool) -> Vec<SessionId> {
        self.0.extract_if(|_, session| !is_accepted(&session.chain)).map(|(id, _)| id).collect()
    }

    /// A request of the session came with these certificates: another one of the same caller may have been renewed.
    pub(super) fn vouch(&mut self, id: &SessionId, chain: &Chain) {
        if let Some(session) = self.0.get_mut(id) {
            session.chain = Arc::clone(chain);
        }
    }

    /// For others than its owner there is no such session.
    pub(super) fn has(&self, id: &SessionId, caller: &Caller) -> bool {
        self.0.get(id).is_some_and(|session| caller.may_act_for(&session.owner))
    }

    /// `false`: this caller has no such session.
    pub(super) fn end(&mut self, id: &SessionId, caller: &Caller) -> bool {
        self.has(id, caller) && self.0.remove(id).is_some()
    }

    /// Its client is there, with this many streams more or less. `false`: this caller has no such session.
    pub(super) fn touch(&mut self, id: &SessionId, caller: &Caller, streams: isize) -> bool {
        match self.0.get_mut(id) {
            Some(session) if caller.may_act_for(&session.owner) => {
                session.streams = session.streams.saturating_add_signed(streams);
                session.since = Instant::now();
                true
            }
            _ => false,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> Caller {
        Caller::Source([192, 0, 2, last].into())
    }

    fn none() -> Chain {
        Arc::new([])
    }

    fn certificate(name: &str) -> Caller {
        Caller::Certificate(name.into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_displaces_its_own_sessions() {
        let (mut table, [few, many]) = (Table::default(), [source(1), source(2)]);
        table.begin(&"few".into(), &few, none()).unwrap();
        for number in 0..3 * MAX_SESSIONS {
            tokio::time::advance(Duration::from_secs(1)).await;
            let displaced = table.begin(&number.to_string().into(), &many, none()).unwrap();
            assert_eq!(displaced, number.checked_sub(MAX_PER_CALLER).map(|oldest| oldest.to_string().into()));
        }
        // others displace those of the largest
        for number in 0..MAX_SESSIONS / 2 - 1 {
            table.begin(&format!("few {number}").into(), &few, none()).unwrap();
        }
        let count = |caller| table.0.values().filter(|session| session.owner == caller).count();
        assert_eq!((count(few.clone()), count(many)), (MAX_SESSIONS / 2, MAX_SESSIONS / 2));
        assert!(table.has(&"few".into(), &few));
    }

    #[tokio::test]
    async fn what_is_followed_is_not_displaced() {
        let mut table = Table::default();
        for number in 0..MAX_PER_CALLER {
            table.begin(&number.to_string().into(), &source(1), none()).unwrap();
            assert!(table.touch(&number.to_string().into(), &source(1), 1));
        }
        assert!(table.begin(&"new".into(), &source(1), none()).is_err() && !table.has(&"new".into(), &source(1)));
        assert!(table.begin(&"other".into(), &source(2), none()).unwrap().is_none());
        table.touch(&"7".into(), &source(1), -1);
        assert_eq!(table.begin(&"new".into(), &source(1), none()).unwrap(), Some("7".into()));
    }

    #[tokio::test]
    async fn a_session_is_its_owners_alone() {
        let (mut table, id) = (Table::default(), SessionId::from("one"));
        let [owner, other] = ["owner", "other"].map(certificate);
        table.begin(&id, &owner, none()).unwrap();
        assert!(!table.has(&id, &other) && !table.touch(&id, &other, 1) && !table.end(&id, &other));
        assert!(table.has(&id, &owner) && table.end(&id, &owner) && !table.has(&id, &owner));
        // an address may change
        table.begin(&id, &source(1), none()).unwrap();
        assert!(table.has(&id, &source(2)) && !table.has(&id, &owner));
    }
}
