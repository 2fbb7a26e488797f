//! An agent of a user that is not root.

use std::os::unix::fs::PermissionsExt;

use futures_util::future::join_all;
use telexec_executor::Command;
use telexec_tests::{Place, collect, run};

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_as_the_agents_user() {
    let Some(place) = Place::unprivileged().await else { return };
    let outcome = run(&*place.executor(), Command::shell("id -u; id -g; echo $USER $PWD")).await.unwrap();
    assert_eq!(outcome.text(), "65534\n65534\nnobody /\n", "that user's home does not exist");
    place.close().await;
}

/// A user's pipes are limited together; past that they hold a page or two (pipe(7)).
async fn four_hundred_at_once_get_by_with_small_pipes(place: Option<Place>) {
    const BYTES: usize = 70_000;
    let Some(place) = place else { return };
    let executor = place.executor();
    let gate = place.agent().directory().join("gate");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    std::fs::set_permissions(&gate, PermissionsExt::from_mode(0o644)).unwrap();
    // lines of their own, which show what was lost, doubled or mixed up
    let text = format!(
        ": < {}; seq -f \"$0 %.f\" 100000 | head -c {BYTES}; seq -f \"err $0 %.f\" 100000 | head -c {BYTES} >&2",
        gate.display()
    );
    let command = |number: usize| Command::argv(["sh", "-c", &text, &number.to_string()]).stdin("x").build().unwrap();
    let executions = join_all((0..400).map(|number| executor.execute(command(number)))).await;
    // all are there at once: now they continue
    let opened = tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(gate).unwrap());
    let outcomes = join_all(executions.into_iter().map(|execution| collect(execution.unwrap()))).await;
    drop(opened.await.unwrap());
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let outcome = outcome.unwrap();
        let reported = |name: &str| {
            let mut lines: String = (1..=15_000).map(|i| format!("{name}{number} {i}\n")).collect();
            lines.truncate(BYTES);
            lines.into_bytes()
        };
        assert!(outcome.stdout == reported("") && outcome.stderr == reported("err "), "number {number}");
    }
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_commands_at_once_get_by_with_small_pipes() {
    four_hundred_at_once_get_by_with_small_pipes(Place::unprivileged().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_commands_in_delegated_cgroups_get_by_with_small_pipes() {
    four_hundred_at_once_get_by_with_small_pipes(Place::unprivileged_delegated().await).await;
}
