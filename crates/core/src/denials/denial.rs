//! A denial, as a value: the attempt, its key and range, and the reason.
//!
//! Both sides of a connection can print it: the owner has it, and [`Denial::encode`] is small enough to travel inside
//! the NAK. It says what the holder of the key needs to know to fix the mistake, and nothing about other memory: an
//! unknown or stale key discloses no address, length or right of the object that is now in its slot. The sentence is
//! [`Denial`]'s `Display`; the advice is `explain`.

use crate::{
    Access, Accessor, Api, DomainId, Key, LKey, LocalUse, Operation, RKey, RegionId, WindowKind,
};
use rkey_base::range::VaRange;
use serde::{Deserialize, Serialize};

/// What was tried.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Attempt {
    /// An operation of a peer.
    Remote(Operation),
    /// Use of local memory by one of this side's requests.
    Local(LocalUse),
    /// Invalidation of a window, by a peer's send or by one of this side's requests.
    Invalidate {
        /// True for a peer's request.
        remote: bool,
    },
    /// A code from a newer peer, unknown to this version.
    Other(u8),
}

/// The name that the request used for the memory.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum NamedKey {
    /// A remote key, as it was received.
    Remote(RKey),
    /// A local key.
    Local(LKey),
    /// No key: the owner named the region by its handle.
    Region(RegionId),
}

/// What happened to a stale key's region or window. The value deliberately discloses no more than that.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum SlotNow {
    /// The region or window has ended, or the window was rebound; the slot is free, or no longer recorded.
    Free,
    /// The region or window has ended, or the window was rebound; the slot is in use again, under another key.
    Reused,
    /// The window was rebound and has another key.
    Rebound,
    /// The window was deallocated.
    Deallocated,
}

/// Why an access was denied.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reason {
    /// The key was never issued, or no region of the domain has this requested key.
    UnknownKey,
    /// The key was valid once.
    StaleKey {
        /// What happened to the key's region or window.
        now: SlotNow,
    },
    /// A local key was received over the network.
    LocalKeyUsedRemotely,
    /// A remote key was used as a local key.
    RemoteKeyUsedLocally,
    /// The memory and the queue pair belong to different domains.
    OtherDomain {
        /// The domain of the memory.
        owner: DomainId,
    },
    /// The region was created disabled and has not been enabled yet.
    Disabled,
    /// The window is not bound to any memory.
    Unbound,
    /// The region is being deregistered or changed.
    Deregistering,
    /// A right is missing.
    Right {
        /// The granted rights.
        granted: Access,
        /// The rights that are needed and not granted.
        missing: Access,
    },
    /// The range is not inside the memory.
    OutOfRange {
        /// The memory, in the addresses that requests use.
        #[serde(with = "range_serde")]
        memory: VaRange,
        /// The number of bytes before the start of the memory.
        before: u64,
        /// The number of bytes past the end of the memory.
        after: u64,
    },
    /// The range must be inside one segment of the scatter list, but touches several, or a gap between two.
    #[serde(alias = "NotInOnePiece")]
    CrossesSegments,
    /// The memory is zero-based, and the request used a virtual address inside it.
    ZeroBased {
        /// Length of the memory.
        len: u64,
        /// The offset of that address, which the request should have used instead.
        offset: u64,
    },
    /// The memory is addressed by virtual address, and the request's address looks like an offset into it.
    NotZeroBased {
        /// The memory, in the addresses that requests use.
        #[serde(with = "range_serde")]
        memory: VaRange,
    },
    /// Address plus length passes the end of the address space.
    Wraps,
    /// The memory is bound to one queue pair (endpoint), and the request arrived on another.
    WrongEndpoint {
        /// The queue pair that the region or window is bound to; `None` if that has been destroyed or unbound.
        bound: Option<u32>,
    },
    /// The region is registered for one peer, and another peer sent the request.
    OtherPeer,
    /// The 8 bytes of an atomic operation are not contiguous at an 8-byte boundary.
    Misaligned,
    /// Only type 2 windows can be invalidated; this key names a region.
    NotAWindow,
    /// Only type 2 windows can be invalidated; this is a window of another kind.
    WindowKind(WindowKind),
    /// The target's queue pair does not allow its peer the operation, regardless of what the memory allows (VB-I06).
    QueuePair {
        /// The remote rights that the queue pair allows.
        granted: Access,
        /// The right that was needed.
        missing: Access,
    },
    /// The access was granted, but its memory was not mapped, or could not be accessed in that way.
    Fault {
        /// The faulting address in the owner's process; 0 in the copy that a peer gets.
        at: u64,
    },
    /// The owner does not disclose the reason to this peer.
    Withheld,
    /// A code from a newer peer, unknown to this version.
    Other(u8),
}

