//! `fleet ping`, `fleet info`, and `fleet ps` of hosts.

use serde_json::Value;

use super::{Fleet, sorted, summary};

fn json_lines(text: &str) -> Vec<Value> {
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.sort_by_key(|line| line["host"].to_string());
    lines
}

#[tokio::test]
async fn ping_tells_who_is_serving() {
    let fleet = Fleet::of(2);
    fleet.add("gone", "127.0.0.1:1");
    let said = fleet.say(&["ping", "-w", "@web,gone"]).await;
    let lines: Vec<_> = said.stdout().lines().map(|line| line.split_once(", ").unwrap().0).collect();
    assert_eq!((said.code, &*lines), (1, &["web01: serving", "web02: serving"][..]));
    let lines = [
        "2 of 3 ok, 1 unreachable",
        "  gone: unreachable: Connection refused (os error 111)",
        "no agent is listening there: check the port, and that telexecd is running",
    ];
    assert_eq!(summary(&said), lines);
    assert_eq!(fleet.say(&["ping", "-q", "-w", "@web"]).await.answer().lines().count(), 2);

    let said = fleet.say(&["ping", "--json", "-w", "web01,gone"]).await;
    let lines = json_lines(said.stdout());
    assert_eq!((said.code, said.stderr(), lines.len()), (1, "", 2));
    assert_eq!((&lines[0]["host"], &lines[0]["outcome"]), (&"gone".into(), &"unreachable".into()));
    assert!(lines[1]["serving"] == true && lines[1]["round_trip"].is_f64(), "{lines:?}");
}

#[tokio::test]
async fn info_describes_all_agents() {
    let fleet = Fleet::of(2);
    fleet.add("gone", "127.0.0.1:1");
    let said = fleet.say(&["info", "-w", "@web,gone"]).await;
    assert_eq!((said.code, &*summary(&said)[0]), (1, "2 of 3 ok, 1 unreachable"));
    assert_eq!(said.stderr().matches("gone: ").count(), 1, "once, in the summary: {said:?}");
    let rows: Vec<Vec<_>> = said.stdout().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["HOST", "VERSION", "CONTAINMENT", "RUNNING", "CERTIFICATE", "POLICY", "OS"]);
    assert_eq!((rows.len(), rows[1][0], rows[2][0]), (3, "web01", "web02"));
    assert_eq!((rows[1][1], rows[1][3]), (env!("CARGO_PKG_VERSION"), "0"));
    assert_eq!(rows[1][4], "4096-01-01");

    let said = fleet.say(&["info", "--json", "-w", "@web"]).await;
    let lines = json_lines(said.answer());
    assert!(lines.iter().all(|line| line["containment"].is_string() && line["running_executions"] == 0), "{lines:?}");
    assert_eq!((&lines[0]["host"], &lines[1]["host"]), (&"web01".into(), &"web02".into()));
}

#[tokio::test]
async fn ps_lists_what_hosts_run() {
    let fleet = Fleet::of(1);
    assert_eq!(fleet.say(&["ps", "-w", "web01,other"]).await.stdout(), "");
    let started = fleet.say(&["-qd", "--label", "job=a", "-w", "web01,other", "--", "sleep", "300"]).await;
    let id = started.answer().trim_end();
    fleet.say(&["-q", "--label", "job=b", "-w", "web01", "--", "true"]).await;
    let rows = async |args: &[&str]| {
        let said = fleet.say(&[&["ps", "-w", "web01,other"], args].concat()).await;
        assert_eq!((said.code, &*summary(&said)), (0, &["2 of 2 ok".to_owned()][..]));
        let rows = said.stdout().lines().map(|line| line.split_whitespace().map(str::to_owned).collect());
        rows.collect::<Vec<Vec<String>>>()
    };
    let running = rows(&[]).await;
    assert_eq!(running[0], ["HOST", "ID", "STATE", "PID", "STARTED", "CPU", "MEMORY", "USER", "COMMAND"]);
    assert_eq!(running.len(), 3);
    for (row, host) in running[1..].iter().zip(["web01", "other"]) {
        assert_eq!(row[..3], [host.to_owned(), format!("{id}.{host}"), "running".to_owned()]);
        assert_eq!(row[row.len() - 2..], ["sleep", "300"]);
    }
    let ended = rows(&["--exited", "--label", "job=b"]).await;
    assert_eq!((ended.len(), ended[1][0].as_str(), ended[1].last().unwrap().as_str()), (2, "web01", "true"));

    let said = fleet.say(&["ps", "--json", "-w", "web01,other"]).await;
    let lines = json_lines(said.answer());
    let shown: Vec<_> = lines.iter().map(|line| format!("{} {}", line["host"], line["state"])).collect();
    assert_eq!(sorted(&shown.join("\n")), ["\"other\" \"running\"", "\"web01\" \"running\""]);
    fleet.say(&["kill", "-s", "KILL", id]).await;
}
