//! Forwarding between processes: packets for a queue pair of another process that shares our address.
//!
//! The kernel delivers a datagram to any of the sockets that share its address. A process that receives one for another process's
//! queue pair forwards it over a link to an abstract Unix socket, which is named after the queue pair's block. The sender must not
//! give packets to another user who has taken that name, and the owner must not accept forged ones, so each end of a link asks the
//! kernel for the other's user before the first packet. Nothing waits: if the owning process has no room, the packet is lost like
//! any other. Consecutive datagrams of one sender travel in one message.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rkey_link::peer::receive_before_end;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::bundle::Bundle;
use super::counters::Dropped;
use crate::cm::fork::{self, CloseInChild};
use crate::cm::socket::{self, Reached};
use crate::log_later;
use crate::peers::link_limits::LinkFiles;
use crate::peers::names::{self, Scope};
use crate::progress::reactor::{Reactor, Token};

/// The maximum number of links in each direction. A new one replaces the one that has been idle for longest, with the bundles that
/// are still in it.
const LINKS: usize = 64;
/// How many links are accepted at a time.
const ACCEPTED: usize = 64;
/// The requested size of a link's send buffer. The kernel grants less if its limit is lower (`net.core.wmem_max`).
const SEND_BUFFER: usize = 4 << 20;

/// The sockets on which processes forward packets.
#[derive(Debug, Default)]
struct Sockets {
    /// The sockets named after our blocks.
    blocks: Vec<BlockSocket>,
    /// The links from other processes, least recently used first.
    incoming: Vec<IncomingLink>,
    /// The links to other processes, least recently used first.
    outgoing: Vec<OutgoingLink>,
    /// Whether accepting has failed, so that `blocks` are not watched.
    is_paused: bool,
}

#[derive(Debug)]
struct BlockSocket {
    number: u16,
    token: Token,
    socket: OwnedFd,
}

#[derive(Debug)]
struct IncomingLink {
    block: u16,
    token: Token,
    socket: OwnedFd,
    _files: LinkFiles,
}

#[derive(Debug)]
struct OutgoingLink {
    block: u16,
    socket: OwnedFd,
    _files: LinkFiles,
}

impl CloseInChild for Sockets {
    fn close_in_child(&mut self) {
        *self = Self::default();
    }
}

/// Forwards packets, and receives those that other processes forward.
#[derive(Debug)]
pub(super) struct Forwarding {
    /// The user whose processes exchange packets: ours.
    uid: u32,
    sockets: Arc<Mutex<Sockets>>,
}

impl Forwarding {
    pub(super) fn new() -> Self {
        Self::of_user(rustix::process::geteuid().as_raw())
    }

    fn of_user(uid: u32) -> Self {
        let sockets = Arc::<Mutex<Sockets>>::default();
        fork::watch_last(&sockets);
        Self { uid, sockets }
    }

    /// Receives packets that other processes forward for a block of queue pair numbers of this process.
    pub(super) fn claim(&self, reactor: &Reactor, number: u16) -> io::Result<()> {
        let name = names::wire_name(self.uid, number);
        let socket = socket::bind(&name)?.ok_or(io::ErrorKind::AddrInUse)?;
        socket::listen(&socket)?;
        let token = reactor.new_token();
        reactor.add(&socket, token).map_err(io::Error::other)?;
        self.sockets.lock().blocks.push(BlockSocket {
            number,
            token,
            socket,
        });
        Ok(())
    }

    /// Releases a block.
    pub(super) fn release(&self, reactor: &Reactor, number: u16) {
        self.release_if(reactor, |block| block == number);
    }

    /// Releases all blocks and closes all links.
    pub(super) fn close(&self, reactor: &Reactor) {
        self.release_if(reactor, |_| true);
        self.sockets.lock().outgoing.clear();
    }

    fn release_if(&self, reactor: &Reactor, is_released: impl Fn(u16) -> bool) {
        let mut sockets = self.sockets.lock();
        for it in sockets.blocks.extract_if(.., |it| is_released(it.number)) {
            reactor.remove(&it.socket);
        }
        for it in sockets.incoming.extract_if(.., |it| is_released(it.block)) {
            reactor.remove(&it.socket);
        }
    }

    /// Forwards a bundle and empties it. Returns how many datagrams it had, or why and how many were dropped.
    pub(super) fn send(&self, bundle: &mut Bundle) -> Result<u64, (Dropped, u64)> {
        let count = bundle.count;
        if count == 0 {
            return Ok(0);
        }
        let mut sockets = self.sockets.lock();
        let sent = sockets.send(self.uid, bundle.block, &bundle.bytes);
        bundle.clear();
        match sent {
            Ok(()) => Ok(count),
            Err(why) => Err((why, count)),
        }
    }

