//! Requests of agents that send their audit logs: no records, or some whose lines are whole.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| telexec_server::fuzz::logs(bytes));
