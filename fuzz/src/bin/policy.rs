//! Decisions on any command, by rules that look at all of it; and policies of any text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use telexec_proto::convert::command_from_wire;
use telexec_proto::v1::ExecuteRequest;

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        // a digit that no request begins with, and no policy is long
        Some((b'7', text)) if text.len() < 4096 => {
            str::from_utf8(text).into_iter().for_each(telexec_server::fuzz::policy_text);
        }
        _ => {
            let command = ExecuteRequest::decode(bytes).ok().and_then(|request| command_from_wire(request, None).ok());
            command.into_iter().for_each(telexec_server::fuzz::policy);
        }
    }
});
