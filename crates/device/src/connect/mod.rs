//! Connecting queue pairs by address: listen, accept, connect.
//!
//! The calls here run in the program's own threads, over an abstract Unix socket named after the
//! address ([`crate::peers::names`]). Both sides tell their device, queue pair numbers, first message
//! numbers and up to [`PRIVATE_DATA_MAX`] bytes of the program's own, in three packets:
//! `Request` (connector), `Reply` (acceptor, whose queue pairs are ready by then) and `Ready`
//! (connector, whose queue pairs are ready by then). Neither side returns before both are ready,
//! so the first message can never meet a queue pair that is not.

mod listen;
mod packet;
mod reserve;
mod socket;

pub use listen::{Accepting, Incoming, Listener};
pub(crate) use packet::decodes;
pub use reserve::Reservation;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rkey_link::NodeId;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::DeviceError;
use crate::objects::qp::Qp;
use crate::peers::names;
use packet::{Packet, Side, printable, receive, send};
use socket::{Reached, dial};

/// The most private data that one side can give along, in bytes.
pub const PRIVATE_DATA_MAX: usize = 4096;
/// The most queue pairs that one connection can pair.
pub const QPS_MAX: usize = 64;
/// How long a client may take to say what it wants.
const HALF_OPEN_TIME: Duration = Duration::from_secs(1);

/// One queue pair as its peer has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAddress {
    /// Its number.
    pub qpn: u32,
    /// The number of the first message that it will send.
    pub msn: u32,
}

/// The other side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its device.
    pub node: NodeId,
    /// Its user id, as the kernel tells it.
    pub uid: u32,
    /// Its process id, as the kernel tells it (0: in a process namespace that we do not see).
    pub pid: u32,
    /// Its queue pairs, in the order of ours.
    pub qps: Vec<QpAddress>,
    /// What its program gave along.
    pub private_data: Vec<u8>,
}

impl Device {
    /// Listens at an address of this host (port 0: any free port, see
    /// [`Listener::local_address`]).
    ///
    /// # Errors
    /// [`DeviceError::NotThisHost`], [`DeviceError::AddressInUse`].
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, DeviceError> {
        self.reserve(address)?.listen()
    }

    /// Connects queue pairs of ours with as many of the program that listens at `address`,
    /// waiting up to `timeout` for it to appear and to accept. The queue pairs are in state RTS
    /// afterwards; those in state RESET go there with all remote rights, those in INIT keep theirs.
    ///
    /// # Errors
    /// [`DeviceError::NotThisHost`], [`DeviceError::NobodyListens`], [`DeviceError::Refused`],
    /// [`DeviceError::OtherUser`], [`DeviceError::TimedOut`], and what changing the queue pairs
    /// may answer. The queue pairs may then be in any state: destroy them.
    pub fn connect(
        &self,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Peer, DeviceError> {
        let deadline = Deadline::after("the connection", timeout);
        self.connect_by(address, qps, private_data, deadline, None, |_| Ok(()))
    }

    /// As [`Device::connect`], with a time for finding somebody who listens and another one, from then on, for the
    /// answer: who is there and busy, or short of processors, may be worth waiting for longer. `admit` looks at who
    /// answers, before anything of that peer's can reach the queue pairs, and may have none of it.
    ///
    /// # Errors
    /// As there, and what `admit` says.
    pub fn connect_patiently(
        &self,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
        find: Duration,
        answer: Duration,
        admit: impl FnOnce(&Peer) -> Result<(), DeviceError>,
    ) -> Result<Peer, DeviceError> {
        let deadline = Deadline::after("the connection", find);
        self.connect_by(address, qps, private_data, deadline, Some(answer), admit)
    }

    fn connect_by(
        &self,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
        mut deadline: Deadline,
        answer: Option<Duration>,
        admit: impl FnOnce(&Peer) -> Result<(), DeviceError>,
    ) -> Result<Peer, DeviceError> {
        self.check()?;
        if !names::is_of_this_host(address.ip()) {
            return Err(DeviceError::NotThisHost { address });
        }
        let request = Packet::Request(self.side(qps, private_data)?);
        let Reached {
            socket, uid, pid, ..
        } = loop {
            let there = dial(self.scope(), address, &deadline)?;
            let sent = send(&there.socket, &request);
            // Who says nothing for a while is dropped there, and this thread may not have been running.
            if there.since.elapsed() < HALF_OPEN_TIME / 2 {
                sent?;
                break there;
            }
        };
        if let Some(answer) = answer {
            deadline = Deadline::after("the answer of the peer that listens there", answer);
        }
        let side = match receive(&socket, &deadline)? {
            Packet::Accepted(side) => side,
            Packet::Rejected(reason) => {
                return Err(DeviceError::Refused {
                    reason: printable(&reason),
                });
            }
            _ => return Err(DeviceError::Handshake("the peer answered out of turn")),
        };
        if side.qps.len() != qps.len() {
            return Err(DeviceError::Handshake(
                "the peer paired another number of queue pairs",
            ));
        }
        self.shared().check_identity(side.node, uid, pid)?;
        let peer = Peer {
            node: side.node,
            uid,
            pid: pid.unwrap_or(0),
            qps: side.qps,
            private_data: side.private_data,
        };
        admit(&peer)?;
        for (ours, theirs) in qps.iter().zip(&peer.qps) {
            ours.connect(peer.node, *theirs)?;
        }
        send(&socket, &Packet::Ready)?;
        Ok(peer)
    }

    fn side(&self, qps: &[&Qp], private_data: &[u8]) -> Result<Side, DeviceError> {
        check_len("private data", private_data.len(), PRIVATE_DATA_MAX)?;
        check_len("the list of queue pairs", qps.len(), QPS_MAX)?;
        Ok(Side {
            node: self.node(),
            qps: qps.iter().map(|qp| qp.address()).collect(),
            private_data: private_data.to_vec(),
        })
    }
}

/// A point in time, and what is to have happened by then.
#[derive(Debug)]
struct Deadline {
    what: &'static str,
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    fn after(what: &'static str, timeout: Duration) -> Self {
        Self {
            what,
            started: Instant::now(),
            timeout,
        }
    }

    fn remaining(&self) -> Result<Duration, DeviceError> {
        match self.timeout.checked_sub(self.started.elapsed()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(DeviceError::TimedOut {
                what: self.what,
                after: self.timeout,
            }),
        }
    }
}

fn check_len(what: &'static str, len: usize, max: usize) -> Result<(), DeviceError> {
    if len > max {
        return Err(DeviceError::TooLong { what, len, max });
    }
    Ok(())
}
