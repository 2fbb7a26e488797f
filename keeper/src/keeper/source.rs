//! Where an event comes from.

use rustix::event::epoll;

/// As an event has it.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Signals,
    Channel,
    Agent,
    Start(u64),
    End(u64),
    Starter,
}

impl Source {
    pub(super) fn data(self) -> epoll::EventData {
        let (kind, number) = match self {
            Self::Signals => (0, 0),
            Self::Channel => (1, 0),
            Self::Agent => (2, 0),
            Self::Start(number) => (3, number),
            Self::End(number) => (4, number),
            Self::Starter => (5, 0),
        };
        epoll::EventData::new_u64(number << 3 | kind)
    }

    pub(super) fn of(data: epoll::EventData) -> Option<Self> {
        let (kind, number) = (data.u64() & 7, data.u64() >> 3);
        match kind {
            0 => Some(Self::Signals),
            1 => Some(Self::Channel),
            2 => Some(Self::Agent),
            3 => Some(Self::Start(number)),
            4 => Some(Self::End(number)),
            5 => Some(Self::Starter),
            _ => None,
        }
    }
}
