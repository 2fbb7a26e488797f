//! What a model asks for: the parameters, their schema, and how they are read.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use telexec_executor::{DuplicatePolicy, ExecutionId};

use super::NAME;
use super::outcome::ExecCommandResult;
use crate::ToolDefinition;
use crate::failure::Failure;
use crate::parameters::{flag, number, text};

/// For calls that give no `yield_time_ms`.
const DEFAULT_YIELD_TIME_MS: u64 = 10_000;
/// For a timer, as good as never: 100 years.
const MAX_YIELD_TIME_MS: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
/// For calls that give no `max_output_tokens`.
const DEFAULT_OUTPUT_TOKENS: u64 = 10_000;
/// More is in no model's interest, and an answer is held in memory.
const MAX_OUTPUT_TOKENS: u64 = 250_000;
/// The usual rule for English and for code.
const BYTES_PER_TOKEN: u64 = 4;

/// The parameters of `exec_command`. There are no others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecCommandArgs {
    /// Text for the shell.
    pub cmd: String,
    /// Where it starts: an absolute path. Default: as the tool is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// The shell: a name or a path. Default: as the tool is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Run it as a login shell. Default: yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<bool>,
    /// Give it a terminal, into which standard error goes as well. Default: no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tty: Option<bool>,
    /// What becomes of it while the same command runs.
    #[serde(default)]
    pub duplicate_policy: ExecCommandDuplicatePolicy,
    /// Keep its standard input open for `task_input`. Default: as `tty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepts_input: Option<bool>,
    /// If it runs longer than this, it becomes a task; in milliseconds, at most 100 years. Default: 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yield_time_ms: Option<u64>,
    /// The most that the answer has of its output, in tokens of 4 bytes: 1 to 250,000; what is outside is moved inside.
    /// Default: 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
}

/// What becomes of a command while the same one runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecCommandDuplicatePolicy {
    /// It is not started, and the answer names the one that runs.
    #[default]
    ReuseRunning,
    /// It is started too.
    StartNew,
}

impl From<ExecCommandDuplicatePolicy> for DuplicatePolicy {
    fn from(policy: ExecCommandDuplicatePolicy) -> Self {
        match policy {
            ExecCommandDuplicatePolicy::ReuseRunning => Self::ReuseRunning,
            ExecCommandDuplicatePolicy::StartNew => Self::StartNew,
        }
    }
}

/// Reads the `task_id` of a tool's parameters.
pub(super) fn parse_task_id(tool: &str, text: &str) -> Result<ExecutionId, Failure> {
    text.parse().map_err(|error: telexec_executor::InvalidCommand| {
        Failure::invalid_input(tool, format!("task_id: {}", error.reason))
    })
}

/// How long to wait, in milliseconds.
pub(super) fn yield_time_ms(asked: Option<u64>) -> u64 {
    asked.unwrap_or(DEFAULT_YIELD_TIME_MS).min(MAX_YIELD_TIME_MS)
}

/// The most that an answer has of a command's output, in bytes; never less than a character.
pub(super) fn output_limit(max_output_tokens: Option<u64>) -> usize {
    let tokens = max_output_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS).clamp(1, MAX_OUTPUT_TOKENS);
    usize::try_from(tokens * BYTES_PER_TOKEN).unwrap_or(usize::MAX)
}

pub(super) fn definition() -> ToolDefinition {
    let about = "Runs a shell command and returns its output. A command still running after `yield_time_ms` continues \
                 in the background as a task, for task_output, task_input, task_stop and task_list. Only the parameters in \
                 the schema are accepted: fields of results, such as `status` or `task_handle`, are not parameters.";
    ToolDefinition::new(NAME, about)
        .parameter("cmd", text("Shell command to run"), true)
        .parameter("workdir", text("Working directory: an absolute path"), false)
        .parameter("shell", text("Shell: a name or a path"), false)
        .parameter("login", flag("Run the shell as a login shell", json!(true)), false)
        .parameter("tty", flag("Run the command in a terminal", json!(false)), false)
        .parameter("duplicate_policy", duplicate_policy(), false)
        .parameter("accepts_input", accepts_input(), false)
        .parameter(
            "yield_time_ms",
            number(
                "Time to wait for the command to end before it becomes a task, in milliseconds",
                DEFAULT_YIELD_TIME_MS,
            ),
            false,
        )
        .parameter("max_output_tokens", max_output_tokens(), false)
        .closed()
        .returns::<ExecCommandResult>()
}

pub(super) fn task_id() -> Value {
    text("Task id, as returned by exec_command or task_list")
}

