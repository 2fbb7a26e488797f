//! Recordings of executions, as a policy asks for them.

mod limits;
mod played;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use telexec_executor::{
    Attach, Command, CommandBuilder, Descendants, Event, Execution, ExecutionId, Executor, ExecutorError, ExitCause,
    Input, OnDisconnect, OutputStream, Signal, TerminalSize,
};
use telexec_tests::{Agent, AgentBuilder, exit_of, run, until, until_output, within};

use super::Audit;
use crate::keeper::{crash_and_wait, hand_over_and_wait};

/// Everything is recorded but `uptime`.
const RULES: &str = r#"
@id("recorded") @record @environment("*") permit(principal, action in Action::"start", resource) unless { context.programs == ["uptime"] };
@id("health") permit(principal, action in Action::"start", resource) when { context.programs == ["uptime"] };
@id("rest") permit(principal, action in [Action::"read", Action::"control"], resource);
"#;

impl Audit {
    /// An agent that records, with these settings of recordings.
    fn recording(&self, settings: &str) -> AgentBuilder {
        self.recording_with("", settings)
    }

    /// The same with other settings of the log.
    fn recording_with(&self, of_log: &str, settings: &str) -> AgentBuilder {
        self.agent(&format!("{of_log}\n[audit.recordings]\n{settings}")).policy(RULES)
    }

    fn recordings(&self) -> PathBuf {
        self.file().with_file_name("audit.log.recordings")
    }

    /// The names of all files.
    fn recorded_files(&self) -> Vec<String> {
        let Ok(files) = std::fs::read_dir(self.recordings()) else { return Vec::new() };
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The recording of an execution that has ended, after it is compared with the log.
    async fn recorded(&self, id: &ExecutionId) -> Cast {
        let end = self.end_of(id).await;
        let start = self.events("start").into_iter().find(|start| start["seq"] == end["start"]).unwrap();
        let recorded = &end["recording"];
        assert_eq!(recorded["file"], start["recording"]["file"]);
        let path = self.recordings().join(recorded["file"].as_str().unwrap());
        let bytes = std::fs::read(&path).unwrap();
        let sha256 = digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!((recorded["bytes"].as_u64(), &recorded["sha256"]), (Some(bytes.len() as u64), &json!(sha256)));
        let modes =
            [&path, &self.recordings()].map(|path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o600, 0o700]);
        Cast::read(&path)
    }

    async fn end_of(&self, id: &ExecutionId) -> Value {
        let is_it = |end: &Value| end["execution_id"] == id.as_str();
        until("its end is in the log", async || self.events("end").iter().any(is_it)).await;
        self.events("end").into_iter().find(is_it).unwrap()
    }

    /// What `telexecd audit play` prints, and its exit code.
    async fn play(&self, id: &str) -> (i32, String, String) {
        let mut command = tokio::process::Command::from(telexec_tests::telexecd());
        let output = within(command.args(["audit", "play"]).arg(self.file()).arg(id).output()).await.unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code().unwrap(), stdout, stderr)
    }
}

/// A recording: its header, and its events without their times.
struct Cast {
    header: Value,
    events: Vec<(String, String)>,
}

impl Cast {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.ends_with('\n') && text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')), "{text:?}");
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let (header, mut before) = (lines.next().unwrap(), 0.0);
        let event = |line: Value| {
            let at = line[0].as_f64().unwrap();
            assert!(at >= before, "{line} after {before}");
            before = at;
            (line[1].as_str().unwrap().to_owned(), line[2].as_str().unwrap().to_owned())
        };
        Self { header, events: lines.map(event).collect() }
    }

    /// All data with this code.
    fn all(&self, code: &str) -> String {
        self.events.iter().filter(|(other, _)| other == code).map(|(_, data)| data.as_str()).collect()
    }
}

fn on_terminal(text: &str) -> CommandBuilder {
    Command::shell(text).terminal(TerminalSize::new(80, 24).unwrap()).accepts_input(true)
}

fn detached(text: &str) -> CommandBuilder {
    Command::shell(text).accepts_input(true).on_disconnect(OnDisconnect::Detach)
}

async fn started(executor: &impl Executor, command: CommandBuilder, text: &str) -> Execution {
    let mut execution = within(executor.execute(command.build().unwrap())).await.unwrap();
    until_output(&mut execution, text).await;
    execution
}

