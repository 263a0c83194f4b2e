//! Gives the library its name and its symbol versions.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=dat.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdat.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={folder}/dat.map");
}
