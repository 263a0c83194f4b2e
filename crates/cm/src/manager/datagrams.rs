//! The program's calls for datagram queue pairs: resolving a peer's, and answering such a request.

use super::calls::{DEFAULT_PARTITION, check_queue_pair, ip_header};
use super::refused::{NotAccepted, Refused};
use super::step::Given;
use super::{Error, Manager};
use crate::address::PortSpace;
use crate::connection::ConnectionId;
use crate::connection::state::Input;
use crate::time::Nanos;
use crate::wire::{Mad, Message, PrivateData, RejectReason, SidrRep, SidrReq, SidrStatus};
use core::net::SocketAddr;

/// A datagram queue pair to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// Our address and port.
    pub from: SocketAddr,
    /// The peer's address and port.
    pub to: SocketAddr,
    /// The port space of the peer's port.
    pub space: PortSpace,
    /// Private data for the peer's program.
    pub data: PrivateData<{ SidrReq::DATA }>,
}

/// The answer to a [`DatagramRequest`](super::DatagramRequest): the datagram queue pair to use, sent in a SIDR_REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramAnswer {
    /// The number of our queue pair.
    pub qpn: u32,
    /// The Q_Key for datagrams to it.
    pub qkey: u32,
    /// Private data for the peer's program.
    pub data: PrivateData<{ SidrRep::DATA }>,
}

impl Manager {
    /// Requests a datagram queue pair by sending a SIDR_REQ. The result is an event: `DatagramResponse` or `Unreachable`.
    ///
    /// # Errors
    ///
    /// [`Error::Addresses`], [`Error::Full`].
    pub fn resolve_datagram(&mut self, now: Nanos, to: &Resolve) -> Result<ConnectionId, Error> {
        let it = self.outgoing_connection(to.from, to.to, to.space)?;
        let sidr = SidrReq {
            request: it.local_id,
            pkey: DEFAULT_PARTITION,
            service: it.service,
            data: SidrReq::with_header(&ip_header(to.from, to.to), &to.data),
        };
        let mad = Mad::new(it.tid, Message::SidrReq(sidr));
        let id = self.add(it);
        self.step(now, id, Input::Resolve, Given::Message(mad))?;
        Ok(id)
    }

    /// Answers a request for a datagram queue pair (SIDR_REQ).
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`], [`Error::WrongKind`], [`Error::QueuePair`].
    pub fn accept_datagram(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        with: &DatagramAnswer,
    ) -> Result<(), Error> {
        check_queue_pair(with.qpn)?;
        self.answer_datagram(now, id, Input::Accept, SidrStatus::VALID, with)
    }

    /// Refuses a request for a datagram queue pair (SIDR_REQ).
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`], [`Error::WrongKind`].
    pub fn reject_datagram(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        status: SidrStatus,
        data: PrivateData<{ SidrRep::DATA }>,
    ) -> Result<(), Error> {
        let answer = DatagramAnswer {
            qpn: 0,
            qkey: 0,
            data,
        };
        let it = self.connections.get(&id).ok_or(Error::Unknown)?;
        let why = NotAccepted::Program(RejectReason::CONSUMER);
        let refused = Refused::connection(id, it, why);
        self.answer_datagram(now, id, Input::Reject, status, &answer)?;
        self.refused.push(refused);
        Ok(())
    }

    fn answer_datagram(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        input: Input,
        status: SidrStatus,
        with: &DatagramAnswer,
    ) -> Result<(), Error> {
        let it = self.connections.get(&id).ok_or(Error::Unknown)?;
        if it.transport.is_some() {
            return Err(Error::WrongKind);
        }
        let rep = SidrRep {
            request: it.remote_id.unwrap_or(0),
            status,
            info_len: 0,
            qpn: with.qpn,
            service: it.service,
            qkey: with.qkey,
            info: PrivateData::default(),
            data: with.data,
        };
        let mad = Mad::new(it.tid, Message::SidrRep(rep));
        self.step(now, id, input, Given::Message(mad))
    }
}
