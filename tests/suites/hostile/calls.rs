//! Calls that are given up at any point of their way: the cancel cases of gRPC's interoperability tests.

use prost::Message;
use telexec_proto::v1::interact_request::Request as Step;
use telexec_proto::v1::{ExecuteRequest, InteractRequest, ListExecutionsRequest};
use telexec_tests::raw::{END_HEADERS, END_STREAM, Raw, call, frame, kind, message};
use telexec_tests::{Agent, Wire, marker, processes_with, until};

use super::{EXECUTE, INTERACT, call_frames, marked, opening};

const CANCEL: [u8; 4] = [0, 0, 0, 8];

async fn executions(wire: &Wire) -> usize {
    let request = ListExecutionsRequest { include_exited: true, ..Default::default() };
    wire.executions().list_executions(request).await.unwrap().into_inner().executions.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_before_its_request_runs_nothing() {
    let agent = Agent::start();
    let (wire, mark) = (Wire::connect(&agent).await.unwrap(), marker());
    let mut raw = Raw::connect(&agent).await;
    let whole = message(&marked("sleep 300", &mark).encode_to_vec());
    for (stream, path, part) in
        [(1, EXECUTE, 0), (3, EXECUTE, 3), (5, EXECUTE, whole.len() - 1), (7, INTERACT, 0), (9, INTERACT, 20)]
    {
        let part = frame(kind::DATA, 0, stream, &whole[..part]);
        let reset = frame(kind::RST_STREAM, 0, stream, &CANCEL);
        raw.write(&[opening(stream, path), part].concat()).await.unwrap();
        raw.lives().await;
        raw.write(&reset).await.unwrap();
        raw.lives().await;
    }
    assert_eq!((executions(&wire).await, processes_with(&mark)), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_after_its_first_answer_leaves_nothing() {
    let agent = Agent::start();
    let mark = marker();
    let mut raw = Raw::connect(&agent).await;
    let command = || marked("setsid sleep 300 & sleep 300", &mark);
    let interact = InteractRequest { request: Some(Step::Start(command())) };
    let interact = frame(kind::DATA, 0, 3, &message(&interact.encode_to_vec()));
    for (stream, frames) in [(1, call_frames(1, EXECUTE, &command())), (3, [opening(3, INTERACT), interact].concat())] {
        raw.write(&frames).await.unwrap();
        raw.until(|frame| (frame.stream, frame.kind) == (stream, kind::DATA)).await.unwrap();
        until("it runs", async || processes_with(&mark).len() >= 2).await;
        raw.write(&frame(kind::RST_STREAM, 0, stream, &CANCEL)).await.unwrap();
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        raw.lives().await;
    }
}

/// The end of a connection is the end of its calls, in whatever way it is signalled.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_in_any_way_leaves_nothing() {
    let agent = Agent::start();
    for last in [
        frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2]),
        frame(kind::DATA, 0, 0, &[1]),
        frame(kind::HEADERS, END_STREAM | END_HEADERS, 2, &call(EXECUTE)),
        frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
        frame(kind::PING, 0, 0, &[1]),
        vec![0xff; 9],
    ] {
        let (mark, mut raw) = (marker(), Raw::connect(&agent).await);
        let request: ExecuteRequest = marked("setsid sleep 300 & sleep 300", &mark);
        raw.write(&call_frames(1, EXECUTE, &request)).await.unwrap();
        until("it runs", async || processes_with(&mark).len() >= 2).await;
        raw.write(&last).await.unwrap();
        // after a GOAWAY its calls may continue
        if last[3] == kind::GOAWAY {
            drop(raw);
        } else {
            assert_eq!(raw.until(|_| false).await, None, "{last:?}");
        }
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}
