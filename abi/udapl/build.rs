//! Keeps the library loaded: its threads may outlive a `dlclose` by libdat2. It has no soname: libdat2 loads it by its path,
//! and cargo would give the same soname to `libdat.so.1`, which contains it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
