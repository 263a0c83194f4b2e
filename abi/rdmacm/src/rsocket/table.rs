//! Finds sockets by number and by identifier.

use super::datagram::Datagram;
use super::socket::Socket;
use super::waiting::Waiting;
use crate::state::hub::IdKey;
use parking_lot::RwLock;
use rkey_kit::Errno;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// A socket of either kind.
#[derive(Clone, Debug)]
pub enum Any {
    /// A stream.
    Stream(Arc<Socket>),
    /// A datagram socket.
    Datagram(Arc<Datagram>),
}

impl Any {
    /// The descriptor of the socket.
    #[must_use]
    pub fn waiting(&self) -> &Waiting {
        match self {
            Self::Stream(socket) => &socket.waiting,
            Self::Datagram(socket) => &socket.waiting,
        }
    }
}

static NUMBERS: RwLock<BTreeMap<RawFd, Any>> = RwLock::new(BTreeMap::new());
static NAMES: RwLock<BTreeMap<IdKey, Weak<Socket>>> = RwLock::new(BTreeMap::new());

/// Adds a socket, so that programs can use it. Returns its number.
pub fn insert(socket: Any) -> RawFd {
    socket.waiting().renumber();
    let number = socket.waiting().number();
    NUMBERS.write().insert(number, socket);
    number
}

/// The socket with this number.
///
/// # Errors
/// `EBADF`: no socket has this number. The errors of [`crate::state::front::service`]: a forked child has no sockets.
pub fn find(number: RawFd) -> Result<Any, Errno> {
    crate::state::front::service()?;
    get(number).ok_or(Errno::BADF)
}

/// The stream socket with this number.
///
/// # Errors
/// The errors of [`find`]. `EOPNOTSUPP`: the socket is for datagrams.
pub fn stream(number: RawFd) -> Result<Arc<Socket>, Errno> {
    match find(number)? {
        Any::Stream(socket) => Ok(socket),
        Any::Datagram(_) => Err(Errno::OPNOTSUPP),
    }
}

/// The socket with this number, if there is one.
#[must_use]
pub fn get(number: RawFd) -> Option<Any> {
    NUMBERS.read().get(&number).cloned()
}

/// Removes a socket.
pub fn remove(number: RawFd) -> Option<Any> {
    NUMBERS.write().remove(&number)
}

/// Routes the events of an identifier to a socket.
pub fn register(key: IdKey, socket: &Arc<Socket>) {
    NAMES.write().insert(key, Arc::downgrade(socket));
}

/// Stops routing the events of an identifier; later ones are dropped.
pub fn unregister(key: IdKey) {
    NAMES.write().remove(&key);
}

/// The socket that gets the events of an identifier.
#[must_use]
pub fn by_id(key: IdKey) -> Option<Arc<Socket>> {
    NAMES.read().get(&key).and_then(Weak::upgrade)
}
