//! The parts of a denial's sentences: operations, connections, keys, and the forms of nouns.

use crate::{Attempt, LocalUse, NamedKey, Operation, RKey, Words};
use std::fmt;

impl fmt::Display for Attempt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Remote(Operation::Write) => "RDMA write",
            Self::Remote(Operation::Read) => "RDMA read",
            Self::Remote(Operation::Atomic) => "atomic operation",
            Self::Local(LocalUse::Send) => "send",
            Self::Local(LocalUse::Recv) => "receive",
            Self::Local(LocalUse::WriteSource) => "RDMA write from local memory",
            Self::Local(LocalUse::ReadSink) => "RDMA read into local memory",
            Self::Local(LocalUse::AtomicResult) => {
                "atomic operation with its result into local memory"
            }
            Self::Local(LocalUse::Collective) => "collective operation",
            Self::Invalidate { remote: false } => "invalidation",
            Self::Invalidate { remote: true } => "invalidation by the peer",
            Self::Other(code) => return write!(out, "operation {code}"),
        })
    }
}

/// The source of a request: a queue pair, or an endpoint made of several. Queue pair numbers have 24 bits; endpoint
/// numbers start above them.
pub(crate) struct Channel(pub(crate) u32, pub(crate) &'static Words);

impl fmt::Display for Channel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.checked_sub(1 << 24) {
            None => write!(out, "{} {:#x}", self.1.queue_pair, self.0),
            Some(endpoint) => write!(out, "endpoint {endpoint}"),
        }
    }
}

impl fmt::Display for NamedKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(key) => key.fmt(out),
            Self::Local(key) => key.fmt(out),
            Self::Region(region) => region.fmt(out),
        }
    }
}

/// A key in the words of an API.
pub(crate) struct InWords(pub(crate) NamedKey, pub(crate) &'static Words);

impl fmt::Display for InWords {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NamedKey::Remote(RKey::Device(key)) => {
                write!(out, "{} {:#010x}", self.1.rkey, key.0)
            }
            NamedKey::Local(key) => write!(out, "{} {:#010x}", self.1.lkey, key.0),
            other => other.fmt(out),
        }
    }
}

/// "a region", "an LMR".
pub(crate) fn with_article(noun: &str) -> String {
    // Abbreviations are read letter by letter: "an L-M-R".
    let vowel = noun.starts_with(['a', 'e', 'i', 'o', 'L', 'R']);
    format!("{} {noun}", if vowel { "an" } else { "a" })
}

/// `word` with a capital first letter.
pub(crate) fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
