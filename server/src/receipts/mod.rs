//! Receipts: signed statements of what has run, for callers who ask for them. `description` has what is said of a request,
//! `observer` follows one execution and signs.

mod description;
mod observer;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use telexec_engine::{ContinuedExecution, ExecutionObserver};
use telexec_executor::{Command, ExecutionId, ExecutorError};
use telexec_receipt::{Agent, KeyError, SigningKey};
use tracing::warn;

use self::description::Asked;
use self::observer::{ReceiptObserver, STATE};
use crate::call::Call;
use crate::config::ConfigError;
use crate::hostname::hostname;
use crate::policy::Decision;
use crate::tls::private_key;

/// What signs receipts, if there is a key; clones share it.
#[derive(Clone)]
pub(crate) struct Receipts(Option<Arc<Signer>>);

struct Signer {
    key: SigningKey,
    agent: Agent,
}

impl Receipts {
    /// With the key in this file; `None`: there are no receipts.
    ///
    /// # Errors
    /// The key cannot be used.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self(None)) };
        let unusable = |source: Box<dyn Error + Send + Sync>| ConfigError::ReceiptKey { path: path.to_owned(), source };
        let key = match private_key::read(path).map_err(|error| unusable(error.into()))? {
            PrivateKeyDer::Pkcs8(der) => SigningKey::from_pkcs8(der.secret_pkcs8_der()),
            _ => Err(KeyError::Private),
        };
        let key = key.map_err(|error| unusable(error.into()))?;
        let agent = Agent { host: hostname(), version: env!("CARGO_PKG_VERSION").to_owned() };
        Ok(Self(Some(Arc::new(Signer { key, agent }))))
    }

    /// The public key, in PEM; empty: there is none.
    pub(crate) fn public_key(&self) -> String {
        self.0.as_ref().map(|signer| signer.key.public().to_pem()).unwrap_or_default()
    }

    /// Why this command is not started: it asks for a receipt, and there is no key.
    pub(crate) fn refusal(&self, command: &Command) -> Option<ExecutorError> {
        let reason = "cannot be given here: the agent's configuration has no receipt_key; nothing ran";
        let refused = || ExecutorError::Unsupported { field: "receipt".into(), reason: reason.into() };
        (command.receipt() && self.0.is_none()).then(refused)
    }

    /// Observes a command that is to have a receipt; `None`: it asks for none.
    pub(crate) fn observer(
        &self,
        call: &Call,
        id: &ExecutionId,
        command: &Command,
        decision: &Decision,
    ) -> Option<Box<dyn ExecutionObserver>> {
        let signer = self.0.as_ref().filter(|_| command.receipt())?;
        let asked = description::describe(&signer.agent, call, id, command, decision);
        Some(Box::new(ReceiptObserver::new(Arc::clone(signer), asked)))
    }

    /// Observes what an earlier agent has started, and what is to have a receipt.
    pub(crate) fn continued(&self, execution: &ContinuedExecution) -> Option<Box<dyn ExecutionObserver>> {
        let state = execution.states.get(STATE).filter(|_| execution.exited.is_none())?;
        let failed = |error: &str| warn!(id = %execution.id, error, "it gets no receipt");
        let Some(signer) = &self.0 else {
            failed("this agent's configuration has no receipt_key");
            return None;
        };
        let asked = serde_json::from_slice::<Asked>(state).inspect_err(|error| failed(&error.to_string())).ok()?;
        Some(Box::new(ReceiptObserver::continued(Arc::clone(signer), asked, execution)))
    }
}