/// A denied access.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Denial {
    /// The attempted access.
    pub attempt: Attempt,
    /// The key that the request used.
    pub key: NamedKey,
    /// The address (or offset) in that memory.
    pub addr: u64,
    /// The length of the access, in bytes.
    pub len: u64,
    /// The requester's domain; `None` if the peer sent the denial.
    pub domain: Option<DomainId>,
    /// Queue pair on which the request arrived; `None` for an access to local memory, and if the peer sent the
    /// denial.
    pub qp: Option<u32>,
    /// Why the access was denied.
    pub reason: Reason,
    /// The API whose words and flags the messages use, usually that of the memory's owner.
    #[serde(default)]
    pub api: Api,
    /// Whether the key names a window, as far as the denial may disclose that.
    #[serde(default)]
    pub window: bool,
}

impl Denial {
    /// The denial of a peer's operation that the queue pair does not allow.
    #[must_use]
    #[cold]
    pub fn by_queue_pair(
        who: &Accessor,
        key: RKey,
        addr: u64,
        len: u64,
        want: Operation,
        granted: Access,
        api: Api,
    ) -> Box<Self> {
        let missing = want.needs().difference(granted);
        let reason = Reason::QueuePair { granted, missing };
        Request::remote(who, key, addr, len, want).refuse(reason, api)
    }

    /// The denial of a granted access that then faulted at `at`, an address of this process: the memory was not mapped
    /// or not writable.
    #[must_use]
    #[cold]
    pub fn fault(attempt: Attempt, key: NamedKey, addr: u64, len: u64, at: u64) -> Box<Self> {
        let reason = Reason::Fault { at };
        Box::new(Self {
            attempt,
            key,
            addr,
            len,
            domain: None,
            qp: None,
            reason,
            api: Api::Native,
            window: false,
        })
    }
}

impl Denial {
    /// A denial that contains only the request.
    #[must_use]
    #[cold]
    pub fn withheld(attempt: Attempt, key: RKey, addr: u64, len: u64) -> Self {
        Self {
            attempt,
            key: NamedKey::Remote(key),
            addr,
            len,
            domain: None,
            qp: None,
            reason: Reason::Withheld,
            api: Api::Native,
            window: false,
        }
    }

    /// The copy for a peer that must not be told the reason. It contains only the peer's request, so it is the same for
    /// every reason.
    #[must_use]
    pub fn without_reason(&self) -> Self {
        Self {
            domain: None,
            qp: None,
            reason: Reason::Withheld,
            api: Api::Native,
            window: false,
            ..self.clone()
        }
    }
}

/// A request, as a check sees it.
pub(crate) struct Request {
    pub(crate) attempt: Attempt,
    pub(crate) key: NamedKey,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) domain: DomainId,
    pub(crate) qp: Option<u32>,
    pub(crate) peer: Option<u32>,
}

impl Request {
    #[inline]
    pub(crate) fn remote(who: &Accessor, key: RKey, addr: u64, len: u64, want: Operation) -> Self {
        let (attempt, key) = (Attempt::Remote(want), NamedKey::Remote(key));
        Self {
            attempt,
            key,
            addr,
            len,
            domain: who.domain,
            qp: Some(who.qp),
            peer: who.peer,
        }
    }

    #[inline]
    pub(crate) fn local(
        domain: DomainId,
        key: NamedKey,
        addr: u64,
        len: u64,
        want: LocalUse,
    ) -> Self {
        Self {
            attempt: Attempt::Local(want),
            key,
            addr,
            len,
            domain,
            qp: None,
            peer: None,
        }
    }

    #[cold]
    pub(crate) fn refuse(&self, reason: Reason, api: Api) -> Box<Denial> {
        Box::new(Denial {
            attempt: self.attempt,
            key: self.key,
            addr: self.addr,
            len: self.len,
            domain: Some(self.domain),
            qp: self.qp,
            reason,
            api,
            window: false,
        })
    }
}

/// The length of [`Denial::encode`], in bytes.
pub const DENIAL_LEN: usize = 48;

/// The compact form, little endian: attempt, kind of key, reason, detail (a byte each), a number, key, address,
/// length, and two more numbers that depend on the reason. The kind's byte also has [`Denial::window`] in bit 4 and
/// [`Denial::api`] in bits 5 to 7.
struct Wire {
    codes: [u8; 4],
    small: u32,
    numbers: [u64; 5],
}

