//! The agent's certificate and the CAs of its callers, from the SPIFFE Workload API.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use telexec_executor::text::error_chain;
use telexec_spiffe::{SpiffeId, TrustBundles, WorkloadApi, WorkloadApiError, X509Credentials};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::identity::patterns::NamePatterns;
use crate::lock::lock;
use crate::reload::{Changes, Reload};
use crate::tls::certificate::Certificate;
use crate::tls::client_verifier::ClientVerifier;
use crate::tls::svid_verifier::SvidVerifier;
use crate::tls::{Credentials, OwnCertificate};

/// After the Workload API failed, or has closed the connection.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Where the agent's SVID is from, and who may call.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadSettings {
    pub(crate) api: WorkloadApi,
    /// The SPIFFE IDs of callers.
    pub(crate) callers: NamePatterns,
    /// How long a call may run on after its caller's SVID has expired.
    pub(crate) call_grace: Duration,
    /// Callers need no certificate: they may have tokens.
    pub(crate) admits_without_certificate: bool,
}

/// What the Workload API has issued last; clones share it.
#[derive(Clone)]
pub(crate) struct WorkloadCertificates(Arc<Inner>);

struct Inner {
    settings: WorkloadSettings,
    current: watch::Sender<Arc<Credentials>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    /// Why there is nothing newer.
    failure: Option<String>,
}

/// What `current` is made of.
#[derive(PartialEq, Eq)]
struct Loaded {
    chain: Vec<CertificateDer<'static>>,
    bundles: TrustBundles,
}

/// What was issued cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("the X.509-SVID cannot be used")]
    Svid(#[from] rustls::Error),
    #[error("the X.509-SVID of {0} is not for a server (extended key usage serverAuth)")]
    NotForServer(SpiffeId),
}

impl WorkloadCertificates {
    /// Asks once. Without an answer there are no credentials yet.
    pub(super) async fn fetch(settings: WorkloadSettings) -> Self {
        let (current, state) = (watch::Sender::default(), Mutex::default());
        let this = Self(Arc::new(Inner { settings, current, state }));
        match this.0.settings.api.fetch().await {
            Ok(issued) => this.replace(issued),
            Err(error) => this.failed(&error),
        }
        this
    }

    pub(super) fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.0.current.borrow())
    }

    pub(super) fn changes(&self) -> Changes<Credentials> {
        Changes::of(&self.0.current)
    }

    pub(super) fn call_grace(&self) -> Duration {
        self.0.settings.call_grace
    }

    /// Takes what is issued while the agent runs. Never returns.
    pub(super) async fn follow(self, mut reload: Reload) {
        loop {
            tokio::select! {
                ended = self.subscribe() => match ended {
                    Ok(()) => {}
                    Err(error) => self.failed(&error),
                },
                () = reload.asked() => continue,
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
                () = reload.asked() => {}
            }
        }
    }

    /// Returns when the connection has ended.
    ///
    /// # Errors
    /// The API has failed, or issues nothing although it should have.
    async fn subscribe(&self) -> Result<(), WorkloadApiError> {
        let api = &self.0.settings.api;
        let mut issued = pin!(api.subscribe().await?);
        loop {
            match tokio::time::timeout(self.overdue(), issued.next()).await {
                Ok(Some(next)) => self.replace(next?),
                Ok(None) => return Ok(()),
                // asked again for another: this one is unusable
                Err(_) if self.current().own.is_none() && lock(&self.0.state).loaded.is_some() => return Ok(()),
                Err(_) if self.current().own.is_some() => return Err(api.not_renewed()),
                Err(_) => return Err(api.silent()),
            }
        }
    }

    /// Until most of the rest of the SVID's life is over: it should have been replaced by then, so the API may have hung.
    fn overdue(&self) -> Duration {
        let end = self.current().own.as_ref().map(|own| own.certificate.end());
        let rest = end.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default());
        rest.map_or(RETRY_INTERVAL, |rest| (rest / 4 * 3).max(RETRY_INTERVAL))
    }

    fn replace(&self, issued: X509Credentials) {
        let loaded = Loaded { chain: issued.chain.clone(), bundles: issued.bundles.clone() };
        {
            let mut state = lock(&self.0.state);
            if state.loaded.as_ref() == Some(&loaded) {
                state.failure.take_if(|_| self.current().own.is_some());
                return;
            }
        }
        let id = issued.id.clone();
        let (credentials, failure) = self.0.settings.load(issued);
        let credentials = Arc::new(credentials);
        self.0.current.send_replace(Arc::clone(&credentials));
        if let Some(svids) = credentials.clients.as_ref().and_then(|clients| clients.svids.as_ref()) {
            svids.log_loaded(&loaded.bundles);
        }
        lock(&self.0.state).loaded = Some(loaded);
        match failure {
            None => {
                lock(&self.0.state).failure = None;
                log_loaded(&id, &credentials);
            }
            Some(error) => self.report(error_chain(&error)),
        }
    }

    /// An SVID that is not issued any more is not used any more (SPIFFE Workload API, section 4.4).
    fn failed(&self, error: &WorkloadApiError) {
        let is_withdrawn = matches!(error, WorkloadApiError::Denied { .. } | WorkloadApiError::OtherIds { .. });
        if is_withdrawn && lock(&self.0.state).loaded.take().is_some() {
            self.0.current.send_replace(Arc::default());
        }
        self.report(error_chain(error));
    }

    /// Logs each reason once.
    fn report(&self, reason: String) {
        let mut state = lock(&self.0.state);
        if state.failure.as_ref() == Some(&reason) {
            return;
        }
        match self.current().own {
            Some(_) => warn!(reason, "cannot renew the agent's X.509-SVID; trying again"),
            None => warn!(reason, "the agent has no X.509-SVID, and refuses callers over TLS; trying again"),
        }
        state.failure = Some(reason);
    }
}

impl WorkloadSettings {
    /// Callers are verified even if the agent's own SVID is unusable.
    fn load(&self, issued: X509Credentials) -> (Credentials, Option<Unusable>) {
        let X509Credentials { id, chain, key, bundles } = issued;
        let chains = Arc::new(SvidVerifier::new(&bundles, self.callers.clone()));
        let is_required = !self.admits_without_certificate;
        let svids = Some(Arc::clone(&chains));
        let clients = Some(Arc::new(ClientVerifier { chains, svids, ca_names: None, is_required }));
        let own = own_certificate(id, chain, key, clients.as_ref());
        let (own, failure) = match own {
            Ok(own) => (Some(own), None),
            Err(error) => (None, Some(error)),
        };
        (Credentials { own, clients, revocation: None }, failure)
    }
}

fn own_certificate(
    id: SpiffeId,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<&Arc<ClientVerifier>>,
) -> Result<OwnCertificate, Unusable> {
    // the subject of an SVID says nothing
    let certificate = Certificate::first_of(&chain)?.with_subject(id.to_string());
    if !certificate.is_for_servers {
        return Err(Unusable::NotForServer(id));
    }
    Ok(OwnCertificate::new(certificate, chain, key, clients)?)
}

fn log_loaded(id: &SpiffeId, credentials: &Credentials) {
    let Some(OwnCertificate { certificate, .. }) = &credentials.own else { return };
    let (serial, not_after) = (&certificate.serial, &certificate.not_after);
    info!(%id, serial, not_after, "X.509-SVID loaded");
}
