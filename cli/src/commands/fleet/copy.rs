//! `fleet cp` and `fleet get`: the same copy to or from all hosts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use telexec_client::Agent;
use telexec_executor::FilePath;

use super::event::{Kind, Outcome};
use super::hosts::{self, Host};
use super::operation::operate;
use super::outdir;
use super::printer::{Printing, Reports};
use super::show::{JsonAnswers, Show, Silent};
use super::worker::Job;
use crate::args::{CopyArgs, FleetCopyArgs, FleetCpArgs, FleetGetArgs};
use crate::commands::cp::{Copy, Progress, Stopped};
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::syntax::{Location, last_name};

/// What is copied on each host.
#[derive(Debug)]
pub(crate) struct CopyJob {
    args: CopyArgs,
    transfer: Transfer,
}

#[derive(Debug)]
enum Transfer {
    To(Vec<Location>, FilePath),
    /// To the directory of each host, in their order.
    From(FilePath, Vec<PathBuf>),
}

pub(crate) async fn cp(mut args: FleetCpArgs) -> Result<u8, Failure> {
    if args.files.len() < 2 {
        return Err(Failure::message(exit::USAGE, "fleet cp needs a source and a destination"));
    }
    let path = FilePath::new(args.files.pop().map(OsString::into_vec).unwrap_or_default());
    let sources: Vec<PathBuf> = args.files.into_iter().map(PathBuf::from).collect();
    if let Some((source, error)) = sources.iter().find_map(|source| Some((source, source.metadata().err()?))) {
        // before the first host is called
        return Err(Failure::new(exit::USAGE, &error).context(format_args!("cannot open {}", source.display())));
    }
    let sources = sources.into_iter().map(Location::Local).collect();
    copy(args.common, |_| Transfer::To(sources, path)).await
}

pub(crate) async fn get(args: FleetGetArgs) -> Result<u8, Failure> {
    let (path, directory) = (args.path(), args.directory);
    if directory.as_os_str() == "-" {
        return Err(Failure::message(exit::USAGE, "fleet get needs a directory: standard output is one for all hosts"));
    }
    copy(args.common, |hosts| Transfer::From(path, outdir::directories(&directory, hosts))).await
}

async fn copy(mut args: FleetCopyArgs, transfer: impl FnOnce(&[Host]) -> Transfer) -> Result<u8, Failure> {
    args.schedule.parallel.apply_connect_timeout(&mut args.connect);
    let config = Config::load()?;
    let hosts: Arc<[Host]> = hosts::find(&args.hosts, None, &args.connect, &config).await?.into();
    let job = CopyJob { args: args.copy, transfer: transfer(&hosts) };
    let show: Box<dyn Show> = if args.json { Box::new(JsonAnswers) } else { Box::new(Silent) };
    let reports = if args.json || args.quiet { Reports::Nothing } else { Reports::All };
    let printing = Printing { show, outdir: None, reports, json_summary: args.json };
    let results = operate(hosts, Job::Copy(Arc::new(job)), &args.schedule.schedule(&config), printing).await?;
    Ok(results.exit_code(false))
}

impl CopyJob {
    /// Copies to or from one host.
    pub(super) async fn run(&self, number: usize, host: &Host, agent: &Agent) -> Outcome {
        let user = self.args.user.clone().or_else(|| host.resolved.user.clone());
        let args = CopyArgs { user, ..self.args.clone() };
        let failures = Mutex::new(Failures::default());
        let say = |text: &str| failures.lock().unwrap_or_else(PoisonError::into_inner).add(text, host);
        let copy = Copy::new(&args, agent, &host.destination, Arc::new(Progress::new(true)), &say);
        let copied = match &self.transfer {
            Transfer::To(sources, path) => copy.upload_all(sources, path).await,
            Transfer::From(path, directories) => match directories.get(number) {
                Some(directory) => from_host(&copy, path, directory).await,
                None => Ok(()),
            },
        };
        match copied {
            Ok(()) => Outcome::ok(),
            Err(Stopped::SomeFailed) => {
                let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
                Outcome::new(Kind::Failed, 1, failures.text())
            }
            Err(Stopped::Usage(text)) => Outcome::new(Kind::Failed, exit::USAGE, without_host(&text, host)),
            Err(Stopped::All(error)) => Outcome::error(&error),
        }
    }
}

async fn from_host(copy: &Copy<'_>, path: &FilePath, directory: &Path) -> Result<(), Stopped> {
    let failed = |error: std::io::Error| Stopped::Usage(format!("cannot make {}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    // what a host has sent as a link before must not lead elsewhere now
    let place = last_name(path.as_bytes()).map_or_else(|| directory.to_owned(), |name| directory.join(name));
    for place in [directory, &place] {
        if place.is_symlink() {
            return Err(Stopped::Usage(format!("{} is a symbolic link: remove it first", place.display())));
        }
    }
    let copied = copy.download_all(std::slice::from_ref(path), &Location::Local(directory.to_owned())).await;
    // only if nothing has come
    let _ = std::fs::remove_dir(directory);
    copied
}

/// What failed on a host.
#[derive(Default)]
struct Failures {
    first: Option<String>,
    others: usize,
}

impl Failures {
    fn add(&mut self, text: &str, host: &Host) {
        match &self.first {
            None => self.first = Some(without_host(text, host)),
            Some(_) => self.others += 1,
        }
    }

    fn text(self) -> String {
        let first = self.first.unwrap_or_default();
        match self.others {
            0 => first,
            1 => format!("{first}; and another file"),
            others => format!("{first}; and {others} other files"),
        }
    }
}

/// So that equal failures have equal texts on all hosts.
fn without_host(text: &str, host: &Host) -> String {
    let target = host.destination.to_string();
    let rest = text.strip_prefix(&target).and_then(|rest| rest.strip_prefix(':'));
    rest.map_or(text, str::trim_start).replace(char::is_control, " ")
}
