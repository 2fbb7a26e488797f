//! Ctrl-C and similar signals: they end the command first, then this process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::{Failure, exit};

/// SIGINT, SIGQUIT, SIGTERM and SIGHUP, except those ignored at startup (`nohup`, background jobs of scripts).
pub(crate) struct Signals(Vec<(i32, Signal)>);

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let kinds = [SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate(), SignalKind::hangup()];
        let ignored = ignored();
        let listen = |kind: SignalKind| Ok((kind.as_raw_value(), signal(kind)?));
        kinds
            .into_iter()
            .filter(|kind| ignored & (1 << (kind.as_raw_value() - 1)) == 0)
            .map(listen)
            .collect::<io::Result<_>>()
            .map(Self)
            .map_err(|error| Failure::new(exit::LOST, &error).context("cannot listen for signals"))
    }

    /// Waits for a signal and returns the exit code for it.
    pub(crate) async fn exit_code(&mut self) -> u8 {
        std::future::poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(exit::of_signal(*number));
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// The ignored signals as a bit mask; signal 1 is the lowest bit.
fn ignored() -> u64 {
    let status =
        if cfg!(target_os = "linux") { std::fs::read_to_string("/proc/self/status") } else { Ok(String::new()) };
    let status = status.unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
