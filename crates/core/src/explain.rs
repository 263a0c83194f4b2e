//! The words of a refusal: one sentence, and the longer form with advice.
//!
//! A sentence says what was tried, on which bytes, by which key, and why that was refused. The advice says what is to
//! be done about it. Both are for the person at the keyboard, on either side of the connection.

use crate::{Access, Attempt, Denial, LocalUse, NamedKey, Operation, Reason, SlotNow, WindowKind};
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

/// Where a request came from: a queue pair, or an endpoint of several. Queue pair numbers have 24 bits, and
/// who gives endpoints numbers begins above.
struct Channel(u32);

impl fmt::Display for Channel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.checked_sub(1 << 24) {
            None => write!(out, "queue pair {:#x}", self.0),
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

/// "RDMA write of 16 B at 0x1ff8 with rkey 0x5a03c17e denied: 8 B of it lie behind the end of the memory, ..."
impl fmt::Display for Denial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ", self.attempt)?;
        if !matches!(self.attempt, Attempt::Invalidate { .. }) {
            write!(out, "of {} B at {:#x} ", self.len, self.addr)?;
        }
        match self.key {
            NamedKey::Region(region) => write!(out, "in {region}")?,
            key => write!(out, "with {key}")?,
        }
        if let Some(qp) = self.qp {
            write!(out, " over {}", Channel(qp))?;
        }
        out.write_str(" denied: ")?;
        self.why(out)
    }
}

impl std::error::Error for Denial {}

impl Reason {
    /// A word for it that does not change, for programs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::UnknownKey => "unknown-key",
            Self::StaleKey { .. } => "stale-key",
            Self::LocalKeyUsedRemotely => "local-key-used-remotely",
            Self::RemoteKeyUsedLocally => "remote-key-used-locally",
            Self::OtherDomain { .. } => "other-domain",
            Self::Disabled => "disabled",
            Self::Unbound => "unbound",
            Self::Closing => "closing",
            Self::Right { .. } => "missing-right",
            Self::OutOfRange { .. } => "out-of-range",
            Self::NotInOnePiece => "not-in-one-piece",
            Self::ZeroBased { .. } => "zero-based",
            Self::NotZeroBased { .. } => "not-zero-based",
            Self::Wraps => "address-wraps",
            Self::WrongEndpoint { .. } => "other-endpoint",
            Self::OtherPeer => "other-peer",
            Self::Misaligned => "misaligned",
            Self::NotAWindow => "not-a-window",
            Self::WindowKind(_) => "window-kind",
            Self::QueuePair { .. } => "queue-pair-right",
            Self::Fault { .. } => "fault",
            Self::Withheld => "withheld",
            Self::Other(_) => "other",
        }
    }
}

