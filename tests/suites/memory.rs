//! What callers can make an agent hold: bytes are counted for each identity and in all, before requests are unpacked.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use prost::Message;
use telexec_executor::{
    Attach, Command, ExecutionId, Executor, ExecutorError, ListQuery, OnDisconnect, Program, Signal,
};
use telexec_proto::v1::interact_request::Request as Step;
use telexec_proto::v1::{CheckCommandRequest, ExecuteRequest, InteractRequest, WriteInputRequest};
use telexec_tests::raw::message;
use telexec_tests::{Agent, Certs, Leaf, Memory, Wire, collect, marker, run, until, within};
use tonic::{Code, Status};

const MIB: usize = 1024 * 1024;
const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];
const EXECUTE: &str = "/telexec.v1.ExecutionService/Execute";
const CHECK: &str = "/telexec.v1.AgentService/CheckCommand";
const WRITE_INPUT: &str = "/telexec.v1.ExecutionService/WriteInput";
const IN_FLIGHT: &str = "max_request_bytes_in_flight";

fn resident(agent: &Agent) -> usize {
    usize::try_from(Memory::of(agent.pid()).resident).unwrap()
}

fn peak(agent: &Agent) -> usize {
    usize::try_from(Memory::of(agent.pid()).peak).unwrap()
}

fn bytes(request: &impl Message) -> Bytes {
    message(&request.encode_to_vec()).into()
}

/// The status that a call fails with.
async fn refused(wire: &Wire, path: &str, request: Bytes) -> Status {
    let answer = wire.post(path, GRPC, request, true).await.unwrap();
    Status::from_header_map(answer.headers()).unwrap_or_else(|| panic!("it was answered: {answer:?}"))
}

