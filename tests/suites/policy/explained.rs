//! What a denial tells: the rule that came nearest, and its conditions that do not hold.

use std::time::Duration;

use telexec_executor::{CommandBuilder, Executor, ExecutorError, ResourceLimits, Signal};
use telexec_tests::{Agent, directory, is_root, lines, run, until, within};
use tonic::Code;
use tonic_types::StatusExt;

use super::{Ruled, sh};

const ROLES: &str = r#"[roles]
operators = ["anna", "olga"]
deploy = ["anna", "dora"]
readers = ["rita"]
support = ["sue"]
"#;

const POLICY: &str = r#"
@id("look")
permit(principal in Role::"operators", action == Action::"Execute", resource)
when { ["cat", "df"].containsAll(context.programs) && context.user == "no-such-user" && !context.login };
@id("deploy") @environment("APP_ENV DEPLOY_*")
permit(principal in Role::"deploy", action in Action::"start", resource)
when { context.reason like "INC-*: *" }
unless { context.terminal || context.background };
@id("short")
permit(principal == Identity::"tim", action in Action::"start", resource)
when { context has timeout && context.timeout <= duration("1m") };
@id("read")
permit(principal in Role::"readers", action in Action::"read", resource);
@id("named")
permit(principal, action in Action::"start", resource) when { principal.name like "build-*" && context.reason == "x" };
@id("ask")
permit(principal, action == Action::"CheckCommand", resource);
@id("support")
permit(principal in Role::"support", action == Action::"CheckAs", resource)
when { context.identity in Role::"deploy" };
@id("no-root")
forbid(principal == Identity::"frank", action in Action::"start", resource)
when { context.reason == "bad" || context.uses_sudo };
@id("limits")
forbid(principal == Identity::"frank", action in Action::"start", resource)
unless { context.limits has memory_bytes && context.limits has max_processes };
"#;

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nearest_rule_and_its_conditions_that_do_not_hold_are_named() {
    let ruled = Ruled::start(POLICY, ROLES);
    let programs = r#"["cat", "df"].containsAll(context.programs)"#;
    let user = r#"context.user == "no-such-user" (there is no such user)"#;
    let nobody = |text: &str| sh(text).user("no-such-user-either");
    let incident = || sh("true").reason("INC-1: x");
    let cases: Vec<(&str, CommandBuilder, &str, Vec<String>)> = vec![
        ("olga", nobody("rm x"), "look", vec![format!("{programs} (\"rm\" is not among them)"), user.into()]),
        (
            "olga",
            nobody("rm x; ls; df"),
            "look",
            vec![format!("{programs} (\"ls\", \"rm\" are not among them)"), user.into()],
        ),
        (
            "dora",
            sh("true").reason("why"),
            "deploy",
            vec![r#"context.reason like "INC-*: *" (reason is "why")"#.into()],
        ),
        (
            "dora",
            incident().yield_after(Duration::ZERO),
            "deploy",
            vec!["!context.background (background is true)".into()],
        ),
        (
            "dora",
            incident().env("APP_ENV", "1").env("A", "1").env("B", "1"),
            "deploy",
            vec![r#"@environment("APP_ENV DEPLOY_*") (the command sets A, B)"#.into()],
        ),
        ("tim", sh("true"), "short", vec!["context has timeout (timeout is not set)".into()]),
        (
            "tim",
            sh("true").timeout(Duration::from_secs(90)),
            "short",
            vec![r#"context.timeout <= duration("1m") (timeout is duration("90000ms"))"#.into()],
        ),
    ];
    for (name, command, nearest, missing) in cases {
        let check = ruled.check(name, command.clone()).await;
        assert!(
            !check.allowed && check.reason.ends_with(&format!("; the closest rule is {nearest}")),
            "{name}: {check:?}"
        );
        assert_eq!(check.missing, missing, "{name}");
        let denied = run(&ruled.to(name).await.executor(), command).await.unwrap_err();
        let expected = format!("{}; not met: {}", check.reason, missing.join("; "));
        assert_eq!(denied.to_string(), expected);
        let ExecutorError::Denied { rule, nearest: rule_near, missing: told, .. } = denied else {
            panic!("{denied:?}")
        };
        assert_eq!((rule.as_deref(), rule_near.as_deref(), told), (Some("default"), Some(nearest), missing));
    }
    let check = ruled.check("olga", nobody("$x")).await;
    let not_understood = format!("{programs} (what the command runs cannot be determined: ");
    assert!(check.missing[0].starts_with(&not_understood) && check.missing[1] == user, "{check:?}");

    // of two rules the one of which more holds
    let (host, check) = (hostname(), ruled.check("anna", sh("rm")).await);
    let who = "anna (roles deploy, operators)";
    assert_eq!(
        check.reason,
        format!("no rule of the policy permits Execute on {host} for {who}; the closest rule is deploy")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_forbids_says_what_it_needs() {
    let ruled = Ruled::start(&format!("permit(principal, action, resource);{POLICY}"), ROLES);
    let limits = ResourceLimits { memory_bytes: Some(1 << 30), max_processes: None, cpus: None };
    let check = ruled.check("frank", sh("sudo true").limits(limits)).await;
    let expected = format!("the policy forbids Execute on {} for frank (no role): limits, no-root", hostname());
    assert_eq!(check.reason, expected);
    let missing = [
        "context.limits has max_processes (limits.max_processes is not set)",
        "!context.uses_sudo (uses_sudo is true)",
    ];
    assert_eq!(check.missing, missing);
}

/// Who is not known to the policy learns nothing of it, and who is known nothing of what is about others.
#[tokio::test(flavor = "multi_thread")]
async fn rules_about_others_are_not_told() {
    let ruled = Ruled::start(POLICY, ROLES);
    for (name, hint) in
        [("eve", "no rule for this identity covers Execute"), ("rita", "no rule for this identity covers Execute")]
    {
        let check = ruled.check(name, sh("rm").user("no-such-user")).await;
        assert!(check.reason.ends_with(&format!("; {hint}")) && check.missing.is_empty(), "{check:?}");
    }
    let closed = Ruled::start(
        &POLICY.replace(
            "permit(principal, action == Action::\"CheckCommand\", resource);",
            "permit(principal == Identity::\"anna\", action, resource) when { false };",
        ),
        ROLES,
    );
    let status = closed.to("eve").await.info().await.unwrap_err().to_string();
    assert!(status.ends_with("for eve (no role); no rule applies to this identity"), "{status}");
    let check = ruled.check("build-7", sh("true")).await;
    assert!(check.reason.ends_with("the closest rule is named"), "{check:?}");
    assert_eq!(check.missing, [r#"context.reason == "x" (reason is "")"#]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_else_a_rule_names_is_not_told() {
    let policy = r#"
permit(principal, action in Action::"read", resource);
@id("own") permit(principal, action in Action::"start", resource)
when { principal in Role::"operators" || context.reason == "x" };
@id("no-sudo") forbid(principal, action in Action::"start", resource)
when { context.uses_sudo } unless { principal == Identity::"anna" };
"#;
    let ruled = Ruled::start(policy, ROLES);
    for (name, text, missing) in [
        ("eve", "true", r#"a condition on the identity (reason is "")"#),
        ("olga", "sudo true", "a condition on the identity (uses_sudo is true)"),
    ] {
        let check = ruled.check(name, sh(text)).await;
        assert_eq!((check.allowed, check.missing), (false, vec![missing.to_owned()]));
        let denied = run(&ruled.to(name).await.executor(), sh(text)).await.unwrap_err().to_string();
        assert!(!denied.contains("anna") && denied.ends_with(missing), "{denied}");
    }
    assert!(ruled.check("anna", sh("sudo true")).await.allowed);
}

/// What a denial has of a command is for its caller alone, since commands may have secrets.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_the_command_are_not_logged() {
    let directory = directory();
    let file = directory.path().join("audit.log");
    let policy = r#"@id("only") permit(principal, action, resource) when { context.command == "true" };"#
        .replace("action,", "action in Action::\"start\",");
    let audit = format!("[audit]\nfile = {file:?}\ncommands = \"none\"");
    let agent = Agent::builder().policy(policy).config(audit).start();
    let denied = run(&agent.executor().await, sh("echo s3cret")).await.unwrap_err().to_string();
    assert!(denied.contains(r#"(command is "echo s3cret")"#), "{denied}");
    until("it is recorded", async || lines(&file).iter().any(|line| line.contains("the closest rule is only"))).await;
    assert!(!lines(&file).concat().contains("s3cret") && !agent.log().contains("s3cret"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_asks_for_others() {
    let ruled = Ruled::start(POLICY, ROLES);
    let command = || sh("true").env("A", "1").build().unwrap();
    let sue = ruled.to("sue").await;
    let (asked, own) =
        (sue.check_as(&command(), "dora").await.unwrap(), ruled.check("dora", sh("true").env("A", "1")).await);
    assert_eq!(asked, own);
    assert!(asked.reason.contains("for dora (role deploy)"), "{asked:?}");
    // oneself needs no CheckAs
    assert_eq!(ruled.to("dora").await.check_as(&command(), "dora").await.unwrap(), own);
    // a role that the rule does not name, and who may not at all
    for (asker, identity) in [("sue", "rita"), ("dora", "anna"), ("anna", "unix:uid=0")] {
        match ruled.to(asker).await.check_as(&command(), identity).await {
            Err(ExecutorError::Denied { reason, .. }) => {
                assert!(reason.contains(&format!("permits CheckAs {identity} on ")), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    for malformed in ["a\nb", &"a".repeat(5000)] {
        let answer = sue.check_as(&command(), malformed).await;
        assert!(matches!(&answer, Err(ExecutorError::Invalid(error)) if error.field == "identity"), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn identities_come_by_their_transport() {
    let policy = r#"
        permit(principal, action == Action::"CheckAs", resource);
        @id("start") permit(principal, action in Action::"start", resource) when { context.transport == "none" };"#;
    let ruled = Ruled::start(policy, "");
    let asker = ruled.to("anna").await;
    for (identity, transport) in [
        ("unix:uid=7", "unix"),
        ("vsock:cid=2", "vsock"),
        ("tcp:anonymous", "tcp"),
        ("spiffe://example.org/ops/anna", "mtls"),
        ("bob", "mtls"),
    ] {
        let check = asker.check_as(&sh("true").build().unwrap(), identity).await.unwrap();
        assert_eq!(check.missing, [format!("context.transport == \"none\" (transport is {transport:?})")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_root_asks_for_others() {
    let command = sh("true").build().unwrap();
    let agent = Agent::start();
    let answer = agent.connect().await.check_as(&command, "anna").await;
    match is_root() {
        true => assert!(answer.unwrap().reason.contains("no policy")),
        false => assert!(matches!(answer, Err(ExecutorError::Denied { .. })), "{answer:?}"),
    }
    let tcp = Agent::builder().tcp().start();
    let answer = tcp.connect().await.check_as(&command, "anna").await;
    assert!(matches!(&answer, Err(ExecutorError::Denied { reason, .. }) if reason.contains("only root")), "{answer:?}");
}

/// Other programs read the details.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_has_the_rule_and_the_conditions_in_its_details() {
    let ruled = Ruled::start(POLICY, ROLES);
    let wire =
        telexec_tests::Wire::connect_tls(&ruled.agent, ruled.certs.config(Some(&ruled.pair("dora")))).await.unwrap();
    let request = telexec_proto::v1::ExecuteRequest { command: "true".into(), ..Default::default() };
    let status = within(wire.executions().run(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let info = status.get_details_error_info().unwrap();
    let metadata = ["rule", "nearest_rule", "missing"].map(|key| info.metadata[key].as_str());
    assert_eq!(metadata, ["default", "deploy", r#"context.reason like "INC-*: *" (reason is "")"#]);
    let nothing = "nothing".parse().unwrap();
    let denied = ruled.to("dora").await.executor().signal(&nothing, Signal::TERM).await.unwrap_err().to_string();
    assert!(denied.contains("permits SignalExecution on ") && denied.ends_with("covers SignalExecution"), "{denied}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_reports_the_roles_of_the_caller() {
    let uid = rustix::process::getuid().as_raw();
    let roles = format!("[roles]\nops = [\"unix:uid={uid}\"]\nnobody = [\"x\"]\nadmins = [\"unix:*\"]\n");
    let policy = "permit(principal in Role::\"ops\", action, resource);";
    let agent = Agent::builder().policy(policy).config(roles).start();
    let info = agent.connect().await.info().await.unwrap();
    assert_eq!((info.roles, info.caller_expire_time), (vec!["admins".to_owned(), "ops".to_owned()], None));
}