impl Denial {
    fn why(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::UnknownKey => out.write_str("no memory has this key, and none had it before"),
            Reason::StaleKey { now } => {
                out.write_str("the key is stale, its memory was closed or bound anew")?;
                out.write_str(match now {
                    SlotNow::Free => "",
                    SlotNow::Reused => "; something else has taken its place",
                    SlotNow::Rebound => "; the same window has another key now",
                })
            }
            Reason::LocalKeyUsedRemotely => {
                out.write_str("this is a local key (lkey), and a peer needs the remote one (rkey)")
            }
            Reason::RemoteKeyUsedLocally => out.write_str(
                "this is a remote key (rkey), and local memory needs the local one (lkey)",
            ),
            Reason::OtherDomain { owner } => {
                write!(out, "the memory belongs to {owner}")?;
                match self.domain {
                    Some(domain) => write!(out, ", the request to {domain}"),
                    None => out.write_str(", the request to another one"),
                }
            }
            Reason::Disabled => out.write_str("the region is disabled, nobody has enabled it yet"),
            Reason::Unbound => out.write_str("the window is not bound to any memory"),
            Reason::Closing => out.write_str("the region is being closed"),
            Reason::Right { granted, missing } => match self.attempt {
                Attempt::Remote(_) => {
                    write!(out, "it needs \"{missing}\", and the memory grants peers ")?;
                    peers(out, *granted)
                }
                _ => write!(
                    out,
                    "it needs \"{missing}\", and the memory grants \"{granted}\""
                ),
            },
            Reason::OutOfRange {
                memory,
                before,
                after,
            } => {
                match (before, after) {
                    (0, after) => write!(out, "{after} B of it lie behind the end of the memory")?,
                    (before, 0) => write!(out, "{before} B of it lie in front of the memory")?,
                    (before, after) => {
                        write!(
                            out,
                            "{before} B of it lie in front of the memory and {after} B behind"
                        )?;
                    }
                }
                write!(out, ", which is {memory} ({} B)", memory.len())?;
                out.write_str(if self.misses_zero_base() {
                    " and addressed from 0"
                } else {
                    ""
                })
            }
            Reason::NotInOnePiece => {
                out.write_str("it does not lie in one piece of the region's scatter list")
            }
            Reason::ZeroBased { len, .. } => {
                write!(
                    out,
                    "the memory is addressed from 0 to {len:#x}, and this is a virtual address"
                )
            }
            Reason::NotZeroBased { memory } => {
                write!(
                    out,
                    "the memory is addressed by {memory}, and this looks like an offset into it"
                )
            }
            Reason::Wraps => {
                out.write_str("address plus length passes the end of the address space")
            }
            Reason::WrongEndpoint { bound: Some(qp) } => {
                write!(out, "the memory serves {} only", Channel(*qp))
            }
            Reason::WrongEndpoint { bound: None } => {
                out.write_str("the memory serves one queue pair only, and that one is gone")
            }
            Reason::OtherPeer => out.write_str("the memory serves another peer only"),
            Reason::Misaligned => {
                out.write_str("its 8 B do not lie on an 8-byte boundary of one piece of memory")
            }
            Reason::NotAWindow => out.write_str("the key names a region, not a window"),
            Reason::WindowKind(kind) => write!(out, "a {kind} window cannot be invalidated"),
            Reason::QueuePair { granted, missing } => {
                write!(
                    out,
                    "it needs \"{missing}\", and the target's queue pair grants peers "
                )?;
                peers(out, *granted)
            }
            Reason::Fault { at: 0 } => out.write_str("there is no usable memory behind the key"),
            Reason::Fault { at } => {
                let able = self.usable();
                write!(
                    out,
                    "there is no usable memory at {at:#x}: not mapped, or not {able}"
                )
            }
            Reason::Withheld => out.write_str("the owner of the memory does not say why"),
            Reason::Other(code) => write!(out, "reason {code}, which this version does not know"),
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> String {
        if let Attempt::Local(_) = self.attempt
            && let Some(advice) = self.local_advice()
        {
            return advice;
        }
        match &self.reason {
            Reason::UnknownKey => {
                "Check that the key arrived whole and that the connection leads to the process that made it.".into()
            }
            Reason::StaleKey { .. } => {
                "Ask the owner for the present key, and tell peers before closing or rebinding.".into()
            }
            Reason::LocalKeyUsedRemotely => "Hand the region's rkey to the peer.".into(),
            Reason::RemoteKeyUsedLocally => "Use the region's lkey in scatter/gather entries.".into(),
            Reason::OtherDomain { .. } => {
                "Register the memory in the domain of the queue pair, or make the queue pair in its domain.".into()
            }
            Reason::Disabled => "The owner has to enable the region first.".into(),
            Reason::Unbound => "The owner has to bind the window first, and to hand out the key of that bind.".into(),
            Reason::Closing => "Tell peers to stop before closing a region.".into(),
            Reason::Right { missing, .. } => format!("Register or bind the memory with \"{missing}\" as well."),
            Reason::OutOfRange { memory, .. } if self.misses_zero_base() => {
                format!("Ask for an offset into the memory, below {:#x}, not for an address.", memory.end())
            }
            Reason::OutOfRange { memory, before, after } => self.in_range(memory.len(), *before, *after),
            Reason::NotInOnePiece => "Split the request where the pieces end.".into(),
            Reason::ZeroBased { offset, .. } => format!("Ask for offset {offset:#x}."),
            Reason::NotZeroBased { memory } => {
                format!("Ask for address {:#x}.", memory.start().wrapping_add(self.addr))
            }
            Reason::Wraps => "Check address and length; one of them is probably negative.".into(),
            Reason::WrongEndpoint { .. } => "Send the request over that queue pair, or bind anew for this one.".into(),
            Reason::OtherPeer => {
                "Ask the owner to register the memory for this peer, or for all of them.".into()
            }
            Reason::Misaligned => "Use an address that is a multiple of 8.".into(),
            Reason::NotAWindow => "Close the region to take its key back; only type 2 windows are invalidated.".into(),
            Reason::WindowKind(WindowKind::Dat | WindowKind::Type1) => {
                "Bind it to length 0 to unbind it; only type 2 windows are invalidated.".into()
            }
            Reason::WindowKind(_) => "Only type 2 windows are invalidated.".into(),
            Reason::QueuePair { missing, .. } => {
                format!("Give the target's queue pair \"{missing}\" in its access flags.")
            }
            Reason::Fault { .. } => {
                format!("The owner has to keep the memory mapped and {}.", self.usable())
            }
            Reason::Withheld => {
                "`rkey explain` on the owner's side says why; RKEY_EXPLAIN=all there tells peers as well.".into()
            }
            Reason::Other(_) => "The peer runs a newer version; look at its own message.".into(),
        }
    }

    /// What to do where it is not a peer's memory that a request used wrongly, but that of whoever posted it. Both sides
    /// may read this.
    fn local_advice(&self) -> Option<String> {
        Some(match &self.reason {
            Reason::UnknownKey => {
                "A request names its own memory by the lkey of a region that its process has registered.".into()
            }
            Reason::StaleKey { .. } => "Close a region when no request needs it any more.".into(),
            Reason::Disabled => "Enable the region first.".into(),
            Reason::Closing => "Close a region when its requests are done.".into(),
            Reason::Fault { .. } => format!(
                "Whoever posts a request has to keep its memory mapped and {} until it is done.",
                self.usable()
            ),
            _ => return None,
        })
    }

    /// Whether somebody asked for memory that is addressed from 0 by something that cannot be an offset into it.
    fn misses_zero_base(&self) -> bool {
        match &self.reason {
            Reason::OutOfRange { memory, .. } => memory.start() == 0 && self.addr >= memory.end(),
            _ => false,
        }
    }

    /// What the memory has to be for what was tried.
    fn usable(&self) -> &'static str {
        match self.attempt {
            Attempt::Remote(Operation::Read)
            | Attempt::Local(LocalUse::Send | LocalUse::WriteSource) => "readable",
            _ => "writable",
        }
    }

