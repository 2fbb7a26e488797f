//! `ExecutionEvent` and [`Event`].

use std::sync::Arc;

use telexec_executor::{Event, ExecutionId, ExecutionInfo, ExecutorError, ExitCause, Exited, Output, OutputStream};
use telexec_executor::{Signal, Started, StreamTotals, Usage};

use super::execution::{execution_from_wire, execution_to_wire};
use super::time::{duration_to_wire, reported_duration, reported_time};
use super::unexpected;
use crate::v1::{self, ExecutionEvent, execution_event};

/// An event of this execution as it travels.
pub fn event_to_wire(event: Event, id: &ExecutionId) -> ExecutionEvent {
    let mut position = 0;
    let event = match event {
        Event::Started(started) => execution_event::Event::Started(v1::Started {
            execution_id: started.id.to_string(),
            pid: started.pid,
            start_time: Some(started.start_time.into()),
        }),
        Event::Output(output) => {
            position = output.position;
            match output.stream {
                OutputStream::Stdout => execution_event::Event::Stdout(output.data),
                OutputStream::Stderr => execution_event::Event::Stderr(output.data),
            }
        }
        Event::Gap(resume_position) => execution_event::Event::Gap(v1::Gap { resume_position }),
        Event::Exited(exited) => execution_event::Event::Exited(exited_to_wire(exited)),
        Event::Promoted => execution_event::Event::Promoted(v1::Promoted { execution_id: id.to_string() }),
    };
    ExecutionEvent { event: Some(event), position }
}

/// The answer to a command that runs already.
pub fn already_running_to_wire(info: ExecutionInfo) -> ExecutionEvent {
    let event = v1::AlreadyRunning { execution: Some(execution_to_wire(info)) };
    ExecutionEvent { event: Some(execution_event::Event::AlreadyRunning(event)), position: 0 }
}

/// An event that arrived.
///
/// # Errors
/// [`ExecutorError::AlreadyRunning`] if it is that, or the agent sent what this side does not understand.
pub fn event_from_wire(wire: ExecutionEvent) -> Result<Event, ExecutorError> {
    let position = wire.position;
    let output = |stream, data| Event::Output(Output { stream, data, position });
    match wire.event.ok_or_else(|| unexpected("an empty event"))? {
        execution_event::Event::Started(started) => Ok(Event::Started(Started {
            id: started.execution_id.parse().map_err(|_| unexpected("a malformed execution_id"))?,
            pid: started.pid,
            start_time: reported_time(started.start_time),
        })),
        execution_event::Event::Stdout(data) => Ok(output(OutputStream::Stdout, data)),
        execution_event::Event::Stderr(data) => Ok(output(OutputStream::Stderr, data)),
        execution_event::Event::Gap(gap) => Ok(Event::Gap(gap.resume_position)),
        execution_event::Event::Exited(exited) => exited_from_wire(exited).map(Event::Exited),
        execution_event::Event::Promoted(_) => Ok(Event::Promoted),
        execution_event::Event::AlreadyRunning(running) => {
            Err(ExecutorError::AlreadyRunning(Box::new(execution_from_wire(running.execution)?)))
        }
    }
}

/// An exit record as it travels.
pub fn exited_to_wire(exited: Exited) -> v1::Exited {
    let cause = match exited.cause {
        ExitCause::Exited(_) => v1::ExitCause::Exited,
        ExitCause::Signaled => v1::ExitCause::Signaled,
        ExitCause::TimedOut => v1::ExitCause::TimedOut,
        ExitCause::Cancelled => v1::ExitCause::Cancelled,
        ExitCause::DeadlineExceeded => v1::ExitCause::DeadlineExceeded,
        ExitCause::OutOfMemory => v1::ExitCause::OutOfMemory,
        ExitCause::Shutdown => v1::ExitCause::AgentShutdown,
    };
    v1::Exited {
        exit_code: exited.exit_code(),
        cause: cause.into(),
        signal: exited.signal.map_or(0, Signal::number),
        signal_name: exited.signal.map(|signal| signal.to_string()).unwrap_or_default(),
        core_dumped: exited.core_dumped,
        wall_time: Some(duration_to_wire(exited.wall_time)),
        user_time: Some(duration_to_wire(exited.user_time)),
        system_time: Some(duration_to_wire(exited.system_time)),
        max_rss_bytes: exited.max_rss_bytes,
        stdout: Some(totals_to_wire(exited.stdout)),
        stderr: Some(totals_to_wire(exited.stderr)),
        surviving_processes: exited.surviving_processes,
        working_directory: exited.working_directory.unwrap_or_default(),
        end_time: Some(exited.end_time.into()),
        usage: usage_to_wire(exited.usage),
        receipt: exited.receipt.as_deref().cloned().unwrap_or_default(),
    }
}

