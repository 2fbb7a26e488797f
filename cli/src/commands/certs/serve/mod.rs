//! `telexec certs serve`: issues certificates to machines with a token, and renews those that they have.

mod limits;
mod service;
mod tls;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use telexec_proto::enrollment::v1::enrollment_service_server::EnrollmentServiceServer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

use self::limits::Limits;
use self::service::{Authority, Enrollments, Peer};
use self::tls::ServiceTls;
use super::{ca, directory, failed, files};
use crate::args::CertsServeArgs;
use crate::commands::connections::Connections;
use crate::output::{Failure, print_message};

/// From accepting a connection to its end.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// After a failed accept, such as for want of descriptors.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

pub(super) fn serve(args: &CertsServeArgs) -> Result<(), Failure> {
    let directory = directory(args.dir.as_ref())?;
    for trusted in &args.trust {
        // says what is missing now, and not to the first machine
        files::read(&ca::cert_path(trusted))?;
        files::read(&super::store::crl_path(trusted))?;
    }
    let tls = Arc::new(ServiceTls::new(&directory)?);
    let limits = Arc::new(Limits::new());
    let authority = Authority { directory, trust: args.trust.clone(), limits: Arc::clone(&limits) };
    let enrollments = Enrollments { authority: Arc::new(authority), limits };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("cannot start", &error))?;
    runtime.block_on(async {
        let listening = TcpListener::bind(args.listen.as_str()).await;
        let listener = listening.map_err(|error| failed(format_args!("cannot listen on {}", args.listen), &error))?;
        let address = listener.local_addr().map_err(|error| failed("cannot listen", &error))?;
        print_message(&format!("listening on tcp://{address}"));
        tokio::spawn(Arc::clone(&tls).renew());
        accept(listener, tls, enrollments).await
    })
}

async fn accept(listener: TcpListener, tls: Arc<ServiceTls>, enrollments: Enrollments) -> ! {
    let connections = Connections::default();
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                print_message(&format!("cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_DELAY).await;
                continue;
            }
        };
        if !enrollments.limits.admits(address.ip()) {
            continue;
        }
        // none counts as admitted: what a request is worth is known when it is answered
        let Some(connection) = connections.enter(address.ip()) else { continue };
        let (acceptor, enrollments) = (TlsAcceptor::from(tls.config()), enrollments.clone());
        tokio::spawn(async move {
            let limits = Arc::clone(&enrollments.limits);
            let serving = serve_connection(stream, address, acceptor, enrollments);
            let served = tokio::select! {
                served = tokio::time::timeout(CONNECTION_TIMEOUT, serving) => served.unwrap_or(Ok(())),
                () = connection.closed() => Ok(()),
            };
            if let Err(reason) = served
                && limits.logs(address.ip())
            {
                print_message(&format!("refused {address}: {reason}"));
            }
        });
    }
}

/// # Errors
/// Why the connection came to nothing.
async fn serve_connection(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    enrollments: Enrollments,
) -> Result<(), String> {
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let stream = handshake.map_err(|_| "TLS: it took too long")?.map_err(|error| format!("TLS: {error}"))?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let called = CancellationToken::new();
    let peer = Peer { address, certificate: certificate.map(|leaf| leaf.to_vec()), called: called.clone() };
    let server = EnrollmentServiceServer::new(enrollments).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let mut server = server.clone();
        async move { server.call(request).await.map_err(|never: Infallible| never) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(1).max_header_list_size(16 * 1024);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // a client that hangs up has what it wanted
    tokio::select! {
        _ = connection.as_mut() => {}
        // one call is enough for a machine, and many are for guessing
        () = called.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
    Ok(())
}
