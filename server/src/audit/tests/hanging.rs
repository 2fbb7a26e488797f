//! A disk that does not answer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use telexec_executor::{Command, ExecutionId, ExecutorError};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use super::*;
use crate::analysis::CommandAnalysis;
use crate::audit::Operation;
use crate::audit::rejected;
use crate::audit::writer::{Job, State, Writer};
use crate::audit::{
    Audit, CommandDescriber, Commands, Inner, Key, MAX_WAITING, NonZero, OmittedRecords, Quota, REFUSALS, RateLimiter,
    Recordings, Redact, Semaphore, Volume, WRITE_TIMEOUT, WhenFull, Workers,
};
use crate::call::caller::{Caller, Transport};
use crate::call::deadline::Deadline;
use crate::call::{Call, Rpc};
use crate::identity::Identity;
use crate::policy::Decision;
use crate::request_memory::Reservation;

/// Nothing writes what is in this queue yet.
fn hanging(when_full: WhenFull) -> (Audit, UnboundedReceiver<Job>, Arc<State>) {
    let (queue, jobs) = unbounded_channel();
    let state = Arc::new(State::default());
    let inner = Inner {
        shippers: Vec::new(),
        path: PathBuf::new(),
        recordings: Recordings::start(&AuditConfig::default(), Path::new("/none")).unwrap(),
        queue,
        slots: Arc::new(Semaphore::new(MAX_WAITING)),
        state: Arc::clone(&state),
        describer: Arc::new(CommandDescriber {
            key: Key::new(b"key"),
            commands: Commands::Full,
            redact: Redact::default(),
        }),
        workers: Workers::new("test", 1, 1).unwrap(),
        volume: Volume::new(&AuditConfig::default(), Vec::new()),
        omitted: OmittedRecords::default(),
        rejections: rejected::limiter(),
        typed: Mutex::default(),
        refusals: RateLimiter::keyed(Quota::per_second(NonZero::<u32>::MIN).allow_burst(REFUSALS)),
        when_full,
        output_digest: true,
        containment: "none",
    };
    (Audit(Some(Arc::new(inner))), jobs, state)
}

fn call() -> Call {
    let caller = Arc::new(Caller::new(Identity::anonymous(), Transport::Tcp, "127.0.0.1:1"));
    Call {
        connection: Default::default(),
        rpc: Rpc::Execute,
        caller,
        deadline: Deadline::default(),
        reservation: Reservation::uncounted().into(),
        trace: None,
    }
}

fn command() -> Command {
    Command::argv(["true"]).build().unwrap()
}

/// Whether a command would start now.
async fn starts(audit: &Audit) -> bool {
    let (id, analysis) = (ExecutionId::generate(), CommandAnalysis::new(None));
    match audit.record_start(&call(), &id, &command(), &analysis, &Decision::without_policy()).await {
        Ok(Some(_)) => true,
        Err(ExecutorError::Exhausted { retry_after: Some(_), .. }) => false,
        _ => panic!("neither starts nor is refused"),
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_until_it_answers() {
    let (audit, jobs, _) = hanging(WhenFull::Refuse);
    let begin = Instant::now();
    assert!(!starts(&audit).await);
    assert_eq!(begin.elapsed(), WRITE_TIMEOUT);
    // nothing else waits for it
    assert!(!starts(&audit).await && !starts(&audit).await);
    let (analysis, decision) = (CommandAnalysis::new(None), Decision::without_policy());
    audit.record_refused(&call(), &command(), &analysis, &decision, &ExecutorError::ShuttingDown).await;
    let reviewed = audit.record_review(&call(), Operation::default(), &decision, &command(), &analysis).await;
    assert!(matches!(reviewed, Err(ExecutorError::Exhausted { .. })), "nor is anything approved");
    assert_eq!(begin.elapsed(), WRITE_TIMEOUT);
    tokio::time::resume();

    let test_log = TestLog::new();
    let (log, _) = Log::open(test_log.path(), &AuditConfig::default()).unwrap();
    let Audit(Some(inner)) = &audit else { panic!("there is a log") };
    let state = Arc::clone(&inner.state);
    let writer = std::thread::spawn(move || Writer::new(log, "host".into(), state).run(jobs));
    while inner.state.is_stuck.load(Ordering::Relaxed) {
        tokio::task::yield_now().await;
    }
    // and is given up before it runs
    assert!(starts(&audit).await);
    audit.close().await;
    drop(audit);
    writer.join().unwrap();
    let text = String::from_utf8(test_log.bytes()).unwrap();
    let events: Vec<_> = text.lines().map(|line| line.split('"').nth(9).unwrap()).collect();
    assert_eq!(events, ["start", "not_started", "closed"], "{text}");
    assert!(text.lines().next().unwrap().contains("\"dropped\":5"), "{text}");
    assert_eq!(test_log.verify().0, 0);
}

#[tokio::test(start_paused = true)]
async fn what_starts_nevertheless_is_counted_and_not_piled_up() {
    let (audit, mut jobs, state) = hanging(WhenFull::Count);
    for _ in 0..10 {
        assert!(starts(&audit).await);
    }
    // without a record of the start there is none of the end
    assert_eq!(state.lost.load(Ordering::Relaxed), 10);
    let mut waiting = 0;
    while jobs.try_recv().is_ok() {
        waiting += 1;
    }
    assert!(waiting <= 2, "{waiting}");
}
