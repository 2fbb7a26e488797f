//! `telexec check`: checks whether the agent permits a command.

use serde_json::json;
use telexec_client::CommandCheck;
use telexec_executor::TerminalSize;

use super::exec;
use crate::args::CheckArgs;
use crate::connect::{call_failure, with_agent};
use crate::output::{self, Failure, exit, fields};

pub(crate) async fn run(args: CheckArgs) -> Result<u8, Failure> {
    let CheckArgs { exec: mut args, identity } = args;
    let identity = identity.unwrap_or_default();
    exec::apply_configured_user(&mut args)?;
    // the size does not matter
    let size = args.tty.then(|| TerminalSize::new(80, 24)).transpose();
    let command = exec::command(&args, size.map_err(|error| Failure::new(exit::USAGE, &error))?)?;
    let check = with_agent(&args.agent.target, &args.connect, async |agent| {
        let failure = |error| call_failure(exit::of_error(&error), &args.agent.target, &error);
        agent.check_as(&command, &identity).await.map_err(failure)
    });
    let check = check.await?;
    let text = if args.json { as_json(&check) } else { as_text(&identity, user(args.user.as_deref(), &check), &check) };
    output::print(text.as_bytes())?;
    Ok(if check.allowed { 0 } else { exit::REFUSED })
}

/// Whom it would run as, if it is not refused.
fn user(asked: Option<&str>, check: &CommandCheck) -> String {
    match (check.user.as_deref(), asked) {
        (None, _) => String::new(),
        (Some(""), Some(user)) => format!("not known: the agent has no user {user:?}"),
        (Some(""), None) => "not known: the agent has no such user".to_owned(),
        (Some(user), _) => user.to_owned(),
    }
}

fn as_text(identity: &str, user: String, check: &CommandCheck) -> String {
    let decision = fields([
        ("identity", identity.to_owned()),
        ("allowed", yes_or_no(check.allowed)),
        ("reason", check.reason.clone()),
        ("recorded", if check.allowed || check.needs_approval { yes_or_no(check.recorded) } else { String::new() }),
    ]);
    let keys = std::iter::once("not met:").chain(std::iter::repeat(""));
    let missing = keys.zip(&check.missing);
    let missing = missing.map(|(key, condition)| format!("{key:14}{}\n", condition.replace(char::is_control, " ")));
    let others = if check.programs.is_empty() { "not known" } else { "and others that are not known" };
    let others = (!check.understood).then_some(others);
    let programs: Vec<_> = check.programs.iter().map(String::as_str).chain(others).collect();
    let command = fields([
        ("user", user),
        ("programs", programs.join(", ")),
        ("tool pattern", check.permission_pattern.clone()),
        ("uses sudo", uses_sudo(check).map_or("not known".to_owned(), yes_or_no)),
    ]);
    decision + &missing.collect::<String>() + &command
}

fn yes_or_no(yes: bool) -> String {
    if yes { "yes".into() } else { "no".into() }
}

/// If only a part is understood, and does not use sudo, another part still may.
fn uses_sudo(check: &CommandCheck) -> Option<bool> {
    (check.uses_sudo || check.understood).then_some(check.uses_sudo)
}

fn as_json(check: &CommandCheck) -> String {
    let object = json!({
        "allowed": check.allowed,
        "reason": check.reason,
        "missing": check.missing,
        "needs_approval": check.needs_approval,
        "recorded": check.recorded,
        "user": check.user,
        "programs": check.programs,
        "permission_pattern": check.permission_pattern,
        "uses_sudo": uses_sudo(check),
        "understood": check.understood,
    });
    format!("{object}\n")
}
