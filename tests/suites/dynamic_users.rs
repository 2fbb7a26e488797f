//! `users = "dynamic"`: commands that have a user and temporary directories of their own.

use std::path::Path;

use telexec_client::RemoteExecutor;
use telexec_executor::{
    Attach, Command, CommandBuilder, Descendants, Execution, Executor, ExecutorError, FileTarget, Files, OnDisconnect,
    SpawnStage, TerminalSize,
};
use telexec_tests::{
    Agent, AgentBuilder, Hierarchy, MARK, collect, is_root, lines, marker, processes_with, run, until, until_output,
    within,
};

/// Their ids.
const IDS: std::ops::RangeInclusive<u32> = 2_013_265_920..=2_147_352_575;

/// Those that start commands as such users: the agent, its keeper, and the keeper of an agent that is not root.
fn agents(config: &str) -> Vec<Agent> {
    if !is_root() {
        return Vec::new();
    }
    let builder = || Agent::builder().config(format!("users = \"dynamic\"\n{config}"));
    let not_root = Hierarchy::Unified.usable().map(|_| builder().agent_user());
    [Some(builder()), Some(builder().kept()), not_root].into_iter().flatten().map(AgentBuilder::start).collect()
}

async fn said(executor: &RemoteExecutor, command: CommandBuilder) -> String {
    let outcome = run(executor, command).await.unwrap();
    assert_eq!((outcome.exited.exit_code(), String::from_utf8_lossy(&outcome.stderr).as_ref()), (0, ""));
    outcome.text().to_owned()
}

/// One that runs on without its caller, once it is ready.
async fn detached(executor: &RemoteExecutor, text: &str, mark: &str) -> Execution {
    let command = Command::shell(format!("{text}\necho ready; exec sleep 300")).env(MARK, mark);
    let command = command.on_disconnect(OnDisconnect::Detach).build().unwrap();
    let mut execution = within(executor.execute(command)).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    execution
}

