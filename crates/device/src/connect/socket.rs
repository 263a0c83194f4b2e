//! Sockets of listeners and of their clients. A listener's name is derived from its address.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rkey_engine::Process;
use rkey_link::peer::peer_credentials;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::Deadline;
use super::channel::Channel;
use super::packet::PEER_CLOSED;
use super::stream::{self, Stream};
use crate::config::WireKey;
use crate::error::DeviceError;
use crate::peers::names::{self, Scope};
use crate::wire::WirePath;

/// How many times to try a listener whose backlog is full.
const LISTENER_TRIES: u32 = 50;
/// Shortest and longest pause between two attempts to find a listener.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A socket bound to the name of an address; `None` if the name is taken.
pub(super) fn bind(scope: Scope, address: SocketAddr) -> Result<Option<OwnedFd>, DeviceError> {
    let socket = new_socket()?;
    let name = names::abstract_address(&names::listen_name(scope, address))
        .map_err(DeviceError::io("naming the socket of a listener"))?;
    match rustix::net::bind(&socket, &name) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(DeviceError::io("binding the socket of a listener")(error)),
    }
}

/// Binds a free port of the dynamic range (49152 to 65535), from a random start.
pub(super) fn bind_free_port(
    scope: Scope,
    address: SocketAddr,
) -> Result<(OwnedFd, SocketAddr), DeviceError> {
    let start = getrandom::u32()
        .map_err(|e| DeviceError::io("choosing a port")(std::io::Error::other(e)))?;
    for step in 0..16384u32 {
        let port = 49152 + (start.wrapping_add(step) % 16384) as u16;
        let address = SocketAddr::new(address.ip(), port);
        if let Some(socket) = bind(scope, address)? {
            return Ok((socket, address));
        }
    }
    Err(DeviceError::AddressInUse { address })
}

/// The process that listens at a name. Asking connects to the listener, which sees a client that disconnects at once.
pub(super) fn listener(
    name: &rustix::net::SocketAddrUnix,
) -> std::io::Result<rkey_link::peer::Credentials> {
    let socket = new_socket().map_err(std::io::Error::other)?;
    let mut tries = 0;
    loop {
        match rustix::net::connect(&socket, name) {
            Ok(()) => return peer_credentials(&socket),
            // The listener's backlog is full, or a signal interrupted the call.
            Err(Errno::AGAIN | Errno::INTR) if tries < LISTENER_TRIES => {
                tries += 1;
                std::thread::sleep(RETRY.0);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A connection to a listener.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) channel: Channel,
    /// The listener's user; [`Process::ANOTHER_HOST`] on another host.
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
}

impl Reached {
    /// A listener on another host.
    pub(super) fn on_host(stream: Arc<Stream>) -> Self {
        Self {
            channel: Channel::Remote(stream),
            uid: Process::ANOTHER_HOST,
            pid: None,
        }
    }
}

/// The result of one attempt to reach a listener.
pub(super) enum Dialled {
    Reached(Reached),
    /// The listener's backlog is full, or a signal interrupted the attempt.
    Busy,
    /// No process listens at the address.
    NoListener,
}

/// Connects to the listener at an address, over `path` and with the key of the wire if that is on another host, trying until the deadline. If there was a listener
/// just before (`again`), its absence means that it has closed.
pub(super) fn dial(
    scope: Scope,
    path: Option<(WirePath, Option<&WireKey>)>,
    address: SocketAddr,
    deadline: &Deadline,
    again: bool,
) -> Result<Reached, DeviceError> {
    let attempt = || {
        let Some((path, key)) = path else {
            return dial_once(scope, address);
        };
        let until = Instant::now().checked_add(deadline.remaining().unwrap_or_default());
        Ok(match stream::connect(path, address, until, key)? {
            Some(stream) => Dialled::Reached(Reached::on_host(stream)),
            None => Dialled::NoListener,
        })
    };
    let mut pause = RETRY.0;
    loop {
        match attempt()? {
            Dialled::Reached(there) => return Ok(there),
            Dialled::NoListener if again => return Err(PEER_CLOSED),
            Dialled::Busy | Dialled::NoListener => {}
        }
        let Ok(left) = deadline.remaining() else {
            return Err(not_listening(
                address,
                path.map(|it| it.0),
                deadline.timeout,
            ));
        };
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(RETRY.1);
    }
}

/// Tries once to connect to the listener at an address. Never blocks.
pub(super) fn dial_once(scope: Scope, address: SocketAddr) -> Result<Dialled, DeviceError> {
    let mut busy = false;
    for name in names::candidates(scope, address) {
        let name = names::abstract_address(&name)
            .map_err(DeviceError::io("naming the socket of a listener"))?;
        let socket = new_socket()?;
        match rustix::net::connect(&socket, &name) {
            Ok(()) => {
                let credentials = peer_credentials(&socket)
                    .map_err(DeviceError::io("identifying the listener"))?;
                let uid = credentials.uid;
                if !scope.admits(uid) {
                    return Err(DeviceError::OtherUser { uid });
                }
                return Ok(Dialled::Reached(Reached {
                    channel: Channel::Local(socket),
                    uid,
                    pid: credentials.pid,
                }));
            }
            Err(Errno::CONNREFUSED) => {}
            Err(Errno::AGAIN | Errno::INTR) => busy = true,
            Err(error) => return Err(DeviceError::io("connecting")(error)),
        }
    }
    Ok(if busy {
        Dialled::Busy
    } else {
        Dialled::NoListener
    })
}

/// The error for a client that found no listener until its deadline.
pub(super) fn not_listening(
    address: SocketAddr,
    path: Option<WirePath>,
    waited: Duration,
) -> DeviceError {
    DeviceError::NotListening {
        address,
        waited,
        hint: match path {
            None => {
                "start the listener first, in the same network namespace; if it belongs to another user, set RKEY_SHARE=all for both"
            }
            Some(_) => {
                "start the listener first, with RKEY_WIRE set on its host; the host must be reachable, and firewalls must allow TCP connections to the port"
            }
        },
    }
}

fn new_socket() -> Result<OwnedFd, DeviceError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(DeviceError::io("creating a socket"))
}
