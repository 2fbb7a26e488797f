//! The Workload API of this machine, such as a SPIRE agent's.

use std::fmt;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use spiffe::transport::{Endpoint, EndpointError};
use spiffe::{SpiffeId, SpiffeIdError, WorkloadApiClient, X509Context};
use telexec_executor::text::root_cause;
use tokio::time::timeout;

use crate::X509Credentials;

/// For an answer of the Workload API.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Of SPIFFE IDs, in a message.
const MAX_IDS: usize = 20;

/// A socket of the Workload API, and which identity is used of those that it issues to this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadApi {
    socket: String,
    endpoint: Endpoint,
    id: Option<SpiffeId>,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidWorkloadApi {
    /// The socket's address.
    #[error("socket: {socket:?}: expected unix:///PATH, or tcp://ADDRESS:PORT with a loopback address")]
    Socket {
        /// As given.
        socket: String,
        /// The cause; `None`: it is not on this machine.
        source: Option<EndpointError>,
    },
    /// The SPIFFE ID.
    #[error("id: {id:?}: expected a SPIFFE ID with a path, such as spiffe://example.org/telexec/web1")]
    Id {
        /// As given.
        id: String,
        /// The cause; `None`: it has no path.
        source: Option<SpiffeIdError>,
    },
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadApiError {
    /// It did not answer.
    #[error("the SPIFFE Workload API at {socket} did not answer within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// Its address.
        socket: String,
    },
    /// It should have issued a new SVID by now.
    #[error("the SPIFFE Workload API at {socket} has not renewed the X.509-SVID")]
    NotRenewed {
        /// Its address.
        socket: String,
    },
    /// It issues nothing to this process.
    #[error("the SPIFFE Workload API at {socket} issues no identity to this process: register the workload")]
    Denied {
        /// Its address.
        socket: String,
    },
    /// It issues other identities.
    #[error("the SPIFFE Workload API at {socket} does not issue {id} to this process, but {}", list(.issued))]
    OtherIds {
        /// Its address.
        socket: String,
        /// The one that is wanted.
        id: SpiffeId,
        /// Those that it issues.
        issued: Vec<SpiffeId>,
    },
    /// It cannot be reached, or its answer cannot be used.
    #[error("cannot get an identity from the SPIFFE Workload API at {socket}")]
    Failed {
        /// Its address.
        socket: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl WorkloadApiError {
    /// Whether a retry may succeed, as when the API is restarting.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::NotRenewed { .. } | Self::Failed { .. })
    }
}

impl WorkloadApi {
    /// The API at `socket` (SPIFFE Workload Endpoint, section 4): `unix:///PATH`, or `tcp://ADDRESS:PORT` on a loopback address.
    /// `id`: the identity to use. Default: the first that it issues, the default identity.
    ///
    /// # Errors
    /// One of them is malformed.
    pub fn new(socket: &str, id: Option<&str>) -> Result<Self, InvalidWorkloadApi> {
        let invalid = |source| InvalidWorkloadApi::Socket { socket: socket.to_owned(), source };
        let endpoint = Endpoint::parse(socket).map_err(|source| invalid(Some(source)))?;
        // keys are sent in the clear
        if matches!(&endpoint, Endpoint::Tcp { host, .. } if !host.is_loopback()) {
            return Err(invalid(None));
        }
        let id = id.map(workload_id).transpose()?;
        Ok(Self { socket: socket.to_owned(), endpoint, id })
    }

    /// The present credentials.
    ///
    /// # Errors
    /// There are none.
    pub async fn fetch(&self) -> Result<X509Credentials, WorkloadApiError> {
        let fetched = async { self.subscribe().await?.next().await.unwrap_or_else(|| Err(self.ended())) };
        timeout(TIMEOUT, fetched).await.unwrap_or_else(|_| Err(self.silent()))
    }

    /// The present credentials, and those that replace them; ends with the connection. An error is the last.
    ///
    /// # Errors
    /// The API cannot be reached.
    pub async fn subscribe(
        &self,
    ) -> Result<impl Stream<Item = Result<X509Credentials, WorkloadApiError>> + Send + use<>, WorkloadApiError> {
        let subscribed = async {
            let client = WorkloadApiClient::connect(self.endpoint.clone()).await?;
            client.stream_x509_contexts().await
        };
        let contexts =
            timeout(TIMEOUT, subscribed).await.map_err(|_| self.silent())?.map_err(|error| self.failed(error))?;
        let this = self.clone();
        Ok(contexts.map(move |context| match context {
            Ok(context) => this.choose(&context),
            Err(error) => Err(this.failed(error)),
        }))
    }

    /// The wanted identity.
    fn choose(&self, context: &X509Context) -> Result<X509Credentials, WorkloadApiError> {
        let svid = match &self.id {
            Some(id) => context.svids().iter().find(|svid| svid.spiffe_id() == id),
            None => context.default_svid(),
        };
        match (svid, &self.id) {
            (Some(svid), _) => Ok(X509Credentials::new(svid, context.bundle_set())),
            (None, Some(id)) => Err(WorkloadApiError::OtherIds {
                socket: self.socket.clone(),
                id: id.clone(),
                issued: context.svids().iter().map(|svid| svid.spiffe_id().clone()).collect(),
            }),
            (None, None) => Err(self.ended()),
        }
    }

    /// The error of an API that does not answer.
    pub fn silent(&self) -> WorkloadApiError {
        WorkloadApiError::Timeout { socket: self.socket.clone() }
    }

    /// The error of an API that does not issue the next SVID in time.
    pub fn not_renewed(&self) -> WorkloadApiError {
        WorkloadApiError::NotRenewed { socket: self.socket.clone() }
    }

    fn ended(&self) -> WorkloadApiError {
        WorkloadApiError::Failed {
            socket: self.socket.clone(),
            source: "it closed the stream without an answer".into(),
        }
    }

    fn failed(&self, error: spiffe::WorkloadApiError) -> WorkloadApiError {
        let socket = self.socket.clone();
        match error {
            spiffe::WorkloadApiError::NoIdentityIssued | spiffe::WorkloadApiError::PermissionDenied(_) => {
                WorkloadApiError::Denied { socket }
            }
            // what is around the cause says the same at greater length
            error => WorkloadApiError::Failed { socket, source: root_cause(&error).to_string().into() },
        }
    }
}

impl fmt::Display for WorkloadApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.socket)
    }
}

