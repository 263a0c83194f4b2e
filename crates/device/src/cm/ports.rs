//! The names that this process has claimed, its block and its ports, and the sockets at which other processes connect to them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rkey_cm::address::ServiceId;
use rkey_cm::time::Nanos;

use super::socket;
use super::watches::{Watched, Watches};
use crate::peers::names::{self, Scope};
use crate::progress::reactor::Token;

/// How long to accept no connections after an attempt failed.
const ACCEPT_PAUSE: Nanos = 50_000_000;

/// A port that this process has claimed.
#[derive(Debug)]
struct Port {
    socket: OwnedFd,
    /// Set once other processes may connect.
    token: Option<Token>,
    claims: usize,
}

/// The block and the ports.
pub(super) struct Ports {
    scope: Scope,
    block: u16,
    /// The block's socket; `None` in a forked child.
    pub(super) listening: Option<(OwnedFd, Token)>,
    claimed: BTreeMap<ServiceId, Port>,
    /// Whether no connection is accepted at the moment, because an attempt failed.
    is_paused: bool,
}

impl Ports {
    /// Claims a block.
    pub(super) fn new(scope: Scope, watches: &mut Watches) -> io::Result<Self> {
        let start = getrandom::u32().map_err(io::Error::other)? as u16;
        // Some blocks may be taken, but never all of them.
        for step in 0..=u16::MAX {
            // Block 0 would contain id 0, which means "none".
            let block = start.wrapping_add(step).max(1);
            let Some(listening) = socket::bind(&names::cm_name(scope, block))? else {
                continue;
            };
            socket::listen(&listening)?;
            let token = watches.add(&listening, Watched::Block)?;
            return Ok(Self {
                scope,
                block,
                listening: Some((listening, token)),
                claimed: BTreeMap::new(),
                is_paused: false,
            });
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// This process's block of communication ids.
    pub(super) fn block(&self) -> u16 {
        self.block
    }

    /// Claims a port, which a process may do several times. Returns `false` if another process owns the port.
    pub(super) fn claim(&mut self, service: ServiceId) -> io::Result<bool> {
        if let Some(port) = self.claimed.get_mut(&service) {
            port.claims += 1;
            return Ok(true);
        }
        let Some(socket) = socket::bind(&names::cm_port_name(self.scope, service.0))? else {
            return Ok(false);
        };
        let port = Port {
            socket,
            token: None,
            claims: 1,
        };
        self.claimed.insert(service, port);
        Ok(true)
    }

    /// Lets other processes connect to a claimed port.
    pub(super) fn open(&mut self, watches: &mut Watches, service: ServiceId) -> io::Result<()> {
        if let Some(port) = self.claimed.get_mut(&service)
            && port.token.is_none()
        {
            socket::listen(&port.socket)?;
            port.token = Some(watches.add(&port.socket, Watched::Port(service))?);
        }
        Ok(())
    }

    /// Releases a claim.
    pub(super) fn release(&mut self, watches: &mut Watches, service: ServiceId) {
        let Some(port) = self.claimed.get_mut(&service) else {
            return;
        };
        port.claims -= 1;
        if port.claims > 0 {
            return;
        }
        if let Some(port) = self.claimed.remove(&service) {
            if let Some(token) = port.token {
                watches.remove(&port.socket, token);
            }
            // A child may hold a copy of the socket until it calls `exec`.
            let _ = rustix::net::shutdown(&port.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Whether this process has an open port for a service.
    pub(super) fn is_open(&self, service: ServiceId) -> bool {
        let port = self.claimed.get(&service);
        port.is_some_and(|port| port.token.is_some())
    }

    /// The services of the open ports.
    pub(super) fn open_services(&self) -> Vec<ServiceId> {
        let open = self.claimed.iter().filter(|(_, port)| port.token.is_some());
        open.map(|(service, _)| *service).collect()
    }

    /// The socket of a port, or of the block (`None`).
    pub(super) fn socket(&self, port: Option<ServiceId>) -> Option<&OwnedFd> {
        match port {
            None => self.listening.as_ref().map(|(socket, _)| socket),
            Some(service) => self.claimed.get(&service).map(|port| &port.socket),
        }
    }

    fn watched_sockets(&self) -> impl Iterator<Item = (&OwnedFd, Token)> {
        let block = self.listening.iter().map(|(it, token)| (it, *token));
        let ports = self.claimed.values();
        block.chain(ports.filter_map(|port| Some((&port.socket, port.token?))))
    }

    /// Pauses accepting: after an error, the sockets may stay readable (no descriptor is left), so the thread would spin.
    /// Returns when to call [`Ports::resume`], unless it is already paused.
    pub(super) fn pause(&mut self, watches: &Watches, now: Nanos) -> Option<Nanos> {
        if self.is_paused {
            return None;
        }
        for (socket, _) in self.watched_sockets() {
            watches.pause(socket);
        }
        self.is_paused = true;
        Some(now + ACCEPT_PAUSE)
    }

    /// Accepts connections again. If that fails, returns when to try again.
    pub(super) fn resume(&mut self, watches: &Watches, now: Nanos) -> Option<Nanos> {
        self.is_paused = false;
        let mut all_are_watched = true;
        for (socket, token) in self.watched_sockets() {
            all_are_watched &= watches.resume(socket, token);
        }
        if all_are_watched {
            return None;
        }
        self.pause(watches, now)
    }

    /// Closes the sockets.
    pub(super) fn close(&mut self) {
        self.listening = None;
        self.claimed.clear();
    }
}
