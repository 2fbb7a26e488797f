//! Starting one process: one resolved spec in, a child or a typed error out.

pub(crate) mod account;
pub(crate) mod command_users;
pub(crate) mod dynamic_user;
pub(crate) mod resolve;
pub(crate) mod working_directory;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use telexec_executor::{SpawnError, SpawnStage};
use telexec_keeper::wire::Start;
use telexec_spawn::{CgroupEntry, Credentials, Image, Step, rlimits};

use crate::process::children::DirectChild;
use crate::process::keeper::Kept;
use crate::process::own::{EndSource, KeptHandle, OwnChild};
use crate::process::vfork;
use crate::streams::{CommandEnds, HeldFiles, above_standard_streams};

/// Everything a process is made from; nothing is left to look up.
#[derive(Default)]
pub(crate) struct SpawnSpec {
    /// What the program was called, for errors.
    pub(crate) program: String,
    /// Paths to try in this order, as execvp(3) does.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) environment: Vec<CString>,
    pub(crate) working_directory: CString,
    /// `None`: those of this process.
    pub(crate) credentials: Option<Credentials>,
    /// It has directories for temporary files of its own, of so many bytes together.
    pub(crate) private_directories: Option<u64>,
    /// Nothing that it executes gives it privileges.
    pub(crate) no_new_privileges: bool,
    /// The cgroups that it starts in.
    pub(crate) cgroups: CgroupEntry,
    /// The directory of the one in which a keeper makes it; empty: there is none.
    pub(crate) cgroup: CString,
    /// A file whose owner is to be its user, where this process cannot change that.
    pub(crate) chown: Option<OwnedFd>,
    /// What it is for, in the log of a keeper.
    pub(crate) purpose: CString,
    /// A keeper kills it when it has run for so long.
    pub(crate) time_limit: Option<Duration>,
    /// It does not end with this process, if a keeper is to start another one.
    pub(crate) survives: bool,
    /// What a keeper holds for that.
    pub(crate) held: HeldFiles,
    /// The step that is to fail, in tests.
    pub(crate) fault: Option<Step>,
}

/// A process that runs the program. Dropping it does not end or reap the process.
pub(crate) struct Child {
    pub(crate) pid: rustix::process::Pid,
    pub(crate) end: EndSource,
}

/// Starts processes, with these ends of their streams. Blocks until the program runs or could not be started; then
/// nothing of it is left.
pub(crate) trait Spawner: Send + Sync {
    /// The child that is to be made next: it is there before that, so that others can cancel it.
    fn expect(&self) -> OwnChild;

    /// Makes it.
    ///
    /// # Errors
    /// The step that failed; nothing of it is left.
    fn spawn(&self, spec: &SpawnSpec, ends: CommandEnds, own: OwnChild) -> Result<(OwnChild, Child), SpawnError>;
}

/// Starts processes as children of this one.
pub(crate) struct DirectSpawner {
    null: OwnedFd,
    rlimits: [libc::rlimit64; rlimits::KINDS],
    /// The files of this process and its children in /proc are root's until a child has become a program.
    sets_score: bool,
}

impl DirectSpawner {
    /// # Errors
    /// `/dev/null` cannot be opened.
    pub(crate) fn new() -> std::io::Result<Self> {
        let null = above_standard_streams(std::fs::File::open("/dev/null")?.into())?;
        let dumpable = rustix::process::dumpable_behavior() == Ok(rustix::process::DumpableBehavior::Dumpable);
        let sets_score = !dumpable && !rustix::process::geteuid().is_root();
        Ok(Self { null, rlimits: rlimits::defaults(), sets_score })
    }
}

impl Spawner for DirectSpawner {
    fn expect(&self) -> OwnChild {
        OwnChild::Direct(DirectChild::expect())
    }

    fn spawn(&self, spec: &SpawnSpec, ends: CommandEnds, own: OwnChild) -> Result<(OwnChild, Child), SpawnError> {
        let OwnChild::Direct(own) = own else { return Err(error(spec, SpawnStage::Clone, Errno::INVAL)) };
        spec.credentials.iter().for_each(|user| ends.give(user));
        let image = Image {
            candidates: &spec.candidates,
            executable: None,
            argv: &spec.argv,
            environment: &spec.environment,
            working_directory: &spec.working_directory,
            streams: ends.raw(&self.null),
            terminal: matches!(ends, CommandEnds::Terminal(_)),
            cgroups: &spec.cgroups,
            chowns: &[],
            rlimits: &self.rlimits,
            credentials: spec.credentials.as_ref(),
            private_directories: spec.private_directories,
            no_new_privileges: spec.no_new_privileges,
            fault: spec.fault,
        };
        let (own, pid, pidfd) = vfork::spawn(&image, own).map_err(|(stage, errno)| error(spec, stage, errno))?;
        if self.sets_score {
            // as far as this process may, as the other steps that the child takes itself
            let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "0");
        }
        Ok((OwnChild::Direct(own), Child { pid, end: EndSource::Pidfd(pid, pidfd) }))
    }
}

