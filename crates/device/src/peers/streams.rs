//! TCP connections to other hosts whose queue pairs are connected to ours. The peer's system closes a connection when the peer's
//! process ends, and our system closes it when the peer's host stops responding. The queue pairs then fail.
//!
//! A side that destroys a queue pair sends over the connection what the queue pair has executed: the acknowledgement is a packet
//! that may be lost, and nothing answers its retransmission.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::QpId;
use rkey_roce::packet::{Aeth, Body, Credits, Headers, Packet, Psn, Reliable, Response, Syndrome};
use rustix::net::Shutdown;

use crate::cm::fork::{self, CloseInChild};
use crate::connect::packet::{ConnectMessage, PacketRead, encode};
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
/// How many messages to read from a connection before other descriptors have their turn.
const BURST: usize = 64;

/// The connections of a device.
pub(crate) struct Streams(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    streams: HashMap<Token, WatchedStream>,
    by_qp: HashMap<QpId, Token>,
    /// Queue pairs whose connection has ended, and when to stop waiting for the peer's last acknowledgements.
    ending: Vec<(Instant, QpId, u32)>,
}

struct WatchedStream {
    file: StreamFile,
    stream: Arc<Stream>,
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
        let stream = WatchedStream { file, stream, qps };
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
        let stream = {
            let table = self.0.lock();
            table.streams.get(&token).map(|it| Arc::clone(&it.stream))
        };
        let Some(stream) = stream else {
            return false;
        };
        for _ in 0..BURST {
            match stream.read() {
                Ok(PacketRead::Packet(ConnectMessage::Executed { qpn, psn })) => {
                    if self.0.lock().has(token, qpn) {
                        acknowledge(driver, &stream, qpn, psn);
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
                table.ending.push((now + GRACE, qp, qpn));
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
            .partition(|(until, qp, _)| *until <= now || sends(*qp) == 0);
        self.0.lock().ending.extend(remaining);
        for (_, qp, qpn) in over {
            driver.peer_ended(qp, qpn);
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

    /// Tells the peer of a queue pair that is being destroyed what it has executed ([`Engine::wire_executed`]), and ends the
    /// connection with the last queue pair.
    ///
    /// [`Engine::wire_executed`]: rkey_engine::Engine::wire_executed
    pub(crate) fn forget(&self, reactor: &Reactor, qp: QpId, executed: Option<(u32, Psn)>) {
        let mut table = self.0.lock();
        let Some(token) = table.by_qp.remove(&qp) else {
            return;
        };
        let Some(watched) = table.streams.get_mut(&token) else {
            return;
        };
        if let Some((qpn, psn)) = executed {
            let psn = psn.get();
            // Fails if the connection has ended, or if the peer does not read it: then the peer has only the packets.
            let _ = watched
                .stream
                .send(&encode(&ConnectMessage::Executed { qpn, psn }));
        }
        watched.qps.retain(|(id, _)| *id != qp);
        if watched.qps.is_empty()
            && let Some(watched) = table.streams.remove(&token)
        {
            watched.close(reactor);
        }
    }
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
