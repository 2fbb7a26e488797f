//! Who makes each call of a connection, and what that counts towards.

use std::sync::{Arc, Mutex};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue};
use telexec_engine::Workers;
use telexec_executor::ExecutorError;
use telexec_executor::text::error_chain;
use tokio::sync::Semaphore;
use tracing::info;

use crate::call::caller::Caller;
use crate::http2::admission::{Admission, Admitted};
use crate::http2::turns::{BodyTurns, CallerTurns};
use crate::lock::lock;
use crate::metrics::Refusal;
use crate::request_memory::{Account, RequestMemory};
use crate::token::TokenIssuers;

/// A caller, and what its calls count towards.
#[derive(Clone)]
pub(super) struct AccountedCaller {
    pub(super) caller: Arc<Caller>,
    pub(super) account: Account,
    pub(super) turns: CallerTurns,
}

/// Why a call is refused before its request is looked at.
pub(super) struct CallRefusal {
    /// `None`: in the metrics it is a refused connection.
    pub(super) counted: Option<Refusal>,
    pub(super) error: ExecutorError,
}

/// Who makes a call, and whether it may; otherwise the peer of the connection.
pub(super) type Authenticated = (AccountedCaller, Result<(), CallRefusal>);

/// The callers of one connection.
pub(super) struct Callers {
    peer: AccountedCaller,
    tokens: TokenIssuers,
    /// Verify tokens.
    workers: Workers,
    admission: Admission,
    request_memory: RequestMemory,
    body_turns: BodyTurns,
    /// The last token: most connections have the same for long.
    last: Mutex<Option<(HeaderValue, AccountedCaller)>>,
    /// On a connection that is nobody's yet one token is verified after the other: the first may be that of all.
    one_at_a_time: Semaphore,
}

impl Callers {
    pub(super) fn new(
        peer: Arc<Caller>,
        tokens: TokenIssuers,
        workers: Workers,
        admission: Admission,
        request_memory: RequestMemory,
        body_turns: BodyTurns,
    ) -> Self {
        let peer = account(peer, &request_memory, &body_turns);
        let (last, one_at_a_time) = (Mutex::default(), Semaphore::new(1));
        Self { peer, tokens, workers, admission, request_memory, body_turns, last, one_at_a_time }
    }

    /// Who makes any call, if no issuer of tokens is configured.
    pub(super) fn without_tokens(&self) -> Option<Authenticated> {
        self.tokens.is_empty().then(|| (self.peer.clone(), check(&self.peer.caller)))
    }

    /// Who makes the call with these headers, and whether it may. Takes the token out of them: it is for nobody else.
    pub(super) async fn of(&self, headers: &mut HeaderMap) -> Authenticated {
        // a gateway may be revoked
        if let Err(refusal) = check(&self.peer.caller) {
            return (self.peer.clone(), Err(refusal));
        }
        let authenticated = self.authenticate(headers).await;
        headers.remove(AUTHORIZATION);
        match authenticated {
            Ok(known) => {
                let checked = self.admit(&known.caller).and_then(|()| check(&known.caller));
                (known, checked)
            }
            Err(error) => {
                info!(from = self.peer.caller.address, reason = error_chain(&error), "refused a call");
                (self.peer.clone(), Err(CallRefusal { counted: Some(Refusal::Token), error }))
            }
        }
    }

    /// A connection without an identity takes its place as one of its first caller's.
    fn admit(&self, caller: &Caller) -> Result<(), CallRefusal> {
        match self.admission.admit(&caller.identity) {
            Admitted::Yes => Ok(()),
            Admitted::No | Admitted::NotYet => Err(CallRefusal { counted: None, error: closed() }),
        }
    }

    async fn authenticate(&self, headers: &HeaderMap) -> Result<AccountedCaller, ExecutorError> {
        if let Some(known) = self.known(headers) {
            return Ok(known);
        }
        if self.admission.state() == Admitted::Yes {
            return self.verify(headers).await;
        }
        let _verifying = self.admission.verifying();
        let _turn = self.one_at_a_time.acquire().await;
        if let Some(known) = self.known(headers) {
            return Ok(known);
        }
        if self.admission.attempt() == Admitted::No {
            return Err(closed());
        }
        self.verify(headers).await
    }

    async fn verify(&self, headers: &HeaderMap) -> Result<AccountedCaller, ExecutorError> {
        let caller = self.tokens.caller(&self.peer.caller, headers, &self.workers).await?;
        if Arc::ptr_eq(&caller, &self.peer.caller) {
            return Ok(self.peer.clone());
        }
        let known = account(caller, &self.request_memory, &self.body_turns);
        if let Some(token) = headers.get(AUTHORIZATION) {
            let dropped = lock(&self.last).replace((token.clone(), known.clone()));
            drop(dropped);
        }
        Ok(known)
    }

    /// The caller of the last token, if it is the same one, and still good for a new call.
    fn known(&self, headers: &HeaderMap) -> Option<AccountedCaller> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (token, None) = (given.next()?, given.next()) else { return None };
        let last = lock(&self.last);
        let (_, known) = last.as_ref().filter(|(last, _)| last == token)?;
        let is_good = known.caller.token.as_ref().is_some_and(|token| token.check_new_call().is_ok());
        is_good.then(|| known.clone())
    }
}

/// Whether what has authenticated it is still valid.
fn check(caller: &Caller) -> Result<(), CallRefusal> {
    caller.check_new_call().map_err(|error| CallRefusal { counted: Some(Refusal::Certificate), error })
}

/// The connection has no place among those that are open.
fn closed() -> ExecutorError {
    let reason = "this connection is being closed: too many connections, or too many tokens that are not accepted";
    ExecutorError::Exhausted { reason: reason.to_owned(), retry_after: None }
}

fn account(caller: Arc<Caller>, request_memory: &RequestMemory, body_turns: &BodyTurns) -> AccountedCaller {
    let (account, turns) = (request_memory.of(&caller.identity), body_turns.of(&caller.identity));
    AccountedCaller { caller, account, turns }
}
