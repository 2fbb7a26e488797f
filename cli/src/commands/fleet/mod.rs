//! `telexec fleet`: one command on many machines.
//!
//! `hosts` finds out which (`inventory`, `dns`), `pace` decides when each has its turn, `worker` does the job on one and
//! sends `event`s, and `printer` shows them, in one thread: `show` is how. `operation` puts that together, for `run` and
//! for `background`, which is what is started and come back to.

mod background;
mod command;
mod dns;
mod event;
mod hosts;
mod input;
mod inventory;
mod memory;
mod operation;
mod outdir;
mod pace;
mod printer;
mod run;
mod screen;
mod show;
mod state;
mod summary;
mod worker;

use crate::args::{FleetAction, FleetArgs};
use crate::output::Failure;

pub(crate) async fn run(args: FleetArgs) -> Result<u8, Failure> {
    match args.action {
        None => run::run(args).await,
        Some(FleetAction::Attach(args)) => background::attach(*args).await,
        Some(FleetAction::Ps(args)) => background::ps(args).await,
        Some(FleetAction::Kill(args)) => background::kill(args).await,
    }
}
