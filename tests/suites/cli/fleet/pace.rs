//! How many at once, in which batches, and when it stops; and the exit code.

use telexec_tests::{until, within};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::super::{interrupt, next_line};
use super::{Fleet, summary};

#[tokio::test]
async fn one_after_the_other_is_in_their_order() {
    let fleet = Fleet::of(5);
    let said = fleet.say(&["-q", "-f", "1", "-w", "@web", "-c", "echo hi"]).await;
    assert_eq!(said.answer(), (1..=5).map(|host| format!("web{host:02}: hi\n")).collect::<String>());
}

#[tokio::test]
async fn a_wait_between_batches_can_be_interrupted() {
    let fleet = Fleet::of(4);
    let args = ["--batch", "2", "--batch-wait", "1ms", "-f", "1", "-q", "-w", "@web", "--", "echo", "hi"];
    assert_eq!(fleet.say(&args).await.answer().lines().count(), 4);

    let args = ["--batch", "2", "--batch-wait", "24h", "-w", "@web", "--", "echo", "hi"];
    let mut child = fleet.telexec(&args).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        assert!(next_line(&mut stdout).await.ends_with(": hi\n"));
    }
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    // until the first two have ended, one interrupt may come before the wait
    until("the interrupt is noticed in the wait", async || {
        interrupt(&child);
        within(stderr.read_line(&mut said)).await.unwrap();
        said.contains("telexec: 0 still running, 2 waiting; press Ctrl-C twice") || said.contains(" ok, ")
    })
    .await;
    let mut status = None;
    until("it has ended", async || {
        status = child.try_wait().unwrap();
        if status.is_none() {
            interrupt(&child);
        }
        status.is_some()
    })
    .await;
    assert_eq!(status.unwrap().code(), Some(130));
    within(stderr.read_to_string(&mut said)).await.unwrap();
    assert!(said.contains("2 of 4 ok, 2 not run"), "{said}");
    assert!(within(stdout.read_to_string(&mut String::new())).await.is_ok_and(|read| read == 0));
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
        assert_eq!(fleet.say(&["-qS", "-u", "1s", "-w", "@web", "-c", text]).await.code, code, "{text}");
    }
    assert_eq!(fleet.say(&["-qS", "-w", "web01", "--", "no-such-program"]).await.code, 127);
    assert_eq!(fleet.say(&["-qS", "-l", "no-such-user", "-w", "web01", "--", "id"]).await.code, 125);
    assert_eq!(fleet.say(&["-q", "-w", "@web", "-c", "exit 7"]).await.code, 1);
}

#[tokio::test]
async fn a_request_that_no_agent_takes_is_refused_at_once() {
    let fleet = Fleet::of(1);
    let said = fleet.say(&["-e", "A=\u{1}", "--workdir", "relative", "-w", "web01", "-c", "true"]).await;
    assert!(said.failure(125).contains("--workdir is not an absolute path"), "{said:?}");
}
