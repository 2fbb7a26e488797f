//! The engine as a guest in a program of someone else's: what it leaves alone, and that it leaves nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use rustix::process::{DumpableBehavior, Pid, child_subreaper, dumpable_behavior, kill_process};
use telexec_engine::{ContainmentKind, ExecutionObserver, Grant, LocalConfig, LocalExecutor, MainProcess};
use telexec_executor::{
    Command, Descendants, Event, Execution, ExecutionId, ExecutionState, Executor, ExecutorError, ExitCause, Exited,
    OutputStream, ResourceLimits,
};
use telexec_tests::{
    MARK, ProcessLimit, alone, cgroups, children, collect, is_root, marker, processes_with, run, until, until_blocking,
    until_output, within,
};
use tokio::runtime::Runtime;

const LIMITS: ResourceLimits =
    ResourceLimits { memory_bytes: Some(64 << 20), max_processes: Some(50), cpus: Some(1.0) };

fn this() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

const KINDS: [ContainmentKind; 3] =
    [ContainmentKind::CgroupV2, ContainmentKind::CgroupV1, ContainmentKind::ProcessGroup];

/// `None`: processes cannot be kept together in this way here.
fn executor(kind: ContainmentKind) -> Option<LocalExecutor> {
    executor_with(kind, LocalConfig::default())
}

fn executor_with(kind: ContainmentKind, config: LocalConfig) -> Option<LocalExecutor> {
    let config = LocalConfig { containment: Some(kind), ..config };
    LocalExecutor::new(config).inspect_err(|error| eprintln!("partly skipped: {error}")).ok()
}

/// One at a time, for each way to keep processes together that works here.
fn executors() -> impl Iterator<Item = LocalExecutor> {
    KINDS.into_iter().filter_map(executor)
}

/// A little of all that commands do.
async fn use_it(executor: &LocalExecutor) {
    let users = if is_root() { &[None, Some("nobody")][..] } else { &[None] };
    let with = |user: Option<&str>, text: &str| {
        let command = Command::shell(text).kill_grace(Duration::from_millis(100));
        user.into_iter().fold(command, telexec_executor::CommandBuilder::user)
    };
    for user in users {
        let outcome =
            run(executor, with(*user, "cat; exit 3").stdin("in").report_working_directory(true)).await.unwrap();
        assert_eq!((outcome.text(), outcome.exited.exit_code()), ("in", 3));
        match run(executor, with(*user, "true").limits(LIMITS)).await {
            Ok(_) | Err(ExecutorError::Unsupported { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        run(executor, with(*user, "true").working_directory("/no/such/directory")).await.unwrap_err();
        run(executor, with(*user, "sleep 300").timeout(Duration::from_millis(10))).await.unwrap();
        run(executor, with(*user, "setsid sleep 300 &").descendants(Descendants::Kill)).await.unwrap();
        let lingering = run(executor, with(*user, "sleep 300 & exit 3")).await.unwrap();
        executor.signal(&lingering.started.id, telexec_executor::Signal::KILL).await.unwrap();
        let command = with(*user, "trap '' TERM; echo ready; setsid sleep 300 & sleep 300").build().unwrap();
        let mut cancelled = executor.execute(command).await.unwrap();
        until_output(&mut cancelled, "ready\n").await;
    }
    let many = (0..30).map(|_| run(executor, Command::shell("(setsid true &); echo out")));
    join_all(many).await.into_iter().for_each(|outcome| assert_eq!(outcome.unwrap().text(), "out\n"));
}

/// What a program may have set up for itself.
fn state() -> BTreeMap<String, String> {
    // of this thread: what the first one does meanwhile is not known
    let file = |name: &str| fs::read_to_string(format!("/proc/thread-self/{name}")).unwrap();
    let names =
        ["Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs"];
    let status = file("status");
    let lines = status.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| names.contains(name));
    let mut state: BTreeMap<_, _> = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert_eq!(state.len(), names.len());
    for name in ["limits", "oom_score_adj", "cgroup"] {
        state.insert(name.into(), file(name));
    }
    let environment: BTreeMap<_, _> = std::env::vars_os().collect();
    state.insert("environment".into(), format!("{environment:?}"));
    state.insert("directory".into(), format!("{:?}", std::env::current_dir()));
    state.insert("dumpable".into(), format!("{}", dumpable_behavior().unwrap() == DumpableBehavior::Dumpable));
    state.insert("subreaper".into(), format!("{:?}", child_subreaper().unwrap()));
    state.insert("priority".into(), format!("{:?}", rustix::process::getpriority_process(None)));
    state
}

/// The names of what is not as before: the values may be secret, or long.
fn changes(before: &BTreeMap<String, String>) -> Vec<String> {
    state().into_iter().filter(|(name, value)| before[name] != *value).map(|(name, _)| name).collect()
}

#[test]
fn its_host_stays_as_it_is() {
    alone("library::its_host_stays_as_it_is", || {
        let runtime = Runtime::new().unwrap();
        let before = state();
        assert_eq!((&before["dumpable"][..], &before["subreaper"][..]), ("true", "None"));
        for executor in executors() {
            runtime.block_on(async {
                use_it(&executor).await;
                assert_eq!(changes(&before), [""; 0], "{}", executor.containment());
                within(executor.shutdown()).await;
            });
            drop(executor);
            assert_eq!(changes(&before), [""; 0]);
        }
    });
}

#[test]
fn children_of_its_host_are_left_to_the_host() {
    alone("library::children_of_its_host_are_left_to_the_host", || {
        let child = |text: String| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &text]).stdin(Stdio::piped()).spawn().unwrap()
        };
        // some that have ended before, and some that end meanwhile
        let mut ended: Vec<_> = (0..10).map(|n| child(format!("exit {n}"))).collect();
        let mut waiting: Vec<_> = (10..20).map(|n| child(format!("read line; exit {n}"))).collect();
        let runtime = Runtime::new().unwrap();
        for executor in executors() {
            runtime.block_on(async {
                let meanwhile = async {
                    let half = waiting.len() / 2;
                    for child in &mut waiting[half..] {
                        let _ = child.stdin.as_mut().unwrap().write_all(b"go on\n");
                        tokio::task::yield_now().await;
                    }
                };
                tokio::join!(use_it(&executor), meanwhile);
                within(executor.shutdown()).await;
            });
        }
        for child in &mut waiting {
            let _ = child.stdin.as_mut().unwrap().write_all(b"go on\n");
        }
        for (n, child) in (0..).zip(ended.iter_mut().chain(&mut waiting)) {
            assert_eq!(child.wait().unwrap().code(), Some(n));
        }
    });
}

