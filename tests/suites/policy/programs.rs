//! Rules that look at what a command runs.

use telexec_executor::Command;
use telexec_tests::{Agent, lines};

use super::{Ruled, sh};

/// Only these programs, for every caller.
const LIST: &str = r#"
@id("list")
@environment("A")
permit(principal, action, resource) when { ["echo", "true"].containsAll(context.programs) };
permit(principal, action == Action::"CheckCommand", resource);
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_programs_lets_through_what_is_made_of_them() {
    let policy = LIST.replace("principal, action, resource", "principal, action in Action::\"start\", resource");
    let ruled = Ruled::start(&policy, "");
    for command in [
        sh("echo 'rm -rf /'"),
        sh("true && echo a | echo b; (echo c)"),
        sh("echo \"$(echo a)\""),
        sh("for x in 1 2; do echo $x; done").shell("/bin/sh"),
        sh("if true; then echo; fi > /dev/null").env("A", "b"),
        sh("for ((i=0; i<3; i++)); do echo $((i * A)); done"),
        Command::argv(["echo", "-n", "; rm"]),
    ] {
        assert_eq!(ruled.denied("any", command.clone()).await, None, "{command:?}");
    }
    let ran = ruled.agent.directory().join("ran");
    let ran_text = ran.display();
    for command in [
        sh(&format!("echo; touch {ran_text}")),
        sh(&format!("echo $(touch {ran_text})")),
        sh(&format!("echo `touch {ran_text}`")),
        sh(&format!("env touch {ran_text}")),
        sh(&format!("x=touch; $x {ran_text}")),
        sh(&format!("eval 'touch {ran_text}'")),
        sh(&format!("echo 'touch {ran_text}' | sh")),
        sh(&format!("'to'uch {ran_text}")),
        sh(&format!("echo <(touch {ran_text})")),
        sh(&format!("PATH=/tmp true; touch {ran_text}")),
        sh(&format!("echo; touch {ran_text} '")),
        sh("echo").env("BASH_ENV", "/tmp/x"),
        sh("echo").env("PATH", "/tmp"),
        sh("echo").env("LD_PRELOAD", "/tmp/x.so"),
        sh("echo").shell("/tmp/bash"),
        sh("echo").shell("python3"),
        // what another shell reads otherwise, or an assignment decides
        sh(&format!("[[ x || touch == {ran_text} ]]")).shell("sh"),
        sh(&format!("x='a[$(touch {ran_text})]'; echo $((x))")),
        sh("echo $((A))").env("A", format!("a[$(touch {ran_text})]")),
        sh(&format!("echo $((touch {ran_text}) )")),
        sh(&format!("<&-sh <<<'touch {ran_text}'")),
        sh(&format!("! ! touch {ran_text}")),
        sh("echo").login(true).env("HOME", "/tmp/home"),
        Command::argv(["echo"]).env("LD_LIBRARY_PATH", "/tmp"),
        Command::argv(["touch", &ran_text.to_string()]),
        Command::argv(["env", "touch", &ran_text.to_string()]),
        Command::argv(["sh", "-c", &format!("touch {ran_text}")]),
        Command::argv(["/bin/echo"]),
    ] {
        assert_eq!(ruled.denied("any", command.clone()).await.as_deref(), Some("default"), "{command:?}");
    }
    assert!(lines(&ran).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_forbids_programs_forbids_what_is_not_understood() {
    let policy = r#"
        permit(principal, action, resource);
        @id("no-rm") forbid(principal, action in Action::"start", resource) when { context.programs.contains("rm") };
        @id("no-sudo") forbid(principal, action in Action::"start", resource) when { context.uses_sudo };"#;
    let ruled = Ruled::start(policy, "");
    assert_eq!(ruled.denied("any", sh("echo rm")).await, None);
    for (text, rule) in [
        ("rm /nothing", "no-rm"),
        ("true; x=1; xargs rm < /dev/null", "no-rm"),
        ("sudo true", "no-sudo"),
        ("sudo rm /nothing", "no-rm, no-sudo"),
        ("$x true", "no-rm, no-sudo"),
    ] {
        assert_eq!(ruled.denied("any", sh(text)).await.as_deref(), Some(rule), "{text}");
    }
    let check = ruled.check("any", sh("$x rm")).await;
    assert!(
        !check.allowed && check.missing.iter().all(|missing| missing.contains("cannot be determined")),
        "{check:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tells_what_would_run_and_runs_nothing() {
    let ruled = Ruled::start("permit(principal, action, resource);", "");
    let ran = ruled.agent.directory().join("ran");
    let check = ruled.check("any", sh(&format!("sudo touch {}; ls | ls", ran.display()))).await;
    assert_eq!(check.programs, ["sudo", "touch", "ls"]);
    assert!(check.allowed && check.uses_sudo && check.permission_pattern.is_empty(), "{check:?}");
    assert!(lines(&ran).is_empty());
    let check = ruled.check("any", sh("ls -l | ls")).await;
    assert_eq!((check.permission_pattern.as_str(), check.uses_sudo), ("ls **", false));
    assert_eq!(check.reason, "the policy permits it: line 1");
    let check = ruled.check("any", Command::argv(["ls", "a b"])).await;
    assert_eq!((check.programs, check.permission_pattern), (vec!["ls".to_owned()], "ls **".to_owned()));
    // what cannot be started can be asked about all the same
    assert!(ruled.check("any", Command::argv(["/nothing"]).user("no-such-user")).await.allowed);

    let unruled = Agent::start();
    let check = unruled.connect().await.check(&sh("ls").build().unwrap()).await.unwrap();
    assert!(check.allowed && check.reason.contains("no policy"), "{check:?}");
}
