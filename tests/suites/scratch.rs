use telexec_tests::*;
use telexec_tool::*;
use telexec_tool::local::*;
use std::time::Duration;
#[tokio::test(flavor = "multi_thread")]
async fn survivors_counted() {
    let e = LocalExecutor::new(LocalConfig::default()).unwrap();
    let mut wrong = 0;
    for shell in ["bash", "sh"] {
    for i in 0..1000 {
        let mark = marker();
        let o = run(&e, Command::shell("setsid sleep 300 >/dev/null 2>&1 </dev/null &").shell(shell).env(MARK, &mark)).await.unwrap();
        if o.exited.surviving_processes != 1 { wrong += 1; eprintln!("{shell} round {i}: {} {:?}", o.exited.surviving_processes, processes_with(&mark)); }
        e.signal(&o.started.id, Signal::KILL).await.unwrap();
        for p in processes_with(&mark) { let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(p.pid).unwrap(), rustix::process::Signal::KILL); }
    }}
    eprintln!("wrong: {wrong}");
}
#[tokio::test(flavor = "multi_thread")]
async fn respawn() {
    let e = LocalExecutor::new(LocalConfig::default()).unwrap();
    let text = "f() { trap '' TERM; sleep 0.02; f & }; for i in {1..8}; do f & done; echo ready; sleep 300";
    let mut bad = 0;
    for i in 0..10 {
        let mark = marker();
        let o = run(&e, Command::shell(text).env(MARK, &mark).timeout(Duration::from_millis(300)).kill_grace(Duration::from_millis(300))).await.unwrap();
        let left = processes_with(&mark);
        if !left.is_empty() { bad += 1; eprintln!("round {i}: {:?} {left:?}", o.exited.wall_time); 
        for _ in 0..50 { for p in processes_with(&mark) { let _ = rustix::process::kill_process_group(rustix::process::Pid::from_raw(p.session).unwrap(), rustix::process::Signal::KILL); } }
        }
    }
    eprintln!("bad: {bad}");
}
#[tokio::test(flavor = "multi_thread")]
async fn respawn_sessions() {
    let e = LocalExecutor::new(LocalConfig::default()).unwrap();
    let text = "R='trap \"\" TERM; sleep 0.02; setsid bash -c \"$R\" &'; export R; for i in {1..8}; do setsid bash -c \"$R\" & done; echo ready; sleep 300";
    let mut bad = 0;
    for i in 0..10 {
        let mark = marker();
        let o = run(&e, Command::shell(text).env(MARK, &mark).timeout(Duration::from_millis(300)).kill_grace(Duration::from_millis(300))).await.unwrap();
        let left = processes_with(&mark);
        if !left.is_empty() { bad += 1; eprintln!("round {i}: {:?} {left:?}", o.exited.wall_time); 
        for _ in 0..50 { for p in processes_with(&mark) { let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(p.pid).unwrap(), rustix::process::Signal::KILL); } }
        }
    }
    eprintln!("bad: {bad}");
}
