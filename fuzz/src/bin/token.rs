//! Tokens, their claims, and sets of keys from any bytes: nobody is known by what no issuer has signed.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| telexec_server::fuzz::token(bytes));
