//! Where clients of a listener arrive: its Unix socket, or its TCP sockets.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rkey_engine::WirePeer;
use rkey_link::peer::peer_credentials;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::channel::Channel;
use super::seal::Role;
use super::stream::{self, NetworkPath, Stream};
use crate::cm::fork::KeptFromChild;
use crate::config::WireKey;
use crate::error::DeviceError;
use crate::peers::half_open::HalfOpen;
use crate::peers::link_limits::Party;
use crate::peers::names::network_of;
use crate::wire::Wire;

/// The maximum number of silent clients to drop in one round to make room for others.
const EVICTIONS_MAX: usize = 16;
/// The number of TCP connections that may wait at a listener for us to accept them.
const BACKLOG: i32 = 128;

/// Clients that share one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientGroup {
    /// On this host.
    Local(Party),
    /// Another host; for IPv6, its network of 64 bits, because a host can have all addresses of it.
    Host(IpAddr),
}

impl ClientGroup {
    fn of_host(ip: IpAddr) -> Self {
        Self::Host(network_of(ip))
    }
}

/// Clients that have connected and not sent their request yet.
pub(super) type Clients = HalfOpen<Channel, ClientGroup>;

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
        accepted: impl Fn(OwnedFd) -> Option<(ClientGroup, Channel)>,
        next: impl Fn(&mut Clients) -> Option<R>,
    ) -> Result<Option<R>, DeviceError> {
        let mut clients = self.clients.lock();
        // Further clients wait until the next call.
        for _ in 0..EVICTIONS_MAX {
            let waiting = self.accept_new(&mut clients, &accepted);
            let found = next(&mut clients);
            if found.is_some() {
                return Ok(found);
            }
            match waiting {
                Ok(false) => return Ok(None),
                Err(error) if clients.is_empty() => return Err(error),
                // All half-open clients are silent, and more are waiting or no descriptor is left for them.
                Ok(true) | Err(_) => {
                    if let Some(index) = clients.greediest() {
                        clients.remove(index).drop_silent();
                    }
                }
            }
        }
        Ok(None)
    }

    /// Accepts new clients while there is room. Returns whether more may be waiting.
    fn accept_new(
        &self,
        clients: &mut Clients,
        accepted: impl Fn(OwnedFd) -> Option<(ClientGroup, Channel)>,
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
                    // accept(2): errors of the client's network are those of a connection that has already ended.
                    Err(
                        Errno::INTR
                        | Errno::CONNABORTED
                        | Errno::PROTO
                        | Errno::NETDOWN
                        | Errno::NETUNREACH
                        | Errno::HOSTUNREACH
                        | Errno::HOSTDOWN,
                    ) => {}
                    Err(error) => return Err(DeviceError::io("accepting a connection")(error)),
                }
            }
        }
        Ok(false)
    }
}

