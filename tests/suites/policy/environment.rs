//! The environment of commands: a variable that no rule names is denied, wherever it is set.

use telexec_executor::Command;
use telexec_tests::{lines, program, within};

use super::{Ruled, sh};

/// Programs that run, load or write what a variable says.
const LIST: &str = r#"
@id("list")
permit(principal, action, resource)
when { ["bash", "env", "export", "find", "git", "perl", "python3", "sh", "tar", "true"].containsAll(context.programs) };
@id("app")
@environment("APP_ENV DEPLOY_*")
permit(principal, action in Action::"start", resource) when { context.programs == ["true"] };
permit(principal, action == Action::"CheckCommand", resource);
"#;

const DANGEROUS: [&str; 11] = [
    "PERL5OPT",
    "PYTHONWARNINGS",
    "BROWSER",
    "PYTHONPATH",
    "TAR_OPTIONS",
    "LD_PRELOAD",
    "BASH_ENV",
    "PATH",
    "GIT_SSH_COMMAND",
    "HOME",
    "LANGUAGE",
];

fn policy() -> String {
    LIST.replace("permit(principal, action, resource)", "permit(principal, action in Action::\"start\", resource)")
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_the_request_are_denied_unless_they_are_named() {
    let ruled = Ruled::start(&policy(), "");
    for name in DANGEROUS {
        for command in [Command::argv(["perl", "-e", "1"]), sh("tar --version")] {
            let command = command.env(name, "x").env("LC_ALL", "C");
            assert_eq!(ruled.denied("any", command.clone()).await.as_deref(), Some("default"), "{name}");
            let check = ruled.check("any", command).await;
            // a variable that decides what runs makes the text not understood too
            let named = check.missing == [format!("@environment (the command sets {name})")];
            let unknown = check.missing.first().is_some_and(|missing| missing.contains("cannot be determined"));
            assert!(!check.allowed && (named || unknown), "{name}: {check:?}");
        }
    }
    let run = |names: &[&str]| names.iter().fold(Command::argv(["true"]), |command, name| command.env(*name, "1"));
    for names in [
        &[][..],
        &["LANG", "LC_TIME", "TERM", "TZ", "COLUMNS", "LINES", "NO_COLOR", "TRACEPARENT", "TRACESTATE"],
        &["APP_ENV", "DEPLOY_TO", "TZ"],
    ] {
        assert_eq!(ruled.denied("any", run(names)).await, None, "{names:?}");
    }
    assert_eq!(ruled.denied("any", run(&["APP_ENV", "PERL5OPT"])).await.as_deref(), Some("default"));
    let check = ruled.check("any", run(&["APP_ENV", "PERL5OPT", "X"])).await;
    assert!(check.reason.ends_with("the closest rule is app"), "{check:?}");
    assert_eq!(check.missing, [r#"@environment("APP_ENV DEPLOY_*") (the command sets PERL5OPT, X)"#]);
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_the_text_are_denied_unless_they_are_named() {
    let ruled = Ruled::start(&policy(), "[environment]\nPERL5LIB = \"/usr/share/perl5\"");
    let ran = ruled.agent.directory().join("ran");
    let open = format!("-M'POSIX();open(F,q(>{}))'", ran.display());
    for (text, name) in [
        (format!("PERL5OPT={open} perl -e 1"), "PERL5OPT"),
        (format!("export PERL5OPT={open}; perl -e 1"), "PERL5OPT"),
        (format!("PERL5OPT={open}; export PERL5OPT; perl -e 1"), "PERL5OPT"),
        ("export PYTHONPATH=/tmp; python3 y".to_owned(), "PYTHONPATH"),
        ("env TAR_OPTIONS=--to-command=id tar x".to_owned(), "TAR_OPTIONS"),
        ("sh -c 'GIT_SSH_COMMAND=id git fetch'".to_owned(), "GIT_SSH_COMMAND"),
        ("true $(BROWSER=id python3 y)".to_owned(), "BROWSER"),
        ("find . -exec env PERL5OPT=x perl y \\;".to_owned(), "PERL5OPT"),
        // programs have it from the start
        ("PERL5LIB=/tmp; perl y".to_owned(), "PERL5LIB"),
        ("for PERL5LIB in /tmp; do perl y; done".to_owned(), "PERL5LIB"),
    ] {
        assert_eq!(ruled.denied("any", sh(&text)).await.as_deref(), Some("default"), "{text}");
        let check = ruled.check("any", sh(&text)).await;
        assert_eq!(check.missing, [format!("@environment (the command sets {name})")], "{text}");
    }
    assert!(lines(&ran).is_empty());
    // what stays in the shell, and what is named
    for text in ["x=1; for y in 1; do true $x $y; done", "TZ=UTC LC_ALL=C perl -e 1", "APP_ENV=1 true"] {
        assert_eq!(ruled.denied("any", sh(text)).await, None, "{text}");
    }
    // of a login shell it is not known what it has exported
    assert_eq!(ruled.denied("any", sh("x=1; true $x").login(true)).await.as_deref(), Some("default"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_may_name_any_and_others_may_still_forbid() {
    let policy = r#"
        @environment("*") permit(principal, action, resource);
        @id("no-preload") forbid(principal, action in Action::"start", resource)
          when { context.environment.contains("LD_PRELOAD") };"#;
    let ruled = Ruled::start(policy, "");
    assert_eq!(ruled.denied("any", sh("PERL5OPT= perl -e 1").env("ANY", "1")).await, None);
    for command in [Command::argv(["true"]).env("LD_PRELOAD", "/x"), sh("LD_PRELOAD=/x true")] {
        assert_eq!(ruled.denied("any", command).await.as_deref(), Some("no-preload"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn telexec_check_names_the_variable() {
    let ruled = Ruled::start_with(&policy(), "", |builder| builder.listen("tcp://127.0.0.1:0"));
    let pair = ruled.pair("any");
    let mut command = tokio::process::Command::new(program("telexec"));
    command.args(["check", "--cert"]).arg(&pair.cert).arg("--key").arg(&pair.key);
    command.arg("--ca").arg(ruled.certs.ca.cert()).args(["--server-name", "localhost"]);
    command.args(["-e", "PERL5OPT=-Mx", ruled.agent.address(), "--", "perl", "x"]);
    let output = within(command.kill_on_drop(true).output()).await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("\nnot met:      @environment (the command sets PERL5OPT)\n"), "{said}");
}
