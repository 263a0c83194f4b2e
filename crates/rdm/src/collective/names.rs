//! The names that members derive for their group and for an operation in it. Each member computes them without
//! asking the others, and other builds compute the same names: the hash is SipHash-1-3 with a zero key, over bytes
//! whose layout is fixed here.

use super::kind::Kind;
use crate::address::to_text;
use crate::atomic::{DataType, Op};
use core::net::SocketAddr;
use siphasher::sip::SipHasher13;

/// The name of a group: its members, and how many earlier groups had the same members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The hash of the members.
    pub members: u64,
    /// How many earlier groups had the same members.
    pub instance: u32,
}

/// The hash of a group's members, in their order.
#[must_use]
pub fn members(addresses: impl Iterator<Item = SocketAddr>) -> u64 {
    let mut bytes = Vec::new();
    for address in addresses {
        bytes.extend(to_text(address).into_bytes());
        bytes.push(0);
    }
    SipHasher13::new().hash(&bytes)
}

/// The signature of an operation. Members compare it to notice that one of them made a different call: it covers the
/// root, the size of a block and, for reductions, the type and the operation.
#[must_use]
pub fn signature(kind: Kind, root: usize, block: usize, reduction: Option<(DataType, Op)>) -> u32 {
    let numbers = |(datatype, op): (DataType, Op)| (datatype as i32, op as i32);
    let (datatype, op) = reduction.map_or((-1, -1), numbers);
    let mut bytes = [0; 25];
    bytes[0] = kind as u8;
    bytes[1..9].copy_from_slice(&(root as u64).to_le_bytes());
    bytes[9..17].copy_from_slice(&(block as u64).to_le_bytes());
    bytes[17..21].copy_from_slice(&datatype.to_le_bytes());
    bytes[21..].copy_from_slice(&op.to_le_bytes());
    SipHasher13::new().hash(&bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Other builds compute the same values.
    #[test]
    fn group_names_and_signatures_never_change() {
        let (v4, v6) = (address("127.0.0.1:7471"), address("[::1]:7472"));
        assert_eq!(members([v4, v6].into_iter()), 0xf78e_7513_7283_93ab);
        assert_eq!(signature(Kind::Barrier, 0, 0, None), 0xf46b_160a);
        assert_eq!(
            signature(Kind::Reduce, 3, 4096, Some((DataType::Uint64, Op::Sum))),
            0x962c_0602
        );
    }

    #[test]
    fn the_signature_covers_all_that_members_must_agree_on() {
        let good = signature(Kind::Reduce, 1, 8, Some((DataType::Uint64, Op::Sum)));
        for other in [
            signature(Kind::AllReduce, 1, 8, Some((DataType::Uint64, Op::Sum))),
            signature(Kind::Reduce, 2, 8, Some((DataType::Uint64, Op::Sum))),
            signature(Kind::Reduce, 1, 16, Some((DataType::Uint64, Op::Sum))),
            signature(Kind::Reduce, 1, 8, Some((DataType::Int64, Op::Sum))),
            signature(Kind::Reduce, 1, 8, Some((DataType::Uint64, Op::Prod))),
            signature(Kind::Reduce, 1, 8, None),
        ] {
            assert_ne!(other, good);
        }
        let (a, b) = (address("127.0.0.1:1"), address("127.0.0.1:2"));
        assert_ne!(members([a, b].into_iter()), members([b, a].into_iter()));
    }
}
