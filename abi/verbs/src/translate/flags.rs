//! Translates the access flags of verbs to rights of the core and back. No other file does.

use crate::sys::consts::*;
use rkey_device::core::Access;
use rkey_device::engine::SendFlags;
use rkey_kit::Errno;

/// Each access flag, the rights of the core that it stands for, and its name. Local read has no flag: it is always on
/// (VB-016), and the core adds it.
const RIGHTS: [(u32, Access, &str); 5] = [
    (ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE, "LOCAL_WRITE"),
    (ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE, "REMOTE_WRITE"),
    (ACCESS_REMOTE_READ, Access::REMOTE_READ, "REMOTE_READ"),
    (ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
    (ACCESS_MW_BIND, Access::BIND, "MW_BIND"),
];

/// The meaning of a registration's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionFlags {
    /// The rights.
    pub access: Access,
    /// Whether addresses are offsets.
    pub zero_based: bool,
    /// On-demand paging: pages may be absent at registration.
    pub on_demand: bool,
}

/// Parses the flags of a registration. Optional flags are ignored, as on a device without those features: accesses are always
/// ordered here, and page sizes do not matter.
///
/// # Errors
/// `EOPNOTSUPP`: `IBV_ACCESS_FLUSH_*`, which this device does not offer; `EINVAL`: an unknown flag.
pub fn region_flags(flags: u32) -> Result<RegionFlags, Errno> {
    let flags = flags & !ACCESS_OPTIONAL_RANGE;
    if flags & (ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let known = ACCESS_ZERO_BASED | ACCESS_ON_DEMAND | ACCESS_HUGETLB;
    Ok(RegionFlags {
        access: rights(flags & !known)?,
        zero_based: flags & ACCESS_ZERO_BASED != 0,
        on_demand: flags & ACCESS_ON_DEMAND != 0,
    })
}

/// The rights of a window, and whether its addresses start at zero. `IBV_ACCESS_LOCAL_WRITE` is accepted
/// and has no effect: a window has no local key.
///
/// # Errors
/// `EINVAL`: an unknown flag.
pub fn window_flags(flags: u32) -> Result<(Access, bool), Errno> {
    let access = rights(flags & !ACCESS_ZERO_BASED & !ACCESS_OPTIONAL_RANGE)?;
    Ok((
        access & (Access::REMOTE | Access::BIND),
        flags & ACCESS_ZERO_BASED != 0,
    ))
}

/// The rights that a queue pair allows. Other flags are accepted and ignored: the kernel checks only those that the
/// device has.
#[must_use]
pub fn qp_access(flags: u32) -> Access {
    known_rights(flags).0 & Access::REMOTE
}

fn rights(flags: u32) -> Result<Access, Errno> {
    match known_rights(flags) {
        (access, 0) => Ok(access),
        _ => Err(Errno::INVAL),
    }
}

/// The rights among these flags, and the remaining flags.
fn known_rights(flags: u32) -> (Access, u32) {
    let mut access = Access::empty();
    let mut left = flags;
    for (flag, right, _) in RIGHTS {
        if flags & flag != 0 {
            access |= right;
            left &= !flag;
        }
    }
    (access, left)
}

/// The access flags for rights of the core.
#[must_use]
pub fn access_flags(access: Access) -> u32 {
    RIGHTS
        .iter()
        .filter(|(_, right, _)| access.contains(*right))
        .fold(0, |flags, (flag, _, _)| flags | flag)
}

/// The names of the access flags for rights of the core.
#[must_use]
pub fn names(access: Access) -> String {
    let there = RIGHTS
        .iter()
        .filter(|(_, right, _)| access.contains(*right));
    let names: Vec<_> = there
        .map(|(_, _, name)| format!("IBV_ACCESS_{name}"))
        .collect();
    names.join(", ")
}

/// The flags of a send. `IBV_SEND_INLINE` is not among them: it only says where the payload is.
///
/// # Errors
/// `EINVAL`: an unknown flag, or a checksum offload, which this device lacks.
#[inline]
pub fn send_flags(flags: u32) -> Result<SendFlags, Errno> {
    const KNOWN: u32 = SEND_FENCE | SEND_SIGNALED | SEND_SOLICITED | SEND_INLINE;
    if flags & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    let mut out = SendFlags::empty();
    out.set(SendFlags::FENCE, flags & SEND_FENCE != 0);
    out.set(SendFlags::SIGNALED, flags & SEND_SIGNALED != 0);
    out.set(SendFlags::SOLICITED, flags & SEND_SOLICITED != 0);
    Ok(out)
}

/// The size of an `enum ibv_mtu`, in bytes.
///
/// # Errors
/// `EINVAL`: no such MTU.
pub fn mtu_bytes(mtu: i32) -> Result<u32, Errno> {
    if (MTU_256..=MTU_4096).contains(&mtu) {
        Ok(128 << mtu)
    } else {
        Err(Errno::INVAL)
    }
}

/// The largest `enum ibv_mtu` that is no more than `bytes`.
#[must_use]
pub fn mtu_number(bytes: u32) -> i32 {
    (MTU_256..=MTU_4096)
        .rev()
        .find(|&mtu| 128 << mtu <= bytes)
        .unwrap_or(MTU_256)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: u32 = 0x1f;

    /// Every combination of the five access flags survives the translation to rights and back, and each flag maps to exactly its own
    /// right.
    #[test]
    fn access_flags_survive_a_round_trip_through_the_core() {
        for flags in 0..=PLAIN {
            let access = region_flags(flags).unwrap().access;
            assert_eq!(access_flags(access), flags);
            for (flag, right, _) in RIGHTS {
                assert_eq!(access.contains(right), flags & flag != 0);
                assert_eq!(access.intersects(right), flags & flag != 0);
            }
        }
    }

    #[test]
    fn each_access_bit_is_a_right_an_option_or_refused() {
        for bit in 0..32 {
            let flag = 1u32 << bit;
            let taken = region_flags(flag).is_ok();
            let optional = (20..30).contains(&bit);
            assert_eq!(taken, bit < 8 || optional, "bit {bit}");
            let flush = flag & (ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT) != 0;
            if flush {
                assert_eq!(region_flags(flag), Err(Errno::OPNOTSUPP), "bit {bit}");
            } else if !taken {
                assert_eq!(region_flags(flag), Err(Errno::INVAL), "bit {bit}");
            }
            if optional {
                assert_eq!(region_flags(flag), region_flags(0));
            }
        }
        assert!(region_flags(ACCESS_ZERO_BASED).unwrap().zero_based);
        assert!(region_flags(ACCESS_ON_DEMAND).unwrap().on_demand);
        assert_eq!(window_flags(ACCESS_HUGETLB), Err(Errno::INVAL));
    }

    #[test]
    fn queue_pairs_grant_only_remote_rights() {
        let access = qp_access(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ | ACCESS_MW_BIND);
        assert_eq!(access, Access::REMOTE_READ);
        for bit in 4..32 {
            let access = qp_access(ACCESS_REMOTE_WRITE | 1 << bit);
            assert_eq!(access, Access::REMOTE_WRITE, "bit {bit} is ignored");
        }
    }

    #[test]
    fn each_send_flag_is_translated_or_refused() {
        for flags in 0..64u32 {
            match send_flags(flags) {
                Ok(out) => {
                    assert!(flags < 16);
                    assert_eq!(out.contains(SendFlags::FENCE), flags & SEND_FENCE != 0);
                    assert_eq!(
                        out.contains(SendFlags::SIGNALED),
                        flags & SEND_SIGNALED != 0
                    );
                    assert_eq!(
                        out.contains(SendFlags::SOLICITED),
                        flags & SEND_SOLICITED != 0
                    );
                    assert!(!out.contains(SendFlags::MORE));
                }
                Err(errno) => assert!(flags >= 16 && errno == Errno::INVAL),
            }
        }
    }

    #[test]
    fn mtu_numbers_are_translated_to_bytes_and_back() {
        let bytes: Vec<_> = (0..7).map(mtu_bytes).collect();
        let no = Err(Errno::INVAL);
        assert_eq!(
            bytes,
            [no, Ok(256), Ok(512), Ok(1024), Ok(2048), Ok(4096), no]
        );
        for mtu in MTU_256..=MTU_4096 {
            assert_eq!(mtu_number(mtu_bytes(mtu).unwrap()), mtu);
        }
        assert_eq!((mtu_number(1500), mtu_number(0)), (MTU_1024, MTU_256));
    }
}
