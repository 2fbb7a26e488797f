//! Agents behind a NATS server: they dial out to it (`telexec-nats`), and so do their callers.
//!
//! [`Nats`] is a connection to a server, and [`NatsAgent`] one of its agents: an [`Agent`](telexec_client::Agent) as any
//! other, but that it has no files and no forwards, and a [`NatsExecutor`]. Commands go through a queue, so that they can
//! wait for an agent that is away.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use telexec_executor::{Command, Executor};
//! use telexec_nats_client::{Nats, NatsAgent, NatsTarget, Options, Settings};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let target: NatsTarget = "nats://nats.example.org/web1".parse()?;
//! let nats = Nats::connect(&target.url(), &Settings::default(), None, Duration::from_secs(10)).await?;
//! let agent = NatsAgent::connect(Arc::new(nats), &target, Options::default()).await?;
//! let execution = agent.executor().execute(Command::shell("uname -a").build()?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`headers`], [`payload`], [`signature`] and [`subjects`] are the messages of both sides; integrations/nats/README.md has
//! their specification.

pub mod headers;
pub mod payload;
pub mod signature;
pub mod subjects;

mod agent; // an agent, as others are
mod cancel; // of what is dropped
mod events; // messages of executions
mod gateway; // gRPC's methods, by messages
mod nats; // the server
mod settings;
mod target;

pub use agent::{NatsAgent, NatsExecutor, Options};
pub use nats::{Nats, NatsError};
pub use settings::{BadFile, Password, Settings, seed};
pub use target::{Address, InvalidNatsTarget, NatsTarget};
