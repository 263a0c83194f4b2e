//! Packets that the kernel refuses to send. The log says why once for each peer, not for each packet: requests are repeated until they
//! fail, and programs connect again.

use std::fmt::{Display, Formatter};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::addresses;
use crate::log_later;

/// How many peers are remembered. Others are not reported: the reason is usually the same.
const PEERS: usize = 8;
/// The least time between two reports about one peer. A peer whose packets are refused and sent in turn does not flood the log.
const INTERVAL: Duration = Duration::from_secs(60);

/// The least time between two looks at the interfaces and routes, which take system calls while other threads wait to send.
const LOOK: Duration = Duration::from_millis(100);

/// The peers to which the kernel refuses to send packets of one address.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    peers: Vec<Refusal>,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Refusal {
    to: IpAddr,
    error: Option<i32>,
    /// The shortest refused datagram, in bytes. Shorter ones may be sent in the meantime.
    shortest: usize,
    /// How many packets were refused.
    packets: u64,
    /// Whether packets that were refused are sent again.
    is_over: bool,
    is_reported: bool,
    reported_at: Option<Instant>,
}

impl Refusal {
    fn new(to: IpAddr) -> Self {
        Self {
            to,
            error: None,
            shortest: 0,
            packets: 0,
            is_over: true,
            is_reported: false,
            reported_at: None,
        }
    }

    fn may_report(&self, now: Instant) -> bool {
        let since = |time| now.saturating_duration_since(time);
        self.reported_at.is_none_or(|it| since(it) >= INTERVAL)
    }
}

impl Refusals {
    /// Records that the kernel has refused packets, each of `length` bytes. Returns whether to report that.
    pub(super) fn refused(
        &mut self,
        now: Instant,
        to: IpAddr,
        (length, packets): (usize, u64),
        error: &io::Error,
    ) -> bool {
        let Some(refusal) = self.of(now, to) else {
            return false;
        };
        let error = error.raw_os_error();
        if refusal.is_over || refusal.error != error {
            *refusal = Refusal {
                error,
                shortest: length,
                is_over: false,
                reported_at: refusal.reported_at,
                ..Refusal::new(to)
            };
        }
        refusal.shortest = refusal.shortest.min(length);
        refusal.packets += packets;
        if refusal.is_reported || !refusal.may_report(now) {
            return false;
        }
        (refusal.is_reported, refusal.reported_at) = (true, Some(now));
        true
    }

    /// The entry of a peer; `None` if there is no room for one.
    fn of(&mut self, now: Instant, to: IpAddr) -> Option<&mut Refusal> {
        let peers = &mut self.peers;
        let known = peers.iter().position(|it| it.to == to);
        let at = known.or_else(|| {
            if peers.len() < PEERS {
                peers.push(Refusal::new(to));
                return Some(peers.len() - 1);
            }
            let old = peers.iter().position(|it| it.may_report(now))?;
            peers[old] = Refusal::new(to);
            Some(old)
        })?;
        peers.get_mut(at)
    }

    /// Whether to look for the cause of a refusal now.
    pub(super) fn may_look(&mut self, now: Instant) -> bool {
        let since = |time| now.saturating_duration_since(time);
        let may = self.looked_at.is_none_or(|it| since(it) >= LOOK);
        if may {
            self.looked_at = Some(now);
        }
        may
    }

    /// Records that packets of `length` bytes were sent. If that ends a reported refusal, returns how many packets were refused.
    #[inline]
    pub(super) fn sent(&mut self, to: IpAddr, length: usize) -> Option<u64> {
        // Nearly always empty.
        let mut all = self.peers.iter_mut();
        let refusal = all.find(|it| it.to == to && !it.is_over)?;
        if length < refusal.shortest {
            return None;
        }
        refusal.is_over = true;
        std::mem::take(&mut refusal.is_reported).then_some(refusal.packets)
    }
}

/// Logs why a datagram of `length` bytes cannot be sent. The caller may hold locks: another thread looks for the cause.
pub(super) fn log(error: io::Error, from: IpAddr, to: SocketAddr, length: usize) {
    log_later::log(move || {
        let (to_ip, cause) = (to.ip(), Cause::of(error, from, to, length));
        tracing::warn!(
            "packets from {from} to {to_ip} cannot be sent: {cause}. Until then, they are lost, and requests fail when their \
             retries are used up"
        );
    });
}

/// Logs that packets can be sent again, after this many were refused. The caller may hold locks.
pub(super) fn log_end(from: IpAddr, to: IpAddr, refused: u64) {
    log_later::log(move || {
        tracing::info!(
            "packets from {from} to {to} can be sent again; lost in the meantime: {refused}"
        );
    });
}

/// Why the kernel refuses to send a packet.
#[derive(Debug)]
pub(super) enum Cause {
    /// The source address is not an address of an interface that is up.
    NoAddress(IpAddr),
    /// There is no route.
    NoRoute {
        from: IpAddr,
        to: IpAddr,
    },
    /// The packet has `bytes` bytes with its IP header, more than the MTU.
    TooLong {
        bytes: usize,
        mtu: u32,
    },
    /// A firewall of this host.
    Forbidden,
    Other(io::Error),
}

