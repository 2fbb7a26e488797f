//! The service `opentelemetry.proto.collector.logs.v1.LogsService`, by which agents and others send logs.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use telexec_proto::convert::error_to_status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::Collector;
use super::request::{ExportCodec, ExportLogsResponse};
use crate::admission::Stack;
use crate::call::status::counted;
use crate::call::{Call, Rpc};

/// The service; clones share it.
#[derive(Clone)]
pub(crate) struct LogsServer(Arc<Export>);

impl LogsServer {
    pub(crate) fn new(stack: Stack, collector: Collector) -> Self {
        Self(Arc::new(Export { stack, collector }))
    }
}

impl NamedService for LogsServer {
    const NAME: &'static str = "opentelemetry.proto.collector.logs.v1.LogsService";
}

impl Service<http::Request<Body>> for LogsServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != Rpc::ExportLogs.path() {
            return Box::pin(async { Ok(Status::unimplemented("the service has no such method").into_http()) });
        }
        let export = Exporting(Arc::clone(&self.0));
        let mut grpc = Grpc::new(ExportCodec).accept_compressed(CompressionEncoding::Gzip);
        Box::pin(async move { Ok(grpc.unary(export, request).await) })
    }
}

/// The RPC.
struct Export {
    stack: Stack,
    collector: Collector,
}

impl Export {
    async fn export(&self, request: Request<Bytes>) -> Result<Response<ExportLogsResponse>, Status> {
        let call = Call::of(&request, Rpc::ExportLogs)?;
        self.stack.permit(&call).await.map_err(|error| error_to_status(&error))?;
        let request = request.into_inner();
        // decompressed, its records, and their text as it is written
        call.reservation.add(request.len().saturating_mul(3)).map_err(|excess| error_to_status(&excess.into()))?;
        let partial_success = self.collector.store(&call, request).await?;
        counted(&call.reservation, ExportLogsResponse { partial_success })
    }
}

/// One call of it.
struct Exporting(Arc<Export>);

impl UnaryService<Bytes> for Exporting {
    type Response = ExportLogsResponse;
    type Future = BoxFuture<'static, Result<Response<ExportLogsResponse>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let export = Arc::clone(&self.0);
        Box::pin(async move { export.export(request).await })
    }
}
