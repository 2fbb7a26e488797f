//! `telexec approvals`, `approve` and `reject`: the starts that another identity has to approve.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use telexec_client::{Agent, Approval, ApprovalState, DisconnectPolicy, ExecuteRequest};
use telexec_executor::ExecutorError;

use crate::args::{ApprovalsArgs, ApproveArgs, RejectArgs, ReviewArgs};
use crate::config::ConnectArgs;
use crate::connect::{call_failure, with_agent};
use crate::output::{self, Failure, exit, fields, print_message, printable, short_duration, table};
use crate::syntax::Destination;
use crate::terminal;

const HEADING: [&str; 6] = ["ID", "STATE", "EXPIRES", "IDENTITY", "USER", "COMMAND"];
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn run(args: ApprovalsArgs) -> Result<u8, Failure> {
    let target = &args.agent.target;
    let approvals = with_agent(target, &args.connect, async |agent| {
        let found = match &args.id {
            Some(id) => agent.approvals().get(id).await.map(|approval| vec![approval]),
            None => agent.approvals().list().await,
        };
        found.map_err(|error| call_failure(exit::of_error(&error), target, &error))
    });
    let approvals = approvals.await?;
    let text = match (args.json, &args.id) {
        (true, _) => approvals.iter().map(|approval| format!("{}\n", as_json(approval))).collect(),
        (false, Some(_)) => approvals.iter().map(in_full).collect(),
        (false, None) => as_table(&approvals),
    };
    output::print(text.as_bytes()).map(|()| 0)
}

pub(crate) async fn approve(args: ApproveArgs) -> Result<u8, Failure> {
    let ReviewArgs { agent: to, id, reason, connect } = &args.review;
    review(&to.target, async |agent: &Agent| agent.approvals().approve(id, reason).await, connect).await
}

pub(crate) async fn reject(args: RejectArgs) -> Result<u8, Failure> {
    let ReviewArgs { agent: to, id, reason, connect } = &args.review;
    review(&to.target, async |agent: &Agent| agent.approvals().reject(id, reason).await, connect).await
}

async fn review(
    target: &Destination,
    ask: impl AsyncFnOnce(&Agent) -> Result<Approval, ExecutorError>,
    connect: &ConnectArgs,
) -> Result<u8, Failure> {
    let approval = with_agent(target, connect, async |agent| {
        ask(agent).await.map_err(|error| call_failure(exit::of_error(&error), target, &error))
    });
    output::print(in_full(&approval.await?).as_bytes()).map(|()| 0)
}

