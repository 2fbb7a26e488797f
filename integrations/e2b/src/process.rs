//! process.Process: commands and terminals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::HeaderMap;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use telexec_executor::{
    Attach, Command, ExecutionInfo, ExecutionState, Executor, ExecutorError, Input, OnDisconnect, Program, Signal,
    TerminalSize,
};
use tokio::time::timeout;

use crate::app::App;
use crate::failure::{Code, Failure};
use crate::follow::{self, Following};
use crate::sandbox::{Process, SANDBOX_LABEL, Sandbox};
use crate::{auth, cleaning, connect};

const TAG_LABEL: &str = "e2b.tag";

#[derive(Debug, Deserialize)]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Config {
    cmd: String,
    args: Option<Vec<String>>,
    envs: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Deserialize)]
struct Size {
    cols: Option<u32>,
    rows: Option<u32>,
}

impl Pty {
    fn size(&self) -> Result<TerminalSize, Failure> {
        let size = self.size.as_ref().ok_or_else(|| Failure::invalid("pty.size: is missing"))?;
        let size = TerminalSize::new(size.cols.unwrap_or(0), size.rows.unwrap_or(0));
        size.map_err(|error| Failure::invalid(format!("pty.size: {error}")))
    }
}

#[derive(Debug, Default, Deserialize)]
struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Selected {
    process: Selector,
}

#[derive(Debug, Deserialize)]
struct Update {
    process: Selector,
    pty: Option<Pty>,
}

#[derive(Debug, Deserialize)]
struct SendSignal {
    process: Selector,
    signal: WireSignal,
}

#[derive(Debug, Deserialize)]
enum WireSignal {
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
}

#[derive(Debug, Deserialize)]
struct SendInput {
    process: Selector,
    input: WireInput,
}

#[derive(Debug, Default, Deserialize)]
struct WireInput {
    #[serde(default, deserialize_with = "base64")]
    stdin: Option<Bytes>,
    #[serde(default, deserialize_with = "base64")]
    pty: Option<Bytes>,
}

#[derive(Debug, Deserialize)]
struct StreamInput {
    start: Option<Selected>,
    data: Option<InputData>,
}

#[derive(Debug, Deserialize)]
struct InputData {
    input: WireInput,
}

#[derive(Debug, Deserialize)]
struct Nothing {}

fn base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    STANDARD
        .decode(text)
        .map(|data| Some(data.into()))
        .map_err(|error| serde::de::Error::custom(format!("is no base64: {error}")))
}

/// A call, by its method's name.
pub(crate) async fn call(
    State(app): State<Arc<App>>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let sandbox = match app.entered(&headers) {
        Ok(sandbox) => sandbox,
        Err(failure) if ["Start", "Connect", "StreamInput"].contains(&method.as_str()) => {
            return connect::reply_stream(Err::<futures_util::stream::Empty<_>, _>(failure));
        }
        Err(failure) => return connect::reply(Err(failure)),
    };
    match method.as_str() {
        "Start" => connect::reply_stream(sandbox.while_running(start(&sandbox, &headers, body)).await),
        "Connect" => connect::reply_stream(sandbox.while_running(attach(&sandbox, &headers, body)).await),
        "StreamInput" => {
            let replied = sandbox.while_running(stream_input(&sandbox, &headers, body)).await;
            connect::reply_stream(replied.map(|reply| futures_util::stream::iter([Ok(reply)])))
        }
        method => connect::reply(sandbox.while_running(unary(&sandbox, method, &headers, body)).await),
    }
}

