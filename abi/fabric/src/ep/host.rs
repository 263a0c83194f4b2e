//! The host of an endpoint's state machine: the device, and the program's memory, queues and counters.

use super::payload;
use super::receive::{Matched, PostedReceive};
use super::report::Posted;
use super::*;
use crate::cq::Entry;
use crate::errno::of_status;
use crate::identity::Identity;
use rkey_device::core::{Denial, DomainId, LKey, LocalUse, NamedKey, RKey};
use rkey_device::engine::{SendRequest, Sge, Status};
use rkey_device::{DeviceError, Qp, denials};
use rkey_endpoint::{Front, queue_pair};
use rkey_rdm::address::{Destination, to_text};
use rkey_rdm::endpoint::{Host, Note, Pool, ReceiveOutcome};
use rkey_rdm::error::{Error, Failure, Result};
use rkey_rdm::header::{self, Atomic, Header};
use rkey_rdm::operation_id::Plain;
use send::Exposed;

/// The host of an enabled endpoint.
pub(crate) struct EpHost {
    /// The endpoint that runs on this host.
    pub(super) this: std::sync::Weak<Endpoint>,
    pub(super) domain: Arc<Domain>,
    pub(super) pd: Arc<ProtectionDomain>,
    pub(super) number: u32,
    /// The number that identifies it to regions that serve only one endpoint.
    pub(super) regions: u32,
    pub(super) ep_type: c_int,
    pub(super) caps: u64,
    pub(super) tx: Option<BoundCq>,
    pub(super) rx: Option<BoundCq>,
    /// The shared receive context, if the endpoint has one.
    pub(super) srx: Option<Arc<Srx>>,
    pub(super) av: Option<Arc<Av>>,
    pub(super) eq: Option<Arc<Eq>>,
    /// The counters of the setup; more may be bound after the endpoint is enabled.
    pub(super) counters: [OnceLock<Arc<Counter>>; COUNTERS],
    pub(super) remote: [OnceLock<Arc<Counter>>; 2],
    pub(super) min_multi_recv: Arc<AtomicUsize>,
}

/// Describes a peer's endpoint for log messages.
fn name_of(av: Option<&Av>, peer: SocketAddr) -> String {
    match av.map(|av| av.number(&peer)) {
        None | Some(FI_ADDR_NOTAVAIL) => to_text(peer),
        Some(number) => format!("fi_addr {number}, {}", to_text(peer)),
    }
}

/// Advice for a refusal.
fn advice(denial: &Denial) -> String {
    if denial.key == NamedKey::Remote(RKey::Requested(FI_KEY_NOTAVAIL)) {
        return "The key is FI_KEY_NOTAVAIL: fi_mr_key returns it for a region that has no remote rights or is not enabled yet.".to_owned();
    }
    denial.advice()
}

impl EpHost {
    /// The sender of a message, as completions report it, if the endpoint has `FI_SOURCE`.
    pub(super) fn number_of(&self, source: &SocketAddr) -> u64 {
        match &self.av {
            Some(av) if self.caps & FI_SOURCE != 0 => av.reported(source),
            _ => FI_ADDR_NOTAVAIL,
        }
    }

    /// Calls `report` with the endpoint's event queue and handle, unless the endpoint is being closed or has no event queue.
    fn with_events(&self, report: impl FnOnce(&Eq, usize)) {
        if let (Some(eq), Some(ep)) = (&self.eq, self.this.upgrade()) {
            let fid = ep.handle.load(Ordering::Relaxed);
            eq.unless_closing(&ep.closing, || report(eq, fid));
        }
    }
}

impl Host for EpHost {
    type Qp = Qp;
    type Identity = Option<Arc<Identity>>;
    type Caller = ThreadId;
    type Operation = Posted;
    type Receive = PostedReceive;
    type Matched = Matched;
    type Exposed = Exposed;
    type Group = group::Joined;

    #[inline]
    fn post(&self, qp: &Qp, request: &SendRequest<'_>) -> Result<()> {
        qp.post_send(request)
            .map_err(|error| FiError::from(error).into())
    }

    #[inline]
    fn post_short(&self, qp: &Qp, id: u64, header: &[u8; header::LEN], sge: Sge) -> bool {
        qp.post_short(id, header, sge)
    }

