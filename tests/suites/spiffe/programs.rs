//! Programs with SVIDs: ours, and those that nobody here wrote.

use std::path::Path;

use serde_json::json;
use telexec_tests::{Agent, Grpcurl, TrustDomain, WorkloadServer, program, within};
use tokio::process::Command;

use super::{AGENT, CALLER, Mesh, documented, table};
use crate::cli::troubleshooting::shows;

/// An agent whose SVID has a DNS name, for clients that know agents by those alone, and where a caller's files may be.
async fn named() -> (Mesh, tempfile::TempDir) {
    let mesh = Mesh::start();
    mesh.agent_api.issue(&mesh.domain, [mesh.domain.leaf(AGENT).dns("localhost")], &[]);
    telexec_tests::until("it has the name", async || mesh.agent.log().matches("SVID loaded").count() == 2).await;
    (mesh, telexec_tests::directory())
}

async fn ran(command: &mut Command) -> (String, String) {
    let output = within(command.kill_on_drop(true).output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_know_nothing_of_telexec_call_with_their_svids() {
    let (mesh, files) = named().await;
    let python =
        std::env::var_os("SPIFFE_PYTHON").expect("SPIFFE_PYTHON names no python: run tests/run, which makes one");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites/spiffe/workload.py");
    let mut client = Command::new(python);
    client.arg(script).args([&mesh.caller_api.socket(), mesh.agent.address(), "localhost"]).arg(files.path());
    let (stdout, stderr) = ran(&mut client).await;
    assert!(stdout.starts_with("spiffe://example.org/ops/anna\n"), "{stdout} {stderr}");
    assert_eq!(stdout.matches("spiffe://example.org/ops/anna").count(), 2, "{stdout} {stderr}");

    let file = |name: &str| files.path().join(name);
    let options = [("-cacert", file("bundle.pem")), ("-cert", file("svid.pem")), ("-key", file("svid.key"))];
    let options = options.into_iter().flat_map(|(flag, path)| [flag.into(), path.into_os_string()]);
    let address = mesh.agent.address().replace("127.0.0.1", "localhost");
    let run = json!({ "argv": ["echo", "from grpcurl"] });
    let call = Grpcurl::at(&address).options(options).call("telexec.v1.ExecutionService/Run", &run).await;
    assert_eq!(call.code, 0, "{call:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_scraped_with_svids() {
    let domain = TrustDomain::new("example.org");
    let api = WorkloadServer::start();
    api.issue(&domain, [domain.leaf(AGENT).dns("localhost")], &[]);
    let config = format!("metrics_listen = \"tcp://0.0.0.0:0\"\n{}", table(&api.socket(), ""));
    let agent = Agent::builder().listen("tcp://127.0.0.1:0").config(config).start();
    let address = telexec_tests::metrics_address(&agent);
    let (_, port) = address.rsplit_once(':').unwrap();
    let scraped = async |path: &str| {
        let pair = domain.ca().issue(domain.leaf(path));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--cacert"]).arg(domain.ca().cert());
        curl.arg("--cert").arg(&pair.cert).arg("--key").arg(&pair.key).arg(format!("https://localhost:{port}/metrics"));
        ran(&mut curl).await
    };
    let (metrics, stderr) = scraped(CALLER).await;
    assert!(metrics.contains("telexec_certificate_expiry_timestamp_seconds"), "{metrics} {stderr}");
    let (metrics, stderr) = scraped("batch/anna").await;
    assert!(metrics.is_empty() && !stderr.is_empty(), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_gets_an_svid_by_flag_variable_or_configuration() {
    let (mesh, files) = named().await;
    let (socket, id) = (mesh.caller_api.socket(), mesh.agent_id());
    let bob = WorkloadServer::with(&mesh.domain, "batch/bob");
    let config = files.path().join("telexec.toml");
    let text = format!(
        "[defaults]\nspiffe_socket = {socket:?}\nserver_name = \"spiffe://example.org/agents/{{host}}\"\n\
         [targets.web-1]\naddress = {:?}\n[targets.web-2]\naddress = {:?}\n",
        mesh.agent.address(),
        mesh.agent.address(),
    );
    std::fs::write(&config, text).unwrap();
    let configured = config.to_str().unwrap();
    let exec = async |args: &[&str], environment: &[(&str, &str)]| {
        let mut command = Command::new(program("telexec"));
        command.arg("exec").args(args).args(["--", "echo", "ran"]).env("TELEXEC_CONFIG", "/dev/null");
        ran(command.envs(environment.iter().copied())).await
    };
    let uri = mesh.agent.uri();
    let by_flag = ["--spiffe-socket", &socket, "--server-name", &id, uri];
    for (args, environment) in [
        (&by_flag[..], &[][..]),
        (&by_flag, &[("TELEXEC_SPIFFE_SOCKET", bob.socket().as_str()), ("TELEXEC_CERT", "/x"), ("TELEXEC_CA", "/x")]),
        (
            &[
                "--spiffe-id",
                "spiffe://example.org/ops/anna",
                "--spiffe-socket",
                &socket,
                "--server-name",
                "localhost",
                uri,
            ],
            &[],
        ),
        (&[uri], &[("TELEXEC_SPIFFE_SOCKET", &socket), ("TELEXEC_SERVER_NAME", &id)]),
        (&["web-1"], &[("TELEXEC_CONFIG", configured)]),
    ] {
        let (stdout, stderr) = exec(args, environment).await;
        assert_eq!((stdout.as_str(), stderr.as_str()), ("ran\n", ""), "{args:?} {environment:?}");
    }
    for (args, environment, reason) in [
        (
            &["web-2"][..],
            &[("TELEXEC_CONFIG", configured)][..],
            "the agent is spiffe://example.org/agents/web-1, not spiffe://example.org/agents/web-2",
        ),
        (&["--spiffe-socket", &socket, uri], &[], "name the agent's SPIFFE ID with --server-name"),
        (
            &["--spiffe-socket", &bob.socket(), "--server-name", &id, uri],
            &[],
            "your SPIFFE ID matches no pattern in callers of its [spiffe]",
        ),
        (&["--spiffe-socket", "/x", uri], &[], "spiffe_socket: \"/x\": expected unix:///PATH"),
        (
            &["--spiffe-socket", &socket, "--spiffe-id", "anna", uri],
            &[],
            "spiffe_id: \"anna\": expected a SPIFFE ID with a path",
        ),
        (
            &["--spiffe-socket", &socket, "--spiffe-id", "spiffe://example.org/b", uri],
            &[],
            "does not issue spiffe://example.org/b to this process",
        ),
        (
            &["--spiffe-socket", "unix:///no/such", "--server-name", &id, uri],
            &[],
            "cannot get an X.509-SVID for tcp://127.0.0.1",
        ),
        (&["--spiffe-socket", &socket, "--ca", "/x", uri], &[], "spiffe_socket and ca exclude each other"),
        (&["--spiffe-id", "spiffe://example.org/b", uri], &[], "spiffe_id requires spiffe_socket"),
    ] {
        let (stdout, stderr) = exec(args, environment).await;
        assert!(stdout.is_empty() && stderr.contains(reason), "{args:?}: {stderr}");
    }
    let (_, stderr) = exec(&["--spiffe-socket", "unix:///no/such", "--server-name", &id, uri], &[]).await;
    shows("cannot get an X.509-SVID for …", &stderr);
    documented("cannot get an identity from the SPIFFE Workload API at …", &stderr);
    mesh.caller_api.deny();
    let (_, stderr) = exec(&by_flag, &[]).await;
    documented("… issues no identity to this process: register the workload", &stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_known_by_the_names_of_its_hosts() {
    let domain = TrustDomain::new("example.org");
    let caller_api = WorkloadServer::with(&domain, CALLER);
    let apis = ["web-1", "web-2"].map(|name| WorkloadServer::with(&domain, &format!("agents/{name}")));
    let agents = apis.each_ref().map(|api| super::agent(api, "").start());
    let files = telexec_tests::directory();
    let inventory = files.path().join("hosts");
    let line = |(name, agent): (&str, &Agent)| {
        let (_, port) = agent.address().rsplit_once(':').unwrap();
        format!("{name} ansible_host=127.0.0.1 telexec_port={port}\n")
    };
    let hosts: String = ["web-1", "web-2"].into_iter().zip(&agents).map(line).collect();
    std::fs::write(&inventory, hosts).unwrap();
    let mut fleet = Command::new(program("telexec"));
    fleet.args(["fleet", "--inventory"]).arg(&inventory).args(["-a", "--spiffe-socket", &caller_api.socket()]);
    fleet
        .args(["--server-name", "spiffe://example.org/agents/{host}", "--", "echo", "ran"])
        .env("TELEXEC_CONFIG", "/dev/null");
    let (stdout, stderr) = ran(&mut fleet).await;
    assert_eq!(stdout.matches("ran").count(), 2, "{stdout} {stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_gets_an_svid() {
    let (mesh, _files) = named().await;
    let python = std::env::var_os("TELEXEC_PYTHON").expect("tests/run sets it");
    let text = "import sys, telexec\n\
                agent = telexec.connect(sys.argv[1], spiffe_socket=sys.argv[2], server_name=sys.argv[3])\n\
                print(agent.run('echo ran').stdout)\n";
    let mut python = Command::new(python);
    python.args(["-c", text, mesh.agent.address(), &mesh.caller_api.socket(), &mesh.agent_id()]);
    let (stdout, stderr) = ran(python.env("TELEXEC_CONFIG", "/dev/null")).await;
    assert!(stdout.contains("ran"), "{stdout} {stderr}");
}