async fn unary(sandbox: &Sandbox, method: &str, headers: &HeaderMap, body: Body) -> Result<Value, Failure> {
    let message = connect::request(headers, body, &sandbox.shared.room).await?;
    match method {
        "List" => {
            let Nothing {} = message.parse()?;
            return list(sandbox).await;
        }
        "Update" => {
            let Update { process, pty } = message.parse()?;
            if let Some(pty) = pty {
                let size = pty.size()?;
                let process = find(sandbox, &process).await?;
                sandbox.link.executor.resize(&process.id, size).await?;
            }
        }
        "SendSignal" => {
            let SendSignal { process, signal } = message.parse()?;
            let process = find(sandbox, &process).await?;
            let signal = match signal {
                WireSignal::Term => Signal::TERM,
                WireSignal::Kill => Signal::KILL,
            };
            sandbox.link.executor.signal(&process.id, signal).await?;
        }
        "SendInput" => {
            let SendInput { process, input } = message.parse()?;
            let process = find(sandbox, &process).await?;
            write(sandbox, &process, input).await?;
        }
        "CloseStdin" => {
            let Selected { process } = message.parse()?;
            let process = find(sandbox, &process).await?;
            let input = Input { close: true, ..Input::default() };
            sandbox.link.executor.write_input(&process.id, input).await?;
        }
        method => return Err(Failure::new(Code::Unimplemented, format!("process.Process has no method {method:?}"))),
    }
    Ok(json!({}))
}

type Events = BoxStream<'static, Result<Value, Failure>>;

/// It runs on when its stream is let go of, and no longer than the call may take.
async fn start(sandbox: &Arc<Sandbox>, headers: &HeaderMap, body: Body) -> Result<Events, Failure> {
    let user = sandbox.user(auth::user(headers)?.as_deref());
    let (limit, keepalive) = (connect::call_timeout(headers)?, connect::keepalive(headers)?);
    let message = connect::stream_request(headers, body, &sandbox.shared.room).await?;
    let request: Start = message.parse()?;
    let envs = request.process.envs.clone().unwrap_or_default();
    let command = command(sandbox, request, user.as_deref(), limit).await?;
    let has_terminal = command.terminal().is_some();
    let execution = sandbox.execute(command).await?;
    let started = execution.started();
    sandbox.remember(started.pid, Process { id: started.id.clone(), envs });
    let following = Following { execution, has_terminal, keepalive, limit: None, ended: sandbox.shared.ended.clone() };
    Ok(follow::events(following))
}

async fn command(
    sandbox: &Sandbox,
    request: Start,
    user: Option<&str>,
    limit: Option<Duration>,
) -> Result<Command, Failure> {
    let Start { process: Config { cmd, args, envs, cwd }, pty, tag, stdin } = request;
    let argv = [cmd].into_iter().chain(args.unwrap_or_default());
    let mut command = Command::argv(argv).on_disconnect(OnDisconnect::Detach).envs(sandbox.claim.envs.clone());
    if sandbox.is_default(user) && !sandbox.claim.envs.contains_key("HOME") {
        command = command.env("HOME", sandbox.claim.home.as_str());
    }
    let labels = [(SANDBOX_LABEL, sandbox.id().to_owned())].into_iter().chain(tag.map(|tag| (TAG_LABEL, tag)));
    command = command.envs(envs.unwrap_or_default()).labels(labels.map(|(key, value)| (key.to_owned(), value)));
    // without a directory, commands of others start in their homes anyway
    if sandbox.is_default(user) || cwd.as_ref().is_some_and(|cwd| !cwd.is_empty()) {
        command = command.working_directory(sandbox.path(&cwd.unwrap_or_default(), user).await?);
    }
    if let Some(user) = user {
        command = command.user(user);
    }
    if let Some(limit) = limit {
        command = command.timeout(limit);
    }
    command = match &pty {
        Some(pty) => command.terminal(pty.size()?).accepts_input(true),
        // clients from before there was a choice write to it
        None => command.accepts_input(stdin.unwrap_or(true)),
    };
    command.build().map_err(|error| ExecutorError::from(error).into())
}

/// Follows a process from now on.
async fn attach(sandbox: &Arc<Sandbox>, headers: &HeaderMap, body: Body) -> Result<Events, Failure> {
    let (limit, keepalive) = (connect::call_timeout(headers)?, connect::keepalive(headers)?);
    let message = connect::stream_request(headers, body, &sandbox.shared.room).await?;
    let Selected { process } = message.parse()?;
    let process = find(sandbox, &process).await?;
    let execution = sandbox.link.executor.attach(&process.id, Attach::position(process.position)).await?;
    let (has_terminal, ended) = (process.terminal, sandbox.shared.ended.clone());
    Ok(follow::events(Following { execution, has_terminal, keepalive, limit, ended }))
}

