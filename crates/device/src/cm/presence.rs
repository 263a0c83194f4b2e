//! Whether any program listens at a host that does not answer.
//!
//! Where no program uses the wire, UDP port 4791 is closed, and the kernel answers our messages with an ICMP message ("port
//! unreachable"). The wire's sockets do not see it: only a connected socket does. So if a REQ, SIDR_REQ or DREQ to another host has had
//! no answer for a while, a socket of its own sends an empty datagram to the port. If that fails with `ECONNREFUSED`, the
//! host itself says that nothing listens:
//!
//! * A connection that our program ends has ended: the peer's process is gone, or its DREP was lost and then it exited.
//! * A request is refused once the host has said so for [`PATIENCE`]: the server may start just after the client.
//!
//! Established connections are not checked, because ICMP messages can be forged: the sender must guess the port of our socket, which
//! is a new one for each check. A host that drops the datagram (a firewall, a device in hardware) says nothing, and changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rkey_cm::ConnectionId;
use rkey_cm::time::Nanos;
use rkey_cm::wire::{MAD, Mad, Message};
use rkey_roce::icrc;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::watches::{Watched, Watches};
use crate::progress::reactor::Token;

/// How long a message may be unanswered before the first check of its host. Most answers take less.
const FIRST: Nanos = 200_000_000;
/// How long a check waits for its result, and the time until the next check.
const PERIOD: Nanos = 1_000_000_000;
/// How long a host has to say that nothing listens before a request is refused: at the third check.
const PATIENCE: Nanos = 3 * PERIOD / 2;
/// The maximum number of checks at once. Further ones are a period later.
const SOCKETS: usize = 16;

/// Our address and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
}

/// A message that the peer should answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// A REQ or SIDR_REQ.
    Request,
    Dreq,
}

impl Unanswered {
    pub(super) fn of(mad: &[u8; MAD]) -> Option<Self> {
        match Mad::decode(mad).ok()?.message {
            Message::Req(_) | Message::SidrReq(_) => Some(Self::Request),
            Message::Dreq(_) => Some(Self::Dreq),
            _ => None,
        }
    }
}

/// A connection that waits for an answer.
#[derive(Debug)]
struct Waiting {
    message: Unanswered,
    /// When the host first said that nothing listens, while the connection waited.
    since: Option<Nanos>,
}

/// A host that has not answered. It has a timer as long as it is here, for [`Presence::run`].
#[derive(Debug, Default)]
struct Host {
    waiting: BTreeMap<ConnectionId, Waiting>,
    check: Option<(OwnedFd, Token)>,
}

/// The hosts that have not answered.
#[derive(Debug)]
pub(super) struct Presence {
    port: u16,
    hosts: BTreeMap<Route, Host>,
    /// The number of sockets.
    checks: usize,
    absent: Vec<ConnectionId>,
}

impl Default for Presence {
    fn default() -> Self {
        Self {
            port: icrc::PORT,
            hosts: BTreeMap::new(),
            checks: 0,
            absent: Vec::new(),
        }
    }
}

impl Presence {
    /// A connection has sent a message that the peer should answer. Returns when to call [`Presence::run`] for this route, if no timer
    /// runs for it.
    pub(super) fn expect(
        &mut self,
        now: Nanos,
        route: Route,
        id: ConnectionId,
        message: Unanswered,
    ) -> Option<Nanos> {
        let is_new = !self.hosts.contains_key(&route);
        let waiting = &mut self.hosts.entry(route).or_default().waiting;
        // A message that is sent again goes on waiting.
        if waiting.get(&id).is_none_or(|it| it.message != message) {
            let since = None;
            waiting.insert(id, Waiting { message, since });
        }
        is_new.then_some(now.saturating_add(FIRST))
    }

    /// Starts the next check of a host, unless all its connections have had an answer: `waits` tells which have not. `may_open` tells
    /// whether there is room for a descriptor. Returns when to call this again.
    pub(super) fn run(
        &mut self,
        now: Nanos,
        route: Route,
        watches: &mut Watches,
        waits: &dyn Fn(ConnectionId) -> bool,
        may_open: bool,
    ) -> Option<Nanos> {
        // A host whose check has had no answer leaves its place to others for a period, and the program its descriptor.
        let gives_way = self.end_check(route, watches);
        let host = self.hosts.get_mut(&route)?;
        host.waiting.retain(|id, _| waits(*id));
        if host.waiting.is_empty() {
            self.hosts.remove(&route);
            return None;
        }
        // If it fails, the next one may succeed.
        if may_open
            && !gives_way
            && self.checks < SOCKETS
            && let Ok(socket) = ask(route, self.port)
            && let Ok(token) = watches.add(&socket, Watched::Presence(route))
        {
            host.check = Some((socket, token));
            self.checks += 1;
        }
        Some(now.saturating_add(PERIOD))
    }

