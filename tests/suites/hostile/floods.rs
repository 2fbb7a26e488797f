//! Frames that cost a peer nothing.

use std::iter::repeat_n;
use std::time::Duration;

use telexec_tests::raw::{ENHANCE_YOUR_CALM, Raw, frame, kind};
use telexec_tests::{Agent, Certs, Wire};

use super::{INTERACT, opening, while_others_are_served};

const FRAMES: usize = 100_000;
/// Of these frames, what goes into one write.
const AT_ONCE: usize = 200;

/// Floods and what becomes of the connection: it is closed, or lives as if nothing had been.
fn floods() -> Vec<(&'static str, Vec<u8>, bool)> {
    let small_window = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]);
    let large_window = frame(kind::SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0, 0]);
    vec![
        ("empty DATA", frame(kind::DATA, 0, 1, &[]), true),
        ("padded DATA", frame(kind::DATA, 8, 1, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0]), true),
        ("PING", frame(kind::PING, 0, 0, &[7; 8]), false),
        ("SETTINGS", frame(kind::SETTINGS, 0, 0, &[]), false),
        ("SETTINGS that change a window", [small_window, large_window].concat(), false),
        ("SETTINGS that were acknowledged", frame(kind::SETTINGS, 1, 0, &[]), true),
        ("WINDOW_UPDATE of the connection", frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), false),
        ("WINDOW_UPDATE of a stream", frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), false),
        ("WINDOW_UPDATE by nothing", frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), true),
        ("PRIORITY", frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 0, 16]), false),
        ("PRIORITY of streams that are not", frame(kind::PRIORITY, 0, 99_999, &[0, 0, 0, 0, 16]), false),
        ("unknown frames", frame(0xbe, 0xff, 1, &[0; 64]), false),
        ("RST_STREAM of idle streams", frame(kind::RST_STREAM, 0, 9, &[0; 4]), true),
        ("RST_STREAM of one stream", frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]), false),
    ]
}

/// Over TLS, with a certificate that counts: a caller with rights must not harm others either.
#[tokio::test(flavor = "multi_thread")]
async fn frames_by_the_hundred_thousand_are_absorbed_or_end_the_connection() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    let config = || certs.config(Some(&certs.client));
    let wire = Wire::connect_tls(&agent, config()).await.unwrap();
    for (name, frame, is_closed) in floods() {
        let mut raw = Raw::dial_tls(&agent, config()).await.begin().await;
        raw.write(&opening(1, INTERACT)).await.unwrap();
        let flood = repeat_n(frame.repeat(AT_ONCE), FRAMES / AT_ONCE);
        let answer = while_others_are_served(&agent, &wire, raw.flood(flood)).await;
        assert_eq!(answer.is_closed, is_closed, "{name}: {answer:?}");
    }
}

/// Each byte is one of a message that does not come to its end.
#[tokio::test(flavor = "multi_thread")]
async fn data_byte_by_byte_is_absorbed_or_ends_the_connection() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let mut raw = Raw::connect(&agent).await;
    raw.write(&[opening(1, INTERACT), frame(kind::DATA, 0, 1, &[0, 0, 0x30, 0, 0])].concat()).await.unwrap();
    let flood = repeat_n(frame(kind::DATA, 0, 1, &[7]).repeat(AT_ONCE), FRAMES / AT_ONCE);
    let answer = while_others_are_served(&agent, &wire, raw.flood(flood)).await;
    assert_eq!(answer.goaway, answer.is_closed.then_some(ENHANCE_YOUR_CALM), "{answer:?}");
}

/// A peer that asks and does not listen: the agent takes no more questions until its answers are taken.
#[tokio::test(flavor = "multi_thread")]
async fn questions_whose_answers_nobody_reads_are_not_taken() {
    const MOST: usize = 64 * 1024 * 1024;
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for (name, question) in [("PING", frame(kind::PING, 0, 0, &[7; 8])), ("SETTINGS", frame(kind::SETTINGS, 0, 0, &[]))]
    {
        let mut raw = Raw::connect(&agent).await;
        let questions = question.repeat(1000);
        let flood = raw.write_until_stuck(&questions, Duration::from_secs(1), MOST);
        let taken = while_others_are_served(&agent, &wire, flood).await;
        assert!(taken < MOST, "{name}: {taken} bytes were taken");
    }
}

/// The answer to each call is an error that does not get through: the peer has no window for it, or does not read.
#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_answers_nobody_reads_are_not_taken() {
    const MOST: usize = 16 * 1024 * 1024;
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let mut raw = Raw::connect(&agent).await;
    let calls: Vec<u8> = (3..400_000).step_by(2).flat_map(|stream| opening(stream, "/no/such")).collect();
    let flood = raw.write_until_stuck(&calls, Duration::from_secs(1), MOST.min(calls.len()));
    let taken = while_others_are_served(&agent, &wire, flood).await;
    assert!(taken < MOST.min(calls.len()), "{taken}");
}