    fn qpn(&self, qp: &Qp) -> u32 {
        qp.qpn()
    }

    fn is_ready(&self, qp: &Qp) -> bool {
        queue_pair::is_ready(qp)
    }

    fn is_broken(&self, qp: &Qp) -> bool {
        queue_pair::is_broken(qp)
    }

    fn end(&self, qp: &Qp) {
        queue_pair::end(qp);
    }

    fn is_quiet(&self, qp: &Qp) -> bool {
        qp.is_quiet()
    }

    fn cut_off(&self, qp: &Qp) {
        qp.cut_off();
    }

    fn connect(&self, peer: usize, to: Destination) -> Result<()> {
        let ep = self.this.upgrade().ok_or(Error::Shutdown)?;
        rkey_endpoint::spawn_connect(ep, peer, to)
    }

    #[inline]
    fn domain(&self) -> DomainId {
        self.pd.id
    }

    #[inline]
    fn everything(&self) -> LKey {
        self.pd.everything()
    }

    fn store(&self, sges: &[Sge], bytes: &[u8], usage: LocalUse) -> Result<()> {
        Ok(payload::scatter(
            &self.domain,
            &self.pd,
            sges,
            bytes,
            usage,
        )?)
    }

    fn expose(&self, bytes: Box<[u8]>) -> Result<(Exposed, u32)> {
        Ok(Exposed::of_copy(&self.domain, &self.pd, bytes)?)
    }

    fn rts_posted(&self, exposed: &Exposed) {
        exposed.recheck(&self.domain, &self.pd);
    }

    fn try_withdraw(&self, exposed: &Exposed) -> bool {
        exposed.try_withdraw(&self.domain)
    }

    fn withdraw(&self, exposed: &Exposed) {
        exposed.withdraw(&self.domain);
    }

    fn execute(&self, from: &Connection, it: &Atomic, payload: &[u8]) -> Result<Vec<u8>> {
        let result = atomic::execute(self, from, it, payload)?;
        // FI-I24: an atomic that returns values counts as a read.
        if let Some(counter) = self.remote[usize::from(it.form == 0)].get() {
            counter.count();
        }
        Ok(result)
    }

    fn commit(&self, from: &Connection, payload: &[u8]) -> Result<()> {
        Ok(commit::commit(self, from, payload)?)
    }

    #[inline]
    fn plain(operation: &Posted) -> Option<Plain> {
        operation.plain()
    }

    fn of_plain(plain: Plain) -> Posted {
        Posted::of_plain(plain)
    }

    #[inline]
    fn completed_plain(&self, plain: Plain) {
        self.report_plain(plain);
    }

    fn completed(&self, operation: Posted, failure: Option<Box<Failure>>) {
        self.report(operation, failure);
    }

    #[cold]
    fn why(&self, completion: &rkey_device::engine::Completion, to: &Connection) -> Failure {
        let report = self.domain.device.denial(completion.vendor);
        let denial = report.as_ref().map(|report| &report.denial);
        let error = of_status(completion.status, denial).into();
        let detail = report.as_ref().map_or_else(String::new, |report| {
            let (denial, id) = (&report.denial, report.id);
            let here = self.number - crate::domain::FIRST_NUMBER;
            let peer = name_of(self.av.as_deref(), to.peer);
            let advice = advice(denial);
            let detail = format!("{denial} (endpoint {here} to {peer}; denial {id}). {advice}");
            self.domain.device.log_own_denial(&detail);
            detail
        });
        Failure {
            error,
            detail,
            vendor: completion.vendor,
        }
    }

    fn shared<T>(&self, with: impl FnOnce(&mut Pool<Self>) -> T) -> Option<T> {
        self.srx.as_ref().map(|srx| srx.with_pool(with))
    }

    #[inline]
    fn shared_posts(&self) -> Option<u64> {
        self.srx.as_ref().map(|srx| srx.posts())
    }

    fn least_room(&self) -> usize {
        let least = match &self.srx {
            Some(srx) => &srx.min_multi_recv,
            None => &*self.min_multi_recv,
        };
        least.load(Ordering::Relaxed)
    }

