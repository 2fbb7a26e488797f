//! Commands of other users than the agent's own. Only root's agent can run them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use telexec_client::RemoteExecutor;
use telexec_executor::{Command, CommandBuilder, Executor, ExecutorError, FileTarget, Files, SpawnError, SpawnStage};
use telexec_proto::v1::{ExecuteRequest, GetExecutionRequest};
use telexec_tests::{
    Agent, Hierarchy, MARK, NOBODY, Wire, executable, is_root, lines, marker, processes_with, run, until, until_output,
    within,
};
use tempfile::TempDir;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A line of the machine's list of users.
struct User {
    name: String,
    uid: String,
    gid: String,
    home: String,
    shell: String,
}

/// Everyone on this machine but root, nobody first.
fn users() -> Vec<User> {
    let user = |line: &str| {
        let fields: Vec<String> = line.split(':').map(str::to_owned).collect();
        let [name, _, uid, gid, _, home, shell] = fields.try_into().ok()?;
        Some(User { name, uid, gid, home, shell }).filter(|user| user.uid != "0")
    };
    let mut users: Vec<User> = lines(Path::new("/etc/passwd")).iter().filter_map(|line| user(line)).collect();
    users.sort_by_key(|user| user.uid != NOBODY.to_string());
    assert_eq!(users[0].name, "nobody");
    users
}

