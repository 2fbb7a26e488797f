//! Executions of an agent that was killed, which its keeper hands over to the next one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Pid;
use tracing::warn;

use super::handover::format;
use super::leftovers::Continued;
use super::unfinished::Unfinished;
use crate::output::spool::{Location, Spool, SpoolFile};
use crate::process::keeper::{Kept, Left};
use crate::process::own::KeptHandle;
use crate::registry::Ended;
use crate::state::checkpoint::{Checkpoint, Saved};
use crate::streams::HeldFile;

/// One of them.
pub(crate) struct HandedOver {
    pub(crate) unfinished: Unfinished,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) saved: Saved,
    /// `None`: the earlier agent has not seen its end.
    pub(crate) ended: Option<Ended>,
    /// It has left others running.
    pub(crate) lingers: bool,
    pub(crate) handle: KeptHandle,
    /// Its main process; `None`: it is reaped.
    pub(crate) main: Option<Pid>,
    pub(crate) files: BTreeMap<HeldFile, (u8, OwnedFd)>,
    /// Where its output may be on disk; `None`: it never is.
    places: Option<Vec<Location>>,
    /// Taken over.
    pub(crate) file: Option<SpoolFile>,
}

/// All that can be continued. What cannot is given up: the log says so.
pub(crate) fn read(left: Vec<Left>, kept: &Arc<Kept>) -> Vec<HandedOver> {
    let mut all: Vec<_> = left
        .into_iter()
        .filter_map(|left| {
            let read = HandedOver::read(left, kept);
            read.inspect_err(|error| warn!(%error, "an execution of an earlier agent cannot be continued")).ok()
        })
        .collect();
    // in the order of their ends, or else of their starts
    all.sort_by_key(|one| match &one.ended {
        Some(ended) => (false, Some(ended.exited.end_time)),
        None => (true, one.unfinished.start().and_then(|start| start.main_process(0)).map(|main| main.start_time).ok()),
    });
    all
}

impl HandedOver {
    fn read(Left { child, main, state, mut files }: Left, kept: &Arc<Kept>) -> io::Result<Self> {
        let handle = KeptHandle::of(kept, child);
        let checkpoint = Checkpoint::open(files.remove(&0).ok_or_else(|| io::Error::other("it has no checkpoint"))?)?;
        checkpoint.is_held(state);
        let unfinished = Unfinished::read(&checkpoint)?;
        unfinished.check()?;
        let ended = checkpoint.ended()?.map(|ended| format::decode(&ended)).transpose()?;
        if main.is_none() && ended.is_none() {
            return Err(io::Error::other("how it has ended is not known"));
        }
        let kind = |number: u8| unfinished.files().get(usize::from(number)).copied();
        let files = files.into_iter().filter_map(|(number, file)| Some((kind(number)?, (number, file)))).collect();
        let places = checkpoint.spool()?.map(|places| serde_json::from_slice(&places)).transpose()?;
        let saved = checkpoint.saved()?;
        let lingers = ended.is_some() && checkpoint.lingers()?;
        let checkpoint = Arc::new(checkpoint);
        Ok(Self { unfinished, checkpoint, saved, ended, lingers, handle, main, files, places, file: None })
    }

    /// This agent continues it: before that, the next one finds it as it was.
    pub(crate) fn claim(&mut self) {
        self.checkpoint.claim();
        self.handle.claim();
    }

    /// Takes its output on disk over. Blocks.
    pub(crate) fn take_over(&mut self, spool: &Arc<Spool>) {
        let Some(places) = self.places.take() else { return };
        let identity = self.unfinished.asked().identity;
        // all places, as long as it may be in any
        let before = |place: Location, found: Vec<Location>| {
            save_places(&self.checkpoint, &[vec![place], found].concat());
        };
        let file = spool.continue_from(&identity, &places, before);
        save_places(&self.checkpoint, &[file.location()]);
        self.file = Some(file);
    }
}

/// Notes where the output of an execution may be on disk.
pub(crate) fn save_places(checkpoint: &Checkpoint, places: &[Location]) {
    let saved = serde_json::to_vec(places).map_err(io::Error::from).and_then(|places| checkpoint.set_spool(&places));
    if let Err(error) = saved {
        warn!(%error, "output that is on disk would be lost with this agent");
    }
}

/// What of these goes on, and is not to be ended.
pub(crate) fn continued(all: &[HandedOver]) -> Continued {
    // also what they have left running on purpose
    let goes_on = |one: &&HandedOver| one.ended.is_none() || one.lingers;
    let starts = || all.iter().filter(goes_on).filter_map(|one| one.unfinished.start().ok());
    Continued {
        keys: starts().map(|start| start.key.clone()).collect(),
        cgroups: starts().filter_map(|start| start.cgroup()).collect(),
        directories: all.iter().flat_map(|one| &one.places).flatten().map(Location::directory).collect(),
    }
}

/// The cgroups of these.
pub(crate) fn cgroups(continued: &Continued) -> Vec<PathBuf> {
    continued.cgroups.iter().cloned().collect()
}
