//! Sets the soname, the symbol versions and the exports of the shared object, and prevents it from being unloaded: threads of the
//! device may still run when a program calls `dlclose`.

use std::path::Path;

fn main() {
    let own = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let own = Path::new(&own);
    let mut arguments = vec![
        "-soname,libibverbs.so.1".to_owned(),
        "-z,nodelete".to_owned(),
        // The exports of verbs and librdmacm are in assembly to which no code refers. These two options make the linker include the
        // object files that contain them.
        "--undefined=__rkey_0_ibv_get_sysfs_path".to_owned(),
        "--undefined=__rkey_cm_rdma_create_id".to_owned(),
    ];
    for map in ["../verbs/verbs.map", "../rdmacm/rdmacm.map", "plugins.map"] {
        let map = own.join(map);
        println!("cargo:rerun-if-changed={}", map.display());
        arguments.push(format!("--version-script={}", map.display()));
    }
    for argument in arguments {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
