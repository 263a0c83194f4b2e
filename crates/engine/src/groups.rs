//! Multicast groups: the state of a datagram to a group, and of a member.
//!
//! A datagram to a group reaches every member, on any device. Only the engine's owner can find the members on other
//! devices: a datagram to a group raises [`crate::Event::GroupNeeded`], and waits for
//! [`Engine::connect_group`](crate::Engine::connect_group).
//!
//! The frames of raw queue pairs go to one group, [`Group::RawFrames`]; a member takes those that match one of its
//! [flows](Flow).
//!
//! Joining and leaving are in `membership.rs`, sending in `requester/multicast.rs`, and delivery in
//! `responder/multicast.rs`.

use crate::LinkId;

/// The queue pair number that stands for a group (IBA 3.5.11: multicast).
pub const GROUP_QPN: u32 = 0xff_ffff;
/// The key field of a fragment of raw frames.
pub const RAW_FRAMES_KEY: u64 = 1;
/// How many bytes at the start of a frame a flow can match.
pub(crate) const FLOW_MAX: usize = 128;

/// A group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// A multicast group, by its GID.
    Gid([u8; 16]),
    /// All raw queue pairs that have flows.
    RawFrames,
}

/// The frames that a raw queue pair takes: those whose first bytes equal `value` in the bits that are set in `mask`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The required bytes.
    pub value: Vec<u8>,
    /// The bits that are compared. A frame that is shorter than the mask does not match.
    pub mask: Vec<u8>,
}

impl Flow {
    /// Whether a frame that starts like this matches.
    pub(crate) fn takes(&self, start: &[u8]) -> bool {
        let pairs = self.mask.iter().zip(&self.value).zip(start);
        start.len() >= self.mask.len()
            && pairs
                .into_iter()
                .all(|((mask, value), byte)| byte & mask == value & mask)
    }
}

/// Links to the devices that have members of a group.
pub(crate) struct Destinations {
    pub(crate) links: Vec<LinkId>,
    pub(crate) until: u64,
}

/// A datagram that was sent over some of the links of its group and waits for room on the next one.
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) seq: u64,
    pub(crate) life: u32,
    /// Links that have no copy yet.
    pub(crate) links: Vec<LinkId>,
    /// When to retry the first of `links`, unless it has room before that.
    pub(crate) until: u64,
    /// How many more times the datagram may wait for room on that link.
    pub(crate) waits: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_compares_masked_bits_only() {
        let flow = Flow {
            value: vec![0x12, 0xff, 0x30],
            mask: vec![0xff, 0x00, 0xf0],
        };
        assert!(flow.takes(&[0x12, 0x00, 0x3f]) && flow.takes(&[0x12, 0xab, 0x30, 9]));
        assert!(!flow.takes(&[0x13, 0xff, 0x30]) && !flow.takes(&[0x12, 0xff, 0x40]));
        assert!(!flow.takes(&[0x12, 0xff]), "too short");
        assert!(Flow::default().takes(&[]));
    }
}
