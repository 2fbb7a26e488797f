//! How events are printed.

mod answers;
mod gather;
mod json;
mod lines;
mod live;
mod neutral;
mod order;

use std::io;

pub(crate) use self::answers::{Answers, JsonAnswers, json_lines};
use super::event::Event;
use super::hosts::Host;
use super::screen::Screen;
use crate::args::OutputArgs;

/// An output format. Hosts are identified by their index.
pub(crate) trait Show: Send {
    fn event(&mut self, number: usize, host: &Host, event: &Event, screen: &mut Screen) -> io::Result<()>;

    /// Called after a batch of events.
    fn after_batch(&mut self, _hosts: &[Host], _screen: &mut Screen) -> io::Result<()> {
        Ok(())
    }

    /// Called when all hosts have finished.
    fn finish(&mut self, _hosts: &[Host], _screen: &mut Screen) -> io::Result<()> {
        Ok(())
    }
}

/// For events that are only collected.
pub(crate) struct Silent;

impl Show for Silent {
    fn event(&mut self, _: usize, _: &Host, _: &Event, _: &mut Screen) -> io::Result<()> {
        Ok(())
    }
}

/// The format that the flags select.
pub(crate) fn show(args: &OutputArgs, hosts: usize) -> Box<dyn Show> {
    let live = live::Live::new(hosts, !args.no_prefix);
    if args.json {
        Box::new(json::Json)
    } else if args.gather || args.gather_all || args.diff {
        Box::new(gather::Gather::new(args, hosts, live))
    } else if args.in_order {
        Box::new(order::InOrder::new(live, hosts, args.keep))
    } else {
        Box::new(live)
    }
}
