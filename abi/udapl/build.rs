//! Gives the library its name, and keeps it loaded: its threads may outlive a `dlclose` by libdat2.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdaplrkey.so.2");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
