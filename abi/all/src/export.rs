//! The symbols that libfabric and libdat2 look up in a provider. As `libibverbs.so.1` the object is preloaded, so its
//! symbols take precedence over those of all libraries. They have a version of their own, so that other providers still use
//! their own symbols of the same names.

use core::arch::global_asm;

/// The instruction that jumps to a function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {f}"
    };
}
/// The instruction that jumps to a function.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {f}"
    };
}

macro_rules! exports {
    ($($name:literal => $function:path,)*) => {
        $(global_asm!(
            ".pushsection .text",
            concat!(".globl __rkey_plugin_", $name),
            concat!(".type __rkey_plugin_", $name, ",@function"),
            ".p2align 4",
            concat!("__rkey_plugin_", $name, ":"),
            jump!(),
            concat!(".size __rkey_plugin_", $name, ", .-__rkey_plugin_", $name),
            concat!(".symver __rkey_plugin_", $name, ", ", $name, "@@RKEY_1"),
            ".popsection",
            f = sym $function
        );)*
    };
}

exports! {
    "fi_prov_ini" => rkey_fi::fi_prov_ini,
    "dat_provider_init" => daplrkey::export::dat_provider_init,
    "dat_provider_fini" => daplrkey::export::dat_provider_fini,
    "dapl_extensions" => daplrkey::export::dapl_extensions,
    "rkey_dat_provider" => daplrkey::export::rkey_dat_provider,
}
