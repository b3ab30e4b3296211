//! Compiles the kubelet's device plugin API with protox, so that the build machine needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/device_plugin.proto");
    let descriptors = protox::compile(["proto/device_plugin.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
