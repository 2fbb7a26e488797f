use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::geteuid;

use super::*;
use crate::key::Keys;
use crate::recovery::handover;
use crate::state::directory::DIRECTORY_PREFIX;
use crate::state::disk::Disk;
use crate::state::engine_file::{EngineProcess, present};
use crate::state::journal::{Journal, Note};

/// Nothing goes on.
static NONE: Continued = Continued { keys: BTreeSet::new(), cgroups: BTreeSet::new(), directories: BTreeSet::new() };

/// An engine that is not known.
fn dead(cgroups: &[PathBuf]) -> Leftovers<'static> {
    let name = uuid::Uuid::now_v7().simple().to_string();
    let (boot_id, process) = (boot_id(), EngineProcess::own().ok());
    let engine = EngineFile { version: VERSION, name, boot_id, process, cgroups: present(cgroups) };
    Leftovers { engine, spared: BTreeMap::new(), sessions: Vec::new(), continued: &NONE }
}

#[test]
fn only_what_the_engine_made_is_removed() {
    let (place, leftovers) = (tempfile::tempdir().unwrap(), dead(&[]));
    let path = |name: &str| place.path().join(name.replace('E', &leftovers.engine.name));
    let kept = ["telexec-E.1.x/other", "telexec-E.1.x", "telexec-other.0.x", "cwd-other.0", "E"];
    let removed = ["telexec-E.0.x/cwd-E.0", "telexec-E.0.x", "cwd-E.2"];
    for name in ["telexec-E.0.x/cwd-E.0", "telexec-E.1.x/other", "telexec-other.0.x", "cwd-other.0", "cwd-E.2", "E"] {
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        fs::write(path(name), "x").unwrap();
    }
    let others = ["telexec-E.3.x", "cwd-E.4"];
    if geteuid().is_root() {
        fs::create_dir(path(others[0])).unwrap();
        fs::write(path(others[1]), "x").unwrap();
        others.iter().for_each(|name| chown(path(name), Some(65534), None).unwrap());
    }
    leftovers.remove_files(place.path());
    assert_eq!(kept.map(|name| path(name).exists()), [true; 5]);
    assert_eq!(removed.map(|name| path(name).exists()), [false; 3]);
    assert_eq!(others.map(|name| path(name).exists()), [geteuid().is_root(); 2], "those of other users");
}

