//! A syslog server (RFC 5424).
//!
//! Syslog has no acknowledgements, so a connection is closed some time after something was sent over it, and its records count as
//! delivered once the server has closed it in turn, after it has read them. What a server loses later is not sent again.

mod connection;
mod message;

use std::io;
use std::time::{Duration, Instant};

use self::connection::Connection;
use super::state::Delivered;
use super::{Destination, DestinationConfig, Requests, Unsent};
use crate::hostname::hostname;

/// From the first record that is sent over a connection to its end. After a failure it is closed at once, then after one second,
/// two, and so on: a proxy may close connections that are idle.
const MIN_CONNECTION_TIME: Duration = Duration::from_secs(1);
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(20);

/// Of records that are sent at once after a failure: a slow server has to read them before it is given up.
const MIN_BATCH_BYTES: usize = 64 * 1024;

pub(super) struct Syslog {
    config: DestinationConfig,
    host: String,
    connection_time: Duration,
}

impl Syslog {
    pub(super) fn new(config: DestinationConfig) -> Self {
        Self { config, host: hostname(), connection_time: MIN_CONNECTION_TIME }
    }
}

impl Destination for Syslog {
    fn send_all(&mut self, unsent: &mut Unsent, requests: &mut Requests<'_>) -> io::Result<bool> {
        let mut batch = unsent.next_batch()?;
        let Some(mut last) = batch.last().map(Delivered::from) else { return Ok(false) };
        let mut connection = Connection::open(&self.config)?;
        let until = Instant::now() + self.connection_time;
        loop {
            connection.check()?;
            let mut messages = Vec::new();
            batch.iter().for_each(|line| message::append(&mut messages, &self.host, line));
            connection.send(&messages)?;
            batch = unsent.wait_for_batch(until, requests)?;
            match batch.last() {
                Some(next) => last = next.into(),
                None => break,
            }
        }
        // a server that has already closed it did not read everything
        connection.check()?;
        connection.close()?;
        unsent.delivered(last);
        unsent.save();
        self.connection_time = (self.connection_time * 2).clamp(MIN_CONNECTION_TIME, MAX_CONNECTION_TIME);
        if self.connection_time == MAX_CONNECTION_TIME {
            unsent.set_limit(usize::MAX);
        }
        Ok(true)
    }

    fn failed(&mut self, unsent: &mut Unsent) {
        self.connection_time = Duration::ZERO;
        unsent.set_limit(MIN_BATCH_BYTES);
    }
}
