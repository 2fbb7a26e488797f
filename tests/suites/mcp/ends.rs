//! Ends: of calls, of clients, of the server.

use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use telexec_tests::{Agent, MARK, McpClient, directory, marker, processes_with, telexec_mcp, until, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// The server alone, and what is written to it.
pub(super) struct Bare {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<Lines<BufReader<ChildStdout>>>,
    reported: Vec<Value>,
}

impl Bare {
    pub(super) fn uninitialized(args: &[&str]) -> Self {
        let mut child = telexec_mcp(args).stderr(Stdio::null()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Self { child, input, output: output.map(|output| BufReader::new(output).lines()), reported: Vec::new() }
    }

    pub(super) async fn start(args: &[&str]) -> Self {
        let mut this = Self::uninitialized(args);
        let client = json!({ "name": "bare", "version": "1" });
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
        this.send(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }).to_string()).await;
        this.until(|message| message["id"] == 0).await;
        this.send("{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}").await;
        this
    }

    pub(super) async fn send(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        within(input.write_all(format!("{line}\n").as_bytes())).await.unwrap();
    }

    /// Calls bash, with progress.
    pub(super) async fn call(&mut self, id: u64, arguments: Value) {
        let params = json!({ "name": "bash", "arguments": arguments, "_meta": { "progressToken": id } });
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        self.send(&call.to_string()).await;
    }

    /// The next message that is so.
    pub(super) async fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = within(self.output.as_mut().unwrap().next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("the server ended after {:?}", self.reported));
            let message: Value = serde_json::from_str(&line).unwrap();
            self.reported.push(message.clone());
            if is_it(&message) {
                return message;
            }
        }
    }

    /// Closes its input; gives how it ended, and all that it sent.
    pub(super) async fn close(mut self) -> (ExitStatus, Vec<Value>) {
        self.input = None;
        self.ended().await
    }

    pub(super) async fn ended(mut self) -> (ExitStatus, Vec<Value>) {
        while let Some(line) = within(self.output.as_mut().unwrap().next_line()).await.unwrap() {
            self.reported.push(serde_json::from_str(&line).unwrap());
        }
        (within(self.child.wait()).await.unwrap(), self.reported)
    }
}

/// A command of three processes, two of which are in sessions of their own, one as an orphan; it says when they are there.
pub(super) fn tree(mark: &str) -> String {
    format!("export {MARK}={mark}; (setsid sleep 300 &); setsid sleep 300 & echo ready; sleep 300; :")
}

pub(super) async fn nothing_is_left(mark: &str) {
    until("no process is left", async || processes_with(mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_leaves_no_process() {
    let agent = Agent::start();
    for target in [agent.uri(), "local"] {
        let mut client = McpClient::start(&[target]).await;
        for (tool, parameter) in [("bash", "command"), ("exec_command", "cmd")] {
            let mark = marker();
            let arguments = json!({ parameter: tree(&mark) });
            let id = client.ask(json!({ "call": tool, "arguments": arguments, "progress": true })).await;
            client.event(|event| event["id"] == id && event["message"].to_string().contains("ready")).await;
            assert!(processes_with(&mark).len() >= 3);
            client.cancel(id).await;
            nothing_is_left(&mark).await;
        }
        assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_spares_the_others() {
    let mut client = McpClient::start(&["local"]).await;
    let (one, two) = (marker(), marker());
    let mut ids = Vec::new();
    for mark in [&one, &two] {
        let arguments = json!({ "command": tree(mark) });
        let id = client.ask(json!({ "call": "bash", "arguments": arguments, "progress": true })).await;
        client.event(|event| event["id"] == id && event["message"] == "ready\n").await;
        ids.push(id);
    }
    client.cancel(ids[0]).await;
    nothing_is_left(&one).await;
    assert!(processes_with(&two).len() >= 3);
    client.close().await;
    nothing_is_left(&two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_leaves_neither_server_nor_command() {
    let agent = Agent::start();
    let (server, mark) = (marker(), marker());
    let mut client = McpClient::start(&["--deny", &server, agent.uri()]).await;
    let arguments = json!({ "command": tree(&mark) });
    let id = client.ask(json!({ "call": "bash", "arguments": arguments, "progress": true })).await;
    client.event(|event| event["id"] == id && event["message"] == "ready\n").await;
    client.kill().await;
    nothing_is_left(&mark).await;
    nothing_is_left(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_its_input_ends_the_server_and_what_is_bound_to_it() {
    let agent = Agent::start();
    for target in [agent.uri(), "local"] {
        let (mut bare, mark) = (Bare::start(&[target]).await, marker());
        bare.call(1, json!({ "command": tree(&mark) })).await;
        bare.until(|message| message["params"]["message"] == "ready\n").await;
        let (status, _) = bare.close().await;
        assert_eq!(status.code(), Some(0));
        nothing_is_left(&mark).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_the_target_local_end_with_the_server() {
    let (mut client, mark) = (McpClient::start(&["local"]).await, marker());
    client.text("exec_command", json!({ "cmd": tree(&mark), "yield_time_ms": 0 })).await;
    until("it runs", async || processes_with(&mark).len() >= 3).await;
    client.close().await;
    nothing_is_left(&mark).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_server_and_what_is_bound_to_it() {
    let agent = Agent::start();
    for target in [agent.uri(), "local"] {
        let (mut bare, mark) = (Bare::start(&[target]).await, marker());
        bare.call(1, json!({ "command": tree(&mark) })).await;
        bare.until(|message| message["params"]["message"] == "ready\n").await;
        let pid = Pid::from_raw(i32::try_from(bare.child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(bare.ended().await.0.code(), Some(128 + 15));
        nothing_is_left(&mark).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hears_nothing_more_is_gone() {
    let agent = Agent::start();
    let (mut bare, mark) = (Bare::start(&[agent.uri()]).await, marker());
    // it says something now and then, or it would not be noticed
    bare.call(1, json!({ "command": format!("export {MARK}={mark}; while echo ready; do sleep 0.05; done") })).await;
    bare.until(|message| message["params"]["message"] == "ready\n").await;
    bare.output = None;
    assert_eq!(within(bare.child.wait()).await.unwrap().code(), Some(0));
    nothing_is_left(&mark).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_up_no_command() {
    let place = directory();
    let done = place.path().join("done");
    let mut bare = Bare::start(&["local"]).await;
    bare.call(1, json!({ "command": format!("seq 5000000; touch {}", done.display()) })).await;
    until("the command has ended", async || done.exists()).await;
    let (status, _) = bare.close().await;
    assert_eq!(status.code(), Some(0));
}

/// The agent waits for it as for any client that has lost its connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_leaves_nothing_for_longer_than_that() {
    let agent = Agent::start();
    let mark = marker();
    let mut server = Bare::start(&["--reconnect", "2s", agent.uri()]).await;
    server.call(1, json!({ "command": tree(&mark) })).await;
    server.until(|message| message["params"]["message"] == "ready\n").await;
    server.child.kill().await.unwrap();
    nothing_is_left(&mark).await;
}