/// Everything that a process holds.
fn holdings() -> BTreeMap<&'static str, String> {
    let names = |path: &str| {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        entries.collect::<Vec<_>>()
    };
    // the directory that is read is one of them, each time
    let files = names("/proc/self/fd").len();
    let name = |tid: &String| fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
    let mut threads: Vec<_> = names("/proc/self/task").iter().map(name).collect();
    threads.sort_unstable();
    BTreeMap::from([
        ("descriptors", files.to_string()),
        ("threads", format!("{threads:?}")),
        ("children", format!("{:?}", children(this()))),
        ("cgroups", format!("{:?}", cgroups(this()))),
        ("temporary files", format!("{:?}", names(std::env::temp_dir().to_str().unwrap()))),
    ])
}

/// Whether it is shut down or only dropped.
fn leaves_nothing(shut_down: bool) {
    // what the runtime makes once and keeps
    drop(Runtime::new().unwrap());
    let before = holdings();
    assert_eq!((&before["children"][..], &before["temporary files"][..]), ("[]", "[]"));
    let runtime = Runtime::new().unwrap();
    for executor in executors() {
        let kind = executor.containment();
        runtime.block_on(async {
            use_it(&executor).await;
            let command = Command::shell("echo ready; setsid sleep 300 & sleep 300").build().unwrap();
            let mut execution = executor.execute(command).await.unwrap();
            until_output(&mut execution, "ready\n").await;
            if shut_down {
                within(executor.shutdown()).await;
            }
            drop((executor, execution));
            until(&format!("nothing is left by {kind}"), async || {
                let now = holdings();
                ["children", "cgroups", "temporary files"].into_iter().all(|what| now[what] == before[what])
            })
            .await;
        });
    }
    drop(runtime);
    // nothing has waited for the engine's own threads
    until_blocking(Duration::from_secs(30), || holdings() == before);
    assert_eq!(holdings(), before);
}

