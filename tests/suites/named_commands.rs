//! Named commands: what the agent's configuration defines, and callers run by its name.

use std::time::Duration;

use serde_json::{Value, json};
use telexec_executor::{
    Command, CommandBuilder, Descendants, Executor, ExecutorError, ExitCause, ResourceLimits, SpawnStage, TerminalSize,
};
use telexec_tests::{Agent, AgentBuilder, Certs, Leaf, directory, executable, lines, program, run, until, within};
use tempfile::TempDir;

/// Commands of all kinds. `restart` leaves a line in `ran` where commands run.
const COMMANDS: &str = r#"
    [commands.restart]
    description = "Restarts one web server"
    argv = ["sh", "-c", "echo $1 >>ran; echo $1 $STAGE $TERM", "sh", "web-{1..9}"]
    environment = { STAGE = "live" }
    [commands.deploy]
    argv = ["echo", "--version={version}", "{test,live}"]
    parameters = { version = 'v[0-9]+' }
    [commands.plain]
    argv = ["pwd"]
    working_directory = "/usr"
    [commands.slow]
    argv = ["sleep", "600"]
    timeout = "200ms"
    [commands.cat]
    argv = ["cat"]
    stdin = true
    [commands.tty]
    argv = ["tty"]
    terminal = true
"#;

/// Where the commands of a test run.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(directory())
    }

    fn agent(&self) -> AgentBuilder {
        self.agent_with("")
    }

    /// `more` goes before the tables of the configuration.
    fn agent_with(&self, more: &str) -> AgentBuilder {
        Agent::builder().config(format!("working_directory = {:?}\n{more}\n{COMMANDS}", self.0.path()))
    }

    /// The arguments with which `restart` ran.
    fn ran(&self) -> Vec<String> {
        lines(&self.0.path().join("ran"))
    }
}

fn named(words: &[&str]) -> CommandBuilder {
    Command::argv(words.iter().copied())
}

async fn output(executor: &impl Executor, command: CommandBuilder) -> String {
    let outcome = run(executor, command).await.unwrap();
    assert_eq!((outcome.exited.exit_code(), String::from_utf8_lossy(&outcome.stderr).as_ref()), (0, ""));
    outcome.text().to_owned()
}