/// Has a keeper start processes, as children of its own.
pub(crate) struct KeeperSpawner {
    kept: Arc<Kept>,
    /// What [`THIS_PROGRAM`] is here: in the keeper it is another one.
    this: OwnedFd,
}

const THIS_PROGRAM: &CStr = c"/proc/self/exe";

impl KeeperSpawner {
    /// # Errors
    /// This program cannot be opened.
    pub(crate) fn new(kept: Arc<Kept>) -> std::io::Result<Self> {
        let this = rustix::fs::open(THIS_PROGRAM, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { kept, this })
    }
}

impl Spawner for KeeperSpawner {
    fn expect(&self) -> OwnChild {
        OwnChild::Kept(KeptHandle::expect(&self.kept))
    }

    fn spawn(&self, spec: &SpawnSpec, ends: CommandEnds, own: OwnChild) -> Result<(OwnChild, Child), SpawnError> {
        let OwnChild::Kept(own) = own else { return Err(error(spec, SpawnStage::Clone, Errno::INVAL)) };
        spec.credentials.iter().for_each(|user| ends.give(user));
        let joins = &spec.cgroups.joins;
        let streams = ends.all();
        let executable =
            matches!(&spec.candidates[..], [only] if only.as_c_str() == THIS_PROGRAM).then_some(&self.this);
        let start = Start {
            terminal: matches!(ends, CommandEnds::Terminal(_)),
            stdin: streams.len() == 3,
            joins: u8::try_from(joins.len()).unwrap_or(u8::MAX),
            executable: executable.is_some(),
            chown: spec.chown.is_some(),
            survives: spec.survives,
            time_limit: spec.time_limit,
            purpose: spec.purpose.clone(),
            held: u8::try_from(spec.held.len()).unwrap_or(u8::MAX),
            credentials: spec.credentials.clone(),
            private_directories: spec.private_directories,
            no_new_privileges: spec.no_new_privileges,
            candidates: spec.candidates.clone(),
            argv: spec.argv.clone(),
            environment: spec.environment.clone(),
            working_directory: spec.working_directory.clone(),
            cgroup: spec.cgroup.clone(),
            ..Start::default()
        };
        let held = spec.held.iter().map(|(_, file)| file);
        let descriptors = streams.into_iter().chain(executable).chain(&spec.chown).chain(joins).chain(held);
        let descriptors: Vec<_> = descriptors.map(AsFd::as_fd).collect();
        let started = self.kept.start(own.child(), start, &descriptors);
        let pid = started.map_err(|(step, errno)| error(spec, vfork::stage(step), errno))?;
        let end = EndSource::Kept(Arc::clone(own.child()));
        Ok((OwnChild::Kept(own), Child { pid, end }))
    }
}

fn error(spec: &SpawnSpec, stage: SpawnStage, errno: Errno) -> SpawnError {
    let directory = spec.working_directory.to_string_lossy();
    let subject = match stage {
        SpawnStage::Chdir => directory.to_string(),
        SpawnStage::User | SpawnStage::Setgroups | SpawnStage::Setgid | SpawnStage::Setuid => {
            spec.credentials.as_ref().map_or_else(String::new, |user| user.name.clone())
        }
        SpawnStage::Prepare
        | SpawnStage::Cgroup
        | SpawnStage::Clone
        | SpawnStage::Setsid
        | SpawnStage::Dup
        | SpawnStage::CloseRange
        | SpawnStage::Rlimit
        | SpawnStage::Unshare
        | SpawnStage::Mount
        | SpawnStage::Exec => spec.program.clone(),
    };
    // execve(2) answers ENOENT for a missing interpreter too
    let exists = |path: &CString| Path::new(directory.as_ref()).join(path.to_string_lossy().as_ref()).is_file();
    let missing_interpreter = stage == SpawnStage::Exec && errno == Errno::NOENT && spec.candidates.iter().any(exists);
    SpawnError { stage, subject, errno: errno.raw_os_error(), missing_interpreter }
}

