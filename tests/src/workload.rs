//! A stand-in for the SPIFFE Workload API, with trust domains that are thrown away.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use telexec_client::{TlsOptions, WorkloadApi};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::{Ca, Leaf, Pair};

/// The one method that there is.
const FETCH_X509_SVID: &str = "/SpiffeWorkloadAPI/FetchX509SVID";

/// A trust domain.
pub struct TrustDomain {
    name: String,
    ca: Ca,
}

impl TrustDomain {
    /// A new one, of this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ca: Ca::new(name) }
    }

    /// Who issues its SVIDs.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// The ID of one of its processes.
    pub fn id(&self, path: &str) -> String {
        format!("spiffe://{}/{path}", self.name)
    }

    /// An SVID that is to be.
    pub fn leaf(&self, path: &str) -> Leaf {
        Leaf::svid(&self.id(path))
    }

    fn bundle(&self) -> Vec<u8> {
        rustls::pki_types::CertificateDer::from_pem_file(self.ca.cert()).unwrap().to_vec()
    }
}

/// Issues the same to everyone who asks.
pub struct WorkloadServer {
    directory: TempDir,
    issued: watch::Sender<Issued>,
    asked: Arc<AtomicUsize>,
    serving: JoinSet<()>,
}

/// What it says.
#[derive(Clone, Default)]
enum Issued {
    Svids(X509SvidResponse),
    Denied,
    /// It accepts connections alone.
    #[default]
    Nothing,
}

impl WorkloadServer {
    /// It says nothing yet.
    ///
    /// # Panics
    /// It cannot listen.
    pub fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("telexec-workload-").tempdir().unwrap();
        let (issued, asked) = (watch::Sender::default(), Arc::default());
        let mut this = Self { directory, issued, asked, serving: JoinSet::new() };
        this.listen();
        this
    }

    /// Issues one SVID.
    pub fn with(domain: &TrustDomain, path: &str) -> Self {
        let this = Self::start();
        this.issue(domain, [domain.leaf(path)], &[]);
        this
    }

    /// Issues these from now on, with the trust bundles of these domains besides.
    pub fn issue(&self, domain: &TrustDomain, leaves: impl IntoIterator<Item = Leaf>, federated: &[&TrustDomain]) {
        let svid = |leaf: Leaf| X509Svid::new(domain, &domain.ca.issue(leaf));
        let svids = leaves.into_iter().map(svid).collect();
        let federated_bundles =
            federated.iter().map(|other| (other.id("").trim_end_matches('/').to_owned(), other.bundle()));
        let response = X509SvidResponse { svids, crl: Vec::new(), federated_bundles: federated_bundles.collect() };
        self.issued.send_replace(Issued::Svids(response));
    }

    /// Issues this certificate from now on.
    pub fn issue_pair(&self, domain: &TrustDomain, pair: &Pair) {
        let response = X509SvidResponse { svids: vec![X509Svid::new(domain, pair)], ..X509SvidResponse::default() };
        self.issued.send_replace(Issued::Svids(response));
    }

    /// Issues nothing any more.
    pub fn deny(&self) {
        self.issued.send_replace(Issued::Denied);
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Its address.
    pub fn socket(&self) -> String {
        format!("unix://{}", self.path().display())
    }

    /// How its SVID is used.
    ///
    /// # Panics
    /// It has no address.
    pub fn options(&self, agent: &str) -> TlsOptions {
        let api = WorkloadApi::new(&self.socket(), None).unwrap();
        TlsOptions { server_name: Some(agent.to_owned()), ..TlsOptions::workload(api) }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("api.sock")
    }

    /// Closes its connections and its socket.
    ///
    /// # Panics
    /// It has none.
    pub async fn stop(&mut self) {
        self.serving.shutdown().await;
        std::fs::remove_file(self.path()).unwrap();
    }

    /// Listens again.
    ///
    /// # Panics
    /// It cannot.
    pub fn listen(&mut self) {
        let listener = UnixListener::bind(self.path()).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(self.path(), open).unwrap();
        std::fs::set_permissions(self.directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let service = WorkloadService { issued: self.issued.clone(), asked: Arc::clone(&self.asked) };
        self.serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                connections
                    .spawn(async move { http2.serve_connection(TokioIo::new(stream), service).await.map_err(drop) });
            }
        });
    }
}

#[derive(Clone)]
struct WorkloadService {
    issued: watch::Sender<Issued>,
    asked: Arc<AtomicUsize>,
}

impl Service<http::Request<hyper::body::Incoming>> for WorkloadService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<hyper::body::Incoming>) -> Self::Future {
        let this = self.clone();
        async move {
            if request.uri().path() != FETCH_X509_SVID {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            // as the standard has it, against requests that something else was tricked into
            if request.headers().get("workload.spiffe.io").is_none_or(|value| value != "true") {
                return Ok(Status::invalid_argument("security header missing from request").into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).server_streaming(this, request).await)
        }
        .boxed()
    }
}

impl ServerStreamingService<X509SvidRequest> for WorkloadService {
    type Response = X509SvidResponse;
    type ResponseStream = BoxStream<'static, Result<X509SvidResponse, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<X509SvidRequest>) -> Self::Future {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut issued = self.issued.subscribe();
        issued.mark_changed();
        let responses = futures_util::stream::unfold(issued, async |mut issued| {
            loop {
                issued.changed().await.ok()?;
                let response = match &*issued.borrow_and_update() {
                    Issued::Svids(response) => Ok(response.clone()),
                    Issued::Denied => Err(Status::permission_denied("no identity issued")),
                    Issued::Nothing => continue,
                };
                return Some((response, issued));
            }
        });
        let mut responses = responses.boxed().peekable();
        async move {
            // as SPIRE does, no headers before there is something to say
            let _ = Pin::new(&mut responses).peek().await;
            Ok(Response::new(responses.boxed()))
        }
        .boxed()
    }
}

/// workload.proto of the standard.
#[derive(Clone, PartialEq, prost::Message)]
struct X509SvidRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct X509SvidResponse {
    #[prost(message, repeated, tag = "1")]
    svids: Vec<X509Svid>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    crl: Vec<Vec<u8>>,
    #[prost(map = "string, bytes", tag = "3")]
    federated_bundles: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct X509Svid {
    #[prost(string, tag = "1")]
    spiffe_id: String,
    #[prost(bytes = "vec", tag = "2")]
    x509_svid: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    x509_svid_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    bundle: Vec<u8>,
    #[prost(string, tag = "5")]
    hint: String,
}

impl X509Svid {
    fn new(domain: &TrustDomain, pair: &Pair) -> Self {
        Self {
            // what counts is in the certificate
            spiffe_id: domain.id("unused"),
            x509_svid: pair.der().to_vec(),
            x509_svid_key: PrivateKeyDer::from_pem_file(&pair.key).unwrap().secret_der().to_vec(),
            bundle: domain.bundle(),
            hint: String::new(),
        }
    }
}