#[test]
fn dropping_it_leaves_nothing() {
    alone("library::dropping_it_leaves_nothing", || leaves_nothing(false));
}

#[test]
fn shutting_it_down_leaves_nothing() {
    alone("library::shutting_it_down_leaves_nothing", || leaves_nothing(true));
}

/// A program that is over when its command is.
#[test]
fn survivors_stay_when_the_runtime_goes_at_once() {
    alone("library::survivors_stay_when_the_runtime_goes_at_once", || {
        for kind in KINDS {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let Some(executor) = executor(kind) else { continue };
            let mark = marker();
            let command = Command::shell("setsid sleep 300 >/dev/null 2>&1 &").env(MARK, &mark);
            let outcome = runtime.block_on(run(&executor, command)).unwrap();
            drop((runtime, executor));
            // while it becomes its program, its environment is not to be seen
            let stays = until_blocking(Duration::from_secs(30), || processes_with(&mark).len() == 1);
            assert_eq!((outcome.exited.surviving_processes, stays), (1, true), "{kind}");
            for survivor in processes_with(&mark) {
                kill_process(Pid::from_raw(survivor.pid).unwrap(), rustix::process::Signal::KILL).unwrap();
            }
        }
    });
}

/// The main process waits in the process table as long as others are found by it: no longer than there is an engine.
#[test]
fn survivors_that_stay_keep_no_zombie_when_it_is_shut_down() {
    alone("library::survivors_that_stay_keep_no_zombie_when_it_is_shut_down", || {
        Runtime::new().unwrap().block_on(async {
            for executor in executors() {
                let (kind, mark) = (executor.containment(), marker());
                let command = Command::shell("sleep 300 >/dev/null 2>&1 &").env(MARK, &mark);
                let outcome = run(&executor, command).await.unwrap();
                assert_eq!(outcome.exited.surviving_processes, 1, "{kind}");
                within(executor.shutdown()).await;
                until(&format!("no zombie is left by {kind}"), async || children(this()).is_empty()).await;
                // while it becomes its program, its environment is not to be seen
                until(&format!("it stays with {kind}"), async || processes_with(&mark).len() == 1).await;
                // who has its id still reaches it
                let id = &outcome.started.id;
                assert_eq!(executor.get(id).await.unwrap().processes, 1, "{kind}");
                executor.signal(id, telexec_executor::Signal::KILL).await.unwrap();
                until(&format!("it is ended by {kind}"), async || processes_with(&mark).is_empty()).await;
            }
        });
    });
}

/// Their commands may even have the same id. Without a cgroup that is what distinguishes them.
#[test]
fn engines_in_one_process_do_not_touch_each_other() {
    alone("library::engines_in_one_process_do_not_touch_each_other", || {
        Runtime::new().unwrap().block_on(async {
            for kind in KINDS {
                let (Some(one), Some(two)) = (executor(kind), executor(kind)) else { continue };
                let id =
                    |name: &str| if kind == ContainmentKind::ProcessGroup { name } else { "same" }.parse().unwrap();
                let command =
                    |name| Command::shell("echo ready; exec sleep 300").execution_id(id(name)).build().unwrap();
                let mut kept = one.execute(command("one")).await.unwrap();
                let mut ended = two.execute(command("two")).await.unwrap();
                until_output(&mut kept, "ready\n").await;
                until_output(&mut ended, "ready\n").await;
                drop(ended);
                within(two.shutdown()).await;
                let info = one.get(kept.id()).await.unwrap();
                assert!(info.exited.is_none() && info.processes == 1, "{kind}: {info:?}");
                within(one.shutdown()).await;
            }
        });
    });
}