    /// Whether a token belongs to one of these sockets.
    pub(super) fn has(&self, token: Token) -> bool {
        let sockets = self.sockets.lock();
        sockets.blocks.iter().any(|it| it.token == token)
            || sockets.incoming.iter().any(|it| it.token == token)
    }

    /// Reads from a socket that is ready: the length of the next message, which fills `buffer` from its start. `None` if there is
    /// none at the moment. `Err` if another user's process has connected.
    pub(super) fn receive(
        &self,
        reactor: &Reactor,
        token: Token,
        buffer: &mut [u8],
    ) -> Option<Result<usize, Dropped>> {
        let mut sockets = self.sockets.lock();
        if let Some(index) = sockets.blocks.iter().position(|it| it.token == token) {
            return sockets.accept(self.uid, reactor, index).err().map(Err);
        }
        let index = sockets.incoming.iter().position(|it| it.token == token)?;
        let link = &sockets.incoming[index].socket;
        match receive_before_end(|| receive_once(link, buffer), |it| *it == ForwardRead::End) {
            ForwardRead::Message(length) => {
                sockets.incoming[index..].rotate_left(1);
                Some(Ok(length))
            }
            ForwardRead::Nothing => None,
            ForwardRead::End => {
                sockets.hang_up(reactor, index);
                None
            }
        }
    }

    /// Whether accepting has failed and must be tried again later.
    pub(super) fn is_paused(&self) -> bool {
        self.sockets.lock().is_paused
    }

    /// Watches the blocks again, if accepting has failed.
    pub(super) fn resume(&self, reactor: &Reactor) {
        let mut sockets = self.sockets.lock();
        if !sockets.is_paused {
            return;
        }
        let mut all_are_watched = true;
        for it in &sockets.blocks {
            reactor.remove(&it.socket);
            all_are_watched &= reactor.add(&it.socket, it.token).is_ok();
        }
        sockets.is_paused = !all_are_watched;
    }
}

impl Sockets {
    /// Accepts links to a block. `Err` if one came from another user; there may be more.
    fn accept(&mut self, uid: u32, reactor: &Reactor, index: usize) -> Result<(), Dropped> {
        for _ in 0..ACCEPTED {
            let block = self.blocks[index].number;
            let socket = match socket::accept(&self.blocks[index].socket) {
                Ok(Some((socket, who))) if who.uid == uid => socket,
                Ok(Some(_)) => return Err(Dropped::Forwarding),
                Ok(None) => return Ok(()),
                Err(error) => {
                    if tracing::enabled!(tracing::Level::DEBUG) {
                        log_later::log(move || {
                            tracing::debug!(block, %error, "cannot receive packets that other processes forward");
                        });
                    }
                    self.pause(reactor);
                    return Ok(());
                }
            };
            let token = reactor.new_token();
            if reactor.add(&socket, token).is_err() {
                continue;
            }
            self.incoming.push(IncomingLink {
                block,
                token,
                socket,
                _files: LinkFiles::of_messages(),
            });
            if self.incoming.len() > LINKS {
                self.hang_up(reactor, 0);
            }
        }
        Ok(())
    }

    fn hang_up(&mut self, reactor: &Reactor, index: usize) {
        let link = self.incoming.remove(index);
        reactor.remove(&link.socket);
    }

    /// Stops watching the blocks for a moment. If no descriptor is left, a block's socket stays readable and the thread would spin.
    /// Closing a link leaves a descriptor for the next attempt.
    fn pause(&mut self, reactor: &Reactor) {
        if !self.incoming.is_empty() {
            self.hang_up(reactor, 0);
        }
        for it in &self.blocks {
            reactor.remove(&it.socket);
        }
        self.is_paused = true;
    }

    fn send(&mut self, uid: u32, block: u16, bytes: &[u8]) -> Result<(), Dropped> {
        if let Some(index) = self.outgoing.iter().position(|it| it.block == block) {
            match send_once(&self.outgoing[index].socket, bytes) {
                ForwardSent::Yes => {
                    self.outgoing[index..].rotate_left(1);
                    return Ok(());
                }
                ForwardSent::Busy => return Err(Dropped::Busy),
                // The block may have another owner by now.
                ForwardSent::Gone => {
                    self.outgoing.remove(index);
                }
            }
        }
        let name = names::wire_name(uid, block);
        let socket = match socket::connect(Scope::User(uid), &name) {
            Ok(Reached::Process(socket, _)) => socket,
            Ok(Reached::NoOwner | Reached::OtherUser(_)) => return Err(Dropped::NoReceiver),
            Ok(Reached::Busy) => return Err(Dropped::Busy),
            Err(error) => {
                if tracing::enabled!(tracing::Level::DEBUG) {
                    log_later::log(move || {
                        tracing::debug!(block, %error, "cannot forward packets to the process that owns the block");
                    });
                }
                // If no descriptor is left, closing a link leaves one for the next attempt.
                self.outgoing.drain(..self.outgoing.len().min(1));
                return Err(Dropped::Busy);
            }
        };
        let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        let sent = send_once(&socket, bytes);
        self.outgoing.push(OutgoingLink {
            block,
            socket,
            _files: LinkFiles::of_messages(),
        });
        if self.outgoing.len() > LINKS {
            self.outgoing.remove(0);
        }
        match sent {
            ForwardSent::Yes => Ok(()),
            ForwardSent::Busy | ForwardSent::Gone => Err(Dropped::Busy),
        }
    }
}

