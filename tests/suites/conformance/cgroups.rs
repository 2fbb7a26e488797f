//! Commands that make cgroups of their own, freeze themselves in them, or leave the one that they were put into.

use std::path::PathBuf;

use telexec_executor::{
    Command, Descendants, Execution, ExecutionState, ExecutorError, ExitCause, ResourceLimits, Signal,
};
use telexec_tests::{
    Cleared, Hierarchy, MARK, cgroups_named, directory, has_controller, marker, processes_with, run, until,
    until_output,
};

use super::Machine;

/// What the agent's own cgroups are called like; those of commands are below.
const OF_AGENT: &str = "/telexec.";

/// Shell text for `$own`: three levels below it, with a process in a session of its own on each. Only the shell itself,
/// whose cgroup must be left free to be divided on some machines, stays where it is.
const NESTED: &str = "set -e; at=$own/$TELEXEC_TEST; for level in 1 2 3; do
        mkdir $at; setsid sh -c 'echo $$ > $0/cgroup.procs; echo ready > ready.$1; exec sleep 300' $at $level &
        until [ -e ready.$level ]; do sleep 0.01; done; at=$at/$TELEXEC_TEST
    done; ";

async fn start(machine: &Machine, text: &str, mark: &str, directory: &std::path::Path) -> Execution {
    let command = Command::shell(text).env(MARK, mark).working_directory(directory.to_str().unwrap());
    let grace = std::time::Duration::from_millis(200);
    let mut execution = machine.execute(command.kill_grace(grace).build().unwrap()).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    execution
}

/// The cgroups that the agent made for this command, as its process reports them.
fn cgroups_of(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter(|path| path.contains(OF_AGENT)).map(str::to_owned).collect()
}

/// Those of these that are still there.
fn left(cgroups: &[String]) -> Vec<PathBuf> {
    let there = |path: &PathBuf| cgroups.iter().any(|cgroup| path.to_string_lossy().ends_with(cgroup));
    cgroups_named("").into_iter().filter(there).collect()
}

/// No process is left, and where the agent had put the command, no cgroup.
async fn nothing_is_left(mark: &str, cgroups: &[String]) {
    until("no process is left", async || processes_with(mark).is_empty()).await;
    until("no cgroup is left", async || left(cgroups).is_empty()).await;
    assert!(cgroups.is_empty() || cgroups_named(mark).is_empty(), "{:?}", cgroups_named(mark));
}

/// Whatever the hierarchy that the agent uses.
async fn of_its_own(machine: &Machine, hierarchy: Hierarchy) {
    let (mark, directory) = (marker(), directory());
    let _cleared = Cleared(mark.clone());
    let text = format!("{}{NESTED}echo ready; sleep 300", hierarchy.find_own());
    let execution = start(machine, &text, &mark, directory.path()).await;
    let cgroups = cgroups_of(execution.started().pid);
    assert_eq!(cgroups_named(&mark).len(), 3);
    drop(execution);
    until("no process is left", async || processes_with(&mark).is_empty()).await;
    until("no cgroup is left", async || left(&cgroups).is_empty()).await;
}

async fn that_is_frozen(machine: &Machine, hierarchy: Hierarchy) {
    let (mark, directory) = (marker(), directory());
    let _cleared = Cleared(mark.clone());
    let freeze = hierarchy.freeze();
    let text = format!(
        "{}set -e; at=$own/$TELEXEC_TEST; mkdir $at; setsid sleep 300 & echo $! > $at/cgroup.procs
        set -- $at; {freeze}echo ready; sleep 300",
        hierarchy.find_own()
    );
    let execution = start(machine, &text, &mark, directory.path()).await;
    let cgroups = cgroups_of(execution.started().pid);
    drop(execution);
    until("no process is left", async || processes_with(&mark).is_empty()).await;
    until("no cgroup is left", async || left(&cgroups).is_empty()).await;
}

/// Only the topmost of such cgroups lists which processes are in them; see "Threads" in the kernel's cgroup-v2.rst.
async fn cancel_leaves_nothing_of_threaded_cgroups(machine: Machine) {
    if !is_there(Hierarchy::Unified) {
        return;
    }
    let (mark, directory) = (marker(), directory());
    let text = format!(
        "{}set -e; at=$own/$TELEXEC_TEST; mkdir $at; echo threaded > $at/cgroup.type
        setsid sleep 300 & echo $! > $at/cgroup.threads; echo ready; sleep 300",
        Hierarchy::Unified.find_own()
    );
    let execution = start(&machine, &text, &mark, directory.path()).await;
    let cgroups = cgroups_of(execution.started().pid);
    drop(execution);
    nothing_is_left(&mark, &cgroups).await;
}