impl Denial {
    /// The compact form that travels to the peer. It omits the requester, because that is the peer itself.
    #[must_use]
    pub fn encode(&self) -> [u8; DENIAL_LEN] {
        let (kind, key) = match self.key {
            NamedKey::Remote(RKey::Device(key)) => (0, u64::from(key.0)),
            NamedKey::Remote(RKey::Requested(key)) => (1, key),
            NamedKey::Local(key) => (2, u64::from(key.0)),
            NamedKey::Region(id) => (3, id.to_bits()),
        };
        let (reason, detail, small, x, y) = self.reason.to_codes();
        let kind = kind | u8::from(self.window) << 4 | (self.api as u8) << 5;
        Wire {
            codes: [self.attempt.to_code(), kind, reason, detail],
            small,
            numbers: [key, self.addr, self.len, x, y],
        }
        .to_bytes()
    }

    /// Reads [`Self::encode`]. Accepts any bytes: a value that is unknown to this version becomes `Other`.
    #[must_use]
    pub fn decode(bytes: &[u8; DENIAL_LEN]) -> Self {
        let wire = Wire::from_bytes(bytes);
        let [attempt, kind, reason, detail] = wire.codes;
        let [key, addr, len, x, y] = wire.numbers;
        let key = match kind & 0xf {
            0 => NamedKey::Remote(RKey::Device(Key(key as u32))),
            2 => NamedKey::Local(LKey(key as u32)),
            3 => NamedKey::Region(RegionId::from_bits(key)),
            _ => NamedKey::Remote(RKey::Requested(key)),
        };
        Self {
            attempt: Attempt::from_code(attempt),
            key,
            addr,
            len,
            domain: None,
            qp: None,
            reason: Reason::from_codes(reason, detail, wire.small, x, y, addr, len),
            api: Api::ALL
                .get(usize::from(kind >> 5))
                .copied()
                .unwrap_or_default(),
            window: kind & 1 << 4 != 0,
        }
    }
}

impl Wire {
    fn to_bytes(&self) -> [u8; DENIAL_LEN] {
        let mut bytes = [0; DENIAL_LEN];
        bytes[..4].copy_from_slice(&self.codes);
        bytes[4..8].copy_from_slice(&self.small.to_le_bytes());
        for (chunk, number) in bytes[8..].chunks_exact_mut(8).zip(self.numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; DENIAL_LEN]) -> Self {
        let mut codes = [0; 4];
        codes.copy_from_slice(&bytes[..4]);
        let mut small = [0; 4];
        small.copy_from_slice(&bytes[4..8]);
        let mut numbers = [0; 5];
        for (number, chunk) in numbers.iter_mut().zip(bytes[8..].chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            *number = u64::from_le_bytes(eight);
        }
        Self {
            codes,
            small: u32::from_le_bytes(small),
            numbers,
        }
    }
}

impl Attempt {
    const CODES: [(u8, Self); 11] = [
        (0, Self::Remote(Operation::Write)),
        (1, Self::Remote(Operation::Read)),
        (2, Self::Remote(Operation::Atomic)),
        (3, Self::Local(LocalUse::Send)),
        (4, Self::Local(LocalUse::Recv)),
        (5, Self::Local(LocalUse::WriteSource)),
        (6, Self::Local(LocalUse::ReadSink)),
        (7, Self::Local(LocalUse::AtomicResult)),
        (8, Self::Local(LocalUse::Collective)),
        (9, Self::Invalidate { remote: false }),
        (10, Self::Invalidate { remote: true }),
    ];

    fn to_code(self) -> u8 {
        match (self, Self::CODES.iter().find(|(_, known)| *known == self)) {
            (_, Some((code, _))) => *code,
            (Self::Other(code), None) => code,
            (_, None) => u8::MAX,
        }
    }

    fn from_code(code: u8) -> Self {
        Self::CODES
            .iter()
            .find(|(known, _)| *known == code)
            .map_or(Self::Other(code), |(_, it)| *it)
    }
}

impl Reason {
    /// Whether this denial counts as the result of guessing keys: the key gives this peer no access at all. A region's
    /// stale key does not count: a peer with requests in flight when the region was deregistered did not guess.
    #[must_use]
    pub const fn is_about_the_key(&self) -> bool {
        matches!(
            self,
            Self::UnknownKey
                // Wrong low bits in a type 2 window's key also count as guessing.
                | Self::StaleKey {
                    now: SlotNow::Rebound
                }
                | Self::LocalKeyUsedRemotely
                | Self::OtherDomain { .. }
                | Self::Disabled
                | Self::Unbound
                | Self::WrongEndpoint { .. }
                | Self::OtherPeer
                | Self::NotAWindow
                | Self::WindowKind(_)
        )
    }