    #[inline]
    fn matched(
        &self,
        receive: &mut PostedReceive,
        offset: usize,
        stays: bool,
        source: &SocketAddr,
        header: &Header,
    ) -> Matched {
        let (deferred, held) = match stays {
            true => (receive.deferred.clone(), receive.held.clone()),
            false => (receive.deferred.take(), std::mem::take(&mut receive.held)),
        };
        Matched {
            entry: Entry {
                context: receive.context,
                // A program may name memory that does not exist; this is an error only when data is stored there.
                buf: receive.buffer.wrapping_add(offset),
                source: self.number_of(source),
                ..receive::rx_entry(header)
            },
            report: BoundCq::reports(self.rx.as_ref(), receive.flags),
            deferred,
            held,
        }
    }

    #[inline]
    fn received(&self, matched: Matched, how: ReceiveOutcome) {
        self.report_received(matched, how);
    }

    #[inline]
    fn received_whole(&self, receive: &mut PostedReceive, source: &SocketAddr, header: &Header) {
        self.report_whole(receive, source, header);
    }

    fn canceled(&self, receive: PostedReceive, tagged: bool, stays: bool) {
        if let Some(rx) = &self.rx {
            rx.cq.push(receive.canceled(tagged, stays));
        }
    }

    fn written(&self, len: u32, data: u64) {
        if let Some(rx) = &self.rx {
            rx.cq.push(Entry {
                flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                len: len as usize,
                data,
                source: FI_ADDR_NOTAVAIL,
                ..Entry::default()
            });
        }
    }

    fn holds_answers_back(&self) -> bool {
        let rx = self.rx.as_ref();
        rx.is_some_and(|rx| rx.cq.holds_answers_back())
    }

    fn has_collectives(&self) -> bool {
        group::check(self.ep_type, self.caps).is_ok()
    }

    fn joined(&self, group: &group::Joined, result: Result<()>) {
        if let Some(eq) = &self.eq {
            group.report(eq, result.map_err(FiError::from));
        }
    }

    fn watch_backlog(&self) -> bool {
        backlog::watch(self)
    }

    fn shut(&self) {
        self.with_events(|eq, fid| {
            eq.connection(FI_SHUTDOWN, fid, std::ptr::null_mut(), &[]);
        });
    }

    fn refused(&self, denial: &Denial) {
        denials::refused(&denial.in_one_line());
    }

    #[cold]
    fn note(&self, note: Note<'_>) {
        match note {
            Note::Violation { .. } | Note::Lost { .. } => rkey_endpoint::complaint::log(note),
            Note::MemberGone(member) => {
                let member = to_text(member);
                tracing::warn!(
                    "the process of {member}, a member of a collective group, has exited"
                );
            }
            Note::OtherCall(rank) => tracing::warn!(
                "member {rank} of a collective group called a different operation or passed different arguments"
            ),
            Note::GroupBroken { members, error } => {
                let error = FiError::from(error);
                tracing::warn!("a collective group of {members} members failed: {error:?}");
            }
        }
    }
}

impl Front for EpHost {
    /// The identity of a peer, if regions can be limited to one (FI-212).
    fn identity(&self, peer: SocketAddr) -> Option<Arc<Identity>> {
        let limited = self.domain.av_keys && self.domain.directed;
        limited.then(|| self.domain.identities.of(peer))
    }

    fn peer_number(identity: &Option<Arc<Identity>>) -> Option<u32> {
        identity.as_ref().map(|it| it.number)
    }

    fn error_of(error: &DeviceError) -> Error {
        crate::errno::of_device(error).into()
    }

    fn wake_retrying(&self) {
        // A program may wait for its queue before it retries.
        for side in [&self.tx, &self.rx].into_iter().flatten() {
            side.cq.nudge();
        }
    }
}

/// The number of a connection's peer, for regions that serve one peer only.
pub(super) fn identity_of(from: &Connection) -> Option<u32> {
    from.identity.as_ref().map(|identity| identity.number)
}

/// Records that a message requested a denied access, and returns the error for the peer. A peer that must not learn the
/// reason gets the same error in all cases.
#[cold]
pub(super) fn refuse(from: &Connection, denial: Box<Denial>) -> FiError {
    let error = of_status(Status::RemoteAccess, Some(&denial));
    let told = from.qp.as_ref().is_some_and(|qp| qp.note_refusal(*denial));
    match told {
        true => error,
        false => of_status(Status::RemoteAccess, None),
    }
}
