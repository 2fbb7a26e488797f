//! The Remote Workers API, as generated.

#![allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all, reason = "generated")]

tonic::include_proto!("google.devtools.remoteworkers.v1test2");
