//! The route of a connection: shared memory on this host, or the wire to another host.

use crate::device::handle::Device;
use crate::error::{Error, Result};
use rkey_cm::manager::ConnectRequest;
use rkey_cm::wire::Mtu;
use rkey_device::names::is_of_this_host;
use rkey_engine::WirePeer;
use std::net::{IpAddr, SocketAddr};

/// The route of a connection.
pub(super) struct Route {
    /// Our address.
    pub(super) local: IpAddr,
    /// Both addresses, if the peer is on another host.
    pub(super) wire: Option<WirePeer>,
    /// The path MTU.
    pub(super) mtu: Mtu,
}

impl Route {
    /// The route to an address at which a program listens.
    pub(super) fn to(device: &Device, address: SocketAddr) -> Result<Self> {
        let remote = address.ip();
        Ok(match device.raw().route(address, None)? {
            None => Self {
                local: remote,
                wire: None,
                mtu: Mtu::B4096,
            },
            Some(path) => Self {
                local: path.local,
                wire: Some(WirePeer {
                    local: path.local,
                    remote,
                }),
                mtu: path.message_mtu(),
            },
        })
    }

    /// The route on which a request arrived.
    ///
    /// # Errors
    /// The packets that the peer requests do not fit the interface.
    pub(super) fn of(device: &Device, request: &ConnectRequest) -> Result<Self> {
        let (local, remote) = (request.to.ip(), request.from.ip());
        // The connection manager has checked the MTU, so the default does not apply.
        let mtu = request.req.path_mtu().unwrap_or(Mtu::B1024);
        if is_of_this_host(remote) {
            return Ok(Self {
                local,
                wire: None,
                mtu,
            });
        }
        let most = device.raw().wire().and_then(|wire| wire.mtu(local));
        match most.map(|most| most.bytes() as u32) {
            Some(most) if mtu.bytes() > most => Err(Error::Object(format!(
                "{remote} requests a path MTU of {} bytes, but the interface of {local} allows {most}",
                mtu.bytes()
            ))),
            _ => Ok(Self {
                local,
                wire: Some(WirePeer { local, remote }),
                mtu,
            }),
        }
    }
}
