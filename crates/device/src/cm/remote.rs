//! Messages from other hosts: from queue pair 1 to the process of this host whose connection manager they are for. They use the
//! same socket names as messages between processes of this host.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rkey_cm::wire::{Addressee, MAD, Mad};
use rkey_link::peer::Credentials;
use rustix::event::PollFlags;

use super::carrier::Name;
use super::fork::{self, CloseInChild};
use super::packet::{CmPacket, Protection};
use super::socket::{self, MessageSent, Reached};
use crate::config::Share;
use crate::objects::event_queue::wait_until_ready;
use crate::peers::link_limits::LinkFiles;
use crate::peers::names::Scope;

/// The maximum number of links.
const LINKS: usize = 16;

/// The result of [`Deliverer::deliver`].
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

/// A link to the owner of a block.
struct Link {
    socket: OwnedFd,
    who: Credentials,
    _files: LinkFiles,
}

/// The links to the owners of blocks.
type Links = BTreeMap<u16, Link>;

impl CloseInChild for Links {
    fn close_in_child(&mut self) {
        self.clear();
    }
}

/// Delivers messages. The first message to the owner of a block opens a link, which is kept. So most messages of a connection open no
/// descriptor, which a program that closes a number twice, as iperf3 does, could hit.
pub(crate) struct Deliverer {
    links: Arc<Mutex<Links>>,
}

impl Deliverer {
    pub(crate) fn new() -> Self {
        let links = Arc::<Mutex<Links>>::default();
        fork::watch_last(&links);
        Self { links }
    }

    /// Closes all links.
    pub(crate) fn close(&self) {
        self.links.lock().clear();
    }

    /// Delivers a message to its receiver, which must be a process of this user: a receiver trusts only processes of its own user
    /// about where a message comes from. The receiver checks the protection against its own key ([`crate::wire::Wire::admits`]).
    pub(crate) fn deliver(
        &self,
        from: IpAddr,
        to: IpAddr,
        mad: &[u8; MAD],
        protection: Protection,
    ) -> Delivery {
        let Ok(decoded) = Mad::decode(mad) else {
            return Delivery::Malformed;
        };
        let packet = CmPacket {
            from,
            to,
            protection,
            mad: *mad,
        };
        match decoded.message.addressee() {
            // The requester refuses before it has had an answer, so the message cannot name its receiver.
            Addressee::Communication(0) => Delivery::NoReceiver,
            Addressee::Communication(id) => self.deliver_to_block((id >> 16) as u16, &packet),
            // Always over a new link: the port may have a new owner.
            Addressee::Service(service) => match send_to_owner(Name::Port(service), &packet) {
                Ok(_) => Delivery::Done,
                Err(Undelivered::NoOwner) => Delivery::NoListener,
                Err(Undelivered::Busy) => Delivery::Busy,
            },
        }
    }

    fn deliver_to_block(&self, block: u16, packet: &CmPacket) -> Delivery {
        let mut links = self.links.lock();
        if let Some(link) = links.get(&block).filter(|link| is_ours(link.who.uid)) {
            match socket::send(&link.socket, packet) {
                MessageSent::Yes => return Delivery::Done,
                MessageSent::Busy => return Delivery::Busy,
                // The process has ended, or had no room for the link.
                MessageSent::NoReceiver => {}
            }
        }
        links.remove(&block);
        match send_to_owner(Name::Block(block), packet) {
            Ok((socket, who)) => {
                links.retain(|_, link| !has_ended(&link.socket));
                if links.len() >= LINKS {
                    links.clear();
                }
                let link = Link {
                    socket,
                    who,
                    _files: LinkFiles::of_messages(),
                };
                links.insert(block, link);
                Delivery::Done
            }
            Err(Undelivered::NoOwner) => Delivery::NoReceiver,
            Err(Undelivered::Busy) => Delivery::Busy,
        }
    }
}

/// Why [`send_to_owner`] has not delivered a message.
enum Undelivered {
    /// No process of this user owns the name.
    NoOwner,
    /// The owner has no room at the moment.
    Busy,
}

/// Sends a packet to the owner of a name, over a new link.
fn send_to_owner(name: Name, packet: &CmPacket) -> Result<(OwnedFd, Credentials), Undelivered> {
    let mut failure = Undelivered::NoOwner;
    for share in [Share::User, Share::All] {
        let scope = Scope::of(share);
        match socket::connect(scope, &name.text(scope)) {
            Ok(Reached::Process(socket, who)) if is_ours(who.uid) => {
                match socket::send(&socket, packet) {
                    MessageSent::Yes => return Ok((socket, who)),
                    MessageSent::Busy | MessageSent::NoReceiver => failure = Undelivered::Busy,
                }
            }
            Ok(Reached::Process(..) | Reached::NoOwner | Reached::OtherUser(_)) => {}
            Ok(Reached::Busy) | Err(_) => failure = Undelivered::Busy,
        }
    }
    Err(failure)
}

