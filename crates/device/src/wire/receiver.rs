//! The wire's thread: it receives datagrams and dispatches them.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rkey_cm::wire::MAD;
use smallvec::SmallVec;

use super::batch::Batch;
use super::bundle::{self, Bundle};
use super::counters::Dropped;
use super::datagram::{Content, Incoming, Reader};
use super::faults::Injector;
use super::seal::Number;
use super::socket::{BATCH, Buffers, Port};
use super::{Arrived, Core, lending, waiting};
use crate::cm::packet::Protection;
use crate::cm::remote::{Deliverer, Delivery};
use crate::ecn::Ecn;
use crate::peers::known_addresses::KnownAddresses;
use crate::peers::names;
use crate::progress::reactor::Token;
use crate::threads;

/// How many batches to receive from one socket before turning to the next.
const TURN: usize = 4;
/// How many messages from other processes to receive before turning to the next socket.
const FORWARDED: usize = 64;

/// Who receives from a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The wire's thread: at most [`TURN`] batches before it turns to the next socket.
    Thread,
    /// A poll of the program: one batch.
    Poll,
}

/// Receive buffers, and the bundle that their datagrams go into.
pub(super) struct Scratch {
    buffers: Buffers,
    forwarded: Vec<u8>,
    bundle: Bundle,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self {
            buffers: Buffers::new(),
            forwarded: vec![0; bundle::MAX_LEN],
            bundle: Bundle::default(),
        }
    }
}

/// What the delivery of messages to queue pair 1 keeps, so that most messages open no descriptor.
pub(super) struct MessageDelivery {
    deliverer: Deliverer,
    known: Mutex<KnownAddresses>,
}

impl MessageDelivery {
    pub(super) fn new() -> Self {
        Self {
            deliverer: Deliverer::new(),
            known: Mutex::default(),
        }
    }
}

impl Core {
    /// The thread's main loop.
    pub(super) fn main(&self) {
        if let Err(why) = threads::catch_panic("the wire's thread", || self.run()) {
            self.fail(why);
        }
    }

    /// Releases all addresses and blocks, so that other processes receive their packets, and fails the devices.
    pub(super) fn fail(&self, why: String) {
        let why = self.failure.get_or_init(|| why);
        for port in &self.ports {
            port.with_socket(|socket| self.sleepers.sockets().remove(socket));
            port.close(&self.reactor);
        }
        self.forwarding.close(&self.reactor);
        self.delivery.deliverer.close();
        for receiver in self.receivers.all().iter() {
            receiver.failed(why);
        }
        // Last: the log may block.
        tracing::error!(%why, "other hosts can no longer reach this program");
    }

    fn run(&self) {
        if let Err(error) = rkey_base::copy::prepare_thread() {
            tracing::warn!(%error, "cannot unblock SIGSEGV and SIGBUS in the wire's thread: a fault in user memory may kill the process");
        }
        while !self.stops.load(Ordering::Acquire) {
            let looks_again = !self.waiting.lock().is_empty() || self.forwarding.is_paused();
            let looks_again = looks_again.then_some(waiting::PAUSE);
            let sends_again = self.faults.as_ref().and_then(Injector::pause);
            let returns = self
                .lending
                .is_any_lent(&self.ports)
                .then_some(lending::TICK);
            let timeout = [looks_again, sends_again, returns];
            let timeout = timeout.into_iter().flatten().min();
            for token in self.reactor.wait(timeout) {
                if token == Token::DOORBELL {
                    let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
                } else if let Some(port) = self.tokens.iter().position(|it| *it == token) {
                    self.take_or_lend(port);
                } else if self.forwarding.has(token) {
                    self.receive_forwarded(token, &mut self.scratch.lock());
                }
            }
            self.take_back();
            self.send_held();
            self.retry_requests();
            self.forwarding.resume(&self.reactor);
            if let Some(injector) = &self.faults {
                self.send_due(injector);
            }
        }
        if let Some(injector) = &self.faults {
            self.send_rest(injector);
        }
    }

    /// Sends acknowledgements that wait for the program's answer.
    pub(super) fn send_held(&self) {
        for receiver in self.receivers.all().iter() {
            receiver.send_held();
        }
    }

