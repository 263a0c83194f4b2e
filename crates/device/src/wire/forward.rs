//! Forwarding between processes: packets for a queue pair of another process that shares our address.
//!
//! The kernel delivers a datagram to any of the sockets that share its address. A process that receives one for another process's
//! queue pair forwards it over an abstract Unix socket, which is named after the queue pair's block. Only processes of the same
//! user may forward, which the kernel certifies with each message. Nothing waits: if the owning process has no room, the packet
//! is lost like any other. Consecutive datagrams of one sender travel in one message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketFlags, SocketType, sockopt,
};

use super::counters::Dropped;
use crate::cm::fork::{self, CloseInChild};
use crate::peers::names;
use crate::progress::reactor::{Reactor, Token};

/// The first bytes of a message: the protocol version.
const MAGIC: [u8; 4] = *b"rwf1";
/// The length of what precedes the datagrams: [`MAGIC`], the sender's address and port, and our address.
const HEADER: usize = 4 + 16 + 2 + 16;
/// The length of the longest message, in bytes.
pub(super) const MAX_LEN: usize = 1 << 16;

/// Datagrams from one sender, for one block, to be forwarded to the process that owns it.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    block: u16,
    flow: Option<(SocketAddr, SocketAddr)>,
    bytes: Vec<u8>,
    count: u64,
}

impl Bundle {
    /// Adds a datagram; `false` if it must go into another bundle.
    pub(super) fn add(
        &mut self,
        block: u16,
        flow: (SocketAddr, SocketAddr),
        datagram: &[u8],
    ) -> bool {
        let Ok(length) = u16::try_from(datagram.len()) else {
            return false;
        };
        if self.flow.is_none() {
            self.bytes.extend_from_slice(&MAGIC);
            self.bytes.extend_from_slice(&octets(flow.0));
            self.bytes.extend_from_slice(&flow.0.port().to_be_bytes());
            self.bytes.extend_from_slice(&octets(flow.1));
            (self.block, self.flow) = (block, Some(flow));
        }
        let has_room = self.bytes.len() + 2 + datagram.len() <= MAX_LEN;
        if (self.block, self.flow) != (block, Some(flow)) || !has_room {
            return false;
        }
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(datagram);
        self.count += 1;
        true
    }

    /// Empties the bundle.
    fn clear(&mut self) {
        self.flow = None;
        self.bytes.clear();
        self.count = 0;
    }
}

fn octets(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(it) => it.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(it) => it.ip().octets(),
    }
}

/// Decodes a message: the datagrams, each with its sender's address and ours. `None` if the bytes are not a message.
pub(super) fn unpack(bytes: &[u8]) -> Option<Vec<(SocketAddr, SocketAddr, &[u8])>> {
    let (header, mut rest) = bytes.split_at_checked(HEADER)?;
    if header[..4] != MAGIC {
        return None;
    }
    let ip = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
        Some(Ipv6Addr::from(octets).to_canonical())
    };
    let from = SocketAddr::new(ip(4)?, u16::from_be_bytes([header[20], header[21]]));
    let to = SocketAddr::new(ip(22)?, rkey_roce::icrc::PORT);
    let mut datagrams = Vec::new();
    while let Some((length, more)) = rest.split_first_chunk() {
        let (datagram, more) = more.split_at_checked(u16::from_be_bytes(*length).into())?;
        datagrams.push((from, to, datagram));
        rest = more;
    }
    rest.is_empty().then_some(datagrams)
}

/// The sockets named after our blocks.
#[derive(Debug, Default)]
struct Claimed(Vec<Block>);

#[derive(Debug)]
struct Block {
    number: u16,
    token: Token,
    socket: OwnedFd,
}

impl CloseInChild for Claimed {
    fn close_in_child(&mut self) {
        self.0.clear();
    }
}

/// Forwards packets, and receives those that other processes forward.
#[derive(Debug)]
pub(super) struct Forwarding {
    uid: u32,
    sending: OwnedFd,
    claimed: Arc<Mutex<Claimed>>,
}