    /// Handles the result of a check.
    pub(super) fn ready(&mut self, now: Nanos, route: Route, watches: &mut Watches) {
        let check = self.hosts.get(&route).and_then(|it| it.check.as_ref());
        let Some((socket, _)) = check else {
            return;
        };
        let answer = rustix::net::recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT);
        if matches!(answer, Err(Errno::AGAIN | Errno::INTR)) {
            return;
        }
        self.end_check(route, watches);
        if matches!(answer, Err(Errno::CONNREFUSED)) {
            self.refused(now, route);
        }
    }

    /// The host says that nothing listens.
    fn refused(&mut self, now: Nanos, route: Route) {
        let Some(host) = self.hosts.get_mut(&route) else {
            return;
        };
        let absent = &mut self.absent;
        host.waiting.retain(|id, it| {
            let since = *it.since.get_or_insert(now);
            let ends = match it.message {
                Unanswered::Dreq => true,
                Unanswered::Request => now.saturating_sub(since) >= PATIENCE,
            };
            if ends {
                absent.push(*id);
            }
            !ends
        });
    }

    /// Ends the check of a host. Returns whether there was one.
    fn end_check(&mut self, route: Route, watches: &mut Watches) -> bool {
        let host = self.hosts.get_mut(&route);
        let Some((socket, token)) = host.and_then(|it| it.check.take()) else {
            return false;
        };
        watches.remove(&socket, token);
        self.checks -= 1;
        true
    }

    /// Removes and returns the connections whose peers have no device, as far as their hosts say.
    pub(super) fn take_absent(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.absent)
    }

    /// Closes a forked child's copies of the sockets.
    pub(super) fn close_in_child(&mut self) {
        *self = Self::default();
    }
}

