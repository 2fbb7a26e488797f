//! The tool `task_output`: reads a task's output from where it was left.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use telexec_executor::text::without_cut_character;
use telexec_executor::{Attach, Event, ExecutionId, ExecutionInfo, ExecutorError, Exited, Output, OutputStream};
use tokio::time::{Instant, sleep_until};

use super::args::{max_output_tokens, output_limit, parse_task_id, task_id, yield_time_ms};
use super::diagnostics::{CommandDiagnostics, exit_status, since};
use super::outcome::TaskStatus;
use super::render::{ended, section, task};
use super::settle::Settle;
use super::tasks::Tasks;
use crate::failure::{Failure, answer, result};
use crate::parameters::{number, parse};
use crate::{Tool, ToolContext, ToolDefinition, ToolError, ToolResult};

const NAME: &str = "task_output";
/// U+FFFD, which stands for bytes that are not UTF-8.
const REPLACEMENT_BYTES: usize = char::REPLACEMENT_CHARACTER.len_utf8();

/// Reads a task's output from where it was left, and reports whether the task has ended.
///
/// The parameters of a call are [`TaskOutputArgs`]; details of its result are a [`TaskOutput`]. Where an answer has no
/// room for all there is, the next one continues: nothing is cut.
pub struct TaskOutputTool {
    tasks: Arc<Tasks>,
    definition: ToolDefinition,
}

/// The parameters of `task_output`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskOutputArgs {
    /// The task.
    pub task_id: String,
    /// Bytes of both streams before the first that is wanted. Default: where it was left; of a task that this family of
    /// tools did not start, 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// How long to wait for more output and the end, in milliseconds. Default 0: take what is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yield_time_ms: Option<u64>,
    /// The most that the answer has of the output; see [`super::ExecCommandArgs::max_output_tokens`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
}

/// Some output of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskOutput {
    /// The task.
    pub task_id: String,
    /// How it is, as far as was read.
    pub status: TaskStatus,
    /// Its exit code, once its end was read; `None`: it has none, or the end was not read.
    pub exit_status: Option<i32>,
    /// What the exit code does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_diagnostics: Option<CommandDiagnostics>,
    /// Its standard output, in this piece; `None`: nothing.
    pub stdout: Option<String>,
    /// The same of standard error.
    pub stderr: Option<String>,
    /// Where this piece was asked to begin.
    pub position: u64,
    /// Where the next one begins.
    pub next_position: u64,
    /// What came before this position is no longer kept, so this piece begins or continues there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_until: Option<u64>,
    /// More output is there already.
    pub more: bool,
}

impl TaskOutput {
    /// The text that a model gets.
    pub fn render(&self) -> String {
        let first = match self.status {
            TaskStatus::Running => "Task is running".to_owned(),
            TaskStatus::Lingering | TaskStatus::Exited => ended(self.exit_status),
        };
        self.render_after(vec![first, task(&self.task_id)])
    }

    /// The same after other lines than the usual first ones.
    pub(super) fn render_after(&self, mut lines: Vec<String>) -> String {
        lines.push(format!("Next position: {}", self.next_position));
        if let Some(position) = self.gap_until {
            lines.push(format!("Output before position {position} is no longer kept"));
        }
        if self.more {
            lines.push(format!("There is more output: call {NAME} again"));
        }
        let nothing = self.stdout.is_none() && self.stderr.is_none();
        section(&mut lines, "stdout:", self.stdout.as_deref().or(nothing.then_some("(no new output)")));
        section(&mut lines, "stderr:", self.stderr.as_deref());
        if let Some(diagnostics) = &self.command_diagnostics {
            section(&mut lines, "Diagnostics:", Some(&diagnostics.remarks.join("\n")));
        }
        lines.join("\n")
    }
}

impl TaskOutputTool {
    pub(super) fn new(tasks: Arc<Tasks>) -> Self {
        let about = "Reads the output of a task started by exec_command, from where the last read ended, and reports \
                     whether the task has ended.";
        let position = "Position to read from, in bytes of all its output (default: where the last read ended)";
        let definition = ToolDefinition::new(NAME, about)
            .parameter("task_id", task_id(), true)
            .parameter(
                "position",
                serde_json::json!({ "type": "integer", "description": position, "minimum": 0 }),
                false,
            )
            .parameter(
                "yield_time_ms",
                number("Time to collect more output, unless the task ends first, in milliseconds", 0),
                false,
            )
            .parameter("max_output_tokens", max_output_tokens(), false)
            .closed()
            .returns::<TaskOutput>();
        Self { tasks, definition }
    }

