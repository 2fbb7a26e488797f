//! Compiles the proto files with a compiler written in Rust, so that no `protoc` is needed.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=telexec");
    let services = ["approval", "execution", "file", "forward"].map(|name| format!("telexec/v1/{name}.proto"));
    let descriptors = protox::compile(services, ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        // chunks travel from the pipe to the wire without a copy
        .bytes(".telexec.v1")
        // so that equal requests have equal encodings
        .btree_map(".telexec.v1.ExecuteRequest")
        .codec_path("crate::codec::Codec")
        .compile_fds(descriptors)?;
    // apart from the others, which an agent serves and describes
    let enrollment = protox::compile(["telexec/enrollment/v1/enrollment.proto"], ["."])?;
    tonic_prost_build::configure().compile_fds(enrollment)?;
    Ok(())
}
