//! -W, -L, -R and -D.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use telexec_tests::{Sshd, is_root, until, within};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::Site;

/// Sends back what it receives, until the test ends.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    port
}

async fn answers(port: u16) {
    let mut stream = within(TcpStream::connect(("127.0.0.1", port))).await.unwrap();
    stream.write_all(b"there and back").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, b"there and back");
}

async fn unused() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_forwarded_beside_a_command_and_without_one() {
    let (site, echo) = (Site::new(), echo().await);
    let said = site.done(&format!("printf there | telexec ssh -W 127.0.0.1:{echo} web1")).await;
    assert_eq!(said, "there");
    let [local, remote] = [unused().await, unused().await];
    let (local_flag, remote_key) =
        (format!("{local}:127.0.0.1:{echo}"), format!("RemoteForward {remote} 127.0.0.1:{echo}"));
    let mut beside = site.command("telexec");
    beside.args(["ssh", "-L", &local_flag, "-o", &remote_key]);
    let mut child = beside.args(["web1", "echo ready; cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    within(BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line)).await.unwrap();
    assert_eq!(line, "ready\n");
    answers(local).await;
    answers(remote).await;
    drop(child.stdin.take());
    assert!(within(child.wait()).await.unwrap().success());
    TcpStream::connect(("127.0.0.1", local)).await.unwrap_err();

    let any = format!("0:127.0.0.1:{echo}");
    let mut alone = site.command("telexec").args(["ssh", "-N", "-R", &any, "web1"]).spawn().unwrap();
    let mut line = String::new();
    within(BufReader::new(alone.stderr.as_mut().unwrap()).read_line(&mut line)).await.unwrap();
    let port = line.strip_prefix("telexec: Allocated port ").and_then(|rest| rest.split(' ').next()).expect(&line);
    answers(port.parse().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_said_and_ends_it_where_it_is_needed() {
    let (site, taken) = (Site::new(), echo().await);
    let line = format!("-L {taken}:127.0.0.1:1 web1 'echo here'");
    let ended = site.run(&format!("telexec ssh {line}")).await;
    assert!(ended.code == 0 && ended.stdout == "here\n" && ended.stderr.contains("cannot listen on"), "{ended:?}");
    let ended = site.run(&format!("telexec ssh -o ExitOnForwardFailure=yes {line}")).await;
    assert!(ended.code == 255 && ended.stdout.is_empty() && ended.stderr.contains("cannot listen on"), "{ended:?}");
    let ended = site.run(&format!("telexec ssh -W 127.0.0.1:{} web1", unused().await)).await;
    assert!(ended.code == 255 && ended.stderr.contains("connection refused"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ssh_goes_through_another_machine() {
    if let Some(why) = Sshd::missing(&[]) {
        return eprintln!("skipped: {why}");
    }
    let (site, sshd) = (Site::new(), Sshd::start(1).unwrap());
    let mut ssh = site.command("/usr/bin/ssh");
    ssh.arg("-F").arg(sshd.config(false)).args([
        "-o",
        "ProxyCommand=telexec-ssh -W %h:%p web1",
        "127.0.1.1",
        "echo $0; exit 3",
    ]);
    let ended = super::ended(&mut ssh).await;
    assert!(ended.code == 3 && ended.stdout == "sh\n", "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_sockets_are_those_of_the_user_who_logs_in() {
    if !is_root() {
        return;
    }
    let (site, echo) = (Site::new(), echo().await);
    let path = site.text("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // by anybody, so that it tells who it was
    for open in [site.directory.path(), path.as_ref()] {
        std::fs::set_permissions(open, PermissionsExt::from_mode(0o777)).unwrap();
    }
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let user = stream.peer_cred().unwrap().uid();
            stream.write_all(user.to_string().as_bytes()).await.unwrap();
        }
    });
    for (user, uid) in [("-l nobody web1", "65534"), ("nobody@web1", "65534"), ("web1", "0")] {
        assert_eq!(site.done(&format!("telexec ssh -W {path} {user}")).await, uid, "{user}");
    }
    // TCP has no user
    assert_eq!(site.done(&format!("printf x | telexec ssh -W 127.0.0.1:{echo} -l nobody web1")).await, "x");
    let here = site.text("here");
    let forward = format!("{here}:{path}");
    // without a command: nobody's shell runs none
    let mut alone = site.command("telexec");
    let _alone = alone.args(["ssh", "-N", "-L", &forward, "-l", "nobody", "web1"]).spawn().unwrap();
    until("it listens", async || UnixStream::connect(&here).await.is_ok()).await;
    let mut said = String::new();
    within(UnixStream::connect(&here).await.unwrap().read_to_string(&mut said)).await.unwrap();
    assert_eq!(said, "65534");
}
