//! The program `telexec`, as an operator and a script use it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use telexec_tests::{Agent, program, within};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

mod approvals;
mod background;
mod ca;
mod certs;
mod config;
mod cp;
mod enrollment;
mod exec;
mod fleet;
mod help;
mod input;
mod logs;
mod lying_agent;
mod named_commands;
mod receipt;
mod reconnect;
mod terminal;
mod tool;
pub(crate) mod troubleshooting;

use self::{exec::*, input::*, tool::*};

/// `telexec`, with an environment that does not configure it.
fn telexec(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(program("telexec"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TELEXEC_")) {
        command.env_remove(name);
    }
    command.env("TELEXEC_CONFIG", "/dev/null");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// All that it said, and its exit code.
#[derive(Debug)]
struct Said {
    code: i32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Said {
    async fn by(mut command: Command) -> Self {
        Self::by_child(command.spawn().unwrap()).await
    }

    async fn by_child(child: Child) -> Self {
        let output = within(child.wait_with_output()).await.unwrap();
        let code = output.status.code().unwrap_or_else(|| panic!("{}", output.status));
        Self { code, stdout: output.stdout, stderr: output.stderr }
    }

    fn stdout(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    fn stderr(&self) -> &str {
        std::str::from_utf8(&self.stderr).unwrap()
    }

    /// Standard output, if all went well.
    #[track_caller]
    fn answer(&self) -> &str {
        assert_eq!((self.code, self.stderr()), (0, ""), "{}", self.stdout());
        self.stdout()
    }

    /// The message of a failure with this code: on standard error only, and recognizable as no command's own.
    #[track_caller]
    fn failure(&self, code: i32) -> &str {
        assert_eq!((self.code, self.stdout()), (code, ""), "{}", self.stderr());
        self.remark()
    }

    /// What it said itself, where the command has said nothing on standard error.
    #[track_caller]
    fn remark(&self) -> &str {
        let ours = self.stderr().lines().all(|line| line.starts_with("telexec: "));
        assert!(ours && self.stderr().ends_with('\n'), "{:?}", self.stderr());
        self.stderr()
    }
}

async fn say(args: &[&str]) -> Said {
    Said::by(telexec(args)).await
}

/// A target of `exec`, and a directory for what its commands do.
struct Site {
    /// The flags that it needs, and its name.
    target: Vec<String>,
    directory: TempDir,
    agent: Option<Agent>,
}

impl Site {
    async fn local() -> Self {
        Self { target: vec!["local".to_owned()], directory: tempfile::tempdir().unwrap(), agent: None }
    }

    async fn unix() -> Self {
        let agent = Agent::start();
        Self { target: vec![agent.uri().to_owned()], directory: tempfile::tempdir().unwrap(), agent: Some(agent) }
    }

    /// With the certificates of `telexec certs`, made in three commands.
    async fn mtls() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let certs = directory.path().join("certs");
        let certs = certs.to_str().unwrap();
        for line in [&["init"][..], &["issue", "127.0.0.1", "--server"], &["issue", "alice", "--client"]] {
            Said::by(telexec(["certs"].iter().chain(line).chain(&["--dir", certs]))).await.answer();
        }
        let file = |name: &str| format!("{certs}/{name}");
        let (cert, key) = (file("127.0.0.1.pem"), file("127.0.0.1.key"));
        let args = ["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &file("ca.pem")];
        let agent = Agent::builder().listen("tcp://127.0.0.1:0").args(args).start();
        let cert = ["--cert", &file("alice.pem"), "--key", &file("alice.key"), "--ca", &file("ca.pem")];
        let target = cert.into_iter().chain([agent.address()]).map(str::to_owned).collect();
        Self { target, directory, agent: Some(agent) }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// `telexec SUBCOMMAND FLAGS... TARGET ARGS...`
    fn telexec(&self, subcommand: &str, args: &[&str]) -> Command {
        let target = self.target.iter().map(String::as_str);
        telexec([subcommand].into_iter().chain(target).chain(args.iter().copied()))
    }

    async fn say(&self, subcommand: &str, args: &[&str]) -> Said {
        Said::by(self.telexec(subcommand, args)).await
    }

    async fn exec(&self, args: &[&str]) -> Said {
        self.say("exec", args).await
    }

    /// Starts a command in the background, and gives its id.
    async fn detached(&self, args: &[&str]) -> String {
        let said = self.exec(&[&["-d"], args].concat()).await;
        said.answer().strip_suffix('\n').unwrap().to_owned()
    }

    /// Starts a command that says `ready`, and waits until it does. What it says after that can be read.
    async fn running(&self, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
        let mut child = self.telexec("exec", args).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(next_line(&mut stdout).await, "ready\n");
        (child, stdout)
    }
}

async fn next_line(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    within(stdout.read_line(&mut line)).await.unwrap();
    line
}

fn interrupt(child: &Child) {
    send(child, Signal::INT);
}

fn send(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id().expect("it runs")).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

macro_rules! at_every_target {
    ($target:ident: $($case:ident),+) => {
        mod $target {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case(super::Site::$target().await).await;
                }
            )+
        }
    };
    ($($case:ident),+ $(,)?) => {
        at_every_target!(local: $($case),+);
        at_every_target!(unix: $($case),+);
        at_every_target!(mtls: $($case),+);
    };
}

at_every_target! {
    the_commands_own_code_is_the_exit_code,
    a_timeout_is_124,
    a_refused_request_is_125,
    a_bad_directory_is_125,
    a_program_that_is_not_executable_is_126,
    a_program_that_is_missing_is_127,
    a_signal_is_128_and_its_number,
    ctrl_c_is_130_and_leaves_nothing,

    arguments_of_the_program_are_verbatim,
    bytes_are_exact_and_streams_are_kept_apart,
    output_arrives_while_the_command_runs,
    standard_input_is_sent_when_asked_for,
    standard_input_is_sent_while_it_comes,
    input_that_is_not_read_is_no_error,
    environment_and_directory_are_set,
    variables_are_passed_on_and_read_from_files,
    json_lines_tell_the_events,
    a_reader_that_leaves_ends_it_quietly,

    ping_tells_that_it_serves,
    info_describes_the_agent,
    the_tool_answers,
    exec_command_answers,
}
