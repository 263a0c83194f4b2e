//! The API that a program uses, for the names of access rights in messages.
//!
//! A verbs program sets `IBV_ACCESS_REMOTE_WRITE`, a libfabric program `FI_REMOTE_WRITE`. A denial names the flag that the
//! owner of the memory left out, in the owner's API, because that is where the program must change.

use crate::Access;
use serde::{Deserialize, Serialize};
use std::fmt;

/// An API, and how it names access rights.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Api {
    /// The Rust API: `"remote write"`.
    #[default]
    Native,
    /// Verbs: `IBV_ACCESS_REMOTE_WRITE`.
    Verbs,
    /// Libfabric: `FI_REMOTE_WRITE`.
    Libfabric,
}

/// Verbs has one flag for both kinds of local write, and none for local read, which is always allowed.
const VERBS: [(Access, &str); 6] = [
    (Access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
    (Access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
    (Access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
    (Access::LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"),
    (Access::LOCAL_READ, "local read"),
    (Access::BIND, "IBV_ACCESS_MW_BIND"),
];

/// In libfabric `FI_REMOTE_WRITE` includes atomics, and there are no windows.
const LIBFABRIC: [(Access, &str); 7] = [
    (Access::REMOTE_READ, "FI_REMOTE_READ"),
    (
        Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC),
        "FI_REMOTE_WRITE",
    ),
    (Access::SEND, "FI_SEND"),
    (Access::RECV, "FI_RECV"),
    (Access::READ, "FI_READ"),
    (Access::WRITE, "FI_WRITE"),
    (Access::COLLECTIVE, "FI_COLLECTIVE"),
];

impl Api {
    /// Every API. The index in this list is the API's code in [`crate::Denial::to_wire`].
    pub const ALL: [Self; 3] = [Self::Native, Self::Verbs, Self::Libfabric];

    /// `access` as this API writes it; "nothing" for the empty set.
    pub(crate) const fn names(self, access: Access) -> Names {
        Names { api: self, access }
    }
}

/// Access rights, printed as an API writes them.
pub(crate) struct Names {
    api: Api,
    access: Access,
}

impl fmt::Display for Names {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags: &[(Access, &str)] = match self.api {
            _ if self.access.is_empty() => return out.write_str("nothing"),
            Api::Native => return write!(out, "\"{}\"", self.access),
            Api::Verbs => &VERBS,
            Api::Libfabric => &LIBFABRIC,
        };
        let mut names = flags
            .iter()
            .filter(|(right, _)| self.access.intersects(*right))
            .map(|(_, name)| *name);
        // A right for which this API has no flag.
        let Some(first) = names.next() else {
            return write!(out, "\"{}\"", self.access);
        };
        out.write_str(first)?;
        names.try_for_each(|name| write!(out, " | {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_named_as_each_api_writes_them() {
        let both = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        for (access, native, verbs, libfabric) in [
            (Access::empty(), "nothing", "nothing", "nothing"),
            (
                both,
                "\"remote write, remote atomic\"",
                "IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC",
                "FI_REMOTE_WRITE",
            ),
            (
                Access::RECV,
                "\"receive\"",
                "IBV_ACCESS_LOCAL_WRITE",
                "FI_RECV",
            ),
            (
                Access::BIND,
                "\"window bind\"",
                "IBV_ACCESS_MW_BIND",
                "\"window bind\"",
            ),
        ] {
            assert_eq!(Api::Native.names(access).to_string(), native);
            assert_eq!(Api::Verbs.names(access).to_string(), verbs);
            assert_eq!(Api::Libfabric.names(access).to_string(), libfabric);
        }
    }
}