async fn stream_input(sandbox: &Sandbox, headers: &HeaderMap, body: Body) -> Result<Value, Failure> {
    let limit = connect::call_timeout(headers)?;
    let mut messages = connect::requests(headers, body, &sandbox.shared.room)?;
    let work = async {
        let mut process = None;
        while let Some(message) = messages.next().await? {
            let StreamInput { start, data } = connect::parse(&message)?;
            if let Some(start) = start {
                process = Some(find(sandbox, &start.process).await?);
            }
            if let Some(data) = data {
                let process = process.as_ref().ok_or_else(|| Failure::invalid("data: comes before start"))?;
                write(sandbox, process, data.input).await?;
            }
        }
        process.map(|_| json!({})).ok_or_else(|| Failure::invalid("start: is missing"))
    };
    match limit {
        Some(limit) => timeout(limit, work).await.map_err(|_| follow::too_late())?,
        None => work.await,
    }
}

async fn write(sandbox: &Sandbox, process: &ExecutionInfo, input: WireInput) -> Result<(), Failure> {
    let data = match (input, process.terminal) {
        (WireInput { stdin: Some(data), pty: None }, false) | (WireInput { pty: Some(data), stdin: None }, true) => {
            data
        }
        (WireInput { stdin: None, pty: None }, _) => return Err(Failure::invalid("input: is missing")),
        (_, true) => return Err(Failure::invalid("input: a process with a terminal takes \"pty\"")),
        (_, false) => return Err(Failure::invalid("input: a process without a terminal takes \"stdin\"")),
    };
    let input = Input { data, ..Input::default() };
    sandbox.link.executor.write_input(&process.id, input).await?;
    Ok(())
}

/// The process, which still runs.
async fn find(sandbox: &Sandbox, selector: &Selector) -> Result<ExecutionInfo, Failure> {
    let (found, wanted) = match (selector.pid, selector.tag.as_deref()) {
        (Some(pid), None) => (by_pid(sandbox, pid).await?, format!("pid {pid}")),
        (None, Some(tag)) => {
            let all = cleaning::executions(&sandbox.link, sandbox.id()).await?;
            let found =
                all.into_iter().rev().find(|one| runs(one) && one.labels.get(TAG_LABEL).is_some_and(|of| of == tag));
            (found, format!("tag {tag:?}"))
        }
        _ => return Err(Failure::invalid("process: needs a pid or a tag")),
    };
    found.ok_or_else(|| Failure::new(Code::NotFound, format!("no process with {wanted} runs")))
}

async fn by_pid(sandbox: &Sandbox, pid: u32) -> Result<Option<ExecutionInfo>, Failure> {
    if let Some(process) = sandbox.remembered(pid) {
        match sandbox.link.executor.get(&process.id).await {
            Ok(info) if runs(&info) => return Ok(Some(info)),
            Ok(_) | Err(ExecutorError::NotFound(_)) => sandbox.forget(pid),
            Err(error) => return Err(error.into()),
        }
    }
    let all = cleaning::executions(&sandbox.link, sandbox.id()).await?;
    Ok(all.into_iter().rev().find(|one| one.pid == pid && runs(one)))
}

fn runs(info: &ExecutionInfo) -> bool {
    info.state == ExecutionState::Running
}

async fn list(sandbox: &Sandbox) -> Result<Value, Failure> {
    let all = cleaning::executions(&sandbox.link, sandbox.id()).await?;
    let processes: Vec<Value> = all.iter().filter(|one| runs(one)).map(|one| describe(sandbox, one)).collect();
    Ok(json!({"processes": processes}))
}

fn describe(sandbox: &Sandbox, info: &ExecutionInfo) -> Value {
    let (cmd, args) = match &info.program {
        Program::Argv(argv) => argv.split_first().map(|(cmd, args)| (cmd.clone(), args.to_vec())).unwrap_or_default(),
        Program::Shell { text, .. } => (text.clone(), Vec::new()),
    };
    let envs = sandbox.remembered(info.pid).filter(|process| process.id == info.id).map(|process| process.envs);
    let config = json!({"cmd": cmd, "args": args, "envs": envs.unwrap_or_default(), "cwd": info.working_directory});
    match info.labels.get(TAG_LABEL) {
        Some(tag) => json!({"config": config, "pid": info.pid, "tag": tag}),
        None => json!({"config": config, "pid": info.pid}),
    }
}