enum ForwardSent {
    Yes,
    Busy,
    Gone,
}

fn send_once(socket: impl AsFd, bytes: &[u8]) -> ForwardSent {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::send(socket, bytes, flags) {
        Ok(_) => ForwardSent::Yes,
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM | Errno::MSGSIZE) => {
            ForwardSent::Busy
        }
        Err(_) => ForwardSent::Gone,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ForwardRead {
    /// A message of this many bytes.
    Message(usize),
    Nothing,
    End,
}

fn receive_once(socket: impl AsFd, buffer: &mut [u8]) -> ForwardRead {
    match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT) {
        // No process sends a message without bytes.
        Ok((_, 0)) => ForwardRead::End,
        Ok((_, length)) => ForwardRead::Message(length),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => ForwardRead::Nothing,
        Err(_) => ForwardRead::End,
    }
}

#[cfg(test)]
mod tests {
    use super::super::bundle::{MAX_LEN, unpack};
    use super::super::datagram::Incoming;
    use super::*;
    use crate::ecn::Ecn;
    use crate::peers::qp_numbers::QpNumbers;
    use std::time::Duration;

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

    /// A bundle of one datagram.
    fn bundle(block: u16) -> Bundle {
        let [from, to] = ["10.0.0.2:50000", "10.0.0.1:4791"].map(|it| it.parse().unwrap());
        let mut bundle = Bundle::default();
        let incoming = Incoming {
            from,
            to,
            ecn: Ecn::default(),
            bytes: b"datagram",
            each: 8,
        };
        assert!(bundle.add(block, &incoming, b"datagram"));
        bundle
    }

    /// Stands for a process that receives packets.
    struct Owner {
        forwarding: Forwarding,
        reactor: Reactor,
        /// Keeps devices of other tests away from its block.
        _numbers: QpNumbers,
        block: u16,
        buffer: Vec<u8>,
    }

    impl Owner {
        fn new(forwarding: Forwarding) -> Self {
            let reactor = Reactor::new().unwrap();
            let numbers = QpNumbers::new(Scope::User(forwarding.uid));
            let mut block = 0;
            let claim = |number, _: std::os::fd::BorrowedFd<'_>| {
                block = number;
                forwarding.claim(&reactor, number).unwrap();
                Ok(())
            };
            numbers.claim_first(claim).unwrap();
            Self {
                forwarding,
                reactor,
                _numbers: numbers,
                block,
                buffer: vec![0; MAX_LEN],
            }
        }

        /// The number of datagrams of the next message, or why there is none.
        fn next(&mut self) -> Result<usize, Dropped> {
            loop {
                let tokens = self.reactor.wait(PATIENCE);
                assert!(!tokens.is_empty(), "nothing has arrived");
                for token in tokens {
                    assert!(self.forwarding.has(token));
                    let buffer = &mut self.buffer;
                    match self.forwarding.receive(&self.reactor, token, buffer) {
                        Some(received) => {
                            return received.map(|it| unpack(&self.buffer[..it]).unwrap().len());
                        }
                        None => continue,
                    }
                }
            }
        }

