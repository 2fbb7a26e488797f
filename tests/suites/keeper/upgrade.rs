//! `telexecd upgrade`: the program on disk takes the place of the agent.

use std::process::Output;
use std::time::Duration;

use telexec_executor::{Command, Executor, ExitCause, OnDisconnect};
use telexec_tests::{
    AGENT_USER, Agent, AgentBuilder, Hierarchy, MARK, collect, is_root, marker, processes_with, run, telexecd, until,
    until_output, within,
};

use super::serving;

struct Scene {
    agent: Agent,
    directory: tempfile::TempDir,
    /// More of its arguments.
    arguments: &'static [&'static str],
}

impl Scene {
    fn start(builder: AgentBuilder) -> Self {
        Self::configured(builder, "shutdown_grace = \"2s\"")
    }

    fn configured(builder: AgentBuilder, config: &str) -> Self {
        let agent = builder.config(config).start();
        Self { agent, directory: tempfile::tempdir().unwrap(), arguments: &[] }
    }

    async fn upgrade(&self) -> Output {
        self.upgrade_with(&[]).await
    }

    async fn upgrade_with(&self, flags: &[&str]) -> Output {
        let mut command = telexecd();
        let [config, state_dir] = ["telexecd.toml", "state"].map(|name| self.agent.directory().join(name));
        command.arg("--config").arg(config).arg("--state-dir").arg(state_dir);
        command.arg("--listen").arg(self.agent.uri()).args(self.arguments).arg("upgrade").args(flags);
        command.env_remove("TELEXECD_KEEPER");
        within(tokio::process::Command::from(command).output()).await.unwrap()
    }

    /// Shell text that waits until [`go_on`](Self::go_on).
    fn wait(&self) -> String {
        format!("until [ -e {} ]; do sleep 0.01; done", self.directory.path().join("go").display())
    }

