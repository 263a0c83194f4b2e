//! The engine's packets for other hosts: taken under the engine's lock, sent without it.
//!
//! A thread that runs the engine takes its packets before it releases the lock, so that none is lost if another thread then
//! destroys a queue pair. Only one thread at a time sends, so packets leave in order.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rkey_base::memory::Memory;
use rkey_engine::{Engine, WirePeer};
use rkey_link::Link;
use rkey_roce::icrc;
use rkey_roce::packet::{Headers, MAX_PAYLOAD};
use rkey_roce::transport::PacketBuffer;

use crate::wire::Wire;
use crate::wire::outgoing::Outgoing;

/// Sends packets.
pub(crate) struct Transmitter {
    wire: Arc<Wire>,
    taken: Mutex<Taken>,
    /// Held while packets are sent.
    sending: Mutex<Outgoing>,
}

struct Taken {
    packets: Outgoing,
    buffer: Box<PacketBuffer>,
}

impl Transmitter {
    pub(crate) fn new(wire: Arc<Wire>) -> Self {
        let taken = Taken {
            packets: Outgoing::default(),
            buffer: Box::new([0; Headers::MAX + MAX_PAYLOAD + icrc::LEN]),
        };
        Self {
            wire,
            taken: Mutex::new(taken),
            sending: Mutex::default(),
        }
    }

    /// Takes the engine's packets. The caller then unlocks the engine and calls [`Transmitter::send`].
    pub(super) fn take<L: Link, M: Memory>(&self, engine: &mut Engine<L, M>, now: u64) {
        let mut taken = self.taken.lock();
        let Taken { packets, buffer } = &mut *taken;
        while !packets.is_full()
            && let Some((WirePeer { local, remote }, length)) = engine.wire_transmit(now, buffer)
        {
            packets.push(local, remote, &buffer[..length]);
        }
    }

    /// Sends the packets that have been taken, unless another thread is sending. `more` takes those that the engine still has.
    pub(super) fn send(&self, more: impl Fn()) {
        self.send_when(|| self.sending.try_lock(), more);
    }

    /// Returns once all packets that have been taken are sent.
    pub(super) fn flush(&self) {
        self.send_when(|| Some(self.sending.lock()), || ());
    }

    fn send_when<'a>(
        &'a self,
        lock: impl Fn() -> Option<MutexGuard<'a, Outgoing>>,
        more: impl Fn(),
    ) {
        while let Some(mut sending) = lock() {
            loop {
                std::mem::swap(&mut *sending, &mut self.taken.lock().packets);
                if sending.is_empty() {
                    break;
                }
                self.wire.send(&mut sending);
                more();
            }
            drop(sending);
            // A thread that failed to lock `sending` relies on this one.
            if self.taken.lock().packets.is_empty() {
                return;
            }
        }
    }
}