pub(super) fn exited_from_wire(wire: v1::Exited) -> Result<Exited, ExecutorError> {
    let cause = match v1::ExitCause::try_from(wire.cause) {
        Ok(v1::ExitCause::Exited) => {
            ExitCause::Exited(u8::try_from(wire.exit_code).map_err(|_| unexpected("an exit code out of range"))?)
        }
        Ok(v1::ExitCause::Signaled) => ExitCause::Signaled,
        Ok(v1::ExitCause::TimedOut) => ExitCause::TimedOut,
        Ok(v1::ExitCause::Cancelled) => ExitCause::Cancelled,
        Ok(v1::ExitCause::DeadlineExceeded) => ExitCause::DeadlineExceeded,
        Ok(v1::ExitCause::OutOfMemory) => ExitCause::OutOfMemory,
        Ok(v1::ExitCause::AgentShutdown) => ExitCause::Shutdown,
        Ok(v1::ExitCause::Unspecified) | Err(_) => return Err(unexpected("an unknown cause of an exit")),
    };
    Ok(Exited {
        cause,
        signal: Signal::from_number(wire.signal),
        core_dumped: wire.core_dumped,
        wall_time: reported_duration(wire.wall_time),
        user_time: reported_duration(wire.user_time),
        system_time: reported_duration(wire.system_time),
        max_rss_bytes: wire.max_rss_bytes,
        stdout: totals_from_wire(wire.stdout),
        stderr: totals_from_wire(wire.stderr),
        surviving_processes: wire.surviving_processes,
        working_directory: Some(wire.working_directory).filter(|path| !path.is_empty()),
        end_time: reported_time(wire.end_time),
        usage: usage_from_wire(wire.usage),
        receipt: Some(wire.receipt).filter(|receipt| !receipt.is_empty()).map(Arc::new),
    })
}

pub(super) fn usage_to_wire(usage: Usage) -> Option<v1::Usage> {
    let wire = v1::Usage {
        user_time: usage.user_time.map(duration_to_wire),
        system_time: usage.system_time.map(duration_to_wire),
        peak_memory_bytes: usage.peak_memory_bytes,
        read_bytes: usage.read_bytes,
        written_bytes: usage.written_bytes,
        peak_processes: usage.peak_processes,
    };
    (usage != Usage::default()).then_some(wire)
}

pub(super) fn usage_from_wire(wire: Option<v1::Usage>) -> Usage {
    let wire = wire.unwrap_or_default();
    let time = |time: Option<_>| time.is_some().then(|| reported_duration(time));
    Usage {
        user_time: time(wire.user_time),
        system_time: time(wire.system_time),
        peak_memory_bytes: wire.peak_memory_bytes,
        read_bytes: wire.read_bytes,
        written_bytes: wire.written_bytes,
        peak_processes: wire.peak_processes,
    }
}

fn totals_to_wire(totals: StreamTotals) -> v1::StreamTotals {
    v1::StreamTotals { bytes: totals.bytes, dropped_bytes: totals.dropped_bytes, incomplete: totals.incomplete }
}

fn totals_from_wire(wire: Option<v1::StreamTotals>) -> StreamTotals {
    let wire = wire.unwrap_or_default();
    StreamTotals { bytes: wire.bytes, dropped_bytes: wire.dropped_bytes, incomplete: wire.incomplete }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn every_cause_survives_the_wire() {
        for cause in ExitCause::ALL.into_iter().chain([ExitCause::Exited(255)]) {
            let event = Event::Exited(Exited {
                cause,
                signal: Signal::from_number(9),
                core_dumped: true,
                wall_time: Duration::from_millis(1),
                user_time: Duration::from_millis(2),
                system_time: Duration::from_millis(3),
                max_rss_bytes: 4,
                stdout: StreamTotals { bytes: 5, dropped_bytes: 6, incomplete: true },
                stderr: StreamTotals::default(),
                surviving_processes: 7,
                working_directory: Some("/".to_owned()),
                end_time: SystemTime::UNIX_EPOCH,
                usage: Usage {
                    user_time: Some(Duration::from_millis(8)),
                    system_time: Some(Duration::ZERO),
                    peak_memory_bytes: Some(9),
                    read_bytes: Some(0),
                    written_bytes: None,
                    peak_processes: Some(10),
                },
                receipt: Some(Arc::new("{}".to_owned())),
            });
            assert_eq!(event_from_wire(event_to_wire(event.clone(), &ExecutionId::generate())).unwrap(), event);
        }
    }
}