/// A user is kept out of what is closed to it, also if it is its own; but the agent is to get in.
async fn cancel_leaves_nothing_of_closed_cgroups(machine: Machine) {
    let own = keeping(&machine).await.find_own();
    let (mark, directory) = (marker(), directory());
    let text =
        format!("{own}{NESTED}chmod 0 $own/$TELEXEC_TEST/cgroup.procs $own/$TELEXEC_TEST; echo ready; sleep 300");
    let execution = start(&machine, &text, &mark, directory.path()).await;
    let cgroups = cgroups_of(execution.started().pid);
    drop(execution);
    nothing_is_left(&mark, &cgroups).await;
}

async fn cancel_ends_who_closed_its_own_cgroup(machine: Machine) {
    let own = keeping(&machine).await.find_own();
    let (mark, directory) = (marker(), directory());
    let text = format!("{own}find $own -maxdepth 1 -type f -exec chmod 0 {{}} +; chmod 0 $own; echo ready; sleep 300");
    let execution = start(&machine, &text, &mark, directory.path()).await;
    let cgroups = cgroups_of(execution.started().pid);
    drop(execution);
    nothing_is_left(&mark, &cgroups).await;
}

/// As a tool does that clears away empty cgroups.
const REMOVE_OWN: &str = "until rmdir $own; do sleep 0.01; done 2>/dev/null; ";

async fn cancel_ends_who_removed_its_cgroup(machine: Machine) {
    let own = keeping(&machine).await.find_own();
    cancel_ends_who_left(&machine, &format!("{own}{{leave}}{REMOVE_OWN}echo ready; sleep 300")).await;
}

async fn who_removed_its_cgroup_can_exit(machine: Machine) {
    let own = keeping(&machine).await.find_own();
    let text = format!("{own}{}{REMOVE_OWN}echo done; exit 3", leave());
    let outcome = run(&machine, Command::shell(text)).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.cause), ("done\n", ExitCause::Exited(3)));
}

/// A machine may have one hierarchy only.
fn is_there(hierarchy: Hierarchy) -> bool {
    let there = hierarchy.usable().is_some();
    if !there {
        eprintln!("skipped: {hierarchy:?} is not there");
    }
    there
}

async fn cancel_leaves_nothing_of_unified_cgroups(machine: Machine) {
    if is_there(Hierarchy::Unified) {
        of_its_own(&machine, Hierarchy::Unified).await;
    }
}

async fn cancel_leaves_nothing_of_freezers(machine: Machine) {
    if is_there(Hierarchy::Freezer) {
        of_its_own(&machine, Hierarchy::Freezer).await;
    }
}

async fn cancel_leaves_nothing_that_froze_in_a_unified_cgroup(machine: Machine) {
    if is_there(Hierarchy::Unified) {
        that_is_frozen(&machine, Hierarchy::Unified).await;
    }
}

async fn cancel_leaves_nothing_that_froze_in_a_freezer(machine: Machine) {
    if is_there(Hierarchy::Freezer) {
        that_is_frozen(&machine, Hierarchy::Freezer).await;
    }
}

/// The hierarchy that the agent keeps the command in.
fn keeper(pid: u32) -> Hierarchy {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let of_agent = text.lines().find(|line| line.contains(OF_AGENT)).unwrap();
    if of_agent.starts_with("0::") { Hierarchy::Unified } else { Hierarchy::Freezer }
}

async fn keeping(machine: &Machine) -> Hierarchy {
    let execution = start(machine, "echo ready; sleep 300", &marker(), "/".as_ref()).await;
    keeper(execution.started().pid)
}

async fn cgroups_are_gone_after_an_exit(machine: Machine) {
    let hierarchy = keeping(&machine).await;
    let (mark, directory) = (marker(), directory());
    let text = format!(
        "{}mkdir -p $own/$TELEXEC_TEST/$TELEXEC_TEST; echo ready; until [ -e go ]; do sleep 0.01; done",
        hierarchy.find_own()
    );
    let execution = start(&machine, &text, &mark, directory.path()).await;
    let cgroups = cgroups_of(execution.started().pid);
    // of version 1 there is one for its memory, too
    assert!(!cgroups.is_empty() && cgroups_named(&mark).len() == 2, "{cgroups:?}");
    std::fs::write(directory.path().join("go"), "").unwrap();
    nothing_is_left(&mark, &cgroups).await;
    assert_eq!(machine.get(execution.id()).await.unwrap().exited.unwrap().cause, ExitCause::Exited(0));
}