async fn input(executor: &impl Executor, id: &ExecutionId, text: &str) -> Result<u64, ExecutorError> {
    within(executor.write_input(id, Input { data: text.to_owned().into(), ..Input::default() })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_recorded_with_what_is_typed() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let executor = agent.executor().await;
    let text =
        "stty -echo; printf 'Password: '; read -r secret; stty echo; printf 'Name: '; read -r name; echo \"$name\"";
    let mut execution = started(&executor, on_terminal(text), "Password: ").await;
    let id = execution.id().clone();
    input(&executor, &id, "s3cret\r").await.unwrap();
    until_output(&mut execution, "Name: ").await;
    within(executor.resize(&id, TerminalSize::new(100, 30).unwrap())).await.unwrap();
    input(&executor, &id, "anna \u{e9}\r").await.unwrap();
    let exited = exit_of(execution).await;
    assert_eq!(exited.exit_code(), 0);
    let cast = audit.recorded(&id).await;
    assert_eq!(
        (&cast.header["version"], &cast.header["width"], &cast.header["height"]),
        (&json!(2), &json!(80), &json!(24))
    );
    assert_eq!(cast.header["telexec"]["execution_id"], id.as_str());
    assert_eq!(cast.all("i"), "******\ranna \u{e9}\r");
    assert_eq!(cast.all("r"), "100x30");
    assert!(cast.all("o").starts_with("Password: ") && cast.all("o").ends_with("anna \u{e9}\r\n"), "{:?}", cast.events);
    let at = |code: &str| cast.events.iter().position(|event| event.0 == code).unwrap();
    assert!(at("o") < at("i") && at("i") < at("r"), "{:?}", cast.events);
    let (code, shown, said) = audit.play(id.as_str()).await;
    assert!(code == 0 && shown.ends_with("anna \u{e9}\n") && !shown.contains('\x1b'), "{shown:?}");
    assert!(said.contains("a terminal of 80x24"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_both_streams_and_the_input_are() {
    let audit = Audit::new();
    let agent = audit.recording("hidden_input = true").start();
    let command = Command::shell("cat; echo err >&2; printf '\\377'").stdin("from the request\n").build().unwrap();
    let execution = within(agent.executor().await.execute(command)).await.unwrap();
    let id = execution.id().clone();
    exit_of(execution).await;
    let cast = audit.recorded(&id).await;
    assert_eq!(cast.all("i"), "from the request\n");
    let mut shown: Vec<_> = cast.all("o").split("\r\n").map(str::to_owned).collect();
    shown.sort();
    assert!(shown.concat().replace('\u{fffd}', "").contains("from the request"), "{shown:?}");
    assert!(cast.all("o").contains("err\r\n") && cast.all("o").contains('\u{fffd}'), "{:?}", cast.events);
    assert_eq!(cast.header["telexec"]["terminal"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_policy_says_is_recorded() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let executor = agent.executor().await;
    let checks = agent.connect().await;
    for (text, recorded) in [("uptime", false), ("true", true)] {
        let checked = within(checks.check(&Command::shell(text).build().unwrap())).await.unwrap();
        assert_eq!((checked.allowed, checked.recorded), (true, recorded), "{text}");
        let outcome = run(&executor, Command::shell(text)).await.unwrap();
        let end = audit.end_of(&outcome.started.id).await;
        assert_eq!(end["recording"].is_object(), recorded, "{end}");
    }
    assert_eq!(audit.recorded_files().len(), 1);
    let (code, shown, said) = audit.play("no-such-id").await;
    assert!(code == 1 && shown.is_empty() && said.contains("has no execution no-such-id"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_start_leaves_no_file() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let executor = agent.executor().await;
    let missing = run(&executor, Command::argv(["/no/such/program"])).await;
    assert!(matches!(missing, Err(ExecutorError::Spawn(_))), "{missing:?}");
    audit.wait("not_started", 1).await;
    let once = || Command::shell("echo once").execution_id("once".parse().unwrap());
    for _ in 0..2 {
        assert_eq!(run(&executor, once()).await.unwrap().text(), "once\n");
    }
    audit.wait("not_started", 2).await;
    until("one file is left", async || audit.recorded_files().len() == 1).await;
    assert_eq!(audit.recorded(&"once".parse().unwrap()).await.all("o"), "once\r\n");
}

#[tokio::test]
async fn an_agent_without_an_audit_log_refuses_such_a_policy() {
    let refused = Agent::builder().policy(RULES).try_start().unwrap_err();
    assert!(refused.log.contains("@record: requires an audit log"), "{refused}");
}

/// What survives its agent is recorded by the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_recording_is_continued_by_the_next_agent() {
    for hands_over in [false, true] {
        let audit = Audit::new();
        let agent = audit.recording("").kept().start();
        let text = "echo ready; while read -r line; do echo \"got $line\"; [ \"$line\" != end ] || exit 3; done";
        let executor = agent.executor().await;
        let mut execution = started(&executor, detached(text), "ready\n").await;
        let id = execution.id().clone();
        input(&executor, &id, "one\n").await.unwrap();
        until_output(&mut execution, "got one\n").await;
        drop(execution);
        let is_written = async || {
            let files = audit.recorded_files();
            files.first().is_some_and(|file| Cast::read(&audit.recordings().join(file)).all("o").contains("got one"))
        };
        until("it is recorded", is_written).await;
        match hands_over {
            true => hand_over_and_wait(&agent).await,
            false => crash_and_wait(&agent).await,
        }
        let executor = agent.executor().await;
        let execution = within(executor.attach(&id, Attach::position(0))).await.unwrap();
        input(&executor, &id, "end\n").await.unwrap();
        assert_eq!(exit_of(execution).await.exit_code(), 3);
        let cast = audit.recorded(&id).await;
        assert_eq!((cast.all("i").as_str(), cast.all("o").as_str()), ("one\nend\n", "ready\r\ngot one\r\ngot end\r\n"));
        assert!(cast.all("m").contains("the agent was restarted"), "{:?}", cast.events);
        let (code, shown, _) = audit.play(id.as_str()).await;
        assert!(code == 0 && shown.contains("got end"), "{shown}");
    }
}

/// A recording that cannot be continued.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_recorded_no_further_is_ended() {
    let audit = Audit::new();
    let agent = audit.recording("").kept().start();
    let executor = agent.executor().await;
    let execution = started(&executor, detached("echo ready; sleep 300"), "ready\n").await;
    let id = execution.id().clone();
    drop(execution);
    let [file] = &audit.recorded_files()[..] else { panic!("one file") };
    std::fs::remove_file(audit.recordings().join(file)).unwrap();
    crash_and_wait(&agent).await;
    let end = audit.end_of(&id).await;
    assert_eq!(end["cause"], "cancelled");
    assert!(end["recording"]["error"].as_str().unwrap().contains("cannot be continued"), "{end}");
}

/// One that was ended stays so, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_does_not_continue_what_was_ended() {
    let audit = Audit::new();
    let agent = audit.recording_with("when_full = \"count\"", "max_bytes = 65536").kept().start();
    let text = "head -c 100000 /dev/zero | tr '\\0' x; echo; echo ready; read -r line; echo $line";
    let executor = agent.executor().await;
    let execution = started(&executor, detached(text), "ready\n").await;
    let id = execution.id().clone();
    drop(execution);
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    let execution = within(executor.attach(&id, Attach::position(0))).await.unwrap();
    input(&executor, &id, "unrecorded\n").await.unwrap();
    assert_eq!(exit_of(execution).await.exit_code(), 0);
    let cast = audit.recorded(&id).await;
    assert!(!cast.all("o").contains("unrecorded") && !cast.all("i").contains("unrecorded"), "{:?}", cast.all("i"));
    let end = audit.end_of(&id).await;
    assert!(end["recording"]["error"].as_str().unwrap().contains("audit.recordings.max_bytes"), "{end}");
    assert_eq!(end["recording"]["continued"], true);
}

/// What readers have got of both streams is in the same order for the next agent.
#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_what_is_recorded_stay_in_order() {
    let audit = Audit::new();
    let agent = audit.recording("").kept().start();
    let text = "(while echo out; do :; done) & while echo err >&2; do :; done";
    let execution = within(agent.executor().await.execute(detached(text).build().unwrap())).await.unwrap();
    let id = execution.id().clone();
    let mut before = Vec::new();
    read(execution, &mut before, 500_000).await;
    crash_and_wait(&agent).await;
    let mut after = Vec::new();
    let execution = within(agent.executor().await.attach(&id, Attach::position(0))).await;
    read(execution.unwrap(), &mut after, before.len()).await;
    // the beginning may be kept no more
    let common = before.iter().zip(&after).filter(|(before, after)| before.is_some() && after.is_some());
    assert!(common.clone().count() > 0 && common.clone().all(|(before, after)| before == after));
    within(agent.executor().await.signal(&id, Signal::KILL)).await.unwrap();
}

/// The byte at each position up to some, and its stream.
async fn read(mut execution: Execution, bytes: &mut Vec<Option<(OutputStream, u8)>>, most: usize) {
    use futures_util::StreamExt;

    while bytes.len() < most {
        if let Event::Output(output) = within(execution.next()).await.unwrap().unwrap() {
            bytes.resize(output.position as usize, None);
            bytes.extend(output.data.iter().map(|byte| Some((output.stream, *byte))));
        }
    }
}
