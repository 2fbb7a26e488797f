//! Programs that know nothing of telexec.

use std::process::Stdio;

use telexec_tests::{Sshd, program, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::{Server, Site};

/// Answers any request of HTTP with the host that was asked for.
async fn http() -> Server {
    Server::start(|mut stream| async move {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        let host = request.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{host}", host.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_goes_through_the_proxy() {
    let (site, server) = (Site::start(""), http().await);
    let forward = site.forward(&["-D", "0"]).await;
    let port = server.address.port();
    for (flag, host) in [
        ("--socks5-hostname", "localhost"),
        ("--socks5", "127.0.0.1"),
        ("--socks4a", "localhost"),
        ("--socks4", "127.0.0.1"),
    ] {
        let url = format!("http://{host}:{port}/");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", flag, forward.at(0), &url]).env("no_proxy", "").env("NO_PROXY", "");
        let output = within(curl.output()).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{host}:{port}"), "{flag}: {output:?}");
    }
    // (97) of curl: the proxy refused
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--socks5-hostname", forward.at(0), "http://no-such-host.invalid/"]).env("NO_PROXY", "");
    let output = within(curl.stdout(Stdio::null()).status()).await.unwrap();
    assert_eq!(output.code(), Some(97));
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_goes_through_connect() {
    if let Some(why) = Sshd::missing(&[]) {
        return eprintln!("skipped: {why}");
    }
    let sshd = Sshd::start(1).unwrap();
    let site = Site::start("");
    let (pair, ca) = (&site.certs.client, site.certs.ca.cert());
    let proxy = format!(
        "ProxyCommand={} connect --cert {} --key {} --ca {} {} %h:%p",
        program("telexec").display(),
        pair.cert.display(),
        pair.key.display(),
        ca.display(),
        site.agent.address()
    );
    let mut ssh = Command::new("ssh");
    ssh.arg("-F").arg(sshd.config(false)).args(["-o", &proxy, "127.0.1.1", "cat; echo done; exit 7"]);
    let mut child = ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let data = vec![b'x'; 2_000_000];
    let mut stdin = child.stdin.take().unwrap();
    let sent = data.clone();
    tokio::spawn(async move { stdin.write_all(&sent).await.unwrap() });
    let output = within(child.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == [&data[..], b"done\n"].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_joins_standard_input_and_output() {
    let site = Site::start("");
    let count = Server::count().await;
    let mut child = site.telexec("connect", &[&count.address.to_string()]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&[7; 300_000]).await.unwrap();
    drop(stdin);
    let output = within(child.wait_with_output()).await.unwrap();
    assert!(output.status.success() && output.stdout == b"300000", "{output:?}");

    // the end of what the other side says is seen while standard input is open
    let greeting = Server::start(|mut stream| async move {
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let mut child = site.telexec("connect", &[&greeting.address.to_string()]).stdin(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    within(child.stdout.as_mut().unwrap().read_to_string(&mut said)).await.unwrap();
    assert_eq!(said, "hello");
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    assert!(within(child.wait()).await.unwrap().success());
}

/// A PostgreSQL of its own, which everybody on this machine may use; ended when dropped.
struct Postgres {
    directory: tempfile::TempDir,
    child: tokio::process::Child,
    port: u16,
}

impl Postgres {
    /// `None`: it is not installed, or only root could start it as another user.
    async fn start() -> Option<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let programs =
            versions.flatten().map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists())?;
        if !telexec_tests::is_root() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), Some(telexec_tests::NOBODY), None).unwrap();
        let as_nobody = |name: &str| {
            let id = telexec_tests::NOBODY.to_string();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &id, "--clear-groups"]).arg(programs.join(name)).current_dir(directory.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            command
        };
        let data = directory.path().join("data");
        let made =
            as_nobody("initdb").arg("-D").arg(&data).args(["-A", "trust", "-U", "tester", "--no-sync"]).status().await;
        assert!(made.unwrap().success());
        let port = super::unused().await.port();
        let mut postgres = as_nobody("postgres");
        postgres.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-p", &port.to_string(), "-F", "-k", ""]);
        let child = postgres.spawn().unwrap();
        telexec_tests::until("PostgreSQL answers", async || {
            let asked = as_nobody("pg_isready").args(["-h", "127.0.0.1", "-p", &port.to_string()]).status().await;
            asked.unwrap().success()
        })
        .await;
        Some(Self { directory, child, port })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        // fast: without waiting for clients
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let gone = || !self.directory.path().join("data/postmaster.pid").exists();
        assert!(telexec_tests::until_blocking(std::time::Duration::from_secs(20), gone));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_goes_through_a_forward() {
    let Some(postgres) = Postgres::start().await else { return eprintln!("skipped: there is no PostgreSQL here") };
    let site = Site::start("");
    let forward = site.forward(&["-L", &format!("0:127.0.0.1:{}", postgres.port)]).await;
    let (host, port) = forward.at(0).rsplit_once(':').unwrap();
    let psql = async |text: &str| {
        let mut psql = Command::new("psql");
        psql.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            host,
            "-p",
            port,
            "-U",
            "tester",
            "postgres",
            "-c",
            text,
        ]);
        let output = within(psql.output()).await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    psql("create table t as select n, repeat('x', 1000) as text from generate_series(1, 10000) n").await;
    assert_eq!(psql("select count(*), sum(length(text)) from t").await, "10000|10000000\n");
    assert_eq!(psql("select text from t").await.len(), 10000 * 1001);
    // an error ends nothing but the command
    assert_eq!(psql("select 1").await, "1\n");
}
