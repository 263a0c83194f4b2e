//! Connecting queue pairs by address: listen, accept, connect.
//!
//! The calls here run in the program's own threads: over an abstract Unix socket named after the address
//! ([`crate::peers::names`]) with processes of this host, over TCP with other hosts (`stream`; encrypted if there is a key, `seal`). The two sides exchange their device, queue pair numbers, first message numbers and up to
//! [`PRIVATE_DATA_MAX`] bytes of the program's private data, in three packets: `Request` (from the connector), `Accepted` (from
//! the acceptor, whose queue pairs are then ready) and `Ready` (from the connector, whose queue pairs are then ready). Neither
//! side returns before both are ready, so the first message never reaches a queue pair that is not ready.

mod begin;
mod channel;
mod entrance;
mod frames;
mod listen;
pub(crate) mod packet;
mod reserve;
mod seal;
mod socket;
pub(crate) mod stream;

pub use begin::Connecting;
pub use listen::{Accepting, Incoming, Listener};
pub(crate) use packet::decodes;
pub use packet::{PRIVATE_DATA_MAX, QPS_MAX};
pub use reserve::Reservation;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rkey_link::NodeId;

use crate::device::Device;
use crate::error::DeviceError;
use crate::objects::qp::Qp;
use crate::objects::qp_address::QpAddress;
use crate::peers::link_limits::StreamFile;
use packet::{ConnectMessage, Introduction, PathTerms, printable};
use socket::{Reached, dial};
use stream::{NetworkPath, Stream};

/// How many times to redial a listener that drops us before reading the request.
const REDIALS: u32 = 32;
/// The pause before each redial.
const REDIAL_PAUSE: Duration = Duration::from_millis(10);

/// The other side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The other side's device. On another host, what the peer claims.
    pub node: NodeId,
    /// The other side's host; `None` if it is this one.
    pub host: Option<IpAddr>,
    /// The user ID, from the kernel; [`Process::ANOTHER_HOST`](rkey_engine::Process::ANOTHER_HOST) on another host.
    pub uid: u32,
    /// The process ID, from the kernel; 0 if the process is on another host or in a PID namespace that we do not see.
    pub pid: u32,
    /// The other side's queue pairs, in the order of ours.
    pub qps: Vec<QpAddress>,
    /// The private data of the other side's program.
    pub private_data: Vec<u8>,
}

impl Peer {
    /// Names the other side in messages: "process 4211", or "a program on 10.0.0.2".
    #[must_use]
    pub fn described(&self) -> String {
        match self.host {
            Some(host) => format!("a program on {host}"),
            None => format!("process {}", self.pid),
        }
    }
}

/// How [`Device::connect_as`] connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The address of the wire from which another host sees the connection come; `None`: that of the route.
    pub local: Option<IpAddr>,
    /// How long to try to reach the listener.
    pub find: Duration,
    /// How long to wait for its answer then. A longer time suits listeners that are busy or short of processors.
    pub answer: Duration,
}

impl Device {
    /// Listens at an address on this host (port 0: any free port, see [`Listener::local_address`]) for peers on this host.
    ///
    /// # Errors
    /// [`DeviceError::NotThisHost`], [`DeviceError::AddressInUse`].
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, DeviceError> {
        self.reserve(address)?.listen()
    }

    /// Like [`Device::listen`], also for peers on other hosts if the device has a wire. They connect to the same port over TCP.
    ///
    /// # Errors
    /// Same as [`Device::listen`]. [`DeviceError::AddressInUse`] also if another program has the TCP port.
    pub fn listen_for_hosts(&self, address: SocketAddr) -> Result<Listener, DeviceError> {
        self.reserve_for_hosts(address)?.listen()
    }

