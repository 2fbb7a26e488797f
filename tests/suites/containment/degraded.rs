//! Machines on which cgroups cannot be used.

use telexec_executor::{Command, Executor};
use telexec_tests::{Agent, AgentBuilder, Hierarchy, MARK, marker, processes_with, run, until, within};

/// Each mounted hierarchy, one a line, is read by `while read`.
const MOUNTS: &str = "sed -n 's/^[^ ]* \\([^ ]*\\) cgroup2\\{0,1\\} .*/\\1/p' /proc/self/mounts";

/// An agent in a mount namespace of its own in which this was done before.
fn after(shell_text: &str) -> AgentBuilder {
    Agent::builder().through(["unshare", "--mount", "sh", "-c", &format!("{shell_text}; exec \"$@\""), "sh"])
}

fn read_only() -> AgentBuilder {
    after(&format!("{MOUNTS} | while read -r at; do mount -o remount,bind,ro \"$at\" || exit 9; done"))
}

fn hidden() -> AgentBuilder {
    after("mount -t tmpfs none /sys/fs/cgroup")
}

fn unmounted() -> AgentBuilder {
    after(&format!("{MOUNTS} | sort -r | while read -r at; do umount -l \"$at\" || exit 9; done"))
}

fn is_possible() -> bool {
    let possible = rustix::process::getuid().is_root() && Hierarchy::ALL.iter().any(|h| h.mount().is_some());
    if !possible {
        eprintln!("skipped: no cgroups here, or not root");
    }
    possible
}

#[tokio::test(flavor = "multi_thread")]
async fn without_cgroups_it_says_why_and_goes_on_with_less() {
    if !is_possible() {
        return;
    }
    for (builder, why) in [(read_only(), "Read-only"), (hidden(), "No such file"), (unmounted(), "none is mounted")] {
        let mut agent = builder.start();
        let log = agent.log();
        let is_it = |line: &&str| line.contains("WARN") && line.contains("process-group");
        let warning = log.lines().find(is_it).unwrap_or_else(|| panic!("no warning: {log}"));
        for part in ["process-group", "cgroup-v2", "cgroup-v1", why] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        let connection = agent.connect().await;
        assert_eq!(within(connection.info()).await.unwrap().containment, "process-group");
        let (executor, mark) = (connection.executor(), marker());
        let command = Command::shell("setsid sleep 300 & sleep 300").env(MARK, &mark).build().unwrap();
        let execution = executor.execute(command).await.unwrap();
        until("both run", async || processes_with(&mark).iter().filter(|p| p.name == "sleep").count() == 2).await;
        drop(execution);
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        assert_eq!(run(&executor, Command::shell("exit 3")).await.unwrap().exited.exit_code(), 3);
        assert!(agent.terminate().await.success());
    }
}

#[test]
fn with_less_than_is_required_it_does_not_start() {
    if !is_possible() {
        return;
    }
    for (config, asked) in [
        ("require_containment = \"cgroup\"", "a cgroup"),
        ("containment = \"cgroup-v2\"", "cgroup-v2"),
        ("containment = \"cgroup-v1\"", "cgroup-v1"),
    ] {
        let refused = read_only().config(config).try_start().expect_err("it does not listen");
        assert!(!refused.status.success(), "{refused}");
        for part in [&format!("requires {asked}"), "Read-only"] {
            assert!(refused.log.contains(part), "{part}: {refused}");
        }
    }
}

#[test]
fn who_was_given_no_cgroup_does_not_start_if_one_is_required() {
    if !is_possible() {
        return;
    }
    let builder = Agent::builder().user(telexec_tests::NOBODY).config("require_containment = \"cgroup\"");
    let refused = builder.try_start().expect_err("it does not listen");
    assert!(refused.log.contains("requires a cgroup") && refused.log.contains("denied"), "{refused}");
}
