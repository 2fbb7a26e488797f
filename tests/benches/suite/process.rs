//! Whole processes: the program, ssh and grpcurl, and the agent itself.

use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use telexec_client::ConnectOptions;
use telexec_tests::{Agent, Certs, Memory, Sshd, bench_agent, percentile, program};

use crate::contest::{Contestant, contest, timed};
use crate::latency::{connect, there};
use crate::table::{Aim, Row, Table, Unit};
use crate::{Plan, Result};

const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// `telexec exec`, beside ssh; `Run` by grpcurl, beside its call of the health service.
pub(crate) async fn whole_processes(plan: &Plan, table: &mut Table) -> Result<()> {
    let certs = Certs::new();
    let agent = bench_agent().mtls(&certs).start();
    let machine = agent.executor().await;
    let exec = || async { spawned(with(telexec_exec(&agent, &certs), &["true"])) };
    let warm = || timed(there(&machine, &["true"]));
    let (fork, missing) = (|| async { spawned(Program::new("true")) }, Sshd::missing(&[]));
    if let Some(why) = &missing {
        println!("  not compared with ssh: {why}");
        let contestants = vec![
            Contestant::new("process: true", fork),
            Contestant::new("process: telexec exec, new mTLS", exec).agent(agent.pid()),
        ];
        contest(plan, table, 100, contestants).await?;
    } else {
        let sshd = Sshd::start(1)?;
        let open = || async { spawned(with(sshd.ssh(1, true), &["true"])) };
        let new = || async { spawned(with(sshd.ssh(1, false), &["true"])) };
        let exec = |aim| Contestant::new("telexec exec, new mTLS", exec).agent(agent.pid()).aim(aim);
        let contestants = vec![
            Contestant::new("ssh, ControlMaster", open),
            exec(Aim::AtMost(5000.0)),
            Contestant::new("client library, warm mTLS", warm).agent(agent.pid()).aim(Aim::RatioAtMost(0.25)),
        ];
        contest(plan, table, 200, contestants).await?;
        let library = Contestant::new("client library, new mTLS", || timed(anew(&agent, &certs))).agent(agent.pid());
        let contestants = vec![
            Contestant::new("ssh, new connection", new),
            exec(Aim::RatioAtMost(1.0 / 30.0)),
            library.aim(Aim::RatioAtMost(0.02)),
        ];
        contest(plan, table, 50, contestants).await?;
    }
    let Some(grpcurl) = std::env::var_os("GRPCURL") else {
        println!("  without grpcurl: GRPCURL does not name it");
        return Ok(());
    };
    let plain = bench_agent().start();
    let call = |method: &str, request: &str| {
        let mut program = Program::new(&grpcurl);
        program
            .args(["-plaintext", "-unix", "-authority", "localhost", "-d", request])
            .arg(plain.address())
            .arg(method);
        spawned(program)
    };
    let contestants = vec![
        Contestant::new("grpcurl, health", || async { call("grpc.health.v1.Health/Check", "{}") }),
        Contestant::new("grpcurl, Run of true", || async {
            call("telexec.v1.ExecutionService/Run", r#"{"argv":["true"]}"#)
        })
        .agent(plain.pid()),
    ];
    contest(plan, table, 100, contestants).await?;
    Ok(())
}

/// `true` over a new connection.
async fn anew(agent: &Agent, certs: &Certs) -> Result<()> {
    let options = ConnectOptions { tls: Some(certs.options(&certs.client)), ..ConnectOptions::default() };
    there(&connect(agent.uri(), options).await?, &["true"]).await
}

/// `telexec exec`, without a command yet, over a new connection.
pub(crate) fn telexec_exec(agent: &Agent, certs: &Certs) -> Program {
    let mut command = Program::new(program("telexec"));
    command
        .arg("exec")
        .arg("--cert")
        .arg(&certs.client.cert)
        .arg("--key")
        .arg(&certs.client.key)
        .arg("--ca")
        .arg(certs.ca.cert());
    command.arg(agent.uri()).arg("--").env("TELEXEC_CONFIG", "/dev/null");
    command
}

fn with(mut command: Program, arguments: &[&str]) -> Program {
    command.args(arguments);
    command
}

/// From its start to its end, which is a good one.
pub(crate) fn spawned(mut command: Program) -> Result<Duration> {
    let begin = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    let time = begin.elapsed();
    if status.success() { Ok(time) } else { Err(format!("{}: {status}", command.get_program().display()).into()) }
}

/// Its start, its size, and what it takes while nothing runs.
pub(crate) async fn agent(plan: &Plan, table: &mut Table) -> Result<()> {
    let (mut starts, mut idle) = (Vec::new(), Vec::new());
    for _ in 0..plan.some(40) {
        let begin = Instant::now();
        let agent = bench_agent().start();
        starts.push(begin.elapsed());
        // once it has been used
        there(&agent.executor().await, &["true"]).await?;
        idle.push(Memory::of(agent.pid()));
    }
    let start = percentile(&mut starts, 50).as_secs_f64() * 1e3;
    let mut row = Row::new("start to serving", Unit::Milliseconds, start).aim(Aim::AtMost(10.0));
    row.p99 = Some(percentile(&mut starts, 99).as_secs_f64() * 1e3);
    table.add(row);
    idle.sort_by_key(|memory| memory.resident);
    let memory = idle.get(idle.len() / 2).ok_or("no agent")?;
    let resident = memory.resident as f64 / MEBIBYTE;
    table.add(Row::new("idle, resident", Unit::Mebibytes, resident).aim(Aim::AtMost(9.0)));
    table.add(Row::new("idle, of these anonymous", Unit::Mebibytes, memory.anonymous as f64 / MEBIBYTE));
    for (name, aim) in [("telexecd", Some(Aim::AtMost(14.0))), ("telexec", None)] {
        let size = std::fs::metadata(program(name))?.len() as f64 / MEBIBYTE;
        let row = Row::new(format!("size of {name}"), Unit::Mebibytes, size);
        table.add(Row { aim, ..row });
    }
    Ok(())
}
