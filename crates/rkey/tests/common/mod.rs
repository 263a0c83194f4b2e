//! Two connected devices of this process, for most tests.

#![allow(dead_code, reason = "each test file uses a different part of it")]

use rkey::{Access, Connection, Device, Domain, Region, RemoteKey};
use std::time::Duration;

/// All remote rights.
pub(crate) const ALL: Access = Access::REMOTE;

/// Only a hang takes longer than this.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A device whose calls have a time limit, so that a hanging test shows where it hangs.
pub(crate) fn device() -> Device {
    Device::builder().timeout(LONG).open().unwrap()
}

/// An owner of memory, and a visitor.
pub(crate) struct Pair {
    pub(crate) owner: Domain,
    pub(crate) visitor: Domain,
    /// The owner's end.
    pub(crate) inner: Connection,
    /// The visitor's end.
    pub(crate) outer: Connection,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::between(&device(), &device())
    }

    pub(crate) fn between(owner: &Device, visitor: &Device) -> Self {
        let (owner, visitor) = (owner.domain().unwrap(), visitor.domain().unwrap());
        let (inner, outer) = connect(&owner, &visitor);
        Self {
            owner,
            visitor,
            inner,
            outer,
        }
    }

    /// Another connection of the owner and the visitor.
    pub(crate) fn again(&self) -> (Connection, Connection) {
        connect(&self.owner, &self.visitor)
    }

    /// A region of the owner with these rights, and its key.
    pub(crate) fn region(&self, bytes: usize, access: Access) -> (Region<Vec<u8>>, RemoteKey) {
        let region = self.owner.register(vec![0u8; bytes], access).unwrap();
        let key = region.key(..).unwrap();
        (region, key)
    }

    /// A region of the visitor for its own operations.
    pub(crate) fn local(&self, bytes: usize) -> Region<Vec<u8>> {
        self.visitor
            .register(vec![0u8; bytes], Access::empty())
            .unwrap()
    }
}

pub(crate) fn connect(owner: &Domain, visitor: &Domain) -> (Connection, Connection) {
    let listener = owner.listen("127.0.0.1:0").unwrap();
    let address = listener.address();
    std::thread::scope(|scope| {
        let outer = scope.spawn(|| visitor.connect(address).unwrap());
        let inner = listener.accept_timeout(LONG).unwrap();
        (inner, outer.join().unwrap())
    })
}

/// Bytes without a short period.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2] ^ seed)
        .collect()
}
