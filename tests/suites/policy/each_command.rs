//! Rules about the single commands of a text, and about its redirections.

use rustix::process::Signal;
use telexec_executor::{Command, CommandBuilder, Executor, ExecutorError};
use telexec_tests::{collect, lines, until_output, within};

use super::{Ruled, sh};

/// One set at a time, and what only seems to list paths.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_rule_does_not_list_is_the_null_device_alone() {
    for condition in [
        r#"["log"].containsAll(context.redirections.reads)"#,
        r#"context.redirections.reads.isEmpty()"#,
        r#"context.redirections.writes.contains("log")"#,
        r#"(["log"].containsAll(context.redirections.writes) || context.each_command.program == "echo")"#,
        r#"context has redirections"#,
        "!context.login",
    ] {
        // the word is in comments and texts too: each_command
        let policy = format!(
            r#"@description("redirections") permit(principal, action in Action::"start", resource) // redirections
               when {{ context["each\u{{5f}}command"].program == "echo" && {condition} }};
               @description("each_command") @id("other") permit(principal, action in Action::"start", resource)
               when {{ context.command like "true*" }};
               permit(principal, action == Action::"CheckCommand", resource);"#
        );
        let ruled = Ruled::start(&policy, "");
        assert!(!ruled.check("any", sh("echo > log")).await.allowed, "{condition}");
        assert!(ruled.check("any", sh("true > log")).await.allowed, "{condition}");
    }
    let policy = r#"
        permit(principal, action in Action::"start", resource)
        when { context.command like "eval*" || context.each_command.program == "echo" };
        permit(principal, action == Action::"CheckCommand", resource);"#;
    let ruled = Ruled::start(policy, "");
    assert!(ruled.check("any", sh("echo a")).await.allowed);
    assert!(!ruled.check("any", sh("eval 'echo > log'")).await.allowed);
}

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
async fn the_rules_of_all_commands_apply() {
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
    assert!(unknown[0].contains("(arg1 is known only when it runs), of the command: echo …"), "{unknown:?}");
    let absent = missing("echo").await;
    assert!(absent[0].contains("(there is no arg1)"), "{absent:?}");
    // what has to be quoted is, and what is long is cut
    let quoted = missing("cat 'a  b' '' \"$x\" $'\\n' -x").await;
    assert!(quoted[0].ends_with(r#"of the command: cat "a  b" "" … "\n" -x"#), "{quoted:?}");
    let long = missing(&format!("cat {}", "x ".repeat(5000))).await;
    assert!(long[0].len() < 400 && long[0].ends_with(" …"), "{long:?}");
    assert_eq!(
        missing("echo ok > /tmp/file").await,
        [
            r#"["/dev/null"].containsAll(context.redirections.writes), by default for rules about each_command ("/tmp/file" is not among them)"#
        ]
    );
    let opaque = missing("eval x").await;
    assert!(opaque[0].contains("what the command runs cannot be determined"), "{opaque:?}");
    let many = (0..65).map(|number| format!("echo ok{number};")).collect::<String>();
    let many = missing(&many).await;
    assert!(many[0].contains("it has more than 64 different commands"), "{many:?}");
    // the rule about the program is nearest, also where another one has fewer conditions that do not hold
    assert!(ruled.check("any", sh("echo a b")).await.reason.ends_with("the closest rule is echo"));
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
    for text in ["rm /nothing", "echo -f", "echo rm -f $x", "x=1", "> /dev/null"] {
        assert_eq!(ruled.denied("any", sh(text)).await, None, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_forbids_is_reported_before_one_that_does_not_permit() {
    let forbids = r#"@id("no-rm") forbid(principal, action in Action::"start", resource)
                     when { context.each_command.program == "rm" };"#;
    let ruled = Ruled::start(&format!("{RULES}{forbids}"), "");
    for text in ["echo no; rm x", "rm x; echo no"] {
        assert_eq!(ruled.denied("any", sh(text)).await.as_deref(), Some("no-rm"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_have_to_be_permitted_by_the_rules_of_all_commands() {
    let policy = RULES.replace("@id(\"echo\")", "@id(\"echo\") @environment(\"A\")");
    let ruled = Ruled::start(&policy, "");
    assert_eq!(ruled.denied("any", sh("echo ok").env("A", "1")).await, None);
    assert_eq!(ruled.denied("any", sh("echo ok | cat").env("A", "1")).await.as_deref(), Some("default"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_no_longer_permitted_ends() {
    let policy = RULES.replace("cat", "sleep").replace("argument_count == 0", "argument_count == 1");
    let ruled = Ruled::start(&policy, "");
    let executor = ruled.to("any").await.executor();
    let command = sh("echo ok; sleep 300").build().unwrap();
    let mut execution = within(executor.execute(command)).await.unwrap();
    until_output(&mut execution, "ok\n").await;
    std::fs::write(ruled.agent.policy(), RULES).unwrap();
    ruled.agent.signal(Signal::HUP);
    let refused = collect(execution).await.unwrap_err();
    assert!(matches!(refused, ExecutorError::Denied { .. }), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_command_is_permitted_by_its_name_or_as_what_it_runs() {
    let config = r#"
        [commands.plain]
        argv = ["echo", "ok"]
        [commands.writes]
        argv = ["sh", "-c", "echo ok > /dev/full"]"#;
    let shell = r#"@id("shell") permit(principal, action in Action::"start", resource)
                   when { context.each_command.program == "sh" && context.each_command.arg1 == "-c" };"#;
    let ruled = Ruled::start(&format!("{RULES}{shell}"), config);
    let named = |name: &str| argv(&[name]);
    assert_eq!(ruled.denied("any", named("@plain")).await, None);
    let check = ruled.check("any", named("@writes")).await;
    assert!(!check.allowed && !format!("{check:?}").contains("/dev/full"), "{check:?}");
    let by_name = r#"@id("by-name") permit(principal, action in Action::"start", resource)
                     when { context.named_command == "writes" || context.each_command.program == "true" };"#;
    let ruled = Ruled::start(&format!("{RULES}{by_name}"), config);
    assert_eq!(ruled.denied("any", named("@writes")).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_permits_more_than_it_seems_to_is_a_warning() {
    let more = r#"
        @id("open") permit(principal, action in Action::"start", resource)
        when { context.each_command.program == "a" && context.each_command.arg1 == "b" };
        @id("mixed") permit(principal, action in Action::"start", resource)
        when { context.each_command.program == "a" && context.programs.contains("b") };
        @id("asks") forbid(principal, action in Action::"start", resource)
        when { context.each_command has arg1 && context.each_command.arg1 == "a" };
        @id("named") permit(principal, action in Action::"start", resource)
        when { context.reason == "a" || context has named_command };
        @id("compared") forbid(principal, action, resource)
        when { context has named_command && context.named_command like "a*" };
        @id("timed") permit(principal, action in Action::"start", resource)
        when { context has timeout && context.named_command != "" };"#;
    let ruled = Ruled::start(&format!("{RULES}{more}"), "");
    let log = ruled.agent.log();
    assert!(log.contains("rule open: it looks at arguments, but not at argument_count"), "{log}");
    assert!(log.contains("rule mixed: it mixes context.programs"), "{log}");
    assert!(log.contains("rule asks: `has` is false"), "{log}");
    assert!(log.contains("rule named: `context has named_command` is true of every command"), "{log}");
    assert!(!log.contains("rule timed") && !log.contains("rule compared"), "{log}");
    assert!(!log.contains("rule echo"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_actions_that_is_compared_is_a_warning() {
    let more = r#"
        @id("same") permit(principal, action, resource) when { principal.name == "a" && action == Action::"start" };
        @id("other") forbid(principal, action, resource) unless { Action::"read" != action };
        @id("right") permit(principal, action, resource) when { action in Action::"start" || action == Action::"Execute" };"#;
    let ruled = Ruled::start(&format!("{RULES}{more}"), "");
    let log = ruled.agent.log();
    for (rule, group) in [("same", "start"), ("other", "read")] {
        let warning = format!("rule {rule}: no call has the action \\\"{group}\\\", which is a group");
        assert!(log.contains(&warning), "{warning}: {log}");
    }
    assert!(!log.contains("rule right"), "{log}");
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
    for text in ["echo > log", "echo 2>'log' >>log >|log", "echo &>/dev/null", "echo >&2", "echo <<< log"] {
        assert!(allowed(text).await, "{text}");
    }
    for text in [
        "echo > other",
        "f() { echo; } > other; f",
        "sh -c 'echo > other'",
        "echo &>> other",
        "echo $(< log)",
        "echo > ./log",
        "echo < log",
        "echo <> log",
        "echo > \"$x\"",
        "echo > log*",
    ] {
        assert!(!allowed(text).await, "{text}");
    }
}