    /// Receives datagrams from a socket, at most this many batches. Returns whether any came.
    pub(super) fn take(&self, port: &Port, scratch: &mut Scratch, turn: Turn) -> bool {
        let (batches, in_poll) = match turn {
            Turn::Thread => (TURN, false),
            Turn::Poll => (1, true),
        };
        for batch in 0..batches {
            let arrived = port.receive(&mut scratch.buffers);
            if arrived.len() == 0 {
                return batch > 0;
            }
            let arrived: SmallVec<[Incoming<'_>; BATCH]> = arrived.collect();
            self.sort(&arrived, Some(&mut scratch.bundle), in_poll);
        }
        true
    }

    /// Receives datagrams that other processes forward.
    fn receive_forwarded(&self, token: Token, scratch: &mut Scratch) {
        for _ in 0..FORWARDED {
            let buffer = &mut scratch.forwarded;
            let length = match self.forwarding.receive(&self.reactor, token, buffer) {
                Some(Ok(length)) => length,
                Some(Err(why)) => {
                    self.counters.dropped(why, 1);
                    continue;
                }
                None => return,
            };
            let message = &scratch.forwarded[..length];
            let Some(all) = bundle::unpack(message) else {
                self.counters.dropped(Dropped::Forwarding, 1);
                continue;
            };
            // Do not forward again: processes could forward in a loop.
            self.sort(&all, None, false);
        }
    }

    /// Dispatches each datagram. Datagrams for other processes' queue pairs go into the bundle, or are dropped.
    pub(super) fn sort<'a>(
        &self,
        arrived: &[Incoming<'a>],
        mut bundle: Option<&mut Bundle>,
        in_poll: bool,
    ) {
        let opened = self.open(arrived);
        let mut opened = self.seal.as_ref().map(|_| opened.iter());
        let devices = self.receivers.all();
        let mut packets = Batch::new(&devices, arrived.iter().map(Incoming::count).sum());
        // Delivered after the packets: a request to disconnect must not overtake the last acknowledgement.
        let mut messages = Vec::new();
        for incoming in arrived {
            let &Incoming { from, to, ecn, .. } = incoming;
            let (remote, local) = (from.ip().to_canonical(), to.ip().to_canonical());
            let is_marked = ecn == Ecn::CONGESTED;
            let mut reader = Reader::new(from, to);
            for datagram in incoming.datagrams() {
                let opened = opened.as_mut().map(|it| it.next().and_then(Option::as_ref));
                if datagram.is_empty() {
                    self.counters.dropped(Dropped::Empty, 1);
                    continue;
                }
                let (number, bytes) = match opened {
                    None => (None, datagram),
                    Some(Some((number, bytes))) => (Some(*number), &bytes[..]),
                    Some(None) => {
                        self.counters.dropped(Dropped::Forged, 1);
                        continue;
                    }
                };
                let takes = || self.takes((remote, number), incoming, bytes);
                match reader.read(bytes) {
                    Ok(Content::Packet(packet)) => {
                        let block = names::block_of(packet.headers.destination);
                        match packets.owner_of(block) {
                            Some(owner) if takes() => {
                                let arrived = Arrived {
                                    local,
                                    remote,
                                    is_marked,
                                    packet,
                                };
                                packets.push(owner, arrived);
                            }
                            Some(_) => {}
                            None => match &mut bundle {
                                Some(bundle) => self.pass_on(bundle, block, incoming, datagram),
                                None => self.counters.dropped(Dropped::NoReceiver, 1),
                            },
                        }
                    }
                    Ok(Content::Management(mad)) if takes() => {
                        messages.push((remote, local, mad, self.protection(number)));
                    }
                    Err(why) if takes() => self.counters.dropped(why, 1),
                    Ok(Content::Management(_)) | Err(_) => {}
                }
            }
        }
        if let Some(bundle) = bundle {
            self.flush(bundle);
        }
        self.counters.received(packets.count() as u64);
        packets.deliver(in_poll);
        for (remote, local, mad, protection) in messages {
            self.take_message(remote, local, &mad, protection);
        }
    }

    /// Opens sealed datagrams: `None` for those that no holder of the key has sent. Empty if the wire has no key.
    fn open(&self, arrived: &[Incoming<'_>]) -> Vec<Option<(Number, Vec<u8>)>> {
        let Some(seal) = &self.seal else {
            return Vec::new();
        };
        let open = |it: &Incoming<'_>, datagram| {
            let mut bytes = Vec::new();
            let number = seal.open(it.from, it.to, datagram, &mut bytes)?;
            Some((number, bytes))
        };
        let all = arrived.iter();
        all.flat_map(|it| it.datagrams().map(move |datagram| open(it, datagram)))
            .collect()
    }

    /// Whether to take a datagram that is not for another process. It is captured then.
    fn takes(
        &self,
        sender: (IpAddr, Option<Number>),
        incoming: &Incoming<'_>,
        bytes: &[u8],
    ) -> bool {
        if !self.is_new(sender.0, sender.1) {
            self.counters.dropped(Dropped::Replayed, 1);
            return false;
        }
        if let Some(capture) = &self.capture {
            capture.received((incoming.from, incoming.to), incoming.ecn, bytes);
        }
        true
    }

    /// How a datagram was protected.
    fn protection(&self, number: Option<Number>) -> Protection {
        let pair = self.seal.as_ref().zip(number);
        pair.map_or_else(Protection::default, |(seal, number)| {
            seal.protection(number)
        })
    }

    /// Whether a datagram has not arrived before. Datagrams have numbers if the wire has a key.
    fn is_new(&self, from: IpAddr, number: Option<Number>) -> bool {
        let pair = self.seal.as_ref().zip(number);
        pair.is_none_or(|(seal, number)| seal.is_new(from, number))
    }

    fn pass_on(&self, bundle: &mut Bundle, block: u16, incoming: &Incoming<'_>, datagram: &[u8]) {
        if bundle.add(block, incoming, datagram) {
            return;
        }
        self.flush(bundle);
        if !bundle.add(block, incoming, datagram) {
            self.counters.dropped(Dropped::Malformed, 1);
        }
    }

    fn flush(&self, bundle: &mut Bundle) {
        match self.forwarding.send(bundle) {
            Ok(count) => self.counters.forwarded(count),
            Err((why, count)) => self.counters.dropped(why, count),
        }
    }

    /// Handles a message to queue pair 1.
    fn take_message(&self, from: IpAddr, to: IpAddr, mad: &[u8; MAD], protection: Protection) {
        // Programs on this host use local sockets, over which the kernel certifies the sender.
        if self.delivery.known.lock().is_of_this_host(from) {
            return self.counters.dropped(Dropped::Source, 1);
        }
        match self.delivery.deliverer.deliver(from, to, mad, protection) {
            Delivery::Done => self.counters.received(1),
            Delivery::Busy => self.counters.dropped(Dropped::Busy, 1),
            Delivery::Malformed => self.counters.dropped(Dropped::Management, 1),
            Delivery::NoListener => {
                let now = crate::time::now();
                if !self.waiting.lock().push(now, (from, to), mad, protection) {
                    self.refuse(from, to, mad);
                }
            }
            Delivery::NoReceiver => self.refuse(from, to, mad),
        }
    }

    /// Retries the requests that wait for a listener.
    fn retry_requests(&self) {
        let now = crate::time::now();
        self.waiting.lock().retain(|it| {
            match self
                .delivery
                .deliverer
                .deliver(it.from, it.to, &it.mad, it.protection)
            {
                Delivery::Done => {
                    self.counters.received(1);
                    false
                }
                Delivery::Busy if it.is_over(now) => {
                    self.counters.dropped(Dropped::Busy, 1);
                    false
                }
                _ if it.is_over(now) => {
                    self.refuse(it.from, it.to, &it.mad);
                    false
                }
                _ => true,
            }
        });
    }

    /// Answers a message that has no receiver here.
    fn refuse(&self, from: IpAddr, to: IpAddr, mad: &[u8; MAD]) {
        self.counters.received(1);
        let now = crate::time::now();
        let answer = self.stateless.lock().answer(now, (from, to), mad);
        match answer {
            Ok(Some(answer)) => self.send_message(answer.from, answer.to, &answer.mad),
            Ok(None) => {}
            Err(()) => self.counters.dropped(Dropped::TooMany, 1),
        }
    }
}