    /// Connects our queue pairs to as many queue pairs of the program that listens at `address`, which may be on another host, and
    /// waits up to `timeout` for it to appear and to accept. The queue pairs are in state RTS afterwards: those in state RESET get all remote rights, those in
    /// INIT keep theirs.
    ///
    /// # Errors
    /// [`DeviceError::NoRoute`], [`DeviceError::NotListening`], [`DeviceError::Refused`],
    /// [`DeviceError::OtherUser`], [`DeviceError::TimedOut`], and the errors of changing the queue pairs. The queue pairs may then be
    /// in any state: destroy them.
    pub fn connect(
        &self,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Peer, DeviceError> {
        let deadline = Deadline::after("the connection", timeout);
        let to = (address, None);
        self.connect_by(to, qps, private_data, deadline, None, |_| Ok(()))
    }

    /// Like [`Device::connect`], with more choices. `admit` can refuse the peer before its requests can reach the queue pairs.
    ///
    /// # Errors
    /// Same as [`Device::connect`], and the error of `admit`.
    pub fn connect_as(
        &self,
        how: &ConnectOptions,
        address: SocketAddr,
        qps: &[&Qp],
        private_data: &[u8],
        admit: impl FnOnce(&Peer) -> Result<(), DeviceError>,
    ) -> Result<Peer, DeviceError> {
        let deadline = Deadline::after("the connection", how.find);
        let to = (address, how.local);
        self.connect_by(to, qps, private_data, deadline, Some(how.answer), admit)
    }

    fn connect_by(
        &self,
        (address, local): (SocketAddr, Option<IpAddr>),
        qps: &[&Qp],
        private_data: &[u8],
        deadline: Deadline,
        answer: Option<Duration>,
        admit: impl FnOnce(&Peer) -> Result<(), DeviceError>,
    ) -> Result<Peer, DeviceError> {
        self.check()?;
        let path = self.route(address, local)?;
        let terms = PathTerms::offered(path.map(|path| path.mtu));
        let request = ConnectMessage::Request(self.side(qps, private_data, terms)?);
        let path = path.map(|path| (path, self.wire_key()));
        let dial = |again| dial(self.scope(), path, address, &deadline, again);
        let (there, packet) = ask(dial, &request, deadline, answer)?;
        self.finish(qps, &there, packet, admit)
    }

    /// Connects the queue pairs according to the listener's answer, and reports to the listener that they are ready.
    fn finish(
        &self,
        qps: &[&Qp],
        there: &Reached,
        packet: ConnectMessage,
        admit: impl FnOnce(&Peer) -> Result<(), DeviceError>,
    ) -> Result<Peer, DeviceError> {
        let side = match packet {
            ConnectMessage::Accepted(side) => side,
            ConnectMessage::Rejected(reason) => {
                return Err(DeviceError::Refused {
                    reason: printable(&reason),
                });
            }
            _ => return Err(DeviceError::Handshake("the peer sent an unexpected packet")),
        };
        if !side.is_valid() {
            return Err(DeviceError::Handshake("the peer sent an invalid answer"));
        }
        if side.qps.len() != qps.len() {
            return Err(DeviceError::Handshake(
                "the listener accepted the connection with a different number of queue pairs",
            ));
        }
        let path = match there.channel.stream() {
            Some(stream) => Some(agreed(stream.path(), side.path)?),
            None => {
                self.check_identity(side.node, there.uid, there.pid)?;
                None
            }
        };
        let peer = Peer {
            node: side.node,
            host: path.map(|path| path.peer.remote),
            uid: there.uid,
            pid: there.pid.unwrap_or(0),
            qps: side.qps,
            private_data: side.private_data,
        };
        admit(&peer)?;
        connect_all(qps, &peer, path)?;
        there.channel.send(&ConnectMessage::Ready)?;
        if let Some(stream) = there.channel.stream() {
            self.watch(stream, qps, StreamFile::new(false))?;
        }
        Ok(peer)
    }

    /// From now on, the end of the TCP connection ends the queue pairs, and the end of all queue pairs ends the connection.
    fn watch(
        &self,
        stream: &Arc<Stream>,
        qps: &[&Qp],
        file: StreamFile,
    ) -> Result<(), DeviceError> {
        let numbers = qps.iter().map(|qp| (qp.id(), qp.qpn())).collect();
        let shared = self.shared();
        let watched = Arc::clone(stream);
        let token = (shared.streams).watch(&shared.reactor, watched, numbers, file)?;
        // A queue pair that another thread destroyed before is not forgotten by that thread.
        for qp in qps.iter().filter(|qp| qp.is_destroyed()) {
            shared.streams.forget(&shared.reactor, qp.id(), &[]);
        }
        (shared.streams).handle(&shared.reactor, &shared.driver, token, Instant::now());
        // If the connection has already ended, the engine thread fails the queue pairs.
        if shared.streams.next_deadline().is_some() {
            shared.driver.requests.wake_engine_thread();
        }
        Ok(())
    }

    fn side(
        &self,
        qps: &[&Qp],
        private_data: &[u8],
        path: PathTerms,
    ) -> Result<Introduction, DeviceError> {
        check_len("private data", private_data.len(), PRIVATE_DATA_MAX)?;
        check_len("the list of queue pairs", qps.len(), QPS_MAX)?;
        Ok(Introduction {
            node: self.node(),
            qps: qps.iter().map(|qp| qp.address()).collect(),
            private_data: private_data.to_vec(),
            path,
        })
    }
}

/// The path with what both sides allow. `theirs`: what the peer has said.
fn agreed(path: NetworkPath, theirs: PathTerms) -> Result<NetworkPath, DeviceError> {
    let mtu = (theirs.mtu()).ok_or(DeviceError::Handshake("the peer sent an invalid path MTU"))?;
    Ok(NetworkPath {
        mtu: path.mtu.min(mtu),
        selective: path.selective && theirs.is_selective(),
        ..path
    })
}

/// Connects our queue pairs to those of the peer: over a path to its host, or on this host.
fn connect_all(qps: &[&Qp], peer: &Peer, path: Option<NetworkPath>) -> Result<(), DeviceError> {
    for (ours, theirs) in qps.iter().zip(&peer.qps) {
        match path {
            Some(path) => ours.connect_to_host(*theirs, path.peer, path.mtu, path.selective)?,
            None => ours.connect(peer.node, *theirs)?,
        }
    }
    Ok(())
}

/// Sends a request to the listener that `dial` reaches, and waits for the answer: until the deadline, or for the duration
/// `answer`.
///
/// A listener drops clients that stay silent for a second, or earlier if too many are waiting. This thread is such a
/// client if it gets no processor. The socket shows whether the listener has read our request; if not, we dial again.
fn ask(
    dial: impl Fn(bool) -> Result<Reached, DeviceError>,
    request: &ConnectMessage,
    deadline: Deadline,
    answer: Option<Duration>,
) -> Result<(Reached, ConnectMessage), DeviceError> {
    let mut until = None;
    for attempt in 0..=REDIALS {
        let again = attempt > 0;
        if again {
            std::thread::sleep(REDIAL_PAUSE);
        }
        let there = dial(again)?;
        match there.channel.send(request) {
            Ok(()) => {}
            Err(DeviceError::Handshake(_)) => continue,
            Err(error) => return Err(error),
        }
        let until = until.get_or_insert_with(|| {
            let what = "the listener's answer";
            answer.map_or(deadline, |time| Deadline::after(what, time))
        });
        if let Some(packet) = there.channel.receive(until)? {
            return Ok((there, packet));
        }
    }
    Err(DeviceError::Handshake(
        "the listener keeps closing connections before it reads the requests",
    ))
}

/// A deadline, and what must happen by then.
#[derive(Clone, Copy, Debug)]
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

#[cfg(test)]
mod tests {
    use super::channel::Channel;
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::cell::Cell;

