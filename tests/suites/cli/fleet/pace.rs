//! How many at once, in which batches, and when it stops; and the exit code.

use super::{Fleet, summary};

#[tokio::test]
async fn one_after_the_other_is_in_their_order() {
    let fleet = Fleet::of(5);
    let said = fleet.say(&["-q", "-f", "1", "-w", "@web", "-c", "echo hi"]).await;
    assert_eq!(said.answer(), (1..=5).map(|host| format!("web{host:02}: hi\n")).collect::<String>());
}

/// A text that fails on the first host that runs it.
fn first_fails(fleet: &Fleet) -> String {
    format!("mkdir {} 2>/dev/null && exit 1; true", fleet.path().join("first").display())
}

#[tokio::test]
async fn a_batch_that_fails_is_the_last() {
    let fleet = Fleet::of(6);
    let said = fleet.say(&["--batch", "2", "-f", "1", "-w", "@web", "-c", &first_fails(&fleet)]).await;
    assert_eq!(said.code, 1);
    let lines = ["0 of 6 ok, 1 failed, 5 not run", "  web01: failed: exit code 1", "  web[02-06]: not run"];
    assert_eq!(summary(&said), lines);
}

#[tokio::test]
async fn failures_that_are_tolerated_stop_nothing() {
    let fleet = Fleet::of(6);
    let args = ["--batch", "34%", "--max-failures", "20%", "-w", "@web", "-c", &first_fails(&fleet)];
    let said = fleet.say(&args).await;
    assert_eq!((said.code, &*summary(&said)[0]), (1, "5 of 6 ok, 1 failed"));
}

#[tokio::test]
async fn the_first_failure_can_end_all() {
    let fleet = Fleet::of(3);
    let text = format!("{} && exec sleep 300", first_fails(&fleet));
    let said = fleet.say(&["-k", "-w", "@web", "-c", &text]).await;
    assert_eq!(said.code, 1);
    // of the other two, one may not have begun
    assert!(summary(&said)[0].starts_with("0 of 3 ok, 1 failed, "), "{said:?}");
}

#[tokio::test]
async fn the_largest_code_is_the_exit_code_if_that_is_asked_for() {
    let fleet = Fleet::of(2);
    for (text, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("sleep 60", 124)] {
        assert_eq!(fleet.say(&["-qS", "-u", "1", "-w", "@web", "-c", text]).await.code, code, "{text}");
    }
    assert_eq!(fleet.say(&["-qS", "-w", "web01", "--", "no-such-program"]).await.code, 127);
    assert_eq!(fleet.say(&["-qS", "--user", "no-such-user", "-w", "web01", "--", "id"]).await.code, 125);
    assert_eq!(fleet.say(&["-q", "-w", "@web", "-c", "exit 7"]).await.code, 1);
}

#[tokio::test]
async fn a_request_that_no_agent_takes_is_refused_at_once() {
    let fleet = Fleet::of(1);
    let said = fleet.say(&["-e", "A=\u{1}", "--workdir", "relative", "-w", "web01", "-c", "true"]).await;
    assert!(said.failure(125).contains("working_directory"), "{said:?}");
}
