//! TCP connections to other hosts whose queue pairs are connected to ours. The peer's system closes a connection when the peer's
//! process ends, and our system closes it when the peer's host stops responding. The queue pairs then fail.
//!
//! A side that destroys a queue pair sends over the connection what the queue pair has executed: the acknowledgement is a packet
//! that may be lost, and nothing answers its retransmission. It may also say why it ends the connection.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::QpId;
use rkey_roce::packet::{Aeth, Body, Credits, Headers, Packet, Psn, Reliable, Response, Syndrome};
use rustix::net::Shutdown;

use crate::cm::fork::{self, CloseInChild};
use crate::connect::packet::{ConnectMessage, PacketRead, QPS_MAX, encode};
use crate::connect::stream::Stream;
use crate::error::DeviceError;
use crate::peers::link_limits::StreamFile;
use crate::peers::names::network_of;
use crate::progress::EngineDriver;
use crate::progress::reactor::{Reactor, Token};
use crate::wire::Arrived;

/// How long to wait for the last acknowledgements of a peer whose connection has ended.
const GRACE: Duration = Duration::from_millis(50);
/// The pause between two checks whether they have arrived.
const PAUSE: Duration = Duration::from_millis(1);
/// How many messages to read from a connection before other descriptors have their turn: more than a peer has to say, because nothing
/// shows that a message waits in our memory.
const BURST: usize = 2 * QPS_MAX + 1;

/// The connections of a device.
pub(crate) struct Streams(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    streams: HashMap<Token, WatchedStream>,
    by_qp: HashMap<QpId, Token>,
    ending: Vec<Ending>,
}

/// A queue pair whose connection has ended.
struct Ending {
    qp: QpId,
    qpn: u32,
    /// What the peer has said about it.
    why: Option<u8>,
    /// When to stop waiting for the peer's last acknowledgements.
    until: Instant,
}

struct WatchedStream {
    file: StreamFile,
    stream: Arc<Stream>,
    /// Locked by the thread that reads the connection, until it has handled what it has read.
    reading: Arc<Mutex<()>>,
    /// The ids and numbers of our queue pairs.
    qps: Vec<(QpId, u32)>,
}

impl WatchedStream {
    /// Ends the connection, even if a forked child has a copy of the socket.
    fn close(self, reactor: &Reactor) {
        let socket = self.stream.socket();
        reactor.remove(socket);
        // Fails only if the connection has already ended.
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
    }
}

impl Table {
    /// Whether a connection has a queue pair with this number.
    fn has(&self, token: Token, qpn: u32) -> bool {
        let is_one =
            |(id, number): &(QpId, u32)| *number == qpn && self.by_qp.get(id) == Some(&token);
        let watched = self.streams.get(&token);
        watched.is_some_and(|watched| watched.qps.iter().any(is_one))
    }

    /// Ends the connection of the queue pair with this number, which the peer has left. Returns the TCP connection if that was its last
    /// queue pair.
    fn leave(&mut self, token: Token, qpn: u32, why: u8, until: Instant) -> Option<WatchedStream> {
        let watched = self.streams.get_mut(&token)?;
        for (qp, qpn) in watched.qps.extract_if(.., |(_, number)| *number == qpn) {
            // A queue pair that was connected again belongs to a later connection.
            if self.by_qp.get(&qp) == Some(&token) {
                self.by_qp.remove(&qp);
                self.ending.push(Ending {
                    qp,
                    qpn,
                    why: Some(why),
                    until,
                });
            }
        }
        if !watched.qps.is_empty() {
            return None;
        }
        self.streams.remove(&token)
    }
}

impl CloseInChild for Table {
    fn close_in_child(&mut self) {
        self.streams.clear();
    }
}

impl Default for Streams {
    fn default() -> Self {
        let table = Arc::default();
        fork::watch_last(&table);
        Self(table)
    }
}

impl Streams {
    /// Watches a connection until it or its queue pairs end. Call [`Streams::handle`] next: packets may have arrived together with
    /// the last one of the handshake.
    ///
    /// # Errors
    /// The system cannot watch another descriptor.
    pub(crate) fn watch(
        &self,
        reactor: &Reactor,
        stream: Arc<Stream>,
        qps: Vec<(QpId, u32)>,
        file: StreamFile,
    ) -> Result<Token, DeviceError> {
        let mut table = self.0.lock();
        let token = reactor.new_token();
        reactor.add(stream.socket(), token)?;
        table.by_qp.extend(qps.iter().map(|(qp, _)| (*qp, token)));
        let stream = WatchedStream {
            file,
            stream,
            reading: Arc::default(),
            qps,
        };
        table.streams.insert(token, stream);
        Ok(token)
    }

