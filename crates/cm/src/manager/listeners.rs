//! Listeners, by service and address, and the program's calls for them.

use super::{Error, Manager};
use crate::address::ServiceId;
use crate::connection::{ConnectionId, ListenerId};
use crate::time::Nanos;
use crate::wire::Transport;
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

/// The addresses that a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListenOn {
    /// All addresses of the host.
    Any,
    /// All IPv4 addresses.
    AnyV4,
    /// All IPv6 addresses.
    AnyV6,
    /// Only this address.
    Address(IpAddr),
}

impl ListenOn {
    fn overlaps(self, other: Self) -> bool {
        let accepts = |on: Self, address: IpAddr| match on {
            Self::Any => true,
            Self::AnyV4 => address.is_ipv4(),
            Self::AnyV6 => address.is_ipv6(),
            Self::Address(own) => own == address,
        };
        match (self, other) {
            (Self::Address(address), on) | (on, Self::Address(address)) => accepts(on, address),
            (Self::AnyV4, Self::AnyV6) | (Self::AnyV6, Self::AnyV4) => false,
            _ => true,
        }
    }
}

/// A description of a listener, for inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerInfo {
    /// The service that the listener listens for.
    pub service: ServiceId,
    /// The addresses that the listener accepts.
    pub on: ListenOn,
    /// What the listener offers.
    pub kind: Kind,
    /// How many requests may wait for the program.
    pub backlog: usize,
    /// How many requests are waiting.
    pub waiting: usize,
}

/// What a listener offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Connections with this transport.
    Connected(Transport),
    /// Datagram queue pairs.
    Datagram,
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) service: ServiceId,
    pub(super) on: ListenOn,
    pub(super) kind: Kind,
    pub(super) backlog: usize,
    /// The requests that the program has not taken.
    pub(super) waiting: BTreeSet<ConnectionId>,
}

impl Listener {
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.backlog
    }
}

#[derive(Debug, Default)]
pub(super) struct Listeners {
    all: BTreeMap<ListenerId, Listener>,
    by_service: BTreeMap<(ServiceId, ListenOn), ListenerId>,
    /// The listener of each waiting request.
    of_request: BTreeMap<ConnectionId, ListenerId>,
}

impl Listeners {
    /// Adds a listener; `false` if another listener for the service overlaps in address.
    pub(super) fn add(&mut self, id: ListenerId, listener: Listener) -> bool {
        let least = ListenOn::Any;
        let of_service = self.by_service.range((listener.service, least)..);
        let mut of_service =
            of_service.take_while(|((service, _), _)| *service == listener.service);
        if of_service.any(|((_, on), _)| on.overlaps(listener.on)) {
            return false;
        }
        self.by_service.insert((listener.service, listener.on), id);
        self.all.insert(id, listener);
        true
    }

    pub(super) fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.all.remove(&id)?;
        self.by_service.remove(&(listener.service, listener.on));
        for request in &listener.waiting {
            self.of_request.remove(request);
        }
        Some(listener)
    }

    /// The listener for a service at one of our addresses.
    pub(super) fn find(&self, service: ServiceId, to: IpAddr) -> Option<(ListenerId, &Listener)> {
        let family = if to.is_ipv4() {
            ListenOn::AnyV4
        } else {
            ListenOn::AnyV6
        };
        let keys = [ListenOn::Address(to), family, ListenOn::Any];
        let mut found = keys
            .iter()
            .filter_map(|on| self.by_service.get(&(service, *on)));
        let id = *found.next()?;
        self.all.get(&id).map(|listener| (id, listener))
    }

    /// Adds a request to a listener's backlog.
    pub(super) fn enter(&mut self, id: ListenerId, request: ConnectionId) {
        if let Some(listener) = self.all.get_mut(&id) {
            listener.waiting.insert(request);
            self.of_request.insert(request, id);
        }
    }

    /// Removes a request from its backlog, if it is in one.
    pub(super) fn leave(&mut self, request: ConnectionId) {
        let id = self.of_request.remove(&request);
        if let Some(listener) = id.and_then(|id| self.all.get_mut(&id)) {
            listener.waiting.remove(&request);
        }
    }

    /// All listeners.
    pub(super) fn infos(&self) -> impl Iterator<Item = (ListenerId, ListenerInfo)> {
        self.all.iter().map(|(id, it)| {
            let info = ListenerInfo {
                service: it.service,
                on: it.on,
                kind: it.kind,
                backlog: it.backlog,
                waiting: it.waiting.len(),
            };
            (*id, info)
        })
    }

    /// The number of listeners plus the number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.all.len() + self.of_request.len()
    }
}

impl Manager {
    /// Listens for requests for a service. At most `backlog` of them wait for [`take_request`](Self::take_request); further
    /// ones are dropped, and their senders retransmit them. If the peer withdraws a request before the program has fetched
    /// its event, the event disappears. If the peer withdraws the request later,
    /// [`Event::Rejected`](super::Event::Rejected) follows, and the request counts against the backlog until the program
    /// takes or closes it.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if another listener for the service overlaps in address; [`Error::NoBacklog`] if `backlog` is 0.
    pub fn listen(
        &mut self,
        on: ListenOn,
        service: ServiceId,
        kind: Kind,
        backlog: usize,
    ) -> Result<ListenerId, Error> {
        if backlog == 0 {
            return Err(Error::NoBacklog);
        }
        let id = ListenerId(self.new_id());
        let listener = Listener {
            service,
            on,
            kind,
            backlog,
            waiting: BTreeSet::new(),
        };
        match self.listeners.add(id, listener) {
            true => Ok(id),
            false => Err(Error::InUse),
        }
    }

    /// Ends a listener. Requests that the program has not taken are refused, and their events are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn unlisten(&mut self, now: Nanos, listener: ListenerId) -> Result<(), Error> {
        let listener = self.listeners.remove(listener).ok_or(Error::Unknown)?;
        for id in listener.waiting {
            // A request that the peer has withdrawn no longer has a connection.
            if self.connections.contains_key(&id) {
                self.close(now, id)?;
            }
        }
        Ok(())
    }

    /// Takes a request from the backlog: the program has fetched it.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if the peer has withdrawn the request. Even then it no longer counts against the backlog.
    pub fn take_request(&mut self, connection: ConnectionId) -> Result<(), Error> {
        self.listeners.leave(connection);
        match self.connections.contains_key(&connection) {
            true => Ok(()),
            false => Err(Error::Unknown),
        }
    }
}
