//! Every event as a JSON line.

use std::io;

use telexec_executor::OutputStream;

use super::Show;
use crate::commands::fleet::event::Event;
use crate::commands::fleet::hosts::Host;
use crate::commands::fleet::screen::Screen;
use crate::output::json;

pub(crate) struct Json;

impl Show for Json {
    fn event(&mut self, _: usize, host: &Host, event: &Event, screen: &mut Screen) -> io::Result<()> {
        use telexec_executor::Event as ExecutionEvent;
        let line = match event {
            Event::Connecting => return Ok(()),
            Event::Started(started) => json::event_on_host(&host.name, &ExecutionEvent::Started(started.clone())),
            Event::Output(output) => json::event_on_host(&host.name, &ExecutionEvent::Output(output.clone())),
            Event::Gap(position) => json::event_on_host(&host.name, &ExecutionEvent::Gap(*position)),
            Event::Finished(outcome) => outcome.json_line(&host.name),
        };
        let line = line.map_err(io::Error::other)?;
        screen.buffer(OutputStream::Stdout)?.extend_from_slice(line.as_bytes());
        Ok(())
    }
}
