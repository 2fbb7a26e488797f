//! Peers that do what no client does: bytes by hand, floods and silence. Others are served meanwhile.

use std::time::Duration;

use prost::Message;
use telexec_proto::v1::{ExecuteRequest, GetAgentRequest};
use telexec_tests::raw::{END_HEADERS, END_STREAM, PREFACE, Raw, call, frame, kind, message};
use telexec_tests::{Agent, MARK, Memory, Wire};

mod calls;
mod floods;
mod headers;
mod messages;
mod places;
mod shutdown;
mod silence;
mod sources;
mod streams;
mod turns;

const EXECUTE: &str = "/telexec.v1.ExecutionService/Execute";
const INTERACT: &str = "/telexec.v1.ExecutionService/Interact";

/// What an agent may need more after all that a peer can send.
const MAX_GROWTH: u64 = 16 * 1024 * 1024;

/// Does this while another caller is served, again and again.
async fn while_others_are_served<T>(agent: &Agent, wire: &Wire, hostile: impl Future<Output = T>) -> T {
    // far longer than a call takes, on a machine that is busy with a flood too
    let ask = async || {
        let answer = tokio::time::timeout(Duration::from_secs(15), wire.agent().get_agent(GetAgentRequest {})).await;
        answer.expect("others are served meanwhile").expect("others are served");
    };
    ask().await;
    let before = Memory::of(agent.pid()).resident;
    let mut most = before;
    let others = async {
        loop {
            ask().await;
            most = most.max(Memory::of(agent.pid()).resident);
        }
    };
    let result = tokio::select! {
        result = hostile => result,
        () = others => unreachable!(),
    };
    ask().await;
    let grown = most.max(Memory::of(agent.pid()).resident) - before;
    eprintln!("grown by {} KiB", grown / 1024);
    assert!(grown < MAX_GROWTH, "the agent has grown by {grown} bytes");
    result
}

/// A command that leaves the mark in its environment.
fn marked(command: &str, mark: &str) -> ExecuteRequest {
    let environment = [(MARK.to_owned(), mark.to_owned())].into();
    ExecuteRequest { command: command.into(), environment, ..Default::default() }
}

/// The frames of a whole call.
fn call_frames(stream: u32, path: &str, request: &impl Message) -> Vec<u8> {
    let data = message(&request.encode_to_vec());
    [opening(stream, path), frame(kind::DATA, END_STREAM, stream, &data)].concat()
}

/// One that has not heard of the agent's limits, and shows it by silence.
async fn deaf(agent: &Agent) -> Raw {
    let mut raw = Raw::dial(agent).await;
    raw.write(&[PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    raw
}

/// The beginning of a call whose request is to follow.
fn opening(stream: u32, path: &str) -> Vec<u8> {
    frame(kind::HEADERS, END_HEADERS, stream, &call(path))
}

/// The streams of a client.
fn streams() -> impl Iterator<Item = u32> {
    (1..).step_by(2)
}