    fn go_on(&self) {
        std::fs::write(self.directory.path().join("go"), "").unwrap();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_need_not_end_with_its_call_goes_on_under_the_next_agent() {
    goes_on_under_the_next_agent(Scene::start(Agent::builder().kept())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_also_under_one_that_is_not_root() {
    if is_root() && Hierarchy::Unified.usable().is_some() {
        let scene = Scene::start(Agent::builder().agent_user());
        goes_on_under_the_next_agent(Scene { arguments: &["--keeper", "on", "--agent-user", AGENT_USER], ..scene })
            .await;
    }
}

/// As systemd does at each reload of a unit with `StateDirectory=`.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_not_root_gets_its_directories_back() {
    if !is_root() || Hierarchy::Unified.usable().is_none() {
        return;
    }
    let scene = Scene::start(Agent::builder().agent_user());
    let scene = Scene { arguments: &["--keeper", "on", "--agent-user", AGENT_USER], ..scene };
    let detached = Command::shell("echo kept").on_disconnect(OnDisconnect::Detach);
    let ended = run(&scene.agent.executor().await, detached).await.unwrap();
    let mut chown = std::process::Command::new("chown");
    chown.args(["-R", "root:"]).args(["state", "socket"].map(|name| scene.agent.directory().join(name)));
    assert!(chown.status().unwrap().success());
    let output = scene.upgrade().await;
    assert!(output.status.success(), "{}{}", said(&output), scene.agent.log());
    let start = telexec_executor::Attach::start();
    let again = within(scene.agent.executor().await.attach(&ended.started.id, start)).await.unwrap();
    assert_eq!(collect(again).await.unwrap().text(), "kept\n");
}

async fn goes_on_under_the_next_agent(scene: Scene) {
    let before = serving(&scene.agent).unwrap();
    let executor = scene.agent.connect().await.executor().resuming(telexec_client::Resume::default());
    let text = format!("echo first; {}; echo last; exit 3", scene.wait());
    let mut attached = within(executor.execute(Command::shell(&text).build().unwrap())).await.unwrap();
    until_output(&mut attached, "first\n").await;
    let detached = Command::shell(&text).on_disconnect(OnDisconnect::Detach).build().unwrap();
    let id = within(executor.execute(detached)).await.unwrap().id().clone();
    // which is more than memory keeps
    let ended = Command::shell("seq 100000; exit 4").on_disconnect(OnDisconnect::Detach).build().unwrap();
    let ended = collect(within(executor.execute(ended)).await.unwrap()).await.unwrap();
    let long = Command::shell(format!("seq 100000; {}; seq 100000", scene.wait())).on_disconnect(OnDisconnect::Detach);
    let long = within(executor.execute(long.build().unwrap())).await.unwrap().id().clone();
    let half = ended.stdout.len() as u64;
    until("half of it is there", async || executor.get(&long).await.unwrap().position == half).await;
    // there is something to wait for
    let direct = scene.agent.executor().await;
    let bound = within(direct.execute(Command::shell("sleep 0.5; exit 5").build().unwrap())).await.unwrap();
    let bound = tokio::spawn(collect(bound));
    let output = scene.upgrade().await;
    assert!(output.status.success(), "{}{}", said(&output), scene.agent.log());
    let now = serving(&scene.agent).unwrap();
    assert!(now != before && said(&output).contains(&format!("process {now} has taken over")), "{}", said(&output));
    // it had its time
    assert_eq!(bound.await.unwrap().unwrap().exited.cause, ExitCause::Exited(5));
    scene.go_on();
    until_output(&mut attached, "last\n").await;
    let direct = scene.agent.executor().await;
    let from = |position| telexec_executor::Attach::position(position);
    let detached = collect(within(direct.attach(&id, from(0))).await.unwrap()).await.unwrap();
    assert_eq!((detached.text(), detached.exited.cause), ("first\nlast\n", ExitCause::Exited(3)));
    let again = collect(within(direct.attach(&ended.started.id, from(0))).await.unwrap()).await.unwrap();
    assert_eq!((again.text(), &again.exited), (ended.text(), &ended.exited));
    let long = collect(within(direct.attach(&long, from(0))).await.unwrap()).await.unwrap();
    assert_eq!((long.text(), long.exited.cause), (&*ended.text().repeat(2), ExitCause::Exited(0)));
    assert!(scene.agent.log().contains("has handed over"), "{}", scene.agent.log());
    // the keeper has executed its own program, too
    let keeper = std::fs::read(format!("/proc/{}/cmdline", scene.agent.pid())).unwrap();
    assert_eq!(keeper.split(|byte| *byte == 0).nth(1), Some(&b"--state-fd"[..]), "{}", scene.agent.log());
}

/// Also where nothing runs meanwhile, by which the old agent would hold on to them.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_before_is_known_to_the_next_agent() {
    let scene = Scene::start(Agent::builder().kept());
    let ran = scene.directory.path().join("ran");
    let id: telexec_executor::ExecutionId = marker().parse().unwrap();
    let command = |builder: telexec_executor::CommandBuilder| builder.execution_id(id.clone());
    let detached = || {
        let text = format!("echo once >> {}; echo said; exit 3", ran.display());
        command(Command::shell(text)).on_disconnect(OnDisconnect::Detach)
    };
    let before = run(&scene.agent.executor().await, detached()).await.unwrap();
    for _ in 0..2 {
        let output = scene.upgrade().await;
        assert!(output.status.success(), "{}{}", said(&output), scene.agent.log());
        let again = run(&scene.agent.executor().await, detached()).await.unwrap();
        assert_eq!((again.text(), &again.exited), ("said\n", &before.exited), "{}", scene.agent.log());
    }
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "once\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_bound_to_a_call_is_ended_when_its_time_is_over() {
    let scene = Scene::start(Agent::builder().kept());
    let mark = marker();
    let executor = scene.agent.executor().await;
    let command = Command::shell("echo; setsid sleep 300 & sleep 300").env(MARK, &mark).build().unwrap();
    let bound = within(executor.execute(command)).await.unwrap();
    let bound = tokio::spawn(collect(bound));
    let output = scene.upgrade().await;
    assert!(output.status.success(), "{}{}", said(&output), scene.agent.log());
    assert_eq!(bound.await.unwrap().unwrap().exited.cause, ExitCause::Shutdown);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// A call that is made meanwhile may have to wait, no longer than a client does that connects again.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_served_meanwhile() {
    let scene = Scene::start(Agent::builder().kept());
    let executor = scene.agent.connect().await.executor().resuming(telexec_client::Resume::default());
    let calls = async {
        loop {
            let outcome = run(&executor, Command::argv(["echo", "hi"]).on_disconnect(OnDisconnect::Detach)).await;
            // one that was on its way when the agent went is not repeated by itself
            if let Ok(outcome) = outcome {
                assert_eq!(outcome.text(), "hi\n");
            }
        }
    };
    let upgrades = async {
        for _ in 0..3 {
            let output = scene.upgrade().await;
            assert!(output.status.success(), "{}{}", said(&output), scene.agent.log());
        }
    };
    tokio::select! {
        () = upgrades => {}
        never = calls => never,
    }
    tokio::time::timeout(Duration::from_secs(20), run(&executor, Command::argv(["true"]))).await.unwrap().unwrap();
}

/// Who asks is told so; and by a signal the agent finds it out itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_would_not_serve_is_refused_before() {
    let scene = Scene::start(Agent::builder().kept());
    let before = serving(&scene.agent).unwrap();
    let config = scene.agent.directory().join("telexecd.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (setting, reason) in [
        ("max_connections = 0", "max_connections"),
        ("command_users = [\"0\"]", "command_users or users has changed"),
        ("no_new_privileges = true", "no_new_privileges has changed"),
        ("keeper_syslog = \"/dev/log\"", "keeper_syslog has changed"),
        ("keeper = \"x\"", "keeper"),
        (&*format!("metrics_listen = \"tcp://{address}\""), "in use"),
        (&*format!("metrics_listen = {:?}", scene.agent.uri()), "is listed twice"),
    ] {
        std::fs::write(&config, format!("{text}\n{setting}\n")).unwrap();
        let output = scene.upgrade().await;
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 78)) && said(&output).contains(reason), "{setting}: {}", said(&output));
        let refusals = || scene.agent.log().matches("cannot hand over to the programs on disk").count();
        let earlier = refusals();
        scene.agent.signal(rustix::process::Signal::USR2);
        until("it has refused", async || refusals() > earlier).await;
        assert!(scene.agent.log().lines().last().unwrap().contains(reason), "{setting}: {}", scene.agent.log());
    }
    assert_eq!(serving(&scene.agent), Some(before));
    // the file of the socket that it would have
    let (path, aside) = (scene.agent.address().to_owned(), scene.agent.directory().join("aside"));
    std::fs::write(&config, &text).unwrap();
    std::fs::rename(&path, &aside).unwrap();
    std::fs::write(&path, "").unwrap();
    let output = scene.upgrade().await;
    assert!(said(&output).contains("is not a socket") && !output.status.success(), "{}", said(&output));
    std::fs::rename(&aside, &path).unwrap();
    assert_eq!(serving(&scene.agent), Some(before));
    assert_eq!(run(&scene.agent.executor().await, Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
    // what it has itself is no obstacle
    std::fs::write(&config, text).unwrap();
    let output = scene.upgrade().await;
    assert!(output.status.success(), "{}{}", said(&output), scene.agent.log());
}

/// Nothing could start the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_is_stopped_is_handed_nothing() {
    let scene = Scene::start(Agent::builder().kept());
    let connected = scene.agent.connect().await;
    run(&connected.executor(), Command::argv(["true"])).await.unwrap();
    telexec_tests::stop(scene.agent.pid()).await;
    let output = scene.upgrade().await;
    assert!(said(&output).contains("does not respond") && !output.status.success(), "{}", said(&output));
    assert!(connected.ping().await.unwrap().serving);
    scene.agent.signal(rustix::process::Signal::CONT);
    assert_eq!(run(&connected.executor(), Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
}

/// As a reload of the systemd unit asks for it.
#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_has_changed_it_can_be_left_out() {
    let scene = Scene::start(Agent::builder().kept());
    let if_changed = async || {
        let output = scene.upgrade_with(&["--if-changed"]).await;
        assert!(output.status.success(), "{}", said(&output));
        (said(&output), serving(&scene.agent).unwrap())
    };
    let before = serving(&scene.agent).unwrap();
    assert_eq!(if_changed().await, ("nothing has changed since the agent was started\n".into(), before));
    let config = scene.agent.directory().join("telexecd.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("max_executions = 7\n{text}")).unwrap();
    let (output, next) = if_changed().await;
    assert!(output.contains(&format!("process {next} has taken over")) && next != before, "{output}");
    assert_eq!(if_changed().await.1, next);
    // what would be refused is said
    std::fs::write(&config, "max_executions = 0").unwrap();
    let output = scene.upgrade_with(&["--if-changed"]).await;
    assert!(said(&output).contains("max_executions") && !output.status.success(), "{}", said(&output));
    assert_eq!(serving(&scene.agent), Some(next));
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_than_the_keeper_was_started_with_need_a_restart() {
    if !is_root() {
        return;
    }
    let scene = Scene::configured(Agent::builder().kept(), "command_users = [\"0\"]");
    let config = scene.agent.directory().join("telexecd.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    for wanted in ["[\"0\"]\nusers = \"dynamic\"", "[]\nusers = \"dynamic\"", "[\"0\", \"1\"]"] {
        std::fs::write(&config, text.replace("[\"0\"]", wanted)).unwrap();
        let output = scene.upgrade().await;
        assert!(said(&output).contains("command_users or users has changed"), "{wanted}: {}", said(&output));
    }
    // also where the keeper is held to nobody
    let scene = Scene::start(Agent::builder().kept());
    let config = scene.agent.directory().join("telexecd.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("users = \"dynamic\"\n{text}")).unwrap();
    let output = scene.upgrade().await;
    assert!(said(&output).contains("users has changed"), "{}", said(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_keeper_goes_on() {
    let scene = Scene::start(Agent::builder());
    let output = scene.upgrade().await;
    assert_eq!(output.status.code(), Some(3));
    assert!(said(&output).contains("has no keeper"), "{}", said(&output));
    scene.agent.signal(rustix::process::Signal::USR2);
    until("it has refused", async || scene.agent.log().contains("there is no keeper")).await;
    assert_eq!(run(&scene.agent.executor().await, Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
}
