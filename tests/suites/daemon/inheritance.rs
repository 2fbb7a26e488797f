//! What the agent was started with is not what its commands start with.

use std::os::unix::fs::MetadataExt;

use telexec_client::RemoteExecutor;
use telexec_executor::{Command, ExecutorError, SpawnStage};
use telexec_tests::{Agent, NOBODY, is_root, run};

/// An agent that was started by someone careless: a signal blocked, one ignored, the umask and open files odd.
fn careless() -> Agent {
    let signals = ["env", "--block-signal=TERM", "--ignore-signal=HUP"];
    let files = "umask 077; exec 9</ 8>>/dev/null; exec <&- >&-";
    Agent::builder().env("SECRET", "of the agent").through(signals).after(files).start()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_start_clean_whatever_the_agent_was_started_with() {
    let mut agent = careless();
    let executor = agent.executor().await;
    let reported = async |argv: &[&str]| run(&executor, Command::argv(argv.to_vec())).await.unwrap().text().to_owned();
    assert_eq!(reported(&["ls", "/proc/self/fd"]).await, "0\n1\n2\n3\n", "3 is the directory that ls reads");
    assert_eq!(reported(&["readlink", "/proc/self/fd/0"]).await, "/dev/null\n");
    assert_eq!(reported(&["sh", "-c", "umask"]).await, "0022\n");
    let status = reported(&["cat", "/proc/self/status"]).await;
    for set in ["SigBlk", "SigIgn"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(!reported(&["env"]).await.contains("SECRET"));
    // it does not hear SIGTERM
    agent.kill();
}

/// What a shell and its programs find around them.
async fn around(executor: &RemoteExecutor, text: &str) -> String {
    let outcome = run(executor, Command::shell(text)).await.unwrap();
    assert_eq!((outcome.exited.exit_code(), &outcome.stderr[..]), (0, &b""[..]), "{text}");
    outcome.text().to_owned()
}

/// Root may raise limits and lower OOM scores; but not in every container or VM. See CAP_SYS_RESOURCE, capabilities(7).
fn may_raise() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may = u64::from_str_radix(effective, 16).unwrap() & (1 << 24) != 0;
    if !may {
        eprintln!("partly skipped: this user may not raise limits");
    }
    may
}

/// Each of them through another program that becomes the agent, as far as this machine's user may.
#[tokio::test(flavor = "multi_thread")]
async fn commands_have_default_priorities_whatever_the_agent_has() {
    let priorities = "nice; cat /proc/self/oom_score_adj; chrt -p $$ | sed 's/.*: //'; ionice -p $$";
    if !is_root() {
        return;
    }
    let default = "0\n0\nSCHED_OTHER\n0\nnone: prio 0\n";
    for (through, own) in [
        (&["nice", "-n", "5"][..], "5\n0\nSCHED_OTHER\n0\n"),
        (&["nice", "-n", "-5"], "-5\n0\nSCHED_OTHER\n0\n"),
        (&["choom", "-n", "500", "--"], "0\n500\nSCHED_OTHER\n0\n"),
        (&["choom", "-n", "-500", "--"], "0\n-500\nSCHED_OTHER\n0\n"),
        (&["chrt", "--batch", "0"], "0\n0\nSCHED_BATCH\n0\n"),
        (&["chrt", "--idle", "0"], "0\n0\nSCHED_IDLE\n0\n"),
        (&["chrt", "--fifo", "3"], "0\n0\nSCHED_FIFO\n3\n"),
        (&["ionice", "-c", "3"], "0\n0\nSCHED_OTHER\n0\nidle\n"),
        (&["ionice", "-c", "1", "-n", "2"], "0\n0\nSCHED_OTHER\n0\nrealtime: prio 2\n"),
    ] {
        if through.contains(&"-500") && !may_raise() {
            continue;
        }
        let agent = Agent::builder().through(through.iter().copied()).start();
        let executor = agent.executor().await;
        assert_eq!(around(&executor, priorities).await, default, "{through:?}");
        assert_eq!(
            run(&executor, Command::shell(priorities).user("nobody")).await.unwrap().text(),
            default,
            "{through:?}"
        );
        // and the agent keeps its own: that of its first thread, which makes no processes
        let of_agent = "cut -d' ' -f19 /proc/$PPID/stat; cat /proc/$PPID/oom_score_adj; chrt -p $PPID | sed 's/.*: //';
            ionice -p $PPID";
        assert!(around(&executor, of_agent).await.starts_with(own), "{through:?}");
    }
}

/// The line of a process's limits that begins so: soft and hard.
fn limit(limits: &str, name: &str) -> (String, String) {
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_default_limits_whatever_the_agent_has() {
    if !is_root() {
        return;
    }
    let kind = if may_raise() { "" } else { "-S" };
    let odd = "n 300,c unlimited,u 500,s 16384,l 16,t 100000,f 1000000,v 64000000,i 200,q 9999,x 1234".split(',');
    let odd = odd.map(|limit| format!("ulimit {kind} -{limit}")).collect::<Vec<_>>().join("; ");
    let agent = Agent::builder().through(["bash", "-c", &format!("{odd}; exec \"$@\""), "bash"]).start();
    let executor = agent.executor().await;
    let own = around(&executor, "cat /proc/$PPID/limits").await;
    assert_eq!(limit(&own, "Max processes").0, "500");
    for user in ["root", "nobody"] {
        let limits = run(&executor, Command::argv(["cat", "/proc/self/limits"]).user(user)).await.unwrap();
        let limits = limits.text();
        let soft = |name| limit(limits, name).0;
        let hard = |name| limit(limits, name).1;
        assert_eq!((soft("Max open files"), soft("Max core file size")), ("1024".into(), "0".into()), "{user}");
        assert!(hard("Max open files").parse::<u64>().unwrap() >= 4096, "{limits}");
        assert_eq!(soft("Max stack size"), (8 * 1024 * 1024).to_string());
        assert_eq!(limit(limits, "Max locked memory"), ("8388608".into(), "8388608".into()));
        assert!(soft("Max processes").parse::<u64>().unwrap() > 500, "{limits}");
        assert!(soft("Max pending signals").parse::<u64>().unwrap() > 200, "{limits}");
        assert_eq!(limit(limits, "Max msgqueue size"), ("819200".into(), "819200".into()));
        for (name, unlimited) in [
            ("Max cpu time", true),
            ("Max file size", true),
            ("Max address space", true),
            ("Max file locks", true),
            ("Max nice priority", false),
            ("Max realtime priority", false),
        ] {
            let value = if unlimited { "unlimited" } else { "0" };
            assert_eq!(limit(limits, name), (value.into(), value.into()), "{name}, {user}");
        }
        assert_eq!((hard("Max core file size"), hard("Max stack size")), ("unlimited".into(), "unlimited".into()));
    }
}

/// What it may not raise stays as it is; what it may, it has.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_may_not_raise_limits_runs_commands_with_those_that_it_has() {
    if !is_root() {
        return;
    }
    let lowered = "ulimit -n 300; ulimit -Hc 1000; ulimit -Sc 10; ulimit -s 4096; ulimit -l 16; ulimit -q 99";
    let lowered = format!("umask 077; {lowered}; ulimit -St 1000; exec nice -n 5 \"$@\"");
    let through = ["choom", "-n", "500", "--", "bash", "-c", &lowered, "bash"];
    let agent = Agent::builder().through(through).user(NOBODY).start();
    let executor = agent.executor().await;
    let limits = around(&executor, "cat /proc/self/limits").await;
    for (name, soft, hard) in [
        ("Max open files", "300", "300"),
        ("Max core file size", "0", "1024000"),
        ("Max stack size", "4194304", "4194304"),
        ("Max locked memory", "16384", "16384"),
        ("Max msgqueue size", "99", "99"),
        ("Max cpu time", "unlimited", "unlimited"),
    ] {
        assert_eq!(limit(&limits, name), (soft.into(), hard.into()), "{name}");
    }
    assert_eq!(around(&executor, "umask; nice").await, "0022\n5\n");
    // it is the least that who had the privilege set
    let score = if may_raise() { "500" } else { "0" };
    // the agent sets it when the command runs
    let waits = format!("until grep -qx {score} /proc/$$/oom_score_adj; do sleep 0.01; done; echo {score}");
    assert_eq!(around(&executor, &waits).await, format!("{score}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_none_of_the_privileges_that_were_given_to_the_agent_alone() {
    if !is_root() {
        return;
    }
    let given = ["setpriv", "--inh-caps", "+net_admin,+sys_nice", "--ambient-caps", "+net_admin,+sys_nice"];
    let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", "+net_admin"];
    let nobody = [&nobody[..], &["--ambient-caps", "+net_admin"]].concat();
    let place = |directory: &tempfile::TempDir| format!("unix://{}/agent.sock", directory.path().display());
    for (through, is_root) in [(&given[..], true), (&nobody[..], false)] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let state = directory.path().join("state").to_str().unwrap().to_owned();
        let agent = Agent::builder().through(through.iter().copied()).args(["--state-dir", &state]);
        let agent = agent.listen(&place(&directory)).start();
        let executor = agent.executor().await;
        let sets = around(&executor, "grep -E '^Cap(Amb|Prm|Eff):' /proc/$PPID/status /proc/self/status").await;
        let set = |of: &str, name: &str| {
            let line = sets.lines().find(|line| line.contains(of) && line.contains(name)).unwrap().to_owned();
            u64::from_str_radix(line.split_whitespace().last().unwrap(), 16).unwrap()
        };
        let pid = agent.pid().to_string();
        assert!(set(&pid, "CapAmb") != 0, "{sets}");
        assert_eq!(set("self", "CapAmb"), 0, "{sets}");
        assert_eq!(set("self", "CapEff") != 0, is_root, "{sets}");
        assert_eq!(set("self", "CapPrm") != 0, is_root, "{sets}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_agent_is_no_working_directory() {
    let mut agent = careless();
    let command = Command::argv(["true"]).working_directory("/proc/self/fd/9");
    let error = run(&agent.executor().await, command).await.unwrap_err();
    let ExecutorError::Spawn(error) = error else { panic!("{error:?}") };
    assert_eq!((error.stage, &*error.errno_name()), (SpawnStage::Chdir, "ENOENT"));
    agent.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_directory_is_made_private() {
    let directory = tempfile::tempdir().unwrap();
    let new = directory.path().join("a/b");
    let agent = Agent::builder().args(["--state-dir", new.to_str().unwrap()]).after("umask 0").start();
    run(&agent.executor().await, Command::shell("true").report_working_directory(true)).await.unwrap();
    assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o700);
}

/// Others could put files of their own in the place of the agent's.
#[test]
fn a_state_directory_that_others_can_write_to_is_refused_before_it_listens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let refused = Agent::builder().args(["--state-dir", path]).try_start().expect_err("it does not listen");
    assert!(!refused.status.success() && refused.log.contains(path), "{refused}");
}
