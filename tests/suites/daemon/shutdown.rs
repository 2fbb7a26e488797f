//! How the agent ends.

use prost::Message;
use prost_types::FileDescriptorSet;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::{Command, Executor};
use telexec_proto::v1::{ExecuteRequest, ExitCause};
use telexec_tests::{Agent, Certs, MARK, Wire, follow, lines, marker, processes_with, run, until, within};
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

const HURRIED: &str = "shutdown_grace = \"200ms\"\nkill_grace = \"200ms\"";
const PATIENT: &str = "shutdown_grace = \"1h\"";

fn request(command: &str, mark: &str, directory: &str) -> ExecuteRequest {
    let environment = [(MARK.to_owned(), mark.to_owned())].into();
    ExecuteRequest { command: command.into(), environment, working_directory: directory.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_still_runs_is_ended_and_told_so() {
    let mut agent = Agent::builder().config(HURRIED).start();
    let (wire, mark) = (Wire::connect(&agent).await.unwrap(), marker());
    let mut streams = Vec::new();
    for command in ["sleep 300", "setsid sleep 300 & sleep 300", "trap '' TERM; while :; do sleep 300; done"] {
        streams.push(wire.executions().execute(request(command, &mark, "/")).await.unwrap().into_inner());
    }
    until("all run", async || processes_with(&mark).len() >= 5).await;
    agent.signal(Signal::TERM);
    for stream in streams {
        let followed = follow(stream).await;
        assert_eq!(followed.status.code(), Code::Ok);
        let exited = followed.exited().unwrap();
        assert_eq!((exited.cause(), exited.exit_code), (ExitCause::AgentShutdown, -1));
    }
    assert_eq!(processes_with(&mark), []);
    assert!(agent.ended().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_say_nothing_do_not_keep_it() {
    let certs = Certs::new();
    let mut agent = Agent::builder().mtls(&certs).config(HURRIED).start();
    let _before_tls = Wire::dial(&agent).await;
    let wire = Wire::connect_tls(&agent, certs.config(Some(&certs.client))).await.unwrap();
    let _endless_call = watch(&wire).await;
    assert!(agent.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_read_does_not_keep_it() {
    let mut agent = Agent::builder().config(HURRIED).start();
    let (wire, mark) = (Wire::connect(&agent).await.unwrap(), marker());
    let _unread = wire.executions().execute(request("yes", &mark, "/")).await.unwrap();
    until("it runs", async || !processes_with(&mark).is_empty()).await;
    agent.signal(Signal::TERM);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    assert!(agent.ended().await.success());
}

/// Each call is dropped a little later on its way than the one before; what it starts may come after that.
#[tokio::test(flavor = "multi_thread")]
async fn what_starts_for_calls_that_were_given_up_is_ended() {
    let mut agent = Agent::builder().config(HURRIED).start();
    let (executor, mark) = (agent.executor().await, marker());
    let command = Command::argv(["sleep", "300"]).env(MARK, &mark).build().unwrap();
    let call = |round: u64| tokio::time::timeout(Duration::from_micros(50 * round), executor.execute(command.clone()));
    drop(join_all((0..100).map(call)).await);
    assert!(agent.terminate().await.success());
    assert_eq!(processes_with(&mark), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigint_ends_it_too() {
    let mut agent = Agent::start();
    agent.signal(Signal::INT);
    assert!(agent.ended().await.success());
}

async fn watch(wire: &Wire) -> Streaming<HealthCheckResponse> {
    let mut watch = wire.health().watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(status(&mut watch).await, ServingStatus::Serving);
    watch
}

async fn status(watch: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    within(watch.message()).await.unwrap().unwrap().status()
}

/// By their full names.
fn services_of_the_package() -> Vec<String> {
    let set = FileDescriptorSet::decode(telexec_proto::FILE_DESCRIPTOR_SET).unwrap();
    let files = set.file.into_iter().filter(|file| file.package() == "telexec.v1");
    files.flat_map(|file| file.service).map(|service| format!("telexec.v1.{}", service.name())).collect()
}

/// The agent drains: it has the signal, and this command still runs.
#[tokio::test(flavor = "multi_thread")]
async fn while_it_drains_commands_go_on_and_new_ones_are_refused() {
    let mut agent = Agent::builder().config(PATIENT).start();
    let wire = Wire::connect(&agent).await.unwrap();
    let mut watch = watch(&wire).await;
    let mut services = Vec::new();
    for service in services_of_the_package() {
        let mut watch =
            wire.health().watch(HealthCheckRequest { service: service.clone() }).await.unwrap().into_inner();
        assert_eq!(status(&mut watch).await, ServingStatus::Serving, "{service}");
        services.push((service, watch));
    }
    let directory = agent.directory().to_str().unwrap().to_owned();
    let command = "until [ -e go ]; do sleep 0.02; done; echo done; exit 3";
    let stream = wire.executions().execute(request(command, "", &directory)).await.unwrap().into_inner();
    agent.signal(Signal::TERM);
    assert_eq!(status(&mut watch).await, ServingStatus::NotServing);
    for (service, mut watch) in services {
        assert_eq!(status(&mut watch).await, ServingStatus::NotServing, "{service}");
    }

    let late = within(wire.executions().execute(request("echo ran > ran", "", &directory))).await;
    assert!(late.is_err());
    assert!(tokio::net::UnixStream::connect(agent.address()).await.is_err());
    std::fs::write(agent.directory().join("go"), "").unwrap();
    let followed = follow(stream).await;
    assert_eq!((followed.stdout(), followed.exited().unwrap().exit_code), (b"done\n".to_vec(), 3));
    assert!(agent.ended().await.success());
    assert!(lines(&agent.directory().join("ran")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_left_behind_on_purpose_stays() {
    let mut agent = Agent::start();
    let mark = marker();
    let command = Command::shell("setsid sleep 300 >/dev/null 2>&1 & echo done").env(MARK, &mark);
    run(&agent.executor().await, command).await.unwrap();
    assert!(agent.terminate().await.success());
    let left = processes_with(&mark);
    assert_eq!(left.len(), 1, "{left:?}");
    kill_process(Pid::from_raw(left[0].pid).unwrap(), Signal::KILL).unwrap();
}
