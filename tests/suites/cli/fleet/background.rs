//! `fleet -d`, and `fleet attach`, `ps` and `kill`, which come back to it.

use serde_json::Value;
use telexec_executor::Executor;
use telexec_tests::{Leaf, until};
use tokio::io::BufReader;

use super::super::{Said, interrupt, next_line};
use super::{Fleet, sorted, summary};

impl Fleet {
    /// Starts this everywhere, and gives the id.
    async fn detached(&self, text: &str) -> String {
        let said = self.say(&["-qd", "-w", "@web", "-c", text]).await;
        said.answer().strip_suffix('\n').unwrap().to_owned()
    }
}

#[tokio::test]
async fn it_starts_everywhere_and_is_followed_later() {
    let fleet = Fleet::of(3);
    let gate = fleet.path().join("gate");
    let wait = format!("echo begun; until [ -e {} ]; do sleep 0.01; done; echo done; exit 3", gate.display());
    let id = fleet.detached(&wait).await;
    let state = async || {
        let said = fleet.say(&["ps", &id]).await;
        let row = said.stdout().lines().nth(1).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        (said.code, row.join(" "))
    };
    assert_eq!(state().await, (0, "running 3 web[01-03]".to_owned()));
    std::fs::write(gate, "").unwrap();
    let said = fleet.say(&["attach", &id]).await;
    let lines = ["web01: begun", "web01: done", "web02: begun", "web02: done", "web03: begun", "web03: done"];
    assert_eq!((said.code, sorted(said.stdout())), (1, lines.to_vec()));
    assert_eq!(summary(&said)[1], "  web[01-03]: failed: exit code 3");
    assert_eq!(state().await, (1, "exited 3 3 web[01-03]".to_owned()));
    // the beginning of an ID is enough
    let prefix = &id[..id.len() - 2];
    assert_eq!(fleet.say(&["attach", "-qS", "-w", "web02", prefix]).await.code, 3);
    assert_eq!(fleet.say(&["attach", "-qS", prefix]).await.code, 3);
}

#[tokio::test]
async fn ctrl_c_leaves_it_running() {
    let fleet = Fleet::of(2);
    let id = fleet.detached("echo begun; exec sleep 300").await;
    let mut child = fleet.telexec(&["attach", &id]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        assert!(next_line(&mut stdout).await.ends_with(": begun\n"));
    }
    interrupt(&child);
    let said = Said::by_child(child).await;
    let lines = ["0 of 2 ok, 2 cancelled", "  web[01-02]: cancelled: detached; keeps running"];
    assert_eq!((said.code, &*summary(&said)), (130, &lines.map(str::to_owned)[..]));
    let said = fleet.say(&["ps", &id]).await;
    assert!(said.code == 0 && said.stdout().contains("running  2"), "{said:?}");
    fleet.say(&["kill", "-s", "KILL", &id]).await;
}

#[tokio::test]
async fn its_id_is_a_label_and_begins_the_ids_of_its_executions() {
    let fleet = Fleet::of(2);
    let id = fleet.detached("sleep 300").await;
    let executions =
        fleet.agent.executor().await.list(telexec_executor::ListQuery::default()).await.unwrap().executions;
    let mut ids: Vec<_> = executions.iter().map(|info| info.id.to_string()).collect();
    ids.sort();
    assert_eq!(ids, [format!("{id}.web01"), format!("{id}.web02")]);
    assert!(executions.iter().all(|info| info.labels["telexec.fleet"] == id));
    let json = fleet.say(&["ps", "--json", &id]).await;
    let lines = json.answer().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let shown: Vec<_> = lines.map(|line| format!("{} {}", line["host"], line["execution_id"])).collect();
    assert_eq!(shown, [format!("\"web01\" \"{id}.web01\""), format!("\"web02\" \"{id}.web02\"")]);
    fleet.say(&["kill", &id]).await;
}

