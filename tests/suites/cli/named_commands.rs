//! Named commands on the command line: `telexec commands`, and `@NAME` as a program.

use serde_json::{Value, json};
use telexec_tests::Agent;

use super::troubleshooting::shows;
use super::{Said, say, telexec};

const COMMANDS: &str = r#"
    [commands.restart]
    description = "Restarts one web server"
    argv = ["echo", "restart", "web-{1..9}"]
    timeout = "1500ms"
    [commands.who]
    argv = ["id", "-un"]"#;

#[tokio::test]
async fn they_are_listed() {
    let agent = Agent::builder().config(COMMANDS).start();
    let said = say(&["commands", agent.uri()]).await;
    let table = "COMMAND              DESCRIPTION              RUNS\n\
                 @restart web-{1..9}  Restarts one web server  echo restart web-{1..9}\n\
                 @who                                          id -un\n";
    assert_eq!(said.answer(), table);
    let said = say(&["commands", "--json", agent.uri()]).await;
    let listed: Vec<Value> = said.answer().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(listed[0]["parameters"][0]["word"], "web-{1..9}");
    assert_eq!((&listed[0]["timeout_ms"], &listed[1]["timeout_ms"]), (&json!(1500), &Value::Null));
    assert_eq!(say(&["commands", "local"]).await.answer(), "COMMAND  RUNS\n");
}

#[tokio::test]
async fn they_run_by_their_name_whatever_user_is_configured() {
    let agent = Agent::builder().config(COMMANDS).start();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    std::fs::write(&config, format!("[targets.web]\naddress = '{}'\nuser = 'no-such-user'\n", agent.uri())).unwrap();
    for (args, answer) in [
        (&["exec", "web", "@restart", "web-3"][..], "restart web-3\n"),
        (&["fleet", "-w", "web", "@restart", "web-4"], "web: restart web-4\n"),
        (&["check", "--json", "web", "@restart", "web-3"], "{\"allowed\":true"),
    ] {
        let mut command = telexec(args);
        command.env("TELEXEC_CONFIG", &config);
        let said = Said::by(command).await;
        assert!(said.code == 0 && said.stdout().starts_with(answer), "{args:?}: {said:?}");
    }
    let said = say(&["exec", agent.uri(), "@restart", "x"]).await;
    let hint = format!("`telexec commands {}` lists the named commands and their parameters\n", agent.uri());
    assert!(said.failure(125).contains("argument 1 does not match web-{1..9}"), "{said:?}");
    assert!(said.stderr().ends_with(&hint), "{said:?}");
    shows("argument N does not match …", said.stderr());
    let said = say(&["exec", agent.uri(), "@restart"]).await;
    shows("the command line has N arguments for @NAME, which takes …", said.failure(125));
    let said = say(&["exec", "-u", "root", agent.uri(), "@who"]).await;
    assert!(said.failure(125).contains("--user is not accepted by @who"), "{said:?}");
    shows("… is not accepted by @NAME", said.stderr());
    let said = say(&["exec", agent.uri(), "@nothing"]).await;
    let hint = format!(
        "cannot run @nothing: no such named command\ntelexec: `telexec commands {}` lists the named commands",
        agent.uri()
    );
    assert!(said.failure(127).contains(&hint), "{said:?}");
    shows("cannot run @NAME: no such named command", said.stderr());
}
