//! HTTP/2 connections that forwards share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::Channel;
use crate::connector::Connector;

/// How many of an agent's windows for requests fit into that of their connection, less one for other calls: even if
/// none of them is read on the other side, each has had its own.
const MAX_SHARING: usize = 7;

/// The connections to one agent.
#[derive(Debug)]
pub(super) struct Pool {
    connector: Arc<Connector>,
    /// Also for other calls.
    first: Channel,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    /// Forwards on the first.
    on_first: usize,
    others: Vec<Line>,
    last: u64,
}

#[derive(Debug)]
struct Line {
    channel: Channel,
    number: u64,
    open: usize,
}

/// One forward's part of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pool: Arc<Pool>,
    channel: Channel,
    /// `None`: the first.
    number: Option<u64>,
}

impl Pool {
    pub(super) fn new(first: Channel, connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Self { connector, first, lines: Mutex::default() })
    }

    /// On a connection that has room, or else a new one.
    pub(super) fn place(self: &Arc<Self>) -> Place {
        let mut lines = self.lines();
        if lines.on_first < MAX_SHARING {
            drop(lines);
            return self.first();
        }
        if let Some(line) = lines.others.iter_mut().find(|line| line.open < MAX_SHARING) {
            line.open += 1;
            return Place { pool: Arc::clone(self), channel: line.channel.clone(), number: Some(line.number) };
        }
        let Ok(channel) = Channel::lazy(&self.connector) else {
            drop(lines);
            return self.first();
        };
        lines.last += 1;
        let number = lines.last;
        lines.others.push(Line { channel: channel.clone(), number, open: 1 });
        Place { pool: Arc::clone(self), channel, number: Some(number) }
    }

    /// On the first connection.
    pub(super) fn first(self: &Arc<Self>) -> Place {
        self.lines().on_first += 1;
        Place { pool: Arc::clone(self), channel: self.first.clone(), number: None }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(super) fn is_first(&self) -> bool {
        self.number.is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self.pool.lines();
        let Some(number) = self.number else {
            lines.on_first = lines.on_first.saturating_sub(1);
            return;
        };
        if let Some(line) = lines.others.iter_mut().find(|line| line.number == number) {
            line.open = line.open.saturating_sub(1);
        }
        // one that is idle is kept for what comes next
        let mut spares = 0;
        lines.others.retain(|line| {
            spares += usize::from(line.open == 0);
            line.open > 0 || spares <= 1
        });
    }
}