pub(super) fn max_output_tokens() -> Value {
    let about = "Maximum output to return, in tokens of 4 bytes";
    json!({ "type": "integer", "description": about, "minimum": 1, "default": DEFAULT_OUTPUT_TOKENS })
}

fn accepts_input() -> Value {
    let about = "Keep standard input open for task_input (default: as tty)";
    json!({ "type": "boolean", "description": about })
}

fn duplicate_policy() -> Value {
    json!({
        "type": "string",
        "description": "If the same command is already running: return that one, or start another",
        "enum": [ExecCommandDuplicatePolicy::ReuseRunning, ExecCommandDuplicatePolicy::StartNew],
        "default": ExecCommandDuplicatePolicy::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToolFailure;
    use crate::parameters::parse;

    fn refused(params: Value) -> ToolFailure {
        match parse::<ExecCommandArgs>(NAME, params) {
            Err(Failure::Reported(failure)) => *failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_command_alone_reuses_one_that_runs() {
        let args: ExecCommandArgs = parse(NAME, json!({ "cmd": "make" })).unwrap();
        assert_eq!(args, ExecCommandArgs { cmd: "make".into(), ..ExecCommandArgs::default() });
        assert_eq!(args.duplicate_policy, ExecCommandDuplicatePolicy::ReuseRunning);
        assert_eq!(DuplicatePolicy::from(args.duplicate_policy), DuplicatePolicy::ReuseRunning);
    }

    #[test]
    fn another_one_can_be_asked_for() {
        let args: ExecCommandArgs = parse(NAME, json!({ "cmd": "make", "duplicate_policy": "start_new" })).unwrap();
        assert_eq!(args.duplicate_policy, ExecCommandDuplicatePolicy::StartNew);
        assert_eq!(DuplicatePolicy::from(args.duplicate_policy), DuplicatePolicy::StartNew);
    }

    #[test]
    fn all_parameters_are_read_and_written() {
        let params = json!({
            "cmd": "make", "workdir": "/", "shell": "sh", "login": false, "tty": true, "duplicate_policy": "start_new",
            "accepts_input": false, "yield_time_ms": 1, "max_output_tokens": 2,
        });
        let args: ExecCommandArgs = parse(NAME, params.clone()).unwrap();
        assert_eq!(json!(args), params);
    }

    #[test]
    fn unknown_parameters_are_refused_by_name() {
        for (params, named) in [
            // no longer a parameter
            (json!({ "cmd": "make", "continue_on_result": true }), "continue_on_result"),
            (json!({ "command": "make" }), "command"),
            (json!({ "cmd": "make", "status": "running" }), "status"),
            (json!({ "cmd": "make", "task_handle": {} }), "task_handle"),
        ] {
            let failure = refused(params);
            assert_eq!(failure.kind, "invalid_tool_input");
            let error = failure.details["parse_error"].as_str().unwrap();
            assert!(error.contains(named), "{error}");
            let hint = failure.recovery_hint.unwrap();
            assert!(hint.contains("provide input for exec_command that matches the published tool schema"), "{hint}");
        }
    }

    #[test]
    fn malformed_parameters_are_refused() {
        for params in [
            json!(null),
            json!("make"),
            json!({}),
            json!({ "cmd": 1 }),
            json!({ "cmd": "make", "yield_time_ms": -1 }),
            json!({ "cmd": "make", "duplicate_policy": "restart" }),
        ] {
            assert_eq!(refused(params).kind, "invalid_tool_input");
        }
        assert!(refused(json!({})).details["parse_error"].as_str().unwrap().contains("cmd"));
    }

    #[test]
    fn times_and_limits_have_bounds() {
        assert_eq!([None, Some(0), Some(u64::MAX)].map(yield_time_ms), [10_000, 0, MAX_YIELD_TIME_MS]);
        assert_eq!([None, Some(0), Some(7), Some(u64::MAX)].map(output_limit), [40_000, 4, 28, 1_000_000]);
    }

    #[test]
    fn the_schema_has_exactly_the_parameters() {
        let definition = definition();
        let schema = &definition.input_schema;
        let mut names: Vec<_> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accepts_input",
                "cmd",
                "duplicate_policy",
                "login",
                "max_output_tokens",
                "shell",
                "tty",
                "workdir",
                "yield_time_ms"
            ]
        );
        assert_eq!((&schema["required"], &schema["additionalProperties"]), (&json!(["cmd"]), &json!(false)));
        assert_eq!(schema["properties"]["yield_time_ms"]["default"], 10_000);
        assert_eq!(schema["properties"]["duplicate_policy"]["enum"], json!(["reuse_running", "start_new"]));
    }
}
