//! A client of the Model Context Protocol that is not ours: the official SDK for Python.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::{program, within};

const CLIENT: &str = include_str!("mcp_client.py");

/// `telexec mcp` with these arguments, and an environment that does not configure it.
pub fn telexec_mcp(args: &[&str]) -> Command {
    unconfigured(Command::new(program("telexec")), &[&["mcp"], args].concat())
}

fn unconfigured(mut command: Command, args: &[&str]) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TELEXEC_")) {
        command.env_remove(name);
    }
    command.env_remove("TRACEPARENT").env("TELEXEC_CONFIG", "/dev/null").args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// A client, and its server `telexec mcp`.
pub struct McpClient {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    /// Who the server is: `server`, `protocol`, `instructions`.
    pub ready: Value,
    reported: Vec<Value>,
    last_id: u64,
}

impl McpClient {
    /// Connects to `telexec mcp` with these arguments.
    ///
    /// # Panics
    /// It cannot.
    pub async fn start(args: &[&str]) -> Self {
        Self::start_with("auto", args, &[]).await
    }

    /// The same in another mode of the SDK, `auto` or `legacy`, and with these variables in the server's environment.
    ///
    /// # Panics
    /// It cannot.
    pub async fn start_with(mode: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let telexec = program("telexec");
        Self::of(mode, &[&[telexec.to_str().unwrap(), "mcp"], args].concat(), variables).await
    }

    /// Calls a server by HTTP, with these variables in the client's environment.
    ///
    /// # Panics
    /// It cannot.
    pub async fn http(mode: &str, url: &str, variables: &[(&str, &str)]) -> Self {
        Self::of(mode, &[url], variables).await
    }

    async fn of(mode: &str, server: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = unconfigured(Command::new(python()), &[&["-c", CLIENT, mode], server].concat());
        let mut child = command.envs(variables.iter().copied()).spawn().expect("python runs");
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut this =
            Self { input: child.stdin.take(), child, output, ready: Value::Null, reported: Vec::new(), last_id: 0 };
        this.ready = this.event(|event| event["server"].is_object()).await;
        this
    }

    /// The tools, as they are listed.
    ///
    /// # Panics
    /// They are not.
    pub async fn tools(&mut self) -> Vec<Value> {
        let id = self.ask(json!({ "list": true })).await;
        self.answer(id).await["result"]["tools"].as_array().unwrap().clone()
    }

    /// Calls a tool, and waits for its result.
    ///
    /// # Panics
    /// There is none.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.ask(json!({ "call": tool, "arguments": arguments })).await;
        let answer = self.answer(id).await;
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// Calls a tool, and waits for the text of its result, which is no error.
    ///
    /// # Panics
    /// It is one.
    pub async fn text(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_ne!(result["isError"], true, "{result}");
        text(&result).to_owned()
    }

    /// Calls a tool, and waits for the text of its result, which is an error.
    ///
    /// # Panics
    /// It is none.
    pub async fn error(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        text(&result).to_owned()
    }

    /// Asks for something, and gives its id.
    ///
    /// # Panics
    /// The client is gone.
    pub async fn ask(&mut self, mut request: Value) -> u64 {
        self.last_id += 1;
        request["id"] = self.last_id.into();
        self.send(&request).await;
        self.last_id
    }

    /// Cancels what was asked for.
    ///
    /// # Panics
    /// The client is gone.
    pub async fn cancel(&mut self, id: u64) {
        self.send(&json!({ "id": id, "cancel": true })).await;
        self.event(|event| event["id"] == id && event["cancelled"] == true).await;
    }

    async fn send(&mut self, request: &Value) {
        let input = self.input.as_mut().expect("it is open");
        within(input.write_all(format!("{request}\n").as_bytes())).await.unwrap();
    }

    /// What became of something that was asked for.
    pub async fn answer(&mut self, id: u64) -> Value {
        self.event(|event| event["id"] == id && event.get("progress").is_none()).await
    }

    /// The progress reported so far: positions and messages.
    pub fn progress(&self, id: u64) -> Vec<(f64, &str)> {
        let reported = self.reported.iter().filter(|event| event["id"] == id);
        reported.filter_map(|event| Some((event["progress"].as_f64()?, event["message"].as_str()?))).collect()
    }

    /// The first such event, received already or yet to come.
    ///
    /// # Panics
    /// None is.
    pub async fn event(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(event) = self.reported.iter().find(|event| is_it(event)) {
            return event.clone();
        }
        loop {
            let line = within(self.output.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("the client ended after {:?}", self.reported));
            let event: Value = serde_json::from_str(&line).unwrap();
            self.reported.push(event.clone());
            if is_it(&event) {
                return event;
            }
        }
    }

    /// Lets the client close the connection as it does when it has finished.
    ///
    /// # Panics
    /// It fails.
    pub async fn close(mut self) {
        self.input = None;
        self.event(|event| event["closed"] == true).await;
        assert!(within(self.child.wait()).await.unwrap().success());
    }

    /// Ends the client at once, and nothing else.
    ///
    /// # Panics
    /// It has ended before.
    pub async fn kill(mut self) {
        within(self.child.kill()).await.unwrap();
    }
}

/// `telexec mcp --listen` on a loopback address.
pub struct McpServer {
    child: Child,
    /// Where it is called.
    pub url: String,
    log: Lines<BufReader<ChildStderr>>,
}

impl McpServer {
    /// Starts it with these arguments besides its address.
    ///
    /// # Panics
    /// It does not say where it is called.
    pub async fn start(args: &[&str]) -> Self {
        let mut command = telexec_mcp(&[&["--listen", "tcp://127.0.0.1:0"], args].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = within(log.next_line()).await.unwrap().expect("it says where it is called");
        let url = line.strip_prefix("telexec: MCP is served at ").expect(&line).to_owned();
        Self { child, url, log }
    }

    /// Waits for a line of its standard error with this text.
    ///
    /// # Panics
    /// There is none.
    pub async fn logged(&mut self, text: &str) {
        while let Some(line) = within(self.log.next_line()).await.unwrap() {
            if line.contains(text) {
                return;
            }
        }
        panic!("it ended without a line with {text:?}");
    }

    /// Its address without the scheme and the path.
    ///
    /// # Panics
    /// Never.
    pub fn address(&self) -> &str {
        self.url.split('/').nth(2).unwrap()
    }

    /// Its process.
    ///
    /// # Panics
    /// It has ended.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Its exit code.
    ///
    /// # Panics
    /// It does not end.
    pub async fn exit_code(mut self) -> Option<i32> {
        within(self.child.wait()).await.unwrap().code()
    }
}

/// The text of a result.
///
/// # Panics
/// It is not one text.
pub fn text(result: &Value) -> &str {
    match result["content"].as_array().map(Vec::as_slice) {
        Some([content]) if content["type"] == "text" => content["text"].as_str().unwrap(),
        other => panic!("not one text: {other:?}"),
    }
}

fn python() -> PathBuf {
    let named = std::env::var_os("MCP_PYTHON");
    named
        .map(PathBuf::from)
        .expect("MCP_PYTHON names no Python that has the package mcp: run tests/run, which installs it")
}
