//! Chunks of collective operations that arrived before their operation began here. A peer can be ahead only by its
//! operations in flight, because none of them completes at the peer before we have done our part. A peer that sends
//! more loses its connection, and with it the chunks that are kept here.

use super::names::Name;
use super::{RUNS_MAX, WINDOW};
use crate::limits::EAGER_MAX;
use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};

/// How many chunks are kept for one connection.
const CHUNKS: u32 = 4096;
/// The maximum total size of the chunks that are kept for one connection, in bytes.
const BYTES: usize = RUNS_MAX * WINDOW as usize * EAGER_MAX;
/// Instead of an operation number, this says that the sender has left the group.
pub const LEFT: u32 = u32::MAX;

/// The sender and the operation of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The member that sent the chunk.
    pub from: SocketAddr,
    /// The group.
    pub group: Name,
    /// The operation in the group.
    pub seq: u32,
}

/// A chunk.
#[derive(Debug)]
pub struct Chunk {
    /// The connection that the chunk arrived on.
    pub connection: usize,
    /// The sender's operation that waits for our answer.
    pub id: u64,
    /// The signature of the operation at the sender.
    pub signature: u32,
    /// The contents of the chunk.
    pub body: Body,
}

/// The contents of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// The bytes of the chunk.
    Here(Vec<u8>),
    /// Bytes that the receiver reads from the sender's memory.
    There {
        /// The key of the sender's region.
        key: u32,
        /// The length, in bytes.
        len: u32,
    },
    /// The chunk has no contents: the sender has left, or has failed with this error.
    Left(u32),
}

impl Body {
    fn kept(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// The waiting chunks.
#[derive(Debug, Default)]
pub struct EarlyChunks {
    chunks: HashMap<Key, VecDeque<Chunk>>,
    /// How many chunks and bytes each connection has here, including connections that no longer have any.
    held: HashMap<usize, (u32, usize)>,
}

impl EarlyChunks {
    /// Keeps a chunk; returns `false` if its connection exceeds its limit.
    #[must_use]
    pub fn keep(&mut self, key: Key, chunk: Chunk) -> bool {
        let (chunks, bytes) = self.held.entry(chunk.connection).or_default();
        if *chunks >= CHUNKS || *bytes + chunk.body.kept() > BYTES {
            return false;
        }
        *chunks += 1;
        *bytes += chunk.body.kept();
        self.chunks.entry(key).or_default().push_back(chunk);
        true
    }

    /// The oldest chunk of an operation from a member.
    pub fn take(&mut self, key: &Key) -> Option<Chunk> {
        let queue = self.chunks.get_mut(key)?;
        let chunk = queue.pop_front()?;
        if queue.is_empty() {
            self.chunks.remove(key);
        }
        self.release(&chunk);
        Some(chunk)
    }

    /// The oldest chunk, without taking it.
    #[must_use]
    pub fn look(&self, key: &Key) -> Option<&Chunk> {
        self.chunks.get(key)?.front()
    }

    fn release(&mut self, chunk: &Chunk) {
        if let Some((chunks, bytes)) = self.held.get_mut(&chunk.connection) {
            *chunks -= 1;
            *bytes -= chunk.body.kept();
        }
    }

    fn keep_only(&mut self, wanted: impl Fn(&Key, &Chunk) -> bool) {
        let mut gone = Vec::new();
        self.chunks.retain(|key, queue| {
            for chunk in std::mem::take(queue) {
                match wanted(key, &chunk) {
                    true => queue.push_back(chunk),
                    false => gone.push(chunk),
                }
            }
            !queue.is_empty()
        });
        for chunk in gone {
            self.release(&chunk);
        }
    }

    /// Drops the chunks of a lost connection; returns whether it ever had any.
    pub fn forget_connection(&mut self, connection: usize) -> bool {
        let used = self.held.remove(&connection).is_some();
        if used {
            self.keep_only(|_, chunk| chunk.connection != connection);
        }
        used
    }

    /// Drops the chunks of a closed group.
    pub fn forget_group(&mut self, group: Name) {
        self.keep_only(|key, _| key.group != group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16, seq: u32) -> Key {
        Key {
            from: SocketAddr::from(([127, 0, 0, 1], port)),
            group: Name {
                members: 7,
                instance: 0,
            },
            seq,
        }
    }

    fn chunk(connection: usize, id: u64, len: usize) -> Chunk {
        Chunk {
            connection,
            id,
            signature: 0,
            body: Body::Here(vec![0; len]),
        }
    }

    #[test]
    fn chunks_are_found_by_sender_and_operation_in_order() {
        let mut early = EarlyChunks::default();
        for (port, seq, id) in [(1, 1, 10), (1, 2, 11), (2, 1, 12), (1, 1, 13)] {
            assert!(early.keep(key(port, seq), chunk(0, id, 8)));
        }
        assert_eq!(early.look(&key(1, 1)).map(|chunk| chunk.id), Some(10));
        assert_eq!(early.take(&key(1, 1)).map(|chunk| chunk.id), Some(10));
        assert_eq!(early.take(&key(1, 1)).map(|chunk| chunk.id), Some(13));
        assert!(early.take(&key(1, 1)).is_none());
        assert_eq!(early.take(&key(2, 1)).map(|chunk| chunk.id), Some(12));
    }

    #[test]
    fn early_chunks_are_limited_and_dropped_with_their_connection() {
        let mut early = EarlyChunks::default();
        let mut seq = 0;
        while early.keep(key(1, seq), chunk(0, 0, 8192)) {
            seq += 1;
            assert!((seq as usize) * 8192 <= BYTES);
        }
        assert_eq!(seq as usize, BYTES / 8192);
        assert!(
            early.keep(key(2, 0), chunk(1, 0, 8192)),
            "another peer has its own limit"
        );
        assert!(early.take(&key(1, 0)).is_some());
        assert!(
            early.keep(key(1, seq), chunk(0, 0, 8192)),
            "there is room again"
        );
        assert!(early.forget_connection(0) && !early.forget_connection(0));
        assert_eq!((early.chunks.len(), early.held.len()), (1, 1));
        early.forget_group(key(2, 0).group);
        assert!(early.chunks.is_empty());
        // The connection has no chunks left, but it did have some.
        assert!(early.forget_connection(1) && early.held.is_empty());
        for seq in 0..CHUNKS {
            assert!(early.keep(key(1, seq), chunk(0, 0, 0)));
        }
        assert!(!early.keep(key(1, CHUNKS), chunk(0, 0, 0)));
    }
}
