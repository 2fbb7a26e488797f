//! Headers without an end, and such that are larger than they look.

use std::iter::repeat_n;

use telexec_tests::raw::{END_HEADERS, END_STREAM, Raw, call, frame, header, header_to_keep, kind};
use telexec_tests::{Agent, Wire};
use tower::Service;

use super::{EXECUTE, deaf, while_others_are_served};

/// The size that every agent takes.
const FRAME_BYTES: usize = 16 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_an_end_end_the_connection() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let of_one_byte = header("a", "");
    let large = header("large", &"x".repeat(FRAME_BYTES - 100));
    let many: Vec<u8> = (0..1000).flat_map(|i| header(&format!("n{i}"), "x")).collect();
    // the beginning of a value that takes all that follows
    let endless = [&[0, 1, b'n', 127, 0xff, 0xff, 0xff, 0x7f][..], &[b'x'; 8 * 1024]].concat();
    let more = vec![b'x'; FRAME_BYTES];
    for (name, first, next) in [
        ("empty", &call(EXECUTE), &vec![]),
        ("of a byte", &call(EXECUTE), &of_one_byte),
        ("large", &call(EXECUTE), &large),
        ("many", &call(EXECUTE), &many),
        ("one without an end", &endless, &more),
    ] {
        for mut raw in [Raw::connect(&agent).await, deaf(&agent).await] {
            let first = frame(kind::HEADERS, END_STREAM, 1, first);
            let flood = [first].into_iter().chain(repeat_n(frame(kind::CONTINUATION, 0, 1, next), 10_000));
            let answer = while_others_are_served(&agent, &wire, raw.flood(flood)).await;
            assert!(answer.is_closed, "{name}: {answer:?}");
        }
    }
}

/// It looks like a few kilobytes, and each byte of it stands for four thousand.
#[tokio::test(flavor = "multi_thread")]
async fn references_to_a_large_entry_of_the_table_cost_no_memory() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for mut raw in [Raw::connect(&agent).await, deaf(&agent).await] {
        let entry = header_to_keep("bomb", &"x".repeat(4000));
        let bomb = |stream: u32| {
            let block = [call(EXECUTE), entry.clone(), vec![0xbe; 8 * 1024]].concat();
            frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &block)
        };
        let answer = while_others_are_served(&agent, &wire, raw.flood((1..4_000).step_by(2).map(bomb))).await;
        assert!(answer.is_closed, "{answer:?}");
    }
}

async fn status(wire: &Wire, metadata: usize) -> Option<http::StatusCode> {
    let request = http::Request::post(format!("http://localhost{EXECUTE}")).header("content-type", "application/grpc");
    let request = (0..metadata / 1024).fold(request, |request, i| request.header(format!("x-{i}"), "x".repeat(1000)));
    let answer = wire.clone().call(request.body(tonic::body::Body::empty()).unwrap()).await;
    answer.ok().map(|answer| answer.status())
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_over_the_limit_is_refused_and_the_connection_lives() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    assert_eq!(status(&wire, 16 * 1024).await, Some(http::StatusCode::OK));
    assert_eq!(status(&wire, 40 * 1024).await, Some(http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    assert_eq!(status(&wire, 16 * 1024).await, Some(http::StatusCode::OK));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mebibyte_of_metadata_is_refused() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let hostile = Wire::connect(&agent).await.unwrap();
    let answer = while_others_are_served(&agent, &wire, status(&hostile, 1024 * 1024)).await;
    assert!(matches!(answer, None | Some(http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)), "{answer:?}");
}
