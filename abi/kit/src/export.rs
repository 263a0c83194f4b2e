//! Exported functions with symbol versions.
//!
//! Rust cannot version a function, so each exported symbol is a jump in assembly, and `.symver` sets its name and version. The
//! library's linker script declares the versions to the linker.

/// The instruction for a jump to the function `f` of a `global_asm!`.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "jmp {f}"
    };
}
/// The instruction for a jump to the function `f` of a `global_asm!`.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump {
    () => {
        "b {f}"
    };
}

/// Exports the functions of one version. The arguments are the prefix of the jumps' local names, which must be unique in the program
/// among the invocations; the version with `@@` (the default version) or `@`; and each name with its function.
///
/// ```ignore
/// rkey_kit::exports! { "__rkey_cm_" "@@RDMACM_1.1" {
///     "rdma_join_multicast_ex" => crate::absent::call,
/// } }
/// ```
#[macro_export]
macro_rules! exports {
    ($prefix:literal $version:literal { $($name:literal => $function:path,)* }) => {
        $($crate::export!($prefix, $name, $version, $function);)*
    };
}

/// One export of [`exports!`](crate::exports).
#[doc(hidden)]
#[macro_export]
macro_rules! export {
    ($prefix:literal, $name:literal, $version:literal, $function:path) => {
        core::arch::global_asm!(
            ".pushsection .text",
            concat!(".globl ", $prefix, $name),
            concat!(".type ", $prefix, $name, ",@function"),
            ".p2align 4",
            concat!($prefix, $name, ":"),
            $crate::jump!(),
            concat!(".size ", $prefix, $name, ", .-", $prefix, $name),
            concat!(".symver ", $prefix, $name, ", ", $name, $version),
            ".popsection",
            f = sym $function
        );
    };
}