#[cfg(test)]
mod tests {
    use std::process;

    use rustix::process::{Resource, Rlimit, getrlimit, getuid, setrlimit};

    use super::*;
    use crate::process::{children, control};
    use crate::streams::end::StreamThreads;
    use crate::streams::with_output_in_one_pipe;
    use crate::{start, streams};

    fn reap(own: OwnChild, child: Child) {
        let EndSource::Pidfd(_, pidfd) = child.end else { panic!("it is this process's") };
        control::wait_briefly(&pidfd);
        own.reap();
    }

    /// The steps that a child takes.
    const STEPS: [Step; 12] = [
        Step::Setsid,
        Step::Cgroup,
        Step::Rlimit,
        Step::Dup,
        Step::CloseRange,
        Step::Unshare,
        Step::Mount,
        Step::Setgroups,
        Step::Setgid,
        Step::Setuid,
        Step::Chdir,
        Step::Exec,
    ];

    /// Runs a test in a process of its own, where no other test opens files, has children or changes its attributes.
    /// `name` is the test's, in this module.
    fn alone(name: &str, test: fn()) {
        if std::env::var_os("TELEXEC_ALONE").is_some() {
            return test();
        }
        let mut command = process::Command::new(std::env::current_exe().unwrap());
        let name = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
        let output = command.args(["--exact", &name, "--nocapture"]).env("TELEXEC_ALONE", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    fn nobody() -> Credentials {
        Credentials { name: "nobody".into(), uid: 65534, gid: 65534, groups: vec![65534] }
    }

    /// As this user, and as another one where that can be done.
    fn users() -> Vec<Option<Credentials>> {
        let other = getuid().is_root().then(|| Some(nobody()));
        [None].into_iter().chain(other).collect()
    }

    fn shell(text: &str) -> SpawnSpec {
        let c_string = |text: &str| CString::new(text).unwrap();
        SpawnSpec {
            program: "sh".into(),
            candidates: vec![c_string("/bin/sh")],
            argv: ["sh", "-c", text].map(c_string).into(),
            working_directory: c_string("/"),
            ..SpawnSpec::default()
        }
    }

    /// All that a process can leave behind: descriptors, children (also ended ones), and what is known of them.
    fn traces() -> (usize, bool, usize) {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
        (files, telexec_spawn::exit::any_ended().is_ok(), children::known())
    }

    fn failed(spec: &SpawnSpec) -> (SpawnStage, i32) {
        let spawner = DirectSpawner::new().unwrap();
        let spawned = spawner.spawn(spec, with_output_in_one_pipe().1, spawner.expect());
        let error = spawned.err().expect("it does not start");
        (error.stage, error.errno)
    }

    /// What the program writes. It is waited for and reaped.
    fn output(spec: &SpawnSpec) -> String {
        let (stdout, ends) = with_output_in_one_pipe();
        let spawner = DirectSpawner::new().unwrap();
        let spawned = spawner.spawn(spec, ends, spawner.expect());
        let (own, child) = spawned.map_err(|error| error.to_string()).unwrap();
        let text = std::io::read_to_string(stdout).unwrap();
        reap(own, child);
        text
    }

    #[test]
    fn whichever_step_fails_it_is_reported_and_nothing_is_left() {
        alone("whichever_step_fails_it_is_reported_and_nothing_is_left", || {
            let directory = tempfile::tempdir().unwrap();
            let ran = directory.path().join("ran");
            let text = format!("echo ran > {}", ran.display());
            let before = traces();
            assert!(!before.1 && before.2 == 0, "{before:?}");
            for user in users() {
                for stage in STEPS {
                    let spec = SpawnSpec { fault: Some(stage), credentials: user.clone(), ..shell(&text) };
                    assert_eq!(failed(&spec), (vfork::stage(stage), libc::EIO), "{user:?}");
                    assert_eq!(traces(), before, "{stage:?}, {user:?}");
                }
            }
            assert!(!ran.exists());
        });
    }

    /// Real faults, not only injected ones.
    #[test]
    fn faults_of_the_system_are_reported_and_leave_nothing() {
        alone("faults_of_the_system_are_reported_and_leave_nothing", || {
            let file = |path: &str| OwnedFd::from(std::fs::File::options().write(true).open(path).unwrap());
            let no_cgroup = CgroupEntry { birthplace: Some(file("/dev/null")), joins: Vec::new() };
            let full = CgroupEntry { birthplace: None, joins: vec![file("/dev/full")] };
            let before = traces();
            let spec = SpawnSpec { cgroups: full, ..shell("true") };
            assert_eq!(failed(&spec), (SpawnStage::Cgroup, libc::ENOSPC));
            assert_eq!(traces(), before);
            let spec = SpawnSpec { cgroups: no_cgroup, ..shell("true") };
            let errno = if telexec_spawn::can_be_born_in_a_cgroup() { libc::EBADF } else { libc::ENOSYS };
            assert_eq!(failed(&spec), (SpawnStage::Clone, errno));
            assert_eq!(traces(), before);
            let spec = SpawnSpec { working_directory: c"/no/such/directory".into(), ..shell("true") };
            assert_eq!(failed(&spec), (SpawnStage::Chdir, libc::ENOENT));
            assert_eq!(traces(), before);
        });
    }

    #[test]
    fn without_descriptors_nothing_starts_and_nothing_is_left() {
        alone("without_descriptors_nothing_starts_and_nothing_is_left", || {
            let spawner = DirectSpawner::new().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            let _inside = runtime.enter();
            let command = telexec_executor::Command::argv(["true"]).accepts_input(true).build().unwrap();
            let threads = StreamThreads::new().unwrap();
            let start = || {
                let streams = streams::open(&command, None, None, &threads).map_err(start::prepare)?;
                let spawned = spawner.spawn(&shell("true"), streams.command_ends, spawner.expect());
                drop(streams.ends);
                spawned
            };
            let (before, limit) = (traces(), getrlimit(Resource::Nofile));
            let mut stages = Vec::new();
            for room in 3.. {
                setrlimit(Resource::Nofile, Rlimit { current: Some(room), ..limit }).unwrap();
                let spawned = start();
                setrlimit(Resource::Nofile, limit).unwrap();
                // a thread closes the pipes
                let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
                while spawned.is_err() && traces() != before && std::time::Instant::now() < until {
                    std::thread::yield_now();
                }
                match spawned {
                    Ok((own, child)) => {
                        reap(own, child);
                        break;
                    }
                    Err(error) => {
                        assert_eq!(error.errno, libc::EMFILE);
                        assert_eq!(traces(), before, "{room}");
                        stages.push(error.stage);
                    }
                }
            }
            let is_known = |stage: &SpawnStage| matches!(stage, SpawnStage::Prepare | SpawnStage::Clone);
            assert!(stages.len() >= 9 && stages.iter().all(is_known), "{stages:?}");
        });
    }

    #[test]
    fn a_child_that_starts_leaves_nothing_but_its_exit() {
        alone("a_child_that_starts_leaves_nothing_but_its_exit", || {
            let before = traces();
            for user in users() {
                assert_eq!(output(&SpawnSpec { credentials: user, ..shell("echo $0") }), "sh\n");
                assert_eq!(traces(), before);
            }
        });
    }

    /// The child shares this process's memory when it becomes another user, which makes that undumpable; and what else
    /// it sets is its own.
    #[test]
    fn this_process_stays_as_it_is() {
        if !getuid().is_root() {
            eprintln!("skipped: only root can start a process as another user");
            return;
        }
        alone("this_process_stays_as_it_is", || {
            let file = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap();
            let umask = || file("status").lines().find(|line| line.starts_with("Umask")).unwrap().to_owned();
            std::fs::write("/proc/self/oom_score_adj", "7").unwrap();
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
            rustix::process::setpriority_process(None, 3).unwrap();
            let state = || {
                let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self/environ").unwrap());
                let priority = rustix::process::getpriority_process(None).unwrap();
                let dumpable = rustix::process::dumpable_behavior().unwrap();
                let ids = (getuid(), rustix::process::getgid(), std::env::current_dir().unwrap());
                (owner, dumpable, priority, ids, umask(), file("oom_score_adj"), file("limits"))
            };
            let before = state();
            let spec = |fault| SpawnSpec { credentials: Some(nobody()), fault, ..shell("id -u") };
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..20 {
                            assert_eq!(output(&spec(None)), "65534\n");
                            failed(&spec(Some(Step::Exec)));
                        }
                    });
                }
            });
            assert_eq!(state(), before);
            assert_eq!(before.1, rustix::process::DumpableBehavior::Dumpable);
        });
    }
}