/// Sends an empty datagram from a socket that reports the host's answer. No receiver takes it for a packet.
fn ask(route: Route, port: u16) -> io::Result<OwnedFd> {
    let family = match route.local {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(route.local, 0))?;
    rustix::net::connect(&socket, &SocketAddr::new(route.peer, port))?;
    rustix::net::send(&socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::tests::connect_with;
    use crate::progress::reactor::Reactor;
    use rkey_cm::manager::Config;
    use rkey_cm::wire::{PrivateData, Transport};
    use rkey_cm::{Manager, address};
    use std::net::UdpSocket;
    use std::sync::Arc;
    use std::time::Duration;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    /// A port at which no program listens.
    const CLOSED: u16 = 1;

    /// Presence checks on this host, and what watches their sockets.
    struct World {
        presence: Presence,
        reactor: Arc<Reactor>,
        watches: Watches,
    }

    impl World {
        /// The hosts are addresses of this host; the port is that of their device.
        fn new(port: u16) -> Self {
            let reactor = Arc::new(Reactor::new().unwrap());
            Self {
                presence: Presence {
                    port,
                    ..Presence::default()
                },
                watches: Watches::new(Arc::clone(&reactor)),
                reactor,
            }
        }

        fn run(&mut self, now: Nanos, route: Route, waits: bool) -> Option<Nanos> {
            let (watches, waits) = (&mut self.watches, |_| waits);
            self.presence.run(now, route, watches, &waits, true)
        }

        /// The connections that have ended when the host has said that nothing listens.
        fn refused(&mut self, now: Nanos) -> Vec<ConnectionId> {
            let [token] = self.reactor.wait(None)[..] else {
                panic!("one socket is ready")
            };
            let Some(Watched::Presence(route)) = self.watches.get(token) else {
                panic!("a check")
            };
            self.presence.ready(now, route, &mut self.watches);
            assert_eq!(self.reactor.wait(Some(Duration::ZERO)), []);
            self.presence.take_absent()
        }
    }

    /// Two connections.
    fn ids() -> [ConnectionId; 2] {
        let mut manager = Manager::new(Config::new(address::Guid([2; 8]), 7));
        let mut connect = |qpn| {
            let (from, to) = ("10.0.0.1:40000", "10.0.0.2:7471");
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let to = connect_with(from, to, Transport::Rc, qpn);
            manager.connect(0, &to).unwrap()
        };
        [connect(0x11), connect(0x12)]
    }

    /// A route to an address of this host at which no other test listens.
    fn route(last: u8) -> Route {
        Route {
            local: HERE,
            peer: [127, 0, 47, last].into(),
        }
    }

    #[test]
    fn a_host_that_says_that_nothing_listens_ends_a_disconnect_at_once_and_a_request_later() {
        let (mut world, route, [dreq, request]) = (World::new(CLOSED), route(1), ids());
        let (presence, message) = (&mut world.presence, Unanswered::Request);
        let at = presence.expect(0, route, request, message);
        assert_eq!(at, Some(FIRST));
        let message = Unanswered::Dreq;
        assert_eq!(presence.expect(0, route, dreq, message), None);
        let mut at = FIRST;
        for ended in [vec![dreq], vec![], vec![request]] {
            let next = world.run(at, route, true);
            assert_eq!(world.refused(at), ended, "{at}");
            assert_eq!(next, Some(at + PERIOD));
            at += PERIOD;
        }
        assert_eq!(world.run(at, route, true), None);
        assert!(world.presence.hosts.is_empty() && world.presence.checks == 0);
    }

    /// What a host said before a connection waited does not count for it.
    #[test]
    fn each_request_waits_for_its_own_time() {
        let (mut world, route, [first, second]) = (World::new(CLOSED), route(1), ids());
        let presence = &mut world.presence;
        presence.expect(0, route, first, Unanswered::Request);
        for at in [0, PERIOD] {
            world.run(at, route, true);
            assert_eq!(world.refused(at), []);
        }
        let presence = &mut world.presence;
        presence.expect(PERIOD, route, second, Unanswered::Request);
        // The first one is sent again.
        presence.expect(PERIOD, route, first, Unanswered::Request);
        world.run(2 * PERIOD, route, true);
        assert_eq!(world.refused(2 * PERIOD), [first]);
        // The second one is established, and then ended by the program.
        let presence = &mut world.presence;
        presence.expect(2 * PERIOD, route, second, Unanswered::Dreq);
        world.run(3 * PERIOD, route, true);
        assert_eq!(world.refused(3 * PERIOD), [second]);
    }

    #[test]
    fn a_host_at_which_a_program_listens_gets_one_empty_datagram_for_each_check() {
        let (route, [id, _]) = (route(1), ids());
        let socket = UdpSocket::bind((route.peer, 0)).unwrap();
        let mut world = World::new(socket.local_addr().unwrap().port());
        world.presence.expect(0, route, id, Unanswered::Dreq);
        for round in 0..3 {
            let at = FIRST + round * PERIOD;
            assert_eq!(world.run(at, route, true), Some(at + PERIOD));
            // In between, the program has its descriptor back.
            let checks = usize::from(round != 1);
            assert_eq!(world.presence.checks, checks);
            for _ in 0..checks {
                let (len, from) = socket.recv_from(&mut [0; 9]).unwrap();
                assert_eq!((len, from.ip()), (0, HERE));
            }
        }
        // The check has no result, and the next one is made only if the connection still waits.
        assert_eq!(world.reactor.wait(Some(Duration::ZERO)), []);
        assert_eq!(world.run(9 * PERIOD, route, false), None);
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv_from(&mut [0; 9]).is_err());
        assert_eq!(world.presence.take_absent(), []);
        assert!(world.presence.hosts.is_empty() && world.presence.checks == 0);
    }

    #[test]
    fn the_number_of_checks_at_once_is_limited() {
        let (socket, [id, _]) = (UdpSocket::bind("0.0.0.0:0").unwrap(), ids());
        let mut world = World::new(socket.local_addr().unwrap().port());
        let routes = (0..=SOCKETS as u8).map(route);
        for route in routes {
            world.presence.expect(0, route, id, Unanswered::Dreq);
            assert_eq!(world.run(FIRST, route, true), Some(FIRST + PERIOD));
        }
        assert_eq!(world.presence.checks, SOCKETS);
        let last = route(SOCKETS as u8);
        // A host whose check has had no answer gives way to the one that waits, which does so in turn.
        for (route, is_checked) in [(route(3), false), (last, true), (route(4), false)] {
            world.run(FIRST + PERIOD, route, true);
            let check = &world.presence.hosts[&route].check;
            assert_eq!(check.is_some(), is_checked);
        }
        world.run(FIRST + PERIOD, route(3), true);
        assert_eq!(world.presence.checks, SOCKETS);
        // A descriptor that the program needs is not used.
        let watches = &mut world.watches;
        let presence = &mut world.presence;
        presence.run(FIRST + 2 * PERIOD, last, watches, &|_| true, false);
        assert!(world.presence.hosts[&last].check.is_none());
    }

    #[test]
    fn requests_and_dreqs_wait_for_an_answer() {
        let dreq = rkey_cm::wire::Dreq {
            local: 1,
            remote: 2,
            remote_qpn: 3,
            data: PrivateData::default(),
        };
        let drep = rkey_cm::wire::Drep {
            local: 1,
            remote: 2,
            data: PrivateData::default(),
        };
        for (message, unanswered) in [
            (Message::Dreq(dreq), Some(Unanswered::Dreq)),
            (Message::Drep(drep), None),
        ] {
            let mad = Mad::new(7, message).encode();
            assert_eq!(Unanswered::of(&mad), unanswered);
        }
    }
}