async fn cgroups_are_gone_after_the_last_survivor(machine: Machine) {
    let hierarchy = keeping(&machine).await;
    let (mark, directory) = (marker(), directory());
    let survivor = "echo $$ > $0/cgroup.procs; touch in; until [ -e go ]; do sleep 0.01; done";
    let text = format!(
        "{}at=$own/$TELEXEC_TEST; mkdir $at; setsid sh -c '{survivor}' $at >/dev/null 2>&1 &
        until [ -e in ]; do sleep 0.01; done; cat /proc/self/cgroup; echo ready; exit 3",
        hierarchy.find_own()
    );
    let command = Command::shell(text).env(MARK, &mark).working_directory(directory.path().to_str().unwrap());
    let outcome = run(&machine, command).await.unwrap();
    // the shell itself, and the `sleep` of the survivor or none
    assert!((1..=2).contains(&outcome.exited.surviving_processes), "{:?}", outcome.exited);
    let of_agent = outcome.text().lines().filter(|line| line.contains(OF_AGENT));
    let cgroups: Vec<String> = of_agent.map(|line| line.splitn(3, ':').nth(2).unwrap().to_owned()).collect();
    assert!(!left(&cgroups).is_empty() && cgroups_named(&mark).len() == 1, "{cgroups:?}");
    std::fs::write(directory.path().join("go"), "").unwrap();
    nothing_is_left(&mark, &cgroups).await;
    until("it has exited", async || machine.get(&outcome.started.id).await.unwrap().state == ExecutionState::Exited)
        .await;
}

/// Shell text by which a shell moves to the roots of all hierarchies.
fn leave() -> String {
    let mounts = Hierarchy::ALL.into_iter().filter_map(Hierarchy::usable);
    mounts.map(|mount| format!("echo $$ > {}/cgroup.procs; ", mount.display())).collect()
}

/// What left its cgroups, with shell text that has it run; `{leave}` in it makes a shell leave them.
async fn cancel_ends_who_left(machine: &Machine, text: &str) {
    let mark = marker();
    let execution = start(machine, &text.replace("{leave}", &leave()), &mark, "/".as_ref()).await;
    let cgroups = cgroups_of(execution.started().pid);
    drop(execution);
    nothing_is_left(&mark, &cgroups).await;
}

async fn cancel_ends_a_main_process_that_left_its_cgroup(machine: Machine) {
    cancel_ends_who_left(&machine, "{leave}echo ready; sleep 300").await;
}

async fn cancel_ends_a_child_that_left_its_cgroup(machine: Machine) {
    let text = "setsid sh -c '{leave}echo ready; exec sleep 300' & sleep 300";
    cancel_ends_who_left(&machine, text).await;
}

async fn cancel_ends_an_orphan_that_left_its_cgroup(machine: Machine) {
    let text = "(setsid sh -c '{leave}trap \"\" TERM; echo ready; sleep 300; sleep 300' &); sleep 300";
    cancel_ends_who_left(&machine, text).await;
}

/// Only its parents show whose it is.
async fn cancel_ends_a_child_with_an_empty_environment_that_left_its_cgroup(machine: Machine) {
    let text = "env -i setsid bash -c \"{leave}trap '' TERM; echo ready; exec -a $TELEXEC_TEST sleep 300\" & sleep 300";
    cancel_ends_who_left(&machine, &text.replace("{leave}", &leave().replace('$', "\\$"))).await;
}

async fn descendants_that_left_are_ended_when_asked_for(machine: Machine) {
    let mark = marker();
    let text = format!("setsid sh -c '{}echo ready; exec sleep 300' & read -r line < <(sleep 0.3)", leave());
    let command = Command::shell(text).env(MARK, &mark).descendants(Descendants::Kill);
    let outcome = run(&machine, command).await.unwrap();
    assert_eq!((processes_with(&mark), outcome.exited.surviving_processes), (Vec::new(), 0));
}