/// Mounts on the directories that such commands have to themselves, as all others see them.
fn covered() -> Vec<String> {
    let is_covered =
        |line: &&String| ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue"].contains(&line.split(' ').nth(1).unwrap());
    lines(Path::new("/proc/self/mounts")).iter().filter(is_covered).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_has_a_user_and_directories_of_its_own() {
    for agent in agents("") {
        let executor = agent.executor().await;
        let text = "id -ru; id -u; id -G; echo $USER $LOGNAME $HOME; pwd; grep NoNewPrivs /proc/self/status
            for directory in /tmp /var/tmp /dev/shm; do
                ls -A $directory; stat -c '%u %g %a' $directory; echo of $$ > $directory/file; cat $directory/file
            done";
        let mut ids = Vec::new();
        for _ in 0..3 {
            let text = said(&executor, Command::shell(text)).await;
            let id: u32 = text.lines().next().unwrap().parse().unwrap();
            assert!(IDS.contains(&id) && !ids.contains(&id), "{id}");
            ids.push(id);
            let pid = text.lines().last().unwrap();
            let directory = format!("{id} {id} 700\n{pid}\n").repeat(3);
            let expected = format!("{id}\n{id}\n{id}\n{id} {id} /tmp\n/tmp\nNoNewPrivs:\t1\n{directory}");
            assert_eq!(text, expected);
        }
        let size = TerminalSize::new(80, 24).unwrap();
        let terminal = Command::shell("stat -c %u $(tty); id -u; echo through > /dev/tty").terminal(size);
        let terminal = said(&executor, terminal).await;
        let [owner, id, "through"] = terminal.lines().collect::<Vec<_>>()[..] else { panic!("{terminal}") };
        assert_eq!(owner, id);
        // asked for by name, and others as before
        let id: u32 = said(&executor, Command::argv(["id", "-u"]).user("@dynamic")).await.trim().parse().unwrap();
        assert!(IDS.contains(&id) && !ids.contains(&id), "{id}");
        let daemon = said(&executor, Command::shell("id -un; stat -c %a /tmp").user("daemon")).await;
        assert_eq!(daemon, "daemon\n1777\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_do_not_reach_each_other() {
    for agent in agents("") {
        let (executor, mark) = (agent.executor().await, marker());
        let text = "export SECRET=secret; echo secret | tee /tmp/secret /var/tmp/secret /dev/shm/secret >/dev/null
            chmod 666 /tmp/secret /var/tmp/secret /dev/shm/secret; chmod 777 /tmp /var/tmp /dev/shm
            ipcmk -M 4096 -p 666; ipcs -m | grep -q 666 || exit 1
            [ ! -e /dev/mqueue ] || touch /dev/mqueue/queue";
        let other = detached(&executor, text, &mark).await;
        let pid = other.started().pid;
        // what the attempts are made of works
        said(&executor, Command::shell("unshare --user --map-root-user --mount true; ipcs -m; nsenter --version"))
            .await;
        for attempt in [
            "cat /tmp/secret",
            "cat /var/tmp/secret",
            "cat /dev/shm/secret",
            &format!("cat /proc/{pid}/root/tmp/secret"),
            &format!("cat /proc/{pid}/environ"),
            &format!("ls /proc/{pid}/fd"),
            &format!("cat /proc/{pid}/maps"),
            &format!("readlink /proc/{pid}/cwd"),
            &format!("kill -9 {pid}"),
            &format!("nsenter -t {pid} -m true"),
            // it may make namespaces, but not take off what covers the directories of all
            "unshare --user --map-root-user --mount umount /tmp",
            "unshare --user --map-root-user --mount sh -c 'mkdir /tmp/below && mount --bind / /tmp/below'",
            "ipcs -m | grep 666",
            "ls -A /dev/mqueue | grep queue",
        ] {
            let outcome = run(&executor, Command::shell(attempt)).await.unwrap();
            assert_ne!(outcome.exited.exit_code(), 0, "{attempt}: {}", outcome.text());
            assert!(!outcome.text().contains("secret"), "{attempt}");
        }
        assert_eq!(processes_with(&mark).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_they_leave_goes_with_the_last_of_their_processes() {
    for agent in agents("") {
        let (executor, mark) = (agent.executor().await, marker());
        let covered_before = covered();
        let file = format!("telexec-{mark}");
        let write = format!("touch /tmp/{file} /var/tmp/{file} /dev/shm/{file}; ipcmk -M {} >/dev/null", 4096 * 7);
        let seen = || ["/tmp", "/var/tmp", "/dev/shm"].into_iter().any(|at| Path::new(at).join(&file).exists());
        let shared = || {
            let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
            table.lines().any(|line| line.split_whitespace().nth(3) == Some("28672"))
        };
        // the main process has ended, and another one goes on: with its directories
        let text = format!("{write}; (until [ -e /tmp/end ]; do sleep 0.05; done) & echo $!");
        let command = Command::shell(text).env(MARK, &mark).on_disconnect(OnDisconnect::Detach);
        let command = command.descendants(Descendants::Keep);
        let outcome = run(&executor, command).await.unwrap();
        let pid = outcome.text().trim().to_owned();
        let inside = Path::new("/proc").join(&pid).join("root/tmp");
        assert!(inside.join(&file).exists() && !seen() && !shared());
        let namespaces = ["mnt", "ipc"].map(|kind| Path::new("/proc").join(&pid).join("ns").join(kind));
        let namespaces = namespaces.map(|link| std::fs::read_link(link).unwrap());
        std::fs::write(inside.join("end"), "").unwrap();
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        assert!(!seen() && !shared());
        let held = |pid: i32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let mut links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
            links.any(|link| namespaces.contains(&link))
        };
        assert!(!held(agent.pid()) && !held(agent.serving_pid()));
        // ended by its caller
        let execution = detached(&executor, &write, &mark).await;
        executor.signal(execution.id(), "KILL".parse().unwrap()).await.unwrap();
        until("it has ended", async || processes_with(&mark).is_empty()).await;
        drop(execution);
        assert!(!seen() && !shared());
        // mounts were those of these processes alone
        assert_eq!(covered(), covered_before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn their_directories_hold_so_much_together() {
    for agent in agents("max_private_bytes = 1048576") {
        let executor = agent.executor().await;
        let text = "head -c 500000 /dev/zero > /tmp/a && head -c 500000 /dev/zero > /dev/shm/a && echo both
            head -c 500000 /dev/zero > /var/tmp/a || echo full";
        assert!(run(&executor, Command::shell(text)).await.unwrap().text() == "both\nfull\n");
        let files = "cd /tmp; for n in $(seq 1000); do : > $n || break; done 2>/dev/null; ls | wc -l";
        let count: u32 = said(&executor, Command::shell(files)).await.trim().parse().unwrap();
        assert!((100..130).contains(&count), "{count}");
        // for the next one it is empty again
        assert_eq!(said(&executor, Command::shell("head -c 900000 /dev/zero > /tmp/a; ls /tmp")).await, "a\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_another_user_is_refused() {
    for agent in agents("command_users = [\"daemon\"]") {
        let (executor, mark) = (agent.executor().await, marker());
        assert_eq!(said(&executor, Command::shell("id -un").user("daemon")).await, "daemon\n");
        let refused = run(&executor, Command::argv(["true"]).user("root")).await.unwrap_err();
        assert!(matches!(&refused, ExecutorError::Denied { .. }), "{refused}");
        let other = detached(&executor, "id -u > /tmp/id", &mark).await;
        let id = std::fs::read_to_string(format!("/proc/{}/root/tmp/id", other.started().pid)).unwrap();
        match run(&executor, Command::argv(["true"]).user(id.trim())).await {
            Err(ExecutorError::Spawn(error)) => assert_eq!(error.stage, SpawnStage::User),
            other => panic!("{other:?}"),
        }
        // files have no user that stays
        let files = agent.connect().await.files();
        for user in [None, Some("@dynamic".to_owned())] {
            let target = FileTarget { user, ..FileTarget::new("/etc/hostname") };
            let refused = within(files.info(target)).await.unwrap_err();
            assert!(refused.to_string().contains("must name an account"), "{refused}");
        }
        let as_daemon = FileTarget { user: Some("daemon".to_owned()), ..FileTarget::new("/etc/hostname") };
        within(files.info(as_daemon)).await.unwrap();
    }
    for agent in agents("command_users = []") {
        let executor = agent.executor().await;
        said(&executor, Command::argv(["true"])).await;
        let check = async |command: CommandBuilder| {
            let command = command.build().unwrap();
            within(agent.connect().await.check(&command)).await.unwrap()
        };
        assert!(check(Command::argv(["true"])).await.allowed);
        let denied = check(Command::argv(["true"]).user("daemon")).await;
        assert!(!denied.allowed && denied.reason.contains("command_users"), "{}", denied.reason);
        let refused = run(&executor, Command::argv(["true"]).user("daemon")).await.unwrap_err();
        assert!(refused.to_string().contains("command_users"), "{refused}");
    }
    let without = Agent::start();
    match run(&without.executor().await, Command::argv(["true"]).user("@dynamic")).await {
        Err(ExecutorError::Spawn(error)) => assert_eq!(error.stage, SpawnStage::User),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_sees_that_it_is_such_a_user() {
    if !is_root() {
        return;
    }
    let policy = r#"permit (principal, action == Action::"Execute", resource) when {
        context.user == "@dynamic" && context.no_new_privileges && context.user_id == 2013265920 };"#;
    let agent = Agent::builder().config("users = \"dynamic\"").policy(policy).start();
    let executor = agent.executor().await;
    said(&executor, Command::argv(["true"])).await;
    said(&executor, Command::argv(["true"]).user("@dynamic")).await;
    let refused = run(&executor, Command::argv(["true"]).user("daemon")).await.unwrap_err();
    assert!(matches!(&refused, ExecutorError::Denied { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_they_go_on_and_their_ids_are_not_given_again() {
    let all = agents("");
    // not the one without a keeper
    for agent in all.iter().skip(1) {
        let (executor, mark) = (agent.executor().await, marker());
        let text = "id -u; (until [ -e /tmp/end ]; do sleep 0.05; done; echo ended) & echo ready; wait";
        let command = Command::shell(text).env(MARK, &mark).on_disconnect(OnDisconnect::Detach).build().unwrap();
        let mut before = within(executor.execute(command)).await.unwrap();
        until_output(&mut before, "ready\n").await;
        let pid = before.started().pid;
        let user = |info: telexec_executor::ExecutionInfo| info.user;
        let id = user(executor.get(before.id()).await.unwrap());
        super::keeper::crash_and_wait(agent).await;
        let executor = agent.executor().await;
        let next = said(&executor, Command::argv(["id", "-u"])).await;
        let (next, id_before): (u32, u32) = (next.trim().parse().unwrap(), id.parse().unwrap());
        // the rest of those that were reserved is left out, and after the last comes the first
        assert!(next > id_before || id_before > IDS.end() - 2048, "{id}, {next}");
        assert_eq!(user(executor.get(before.id()).await.unwrap()), id);
        std::fs::write(format!("/proc/{pid}/root/tmp/end"), "").unwrap();
        let after = within(executor.attach(before.id(), Attach::start())).await.unwrap();
        assert_eq!(collect(after).await.unwrap().text(), format!("{id}\nready\nended\n"));
    }
}

#[test]
fn an_agent_that_cannot_have_them_says_so() {
    let refused = |builder: AgentBuilder| builder.try_start().err().unwrap().log;
    let builder = |config: &str| Agent::builder().config(format!("users = \"dynamic\"\n{config}"));
    for (config, reason) in [
        ("max_private_bytes = 1000", "max_private_bytes must be at least 1048576"),
        ("command_users = [\"@dynamic\"]", "@dynamic is not an account"),
        ("working_directory = \"/tmp/work\"", "working_directory: /tmp/work is not there for dynamic users"),
    ] {
        let log = refused(builder(config));
        assert!(log.contains(reason), "{log}");
    }
    let log = refused(Agent::builder().config("max_private_bytes = 2000000"));
    assert!(log.contains("max_private_bytes requires users = \"dynamic\""), "{log}");
    if !is_root() {
        let user = refused(builder(""));
        assert!(user.contains("users = \"dynamic\": commands cannot run as dynamic users here"), "{user}");
        return;
    }
    let user = refused(builder("").user(65534));
    assert!(user.contains("users = \"dynamic\": commands cannot run as dynamic users here"), "{user}");
    // root of a user namespace that has no other id
    let few = refused(builder("").through(["unshare", "--user", "--map-root-user"]));
    assert!(few.contains("users = \"dynamic\": commands cannot run as dynamic users here"), "{few}");
    // root without that capability
    let bounded = refused(builder("").through(["setpriv", "--bounding-set", "-sys_admin"]));
    assert!(bounded.contains("users = \"dynamic\": commands cannot run as dynamic users here"), "{bounded}");
}