    async fn call(&self, params: Value) -> Result<ToolResult, Failure> {
        let args: TaskOutputArgs = parse(NAME, params)?;
        let id = parse_task_id(NAME, &args.task_id)?;
        let wait = Duration::from_millis(yield_time_ms(args.yield_time_ms.or(Some(0))));
        let limit = output_limit(args.max_output_tokens);
        let output = read(&self.tasks, &id, args.position, limit, wait, None).await;
        let output = output.map_err(|error| Failure::of(NAME, error))?;
        result(output.render(), &output)
    }
}

/// Reads a task's output, from where it was left unless a position is given, and remembers how far. It takes what there is
/// and waits for more, unless the task ends, the output settles or the answer is full.
pub(super) async fn read(
    tasks: &Tasks,
    id: &ExecutionId,
    position: Option<u64>,
    limit: usize,
    wait: Duration,
    mut settle: Option<Settle>,
) -> Result<TaskOutput, ExecutorError> {
    let end = Instant::now() + wait;
    let mut piece = Piece::new(position.unwrap_or_else(|| tasks.position(id)), limit);
    // what was written by now comes without a wait, and the end too if there is one
    let now = tasks.executor.get(id).await?;
    let mut execution = tasks.executor.attach(id, Attach::position(piece.from)).await?;
    let output = loop {
        let has_all = piece.position >= now.position && now.exited.is_none();
        let settled = settle.as_ref().and_then(Settle::end).unwrap_or(end);
        let event = tokio::select! {
            biased;
            event = execution.next() => event,
            () = sleep_until(settled.min(end)), if has_all => break piece.report(&now),
        };
        match event {
            Some(Ok(Event::Started(_) | Event::Promoted)) => {}
            Some(Ok(Event::Gap(position))) => piece.skip(position),
            Some(Ok(Event::Output(output))) => {
                if let Some(settle) = &mut settle {
                    settle.push(&output);
                }
                if !piece.push(&output) {
                    break TaskOutput { more: true, ..piece.report(&now) };
                }
            }
            Some(Ok(Event::Exited(exited))) => break piece.ended(&tasks.executor.get(id).await?, exited),
            Some(Err(error)) => return Err(error),
            None => return Err(ExecutorError::Internal("the executor stopped reporting on the task".to_owned())),
        }
        // so that a cancel is seen however fast events come
        tokio::task::coop::consume_budget().await;
    };
    tasks.remember(id, output.next_position);
    Ok(output)
}

/// Output from a position on, as much as fits.
struct Piece {
    from: u64,
    /// After what was taken.
    position: u64,
    /// Bytes of text that it still has room for.
    room: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// The stream of what was taken last, and how many bytes of it in a row.
    last: Option<(OutputStream, usize)>,
    gap_until: Option<u64>,
}

impl Piece {
    fn new(from: u64, limit: usize) -> Self {
        let (stdout, stderr) = (Vec::new(), Vec::new());
        Self { from, position: from, room: limit, stdout, stderr, last: None, gap_until: None }
    }

    fn skip(&mut self, position: u64) {
        self.gap_until = Some(position);
        self.position = position;
        self.last = None;
    }

    /// Takes what fits of it; whether that is all.
    fn push(&mut self, output: &Output) -> bool {
        let (taken, length) = fitting(&output.data, self.room);
        self.room -= length;
        self.position = output.position + taken as u64;
        self.last = match self.last {
            Some((stream, before)) if stream == output.stream => Some((stream, before + taken)),
            Some(last) if taken == 0 => Some(last),
            _ => Some((output.stream, taken)),
        };
        self.stream(output.stream).extend(output.data.iter().take(taken));
        taken == output.data.len()
    }

