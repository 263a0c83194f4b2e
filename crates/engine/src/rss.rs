//! Receive side scaling: a raw queue pair without its own receive queue distributes frames over several, by a hash of
//! the addresses in the frame.

use crate::SrqId;
use bitflags::bitflags;

/// The length of a Toeplitz key, in bytes.
pub const KEY_LEN: usize = 40;
/// How many bytes at the start of a frame can contain hashed fields (IPv6 and ports).
pub(crate) const START_LEN: usize = 14 + 40 + 4;

bitflags! {
    /// The fields of a frame that are hashed, if the frame has them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HashFields: u32 {
        /// IPv4 source address.
        const SRC_IPV4 = 1;
        /// IPv4 destination address.
        const DST_IPV4 = 1 << 1;
        /// IPv6 source address.
        const SRC_IPV6 = 1 << 2;
        /// IPv6 destination address.
        const DST_IPV6 = 1 << 3;
        /// TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DST_PORT_UDP = 1 << 7;
    }
}

/// How frames are distributed.
#[derive(Clone, Debug)]
pub struct Rss {
    /// The queues; their number is a power of two. The lowest bits of the hash select one.
    pub queues: Vec<SrqId>,
    /// The key of the hash.
    pub key: [u8; KEY_LEN],
    /// The fields that are hashed.
    pub fields: HashFields,
}

/// The state of a receive queue for RSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WqState {
    /// Takes no frames; entering this state drops posted receives.
    Reset,
    /// Takes frames.
    Ready,
    /// Takes no frames; entering this state flushes posted receives.
    Error,
}

/// The Toeplitz hash of some bytes.
fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (at, byte) in input.iter().enumerate() {
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                let window = key.iter().cycle().skip(at).take(5);
                let window = window.fold(0u64, |window, &byte| window << 8 | u64::from(byte));
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}

impl Rss {
    /// The hash of a frame that starts with these bytes.
    pub(crate) fn hash(&self, frame: &[u8]) -> u32 {
        let mut input = [0; 36];
        let mut len = 0;
        let mut add = |fields: HashFields, at: usize, size: usize| {
            if let (true, Some(bytes)) = (self.fields.contains(fields), frame.get(at..at + size)) {
                input[len..len + size].copy_from_slice(bytes);
                len += size;
            }
        };
        use HashFields as F;
        let (l4, protocol) = match frame.get(12..15) {
            Some(&[0x08, 0x00, 0x45]) => {
                add(F::SRC_IPV4, 26, 4);
                add(F::DST_IPV4, 30, 4);
                (34, frame.get(23))
            }
            Some(&[0x86, 0xdd, _]) => {
                add(F::SRC_IPV6, 22, 16);
                add(F::DST_IPV6, 38, 16);
                (54, frame.get(20))
            }
            _ => (0, None),
        };
        match protocol {
            Some(6) => {
                add(F::SRC_PORT_TCP, l4, 2);
                add(F::DST_PORT_TCP, l4 + 2, 2);
            }
            Some(17) => {
                add(F::SRC_PORT_UDP, l4, 2);
                add(F::DST_PORT_UDP, l4 + 2, 2);
            }
            _ => {}
        }
        toeplitz(&self.key, &input[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key that is commonly used to verify NICs.
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn frame() -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = 6;
        frame[26..34].copy_from_slice(&[66, 9, 149, 187, 161, 142, 100, 80]);
        frame[34..36].copy_from_slice(&2794u16.to_be_bytes());
        frame[36..38].copy_from_slice(&1766u16.to_be_bytes());
        frame
    }

    #[test]
    fn the_rss_hash_matches_the_published_values() {
        let mut rss = Rss {
            queues: Vec::new(),
            key: KEY,
            fields: HashFields::SRC_IPV4 | HashFields::DST_IPV4,
        };
        assert_eq!(rss.hash(&frame()), 0x323e_8fc2);
        rss.fields |= HashFields::SRC_PORT_TCP | HashFields::DST_PORT_TCP;
        assert_eq!(rss.hash(&frame()), 0x51cc_c178);
        rss.fields = HashFields::SRC_PORT_UDP;
        assert_eq!(rss.hash(&frame()), 0, "it has none of these fields");
        assert_eq!(rss.hash(&[]), 0);
    }
}
