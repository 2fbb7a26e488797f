//! What checks a policy before it is in use: `telexecd policy`, `--check-config` and `telexec check`.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use telexec_tests::{Agent, directory, program, within};

async fn said(program_name: &str, args: &[&str]) -> (i32, String, String) {
    let mut command = tokio::process::Command::new(program(program_name));
    let output: Output = within(command.args(args).kill_on_drop(true).output()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const FAULTY: &str = r#"@id("one")
permit(principal, action, resource);

permit(principal, action == Action::"Execute", resource)
  when { context.program == "ls" };
@max_timout("1m") permit(principal, action, resource);
permit(principal in Role::"ops", action, resource);
@id("one") permit(principal, action, resource);
permit(principal == ?principal, action, resource);
"#;

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_reported_with_their_lines() {
    let directory = directory();
    let policy = write(directory.path(), "policy.cedar", FAULTY);
    let (code, out, reported) = said("telexecd", &["policy", "check", &policy]).await;
    assert_eq!((code, out.as_str()), (78, ""), "{reported}");
    for (line, fault) in [(5, "program"), (6, "@max_timout"), (8, "one"), (9, "template")] {
        assert!(reported.contains(&format!("{policy}:{line}: ")) && reported.contains(fault), "{line}: {reported}");
    }
    // without a configuration its roles are not known
    assert!(!reported.contains("ops"), "{reported}");

    let config = write(
        directory.path(),
        "telexecd.toml",
        &format!("listen = [\"unix:///x.sock\"]\npolicy = \"{policy}\"\n[roles]\nother = []"),
    );
    for args in [&["--config", &config, "policy", "check"][..], &["--config", &config, "--check-config"]] {
        let (code, _, reported) = said("telexecd", args).await;
        assert!(code == 78 && reported.contains(":7: the configuration has no role \"ops\""), "{reported}");
    }

    // as the agent would, with no roles at all
    let bare = write(directory.path(), "bare.toml", &format!("listen = [\"unix:///x.sock\"]\npolicy = \"{policy}\""));
    let (code, _, reported) = said("telexecd", &["--config", &bare, "policy", "check"]).await;
    assert!(code == 78 && reported.contains(":7: the configuration has no role \"ops\""), "{reported}");

    // nobody's
    for user in ["unix:uid=root", "unix:alice", "unix:uid=01", "unix:uid=*"] {
        let rule = format!("\nforbid(principal == Identity::\"{user}\", action, resource);");
        write(directory.path(), "policy.cedar", &rule);
        let (code, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
        let fault = format!("Identity::\"{user}\" is not an identity: local users are unix:uid=N");
        assert!(code == 78 && reported.contains(&format!("{policy}:2: ")) && reported.contains(&fault), "{reported}");
    }

    let rule = "\npermit(principal, action, resource) when { [\"a\", \"unix:uid=root\"].contains(principal.name) };";
    write(directory.path(), "policy.cedar", rule);
    let (code, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
    let fault = format!("{policy}:2: \"unix:uid=root\" is not an identity");
    assert!(code == 78 && reported.contains(&fault), "{reported}");

    let rule = "permit(principal in Role::\"op\", action, resource);";
    write(directory.path(), "policy.cedar", rule);
    let roles = write(
        directory.path(),
        "roles.toml",
        &format!("listen = [\"unix:///x.sock\"]\npolicy = \"{policy}\"\n[roles]\nops = []"),
    );
    let (code, _, reported) = said("telexecd", &["--config", &roles, "policy", "check"]).await;
    assert!(code == 78 && reported.contains("has no role \"op\" (did you mean \"ops\"?)"), "{reported}");

    // nothing that follows from it
    let rule = "permit(principal, action in [Action::\"strat\", Action::\"nope\"], resource) when { context.programs.isEmpty() };";
    write(directory.path(), "policy.cedar", rule);
    let (code, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
    let fault = format!("telexecd: {policy}:1: unknown action \"strat\" (did you mean \"start\"?), \"nope\"\n");
    assert_eq!((code, reported), (78, fault));

    // each once, whatever actions it is about, and on a line of its own
    let rules = "@id(\"one\") @max_output(\"x\") permit(principal, action in Action::\"start\", resource)\n\
                 when { context.nope == \"a\" && context.nope == \"b\" };";
    write(directory.path(), "policy.cedar", rules);
    let (_, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
    let [annotation, attribute] = &reported.lines().collect::<Vec<_>>()[..] else { panic!("{reported}") };
    assert!(annotation.starts_with(&format!("telexecd: {policy}:1: rule one: @max_output")), "{reported}");
    let actions = "Action::\"Execute\", Action::\"Interact\", Action::\"Run\"";
    let expected = format!("telexecd: {policy}:2: rule one: attribute `nope` in context for {actions} not found");
    assert!(attribute.starts_with(&expected), "{reported}");

    let rule = "forbid(principal, action == Action::\"Run\", resource) when { context.programs == [] };";
    write(directory.path(), "policy.cedar", rule);
    let (code, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
    assert!(code == 78 && reported.contains(": `SET.isEmpty()` asks whether a set is empty\n"), "{reported}");

    write(directory.path(), "policy.cedar", "permit(principal action, resource);");
    let (code, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
    assert!(code == 78 && reported.contains(&format!("{policy}:1: unexpected token")), "{reported}");
    std::fs::write(&policy, [0xff, 0xfe]).unwrap();
    let (code, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
    assert!(code == 78 && reported.contains("cannot read the policy"), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_permit_more_than_they_seem_to_are_warnings() {
    let directory = directory();
    let writes = "context.redirections.writes.isEmpty()";
    let warnings = async |rule: &str| {
        let policy = write(directory.path(), "policy.cedar", rule);
        let (code, out, reported) = said("telexecd", &["policy", "check", &policy]).await;
        assert_eq!((code, reported.as_str()), (0, ""));
        out.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (programs, text) =
        ("it looks at context.programs, but permits others too", "context.command is the whole text");
    for (condition, warning) in [
        ("context.programs.contains(\"id\")", programs),
        ("context.named_command == \"a\" || context.programs.contains(\"id\")", programs),
        ("context.command like \"id*\"", text),
    ] {
        let rule =
            format!("permit(principal, action in Action::\"start\", resource) when {{ ({condition}) && {writes} }};");
        let of_permit = warnings(&rule).await;
        assert!(matches!(&of_permit[..], [one] if one.contains(warning)), "{condition}: {of_permit:?}");
        let of_approved = warnings(&format!("@id(\"a\") @approval(\"1h\") {rule}")).await;
        assert!(
            matches!(&of_approved[..], [one] if one.contains("nobody can approve")),
            "{condition}: {of_approved:?}"
        );
        let of_forbid = warnings(&rule.replace("permit", "forbid")).await;
        assert!(matches!(&of_forbid[..], [one] if one.contains("no rule permits anything")), "{of_forbid:?}");
    }
    let of_groups =
        warnings("permit(principal, action == Action::\"start\", resource) when { \"a\u{202e}\" == \"a\" };").await;
    let [group, bidirectional, nothing] = &of_groups[..] else { panic!("{of_groups:?}") };
    assert!(group.ends_with("which is a group: write `action in Action::\"start\"`"), "{of_groups:?}");
    assert!(bidirectional.contains("BIDI"), "{of_groups:?}");
    assert!(nothing.ends_with("no rule permits anything: every call would be denied"), "{of_groups:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_rules_are_read_or_refused() {
    let directory = directory();
    let nested = |depth| {
        let (open, close) = ("(".repeat(depth), ")".repeat(depth));
        format!("permit(principal, action, resource) when {{ {open}context has login || true{close} }};")
    };
    let chained = |count| {
        let conditions = vec!["context.programs.contains(\"true\")"; count].join(" && ");
        format!("permit(principal, action == Action::\"Execute\", resource) when {{ {conditions} }};")
    };
    for rule in [nested(400), chained(110)] {
        let agent = Agent::builder().policy(&rule).start();
        let (code, _, reported) = said("telexec", &["exec", agent.uri(), "true"]).await;
        assert_eq!((code, reported.as_str()), (0, ""));
    }
    for rule in [nested(100_000), chained(10_000)] {
        let policy = write(directory.path(), "policy.cedar", &rule);
        let (code, _, reported) = said("telexecd", &["policy", "check", &policy]).await;
        let fault = format!("telexecd: {policy}:1: the rule has more than 500 operators and brackets: ");
        assert!(code == 78 && reported.starts_with(&fault), "{reported}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_valid_is_said_to_be() {
    let directory = directory();
    let policy = write(directory.path(), "policy.cedar", "permit(principal, action, resource) when { 1 == 2 };\n");
    let (code, out, reported) = said("telexecd", &["policy", "check", &policy]).await;
    assert_eq!((code, reported.as_str()), (0, ""));
    assert!(out.starts_with("warning: ") && out.contains("impossible"), "{out}");
    assert!(out.contains(&format!("{policy}: no rule permits anything")), "{out}");
    assert!(out.contains(&format!("{policy}: valid, 1 rule, SHA-256 ")), "{out}");
    assert!(out.ends_with("\nchecked: syntax, schema, annotations\n"), "{out}");

    let roles =
        "permit(principal in Role::\"ops\", action, resource);\nforbid(principal in Role::\"dev\", action, resource);";
    write(directory.path(), "policy.cedar", roles);
    let (code, out, _) = said("telexecd", &["policy", "check", &policy]).await;
    assert!(code == 0 && out.contains("\nnot checked: whether [roles] has \"dev\", \"ops\";"), "{out}");
    let config = "listen = [\"unix:///x.sock\"]\n[roles]\nops = [\"a\"]\ndev = []";
    let config = write(directory.path(), "telexecd.toml", config);
    let (code, out, _) = said("telexecd", &["--config", &config, "policy", "check", &policy]).await;
    assert!(
        code == 0
            && out
                .ends_with(&format!("\nchecked: syntax, schema, annotations, roles and named commands in {config}\n")),
        "{out}"
    );
    let approval = "@id(\"a\") @approval(\"5m\") permit(principal, action in Action::\"start\", resource);\n";
    write(directory.path(), "policy.cedar", approval);
    let (code, out, _) = said("telexecd", &["policy", "check", &policy]).await;
    let warning = format!("warning: {policy}:1: rule a: nobody can approve what it permits");
    assert!(code == 0 && out.starts_with(&warning), "{out}");
    let reviewed = format!("{approval}permit(principal, action in Action::\"review\", resource);\n");
    write(directory.path(), "policy.cedar", &reviewed);
    let (code, out, _) = said("telexecd", &["policy", "check", &policy]).await;
    assert!(code == 0 && !out.contains("warning"), "{out}");
    for (conditions, is_open) in [
        ("", true),
        ("&& context.redirections.reads.isEmpty()", true),
        ("&& context.shell == \"bash\"", true),
        ("&& context.shell == \"\"", false),
        ("&& context.redirections.writes.isEmpty()", false),
        ("&& [\"/tmp/x\"].containsAll(context.redirections.writes)", false),
        ("&& context.each_command.program == \"ls\"", false),
    ] {
        let rule = format!(
            "@id(\"a\") permit(principal, action in Action::\"start\", resource)\n\
             when {{ [\"ls\"].containsAll(context.programs) {conditions} }};"
        );
        write(directory.path(), "policy.cedar", &rule);
        let (code, out, _) = said("telexecd", &["policy", "check", &policy]).await;
        let warning = format!("warning: {policy}:1: rule a: it lists programs, but does not look at");
        assert_eq!((code, out.contains(&warning)), (0, is_open), "{conditions}: {out}");
    }
    write(directory.path(), "policy.cedar", "// nothing yet\n");
    let (code, out, _) = said("telexecd", &["policy", "check", &policy]).await;
    assert!(code == 0 && out.starts_with(&format!("warning: {policy}: no rule permits anything")), "{out}");
    let args = ["--listen", "unix:///x.sock", "--policy", &policy, "--check-config"];
    let (code, _, reported) = said("telexecd", &args).await;
    let warning = format!("telexecd: warning: {policy}: no rule permits anything: every call would be denied\n");
    assert!(code == 0 && reported.contains(&warning), "{reported}");

    let (code, schema, _) = said("telexecd", &["policy", "schema"]).await;
    assert!(code == 0 && schema.contains("action Execute"), "{schema}");
    let (code, _, reported) = said("telexecd", &["policy", "check"]).await;
    assert!(code == 78 && reported.contains("no policy given"), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn telexec_check_asks_and_runs_nothing() {
    let policy = r#"@id("ls") permit(principal, action == Action::"Execute", resource) when { context.programs == ["ls"] };
                    permit(principal, action in Action::"read", resource);"#;
    let agent = Agent::builder().policy(policy).start();
    let check = async |args: &[&str]| said("telexec", &[&["check", agent.uri()], args].concat()).await;
    let (code, out, reported) = check(&["-c", "ls -l"]).await;
    assert_eq!((code, reported.as_str()), (0, ""));
    let user = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let user = user.trim_end();
    let expected = format!(
        "allowed:      yes\nreason:       the policy permits it: ls\nrecorded:     no\nuser:         {user}\n\
         programs:     ls\ntool pattern: ls **\nuses sudo:    no\n"
    );
    assert_eq!(out, expected);
    let (code, out, reported) = check(&["--", "sudo", "ls"]).await;
    assert_eq!((code, reported.as_str()), (125, ""));
    let uid = rustix::process::getuid().as_raw();
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let expected = format!(
        "allowed:      no\n\
         reason:       no rule of the policy permits Execute on {hostname} for unix:uid={uid} (no role); the closest rule is ls\n\
         not met:      context.programs == [\"ls\"] (programs is [\"ls\", \"sudo\"])\n\
         programs:     sudo, ls\n\
         uses sudo:    yes\n"
    );
    assert_eq!(out, expected);
    let (_, out, _) = check(&["-u", "nobdy", "-c", "ls"]).await;
    assert!(out.contains("\nuser:         not known: the agent has no user \"nobdy\"\n"), "{out}");
    let (_, out, _) = check(&["-c", "$x"]).await;
    assert!(out.ends_with("uses sudo:    not known\n"), "{out}");
    let (_, out, _) = check(&["-c", "sudo $x"]).await;
    assert!(out.ends_with("uses sudo:    yes\n"), "{out}");
    let (code, out, _) = check(&["--json", "-c", "rm x"]).await;
    let reported: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &reported["allowed"], &reported["programs"]), (125, &json!(false), &json!(["rm"])));
    assert_eq!(reported["understood"], true);
    assert_eq!(reported["missing"], json!(["context.programs == [\"ls\"] (programs is [\"rm\"])"]));
    let (code, _, reported) = check(&["--as", "anna", "-c", "ls"]).await;
    assert!(code == 125 && reported.contains("permits CheckAs anna on "), "{reported}");
    let (code, _, reported) = check(&["-c", ""]).await;
    assert!(code == 125 && reported.contains("the text of -c is empty"), "{reported}");

    let closed = Agent::builder().policy("").start();
    let (code, _, reported) = said("telexec", &["check", closed.uri(), "-c", "ls"]).await;
    assert!(code == 125 && reported.contains("CheckCommand"), "{reported}");
    let (code, _, reported) = said("telexec", &["exec", closed.uri(), "-c", "ls"]).await;
    assert!(code == 125 && reported.contains("no rule of the policy permits Execute"), "{reported}");
    let all = Agent::builder().policy("@id(\"all\") permit(principal, action, resource);").start();
    let (code, out, _) = said("telexec", &["check", "--as", "anna", all.uri(), "-c", "ls"]).await;
    assert!(code == 0 && out.starts_with("identity:     anna\nallowed:      yes\n"), "{out}");
    let (code, _, reported) = said("telexec", &["check", "--as", "", all.uri(), "-c", "ls"]).await;
    assert!(code == 2 && reported.contains("a value is required for '--as <IDENTITY>'"), "{reported}");
    let (code, _, reported) = said("telexec", &["check", "--as", "unix:uid=root", all.uri(), "-c", "ls"]).await;
    assert!(
        code == 125 && reported.contains("--as \"unix:uid=root\" is not an identity: local users are unix:uid=N"),
        "{reported}"
    );
    let (code, out, _) = said("telexec", &["check", "local", "-c", "ls"]).await;
    assert!(code == 0 && out.contains("no policy"), "{out}");
}