/// The error in words.
async fn refused(executor: &impl Executor, command: CommandBuilder) -> String {
    match run(executor, command).await {
        Err(ExecutorError::Invalid(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_definition_says_what_runs() {
    let place = Place::new();
    let agent = place.agent().start();
    let executor = agent.executor().await;
    let restart = named(&["@restart", "web-3"]);
    assert_eq!(output(&executor, restart.clone().env("TERM", "dumb")).await, "web-3 live dumb\n");
    assert_eq!(output(&executor, named(&["@deploy", "--version=v7", "live"])).await, "--version=v7 live\n");
    assert_eq!(output(&executor, named(&["@plain"])).await, "/usr\n");
    for timeout in [None, Some(Duration::from_secs(300))] {
        let slow = timeout.into_iter().fold(named(&["@slow"]), CommandBuilder::timeout);
        assert_eq!(run(&executor, slow).await.unwrap().exited.cause, ExitCause::TimedOut);
    }
    assert_eq!(output(&executor, named(&["@cat"]).stdin("typed")).await, "typed");
    let size = TerminalSize::new(80, 24).unwrap();
    assert!(output(&executor, named(&["@tty"]).terminal(size).accepts_input(true)).await.starts_with("/dev/pts/"));
    assert_eq!(place.ran(), ["web-3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_of_a_request_changes_what_runs() {
    let place = Place::new();
    let agent = place.agent().start();
    let executor = agent.executor().await;
    let restart = || named(&["@restart", "web-3"]);
    let limits = ResourceLimits { max_processes: Some(3), ..Default::default() };
    let size = TerminalSize::new(80, 24).unwrap();
    for (command, text) in [
        (named(&["@restart"]), "argv: has 0 arguments for @restart, which takes 1: web-{1..9}"),
        (named(&["@restart", "web-3", "web-4"]), "argv: has 2 arguments for @restart, "),
        (named(&["@restart", "web-10"]), "argv[1]: does not match web-{1..9}"),
        (named(&["@restart", "web-3\n"]), "argv[1]: "),
        (named(&["@restart", ""]), "argv[1]: "),
        (named(&["@deploy", "--version=v7", "prod"]), "argv[2]: does not match {test,live}"),
        (named(&["@deploy", "live", "--version=v7"]), "argv[1]: "),
        (named(&["@plain", "-P"]), "argv: has 1 argument for @plain, which takes none"),
        (restart().user("root"), "user: is not accepted by @restart"),
        (restart().working_directory("/"), "working_directory: is not accepted by @restart"),
        (restart().clear_environment(true), "clear_environment: "),
        (restart().env("STAGE", "test"), "environment: STAGE is not accepted by @restart"),
        (restart().env("LD_PRELOAD", "/x.so"), "environment: LD_PRELOAD "),
        (restart().env("TZ", "UTC-24"), "environment: TZ "),
        (restart().env("COLUMNS", "a[$(id)]"), "environment: COLUMNS "),
        (restart().env("TERM", "../../x"), "environment: TERM "),
        (restart().limits(limits), "limits: is not accepted by @restart"),
        (restart().descendants(Descendants::Kill), "descendants: "),
        (named(&["@restart", &"x".repeat(5000)]), "argv[1]: is longer than 1024 bytes"),
        (
            named(&["@deploy", "--version=x", "live"]),
            "argv[1]: does not match --version={version}, where {version} is v[0-9]+",
        ),
        (restart().env("PATH", "/tmp"), "environment: PATH "),
        (restart().stdin("x"), "stdin: "),
        (restart().accepts_input(true), "accepts_input: "),
        (restart().terminal(size), "terminal: "),
        (named(&["@cat"]).terminal(size), "terminal: "),
        (named(&["@tty"]).accepts_input(true), "accepts_input: "),
    ] {
        let said = refused(&executor, command.clone()).await;
        assert!(said.starts_with(text), "{command:?}: {said}");
    }
    assert!(!place.0.path().join("ran").exists());
}

/// Also where a program of that name could be found.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_name_is_not_found_and_never_a_program() {
    let place = Place::new();
    executable(place.0.path(), "@nothing", "#!/bin/sh\necho ran\n");
    std::fs::create_dir(place.0.path().join("@")).unwrap();
    executable(&place.0.path().join("@"), "tool", "#!/bin/sh\necho ran\n");
    let path = format!("environment = {{ PATH = \"{}:/usr/bin:/bin\" }}", place.0.path().display());
    for agent in [place.agent_with(&path), Agent::builder().config(&path)] {
        let agent = agent.start();
        let executor = agent.executor().await;
        match run(&executor, named(&["@nothing"])).await {
            Err(ExecutorError::Spawn(error)) => {
                assert_eq!((error.stage, error.subject.as_str()), (SpawnStage::Exec, "@nothing"));
                assert!(error.is_not_found());
            }
            other => panic!("{other:?}"),
        }
        // by its path it is a program like any other
        let by_path = named(&["@/tool"]).working_directory(place.0.path().to_str().unwrap());
        assert_eq!(output(&executor, by_path).await, "ran\n");
        assert_eq!(
            output(&executor, named(&["./@nothing"]).working_directory(place.0.path().to_str().unwrap())).await,
            "ran\n"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_one_of_the_same_name() {
    let place = Place::new();
    let agent = place.agent().start();
    let executor = agent.executor().await;
    let deploy = |words: &[&str]| named(words).execution_id("once".parse().unwrap());
    let first = deploy(&["@deploy", "--version=v1", "test"]);
    assert_eq!(output(&executor, first.clone()).await, "--version=v1 test\n");
    assert_eq!(output(&executor, first).await, "--version=v1 test\n");
    for other in [&["@deploy", "--version=v2", "test"][..], &["echo", "--version=v1", "test"]] {
        assert!(matches!(run(&executor, deploy(other)).await, Err(ExecutorError::AlreadyExists(_))), "{other:?}");
    }
}

const POLICY: &str = r#"
    @id("operators")
    permit(principal in Role::"operators", action in Action::"start", resource)
    when { ["restart", "deploy", "cat"].contains(context.named_command) };
    @id("no-live")
    forbid(principal, action in Action::"start", resource)
    when { context.named_command == "deploy" && context.argv.contains("live") };
    @id("look")
    permit(principal == Identity::"looker", action in Action::"start", resource)
    when { ["echo", "cat"].containsAll(context.programs) };
    @id("check")
    permit(principal, action == Action::"CheckCommand", resource);"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_by_the_name_is_all_that_a_caller_needs_and_no_more() {
    let (place, certs) = (Place::new(), Certs::new());
    let agent = place.agent_with("roles = { operators = [\"anna\"] }").mtls(&certs).policy(POLICY).start();
    let anna = agent.connect_as(&certs.ca.issue(Leaf::client("anna"))).await;
    let executor = anna.executor();
    assert_eq!(output(&executor, named(&["@restart", "web-3"]).env("TERM", "dumb")).await, "web-3 live dumb\n");
    assert_eq!(output(&executor, named(&["@deploy", "--version=v1", "test"])).await, "--version=v1 test\n");
    // who may run it hears what is wrong with it
    assert!(refused(&executor, named(&["@restart", "web-x"])).await.starts_with("argv[1]: "));
    for (command, rule) in [
        (named(&["@deploy", "--version=v1", "live"]), Some("no-live")),
        (named(&["@plain"]), None),
        (named(&["@unknown"]), None),
        (named(&["sh", "-c", "echo $1 >>ran", "sh", "web-3"]), None),
        (Command::shell("@restart web-3"), None),
        (named(&["./@restart", "web-3"]), None),
        (named(&["@"]), None),
    ] {
        match run(&executor, command.clone()).await {
            Err(ExecutorError::Denied { rule: by, reason, .. }) => {
                assert!(rule.is_none_or(|rule| by.as_deref() == Some(rule)), "{reason}");
            }
            other => panic!("{command:?}: {other:?}"),
        }
    }
    let denied = anna.check(&named(&["@plain"]).build().unwrap()).await.unwrap();
    assert!(denied.missing.iter().any(|text| text.contains("(named_command is \"plain\")")), "{denied:?}");
    assert_eq!(place.ran(), ["web-3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_run_it_learns_nothing_of_it() {
    let (place, certs) = (Place::new(), Certs::new());
    let agent = place.agent_with("roles = { operators = [] }").mtls(&certs).policy(POLICY).start();
    let other = agent.connect_as(&certs.ca.issue(Leaf::client("other"))).await;
    let mut said = Vec::new();
    for words in [&["@restart", "web-3"][..], &["@restart", "x"], &["@restart"], &["@unknown"]] {
        match run(&other.executor(), named(words)).await {
            Err(ExecutorError::Denied { reason, .. }) => said.push(reason.replace(words[0], "")),
            other => panic!("{words:?}: {other:?}"),
        }
        let check = other.check(&named(words).build().unwrap()).await.unwrap();
        assert!(!check.allowed && check.user.is_none(), "{words:?}");
    }
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
    // nor by rules that look at what it runs; what these permit, they permit by the name, too
    let looker = agent.connect_as(&certs.ca.issue(Leaf::client("looker"))).await;
    assert_eq!(output(&looker.executor(), named(&["@cat"]).stdin("x")).await, "x");
    let mut said = Vec::new();
    for words in [&["@restart", "web-3"][..], &["@restart", "x"], &["@unknown"]] {
        match run(&looker.executor(), named(words)).await {
            Err(ExecutorError::Denied { reason, .. }) => said.push(reason),
            other => panic!("{words:?}: {other:?}"),
        }
        let check = looker.check(&named(words).build().unwrap()).await.unwrap();
        assert!(!check.allowed && check.programs.is_empty() && !check.uses_sudo, "{words:?}: {check:?}");
        assert!(check.missing.iter().all(|text| text.ends_with("(programs is set by the named command)")), "{check:?}");
    }
    assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
}

/// As any other refusal.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_definition_refuses_is_recorded_and_counted() {
    let place = Place::new();
    let log = place.0.path().join("audit/log");
    let more =
        format!("audit = {{ file = {log:?} }}\nmax_starts_per_second = 3\nmetrics_listen = \"tcp://127.0.0.1:0\"");
    let agent = place.agent_with(&more).start();
    let executor = agent.executor().await;
    for words in [&["@restart", "x"][..], &["@unknown"], &["@restart"]] {
        run(&executor, named(words)).await.unwrap_err();
    }
    let paced = run(&executor, named(&["@restart", "x"])).await;
    assert!(matches!(paced, Err(ExecutorError::Exhausted { .. })), "{paced:?}");
    // a refusal is answered before it is written
    let mut refused = Vec::new();
    until("all are recorded", async || {
        let records = lines(&log).into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        let records = records.filter(|record| record["event"] == "refused");
        refused = records.map(|record| json!([record["named_command"], record["error"], record["argv"]])).collect();
        refused.len() == 4
    })
    .await;
    let expected = [
        json!(["restart", "invalid", ["@restart", "x"]]),
        json!(["unknown", "spawn_failed", ["@unknown"]]),
        json!(["restart", "invalid", ["@restart"]]),
        json!(["restart", "exhausted", ["@restart", "x"]]),
    ];
    assert_eq!(refused, expected);
    let refusals = agent.connect().await.info().await.unwrap().refusals;
    assert_eq!(refusals.get("named_command"), Some(&3), "{refusals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_has_the_name_and_what_ran() {
    let place = Place::new();
    let log = place.0.path().join("audit/log");
    let policy =
        "permit(principal, action in Action::\"start\", resource) unless { context.named_command == \"plain\" };";
    let agent = place.agent_with(&format!("audit = {{ file = {log:?} }}")).policy(policy).start();
    let executor = agent.executor().await;
    output(&executor, named(&["@deploy", "--version=v1", "test"])).await;
    run(&executor, named(&["@plain"])).await.unwrap_err();
    output(&executor, named(&["echo"])).await;
    let records: Vec<Value> = lines(&log).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen = records.iter().filter(|record| record["event"] == "start" || record["event"] == "denied");
    let seen: Vec<_> = seen.map(|record| json!([record["event"], record["named_command"], record["argv"]])).collect();
    let expected = [
        json!(["start", "deploy", ["echo", "--version=v1", "test"]]),
        json!(["denied", "plain", ["pwd"]]),
        json!(["start", null, ["echo"]]),
    ];
    assert_eq!(seen, expected);
}

/// Exit code and standard error of `telexecd`, with this configuration.
async fn checked(config: &str, policy: &str) -> (i32, String) {
    let directory = directory();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let policy = write("policy.cedar", policy);
    let config = format!("listen = [\"unix:///x.sock\"]\npolicy = {policy:?}\n{config}");
    let mut command = tokio::process::Command::new(program("telexecd"));
    command.arg("--config").arg(write("telexecd.toml", &config)).arg("--check-config").kill_on_drop(true);
    let output = within(command.output()).await.unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_definitions_are_named_before_anything_runs() {
    let any = "permit(principal, action, resource);";
    let command = |text: &str| format!("[commands.a]\n{text}\n");
    for (config, fault) in [
        (command(""), "commands.a: argv: is missing"),
        (command("argv = []"), "commands.a: argv: is missing"),
        (command("argv = [\"\"]"), "commands.a: argv: "),
        (command("argv = [\"{a,b}\"]"), "commands.a: argv[0]: the program cannot be a parameter"),
        (command("argv = [\"a\", \"{9..1}\"]"), "commands.a: argv[1]: {9..1}: the range is empty"),
        (command("argv = [\"a\"]\nparameters = { x = 'y' }"), "commands.a: parameters.x: no word of argv has {x}"),
        (command("argv = [\"a\", \"{x}\"]\nparameters = { x = '(' }"), "commands.a: parameters.x: "),
        (command("argv = [\"@b\"]"), "commands.a: argv[0]: the program cannot be a named command"),
        (command("argv = [\"a\", \"{x}\"]"), "commands.a: argv[1]: {x} is no range, no choice and not in parameters"),
        (
            command("argv = [\"a\", \"{reason}\"]\nparameters = { reason = 'a' }"),
            "parameters.reason: the name is reserved",
        ),
        (
            command("argv = [\"a\", \"{x}\"]\nparameters = { x = '(?:a{1,1000}){1,1000}' }"),
            "commands.a: parameters.x: ",
        ),
        (command("argv = [\"a\", \"{x}\"]\nparameters = { x = 'a)|(?:b' }"), "commands.a: parameters.x: "),
        (command("argv = [\"a\", \"{X}\"]\nparameters = { X = 'a' }"), "commands.a: parameters.X: the name "),
        (command("argv = [\"a\"]\nworking_directory = \"b\""), "commands.a: working_directory: "),
        (command("argv = [\"a\"]\nuser = \"\""), "commands.a: user: "),
        (command("argv = [\"a\"]\ntimeout = \"0s\""), "commands.a: timeout: "),
        (command("argv = [\"a\"]\nenvironment = { \"A=\" = \"b\" }"), "commands.a: environment: "),
        (command("argv = [\"a\"]\nterminl = true"), "unknown field `terminl`: did you mean `terminal`?"),
        ("[commands.\"a b\"]\nargv = [\"a\"]\n".to_owned(), "commands.a b: the name does not match "),
        (format!("[commands.{}]\nargv = [\"a\"]\n", "a".repeat(65)), ": the name does not match "),
    ] {
        let (code, said) = checked(&config, any).await;
        assert!(code == 78 && said.contains(fault), "{config}: {code} {said}");
    }
    for (argv0, warning) in [
        ("a", "commands.a: argv[0]: \"a\" is not in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("/etc/passwd", "commands.a: argv[0]: \"/etc/passwd\" does not exist, or is not executable"),
        ("sh\"]\nenvironment = { PATH = \"/etc\" }#", "commands.a: argv[0]: \"sh\" is not in /etc"),
        ("sh\"]\nuser = \"nobdy\"#", "commands.a: user: cannot look up the user nobdy"),
        ("sh", "the configuration is valid"),
        ("/bin/sh", "the configuration is valid"),
    ] {
        let (code, said) = checked(&command(&format!("argv = [\"{argv0}\"]")), any).await;
        assert!(code == 0 && said.contains(warning), "{argv0}: {said}");
        assert_eq!(said.contains("warning"), warning.starts_with("commands.a: "), "{argv0}: {said}");
    }
    let known = command("argv = [\"a\"]");
    let agent = Agent::builder().config(&known).start();
    until("the agent has reported it", async || agent.log().contains("commands.a: argv[0]: ")).await;
    assert_eq!(checked(&known, "permit(principal, action, resource) when { true };").await.0, 0);
    for condition in ["context.named_command == \"b\"", "[\"a\", \"b\"].contains(context.named_command)"] {
        let rule = format!("permit(principal, action in Action::\"start\", resource)\nwhen {{ {condition} }};");
        let (code, said) = checked(&known, &rule).await;
        assert!(code == 78 && said.contains("the configuration has no command \"b\""), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_lists_them() {
    let place = Place::new();
    let agent = place.agent().start();
    let listed = agent.connect().await.info().await.unwrap().named_commands;
    let names: Vec<_> = listed.iter().map(|command| command.name.as_str()).collect();
    assert_eq!(names, ["cat", "deploy", "plain", "restart", "slow", "tty"]);
    let (cat, deploy, restart, slow) = (&listed[0], &listed[1], &listed[3], &listed[4]);
    assert!(cat.accepts_input && !cat.accepts_terminal && listed[5].accepts_terminal);
    assert_eq!(restart.description, "Restarts one web server");
    assert_eq!(restart.parameters[0].values.len(), 9);
    assert_eq!(slow.timeout.unwrap().nanos, 200_000_000);
    let parameters: Vec<_> = deploy.parameters.iter().map(|one| (one.name.as_str(), one.word.as_str())).collect();
    assert_eq!(parameters, [("version", "--version={version}"), ("argument_2", "{test,live}")]);
    // environments may hold secrets
    assert!(!format!("{listed:?}").contains("STAGE\""), "{listed:?}");
}