/// Runs a text in a session of its own, in which `$KEY` sets the engine's key. Returns who says its number there, by
/// their numbers.
fn session<const N: usize>(leftovers: &Leftovers<'_>, text: &str) -> [i32; N] {
    let text = text.replace("$KEY", &format!("TELEXEC_EXECUTION_KEY={}.0", leftovers.engine.name));
    let mut session = Command::new("setsid");
    session.args(["--fork", "sh", "-c", &text]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut session = session.spawn().unwrap();
    let lines = io::BufRead::lines(BufReader::new(session.stdout.take().unwrap()));
    let mut lines: Vec<String> = lines.take(N).map(Result::unwrap).collect();
    lines.sort();
    session.wait().unwrap();
    std::array::from_fn(|number| lines[number].split_once(' ').unwrap().1.parse().unwrap())
}

/// Says its number once it has its environment.
fn sleeper(number: usize) -> String {
    format!("sh -c 'echo {number} $$; exec sleep 300 >/dev/null'")
}

fn is_alive(pid: i32) -> bool {
    table::read(pid).unwrap().is_some_and(|process| !process.zombie && !process.exiting)
}

fn until_ended(pid: i32) {
    while is_alive(pid) {
        std::thread::sleep(RETRY_DELAY);
    }
}

/// Ends what is left; returns which of these live on, and ends those too.
fn survivors<const N: usize>(leftovers: &Leftovers<'_>, pids: [i32; N]) -> [bool; N] {
    leftovers.end();
    let alive = pids.map(is_alive);
    for pid in pids.into_iter().filter(|pid| is_alive(*pid)) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    alive
}

#[test]
fn a_session_is_ended_only_with_a_leader_of_its_own() {
    let leftovers = dead(&[]);
    let [leader, other, marked] = [0, 1, 2].map(sleeper);
    let pids = session::<3>(&leftovers, &format!("{other} & $KEY {marked} & exec {leader}"));
    assert_eq!(survivors(&leftovers, pids), [true, true, false], "the session is another's");
    let orphan = format!("(env -i {other} &)");
    let pids = session::<2>(&leftovers, &format!("{orphan}; $KEY exec {leader}"));
    assert_eq!(survivors(&leftovers, pids), [false, false], "the session is the command's");
}

#[test]
fn a_session_without_its_leader_is_ended_only_if_it_is_of_one_user() {
    let leftovers = dead(&[]);
    let [_, other, marked] = [0, 1, 2].map(sleeper);
    let start = |text: &str| {
        let [leader, other, marked] = session(&leftovers, &format!("echo 0 $$; {other} & {text}"));
        until_ended(leader);
        [other, marked]
    };
    assert_eq!(survivors(&leftovers, start(&format!("$KEY {marked} &"))), [false, false]);
    if geteuid().is_root() {
        let pids = start(&format!("$KEY setpriv --reuid 65534 --clear-groups {marked} &"));
        assert_eq!(survivors(&leftovers, pids), [true, false], "a stranger is in it");
    }
}

#[test]
fn a_noted_session_is_ended_while_its_leader_is_there() {
    let survivors = |differs: u64, spares: bool| {
        let mut leftovers = dead(&[]);
        let [leader, other] = [0, 1].map(sleeper);
        let pids = session::<2>(&leftovers, &format!("env -i setsid {other} & exec env -i {leader}"));
        let start_ticks = table::read(pids[0]).unwrap().unwrap().start_ticks + differs;
        leftovers.sessions.push(Session { execution: 7, leader: pids[0], start_ticks });
        if spares {
            leftovers.spared.insert(key::text(&leftovers.engine.name, 7), None);
        }
        survivors(&leftovers, pids)
    };
    assert_eq!(survivors(0, false), [false; 2]);
    assert_eq!(survivors(1, false), [true; 2], "its number was used again");
    assert_eq!(survivors(0, true), [true; 2], "it may outlive its call");
}

#[test]
fn an_engine_whose_lock_another_process_holds_has_ended() {
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().join(format!("{}x", DIRECTORY_PREFIX));
    fs::create_dir(&directory).unwrap();
    let held = File::open(&directory).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let is_abandoned = |change: fn(&mut EngineFile)| {
        let mut engine = dead(&[]).engine;
        change(&mut engine);
        fs::write(directory.join(engine_file::FILE), serde_json::to_vec(&engine).unwrap()).unwrap();
        !abandoned(state.path()).unwrap().is_empty()
    };
    assert!(!is_abandoned(|_| {}), "it lives");
    fn process(engine: &mut EngineFile) -> &mut EngineProcess {
        engine.process.as_mut().unwrap()
    }
    assert!(is_abandoned(|engine| process(engine).pid = i32::MAX));
    assert!(is_abandoned(|engine| process(engine).start_ticks += 1));
    assert!(!is_abandoned(|engine| engine.process = None));
    let unlike: [fn(&mut EngineFile); 3] = [
        |engine| engine.boot_id.clear(),
        |engine| process(engine).pid_namespace = 0,
        |engine| process(engine).time_namespace = Some(0),
    ];
    for unlike in unlike {
        let mut engine = dead(&[]).engine;
        process(&mut engine).pid = i32::MAX;
        unlike(&mut engine);
        fs::write(directory.join(engine_file::FILE), serde_json::to_vec(&engine).unwrap()).unwrap();
        assert!(abandoned(state.path()).unwrap().is_empty(), "not known: {engine:?}");
    }
    fs::remove_file(directory.join(engine_file::FILE)).unwrap();
    assert!(abandoned(state.path()).unwrap().is_empty(), "it has not begun");
}

#[test]
fn one_cgroup_that_cannot_be_ended_keeps_no_other_process() {
    let tree = tempfile::tempdir().unwrap();
    let leaf = tree.path().join("0");
    fs::create_dir(&leaf).unwrap();
    // it can be neither killed nor looked into
    fs::create_dir(leaf.join("cgroup.kill")).unwrap();
    fs::create_dir(leaf.join("cgroup.procs")).unwrap();
    fs::write(leaf.join("cgroup.events"), "populated 1\n").unwrap();
    let leftovers = dead(&[tree.path().to_owned()]);
    let [pid] = session(&leftovers, &format!("$KEY {} &", sleeper(0)));
    let found = leftovers.kill(&ProcessScanner::of_all().unwrap(), &mut HashMap::new()).unwrap();
    assert!(found.fault.is_some() && found.live.iter().any(|process| process.pid == pid), "{found:?}");
    until_ended(pid);
}

fn files(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn remove(directory: &Path, note: Note) {
    let file = directory.join(&note.name);
    drop(note);
    while file.exists() {
        std::thread::sleep(RETRY_DELAY);
    }
}

#[tokio::test]
async fn a_note_is_not_removed_with_an_earlier_one_and_comes_back_with_its_directory() {
    let state = tempfile::tempdir().unwrap();
    let (spool, _) =
        handover::open(Disk::new().unwrap(), Some(state.path()), crate::SpoolLimits::default(), &mut []).unwrap();
    let keys = Keys::new();
    let (key, directory) = (keys.next(), spool.directory().path().to_owned());
    let journal = Arc::new(Journal::begin(Arc::clone(spool.directory()), keys.engine(), &[]));
    let given_up = journal.outlives(&key, None).unwrap();
    let note = journal.note("owner", key.clone(), None).await.unwrap();
    remove(&directory, given_up);
    let noted = files(&directory);
    assert!(noted.len() == 2 && noted.contains(&engine_file::FILE.to_owned()), "{noted:?}");
    let spared = || Leftovers::read(&directory, &NONE).unwrap().unwrap().spared.into_keys().collect::<Vec<_>>();
    assert_eq!(spared(), [key.to_string()]);

    fs::remove_dir_all(state.path()).unwrap();
    assert!(spool.full("").await.unwrap().is_none());
    assert_eq!((files(&directory), spared()), (noted, vec![key.to_string()]));
    remove(&directory, note);
    journal.end();
    fs::remove_dir_all(&directory).unwrap();
    spool.directory().recreate().unwrap();
    assert_eq!(files(&directory), [""; 0], "what has ended is not noted again");
}
