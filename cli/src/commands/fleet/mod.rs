//! `telexec fleet`: one command on many machines.
//!
//! `hosts` selects the hosts (`inventory`, `dns`; `habits` has hints), `schedule` decides when each one starts, `worker` runs the job on one
//! and reports `event`s, and `printer` prints them in one thread, in the format of `show`. `operation` combines these
//! for `run`, for `background`: runs that are started with -d and acted on later, for `copy`, and for `queries`.

mod background;
mod command;
mod copy;
mod dns;
mod event;
mod habits;
mod held_output;
mod hosts;
mod input;
mod inventory;
mod live_line;
mod operation;
mod outdir;
mod printer;
mod queries;
mod record;
mod results;
mod run;
mod runs;
mod schedule;
mod screen;
mod show;
mod worker;

pub(crate) use self::inventory::groups_of;
use crate::args::{FleetAction, FleetArgs};
use crate::output::Failure;

pub(crate) async fn run(args: FleetArgs) -> Result<u8, Failure> {
    match args.action {
        None => run::run(args).await,
        Some(FleetAction::Cp(args)) => copy::cp(*args).await,
        Some(FleetAction::Get(args)) => copy::get(*args).await,
        Some(FleetAction::Attach(args)) => background::attach(*args).await,
        Some(FleetAction::Ps(args)) => background::ps(*args).await,
        Some(FleetAction::Kill(args)) => background::kill(*args).await,
        Some(FleetAction::Ping(args)) => queries::ping(*args).await,
        Some(FleetAction::Info(args)) => queries::info(*args).await,
    }
}