#[tokio::test]
async fn it_is_ended_everywhere() {
    let fleet = Fleet::of(2);
    let id = fleet.detached("exec sleep 300").await;
    let said = fleet.say(&["kill", "-s", "KILL", &id]).await;
    assert_eq!((said.code, summary(&said)), (0, vec!["2 of 2 ok".to_owned()]));
    let said = fleet.say(&["attach", &id]).await;
    assert_eq!((said.code, &*summary(&said)[1]), (1, "  web[01-02]: failed: SIGKILL"));
}

#[tokio::test]
async fn what_was_started_from_here_is_listed() {
    let fleet = Fleet::of(2);
    assert_eq!(fleet.say(&["ps"]).await.answer().lines().count(), 1);
    let ids = [fleet.detached("true").await, fleet.detached("echo second").await];
    let said = fleet.say(&["ps"]).await;
    let rows: Vec<_> = said.answer().lines().skip(1).collect();
    assert!(
        rows[0].starts_with(&ids[0]) && rows[1].starts_with(&ids[1]) && rows[1].contains("web[01-02]  echo second")
    );
    let states = async || {
        let said = fleet.say(&["ps", "--json"]).await;
        let lines = said.answer().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["states"].to_string()).collect::<Vec<_>>()
    };
    until("they have ended", async || states().await == ["{\"exited 0\":2}"; 2]).await;
    let running = fleet.detached("exec sleep 300").await;
    fleet.say(&["kill", "-s", "KILL", "-w", "web01", &running]).await;
    let row = async || fleet.say(&["ps"]).await.answer().lines().last().unwrap().to_owned();
    until("one has ended", async || row().await.contains("  killed by SIGKILL (1), running (1)  ")).await;
    fleet.say(&["kill", "-s", "KILL", &running]).await;
    let unknown = fleet.say(&["attach", "fleet-f"]).await;
    assert!(unknown.failure(2).contains("no record of fleet-f on this machine"), "{unknown:?}");
    let several = fleet.say(&["attach", "fleet-0"]).await;
    assert!(several.failure(2).contains("3 runs have IDs that begin with fleet-0:\n"), "{several:?}");
    // an agent that does not know it
    let said = fleet.say(&["ps", "-w", "web01,other", &ids[0]]).await;
    assert!(said.code == 1 && said.stdout().contains("not found  1      other"), "{said:?}");
    let said = fleet.say(&["kill", "-w", "other", &ids[0]]).await;
    assert_eq!((said.code, summary(&said)[0].as_str()), (1, "0 of 1 ok, 1 not found"));
    // agents that do not show it to another identity
    let other = fleet.certs.ca.issue(Leaf::client("other"));
    let mut command = fleet.telexec(&["ps", "--json"]);
    command.env("TELEXEC_CERT", &other.cert).env("TELEXEC_KEY", &other.key);
    let said = Said::by(command).await;
    assert_eq!(said.answer().matches("\"states\":{\"not found\":2}").count(), 3, "{said:?}");
}

#[tokio::test]
async fn lines_that_make_no_sense_are_refused() {
    let fleet = Fleet::of(1);
    for line in [
        &["-d", "-i", "-w", "web01", "-c", "cat"][..],
        &["-d", "--dry-run", "-w", "web01", "-c", "cat"],
        &["--json", "-b", "-w", "web01", "-c", "cat"],
        &["-w", "web01", "-c", "a", "--", "b"],
        &["-f", "0", "-w", "web01", "-c", "a"],
        &["--batch", "101%", "-w", "web01", "-c", "a"],
        &["-t", "1", "--connect-timeout", "1", "-w", "web01", "-c", "a"],
        &["--batch-wait", "1s", "-w", "web01", "-c", "a"],
        &["attach"],
        &["attach", "../x"],
        &["attach", "--batch", "1", "x"],
        &["kill"],
        &["kill", "-k", "x"],
        &["ps", "--exited", "x"],
        &["ps", "--batch", "1", "x"],
        &["ping", "--batch", "1", "-w", "web01"],
        &["info", "-c", "a", "-w", "web01"],
        &["ping"],
    ] {
        assert_eq!(fleet.say(line).await.code, 2, "{line:?}");
    }
}
