//! Connecting without blocking, for front ends that drive many connections from one thread.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::packet::{ConnectMessage, PEER_CLOSED, PacketRead, PathTerms};
use super::socket::{Dialled, Reached, dial_once, not_listening};
use super::stream::{Dialling, Progress};
use super::{Peer, REDIALS};
use crate::device::Device;
use crate::error::DeviceError;
use crate::objects::qp::Qp;
use crate::wire::WirePath;

/// A connection request of this side that the peer has not answered yet. Dropping it withdraws the request.
#[derive(Debug)]
pub struct Connecting {
    device: Device,
    address: SocketAddr,
    /// The route to the address, if it belongs to another host.
    path: Option<WirePath>,
    qps: Vec<Qp>,
    request: ConnectMessage,
    /// The TCP connection to another host, until its answer has arrived.
    dialling: Option<Dialling>,
    /// The listener, once it has been reached and sent the request.
    there: Option<Reached>,
    /// How many times the listener has dropped us before reading the request.
    dropped: u32,
    since: Instant,
}

impl Device {
    /// Begins a connection as [`Device::connect`] does, without waiting. [`Connecting::try_finish`] makes the first attempt to reach
    /// the listener.
    ///
    /// # Errors
    /// [`DeviceError::NoRoute`], [`DeviceError::TooLong`].
    pub fn begin_connect(
        &self,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
    ) -> Result<Connecting, DeviceError> {
        self.begin_connect_from(None, address, qps, private_data)
    }

    /// Like [`Device::begin_connect`]. Another host sees the connection come from `local`, an address of the wire.
    ///
    /// # Errors
    /// Same as [`Device::begin_connect`].
    pub fn begin_connect_from(
        &self,
        local: Option<IpAddr>,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
    ) -> Result<Connecting, DeviceError> {
        self.check()?;
        let path = self.route(address, local)?;
        let terms = PathTerms::offered(path.map(|path| path.mtu));
        Ok(Connecting {
            device: self.clone(),
            address,
            path,
            qps: qps.iter().map(|&qp| qp.clone()).collect(),
            request: ConnectMessage::Request(self.side(qps, private_data, terms)?),
            dialling: None,
            there: None,
            dropped: 0,
            since: Instant::now(),
        })
    }
}

impl Connecting {
    /// A descriptor that is readable when the peer has answered. `None` if the listener has not been reached yet: call
    /// [`Connecting::try_finish`] again after a pause.
    #[must_use]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.there.as_ref().map(|there| there.channel.as_fd())
    }

    /// Makes progress without waiting. Returns the peer once it has accepted; the queue pairs are then in state RTS.
    ///
    /// # Errors
    /// [`DeviceError::NotListening`]: this attempt found no listener, and the caller may retry later. All other errors are final,
    /// like those of [`Device::connect`].
    pub fn try_finish(&mut self) -> Result<Option<Peer>, DeviceError> {
        self.device.check()?;
        let there = match self.there.take() {
            Some(there) => there,
            None => match self.dial()? {
                Dialled::Reached(there) => match there.channel.send(&self.request) {
                    Ok(()) => there,
                    Err(DeviceError::Handshake(_)) => return self.dropped(),
                    Err(error) => return Err(error),
                },
                Dialled::Busy => return Ok(None),
                Dialled::NoListener if self.dropped > 0 => return Err(PEER_CLOSED),
                Dialled::NoListener => {
                    let waited = self.since.elapsed();
                    return Err(not_listening(self.address, self.path, waited));
                }
            },
        };
        match there.channel.read()? {
            PacketRead::Nothing => {
                self.there = Some(there);
                Ok(None)
            }
            PacketRead::Reset => self.dropped(),
            PacketRead::Closed => Err(PEER_CLOSED),
            PacketRead::Packet(packet) => {
                let qps: Vec<&Qp> = self.qps.iter().collect();
                self.device
                    .finish(&qps, &there, packet, |_| Ok(()))
                    .map(Some)
            }
        }
    }

    /// Tries to reach the listener. Never blocks.
    fn dial(&mut self) -> Result<Dialled, DeviceError> {
        let Some(path) = self.path else {
            return dial_once(self.device.scope(), self.address);
        };
        let dialling = match self.dialling.take() {
            Some(dialling) => dialling,
            None => match Dialling::begin(path, self.address)? {
                Some(dialling) => dialling,
                None => return Ok(Dialled::NoListener),
            },
        };
        Ok(
            match dialling.outcome(Some(Instant::now()), self.device.wire_key())? {
                Progress::Connected(stream) => Dialled::Reached(Reached::on_host(stream)),
                Progress::Refused => Dialled::NoListener,
                Progress::Pending(dialling) => {
                    self.dialling = Some(dialling);
                    Dialled::Busy
                }
            },
        )
    }

    /// Handles a listener that has dropped us before reading the request; too many times are an error.
    fn dropped(&mut self) -> Result<Option<Peer>, DeviceError> {
        self.dropped += 1;
        if self.dropped > REDIALS {
            return Err(DeviceError::Handshake(
                "the listener keeps closing connections before it reads the requests",
            ));
        }
        Ok(None)
    }
}
