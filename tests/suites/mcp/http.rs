//! `telexec mcp --listen`: streamable HTTP.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use telexec_tests::{
    Agent, Certs, Leaf, MARK, McpClient, McpServer, Pair, directory, marker, processes_with, telexec_mcp, until, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::ends::{nothing_is_left, tree};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// With sessions and without.
const MODES: [&str; 2] = ["legacy", "auto"];

fn token_file(place: &Path) -> String {
    let path = place.join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The first line of the answer to a call that lists the tools, with these headers.
async fn status(server: &McpServer, path: &str, headers: &[&str]) -> String {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} }).to_string();
    let mut request = format!("POST {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    request += "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    for header in headers {
        request += &format!("{header}\r\n");
    }
    let mut stream = within(TcpStream::connect(server.address())).await.unwrap();
    within(stream.write_all(format!("{request}\r\n{body}").as_bytes())).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_calls_it_with_sessions_and_without() {
    let agent = Agent::start();
    let server = McpServer::start(&[agent.uri()]).await;
    for mode in MODES {
        let mut client = McpClient::http(mode, &server.url, &[]).await;
        assert_eq!(client.ready["server"]["name"], "telexec");
        let id = client.ask(json!({ "call": "bash", "arguments": { "command": "echo out" }, "progress": true })).await;
        let result = client.answer(id).await["result"].clone();
        assert_eq!(result["structuredContent"]["stdout"], "out\n", "{result}");
        assert_eq!(client.progress(id), [(4.0, "out\n")]);

        let start = json!({ "cmd": "cat", "login": false, "accepts_input": true, "yield_time_ms": 0,
            "duplicate_policy": "start_new" });
        let task = client.call("exec_command", start).await["structuredContent"]["task_handle"]["task_id"].clone();
        let step = client.call("task_input", json!({ "task_id": task, "text": "one\n" })).await;
        assert_eq!(step["structuredContent"]["output"]["stdout"], "one\n");
        // how far it was read is remembered
        let step = client.call("task_input", json!({ "task_id": task, "text": "two\n" })).await;
        assert_eq!(step["structuredContent"]["output"]["stdout"], "two\n");
        client.text("task_stop", json!({ "task_id": task })).await;
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_working_directory_belongs_to_a_session() {
    let server = McpServer::start(&["local"]).await;
    let mut first = McpClient::http("legacy", &server.url, &[]).await;
    let mut second = McpClient::http("legacy", &server.url, &[]).await;
    let mut sessionless = McpClient::http("auto", &server.url, &[]).await;
    for client in [&mut first, &mut sessionless] {
        client.text("bash", json!({ "command": "cd /usr" })).await;
    }
    assert_eq!(first.text("bash", json!({ "command": "pwd" })).await, "/usr\n");
    for client in [&mut second, &mut sessionless] {
        assert_ne!(client.text("bash", json!({ "command": "pwd" })).await, "/usr\n");
    }
    for (client, carries) in [(&mut first, true), (&mut sessionless, false)] {
        let tools = client.tools().await;
        let about = tools[0]["description"].as_str().unwrap();
        assert_eq!(about.contains("does not carry over"), !carries, "{about}");
    }
    for client in [first, second, sessionless] {
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_leaves_no_process_by_http() {
    let agent = Agent::start();
    let server = McpServer::start(&[agent.uri()]).await;
    for mode in MODES {
        let (mut client, mark) = (McpClient::http(mode, &server.url, &[]).await, marker());
        let arguments = json!({ "command": tree(&mark) });
        let id = client.ask(json!({ "call": "bash", "arguments": arguments, "progress": true })).await;
        client.event(|event| event["id"] == id && event["message"] == "ready\n").await;
        client.cancel(id).await;
        nothing_is_left(&mark).await;
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_gone_leaves_no_command_by_http() {
    let agent = Agent::start();
    let server = McpServer::start(&["--session-timeout", "1", agent.uri()]).await;
    for mode in MODES {
        for progress in [true, false] {
            let place = directory();
            let (mut client, mark) = (McpClient::http(mode, &server.url, &[]).await, marker());
            let begun = place.path().join("begun");
            let command = format!("touch {}; {}", begun.display(), tree(&mark));
            client.ask(json!({ "call": "bash", "arguments": { "command": command }, "progress": progress })).await;
            telexec_tests::until("it runs", async || begun.exists() && processes_with(&mark).len() >= 3).await;
            client.kill().await;
            nothing_is_left(&mark).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_ends_its_commands() {
    let agent = Agent::start();
    let server = McpServer::start(&[agent.uri()]).await;
    let (mut client, mark) = (McpClient::http("legacy", &server.url, &[]).await, marker());
    let arguments = json!({ "command": tree(&mark) });
    let id = client.ask(json!({ "call": "bash", "arguments": arguments, "progress": true })).await;
    client.event(|event| event["id"] == id && event["message"] == "ready\n").await;
    client.close().await;
    nothing_is_left(&mark).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_silent_for_longer_than_sessions_last_is_answered() {
    let server = McpServer::start(&["--session-timeout", "0.5", "local"]).await;
    let mut client = McpClient::http("legacy", &server.url, &[]).await;
    assert_eq!(client.text("bash", json!({ "command": "sleep 3; echo done" })).await, "done\n");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_server_and_its_calls() {
    let agent = Agent::start();
    for target in [agent.uri(), "local"] {
        let server = McpServer::start(&[target]).await;
        let mut marks = Vec::new();
        let mut clients = Vec::new();
        for mode in MODES {
            let (mut client, mark) = (McpClient::http(mode, &server.url, &[]).await, marker());
            let arguments = json!({ "command": tree(&mark) });
            let id = client.ask(json!({ "call": "bash", "arguments": arguments, "progress": true })).await;
            client.event(|event| event["id"] == id && event["message"] == "ready\n").await;
            marks.push(mark);
            clients.push(client);
        }
        let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(server.exit_code().await, Some(128 + 15));
        for mark in marks {
            nothing_is_left(&mark).await;
        }
        for client in clients {
            client.kill().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_other_hosts_and_browsers_are_refused() {
    let server = McpServer::start(&["local"]).await;
    for (headers, refused) in [
        (&["Host: localhost"][..], false),
        (&["Host: 127.0.0.1:7"], false),
        (&["Host: telexec.example"], true),
        (&["Host: telexec.example:80"], true),
        (&["Host: localhost", "Origin: http://telexec.example"], true),
        (&["Host: localhost", "Origin: http://localhost"], true),
        (&["Host: localhost", "Origin: null"], true),
    ] {
        let status = status(&server, "/mcp", headers).await;
        assert_eq!(status.starts_with("HTTP/1.1 403 "), refused, "{headers:?}: {status}");
    }
    assert_eq!(status(&server, "/", &["Host: localhost"]).await, "HTTP/1.1 404 Not Found");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_is_asked_for_first() {
    let place = directory();
    let server = McpServer::start(&["--token-file", &token_file(place.path()), "local"]).await;
    for headers in [
        &["Host: localhost"][..],
        &["Host: localhost", "Authorization: Bearer wrong"],
        &["Host: localhost", &format!("Authorization: Bearer {TOKEN}x")],
        &["Host: localhost", &format!("Authorization: Basic {TOKEN}")],
    ] {
        for path in ["/mcp", "/"] {
            assert_eq!(status(&server, path, headers).await, "HTTP/1.1 401 Unauthorized", "{headers:?}");
        }
    }
    for mode in MODES {
        let mut client = McpClient::http(mode, &server.url, &[("MCP_TOKEN", TOKEN)]).await;
        assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_asked_for_with_tls() {
    let (certs, place) = (Certs::new(), directory());
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (ca, token) = (path(&certs.ca.cert()), token_file(place.path()));
    let own = ["--tls-cert", &path(&certs.agent.cert), "--tls-key", &path(&certs.agent.key)].map(str::to_owned);
    let by_certificate = ["--client-ca", ca.as_str()];
    let by_token = ["--token-file", token.as_str()];
    let (cert, key) = (path(&certs.client.cert), path(&certs.client.key));
    let certificate = [("MCP_CA", ca.as_str()), ("MCP_CERT", cert.as_str()), ("MCP_KEY", key.as_str())];
    for (flags, variables) in [
        (&by_certificate[..], &certificate[..]),
        (&by_token, &[("MCP_CA", ca.as_str()), ("MCP_TOKEN", TOKEN)]),
        (&[by_certificate, by_token].concat(), &[&certificate[..], &[("MCP_TOKEN", TOKEN)]].concat()),
    ] {
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let server = McpServer::start(&[&own, flags, &["local"]].concat()).await;
        let url = server.url.replace("127.0.0.1", "localhost");
        assert!(url.starts_with("https://"), "{url}");
        let mut client = McpClient::http("auto", &url, variables).await;
        assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
        client.close().await;
        // without one the connection ends, and what is not TLS as well
        assert!(!status(&server, "/mcp", &["Host: localhost"]).await.starts_with("HTTP/1.1 200"));
        if flags.contains(&"--client-ca") {
            let mut stream = within(TcpStream::connect(server.address())).await.unwrap();
            let connector = tokio_rustls::TlsConnector::from(certs.config(None));
            let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
            let refused = match within(connector.connect(name, &mut stream)).await {
                // in TLS 1.3 the refusal comes after the handshake
                Ok(mut stream) => within(stream.read_u8()).await.is_err(),
                Err(_) => true,
            };
            assert!(refused);
        }
    }
}

#[tokio::test]
async fn who_may_call_is_not_left_open() {
    let (certs, place) = (Certs::new(), directory());
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (cert, key) = (path(&certs.agent.cert), path(&certs.agent.key));
    let exposed = token_file(place.path());
    std::fs::set_permissions(&exposed, std::fs::Permissions::from_mode(0o644)).unwrap();
    for (args, named) in [
        (&["--listen", "tcp://0.0.0.0:0"][..], "loopback"),
        (&["--listen", "tcp://0.0.0.0:0", "--token-file", &exposed], "mode 644"),
        (&["--listen", "tcp://0.0.0.0:0", "--tls-cert", &cert, "--tls-key", &key], "--client-ca"),
        (&["--listen", "tcp://127.0.0.1:0", "--tls-cert", &cert], "--tls-key"),
        (&["--listen", "tcp://127.0.0.1:0", "--client-ca", &cert], "--tls-cert"),
        (&["--listen", "127.0.0.1:0"], "tcp://127.0.0.1:7480"),
        (&["--token-file", &exposed], "--listen"),
    ] {
        let output = telexec_mcp(&[args, &["local"]].concat()).stderr(std::process::Stdio::piped()).output();
        let output = within(output).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named), "{args:?}: {said}");
    }
}

/// More than the server has places for.
const MANY: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_ask_for_nothing_keep_nobody_waiting() {
    let place = directory();
    let server = McpServer::start(&["--token-file", &token_file(place.path()), "local"]).await;
    let mut idle = Vec::new();
    for number in 0..MANY {
        let mut stream = within(TcpStream::connect(server.address())).await.unwrap();
        let begin: &[u8] = if number % 2 == 0 { b"" } else { b"POST /mcp HTTP/1.1\r\nHost: local" };
        within(stream.write_all(begin)).await.unwrap();
        idle.push(stream);
    }
    for mode in MODES {
        let mut client = McpClient::http(mode, &server.url, &[("MCP_TOKEN", TOKEN)]).await;
        assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
        client.close().await;
    }
    // the oldest had to make way
    assert!(within(idle[0].read_u8()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_the_token_is_closed() {
    let place = directory();
    let server = McpServer::start(&["--token-file", &token_file(place.path()), "local"]).await;
    let mut stream = within(TcpStream::connect(server.address())).await.unwrap();
    within(stream.write_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")).await.unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("connection: close"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_deleted_is_gone_at_once() {
    let server = McpServer::start(&["local"]).await;
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } } });
    let common = "Host: localhost\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\n";
    let ask = async |request: String| {
        let mut stream = within(TcpStream::connect(server.address())).await.unwrap();
        within(stream.write_all(request.as_bytes())).await.unwrap();
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.unwrap();
        answer
    };
    let body = initialize.to_string();
    let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    let answer = ask(format!("POST /mcp HTTP/1.1\r\n{common}{head}\r\n{body}")).await;
    let session =
        answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap_or_else(|| panic!("{answer}"));
    let answer = ask(format!("DELETE /mcp HTTP/1.1\r\n{common}Mcp-Session-Id: {session}\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    let answer = ask(format!("POST /mcp HTTP/1.1\r\n{common}{head}Mcp-Session-Id: {session}\r\n\r\n{body}")).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_refused_on_open_connections_too() {
    let (certs, place) = (Certs::new(), directory());
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let list = place.path().join("crl.pem");
    std::fs::write(&list, certs.ca.revocation_list(&[])).unwrap();
    let args = ["--tls-cert", &path(&certs.agent.cert), "--tls-key", &path(&certs.agent.key)].map(str::to_owned);
    let args: Vec<_> = args.into_iter().chain(["--client-ca".into(), path(&certs.ca.cert())]).collect();
    let args = [args, vec!["--client-crl".into(), path(&list), "local".into()]].concat();
    let mut server = McpServer::start(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let address = server.address().to_owned();
    let get = async |stream: &mut TlsStream<TcpStream>| {
        stream.write_all(b"GET /elsewhere HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"MCP is at /mcp\n") {
            answer.push(stream.read_u8().await?);
        }
        Ok::<_, std::io::Error>(answer)
    };
    let mut open = connect(&certs, &certs.client, &address).await.unwrap();
    within(get(&mut open)).await.unwrap();
    // one that is mixed up changes nothing
    std::fs::write(&list, telexec_tests::Ca::new("other").revocation_list(&[&certs.client])).unwrap();
    server.logged("cannot reload the certificates").await;
    within(get(&mut open)).await.unwrap();
    within(get(&mut connect(&certs, &certs.client, &address).await.unwrap())).await.unwrap();
    std::fs::write(place.path().join("new"), certs.ca.revocation_list(&[&certs.client])).unwrap();
    std::fs::rename(place.path().join("new"), &list).unwrap();
    // closed by the server
    let mut rest = Vec::new();
    let _ = within(open.read_to_end(&mut rest)).await;
    let refused = match connect(&certs, &certs.client, &address).await {
        Ok(mut stream) => within(get(&mut stream)).await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
}

async fn connect(certs: &Certs, pair: &Pair, address: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = within(TcpStream::connect(address)).await.unwrap();
    let mut config = (*certs.config(Some(pair))).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    within(connector.connect(rustls::pki_types::ServerName::try_from("localhost").unwrap(), stream)).await
}

/// The answer to this method with this body, in this session, from the holder of this certificate.
async fn asked(server: &McpServer, certs: &Certs, pair: &Pair, method: &str, session: &str, body: &str) -> String {
    let mut request = format!("{method} /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    request += "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    if !session.is_empty() {
        request += &format!("Mcp-Session-Id: {session}\r\n");
    }
    let request = format!("{request}Content-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = connect(certs, pair, server.address()).await.unwrap();
    within(stream.write_all(request.as_bytes())).await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

async fn begin(server: &McpServer, certs: &Certs, pair: &Pair) -> String {
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } } });
    let answer = asked(server, certs, pair, "POST", "", &initialize.to_string()).await;
    let session = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    session.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Though its client is not connected at that moment, and would have an hour to come back.
#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_of_a_revoked_caller_end_with_their_commands() {
    let (certs, place, mark) = (Certs::new(), directory(), marker());
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let list = place.path().join("crl.pem");
    std::fs::write(&list, certs.ca.revocation_list(&[])).unwrap();
    let files = [&certs.agent.cert, &certs.agent.key, &certs.ca.cert(), &list].map(|file| path(file));
    let flags = ["--tls-cert", "--tls-key", "--client-ca", "--client-crl"];
    let mut args: Vec<_> = flags.into_iter().zip(&files).flat_map(|(flag, file)| [flag, file.as_str()]).collect();
    args.extend(["--session-timeout", "1h", "local"]);
    let server = McpServer::start(&args).await;
    let other = certs.ca.issue(Leaf::client("other"));
    let [session, others] = [begin(&server, &certs, &certs.client).await, begin(&server, &certs, &other).await];
    asked(&server, &certs, &certs.client, "POST", &session, INITIALIZED).await;
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": { "name": "bash", "arguments": { "command": format!("{MARK}={mark} sleep 300") } } })
    .to_string();
    let calling = asked(&server, &certs, &certs.client, "POST", &session, &call);
    let is_running = until("it runs", async || !processes_with(&mark).is_empty());
    tokio::select! {
        answer = calling => panic!("{answer}"),
        () = is_running => {}
    }
    std::fs::write(place.path().join("new"), certs.ca.revocation_list(&[&certs.client])).unwrap();
    std::fs::rename(place.path().join("new"), &list).unwrap();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    let answer = asked(&server, &certs, &other, "POST", &others, INITIALIZED).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_the_certificate_that_began_it() {
    let certs = Certs::new();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (cert, key, ca) = (path(&certs.agent.cert), path(&certs.agent.key), path(&certs.ca.cert()));
    let server = McpServer::start(&["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca, "local"]).await;
    let (owner, other) = (&certs.client, certs.ca.issue(Leaf::client("other")));
    let session = begin(&server, &certs, owner).await;
    for method in ["POST", "GET", "DELETE"] {
        let body = if method == "POST" { INITIALIZED } else { "" };
        let unknown = asked(&server, &certs, &other, method, "unknown", body).await;
        let answer = asked(&server, &certs, &other, method, &session, body).await;
        let status = if method == "DELETE" { "HTTP/1.1 204 " } else { "HTTP/1.1 404 " };
        assert!(answer.starts_with(status) && unknown.starts_with(status), "{method}: {answer}{unknown}");
    }
    let renewed = certs.ca.issue(Leaf::client("client"));
    for pair in [owner, &renewed] {
        let answer = asked(&server, &certs, pair, "POST", &session, INITIALIZED).await;
        assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    }
    // another's sessions, however many, leave it its place
    for _ in 0..80 {
        begin(&server, &certs, &other).await;
    }
    let answer = asked(&server, &certs, owner, "POST", &session, INITIALIZED).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_replaces_the_old_one() {
    let place = directory();
    let file = token_file(place.path());
    let mut server = McpServer::start(&["--token-file", &file, "local"]).await;
    let with = |token: &str| format!("Authorization: Bearer {token}");
    let mut open = within(TcpStream::connect(server.address())).await.unwrap();
    let get = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n", with(TOKEN));
    within(open.write_all(get.as_bytes())).await.unwrap();
    assert_eq!(within(open.read_u8()).await.unwrap(), b'H');
    // one that cannot be used changes nothing
    std::fs::write(&file, "short\n").unwrap();
    server.logged("cannot reload the token").await;
    assert_eq!(status(&server, "/", &["Host: localhost", &with(TOKEN)]).await, "HTTP/1.1 404 Not Found");

    let new = TOKEN.replace('0', "f");
    std::fs::write(&file, &new).unwrap();
    // closed by the server
    let _ = within(open.read_to_end(&mut Vec::new())).await;
    assert_eq!(status(&server, "/", &["Host: localhost", &with(&new)]).await, "HTTP/1.1 404 Not Found");
    assert_eq!(status(&server, "/", &["Host: localhost", &with(TOKEN)]).await, "HTTP/1.1 401 Unauthorized");
}
