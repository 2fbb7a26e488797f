//! `telexec fleet`: one command on many machines.
//!
//! `hosts` finds out which (`nodeset`, `inventory`, `dns`), `pace` says when each has its turn, `worker` does what is to
//! be done on one and tells `event`s, and `printer` shows them, in one thread: `show` is how. `run` puts that together;
//! `background` is what is started and come back to.

mod background;
mod command;
mod dns;
mod event;
mod fold;
mod hosts;
mod input;
mod inventory;
mod memory;
pub(crate) mod nodeset;
mod outdir;
mod pace;
mod printer;
mod run;
mod screen;
mod show;
mod state;
mod summary;
mod worker;

pub(crate) use self::event::Outcome;
pub(crate) use self::pace::Share;
use crate::args::{FleetAction, FleetArgs};
use crate::failure::Failure;

pub(crate) async fn run(args: FleetArgs) -> Result<u8, Failure> {
    match args.action {
        None => run::run(args).await,
        Some(FleetAction::Attach(args)) => background::attach(*args).await,
        Some(FleetAction::Ps(args)) => background::ps(args).await,
        Some(FleetAction::Kill(args)) => background::kill(args).await,
    }
}
