//! Injected faults (`RKEY_FAULT`): the packets that a process sends are lost, duplicated, reordered, corrupted or delayed on
//! purpose.
//!
//! Faults are injected only into packets that this process sends; for faults in both directions, both sides must set them. They
//! are injected after the checksum is computed and the packet is sealed, so a corrupted packet reaches the peer with a correct UDP checksum and a wrong
//! invariant one. All packets are subject to them, including those of the connection manager. Each packet is sent in a system
//! call of its own, by the thread that sends it or, if it waits, by the wire's thread.

mod machine;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_roce::icrc::{self, Flow};
use serde::{Deserialize, Serialize};

use super::Core;
use super::counters::Dropped;
use super::datagram::Outgoing;

use super::outgoing::{OutgoingPackets, send_or_wait};
use super::seal::Kind;
use super::socket::Port;
use crate::config::Faults;
use crate::ecn::Ecn;
pub use machine::FaultCounts;
use machine::FaultMachine;

/// The faults of a wire.
#[derive(Debug)]
pub(super) struct Injector {
    machine: Mutex<FaultMachine>,
}

/// A description of injected faults for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultDescription {
    /// The faults as they are set, in the syntax of `RKEY_FAULT`.
    pub faults: String,
    /// The seed in use; a random one if none was set.
    pub seed: u64,
    /// The number of packets that each fault affected.
    #[serde(flatten)]
    pub counts: FaultCounts,
}

impl Injector {
    /// `None` if there are no faults.
    pub(super) fn new(faults: Faults) -> Result<Option<Self>, getrandom::Error> {
        if faults.is_off() {
            return Ok(None);
        }
        let seed = match faults.seed {
            Some(seed) => seed,
            None => getrandom::u32()?.into(),
        };
        let faults = Faults {
            seed: Some(seed),
            ..faults
        };
        let machine = Mutex::new(FaultMachine::new(faults, seed));
        Ok(Some(Self { machine }))
    }

    pub(super) fn describe(&self) -> FaultDescription {
        let machine = self.machine.lock();
        FaultDescription {
            faults: machine.faults().to_string(),
            seed: machine.seed(),
            counts: machine.counts(),
        }
    }

    /// The time until the next waiting packet must be sent; `None` if none waits.
    pub(super) fn pause(&self) -> Option<Duration> {
        let next = self.machine.lock().next()?;
        Some(next.saturating_duration_since(crate::time::now()))
    }
}

impl Core {
    /// Sends packets with faults, and empties `outgoing`.
    pub(super) fn send_with_faults(&self, injector: &Injector, outgoing: &mut OutgoingPackets) {
        // In a forked child, a thread that does not exist there may hold the lock.
        let is_forked = self.is_forked();
        for (from, to, packet) in outgoing.packets() {
            let datagram = (!is_forked).then(|| self.seal(from, to, packet)).flatten();
            match datagram {
                Some(datagram) => self.inject(injector, datagram),
                None => self.counters.dropped(Dropped::Unsent, 1),
            }
        }
        outgoing.clear();
    }

    /// A packet with its checksum, sealed if the wire has a key. `None` if it cannot be sent.
    fn seal(&self, from: IpAddr, to: IpAddr, packet: &[u8]) -> Option<Outgoing> {
        let to = SocketAddr::new(to, icrc::PORT);
        let flow = Flow::new(self.port(from)?.address, to)?;
        let mut bytes = packet.to_vec();
        flow.seal(&mut bytes, 0);
        let datagram = Outgoing {
            from,
            to,
            ecn: Ecn::of_packet(packet),
            bytes,
        };
        self.sealed(Kind::Packet, datagram)
    }

    /// Injects faults into a datagram and sends it. Wakes the wire's thread if a delayed packet is now due earlier than
    /// before.
    pub(super) fn inject(&self, injector: &Injector, datagram: Outgoing) {
        let mut machine = injector.machine.lock();
        let known = machine.next();
        let now = crate::time::now();
        machine.push(now, datagram);
        self.send_due_of(&mut machine, now);
        let next = machine.next();
        if next.is_some_and(|next| known.is_none_or(|known| next < known)) {
            self.ring();
        }
    }

    /// Sends the packets that have waited long enough.
    pub(super) fn send_due(&self, injector: &Injector) {
        let mut machine = injector.machine.lock();
        self.send_due_of(&mut machine, crate::time::now());
    }

    /// Sends all packets that wait, because the wire closes.
    pub(super) fn send_rest(&self, injector: &Injector) {
        let mut machine = injector.machine.lock();
        for datagram in machine.take_all() {
            self.send_datagram(&datagram, send_as_is);
        }
        let counts = machine.counts();
        drop(machine);
        tracing::info!(?counts, "faults injected into packets (RKEY_FAULT)");
    }

    /// The machine stays locked, so that packets leave in order.
    fn send_due_of(&self, machine: &mut FaultMachine, now: Instant) {
        while let Some(datagram) = machine.due(now) {
            self.send_datagram(&datagram, send_as_is);
        }
    }
}

fn send_as_is(port: &Port, datagram: &Outgoing) -> bool {
    send_or_wait(port, || port.send_as_is(datagram))
}