        fn is_idle(&self) -> bool {
            self.reactor.wait(Some(Duration::ZERO)).is_empty()
        }
    }

    /// A user id that is not ours. The kernel still reports our user for sockets under its names.
    fn other_user() -> u32 {
        rustix::process::geteuid().as_raw() ^ 0x0123_4567
    }

    #[test]
    fn datagrams_reach_the_owner_of_their_block() {
        let mut owner = Owner::new(Forwarding::new());
        let claim = owner.forwarding.claim(&owner.reactor, owner.block);
        assert_eq!(claim.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let other = Forwarding::new();
        for _ in 0..3 {
            let mut bundle = bundle(owner.block);
            assert_eq!(other.send(&mut bundle), Ok(1));
            assert_eq!(other.send(&mut bundle), Ok(0), "it is empty");
            assert_eq!(owner.next(), Ok(1));
        }
        assert_eq!(owner.forwarding.sockets.lock().incoming.len(), 1);
        assert!(owner.is_idle());
        owner.forwarding.release(&owner.reactor, owner.block);
        assert!(owner.forwarding.sockets.lock().incoming.is_empty());
        let sent = other.send(&mut bundle(owner.block));
        assert_eq!(sent, Err((Dropped::NoReceiver, 1)));
    }

    #[test]
    fn datagrams_reach_a_new_owner_of_their_block() {
        let mut owner = Owner::new(Forwarding::new());
        let other = Forwarding::new();
        assert_eq!(other.send(&mut bundle(owner.block)), Ok(1));
        assert_eq!(owner.next(), Ok(1));
        let old = std::mem::replace(&mut owner.forwarding, Forwarding::new());
        old.release(&owner.reactor, owner.block);
        owner.forwarding.claim(&owner.reactor, owner.block).unwrap();
        assert_eq!(other.send(&mut bundle(owner.block)), Ok(1));
        assert_eq!(owner.next(), Ok(1));
    }

    #[test]
    fn another_user_who_takes_a_blocks_name_receives_no_packet() {
        let sender = Forwarding::of_user(other_user());
        let numbers = QpNumbers::new(Scope::User(other_user()));
        let mut taken = None;
        let claim = |number, _: std::os::fd::BorrowedFd<'_>| {
            let name = names::wire_name(other_user(), number);
            let socket = socket::bind(&name).unwrap().unwrap();
            socket::listen(&socket).unwrap();
            taken = Some((number, socket));
            Ok(())
        };
        numbers.claim_first(claim).unwrap();
        let (block, listening) = taken.unwrap();
        for _ in 0..2 {
            let sent = sender.send(&mut bundle(block));
            assert_eq!(sent, Err((Dropped::NoReceiver, 1)));
            let (link, _) = socket::accept(&listening).unwrap().unwrap();
            assert!(receive_once(&link, &mut [0; 64]) == ForwardRead::End);
        }
    }

    #[test]
    fn packets_forwarded_by_another_user_are_refused() {
        let mut owner = Owner::new(Forwarding::of_user(other_user()));
        let name = names::wire_name(other_user(), owner.block);
        let us = Scope::of(crate::Share::User);
        let Reached::Process(link, _) = socket::connect(us, &name).unwrap() else {
            panic!("not connected");
        };
        send_once(&link, &bundle(owner.block).bytes);
        assert_eq!(owner.next(), Err(Dropped::Forwarding));
        assert!(owner.is_idle(), "the link is closed");
        assert!(matches!(send_once(&link, b"x"), ForwardSent::Gone));
    }

    #[test]
    fn the_number_of_forwarding_links_is_limited() {
        let mut owners: Vec<_> = (0..LINKS + 3)
            .map(|_| Owner::new(Forwarding::new()))
            .collect();
        let other = Forwarding::new();
        for _ in 0..2 {
            for owner in &mut owners {
                assert_eq!(other.send(&mut bundle(owner.block)), Ok(1));
                assert_eq!(owner.next(), Ok(1));
            }
        }
        assert_eq!(other.sockets.lock().outgoing.len(), LINKS);
        let mut owner = owners.pop().unwrap();
        let others: Vec<_> = (0..LINKS + 3).map(|_| Forwarding::new()).collect();
        for other in &others {
            assert_eq!(other.send(&mut bundle(owner.block)), Ok(1));
            assert_eq!(owner.next(), Ok(1));
        }
        assert_eq!(owner.forwarding.sockets.lock().incoming.len(), LINKS);
        // The first process's link was closed.
        assert_eq!(others[0].send(&mut bundle(owner.block)), Ok(1));
        assert_eq!(owner.next(), Ok(1));
    }

    /// As when no descriptor is left, the socket stays readable and accepting fails.
    #[test]
    fn accepting_for_a_block_is_paused_after_an_error() {
        let owner = Owner::new(Forwarding::new());
        let reader = {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&writer, b"x").unwrap();
            reader
        };
        let token = {
            let block = &mut owner.forwarding.sockets.lock().blocks[0];
            owner.reactor.remove(&block.socket);
            owner.reactor.add(&reader, block.token).unwrap();
            block.socket = reader;
            block.token
        };
        assert_eq!(owner.reactor.wait(PATIENCE), [token]);
        let received = owner.forwarding.receive(&owner.reactor, token, &mut []);
        assert_eq!(received, None);
        assert!(owner.is_idle() && owner.forwarding.is_paused());
        owner.forwarding.resume(&owner.reactor);
        assert!(!owner.forwarding.is_paused());
        assert_eq!(owner.reactor.wait(PATIENCE), [token]);
    }
}
