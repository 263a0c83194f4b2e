//! TCP connections to other hosts whose queue pairs are connected to ours. The peer's system closes a connection when the peer's
//! process ends, and our system closes it when the peer's host stops responding. The queue pairs then fail.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_engine::QpId;
use rustix::net::Shutdown;

use crate::cm::fork::{self, CloseInChild};
use crate::error::DeviceError;
use crate::progress::EngineDriver;
use crate::progress::reactor::{Reactor, Token};

/// How long to wait for the last acknowledgements of a peer whose connection has ended.
const GRACE: Duration = Duration::from_millis(50);
/// The pause between two checks whether they have arrived.
const PAUSE: Duration = Duration::from_millis(1);

/// The connections of a device.
pub(crate) struct Streams(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    streams: HashMap<Token, Stream>,
    by_qp: HashMap<QpId, Token>,
    /// Queue pairs whose connection has ended, and when to stop waiting for the peer's last acknowledgements.
    ending: Vec<(Instant, QpId, u32)>,
}

struct Stream {
    socket: Arc<OwnedFd>,
    host: IpAddr,
    /// The ids and numbers of our queue pairs.
    qps: Vec<(QpId, u32)>,
}

impl Stream {
    /// Ends the connection, even if a forked child has a copy of the socket.
    fn close(self, reactor: &Reactor) {
        reactor.remove(&self.socket);
        // Fails only if the connection has already ended.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
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
    /// Watches a connection until it or its queue pairs end.
    ///
    /// # Errors
    /// The system cannot watch another descriptor.
    pub(crate) fn watch(
        &self,
        reactor: &Reactor,
        socket: Arc<OwnedFd>,
        host: IpAddr,
        qps: Vec<(QpId, u32)>,
    ) -> Result<(), DeviceError> {
        let mut table = self.0.lock();
        let token = reactor.new_token();
        reactor.add(&socket, token)?;
        table.by_qp.extend(qps.iter().map(|(qp, _)| (*qp, token)));
        let stream = Stream { socket, host, qps };
        table.streams.insert(token, stream);
        Ok(())
    }

    /// Handles a readable descriptor, if it is one of these. Returns whether the engine thread should drive.
    pub(crate) fn handle(&self, reactor: &Reactor, token: Token, now: Instant) -> bool {
        let mut table = self.0.lock();
        // The peer sends nothing after the handshake, so a readable connection has ended, or the peer violates the protocol.
        let Some(stream) = table.streams.remove(&token) else {
            return false;
        };
        tracing::info!("the peer on host {} has closed the connection", stream.host);
        for &(qp, qpn) in &stream.qps {
            // A queue pair that was connected again belongs to a later connection.
            if table.by_qp.get(&qp) == Some(&token) {
                table.by_qp.remove(&qp);
                table.ending.push((now + GRACE, qp, qpn));
            }
        }
        stream.close(reactor);
        true
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

    /// Ends all connections, so that peers notice.
    pub(crate) fn close(&self, reactor: &Reactor) {
        let mut table = self.0.lock();
        table.by_qp.clear();
        table.ending.clear();
        for (_, stream) in table.streams.drain() {
            stream.close(reactor);
        }
    }

    /// Forgets a queue pair that is being destroyed, and ends the connection with the last one.
    pub(crate) fn forget(&self, reactor: &Reactor, qp: QpId) {
        let mut table = self.0.lock();
        let Some(token) = table.by_qp.remove(&qp) else {
            return;
        };
        let Some(stream) = table.streams.get_mut(&token) else {
            return;
        };
        stream.qps.retain(|(id, _)| *id != qp);
        if stream.qps.is_empty()
            && let Some(stream) = table.streams.remove(&token)
        {
            stream.close(reactor);
        }
    }
}
