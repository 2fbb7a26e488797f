//! What telexec costs over doing it here: `cargo build --release && cargo bench -p telexec-tests --bench exec`.
//!
//! Every figure stands beside its baseline, measured in the same run and taking turns with it, so that the ratios hold
//! on a machine that is busy with other things. Arguments: the number of rounds (default 300) and the MiB of the
//! throughput test (default 2048).

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use telexec_tests::{Agent, Certs, percentile};
use telexec_tool::local::{LocalConfig, LocalExecutor};
use telexec_tool::{Command, CommandBuilder, Event, Executor};
use tokio::io::AsyncReadExt;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Rounds in a row in one place.
const BLOCK: usize = 50;
const WARM_UP: usize = 5;

/// Rules as an operator might have them.
const POLICY: &str = r#"
permit(principal, action in Action::"read", resource);
@max_timeout("1h") @max_concurrent("1000")
permit(principal, action in Action::"start", resource)
when { ["bash", "cat", "head", "true", "ls"].containsAll(context.programs) };
forbid(principal, action in Action::"start", resource) when { context.uses_sudo };
"#;

/// Somewhere the same thing is done.
struct Place {
    name: &'static str,
    executor: Box<dyn Executor>,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let rounds = arguments.next().map_or(Ok(300), |text| text.parse())?;
    let mebibytes = arguments.next().map_or(Ok(2048), |text| text.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(rounds, mebibytes))
}

async fn run(rounds: usize, mebibytes: u64) -> Result<()> {
    let certs = Certs::new();
    let unix = Agent::start();
    let tcp = Agent::builder().tcp().start();
    let mtls = Agent::builder().mtls(&certs).start();
    let places = [
        Place { name: "engine, in this process", executor: Box::new(LocalExecutor::new(LocalConfig::default())?) },
        Place { name: "Execute, unix socket", executor: Box::new(unix.executor().await) },
        Place { name: "Execute, plaintext TCP", executor: Box::new(tcp.executor().await) },
        Place { name: "Execute, mTLS", executor: Box::new(mtls.executor().await) },
    ];
    let log = tempfile::tempdir()?;
    let audit = |name: &str| format!("[audit]\nfile = {:?}\n", log.path().join(name));
    let policed = Agent::builder().policy(POLICY).start();
    let audited = Agent::builder().config(audit("audited")).start();
    let metered = Agent::builder().args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let both = Agent::builder().policy(POLICY).config(audit("both")).start();
    let guarded = [
        Place { name: "Execute, unix socket", executor: Box::new(unix.executor().await) },
        Place { name: "the same with a policy", executor: Box::new(policed.executor().await) },
        Place { name: "with an audit log", executor: Box::new(audited.executor().await) },
        Place { name: "with metrics", executor: Box::new(metered.executor().await) },
        Place { name: "with policy and audit log", executor: Box::new(both.executor().await) },
    ];
    println!("latency, warm connection, {rounds} rounds; the baseline is tokio::process in this process");
    for argv in [&["/bin/true"][..], &["bash", "-c", "true"]] {
        latency(argv, rounds, &places).await?;
    }
    println!(
        "\nlatency of a policy that looks at programs, of an audit log with digests of the output, and of metrics"
    );
    latency(&["bash", "-c", "true"], rounds, &guarded).await?;
    println!(
        "\nthroughput of standard output, {mebibytes} MiB; the baseline is tokio::process's pipe from the same command"
    );
    throughput(mebibytes, &places).await
}

async fn latency(argv: &[&str], rounds: usize, places: &[Place]) -> Result<()> {
    let mut here = Vec::new();
    let mut there = vec![Vec::new(); places.len()];
    // in blocks, so that each is as warm as it would be in use; the first rounds of a block are not counted
    for _ in 0..rounds.div_ceil(BLOCK) {
        for round in 0..BLOCK + WARM_UP {
            let begin = Instant::now();
            let program = argv.first().ok_or("no program")?;
            tokio::process::Command::new(program).args(argv.get(1..).unwrap_or_default()).output().await?;
            here.extend((round >= WARM_UP).then(|| begin.elapsed()));
        }
        for (place, times) in places.iter().zip(&mut there) {
            for round in 0..BLOCK + WARM_UP {
                let begin = Instant::now();
                consume(place, Command::argv(argv.iter().copied())).await?;
                times.extend((round >= WARM_UP).then(|| begin.elapsed()));
            }
        }
    }
    println!("\n  {:<28} {:>9} {:>9} {:>7} {:>7}", argv.join(" "), "p50", "p99", "ratio", "p99");
    let base = (percentile(&mut here, 50), percentile(&mut here, 99));
    print_latency("tokio::process", base, base);
    for (place, times) in places.iter().zip(&mut there) {
        print_latency(place.name, (percentile(times, 50), percentile(times, 99)), base);
    }
    Ok(())
}

fn print_latency(name: &str, (p50, p99): (Duration, Duration), base: (Duration, Duration)) {
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    println!(
        "  {name:<28} {:>6} us {:>6} us {:>6.2}x {:>6.2}x",
        p50.as_micros(),
        p99.as_micros(),
        ratio(p50, base.0),
        ratio(p99, base.1)
    );
}

async fn throughput(mebibytes: u64, places: &[Place]) -> Result<()> {
    let bytes = mebibytes * 1024 * 1024;
    let count = bytes.to_string();
    let argv = ["head", "-c", count.as_str(), "/dev/zero"];
    let mut best = vec![f64::MIN; places.len() + 1];
    // the best of three: what the machine does else only ever takes away
    for _ in 0..3 {
        let speeds = &mut best.iter_mut();
        let begin = Instant::now();
        read_pipe(&argv).await?;
        note(speeds.next(), bytes, begin);
        for place in places {
            let begin = Instant::now();
            let read = consume(place, Command::argv(argv)).await?;
            if read != bytes {
                return Err(format!("{}: {read} bytes of {bytes}", place.name).into());
            }
            note(speeds.next(), bytes, begin);
        }
    }
    let base = best.first().copied().unwrap_or(1.0);
    let names = ["tokio::process"].into_iter().chain(places.iter().map(|place| place.name));
    for (name, speed) in names.zip(&best) {
        println!("  {name:<28} {:>7.0} MiB/s {:>6.2}x", speed / 1024.0 / 1024.0, speed / base);
    }
    Ok(())
}

fn note(best: Option<&mut f64>, bytes: u64, begin: Instant) {
    if let Some(best) = best {
        *best = best.max(bytes as f64 / begin.elapsed().as_secs_f64());
    }
}

async fn read_pipe(argv: &[&str]) -> Result<()> {
    let mut child = tokio::process::Command::new(argv.first().ok_or("no program")?)
        .args(argv.get(1..).unwrap_or_default())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut pipe = child.stdout.take().ok_or("no pipe")?;
    let mut buffer = vec![0; 64 * 1024];
    while pipe.read(&mut buffer).await? > 0 {}
    child.wait().await?;
    Ok(())
}

/// Runs it to its end; how many bytes it wrote to standard output.
async fn consume(place: &Place, command: CommandBuilder) -> Result<u64> {
    let mut execution = place.executor.execute(command.build()?).await?;
    let mut bytes = 0;
    while let Some(event) = execution.next().await {
        if let Event::Output(output) = event? {
            bytes += output.data.len() as u64;
        }
    }
    Ok(bytes)
}