impl Cause {
    /// Why a datagram of `length` bytes from one address to the other was refused with this error.
    pub(super) fn of(error: io::Error, from: IpAddr, to: SocketAddr, length: usize) -> Self {
        let to = to.ip().to_canonical();
        let bytes = length + addresses::headers(to.is_ipv4());
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            _ if addresses::interface_of(from).is_none() => Self::NoAddress(from),
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN) => {
                Self::NoRoute { from, to }
            }
            // Kernels before Linux 6.14 refuse long datagrams with `EINVAL` if there are several.
            Some(Errno::MSGSIZE | Errno::INVAL) => match addresses::mtu_of_route(to, Some(from)) {
                Some((_, mtu)) if bytes > mtu as usize => Self::TooLong { bytes, mtu },
                _ => Self::Other(error),
            },
            Some(Errno::PERM | Errno::ACCESS) => Self::Forbidden,
            _ => Self::Other(error),
        }
    }
}

impl Display for Cause {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoAddress(ip) => write!(
                f,
                "no interface that is up has the address {ip}. Take the interface up, or add the address again"
            ),
            Self::NoRoute { from, to } => write!(
                f,
                "this host has no route. Take the interface up, or add a route; `ip route get {to} from {from}` shows what is wrong"
            ),
            Self::TooLong { bytes, mtu } => write!(
                f,
                "they have {bytes} B, but the MTU of the route is now {mtu} B. Raise it again, or reconnect with a smaller path MTU"
            ),
            Self::Forbidden => write!(
                f,
                "a firewall of this host forbids it. Allow UDP port 4791 in both directions"
            ),
            Self::Other(error) => write!(f, "{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable() -> io::Error {
        Errno::NETUNREACH.into()
    }

    fn too_long() -> io::Error {
        Errno::MSGSIZE.into()
    }

    fn peer(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    #[test]
    fn a_refusal_is_reported_once_until_packets_are_sent_again() {
        let (mut all, now) = (Refusals::default(), crate::time::now());
        let refuse = |all: &mut Refusals, after, error: &io::Error| {
            all.refused(now + INTERVAL * after, peer(1), (100, 3), error)
        };
        assert_eq!(all.sent(peer(1), 100), None);
        assert!(refuse(&mut all, 0, &unreachable()));
        for after in [0, 5, 10] {
            assert!(!refuse(&mut all, after, &unreachable()));
        }
        assert_eq!(all.sent(peer(2), 100), None, "another peer");
        assert_eq!(all.sent(peer(1), 99), None, "a shorter packet");
        assert_eq!(all.sent(peer(1), 100), Some(12));
        assert_eq!(all.sent(peer(1), 100), None);
        assert!(refuse(&mut all, 11, &unreachable()));
        assert!(
            !refuse(&mut all, 11, &too_long()),
            "too early for another report"
        );
        assert!(refuse(&mut all, 12, &too_long()), "another reason");
        assert_eq!(all.sent(peer(1), 100), Some(6));
        // Packets that are refused and sent in turn.
        let turns = (0..1000).filter(|_| {
            assert_eq!(all.sent(peer(1), 100), None);
            refuse(&mut all, 12, &too_long())
        });
        assert_eq!(turns.count(), 0);
    }

    #[test]
    fn many_peers_do_not_flood_the_log() {
        let (mut all, now) = (Refusals::default(), crate::time::now());
        let mut reports = |now| {
            let peers = (0..100).map(peer);
            let report = peers.filter(|to| all.refused(now, *to, (100, 1), &unreachable()));
            report.count()
        };
        assert_eq!(reports(now), PEERS);
        assert_eq!(reports(now + INTERVAL / 2), 0);
        assert_eq!(reports(now + INTERVAL), PEERS);
    }

    #[test]
    fn looks_for_causes_are_limited() {
        let (mut all, now) = (Refusals::default(), crate::time::now());
        let mut looks = |after| all.may_look(now + after);
        assert!(looks(Duration::ZERO));
        assert!(!looks(LOOK / 2));
        assert!(looks(LOOK));
        assert!(!looks(LOOK * 3 / 2));
    }

    #[test]
    fn the_cause_names_what_is_wrong_and_what_to_do() {
        let (here, foreign): (IpAddr, IpAddr) = ([127, 0, 0, 1].into(), [192, 0, 2, 7].into());
        let to = SocketAddr::from(([127, 0, 0, 2], 4791));
        let text =
            |error: Errno, from, length| Cause::of(error.into(), from, to, length).to_string();
        for (error, from, length, wanted) in [
            (Errno::NETUNREACH, foreign, 100, "has the address 192.0.2.7"),
            (Errno::INVAL, foreign, 100, "has the address 192.0.2.7"),
            (Errno::NETUNREACH, here, 100, "no route"),
            (Errno::MSGSIZE, here, 70_000, "they have 70028 B"),
            (Errno::INVAL, here, 70_000, "they have 70028 B"),
            (Errno::PERM, here, 100, "firewall"),
            (Errno::INVAL, here, 100, "Invalid argument"),
            (Errno::NOBUFS, here, 100, "No buffer space"),
        ] {
            let text = text(error, from, length);
            assert!(text.contains(wanted), "{error}: {text}");
        }
    }
}
