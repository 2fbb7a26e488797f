//! The state that a keeper leaves to the next program in its process: what was started, and what is held. A text with a line for
//! each: numbers, and `-` for what is not there. Descriptors keep their numbers.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::children::{Child, Children};
use crate::given::Given;

/// Another one cannot be read.
pub(crate) const VERSION: u32 = 2;

const HEADER: &str = "telexec-keeper";
const OOM_SCORE: &str = "oom_score_adj";
const LOST: &str = "lost";
const CHILD: &str = "child";
const REMEMBERED: &str = "remembered";
const NONE: &str = "-";

/// What one program leaves to the next.
#[derive(Default)]
pub(crate) struct State {
    /// What the agent is to have in `/proc/PID/oom_score_adj`.
    pub(crate) oom_score: Option<String>,
    /// Starts that were not logged.
    pub(crate) lost_starts: u64,
    pub(crate) children: Children,
}

/// After `Children::lose_agent` alone: a child that keeps its id runs its program, and the exit of any is asked for again.
pub(crate) fn encode(children: &Children, oom_score: Option<&str>, lost_starts: u64) -> String {
    let mut text = format!("{HEADER} {VERSION}\n");
    let mut put = |line: std::fmt::Arguments<'_>| {
        // a text takes whatever is written to it
        let _ = writeln!(text, "{line}");
    };
    oom_score.into_iter().for_each(|score| put(format_args!("{OOM_SCORE} {}", score.trim())));
    put(format_args!("{LOST} {lost_starts}"));
    for child in children.iter() {
        let (id, pid, pidfd) = (or_none(child.id), child.pid.as_raw_nonzero(), child.pidfd.as_raw_fd());
        let [released, all, survives, outlives] =
            [child.is_released, child.holds_all, child.survives, child.outlives].map(u8::from);
        let left = or_none(child.kill_at.map(|at| at.saturating_duration_since(Instant::now()).as_micros()));
        let cgroup = or_none(child.cgroup.as_ref().map(AsRawFd::as_raw_fd));
        let held = numbers(&child.held);
        let flags = format_args!("{released} {all} {survives} {outlives}");
        put(format_args!("{CHILD} {id} {pid} {pidfd} {cgroup} {flags} {left}{held}"));
    }
    for (id, held) in children.remembered() {
        put(format_args!("{REMEMBERED} {id}{}", numbers(held)));
    }
    text
}

/// What is to be inherited.
pub(crate) fn descriptors(children: &Children) -> impl Iterator<Item = BorrowedFd<'_>> {
    let held = children.iter().map(|child| &child.held).chain(children.remembered().map(|(_, held)| held));
    let own = children.iter().flat_map(|child| [Some(&child.pidfd), child.cgroup.as_ref()]).flatten().map(AsFd::as_fd);
    own.chain(held.flatten().flatten().map(AsFd::as_fd))
}

/// `inherit`: makes a descriptor this program's own.
///
/// # Errors
/// It is not what this program knows, or a descriptor is not there.
pub(crate) fn decode(text: &str, inherit: impl Fn(RawFd) -> io::Result<OwnedFd>) -> io::Result<State> {
    let mut lines = text.lines();
    if lines.next() != Some(&format!("{HEADER} {VERSION}")) {
        return Err(unknown());
    }
    let mut state = State::default();
    for line in lines {
        let mut words = Words(line.split(' '));
        match words.word()? {
            OOM_SCORE => state.oom_score = Some(words.word()?.to_owned()),
            LOST => state.lost_starts = words.number()?,
            CHILD => {
                let (id, pid) = (words.optional()?, words.pid()?);
                let pidfd = inherit(words.number()?)?;
                let cgroup = words.optional()?.map(&inherit).transpose()?;
                let [is_released, holds_all, survives, outlives] =
                    [words.flag()?, words.flag()?, words.flag()?, words.flag()?];
                let left = words.optional()?.map(Duration::from_micros);
                let kill_at = left.and_then(|left| Instant::now().checked_add(left));
                let held = words.held(&inherit)?;
                let child = Child {
                    id,
                    is_released,
                    holds_all,
                    kill_at,
                    survives,
                    outlives,
                    held,
                    ..Child::new(pid, pidfd, cgroup)
                };
                state.children.add(child);
            }
            REMEMBERED => {
                let id = words.number()?;
                state.children.remember(id, words.held(&inherit)?);
            }
            _ => return Err(unknown()),
        }
    }
    Ok(state)
}

