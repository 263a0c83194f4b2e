//! The wire's thread: it receives datagrams and dispatches them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rkey_cm::wire::MAD;

use super::bundle::{self, Bundle};
use super::counters::Dropped;
use super::datagram::{self, Content, Incoming};
use super::faults::Injector;
use super::seal::Number;
use super::socket::{Buffers, Port};
use super::{Arrived, Core, Receiver, lending, waiting};
use crate::cm::packet::Protection;
use crate::cm::remote::{self, Delivery};
use crate::ecn::Ecn;
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
            port.close(&self.reactor);
        }
        self.forwarding.close(&self.reactor);
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
            let datagrams = port.receive(&mut scratch.buffers);
            if datagrams.is_empty() {
                return batch > 0;
            }
            self.sort(&datagrams, Some(&mut scratch.bundle), in_poll);
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
        datagrams: &[Incoming<'a>],
        mut bundle: Option<&mut Bundle>,
        in_poll: bool,
    ) {
        let receivers = self.receivers.all();
        let mut packets: Vec<Vec<Arrived<'_>>> = receivers.iter().map(|_| Vec::new()).collect();
        // Delivered after the packets: a request to disconnect must not overtake the last acknowledgement.
        let mut messages = Vec::new();
        let opened = self.open(datagrams);
        for (index, incoming) in datagrams.iter().enumerate() {
            let &Incoming { from, to, .. } = incoming;
            if incoming.bytes.is_empty() {
                self.counters.dropped(Dropped::Empty, 1);
                continue;
            }
            let (number, bytes) = match opened.get(index) {
                None => (None, incoming.bytes),
                Some(Some((number, bytes))) => (Some(*number), &bytes[..]),
                Some(None) => {
                    self.counters.dropped(Dropped::Forged, 1);
                    continue;
                }
            };
            let content = datagram::read(from, to, bytes);
            if !is_for_others(content.as_ref(), &receivers) {
                if !self.is_new(from.ip().to_canonical(), number) {
                    self.counters.dropped(Dropped::Replayed, 1);
                    continue;
                }
                if let Some(capture) = &self.capture {
                    capture.received((from, to), incoming.ecn, bytes);
                }
            }
            let content = match content {
                Ok(content) => content,
                Err(why) => {
                    self.counters.dropped(why, 1);
                    continue;
                }
            };
            let (remote, local) = (from.ip().to_canonical(), to.ip().to_canonical());
            match content {
                Content::Management(mad) => {
                    messages.push((remote, local, mad, self.protection(number)));
                }
                Content::Packet(packet) => {
                    let block = names::block_of(packet.headers.destination);
                    match receivers.iter().position(|it| it.owns(block)) {
                        Some(index) => {
                            self.counters.received();
                            packets[index].push(Arrived {
                                local,
                                remote,
                                is_marked: incoming.ecn == Ecn::CONGESTED,
                                packet,
                            });
                        }
                        None => match &mut bundle {
                            Some(bundle) => self.pass_on(bundle, block, incoming),
                            None => self.counters.dropped(Dropped::NoReceiver, 1),
                        },
                    }
                }
            }
        }
        if let Some(bundle) = bundle {
            self.flush(bundle);
        }
        for (receiver, packets) in receivers.iter().zip(packets) {
            if !packets.is_empty() {
                receiver.receive(&packets, in_poll);
            }
        }
        for (remote, local, mad, protection) in messages {
            self.take_message(remote, local, &mad, protection);
        }
    }

    /// Opens sealed datagrams: `None` for those that no holder of the key has sent. Empty if the wire has no key.
    fn open(&self, datagrams: &[Incoming<'_>]) -> Vec<Option<(Number, Vec<u8>)>> {
        let Some(seal) = &self.seal else {
            return Vec::new();
        };
        let open = |it: &Incoming<'_>| {
            let mut bytes = Vec::new();
            let number = seal.open(it.from, it.to, it.bytes, &mut bytes)?;
            Some((number, bytes))
        };
        datagrams.iter().map(open).collect()
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

    fn pass_on(&self, bundle: &mut Bundle, block: u16, incoming: &Incoming<'_>) {
        if bundle.add(block, incoming) {
            return;
        }
        self.flush(bundle);
        if !bundle.add(block, incoming) {
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
        if names::is_of_this_host(from) {
            return self.counters.dropped(Dropped::Source, 1);
        }
        match remote::deliver(from, to, mad, protection) {
            Delivery::Done => self.counters.received(),
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
            match remote::deliver(it.from, it.to, &it.mad, it.protection) {
                Delivery::Done => {
                    self.counters.received();
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
        self.counters.received();
        let now = crate::time::now();
        let answer = self.stateless.lock().answer(now, (from, to), mad);
        match answer {
            Ok(Some(answer)) => self.send_message(answer.from, answer.to, &answer.mad),
            Ok(None) => {}
            Err(()) => self.counters.dropped(Dropped::TooMany, 1),
        }
    }
}

/// Whether a datagram is a packet for another process.
fn is_for_others(content: Result<&Content<'_>, &Dropped>, receivers: &[Arc<dyn Receiver>]) -> bool {
    let Ok(Content::Packet(packet)) = content else {
        return false;
    };
    let block = names::block_of(packet.headers.destination);
    !receivers.iter().any(|it| it.owns(block))
}
