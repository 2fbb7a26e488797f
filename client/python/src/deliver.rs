//! Hands results to event loops of asyncio.
//!
//! One thread does it for all calls, so that the runtime's threads never wait for the GIL, and so that many results cost it
//! once.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use pyo3::prelude::*;

use crate::call::{Done, finish};

/// The result of a call, for a future of an event loop.
pub(crate) struct Delivery {
    pub(crate) event_loop: Py<PyAny>,
    pub(crate) future: Py<PyAny>,
    pub(crate) done: Done,
}

pub(crate) struct Deliverer {
    /// `None`: it is stopped.
    results: Mutex<Option<Sender<Delivery>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Deliverer {
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, receiver) = channel();
        let thread = thread::Builder::new().name("telexec-asyncio".to_owned()).spawn(move || deliver_all(&receiver))?;
        Ok(Self { results: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn deliver(&self, delivery: Delivery) {
        if let Some(results) = &*self.results.lock().unwrap_or_else(PoisonError::into_inner) {
            // fails only at exit
            let _ = results.send(delivery);
        }
    }

    /// Delivers what there is, and ends the thread. The caller must not hold the GIL.
    pub(crate) fn stop(&self) {
        drop(self.results.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn deliver_all(results: &Receiver<Delivery>) {
    while let Ok(first) = results.recv() {
        // nothing: the interpreter is exiting
        let _ = Python::try_attach(|py| {
            deliver(py, first);
            while let Ok(next) = results.try_recv() {
                deliver(py, next);
            }
        });
    }
}

fn deliver(py: Python<'_>, Delivery { event_loop, future, done }: Delivery) {
    let settled = || {
        let settle = py.import("telexec._errors")?.getattr("_settle")?;
        let (value, error) = match finish(py, done) {
            Ok(value) => (value, None),
            Err(error) => (py.None(), Some(error)),
        };
        event_loop.call_method1(py, "call_soon_threadsafe", (settle, future, value, error))
    };
    // an error means that the loop is closed: nobody waits
    let _: PyResult<Py<PyAny>> = settled();
}
