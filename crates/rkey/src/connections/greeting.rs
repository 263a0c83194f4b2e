//! How a connection is made: the resources of each side, and the greeting that they exchange first.
//!
//! A connection is two queue pairs, so that a denied access breaks the one for data and leaves the one for messages.
//! One request of the device connects both queue pairs; the greetings are the private data of the request and of its
//! reply.

use crate::connections::connection::{Connection, PeerInfo};
use crate::connections::message::{Mailbox, SLOTS};
use crate::device::domain::Domain;
use crate::device::handle::{Device, resolve};
use crate::error::{Error, Result};
use crate::queues::completion::CompletionQueue;
use crate::queues::flight::Flight;
use crate::queues::one_sided::OneSided;
use crate::queues::queue_pair::{INLINE, QueuePair};
use crate::queues::results::ResultPlaces;
use rkey_core::Access;
use rkey_device::{Accepting, Incoming};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// The version of the greeting.
const PROTOCOL: u16 = 3;

/// The contents of a greeting.
#[derive(Serialize, Deserialize)]
struct Hello {
    protocol: u16,
    /// The maximum length of messages to this side.
    max_message: u32,
}

/// Everything in a connection except the peer.
struct Parts {
    data: QueuePair,
    sends: Flight,
    receives: Flight,
    results: ResultPlaces,
    control: QueuePair,
    mailbox: Mailbox,
    hello: Vec<u8>,
}

/// Connects to a peer that listens.
fn connect(domain: &Domain, address: SocketAddr) -> Result<Connection> {
    let parts = Parts::new(domain)?;
    let qps = [parts.data.raw(), parts.control.raw()];
    let (device, timeout) = (domain.device().raw(), domain.device().timeout());
    let peer = device.connect(address, &qps, &parts.hello, timeout)?;
    parts.join(domain, &peer)
}

/// A connection that we have accepted and the peer has not confirmed yet.
pub(crate) struct Answered {
    accepting: Accepting,
    parts: Parts,
}

/// Accepts a peer that requested a connection. Does not wait for the peer.
pub(crate) fn answer(domain: &Domain, incoming: Incoming) -> Result<Answered> {
    if let Err(error) = peer_limit(&incoming.peer().private_data) {
        incoming.reject("this listener accepts connections only from rkey's Rust API");
        return Err(error);
    }
    let parts = Parts::new(domain)?;
    let qps = [parts.data.raw(), parts.control.raw()];
    let accepting = incoming.answer(&qps, &parts.hello)?;
    Ok(Answered { accepting, parts })
}

impl Answered {
    /// Waits up to `time` for the peer.
    pub(crate) fn wait(&self, time: Duration) -> Result<()> {
        Ok(self.accepting.wait(time)?)
    }

    /// Whether the peer has confirmed. An error means that the connection is lost.
    pub(crate) fn is_confirmed(&self) -> Result<bool> {
        Ok(self.accepting.is_ready()?)
    }

    /// The connection, once the peer has confirmed.
    pub(crate) fn join(self, domain: &Domain) -> Result<Connection> {
        self.parts.join(domain, self.accepting.peer())
    }
}

impl Parts {
    /// Creates the queue pairs and all memory of a connection, and posts the receives for messages, so that nothing can
    /// fail for lack of memory once there is a peer.
    fn new(domain: &Domain) -> Result<Self> {
        let settings = &domain.device().inner.settings;
        let queue = |depth| CompletionQueue::create(domain.device(), depth);
        let (sends, receives) = (queue(settings.depth)?, queue(settings.depth)?);
        let data = domain
            .queue_pair(&sends)
            .receive_queue(&receives)
            .depth(settings.depth, settings.depth)
            .max_inline(INLINE)
            .build()?;
        let (control_sends, control_receives) = (queue(SLOTS)?, queue(SLOTS)?);
        let control = domain
            .queue_pair(&control_sends)
            .receive_queue(&control_receives)
            .depth(SLOTS, SLOTS)
            .grant(Access::empty())
            .build()?;
        let max_message = u32::try_from(settings.max_message).unwrap_or(u32::MAX);
        let hello = Hello {
            protocol: PROTOCOL,
            max_message,
        };
        Ok(Self {
            data,
            sends: Flight::new(sends, settings.depth),
            receives: Flight::new(receives, settings.depth),
            results: ResultPlaces::new(domain, settings.depth)?,
            mailbox: Mailbox::prepare(domain, control.clone(), control_sends, control_receives)?,
            control,
            hello: postcard::to_stdvec(&hello).map_err(|e| Error::Protocol(e.to_string()))?,
        })
    }

    /// The connection, now that the queue pairs are connected.
    fn join(self, domain: &Domain, peer: &rkey_device::Peer) -> Result<Connection> {
        let mut mailbox = self.mailbox;
        mailbox.set_peer_limit(peer_limit(&peer.private_data)?);
        let info = PeerInfo {
            host: peer.host,
            pid: peer.pid,
            uid: peer.uid,
        };
        Ok(Connection {
            mailbox,
            operations: OneSided {
                data: self.data,
                domain: domain.clone(),
                sends: self.sends,
                results: self.results,
            },
            receives: self.receives,
            peer: info,
        })
    }
}

/// Reads a peer's greeting; returns the maximum length of messages to it.
fn peer_limit(greeting: &[u8]) -> Result<usize> {
    let hello: Hello = postcard::from_bytes(greeting).map_err(|_| {
        Error::Protocol("its greeting is not that of a Connection; is it another program?".into())
    })?;
    if hello.protocol != PROTOCOL {
        return Err(Error::Protocol(format!(
            "its version is {}, and ours is {PROTOCOL}",
            hello.protocol
        )));
    }
    Ok(hello.max_message as usize)
}

impl Device {
    /// Connects to a listening peer on this host or, with a wire (`RKEY_WIRE`), on another one. Waits for it up to the device's
    /// timeout.
    ///
    /// # Errors
    /// No peer listens there, its host cannot be reached, the peer refused, or it uses another protocol.
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        self.domain()?.connect(address)
    }
}

impl Domain {
    /// Like [`Device::connect`], for a connection of this domain.
    ///
    /// # Errors
    /// Same as [`Device::connect`].
    pub fn connect(&self, address: impl ToSocketAddrs) -> Result<Connection> {
        connect(self, resolve(address)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_greeting_is_an_error() {
        assert!(matches!(peer_limit(b""), Err(Error::Protocol(_))));
        assert!(matches!(peer_limit(&[0xff; 40]), Err(Error::Protocol(_))));
        let hello = |protocol| {
            postcard::to_stdvec(&Hello {
                protocol,
                max_message: 77,
            })
            .unwrap()
        };
        assert!(matches!(
            peer_limit(&hello(PROTOCOL + 1)),
            Err(Error::Protocol(_))
        ));
        assert_eq!(peer_limit(&hello(PROTOCOL)).unwrap(), 77);
    }
}
