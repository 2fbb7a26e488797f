//! SIGTERM in the midst of it all.

use telexec_proto::v1::{DisconnectPolicy, ExecuteRequest};
use telexec_tests::raw::{PREFACE, Raw, frame, kind};
use telexec_tests::{Agent, Certs, Wire, follow, marker, processes_with, until};

use super::{EXECUTE, INTERACT, call_frames, marked, opening, streams};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_and_nobody_keeps_the_agent_and_nothing_is_left() {
    let certs = Certs::new();
    let config = "shutdown_grace = \"200ms\"\nkill_grace = \"200ms\"";
    let mut agent = Agent::builder().mtls(&certs).config(config).start();
    let tls = || certs.config(Some(&certs.client));
    let mark = marker();

    // strangers, and such that do not begin
    let mut open = Vec::new();
    for words in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let mut raw = Raw::dial(&agent).await;
        raw.write(words).await.unwrap();
        open.push(raw);
    }
    for words in [&b""[..], PREFACE] {
        let mut raw = Raw::dial_tls(&agent, tls()).await;
        raw.write(words).await.unwrap();
        open.push(raw);
    }
    // streams by the hundred, with and without a request, none of whose answers is read
    let mut raw = Raw::dial_tls(&agent, tls()).await.begin().await;
    let flood = marked("trap '' TERM; yes & while :; do sleep 300; done", &mark);
    let frames = streams().take(100).flat_map(|stream| match stream < 10 {
        true => call_frames(stream, EXECUTE, &flood),
        false => opening(stream, INTERACT),
    });
    raw.write(&frames.collect::<Vec<u8>>()).await.unwrap();
    // and headers that do not end
    raw.write(&frame(kind::HEADERS, 0, 1001, &[])).await.unwrap();
    open.push(raw);
    // in the background, some of them without anyone who reads
    let wire = Wire::connect_tls(&agent, tls()).await.unwrap();
    let on_disconnect = DisconnectPolicy::Detach.into();
    let background = ExecuteRequest { on_disconnect, ..marked("setsid sleep 300 & sleep 300", &mark) };
    let followed = wire.executions().execute(background.clone()).await.unwrap().into_inner();
    let other = Wire::connect_tls(&agent, tls()).await.unwrap();
    let unread = other.executions().execute(background).await.unwrap();
    other.cut();
    until("all run", async || processes_with(&mark).len() >= 5 * 3 + 2 * 3).await;
    drop(unread);

    assert!(agent.terminate().await.success());
    assert_eq!(processes_with(&mark), []);
    assert!(follow(followed).await.exited().is_some());
}
