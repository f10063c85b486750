//! Compiles tidegate's own protobuf definitions, with a compiler that is a crate: nobody needs `protoc`.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["tidegate/admin/v1/admin.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("admin.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
