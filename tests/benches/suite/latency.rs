//! How long a short command takes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use telexec_client::{ConnectOptions, RemoteExecutor};
use telexec_engine::{LocalConfig, LocalExecutor};
use telexec_executor::{Command, Event, Executor};
use telexec_tests::{Agent, Certs, Hierarchy, bench_agent, is_root};
use tokio::io::AsyncReadExt;

use crate::contest::{Contestant, contest, timed};
use crate::table::{Aim, Row, Table, Unit};
use crate::{Plan, Result};

/// Rules as an operator might have them.
const POLICY: &str = r#"
permit(principal, action in Action::"read", resource);
@max_timeout("1h") @max_concurrent("1000")
permit(principal, action in Action::"start", resource)
when { ["bash", "cat", "head", "true", "ls"].containsAll(context.programs) };
forbid(principal, action in Action::"start", resource) when { context.uses_sudo };
"#;

/// `/bin/true` and `bash -c true` over connections that are there.
pub(crate) async fn warm(plan: &Plan, table: &mut Table) -> Result<()> {
    let certs = Certs::new();
    let agents = [bench_agent().start(), bench_agent().tcp().start(), bench_agent().mtls(&certs).start()];
    let engine = LocalExecutor::new(LocalConfig::default())?;
    let [unix, tcp, mtls] = [&agents[0], &agents[1], &agents[2]];
    let machines = [unix.executor().await, tcp.executor().await, mtls.executor().await];
    let names = ["unix socket", "TCP", "mTLS"];
    let aims = [[Some(1.25), None, Some(1.35)], [Some(1.15), None, Some(1.20)]];
    for (argv, aims) in [&["/bin/true"][..], &["bash", "-c", "true"]].into_iter().zip(aims) {
        let text = argv.join(" ");
        let mut contestants = vec![
            Contestant::new(format!("{text}: tokio::process"), || timed(here(argv))),
            Contestant::new(format!("{text}: engine in this process"), || timed(there(&engine, argv))),
        ];
        for (((agent, machine), name), aim) in agents.iter().zip(&machines).zip(names).zip(aims) {
            let contestant = Contestant::new(format!("{text}: {name}"), || timed(there(machine, argv)));
            let contestant = contestant.agent(agent.serving_pid());
            contestants.push(match aim {
                Some(aim) => contestant.aim(Aim::RatioAtMost(aim)),
                None => contestant,
            });
        }
        let took = contest(plan, table, 500, contestants).await?;
        if let [spawn, .., mtls] = &took[..] {
            let row = Row::new(format!("{text}: agent's processor time, mTLS"), Unit::Microseconds, mtls.cpu[0]);
            table.add(row.beside("own processor time: tokio::process", spawn.cpu[1]).aim(Aim::RatioAtMost(1.5)));
        }
    }
    let options = ConnectOptions { tls: Some(certs.options(&certs.client)), ..ConnectOptions::default() };
    let cold = async |agent: &Agent, options| there(&connect(agent.uri(), options).await?, &["/bin/true"]).await;
    let cold = &cold;
    let contestants = vec![
        Contestant::new("/bin/true: tokio::process", || timed(here(&["/bin/true"]))),
        Contestant::new("new connection: unix socket", || timed(cold(unix, Default::default()))).agent(unix.pid()),
        Contestant::new("new connection: mTLS", || timed(cold(mtls, options.clone()))).agent(mtls.pid()),
    ];
    contest(plan, table, 200, contestants).await?;
    Ok(())
}

/// `/bin/true` by an agent that is one process, one with a keeper, and one that is not root.
pub(crate) async fn kept(plan: &Plan, table: &mut Table) -> Result<()> {
    let mut agents = vec![("unix socket", bench_agent().start()), ("keeper", bench_agent().kept().start())];
    if is_root() && Hierarchy::Unified.usable().is_some() {
        agents.push(("keeper, agent_user", bench_agent().agent_user().start()));
    }
    let machines = join_all(agents.iter().map(|(_, agent)| agent.executor())).await;
    let mut contestants = vec![Contestant::new("/bin/true: tokio::process", || timed(here(&["/bin/true"])))];
    let survives = || Command::argv(["/bin/true"]).disconnect_grace(Duration::from_secs(30)).build();
    for ((name, agent), machine) in agents.iter().zip(&machines) {
        let contestant = Contestant::new(format!("/bin/true: {name}"), || timed(there(machine, &["/bin/true"])));
        contestants.push(contestant.agent(agent.serving_pid()));
        let deed = move || timed(async move { finish(machine, survives()?).await });
        let contestant = Contestant::new(format!("/bin/true, disconnect_grace: {name}"), deed);
        contestants.push(contestant.agent(agent.serving_pid()));
    }
    contest(plan, table, 1000, contestants).await?;
    Ok(())
}