    fn stream(&mut self, stream: OutputStream) -> &mut Vec<u8> {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    /// What was taken of a task that runs on: a character whose end is not there yet is left for the next piece.
    fn report(mut self, now: &ExecutionInfo) -> TaskOutput {
        if let Some((stream, last)) = self.last {
            let bytes = self.stream(stream);
            let whole = without_cut_character(bytes).len();
            let cut = bytes.len() - whole;
            if cut <= last {
                bytes.truncate(whole);
                self.position -= cut as u64;
            }
        }
        self.into_output(now)
    }

    fn ended(self, now: &ExecutionInfo, exited: Exited) -> TaskOutput {
        let exited = since(exited, now.state);
        let status = if exited.surviving_processes > 0 { TaskStatus::Lingering } else { TaskStatus::Exited };
        TaskOutput {
            status,
            exit_status: exit_status(&exited),
            command_diagnostics: CommandDiagnostics::new(&exited, []),
            ..self.into_output(now)
        }
    }

    fn into_output(self, now: &ExecutionInfo) -> TaskOutput {
        let text = |bytes: &[u8]| (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned());
        TaskOutput {
            task_id: now.id.to_string(),
            status: TaskStatus::Running,
            exit_status: None,
            command_diagnostics: None,
            stdout: text(&self.stdout),
            stderr: text(&self.stderr),
            position: self.from,
            next_position: self.position,
            gap_until: self.gap_until,
            more: false,
        }
    }
}

/// How many of these bytes fit into `limit` bytes of text, and how long that text is. No character is cut.
fn fitting(bytes: &[u8], limit: usize) -> (usize, usize) {
    let (mut taken, mut length) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        let fits = chunk.valid().floor_char_boundary(limit - length);
        (taken, length) = (taken + fits, length + fits);
        if fits < chunk.valid().len() {
            break;
        }
        if !chunk.invalid().is_empty() {
            if limit - length < REPLACEMENT_BYTES {
                break;
            }
            (taken, length) = (taken + chunk.invalid().len(), length + REPLACEMENT_BYTES);
        }
    }
    (taken, length)
}

#[async_trait]
impl Tool for TaskOutputTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn execute(&self, params: Value, context: ToolContext) -> Result<ToolResult, ToolError> {
        answer("Task output failed", context.cancel.run_until_cancelled(self.call(params)).await)
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn is_concurrent_safe(&self) -> bool {
        true
    }

    fn summary(&self, params: &Value) -> String {
        super::tasks::summary(NAME, params)
    }

