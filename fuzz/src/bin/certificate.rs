//! Who a certificate is for, from any bytes: no one, or a name that cannot be taken for another kind of caller.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| telexec_server::fuzz::certificate(bytes));