    /// A listener's behaviour towards a client.
    #[derive(Clone, Copy)]
    enum Behaviour {
        DropsAtOnce,
        /// Drops the client after the request has arrived, before reading it.
        DropsUnread,
        DropsRead,
        Answers,
    }
    use Behaviour::{Answers, DropsAtOnce, DropsRead, DropsUnread};

    fn serve(channel: Channel, listener: Behaviour) {
        let request = || while channel.try_receive().unwrap().is_none() {};
        match listener {
            DropsAtOnce => {}
            DropsUnread => wait_for(&channel),
            DropsRead => request(),
            Answers => {
                request();
                channel.send(&ConnectMessage::Ready).unwrap();
            }
        }
    }

    fn wait_for(channel: &Channel) {
        use std::os::fd::AsFd;
        crate::objects::event_queue::wait_readable(channel.as_fd(), None).unwrap();
    }

    /// Dials listeners with these behaviours, one after the other, and the last one repeatedly. Returns the number of attempts and
    /// the answer.
    fn ask_them(listeners: &[Behaviour]) -> (usize, Result<ConnectMessage, DeviceError>) {
        let dials = Cell::new(0);
        let answer = std::thread::scope(|scope| {
            let dial = |again| {
                assert_eq!(again, dials.get() > 0);
                let listener = listeners[dials.get().min(listeners.len() - 1)];
                dials.set(dials.get() + 1);
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
                let (ours, theirs) = pair.unwrap();
                let theirs = Channel::Local(theirs);
                match listener {
                    DropsAtOnce => serve(theirs, listener),
                    _ => drop(scope.spawn(move || serve(theirs, listener))),
                }
                Ok(Reached {
                    channel: Channel::Local(ours),
                    uid: 0,
                    pid: None,
                })
            };
            let deadline = Deadline::after("the connection", Duration::from_secs(60));
            ask(
                dial,
                &ConnectMessage::Rejected("a request".into()),
                deadline,
                None,
            )
        });
        (dials.get(), answer.map(|(_, packet)| packet))
    }

    #[test]
    fn a_listener_that_closes_before_reading_is_redialled() {
        let (dials, answer) = ask_them(&[DropsAtOnce, DropsUnread, DropsAtOnce, Answers]);
        assert_eq!((dials, answer.unwrap()), (4, ConnectMessage::Ready));
        let (dials, answer) = ask_them(&[DropsUnread]);
        assert_eq!(dials, REDIALS as usize + 1);
        let why = answer.unwrap_err().to_string();
        assert!(why.contains("before it reads the requests"), "{why}");
    }

    #[test]
    fn a_listener_that_closes_after_reading_is_not_redialled() {
        let (dials, answer) = ask_them(&[DropsUnread, DropsRead, Answers]);
        assert_eq!(dials, 2);
        let why = answer.unwrap_err().to_string();
        assert!(why.contains("the peer closed the connection"), "{why}");
    }
}
