//! The providers of the IA names of dat.conf: each has a function table, to which the handles of its IAs point.

#![allow(unsafe_code)]
// UNSAFETY: a table of C functions that lives as long as the process.

use crate::sys::Provider;
use parking_lot::Mutex;
use std::ffi::{CStr, CString};

/// The provider of one IA name. It lives as long as the process, because handles point to its table.
pub struct Entry {
    name: CString,
    parameters: Mutex<String>,
    table: Provider,
}

// SAFETY: the table is never written after its creation.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

static ENTRIES: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());

impl Entry {
    /// The function table.
    #[must_use]
    pub fn table(&'static self) -> &'static Provider {
        &self.table
    }

    /// The 7th field of its line in dat.conf.
    #[must_use]
    pub fn parameters(&self) -> String {
        self.parameters.lock().clone()
    }

    /// Replaces them.
    pub(crate) fn set_parameters(&self, parameters: String) {
        *self.parameters.lock() = parameters;
    }

    /// Creates the provider of a name.
    pub(crate) fn add(name: CString, parameters: String, table: Provider) -> &'static Self {
        let entry = Box::leak(Box::new(Self {
            name,
            parameters: Mutex::new(parameters),
            table,
        }));
        ENTRIES.lock().push(entry);
        entry
    }
}

/// The provider of an IA name.
#[must_use]
pub fn find(name: &CStr) -> Option<&'static Entry> {
    let entries = ENTRIES.lock();
    entries
        .iter()
        .copied()
        .find(|it| it.name.as_c_str() == name)
}
