//! A provider of OpenID Connect that nobody here wrote, and clients that know nothing of telexec.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::json;
use telexec_tests::{AUDIENCE, Agent, Certs, Grpcurl, TokenIssuer, program, until, within};

use crate::cli::troubleshooting::shows;

/// Calls as gRPC clients do with access tokens: with credentials of each call.
const GRPCIO: &str = r#"
import sys, grpc
address, ca, token = sys.argv[1:]
tls = grpc.ssl_channel_credentials(open(ca, "rb").read())
credentials = grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token))
channel = grpc.secure_channel(address, credentials)
call = channel.unary_unary("/telexec.v1.AgentService/GetAgent", lambda _: b"", lambda answer: answer)
print(call(None, timeout=20))
"#;

/// A provider, where users log in.
struct Provider {
    child: Child,
    names: ChildStdin,
    tokens: BufReader<ChildStdout>,
    url: String,
}

impl Provider {
    fn start() -> Self {
        let python =
            std::env::var_os("OIDC_PYTHON").expect("OIDC_PYTHON names no python: run tests/run, which makes one");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites/tokens/login.py");
        let mut command = Command::new(python);
        command.arg(script).arg(AUDIENCE).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (names, tokens) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut provider = Self { child, names, tokens, url: String::new() };
        provider.url = provider.line();
        provider
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.tokens.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn login(&mut self, name: &str) -> String {
        writeln!(self.names, "{name}").unwrap();
        self.line()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_a_provider_call_with_their_id_tokens() {
    let mut provider = Provider::start();
    let certs = Certs::new();
    let table = TokenIssuer::new(&provider.url).table_without_keys("login");
    let config = format!("{table}keys_ca = {:?}\nroles.operator.groups = [\"ops\"]\n", certs.ca.cert());
    let policy = r#"
        @id("operators") permit(principal in Role::"operator", action, resource);
        @id("all may ask") permit(principal, action == Action::"GetAgent", resource);
    "#;
    let agent = Agent::builder().config(config).policy(policy).tls(&certs).start();
    let [anna, bob] = ["anna", "bob"].map(|name| provider.login(name));
    let call = async |token: &str, method: &str, request| {
        let header = format!("authorization: Bearer {token}");
        Grpcurl::with_ca(&agent, &certs).options(["-H", &header]).call(method, &request).await
    };
    let answer = call(&anna, "telexec.v1.AgentService/GetAgent", json!({})).await;
    assert!(answer.stdout.contains("\"identity\": \"login:anna\""), "{answer:?}");
    let run = json!({ "argv": ["echo", "from grpcurl"] });
    let answer = call(&anna, "telexec.v1.ExecutionService/Run", run.clone()).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    let denied = call(&bob, "telexec.v1.ExecutionService/Run", run).await;
    assert!(denied.stderr.contains("for login:bob (no role)"), "{denied:?}");

    let python = std::env::var_os("GRPC_PYTHON").expect("tests/run sets it");
    let address = agent.address().replace("127.0.0.1", "localhost");
    let mut grpcio = tokio::process::Command::new(python);
    grpcio.args(["-c", GRPCIO, &address]).arg(certs.ca.cert()).arg(&bob);
    let output = within(grpcio.output()).await.unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("login:bob"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_sends_a_token_from_a_file_or_a_variable() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new(super::ISSUER));
    let file = |name: &str| certs.ca.directory().join(name);
    let agent = Agent::builder().config(issuer.table("corp", &file("keys.json"), "")).tls(&certs).start();
    std::fs::write(file("token"), issuer.token("anna")).unwrap();
    std::fs::write(file("expired"), issuer.sign(json!({"sub": "anna", "iat": 1, "exp": 2}))).unwrap();
    let path = |name: &str| file(name).to_str().unwrap().to_owned();
    let ran = async |args: &[&str], environment: &[(&str, String)]| {
        let mut command = tokio::process::Command::new(program("telexec"));
        command.arg("exec").args(args).arg("--ca").arg(certs.ca.cert()).args([agent.uri(), "--", "echo", "ran"]);
        command.env("TELEXEC_CONFIG", "/dev/null").envs(environment.iter().cloned());
        let output = within(command.output()).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let token = || issuer.token("anna");
    for (args, environment) in [
        (vec!["--access-token-file".to_owned(), path("token")], vec![]),
        (vec![], vec![("TELEXEC_ACCESS_TOKEN_FILE", path("token"))]),
        (vec![], vec![("TELEXEC_ACCESS_TOKEN", token())]),
        // a flag goes before variables, and a file before the token itself
        (vec!["--access-token-file".to_owned(), path("token")], vec![("TELEXEC_ACCESS_TOKEN", "x".to_owned())]),
        (vec![], vec![("TELEXEC_ACCESS_TOKEN_FILE", path("token")), ("TELEXEC_ACCESS_TOKEN", "x".to_owned())]),
        (vec![], vec![("TELEXEC_ACCESS_TOKEN_FILE", String::new()), ("TELEXEC_ACCESS_TOKEN", token())]),
    ] {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let (stdout, stderr) = ran(&args, &environment).await;
        assert_eq!((stdout.as_str(), stderr.as_str()), ("ran\n", ""), "{args:?} {environment:?}");
    }
    let (_, stderr) = ran(&["--access-token-file", &path("expired")], &[]).await;
    shows("the token is not accepted: …", &stderr);
    assert!(stderr.contains("it expired "), "{stderr}");
    let (_, stderr) = ran(&["--access-token-file", "/no/such/file"], &[]).await;
    assert!(stderr.contains("cannot use the access token /no/such/file: No such file"), "{stderr}");
    let (_, stderr) = ran(&[], &[]).await;
    assert!(stderr.contains("; or an access token (--access-token-file)"), "{stderr}");
    // a flag goes before variables of another kind, too
    let (cert, key) = (certs.client.cert.to_str().unwrap().to_owned(), certs.client.key.to_str().unwrap().to_owned());
    let pair = [("TELEXEC_CERT", cert), ("TELEXEC_KEY", key)];
    let (stdout, _) = ran(&["--access-token-file", &path("token")], &pair).await;
    assert_eq!(stdout, "ran\n");
    until("the log says who was refused", async || agent.log().contains("it expired")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_the_program_has_token_files() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new(super::ISSUER));
    let file = |name: &str| certs.ca.directory().join(name);
    let agent = Agent::builder().config(issuer.table("corp", &file("keys.json"), "")).mtls(&certs).start();
    std::fs::write(file("token"), issuer.token("anna")).unwrap();
    let (cert, key, ca) = (&certs.client.cert, &certs.client.key, certs.ca.cert());
    let address = agent.uri();
    // whoever has a token of its own is not the holder of the certificate that is everybody's
    let config = format!(
        "[defaults]\ncert = {cert:?}\nkey = {key:?}\nca = {ca:?}\n[credentials.token]\naccess_token_file = \"token\"\n\
         [targets.own]\naddress = {address:?}\naccess_token_file = \"token\"\n\
         [targets.named]\naddress = {address:?}\ncredentials = \"token\"\n[targets.plain]\naddress = {address:?}\n"
    );
    std::fs::write(file("config.toml"), config).unwrap();
    let identity = async |target: &str| {
        let mut command = tokio::process::Command::new(program("telexec"));
        command.args(["info", "--json", target]).env("TELEXEC_CONFIG", file("config.toml"));
        let output = within(command.output()).await.unwrap();
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        info["identity"].as_str().unwrap().to_owned()
    };
    assert_eq!(identity("own").await, "corp:anna");
    assert_eq!(identity("named").await, "corp:anna");
    assert_eq!(identity("plain").await, "client");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_for_python_sends_a_token() {
    let (certs, issuer) = (Certs::new(), TokenIssuer::new(super::ISSUER));
    let file = |name: &str| certs.ca.directory().join(name);
    let agent = Agent::builder().config(issuer.table("corp", &file("keys.json"), "")).tls(&certs).start();
    std::fs::write(file("token"), issuer.token("anna")).unwrap();
    let python = std::env::var_os("TELEXEC_PYTHON").expect("tests/run sets it");
    let text = "import sys, telexec\n\
                agent = telexec.connect(sys.argv[1], ca=sys.argv[2], access_token_file=sys.argv[3])\n\
                print(agent.run(['echo', 'by token'], text=True).stdout)";
    let mut command = tokio::process::Command::new(python);
    command.args(["-c", text, agent.uri()]).arg(certs.ca.cert()).arg(file("token"));
    let output = within(command.env("TELEXEC_CONFIG", "/dev/null").output()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "by token", "{output:?}");
}
