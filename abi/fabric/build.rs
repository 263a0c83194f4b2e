//! Keeps the library in memory once it is loaded: threads of the device may still run when libfabric
//! closes its providers.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
