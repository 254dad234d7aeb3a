//! Generates the stubs; needs protoc.

use std::{env, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::var("IDEMPOTENCY_PROTO").unwrap_or("../../../proto".into());
    let contract = Path::new(&folder).join("idempotency/v1/idempotency.proto");
    println!("cargo:rerun-if-env-changed=IDEMPOTENCY_PROTO");
    tonic_prost_build::configure()
        .build_server(false)
        .extern_path(".google.rpc.Status", "::tonic_types::Status")
        .compile_protos(&[contract], &[folder.into()])?;
    Ok(())
}
