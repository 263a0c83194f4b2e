//! Finds the connection that a peer's message is for. Everything in a message is untrusted.
//!
//! A message reaches a connection only if it comes from the peer's address and names the ids that the two sides have agreed
//! on; an answer must also carry the transaction id. So a third party that cannot see the messages cannot forge one.

use super::step::Given;
use super::{Error, Event, Manager, Transmit};
use crate::address::{is_queue_pair, is_unicast};
use crate::connection::state::Input;
use crate::connection::{ConnectionId, State};
use crate::ids::IdSpace;
use crate::time::Nanos;
use crate::wire::{
    About, Detail, Drep, Dreq, Ece, Mad, Message, Mra, PrivateData, Rej, RejectReason, Rep, Rtu,
    SidrRep, SidrStatus,
};
use core::net::IpAddr;

impl Manager {
    /// Handles a management datagram that arrived at queue pair 1, from the peer's address `from` at our address `to`.
    ///
    /// Any bytes are allowed. A datagram gets at most one answer, which is no longer than the datagram.
    pub fn receive(&mut self, now: Nanos, from: IpAddr, to: IpAddr, bytes: &[u8]) {
        self.receive_from_party(now, (from, 0), to, bytes);
    }

    /// Like [`receive`](Self::receive), for a host that distinguishes peers with the same address: `party` is the peer's
    /// number. Each party has its own limit of undecided requests
    /// ([`Limits::undecided_per_peer`](super::Limits::undecided_per_peer)).
    pub fn receive_from_party(
        &mut self,
        now: Nanos,
        (from, party): (IpAddr, u64),
        to: IpAddr,
        bytes: &[u8],
    ) {
        let (from, to) = (from.to_canonical(), to.to_canonical());
        self.counters.received += 1;
        let mad = Mad::decode(bytes);
        let (Ok(mad), true) = (mad, is_unicast(from) && is_unicast(to)) else {
            self.counters.malformed += 1;
            return;
        };
        let at = Arrival {
            now,
            from,
            party,
            to,
            tid: mad.tid,
            options: mad.modifier,
        };
        match mad.message {
            Message::Req(req) => self.on_req(&at, &req),
            Message::Mra(mra) => self.on_mra(&at, &mra),
            Message::Rej(rej) => self.on_rej(&at, &rej),
            Message::Rep(rep) => self.on_rep(&at, &rep),
            Message::Rtu(rtu) => self.on_rtu(&at, &rtu),
            Message::Dreq(dreq) => self.on_dreq(&at, &dreq),
            Message::Drep(drep) => self.on_drep(&at, &drep),
            Message::SidrReq(sidr) => self.on_sidr_req(&at, &sidr),
            Message::SidrRep(rep) => self.on_sidr_rep(&at, &rep),
        }
    }

    /// Sends an answer that belongs to no connection.
    pub(super) fn answer(&mut self, at: &Arrival, message: Message) {
        if self.outgoing.len() >= self.config.limits.answers {
            self.counters.unanswered += 1;
            return;
        }
        self.outgoing.push_back(Transmit {
            from: at.to,
            to: at.from,
            mad: Mad::new(at.tid, message).encode(),
            of: None,
            is_parting: false,
        });
    }

    pub(super) fn ignore(&mut self) {
        self.counters.ignored += 1;
    }

    /// The connection whose REQ or SIDR_REQ this answer names.
    fn asked(&self, at: &Arrival, id: u32) -> Option<ConnectionId> {
        let connection = self.tables.by_local(id)?;
        let it = self.connections.get(&connection)?;
        (it.peer == at.from && it.tid == at.tid).then_some(connection)
    }

    /// The connection that a message with both ids names.
    fn agreed(&self, at: &Arrival, ours: u32, theirs: u32) -> Option<ConnectionId> {
        let connection = self.tables.by_local(ours)?;
        let it = self.connections.get(&connection)?;
        it.is_named(at.from, theirs).then_some(connection)
    }

    fn on_mra(&mut self, at: &Arrival, mra: &Mra) {
        let input = match mra.about {
            About::Req => Input::MraReq,
            About::Rep => Input::MraRep,
            About::Other => return self.ignore(),
        };
        let found = match mra.about {
            About::Rep => self.agreed(at, mra.remote, mra.local),
            _ => self.asked(at, mra.remote),
        };
        match found.filter(|id| self.tid(*id) == Some(at.tid)) {
            Some(id) => self.step_message(at.now, id, input, Given::Service(mra.service_timeout)),
            None => self.ignore(),
        }
    }

    fn tid(&self, id: ConnectionId) -> Option<u64> {
        self.connections.get(&id).map(|it| it.tid)
    }

