//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rkey_core::{Access, Api, Denial};
use rkey_engine::{
    DenialReport, Peer, QpAttributes, QpConfig, QpId, QpInfo, QpState, QpType, RecvRequest,
    SendRequest, Sge, Side, WarrantScope, WirePeer,
};
use rkey_link::NodeId;
use rkey_roce::packet::Mtu;
use rkey_roce::transport::Counters;

use crate::connect::packet::ConnectMessage;
use crate::device::Device;
use crate::error::DeviceError;
use crate::objects::Membership;
use crate::objects::async_queues::EventSource;
use crate::objects::cq::Cq;
use crate::objects::qp_address::QpAddress;
use crate::objects::qp_table::QpEntry;
use crate::objects::srq::Srq;
use crate::peers::streams;

/// How long a datagram queue pair that is destroyed waits for links to the destinations of its datagrams.
const LINK_TIME: Duration = Duration::from_millis(250);

/// The fixed attributes of a queue pair, with the device's queues. `endpoint` is the number passed to
/// [`Device::bind_endpoint`], `peer` the one in a [`RegionSpec`](crate::core::RegionSpec).
pub type QpOptions = QpConfig<Cq, Srq>;

/// A queue pair. Clones are the same queue pair; the last one destroys it, unless [`Qp::destroy`] has.
#[derive(Clone, Debug)]
pub struct Qp(Arc<QpInner>);

#[derive(Debug)]
struct QpInner {
    device: Device,
    id: QpId,
    qpn: u32,
    /// Number of the first message that it will send when it is connected by [`Qp::connect`].
    first_msn: u32,
    options: QpOptions,
    membership: Mutex<Membership>,
    destroyed: AtomicBool,
}

