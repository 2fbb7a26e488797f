//! Requests from the wire: a malformed one is refused, and any other means the same after it went over the wire again.

#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use telexec_proto::convert::{
    attach_from_wire, attach_to_wire, command_from_wire, command_to_wire, query_from_wire, query_to_wire,
    size_from_wire, size_to_wire,
};
use telexec_proto::v1::interact_request::Request;
use telexec_proto::v1::{AttachRequest, ExecuteRequest, InteractRequest, ListExecutionsRequest};

fuzz_target!(|bytes: &[u8]| {
    // the same bytes as each of them: protobuf does not distinguish them
    ExecuteRequest::decode(bytes).into_iter().for_each(execute);
    AttachRequest::decode(bytes).into_iter().for_each(attach);
    ListExecutionsRequest::decode(bytes).into_iter().for_each(list);
    match InteractRequest::decode(bytes).ok().and_then(|interact| interact.request) {
        Some(Request::Start(request)) => execute(request),
        Some(Request::Attach(request)) => attach(request),
        Some(Request::Resize(size)) => {
            if let Ok(known) = size_from_wire(size) {
                assert_eq!(size_to_wire(known), size);
            }
        }
        _ => {}
    }
});

fn execute(request: ExecuteRequest) {
    let Ok(command) = command_from_wire(request, None) else { return };
    let wire = over_the_wire(&command_to_wire(&command));
    let again = command_from_wire(wire.clone(), None).expect("what was sent is well-formed");
    assert_eq!(again, command);
    assert_eq!(again.fingerprint(""), command.fingerprint(""));
    assert_eq!(command_to_wire(&again), wire);
}

fn attach(request: AttachRequest) {
    let Ok((id, from)) = attach_from_wire(&request) else { return };
    assert_eq!(id.as_str(), request.execution_id);
    let wire = over_the_wire(&attach_to_wire(&id, from));
    assert_eq!(attach_from_wire(&wire).expect("what was sent is well-formed"), (id, from));
}

fn list(request: ListExecutionsRequest) {
    let query = query_from_wire(request.clone());
    assert_eq!(query.identity, None);
    assert_eq!(over_the_wire(&query_to_wire(query)), request);
}

fn over_the_wire<T: Debug + Default + Message + PartialEq>(message: &T) -> T {
    let arrived = T::decode(&*message.encode_to_vec()).expect("it was encoded");
    assert_eq!(&arrived, message);
    arrived
}
