//! Errors of the owner's operations: registration, deregistration and binding.
//!
//! A refused access is not one of these: it is a [`crate::Denial`].

use crate::{Access, DomainChildren, DomainId, Key, LKey, Limit, RegionId, WindowId, WindowKind};
use rkey_base::range::VaRange;
use thiserror::Error;

/// Why an operation of the owner failed. A failed operation changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CoreError {
    /// The domain is not open.
    #[error("{0} is not open")]
    NoSuchDomain(DomainId),
    /// The region is deregistered, or was never registered.
    #[error("{0} is not registered")]
    NoSuchRegion(RegionId),
    /// The window was deallocated, or never existed.
    #[error("{0} does not exist")]
    NoSuchWindow(WindowId),
    /// A limit is reached.
    #[error("the limit of {value} {limit} is reached{}", raise(*limit))]
    LimitReached {
        /// The limit.
        limit: Limit,
        /// The limit's value.
        value: u64,
    },
    /// The region, or a segment of its scatter list, has no bytes.
    #[error("a region, and each segment of its scatter list, needs at least one byte")]
    Empty,
    /// The region's addresses, as requests would name them, pass the end of the address space.
    #[error("{len} B at address {base:#x} extend past the end of the address space")]
    Wraps {
        /// The address of the first byte, as requests would name it.
        base: u64,
        /// The length of the region, in bytes.
        len: u64,
    },
    /// A rule of the API requires a right that was not requested.
    #[error("access \"{asked}\" also needs \"{missing}\"")]
    AccessNeeds {
        /// The requested rights.
        asked: Access,
        /// The right that is missing.
        missing: Access,
    },
    /// There is no such right.
    #[error("unknown access bits {0:#x}")]
    UnknownAccess(u32),
    /// A live region of the domain already has that key.
    #[error("key {0:#x} is in use by another region of the domain")]
    KeyTaken(u64),
    /// All ones means "no key" and cannot be requested.
    #[error("key {0:#x} cannot be requested: it means \"no key\"")]
    KeyReserved(u64),
    /// The domain still has children.
    #[error("{domain} is busy: {children}")]
    DomainBusy {
        /// The domain.
        domain: DomainId,
        /// The objects that the domain still has.
        children: DomainChildren,
    },
    /// The region still has windows or bindings.
    #[error(
        "{region} is busy: windows bound to it: {windows}, endpoints or counters bound to it: {bindings}"
    )]
    RegionBusy {
        /// The region.
        region: RegionId,
        /// The number of windows bound to the region.
        windows: u32,
        /// The number of endpoints and counters bound to the region.
        bindings: u32,
    },
    /// The region is already enabled. After `enable`, no endpoint or counter can be bound to it (FI-075).
    #[error("{0} is already enabled: bind endpoints and counters before enabling it")]
    AlreadyEnabled(RegionId),
    /// The region is already bound to another endpoint or counter.
    #[error("{region} is already bound to endpoint or counter {to}")]
    AlreadyBound {
        /// The region.
        region: RegionId,
        /// The endpoint or counter that it is bound to.
        to: u32,
    },
    /// The region is a null region and cannot be changed.
    #[error("{0} is a null region: it can be deregistered, but not changed")]
    Null(RegionId),
    /// The region cannot be enabled before an endpoint is bound to it (FI-077).
    #[error("{0} must be bound to an endpoint before it can be enabled")]
    NeedsEndpoint(RegionId),
}

fn raise(limit: Limit) -> String {
    match limit.setting() {
        Some(setting) => format!(" (raise it with {setting})"),
        None => String::new(),
    }
}

/// Why a bind failed. The window is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BindError {
    /// The window was deallocated, or never existed.
    #[error("{0} does not exist")]
    NoSuchWindow(WindowId),
    /// The local key names no registered region.
    #[error("{0} names no registered region")]
    NoSuchRegion(LKey),
    /// The handle names no registered region.
    #[error("{0} is not registered")]
    RegionGone(RegionId),
    /// Window, region and queue pair are not all in one domain.
    #[error(
        "the window is in {window}, but the {what} is in {other}: use objects of the same domain"
    )]
    OtherDomain {
        /// The domain of the window.
        window: DomainId,
        /// The object in another domain: "region" or "queue pair".
        what: &'static str,
        /// The domain of that object.
        other: DomainId,
    },
    /// The region is not enabled.
    #[error("the region is disabled: enable it before binding a window to it")]
    Disabled,
    /// The region lacks a right that the window's rights need.
    #[error("a window with \"{asked}\" needs a region with \"{missing}\"")]
    RegionLacks {
        /// The window's rights.
        asked: Access,
        /// The right that the region lacks.
        missing: Access,
    },
    /// Windows have remote rights only.
    #[error("a window cannot have \"{0}\": windows have only remote rights")]
    NotRemote(Access),
    /// The range is not inside the region.
    #[error("{asked} is not inside the region, which is {region}")]
    OutOfRange {
        /// The requested range.
        asked: VaRange,
        /// The region, in the addresses that requests use.
        region: VaRange,
    },
    /// The range is not inside one segment of the region's scatter list.
    #[error("{0} is not inside one segment of the region's scatter list")]
    CrossesSegments(VaRange),
    /// A type 2 window must be invalidated before it is bound again.
    #[error("the window is bound: invalidate {0} before binding it again")]
    StillBound(Key),
    /// Type 2 windows are unbound by invalidating them, not by a bind of length 0.
    #[error("a type 2 window is unbound by invalidating it, not by a bind of length 0")]
    ZeroLength,
    /// The key is not one of this window's.
    #[error("{given} is not a key of this window, whose current key is {current}")]
    ForeignKey {
        /// The key in the request.
        given: Key,
        /// The window's current key.
        current: Key,
    },
    /// A type 2 bind names its key and its queue pair.
    #[error("a bind of a type 2 window must name its key and its queue pair")]
    KeyAndQpNeeded,
    /// Only type 2 windows can be addressed from zero.
    #[error("a {0} window cannot be zero-based")]
    ZeroBased(WindowKind),
    /// A rule of the API forbids binding windows to zero-based regions.
    #[error("the region is zero-based: windows cannot be bound to it")]
    ZeroBasedRegion,
    /// Every key slot is in use.
    #[error("all {0} key slots are in use")]
    NoKeySlot(u32),
}
