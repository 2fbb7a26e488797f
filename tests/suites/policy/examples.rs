//! The policies in `deploy/policy`, as they are shipped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use telexec_executor::{
    Command, CommandBuilder, Executor, ExecutorError, FileRange, FileTarget, Files, ResourceLimits, TerminalSize,
};
use telexec_tests::{Agent, Certs, Leaf, directory, program, run, within};

use super::{Ruled, sh};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy/policy")
}

/// An agent with an example, and with the roles and labels that its comment shows, for names that have no slashes.
fn agent(name: &str) -> Ruled {
    let policy = std::fs::read_to_string(examples().join(name)).unwrap();
    let config =
        policy.lines().filter_map(|line| line.strip_prefix("//     ")).filter(|line| !line.starts_with("policy"));
    let config = config.collect::<Vec<_>>().join("\n").replace("spiffe://example.org/", "").replace('/', "-");
    let log = tempfile::tempdir().unwrap();
    let config = config.replace("-var-log-telexec-", &format!("{}/", log.path().display()));
    Ruled { _log: Some(log), ..Ruled::start(&policy, &config) }
}

async fn allowed(ruled: &Ruled, name: &str, command: CommandBuilder) -> bool {
    // asking is no part of every role
    ruled.denied(name, command).await.is_none()
}

