//! The messages that visitor and owner exchange over their first connection.

use anyhow::Context;
use rkey::{Connection, RemoteKey};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The size of the owner's memory that most steps use, in bytes.
pub(super) const MEMORY: u64 = 1 << 20;
/// The offset of the shared counter in that memory, in bytes.
pub(super) const COUNTER: u64 = MEMORY - 64;

/// The owner's first message.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    /// The address for further connections.
    pub(super) address: SocketAddr,
}

/// A request from the visitor.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Ask {
    /// A key for all of the memory.
    Key,
    /// Fill the memory with the pattern of this seed, up to the counter.
    Fill(u64),
    /// The checksum of a part of the memory.
    Sum { offset: u64, len: u64 },
    /// Add 1 to the counter this many times, then answer.
    Add(u64),
    /// The value of the counter.
    Counter,
    /// Post a receive for a message of this length on the data connection, answer, and answer again with its checksum when the
    /// message has arrived.
    Receive(u64),
    /// Bind the window to a part of the memory.
    Bind { offset: u64, len: u64 },
    /// Unbind the window.
    Unbind,
    /// Allocate memory that can be leased, and register it.
    AllocateShared(u64),
    /// The checksum of this many bytes at the start of the shared memory.
    SharedSum(u64),
    /// Deregister the shared memory.
    DeregisterShared,
    /// Prepare for one of the ten mistakes.
    Bait(Bait),
    /// How many accesses the owner's device has refused.
    Refused,
    /// Deregister the memory, and answer with the checksum of the returned buffer.
    Deregister,
    /// Exit.
    Goodbye,
}

/// How the owner prepares for a mistake. The owner answers with the key that the mistaken program would use.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bait {
    /// 4096 bytes with all remote rights.
    Plain,
    /// 4096 bytes that peers can only read.
    ReadOnly,
    /// A deregistered region.
    Freed,
    /// A deregistered region, at whose address another one is now registered.
    Replaced,
    /// A region in another protection domain.
    OtherDomain,
    /// A region of another device of the owner.
    OtherDevice,
    /// The local key instead of the remote one.
    LKey,
    /// A window that was rebound.
    Rebound,
    /// A zero-based region, with its address in the owner's process.
    ZeroBased,
}

/// An answer from the owner.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    Done,
    Key(RemoteKey),
    Number(u64),
    Failed(String),
}

/// The visitor's connection to the owner, and the owner's address.
pub(super) struct Owner {
    pub(super) connection: Connection,
    pub(super) address: SocketAddr,
}

impl Owner {
    /// Receives the owner's first message.
    pub(super) fn greet(connection: Connection) -> anyhow::Result<Self> {
        let hello: Hello = connection
            .receive()
            .context("the owner did not send its first message")?;
        Ok(Self {
            connection,
            address: hello.address,
        })
    }

    pub(super) fn ask(&self, ask: &Ask) -> anyhow::Result<Answer> {
        self.connection.send(ask)?;
        self.answer()
    }

    /// The next answer, for requests that get two.
    pub(super) fn answer(&self) -> anyhow::Result<Answer> {
        match self.connection.receive()? {
            Answer::Failed(why) => anyhow::bail!("the owner failed: {why}"),
            answer => Ok(answer),
        }
    }

    pub(super) fn key(&self, ask: &Ask) -> anyhow::Result<RemoteKey> {
        match self.ask(ask)? {
            Answer::Key(key) => Ok(key),
            other => anyhow::bail!("the owner answered {other:?} instead of a key"),
        }
    }

    pub(super) fn number(&self, ask: &Ask) -> anyhow::Result<u64> {
        match self.ask(ask)? {
            Answer::Number(number) => Ok(number),
            other => anyhow::bail!("the owner answered {other:?} instead of a number"),
        }
    }

    pub(super) fn done(&self, ask: &Ask) -> anyhow::Result<()> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            other => anyhow::bail!("unexpected answer from the owner: {other:?}"),
        }
    }
}

/// Pseudo-random bytes from a seed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The checksum that both sides use to compare bytes (FNV-1a).
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
