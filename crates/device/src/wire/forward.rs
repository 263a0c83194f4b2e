//! From process to process: packets for a queue pair of another process that shares our address.
//!
//! The kernel gives a datagram to any of the sockets that share its address. A process that gets one for a queue pair that is not
//! its own passes it on, over an abstract Unix socket with the name of the queue pair's block. Only processes of this user do
//! that, which the kernel certifies with each message. Nothing waits: if the other process has no room, the packet is lost like any
//! other. Several datagrams of one sender travel together.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketFlags, SocketType, sockopt,
};

use super::bundle::Bundle;
use super::counters::Dropped;
use crate::cm::fork::{self, CloseInChild};
use crate::peers::names;
use crate::progress::reactor::{Reactor, Token};

/// The sockets with the names of our blocks.
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

/// What passes packets on, and takes those that others pass on.
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

    /// Takes packets that others pass on for a block of queue pair numbers of this process.
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

    /// Gives up a block.
    pub(super) fn release(&self, reactor: &Reactor, number: u16) {
        let mut claimed = self.claimed.lock();
        for block in claimed.0.extract_if(.., |it| it.number == number) {
            reactor.remove(&block.socket);
        }
    }

    /// Passes a bundle on, and empties it. Returns how many datagrams it had, or why and how many were dropped.
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

    /// Whether a token is that of a block's socket.
    pub(super) fn has(&self, token: Token) -> bool {
        self.claimed.lock().0.iter().any(|it| it.token == token)
    }

    /// The next message for a block. `None`: there is none. An error: a message that we do not take.
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
    use super::super::bundle::{LONGEST, unpack};
    use super::*;
    use std::net::SocketAddr;
    use std::time::Duration;

    fn flow() -> (SocketAddr, SocketAddr) {
        let pair = ["10.0.0.2:50000", "10.0.0.1:4791"].map(|it| it.parse().unwrap());
        (pair[0], pair[1])
    }

    /// A block that no other test has.
    fn claimed(reactor: &Reactor) -> (Forwarding, u16) {
        let forwarding = Forwarding::new().unwrap();
        let block = (0..=u16::MAX).find(|it| forwarding.claim(reactor, *it).is_ok());
        (forwarding, block.unwrap())
    }

    #[test]
    fn a_block_gets_what_its_owner_is_sent() {
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
        let mut buffer = vec![0; LONGEST];
        let received = forwarding.receive(token, &mut buffer).unwrap().unwrap();
        assert_eq!(unpack(&buffer[..received]).unwrap().len(), 1);
        assert_eq!(forwarding.receive(token, &mut buffer), None);
        forwarding.release(&reactor, block);
        assert!(!forwarding.has(token));
        bundle.add(block, flow(), b"datagram");
        assert_eq!(other.send(&mut bundle), Err((Dropped::NoReceiver, 1)));
    }
}
