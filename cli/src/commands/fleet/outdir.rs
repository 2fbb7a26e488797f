//! `--outdir`: the output and outcome of each host in files.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use telexec_executor::OutputStream;

use super::event::Event;
use super::hosts::Host;

/// The directories and the open files.
pub(crate) struct Outdir {
    directories: Vec<PathBuf>,
    open: Vec<Option<[File; 2]>>,
}

impl Outdir {
    pub(crate) fn create(directory: &Path, hosts: &[Host]) -> io::Result<Self> {
        let directories = directories(directory, hosts);
        for directory in &directories {
            std::fs::create_dir_all(directory)?;
        }
        Ok(Self { open: directories.iter().map(|_| None).collect(), directories })
    }

    pub(crate) fn event(&mut self, number: usize, host: &Host, event: &Event) -> io::Result<()> {
        let (Some(directory), Some(open)) = (self.directories.get(number), self.open.get_mut(number)) else {
            return Ok(());
        };
        match event {
            Event::Connecting => {
                // of an earlier run
                match std::fs::remove_file(directory.join("receipt")) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                *open = Some([File::create(directory.join("stdout"))?, File::create(directory.join("stderr"))?]);
            }
            Event::Output(output) => {
                if let Some([stdout, stderr]) = open {
                    let file = if output.stream == OutputStream::Stdout { stdout } else { stderr };
                    file.write_all(&output.data)?;
                }
            }
            Event::Finished(outcome) => {
                *open = None;
                let record = outcome.json_line(&host.name).map_err(io::Error::other)?;
                std::fs::write(directory.join("exit.json"), record)?;
                if let Some(receipt) = outcome.exited.as_ref().and_then(|exited| exited.receipt.as_ref()) {
                    // it may have secrets of the command line
                    let mut file =
                        File::options().write(true).create_new(true).mode(0o600).open(directory.join("receipt"))?;
                    file.write_all(format!("{receipt}\n").as_bytes())?;
                }
            }
            Event::Started(_) | Event::Gap(_) => {}
        }
        Ok(())
    }
}

/// Each host's own below this one.
pub(super) fn directories(directory: &Path, hosts: &[Host]) -> Vec<PathBuf> {
    let mut taken = HashSet::new();
    hosts.iter().map(|host| directory.join(file_name(&host.name, &mut taken))).collect()
}

/// A unique file name for a host.
fn file_name(host: &str, taken: &mut HashSet<String>) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-:@".contains(c);
    let name: String = host.chars().map(|c| if fits(c) { c } else { '_' }).take(200).collect();
    let name = if name.starts_with('.') { format!("_{name}") } else { name };
    let again = |number: u32| format!("{name}~{number}");
    let names = std::iter::once(name.clone()).chain((2..).map(again));
    let free = names.into_iter().find(|name| !taken.contains(name)).unwrap_or(name);
    taken.insert(free.clone());
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_part_of_a_path() {
        let mut taken = HashSet::new();
        for (host, name) in [
            ("web1", "web1"),
            ("web1:7443", "web1:7443"),
            ("unix:///run/a.sock", "unix:___run_a.sock"),
            ("../../etc", "_.._.._etc"),
            ("..", "_.."),
            ("[::1]:1", "_::1_:1"),
            ("a/b", "a_b"),
            ("a b", "a_b~2"),
        ] {
            assert_eq!(file_name(host, &mut taken), name);
        }
    }
}
