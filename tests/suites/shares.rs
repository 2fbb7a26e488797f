//! Callers that share a machine. How the kernel divides it is measured by tests/deploy/shares.sh.

use std::sync::Arc;

use crate::cli::troubleshooting::shows;
use crate::conformance::Machine;
use crate::conformance::spooling::{ended, numbers, replayed};
use futures_util::future::join_all;
use telexec_client::RemoteExecutor;
use telexec_executor::{Command, Executor, ExecutorError};
use telexec_tests::{Agent, AgentBuilder, Certs, Hierarchy, Leaf, is_root, run, until, until_output, within};

/// Two callers of an agent.
async fn alice_and_bob(agent: AgentBuilder) -> (Agent, RemoteExecutor, RemoteExecutor) {
    let certs = Certs::new();
    let agent = agent.mtls(&certs).start();
    let connect = async |name| agent.connect_as(&certs.ca.issue(Leaf::client(name))).await.executor();
    let (alice, bob) = (connect("alice").await, connect("bob").await);
    (agent, alice, bob)
}

/// The cgroups of version 2, from that of the agent's commands on, that a command is in.
async fn cgroups(machine: &RemoteExecutor) -> Vec<String> {
    let outcome = run(machine, Command::argv(["cat", "/proc/self/cgroup"])).await.unwrap();
    let text = outcome.text();
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    let names = path.split('/').skip_while(|name| !name.starts_with("telexec."));
    names.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_a_caller_are_in_one_group_whatever_others_do() {
    if Hierarchy::Unified.usable().is_none() {
        eprintln!("skipped: there is no cgroup of version 2 here");
        return;
    }
    let kept = || Agent::builder().kept();
    for agent in [Agent::builder()].into_iter().chain(is_root().then(kept)) {
        let (agent, alice, bob) = alice_and_bob(agent).await;
        let [tree, group, _] = <[String; 3]>::try_from(cgroups(&alice).await).unwrap();
        assert!(tree.starts_with("telexec.") && group.starts_with("identity."), "{tree}/{group}");
        let [_, group_of_bob, _] = <[String; 3]>::try_from(cgroups(&bob).await).unwrap();
        assert_ne!(group, group_of_bob);
        let mut leaves = Vec::new();
        for _ in 0..5 {
            // the second of two in a row is prepared for the third, who may be another
            for is_bob in [false, false, true, false, true, true] {
                let (machine, group) = if is_bob { (&bob, &group_of_bob) } else { (&alice, &group) };
                let [of_tree, of_group, leaf] = <[String; 3]>::try_from(cgroups(machine).await).unwrap();
                assert_eq!((&of_tree, &of_group), (&tree, group));
                leaves.push((of_group, leaf));
            }
        }
        let count = leaves.len();
        leaves.sort_unstable();
        leaves.dedup();
        assert_eq!(leaves.len(), count, "each has its own");
        drop(agent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_may_run_three_quarters_of_all() {
    let (_agent, alice, bob) = alice_and_bob(Agent::builder().config("max_executions = 4")).await;
    let mut running = Vec::new();
    let start = async |machine: &RemoteExecutor| {
        within(machine.execute(Command::shell("echo ready; sleep 300").build().unwrap())).await
    };
    for _ in 0..3 {
        let mut execution = start(&alice).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        running.push(execution);
    }
    let refused = start(&alice).await.err().unwrap();
    let ExecutorError::Exhausted { reason, retry_after: Some(_) } = &refused else { panic!("{refused:?}") };
    assert!(
        reason.contains("alice already has 3 running") && reason.contains("max_executions_per_identity"),
        "{reason}"
    );
    until_output(&mut start(&bob).await.unwrap(), "ready\n").await;
    running.pop();
    until("there is room again", async || start(&alice).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_callers_send_and_receive_at_once_is_whole() {
    let (_agent, alice, bob) = alice_and_bob(Agent::builder()).await;
    let text = |caller: usize, stream: usize| {
        let lines = (0..200_000).map(|line| format!("{caller} {stream} {line}\n"));
        lines.collect::<String>().into_bytes()
    };
    let streams = [&alice, &bob].into_iter().enumerate().flat_map(|(caller, machine)| {
        (0..6).map(move |stream| async move {
            let text = text(caller, stream);
            let outcome = run(machine, Command::argv(["cat"]).stdin(text.clone())).await.unwrap();
            assert!(outcome.stdout == text, "caller {caller}, stream {stream}: {} bytes", outcome.stdout.len());
            assert_eq!(outcome.exited.stdout.bytes, text.len() as u64);
        })
    });
    join_all(streams).await;
}

#[test]
fn a_limit_that_cannot_be_enforced_is_refused_before_an_agent_starts() {
    for (limit, controller) in [("max_memory_bytes_per_identity", "memory"), ("max_processes_per_identity", "pids")] {
        let config = format!("{limit} = 100000000\ncontainment = \"process-group\"");
        let refused = Agent::builder().config(config).try_start().err().unwrap();
        let expected = format!("{limit} cannot be enforced: it requires cgroup v2 with the controller {controller}");
        assert!(refused.log.contains(&expected), "{refused}");
        if controller == "memory" {
            shows("max_memory_bytes_per_identity cannot be enforced: …", &refused.log);
        }
        assert_eq!(refused.status.code(), Some(78), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_shares_is_told_where_they_cannot_be_had() {
    let policy = r#"@share("4") permit(principal, action in Action::"start", resource);"#;
    let agent = Agent::builder().policy(policy).config("containment = \"process-group\"").start();
    assert_eq!(run(&agent.executor().await, Command::shell("echo ran")).await.unwrap().text(), "ran\n");
    let warning = "@share does not divide processor time";
    shows("@share does not divide processor time", &agent.log());
    let count = || agent.log().matches(warning).count();
    std::fs::write(agent.policy(), policy.replace('4', "5")).unwrap();
    until("it is reported of the next policy too", async || count() == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_has_nothing_of_another_given_up_who_has_less() {
    let agent = Agent::builder().config("spool_total_bytes = 1000000");
    let (_agent, alice, bob) = alice_and_bob(agent).await;
    let (alice, bob): (Machine, Machine) = (Arc::new(alice), Arc::new(bob));
    let all = numbers(60_000);
    // 348,894 bytes each, of which a caller may have two
    let of_bob = ended(&bob, "seq 1 60000").await;
    let mut of_alice = Vec::new();
    for _ in 0..4 {
        of_alice.push(ended(&alice, "seq 1 60000").await);
    }
    let is_whole = async |machine: &Machine, id| {
        let replay = replayed(machine, id).await;
        replay.gaps.is_empty() && replay.text() == all
    };
    assert!(is_whole(&bob, &of_bob).await, "it is the oldest");
    let mut whole_of_alice = Vec::new();
    for id in &of_alice {
        whole_of_alice.push(is_whole(&alice, id).await);
    }
    assert_eq!(whole_of_alice, [false, false, false, true], "there is room for one of hers beside it");
    // for which he has more than she has
    let next_of_bob = ended(&bob, "seq 1 60000").await;
    assert!(is_whole(&bob, &next_of_bob).await && !is_whole(&bob, &of_bob).await);
    assert!(is_whole(&alice, &of_alice[3]).await);
}
