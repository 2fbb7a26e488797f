//! The line at the bottom of a terminal that says how far a run is.

use telexec_tests::{Tmux, until};

use super::Fleet;

/// A terminal whose `telexec` knows the fleet.
async fn terminal(fleet: &Fleet) -> Tmux {
    Tmux::open(&[("TELEXEC_CONFIG", fleet.path().join("config.toml").to_str().unwrap())]).await
}

/// Types this, and waits until what was typed is not seen any more.
async fn run(tmux: &Tmux, line: &str) {
    tmux.line(&format!("clear; {line}"));
    until("the line is taken", async || !tmux.screen().contains("clear;")).await;
}

/// The last line that is not empty.
fn last(tmux: &Tmux) -> String {
    tmux.screen().trim_end().lines().last().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn it_tells_how_far_the_run_is_and_goes_at_the_end() {
    let fleet = Fleet::of(6);
    let gate = fleet.path().join("gate");
    let tmux = terminal(&fleet).await;
    let wait = format!("echo begun; until [ -e {} ]; do sleep 0.01; done", gate.display());
    run(&tmux, &format!("telexec fleet -w @web,other -c \"[ \\\"\\$KIND\\\" = other ] || {{ {wait}; }}\"")).await;
    until("six of seven run", async || {
        let last = last(&tmux);
        last.starts_with("1/7 done, ") && last.ends_with(", 6 running")
    })
    .await;
    // it is no line of its own above others, and others are whole
    until("all have begun", async || tmux.screen().matches(": begun\n").count() == 6).await;
    assert_eq!(tmux.screen().matches("running").count(), 1, "{}", tmux.screen());
    // time goes on without events
    let (_, before) = last(&tmux).split_once(", ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    until("its time changes", async || !last(&tmux).ends_with(&before)).await;
    std::fs::write(gate, "").unwrap();
    tmux.shows("telexec: 7 of 7 ok").await;
    assert!(!tmux.screen().contains("running") && !tmux.screen().contains("done"), "{}", tmux.screen());
}

#[tokio::test]
async fn it_names_stragglers_and_batches_and_stays_below_failures() {
    let fleet = Fleet::of(3);
    fleet.add("gone", "127.0.0.1:1");
    let gate = fleet.path().join("gate");
    let tmux = terminal(&fleet).await;
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", gate.display());
    let flags = "--batch 3 --batch-wait 24h --max-failures 1";
    run(&tmux, &format!("telexec fleet {flags} -w 'gone,@web' -c '{wait}'")).await;
    until("the stragglers are named", async || {
        let last = last(&tmux);
        last.starts_with("1/4 done, ")
            && last.ends_with("batch 1 of 2, 1 waiting, 1 unreachable, 2 running: web[01-02]")
    })
    .await;
    until("the failure is named above", async || {
        tmux.screen().starts_with("telexec: gone: unreachable: Connection refused")
    })
    .await;
    // narrower than its text
    tmux.resize(40, 24);
    until("it fits", async || last(&tmux).ends_with('…')).await;
    tmux.resize(80, 24);
    std::fs::write(&gate, "").unwrap();
    tmux.shows("batch 2 of 2 in 23h").await;
    tmux.press("C-c");
    tmux.shows("telexec: 0 still running, 1 waiting; press Ctrl-C twice").await;
    until("it has ended", async || {
        tmux.press("C-c");
        tmux.screen().contains("telexec: 2 of 4 ok, 1 unreachable, 1 not run")
    })
    .await;
    assert!(!tmux.screen().contains("batch 2"), "{}", tmux.screen());
}

#[tokio::test]
async fn it_is_only_on_terminals() {
    let fleet = Fleet::of(2);
    let tmux = terminal(&fleet).await;
    // what reads the pipe writes to the same terminal
    let gate = fleet.path().join("gate");
    let wait = format!("echo begun; until [ -e {} ]; do sleep 0.01; done", gate.display());
    run(&tmux, &format!("telexec fleet -w @web -c '{wait}' | cat")).await;
    until("both have begun", async || tmux.screen().matches(": begun\n").count() == 2).await;
    assert!(!tmux.screen().contains("running"), "{}", tmux.screen());
    std::fs::write(gate, "").unwrap();
    tmux.shows("telexec: 2 of 2 ok").await;

    let file = fleet.path().join("stderr");
    run(&tmux, &format!("telexec fleet -w @web -- sleep 0.3 2>{}; echo code=$?", file.display())).await;
    tmux.shows("code=0\n").await;
    let stderr = std::fs::read_to_string(file).unwrap();
    assert!(stderr.starts_with("telexec: 2 of 2 ok") && !stderr.contains('\x1b'), "{stderr:?}");
    for flag in ["-q", "--json"] {
        run(&tmux, &format!("telexec fleet {flag} -w @web -- sleep 0.5 >/dev/null; echo code=$?")).await;
        tmux.shows("code=0\n").await;
        assert!(tmux.screen().starts_with("code=0\n"), "{}", tmux.screen());
    }
}
