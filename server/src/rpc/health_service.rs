//! `grpc.health.v1.Health`, with the agent's start time in each answer to `Check`.

use std::time::SystemTime;

use telexec_proto::start_time;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::{HealthReporter, HealthService};

pub(crate) struct HealthRpcs {
    service: HealthService,
    start_time: Option<AsciiMetadataValue>,
}

impl HealthRpcs {
    pub(crate) fn new(reporter: HealthReporter, start_time: SystemTime) -> Self {
        // digits are always valid
        let start_time = start_time::format(start_time).parse().ok();
        Self { service: HealthService::from_health_reporter(reporter), start_time }
    }
}

#[tonic::async_trait]
impl Health for HealthRpcs {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let mut answer = self.service.check(request).await?;
        if let Some(start_time) = &self.start_time {
            answer.metadata_mut().insert(start_time::HEADER, start_time.clone());
        }
        Ok(answer)
    }

    type WatchStream = <HealthService as Health>::WatchStream;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.service.watch(request).await
    }
}
