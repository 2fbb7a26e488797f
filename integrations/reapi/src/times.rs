//! When the steps of an action were, by the clock of this machine: whatever that of the target says, they are in order.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;
use bazel_remote_apis::google::protobuf;

/// Beginnings and ends, as far as the action came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    begun: SystemTime,
    pub(crate) inputs: Option<SystemTime>,
    /// When the command ended, and how long it ran.
    pub(crate) run: Option<(SystemTime, Duration)>,
    pub(crate) upload: Option<(SystemTime, SystemTime)>,
}

impl Times {
    pub(crate) fn begin() -> Self {
        Self { begun: SystemTime::now(), inputs: None, run: None, upload: None }
    }

    pub(crate) fn to_wire(self, worker: &str) -> reapi::ExecutedActionMetadata {
        let upload = self.upload;
        let run = self.run.map(|(end, length)| {
            // the agent's clock may run faster than this one
            let start = end.checked_sub(length).unwrap_or(UNIX_EPOCH).max(self.inputs.unwrap_or(self.begun));
            (start, end.max(start), length)
        });
        reapi::ExecutedActionMetadata {
            worker: worker.to_owned(),
            worker_start_timestamp: Some(timestamp(self.begun)),
            input_fetch_start_timestamp: Some(timestamp(self.begun)),
            input_fetch_completed_timestamp: self.inputs.map(timestamp),
            execution_start_timestamp: run.map(|(start, ..)| timestamp(start)),
            execution_completed_timestamp: run.map(|(_, end, _)| timestamp(end)),
            virtual_execution_duration: run.map(|(.., length)| duration(length)),
            output_upload_start_timestamp: upload.map(|(start, _)| timestamp(start)),
            output_upload_completed_timestamp: upload.map(|(_, end)| timestamp(end)),
            worker_completed_timestamp: upload.map(|(_, end)| timestamp(end)),
            ..Default::default()
        }
    }
}

/// What each step took, in milliseconds, for the log: the start and the end of a command are a part of its step.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds =
            |from: SystemTime, to: SystemTime| to.duration_since(from).unwrap_or_default().as_secs_f64() * 1000.0;
        if let Some(inputs) = self.inputs {
            write!(f, "inputs {:.1} ms", milliseconds(self.begun, inputs))?;
        }
        if let (Some(inputs), Some((_, wall)), Some((uploading, uploaded))) = (self.inputs, self.run, self.upload) {
            let (run, upload) = (milliseconds(inputs, uploading), milliseconds(uploading, uploaded));
            write!(
                f,
                ", run {run:.1} ms ({:.1} ms of it the command), outputs {upload:.1} ms",
                wall.as_secs_f64() * 1000.0
            )?;
        }
        Ok(())
    }
}

fn timestamp(time: SystemTime) -> protobuf::Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let protobuf::Duration { seconds, nanos } = duration(since);
    protobuf::Timestamp { seconds, nanos }
}

fn duration(length: Duration) -> protobuf::Duration {
    let nanos = i32::try_from(length.subsec_nanos()).unwrap_or_default();
    protobuf::Duration { seconds: i64::try_from(length.as_secs()).unwrap_or(i64::MAX), nanos }
}

/// A length of time, if it is one.
pub(crate) fn length(duration: protobuf::Duration) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(duration.seconds).ok()?, u32::try_from(duration.nanos).ok()?);
    (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_not_negative() {
        assert_eq!(length(protobuf::Duration { seconds: 2, nanos: 500_000_000 }), Some(Duration::from_millis(2500)));
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MIN, i32::MIN)] {
            assert_eq!(length(protobuf::Duration { seconds, nanos }), None);
        }
    }
}
