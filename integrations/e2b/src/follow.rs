//! The stream of a process: its start, output, and end.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use telexec_executor::{Event, Execution, ExitCause, Exited, Output, OutputStream, Signal};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::failure::{Code, Failure, put};

/// Longer than anything lives.
const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

pub(crate) struct Following {
    pub(crate) execution: Execution,
    pub(crate) has_terminal: bool,
    pub(crate) keepalive: Duration,
    /// Of the stream, not of the process.
    pub(crate) limit: Option<Duration>,
    /// The sandbox is gone.
    pub(crate) ended: CancellationToken,
}

pub(crate) fn too_late() -> Failure {
    Failure::new(Code::DeadlineExceeded, "the time of the call is over")
}

pub(crate) fn events(following: Following) -> BoxStream<'static, Result<Value, Failure>> {
    let Following { mut execution, has_terminal, keepalive, limit, ended } = following;
    let now = Instant::now();
    let mut keepalives = interval_at(now + keepalive, keepalive);
    keepalives.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = now + limit.unwrap_or(NEVER);
    let events = stream::poll_fn(move |cx| execution.poll_next_unpin(cx));
    let state = Some((events, keepalives, ended));
    let steps = stream::unfold(state, move |state| async move {
        let (mut events, mut keepalives, ended) = state?;
        let step = tokio::select! {
            biased;
            () = ended.cancelled() => Step::Last(Err(Failure::gone())),
            event = events.next() => step(event, has_terminal),
            () = sleep_until(end) => Step::Last(Err(too_late())),
            _ = keepalives.tick() => Step::Next(json!({"keepalive": {}})),
        };
        Some(match step {
            Step::Next(event) => (Ok(json!({"event": event})), Some((events, keepalives, ended))),
            Step::Last(event) => (event.map(|event| json!({"event": event})), None),
        })
    });
    steps.boxed()
}

enum Step {
    Next(Value),
    Last(Result<Value, Failure>),
}

fn step(event: Option<Result<Event, telexec_executor::ExecutorError>>, has_terminal: bool) -> Step {
    match event {
        Some(Ok(Event::Started(started))) => Step::Next(json!({"start": {"pid": started.pid}})),
        Some(Ok(Event::Output(output))) => Step::Next(data(&output, has_terminal)),
        Some(Ok(Event::Exited(exited))) => Step::Last(end(&exited)),
        Some(Ok(Event::Gap(position))) => {
            let message = format!("output before byte {position} is no longer kept");
            Step::Last(Err(Failure::new(Code::DataLoss, message)))
        }
        Some(Err(error)) => Step::Last(Err(error.into())),
        Some(Ok(Event::Promoted)) | None => {
            Step::Last(Err(Failure::new(Code::Unavailable, "the agent no longer follows the process")))
        }
    }
}

fn data(output: &Output, has_terminal: bool) -> Value {
    let stream = match output.stream {
        _ if has_terminal => "pty",
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    json!({"data": {stream: STANDARD.encode(&output.data)}})
}

/// As Go words it, which envd is written in.
fn end(exited: &Exited) -> Result<Value, Failure> {
    let ended = |code: i32, status: String| {
        let mut end = json!({"exitCode": code, "exited": code >= 0, "status": status});
        if code != 0 {
            put(&mut end, "error", status);
        }
        Ok(json!({"end": end}))
    };
    match exited.cause {
        ExitCause::Exited(code) => ended(code.into(), format!("exit status {code}")),
        ExitCause::Signaled => ended(-1, signal_text(exited.signal)),
        ExitCause::OutOfMemory => ended(-1, "signal: killed (out of memory)".to_owned()),
        // by whom: only this program, or an operator
        ExitCause::Cancelled => ended(-1, signal_text(exited.signal)),
        ExitCause::TimedOut | ExitCause::DeadlineExceeded => Err(too_late()),
        ExitCause::Shutdown => Err(Failure::new(Code::Unavailable, "the agent has shut down, and ended the process")),
    }
}

fn signal_text(signal: Option<Signal>) -> String {
    match signal {
        Some(Signal::KILL) => "signal: killed".to_owned(),
        Some(Signal::TERM) => "signal: terminated".to_owned(),
        Some(signal) => format!("signal: {signal}"),
        None => "signal: killed".to_owned(),
    }
}