fn workload_id(id: &str) -> Result<SpiffeId, InvalidWorkloadApi> {
    let invalid = |source| InvalidWorkloadApi::Id { id: id.to_owned(), source };
    let parsed = SpiffeId::new(id).map_err(|source| invalid(Some(source)))?;
    if parsed.path().is_empty() { Err(invalid(None)) } else { Ok(parsed) }
}

/// The first of them.
fn list(ids: &[SpiffeId]) -> String {
    let first = ids.iter().take(MAX_IDS).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(MAX_IDS) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_on_this_machine() {
        for socket in ["unix:///run/spire/agent.sock", "unix:/run/agent.sock", "tcp://127.0.0.1:8081", "tcp://[::1]:1"]
        {
            assert_eq!(WorkloadApi::new(socket, None).unwrap().to_string(), socket);
        }
        for socket in
            ["", "/run/agent.sock", "unix:agent.sock", "unix://run/a", "tcp://192.0.2.1:1", "tcp://a:1", "http://a"]
        {
            let error = WorkloadApi::new(socket, None).unwrap_err();
            assert!(error.to_string().starts_with(&format!("socket: {socket:?}: expected unix:///PATH")), "{error}");
        }
    }

    #[test]
    fn ids_are_spiffe_ids() {
        let id = |id| WorkloadApi::new("unix:///a", Some(id)).map(drop);
        assert!(id("spiffe://example.org/ops/anna").is_ok());
        for malformed in ["anna", "https://example.org/anna", "spiffe://a/../b", "spiffe://a", ""] {
            assert!(matches!(id(malformed), Err(InvalidWorkloadApi::Id { .. })), "{malformed:?}");
        }
    }
}