/// Waits until a request is approved or rejected, for this long. Returns whether it was.
pub(super) async fn wait(agent: &Agent, target: &Destination, id: &str, limit: Duration) -> Result<bool, Failure> {
    let approvals = agent.approvals();
    let reviewed = async {
        loop {
            match approvals.get(id).await {
                Ok(approval) if approval.state() == ApprovalState::Pending => {}
                Ok(_) => return Ok(true),
                // the connection may come back
                Err(ExecutorError::Unreachable { .. } | ExecutorError::Lost { .. }) => {}
                Err(ExecutorError::NoApproval(_)) => return Ok(false),
                Err(error) => return Err(call_failure(exit::of_error(&error), target, &error)),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    print_message(&format!("{target}: waiting for another identity to run: telexec approve {target} {id}"));
    tokio::time::timeout(limit, reviewed).await.unwrap_or(Ok(false))
}

fn as_table(approvals: &[Approval]) -> String {
    let heading = HEADING.map(str::to_owned).to_vec();
    let now = SystemTime::now();
    let row = |approval: &Approval| {
        let left = time(approval.expire_time).map(|time| time.duration_since(now).unwrap_or_default());
        let user = approval.request.as_ref().map_or("", |request| request.user.as_str());
        vec![
            printable(&approval.approval_id),
            state(approval).to_owned(),
            left.map_or_else(String::new, |left| format!("in {}", short_duration(left))),
            printable(&approval.identity),
            printable(user),
            printable(&command(approval)),
        ]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(approvals.iter().map(row)).collect();
    table(&rows, terminal::output_width())
}

fn state(approval: &Approval) -> &'static str {
    match approval.state() {
        ApprovalState::Unspecified => "unknown",
        ApprovalState::Pending => "pending",
        ApprovalState::Approved => "approved",
        ApprovalState::Rejected => "rejected",
        ApprovalState::Used => "used",
    }
}

/// The name of the command, or else what runs.
fn command(approval: &Approval) -> String {
    let Some(request) = &approval.request else { return format!("@{}", approval.named_command) };
    let text = if request.argv.is_empty() { request.command.clone() } else { words(&request.argv) };
    match approval.named_command.as_str() {
        "" => text,
        name => format!("@{name}: {text}"),
    }
}

/// Words, quoted so that where each of them ends is seen.
fn words(words: &[String]) -> String {
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

/// All that there is to it.
fn in_full(approval: &Approval) -> String {
    let known = fields([
        ("approval", approval.approval_id.clone()),
        ("state", state(approval).to_owned()),
        ("identity", approval.identity.clone()),
        ("rules", approval.rules.join(", ")),
        ("expires", timestamp(approval.expire_time).unwrap_or_default()),
        ("reviewer", approval.reviewer.clone()),
        ("comment", approval.review_reason.clone()),
        ("execution", approval.execution_id.clone()),
    ]);
    known + &approval.request.as_ref().map_or_else(|| named(approval), |request| what_runs(approval, request))
}

fn named(approval: &Approval) -> String {
    fields([("command", format!("@{}", approval.named_command))])
}

fn what_runs(approval: &Approval, request: &ExecuteRequest) -> String {
    let yes = |flag: bool| if flag { "yes".to_owned() } else { String::new() };
    let pairs = |pairs: &BTreeMap<String, String>| {
        let pairs = pairs.iter().map(|(key, value)| format!("{key}={value}"));
        words(&pairs.collect::<Vec<_>>())
    };
    let options = fields([
        ("reason", request.reason.clone()),
        ("user", request.user.clone()),
        ("directory", request.working_directory.clone()),
        ("environment", pairs(&request.environment)),
        ("clean env", yes(request.clear_environment)),
        ("labels", pairs(&request.labels)),
        ("shell", request.shell.clone() + if request.login { " (login)" } else { "" }),
        ("input", input(request)),
        ("terminal", yes(request.terminal.is_some())),
        ("background", yes(in_background(request))),
        ("no new privs", yes(request.no_new_privileges)),
    ]);
    let name =
        if approval.named_command.is_empty() { String::new() } else { named(approval).replace("command:", "name:   ") };
    let lines = match request.argv.as_slice() {
        [] => request.command.split('\n').map(printable).collect(),
        argv => vec![printable(&words(argv))],
    };
    let mut keys = std::iter::once("command:").chain(std::iter::repeat(""));
    let lines = lines.iter().map(|line| format!("{:14}{line}\n", keys.next().unwrap_or_default()));
    options + &name + &lines.collect::<String>()
}

/// What it reads: of input that is sent later nothing is known.
fn input(request: &ExecuteRequest) -> String {
    let given = (!request.stdin.is_empty()).then(|| match std::str::from_utf8(&request.stdin) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("{} bytes", request.stdin.len()),
    });
    let later = request.accepts_input.then(|| "any that is sent while it runs".to_owned());
    given.into_iter().chain(later).collect::<Vec<_>>().join(", then ")
}

fn in_background(request: &ExecuteRequest) -> bool {
    request.yield_after.is_some() || request.on_disconnect() == DisconnectPolicy::Detach
}

/// A time on the wire.
fn time<T>(wire: Option<T>) -> Option<SystemTime>
where
    SystemTime: TryFrom<T>,
{
    wire.and_then(|time| SystemTime::try_from(time).ok())
}

fn timestamp<T>(wire: Option<T>) -> Option<String>
where
    SystemTime: TryFrom<T>,
{
    time(wire).map(|time| humantime::format_rfc3339_seconds(time).to_string())
}

fn as_json(approval: &Approval) -> Value {
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    let request = approval.request.as_ref().map(|request| {
        json!({
            "command": given(&request.command),
            "argv": request.argv,
            "shell": given(&request.shell),
            "login": request.login,
            "user": request.user,
            "working_directory": request.working_directory,
            "environment": request.environment,
            "clear_environment": request.clear_environment,
            "stdin_bytes": request.stdin.len(),
            "accepts_input": request.accepts_input,
            "terminal": request.terminal.is_some(),
            "reason": request.reason,
            "labels": request.labels,
            "background": in_background(request),
            "no_new_privileges": request.no_new_privileges,
        })
    });
    json!({
        "approval_id": approval.approval_id,
        "state": state(approval),
        "identity": approval.identity,
        "named_command": given(&approval.named_command),
        "rules": approval.rules,
        "create_time": timestamp(approval.create_time),
        "expire_time": timestamp(approval.expire_time),
        "reviewer": given(&approval.reviewer),
        "review_reason": given(&approval.review_reason),
        "review_time": timestamp(approval.review_time),
        "execution_id": given(&approval.execution_id),
        "request": request,
    })
}
