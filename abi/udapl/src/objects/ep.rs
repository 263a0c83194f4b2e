//! EPs (endpoints): queue pairs of the device, with DAT's states.
//!
//! [`Ep`] is the object: its parts, and how it posts. The rest of `impl Ep`, which handles its connection, is in
//! `connection.rs`. An EP with a PZ has a queue pair; a reset replaces it with a new one.

use crate::handles::fail::{Fail, Result};
use crate::objects::connection::Control;
use crate::objects::evd::Evd;
use crate::objects::ia::Ia;
use crate::objects::pz::Pz;
use crate::objects::requests::{Options, Posted, RequestKind, Requests};
use crate::objects::srq::Srq;
use crate::sys::IbAddrHandle;
use crate::sys::consts::*;
use crate::values::ep_attr::Attr;
use crate::values::ep_state::State;
use parking_lot::{Mutex, RwLock};
use rkey_device::core::Access;
use rkey_device::engine::{
    QpAttributes, QpType, RecvRequest, SendFlags, SendRequest, Sge, UdAddress, Work,
};
use rkey_device::{Qp, QpOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// How long a peer may take to answer requests of an EP that is being freed. After that time, the link to it is closed.
const PATIENCE: Duration = Duration::from_secs(1);

/// An endpoint.
pub struct Ep {
    ia: Arc<Ia>,
    /// The handle of the EP.
    pub handle: usize,
    state: AtomicI32,
    /// `recv_completion_flags` and `request_completion_flags`, for readers without a lock.
    flags: [AtomicU32; 2],
    datagram: bool,
    /// Whether the program knows, or is being told, that the queue pair takes no more receives from its SRQ.
    pub(crate) told_broken: AtomicBool,
    parts: RwLock<Parts>,
    /// The connection of the EP.
    pub control: Mutex<Control>,
    /// The posted requests.
    pub sends: Mutex<Requests>,
    /// The posted receives, if receives may be posted without notification.
    pub recvs: Mutex<Requests>,
}

/// The parts of an EP.
#[derive(Clone, Default)]
pub struct Parts {
    /// The PZ of the EP.
    pub pz: Option<Arc<Pz>>,
    /// The EVD for receives; `None` if the program wants no events.
    pub recv: Option<Arc<Evd>>,
    /// The EVD for requests; `None` if the program wants no events.
    pub request: Option<Arc<Evd>>,
    /// The EVD for events of its connection.
    pub connect: Option<Arc<Evd>>,
    /// The SRQ that its receives come from, if it has no receive queue.
    pub srq: Option<Arc<Srq>>,
    /// The attributes.
    pub attr: Attr,
    /// The queue pair.
    pub qp: Option<Qp>,
}

crate::kind!(Ep, HANDLE_TYPE_EP, INVALID_HANDLE_EP, RESOURCE_TEP, 1 << 16);

impl Parts {
    /// Adds the EP to the user counts of the objects that it uses.
    fn add_users(&self, ia: &Ia) -> Result {
        self.expect_receives(ia)?;
        ia.expect(self.request.as_deref(), self.attr.max_request_dtos)
            .inspect_err(|_| self.expect_no_receives(ia))?;
        for evd in [&self.recv, &self.request, &self.connect]
            .into_iter()
            .flatten()
        {
            evd.users.add();
        }
        if let Some(pz) = &self.pz {
            pz.users.add();
        }
        if let Some(srq) = &self.srq {
            srq.users.add();
        }
        Ok(())
    }

    /// Makes room for the completions of all receives that may be posted.
    fn expect_receives(&self, ia: &Ia) -> Result {
        match &self.srq {
            Some(srq) => srq.attach(self.recv.as_ref()),
            None => ia.expect(self.recv.as_deref(), self.attr.max_recv_dtos),
        }
    }

    /// Undoes [`Parts::expect_receives`].
    fn expect_no_receives(&self, ia: &Ia) {
        match &self.srq {
            Some(srq) => srq.detach(self.recv.as_ref()),
            None => ia.expect_less(self.recv.as_deref(), self.attr.max_recv_dtos),
        }
    }

    /// Undoes [`Parts::add_users`].
    fn release(&self, ia: &Ia) {
        for evd in [&self.recv, &self.request, &self.connect]
            .into_iter()
            .flatten()
        {
            evd.users.remove();
        }
        ia.expect_less(self.request.as_deref(), self.attr.max_request_dtos);
        self.expect_no_receives(ia);
        if let Some(pz) = &self.pz {
            pz.users.remove();
        }
        if let Some(srq) = &self.srq {
            srq.users.remove();
        }
    }

    /// Creates the queue pair, ready for receives.
    fn make_qp(&self, ia: &Ia) -> Result<Option<Qp>> {
        let Some(pz) = &self.pz else { return Ok(None) };
        let cq = |evd: &Option<Arc<Evd>>| match evd {
            Some(evd) => evd.cq().unwrap_or(&ia.sink_cq).clone(),
            None => ia.sink_cq.clone(),
        };
        let attr = &self.attr;
        let datagram = attr.service_type == IB_SERVICE_TYPE_UD;
        let options = QpOptions {
            qp_type: if datagram { QpType::Ud } else { QpType::Rc },
            send_cq: cq(&self.request),
            recv_cq: cq(&self.recv),
            srq: self.srq.as_ref().map(|srq| srq.queue.clone()),
            max_send: attr.max_request_dtos.max(1),
            max_recv: attr.max_recv_dtos.max(1),
            max_send_sge: attr.request_segments(),
            max_recv_sge: attr.max_recv_iov.max(1),
            max_inline: 0,
            ..QpOptions::new(pz.domain, &ia.sink_cq)
        };
        let qp = ia.device.create_qp(&options)?;
        match datagram {
            true => crate::objects::datagram::prepare(&qp)?,
            false => qp.modify(&QpAttributes::init(Access::REMOTE))?,
        }
        Ok(Some(qp))
    }
}

impl Ep {
    /// Creates an EP with these parts, and its queue pair if it has a PZ.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn new(ia: &Arc<Ia>, handle: usize, mut parts: Parts, state: State) -> Result<Arc<Self>> {
        parts.qp = parts.make_qp(ia)?;
        parts.add_users(ia)?;
        let attr = parts.attr;
        let ep = Arc::new(Self {
            ia: Arc::clone(ia),
            handle,
            state: AtomicI32::new(state as i32),
            flags: [attr.recv_completion_flags, attr.request_completion_flags].map(AtomicU32::new),
            datagram: attr.service_type == IB_SERVICE_TYPE_UD,
            told_broken: AtomicBool::default(),
            parts: RwLock::new(parts),
            control: Mutex::new(Control::new(ia)),
            sends: Mutex::default(),
            recvs: Mutex::default(),
        });
        if let Some(qp) = ep.qp() {
            ia.add_ep(qp.qpn(), &ep);
        }
        Ok(ep)
    }

    /// The IA that the object belongs to.
    #[must_use]
    pub fn ia(&self) -> &Arc<Ia> {
        &self.ia
    }

    /// The state of the EP.
    #[must_use]
    pub fn state(&self) -> State {
        State::from_number(self.state.load(Ordering::Acquire))
    }

    /// Stores the state of the EP. The caller holds `control`.
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as i32, Ordering::Release);
    }

    /// Whether the EP has a connection that can break.
    #[must_use]
    pub fn is_in_service(&self) -> bool {
        matches!(self.state(), State::Connected | State::DisconnectPending) && !self.datagram
    }

    /// Whether requests may be posted, to be executed or to be flushed at once.
    #[inline]
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        matches!(state, EP_STATE_CONNECTED | EP_STATE_DISCONNECTED) || self.datagram
    }

    /// Whether the EP sends datagrams.
    #[must_use]
    pub fn is_datagram(&self) -> bool {
        self.datagram
    }

    /// Whether receives may be posted without notification.
    #[inline]
    #[must_use]
    pub fn quiet_receives(&self) -> bool {
        self.flags[0].load(Ordering::Relaxed) & COMPLETION_UNSIGNALLED_FLAG != 0
    }

    /// Whether only messages that request a notification cause one.
    #[inline]
    #[must_use]
    pub fn waits_for_solicited(&self) -> bool {
        self.flags[0].load(Ordering::Relaxed) & COMPLETION_SOLICITED_WAIT_FLAG != 0
    }

    /// Whether requests may be posted without notification.
    #[inline]
    #[must_use]
    pub fn quiet_requests(&self) -> bool {
        self.flags[1].load(Ordering::Relaxed) & COMPLETION_UNSIGNALLED_FLAG != 0
    }

    /// A copy of its parts.
    #[must_use]
    pub fn parts(&self) -> Parts {
        self.parts.read().clone()
    }

    /// The EVD for connections.
    #[must_use]
    pub fn connect_evd(&self) -> Option<Arc<Evd>> {
        self.parts.read().connect.clone()
    }

    /// Whether the EP is in the PZ `pz`.
    #[must_use]
    pub fn is_in(&self, pz: &Arc<Pz>) -> bool {
        let parts = self.parts.read();
        parts.pz.as_ref().is_some_and(|own| Arc::ptr_eq(own, pz))
    }

    /// The queue pair.
    #[must_use]
    pub fn qp(&self) -> Option<Qp> {
        self.parts.read().qp.clone()
    }

    /// The state and queue pair, for inspection. Waits for no lock.
    #[must_use]
    pub fn in_words(&self) -> String {
        let state = self.state().name();
        let parts = self.parts.try_read();
        match parts.as_ref().and_then(|parts| parts.qp.as_ref()) {
            Some(qp) => format!("{state}; queue pair {:#x}", qp.qpn()),
            None => state.to_owned(),
        }
    }

    /// The address handle with which a program can send to the sender of a datagram.
    #[must_use]
    pub fn source_of(&self, qpn: u32) -> IbAddrHandle {
        self.ia.address_handle(qpn)
    }

    /// Posts a request.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`, `DAT_INVALID_STATE`, `DAT_LENGTH_ERROR`, `DAT_INVALID_PARAMETER`.
    pub fn post(
        &self,
        work: Work,
        sges: &[Sge],
        cookie: u64,
        options: Options,
        what: RequestKind,
    ) -> Result {
        self.post_to(work, sges, cookie, options, what, None)
    }

    /// Like [`Ep::post`], for a datagram.
    ///
    /// # Errors
    /// Same as [`Ep::post`].
    #[inline]
    pub fn post_to(
        &self,
        work: Work,
        sges: &[Sge],
        cookie: u64,
        options: Options,
        what: RequestKind,
        ud: Option<UdAddress>,
    ) -> Result {
        let mut flags = options.flags;
        let mut parts = self.parts.read();
        let mut sends = self.sends.lock();
        let most = parts.attr.max_request_dtos.max(1) as usize * 2;
        if sends.len() >= most || self.ia.is_crowded(parts.request.as_deref()) {
            drop((sends, parts));
            self.collect_requests();
            parts = self.parts.read();
            sends = self.sends.lock();
        }
        let qp = parts.qp.as_ref().ok_or_else(|| self.not_now())?;
        if parts.request.is_none() {
            flags.remove(SendFlags::SIGNALED);
        }
        let posted = Posted {
            cookie,
            notify: options.notify,
            what,
        };
        // Post under the lock, so that the completion finds the request in the list.
        sends.post(posted, |id| {
            let request = SendRequest {
                flags,
                ud,
                ..SendRequest::new(id, work, sges)
            };
            qp.post_send(&request)
        })?;
        Ok(())
    }

    /// Takes the completions of its requests. Suppressed requests that are no longer in the queue pair have then
    /// succeeded, because failed requests have a completion.
    pub fn collect_requests(&self) {
        let Some(qp) = self.qp() else { return };
        let complete = {
            let sends = self.sends.lock();
            let Ok(info) = qp.query() else { return };
            sends.next().saturating_sub(info.sends.into())
        };
        // The completions of all requests before `complete` have arrived.
        self.ia.collect(self.parts().request.as_deref());
        self.sends.lock().forget_before(complete);
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Same as [`Ep::post`].
    pub fn post_recv(&self, sges: &[Sge], cookie: u64, notify: bool) -> Result {
        let crowded = self.ia.is_crowded(self.parts.read().recv.as_deref());
        if crowded {
            self.ia.collect(self.parts().recv.as_deref());
        }
        let parts = self.parts.read();
        let qp = parts.qp.as_ref().ok_or_else(|| self.not_now())?;
        if !self.quiet_receives() {
            return Ok(qp.post_recv(&RecvRequest { id: cookie, sges })?);
        }
        let posted = Posted {
            cookie,
            notify,
            what: RequestKind::Receive,
        };
        let mut recvs = self.recvs.lock();
        recvs.post(posted, |id| qp.post_recv(&RecvRequest { id, sges }))?;
        Ok(())
    }

    /// The return code for a call that the EP's state does not allow.
    #[must_use]
    pub fn not_now(&self) -> Fail {
        Fail::state(self.state().subtype())
    }

    /// Replaces the EP's parts and its queue pair. The caller holds `control`.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`: the EP keeps its old parts.
    pub(crate) fn rebuild(self: &Arc<Self>, mut new: Parts) -> Result {
        new.qp = new.make_qp(&self.ia)?;
        new.add_users(&self.ia)?;
        let [recv, request] = [
            new.attr.recv_completion_flags,
            new.attr.request_completion_flags,
        ];
        self.leave_qp();
        let qpn = new.qp.as_ref().map(Qp::qpn);
        let old = std::mem::replace(&mut *self.parts.write(), new);
        self.told_broken.store(false, Ordering::Release);
        self.retire(old);
        self.flags[0].store(recv, Ordering::Relaxed);
        self.flags[1].store(request, Ordering::Relaxed);
        *self.sends.lock() = Requests::default();
        *self.recvs.lock() = Requests::default();
        if let Some(qpn) = qpn {
            self.ia.add_ep(qpn, self);
        }
        Ok(())
    }

    /// Turns the completions of the EP's queue pair into events, and removes the queue pair from the IA's list.
    fn leave_qp(&self) {
        let parts = self.parts();
        let Some(qp) = parts.qp else { return };
        for evd in [&parts.recv, &parts.request] {
            match evd {
                Some(evd) => evd.forget_ep(qp.qpn()),
                None => self.ia.collect(None),
            }
        }
        self.ia.remove_ep(qp.qpn());
    }

    /// Destroys the queue pair and releases the other objects.
    pub(crate) fn close(&self) {
        self.leave_qp();
        let old = std::mem::take(&mut *self.parts.write());
        self.retire(old);
    }

    /// Releases parts that the EP no longer uses. When this returns, no peer accesses memory that requests of their queue
    /// pair named: the program may reuse it.
    fn retire(&self, mut old: Parts) {
        old.release(&self.ia);
        if let Some(qp) = old.qp.take() {
            // Another thread may be about to drop its clone.
            qp.destroy();
            self.ia.device.wait_until_quiet(qp.qpn(), PATIENCE);
        }
    }
}