/// Whether the other end of a link is closed.
fn has_ended(socket: &OwnedFd) -> bool {
    let now = Some(crate::time::now());
    wait_until_ready(socket.as_fd(), PollFlags::empty(), now).unwrap_or(false)
}

/// Whether a process of user `uid` may vouch that a message comes from another host.
pub(super) fn is_ours(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::super::socket::{MessageRead, accept, bind, listen, receive};
    use super::*;
    use rkey_cm::wire::{Drep, Message, PrivateData};
    use std::net::Ipv4Addr;

    /// A process that owns a block: its listening socket.
    fn owner(block: u16) -> Option<OwnedFd> {
        let name = Name::Block(block).text(Scope::of(Share::User));
        let socket = bind(&name).unwrap()?;
        listen(&socket).unwrap();
        Some(socket)
    }

    /// A process that owns a block which no other process owns, and the block.
    fn new_owner() -> (u16, OwnedFd) {
        let mut blocks = std::iter::repeat_with(|| getrandom::u32().unwrap() as u16);
        let found = blocks.find_map(|block| Some((block, owner(block)?)));
        found.expect("most blocks are free")
    }

    fn deliver(deliverer: &Deliverer, block: u16) -> Delivery {
        let reply = Message::Drep(Drep {
            local: 1,
            remote: u32::from(block) << 16 | 1,
            data: PrivateData::default(),
        });
        let mad = Mad::new(1, reply).encode();
        let (from, to) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::LOCALHOST);
        deliverer.deliver(from.into(), to.into(), &mad, Protection::default())
    }

    fn accepted(owner: &OwnedFd) -> Option<OwnedFd> {
        accept(owner).unwrap().map(|(socket, _)| socket)
    }

    /// The number of packets that have arrived over a link.
    fn packets(link: &OwnedFd) -> usize {
        std::iter::from_fn(|| matches!(receive(link), MessageRead::Packet(_)).then_some(())).count()
    }

    #[test]
    fn messages_to_a_process_use_one_link() {
        let deliverer = Deliverer::new();
        let (block, first) = new_owner();
        for _ in 0..3 {
            assert_eq!(deliver(&deliverer, block), Delivery::Done);
        }
        let link = accepted(&first).expect("the deliverer has connected");
        assert_eq!((packets(&link), accepted(&first).is_some()), (3, false));
        // A receiver without room for the link closes it.
        drop(link);
        assert_eq!(deliver(&deliverer, block), Delivery::Done);
        let link = accepted(&first).expect("the deliverer has connected again");
        assert_eq!(packets(&link), 1);
        drop((link, first));
        assert_eq!(deliver(&deliverer, block), Delivery::NoReceiver);
        let second = owner(block).expect("its owner has ended");
        assert_eq!(deliver(&deliverer, block), Delivery::Done);
        let link = accepted(&second).expect("the deliverer has found the new owner");
        assert_eq!(packets(&link), 1);
        deliverer.close();
        assert!(matches!(receive(&link), MessageRead::End));
    }

    #[test]
    fn links_to_processes_that_have_ended_are_closed() {
        let deliverer = Deliverer::new();
        let [first, second, third] = [(); 3].map(|()| {
            let (block, owner) = new_owner();
            assert_eq!(deliver(&deliverer, block), Delivery::Done);
            (block, accepted(&owner), owner)
        });
        drop((first, second));
        let kept = third.0;
        let (last, _owner) = new_owner();
        assert_eq!(deliver(&deliverer, last), Delivery::Done);
        let mut expected = [kept, last];
        expected.sort_unstable();
        let left: Vec<u16> = deliverer.links.lock().keys().copied().collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn at_most_a_fixed_number_of_links_is_kept() {
        let deliverer = Deliverer::new();
        let owners: Vec<_> = (0..3 * LINKS)
            .map(|_| {
                let (block, owner) = new_owner();
                assert_eq!(deliver(&deliverer, block), Delivery::Done);
                assert!(deliverer.links.lock().len() <= LINKS);
                (accepted(&owner), owner)
            })
            .collect();
        drop(owners);
    }
}
