//! What the agent counts, and who may read it.

mod listener;
mod shipped;

use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use telexec_executor::{
    Attach, Command, Executor, FilePiece, FileRange, FileTarget, Files, OnDisconnect, ResourceLimits, Signal,
    WriteOptions,
};
use telexec_tests::{
    Agent, AgentBuilder, Certs, Gate, Scrape, collect, has_controller, program, run, until, until_output, within,
};
use tokio::io::AsyncWriteExt;

use crate::cli::troubleshooting::shows;
use crate::keeper::crash_and_wait;

/// One that is asked on a port of its own.
fn metered() -> AgentBuilder {
    Agent::builder().args(["--metrics-listen", "tcp://127.0.0.1:0"])
}

#[tokio::test(flavor = "multi_thread")]
async fn executions_are_counted_by_their_causes() {
    let agent = metered().start();
    let executor = agent.executor().await;
    for text in ["true", "exit 3", "kill -9 $$"] {
        run(&executor, Command::shell(text)).await.unwrap();
    }
    run(&executor, Command::shell("sleep 100").timeout(Duration::from_millis(50))).await.unwrap();
    let late = Command::shell("sleep 100").deadline(Instant::now() + Duration::from_millis(200));
    let _ = run(&executor, late).await;
    let mut dropped = executor.execute(Command::shell("echo a; sleep 100").build().unwrap()).await.unwrap();
    until_output(&mut dropped, "a").await;
    let running = Scrape::of(&agent).await;
    drop(dropped);
    let cause = |scrape: &Scrape, cause| scrape.value(&format!("telexec_executions_total{{cause=\"{cause}\"}}"));
    until("the cancel is counted", async || cause(&Scrape::of(&agent).await, "cancelled") == 1.0).await;

    let scrape = Scrape::of(&agent).await;
    for (name, count) in
        [("exited", 2.0), ("signaled", 1.0), ("timed_out", 1.0), ("deadline_exceeded", 1.0), ("agent_shutdown", 0.0)]
    {
        assert_eq!(cause(&scrape, name), count, "{name}: {}", scrape.text);
    }
    assert_eq!(running.value("telexec_executions_running"), 1.0);
    assert_eq!(scrape.value("telexec_executions_running"), 0.0);
    assert_eq!(scrape.value("telexec_start_seconds_count"), 6.0);
    assert_eq!(scrape.value("telexec_execution_seconds_count"), 6.0);
    assert!(scrape.value("telexec_execution_seconds_bucket{le=\"0.01\"}") < 6.0);
    assert!(scrape.value("telexec_cpu_seconds_total") > 0.0);
    let reported = agent.connect().await.info().await.unwrap();
    let ended = [("exited", 2), ("signaled", 1), ("timed_out", 1), ("deadline_exceeded", 1), ("cancelled", 1)];
    assert_eq!(reported.ended_executions, ended.map(|(cause, count)| (cause.to_owned(), count)).into());
    assert!(reported.refusals.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_out_of_memory_is_counted() {
    let agent = metered().start();
    let limits = ResourceLimits { memory_bytes: Some(32 << 20), ..Default::default() };
    if !has_controller("memory") {
        eprintln!("skipped: there is no controller for memory");
        return;
    }
    run(&agent.executor().await, Command::shell("exec tail /dev/zero").limits(limits)).await.unwrap();
    assert_eq!(Scrape::of(&agent).await.value("telexec_executions_total{cause=\"out_of_memory\"}"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_counted_while_it_comes_and_what_is_dropped_too() {
    let agent = metered().start();
    let executor = agent.executor().await;
    let gate = Gate::new();
    let text = format!("printf 12345; printf 123 >&2; {}", gate.wait());
    let mut execution = executor.execute(Command::shell(text).max_output_bytes(4).build().unwrap()).await.unwrap();
    let bytes = "telexec_output_bytes_total{stream=\"stdout\"}";
    until("output is counted", async || Scrape::of(&agent).await.value(bytes) == 5.0).await;
    let _open = gate.open();
    while within(execution.next()).await.is_some() {}
    let scrape = Scrape::of(&agent).await;
    for (series, value) in [("bytes_total{stream=\"stderr\"}", 3.0), ("dropped_bytes_total{stream=\"stdout\"}", 1.0)] {
        assert_eq!(scrape.value(&format!("telexec_output_{series}")), value, "{series}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_started_is_counted_by_the_reason() {
    let policy = r#"permit(principal, action in [Action::"read", Action::"control"], resource);
        permit(principal, action in Action::"start", resource) unless { context.programs == ["date"] };
        @id("ask") @approval("5m") permit(principal, action in Action::"start", resource);
        forbid(principal, action == Action::"Execute", resource) when { context.programs.contains("reboot") };"#;
    let config = "max_executions = 2\nmax_starts_per_second = 6";
    let agent = metered().policy(policy).config(config).start();
    let executor = agent.executor().await;
    let sleeps = || Command::shell("sleep 100");
    run(&executor, Command::shell("reboot")).await.unwrap_err();
    run(&executor, Command::shell("date")).await.unwrap_err();
    run(&executor, Command::argv(["/no/such/program"])).await.unwrap_err();
    run(&executor, Command::shell("true").working_directory("/no/such/directory")).await.unwrap_err();
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(executor.execute(sleeps().build().unwrap()).await.unwrap());
    }
    run(&executor, sleeps()).await.unwrap_err();
    let scrape = Scrape::of(&agent).await;
    for (series, count) in [
        ("refusals_total{reason=\"policy\"}", 1.0),
        ("refusals_total{reason=\"approval\"}", 1.0),
        ("refusals_total{reason=\"exhausted\"}", 1.0),
        ("start_failures_total{stage=\"exec\"}", 1.0),
        ("start_failures_total{stage=\"chdir\"}", 1.0),
        ("policy_decisions_total{decision=\"deny\",rpc=\"Execute\"}", 2.0),
        ("policy_decisions_total{decision=\"allow\",rpc=\"Execute\"}", 5.0),
    ] {
        assert_eq!(scrape.value(&format!("telexec_{series}")), count, "{series}: {}", scrape.text);
    }
    until("there are too many starts", async || {
        let _ = executor.execute(sleeps().build().unwrap()).await;
        Scrape::of(&agent).await.value("telexec_refusals_total{reason=\"pace\"}") > 0.0
    })
    .await;
    executor.signal(held[0].id(), Signal::KILL).await.unwrap();
    let signals = "telexec_policy_decisions_total{decision=\"allow\",rpc=\"SignalExecution\"}";
    assert_eq!(Scrape::of(&agent).await.value(signals), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_certificates_are_reported() {
    let certs = Certs::new();
    let agent = metered().mtls(&certs).config("max_connections = 3").start();
    let first = agent.connect().await;
    let info = first.info().await.unwrap();
    let stranger = Certs::new();
    let options =
        telexec_client::ConnectOptions { tls: Some(stranger.options(&stranger.client)), ..Default::default() };
    telexec_client::Agent::connect(&agent.uri().parse().unwrap(), options).await.unwrap_err();
    until("the stranger is counted", async || {
        Scrape::of(&agent).await.value("telexec_handshakes_total{result=\"tls\"}") == 1.0
    })
    .await;
    let scrape = Scrape::of(&agent).await;
    let end = SystemTime::try_from(info.certificate_expire_time.unwrap()).unwrap();
    let end = end.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert_eq!(scrape.value("telexec_certificate_expiry_timestamp_seconds"), end);
    assert_eq!(scrape.value("telexec_handshakes_total{result=\"ok\"}"), 1.0);
    assert_eq!((scrape.value("telexec_connections"), scrape.value("telexec_connections_limit")), (1.0, 3.0));
    assert_eq!(scrape.value(&format!("telexec_containment_info{{containment=\"{}\"}}", info.containment)), 1.0);
    assert_eq!(scrape.value(&format!("telexec_build_info{{version=\"{}\"}}", info.version)), 1.0);
    assert!(scrape.value("process_open_fds") > 5.0 && scrape.value("process_resident_memory_bytes") > 1e6);
    drop(first);
    until("it is gone", async || Scrape::of(&agent).await.value("telexec_connections") == 0.0).await;
}

/// Each file by itself, until it can be read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_fails_is_reported() {
    let (certs, directory) = (Certs::new(), telexec_tests::directory());
    let crl = directory.path().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[])).unwrap();
    let permit = "permit(principal, action, resource);";
    let agent = metered().mtls(&certs).args(["--client-crl", crl.to_str().unwrap()]).policy(permit).start();
    let connected = agent.connect().await;
    // both say so, and which policy is in use
    let reports = async |failing: &[&str]| {
        let (scrape, info) = (Scrape::of(&agent).await, connected.info().await.unwrap());
        let fails = |what: &str| scrape.value(&format!("telexec_reload_failing{{what=\"{what}\"}}")) == 1.0;
        let digest = format!("telexec_policy_info{{sha256=\"{}\"}} 1", info.policy_sha256);
        let agree = ["certificates", "policy"].iter().all(|what| fails(what) == failing.contains(what));
        (agree && info.failed_reloads == failing && scrape.text.contains(&digest)).then_some(info.policy_sha256)
    };
    let digest = reports(&[]).await.unwrap();
    std::fs::write(agent.policy(), "permit(").unwrap();
    agent.signal(rustix::process::Signal::HUP);
    until("the policy cannot be read", async || reports(&["policy"]).await.as_ref() == Some(&digest)).await;
    std::fs::write(&crl, "none").unwrap();
    agent.signal(rustix::process::Signal::HUP);
    until("nor the revocation list", async || reports(&["certificates", "policy"]).await.is_some()).await;
    std::fs::write(agent.policy(), format!("{permit}\n")).unwrap();
    agent.signal(rustix::process::Signal::HUP);
    let is_another = async || reports(&["certificates"]).await.is_some_and(|now| now != digest);
    until("the policy is another one", is_another).await;
    std::fs::write(&crl, certs.ca.revocation_list(&[])).unwrap();
    agent.signal(rustix::process::Signal::HUP);
    until("all is read", async || reports(&[]).await.is_some()).await;
    shows("certificates reload failed, keeping what was read before", &agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn scrapes_under_load_miss_nothing() {
    let agent = metered().start();
    let executor = agent.executor().await;
    let commands = async {
        for _ in 0..10 {
            join_all((0..20).map(|_| run(&executor, Command::argv(["echo", "12345"])))).await;
        }
    };
    let scrapes = async {
        let mut last = 0.0;
        loop {
            let scrape = Scrape::of(&agent).await;
            let ended = scrape.sum("telexec_executions_total");
            assert!(ended >= last && ended <= scrape.value("telexec_start_seconds_count"), "{}", scrape.text);
            last = ended;
        }
    };
    tokio::select! {
        () = commands => {}
        () = scrapes => {}
    }
    let scrape = Scrape::of(&agent).await;
    assert_eq!(scrape.value("telexec_executions_total{cause=\"exited\"}"), 200.0);
    assert_eq!(scrape.value("telexec_output_bytes_total{stream=\"stdout\"}"), 1200.0);
    assert_eq!(scrape.value("telexec_executions_running"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_content_of_files_is_counted_by_direction() {
    let (agent, directory) = (metered().start(), telexec_tests::directory());
    let files = agent.connect().await.files();
    let target = FileTarget::new(directory.path().join("file").as_os_str().as_encoded_bytes());
    let piece = FilePiece::Data(vec![0; 100_000].into());
    let content = stream::iter([Ok(piece)]).boxed();
    within(files.write(target.clone(), WriteOptions::default(), content)).await.unwrap();
    let range = FileRange { length: 60_000, ..FileRange::default() };
    let mut content = within(files.read(target, range)).await.unwrap();
    while let Some(piece) = within(content.pieces.next()).await {
        piece.unwrap();
    }
    let counted = async || {
        let scrape = Scrape::of(&agent).await;
        ["received", "sent"].map(|way| scrape.value(&format!("telexec_file_{way}_bytes_total")))
    };
    assert_eq!(counted().await, [100_000.0, 60_000.0]);
    // of an SFTP session, once a file is closed
    let server = format!("{} ssh {} -s sftp", program("telexec").display(), agent.uri());
    let mut sftp = tokio::process::Command::new("sftp");
    sftp.args(["-q", "-b", "-", "-D", &server]).stdin(Stdio::piped()).kill_on_drop(true);
    let mut sftp = sftp.current_dir(directory.path()).spawn().unwrap();
    let batch = format!("get {0}/file copy\nput copy {0}/again\n", directory.path().display());
    within(sftp.stdin.take().unwrap().write_all(batch.as_bytes())).await.unwrap();
    assert!(within(sftp.wait()).await.unwrap().success());
    assert_eq!(counted().await, [200_000.0, 160_000.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_on_after_a_crash_of_the_agent_is_counted_by_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let listen = format!("unix://{}", directory.path().join("metrics.sock").display());
    let agent = Agent::builder().kept().args(["--metrics-listen", &listen]).start();
    let gate = Gate::new();
    let detached = |text: &str| Command::shell(text).on_disconnect(OnDisconnect::Detach);
    run(&agent.executor().await, detached("exit 1")).await.unwrap();
    let command = detached(&format!("echo ready; {}; echo end; exit 3", gate.wait())).build().unwrap();
    let mut execution = agent.executor().await.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    crash_and_wait(&agent).await;
    assert_eq!(Scrape::of(&agent).await.value("telexec_executions_running"), 1.0);
    let _open = gate.open();
    let attached = agent.executor().await.attach(execution.id(), Attach::start()).await.unwrap();
    assert_eq!(collect(attached).await.unwrap().exited.exit_code(), 3);
    let scrape = Scrape::of(&agent).await;
    assert_eq!(scrape.value("telexec_executions_running"), 0.0);
    // the other one was counted by the agent that is gone
    assert_eq!(scrape.value("telexec_executions_total{cause=\"exited\"}"), 1.0);
    assert_eq!(scrape.value("telexec_execution_seconds_count"), 1.0);
    assert_eq!(scrape.value("telexec_output_bytes_total{stream=\"stdout\"}"), 4.0, "{}", scrape.text);
}
