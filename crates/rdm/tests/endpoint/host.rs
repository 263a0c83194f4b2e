//! The host of an endpoint in a test: acts on the network, and records the endpoint's reports.

use crate::net::{Net, gather, scatter, sge};
use core::net::SocketAddr;
use rkey_core::{Denial, DomainId, LKey, LocalUse};
use rkey_engine::{Completion, SendRequest, Sge, Status, Work};
use rkey_rdm::address::Destination;
use rkey_rdm::atomic::Request;
use rkey_rdm::endpoint::{Connection, Host, Note, Pool, ReceiveOutcome};
use rkey_rdm::error::{Error, Failure, Result};
use rkey_rdm::header::{self, Atomic, Header};
use rkey_rdm::operation_id::{Form, Plain};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A report of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// An operation is complete.
    Done(usize, Option<Error>),
    /// A receive is complete, or one message of it.
    Received {
        receive: usize,
        source: SocketAddr,
        /// The data of the message, which identifies it in tests.
        data: u64,
        how: ReceiveOutcome,
    },
    /// A receive was canceled.
    Canceled(usize),
    /// A peer has written.
    Written { len: u32, data: u64 },
    /// A group was joined, or could not be.
    Joined(u64, Option<Error>),
    /// The connection of a connected endpoint has ended.
    Shut,
    /// A peer violated the protocol.
    Violation,
    /// The link of a queue pair was cut.
    Cut(usize),
}

/// An operation of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) context: usize,
    pub(crate) form: Option<Form>,
}

/// A message that has matched its receive.
#[derive(Clone, Debug)]
pub(crate) struct Matched {
    pub(crate) receive: usize,
    pub(crate) source: SocketAddr,
    pub(crate) data: u64,
}

/// Bytes that a peer may read.
pub(crate) struct Exposed {
    key: u32,
    _copy: Box<[u8]>,
}

/// The receives that endpoints share, and how many were ever posted.
pub(crate) type Shared = Rc<(RefCell<Pool<SimHost>>, Cell<u64>)>;

pub(crate) struct SimHost {
    pub(crate) net: Rc<RefCell<Net>>,
    pub(crate) told: RefCell<Vec<Told>>,
    /// Messages in the order in which they matched receives: source, tag, data.
    pub(crate) matched: RefCell<Vec<(SocketAddr, u64, u64)>>,
    /// Peers to connect to.
    pub(crate) connecting: RefCell<Vec<(usize, SocketAddr)>>,
    pub(crate) shared: Option<Shared>,
    /// Whether the program does not read its completions.
    pub(crate) full: Cell<bool>,
    /// Whether peers keep memory in use.
    pub(crate) held: Cell<bool>,
    pub(crate) watched: Cell<bool>,
}

impl SimHost {
    pub(crate) fn new(net: Rc<RefCell<Net>>, shared: Option<Shared>) -> Self {
        Self {
            net,
            told: RefCell::default(),
            matched: RefCell::default(),
            connecting: RefCell::default(),
            shared,
            full: Cell::new(false),
            held: Cell::new(false),
            watched: Cell::new(false),
        }
    }

    pub(crate) fn tell(&self, told: Told) {
        self.told.borrow_mut().push(told);
    }

    /// Lets peers read or write the test's memory.
    pub(crate) fn expose_at(&self, addr: u64, len: usize, copy: Box<[u8]>) -> (Exposed, u32) {
        let key = self.net.borrow_mut().expose(addr, len as u32);
        (Exposed { key, _copy: copy }, key)
    }
}

impl Host for SimHost {
    type Qp = usize;
    type Identity = ();
    type Caller = u8;
    type Operation = Op;
    type Receive = usize;
    type Matched = Matched;
    type Exposed = Exposed;
    type Group = u64;

    fn post(&self, qp: &usize, request: &SendRequest<'_>) -> Result<()> {
        self.net.borrow_mut().post(*qp, request)
    }
    fn post_short(&self, qp: &usize, id: u64, header: &[u8; header::LEN], sge: Sge) -> bool {
        let work = Work::Send {
            imm: None,
            invalidate: None,
        };
        let sges = [sge];
        let request = SendRequest {
            prefix: header,
            ..SendRequest::new(id, work, &sges)
        };
        self.post(qp, &request).is_ok()
    }
    fn qpn(&self, qp: &usize) -> u32 {
        *qp as u32
    }
    fn is_ready(&self, qp: &usize) -> bool {
        !self.is_broken(qp)
    }
    fn is_broken(&self, qp: &usize) -> bool {
        self.net.borrow().is_broken(*qp)
    }
    fn end(&self, qp: &usize) {
        self.net.borrow_mut().fail(*qp);
    }
    fn is_quiet(&self, _: &usize) -> bool {
        !self.held.get()
    }
    fn cut_off(&self, qp: &usize) {
        self.tell(Told::Cut(*qp));
    }
    fn connect(&self, peer: usize, to: Destination) -> Result<()> {
        self.connecting.borrow_mut().push((peer, to.address));
        Ok(())
    }

