//! The host of an endpoint's state machine in this crate: the device, and the slots of the program's operations.

use super::inner::Inner;
use super::slot::Slot;
use crate::address::Address;
use crate::memory::owned::{Exposed, LocalMemory};
use rkey_core::{Denial, DomainId, LKey, LocalUse};
use rkey_device::{DeviceError, Qp, denials};
use rkey_endpoint::{Front, queue_pair};
use rkey_engine::{Completion, PostError, SendRequest, Sge, Status};
use rkey_rdm::address::Destination;
use rkey_rdm::endpoint::{Connection, Host, Note, Pool, ReceiveOutcome};
use rkey_rdm::error::{Error, Failure, Result};
use rkey_rdm::header::{self, Atomic, Header};
use rkey_rdm::operation_id::Plain;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// Error numbers of Linux that [`Error`] has no name for.
const NOT_PERMITTED: Error = Error::Other(1);
pub(super) const REFUSED: Error = Error::Other(111);
pub(super) const NO_ROUTE: Error = Error::Other(113);

/// The host of an endpoint.
pub(super) struct EndpointHost {
    pub(super) this: Weak<Inner>,
    pub(super) memory: Arc<LocalMemory>,
}

/// A receive of the program.
pub(super) struct PostedReceive(pub(super) Arc<Slot>);

/// A message that has matched a receive.
pub(super) struct Matched {
    slot: Arc<Slot>,
    from: Address,
    tag: u64,
}

impl EndpointHost {
    fn exposed(&self, exposed: crate::Result<Exposed>) -> Result<(Exposed, u32)> {
        let exposed = exposed.map_err(|_| Error::NoMemory)?;
        let key = exposed.key();
        Ok((exposed, key))
    }
}

impl Host for EndpointHost {
    type Qp = Qp;
    type Identity = ();
    type Caller = ();
    /// `None` for an operation that no thread waits for.
    type Operation = Option<Arc<Slot>>;
    type Receive = PostedReceive;
    type Matched = Matched;
    type Exposed = Exposed;
    type Group = ();

    fn post(&self, qp: &Qp, request: &SendRequest<'_>) -> Result<()> {
        qp.post_send(request).map_err(|it| Self::error_of(&it))
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
        let inner = self.this.upgrade().ok_or(Error::Shutdown)?;
        rkey_endpoint::spawn_connect(inner, peer, to)
    }

    fn domain(&self) -> DomainId {
        self.memory.domain()
    }

    fn everything(&self) -> LKey {
        self.memory.key()
    }

    fn store(&self, sges: &[Sge], bytes: &[u8], _: LocalUse) -> Result<()> {
        match self.memory.store(sges, bytes) {
            true => Ok(()),
            false => Err(Error::Fault),
        }
    }

    fn expose(&self, bytes: Box<[u8]>) -> Result<(Exposed, u32)> {
        self.exposed(self.memory.expose_copy(bytes))
    }

    fn rts_posted(&self, _: &Exposed) {}

    fn try_withdraw(&self, exposed: &Exposed) -> bool {
        self.memory.try_withdraw(exposed)
    }

    fn withdraw(&self, exposed: &Exposed) {
        self.memory.withdraw(exposed);
    }

    fn execute(&self, _: &Connection<Self>, _: &Atomic, _: &[u8]) -> Result<Vec<u8>> {
        Err(Error::Unsupported)
    }

    fn commit(&self, _: &Connection<Self>, _: &[u8]) -> Result<()> {
        Err(Error::Unsupported)
    }

    fn plain(_: &Self::Operation) -> Option<Plain> {
        None
    }

    fn of_plain(_: Plain) -> Self::Operation {
        None
    }

    fn completed_plain(&self, _: Plain) {}

    fn completed(&self, operation: Self::Operation, failure: Option<Box<Failure>>) {
        if let Some(slot) = operation {
            slot.complete(failure.map(|it| *it));
        }
    }

    #[cold]
    fn why(&self, completion: &Completion, _: &Connection<Self>) -> Failure {
        let error = match completion.status {
            Status::LocalProtection => Error::Fault,
            Status::RemoteAccess | Status::RemoteInvalidRequest => Error::Denied,
            _ => Error::ConnectionReset,
        };
        Failure {
            vendor: completion.vendor,
            ..error.into()
        }
    }

    fn shared<T>(&self, _: impl FnOnce(&mut Pool<Self>) -> T) -> Option<T> {
        None
    }

    fn shared_posts(&self) -> Option<u64> {
        None
    }

    fn least_room(&self) -> usize {
        0
    }

    fn matched(
        &self,
        receive: &mut PostedReceive,
        _: usize,
        _: bool,
        source: &SocketAddr,
        header: &Header,
    ) -> Matched {
        Matched {
            slot: Arc::clone(&receive.0),
            from: Address(*source),
            tag: header.tag,
        }
    }

    fn received(&self, matched: Matched, how: ReceiveOutcome) {
        matched.slot.receive(matched.from, matched.tag, &how);
    }

    fn canceled(&self, receive: PostedReceive, _: bool, _: bool) {
        receive.0.complete(Some(Error::Canceled.into()));
    }

    fn written(&self, _: u32, _: u64) {}

    fn holds_answers_back(&self) -> bool {
        false
    }

    fn has_collectives(&self) -> bool {
        false
    }

    fn joined(&self, (): &(), _: Result<()>) {}

    fn watch_backlog(&self) -> bool {
        let this = self.this.clone();
        let Some(inner) = this.upgrade() else {
            return false;
        };
        let post = move || this.upgrade().is_some_and(|inner| inner.post_backlog());
        let listeners = &inner.device().inner.listeners;
        listeners.look_until(Box::new(post)).is_ok()
    }

    fn shut(&self) {}

    fn refused(&self, denial: &Denial) {
        denials::refused(&denial.in_one_line());
    }

    fn note(&self, note: Note<'_>) {
        rkey_endpoint::complaint::log(note);
    }
}

impl Front for EndpointHost {
    fn identity(&self, _: SocketAddr) {}

    fn peer_number((): &()) -> Option<u32> {
        None
    }

    fn error_of(error: &DeviceError) -> Error {
        match error {
            DeviceError::Post(PostError::QueueFull(_)) => Error::Again,
            DeviceError::Post(PostError::TooLong(_)) => Error::TooLong,
            DeviceError::Post(PostError::WrongState(_)) => Error::NotConnected,
            DeviceError::NotThisHost { .. } | DeviceError::NoRoute { .. } => NO_ROUTE,
            DeviceError::NotListening { .. } | DeviceError::Refused { .. } => REFUSED,
            DeviceError::OtherUser { .. } => NOT_PERMITTED,
            DeviceError::TimedOut { .. } => Error::TimedOut,
            DeviceError::Limit { .. } => Error::NoMemory,
            _ => Error::ConnectionReset,
        }
    }

    fn wake_retrying(&self) {
        if let Some(inner) = self.this.upgrade() {
            inner.wake();
        }
    }
}

/// Why a peer cannot be reached, in words.
pub(super) fn unreachable(error: Error) -> &'static str {
    match error {
        REFUSED => "no endpoint is open there, or it refused the connection",
        NO_ROUTE => {
            "it is on another host, and this endpoint does not reach it: set RKEY_WIRE=auto, and open the endpoint at an address of the wire (`rkey info`)"
        }
        NOT_PERMITTED => "the process there belongs to another user; both ends need RKEY_SHARE=all",
        Error::NoMemory => "this process has no memory, thread or queue pair left for a connection",
        Error::TimedOut => "the process there did not answer in time",
        _ => "the connection failed; see the log",
    }
}
