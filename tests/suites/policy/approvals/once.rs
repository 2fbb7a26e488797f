//! An approval is for one start, whatever repeats, races and fails.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn one_approval_starts_one_of_many() {
    let ruled = ruled(RULES);
    let place = ruled.agent.directory().to_str().unwrap().to_owned();
    let start = || asked("echo ran >> ran").working_directory(&place);
    ruled.approved("anna", start()).await;
    let executor = ruled.to("anna").await.executor();
    let runs = join_all((0..20).map(|_| run(&executor, start()))).await;
    assert_eq!(runs.iter().filter(|run| run.is_ok()).count(), 1, "{runs:?}");
    assert_eq!(std::fs::read_to_string(ruled.agent.directory().join("ran")).unwrap(), "ran\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_its_start_is_no_start() {
    let ruled = ruled(RULES);
    let start = || asked("echo ran; sleep 0").execution_id("mine".parse().unwrap());
    ruled.approved("anna", start()).await;
    assert_eq!(ruled.run_as("anna", start()).await.unwrap().text(), "ran\n");
    assert_eq!(ruled.run_as("anna", start()).await.unwrap().text(), "ran\n", "what has run");
    ruled.pending("anna", asked("echo ran; sleep 0").execution_id("other".parse().unwrap())).await;
    // whatever has become of the approval
    for number in 0..20 {
        ruled.pending("anna", asked(&format!("echo {number}"))).await;
    }
    assert_eq!(ruled.run_as("anna", start()).await.unwrap().text(), "ran\n");
    assert!(ruled.listed("anna").await.iter().all(|approval| approval.state() == ApprovalState::Pending));
    // an id that was used before the approval is not what was approved
    assert!(ruled.run_as("anna", sh("true").execution_id("taken".parse().unwrap())).await.is_ok());
    ruled.approved("anna", asked("echo again")).await;
    let taken = ruled.run_as("anna", asked("echo again").execution_id("taken".parse().unwrap())).await;
    assert!(matches!(taken, Err(ExecutorError::AlreadyExists(_))), "{taken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_uses_up_no_approval() {
    let ruled = ruled(RULES);
    let missing = || Command::argv(["/no/such/program"]).reason("incident");
    ruled.approved("anna", missing()).await;
    for _ in 0..2 {
        assert!(matches!(ruled.run_as("anna", missing()).await, Err(ExecutorError::Spawn(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_at_once_are_one_start() {
    let directory = tempfile::tempdir().unwrap();
    let ruled = Ruled::start(RULES, &format!("[audit]\nfile = {:?}\n", directory.path().join("audit.log")));
    let ran = ruled.agent.directory().join("ran");
    let start = || asked(&format!("echo ran | tee -a {}", ran.display())).execution_id("one".parse().unwrap());
    ruled.approved("anna", start()).await;
    let executor = ruled.to("anna").await.executor();
    for run in join_all((0..20).map(|_| run(&executor, start()))).await {
        match run {
            Ok(outcome) => assert_eq!(outcome.text(), "ran\n"),
            // the one that starts it waits for the audit log
            Err(ExecutorError::FailedPrecondition { reason }) => assert!(reason.contains("try again"), "{reason}"),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "ran\n");
}

/// What was started without an approval, before the rules were changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_no_way_to_what_was_not_approved() {
    let before = r#"permit(principal, action in Action::"start", resource);"#;
    let ruled = ruled(before);
    let shell = || {
        let command = asked("while read -r line; do echo \"$line\"; done").accepts_input(true);
        command.execution_id("shell".parse().unwrap()).on_disconnect(OnDisconnect::Detach)
    };
    let executor = ruled.to("anna").await.executor();
    let running = within(executor.execute(shell().build().unwrap())).await.unwrap();
    let after = r#"@id("on-call") @approval("15m") permit(principal, action in Action::"start", resource);
                   @id("check") permit(principal, action == Action::"CheckCommand", resource);"#;
    ruled.replace(after);
    until("its call is ended", async || ruled.to("anna").await.check(&sh("id").build().unwrap()).await.is_ok()).await;
    assert!(collect(running).await.is_err());
    let id = ruled.pending("anna", shell()).await;
    assert!(!id.is_empty());
    // whoever may attach sees it, and may do no more than by that
    ruled.replace(&format!("{after} permit(principal, action == Action::\"Attach\", resource);"));
    let wire = Wire::connect_tls(&ruled.agent, ruled.certs.config(Some(&ruled.pair("anna")))).await.unwrap();
    let request = command_to_wire(&shell().build().unwrap());
    until("it is followed, and sent nothing", async || {
        let input = InteractRequest { request: Some(Step::Stdin("typed\n".into())) };
        let start = InteractRequest { request: Some(Step::Start(request.clone())) };
        let stream = within(wire.executions().interact(futures_util::stream::iter([start, input]))).await;
        let Ok(stream) = stream else { return false };
        let followed = follow(stream.into_inner()).await;
        assert_eq!((followed.status.code(), followed.stdout()), (Code::PermissionDenied, Vec::new()));
        followed.status.message().contains("WriteInput")
    })
    .await;
}

/// Whoever fills a share of the audit log decides when a repeat is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_that_is_refused_gives_no_approval_back() {
    let directory = tempfile::tempdir().unwrap();
    let audit = format!("[audit]\nfile = {:?}\nmax_bytes_per_identity = 65536\n", directory.path().join("audit.log"));
    let ruled = Ruled::start(RULES, &audit);
    let start = |id: &str| asked("echo ran").execution_id(id.parse().unwrap());
    let id = ruled.approved("anna", start("one")).await;
    assert!(ruled.run_as("anna", start("one")).await.is_ok());
    // by records that are longer than that of the repeat
    let fill = || asked("true").env("TERM", "x".repeat(200));
    until("the share is filled", async || {
        matches!(ruled.run_as("anna", fill()).await, Err(ExecutorError::Exhausted { .. }))
    })
    .await;
    for _ in 0..3 {
        let repeated = ruled.run_as("anna", start("one")).await;
        assert!(matches!(repeated, Err(ExecutorError::Exhausted { .. })), "{repeated:?}");
    }
    let listed = ruled.listed("bob").await;
    let used = listed.iter().find(|approval| approval.approval_id == id).unwrap();
    assert_eq!(used.state(), ApprovalState::Used);
}

/// One whose program appears while it is tried by two ids.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_for_one_id_starts_for_one_other() {
    let ruled = ruled(RULES);
    for round in 0..10 {
        let (program, ran) = (
            ruled.agent.directory().join(format!("program{round}")),
            ruled.agent.directory().join(format!("ran{round}")),
        );
        let argv = [program.to_str().unwrap(), ran.to_str().unwrap()];
        let start = || Command::argv(argv).reason("incident");
        ruled.approved("anna", start()).await;
        let executor = ruled.to("anna").await.executor();
        let runs = (0..16).map(|call| {
            let id = format!("{round}-{}", call % 2).parse().unwrap();
            run(&executor, start().execution_id(id))
        });
        let appears = async {
            tokio::task::yield_now().await;
            telexec_tests::executable(
                ruled.agent.directory(),
                &format!("program{round}"),
                "#!/bin/sh\necho $TELEXEC_EXECUTION_ID >> \"$1\"\n",
            );
        };
        let (runs, ()) = tokio::join!(join_all(runs), appears);
        drop(runs);
        // if it has appeared too late for all of them
        let _ = ruled.run_as("anna", start()).await;
        assert_eq!(telexec_tests::lines(&ran).len(), 1, "round {round}");
    }
}

/// Whoever tries to start it all the time does not keep it from being rejected, or evicted for other requests of its own.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_again_and_again_can_be_rejected() {
    let ruled = ruled(RULES);
    let missing = || Command::argv(["/no/such/program"]).reason("incident");
    let id = ruled.approved("anna", missing()).await;
    for number in 0..15 {
        ruled.pending("anna", asked(&format!("echo {number}"))).await;
    }
    let executor = ruled.to("anna").await.executor();
    let tries = join_all((0..8).map(async |_| {
        loop {
            match run(&executor, missing()).await {
                Err(ExecutorError::Denied { reason, .. }) if reason.contains("rejected") => return,
                Err(ExecutorError::Spawn(_)) => {}
                Err(ExecutorError::Denied { reason, .. }) => assert!(reason.contains("try again"), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
    }));
    let rejected = async {
        for number in 15..30 {
            ruled.pending("anna", asked(&format!("echo {number}"))).await;
        }
        ruled.reject("bob", &id).await.unwrap()
    };
    let ((), rejected) = tokio::join!(async { drop(within(tries).await) }, rejected);
    assert_eq!(rejected.state(), ApprovalState::Rejected);
}