/// A client of the Unix socket.
pub(super) fn accepted_local(socket: OwnedFd) -> Option<(ClientGroup, Channel)> {
    let who = peer_credentials(&socket).ok()?;
    Some((ClientGroup::Local(Party::of(who)), Channel::Local(socket)))
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
    /// Binds TCP sockets to those addresses of the wire that the address of a listener includes. No peer can connect yet.
    ///
    /// # Errors
    /// [`DeviceError::AddressInUse`]: another program has the TCP port.
    pub(super) fn bind(wire: &Wire, address: SocketAddr) -> Result<Vec<OwnedFd>, DeviceError> {
        let is_wildcard = address.ip().to_canonical().is_unspecified();
        let mut sockets = Vec::new();
        for ip in wire.addresses().filter(|ip| includes(address.ip(), *ip)) {
            let address = SocketAddr::new(ip, address.port());
            match stream::bind(address) {
                Ok(Some(socket)) => sockets.push(socket),
                Ok(None) => return Err(DeviceError::AddressInUse { address }),
                Err(error) if is_wildcard => {
                    tracing::warn!("other hosts cannot connect to {address}: {error}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sockets)
    }

    /// Listens at bound sockets. `None` if there are none.
    ///
    /// # Errors
    /// The system cannot watch the sockets.
    pub(super) fn listen(
        bound: Vec<OwnedFd>,
        local: &Arc<OwnedFd>,
    ) -> Result<Option<Self>, DeviceError> {
        if bound.is_empty() {
            return Ok(None);
        }
        let io = |error| DeviceError::io("listening for other hosts")(error);
        let sockets: Vec<Arc<OwnedFd>> = bound.into_iter().map(Arc::new).collect();
        let watch = epoll::create(CreateFlags::CLOEXEC).map_err(io)?;
        for socket in &sockets {
            rustix::net::listen(socket, BACKLOG).map_err(io)?;
        }
        for socket in sockets.iter().chain([local]) {
            epoll::add(&watch, socket, EventData::new_u64(0), EventFlags::IN).map_err(io)?;
        }
        let watch = Arc::new(watch);
        let kept = sockets.iter().chain([&watch]).map(Arc::clone).collect();
        Ok(Some(Self {
            entrance: Entrance::new(sockets),
            watch,
            _kept: KeptFromChild::new(kept),
        }))
    }

    /// The TCP sockets.
    pub(super) fn sockets(&self) -> &[Arc<OwnedFd>] {
        &self.entrance.sockets
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

/// A client of a TCP socket. If there is a key, its packets are sealed.
pub(super) fn accepted_remote(
    wire: &Wire,
    key: Option<&WireKey>,
    socket: OwnedFd,
) -> Option<(ClientGroup, Channel)> {
    let local = SocketAddr::try_from(rustix::net::getsockname(&socket).ok()?).ok()?;
    let remote = SocketAddr::try_from(rustix::net::getpeername(&socket).ok()??).ok()?;
    let port = local.port();
    let [local, remote] = [local, remote].map(|it| it.ip().to_canonical());
    // A process of this host uses the Unix socket, which tells us its user.
    if remote == local || crate::peers::names::is_of_this_host(remote) {
        return None;
    }
    let mtu = wire.path(remote, Some(local))?.mtu;
    let peer = WirePeer { local, remote };
    let path = NetworkPath {
        peer,
        mtu,
        selective: true,
    };
    let stream = Stream::new(socket, path, key, Role::Acceptor, port).ok()?;
    Some((ClientGroup::of_host(remote), Channel::Remote(stream)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_roce::packet::Mtu;

    #[test]
    fn only_the_ipv6_wildcard_includes_addresses_of_both_families() {
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

    /// Twice as many silent clients of one host as there is room for, then one of another host.
    #[test]
    fn silent_clients_of_one_host_do_not_keep_out_another_host() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let to = listener.local_addr().unwrap();
        let entrance = Entrance::new(vec![Arc::new(listener.into())]);
        let (greedy, other) = (
            ClientGroup::of_host([10, 0, 0, 1].into()),
            ClientGroup::of_host([10, 0, 0, 2].into()),
        );
        let peer = WirePeer {
            local: to.ip(),
            remote: to.ip(),
        };
        let [mtu, of_other] = [Mtu::Bytes1024, Mtu::Bytes4096];
        let accepted = |source, mtu| {
            move |socket| {
                let stream = Stream::new(
                    socket,
                    NetworkPath {
                        peer,
                        mtu,
                        selective: true,
                    },
                    None,
                    Role::Acceptor,
                    7,
                )
                .unwrap();
                Some((source, Channel::Remote(stream)))
            }
        };
        let none = |_: &mut Clients| None::<()>;
        let connect = || std::net::TcpStream::connect(to).unwrap();
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.extend((0..crate::peers::half_open::MAX / 2).map(|_| connect()));
            entrance.round(accepted(greedy, mtu), none).unwrap();
        }
        assert!(entrance.clients.lock().len() + EVICTIONS_MAX >= crate::peers::half_open::MAX);
        let _last = connect();
        entrance.round(accepted(other, of_other), none).unwrap();
        let is_other = |it: &Channel| it.stream().is_some_and(|it| it.path().mtu != mtu);
        assert!(entrance.clients.lock().position(is_other).is_some());
        // A client that was dropped knows that its request was not read.
        let mut first = &silent[0];
        let outcome = std::io::Write::write(&mut first, b"request")
            .and_then(|_| std::io::Read::read(&mut first, &mut [0]));
        assert_eq!(
            outcome.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionReset
        );
    }

    #[test]
    fn ipv6_addresses_with_the_same_64_bit_prefix_share_one_limit() {
        let source = |ip: &str| ClientGroup::of_host(ip.parse().unwrap());
        assert_eq!(source("fd00::1"), source("fd00::ffff:1"));
        assert_ne!(source("fd00::1"), source("fd00:0:0:1::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
