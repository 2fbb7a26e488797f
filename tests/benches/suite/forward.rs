//! Connections through an agent: `telexec forward`, and the client library's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command as Program, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use telexec_client::Endpoint;
use telexec_tests::{Agent, Certs, bench_agent, percentile, program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::relay::{connected, over_tls, read_all, relay};
use crate::table::{Aim, Row, Table, Unit};
use crate::way::{MEBIBYTE, Way};
use crate::{Plan, Result};

/// How fast one goes, and how soon it is there.
pub(crate) async fn forward(plan: &Plan, table: &mut Table) -> Result<()> {
    let certs = Certs::new();
    let agent = bench_agent().mtls(&certs).start();
    rates(plan, table, &agent, &certs).await?;
    set_up(plan, table, &agent).await
}

/// A server that sends, through what lies between; the limit is two threads that carry it from TCP to TLS and from TLS to
/// TCP.
async fn rates(plan: &Plan, table: &mut Table, agent: &Agent, certs: &Certs) -> Result<()> {
    let bytes = plan.some(2000) as u64 * MEBIBYTE;
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    thread::spawn(move || {
        // whoever does not read to the end is missed there
        for stream in server.incoming().flatten() {
            let _ = relay(std::io::repeat(0).take(bytes), stream);
        }
    });
    let forwards = Forwards::start(agent, certs, port)?;
    let mut ways = vec![
        Way::new("TCP"),
        Way::new("relay, TCP to TLS to TCP").beside("TCP", None),
        Way::new("telexec forward").of(agent).beside("relay, TCP to TLS to TCP", 0.8),
    ];
    for _ in 0..if plan.short { 1 } else { 5 } {
        for way in &mut ways {
            match way.name {
                "TCP" => way.go(bytes, async { read_all(TcpStream::connect(("127.0.0.1", port))?) }).await?,
                "telexec forward" => way.go(bytes, async { read_all(TcpStream::connect(&forwards.address)?) }).await?,
                _ => way.go(bytes, async { relayed(certs, TcpStream::connect(("127.0.0.1", port))?) }).await?,
            }
        }
    }
    Way::add_all(&ways, table);
    Ok(())
}

fn relayed(certs: &Certs, from: TcpStream) -> Result<u64> {
    let [here, there] = connected()?;
    thread::scope(|scope| {
        let reader = scope.spawn(move || read_all(here).unwrap_or_default());
        over_tls(certs, from, move |taken| Ok(relay(taken, there)?))?;
        Ok(reader.join().unwrap_or_default())
    })
}

/// A running `telexec forward`.
struct Forwards {
    child: Child,
    address: String,
}

impl Forwards {
    fn start(agent: &Agent, certs: &Certs, port: u16) -> Result<Self> {
        let mut command = Program::new(program("telexec"));
        command
            .arg("forward")
            .arg("--cert")
            .arg(&certs.client.cert)
            .arg("--key")
            .arg(&certs.client.key)
            .arg("--ca")
            .arg(certs.ca.cert());
        command.arg(agent.uri()).args(["-L", &format!("0:127.0.0.1:{port}")]).env("TELEXEC_CONFIG", "/dev/null");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        let address = line.split(' ').nth(1).ok_or("telexec forward announced nothing")?.to_owned();
        Ok(Self { child, address })
    }
}

impl Drop for Forwards {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Over a connection to the agent that is open already.
async fn set_up(plan: &Plan, table: &mut Table, agent: &Agent) -> Result<()> {
    let echo = TcpListener::bind("127.0.0.1:0")?;
    let port = echo.local_addr()?.port();
    thread::spawn(move || {
        for mut stream in echo.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
    let forwards = agent.connect().await.forwards();
    let to = Endpoint::Tcp { host: "127.0.0.1".to_owned(), port };
    let (mut direct, mut forwarded) = (Vec::new(), Vec::new());
    for _ in 0..plan.some(1000) {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let begin = Instant::now();
        stream.write_all(b"x").await?;
        stream.read_u8().await?;
        direct.push(begin.elapsed());
        let begin = Instant::now();
        let stream = forwards.connect(to.clone()).await?;
        forwarded.push(begin.elapsed());
        drop(stream);
    }
    let [round_trip, connect] = [&mut direct, &mut forwarded].map(|times| percentile(times, 50));
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    table.add(Row::new("round trip", Unit::Microseconds, us(round_trip)));
    let mut row = Row::new("connect, warm mTLS", Unit::Microseconds, us(connect));
    row.p99 = Some(us(percentile(&mut forwarded, 99)));
    row.aim = Some(Aim::AtMost(us(round_trip) * 1.2 + 300.0));
    table.add(row);
    Ok(())
}
