//! The thread that handles the connection manager's events for all rsockets.
//!
//! With it, connections are established and disconnections are noticed while the program does something else.

use super::cm::{Channel, Event, Id};
use super::complaint::{complain, mention};
use super::connection::Connection;
use super::link::Link;
use super::options::Options;
use super::socket::{Phase, Socket, State};
use super::table;
use super::wire::Offer;
use crate::sys::*;
use parking_lot::Mutex;
use rkey_kit::Errno;
use std::sync::{Arc, OnceLock};

static CHANNEL: OnceLock<Channel> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// The event channel of all rsockets. The first call starts the thread.
///
/// # Errors
/// The connection manager or the thread cannot be started. `ENODEV`: this process was forked from the one that started them.
pub fn channel() -> Result<&'static Channel, Errno> {
    crate::state::front::service()?;
    if let Some(channel) = CHANNEL.get() {
        return Ok(channel);
    }
    let _one = STARTING.lock();
    if let Some(channel) = CHANNEL.get() {
        return Ok(channel);
    }
    let made = Channel::new()?;
    let channel = CHANNEL.get_or_init(|| made);
    let started = rkey_device::threads::spawn("rkey-rsocket", || serve(channel));
    started.map_err(|error| Errno::from(&error))?;
    Ok(channel)
}

fn serve(channel: &Channel) {
    loop {
        match channel.next() {
            Ok(event) => {
                rkey_kit::caught(|| handle(event));
            }
            Err(Errno::INTR | Errno::NOMEM | Errno::INVAL) => {}
            Err(error) => {
                tracing::error!("rsockets can no longer connect: {error}");
                return;
            }
        }
    }
}

fn handle(event: Event) {
    let Some(socket) = table::by_id(event.about) else {
        return; // the program has closed the socket
    };
    if event.kind == CM_EVENT_CONNECT_REQUEST {
        if let Some(child) = event.child
            && let Err(error) = accept_request(&socket, &event.data, child)
        {
            mention(format_args!("refused a connection to an rsocket: {error}"));
        }
        return;
    }
    tracing::debug!(
        "an rsocket received event {} with status {}",
        event.kind,
        event.status
    );
    let listener = {
        let mut state = socket.state.lock();
        let taken = match event.kind {
            CM_EVENT_ADDR_RESOLVED => with_id(&mut state, |id, _| id.find_route()),
            CM_EVENT_ROUTE_RESOLVED => request_connection(&socket, &mut state),
            CM_EVENT_ESTABLISHED => established(&mut state, &event.data),
            CM_EVENT_REJECTED => Err(Errno::from_raw(libc::ECONNREFUSED)),
            CM_EVENT_DISCONNECTED => Err(super::connection::RESET),
            CM_EVENT_TIMEWAIT_EXIT => return,
            _ => Err(Errno::from_raw(event.status.abs())),
        };
        if let Err(error) = taken {
            end(&mut state, error);
        }
        match state.phase {
            Phase::Open(_) | Phase::Refused(_) => state.listener,
            _ => None,
        }
    };
    socket.waiting.wake_fd.signal();
    if let Some(listener) = listener {
        queue_for_accept(&socket, listener);
    }
}

fn with_id(
    state: &mut State,
    call: impl FnOnce(&Id, &Options) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let id = state.id.as_ref().ok_or(Errno::BADF)?;
    call(id, &state.options)
}

/// The path is resolved: creates the queue pair, and requests the connection.
fn request_connection(socket: &Socket, state: &mut State) -> Result<(), Errno> {
    let id = state.id.as_ref().ok_or(Errno::BADF)?;
    let link = Link::new(id, state.options.sizes()).inspect_err(|error| {
        tracing::info!("cannot create the queue pair of an rsocket: {error}")
    })?;
    socket.waiting.watch(link.fd())?;
    let offer = link.offer();
    state.enter(Phase::Connecting(Some(link)));
    with_id(state, |id, _| id.connect(&offer.encode()))
}

/// The connection is established. On the active side, the event carries the peer's offer.
fn established(state: &mut State, data: &[u8]) -> Result<(), Errno> {
    let Phase::Connecting(link) = &mut state.phase else {
        return Ok(());
    };
    let offer = offer(data)?;
    let link = link.take().ok_or(Errno::INVAL)?;
    state.enter(Phase::Open(Box::new(Connection::new(link, &offer))));
    Ok(())
}

fn offer(data: &[u8]) -> Result<Offer, Errno> {
    Offer::decode(data).map_err(|why| {
        complain(format_args!(
            "the peer is not an rsocket, or sent invalid private data: {why}"
        ));
        Errno::from_raw(libc::EPROTO)
    })
}

/// Ends an attempt to connect, or a connection.
fn end(state: &mut State, error: Errno) {
    match &mut state.phase {
        Phase::Open(connection) => {
            connection.disconnected();
            state.edges.phase();
        }
        Phase::Connecting(_) => {
            mention(format_args!("an rsocket cannot connect: {error}"));
            let (id, phase) = state.close();
            // In this order: see `State::close`.
            drop(id);
            drop(phase);
            state.enter(Phase::Refused(error));
        }
        _ => {}
    }
}

/// Accepts a connection request at once: as with TCP, the client does not wait until the program calls `raccept`.
fn accept_request(listener: &Socket, data: &[u8], child: Id) -> Result<(), Errno> {
    let offer = offer(data)?;
    let mut state = listener.state.lock();
    let options = state.options;
    let key = child.key()?;
    let about = state.id.as_ref().ok_or(Errno::BADF)?.key()?;
    let Phase::Listening(listening) = &mut state.phase else {
        return Err(Errno::INVAL);
    };
    if listening.ready.len() + listening.pending.len() >= listening.limit {
        mention(format_args!(
            "refused a connection: the rsocket's backlog of {} connections is full; call raccept",
            listening.limit
        ));
        return Err(Errno::AGAIN);
    }
    let link = Link::new(&child, options.sizes())?;
    let answer = link.offer();
    let socket = Socket::new(child, options, false)?;
    socket.waiting.watch(link.fd())?;
    let mut own = socket.state.lock();
    own.listener = Some(about);
    own.enter(Phase::Open(Box::new(Connection::new(link, &offer))));
    let accepted = with_id(&mut own, |id, _| id.accept(&answer.encode()));
    drop(own);
    let socket = Arc::new(socket);
    match accepted {
        Ok(()) => {
            table::register(key, &socket);
            listening.pending.push((key, socket));
            Ok(())
        }
        Err(error) => {
            let parts = socket.state.lock().close();
            drop(parts);
            Err(error)
        }
    }
}

/// Queues a connection for `raccept` after it is established, or has failed.
fn queue_for_accept(socket: &Arc<Socket>, listener: crate::state::hub::IdKey) {
    let Some(listener) = table::by_id(listener) else {
        return;
    };
    let mut state = listener.state.lock();
    if let Phase::Listening(listening) = &mut state.phase {
        let at = listening
            .pending
            .iter()
            .position(|(_, pending)| Arc::ptr_eq(pending, socket));
        if let Some(at) = at {
            let (_, socket) = listening.pending.swap_remove(at);
            listening.ready.push_back(socket);
            state.edges.readable();
            listener.waiting.wake_fd.signal();
        }
    }
}
