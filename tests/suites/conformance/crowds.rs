//! Orphans, by the thousand.

use std::time::Duration;

use futures_util::future::join_all;
use telexec_executor::{Command, Descendants};
use telexec_tests::{run, until};

use super::Machine;

/// Zombies among the children of this process.
fn zombies(parent: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let is_zombie = |stat: &String| {
        let after_name = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace());
        after_name.is_some_and(|mut fields| (fields.next(), fields.next()) == (Some("Z"), Some(parent)))
    };
    stats.filter(is_zombie).collect()
}

/// Each process of the flood loses its parent, and ends as a child of the agent.
async fn a_flood_of_orphans_leaves_no_zombie_and_no_wrong_exit_code(machine: Machine) {
    let flood = "for i in $(seq 700); do (: & exec true) & (sleep 0.1 &) & done; wait; exit 3";
    let flood = || Command::shell(flood).shell("sh").descendants(Descendants::Kill).kill_grace(Duration::ZERO);
    let floods = join_all((0..2).map(|_| run(&machine, flood())));
    let others = async {
        let mut parent = String::new();
        for code in 0..100 {
            let outcome = run(&machine, Command::shell(format!("echo $PPID; exit {code}")).shell("sh")).await.unwrap();
            assert_eq!(outcome.exited.exit_code(), code);
            outcome.text().trim().clone_into(&mut parent);
        }
        parent
    };
    let (floods, agent) = tokio::join!(floods, others);
    for outcome in floods {
        assert_eq!(outcome.unwrap().exited.exit_code(), 3);
    }
    until("all are reaped", async || zombies(&agent).is_empty()).await;
}

telexec_tests::contained!(a_flood_of_orphans_leaves_no_zombie_and_no_wrong_exit_code);
