//! TCP connections to other hosts that have connected queue pairs with ours. The peer's system closes its connection when the peer's
//! process ends, and ours when its host stops responding: then the queue pairs fail.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rkey_engine::QpId;
use rustix::net::Shutdown;

use crate::cm::fork::{self, CloseInChild};
use crate::error::DeviceError;
use crate::progress::EngineDriver;
use crate::progress::reactor::{Reactor, Token};

/// The connections of a device.
pub(crate) struct Streams(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    streams: HashMap<Token, Stream>,
    by_qp: HashMap<QpId, Token>,
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
        // It may have ended already.
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
    pub(crate) fn handle(&self, driver: &EngineDriver, reactor: &Reactor, token: Token) -> bool {
        let mut table = self.0.lock();
        // The peer sends nothing after the handshake, so a readable connection has ended, or the peer violates the protocol.
        let Some(stream) = table.streams.remove(&token) else {
            return false;
        };
        table.by_qp.retain(|_, it| *it != token);
        drop(table);
        tracing::info!("the peer on host {} has ended the connection", stream.host);
        for &(qp, qpn) in &stream.qps {
            driver.peer_ended(qp, qpn);
        }
        stream.close(reactor);
        true
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
