//! A host for the tests of single parts of an endpoint: it records what is reported, and has no device.

use super::{Connection, Host, Note, Outbox, Pool, ReceiveOutcome, Service};
use crate::address::Destination;
use crate::connection::Event;
use crate::error::{Failure, Result};
use crate::header::{self, Atomic, Header};
use crate::operation_id::{Form, Plain};
use crate::sges::Sges;
use core::net::SocketAddr;
use rkey_core::{Denial, DomainId, LKey, LocalUse};
use rkey_engine::{Completion, SendRequest, Sge};
use std::cell::{Cell, RefCell};

/// The address of a peer.
pub(super) fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// An outbox with one open connection, to the peer at port 1.
pub(super) fn outbox(host: &TestHost) -> Outbox<TestHost> {
    let mut outbox = Outbox::new(Service::ReliableDatagram);
    assert_eq!(outbox.add_connection(host, 7, address(1), ()), 0);
    outbox.apply(0, Event::Made);
    outbox
}

/// Records reports as text.
#[derive(Default)]
pub(super) struct TestHost {
    reports: RefCell<Vec<String>>,
    pool: Option<RefCell<Pool<Self>>>,
    /// How many shared receives were posted.
    pub(super) shared_receives_posted: Cell<u64>,
    /// Whether peers still access memory of ended operations.
    pub(super) busy: Cell<bool>,
    /// Whether posting fails.
    pub(super) refuses: Cell<Option<crate::error::Error>>,
    /// Whether answers to peers must wait.
    pub(super) holds_back: Cell<bool>,
}

impl TestHost {
    /// A host whose endpoint shares its receives.
    pub(super) fn with_pool(pool: Pool<Self>) -> Self {
        Self {
            pool: Some(RefCell::new(pool)),
            ..Self::default()
        }
    }

    /// Takes the reports.
    pub(super) fn take(&self) -> Vec<String> {
        self.reports.take()
    }

    /// Memory that is never accessed.
    pub(super) fn sges(len: usize) -> Sges {
        let sge = Sge {
            addr: 0,
            len: len as u32,
            key: LKey(0),
        };
        [sge].into_iter().collect()
    }

    fn report(&self, report: String) {
        self.reports.borrow_mut().push(report);
    }
}

impl Host for TestHost {
    type Qp = u32;
    type Identity = ();
    type Caller = u8;
    type Operation = u32;
    type Receive = u32;
    type Matched = u32;
    type Exposed = u32;
    type Group = u32;

    fn post(&self, qp: &u32, request: &SendRequest<'_>) -> Result<()> {
        if let Some(error) = self.refuses.get() {
            return Err(error);
        }
        self.report(format!("post {qp}: {:#x}", request.id));
        Ok(())
    }

    fn post_short(&self, qp: &u32, id: u64, _: &[u8; header::LEN], _: Sge) -> bool {
        let posts = self.refuses.get().is_none();
        if posts {
            self.report(format!("post short {qp}: {id:#x}"));
        }
        posts
    }

    fn qpn(&self, qp: &u32) -> u32 {
        *qp
    }

    fn is_ready(&self, _: &u32) -> bool {
        true
    }

    fn is_broken(&self, _: &u32) -> bool {
        false
    }

    fn end(&self, qp: &u32) {
        self.report(format!("end {qp}"));
    }

    fn is_quiet(&self, _: &u32) -> bool {
        !self.busy.get()
    }

    fn cut_off(&self, qp: &u32) {
        self.report(format!("cut off {qp}"));
    }

    fn connect(&self, peer: usize, _: Destination) -> Result<()> {
        self.report(format!("connect {peer}"));
        Ok(())
    }

    fn domain(&self) -> DomainId {
        DomainId(1)
    }

    fn everything(&self) -> LKey {
        LKey(0)
    }

    fn store(&self, _: &[Sge], _: &[u8], _: LocalUse) -> Result<()> {
        Ok(())
    }

    fn expose(&self, bytes: Box<[u8]>) -> Result<(u32, u32)> {
        Ok((bytes.len() as u32, 9))
    }

    fn rts_posted(&self, _: &u32) {}

    fn try_withdraw(&self, exposed: &u32) -> bool {
        let withdrawn = !self.busy.get();
        if withdrawn {
            self.withdraw(exposed);
        }
        withdrawn
    }

    fn withdraw(&self, exposed: &u32) {
        self.report(format!("withdraw {exposed}"));
    }

    fn execute(&self, _: &Connection<Self>, _: &Atomic, _: &[u8]) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn commit(&self, _: &Connection<Self>, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn plain(&operation: &u32) -> Option<Plain> {
        Some(Plain {
            context: operation as usize,
            form: Form::Message,
            report: true,
        })
    }

    fn of_plain(plain: Plain) -> u32 {
        plain.context as u32
    }

    fn completed_plain(&self, plain: Plain) {
        self.report(format!("completed {}", plain.context));
    }

    fn completed(&self, operation: u32, failure: Option<Box<Failure>>) {
        let why = failure.map_or(String::new(), |it| format!(": {:?}", it.error));
        self.report(format!("completed {operation}{why}"));
    }

    fn why(&self, _: &Completion, _: &Connection<Self>) -> Failure {
        crate::error::Error::Remote.into()
    }

    fn shared<T>(&self, with: impl FnOnce(&mut Pool<Self>) -> T) -> Option<T> {
        Some(with(&mut self.pool.as_ref()?.borrow_mut()))
    }

    fn shared_posts(&self) -> Option<u64> {
        let pool = self.pool.as_ref();
        pool.map(|_| self.shared_receives_posted.get())
    }

    fn least_room(&self) -> usize {
        1
    }

    fn matched(&self, receive: &mut u32, _: usize, _: bool, _: &SocketAddr, _: &Header) -> u32 {
        *receive
    }

    fn received(&self, matched: u32, how: ReceiveOutcome) {
        let mut report = format!("received {matched}: {}", how.len);
        if how.overflow > 0 {
            report += &format!(" +{}", how.overflow);
        }
        if let Some(error) = how.error {
            report += &format!(" {error:?}");
        }
        if how.last {
            report += " last";
        }
        self.report(report);
    }

    fn canceled(&self, receive: u32, _: bool, _: bool) {
        self.report(format!("canceled {receive}"));
    }

    fn written(&self, len: u32, data: u64) {
        self.report(format!("written {len} {data}"));
    }

    fn holds_answers_back(&self) -> bool {
        self.holds_back.get()
    }

    fn has_collectives(&self) -> bool {
        true
    }

    fn joined(&self, group: &u32, result: Result<()>) {
        self.report(format!("joined {group}: {result:?}"));
    }

    fn watch_backlog(&self) -> bool {
        true
    }

    fn shut(&self) {
        self.report("shut".to_owned());
    }

    fn refused(&self, _: &Denial) {}

    fn note(&self, _: Note<'_>) {}
}
