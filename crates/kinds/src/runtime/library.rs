//! Functions of a shared library that is loaded at run time.

#![allow(unsafe_code)]
// UNSAFETY: loads libraries, whose constructors run, and takes the addresses of functions.

use super::Absent;
use crate::Kind;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL};

/// Loads the library of a kind. It stays loaded forever.
pub(super) fn open(kind: Kind) -> Result<&'static Library, Absent> {
    // ROCr and SynapseAI look up their own symbols globally.
    let scope = match kind {
        Kind::Rocr | Kind::SynapseAi => RTLD_GLOBAL,
        _ => RTLD_LOCAL,
    };
    // SAFETY: the runtime of an accelerator, by the name under which its programs load it.
    match unsafe { Library::open(Some(kind.library()), RTLD_LAZY | scope) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(Absent {
            kind,
            why: error.to_string(),
        }),
    }
}

/// A function of a library.
///
/// # Safety
/// `F` is the type of the C function with this name.
pub(super) unsafe fn function<F: Copy>(
    kind: Kind,
    library: &'static Library,
    name: &str,
) -> Result<F, Absent> {
    // SAFETY: the caller promises the type; the library stays loaded.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(Absent {
            kind,
            why: format!("{} has no function {name}", kind.library()),
        }),
    }
}

/// A structure of C functions, and `load`, which takes them from the library of a kind.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident of $kind:expr; $($field:ident = $name:literal: $type:ty;)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        struct $table {
            $($field: $type,)+
        }

        impl $table {
            fn load() -> Result<(Self, &'static libloading::os::unix::Library), crate::runtime::Absent> {
                let library = crate::runtime::library::open($kind)?;
                let table = Self {
                    // SAFETY: the types are those of the runtime's header.
                    $($field: unsafe { crate::runtime::library::function($kind, library, $name)? },)+
                };
                Ok((table, library))
            }
        }
    };
}
pub(super) use functions;