    fn activity_description(&self, _params: &Value) -> Option<String> {
        Some("Reading output...".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ExecCommandTool;
    use super::*;
    use crate::fake::{Fake, ID, State, exited, info};
    use telexec_executor::ExitCause;

    const OUT: OutputStream = OutputStream::Stdout;
    const ERR: OutputStream = OutputStream::Stderr;

    fn tool(state: State) -> TaskOutputTool {
        ExecCommandTool::new(Fake::new(state)).task_output()
    }

    async fn read(tool: &TaskOutputTool, mut params: Value) -> TaskOutput {
        params["task_id"] = json!(ID);
        let result = tool.execute(params, ToolContext::default()).await.unwrap();
        assert!(!result.is_error, "{result:?}");
        serde_json::from_value(result.details).unwrap()
    }

    async fn refused(tool: &TaskOutputTool, params: Value) -> Value {
        let result = tool.execute(params, ToolContext::default()).await.unwrap();
        assert!(result.is_error && result.as_text().starts_with("Task output failed\n"), "{result:?}");
        result.details["error"].clone()
    }

    /// Whichever chunk has which part of a character, and wherever there is no more room.
    #[test]
    fn a_character_across_chunks_is_not_cut() {
        let text = "aé€".as_bytes();
        for limit in 1..12 {
            for cut in 0..=text.len() {
                let mut piece = Piece::new(0, limit);
                let (first, second) = text.split_at(cut);
                let output = |data: &[u8], position| Output { stream: OUT, data: data.to_vec().into(), position };
                let _ = piece.push(&output(first, 0)) && piece.push(&output(second, cut as u64));
                let info = info(ID, telexec_executor::ExecutionState::Running);
                let report = piece.report(&info);
                let shown = report.stdout.unwrap_or_default();
                assert!("aé€".starts_with(&shown), "{shown:?} of {limit}, cut at {cut}");
                assert_eq!(report.next_position, shown.len() as u64);
            }
        }
    }

    #[tokio::test]
    async fn it_goes_on_where_it_was_left() {
        let fake = Fake::new(State { output: vec![(OUT, "one\n"), (ERR, "two\n")], ..State::default() });
        let tool = ExecCommandTool::new(Arc::clone(&fake)).task_output();
        let first = read(&tool, json!({})).await;
        assert_eq!((first.stdout.as_deref(), first.stderr.as_deref()), (Some("one\n"), Some("two\n")));
        assert_eq!((first.status, first.position, first.next_position), (TaskStatus::Running, 0, 8));
        let nothing = read(&tool, json!({})).await;
        assert_eq!((nothing.stdout.as_deref(), nothing.next_position), (None, 8));
        assert_eq!(nothing.render(), "Task is running\nTask: task_123\nNext position: 8\n\nstdout:\n(no new output)");
        fake.state().output.push((OUT, "three"));
        let more = read(&tool, json!({})).await;
        assert_eq!((more.stdout.as_deref(), more.position, more.next_position), (Some("three"), 8, 13));
        let again = read(&tool, json!({ "position": 2 })).await;
        assert_eq!((again.stdout.as_deref(), again.stderr.as_deref()), (Some("e\nthree"), Some("two\n")));
    }

    #[tokio::test]
    async fn the_end_is_reported_with_the_last_output() {
        let tool =
            tool(State { output: vec![(OUT, "bye")], exited: Some(exited(ExitCause::Exited(4))), ..State::default() });
        let output = read(&tool, json!({})).await;
        assert_eq!((output.status, output.exit_status), (TaskStatus::Exited, Some(4)));
        let text = "Process exited with code 4\nTask: task_123\nNext position: 3\n\nstdout:\nbye";
        assert_eq!(output.render(), text);
    }

    #[tokio::test]
    async fn what_does_not_fit_is_in_the_next_piece() {
        let output = vec![(OUT, "0é語🦀"), (ERR, "err"), (OUT, "end")];
        let tool = tool(State { output, exited: Some(exited(ExitCause::Exited(0))), ..State::default() });
        let (mut stdout, mut stderr) = (String::new(), String::new());
        loop {
            let piece = read(&tool, json!({ "max_output_tokens": 1 })).await;
            let text = piece.stdout.clone().unwrap_or_default() + piece.stderr.as_deref().unwrap_or_default();
            assert!(text.len() <= 4 && !text.contains(char::REPLACEMENT_CHARACTER), "{piece:?}");
            stdout += piece.stdout.as_deref().unwrap_or_default();
            stderr += piece.stderr.as_deref().unwrap_or_default();
            assert_eq!(piece.more, piece.status == TaskStatus::Running, "{piece:?}");
            if !piece.more {
                break;
            }
        }
        assert_eq!((stdout.as_str(), stderr.as_str()), ("0é語🦀end", "err"));
    }

    #[tokio::test]
    async fn a_gap_is_reported() {
        let tool = tool(State { output: vec![(OUT, "0123456789")], kept_from: 6, ..State::default() });
        let output = read(&tool, json!({})).await;
        assert_eq!((output.gap_until, output.stdout.as_deref(), output.next_position), (Some(6), Some("6789"), 10));
        assert!(output.render().contains("\nOutput before position 6 is no longer kept\n"));
    }

    #[tokio::test]
    async fn unknown_tasks_and_odd_positions_are_reported() {
        let tool = tool(State { output: vec![(OUT, "one")], ..State::default() });
        assert_eq!(refused(&tool, json!({ "task_id": "other" })).await["kind"], "task_not_found");
        let beyond = refused(&tool, json!({ "task_id": ID, "position": 4 })).await;
        assert_eq!((&beyond["kind"], &beyond["details"]["end"]), (&json!("out_of_range"), &json!(3)));
        let odd = refused(&tool, json!({ "task_id": "a b" })).await;
        assert!(odd["recovery_hint"].as_str().unwrap().contains("provide input for task_output"), "{odd}");
        assert_eq!(refused(&tool, json!({ "task_id": ID, "id": 1 })).await["kind"], "invalid_tool_input");
    }

    #[test]
    fn a_character_that_is_not_whole_yet_is_left() {
        let chunk = |stream, position, data: &'static [u8]| Output { stream, position, data: data.into() };
        let mut piece = Piece::new(0, 100);
        assert!(piece.push(&chunk(OUT, 0, b"a\xc3")));
        let now = crate::fake::info(ID, telexec_executor::ExecutionState::Running);
        let report = piece.report(&now);
        assert_eq!((report.stdout.as_deref(), report.next_position), (Some("a"), 1));

        // its beginning is before other output, which must not come twice
        let mut piece = Piece::new(0, 100);
        for chunk in [chunk(OUT, 0, b"\xf0\x9f"), chunk(ERR, 2, b"e"), chunk(OUT, 3, b"\xa6")] {
            assert!(piece.push(&chunk));
        }
        let report = piece.report(&now);
        assert_eq!((report.stdout.as_deref(), report.next_position), (Some("\u{fffd}"), 4));
    }

    #[test]
    fn what_fits_ends_between_characters() {
        for (bytes, limit, expected) in [
            (&b"abc"[..], 3, (3, 3)),
            (b"abc", 2, (2, 2)),
            ("a語".as_bytes(), 3, (1, 1)),
            (b"\xffab", 4, (2, 4)),
            (b"\xffab", 2, (0, 0)),
            (b"", 0, (0, 0)),
        ] {
            assert_eq!(fitting(bytes, limit), expected, "{bytes:?}");
        }
    }
}