    fn domain(&self) -> DomainId {
        unreachable!("messages bypass the engine")
    }
    fn everything(&self) -> LKey {
        LKey(1)
    }
    fn store(&self, sges: &[Sge], bytes: &[u8], _: LocalUse) -> Result<()> {
        scatter(sges, bytes);
        Ok(())
    }
    fn expose(&self, bytes: Box<[u8]>) -> Result<(Exposed, u32)> {
        let (addr, len) = (bytes.as_ptr() as u64, bytes.len());
        Ok(self.expose_at(addr, len, bytes))
    }
    fn rts_posted(&self, _: &Exposed) {}
    fn try_withdraw(&self, exposed: &Exposed) -> bool {
        let free = !self.held.get();
        if free {
            self.withdraw(exposed);
        }
        free
    }
    fn withdraw(&self, exposed: &Exposed) {
        self.net.borrow_mut().withdraw(exposed.key);
    }
    fn execute(&self, _: &Connection<Self>, it: &Atomic, payload: &[u8]) -> Result<Vec<u8>> {
        let request = Request::read(it, payload)?;
        // Addresses are real addresses in this test, and need no key.
        let place = [sge(it.addr, request.len())];
        let before = gather(&place);
        let mut values = before.clone();
        request.apply(&mut values)?;
        scatter(&place, &values);
        Ok(if request.fetches() {
            before
        } else {
            Vec::new()
        })
    }
    fn commit(&self, _: &Connection<Self>, payload: &[u8]) -> Result<()> {
        let places = rkey_rdm::commit::decode(payload);
        places.map(drop).map_err(|_| Error::Invalid)
    }

    fn plain(operation: &Op) -> Option<Plain> {
        operation.form.map(|form| Plain {
            context: operation.context,
            form,
            report: true,
        })
    }
    fn of_plain(plain: Plain) -> Op {
        Op {
            context: plain.context,
            form: Some(plain.form),
        }
    }
    fn completed_plain(&self, plain: Plain) {
        self.tell(Told::Done(plain.context, None));
    }
    fn completed(&self, operation: Op, failure: Option<Box<Failure>>) {
        let error = failure.map(|failure| failure.error);
        self.tell(Told::Done(operation.context, error));
    }
    fn why(&self, completion: &Completion, _: &Connection<Self>) -> Failure {
        match completion.status {
            Status::RemoteAccess => Error::UnknownKey.into(),
            _ => Error::Canceled.into(),
        }
    }

    fn shared<T>(&self, with: impl FnOnce(&mut Pool<Self>) -> T) -> Option<T> {
        let shared = self.shared.as_ref()?;
        Some(with(&mut shared.0.borrow_mut()))
    }
    fn shared_posts(&self) -> Option<u64> {
        self.shared.as_ref().map(|shared| shared.1.get())
    }
    fn least_room(&self) -> usize {
        64
    }
    fn matched(
        &self,
        receive: &mut usize,
        _: usize,
        _: bool,
        source: &SocketAddr,
        header: &Header,
    ) -> Matched {
        let mut matched = self.matched.borrow_mut();
        matched.push((*source, header.tag, header.data));
        Matched {
            receive: *receive,
            source: *source,
            data: header.data,
        }
    }
    fn received(&self, matched: Matched, how: ReceiveOutcome) {
        let Matched {
            receive,
            source,
            data,
        } = matched;
        self.tell(Told::Received {
            receive,
            source,
            data,
            how,
        });
    }
    fn canceled(&self, receive: usize, _: bool, _: bool) {
        self.tell(Told::Canceled(receive));
    }
    fn written(&self, len: u32, data: u64) {
        self.tell(Told::Written { len, data });
    }
    fn holds_answers_back(&self) -> bool {
        self.full.get()
    }

    fn has_collectives(&self) -> bool {
        true
    }
    fn joined(&self, group: &u64, result: Result<()>) {
        self.tell(Told::Joined(*group, result.err()));
    }

    fn watch_backlog(&self) -> bool {
        self.watched.set(true);
        true
    }
    fn shut(&self) {
        self.tell(Told::Shut);
    }
    fn refused(&self, _: &Denial) {}
    fn note(&self, note: Note<'_>) {
        if let Note::Violation { .. } = note {
            self.tell(Told::Violation);
        }
    }
}