impl Forwarding {
    pub(super) fn new() -> io::Result<Self> {
        let claimed = Arc::<Mutex<Claimed>>::default();
        fork::watch_last(&claimed);
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            sending: new_socket()?,
            claimed,
        })
    }

    /// Receives packets that other processes forward for a block of queue pair numbers of this process.
    pub(super) fn claim(&self, reactor: &Reactor, number: u16) -> io::Result<()> {
        let socket = new_socket()?;
        sockopt::set_socket_passcred(&socket, true)?;
        let name = names::wire_name(self.uid, number);
        rustix::net::bind(&socket, &names::abstract_address(&name)?)?;
        let token = reactor.new_token();
        reactor.add(&socket, token).map_err(io::Error::other)?;
        self.claimed.lock().0.push(Block {
            number,
            token,
            socket,
        });
        Ok(())
    }

    /// Releases a block.
    pub(super) fn release(&self, reactor: &Reactor, number: u16) {
        let mut claimed = self.claimed.lock();
        for block in claimed.0.extract_if(.., |it| it.number == number) {
            reactor.remove(&block.socket);
        }
    }

    /// Forwards a bundle and empties it. Returns how many datagrams it had, or why and how many were dropped.
    pub(super) fn send(&self, bundle: &mut Bundle) -> Result<u64, (Dropped, u64)> {
        let count = bundle.count;
        if count == 0 {
            return Ok(0);
        }
        let name = names::wire_name(self.uid, bundle.block);
        let result = names::abstract_address(&name).map(|to| {
            rustix::net::sendmsg_addr(
                &self.sending,
                &to,
                &[IoSlice::new(&bundle.bytes)],
                &mut SendAncillaryBuffer::default(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            )
        });
        bundle.clear();
        match result {
            Ok(Ok(_)) => Ok(count),
            Ok(Err(Errno::CONNREFUSED)) => Err((Dropped::NoReceiver, count)),
            Ok(Err(_)) | Err(_) => Err((Dropped::Busy, count)),
        }
    }

    /// Whether a token belongs to a block's socket.
    pub(super) fn has(&self, token: Token) -> bool {
        self.claimed.lock().0.iter().any(|it| it.token == token)
    }

    /// Receives the next message for a block. `None` if there is none. `Err` if the message is not acceptable.
    pub(super) fn receive(
        &self,
        token: Token,
        buffer: &mut [u8],
    ) -> Option<Result<usize, Dropped>> {
        let claimed = self.claimed.lock();
        let block = claimed.0.iter().find(|it| it.token == token)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(buffer)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&block.socket, slices, &mut control, flags) {
            Ok(received) => received,
            Err(Errno::INTR | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN) => return None,
            Err(_) => return Some(Err(Dropped::Forwarding)),
        };
        let is_ours = control.drain().any(|it| match it {
            RecvAncillaryMessage::ScmCredentials(who) => who.uid.as_raw() == self.uid,
            _ => false,
        });
        Some(match is_ours {
            true => Ok(received.bytes),
            false => Err(Dropped::Forwarding),
        })
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn flow() -> (SocketAddr, SocketAddr) {
        let pair = ["10.0.0.2:50000", "10.0.0.1:4791"].map(|it| it.parse().unwrap());
        (pair[0], pair[1])
    }

    /// Claims a block that no other test uses.
    fn claimed(reactor: &Reactor) -> (Forwarding, u16) {
        let forwarding = Forwarding::new().unwrap();
        let block = (0..=u16::MAX).find(|it| forwarding.claim(reactor, *it).is_ok());
        (forwarding, block.unwrap())
    }

    #[test]
    fn datagrams_travel_together_while_there_is_room() {
        let mut bundle = Bundle::default();
        assert!(bundle.add(7, flow(), b"first") && bundle.add(7, flow(), b""));
        assert!(!bundle.add(8, flow(), b"another block"));
        let (from, to) = flow();
        assert!(!bundle.add(7, (to, from), b"another sender"));
        assert!(!bundle.add(7, flow(), &[0; MAX_LEN - HEADER]));
        let wanted = [&b"first"[..], b""].map(|it| (from, to, it));
        assert_eq!(unpack(&bundle.bytes).unwrap(), wanted);
        bundle.clear();
        assert!(bundle.add(8, (to, from), b"x"));
        let mut full = Bundle::default();
        let mut count = 0;
        while full.add(1, flow(), &[1; 4000]) {
            count += 1;
        }
        assert_eq!(unpack(&full.bytes).unwrap().len(), count);
        assert!(full.bytes.len() <= MAX_LEN && count > 10);
    }

    #[test]
    fn bytes_that_are_not_a_message_are_refused() {
        let mut bundle = Bundle::default();
        assert!(bundle.add(7, flow(), b"datagram"));
        let bytes = bundle.bytes;
        for length in 0..bytes.len() {
            // A header alone is a message without datagrams.
            assert_eq!(unpack(&bytes[..length]).is_some(), length == HEADER);
        }
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert!(unpack(&other).is_none());
        assert!(unpack(&[&bytes[..], &[0]].concat()).is_none());
    }

    #[test]
    fn datagrams_reach_the_owner_of_their_block() {
        let reactor = Reactor::new().unwrap();
        let (forwarding, block) = claimed(&reactor);
        assert!(forwarding.claim(&reactor, block).is_err(), "it is taken");
        let mut bundle = Bundle::default();
        bundle.add(block, flow(), b"datagram");
        let other = Forwarding::new().unwrap();
        assert_eq!(other.send(&mut bundle), Ok(1));
        assert_eq!(other.send(&mut bundle), Ok(0), "it is empty");
        let [token] = reactor.wait(Some(Duration::from_secs(60)))[..] else {
            panic!("not one token");
        };
        assert!(forwarding.has(token));
        let mut buffer = vec![0; MAX_LEN];
        let received = forwarding.receive(token, &mut buffer).unwrap().unwrap();
        assert_eq!(unpack(&buffer[..received]).unwrap().len(), 1);
        assert_eq!(forwarding.receive(token, &mut buffer), None);
        forwarding.release(&reactor, block);
        assert!(!forwarding.has(token));
        bundle.add(block, flow(), b"datagram");
        assert_eq!(other.send(&mut bundle), Err((Dropped::NoReceiver, 1)));
    }
}
