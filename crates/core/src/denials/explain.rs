//! The text of a denial: one sentence, and the longer form with advice.
//!
//! The sentence says what the request tried, on which bytes, with which key, and why it was denied. The advice says how
//! to fix it (`advice`). Both are for the programmer, on either side of the connection.

mod advice;

use crate::denials::wording::{Channel, InWords, with_article};
use crate::{
    Access, Api, Attempt, Denial, DomainId, LocalUse, NamedKey, Operation, RKey, Reason, SlotNow,
    Words,
};
use std::fmt;

/// "RDMA write of 16 B at 0x1ff8 with rkey 0x5a03c17e denied: the last 8 B are past the end of the region (...)"
impl fmt::Display for Denial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ", self.attempt)?;
        if !matches!(self.attempt, Attempt::Invalidate { .. }) {
            write!(out, "of {} B at {:#x} ", self.len, self.addr)?;
        }
        match self.key {
            NamedKey::Region(region) => write!(out, "in {region}")?,
            key => write!(out, "with {}", InWords(key, self.words()))?,
        }
        if let Some(qp) = self.qp {
            write!(out, " over {}", Channel(qp, self.words()))?;
        }
        out.write_str(" denied: ")?;
        self.why(out)
    }
}

impl std::error::Error for Denial {}

impl Reason {
    /// A stable identifier, for programs.
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
            Self::Deregistering => "deregistering",
            Self::Right { .. } => "missing-right",
            Self::OutOfRange { .. } => "out-of-range",
            Self::CrossesSegments => "crosses-segments",
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
        let noun = self.noun();
        let words = self.words();
        match &self.reason {
            Reason::UnknownKey => match self.key {
                // The device does not record whether a requested key was in use before.
                NamedKey::Remote(RKey::Requested(_)) => write!(
                    out,
                    "unknown {}: no {} of the {} has it",
                    words.key, words.region, words.domain
                ),
                _ => write!(out, "unknown {}: never issued", words.key),
            },
            Reason::StaleKey { now } => self.stale(out, *now),
            Reason::LocalKeyUsedRemotely => self.wrong_kind(out, true),
            Reason::RemoteKeyUsedLocally => self.wrong_kind(out, false),
            Reason::OtherDomain { owner } => self.elsewhere(out, *owner),
            Reason::Disabled => write!(out, "the {} is not enabled yet", words.region),
            Reason::Unbound => write!(out, "the {} is not bound", words.window),
            Reason::Deregistering => {
                write!(out, "the {} is being {}", words.region, words.deregistered)
            }
            Reason::Right { granted, missing } => {
                let missing = self.api.names(*missing);
                match self.attempt {
                    Attempt::Remote(_) => {
                        let granted = self.api.names(*granted & Access::REMOTE);
                        write!(out, "the {noun} lacks {missing}; it grants peers {granted}")
                    }
                    _ => {
                        let granted = self.api.names(*granted);
                        write!(out, "the {noun} lacks {missing}; it grants {granted}")
                    }
                }
            }
            Reason::WrongEndpoint { bound: Some(qp) } => {
                write!(out, "the {noun} is bound to {}", Channel(*qp, words))
            }
            Reason::WrongEndpoint { bound: None } => {
                write!(out, "the {noun} was bound to an endpoint that has closed")
            }
            Reason::OtherPeer => write!(
                out,
                "the {} is registered for another peer only",
                words.region
            ),
            Reason::NotAWindow => {
                let [region, window] = [words.region, words.window].map(with_article);
                write!(out, "the {} names {region}, not {window}", words.key)
            }
            Reason::WindowKind(kind) => {
                write!(out, "a {kind} {} cannot be invalidated", words.window)
            }
            Reason::QueuePair { granted, missing } => write!(
                out,
                "the target's {} lacks {}; it allows peers {}",
                self.endpoint(),
                self.api.names(*missing),
                self.api.names(*granted & Access::REMOTE)
            ),
            Reason::Withheld => {
                out.write_str("the owner does not disclose the reason to this peer")
            }
            Reason::Other(code) => {
                write!(out, "reason code {code}, unknown to this version of rkey")
            }
            Reason::OutOfRange { .. }
            | Reason::CrossesSegments
            | Reason::ZeroBased { .. }
            | Reason::NotZeroBased { .. }
            | Reason::Wraps
            | Reason::Misaligned
            | Reason::Fault { .. } => self.why_not_there(out),
        }
    }

    /// Writes the reasons that concern the address or the length.
    fn why_not_there(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = self.noun();
        match &self.reason {
            Reason::OutOfRange {
                memory,
                before,
                after,
            } => {
                self.outside(out, *before, *after)?;
                write!(out, " ({memory}, {} B", memory.len())?;
                out.write_str(if self.misses_zero_base() {
                    ", zero-based)"
                } else {
                    ")"
                })
            }
            Reason::CrossesSegments => write!(
                out,
                "the range is not inside one segment of the {}'s scatter list",
                self.words().region
            ),
            Reason::ZeroBased { len, .. } => write!(
                out,
                "the {noun} is zero-based (offsets below {len:#x}), but the request used a virtual address"
            ),
            Reason::NotZeroBased { memory } => write!(
                out,
                "the {noun} has virtual addresses ({memory}), but the request used an offset"
            ),
            Reason::Wraps => out.write_str("address plus length overflows the address space"),
            Reason::Misaligned => {
                out.write_str("atomics need 8 contiguous bytes on an 8-byte boundary")
            }
            Reason::Fault { at } => {
                out.write_str("page fault")?;
                if *at != 0 {
                    write!(out, " at {at:#x}")?;
                }
                write!(out, ": memory not mapped or not {}", self.usable())
            }
            _ => Ok(()),
        }
    }

    /// Writes that the memory is in another domain than the request.
    fn elsewhere(&self, out: &mut fmt::Formatter<'_>, owner: DomainId) -> fmt::Result {
        let domain = self.words().domain;
        if self.is_of_other_api(owner) {
            let (theirs, api) = (owner.api().words().domain, owner.api().name());
            write!(out, "the memory is in {theirs} {} of {api}", owner.number())?;
        } else {
            write!(out, "the memory is in {domain} {}", owner.number())?;
        }
        out.write_str(", but the request came from ")?;
        match self.domain {
            Some(own) => write!(out, "{domain} {}", own.number()),
            None => write!(out, "another {domain}"),
        }
    }

    /// Whether the memory of this domain belongs to another API than the request.
    fn is_of_other_api(&self, owner: DomainId) -> bool {
        owner.api() != self.api
    }

    /// Writes what happened to a key that was valid once.
    fn stale(&self, out: &mut fmt::Formatter<'_>, now: SlotNow) -> fmt::Result {
        let words = self.words();
        let (key, region, window) = (words.key, words.region, words.window);
        let ended = words.deregistered;
        match now {
            SlotNow::Free => write!(out, "stale {key}: {region} {ended} or {window} rebound"),
            SlotNow::Reused => write!(
                out,
                "stale {key}: {region} {ended} or {window} rebound; its key slot is in use again"
            ),
            SlotNow::Deallocated => {
                write!(out, "stale {key}: the {window} was {}", words.deallocated)
            }
            SlotNow::Rebound => write!(
                out,
                "stale {key}: the {window} was rebound and has a new {key}"
            ),
        }
    }

    /// Writes that a local key came from a peer (`local`), or that a remote key was used for local memory.
    fn wrong_kind(&self, out: &mut fmt::Formatter<'_>, local: bool) -> fmt::Result {
        let words = self.words();
        let [lkey, rkey] = match self.api {
            Api::Udapl => [words.lkey, words.rkey].map(str::to_owned),
            _ => [
                format!("local key ({})", words.lkey),
                format!("remote key ({})", words.rkey),
            ],
        };
        let (used, needed) = if local { (lkey, rkey) } else { (rkey, lkey) };
        write!(out, "{used} used where {} is needed", with_article(&needed))
    }

    /// Writes how much of the request is outside the memory, and on which side.
    fn outside(&self, out: &mut fmt::Formatter<'_>, before: u64, after: u64) -> fmt::Result {
        let noun = self.noun();
        let part = |which, count| {
            let which = if count == self.len { "all" } else { which };
            let verb = if count == 1 { "is" } else { "are" };
            format!("{which} {count} B {verb}")
        };
        match (before, after) {
            (0, after) => write!(
                out,
                "{} past the end of the {noun}",
                part("the last", after)
            ),
            (before, 0) => write!(
                out,
                "{} before the start of the {noun}",
                part("the first", before)
            ),
            (before, after) => write!(
                out,
                "{} before the start and {} past the end of the {noun}",
                part("the first", before),
                part("the last", after)
            ),
        }
    }

    /// The word of the denial's API for the object that the key names.
    const fn noun(&self) -> &'static str {
        let words = self.words();
        if self.window {
            words.window
        } else {
            words.region
        }
    }

    /// The words of the denial's API.
    const fn words(&self) -> &'static Words {
        self.api.words()
    }

    /// The word of the denial's API for one end of a connection.
    const fn endpoint(&self) -> &'static str {
        match self.api {
            Api::Native | Api::Verbs => "queue pair",
            Api::Libfabric => "endpoint",
            Api::Udapl => "EP",
        }
    }

    /// Whether a request to a zero-based region used an address that cannot be an offset into it.
    fn misses_zero_base(&self) -> bool {
        match &self.reason {
            Reason::OutOfRange { memory, .. } => memory.start() == 0 && self.addr >= memory.end(),
            _ => false,
        }
    }

    /// The access that the attempt needs: "readable" or "writable".
    fn usable(&self) -> &'static str {
        match self.attempt {
            Attempt::Remote(Operation::Read)
            | Attempt::Local(LocalUse::Send | LocalUse::WriteSource) => "readable",
            _ => "writable",
        }
    }

    /// The sentence and the advice on one line, for logs.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        format!("{self}. {}", self.advice())
    }

    /// The sentence and the advice, each on its own line.
    #[must_use]
    pub fn explain(&self) -> String {
        format!("{self}\n  {}", self.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::denials::denial::DENIAL_LEN;

    /// Any bytes decode to a denial that can be printed, and that prints the same text after another round trip.
    #[test]
    fn any_bytes_decode_to_a_denial_that_can_be_printed() {
        let secrets = crate::Secrets([1, 2, 3, 4]);
        for round in 0..if cfg!(miri) { 100 } else { 20_000u32 } {
            let mut bytes = [0u8; DENIAL_LEN];
            for (part, chunk) in (0..).zip(bytes.chunks_mut(32)) {
                let random = secrets.derive("test", u64::from(round) << 8 | part);
                chunk.copy_from_slice(&random[..chunk.len()]);
            }
            bytes[2] = (round % 30) as u8;
            bytes[0] %= 16;
            bytes[3] %= 8;
            let denial = Denial::decode(&bytes);
            let text = denial.explain();
            assert!(text.contains(" denied: "), "{text}");
            let again = Denial::decode(&denial.encode());
            assert_eq!(again, denial);
            assert_eq!(again.explain(), text);
        }
    }
}
