//! Links from other processes.
//!
//! A link that has carried a message stays open until the sending process closes it, so that process notices when ours ends. If
//! there is no room for a link, it is closed after its message, and its process connects again for the next one. Links that have
//! not carried a message are few, and make room for new ones.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rkey_cm::time::Nanos;
use rkey_link::peer::Credentials;

use super::carrier::Carrier;
use super::inbox::ReadResult;
use super::watches::Watched;
use crate::peers::half_open::HalfOpen;
use crate::peers::link_limits::{LinkFiles, Party};
use crate::progress::reactor::Token;

/// The maximum number of packets or new connections handled per socket in one round.
pub(super) const BATCH: usize = 64;
/// The maximum number of packets read from a link before it is closed; more than a socket can hold.
const DRAIN_MAX: usize = 1024;

/// A link from another process.
#[derive(Debug)]
struct Sender {
    socket: OwnedFd,
    token: Token,
    who: Credentials,
    _files: LinkFiles,
}

/// The links from other processes.
#[derive(Debug)]
pub(super) struct Senders {
    /// Links that have carried a message.
    known: BTreeMap<Token, Sender>,
    /// Links that have not.
    unproven: HalfOpen<Sender>,
}

impl Default for Senders {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            unproven: HalfOpen::new(),
        }
    }
}

impl Carrier {
    /// Adds a new link and reads the packets that have arrived over it.
    pub(super) fn add_link(&mut self, now: Nanos, socket: OwnedFd, who: Credentials) {
        if !self.scope.admits(who.uid) {
            return;
        }
        let result = self.inbox.read(&socket, who, BATCH);
        if result.is_query {
            return self.queries.push((socket, who));
        }
        if self.ends(now, result, who) {
            return;
        }
        if result.packets > 0 && !self.has_room_for(who) {
            return self.drain_link(now, &socket, who);
        }
        let Ok(token) = self.watches.add(&socket, Watched::Sender) else {
            return self.drain_link(now, &socket, who);
        };
        let sender = Sender {
            socket,
            token,
            who,
            _files: LinkFiles::of_messages(),
        };
        if result.packets > 0 {
            self.senders.known.insert(token, sender);
            return;
        }
        if self.senders.unproven.is_full()
            && let Some(index) = self.senders.unproven.greediest()
        {
            let evicted = self.senders.unproven.remove(index);
            self.watches.remove(&evicted.socket, evicted.token);
            self.drain_link(now, &evicted.socket, evicted.who);
        }
        self.senders.unproven.push(Party::of(who), sender);
    }

    /// Reads the remaining packets of a link that the caller closes. After the shutdown, the other process cannot send over the
    /// link, so no message is lost.
    fn drain_link(&mut self, now: Nanos, socket: &OwnedFd, who: Credentials) {
        // Fails only if the link has ended.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
        let result = self.inbox.read(socket, who, DRAIN_MAX);
        self.ends(now, result, who);
    }

    fn has_room_for(&self, who: Credentials) -> bool {
        let known = self.senders.known.values();
        (self.limits)().admit(who, known.map(|it| it.who))
    }

    /// Whether to close a link. Logs a warning if the other process has violated the protocol.
    fn ends(&mut self, now: Nanos, result: ReadResult, who: Credentials) -> bool {
        if result.is_violation {
            let (pid, user) = (who.pid.unwrap_or(0), who.uid);
            let text = "violated the connection manager's protocol; closing its link";
            self.notices
                .add(now, format!("process {pid} of user {user} {text}"));
        }
        result.is_violation || result.has_ended
    }

    /// Reads from a link that is readable.
    pub(super) fn read_link(&mut self, now: Nanos, token: Token) {
        self.read_up_to(now, token, BATCH);
    }

    fn read_up_to(&mut self, now: Nanos, token: Token, most: usize) {
        let Senders { known, unproven } = &mut self.senders;
        if let Some(sender) = known.get(&token) {
            let who = sender.who;
            let result = self.inbox.read(&sender.socket, who, most);
            // Only a new link may query.
            let result = ReadResult {
                is_violation: result.is_violation || result.is_query,
                ..result
            };
            if self.ends(now, result, who)
                && let Some(sender) = self.senders.known.remove(&token)
            {
                self.watches.remove(&sender.socket, token);
            }
            return;
        }
        let Some(index) = unproven.position(|it| it.token == token) else {
            return;
        };
        let who = unproven[index].who;
        let result = self.inbox.read(&unproven[index].socket, who, most);
        if result == ReadResult::default() {
            return;
        }
        let sender = unproven.remove(index);
        if result.is_query {
            self.watches.remove(&sender.socket, token);
            self.queries.push((sender.socket, who));
        } else if self.ends(now, result, who) {
            self.watches.remove(&sender.socket, token);
        } else if !self.has_room_for(who) {
            self.watches.remove(&sender.socket, token);
            self.drain_link(now, &sender.socket, who);
        } else {
            self.senders.known.insert(token, sender);
        }
    }

    /// Reads all remaining packets from the links of processes that have ended.
    pub(super) fn drain_ended(&mut self, now: Nanos, has_ended: impl Fn(Option<u32>) -> bool) {
        let Senders { known, unproven } = &self.senders;
        let unproven = (0..unproven.len()).map(|index| &unproven[index]);
        let ended = known.values().chain(unproven);
        let ended = ended.filter(|it| has_ended(it.who.pid)).map(|it| it.token);
        for token in ended.collect::<Vec<_>>() {
            self.read_up_to(now, token, DRAIN_MAX);
        }
    }
}
