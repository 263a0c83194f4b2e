//! The device's answers, in the model's terms.

use rkey_core::{BindError, CoreError, Denial, Reason};
use rkey_model::No;

pub(crate) fn core_no(error: &CoreError) -> No {
    match error {
        CoreError::NoSuchDomain(_) => No::NoSuchDomain,
        CoreError::NoSuchRegion(_) => No::NoSuchRegion,
        CoreError::NoSuchWindow(_) => No::NoSuchWindow,
        CoreError::LimitReached { .. } => No::Limit,
        CoreError::Empty => No::Empty,
        CoreError::Wraps { .. } => No::AddressWraps,
        CoreError::AccessNeeds { .. } => No::AccessNeeds,
        CoreError::UnknownAccess(_) => unreachable!("the generator includes all rights"),
        CoreError::KeyTaken(_) => No::KeyTaken,
        CoreError::KeyReserved(_) => No::KeyReserved,
        CoreError::DomainBusy { .. } | CoreError::RegionBusy { .. } => No::Busy,
        CoreError::AlreadyEnabled(_) => No::AlreadyEnabled,
        CoreError::AlreadyBound { .. } => No::AlreadyBound,
        CoreError::NeedsEndpoint(_) => No::NeedsEndpoint,
        CoreError::Null(_) => unreachable!("the generator makes no null regions"),
    }
}

pub(crate) fn bind_no(error: &BindError) -> No {
    match error {
        BindError::NoSuchWindow(_) => No::NoSuchWindow,
        BindError::NoSuchRegion(_) | BindError::RegionGone(_) => No::NoSuchRegion,
        BindError::OtherDomain { .. } => No::OtherDomain,
        BindError::Disabled => No::Disabled,
        BindError::RegionLacks { .. } => No::RegionLacks,
        BindError::NotRemote(_) => No::NotRemote,
        BindError::OutOfRange { .. } => No::OutOfRange,
        BindError::CrossesSegments(_) => No::CrossesSegments,
        BindError::StillBound(_) => No::StillBound,
        BindError::ZeroLength => No::ZeroLength,
        BindError::ForeignKey { .. } => No::ForeignKey,
        BindError::KeyAndQpNeeded => No::KeyAndQpNeeded,
        BindError::ZeroBased(_) => No::ZeroBasedWindow,
        BindError::ZeroBasedRegion => No::ZeroBasedRegion,
        BindError::NoKeySlot(_) => No::Limit,
    }
}

pub(crate) fn denial_no(denial: &Denial) -> No {
    // The peer gets the same refusal.
    let peer = Denial::decode(&denial.encode());
    assert_eq!(peer.reason, denial.reason);
    match denial.reason {
        Reason::UnknownKey => No::UnknownKey,
        Reason::StaleKey { .. } => No::Stale,
        Reason::LocalKeyUsedRemotely => No::LKey,
        Reason::RemoteKeyUsedLocally => No::RemoteKey,
        Reason::OtherDomain { .. } => No::OtherDomain,
        Reason::Disabled => No::Disabled,
        Reason::Unbound => No::Unbound,
        Reason::Right { .. } => No::Right,
        Reason::OutOfRange { .. } | Reason::ZeroBased { .. } | Reason::NotZeroBased { .. } => {
            No::OutOfRange
        }
        Reason::CrossesSegments => No::CrossesSegments,
        Reason::Wraps => No::Wraps,
        Reason::WrongEndpoint { .. } => No::WrongEndpoint,
        Reason::Misaligned => No::Misaligned,
        Reason::NotAWindow => No::NotAWindow,
        Reason::WindowKind(_) => No::WindowKind,
        Reason::Deregistering
        | Reason::OtherPeer
        | Reason::QueuePair { .. }
        | Reason::Fault { .. }
        | Reason::Withheld
        | Reason::Other(_) => {
            panic!("no request can cause this denial: {denial}")
        }
    }
}
