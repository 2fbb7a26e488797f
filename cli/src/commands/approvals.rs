//! `telexec approvals`, `approve` and `reject`: the starts that another identity has to approve.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use telexec_client::{
    Agent, Approval, ApprovalState, DescendantPolicy, DisconnectPolicy, DuplicatePolicy, ExecuteRequest,
};
use telexec_executor::ExecutorError;

use crate::args::{ApprovalsArgs, ReviewArgs};
use crate::config::ConnectArgs;
use crate::connect::{call_failure, with_agent};
use crate::output::quoted::{bytes_quoted, on_a_line, program, rows, words, yes};
use crate::output::{self, Failure, exit, print_message, printable, short_duration, table};
use crate::syntax::Destination;
use crate::terminal;

const HEADING: [&str; 7] = ["ID", "STATE", "EXPIRES", "IDENTITY", "USER", "COMMAND", "REASON"];
const MAX_COMMAND_WIDTH: usize = 60;
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

pub(crate) async fn approve(ReviewArgs { agent: to, id, reason, connect }: ReviewArgs) -> Result<u8, Failure> {
    review(&to.target, async |agent: &Agent| agent.approvals().approve(&id, &reason).await, &connect).await
}

pub(crate) async fn reject(ReviewArgs { agent: to, id, reason, connect }: ReviewArgs) -> Result<u8, Failure> {
    review(&to.target, async |agent: &Agent| agent.approvals().reject(&id, &reason).await, &connect).await
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

/// Waits until a request is approved or rejected, for at most this long: then the command can be run again.
pub(super) async fn wait(agent: &Agent, target: &Destination, id: &str, limit: Duration) -> Result<(), Failure> {
    let (approvals, id) = (agent.approvals(), printable(id));
    let mut unreachable = None;
    let reviewed = async {
        loop {
            unreachable = match approvals.get(&id).await {
                Ok(approval) if approval.state() == ApprovalState::Pending => None,
                Ok(_) => return Ok(()),
                // the connection may come back
                Err(error @ (ExecutorError::Unreachable { .. } | ExecutorError::Lost { .. })) => Some(error),
                Err(ExecutorError::NoApproval(_)) => return Err(dropped(target, &id)),
                Err(error) => {
                    let failure = call_failure(exit::of_error(&error), target, &error);
                    return Err(failure.hint(Some(format!("request {id} stays pending, but cannot be waited for"))));
                }
            };
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    print_message(&format!("{target}: waiting for somebody else to run: telexec approve {target} {id}"));
    if let Ok(reviewed) = tokio::time::timeout(limit, reviewed).await {
        return reviewed;
    }
    Err(match unreachable {
        Some(error) => call_failure(exit::of_error(&error), target, &error),
        None => Failure::message(exit::REFUSED, format!("{target}: request {id} is still pending"))
            .hint(Some("run the same command again once it is approved")),
    })
}

fn dropped(target: &Destination, id: &str) -> Failure {
    let why = "the agent was restarted, or newer requests have taken its place";
    Failure::message(exit::REFUSED, format!("{target}: request {id} is gone: {why}"))
        .hint(Some("run the same command again for another one"))
}

fn as_table(approvals: &[Approval]) -> String {
    let heading = HEADING.map(str::to_owned).to_vec();
    let now = SystemTime::now();
    let row = |approval: &Approval| {
        let left = time(approval.expire_time).map(|time| time.duration_since(now).unwrap_or_default());
        let request = approval.request.as_ref();
        let text = |field: fn(&ExecuteRequest) -> &String| {
            request.map_or_else(String::new, |request| on_a_line(field(request)))
        };
        vec![
            on_a_line(&approval.approval_id),
            state(approval).to_owned(),
            left.map_or_else(String::new, |left| format!("in {}", short_duration(left))),
            on_a_line(&approval.identity),
            text(|request| &request.user),
            cut(command(approval)),
            text(|request| &request.reason),
        ]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(approvals.iter().map(row)).collect();
    table(&rows, terminal::output_width())
}

/// So much of a command that there is room for the reason on a wide terminal.
fn cut(command: String) -> String {
    match command.chars().count() > MAX_COMMAND_WIDTH {
        true => command.chars().take(MAX_COMMAND_WIDTH - 1).chain(['…']).collect(),
        false => command,
    }
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

/// What runs, on a line, after the name of a named command.
fn command(approval: &Approval) -> String {
    let text = match &approval.request {
        // the list has no long ones
        None => format!("(long: see telexec approvals TARGET {})", on_a_line(&approval.approval_id)),
        Some(request) if request.argv.is_empty() => on_a_line(&request.command),
        Some(request) => words(&request.argv),
    };
    match approval.named_command.as_str() {
        "" => text,
        name => format!("@{}: {text}", on_a_line(name)),
    }
}

/// All that there is to it.
fn in_full(approval: &Approval) -> String {
    let known = rows([
        ("request", on_a_line(&approval.approval_id)),
        ("state", state(approval).to_owned()),
        ("identity", on_a_line(&approval.identity)),
        ("rules", on_a_line(&approval.rules.join(", "))),
        ("created", timestamp(approval.create_time).unwrap_or_default()),
        ("expires", timestamp(approval.expire_time).unwrap_or_default()),
        ("reviewer", on_a_line(&approval.reviewer)),
        ("review reason", on_a_line(&approval.review_reason)),
        ("execution", on_a_line(&approval.execution_id)),
    ]);
    known + &approval.request.as_ref().map(|request| what_runs(approval, request)).unwrap_or_default()
}

/// What is approved: all that a request can ask for.
fn what_runs(approval: &Approval, request: &ExecuteRequest) -> String {
    let limits = request.limits.unwrap_or_default();
    let number = |number: u64| if number == 0 { String::new() } else { number.to_string() };
    let options = rows([
        ("reason", on_a_line(&request.reason)),
        ("user", on_a_line(&request.user)),
        ("directory", on_a_line(&request.working_directory)),
        ("environment", pairs(&request.environment)),
        ("clean env", yes(request.clear_environment)),
        ("labels", pairs(&request.labels)),
        ("shell", on_a_line(&request.shell) + if request.login { " (login)" } else { "" }),
        ("input", input(request)),
        ("terminal", yes(request.terminal.is_some())),
        ("background", after(request)),
        ("detached", yes(is_detached(request))),
        ("timeout", duration(request.timeout)),
        ("kill grace", duration(request.kill_grace)),
        ("reconnect", duration(request.disconnect_grace)),
        ("memory", number(limits.memory_bytes)),
        ("processes", number(limits.max_processes.into())),
        ("cpus", if limits.cpus == 0.0 { String::new() } else { limits.cpus.to_string() }),
        ("output limit", number(request.max_output_bytes)),
        ("merged output", yes(request.merge_output)),
        ("reports cwd", yes(request.report_working_directory)),
        ("descendants", if kills_descendants(request) { "killed".to_owned() } else { String::new() }),
        ("duplicates", if reuses_running(request) { "reused".to_owned() } else { String::new() }),
        ("no new privs", yes(request.no_new_privileges)),
        ("receipt", yes(request.receipt)),
        ("named command", on_a_line(&approval.named_command)),
    ]);
    options + &program(&request.command, &request.argv)
}

fn pairs(pairs: &BTreeMap<String, String>) -> String {
    words(&pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>())
}

/// What it reads: of input that is sent later nothing is known.
fn input(request: &ExecuteRequest) -> String {
    let given = (!request.stdin.is_empty()).then(|| bytes_quoted(&request.stdin));
    let later = request.accepts_input.then(|| "any that is sent while it runs".to_owned());
    given.into_iter().chain(later).collect::<Vec<_>>().join(", then ")
}

fn after(request: &ExecuteRequest) -> String {
    let delay = duration(request.yield_after);
    if delay.is_empty() { delay } else { format!("after {delay}") }
}

fn is_detached(request: &ExecuteRequest) -> bool {
    request.on_disconnect() == DisconnectPolicy::Detach
}

fn kills_descendants(request: &ExecuteRequest) -> bool {
    request.descendants() == DescendantPolicy::Kill
}

fn reuses_running(request: &ExecuteRequest) -> bool {
    request.duplicate_policy() == DuplicatePolicy::ReuseRunning
}

/// A duration on the wire.
fn duration<T>(wire: Option<T>) -> String
where
    Duration: TryFrom<T>,
{
    let duration = wire.and_then(|duration| Duration::try_from(duration).ok());
    duration.map(|duration| humantime::format_duration(duration).to_string()).unwrap_or_default()
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
            "stdin": std::str::from_utf8(&request.stdin).ok(),
            "stdin_base64": STANDARD.encode(&request.stdin),
            "accepts_input": request.accepts_input,
            "terminal": request.terminal.is_some(),
            "reason": request.reason,
            "labels": request.labels,
            "detached": is_detached(request),
            "yield_after": given(&duration(request.yield_after)),
            "timeout": given(&duration(request.timeout)),
            "kill_grace": given(&duration(request.kill_grace)),
            "disconnect_grace": given(&duration(request.disconnect_grace)),
            "limits": {
                "memory_bytes": request.limits.unwrap_or_default().memory_bytes,
                "max_processes": request.limits.unwrap_or_default().max_processes,
                "cpus": request.limits.unwrap_or_default().cpus,
            },
            "max_output_bytes": request.max_output_bytes,
            "merge_output": request.merge_output,
            "report_working_directory": request.report_working_directory,
            "kills_descendants": kills_descendants(request),
            "reuses_running": reuses_running(request),
            "no_new_privileges": request.no_new_privileges,
            "receipt": request.receipt,
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
