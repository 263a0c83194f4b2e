//! Where clients of a listener arrive: its Unix socket, or its TCP sockets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rkey_engine::WirePeer;
use rkey_link::peer::peer_credentials;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::channel::Channel;
use super::stream::{self, Path, Stream};
use crate::cm::fork::KeptFromChild;
use crate::error::DeviceError;
use crate::peers::half_open::HalfOpen;
use crate::peers::link_limits::Party;
use crate::wire::Wire;

/// The maximum number of silent clients to drop in one round to make room for others.
const EVICTIONS_MAX: usize = 16;

/// Clients that share one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// On this host.
    Local(Party),
    /// Another host; for IPv6, its network of 64 bits, because a host can have all addresses of it.
    Host(IpAddr),
}

impl Source {
    fn of_host(ip: IpAddr) -> Self {
        Self::Host(match ip {
            IpAddr::V4(_) => ip,
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        })
    }
}

/// Clients that have connected and not sent their request yet.
pub(super) type Clients = HalfOpen<Channel, Source>;

/// One way into a listener. Clients that come by another way cannot use up its room.
#[derive(Debug)]
pub(super) struct Entrance {
    sockets: Vec<Arc<OwnedFd>>,
    pub(super) clients: Mutex<Clients>,
}

impl Entrance {
    pub(super) fn new(sockets: Vec<Arc<OwnedFd>>) -> Self {
        Self {
            sockets,
            clients: Mutex::new(HalfOpen::new()),
        }
    }

    /// One round over the new and the half-open clients. Returns the first that `next` chooses among the half-open ones.
    pub(super) fn round<R>(
        &self,
        accepted: impl Fn(OwnedFd) -> Option<(Source, Channel)>,
        next: impl Fn(&mut Clients) -> Option<R>,
    ) -> Result<Option<R>, DeviceError> {
        let mut clients = self.clients.lock();
        // Further clients wait until the next call.
        for _ in 0..EVICTIONS_MAX {
            let waiting = self.accept_new(&mut clients, &accepted)?;
            let found = next(&mut clients);
            if found.is_some() || !waiting {
                return Ok(found);
            }
            // All half-open clients are silent, and more are waiting.
            if clients.is_full()
                && let Some(index) = clients.greediest()
            {
                clients.remove(index);
            }
        }
        Ok(None)
    }

    /// Accepts new clients while there is room. Returns whether more may be waiting.
    fn accept_new(
        &self,
        clients: &mut Clients,
        accepted: impl Fn(OwnedFd) -> Option<(Source, Channel)>,
    ) -> Result<bool, DeviceError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for socket in &self.sockets {
            loop {
                if clients.is_full() {
                    return Ok(true);
                }
                match rustix::net::accept_with(socket, flags) {
                    Ok(client) => {
                        if let Some((source, channel)) = accepted(client) {
                            clients.push(source, channel);
                        }
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(error) => return Err(DeviceError::io("accepting a connection")(error)),
                }
            }
        }
        Ok(false)
    }
}

/// A client of the Unix socket.
pub(super) fn accepted_local(socket: OwnedFd) -> Option<(Source, Channel)> {
    let who = peer_credentials(&socket).ok()?;
    Some((Source::Local(Party::of(who)), Channel::Local(socket)))
}

/// The TCP sockets of a listener.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) entrance: Entrance,
    /// Readable while the Unix socket or one of the TCP sockets is.
    pub(super) watch: Arc<OwnedFd>,
    _kept: KeptFromChild,
}

impl Hosts {
    /// Listens at those addresses of the wire that the address of a listener includes. `None` if there are none.
    ///
    /// # Errors
    /// [`DeviceError::AddressInUse`]: another program has the TCP port.
    pub(super) fn listen(
        wire: &Wire,
        address: SocketAddr,
        local: &Arc<OwnedFd>,
    ) -> Result<Option<Self>, DeviceError> {
        let mut sockets = Vec::new();
        for ip in wire.addresses().filter(|ip| includes(address.ip(), *ip)) {
            let address = SocketAddr::new(ip, address.port());
            match stream::listen(address)? {
                Some(socket) => sockets.push(Arc::new(socket)),
                None => return Err(DeviceError::AddressInUse { address }),
            }
        }
        if sockets.is_empty() {
            return Ok(None);
        }
        let io = DeviceError::io("watching the sockets of a listener");
        let watch = epoll::create(CreateFlags::CLOEXEC).map_err(io)?;
        for socket in sockets.iter().chain([local]) {
            epoll::add(&watch, socket, EventData::new_u64(0), EventFlags::IN)
                .map_err(DeviceError::io("watching the sockets of a listener"))?;
        }
        let watch = Arc::new(watch);
        let kept = sockets.iter().chain([&watch]).map(Arc::clone).collect();
        Ok(Some(Self {
            entrance: Entrance::new(sockets),
            watch,
            _kept: KeptFromChild::new(kept),
        }))
    }
}

/// Whether a listener at an address, which may be a wildcard, listens at `ip`.
fn includes(listener: IpAddr, ip: IpAddr) -> bool {
    match listener.to_canonical() {
        IpAddr::V4(any) if any.is_unspecified() => ip.is_ipv4(),
        IpAddr::V6(any) if any.is_unspecified() => true,
        one => one == ip,
    }
}

/// A client of a TCP socket.
pub(super) fn accepted_remote(wire: &Wire, socket: OwnedFd) -> Option<(Source, Channel)> {
    let ip = |address: rustix::net::SocketAddrAny| {
        let address = SocketAddr::try_from(address).ok()?;
        Some(address.ip().to_canonical())
    };
    let local = ip(rustix::net::getsockname(&socket).ok()?)?;
    let remote = ip(rustix::net::getpeername(&socket).ok()??)?;
    // A process of this host uses the Unix socket, which tells us its user.
    if crate::peers::names::is_of_this_host(remote) {
        return None;
    }
    let mtu = wire.path(remote, Some(local))?.mtu;
    let peer = WirePeer { local, remote };
    let stream = Stream::new(socket, Path { peer, mtu }).ok()?;
    Some((Source::of_host(remote), Channel::Remote(stream)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_listener_includes_the_addresses_of_its_family() {
        for (listener, ip, included) in [
            ("0.0.0.0", "10.0.0.1", true),
            ("0.0.0.0", "fd00::1", false),
            ("::", "10.0.0.1", true),
            ("::", "fd00::1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.2", "10.0.0.1", false),
            ("127.0.0.1", "10.0.0.1", false),
        ] {
            let [listener, ip] = [listener, ip].map(|it| it.parse().unwrap());
            assert_eq!(includes(listener, ip), included, "{listener} {ip}");
        }
    }

    #[test]
    fn all_addresses_of_a_host_share_one_limit() {
        let source = |ip: &str| Source::of_host(ip.parse().unwrap());
        assert_eq!(source("fd00::1"), source("fd00::ffff:1"));
        assert_ne!(source("fd00::1"), source("fd00:0:0:1::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