    /// Handles a readable descriptor, if it is one of these. Returns whether the engine thread should drive.
    pub(crate) fn handle(
        &self,
        reactor: &Reactor,
        driver: &EngineDriver,
        token: Token,
        now: Instant,
    ) -> bool {
        let watched = {
            let table = self.0.lock();
            let watched = table.streams.get(&token);
            watched.map(|it| (Arc::clone(&it.stream), Arc::clone(&it.reading)))
        };
        let Some((stream, reading)) = watched else {
            return false;
        };
        let _reading = reading.lock();
        for _ in 0..BURST {
            match stream.read() {
                Ok(PacketRead::Packet(ConnectMessage::Executed { qpn, psn })) => {
                    if self.0.lock().has(token, qpn) {
                        acknowledge(driver, &stream, qpn, psn);
                    }
                }
                Ok(PacketRead::Packet(ConnectMessage::Left { qpn, why })) => {
                    let unused = self.0.lock().leave(token, qpn, why, now + GRACE);
                    if let Some(unused) = unused {
                        unused.close(reactor);
                        break;
                    }
                }
                Ok(PacketRead::Nothing) => break,
                // The connection has ended, or the peer violates the protocol.
                _ => {
                    self.end(reactor, token, now);
                    break;
                }
            }
        }
        true
    }

    /// Ends a connection, and soon its queue pairs ([`Streams::tidy`]).
    fn end(&self, reactor: &Reactor, token: Token, now: Instant) {
        let mut table = self.0.lock();
        let Some(watched) = table.streams.remove(&token) else {
            return;
        };
        let host = watched.stream.path().peer.remote;
        for &(qp, qpn) in &watched.qps {
            // A queue pair that was connected again belongs to a later connection.
            if table.by_qp.get(&qp) == Some(&token) {
                table.by_qp.remove(&qp);
                table.ending.push(Ending {
                    qp,
                    qpn,
                    why: None,
                    until: now + GRACE,
                });
            }
        }
        drop(table);
        watched.close(reactor);
        // Last: the log may block.
        tracing::info!("the peer on host {host} has closed the connection");
    }

    /// Fails the queue pairs whose connection has ended, once nothing that they have sent is unacknowledged or [`GRACE`] has passed.
    /// The end of a TCP connection can overtake the last acknowledgements, which are packets of their own.
    pub(crate) fn tidy(&self, driver: &EngineDriver, now: Instant) {
        let ending = std::mem::take(&mut self.0.lock().ending);
        if ending.is_empty() {
            return;
        }
        let sends = |qp| driver.command(|engine| engine.query_qp(qp).map_or(0, |info| info.sends));
        let (over, remaining): (Vec<_>, Vec<_>) = ending
            .into_iter()
            .partition(|it: &Ending| it.until <= now || sends(it.qp) == 0);
        self.0.lock().ending.extend(remaining);
        for Ending { qp, qpn, why, .. } in over {
            driver.peer_ended(qp, qpn, why);
        }
    }

    /// When [`Streams::tidy`] must be called at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let is_waiting = !self.0.lock().ending.is_empty();
        is_waiting.then(|| Instant::now() + PAUSE)
    }

    /// How many connections a host has made; for IPv6, its network.
    pub(crate) fn of_host(&self, host: IpAddr) -> usize {
        let network = network_of(host);
        let table = self.0.lock();
        let accepted = (table.streams.values()).filter(|it| it.file.accepted);
        let peers = accepted.map(|it| network_of(it.stream.path().peer.remote));
        peers.filter(|peer| *peer == network).count()
    }

    /// Ends all connections, so that peers notice.
    pub(crate) fn close(&self, reactor: &Reactor) {
        let mut table = self.0.lock();
        table.by_qp.clear();
        table.ending.clear();
        for (_, stream) in table.streams.drain() {
            stream.close(reactor);
        }
    }

    /// Sends the last messages of a queue pair to its peer, and ends the connection with the last queue pair. Returns false if the queue
    /// pair has no connection, or no longer.
    pub(crate) fn forget(&self, reactor: &Reactor, qp: QpId, last: &[ConnectMessage]) -> bool {
        let mut table = self.0.lock();
        let Some(token) = table.by_qp.remove(&qp) else {
            return false;
        };
        let Some(watched) = table.streams.get_mut(&token) else {
            return false;
        };
        for message in last {
            // Fails if the connection has ended, or if the peer does not read it: then the peer has only the packets.
            let _ = watched.stream.send(&encode(message));
        }
        watched.qps.retain(|(id, _)| *id != qp);
        if watched.qps.is_empty()
            && let Some(watched) = table.streams.remove(&token)
        {
            watched.close(reactor);
        }
        true
    }
}

/// What tells the peer of a queue pair that it has executed these requests ([`Engine::wire_executed`]).
///
/// [`Engine::wire_executed`]: rkey_engine::Engine::wire_executed
pub(crate) fn executed(requests: Option<(u32, Psn)>) -> Option<ConnectMessage> {
    requests.map(|(qpn, psn)| ConnectMessage::Executed {
        qpn,
        psn: psn.get(),
    })
}

