//! Compiles the Remote Workers API with a compiler written in Rust, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["google/devtools/remoteworkers/v1test2/bots.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        // the types that the Remote Execution API has already
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::bazel_remote_apis::google::protobuf")
        .extern_path(".google.protobuf.FieldMask", "::prost_types::FieldMask")
        .extern_path(".google.rpc", "::bazel_remote_apis::google::rpc")
        .compile_fds(descriptors)?;
    Ok(())
}
