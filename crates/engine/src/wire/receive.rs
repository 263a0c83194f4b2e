//! Packets that arrive from other hosts.

use super::machine::{Machine, Wire};
use super::send::{await_turn_of, with_machine};
use super::settings::of_datagrams;
use super::{WireDrops, WirePeer, outcome};
use crate::context::Context;
use crate::qp::pair::Qp;
use crate::responder::establish;
use crate::{Engine, Origin, Process, QpId, QpState, QpType};
use rkey_base::memory::Memory;
use rkey_link::Link;
use rkey_roce::packet::{Body, Packet, Psn};
use rkey_roce::transport::Counters;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Handles or drops a packet that arrived between these addresses. The owner has verified its checksum and its partition key.
    /// `is_marked` says whether its IP header reports congestion on the way (ECN). Call [`Self::wire_transmit`] to send the responses.
    pub fn wire_receive(
        &mut self,
        now_ns: u64,
        from: WirePeer,
        packet: &Packet<'_>,
        is_marked: bool,
    ) {
        self.x.now = now_ns;
        let index = self.numbers.get(packet.headers.destination);
        let Some(qp) = index.and_then(|index| self.qps.at_mut(index)) else {
            self.x.wire.drops.unknown += 1;
            return;
        };
        let is_request = matches!(packet.headers.body, Body::Request(..));
        if let Err(why) = accept(qp, from) {
            *why(&mut self.x.wire.drops) += 1;
            return;
        }
        let origin = origin_of(&from);
        if let Some(wire) = qp.wire.as_deref_mut() {
            let since = *wire.since.get_or_insert(now_ns);
            let paused = self.x.guesses.paused_until(&origin, since, now_ns);
            // If an acknowledgement is attached to the request, the peer repeats it when this side asks again.
            if is_request && paused.is_some() {
                self.x.wire.drops.paused += 1;
                return;
            }
        }
        if is_request && !qp.resp.established {
            establish(&mut self.x, qp);
        }
        self.x.serving = origin;
        with_machine(&mut self.x, qp, |machine, host| match machine {
            Machine::Connection(connection) => {
                if is_marked {
                    connection.receive_mark(now_ns, packet);
                }
                connection.receive(now_ns, host, packet);
            }
            Machine::Datagrams(datagrams) => datagrams.receive(host, packet),
        });
        outcome::drain_events_from(&mut self.x, qp, &from);
        while qp.wire.as_deref().is_some_and(Wire::may_receive_kept)
            && self.x.overrun_cqs.is_empty()
        {
            execute_kept(&mut self.x, qp, &from);
        }
        if let Some(wire) = qp.wire.as_deref_mut().filter(|it| it.may_transmit()) {
            await_turn_of(&mut self.x.wire, qp.id.index, wire);
        }
        self.fail_users_of_overrun_cqs();
    }

    /// What an acknowledgement of everything that a connected queue pair has executed for its peer would contain: the number of the
    /// peer's queue pair, and the PSN. `None` if its peer is not on another host, or it has refused a request.
    #[must_use]
    pub fn wire_executed(&self, qp: QpId) -> Option<(u32, Psn)> {
        let qp = self.qps.get(qp)?;
        let Machine::Connection(connection) = &qp.wire.as_deref()?.machine else {
            return None;
        };
        Some((qp.peer_qpn(), connection.executed()?))
    }

    /// Makes a connected queue pair acknowledge once more what it has executed ([`Connection::repeat_acknowledgement`]). Returns
    /// whether [`Self::wire_transmit`] may have a packet to send for it.
    ///
    /// [`Connection::repeat_acknowledgement`]: rkey_roce::transport::Connection::repeat_acknowledgement
    pub fn wire_repeat_acknowledgement(&mut self, qp: QpId) -> bool {
        let Some(qp) = self.qps.get_mut(qp) else {
            return false;
        };
        let index = qp.id.index;
        let Some(wire) = qp.wire.as_deref_mut() else {
            return false;
        };
        let Machine::Connection(connection) = &mut wire.machine else {
            return false;
        };
        let repeats = connection.repeat_acknowledgement();
        if repeats {
            await_turn_of(&mut self.x.wire, index, wire);
        }
        repeats
    }

    /// How many packets [`Self::wire_receive`] has dropped, by reason.
    #[must_use]
    pub fn wire_drops(&self) -> WireDrops {
        self.x.wire.drops
    }

    /// The network counters of a queue pair; `None` if it has not sent or received a packet.
    #[must_use]
    pub fn wire_counters(&self, qp: QpId) -> Option<Counters> {
        let wire = self.qps.get(qp)?.wire.as_deref()?;
        Some(wire.counters())
    }
}

/// Executes a packet that has arrived before earlier ones, and whose turn has come. Each of them may take a receive.
#[cold]
fn execute_kept<M: Memory>(x: &mut Context<M>, qp: &mut Qp, from: &WirePeer) {
    let now = x.now;
    with_machine(x, qp, |machine, host| match machine {
        Machine::Connection(connection) => connection.receive_kept(now, host),
        Machine::Datagrams(_) => false,
    });
    outcome::drain_events_from(x, qp, from);
}

type DropReason = fn(&mut WireDrops) -> &mut u64;

/// Checks that a queue pair accepts packets between these addresses. A queue pair in the error state accepts them, because it
/// may have to retransmit a refusal.
fn accept(qp: &mut Qp, from: WirePeer) -> Result<(), DropReason> {
    if qp.config.qp_type == QpType::Ud {
        if !qp.state.responds() {
            return Err(|drops| &mut drops.not_ready);
        }
        if qp.wire.is_none() {
            qp.wire = Some(of_datagrams(qp));
        }
        return Ok(());
    }
    match qp.wire_peer {
        None => Err(|drops| &mut drops.unknown),
        Some(peer) if peer != from => Err(|drops| &mut drops.wrong_address),
        Some(_) if !qp.state.responds() && qp.state != QpState::Error => {
            Err(|drops| &mut drops.not_ready)
        }
        Some(_) => Ok(()),
    }
}

/// The origin of a request from another host. The whole host counts as one process, and never learns the reason for a denial,
/// because packets have no room for it.
pub(crate) fn origin_of(from: &WirePeer) -> Origin {
    Origin {
        process: Process {
            user: Process::ANOTHER_HOST,
            host: Some(from.remote),
            ..Process::default()
        },
        here: false,
        explain: false,
    }
}
