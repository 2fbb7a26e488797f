//! The words of this package for what the protocol and the program `telexec` call otherwise.

use std::borrow::Cow;

use telexec_config::{Config, ConfigError, InvalidDestination};

/// The keyword that sets a field of a request.
pub(crate) fn keyword(field: &str) -> Cow<'_, str> {
    let field = field.strip_prefix("header.").unwrap_or(field);
    if let Some(item) = field.strip_prefix("argv") {
        return format!("command{item}").into();
    }
    if let Some(of_dial) = field.strip_prefix("dial.") {
        return if of_dial == "user" { "user" } else { "address" }.into();
    }
    let keyword = match field {
        "working_directory" => "cwd",
        "execution_id" => "id",
        "environment" => "env",
        "clear_environment" => "clear_env",
        "max_output_bytes" => "max_output",
        "merge_output" => "merge",
        "descendants" => "kill_descendants",
        "on_disconnect" => "detach",
        "limits.memory_bytes" => "limits.memory",
        "limits.max_processes" => "limits.processes",
        "destination_path" => "to",
        "at" | "tcp.host" | "tcp.port" | "unix_path" => "listen",
        field => field,
    };
    keyword.into()
}

/// Why the value of a field is wrong.
pub(crate) fn reason(text: &str) -> &str {
    match text {
        "goes with command, not with argv" => "is for a command that is a str, not a list",
        text => text,
    }
}

/// Why an execution is not in a state for something.
pub(crate) fn state(text: &str) -> String {
    text.replace("it was started without accepts_input", "it was started by run(), or with input=")
}

/// What is wrong with the configuration, or with the keywords that go before it.
pub(crate) fn of_config(error: ConfigError) -> String {
    let hint = error.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    let text = error.message + &hint;
    text.replace("--cert, --key and --ca", "cert, key and ca").replace("as flags or in", "as keywords or in")
}

/// What is wrong with a target.
pub(crate) fn of_destination(error: &InvalidDestination) -> String {
    match error {
        InvalidDestination::User { host, .. } => {
            format!("a target has no user: use {host:?}, and give user= to the command")
        }
        InvalidDestination::Several(text) => format!("{text:?} is not one target: use telexec.fleet() for several"),
        error => error.to_string(),
    }
}

/// Why this package does not take a target that the program `telexec` takes.
pub(crate) fn elsewhere(target: &str, config: &Config) -> Option<String> {
    let address = config.targets.get(target).map_or(target, |named| &named.address);
    if address == "local" {
        let use_instead = "use subprocess, or run telexecd here and connect to its unix:///PATH";
        return Some(format!("{target}: only the program `telexec` runs commands without an agent: {use_instead}"));
    }
    if address.starts_with("nats://") || address.starts_with("nats+tls://") {
        let use_instead = "connect to the agent's own address, or run the program `telexec` with subprocess";
        return Some(format!("{target}: only the program `telexec` reaches agents by way of NATS: {use_instead}"));
    }
    None
}