    /// The sentence and the advice in one line, for logs.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        format!("{self}. {}", self.advice())
    }

    /// The sentence and the advice, a line each.
    #[must_use]
    pub fn explain(&self) -> String {
        format!("{self}\n  {}", self.advice())
    }

    fn in_range(&self, memory: u64, before: u64, after: u64) -> String {
        match (before, after) {
            (0, after) if after < self.len => {
                let fits = self.len - after;
                format!("Ask for at most {fits} B here, or register {after} B more.")
            }
            (before, 0) if before < self.len => {
                format!("Begin {before} B later, or register from {before} B earlier on.")
            }
            _ => format!("Ask for addresses inside the {memory} B that were registered."),
        }
    }
}

/// The rights that concern a peer.
fn peers(out: &mut fmt::Formatter<'_>, granted: Access) -> fmt::Result {
    match granted & Access::REMOTE {
        nothing if nothing.is_empty() => out.write_str("nothing"),
        remote => write!(out, "\"{remote}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::denial::WIRE_LEN;

    /// Every byte string is some denial, can be printed, and what is printed does not change on a second trip.
    #[test]
    fn any_bytes_can_be_read_and_printed() {
        let secrets = crate::Secrets([1, 2, 3, 4]);
        for round in 0..if cfg!(miri) { 100 } else { 20_000u32 } {
            let mut bytes = [0u8; WIRE_LEN];
            for (part, chunk) in (0..).zip(bytes.chunks_mut(32)) {
                let random = secrets.derive("test", u64::from(round) << 8 | part);
                chunk.copy_from_slice(&random[..chunk.len()]);
            }
            bytes[2] = (round % 30) as u8;
            bytes[0] %= 16;
            bytes[3] %= 8;
            let denial = Denial::from_wire(&bytes);
            let text = denial.explain();
            assert!(text.contains(" denied: "), "{text}");
            let again = Denial::from_wire(&denial.to_wire());
            assert_eq!(again, denial);
            assert_eq!(again.explain(), text);
        }
    }
}
