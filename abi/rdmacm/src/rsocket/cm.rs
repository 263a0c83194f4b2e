//! Identifiers of the connection manager, as rsockets use them: all on one event channel, whose events one thread handles.

#![allow(unsafe_code)]
// UNSAFETY: calls this library's C functions, and reads its events.

use crate::calls::bind::{bind, listen_at};
use crate::calls::resolve::{find_route, resolve};
use crate::fetching::next_event::fetch_from;
use crate::lookup::address;
use crate::objects::event::{ack, id_of, kind};
use crate::objects::id::IdObject;
use crate::objects::ids;
use crate::queues::qp;
use crate::state::front::with_entry;
use crate::state::hub::IdKey;
use crate::sys::*;
use ibverbs::sys::QPT_RC;
use rkey_kit::Errno;
use rkey_kit::object::find;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;

/// The timeout for [`find_route`], which only refuses 0.
const TIMEOUT_MS: c_int = 2000;
/// Streams use no RDMA reads.
const READS: u8 = 0;
/// The retry count and the RNR retry count. For the latter, 7 means that retries are unlimited.
const RETRIES: u8 = 7;
/// The backlog of a listening identifier. The event thread handles requests immediately; [`super::open`] limits accepted
/// connections.
const BACKLOG: c_int = 1024;

/// The event channel of all rsockets.
#[derive(Debug)]
pub struct Channel(*mut EventChannel);

// SAFETY: a handle, which any thread may use.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// An event.
#[derive(Debug)]
pub struct Event {
    /// The type of the event.
    pub kind: rdma_cm_event_type,
    /// The status of the event.
    pub status: c_int,
    /// The key of its identifier; for a request, of the listener.
    pub about: IdKey,
    /// The new identifier, for a request.
    pub child: Option<Id>,
    /// The private data of a REQ or a REP.
    pub data: Vec<u8>,
}

impl Channel {
    /// Creates the channel.
    ///
    /// # Errors
    /// No descriptor or memory is available, or the connection manager cannot be used.
    pub fn new() -> Result<Self, Errno> {
        crate::objects::channel::new().map(Self)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// The connection manager has failed. `ENOMEM`: an event was lost.
    pub fn next(&self) -> Result<Event, Errno> {
        // SAFETY: the channel lives as long as the process, and no other thread has seen the event.
        unsafe {
            let event = fetch_from(self.0)?;
            let (kind, status) = kind(event)?;
            let id = id_of(event)?;
            let is_request = kind == CM_EVENT_CONNECT_REQUEST;
            let about = if is_request { (*event).listen_id } else { id };
            let data = match kind {
                CM_EVENT_CONNECT_REQUEST | CM_EVENT_ESTABLISHED => {
                    let conn = (*event).param.conn;
                    address::private_data(conn.private_data, conn.private_data_len)
                }
                _ => Vec::new(),
            };
            let about = find::<IdObject>(about)?.key;
            ack(event)?;
            Ok(Event {
                kind,
                status,
                about,
                // Not `then_some`, which would create an `Id` in any case, and destroy the identifier when it drops it.
                child: is_request.then(|| Id(id)),
                data,
            })
        }
    }
}

/// An identifier. Dropping it destroys the identifier, and ends its connection.
#[derive(Debug)]
pub struct Id(*mut CmId);

// SAFETY: a handle; the socket's lock excludes other threads.
unsafe impl Send for Id {}

impl Id {
    /// Creates an identifier.
    ///
    /// # Errors
    /// `ENOMEM`, or the connection manager cannot be used.
    pub fn new(channel: &Channel) -> Result<Self, Errno> {
        // SAFETY: the channel lives as long as the process.
        unsafe { ids::create(channel.0, null_mut(), PS_TCP, QPT_RC) }.map(Self)
    }

    fn object(&self) -> Result<&IdObject, Errno> {
        // SAFETY: live until drop.
        unsafe { find::<IdObject>(self.0) }
    }

    /// The key of the identifier in the hub.
    ///
    /// # Errors
    /// `EINVAL`: a bug.
    pub fn key(&self) -> Result<IdKey, Errno> {
        Ok(self.object()?.key)
    }

    /// Binds the identifier to an address.
    ///
    /// # Errors
    /// The errors of [`bind`].
    pub fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        bind(self.object()?, to)
    }

    /// Sets `RDMA_OPTION_ID_REUSEADDR` and `RDMA_OPTION_ID_AFONLY`.
    ///
    /// # Errors
    /// `EINVAL`: a bug.
    pub fn set_options(&self, reuse_address: bool, one_family: Option<bool>) -> Result<(), Errno> {
        with_entry(self.key()?, |own| {
            own.options.reuse_address = reuse_address;
            own.options.one_family = one_family;
            Ok(())
        })
    }

    /// Starts listening.
    ///
    /// # Errors
    /// The errors of [`listen_at`].
    pub fn listen(&self) -> Result<(), Errno> {
        listen_at(self.object()?, BACKLOG)
    }

    /// Starts resolving an address. An event follows.
    ///
    /// # Errors
    /// The errors of [`resolve`].
    pub fn resolve(&self, to: SocketAddr) -> Result<(), Errno> {
        resolve(self.object()?, None, to)
    }

    /// Starts resolving the route. An event follows.
    ///
    /// # Errors
    /// The errors of [`find_route`].
    pub fn find_route(&self) -> Result<(), Errno> {
        find_route(self.object()?, TIMEOUT_MS)
    }

    /// Creates the identifier's queue pair. The caller must destroy the queue pair, after the identifier.
    ///
    /// # Errors
    /// The errors of [`qp::create_plain`].
    pub fn create_qp(&self, attr: &mut QpInitAttr) -> Result<*mut Qp, Errno> {
        let object = self.object()?;
        // SAFETY: the attributes name live completion queues.
        unsafe { qp::create_plain(object, null_mut(), attr) }?;
        Ok(object.qp())
    }

    fn param(data: &[u8]) -> ConnParam {
        ConnParam {
            private_data: data.as_ptr().cast::<c_void>(),
            private_data_len: data.len() as u8,
            responder_resources: READS,
            initiator_depth: READS,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_num: 0,
        }
    }

    fn called(result: c_int) -> Result<(), Errno> {
        match result {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }

    /// Requests a connection. An event follows.
    ///
    /// # Errors
    /// The errors of `rdma_connect`.
    pub fn connect(&self, data: &[u8]) -> Result<(), Errno> {
        // SAFETY: a live identifier and valid parameters.
        Self::called(unsafe { crate::calls::connect::connect(self.0, &mut Self::param(data)) })
    }

    /// Accepts a request. An event follows.
    ///
    /// # Errors
    /// The errors of `rdma_accept`.
    pub fn accept(&self, data: &[u8]) -> Result<(), Errno> {
        // SAFETY: a live identifier and valid parameters.
        Self::called(unsafe { crate::calls::accept::accept(self.0, &mut Self::param(data)) })
    }

    /// Disconnects.
    pub fn disconnect(&self) {
        // SAFETY: a live identifier. An error means that the connection has already ended.
        unsafe { crate::calls::connect::disconnect(self.0) };
    }

    /// The addresses of the identifier and of its peer.
    ///
    /// # Errors
    /// `EINVAL`: a bug.
    pub fn addresses(&self) -> Result<(Option<SocketAddr>, Option<SocketAddr>), Errno> {
        with_entry(self.key()?, |own| Ok((own.local, own.peer)))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        let _ = unsafe { ids::destroy(self.0) };
    }
}