/// What a program of this machine says.
fn reported(argv: &[&str]) -> String {
    let output = std::process::Command::new(argv[0]).args(&argv[1..]).output().unwrap();
    assert!(output.status.success(), "{argv:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What shell text says that this user runs.
async fn said(executor: &RemoteExecutor, user: &str, text: &str) -> String {
    let outcome = run(executor, Command::shell(text).user(user)).await.unwrap();
    assert_eq!((outcome.exited.exit_code(), String::from_utf8_lossy(&outcome.stderr).as_ref()), (0, ""), "{text}");
    outcome.text().to_owned()
}

async fn refused(executor: &RemoteExecutor, command: CommandBuilder) -> SpawnError {
    match run(executor, command).await {
        Err(ExecutorError::Spawn(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// A directory that everyone may write to.
fn shared_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_user_id_program_gives_no_privileges_where_that_is_forbidden() {
    if !is_root() {
        return;
    }
    let directory = shared_directory();
    let id = directory.path().join("id");
    std::fs::copy("/usr/bin/id", &id).unwrap();
    std::fs::set_permissions(&id, PermissionsExt::from_mode(0o4755)).unwrap();
    let command = || Command::argv([id.to_str().unwrap(), "-u"]).user("nobody");
    let said = async |agent: &Agent, command: CommandBuilder| {
        run(&agent.executor().await, command).await.unwrap().text().trim().to_owned()
    };
    let nobody = NOBODY.to_string();
    let free = Agent::start();
    assert_eq!(said(&free, command()).await, "0");
    assert_eq!(said(&free, command().no_new_privileges(true)).await, nobody);
    // whoever starts the command
    let config = || Agent::builder().config("no_new_privileges = true");
    let by_keeper = Hierarchy::Unified.usable().map(|_| config().agent_user());
    for agent in [Some(config()), Some(config().kept()), by_keeper].into_iter().flatten() {
        let agent = agent.start();
        assert_eq!(said(&agent, command()).await, nobody);
        // files are opened by processes of theirs
        let file = FileTarget { user: Some("nobody".to_owned()), ..FileTarget::new("/etc/hostname") };
        within(agent.connect().await.files().info(file)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_found_by_name_and_by_number() {
    if !is_root() {
        return;
    }
    let (agent, user) = (Agent::start(), &users()[0]);
    let executor = agent.executor().await;
    for asked in [&user.name, &user.uid] {
        let ids = said(&executor, asked, "id -ru; id -u; id -rg; id -g; echo $USER $LOGNAME $HOME $SHELL; pwd").await;
        let User { name, uid, gid, home, shell } = user;
        // that user's home does not exist
        assert_eq!(ids, format!("{uid}\n{uid}\n{gid}\n{gid}\n{name} {name} {home} {shell}\n/\n"));
        let path = said(&executor, asked, "echo $PATH").await;
        assert_eq!(path, "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_all_of_its_groups_and_none_of_the_agents() {
    if !is_root() {
        return;
    }
    let has_more = |user: &User| reported(&["id", "-G", &user.name]).split_whitespace().count() > 1;
    let users = users();
    let several = users.iter().find(|user| has_more(user));
    if several.is_none() {
        eprintln!("partly skipped: no user of this machine is in several groups");
    }
    let agent = Agent::builder().through(["setpriv", "--groups", "1,2,3"]).start();
    let executor = agent.executor().await;
    for user in users.first().into_iter().chain(several) {
        assert_eq!(said(&executor, &user.name, "id -G").await, reported(&["id", "-G", &user.name]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_commands_start_at_home() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let users = users();
    let is_open = |path: &str| std::fs::metadata(path).is_ok_and(|m| m.is_dir() && m.permissions().mode() & 1 == 1);
    let Some(user) = users.iter().find(|user| user.home != "/" && is_open(&user.home)) else {
        eprintln!("skipped: no user of this machine has a home");
        return;
    };
    let home = Path::new(&user.home).canonicalize().unwrap();
    assert_eq!(said(&agent.executor().await, &user.name, "pwd -P").await, format!("{}\n", home.display()));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_agents_power_is_left() {
    if !is_root() {
        return;
    }
    let inherited = ["setpriv", "--inh-caps", "+chown,+kill", "--ambient-caps", "+chown,+kill"];
    let agent = Agent::builder().through(inherited).env("SECRET", "of the agent").start();
    let executor = agent.executor().await;
    let capabilities = said(&executor, "nobody", "grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status").await;
    assert_eq!(capabilities.lines().count(), 3);
    assert!(capabilities.lines().all(|line| line.ends_with("\t0000000000000000")), "{capabilities}");
    // and the agent cannot be looked into, though its memory was shared for a moment
    for _ in 0..20 {
        let text = "cat /proc/$PPID/environ /proc/$PPID/maps; kill -0 $PPID; exit 0";
        let outcome = run(&executor, Command::shell(text).user("nobody")).await.unwrap();
        let errors = String::from_utf8(outcome.stderr.clone()).unwrap();
        assert_eq!((outcome.text(), errors.lines().count()), ("", 3), "{errors}");
    }
    let own = said(&executor, "root", "tr '\\0' '\\n' < /proc/$PPID/environ").await;
    assert!(own.contains("SECRET"), "the agent can still be looked into by who could before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_standard_streams_can_be_opened_again() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let text = "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr";
    let command = Command::shell(text).user("nobody").stdin("in\n");
    let outcome = run(&agent.executor().await, command).await.unwrap();
    assert_eq!((outcome.text(), &outcome.stderr[..]), ("in\n", &b"err\n"[..]));
    assert_eq!(said(&agent.executor().await, "nobody", "cat /dev/stdin; echo out > /dev/stdout").await, "out\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_root_may_enter_run_or_read_is_closed_to_others() {
    if !is_root() {
        return;
    }
    let (agent, directory, open) = (Agent::start(), tempfile::tempdir().unwrap(), shared_directory());
    let (executor, path) = (agent.executor().await, directory.path().to_str().unwrap());
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
    let program = executable(open.path(), "program", "#!/bin/sh\necho ran > ran\n");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
    let program = program.to_str().unwrap();
    let there = Command::shell(format!("echo ran > {}/ran", open.path().display())).working_directory(path);
    let here = Command::argv([program]).working_directory(open.path().to_str().unwrap());
    for (command, stage, subject) in [(there, SpawnStage::Chdir, path), (here, SpawnStage::Exec, program)] {
        let error = refused(&executor, command.clone().user("nobody")).await;
        assert_eq!((error.stage, &*error.errno_name(), &error.subject[..]), (stage, "EACCES", subject));
        run(&executor, command).await.unwrap();
        assert_eq!(lines(&open.path().join("ran")), ["ran"], "the agent's own user may");
        std::fs::remove_file(open.path().join("ran")).unwrap();
    }
    std::fs::write(directory.path().join("secret"), "secret").unwrap();
    let outcome = run(&executor, Command::shell(format!("cat {path}/secret")).user("nobody")).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.exit_code()), ("", 1));
}

async fn status(wire: &Wire, request: ExecuteRequest) -> Status {
    within(wire.executions().execute(request)).await.expect_err("it does not run")
}

fn request(user: &str, directory: &TempDir) -> ExecuteRequest {
    let directory = directory.path().to_str().unwrap().to_owned();
    let (user, command) = (user.to_owned(), "echo ran > ran".to_owned());
    ExecuteRequest { user, command, working_directory: directory, ..Default::default() }
}

/// Where and why a start failed, as the wire has it.
fn failure(status: &Status) -> (Code, String, String) {
    let info = status.get_details_error_info().unwrap();
    assert_eq!(info.reason, "SPAWN_FAILED");
    (status.code(), info.metadata["stage"].clone(), info.metadata["errno"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_is_not_there_is_not_found() {
    let agent = Agent::start();
    let (wire, directory) = (Wire::connect(&agent).await.unwrap(), shared_directory());
    for user in ["no-such-user", "4294967294", "4294967295", "4294967296", "-1", "nobody ", "root:x"] {
        let status = status(&wire, request(user, &directory)).await;
        assert_eq!(failure(&status), (Code::NotFound, "user".into(), "ENOENT".into()), "{user}");
        assert!(status.message().contains(user), "{status:?}");
    }
    assert!(!directory.path().join("ran").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_not_root_becomes_nobody_else() {
    if !is_root() {
        return;
    }
    let agent = Agent::builder().user(NOBODY).start();
    let (wire, directory) = (Wire::connect(&agent).await.unwrap(), shared_directory());
    for (user, report_working_directory) in [("root", false), ("root", true), ("daemon", false), ("0", false)] {
        let request = ExecuteRequest { report_working_directory, ..request(user, &directory) };
        let (code, stage, errno) = failure(&status(&wire, request).await);
        assert_eq!((code, &stage[..], &errno[..]), (Code::FailedPrecondition, "setgroups", "EPERM"), "{user}");
    }
    assert!(!directory.path().join("ran").exists());
    let executor = agent.executor().await;
    for user in ["nobody", "65534"] {
        assert_eq!(said(&executor, user, "id -u; echo $USER").await, "65534\nnobody\n");
    }
}

/// Whatever umask the agent was started with.
#[tokio::test(flavor = "multi_thread")]
async fn where_a_users_shell_ended_is_reported() {
    if !is_root() {
        return;
    }
    for umask in ["022", "077"] {
        let agent = Agent::builder().after(&format!("umask {umask}")).start();
        let command = Command::shell("cd /usr; exit 3").user("nobody").report_working_directory(true);
        let outcome = run(&agent.executor().await, command).await.unwrap();
        let reported = (outcome.exited.exit_code(), outcome.exited.working_directory.as_deref());
        assert_eq!((reported, &outcome.stderr[..]), ((3, Some("/usr")), &b""[..]), "umask {umask}");
    }
}

/// The file is the user's to write to; its directory is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_not_read_from_what_the_user_put_in_its_place() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let text = "f=$(trap -p EXIT | grep -o '/[^ ]*cwd-[A-Za-z0-9.-]*'); test -w $f && echo its own
                rm -f $f && echo removed; ln -s /etc/hostname ${f%/*}/x && echo linked; exit 0";
    let command = Command::shell(text).user("nobody").report_working_directory(true);
    let outcome = run(&agent.executor().await, command).await.unwrap();
    assert_eq!(outcome.text(), "its own\n", "{}", String::from_utf8_lossy(&outcome.stderr));
    assert_eq!(outcome.exited.working_directory.as_deref(), Some("/"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_execution_tells_its_name_and_can_be_cancelled() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let (executor, wire, mark) = (agent.executor().await, Wire::connect(&agent).await.unwrap(), marker());
    let text = "trap '' TERM; setsid sleep 300 & (setsid sh -c 'sleep 300 &' &); echo ready; sleep 300";
    let grace = std::time::Duration::from_millis(200);
    let command = Command::shell(text).user("65534").env(MARK, &mark).kill_grace(grace).build().unwrap();
    let mut execution = executor.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    let execution_id = execution.id().to_string();
    let reported = wire.executions().get_execution(GetExecutionRequest { execution_id }).await.unwrap().into_inner();
    assert_eq!(reported.execution.unwrap().user, "nobody");
    until("all run", async || processes_with(&mark).iter().filter(|process| process.name == "sleep").count() == 3)
        .await;
    drop(execution);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// Whatever the policy says; a keeper would not start them either.
#[tokio::test(flavor = "multi_thread")]
async fn commands_run_as_the_users_that_are_named_only() {
    if !is_root() {
        return;
    }
    let config = "command_users = [\"nobody\", \"7\"]";
    for builder in [Agent::builder(), Agent::builder().kept()] {
        let agent = builder.config(config).start();
        let executor = agent.executor().await;
        assert_eq!(said(&executor, "nobody", "id -un").await, "nobody\n");
        assert_eq!(said(&executor, "lp", "id -u").await, "7\n");
        for command in
            [Command::argv(["true"]), Command::argv(["true"]).user("root"), Command::argv(["true"]).user("games")]
        {
            let refused = run(&executor, command).await.unwrap_err();
            assert!(matches!(refused, ExecutorError::Denied { .. }), "{refused}");
            assert!(refused.to_string().contains("command_users"), "{refused}");
        }
        let files = agent.connect().await.files();
        let as_root = files.info(FileTarget::new("/root")).await.unwrap_err();
        assert!(as_root.to_string().contains("command_users"), "{as_root}");
    }
    let unknown = Agent::builder().config("command_users = [\"nobody-at-all\"]").try_start().err().unwrap();
    assert!(unknown.log.contains("command_users") && unknown.log.contains("nobody-at-all"), "{unknown}");
}
