//! `Run`: a whole execution in one response.

use futures_util::StreamExt;
use telexec_executor::{Event, Execution, ExecutorError, ExitCause, OutputStream, StreamTotals};
use telexec_proto::convert::{error_to_status, exited_to_wire};
use telexec_proto::v1::RunResponse;
use tonic::Status;

use crate::request_memory::Reservation;

/// The limit for each stream: two of them, and the rest, fit the 4 MiB that gRPC clients accept by default.
const MAX_TEXT_BYTES: usize = 2 * 1024 * 1024 - 64 * 1024;

/// Reads an execution to its end. Output above the limits is dropped, and counted as dropped.
pub(crate) async fn collect(mut execution: Execution, reservation: &Reservation) -> Result<RunResponse, Status> {
    let execution_id = execution.id().to_string();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = execution.next().await {
        match event.map_err(|error| error_to_status(&error))? {
            Event::Started(_) | Event::Gap(_) => {}
            Event::Promoted => {
                let mut totals = StreamTotals::default();
                let (stdout, stderr) = (text(&stdout, &mut totals), text(&stderr, &mut totals));
                return Ok(RunResponse { stdout, stderr, exited: None, execution_id });
            }
            Event::Output(output) => match output.stream {
                OutputStream::Stdout => keep(&mut stdout, &output.data, reservation),
                OutputStream::Stderr => keep(&mut stderr, &output.data, reservation),
            },
            Event::Exited(exited) if exited.cause == ExitCause::DeadlineExceeded => {
                return Err(error_to_status(&ExecutorError::DeadlineExceeded));
            }
            Event::Exited(mut exited) => {
                let stdout = text(&stdout, &mut exited.stdout);
                let stderr = text(&stderr, &mut exited.stderr);
                return Ok(RunResponse { stdout, stderr, exited: Some(exited_to_wire(exited)), execution_id });
            }
        }
    }
    Err(error_to_status(&ExecutorError::Internal("the execution reported no end".into())))
}

/// Keeps the beginning of a stream, up to one byte more than the limit, so that it shows whether there was more. Once
/// something is missing, nothing after it is kept.
fn keep(bytes: &mut Vec<u8>, more: &[u8], reservation: &Reservation) {
    let room = (MAX_TEXT_BYTES + 1).saturating_sub(bytes.len()).min(more.len());
    if reservation.add(room).is_ok() {
        bytes.extend_from_slice(more.get(..room).unwrap_or_default());
    }
}

/// The bytes as text, up to the limit; the rest is counted as dropped.
fn text(bytes: &[u8], totals: &mut StreamTotals) -> String {
    let mut text = String::new();
    let mut used = 0;
    for chunk in bytes.utf8_chunks() {
        let end = chunk.valid().floor_char_boundary(MAX_TEXT_BYTES.saturating_sub(text.len()));
        let valid = chunk.valid().get(..end).unwrap_or_default();
        text.push_str(valid);
        used += end;
        if end < chunk.valid().len() {
            break;
        }
        if !chunk.invalid().is_empty() {
            if text.len() + char::REPLACEMENT_CHARACTER.len_utf8() > MAX_TEXT_BYTES {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            used += chunk.invalid().len();
        }
    }
    totals.dropped_bytes = totals.bytes.saturating_sub(used as u64);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(bytes: &[u8]) -> (String, u64) {
        let mut totals = StreamTotals { bytes: bytes.len() as u64, ..Default::default() };
        (text(bytes, &mut totals), totals.dropped_bytes)
    }

    #[test]
    fn short_text_is_whole_and_lossy() {
        assert_eq!(checked(b"a\xffb"), ("a\u{fffd}b".into(), 0));
        assert_eq!(checked(b""), (String::new(), 0));
    }

    #[test]
    fn long_text_is_cut_between_characters_and_counted() {
        for bytes in [
            &b"x".repeat(MAX_TEXT_BYTES + 5),
            &"é€".repeat(MAX_TEXT_BYTES / 4).into_bytes(),
            &vec![255; MAX_TEXT_BYTES],
        ] {
            let (text, dropped) = checked(bytes);
            assert!(text.len() <= MAX_TEXT_BYTES && text.len() > MAX_TEXT_BYTES - 4, "{}", text.len());
            assert!(dropped > 0 && dropped < bytes.len() as u64);
        }
    }
}