/// Lets the peer's queue pair number `qpn` acknowledge everything up to the packet `psn`, as a packet would.
fn acknowledge(driver: &EngineDriver, stream: &Stream, qpn: u32, psn: u32) {
    let syndrome = Syndrome::Ack(Credits::UNLIMITED);
    let response = Response::Acknowledge(Aeth { syndrome, msn: 0 });
    let body = Body::Response(Reliable::Rc, response);
    let peer = stream.path().peer;
    let arrived = Arrived {
        local: peer.local,
        remote: peer.remote,
        is_marked: false,
        packet: Packet {
            headers: Headers::new(qpn, Psn::new(psn), body),
            payload: &[],
        },
    };
    driver.receive_packets(&[arrived], false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::stream::pair;
    use crate::{Config, Device, QpOptions};
    use rkey_engine::{AsyncEvent, Completion, RecvRequest};

    const LONG: Duration = Duration::from_secs(30);

    /// Gives queue pairs a TCP connection. Returns the peer's end.
    fn connected(device: &Device, qps: &[&crate::Qp]) -> Arc<Stream> {
        let (ours, theirs) = pair();
        let qps = qps.iter().map(|qp| (qp.id(), qp.qpn())).collect();
        let (shared, file) = (device.shared(), StreamFile::new(true));
        (shared.streams)
            .watch(&shared.reactor, ours, qps, file)
            .unwrap();
        theirs
    }

    /// A peer ends the connections of its own queue pairs only, and the last one closes the TCP connection, although the peer has not
    /// closed it.
    #[test]
    fn a_peer_says_why_it_leaves_a_queue_pair() {
        let device = Device::open(Config::default()).unwrap();
        let cq = device.create_cq(4, None).unwrap();
        let options = QpOptions::new(device.create_domain().unwrap(), &cq);
        let [a, b, other] = [(); 3].map(|()| device.create_qp(&options).unwrap());
        let theirs = connected(&device, &[&a, &b]);
        let left = |qp: &crate::Qp, why| {
            let qpn = qp.qpn();
            theirs
                .send(&encode(&ConnectMessage::Left { qpn, why }))
                .unwrap();
        };
        left(&other, 1);
        for (qp, why) in [(&b, 2), (&a, 3)] {
            assert!(matches!(theirs.read(), Ok(PacketRead::Nothing)));
            left(qp, why);
            let gone = AsyncEvent::PeerGone {
                qp: qp.id(),
                qpn: qp.qpn(),
                why: Some(why),
            };
            assert_eq!(device.next_event(Some(LONG)).unwrap(), Some(gone));
        }
        assert_eq!(read(&theirs), PacketRead::Closed);
    }

    /// The next message.
    fn read(from: &Stream) -> PacketRead {
        let begun = Instant::now();
        loop {
            match from.read().unwrap() {
                PacketRead::Nothing => std::thread::yield_now(),
                read => return read,
            }
            assert!(begun.elapsed() < LONG, "nothing arrives");
        }
    }

    /// A peer's word for an earlier connection of a queue pair does not end the later one. A program that takes a flushed receive finds the reason.
    #[test]
    fn a_queue_pair_that_was_connected_again_stays() {
        let device = Device::open(Config::default()).unwrap();
        let cq = device.create_cq(4, None).unwrap();
        let options = QpOptions {
            fail_with_peer: true,
            ..QpOptions::new(device.create_domain().unwrap(), &cq)
        };
        let qp = device.create_qp(&options).unwrap();
        qp.connect(device.node(), device.create_qp(&options).unwrap().address())
            .unwrap();
        qp.post_recv(&RecvRequest { id: 1, sges: &[] }).unwrap();
        assert!(!qp.disconnect(1), "its peer is on this host");
        let [earlier, later] = [(); 2].map(|()| connected(&device, &[&qp]));
        let qpn = qp.qpn();
        let left = |why| encode(&ConnectMessage::Left { qpn, why });
        earlier.send(&left(1)).unwrap();
        assert_eq!(read(&earlier), PacketRead::Closed);
        assert_eq!(device.next_event(Some(Duration::ZERO)).unwrap(), None);
        later.send(&left(2)).unwrap();
        let begun = Instant::now();
        while cq.poll(&mut [Completion::default()]).unwrap() == 0 {
            assert!(begun.elapsed() < LONG, "nothing is flushed");
            std::thread::yield_now();
        }
        let gone = AsyncEvent::PeerGone {
            qp: qp.id(),
            qpn,
            why: Some(2),
        };
        assert_eq!(device.next_event(Some(Duration::ZERO)).unwrap(), Some(gone));
    }

    #[test]
    fn a_queue_pair_leaves_once() {
        let device = Device::open(Config::default()).unwrap();
        let cq = device.create_cq(4, None).unwrap();
        let options = QpOptions::new(device.create_domain().unwrap(), &cq);
        let qp = device.create_qp(&options).unwrap();
        let theirs = connected(&device, &[&qp]);
        let shared = device.shared();
        let last = || ConnectMessage::Left { qpn: 7, why: 9 };
        let forget = || shared.streams.forget(&shared.reactor, qp.id(), &[last()]);
        assert!(forget());
        assert!(!forget());
        assert_eq!(read(&theirs), PacketRead::Packet(last()));
        assert_eq!(read(&theirs), PacketRead::Closed);
    }
}
