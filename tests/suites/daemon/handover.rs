//! What an agent leaves to the next one on the same state directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use telexec_client::RemoteExecutor;
use telexec_executor::{
    Attach, Command, CommandBuilder, ExecutionId, ExecutionInfo, ExecutionState, Executor, ExecutorError, ExitCause,
    ListQuery, OnDisconnect,
};
use telexec_tests::{Agent, Certs, Gate, Leaf, Replay, collect, replay, run, until, until_output, within};

use crate::cli::troubleshooting::shows;

/// A state directory, and agents on it.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn agent(&self, config: &str) -> Agent {
        let config = format!("shutdown_grace = \"0s\"\nkill_grace = \"200ms\"\n{config}");
        Agent::builder().args(["--state-dir", self.state().to_str().unwrap()]).config(config).start()
    }

    /// Starts one, has it remember a long and a short output, and ends it.
    async fn left(&self) -> [ExecutionId; 2] {
        let mut agent = self.agent("");
        let machine = agent.executor().await;
        let ids = ["long", "short"].map(|id| id.parse().unwrap());
        ended(&machine, background("seq 1 100000"), "long").await;
        ended(&machine, background("echo short"), "short").await;
        assert!(agent.terminate().await.success());
        ids
    }

    /// The directories in the state directory whose names begin so.
    fn directories(&self, prefix: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.state()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix)).collect()
    }

    /// Of what was left: the file with this name.
    fn file(&self, name: &str) -> PathBuf {
        let [directory] = &self.directories("spool-")[..] else { panic!("one agent left something") };
        directory.join(name)
    }
}

fn background(text: &str) -> CommandBuilder {
    Command::shell(text).on_disconnect(OnDisconnect::Detach)
}

