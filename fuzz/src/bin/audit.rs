//! Audit logs of any bytes: broken, or just as many records as there are lines.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| telexec_server::fuzz::audit(bytes));