/// The limits of one command are not those of others.
async fn a_fork_bomb_stops_at_its_limit_and_others_run(machine: Machine) {
    if !has_controller("pids") {
        eprintln!("skipped: no controller for processes here");
        return;
    }
    let mark = marker();
    let limits = ResourceLimits { max_processes: Some(40), ..ResourceLimits::default() };
    let limited = |text: &str| Command::shell(text).shell("sh").limits(limits).env(MARK, &mark);

    let text = "for i in $(seq 100); do sleep 300 & done; echo not reached";
    let outcome = run(&machine, limited(text).descendants(Descendants::Kill)).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.cause), ("", ExitCause::Exited(2)));
    assert!(String::from_utf8_lossy(&outcome.stderr).contains("fork"), "{outcome:?}");
    assert_eq!(processes_with(&mark), []);

    let bomb = "echo ready; f() { f & f & }; while :; do f; done 2>/dev/null";
    let mut execution = machine.execute(limited(bomb).build().unwrap()).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    for code in 0..10 {
        let outcome = run(&machine, Command::shell(format!("(exit {code}) & wait $!"))).await.unwrap();
        assert_eq!(outcome.exited.exit_code(), code);
    }
    machine.signal(execution.id(), Signal::KILL).await.unwrap();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// An agent that cannot hold a limit reports that, rather than run without it.
async fn a_limit_that_cannot_be_held_is_refused(machine: Machine) {
    let limits = ResourceLimits { max_processes: Some(40), ..ResourceLimits::default() };
    let refused = run(&machine, Command::argv(["true"]).limits(limits)).await.unwrap_err();
    assert!(matches!(refused, ExecutorError::Unsupported { .. }), "{refused:?}");
}

telexec_tests::at_place! { cgroup_v2:
    cancel_leaves_nothing_of_threaded_cgroups,
    cancel_ends_who_removed_its_cgroup,
    who_removed_its_cgroup_can_exit,
    cancel_leaves_nothing_of_unified_cgroups,
    cancel_leaves_nothing_of_freezers,
    cancel_leaves_nothing_that_froze_in_a_unified_cgroup,
    cancel_leaves_nothing_that_froze_in_a_freezer,
    cgroups_are_gone_after_an_exit,
    cgroups_are_gone_after_the_last_survivor,
    cancel_ends_a_main_process_that_left_its_cgroup,
    cancel_ends_a_child_that_left_its_cgroup,
    cancel_ends_an_orphan_that_left_its_cgroup,
    cancel_ends_a_child_with_an_empty_environment_that_left_its_cgroup,
    descendants_that_left_are_ended_when_asked_for,
    a_fork_bomb_stops_at_its_limit_and_others_run,
}

telexec_tests::at_place! { cgroup_v1:
    cancel_ends_who_removed_its_cgroup,
    who_removed_its_cgroup_can_exit,
    cancel_leaves_nothing_of_unified_cgroups,
    cancel_leaves_nothing_of_freezers,
    cancel_leaves_nothing_that_froze_in_a_unified_cgroup,
    cancel_leaves_nothing_that_froze_in_a_freezer,
    cgroups_are_gone_after_an_exit,
    cgroups_are_gone_after_the_last_survivor,
    cancel_ends_a_main_process_that_left_its_cgroup,
    cancel_ends_a_child_that_left_its_cgroup,
    cancel_ends_an_orphan_that_left_its_cgroup,
    cancel_ends_a_child_with_an_empty_environment_that_left_its_cgroup,
    descendants_that_left_are_ended_when_asked_for,
    a_fork_bomb_stops_at_its_limit_and_others_run,
}

telexec_tests::at_place! { process_group:
    cancel_leaves_nothing_of_unified_cgroups,
    cancel_leaves_nothing_of_freezers,
    cancel_leaves_nothing_that_froze_in_a_unified_cgroup,
    cancel_leaves_nothing_that_froze_in_a_freezer,
    a_fork_bomb_stops_at_its_limit_and_others_run,
}

telexec_tests::at_place! { unprivileged_delegated:
    cancel_leaves_nothing_of_closed_cgroups,
    cancel_ends_who_closed_its_own_cgroup,
    cancel_leaves_nothing_of_threaded_cgroups,
    cancel_leaves_nothing_of_unified_cgroups,
    cancel_leaves_nothing_that_froze_in_a_unified_cgroup,
    cgroups_are_gone_after_an_exit,
    cgroups_are_gone_after_the_last_survivor,
}

telexec_tests::at_place! { unprivileged:
    a_limit_that_cannot_be_held_is_refused,
}
