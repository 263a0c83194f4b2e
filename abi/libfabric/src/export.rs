//! The exported functions, with the symbol versions of libfabric 2.6. Debian 12 has libfabric 1.17, whose versions end with
//! `FABRIC_1.6`.
//!
//! Rust cannot version a function, so each exported symbol is a jump in assembly; `.symver` sets its name and version (`@@` marks the
//! default). `libfabric.map` declares the versions to the linker.

use crate::variadic::{after_four, after_six};
use crate::{fabric, info, log, params, text};
use core::arch::global_asm;

/// Exports: name, version => function. The version also distinguishes the local names.
macro_rules! exports {
    ($($name:literal $version:tt => $function:path,)*) => {
        $(exports!(@ $name, $version, $function, "jmp {f}");)*
    };
    (@ $name:literal, $version:tt, $function:path, $body:expr) => {
        global_asm!(
            ".pushsection .text",
            concat!(".globl __rkey_", $name, "_", $version),
            concat!(".type __rkey_", $name, "_", $version, ",@function"),
            ".p2align 4",
            concat!("__rkey_", $name, "_", $version, ":"),
            $body,
            concat!(".size __rkey_", $name, "_", $version, ", .-__rkey_", $name, "_", $version),
            concat!(".symver __rkey_", $name, "_", $version, ", ", $name, exports!(@version $version)),
            ".popsection",
            f = sym $function
        );
    };
    (@version "1_0") => { "@@FABRIC_1.0" };
    (@version "1_1") => { "@@FABRIC_1.1" };
    (@version "1_4") => { "@@FABRIC_1.4" };
    (@version "1_5") => { "@@FABRIC_1.5" };
    (@version "1_6") => { "@@FABRIC_1.6" };
    (@version "1_8") => { "@@FABRIC_1.8" };
    (@version "1_10") => { "@@FABRIC_1.10" };
    (@version "old_1_0") => { "@FABRIC_1.0" };
    (@version "old_1_1") => { "@FABRIC_1.1" };
    (@version "old_1_2") => { "@FABRIC_1.2" };
    (@version "old_1_3") => { "@FABRIC_1.3" };
    (@version "old_1_7") => { "@FABRIC_1.7" };
    (@version "old_1_8") => { "@FABRIC_1.8" };
    (@version "old_1_9") => { "@FABRIC_1.9" };
}

exports! {
    "fi_getinfo" "1_10" => info::getinfo_1_10,
    "fi_dupinfo" "1_10" => info::dupinfo_1_10,
    "fi_freeinfo" "1_10" => info::free,
    "fi_fabric" "1_1" => fabric::fabric,
    "fi_fabric2" "1_8" => fabric::fabric2,
    "fi_open" "1_5" => fabric::fi_open,
    "fi_version" "1_0" => fabric::fi_version,
    "fi_strerror" "1_0" => fabric::strerror,
    "fi_tostr" "1_0" => text::tostr,
    "fi_tostr_r" "1_4" => text::tostr_r,
    "fi_param_get" "1_0" => params::get,
    "fi_getparams" "1_0" => params::getparams,
    "fi_freeparams" "1_0" => params::freeparams,
    "fi_log_enabled" "1_0" => log::log_enabled,
    "fi_log_ready" "1_6" => log::log_ready,
}

exports!(@ "fi_param_define", "1_0", params::define, after_four!());
exports!(@ "fi_log", "1_0", log::log, after_six!());

exports! {
    "fi_getinfo" "old_1_0" => info::getinfo_1_0,
    "fi_getinfo" "old_1_1" => info::getinfo_1_1,
    "fi_getinfo" "old_1_2" => info::getinfo_1_2,
    "fi_getinfo" "old_1_3" => info::getinfo_1_3,
    "fi_getinfo" "old_1_7" => info::getinfo_1_7,
    "fi_getinfo" "old_1_8" => info::getinfo_1_8,
    "fi_getinfo" "old_1_9" => info::getinfo_1_9,
    "fi_dupinfo" "old_1_0" => info::dupinfo_1_0,
    "fi_dupinfo" "old_1_1" => info::dupinfo_1_1,
    "fi_dupinfo" "old_1_2" => info::dupinfo_1_2,
    "fi_dupinfo" "old_1_3" => info::dupinfo_1_3,
    "fi_dupinfo" "old_1_7" => info::dupinfo_1_7,
    "fi_dupinfo" "old_1_8" => info::dupinfo_1_8,
    "fi_dupinfo" "old_1_9" => info::dupinfo_1_9,
    "fi_freeinfo" "old_1_0" => info::free,
    "fi_freeinfo" "old_1_1" => info::free,
    "fi_freeinfo" "old_1_2" => info::free,
    "fi_freeinfo" "old_1_3" => info::free,
    "fi_freeinfo" "old_1_7" => info::free,
    "fi_freeinfo" "old_1_8" => info::free,
    "fi_freeinfo" "old_1_9" => info::free,
    "fi_fabric" "old_1_0" => fabric::fabric_1_0,
}
