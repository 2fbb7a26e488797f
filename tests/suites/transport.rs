//! Who gets through to the agent, and who it takes them to be.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};
use telexec_proto::v1::execution_event::Event;
use telexec_proto::v1::{ExecuteRequest, GetAgentRequest};
use telexec_tests::{Agent, Ca, Certs, Leaf, MARK, Wire, follow, marker, processes_with, raw, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn identity(wire: &Wire) -> Result<String, tonic::Status> {
    Ok(within(wire.agent().get_agent(GetAgentRequest {})).await?.into_inner().identity)
}

/// Connects and asks who one is: in TLS 1.3 a refusal is only seen by who reads.
async fn who_am_i(agent: &Agent, config: Arc<ClientConfig>) -> Result<String, String> {
    let wire = Wire::connect_tls(agent, config).await.map_err(|error| error.to_string())?;
    identity(&wire).await.map_err(|status| status.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_valid_certificate_of_the_ca_gets_in() {
    let certs = Certs::new();
    let revoked = certs.ca.issue(Leaf::client("client"));
    let crl = certs.ca.directory().join("crl.pem");
    std::fs::write(&crl, certs.ca.revocation_list(&[&revoked])).unwrap();
    let agent = Agent::builder().mtls(&certs).args(["--client-crl", crl.to_str().unwrap()]).start();
    let namesake = Ca::new("telexec tests");
    let issue = |leaf| Some(certs.ca.issue(leaf));
    for (pair, why) in [
        (None, "no certificate"),
        (Some(namesake.issue(Leaf::client("client"))), "another CA of the same name"),
        (issue(Leaf::client("client").expired()), "expired"),
        (issue(Leaf::client("client").not_yet_valid()), "not yet valid"),
        (issue(Leaf::server("client")), "for servers"),
        (Some(revoked), "revoked"),
        (issue(Leaf::client("client").nameless()), "no usable identity"),
        (issue(Leaf::client("two\nlines")), "a name that would forge a log line"),
    ] {
        for version in [&TLS13, &TLS12] {
            let answer = who_am_i(&agent, certs.config_with_versions(pair.as_ref(), &[version])).await;
            assert!(answer.is_err(), "{why}: {answer:?}");
        }
    }
    until("it is logged", async || agent.log().matches("rejected a connection").count() == 16).await;
    assert_eq!(who_am_i(&agent, certs.config(Some(&certs.client))).await.unwrap(), "client");
}

/// An agent that is busy, or is replaced by the next one.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_accept_keeps_its_callers_waiting() {
    let agent = Agent::builder().tcp().start();
    agent.signal(Signal::STOP);
    let mut callers = Vec::new();
    for _ in 0..300 {
        callers.push(Wire::dial(&agent).await);
    }
    agent.signal(Signal::CONT);
    let wire = within(Wire::over(callers.pop().unwrap())).await.unwrap();
    identity(&wire).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_tls_are_spoken() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    for version in [&TLS13, &TLS12] {
        let config = certs.config_with_versions(Some(&certs.client), &[version]);
        assert_eq!(who_am_i(&agent, config).await.unwrap(), "client");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn older_versions_of_tls_are_not() {
    const PROTOCOL_VERSION: u8 = 70;
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    for minor in [1, 2] {
        // a ClientHello of TLS 1.0 or 1.1: random bytes, no session, a cipher suite, no compression, signature algorithms
        let algorithms = [0, 8, 0, 13, 0, 4, 0, 2, 4, 1];
        let hello = [&[3, minor][..], &[7; 32], &[0, 0, 2, 0xc0, 0x14, 1, 0], &algorithms].concat();
        let length = u8::try_from(hello.len()).unwrap();
        let mut stream = Wire::dial(&agent).await;
        let record = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &hello].concat();
        stream.write_all(&record).await.unwrap();
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.unwrap();
        assert!(matches!(answer[..], [21, 3, _, 0, 2, 2, PROTOCOL_VERSION]), "1.{}: {answer:?}", minor - 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_does_not_get_in_where_tls_is_spoken() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    if let Ok(wire) = Wire::connect(&agent).await {
        identity(&wire).await.unwrap_err();
    }
    until("it is logged", async || agent.log().contains("rejected a connection")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_names_its_holder() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    let spiffe = "spiffe://example.org/ci";
    for (leaf, name) in [
        (Leaf::client("common"), "common"),
        (Leaf::client("common").dns("host.example.org"), "host.example.org"),
        (Leaf::client("common").dns("host.example.org").uri(spiffe), spiffe),
        (Leaf::client("common").uri("https://example.org"), "common"),
    ] {
        let pair = certs.ca.issue(leaf);
        assert_eq!(who_am_i(&agent, certs.config(Some(&pair))).await.unwrap(), name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_unix_socket_the_kernel_names_the_caller() {
    let agent = Agent::start();
    let own = format!("unix:uid={}", rustix::process::getuid().as_raw());
    assert_eq!(identity(&Wire::connect(&agent).await.unwrap()).await.unwrap(), own);
}

/// What comes back from the agent's Unix socket to a thread of another user that speaks HTTP/2 to it.
pub(crate) fn as_another_user(socket: String) -> std::io::Result<Vec<u8>> {
    let thread = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody)?;
        let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
        let mut answer = Vec::new();
        // the agent may have closed it by now
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        let _ = stream.read_to_end(&mut answer);
        Ok(answer)
    });
    thread.join().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_turned_away() {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let agent = Agent::start();
    let open = |path: &str, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(agent.directory().to_str().unwrap(), 0o755);
    let refused = as_another_user(agent.address().to_owned()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "by the mode of the socket's file");

    open(agent.address(), 0o666);
    assert_eq!(as_another_user(agent.address().to_owned()).unwrap(), b"", "by the kernel's word");
    until("it is logged", async || agent.log().contains("neither root nor the agent's own")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_hold_up_nobody_and_are_closed() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    let mut silent = Vec::new();
    for i in 0..600 {
        let mut stream = Wire::dial(&agent).await;
        if i % 2 == 0 {
            // the beginning of a ClientHello
            stream.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
        }
        silent.push(stream);
    }
    assert_eq!(who_am_i(&agent, certs.config(Some(&certs.client))).await.unwrap(), "client");
    for mut stream in silent {
        // an alert or nothing, then the end
        let _ = within(stream.read_to_end(&mut Vec::new())).await;
    }
    until("each was turned away", async || {
        let (reported, left_out) = agent.reported("rejected a connection");
        reported + left_out == 600
    })
    .await;
    assert!(agent.log().contains("it took longer than 5 s"));
}

/// Ticks (10 ms) of a processor that a process has used.
fn processor_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    after_name[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Starts a command that leaves an orphan, which the agent has to find and to end.
async fn ends_with_an_orphan(wire: &Wire, agent: &Agent) {
    let command = "(setsid sleep 300 &) >/dev/null 2>&1; echo done".to_owned();
    let running = wire.executions().execute(ExecuteRequest { command, ..Default::default() }).await.unwrap();
    let followed = follow(running.into_inner()).await;
    assert_eq!((&*followed.stdout(), followed.exited().map(|exited| exited.exit_code)), (&b"done\n"[..], Some(0)));
    assert!(!agent.log().contains("Too many open files"));
}

/// Connections of strangers leave descriptors for callers, for commands and for the ends of commands.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_leave_descriptors_for_commands() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).after("ulimit -n 64").start();
    let connect = || Wire::connect_tls(&agent, certs.config(Some(&certs.client)));
    let wire = connect().await.unwrap();
    ends_with_an_orphan(&wire, &agent).await;
    let mut silent = Vec::new();
    for _ in 0..80 {
        silent.push(Wire::dial(&agent).await);
    }
    until("each was accepted", async || {
        let (reported, left_out) = agent.reported("rejected a connection");
        reported + left_out > 48
    })
    .await;
    ends_with_an_orphan(&wire, &agent).await;
    ends_with_an_orphan(&connect().await.unwrap(), &agent).await;
    drop(silent);
}

/// When commands hold the others, strangers do not displace a caller of another source.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_leave_descriptors_for_callers() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).after("ulimit -n 64").start();
    let config = || certs.config(Some(&certs.client));
    let wire = Wire::connect_tls(&agent, config()).await.unwrap();
    let mut running = Vec::new();
    while std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count() <= 48 {
        let request = ExecuteRequest { command: "sleep 300".into(), ..Default::default() };
        let mut events = wire.executions().execute(request).await.unwrap().into_inner();
        within(events.message()).await.unwrap();
        running.push(events);
    }
    let caller = Wire::dial(&agent).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(Wire::dial_from([127, 0, 0, 2].into(), &agent).await);
    }
    until("they displace each other", async || agent.log().contains("displaced by others")).await;
    identity(&Wire::over_tls(caller, config()).await.unwrap()).await.unwrap();
    let mut open = Vec::new();
    // until callers have their part of the reserve
    while let Ok(wire) = Wire::connect_tls(&agent, config()).await
        && identity(&wire).await.is_ok()
    {
        open.push(wire);
    }
    assert!(open.len() < 16, "{}", open.len());
    let count = running.len();
    drop(running);
    until("all have ended", async || agent.log().matches("cause=\"cancelled\"").count() == count).await;
    assert!(!agent.log().contains("Too many open files"));
    drop(silent);
}

/// So do those of callers.
#[tokio::test(flavor = "multi_thread")]
async fn callers_leave_descriptors_for_commands() {
    let agent = Agent::builder().tcp().after("ulimit -n 64").start();
    let wire = Wire::connect(&agent).await.unwrap();
    identity(&wire).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..80 {
        let mut stream = Wire::dial(&agent).await;
        // one that says nothing is closed soon
        stream.write_all(raw::PREFACE).await.unwrap();
        idle.push(stream);
    }
    until("some were rejected", async || agent.log().contains("setting=\"RLIMIT_NOFILE\"")).await;
    ends_with_an_orphan(&wire, &agent).await;
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_it_waits_for_some_and_loses_nothing() {
    let agent = Agent::builder().tcp().start();
    let wire = Wire::connect(&agent).await.unwrap();
    let command = "for i in $(seq 40); do sleep 0.1; echo; done".to_owned();
    let running = wire.executions().execute(ExecuteRequest { command, ..Default::default() }).await.unwrap();
    let mut running = running.into_inner();
    let pid = Pid::from_raw(agent.pid());
    let few = Rlimit { current: Some(4), ..getrlimit(Resource::Nofile) };
    let usual = prlimit(pid, Resource::Nofile, few).unwrap();
    let waiting = Wire::dial(&agent).await;
    until("it runs out", async || agent.log().contains("cannot accept connections")).await;
    let before = processor_ticks(agent.pid());
    let mut lines = 0;
    while lines < 40 {
        if let Some(Event::Stdout(data)) = within(running.message()).await.unwrap().unwrap().event {
            lines += data.len();
        }
    }
    // a loop without a pause takes all of a processor for as long as the command runs, 4 s
    let used = processor_ticks(agent.pid()) - before;
    assert!(used < 100, "{used} ticks");
    prlimit(pid, Resource::Nofile, usual).unwrap();
    assert_eq!(follow(running).await.exited().map(|exited| exited.exit_code), Some(0));
    drop(waiting);
    identity(&Wire::connect(&agent).await.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_ends_its_commands() {
    let certs = Certs::new();
    let over_unix = Agent::start();
    let over_tls = Agent::builder().mtls(&certs).start();
    let wires = [
        Wire::connect(&over_unix).await.unwrap(),
        Wire::connect_tls(&over_tls, certs.config(Some(&certs.client))).await.unwrap(),
    ];
    for wire in wires {
        let mark = marker();
        let environment = [(MARK.to_owned(), mark.clone())].into();
        let command = "setsid sleep 300 & yes".to_owned();
        let request = ExecuteRequest { command, environment, ..Default::default() };
        let stream = wire.executions().execute(request).await.unwrap();
        until("it runs", async || processes_with(&mark).len() >= 2).await;
        wire.cut();
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        drop(stream);
    }
}

#[test]
fn without_tls_only_this_machine_is_listened_to() {
    let certs = Certs::new();
    for (listen, args, why) in [
        ("tcp://0.0.0.0:0", &["--insecure"][..], "loopback"),
        ("tcp://[::]:0", &["--insecure"], "loopback"),
        ("tcp://192.0.2.1:7443", &["--insecure"], "loopback"),
        ("tcp://127.0.0.1:0", &[], "--tls-cert"),
        ("tcp://127.0.0.1:0", &["--tls-cert", certs.agent.cert.to_str().unwrap()], "must be given together"),
    ] {
        for check in [None, Some("--check-config")] {
            let refused = Agent::builder().listen(listen).args(args.iter().copied().chain(check)).try_start();
            let refused = refused.expect_err("it does not listen");
            assert!(refused.status.code() == Some(78) && refused.log.contains(why), "{listen}: {refused}");
        }
    }
}
