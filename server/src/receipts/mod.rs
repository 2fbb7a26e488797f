//! Receipts: signed statements of what has run, for callers who ask for them. `description` has what is said of a request,
//! `observer` follows one execution and signs.

mod description;
mod observer;

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use telexec_engine::{ContinuedExecution, ExecutionObserver};
use telexec_executor::{Command, ExecutionId};
use telexec_receipt::{Agent, KeyError, SigningKey};

use self::observer::ReceiptObserver;
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
        let unusable = |source| ConfigError::ReceiptKey { path: path.to_owned(), source };
        let key = match private_key::read(path)? {
            PrivateKeyDer::Pkcs8(der) => SigningKey::from_pkcs8(der.secret_pkcs8_der()).map_err(unusable)?,
            _ => return Err(unusable(KeyError::Private)),
        };
        let agent = Agent { host: hostname(), version: env!("CARGO_PKG_VERSION").to_owned() };
        Ok(Self(Some(Arc::new(Signer { key, agent }))))
    }

    /// The public key, in PEM; empty: there is none.
    pub(crate) fn public_key(&self) -> String {
        self.0.as_ref().map(|signer| signer.key.public().to_pem()).unwrap_or_default()
    }

    /// Observes a command that is to have a receipt; `None`: it asks for none, or there is no key.
    pub(crate) fn observer(
        &self,
        call: &Call,
        id: &ExecutionId,
        command: &Command,
        decision: &Decision,
    ) -> Option<Box<dyn ExecutionObserver>> {
        let signer = self.0.as_ref().filter(|_| command.receipt())?;
        let statement = description::describe(&signer.agent, call, id, command, decision);
        Some(Box::new(ReceiptObserver::new(Arc::clone(signer), statement)))
    }

    /// Observes what an earlier agent has started, and what is to have a receipt.
    pub(crate) fn continued(&self, execution: &ContinuedExecution) -> Option<Box<dyn ExecutionObserver>> {
        let signer = self.0.as_ref().filter(|_| execution.exited.is_none())?;
        Some(Box::new(ReceiptObserver::continued(Arc::clone(signer), execution)?))
    }
}
