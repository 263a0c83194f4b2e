//! Messages of other hosts: from queue pair 1 to the connection manager of this host that they are meant for, whichever process has
//! it. The names are those that processes of this host use.

use std::net::IpAddr;

use rkey_cm::wire::{Addressee, MAD, Mad};

use super::carrier::Name;
use super::packet::Packet;
use super::socket::{self, Reached, Sent};
use crate::config::Share;
use crate::peers::names::Scope;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Its receiver has it.
    Done,
    /// There is none.
    NoReceiver,
    /// It is a request, and no process listens at its port.
    NoListener,
    /// Its receiver has no room at the moment; the sender repeats the message.
    Busy,
    /// The bytes are not a message.
    Malformed,
}

/// Brings a message to its receiver, which must be a process of this user: it takes no other's word for where a message comes from.
pub(crate) fn deliver(from: IpAddr, to: IpAddr, mad: &[u8; MAD]) -> Delivery {
    let Ok(decoded) = Mad::decode(mad) else {
        return Delivery::Malformed;
    };
    let addressee = decoded.message.addressee();
    let name = match addressee {
        // A refusal by a requester that has had no answer, and so cannot say to whom.
        Addressee::Communication(0) => return Delivery::NoReceiver,
        Addressee::Communication(id) => Name::Block((id >> 16) as u16),
        Addressee::Service(service) => Name::Port(service),
    };
    let packet = Packet {
        from,
        to,
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
                    Sent::Yes => return Delivery::Done,
                    Sent::Busy | Sent::Gone => outcome = Delivery::Busy,
                }
            }
            Ok(Reached::Process(..) | Reached::NoOwner | Reached::OtherUser(_)) => {}
            Ok(Reached::Busy) | Err(_) => outcome = Delivery::Busy,
        }
    }
    outcome
}

/// Whether a process of this user may say that a message comes from another host.
pub(super) fn is_ours(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}