/// Until the first output of a command that keeps running.
pub(crate) async fn first_byte(plan: &Plan, table: &mut Table) -> Result<()> {
    const ARGV: [&str; 3] = ["sh", "-c", "echo x; exec sleep 1000"];
    let certs = Certs::new();
    let (unix, mtls) = (bench_agent().start(), bench_agent().mtls(&certs).start());
    let machines = [unix.executor().await, mtls.executor().await];
    let local = || async {
        let begin = Instant::now();
        let [program, arguments @ ..] = ARGV;
        let mut command = tokio::process::Command::new(program);
        let mut child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut pipe = child.stdout.take().ok_or("no pipe")?;
        pipe.read_u8().await?;
        let time = begin.elapsed();
        child.kill().await?;
        Ok(time)
    };
    let remote = |machine| async move {
        let machine: &dyn Executor = machine;
        let begin = Instant::now();
        let mut execution = machine.execute(Command::argv(ARGV).kill_grace(Duration::ZERO).build()?).await?;
        while !matches!(execution.next().await.ok_or("no output")??, Event::Output(_)) {}
        let time = begin.elapsed();
        machine.signal(execution.id(), telexec_executor::Signal::KILL).await?;
        while execution.next().await.is_some() {}
        Ok(time)
    };
    let [first, second] = &machines;
    let contestants = vec![
        Contestant::new("first byte: tokio::process", local),
        Contestant::new("first byte: unix socket", || remote(first)).agent(unix.pid()),
        Contestant::new("first byte: mTLS", || remote(second)).agent(mtls.pid()),
    ];
    contest(plan, table, 200, contestants).await?;
    Ok(())
}

/// Until a command that stays silent is known to run.
pub(crate) async fn started(plan: &Plan, table: &mut Table) -> Result<()> {
    const ARGV: [&str; 2] = ["sleep", "1000"];
    let certs = Certs::new();
    let (unix, mtls) = (bench_agent().start(), bench_agent().mtls(&certs).start());
    let machines = [unix.executor().await, mtls.executor().await];
    let local = || async {
        let begin = Instant::now();
        let [program, arguments @ ..] = ARGV;
        let mut command = tokio::process::Command::new(program);
        let mut child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let time = begin.elapsed();
        child.kill().await?;
        Ok(time)
    };
    let remote = |machine| until_started(machine, &ARGV);
    let [first, second] = &machines;
    let contestants = vec![
        Contestant::new("until started, sleep: tokio::process", local),
        Contestant::new("until started, sleep: unix socket", || remote(first)).agent(unix.pid()),
        Contestant::new("until started, sleep: mTLS", || remote(second)).agent(mtls.pid()),
    ];
    contest(plan, table, 200, contestants).await?;
    let contestants = vec![
        Contestant::new("whole /bin/true: mTLS", || timed(there(second, &["/bin/true"]))).agent(mtls.pid()),
        Contestant::new("until started, sleep: mTLS", || remote(second)).agent(mtls.pid()).aim(Aim::RatioAtMost(0.6)),
        Contestant::new("until started, /bin/true: mTLS", || until_started_and_exited(second)).agent(mtls.pid()),
    ];
    contest(plan, table, 200, contestants).await?;
    Ok(())
}

/// Time until the start of a command is reported, which is killed then.
pub(crate) async fn until_started(machine: &dyn Executor, argv: &[&str]) -> Result<Duration> {
    let begin = Instant::now();
    let command = Command::argv(argv.iter().copied()).kill_grace(Duration::ZERO).build()?;
    let mut execution = machine.execute(command).await?;
    let time = begin.elapsed();
    machine.signal(execution.id(), telexec_executor::Signal::KILL).await?;
    while execution.next().await.is_some() {}
    Ok(time)
}

/// The same of a command that exits by itself.
async fn until_started_and_exited(machine: &dyn Executor) -> Result<Duration> {
    let begin = Instant::now();
    let mut execution = machine.execute(Command::argv(["/bin/true"]).build()?).await?;
    let time = begin.elapsed();
    while execution.next().await.is_some() {}
    Ok(time)
}

/// A policy that looks at programs, an audit log with digests of the output, and metrics.
pub(crate) async fn guarded(plan: &Plan, table: &mut Table) -> Result<()> {
    let log = tempfile::tempdir()?;
    let audit = |name: &str| format!("[audit]\nfile = {:?}\n", log.path().join(name));
    let agents = [
        ("without any", bench_agent().start()),
        ("policy", bench_agent().policy(POLICY).start()),
        ("audit log", bench_agent().config(audit("audited")).start()),
        ("metrics", bench_agent().args(["--metrics-listen", "tcp://127.0.0.1:0"]).start()),
        ("policy and audit log", bench_agent().policy(POLICY).config(audit("both")).start()),
    ];
    let mut machines = Vec::new();
    for (_, agent) in &agents {
        machines.push(agent.executor().await);
    }
    let contestants = agents.iter().zip(&machines).map(|((name, agent), machine)| {
        let deed = || timed(there(machine, &["bash", "-c", "true"]));
        Contestant::new(format!("unix socket, {name}"), deed).agent(agent.pid())
    });
    contest(plan, table, 300, contestants.collect()).await?;
    Ok(())
}

/// Over a connection of its own.
pub(crate) async fn connect(uri: &str, options: ConnectOptions) -> Result<RemoteExecutor> {
    Ok(telexec_client::Agent::connect(&uri.parse()?, options).await?.executor())
}

/// The floor.
pub(crate) async fn here(argv: &[&str]) -> Result<()> {
    let (program, arguments) = argv.split_first().ok_or("no program")?;
    tokio::process::Command::new(program).args(arguments).output().await?;
    Ok(())
}

/// Runs it to its end.
pub(crate) async fn there(machine: &dyn Executor, argv: &[&str]) -> Result<()> {
    finish(machine, Command::argv(argv.iter().copied()).build()?).await
}

/// The same of any command.
pub(crate) async fn finish(machine: &dyn Executor, command: Command) -> Result<()> {
    let mut execution = machine.execute(command).await?;
    while let Some(event) = execution.next().await {
        event?;
    }
    Ok(())
}