async fn ended(machine: &RemoteExecutor, command: CommandBuilder, id: &str) {
    let command = command.execution_id(id.parse().unwrap());
    within(collect(machine.execute(command.build().unwrap()).await.unwrap())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_ids_of_two_identities_are_both_left() {
    let (place, certs) = (Place::new(), Certs::new());
    let state = place.state();
    let start = || Agent::builder().mtls(&certs).args(["--state-dir", state.to_str().unwrap()]).start();
    let names = ["anna", "other"];
    let pairs = names.map(|name| certs.ca.issue(Leaf::client(name)));
    let mut agent = start();
    for (pair, name) in pairs.iter().zip(names) {
        let machine = agent.connect_as(pair).await.executor();
        ended(&machine, background(&format!("echo {name}")), "same").await;
    }
    assert!(agent.terminate().await.success());
    let agent = start();
    for (pair, name) in pairs.iter().zip(names) {
        let machine = agent.connect_as(pair).await.executor();
        assert_eq!(replayed(&machine, &"same".parse().unwrap()).await.text(), format!("{name}\n"));
        ended(&machine, background(&format!("echo {name}")), "same").await;
        assert_eq!(all(&machine).await.len(), 1, "its repeat did not run");
    }
}

async fn all(machine: &RemoteExecutor) -> Vec<ExecutionInfo> {
    machine.list(ListQuery { include_exited: true, ..ListQuery::default() }).await.unwrap().executions
}

async fn replayed(machine: &RemoteExecutor, id: &ExecutionId) -> Replay {
    replay(machine.attach(id, Attach::start()).await.unwrap(), 0).await
}

/// The whole output, however the output is cut into chunks.
fn reported(replay: &Replay) -> impl PartialEq + std::fmt::Debug + use<> {
    let bytes = replay.outputs.iter().flat_map(|chunk| chunk.data.iter().map(|byte| (chunk.stream, *byte)));
    (replay.started.clone(), bytes.collect::<Vec<_>>(), replay.gaps.clone(), replay.exited.clone())
}

fn numbers(last: u32) -> String {
    (1..=last).map(|i| format!("{i}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_is_found_again_as_often_as_it_is_left() {
    let place = Place::new();
    let mut agent = place.agent("");
    let machine = agent.executor().await;
    let short =
        background("echo out; echo err >&2; printf '\\377'; exit 3").labels([("task".to_owned(), "short".to_owned())]);
    ended(&machine, short.clone(), "short").await;
    ended(&machine, background("seq 1 100000; seq 1 5 >&2"), "long").await;
    run(&machine, Command::shell("echo only for its caller")).await.unwrap();
    let killed = machine.execute(background("kill -9 $$").execution_id("killed".parse().unwrap()).build().unwrap());
    within(collect(killed.await.unwrap())).await.unwrap();
    let expected = all(&machine).await;
    assert_eq!(expected.len(), 4);
    let ids = ["short", "long", "killed"].map(|id| id.parse().unwrap());
    let mut outputs = Vec::new();
    for id in &ids {
        outputs.push(replayed(&machine, id).await);
    }
    assert!(outputs[1].text().starts_with(&numbers(100_000)));
    for _ in 0..2 {
        assert!(agent.terminate().await.success());
        agent = place.agent("");
        let machine = agent.executor().await;
        assert_eq!(all(&machine).await, expected);
        for (id, output) in ids.iter().zip(&outputs) {
            assert!(reported(&replayed(&machine, id).await) == reported(output), "{id}");
        }
        let foreground = replayed(&machine, &expected[2].id).await;
        assert!(foreground.outputs.is_empty() && foreground.gaps == [(0, 20)], "{foreground:?}");
        // the repeat of a request does not run again
        let repeat = short.clone().execution_id("short".parse().unwrap()).build().unwrap();
        assert_eq!(reported(&replay(machine.execute(repeat).await.unwrap(), 0).await), reported(&outputs[0]));
        let other = background("echo other").execution_id("short".parse().unwrap()).build().unwrap();
        let taken = machine.execute(other).await.unwrap_err();
        assert!(matches!(taken, ExecutorError::AlreadyExists(_)), "{taken:?}");
    }
    assert_eq!(
        (place.directories("spool-").len(), place.directories("unreadable-").len()),
        (1, 0),
        "what was taken over is removed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_ends_with_its_agent_and_its_output_is_found_again() {
    let place = Place::new();
    let mut agent = place.agent("");
    let machine = agent.executor().await;
    let gate = Gate::new();
    let command = background(&format!("seq 1 50000; echo ready; {}", gate.wait()));
    let command = command.execution_id("job".parse().unwrap()).yield_after(Duration::ZERO).build().unwrap();
    let id = machine.execute(command).await.unwrap().id().clone();
    let mut follower = machine.attach(&id, Attach::start()).await.unwrap();
    until_output(&mut follower, "ready\n").await;
    assert!(agent.terminate().await.success());
    let next = place.agent("");
    let machine = next.executor().await;
    let reported = replayed(&machine, &id).await;
    assert_eq!(reported.text(), format!("{}ready\n", numbers(50_000)));
    assert_eq!(reported.exited.unwrap().cause, ExitCause::Shutdown);
    assert_eq!(machine.get(&id).await.unwrap().state, ExecutionState::Exited);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_stays_its_owners() {
    let (place, certs) = (Place::new(), Certs::new());
    let state = place.state();
    let agent = || Agent::builder().mtls(&certs).args(["--state-dir", state.to_str().unwrap()]).start();
    let mut first = agent();
    let machine = first.executor().await;
    ended(&machine, background("echo mine"), "mine").await;
    assert!(first.terminate().await.success());
    let next = agent();
    let (mine, id) = (next.executor().await, "mine".parse().unwrap());
    assert_eq!(replayed(&mine, &id).await.text(), "mine\n");
    let other = next.connect_as(&certs.ca.issue(Leaf::client("other"))).await.executor();
    let hidden = other.get(&id).await.unwrap_err();
    assert!(matches!(hidden, ExecutorError::NotFound(_)), "{hidden:?}");
    assert_eq!(all(&other).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_forgets_by_its_own_configuration() {
    let place = Place::new();
    let [long, short] = place.left().await;
    let mut next = place.agent("retention_count = 1");
    let machine = next.executor().await;
    assert_eq!(all(&machine).await.into_iter().map(|info| info.id).collect::<Vec<_>>(), [short]);
    assert!(matches!(machine.get(&long).await.unwrap_err(), ExecutorError::NotFound(_)));
    until("its files are gone", async || !place.file("0.output").exists()).await;
    assert!(next.terminate().await.success());
    let old = place.agent("retention_age = \"0s\"");
    assert_eq!(all(&old.executor().await).await, []);
}

/// Has a fault made in what was left; the next agent sets it aside, logs that and serves.
async fn is_set_aside(fault: impl Fn(&Path)) {
    let place = Place::new();
    for round in 0..2 {
        let [long, _] = place.left().await;
        fault(&place.file("executions"));
        let mut next = place.agent("");
        shows("the state of the previous agent cannot be read, and is set aside", &next.log());
        let machine = next.executor().await;
        assert_eq!(all(&machine).await, []);
        let [aside] = &place.directories("unreadable-")[..] else { panic!("only the last one is kept, round {round}") };
        assert_eq!(fs::read_dir(aside).unwrap().count(), 3, "all of it");
        let ran = background("echo runs").execution_id(long);
        assert_eq!(run(&machine, ran).await.unwrap().text(), "runs\n");
        assert!(next.terminate().await.success());
        fs::remove_dir_all(place.file("")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_cut_off_is_set_aside() {
    for kept in [0, 1, 100, 10_000] {
        is_set_aside(|file| {
            let text = fs::read(file).unwrap();
            fs::write(file, &text[..kept.min(text.len() - 2)]).unwrap();
        })
        .await;
    }
    // between two lines
    is_set_aside(|file| {
        let text = fs::read_to_string(file).unwrap();
        fs::write(file, text.lines().take(2).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_damaged_or_of_another_version_is_set_aside() {
    let replaced = |from: &'static str, to: &'static str| {
        move |file: &Path| {
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains(from), "{text}");
            fs::write(file, text.replacen(from, to, 1)).unwrap();
        }
    };
    // of the version before, and of the next one
    is_set_aside(replaced("\"version\":2", "\"version\":1")).await;
    is_set_aside(replaced("\"version\":2", "\"version\":3")).await;
    is_set_aside(replaced("\"id\":\"long\"", "\"id\":\"../../long\"")).await;
    is_set_aside(replaced("\"exited\"", "\"ended\"")).await;
    is_set_aside(|file| fs::write(file, b"\xff\0garbage\n").unwrap()).await;
    is_set_aside(|file| {
        fs::remove_file(file).unwrap();
        fs::create_dir(file).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_is_lost_is_a_gap() {
    for fault in [(|file: &Path| fs::remove_file(file).unwrap()) as fn(&Path), |file| fs::write(file, "short").unwrap()]
    {
        for name in ["0.output", "0.index"] {
            let place = Place::new();
            let [long, short] = place.left().await;
            fault(&place.file(name));
            let next = place.agent("");
            assert!(next.log().contains("is lost"), "{}", next.log());
            let machine = next.executor().await;
            let reported = replayed(&machine, &long).await;
            assert_eq!(reported.exited.as_ref().unwrap().cause, ExitCause::Exited(0));
            assert!(matches!(reported.gaps[..], [(0, _)]), "{:?}", reported.gaps);
            assert_eq!(replayed(&machine, &short).await.text(), "short\n");
        }
    }
}
