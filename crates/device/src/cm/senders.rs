//! Links from other processes.
//!
//! A link that has brought a message stays open until its process closes it. So that process notices when ours ends. If there is
//! no room for a link, it is closed after its message: its process connects again for the next one. Links that have not brought a
//! message are few, and make room for new ones.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rkey_cm::time::Nanos;
use rkey_link::peer::Credentials;

use super::carrier::{Carrier, Watched};
use super::inbox::Heard;
use crate::peers::half_open::HalfOpen;
use crate::peers::link_limits::LinkFiles;
use crate::progress::reactor::Token;

/// The maximum number of packets, or of new connections, that are taken from one socket at a time.
pub(super) const BATCH: usize = 64;
/// The maximum number of packets that are read from a link before it is closed. A socket holds fewer.
const LAST_WORDS: usize = 1024;

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
    /// Those that have brought a message.
    known: BTreeMap<Token, Sender>,
    /// Those that have not.
    silent: HalfOpen<Sender>,
}

impl Default for Senders {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            silent: HalfOpen::new(),
        }
    }
}

impl Carrier {
    /// Takes a new link, and reads what has arrived over it.
    pub(super) fn welcome(&mut self, now: Nanos, socket: OwnedFd, who: Credentials) {
        if !self.scope.admits(who.uid) {
            return;
        }
        let heard = self.inbox.read(now, &socket, who, BATCH);
        if heard.asks {
            return self.questions.push((socket, who));
        }
        if self.ends(now, heard, who) {
            return;
        }
        if heard.packets > 0 && !self.has_room_for(who) {
            return self.dismiss(now, &socket, who);
        }
        let Some(token) = self.watch(&socket, Watched::Sender) else {
            return self.dismiss(now, &socket, who);
        };
        let sender = Sender {
            socket,
            token,
            who,
            _files: LinkFiles::of_messages(),
        };
        if heard.packets > 0 {
            self.senders.known.insert(token, sender);
            return;
        }
        if self.senders.silent.is_full()
            && let Some(index) = self.senders.silent.greediest()
        {
            let evicted = self.senders.silent.remove(index);
            self.unwatch(&evicted.socket, evicted.token);
            self.dismiss(now, &evicted.socket, evicted.who);
        }
        self.senders.silent.push(who, sender);
    }

    /// Reads what is left of a link that the caller closes. From here on, its process cannot send over it, so no message is lost.
    fn dismiss(&mut self, now: Nanos, socket: &OwnedFd, who: Credentials) {
        // It fails only if the link has ended.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
        let heard = self.inbox.read(now, socket, who, LAST_WORDS);
        self.ends(now, heard, who);
    }

    fn has_room_for(&self, who: Credentials) -> bool {
        let known = self.senders.known.values();
        (self.limits)().admit(who, known.map(|it| it.who))
    }

    /// Whether a link ends. Warns if its process has broken the protocol.
    fn ends(&mut self, now: Nanos, heard: Heard, who: Credentials) -> bool {
        if heard.is_violation {
            let (pid, user) = (who.pid.unwrap_or(0), who.uid);
            let text = "violated the connection manager's protocol; closing its link";
            self.notices
                .add(now, format!("process {pid} of user {user} {text}"));
        }
        heard.is_violation || heard.has_ended
    }

    /// Reads from a link that is readable.
    pub(super) fn hear(&mut self, now: Nanos, token: Token) {
        self.hear_most(now, token, BATCH);
    }

    fn hear_most(&mut self, now: Nanos, token: Token, most: usize) {
        let Senders { known, silent } = &mut self.senders;
        if let Some(sender) = known.get(&token) {
            let who = sender.who;
            let heard = self.inbox.read(now, &sender.socket, who, most);
            // Only a new link may ask.
            let heard = Heard {
                is_violation: heard.is_violation || heard.asks,
                ..heard
            };
            if self.ends(now, heard, who)
                && let Some(sender) = self.senders.known.remove(&token)
            {
                self.unwatch(&sender.socket, token);
            }
            return;
        }
        let Some(index) = silent.position(|it| it.token == token) else {
            return;
        };
        let who = silent[index].who;
        let heard = self.inbox.read(now, &silent[index].socket, who, most);
        if heard == Heard::default() {
            return;
        }
        let sender = silent.remove(index);
        if heard.asks {
            self.unwatch(&sender.socket, token);
            self.questions.push((sender.socket, who));
        } else if self.ends(now, heard, who) {
            self.unwatch(&sender.socket, token);
        } else if !self.has_room_for(who) {
            self.unwatch(&sender.socket, token);
            self.dismiss(now, &sender.socket, who);
        } else {
            self.senders.known.insert(token, sender);
        }
    }

    /// Reads everything from the links of processes that have ended.
    pub(super) fn hear_last_words(&mut self, now: Nanos, has_ended: impl Fn(Option<u32>) -> bool) {
        let Senders { known, silent } = &self.senders;
        let silent = (0..silent.len()).map(|index| &silent[index]);
        let ended = known.values().chain(silent);
        let ended = ended.filter(|it| has_ended(it.who.pid)).map(|it| it.token);
        for token in ended.collect::<Vec<_>>() {
            self.hear_most(now, token, LAST_WORDS);
        }
    }
}