/// A command that reads nothing, in the background.
async fn sleeper(executor: &impl Executor) -> ExecutionId {
    let command = Command::argv(["sleep", "300"]).accepts_input(true).on_disconnect(OnDisconnect::Detach);
    executor.execute(command.build().unwrap()).await.unwrap().id().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn input_that_waits_is_bounded_and_the_limit_is_named() {
    let agent = Agent::start();
    let (wire, executor) = (Wire::connect(&agent).await.unwrap(), agent.executor().await);
    let id = sleeper(&executor).await;
    let before = resident(&agent);
    let data: Bytes = vec![7; 4 * MIB - 100].into();
    let write = bytes(&WriteInputRequest { execution_id: id.to_string(), data, ..Default::default() });
    let mut writes: FuturesUnordered<_> = (0..200).map(|_| refused(&wire, WRITE_INPUT, write.clone())).collect();
    for _ in 0..180 {
        let status = within(writes.next()).await.unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(status.message().contains(IN_FLIGHT), "{status:?}");
    }
    let grown = resident(&agent) - before;
    assert!(grown < 200 * MIB, "by {} MiB", grown / MIB);
    // what waits gets the end, and then there is room
    executor.signal(&id, Signal::KILL).await.unwrap();
    while let Some(status) = within(writes.next()).await {
        assert!([Code::FailedPrecondition, Code::ResourceExhausted].contains(&status.code()), "{status:?}");
    }
    let id = sleeper(&executor).await;
    let small = WriteInputRequest { execution_id: id.to_string(), data: vec![7; 1000].into(), ..Default::default() };
    within(wire.executions().write_input(small)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn input_of_open_calls_is_bounded_and_the_limit_is_named() {
    let limit = format!("{IN_FLIGHT}_per_identity = {}", 8 * MIB);
    let agent = Agent::builder().config(limit).start();
    let wire = Wire::connect(&agent).await.unwrap();
    let step = |step| InteractRequest { request: Some(step) };
    let data: Bytes = vec![7; 3 * MIB].into();
    let calls = (0..4).map(|_| {
        let request = ExecuteRequest { command: "exec sleep 300".into(), accepts_input: true, ..Default::default() };
        let steps = [step(Step::Start(request)), step(Step::Stdin(data.clone()))];
        let (wire, steps) = (wire.clone(), stream::iter(steps).chain(stream::pending()));
        async move {
            let mut events = wire.executions().interact(steps).await?.into_inner();
            while events.message().await?.is_some() {}
            Ok::<_, Status>(())
        }
    });
    let mut calls: FuturesUnordered<_> = calls.collect();
    for _ in 0..2 {
        let status = within(calls.next()).await.unwrap().unwrap_err();
        assert!(status.code() == Code::ResourceExhausted && status.message().contains(IN_FLIGHT), "{status:?}");
    }
    assert!(tokio::time::timeout(Duration::from_millis(100), calls.next()).await.is_err(), "two of them fit");
}

/// With so many variables; few bytes on the wire, and many once it is unpacked.
fn of_variables(count: usize) -> ExecuteRequest {
    let environment = (0..count).map(|number| (format!("{number:x}"), String::new())).collect();
    ExecuteRequest { command: "true".into(), environment, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_requests_are_refused_before_they_are_unpacked_also_of_callers_without_a_rule() {
    // there is no rule that permits anything
    let agent = Agent::builder().policy("").start();
    let wire = Wire::connect(&agent).await.unwrap();
    let before = peak(&agent);
    let request = of_variables(250_000);
    let check = CheckCommandRequest { request: Some(request.clone()), ..Default::default() };
    for (path, large) in [(EXECUTE, bytes(&request)), (CHECK, bytes(&check))] {
        let status = refused(&wire, path, large.clone()).await;
        assert_eq!(status.code(), Code::ResourceExhausted, "{path}: {status:?}");
        assert!(status.message().contains("max_request_fields"), "{status:?}");
        for status in join_all((0..20).map(|_| refused(&wire, path, large.clone()))).await {
            assert_eq!(status.code(), Code::ResourceExhausted, "{path}: {status:?}");
        }
    }
    let grown = peak(&agent) - before;
    assert!(grown < 100 * MIB, "by {} MiB", grown / MIB);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_costs_bounded_memory_and_it_is_given_back() {
    let agent = Agent::builder().policy("").start();
    let wire = Wire::connect(&agent).await.unwrap();
    let before = Memory::of(agent.pid());
    let request = bytes(&of_variables(50_000));
    let mut refusals = (0, 0);
    for status in join_all((0..200).map(|_| refused(&wire, EXECUTE, request.clone()))).await {
        match status.code() {
            Code::PermissionDenied => refusals.0 += 1,
            Code::ResourceExhausted if status.message().contains(IN_FLIGHT) => refusals.1 += 1,
            other => panic!("{other:?}: {status:?}"),
        }
    }
    assert!(refusals.0 > 0, "{refusals:?}: what fits is judged");
    let grown = peak(&agent) - usize::try_from(before.resident).unwrap();
    assert!(grown < 250 * MIB, "by {} MiB", grown / MIB);
    until("most is given back", async || Memory::of(agent.pid()).anonymous < before.anonymous + 24 * MIB as u64).await;
}

/// A program with so many bytes of arguments, which it does not look at.
fn of_arguments(bytes: usize) -> Command {
    let argument = "x".repeat(100_000);
    let argv = ["true".to_owned()].into_iter().chain(std::iter::repeat_n(argument, bytes / 100_000));
    Command::argv(argv).execution_id(marker().parse().unwrap()).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_running_commands_count_until_they_end() {
    let agent = Agent::builder().config(format!("{IN_FLIGHT}_per_identity = 2000000")).start();
    let executor = agent.executor().await;
    let large = |text: &str| Command::argv(["sh", "-c", text, &"x".repeat(100_000)]);
    let many = || large("sleep 300").env("A", "x".repeat(100_000)).on_disconnect(OnDisconnect::Detach);
    let mut running = Vec::new();
    let refusal = loop {
        match executor.execute(many().build().unwrap()).await {
            Ok(execution) => running.push(execution.id().clone()),
            Err(error) => break error,
        }
        assert!(running.len() < 100, "they are not counted");
    };
    // the environment is not kept once the command runs
    assert!(running.len() > 15, "{}", running.len());
    match refusal {
        ExecutorError::Exhausted { reason, retry_after } => {
            assert!(reason.contains(IN_FLIGHT) && retry_after.is_some(), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    for id in &running {
        executor.signal(id, Signal::KILL).await.unwrap();
    }
    until("there is room again", async || run(&executor, large("exit 3")).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn little_is_kept_of_what_has_ended_and_a_repeat_is_known_all_the_same() {
    const KEPT: usize = 4096;
    let mut agent = Agent::start();
    let executor = agent.executor().await;
    let before = resident(&agent);
    let large = of_arguments(1_900_000);
    for number in 0..60 {
        let id: ExecutionId = format!("large-{number}").parse().unwrap();
        let execution = executor.execute(large.clone().with_execution_id(id)).await.unwrap();
        collect(execution).await.unwrap();
    }
    until("little is kept", async || resident(&agent) < before + 60 * MIB).await;
    let first: ExecutionId = "large-0".parse().unwrap();
    let Program::Argv(argv) = executor.get(&first).await.unwrap().program else { panic!("it is a program") };
    assert_eq!(argv[0], "true");
    assert_eq!(argv.iter().map(String::len).sum::<usize>(), KEPT);
    // the same is the same, and what differs only past that is not
    let repeat = executor.execute(large.clone().with_execution_id(first.clone())).await.unwrap();
    assert_eq!(collect(repeat).await.unwrap().exited.exit_code(), 0);
    let other = of_arguments(1_800_000).with_execution_id(first.clone());
    assert!(matches!(executor.execute(other).await, Err(ExecutorError::AlreadyExists(_))));

    assert!(agent.terminate().await.success());
    let left = size(&agent.directory().join("state"));
    assert!(left < 2 * MIB, "{left} bytes are left for the next agent");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_output_is_given_back_once_its_caller_cannot_ask_again() {
    let agent = Agent::start();
    let executor = agent.executor().await;
    let before = resident(&agent);
    let command = Command::argv(["head", "-c", "6M", "/dev/zero"]).disconnect_grace(Duration::from_secs(3));
    for outcome in join_all((0..16).map(|_| run(&executor, command.clone()))).await {
        assert_eq!(outcome.unwrap().stdout.len(), 6 * MIB);
    }
    assert!(peak(&agent) > before + 60 * MIB, "it was retained");
    until("it is given back", async || resident(&agent) < before + 30 * MIB).await;
}

fn size(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => size(&entry.path()),
            false => usize::try_from(entry.metadata().unwrap().len()).unwrap(),
        })
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_the_most_kept_is_forgotten_first() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).config("retention_bytes = 60000").start();
    let pair = |name| certs.ca.issue(Leaf::client(name));
    let (anna, bob) =
        (agent.connect_as(&pair("anna")).await.executor(), agent.connect_as(&pair("bob")).await.executor());
    let text = || Command::shell(format!("true {}", "x".repeat(3000)));
    let annas = run_one(&anna, text()).await;
    let mut bobs = Vec::new();
    for _ in 0..30 {
        bobs.push(run_one(&bob, text()).await);
    }
    assert!(anna.get(&annas).await.is_ok(), "one's flood makes no one else's be forgotten");
    assert!(bob.get(&bobs[0]).await.is_err() && bob.get(&bobs[29]).await.is_ok());
    let known = bob.list(ListQuery { include_exited: true, ..Default::default() }).await.unwrap().executions.len();
    assert!((5..20).contains(&known), "{known}");
    assert!(anna.attach(&annas, Attach::start()).await.is_ok());
}

async fn run_one(executor: &impl Executor, command: telexec_executor::CommandBuilder) -> ExecutionId {
    let execution = executor.execute(command.build().unwrap()).await.unwrap();
    collect(execution).await.unwrap().started.id
}
