//! The API that a program uses, for the names of access rights and objects in messages.
//!
//! A verbs program sets `IBV_ACCESS_REMOTE_WRITE`, a libfabric program `FI_REMOTE_WRITE`. A denial names the flag that
//! the owner of the memory left out, in the owner's API, because the owner's program must be changed.

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
    /// uDAPL: `DAT_MEM_PRIV_REMOTE_WRITE_FLAG`.
    Udapl,
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

/// uDAPL has one flag for each kind of local access; atomics are an extension, and every LMR can be bound.
const UDAPL: [(Access, &str); 5] = [
    (Access::REMOTE_READ, "DAT_MEM_PRIV_REMOTE_READ_FLAG"),
    (Access::REMOTE_WRITE, "DAT_MEM_PRIV_REMOTE_WRITE_FLAG"),
    (Access::REMOTE_ATOMIC, "DAT_IB_MEM_PRIV_REMOTE_ATOMIC"),
    (Access::LOCAL_READ, "DAT_MEM_PRIV_LOCAL_READ_FLAG"),
    (Access::LOCAL_WRITE, "DAT_MEM_PRIV_LOCAL_WRITE_FLAG"),
];

/// The words of an API for objects, keys and calls.
#[derive(Debug)]
pub struct Words {
    /// Registered memory: "region".
    pub region: &'static str,
    /// A part of a region, with its own key: "window".
    pub window: &'static str,
    /// The object that memory and connections must share: "domain".
    pub domain: &'static str,
    /// One end of a connection: "queue pair".
    pub queue_pair: &'static str,
    /// A queue of receives for several queue pairs: "shared receive queue".
    pub srq: &'static str,
    /// The number that names registered memory: "key".
    pub key: &'static str,
    /// The number that names memory in peers' requests: "rkey".
    pub rkey: &'static str,
    /// The number that names memory in local requests: "lkey".
    pub lkey: &'static str,
    /// The verb for registering memory: "register".
    pub register: &'static str,
    /// The verb for ending a registration: "deregister".
    pub deregister: &'static str,
    /// The participle for memory whose registration has ended: "deregistered".
    pub deregistered: &'static str,
    /// The participle for a window that no longer exists: "deallocated".
    pub deallocated: &'static str,
}

/// The words of this project, of verbs and, for memory, of libfabric.
const COMMON: Words = Words {
    region: "region",
    window: "window",
    domain: "domain",
    queue_pair: "queue pair",
    srq: "shared receive queue",
    key: "key",
    rkey: "rkey",
    lkey: "lkey",
    register: "register",
    deregister: "deregister",
    deregistered: "deregistered",
    deallocated: "deallocated",
};

const DAT: Words = Words {
    region: "LMR",
    window: "RMR",
    domain: "PZ",
    queue_pair: "EP",
    srq: "SRQ",
    key: "context",
    rkey: "RMR context",
    lkey: "LMR context",
    register: "create",
    deregister: "free",
    deregistered: "freed",
    deallocated: "freed",
};

impl Api {
    /// The API's words for objects, keys and calls.
    #[must_use]
    pub const fn words(self) -> &'static Words {
        match self {
            Self::Native | Self::Verbs | Self::Libfabric => &COMMON,
            Self::Udapl => &DAT,
        }
    }

    /// The API's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "the Rust API",
            Self::Verbs => "verbs",
            Self::Libfabric => "libfabric",
            Self::Udapl => "uDAPL",
        }
    }

    /// Every API. The index in this list is the API's code in [`crate::Denial::encode`].
    pub const ALL: [Self; 4] = [Self::Native, Self::Verbs, Self::Libfabric, Self::Udapl];

    /// `access` as this API writes it; "nothing" for the empty set.
    #[must_use]
    pub const fn names(self, access: Access) -> Names {
        Names { api: self, access }
    }
}

/// Access rights, printed as an API writes them.
#[derive(Debug)]
pub struct Names {
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
            Api::Udapl => &UDAPL,
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
        for (access, native, verbs, libfabric, udapl) in [
            (Access::empty(), "nothing", "nothing", "nothing", "nothing"),
            (
                both,
                "\"remote write, remote atomic\"",
                "IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC",
                "FI_REMOTE_WRITE",
                "DAT_MEM_PRIV_REMOTE_WRITE_FLAG | DAT_IB_MEM_PRIV_REMOTE_ATOMIC",
            ),
            (
                Access::RECV,
                "\"receive\"",
                "IBV_ACCESS_LOCAL_WRITE",
                "FI_RECV",
                "DAT_MEM_PRIV_LOCAL_WRITE_FLAG",
            ),
            (
                Access::BIND,
                "\"window bind\"",
                "IBV_ACCESS_MW_BIND",
                "\"window bind\"",
                "\"window bind\"",
            ),
        ] {
            assert_eq!(Api::Native.names(access).to_string(), native);
            assert_eq!(Api::Verbs.names(access).to_string(), verbs);
            assert_eq!(Api::Libfabric.names(access).to_string(), libfabric);
            assert_eq!(Api::Udapl.names(access).to_string(), udapl);
        }
    }
}
