//! telexec's suites, by behaviour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail so")]

mod audit;
mod backpressure;
mod bash_tool;
mod certificates;
mod cli;
mod conformance;
mod containment;
mod crowd;
mod daemon;
mod dask;
mod deadlines;
mod examples;
mod exec_command;
mod file_tools;
mod files;
mod forward;
mod grpcurl;
mod hostile;
mod interact;
mod library;
mod limits;
mod mcp;
mod memory;
mod metrics;
mod nats;
mod policy;
mod races;
mod reapi;
mod refusals;
mod resume;
mod ssh;
mod tracing;
mod transport;
mod users;
mod vsock;
