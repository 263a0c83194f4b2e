//! Gives the shared object its name, its symbol versions and all exports, and keeps it in memory once it is loaded: threads of
//! the device may still run when a program closes it.

use std::path::Path;

fn main() {
    let own = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let own = Path::new(&own);
    let mut arguments = vec![
        "-soname,libibverbs.so.1".to_owned(),
        "-z,nodelete".to_owned(),
        // The exports of verbs and librdmacm are assembly that nothing refers to: these two options pull the object files with
        // them out of the archives.
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
