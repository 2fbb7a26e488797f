//! telexec's wire: the types and stubs made from the files in `telexec/v1`, which are the specification, and their
//! conversion from and to the types of `telexec-tool`.

pub mod codec;
pub mod convert;
pub mod frame;
pub mod frame_decoder;
pub mod pieces;
pub mod start_time;
pub mod timeout;

/// Types, clients and servers of the package `telexec.v1`; the proto file documents them.
// the comments are the proto file's, not rustdoc's
#[allow(missing_docs, clippy::all, rustdoc::all)]
pub mod v1 {
    tonic::include_proto!("telexec.v1");
}

/// Types, client and server of the package `telexec.enrollment.v1`, by which a CA issues certificates.
pub mod enrollment {
    /// The proto file documents them.
    #[allow(missing_docs, clippy::all, rustdoc::all)]
    pub mod v1 {
        tonic::include_proto!("telexec.enrollment.v1");
    }
}

/// The compiled proto files of an agent (a `google.protobuf.FileDescriptorSet`), for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
