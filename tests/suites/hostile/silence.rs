//! Peers that connect, and say nothing, half of it or something else.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use telexec_tests::raw::{PREFACE, Raw, frame, kind};
use telexec_tests::{Agent, Certs, Wire};

use super::while_others_are_served;

/// Through every door, as one that may come in.
struct Doors {
    certs: Certs,
    agents: [Agent; 3],
}

impl Doors {
    fn new() -> Self {
        let certs = Certs::new();
        let agents = [Agent::start(), Agent::builder().tcp().start(), Agent::builder().mtls(&certs).start()];
        Self { certs, agents }
    }

    async fn raw(&self, agent: &Agent) -> Raw {
        match std::ptr::eq(agent, &self.agents[2]) {
            true => Raw::dial_tls(agent, self.certs.config(Some(&self.certs.client))).await,
            false => Raw::dial(agent).await,
        }
    }

    async fn wire(&self, agent: &Agent) -> Wire {
        match std::ptr::eq(agent, &self.agents[2]) {
            true => Wire::connect_tls(agent, self.certs.config(Some(&self.certs.client))).await.unwrap(),
            false => Wire::connect(agent).await.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_begin_is_not_waited_for() {
    let doors = Doors::new();
    let begin = Instant::now();
    let mut silent = Vec::new();
    for agent in &doors.agents {
        for half in [&b""[..], b"P", &PREFACE[..PREFACE.len() - 1]] {
            for _ in 0..20 {
                let mut raw = doors.raw(agent).await;
                raw.write(half).await.unwrap();
                silent.push(raw);
            }
        }
    }
    let [agent, ..] = &doors.agents;
    let wire = doors.wire(agent).await;
    while_others_are_served(agent, &wire, async {
        for mut raw in silent {
            assert_eq!(raw.until(|_| false).await, None, "it is closed");
        }
    })
    .await;
    // none before its time
    assert!(begin.elapsed() >= Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_something_else_is_turned_away_at_once() {
    let doors = Doors::new();
    let words: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        &[0; 1000],
        &[0xff],
    ];
    for agent in &doors.agents {
        let begin = Instant::now();
        for words in words {
            let mut raw = doors.raw(agent).await;
            // it may be closed before all was written
            let _ = raw.write(words).await;
            assert_eq!(raw.until(|_| false).await, None, "it is closed");
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing was waited for");
    }
}

/// A slow network delivers it so.
#[tokio::test(flavor = "multi_thread")]
async fn who_begins_byte_by_byte_is_served() {
    let doors = Doors::new();
    for agent in &doors.agents {
        let mut raw = doors.raw(agent).await;
        for byte in [PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat() {
            raw.write(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        raw.lives().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn none_of_them_keeps_the_agent() {
    let doors = Doors::new();
    let mut silent = Vec::new();
    for agent in &doors.agents {
        for bytes in [&b""[..], &PREFACE[..10], PREFACE, &[PREFACE, &[0, 0]].concat()] {
            let mut raw = doors.raw(agent).await;
            raw.write(bytes).await.unwrap();
            silent.push(raw);
        }
        let mut raw = doors.raw(agent).await.begin().await;
        // headers that do not end
        raw.write(&frame(kind::HEADERS, 0, 1, &[])).await.unwrap();
        silent.push(raw);
    }
    let begin = Instant::now();
    for mut agent in doors.agents {
        agent.signal(Signal::TERM);
        assert!(agent.ended().await.success());
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "no keepalive was waited for");
}