    fn on_rej(&mut self, at: &Arrival, rej: &Rej) {
        let by_guid = rej
            .guid()
            .and_then(|guid| self.tables.by_remote(at.from, guid, rej.local));
        let by_id = || self.asked(at, rej.remote);
        let meant = |id: &ConnectionId| {
            self.connections.get(id).is_some_and(|it| {
                // Only a refusal of the REQ may lack the peer's id. After the REP, it answers a duplicate, at a process that does not
                // know the connection.
                let knows = it.remote_id.is_none_or(|id| id == rej.local);
                it.tid == at.tid && knows && it.transport.is_some()
            })
        };
        let Some(connection) = by_guid.or_else(by_id).filter(meant) else {
            return self.ignore();
        };
        let input = match rej.reason {
            RejectReason::STALE => Input::RejStale,
            _ => Input::Rej,
        };
        let event = Event::Rejected {
            connection,
            rej: Box::new(*rej),
            options: at.options,
        };
        self.step_message(at.now, connection, input, Given::Event(event));
    }

    fn on_rep(&mut self, at: &Arrival, rep: &Rep) {
        let Some(id) = self.asked(at, rep.remote) else {
            // The peer waits for an RTU that will never come, so refuse explicitly.
            let reason = RejectReason::COMMUNICATION_ID;
            let rej = Rej::bare(rep.remote, rep.local, About::Rep, reason);
            return self.answer(at, Message::Rej(rej));
        };
        let Some(it) = self.connections.get(&id) else {
            return self.ignore();
        };
        let Some(transport) = it
            .transport
            .filter(|_| it.remote_id.is_none_or(|remote| remote == rep.local))
        else {
            return self.ignore();
        };
        if !matches!(it.state, State::ReqSent | State::ReqDelayed) {
            return self.step_message(at.now, id, Input::Rep, Given::Nothing);
        }
        let qpn = rep.queue_pair(transport);
        let reason = match self.usable(at, rep, qpn) {
            Ok(()) => {
                self.learn(id, rep, qpn);
                let event = Event::ConnectResponse {
                    connection: id,
                    rep: Box::new(*rep),
                    ece: at.ece(rep.ece_vendor),
                };
                return self.step_message(at.now, id, Input::Rep, Given::Event(event));
            }
            Err(reason) => reason,
        };
        if let Some(it) = self.connections.get_mut(&id) {
            it.remote_id = Some(rep.local);
        }
        let given = Given::reason(About::Rep, reason);
        self.step_message(at.now, id, Input::BadRep, given);
    }

    /// Checks that a connection that waits for a REP can use the peer's queue pair. The error is the reason for the REJ.
    fn usable(&self, at: &Arrival, rep: &Rep, qpn: u32) -> Result<(), RejectReason> {
        if !is_queue_pair(qpn) {
            return Err(RejectReason::UNSUPPORTED);
        }
        match self.is_taken(at, rep.guid, rep.local, qpn) {
            true => Err(RejectReason::STALE),
            false => Ok(()),
        }
    }

    fn learn(&mut self, id: ConnectionId, rep: &Rep, qpn: u32) {
        if let Some(it) = self.connections.get_mut(&id) {
            it.remote_id = Some(rep.local);
            it.guid = Some(rep.guid);
            it.remote_qpn = Some(qpn);
            self.tables.add(id, it);
        }
    }

    fn on_rtu(&mut self, at: &Arrival, rtu: &Rtu) {
        let found = self.agreed(at, rtu.remote, rtu.local);
        match found.filter(|id| self.tid(*id) == Some(at.tid)) {
            Some(id) => self.step_message(at.now, id, Input::Rtu, Given::Nothing),
            None => self.ignore(),
        }
    }

    fn on_dreq(&mut self, at: &Arrival, dreq: &Dreq) {
        let Some(id) = self.agreed(at, dreq.remote, dreq.local) else {
            // The DREQ overtook the REP, which may still arrive. A DREP would make the peer forget the connection before
            // that.
            let asked = self.tables.by_local(dreq.remote);
            let asked = asked.and_then(|id| self.connections.get(&id));
            if asked.is_some_and(|it| it.peer == at.from && it.remote_id.is_none()) {
                return self.ignore();
            }
            // The connection ended long ago, or never existed.
            let drep = Drep {
                local: dreq.remote,
                remote: dreq.local,
                data: PrivateData::default(),
            };
            return self.answer(at, Message::Drep(drep));
        };
        match self.connections.get_mut(&id) {
            Some(it) if it.qpn == dreq.remote_qpn => it.peer_dreq_tid = at.tid,
            _ => return self.ignore(),
        }
        self.step_message(at.now, id, Input::Dreq, Given::Nothing);
    }

