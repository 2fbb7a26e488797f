//! Streams by the thousand.

use telexec_tests::raw::{Answer, ENHANCE_YOUR_CALM, PREFACE, REFUSED_STREAM, Raw, frame, kind};
use telexec_tests::{Agent, Wire, lines, marker, processes_with, until};

use super::{EXECUTE, INTERACT, call_frames, deaf, marked, opening, streams, while_others_are_served};

const MAX_CONCURRENT_STREAMS: usize = 1024;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// What tonic and h2 leave unlimited by default is limited, and said so: nothing is left to their defaults.
#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_connection_are_advertised() {
    const KIB: u32 = 1024;
    let agent = Agent::start();
    let mut raw = Raw::dial(&agent).await;
    raw.write(&[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    let settings = raw.next().await.unwrap();
    assert_eq!((settings.kind, settings.flags, settings.stream), (kind::SETTINGS, 0, 0), "they come first");
    let mut settings: Vec<(u16, u32)> = settings
        .payload
        .chunks(6)
        .map(|pair| (u16::from_be_bytes([pair[0], pair[1]]), u32::from_be_bytes(pair[2..].try_into().unwrap())))
        .collect();
    settings.sort_unstable();
    let expected = [
        (1, 4 * KIB),    // HEADER_TABLE_SIZE
        (3, 1024),       // MAX_CONCURRENT_STREAMS
        (4, 1024 * KIB), // INITIAL_WINDOW_SIZE
        (5, 64 * KIB),   // MAX_FRAME_SIZE
        (6, 32 * KIB),   // MAX_HEADER_LIST_SIZE
    ];
    assert_eq!(settings, expected);
    let window = raw.until(|frame| frame.kind == kind::WINDOW_UPDATE).await.unwrap();
    assert_eq!((window.stream, window.payload), (0, (8 * 1024 * KIB - 65_535).to_be_bytes().to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_over_the_limit_are_refused_and_the_others_go_on() {
    const EXCESS: usize = 100;
    let agent = Agent::start();
    let mut raw = Raw::connect(&agent).await;
    let mut free = streams();
    let opened: Vec<u32> = free.by_ref().take(MAX_CONCURRENT_STREAMS + EXCESS).collect();
    let frames: Vec<u8> = opened.iter().flat_map(|stream| opening(*stream, INTERACT)).collect();
    raw.write(&frames).await.unwrap();
    let mut answer = Answer::default();
    while answer.resets.len() < EXCESS {
        answer.count([raw.next().await.expect("the connection lives")]);
    }
    raw.lives().await;
    let refused: Vec<(u32, u32)> =
        opened[MAX_CONCURRENT_STREAMS..].iter().map(|stream| (*stream, REFUSED_STREAM)).collect();
    assert_eq!(answer.resets, refused);
    // when one ends there is room for another
    raw.write(&frame(kind::RST_STREAM, 0, opened[0], &CANCEL)).await.unwrap();
    raw.lives().await;
    let stream = free.next().unwrap();
    raw.write(&call_frames(stream, EXECUTE, &marked("true", ""))).await.unwrap();
    let answered = raw.until(|frame| frame.stream == stream).await.unwrap();
    assert_eq!(answered.kind, kind::HEADERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_streams_on_one_connection_are_not_held() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for mut raw in [Raw::connect(&agent).await, deaf(&agent).await] {
        let flood = streams().take(10_000).map(|stream| opening(stream, INTERACT));
        let answer = while_others_are_served(&agent, &wire, raw.flood(flood)).await;
        // it refuses for a while, then closes
        assert!(answer.is_closed && answer.goaway == Some(ENHANCE_YOUR_CALM), "{answer:?}");
        assert!(answer.resets.iter().all(|(_, error)| *error == REFUSED_STREAM), "{answer:?}");
    }
}

/// CVE-2023-44487: each stream is reset as soon as it is opened, so that no limit of open streams is reached.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_reset_at_once_run_next_to_nothing_and_leave_nothing() {
    const RESETS: usize = 10_000;
    for at_once in [1, RESETS] {
        let agent = Agent::builder().config("kill_grace = \"0s\"").start();
        let (wire, mark, ran) = (Wire::connect(&agent).await.unwrap(), marker(), agent.directory().join("ran"));
        let request = marked(&format!("echo >> {}; setsid sleep 300 & sleep 300", ran.display()), &mark);
        let mut raw = Raw::connect(&agent).await;
        let reset = |stream: &u32| {
            [call_frames(*stream, EXECUTE, &request), frame(kind::RST_STREAM, 0, *stream, &CANCEL)].concat()
        };
        let all: Vec<u32> = streams().take(RESETS).collect();
        let flood = all.chunks(at_once).map(|streams| streams.iter().flat_map(reset).collect());
        let answer = while_others_are_served(&agent, &wire, raw.flood(flood)).await;
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        // one at a time an agent might keep up with
        if at_once > 1 {
            assert!(answer.is_closed && answer.goaway == Some(ENHANCE_YOUR_CALM), "{answer:?}");
            let ran = lines(&ran).len();
            assert!(ran < RESETS / 10, "{ran} ran");
        }
        Wire::connect(&agent).await.unwrap().executions().run(marked("true", "")).await.unwrap();
    }
}

/// The same by one that waits until its calls run.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_reset_once_they_run_leave_nothing() {
    let agent = Agent::builder().config("kill_grace = \"0s\"").start();
    let (wire, mark, ran) = (Wire::connect(&agent).await.unwrap(), marker(), agent.directory().join("ran"));
    let request = marked(&format!("echo >> {}; setsid sleep 300 & sleep 300", ran.display()), &mark);
    let mut raw = Raw::connect(&agent).await;
    while_others_are_served(&agent, &wire, async {
        for stream in streams().take(300) {
            raw.write(&call_frames(stream, EXECUTE, &request)).await.unwrap();
            raw.until(|frame| (frame.stream, frame.kind) == (stream, kind::HEADERS)).await.unwrap();
            raw.write(&frame(kind::RST_STREAM, 0, stream, &CANCEL)).await.unwrap();
        }
        raw.lives().await;
    })
    .await;
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    assert!(!lines(&ran).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn resets_of_streams_that_never_were_end_the_connection() {
    let agent = Agent::start();
    let mut raw = Raw::connect(&agent).await;
    raw.write(&frame(kind::RST_STREAM, 0, 1, &CANCEL)).await.unwrap();
    let goaway = raw.until(|frame| frame.kind == kind::GOAWAY).await.unwrap();
    assert_eq!(goaway.payload[4..8], [0, 0, 0, 1], "PROTOCOL_ERROR");
    assert_eq!(raw.until(|_| false).await, None);
}
