//! Rules about the single commands of a text, and about its redirections.

use telexec_executor::{Command, CommandBuilder};
use telexec_tests::lines;

use super::{Ruled, sh};

/// `echo ok…`, and `cat` without arguments.
const RULES: &str = r#"
@id("echo") @max_timeout("20s")
permit(principal, action in Action::"start", resource)
when { context.each_command.program == "echo" && context.each_command.arg1 like "ok*" && context.each_command.argument_count == 1 };
@id("cat") @max_timeout("10s")
permit(principal, action in Action::"start", resource)
when { context.each_command.program == "cat" && context.each_command.argument_count == 0 };
permit(principal, action == Action::"CheckCommand", resource);
"#;

fn argv(words: &[&str]) -> CommandBuilder {
    Command::argv(words.iter().copied())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_a_text_has_to_be_permitted() {
    let ruled = Ruled::start(RULES, "");
    for command in [
        sh("echo ok"),
        sh("echo 'ok; rm -r /'"),
        sh("echo ok1 | cat"),
        sh("if echo ok; then echo \"ok\"$'2' | (cat); fi > /dev/null 2>&1 < /dev/null"),
        sh("cat <<E\nfile\nE"),
        argv(&["echo", "ok *"]),
        argv(&["cat"]),
    ] {
        assert_eq!(ruled.denied("any", command.clone()).await, None, "{command:?}");
    }
    let file = ruled.agent.directory().join("file");
    let file_text = file.display();
    for command in [
        sh("echo no"),
        sh("echo ok no"),
        sh("echo -e ok"),
        sh("echo"),
        sh("echo ok; echo no"),
        sh("echo ok | cat /etc/passwd"),
        sh("echo ok $(cat /etc/passwd)"),
        sh("echo \"ok$(cat /etc/passwd)\""),
        sh("x=ok; echo $x"),
        sh("x=ok; echo \"$x\""),
        sh("echo ok*"),
        sh("echo ok{1,2}"),
        sh("echo ok $nothing"),
        sh("env echo ok"),
        sh("/bin/echo ok"),
        sh("sudo echo ok"),
        sh("cat \"$@\""),
        sh("f() { cat \"$@\"; }; f /etc/passwd"),
        sh("x=1"),
        sh("$x"),
        sh("eval 'echo ok'"),
        sh("echo ok | xargs cat"),
        sh(&format!("echo ok > {file_text}")),
        sh(&format!("echo ok >> {file_text}")),
        sh(&format!("echo ok <> {file_text}")),
        sh(&format!("echo ok &> {file_text}")),
        sh(&format!("{{ echo ok; }} > {file_text}")),
        sh(&format!("exec > {file_text}; echo ok")),
        sh(&format!("echo ok > /dev/null > {file_text}")),
        sh("cat < /etc/passwd"),
        sh("cat < \"$x\""),
        argv(&["echo", "no"]),
        argv(&["echo", "ok", "ok"]),
        argv(&["env", "echo", "ok"]),
        argv(&["sh", "-c", "echo ok"]),
    ] {
        assert_eq!(ruled.denied("any", command.clone()).await.as_deref(), Some("default"), "{command:?}");
    }
    assert!(lines(&file).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_all_commands_apply_and_the_strictest_limits() {
    let ruled = Ruled::start(RULES, "");
    let check = ruled.check("any", sh("echo ok | cat | cat")).await;
    assert!(check.allowed);
    assert_eq!(check.reason, "the policy permits it: cat, echo");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_names_the_command_and_what_it_lacks() {
    let ruled = Ruled::start(RULES, "");
    let missing = async |text: &str| ruled.check("any", sh(text)).await.missing;
    assert_eq!(
        missing("echo ok | cat; echo no").await,
        [r#"context.each_command.arg1 like "ok*" (each_command.arg1 is "no"), of the command: echo no"#]
    );
    let unknown = missing("echo $x").await;
    assert!(unknown[0].contains("each_command.arg1 is not there, or known only when it runs"), "{unknown:?}");
    let redirected = missing("echo ok > /tmp/file").await;
    assert!(redirected[0].starts_with("a condition on context.redirections"), "{redirected:?}");
    let opaque = missing("eval x").await;
    assert!(opaque[0].contains("what the command runs cannot be determined"), "{opaque:?}");
    let many = (0..65).map(|number| format!("echo ok{number};")).collect::<String>();
    let many = missing(&many).await;
    assert!(many[0].contains("it has more than 64 commands"), "{many:?}");
    // the same one many times is one
    assert!(ruled.check("any", sh(&"echo ok;".repeat(1000))).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rule_forbids_is_forbidden_in_any_command_and_where_nothing_is_known() {
    let policy = r#"
        permit(principal, action, resource);
        @id("no-force") forbid(principal, action in Action::"start", resource)
        when { context.each_command.program == "rm" && context.each_command.arguments.contains("-f") };"#;
    let ruled = Ruled::start(policy, "");
    for text in ["rm -f /nothing", "true; true | rm /nothing -f", "env rm '-f' /nothing", "rm $x", "$x"] {
        assert_eq!(ruled.denied("any", sh(text)).await.as_deref(), Some("no-force"), "{text}");
    }
    for text in ["rm /nothing", "echo -f", "echo rm -f $x"] {
        assert_eq!(ruled.denied("any", sh(text)).await, None, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redirections_are_permitted_by_their_paths() {
    let policy = r#"
        @id("log") permit(principal, action in Action::"start", resource)
        when {
          context.each_command.program == "echo" &&
          ["/dev/null", "log"].containsAll(context.redirections.writes) && context.redirections.reads.isEmpty()
        };
        permit(principal, action == Action::"CheckCommand", resource);"#;
    let ruled = Ruled::start(policy, "");
    let allowed = async |text: &str| ruled.check("any", sh(text)).await.allowed;
    for text in ["echo > log", "echo 2>'log' >>log >|log", "echo &>/dev/null", "echo >&2"] {
        assert!(allowed(text).await, "{text}");
    }
    for text in ["echo > other", "echo > ./log", "echo < log", "echo <> log", "echo > \"$x\"", "echo > log*"] {
        assert!(!allowed(text).await, "{text}");
    }
}