impl Device {
    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`], [`DeviceError::Limit`], [`DeviceError::Core`] (no such domain),
    /// [`DeviceError::Unknown`] (a queue of another device).
    pub fn create_qp(&self, options: &QpOptions) -> Result<Qp, DeviceError> {
        self.check()?;
        self.check_queue(
            "sends in one queue pair",
            options.max_send,
            options.max_send_sge,
        )?;
        self.check_queue(
            "receives in one queue pair",
            options.max_recv,
            options.max_recv_sge,
        )?;
        let inline_limit = self.config().max_inline;
        if options.max_inline > inline_limit {
            return Err(DeviceError::TooLarge {
                what: "bytes of inline data",
                wanted: options.max_inline.into(),
                limit: inline_limit.into(),
                variable: "RKEY_MAX_INLINE",
            });
        }
        if !self.is(options.send_cq.device()) || !self.is(options.recv_cq.device()) {
            return Err(DeviceError::Unknown {
                what: "completion queue",
            });
        }
        if options
            .srq
            .as_ref()
            .is_some_and(|srq| !self.is(srq.device()))
        {
            return Err(DeviceError::Unknown {
                what: "shared receive queue",
            });
        }
        let first_msn = getrandom::u32()
            .map_err(|e| DeviceError::io("choosing the first MSN")(std::io::Error::other(e)))?
            & 0x00ff_ffff;
        let shared = self.shared();
        let qpn = shared
            .qp_numbers
            .allocate(|block, fd| shared.add_block(block, fd))?;
        let config = options.numbered(Cq::id, Srq::id);
        match shared
            .driver
            .command(|engine| engine.create_qp(&config, qpn))
        {
            Ok(id) => {
                let entry = QpEntry {
                    id,
                    qp_type: config.qp_type,
                    fails_with_peer: options.fail_with_peer,
                    logs_denials: self.config().logs_own_denials,
                    // Verbs has no event for it. An event that verbs drops would still make its event descriptor readable, and a
                    // program that polls the descriptor (tgtd) would then wait for an event that never comes.
                    reports_end: self.config().api != Api::Verbs,
                };
                shared.qps.insert(qpn, entry);
                shared.events.add(EventSource::Qp(id), self.events());
                let (device, options) = (self.clone(), options.clone());
                Ok(Qp(Arc::new(QpInner {
                    device,
                    id,
                    qpn,
                    first_msn,
                    options,
                    membership: Mutex::default(),
                    destroyed: AtomicBool::new(false),
                })))
            }
            Err(error) => {
                self.shared().qp_numbers.free(qpn);
                Err(self.limit_of(error, "queue pairs", "RKEY_MAX_QPS"))
            }
        }
    }
}

impl Qp {
    /// The queue pair's id in the engine.
    #[must_use]
    pub fn id(&self) -> QpId {
        self.0.id
    }

    /// The queue pair number, which peers on this host use to find the queue pair.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.0.qpn
    }

    /// The information that a peer needs for [`Qp::connect`].
    #[must_use]
    pub fn address(&self) -> QpAddress {
        QpAddress {
            qpn: self.0.qpn,
            msn: self.0.first_msn,
        }
    }

    pub(crate) fn membership(&self) -> &Mutex<Membership> {
        &self.0.membership
    }

    /// The attributes with which the queue pair was created.
    #[must_use]
    pub fn options(&self) -> &QpOptions {
        &self.0.options
    }

    /// The device that the queue pair belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Changes the queue pair's state or attributes. A queue pair that gets a peer starts to search for the peer at once; the
    /// peer need not exist yet. If the change ends rights of the peer, its writes have ended when this returns.
    ///
    /// # Errors
    /// [`DeviceError::Modify`], [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        let ends_rights = matches!(attributes.state, Some(QpState::Reset | QpState::Error));
        if ends_rights {
            shared.driver.repeat_acknowledgement(self.0.id);
        }
        let agreement = self.take_agreement(attributes);
        let attributes = &QpAttributes {
            selective: attributes.selective.or(agreement),
            ..*attributes
        };
        let modified = shared
            .driver
            .post(|engine| engine.modify_qp(self.0.id, attributes));
        if modified.is_err() && agreement == Some(true) {
            // The program may try again.
            self.return_agreement(attributes);
        }
        modified?;
        if ends_rights {
            // The peer's last acknowledgements must leave before the message with which the program then ends the connection.
            shared.driver.drain_packets();
        }
        if ends_rights || attributes.access.is_some() || attributes.peer.is_some() {
            let scope = WarrantScope::Qp(self.0.id);
            shared.reclaim.end_warrants(&shared.driver, scope);
        }
        Ok(())
    }

    /// Whether the peer on another host, to which these attributes connect the queue pair, uses selective retransmission, as its connection
    /// manager has said. Forgets it.
    fn take_agreement(&self, attributes: &QpAttributes) -> Option<bool> {
        let (host, peer) = attributes.wire.zip(attributes.peer)?;
        let wire = self.0.device.wire()?;
        Some(wire.take_agreement(host.remote, peer.qpn))
    }

    /// Undoes [`Qp::take_agreement`], which has returned `Some(true)`.
    fn return_agreement(&self, attributes: &QpAttributes) {
        let wire = self.0.device.wire();
        if let (Some(wire), Some((host, peer))) = (wire, attributes.wire.zip(attributes.peer)) {
            wire.agree(host.remote, peer.qpn);
        }
    }

    /// Records a refused operation that the peer requested in a message, for front ends that execute their own operations. The
    /// denial is kept, logged and counted like one of the engine's. Returns whether the peer may learn the reason
    /// (`RKEY_EXPLAIN`).
    #[must_use = "the result says whether the peer may learn the reason"]
    pub fn note_refusal(&self, denial: Denial) -> bool {
        let Ok(info) = self.query() else { return false };
        let peer = info.attributes.peer;
        let shared = self.0.device.shared();
        let link = shared.driver.lock().inbound_link(self.0.id);
        let may_explain = link.is_some_and(|link| shared.driver.count_denied(link, &denial));
        let host = match link {
            Some(_) => None,
            None => shared.driver.count_denied_of_host(self.0.id, &denial),
        };
        shared.denials.note(DenialReport {
            id: 0,
            echo: false,
            side: Side::Target,
            qpn: info.qpn,
            peer_qpn: peer.map_or(0, |peer| peer.qpn),
            peer: peer.and_then(|peer| peer.node).unwrap_or_default(),
            host,
            work_id: None,
            denial,
        });
        may_explain
    }

    /// The current state and attributes.
    ///
    /// # Errors
    /// [`DeviceError::Forked`], [`DeviceError::Failed`].
    pub fn query(&self) -> Result<QpInfo, DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        shared
            .driver
            .command(|engine| engine.query_qp(self.0.id))
            .ok_or(DeviceError::Unknown { what: "queue pair" })
    }

    /// Destroys the queue pair, even if clones of it exist: their calls then fail with [`DeviceError::Unknown`]. When this returns,
    /// the queue pair no longer counts as a user of its protection domain and queues, unless another thread is destroying it at the
    /// same time.
    pub fn destroy(&self) {
        self.0.destroy();
    }

    /// Ends the connection with a queue pair of another host, and tells it why: its device reports [`AsyncEvent::PeerGone`] with this
    /// number, even if this process exits next. Both programs must agree on the numbers. Move the queue pair to the error state first:
    /// the peer learns which of its requests were executed until now. Returns false, and tells nothing, if the peer is on this host,
    /// the handshake has not ended yet on this side, or the connection has already ended.
    ///
    /// [`AsyncEvent::PeerGone`]: rkey_engine::AsyncEvent::PeerGone
    pub fn disconnect(&self, why: u8) -> bool {
        let shared = self.0.device.shared();
        if !shared.lifecycle().is_usable() {
            return false;
        }
        let (executed, info) = shared.driver.command(|engine| {
            let executed = engine.wire_executed(self.0.id);
            (executed, engine.query_qp(self.0.id))
        });
        let Some(peer) = info.and_then(|info| info.attributes.peer) else {
            return false;
        };
        let left = ConnectMessage::Left { qpn: peer.qpn, why };
        let last: Vec<_> = streams::executed(executed)
            .into_iter()
            .chain([left])
            .collect();
        (shared.streams).forget(&shared.reactor, self.0.id, &last)
    }

    /// Whether the queue pair has been destroyed, or is being destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.0.destroyed.load(Ordering::Acquire)
    }

    /// Waits, at most a quarter of a second, until the datagrams that wait for a link to their destination are sent. Destroying
    /// the queue pair waits, too, because a NIC sends posted datagrams within microseconds, and programs rely on that. Does
    /// nothing for other types of queue pairs.
    pub fn send_waiting_datagrams(&self) {
        if self.0.device.shared().lifecycle().is_usable() {
            self.0.send_waiting_datagrams();
        }
    }

    /// Moves the queue pair from RESET (with all remote rights) or INIT to RTS, connected to a queue pair of this or another
    /// device, with the timeouts of the configuration.
    ///
    /// # Errors
    /// Same as [`Qp::modify`].
    pub fn connect(&self, node: NodeId, peer: QpAddress) -> Result<(), DeviceError> {
        self.to_rts(self.steps_to_rts(Some(node), peer))
    }

    /// Like [`Qp::connect`], to a queue pair of another host.
    ///
    /// # Errors
    /// Same as [`Qp::modify`].
    pub(crate) fn connect_to_host(
        &self,
        peer: QpAddress,
        host: WirePeer,
        mtu: Mtu,
        selective: bool,
    ) -> Result<(), DeviceError> {
        let [init, mut rtr, rts] = self.steps_to_rts(None, peer);
        rtr.wire = Some(host);
        rtr.path_mtu = Some(mtu.bytes() as u32);
        rtr.selective = Some(selective);
        self.to_rts([init, rtr, rts])
    }

    fn to_rts(&self, [init, rtr, rts]: [QpAttributes; 3]) -> Result<(), DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        // All steps are one command, so that the queue pair cannot fail between two steps because its peer has ended.
        shared.driver.post(|engine| {
            let state = engine.query_qp(self.0.id).map(|info| info.state);
            if state == Some(QpState::Reset) {
                engine.modify_qp(self.0.id, &init)?;
            }
            engine.modify_qp(self.0.id, &rtr)?;
            engine.modify_qp(self.0.id, &rts)
        })?;
        Ok(())
    }

    /// The attributes for the three steps from RESET to RTS.
    fn steps_to_rts(&self, node: Option<NodeId>, peer: QpAddress) -> [QpAttributes; 3] {
        let mut rtr = QpAttributes::rtr(
            Peer {
                qpn: peer.qpn,
                node,
            },
            peer.msn,
        );
        let mut rts = QpAttributes::rts(self.0.first_msn);
        if self.0.options.qp_type == QpType::Rc {
            let config = self.0.device.config();
            rts.timeout = Some(config.timeout);
            rts.retry_count = Some(config.retry_count);
            rts.rnr_retry = Some(config.rnr_retry);
        } else {
            rtr.max_reads_in = None;
            rtr.min_rnr_timer = None;
            rts.timeout = None;
            rts.retry_count = None;
            rts.rnr_retry = None;
            rts.max_reads_out = None;
        }
        [self.init_attributes(), rtr, rts]
    }

    fn init_attributes(&self) -> QpAttributes {
        match self.0.options.qp_type {
            QpType::Rc => QpAttributes::init(
                Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            ),
            _ => QpAttributes::init(Access::REMOTE_WRITE),
        }
    }

    /// Posts a work request to the send queue.
    ///
    /// The memory that the request names must stay valid until its completion.
    ///
    /// # Errors
    /// [`DeviceError::Post`]: nothing was posted. [`DeviceError::Forked`], [`DeviceError::Failed`].
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        shared
            .driver
            .post(|engine| engine.post_send(self.0.id, request))?;
        Ok(())
    }

    /// Sends a short message at once: `prefix`, then the bytes of `sge`, as [`Qp::post_send`] would. Returns false, with nothing
    /// changed, if that is not possible now; then [`Qp::post_send`] decides.
    #[inline]
    #[must_use = "a message that was not sent must be posted"]
    pub fn post_short<const N: usize>(&self, id: u64, prefix: &[u8; N], sge: Sge) -> bool {
        let shared = self.0.device.shared();
        shared.lifecycle().check().is_ok()
            && shared
                .driver
                .post(|engine| engine.post_short(self.0.id, id, prefix, sge))
    }

    /// Posts work requests in order until one is refused, with one doorbell for all.
    ///
    /// # Errors
    /// The number of posted requests, and why the next one was refused.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, DeviceError)> {
        let shared = self.0.device.shared();
        shared.lifecycle().check().map_err(|e| (0, e))?;
        shared.driver.post(|engine| {
            for (index, request) in requests.iter().enumerate() {
                let mut request = *request;
                if index + 1 < requests.len() {
                    request.flags |= rkey_engine::SendFlags::MORE;
                }
                engine
                    .post_send(self.0.id, &request)
                    .map_err(|e| (index, e.into()))?;
            }
            Ok(())
        })
    }

    /// Posts work requests in order, all or none, with one doorbell for all.
    ///
    /// # Errors
    /// The request that was refused, and why. Nothing was posted.
    pub fn post_all_sends<'a>(
        &self,
        requests: impl ExactSizeIterator<Item = SendRequest<'a>> + Clone,
    ) -> Result<(), (usize, DeviceError)> {
        let shared = self.0.device.shared();
        shared.lifecycle().check().map_err(|e| (0, e))?;
        shared.driver.post(|engine| {
            if requests.len() > 1 {
                engine
                    .check_sends(self.0.id, requests.clone())
                    .map_err(|(index, e)| (index, e.into()))?;
            }
            let last = requests.len().saturating_sub(1);
            for (index, mut request) in requests.enumerate() {
                request
                    .flags
                    .set(rkey_engine::SendFlags::MORE, index < last);
                // All are posted even if an earlier one fails the queue pair, because a queue pair in the error state
                // accepts posts.
                engine
                    .post_send(self.0.id, &request)
                    .map_err(|e| (index, e.into()))?;
            }
            Ok(())
        })
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Same as [`Qp::post_send`].
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), DeviceError> {
        let shared = self.0.device.shared();
        shared.lifecycle().check()?;
        shared
            .driver
            .post(|engine| engine.post_recv(self.0.id, request))?;
        Ok(())
    }
}

fn met_loss_or_congestion(counters: &Counters) -> bool {
    let lost = counters.retransmitted > 0 || counters.out_of_sequence > 0;
    lost || counters.marked > 0 || counters.cnps_received > 0
}

impl QpInner {
    fn send_waiting_datagrams(&self) {
        if self.options.qp_type != QpType::Ud {
            return;
        }
        let driver = &self.device.shared().driver;
        let until = Instant::now() + LINK_TIME;
        let are_waiting = || {
            let info = driver.command(|engine| engine.query_qp(self.id));
            info.is_some_and(|info| info.state == QpState::Rts && info.sends > 0)
        };
        while are_waiting() && Instant::now() < until {
            driver.drive_until_idle();
            crate::time::sleep(Duration::from_micros(50));
        }
    }

    fn destroy(&self) {
        let shared = self.device.shared();
        if self.destroyed.swap(true, Ordering::AcqRel) || !shared.lifecycle().is_usable() {
            return;
        }
        self.send_waiting_datagrams();
        shared.qps.remove(self.qpn);
        shared.events.remove(EventSource::Qp(self.id));
        shared.driver.repeat_acknowledgement(self.id);
        let (executed, counters, pushed, destroyed) = shared.driver.command(|engine| {
            let executed = engine.wire_executed(self.id);
            let counters = engine.wire_counters(self.id);
            let pushed = engine.pushed(self.id);
            (executed, counters, pushed, engine.destroy_qp(self.id))
        });
        if pushed > 0 {
            tracing::debug!(qpn = self.qpn, pushed, "a queue pair has pushed writes");
        }
        if let Some(counters) = counters
            && met_loss_or_congestion(&counters)
        {
            let qpn = self.qpn;
            tracing::info!(
                ?counters,
                "the packets of queue pair {qpn:#x} met loss or congestion"
            );
        }
        if let Err(error) = destroyed {
            tracing::debug!(qpn = self.qpn, %error, "cannot destroy the queue pair");
        }
        let scope = WarrantScope::Qp(self.id);
        shared.reclaim.end_warrants(&shared.driver, scope);
        shared.driver.drain_packets();
        // After the last acknowledgement, so that the peer gets it before the end of the connection.
        let last = streams::executed(executed);
        (shared.streams).forget(&shared.reactor, self.id, last.as_slice());
        self.membership.lock().remove_all(&shared.adverts);
        shared.qp_numbers.free(self.qpn);
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.destroy();
    }
}
