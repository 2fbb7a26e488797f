//! What an agent and its keeper say to each other: whatever is read is written in the same way, and nothing else is read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use telexec_keeper::wire::{REPORT_BYTES, Report, Request};

fuzz_target!(|message: &[u8]| {
    if let Ok(request) = Request::decode(message) {
        assert_eq!(request.encode(), message);
    }
    if let Ok(report) = Report::decode(message) {
        let mut buffer = [0; REPORT_BYTES];
        assert_eq!(report.encode(&mut buffer), message);
    }
});