fn or_none(number: Option<impl ToString>) -> String {
    number.map_or_else(|| NONE.to_owned(), |number| number.to_string())
}

fn numbers(held: &[Option<Given>]) -> String {
    held.iter().map(|file| format!(" {}", or_none(file.as_ref().map(AsRawFd::as_raw_fd)))).collect()
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the state is not of this version")
}

/// What is left of a line.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn word(&mut self) -> io::Result<&'a str> {
        self.0.next().ok_or_else(unknown)
    }

    fn number<T: FromStr>(&mut self) -> io::Result<T> {
        self.word()?.parse().map_err(|_| unknown())
    }

    fn optional<T: FromStr>(&mut self) -> io::Result<Option<T>> {
        optional(self.word()?)
    }

    fn pid(&mut self) -> io::Result<Pid> {
        let number = self.number::<u32>()?.try_into().map_err(|_| unknown())?;
        Pid::from_raw(number).ok_or_else(unknown)
    }

    fn flag(&mut self) -> io::Result<bool> {
        match self.word()? {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(unknown()),
        }
    }

    /// All that is left.
    fn held(self, inherit: impl Fn(RawFd) -> io::Result<OwnedFd>) -> io::Result<Vec<Option<Given>>> {
        self.0.map(|word| Ok(optional(word)?.map(&inherit).transpose()?.map(Given::from))).collect()
    }
}

fn optional<T: FromStr>(word: &str) -> io::Result<Option<T>> {
    if word == NONE { Ok(None) } else { word.parse().map(Some).map_err(|_| unknown()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut children = Children::default();
        let child = |id, pid| Child { id, ..Child::new(Pid::from_raw(pid).unwrap(), file(), None) };
        let held = || vec![Some(file().into()), None, Some(file().into())];
        let kill_at = Instant::now() + Duration::from_secs(60);
        let cgroup = Some(file());
        children.add(Child { survives: true, held: held(), cgroup, ..child(Some(u64::MAX), 7) });
        children.add(Child {
            outlives: true,
            is_released: true,
            holds_all: true,
            kill_at: Some(kill_at),
            ..child(None, 8)
        });
        children.remember(3, held());
        let text = encode(&children, Some("-5\n"), 3);
        assert_eq!(descriptors(&children).count(), 7);
        let decoded = decode(&text, |number| {
            let inherited = descriptors(&children).find(|file| file.as_raw_fd() == number);
            inherited.unwrap().try_clone_to_owned()
        });
        let decoded = decoded.unwrap();
        assert_eq!((decoded.oom_score.as_deref(), decoded.lost_starts), (Some("-5"), 3));
        assert_eq!(decoded.children.to_hand_over(), [3, u64::MAX]);
        assert_eq!(decoded.children.held(u64::MAX).unwrap().descriptors.len(), 2);
        let again = decoded.children.next_kill().unwrap();
        assert!(kill_at.max(again) - kill_at.min(again) < Duration::from_secs(1), "{kill_at:?}, and {again:?}");
        let mut all: Vec<_> = decoded.children.iter().collect();
        all.sort_by_key(|child| child.pid.as_raw_nonzero());
        let [stays, goes] = all[..] else { panic!("both") };
        let flags = |child: &Child| [child.survives, child.outlives, child.is_released, child.holds_all];
        assert_eq!(
            (stays.id, stays.cgroup.is_some(), flags(stays)),
            (Some(u64::MAX), true, [true, false, false, false])
        );
        assert_eq!((goes.id, goes.cgroup.is_some(), flags(goes)), (None, false, [false, true, true, true]));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "telexec-keeper 0\n",
            "telexec-keeper 2\nchild\n",
            "telexec-keeper 2\nchild - 0 1 - 0 0 0 0 -\n",
            "telexec-keeper 2\nchild - -7 1 - 0 0 0 0 -\n",
            "telexec-keeper 2\nchild - 7 x - 0 0 0 0 -\n",
            "telexec-keeper 2\nchild - 7 1 - 0 0 0 2 -\n",
            "telexec-keeper 2\nchild - 7 1 - 0 0 0 0\n",
            "telexec-keeper 2\nchild - 7 1 - 0 0 0 0 -1\n",
            "telexec-keeper 2\nremembered 1 x\n",
            "telexec-keeper 2\nanother\n",
            "telexec-keeper 2\n\n",
        ] {
            assert!(decode(text, |_| Ok(file())).is_err(), "{text:?}");
        }
        assert!(decode("telexec-keeper 2\nremembered 1 5\n", |_| Err(unknown())).is_err());
    }
}
