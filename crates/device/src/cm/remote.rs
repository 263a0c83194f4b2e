//! Messages from other hosts: from queue pair 1 to the process of this host whose connection manager they are for. They use the
//! same socket names as messages between processes of this host.

use std::net::IpAddr;

use rkey_cm::wire::{Addressee, MAD, Mad};

use super::carrier::Name;
use super::packet::{CmPacket, Protection};
use super::socket::{self, MessageSent, Reached};
use crate::config::Share;
use crate::peers::names::Scope;

/// The result of [`deliver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Delivered to its receiver.
    Done,
    /// No process owns the destination.
    NoReceiver,
    /// A request to a port at which no process listens.
    NoListener,
    /// The receiver has no room at the moment; the sender retransmits the message.
    Busy,
    /// The bytes are not a message.
    Malformed,
}

/// Delivers a message to its receiver, which must be a process of this user: a receiver trusts only processes of its own user
/// about where a message comes from. The receiver checks the protection against its own key ([`crate::wire::Wire::admits`]).
pub(crate) fn deliver(
    from: IpAddr,
    to: IpAddr,
    mad: &[u8; MAD],
    protection: Protection,
) -> Delivery {
    let Ok(decoded) = Mad::decode(mad) else {
        return Delivery::Malformed;
    };
    let addressee = decoded.message.addressee();
    let name = match addressee {
        // The requester refuses before it has had an answer, so the message cannot name its receiver.
        Addressee::Communication(0) => return Delivery::NoReceiver,
        Addressee::Communication(id) => Name::Block((id >> 16) as u16),
        Addressee::Service(service) => Name::Port(service),
    };
    let packet = CmPacket {
        from,
        to,
        protection,
        mad: *mad,
    };
    let mut outcome = match addressee {
        Addressee::Service(_) => Delivery::NoListener,
        Addressee::Communication(_) => Delivery::NoReceiver,
    };
    for share in [Share::User, Share::All] {
        let scope = Scope::of(share);
        match socket::connect(scope, &name.text(scope)) {
            Ok(Reached::Process(socket, who)) if is_ours(who.uid) => {
                match socket::send(&socket, &packet) {
                    MessageSent::Yes => return Delivery::Done,
                    MessageSent::Busy | MessageSent::NoReceiver => outcome = Delivery::Busy,
                }
            }
            Ok(Reached::Process(..) | Reached::NoOwner | Reached::OtherUser(_)) => {}
            Ok(Reached::Busy) | Err(_) => outcome = Delivery::Busy,
        }
    }
    outcome
}

/// Whether a process of user `uid` may vouch that a message comes from another host.
pub(super) fn is_ours(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}