    fn on_drep(&mut self, at: &Arrival, drep: &Drep) {
        let found = self.agreed(at, drep.remote, drep.local);
        let meant = |id: &ConnectionId| {
            let it = self.connections.get(id);
            it.is_some_and(|it| it.dreq_tid == at.tid)
        };
        match found.filter(meant) {
            Some(id) => self.step_message(at.now, id, Input::Drep, Given::Nothing),
            None => self.ignore(),
        }
    }

    /// Tells the manager that the process at the other end of a connection has ended. The effect is the same as that of a
    /// message from the peer: an established connection ends, and one that is being established is refused. A request for a
    /// datagram queue pair ends with [`Event::Unreachable`].
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn peer_ended(&mut self, now: Nanos, id: ConnectionId) -> Result<(), Error> {
        let it = self.connections.get(&id).ok_or(Error::Unknown)?;
        let (input, given) = match it.state {
            State::Established => (Input::Dreq, Given::Nothing),
            State::DreqSent => (Input::Drep, Given::Nothing),
            State::SidrSent => (Input::Expire, Given::Nothing),
            State::ReqSent
            | State::ReqDelayed
            | State::RepReceived
            | State::ReqReceived
            | State::RepSent
            | State::RepDelayed => {
                let about = About::Other;
                let (theirs, ours) = (it.remote_id.unwrap_or(0), it.local_id);
                let rej = Rej::bare(theirs, ours, about, RejectReason::CONSUMER)
                    .with_detail(Detail::PeerEnded);
                let event = Event::Rejected {
                    connection: id,
                    rej: Box::new(rej),
                    options: 0,
                };
                (Input::Rej, Given::Event(event))
            }
            _ => return Ok(()),
        };
        self.step(now, id, input, given)
    }

    /// Tells the manager that no device listens at the peer's address, so a message that waits for an answer gets none: a connection
    /// that our program ends has ended, and a request is refused like one to a port without a listener, with the detail
    /// [`Detail::NoDevice`]. Has no effect on any other connection: the peer itself has not said anything.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn device_absent(&mut self, now: Nanos, id: ConnectionId) -> Result<(), Error> {
        let it = self.connections.get(&id).ok_or(Error::Unknown)?;
        let (input, event) = match it.state {
            State::DreqSent => return self.step(now, id, Input::Drep, Given::Nothing),
            State::ReqSent => {
                let rej = Rej::bare(0, it.local_id, About::Req, RejectReason::SERVICE_ID);
                let event = Event::Rejected {
                    connection: id,
                    rej: Box::new(rej.with_detail(Detail::NoDevice)),
                    options: 0,
                };
                (Input::Rej, event)
            }
            State::SidrSent => {
                let rep =
                    SidrRep::without_queue_pair(it.local_id, it.service, SidrStatus::UNSUPPORTED);
                let event = Event::DatagramResponse {
                    connection: id,
                    rep: Box::new(rep.with_detail(Detail::NoDevice)),
                };
                (Input::SidrRep, event)
            }
            _ => return Ok(()),
        };
        self.step(now, id, input, Given::Event(event))
    }

    /// The connections whose peers have communication ids of this space: if several managers share an address, the
    /// connections to one of them.
    #[must_use]
    pub fn connections_to(&self, peers: IdSpace) -> Vec<ConnectionId> {
        self.tables.with_remote(peers.range()).collect()
    }

    /// Whether there are [connections to](Self::connections_to) a manager.
    #[must_use]
    pub fn has_connections_to(&self, peers: IdSpace) -> bool {
        self.tables.with_remote(peers.range()).next().is_some()
    }

    fn on_sidr_rep(&mut self, at: &Arrival, rep: &SidrRep) {
        let found = self.asked(at, rep.request);
        let meant = |id: &ConnectionId| {
            let it = self.connections.get(id);
            it.is_some_and(|it| it.service == rep.service)
        };
        let Some(connection) = found.filter(meant) else {
            return self.ignore();
        };
        let event = Event::DatagramResponse {
            connection,
            rep: Box::new(*rep),
        };
        self.step_message(at.now, connection, Input::SidrRep, Given::Event(event));
    }
}

/// The context of a message.
pub(super) struct Arrival {
    pub(super) now: Nanos,
    pub(super) from: IpAddr,
    /// Which of the peers that share the address sent the message.
    pub(super) party: u64,
    pub(super) to: IpAddr,
    pub(super) tid: u64,
    /// The attribute modifier: ECE options.
    pub(super) options: u32,
}

impl Arrival {
    /// The ECE options of a message with this vendor id.
    pub(super) fn ece(&self, vendor: u32) -> Ece {
        Ece {
            vendor,
            options: self.options,
        }
    }
}
