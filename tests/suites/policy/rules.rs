//! What rules see of a call, what they leave to a command, and how they are replaced.

use std::time::Duration;

use rustix::process::Signal;
use telexec_executor::{
    Command, CommandBuilder, ExecutionState, Executor, ExecutorError, ExitCause, Input, ResourceLimits, TerminalSize,
};
use telexec_tests::{
    Agent, AgentBuilder, MARK, NOBODY, Outcome, collect, is_root, marker, processes_with, run, until, within,
};

use super::{Ruled, sh};

/// A rule under which a command is denied by its name if the condition holds.
fn forbid(name: &str, condition: &str) -> String {
    format!("@id(\"{name}\") forbid(principal, action in Action::\"start\", resource) when {{ {condition} }};\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_see_what_is_asked_for() {
    let limits = |cpus| ResourceLimits { cpus: Some(cpus), memory_bytes: Some(1 << 30), max_processes: Some(50) };
    let (short, long) = (Duration::from_millis(1500), Duration::from_secs(61));
    // each is denied by its rule; the same without what the rule looks at is not
    let cases: Vec<(&str, &str, CommandBuilder)> = vec![
        ("command", r#"context.command like "*needle*""#, sh("echo needle")),
        ("argv", r#"context.argv.contains("--force")"#, Command::argv(["true", "--force"])),
        ("joined", r#"context.command == "true a b""#, Command::argv(["true", "a", "b"])),
        ("shell", r#"context.shell == "sh""#, sh("true").shell("sh")),
        ("privileges", "context.no_new_privileges", sh("true").no_new_privileges(true)),
        ("login", "context.login", sh("true").login(true)),
        ("environment", r#"context.environment.contains("NEEDLE")"#, sh("true").env("NEEDLE", "1")),
        ("directory", r#"context.working_directory like "/tmp*""#, sh("true").working_directory("/tmp")),
        ("hidden", r#"context.working_directory == "/nothing""#, sh("true").working_directory("/tmp/../etc")),
        ("doubled", r#"context.working_directory == "/nothing""#, sh("true").working_directory("//etc")),
        ("many", r#"context.argv.contains("needle")"#, Command::argv(vec!["true"; 5000])),
        ("terminal", "context.terminal", sh("true").terminal(TerminalSize::new(80, 24).unwrap())),
        ("input", "context.accepts_input", sh("true").accepts_input(true)),
        ("background", "context.background", sh("true").yield_after(short)),
        ("timeout", r#"context has timeout && context.timeout > duration("1m")"#, sh("true").timeout(long)),
        ("labels", r#"context.labels.contains("kind=odd")"#, sh("true").labels([("kind".into(), "odd".into())])),
        ("reason", r#"context.reason like "INC-*""#, sh("true").reason("INC-1: x")),
        (
            "limits",
            r#"context.limits has cpus && context.limits.cpus.greaterThan(decimal("1.5")) &&
               context.limits has memory_bytes && context.limits.memory_bytes == 1073741824 &&
               context.limits has max_processes && context.limits.max_processes == 50"#,
            sh("true").limits(limits(2.0)),
        ),
        ("user", r#"context.user == "no-such-user""#, sh("true").user("no-such-user")),
    ];
    let policy: String = cases.iter().map(|(name, condition, _)| forbid(name, condition)).collect();
    let ruled = Ruled::start(&format!("permit(principal, action, resource);\n{policy}"), "");
    for (name, _, command) in cases {
        let check = ruled.check("any", command.clone()).await;
        assert!(!check.allowed, "{name}: {check:?}");
        assert!(
            check.reason.starts_with("the policy forbids Execute on ") && check.reason.contains(name),
            "{name}: {check:?}"
        );
    }
    for other in [
        sh("true").timeout(Duration::from_secs(60)),
        sh("true").limits(limits(1.5)),
        sh("true").working_directory("/var"),
        sh("true").reason("PROJ-1"),
        Command::argv(["true", "b", "a"]),
    ] {
        let check = ruled.check("any", other.clone()).await;
        assert!(check.allowed, "{other:?}: {check:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_see_the_caller_and_the_agent() {
    let policy = r#"
        permit(principal == Identity::"anna", action == Action::"Execute", resource)
          when { context.transport == "mtls" && resource.labels.contains("kind=sandbox") };
        permit(principal, action == Action::"Execute", resource)
          when { principal.name like "build-*" && resource.hostname == "HOSTNAME" };"#;
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let ruled = Ruled::start(&policy.replace("HOSTNAME", &hostname), "[labels]\nkind = \"sandbox\"");
    for (name, rule) in [("anna", None), ("build-7", None), ("Anna", Some("default")), ("xbuild-7", Some("default"))] {
        assert_eq!(ruled.denied(name, sh("true")).await.as_deref(), rule, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_known_by_name_and_number_however_they_are_named() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let policy = format!(
        "permit(principal, action, resource);\n{}{}",
        forbid("root", "context.user_id == 0 || context.user == \"root\""),
        forbid("nobody", "context.user == \"nobody\"")
    );
    let ruled = Ruled::start(&policy, "");
    for (user, rule) in [(None, "root"), (Some("root"), "root"), (Some("0"), "root"), (Some("nobody"), "nobody")] {
        let command = user.into_iter().fold(sh("true"), CommandBuilder::user);
        assert_eq!(ruled.denied("any", command).await.as_deref(), Some(rule), "{user:?}");
    }
    let nobody = sh("true").user(NOBODY.to_string());
    assert_eq!(ruled.denied("any", nobody).await.as_deref(), Some("nobody"));
    assert_eq!(ruled.denied("any", sh("true").user("daemon")).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_leave_so_much_and_no_more() {
    let policy = r#"
        @max_timeout("300ms") @max_output("4KiB") @max_concurrent("2")
        permit(principal, action, resource);
        @max_timeout("1h") @max_concurrent("50")
        permit(principal, action in Action::"start", resource);"#;
    let ruled = Ruled::start(policy, "");
    let executor = ruled.to("anna").await.executor();
    for command in [sh("sleep 300"), sh("sleep 300").timeout(Duration::from_secs(100))] {
        assert_eq!(run(&executor, command).await.unwrap().exited.cause, ExitCause::TimedOut);
    }
    for command in [sh("head -c 10000 /dev/zero"), sh("head -c 10000 /dev/zero").max_output_bytes(5000)] {
        let outcome: Outcome = run(&executor, command).await.unwrap();
        assert_eq!((outcome.stdout.len(), outcome.exited.stdout.bytes), (4096, 10_000));
    }
    let outcome = run(&executor, sh("head -c 10000 /dev/zero").max_output_bytes(100)).await.unwrap();
    assert_eq!(outcome.stdout.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_leaves_behind_gets_no_more_time() {
    let ruled = Ruled::start("@max_timeout(\"1s\") @environment(\"*\") permit(principal, action, resource);", "");
    let executor = ruled.to("anna").await.executor();
    let mark = marker();
    let outcome = run(&executor, sh("sleep 300 > /dev/null 2>&1 &").env(MARK, &mark)).await.unwrap();
    assert_eq!((outcome.exited.cause, outcome.exited.surviving_processes), (ExitCause::Exited(0), 1));
    until("it has ended", async || processes_with(&mark).is_empty()).await;
    let info = executor.get(&outcome.started.id).await.unwrap();
    assert_eq!((info.state, info.exited.unwrap().surviving_processes), (ExecutionState::Exited, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_holds_up_nobody() {
    let config = "max_request_fields = 2000000\nmax_request_bytes_in_flight = 4000000000\n\
                  max_request_bytes_in_flight_per_identity = 4000000000";
    let ruled = Ruled::start("permit(principal, action, resource);", config);
    let (anna, other) = (ruled.to("anna").await, ruled.to("other").await);
    let large = Command::argv([vec!["true".to_owned()], vec![String::new(); 1_000_000]].concat()).build().unwrap();
    let checks = futures_util::future::join_all((0..4).map(|_| anna.check(&large)));
    let checks = std::pin::pin!(checks);
    let served = async {
        for _ in 0..20 {
            within(other.ping()).await.unwrap();
        }
    };
    let (checks, ()) = tokio::join!(checks, served);
    assert!(checks.into_iter().all(|check| check.unwrap().allowed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_keeps_so_many_at_once_for_each_caller() {
    let ruled = Ruled::start("@max_concurrent(\"2\") permit(principal, action, resource);", "");
    let (anna, other) = (ruled.to("anna").await.executor(), ruled.to("other").await.executor());
    let start = async || anna.execute(sh("sleep 300").build().unwrap()).await;
    let (first, second) = (start().await.unwrap(), start().await.unwrap());
    match start().await {
        Err(ExecutorError::Exhausted { retry_after: Some(_), reason }) => {
            assert!(reason.contains("2 running") && reason.contains("@max_concurrent"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    run(&other, sh("true")).await.unwrap();
    drop(first);
    until("there is room again", async || start().await.is_ok()).await;
    drop(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_read_again_and_a_bad_one_is_not_taken() {
    let ruled = Ruled::start("@id(\"old\") forbid(principal, action, resource);", "");
    let anna = ruled.to("anna").await;
    let check = async || run(&anna.executor(), sh("true")).await.map(drop);
    let denied_by = async |name: &str| match check().await {
        Err(ExecutorError::Denied { rule, .. }) => rule.as_deref() == Some(name),
        _ => false,
    };
    assert!(denied_by("old").await);
    let replace = |text: &str| std::fs::write(ruled.agent.policy(), text).unwrap();

    // by itself
    replace("@id(\"new\") forbid(principal, action, resource);");
    until("the new rule counts", async || denied_by("new").await).await;

    // a mistake is logged, and changes nothing
    replace("permit(principal, action, resource) when { context.nothing };");
    ruled.agent.signal(Signal::HUP);
    until("the fault is logged", async || ruled.agent.log().contains("policy reload failed")).await;
    assert!(ruled.agent.log().contains("policy.cedar:1: "), "{}", ruled.agent.log());
    assert!(denied_by("new").await);
    std::fs::remove_file(ruled.agent.policy()).unwrap();
    ruled.agent.signal(Signal::HUP);
    until("that is logged too", async || ruled.agent.log().contains("cannot read the policy")).await;
    assert!(denied_by("new").await);

    // when asked, on a connection that was there before, and without an end to what runs
    replace("permit(principal, action, resource);");
    ruled.agent.signal(Signal::HUP);
    until("all is permitted", async || check().await.is_ok()).await;
    let execution = anna.executor().execute(sh("read x; echo $x").accepts_input(true).build().unwrap()).await.unwrap();
    let id = execution.id().clone();
    // what runs is permitted as before
    let accepts = "permit(principal, action == Action::\"Execute\", resource) when { context.accepts_input };";
    replace(&format!("{accepts}\npermit(principal, action == Action::\"WriteInput\", resource);"));
    ruled.agent.signal(Signal::HUP);
    until("nothing new is permitted", async || denied_by("default").await).await;
    let input = Input { data: "on\n".into(), ..Default::default() };
    anna.executor().write_input(&id, input).await.unwrap();
    assert_eq!(collect(execution).await.unwrap().stdout, b"on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_the_machine_come_in_if_a_policy_is_to_decide() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let nobody = format!("permit(principal == Identity::\"unix:uid={NOBODY}\", action == Action::\"Run\", resource);");
    let open = "socket_mode = \"0666\"";
    for (policy, code) in [
        (Some(nobody.as_str()), Some(0)),
        (Some("permit(principal, action, resource) when { false };"), Some(7)),
        (None, Some(14)),
    ] {
        let builder = Agent::builder().config(open);
        let agent = policy.into_iter().fold(builder, AgentBuilder::policy).start();
        std::fs::set_permissions(agent.directory(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        // as another user, with nothing of ours in between
        let grpcurl = std::env::var("GRPCURL").unwrap();
        let args = ["--reuid", &NOBODY.to_string(), "--clear-groups", &grpcurl, "-plaintext", "-connect-timeout", "5"]
            .map(str::to_owned);
        let call = [
            "-unix",
            "-authority",
            "localhost",
            "-d",
            "{\"argv\": [\"true\"]}",
            agent.address(),
            "telexec.v1.ExecutionService/Run",
        ];
        let mut command = tokio::process::Command::new("setpriv");
        let output = within(command.args(args).args(call).output()).await.unwrap();
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        match code {
            Some(0) => assert!(output.status.success(), "{reported}"),
            Some(7) => assert!(reported.contains("PermissionDenied"), "{reported}"),
            _ => {
                assert!(!output.status.success(), "{reported}");
                until("it was turned away", async || agent.log().contains("neither root nor")).await;
            }
        }
    }
}