/// Whether the policy lets this caller read a file, which need not exist.
async fn reads(ruled: &Ruled, name: &str, path: &str, user: Option<&str>) -> bool {
    let file = FileTarget { user: user.map(str::to_owned), ..FileTarget::new(path) };
    match within(ruled.to(name).await.files().read(file, FileRange::default())).await {
        Ok(_) | Err(ExecutorError::File(_)) => true,
        Err(ExecutorError::Denied { .. }) => false,
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_is_tried_here() {
    let mut names: Vec<_> =
        std::fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "approvals.cedar",
            "break-glass.cedar",
            "named-commands.cedar",
            "read-only-operators.cedar",
            "sandbox-orchestrator.cedar",
            "web-operators.cedar"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_look_and_administrators_do() {
    let ruled = agent("read-only-operators.cedar");
    let nobody = |text: &str| sh(text).user("nobody");
    assert!(allowed(&ruled, "admin-anna", sh("true; rm -f /nothing")).await);
    assert!(allowed(&ruled, "admin-anna", sh("true").env("ANY", "1")).await);
    assert!(
        allowed(&ruled, "ops-bob", nobody("ps aux 2> /dev/null | grep root | LC_ALL=C wc -l").env("TZ", "UTC")).await
    );
    for command in [
        nobody("rm -f /nothing"),
        nobody("ps aux | xargs rm"),
        nobody("sudo ls"),
        nobody("find / -delete"),
        nobody("ls $(rm x)"),
        nobody("ls > /tmp/list"),
        nobody("ls").env("LD_PRELOAD", "/tmp/x.so"),
        nobody("ls").env("ANY", "1"),
        nobody("GREP_OPTIONS=-r grep x"),
        nobody("ls").login(true),
        nobody("ls").shell("/tmp/sh"),
        nobody("ls").yield_after(Duration::ZERO),
        sh("ls"),
    ] {
        assert!(!allowed(&ruled, "ops-bob", command.clone()).await, "{command:?}");
    }
    assert!(!allowed(&ruled, "dev-eve", nobody("ls")).await);
    for (name, path, permitted) in [
        ("admin-anna", "/etc/passwd", true),
        ("ops-bob", "/var/log/telexec-none", false),
        ("ops-bob", "/var/log/none", true),
        ("ops-bob", "/var/log/../../etc/passwd", false),
        ("ops-bob", "/etc/passwd", false),
        ("dev-eve", "/var/log/none", false),
    ] {
        assert_eq!(reads(&ruled, name, path, None).await, permitted, "{name} {path}");
    }
    let removed = within(ruled.to("ops-bob").await.files().remove(FileTarget::new("/var/log/none"), false)).await;
    assert!(matches!(removed, Err(ExecutorError::Denied { .. })), "{removed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_look_after_their_services() {
    let ruled = agent("web-operators.cedar");
    let check = async |command: CommandBuilder| ruled.check("ops-bob", command).await.allowed;
    for text in [
        "systemctl restart web-1",
        "systemctl status web-1 2>/dev/null",
        "for n in 1 2; do systemctl status web-1; done | grep 'Active: active' | head -n 1",
        "journalctl -u web-1 --since '1 hour ago' | tail -n 20",
    ] {
        assert!(check(sh(text)).await, "{text}");
    }
    assert!(check(Command::argv(["systemctl", "reload", "web-1"])).await);
    for text in [
        "systemctl restart db",
        "systemctl restart web-1 db",
        "systemctl restart web-1 --host=other",
        "systemctl stop web-1",
        "systemctl restart web-1; rm -r /srv",
        "systemctl restart web-1 > /etc/passwd",
        "systemctl restart \"web-$(id)\"",
        "x='1 db'; systemctl restart web-$x",
        "journalctl -u web-1 --file /etc/shadow",
        "grep root /etc/shadow",
        "grep -f/etc/shadow",
        "tail -n 5 /etc/shadow",
        "cat < /etc/shadow",
        "PAGER=x systemctl status web-1",
        "sudo systemctl restart web-1",
    ] {
        assert!(!check(sh(text)).await, "{text}");
    }
    for plain in [
        sh("systemctl restart web-1").login(true),
        sh("systemctl status web-1").terminal(TerminalSize::new(80, 24).unwrap()),
        sh("systemctl status web-1").user("nobody"),
    ] {
        assert!(!check(plain.clone()).await, "{plain:?}");
    }
    assert!(!check(sh("systemctl restart web-1").env("SYSTEMD_PAGER", "x")).await);
    assert!(ruled.check("admin-anna", sh("rm -r /nothing > /dev/null")).await.allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orchestrator_dispatches_to_sandboxes_within_limits() {
    let ruled = agent("sandbox-orchestrator.cedar");
    let limits = ResourceLimits { memory_bytes: Some(64 << 20), max_processes: Some(50), cpus: None };
    // whether a limit can be held depends on the machine, so it is only asked
    let check = async |command: CommandBuilder| ruled.check("orchestrator", command).await.reason;
    assert_eq!(check(sh("make").user("nobody").limits(limits)).await, "the policy permits it: orchestrator");
    assert!(check(sh("make").user("nobody")).await.ends_with("limits-are-given"));
    assert!(check(sh("make").limits(limits)).await.ends_with("no-root"));
    assert!(check(sh("make").user("0").limits(limits)).await.ends_with("no-root"));
    assert!(check(sh("sudo make").user("nobody").limits(limits)).await.ends_with("no-root"));
    assert!(!allowed(&ruled, "monitoring-x", sh("true")).await);
    ruled.to("monitoring-x").await.info().await.unwrap();

    // the same policy on a machine of another kind
    let policy = std::fs::read_to_string(examples().join("sandbox-orchestrator.cedar")).unwrap();
    let roles = format!("[roles]\norchestrator = [\"unix:uid={}\"]\nhealth = []", rustix::process::getuid().as_raw());
    let other = Agent::builder().policy(policy).config(roles).start();
    let refused = other.connect().await.check(&sh("make").user("nobody").limits(limits).build().unwrap()).await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_on_call_says_why() {
    let ruled = agent("break-glass.cedar");
    assert!(allowed(&ruled, "on-call-anna", sh("rm -f /nothing").reason("INC-4711: disk full")).await);
    for reason in ["", "INC-4711", "because: I can"] {
        assert!(!allowed(&ruled, "on-call-anna", sh("true").reason(reason)).await, "{reason}");
    }
    let deploy = |argv: &[&str]| Command::argv(argv.iter().copied());
    let check = async |command: CommandBuilder| ruled.check("ci-deploy", command).await.allowed;
    assert!(check(deploy(&["/usr/local/bin/deploy", "web"])).await);
    for name in ["PERL5OPT", "PYTHONWARNINGS", "BROWSER", "PYTHONPATH", "TAR_OPTIONS", "GIT_SSH_COMMAND", "BASH_ENV"] {
        assert!(!check(deploy(&["/usr/local/bin/deploy", "web"]).env(name, "x")).await, "{name}");
    }
    for command in [
        deploy(&["/usr/local/bin/deploy"]),
        deploy(&["/usr/local/bin/deploy", "db"]),
        deploy(&["/usr/local/bin/deploy", "web", "--force"]),
        deploy(&["/usr/local/bin/deploy", "web"]).env("LD_PRELOAD", "/tmp/x.so"),
        deploy(&["deploy", "web"]),
        deploy(&["web", "/usr/local/bin/deploy"]),
        deploy(&["/usr/local/bin/deploy", "web", "web"]),
        sh("/usr/local/bin/deploy web"),
        sh("true").reason("INC-1: not on call"),
    ] {
        assert!(!check(command.clone()).await, "{command:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_on_call_needs_a_lead() {
    let ruled = agent("approvals.cedar");
    let asked = || sh("echo done").reason("INC-4711: disk full");
    let denied = run(&ruled.to("on-call-anna").await.executor(), asked()).await;
    let Err(ExecutorError::ApprovalRequired { approval_id: id, .. }) = denied else { panic!("{denied:?}") };
    for name in ["on-call-anna", "on-call-otto", "ops-olga"] {
        let refused = within(ruled.to(name).await.approvals().approve(&id, "")).await;
        assert!(matches!(refused, Err(ExecutorError::Denied { .. })), "{name}: {refused:?}");
    }
    within(ruled.to("lead-bob").await.approvals().approve(&id, "")).await.unwrap();
    assert!(allowed(&ruled, "on-call-anna", asked()).await);
    let named = |words: &[&str]| Command::argv(words.iter().copied());
    assert!(ruled.check("ops-olga", named(&["@restart", "web"])).await.allowed);
    for (name, command) in [
        ("ops-olga", asked()),
        ("lead-bob", asked()),
        ("on-call-anna", sh("true").reason("because")),
        ("ops-olga", named(&["systemctl", "restart", "web"])),
    ] {
        let check = ruled.check(name, command).await;
        assert!(!check.allowed && !check.needs_approval, "{name}: {check:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_run_what_is_defined() {
    let ruled = agent("named-commands.cedar");
    let named = |words: &[&str]| Command::argv(words.iter().copied());
    let deploy = || named(&["@deploy", "v1.2"]);
    let check = async |name: &str, command: CommandBuilder| ruled.check(name, command).await.allowed;
    assert!(check("ops-bob", named(&["@restart-web", "web-3"])).await);
    assert!(check("ops-bob", deploy().reason("INC-4711")).await);
    assert!(check("admin-anna", deploy()).await);
    assert!(check("admin-anna", sh("true").env("ANY", "1")).await);
    for command in [
        deploy(),
        named(&["/usr/local/bin/deploy", "--version", "v1.2"]).user("nobody").reason("INC-4711"),
        named(&["systemctl", "restart", "web-3"]),
        sh("@restart-web web-3"),
    ] {
        assert!(!check("ops-bob", command.clone()).await, "{command:?}");
    }
}

/// `telexec info`, `ps` and `check`, which the comments and the guides tell them to use.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_run_something_may_look_too() {
    for (example, names) in [
        ("read-only-operators.cedar", &["admin-anna", "ops-bob"][..]),
        ("sandbox-orchestrator.cedar", &["orchestrator"]),
        ("approvals.cedar", &["ops-olga", "on-call-anna", "lead-bob"]),
        ("break-glass.cedar", &["ci-deploy", "on-call-anna"]),
        ("named-commands.cedar", &["admin-anna", "ops-bob"]),
    ] {
        let ruled = agent(example);
        for name in names {
            let agent = ruled.to(name).await;
            agent.info().await.unwrap();
            agent.executor().list(Default::default()).await.unwrap();
            agent.check(&sh("true").build().unwrap()).await.unwrap();
        }
    }
    let ruled = agent("read-only-operators.cedar");
    let admin = ruled.to("admin-anna").await;
    assert!(!admin.check_as(&sh("rm").user("nobody").build().unwrap(), "ops-bob").await.unwrap().allowed);
}

/// The blocks in this language of README's section on authorization.
fn readme(language: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let (_, section) = readme.split_once("\n## Authorization\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let fence = format!("\n```{language}\n");
    let blocks = section.split(fence.as_str()).skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0).collect()
}

/// As README has it, by the caller that it has made a certificate for.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_of_readme_permits_its_commands() {
    let (certs, directory) = (Certs::new(), directory());
    let config = readme("toml");
    let write = |name: &str, text: &[u8]| std::fs::write(directory.path().join(name), text).unwrap();
    write("telexecd.toml", config.as_bytes());
    write("policy.cedar", readme("cedar").as_bytes());
    let (_, roles) = config.split_once("[roles]").unwrap();
    let agent = Agent::builder().mtls(&certs).policy(readme("cedar")).config(format!("[roles]{roles}")).start();
    let (_, port) = agent.address().rsplit_once(':').unwrap();
    write("config.toml", format!("[targets.web1]\naddress = \"localhost:{port}\"\n").as_bytes());
    let alice = certs.ca.issue(Leaf::client("alice"));
    let path = format!("{}:{}", program("telexec").parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut asked = Vec::new();
    for line in readme("sh").lines() {
        // it is this one that listens
        if line == "./telexecd --config telexecd.toml" {
            continue;
        }
        // nothing is done to this machine
        let text = line.replace("telexec exec ", "telexec check ").replace("./telexecd ", "telexecd ");
        let mut shell = tokio::process::Command::new("sh");
        shell.arg("-c").arg(text).env("PATH", &path).env("TELEXEC_CONFIG", "config.toml").current_dir(directory.path());
        shell.env("TELEXEC_CERT", &alice.cert).env("TELEXEC_KEY", &alice.key).env("TELEXEC_CA", certs.ca.cert());
        let output = within(shell.kill_on_drop(true).output()).await.unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && !said.contains("warning"), "{line}: {said}");
        asked.extend(line.split_whitespace().nth(1).map(str::to_owned));
    }
    assert!(["check", "exec", "info", "ps"].iter().all(|word| asked.iter().any(|asked| asked == word)), "{asked:?}");
}
