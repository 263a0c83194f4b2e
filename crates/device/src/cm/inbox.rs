//! Packets that have arrived for our own manager.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rkey_cm::manager::Transmit;
use rkey_link::peer::Credentials;

use super::packet::{CmPacket, Protection};
use super::remote::is_ours;
use super::socket::{self, MessageRead};
use crate::peers::known_addresses::KnownAddresses;
use crate::peers::link_limits::Party;
use crate::wire::Wire;

/// The maximum number of queued packets. When the queue is full, nothing is read.
const MAX: usize = 16_384;

/// The result of reading from a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadResult {
    pub(super) packets: usize,
    pub(super) has_ended: bool,
    /// The other process asks for an inspection.
    pub(super) is_query: bool,
    /// The other process has violated the protocol.
    pub(super) is_violation: bool,
}

/// The queued packets, each with the number of the party that sent it.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    packets: VecDeque<(CmPacket, u64)>,
    addresses: KnownAddresses,
    /// Over which wire messages from other hosts are accepted.
    pub(super) wire: Option<Arc<Wire>>,
}

impl Inbox {
    /// Whether our wire would have accepted a message of another host, which another process may have received.
    fn admits(&self, packet: &CmPacket) -> bool {
        let wire = self.wire.as_ref();
        wire.is_some_and(|wire| wire.admits(packet.from, &packet.protection))
    }

    /// Adds a message that our own manager sent and that has no receiver.
    pub(super) fn push_own(&mut self, message: Transmit) {
        let packet = CmPacket {
            from: message.from,
            to: message.to,
            protection: Protection::default(),
            mad: message.mad,
        };
        self.packets.push_back((packet, 0));
    }

    /// Removes the next packet.
    pub(super) fn pop(&mut self) -> Option<(CmPacket, u64)> {
        self.packets.pop_front()
    }

    /// Reads up to `most` packets from a link.
    pub(super) fn read(&mut self, socket: &OwnedFd, who: Credentials, most: usize) -> ReadResult {
        let mut result = ReadResult::default();
        while result.packets < most && self.packets.len() < MAX {
            match socket::receive(socket) {
                MessageRead::Packet(packet) => {
                    result.packets += 1;
                    let is_local = self.is_of_this_host(packet.from);
                    if self.is_of_this_host(packet.to)
                        && (is_local || is_ours(who.uid) && self.admits(&packet))
                    {
                        let party = if is_local {
                            number(Party::of(who))
                        } else {
                            REMOTE
                        };
                        self.packets.push_back((*packet, party));
                    }
                }
                MessageRead::Query => {
                    result.is_query = true;
                    break;
                }
                MessageRead::Nothing => break,
                MessageRead::End => {
                    result.has_ended = true;
                    break;
                }
                MessageRead::Violation => {
                    result.is_violation = true;
                    break;
                }
            }
        }
        result
    }

    pub(super) fn is_of_this_host(&mut self, address: IpAddr) -> bool {
        self.addresses.is_of_this_host(address)
    }
}

/// The number of all programs on other hosts.
const REMOTE: u64 = 4 << 32;

/// The PID in a party's number.
pub(super) fn pid_of(number: u64) -> Option<u32> {
    match number >> 32 {
        0 => Some(std::process::id()),
        1 => Some(number as u32),
        _ => None,
    }
}

/// A party's number. 0 is this process.
fn number(party: Party) -> u64 {
    match party {
        Party::Process(Some(pid)) => 1 << 32 | u64::from(pid),
        Party::Process(None) => 2 << 32,
        Party::User(uid) => 3 << 32 | u64::from(uid),
    }
}