    fn to_codes(self) -> (u8, u8, u32, u64, u64) {
        match self {
            Self::UnknownKey => (1, 0, 0, 0, 0),
            Self::StaleKey { now } => (2, now as u8, 0, 0, 0),
            Self::LocalKeyUsedRemotely => (3, 0, 0, 0, 0),
            Self::RemoteKeyUsedLocally => (4, 0, 0, 0, 0),
            Self::OtherDomain { owner } => (5, 0, owner.0, 0, 0),
            Self::Disabled => (6, 0, 0, 0, 0),
            Self::Unbound => (7, 0, 0, 0, 0),
            Self::Deregistering => (8, 0, 0, 0, 0),
            Self::Right { granted, missing } => (9, 0, granted.bits() << 16 | missing.bits(), 0, 0),
            Self::OutOfRange { memory, .. } => (10, 0, 0, memory.start(), memory.len()),
            Self::CrossesSegments => (11, 0, 0, 0, 0),
            Self::ZeroBased { len, offset } => (12, 0, 0, len, offset),
            Self::NotZeroBased { memory } => (13, 0, 0, memory.start(), memory.len()),
            Self::Wraps => (14, 0, 0, 0, 0),
            Self::WrongEndpoint { bound } => {
                (15, u8::from(bound.is_some()), bound.unwrap_or(0), 0, 0)
            }
            Self::Misaligned => (16, 0, 0, 0, 0),
            Self::NotAWindow => (17, 0, 0, 0, 0),
            Self::WindowKind(kind) => (18, kind as u8, 0, 0, 0),
            Self::QueuePair { granted, missing } => {
                (19, 0, granted.bits() << 16 | missing.bits(), 0, 0)
            }
            Self::Fault { .. } => (20, 0, 0, 0, 0),
            Self::OtherPeer => (21, 0, 0, 0, 0),
            Self::Withheld => (22, 0, 0, 0, 0),
            Self::Other(code) => (code, 0, 0, 0, 0),
        }
    }

    fn from_codes(code: u8, detail: u8, small: u32, x: u64, y: u64, addr: u64, len: u64) -> Self {
        let memory = || VaRange::new(x, y);
        match code {
            1 => Self::UnknownKey,
            2 => Self::StaleKey {
                now: match detail {
                    1 => SlotNow::Reused,
                    2 => SlotNow::Rebound,
                    3 => SlotNow::Deallocated,
                    _ => SlotNow::Free,
                },
            },
            3 => Self::LocalKeyUsedRemotely,
            4 => Self::RemoteKeyUsedLocally,
            5 => Self::OtherDomain {
                owner: DomainId(small),
            },
            6 => Self::Disabled,
            7 => Self::Unbound,
            8 => Self::Deregistering,
            9 => Self::Right {
                granted: Access::from_bits_truncate(small >> 16),
                missing: Access::from_bits_truncate(small & 0xffff),
            },
            10 => memory().map_or(Self::Other(0), |memory| {
                Self::out_of_range(memory, addr, len)
            }),
            11 => Self::CrossesSegments,
            12 => Self::ZeroBased { len: x, offset: y },
            13 => memory().map_or(Self::Other(0), |memory| Self::NotZeroBased { memory }),
            14 => Self::Wraps,
            15 => Self::WrongEndpoint {
                bound: (detail != 0).then_some(small),
            },
            16 => Self::Misaligned,
            17 => Self::NotAWindow,
            18 => match WindowKind::ALL.get(usize::from(detail)) {
                Some(kind) => Self::WindowKind(*kind),
                None => Self::Other(0),
            },
            19 => Self::QueuePair {
                granted: Access::from_bits_truncate(small >> 16),
                missing: Access::from_bits_truncate(small & 0xffff),
            },
            20 => Self::Fault { at: 0 },
            21 => Self::OtherPeer,
            22 => Self::Withheld,
            _ => Self::Other(code),
        }
    }

    /// `OutOfRange` for a request of `len` bytes at `addr` on `memory`.
    pub(crate) fn out_of_range(memory: VaRange, addr: u64, len: u64) -> Self {
        let end = addr.saturating_add(len);
        Self::OutOfRange {
            memory,
            before: memory.start().min(end).saturating_sub(addr),
            after: end.saturating_sub(memory.end().max(addr)),
        }
    }
}

/// Ranges as `[start, length]`.
mod range_serde {
    use rkey_base::range::VaRange;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(range: &VaRange, out: S) -> Result<S::Ok, S::Error> {
        (range.start(), range.len()).serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<VaRange, D::Error> {
        let (start, len) = <(u64, u64)>::deserialize(input)?;
        VaRange::new(start, len).ok_or_else(|| D::Error::custom("the range wraps"))
    }
}
