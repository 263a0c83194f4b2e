//! Keeps the library loaded: its threads may outlive a `dlclose` by libdat2. It has no soname, because libdat2 loads it by its
//! path, and cargo would give the name to `libdat.so.1` too, which contains it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
