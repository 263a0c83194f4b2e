//! Gives the library its name, its symbol versions and its exports.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=libfabric.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfabric.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/libfabric.map");
    // A program may close the library while objects of the provider still exist.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