/// What an observer got, in words.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn add(&self, word: impl Into<String>) {
        self.0.lock().unwrap().push(word.into());
    }

    fn words(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// For this id, with this observer.
fn grant(id: &ExecutionId, observer: impl ExecutionObserver + 'static) -> Grant {
    Grant { id: Some(id.clone()), observers: vec![Box::new(observer)], ..Grant::default() }
}

impl ExecutionObserver for Seen {
    fn started(&self, main: &MainProcess) {
        self.add(format!("started in {}", main.working_directory));
    }

    fn output(&self, _: OutputStream, data: &[u8]) {
        self.add(String::from_utf8_lossy(data));
    }

    fn ended(self: Box<Self>, exited: &Exited) {
        self.add(format!("ended with {}", exited.exit_code()));
    }

    fn not_started(self: Box<Self>, _: &ExecutorError) {
        self.add("not started");
    }

    fn repeated(self: Box<Self>) {
        self.add("repeated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_gets_all_and_an_id_that_was_made_is_not_one_that_was_chosen() {
    let executor = LocalExecutor::new(LocalConfig::default()).unwrap();
    let observed = async |command: Command, id: &ExecutionId| {
        let seen = Seen::default();
        let execution = executor.execute_granted(command, grant(id, seen.clone())).await;
        if let Ok(execution) = execution {
            assert_eq!(execution.id(), id);
            collect(execution).await.unwrap();
        }
        seen.words()
    };
    let echo = || Command::argv(["printf", "0123456789"]).working_directory("/").max_output_bytes(4);
    let made = ExecutionId::generate();
    let all = ["started in /", "0123456789", "ended with 0"];
    assert_eq!(observed(echo().build().unwrap(), &made).await, all, "also what is dropped");
    assert_eq!(observed(echo().execution_id(made.clone()).build().unwrap(), &made).await, ["not started"]);
    let chosen: ExecutionId = marker().parse().unwrap();
    assert_eq!(observed(echo().execution_id(chosen.clone()).build().unwrap(), &chosen).await, all);
    assert_eq!(observed(echo().execution_id(chosen.clone()).build().unwrap(), &chosen).await, ["repeated"]);
    let missing = Command::argv(["/no/such"]).build().unwrap();
    assert_eq!(observed(missing, &ExecutionId::generate()).await, ["not started"]);
}

/// An observer with a fault: it panics at this event.
struct Faulty {
    seen: Seen,
    panics_at: &'static str,
}

impl Faulty {
    fn see(&self, word: &str) {
        self.seen.add(word);
        assert!(word != self.panics_at, "the observer's fault");
    }
}

impl ExecutionObserver for Faulty {
    fn started(&self, _: &MainProcess) {
        self.see("started");
    }

    fn output(&self, _: OutputStream, _: &[u8]) {
        self.see("output");
    }

    fn ended(self: Box<Self>, _: &Exited) {
        self.see("ended");
    }

    fn not_started(self: Box<Self>, _: &ExecutorError) {
        self.see("not started");
    }

    fn repeated(self: Box<Self>) {
        self.see("repeated");
    }
}

/// Each engine has room for one execution, of one identity: what is not given back is missed by the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_while_a_command_runs_settles_its_execution() {
    let killed = (ExitCause::Signaled, -1, Some(telexec_executor::Signal::KILL));
    let cases = [
        ("started", "setsid sleep 300 & sleep 300", killed, &["started", "ended"][..]),
        ("output", "setsid sleep 300 & echo out; sleep 300", killed, &["started", "output", "ended"]),
        ("ended", "echo out; exit 3", (ExitCause::Exited(3), 3, None), &["started", "output", "ended"]),
    ];
    let config = LocalConfig { max_executions: 1, max_executions_per_identity: 1, ..Default::default() };
    for executor in KINDS.into_iter().filter_map(|kind| executor_with(kind, config.clone())) {
        for (panics_at, text, end, words) in cases {
            let case = format!("{panics_at}, {}", executor.containment());
            let (mark, seen) = (marker(), Seen::default());
            let command = Command::shell(text).env(MARK, &mark).execution_id(mark.parse().unwrap()).build().unwrap();
            let observer = Faulty { seen: seen.clone(), panics_at };
            let id: ExecutionId = mark.parse().unwrap();
            let (other, mut grant) = (Seen::default(), grant(&id, observer));
            grant.observers.push(Box::new(other.clone()));
            let started = within(executor.execute_granted(command.clone(), grant)).await;
            let exited = collect(started.expect(&case)).await.unwrap().exited;
            assert_eq!((exited.cause, exited.exit_code(), exited.signal), end, "{case}");
            assert_eq!(exited.stdout.incomplete, panics_at != "ended", "{case}");
            assert_eq!((processes_with(&mark), exited.surviving_processes), (Vec::new(), 0), "{case}");
            assert_eq!(seen.words(), words, "{case}");
            let last = format!("ended with {}", exited.exit_code());
            assert_eq!(other.words().last(), Some(&last), "{case}: the other observer");
            // its id answers, to who asks and to who repeats the request
            let info = executor.get(&id).await.unwrap();
            assert_eq!((info.state, info.exited.as_ref()), (ExecutionState::Exited, Some(&exited)), "{case}");
            let repeated = collect(within(executor.execute(command)).await.unwrap()).await.unwrap();
            assert_eq!(repeated.exited, exited, "{case}");
            // and its place is free
            assert_eq!(run(&executor, Command::shell("echo next")).await.expect(&case).text(), "next\n");
        }
        let seen = Seen::default();
        let observer = Faulty { seen: seen.clone(), panics_at: "not started" };
        let (id, missing) = (ExecutionId::generate(), Command::argv(["/no/such"]).build().unwrap());
        let refused = within(executor.execute_granted(missing, grant(&id, observer))).await.unwrap_err();
        assert!(matches!(refused, ExecutorError::Spawn(_)), "{refused}");
        assert_eq!(seen.words(), ["not started"]);
        executor.get(&id).await.unwrap_err();
        run(&executor, Command::argv(["true"])).await.unwrap();
        within(executor.shutdown()).await;
    }
}

/// The runtime's own idle threads end at once here, as they do after a while elsewhere.
#[test]
fn without_another_thread_what_runs_ends_and_starts_are_refused() {
    alone("library::without_another_thread_what_runs_ends_and_starts_are_refused", || {
        let Some(limit) = ProcessLimit::new() else {
            eprintln!("skipped: the number of processes cannot be limited here");
            return;
        };
        limit.add(this());
        for kind in KINDS {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(1).thread_keep_alive(Duration::from_millis(1)).enable_all();
            let runtime = runtime.build().unwrap();
            runtime.block_on(async {
                let Some(executor) = executor(kind) else { return };
                let mark = marker();
                let command = || {
                    let command = Command::shell("setsid sleep 300 & echo ready; sleep 300").env(MARK, &mark);
                    command.kill_grace(Duration::from_millis(100))
                };
                let start = async |command: telexec_executor::CommandBuilder| {
                    let mut execution = executor.execute(command.build().unwrap()).await.unwrap();
                    until_output(&mut execution, "ready\n").await;
                    execution
                };
                let (killed, cancelled) = (start(command()).await, start(command()).await);
                let timed_out = start(command().timeout(Duration::from_millis(500))).await;
                let survivor = run(&executor, Command::shell("setsid sleep 300 >/dev/null 2>&1 &").env(MARK, &mark));
                let survivor = survivor.await.unwrap().started.id;
                limit.reach();
                let refused = run(&executor, Command::argv(["true"])).await.unwrap_err();
                let is_exhausted = matches!(&refused, ExecutorError::Spawn(error) if error.is_exhausted());
                assert!(is_exhausted, "{kind}: {refused}");
                drop(cancelled);
                let exited = end_of(timed_out).await;
                assert_eq!(exited.cause, ExitCause::TimedOut, "{kind}");
                for id in [killed.id(), &survivor] {
                    within(executor.signal(id, telexec_executor::Signal::KILL)).await.unwrap();
                }
                assert_eq!(end_of(killed).await.cause, ExitCause::Signaled, "{kind}");
                until(&format!("nothing is left by {kind}"), async || processes_with(&mark).is_empty()).await;
                until(&format!("{kind} lists none"), async || {
                    within(executor.list(Default::default())).await.unwrap().executions.is_empty()
                })
                .await;
                limit.lift();
                run(&executor, Command::argv(["true"])).await.unwrap();
                limit.reach();
                within(executor.shutdown()).await;
                within(executor.leave()).await;
                limit.lift();
            });
            let left = cgroups(this());
            assert!(left.is_empty(), "{kind}: {left:?}");
        }
    });
}

/// How an execution ends, of which something was read already.
async fn end_of(mut execution: Execution) -> Exited {
    loop {
        match within(execution.next()).await {
            Some(Ok(Event::Exited(exited))) => return exited,
            Some(Ok(_)) => {}
            end => panic!("no end: {end:?}"),
        }
    }
}
