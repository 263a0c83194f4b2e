//! The processes that our connections and requests depend on, and links to them.
//!
//! A link carries our messages, and ends when the process at its other end ends. But that process may also close a link for lack
//! of room. So when a link ends, we check whether the name still has the same owner: the process counts as ended only if the name
//! has no owner or a new one. A process without a link, because one side has no room for it, is checked once a second. A process
//! may release a port before it answers a request, so the owner of a port counts as ended only when its PID has ended, too.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rkey_cm::ConnectionId;
use rkey_cm::time::Nanos;
use rkey_link::peer::Credentials;

use super::carrier::{Carrier, Name, Needs, Timer};
use super::packet::CmPacket;
use super::socket::{self, MessageSent, Reached};
use super::watches::Watched;
use crate::peers::link_limits::LinkFiles;
use crate::peers::process;
use crate::progress::reactor::Token;

/// How often to check a process that has no link; less often if there are many.
const CHECK_TIME: Nanos = 1_000_000_000;
/// The maximum number of such checks during this time.
const CHECKS: usize = 256;
/// The shortest pause before a check if a process's links end soon after they begin.
const CHECK_PAUSE: Nanos = 10_000_000;

/// The owner of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NameOwner {
    who: Credentials,
    /// When the process started; distinguishes processes that had the same PID.
    started: Option<u64>,
}

impl NameOwner {
    fn of(who: Credentials) -> Self {
        let started = who.pid.and_then(process::start_time);
        Self { who, started }
    }

    /// Whether the process is known to be alive.
    fn is_alive(&self) -> bool {
        self.who.pid.is_some_and(|pid| {
            self.started.is_some()
                && process::start_time(pid) == self.started
                && !process::is_exiting(pid)
        })
    }
}

/// A link to another process.
#[derive(Debug)]
struct Link {
    socket: OwnedFd,
    token: Token,
    since: Nanos,
    _files: LinkFiles,
}

/// A process that our connections or requests depend on.
#[derive(Debug)]
struct Receiver {
    owner: NameOwner,
    link: Option<Link>,
    /// When to check whether the process still owns its name, if it has no link.
    check: Option<Nanos>,
    /// The pause before the next check if the next link ends soon.
    pause: Nanos,
    /// If the name is a port: the connections whose request this process has received and not answered.
    requests: BTreeSet<ConnectionId>,
}

/// The processes, by name.
#[derive(Debug, Default)]
pub(super) struct Receivers(BTreeMap<Name, Receiver>);

impl Receivers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The PID of a name's owner. With `of`: only if it has received this connection's request.
    pub(super) fn pid(&self, name: Name, of: Option<ConnectionId>) -> Option<u32> {
        let receiver = self.0.get(&name)?;
        let fits = of.is_none_or(|id| receiver.requests.contains(&id));
        receiver.owner.who.pid.filter(|_| fits)
    }

    fn links(&self) -> Vec<Credentials> {
        let linked = self.0.values().filter(|it| it.link.is_some());
        linked.map(|it| it.owner.who).collect()
    }
}

impl Carrier {
    /// Sends to the owner of a block. With `is_of_connection`, a connection depends on that process.
    pub(super) fn send_to_block(
        &mut self,
        now: Nanos,
        name: Name,
        packet: &CmPacket,
        is_of_connection: bool,
    ) -> MessageSent {
        let known = self.receivers.0.get(&name);
        if let Some(link) = known.and_then(|it| it.link.as_ref()) {
            match socket::send(&link.socket, packet) {
                // The owner may still be alive: see the module's documentation.
                MessageSent::NoReceiver => self.unlink(now, name),
                sent => return sent,
            }
        }
        let known = self.receivers.0.get(&name).map(|it| it.owner.who);
        let (socket, who) = match self.reach(now, name) {
            Reached::Process(socket, who) if known.is_none_or(|it| it == who) => (socket, who),
            Reached::Busy => return MessageSent::Busy,
            _ => {
                if is_of_connection || known.is_some() {
                    self.has_ended(name);
                }
                return MessageSent::NoReceiver;
            }
        };
        let sent = send_first(&socket, packet);
        if is_of_connection {
            self.keep(now, name, socket, who);
        }
        sent
    }

    /// Sends to the owner of a port. `waits` is the connection that waits for the answer.
    pub(super) fn send_to_port(
        &mut self,
        now: Nanos,
        name: Name,
        packet: &CmPacket,
        waits: Option<ConnectionId>,
    ) -> MessageSent {
        // Always a new connection: the port may have a new owner.
        let (socket, who) = match self.reach(now, name) {
            Reached::Process(socket, who) => (socket, who),
            Reached::Busy => return MessageSent::Busy,
            Reached::NoOwner | Reached::OtherUser(_) => return MessageSent::NoReceiver,
        };
        let sent = send_first(&socket, packet);
        let (MessageSent::Yes, Some(waits)) = (sent, waits) else {
            return sent;
        };
        let known = self.receivers.0.get(&name);
        // If a later owner of the port ends, requests to the port are retransmitted and then refused.
        if known.is_none_or(|it| it.owner.who == who) {
            self.keep(now, name, socket, who);
            if let Some(receiver) = self.receivers.0.get_mut(&name) {
                receiver.requests.insert(waits);
            }
        }
        sent
    }

    /// Connects to the owner of a name.
    fn reach(&mut self, now: Nanos, name: Name) -> Reached {
        let text = name.text(self.scope);
        let reached = socket::connect(self.scope, &text);
        match &reached {
            Ok(Reached::OtherUser(uid)) => self.notices.add(
                now,
                format!(
                    "the socket {text} belongs to user {uid}: connections through it are refused; \
                     if you trust that user, set RKEY_SHARE=all for both programs"
                ),
            ),
            Ok(_) => {}
            Err(error) => self.notices.add(
                now,
                format!("the connection manager cannot connect to the socket {text}: {error}"),
            ),
        }
        reached.unwrap_or(Reached::Busy)
    }

    /// Keeps a link to the owner of a name, if there is room.
    fn keep(&mut self, now: Nanos, name: Name, socket: OwnedFd, who: Credentials) {
        let receiver = self.receivers.0.entry(name).or_insert_with(|| Receiver {
            owner: NameOwner::of(who),
            link: None,
            check: None,
            pause: 0,
            requests: BTreeSet::new(),
        });
        if receiver.link.is_some() {
            return;
        }
        let linked = self.receivers.links();
        let has_room = (self.limits)().admit(who, linked.iter().copied());
        let token = has_room.then(|| self.watches.add(&socket, Watched::Receiver(name)).ok());
        let Some(token) = token.flatten() else {
            let unlinked = self.receivers.0.len() - linked.len();
            let time = CHECK_TIME.saturating_mul(1 + (unlinked / CHECKS) as u64);
            return self.check_at(name, Some(now.saturating_add(time)));
        };
        self.check_at(name, None);
        if let Some(receiver) = self.receivers.0.get_mut(&name) {
            receiver.link = Some(Link {
                socket,
                token,
                since: now,
                _files: LinkFiles::of_messages(),
            });
        }
    }

    fn check_at(&mut self, name: Name, at: Option<Nanos>) {
        if let Some(receiver) = self.receivers.0.get_mut(&name) {
            if let Some(before) = std::mem::replace(&mut receiver.check, at) {
                self.timers.remove(&(before, Timer::Check(name)));
            }
            self.timers.extend(at.map(|at| (at, Timer::Check(name))));
        }
    }

    /// Handles the end of a link: schedules a check of whether its process has ended.
    pub(super) fn unlink(&mut self, now: Nanos, name: Name) {
        let Some(receiver) = self.receivers.0.get_mut(&name) else {
            return;
        };
        let Some(link) = receiver.link.take() else {
            return;
        };
        if now.saturating_sub(link.since) >= CHECK_TIME {
            receiver.pause = 0;
        }
        let at = now.saturating_add(receiver.pause);
        receiver.pause = (2 * receiver.pause).clamp(CHECK_PAUSE, CHECK_TIME);
        self.watches.remove(&link.socket, link.token);
        self.check_at(name, Some(at));
    }

    /// Checks whether a name still has the same owner.
    pub(super) fn check(&mut self, now: Nanos, name: Name) {
        let Some(receiver) = self.receivers.0.get_mut(&name) else {
            return;
        };
        receiver.check = None;
        let owner = receiver.owner;
        match self.reach(now, name) {
            Reached::Process(socket, who) if NameOwner::of(who) == owner => {
                self.keep(now, name, socket, who);
            }
            Reached::Busy => self.check_at(name, Some(now.saturating_add(CHECK_TIME))),
            // In tests, one process has several connection managers, which end separately.
            _ if matches!(name, Name::Port(_))
                && owner.who.pid != Some(std::process::id())
                && owner.is_alive() =>
            {
                self.check_at(name, Some(now.saturating_add(CHECK_TIME)));
            }
            Reached::Process(..) | Reached::NoOwner | Reached::OtherUser(_) => self.has_ended(name),
        }
    }

    /// Records that the owner of a name has ended.
    fn has_ended(&mut self, name: Name) {
        match self.forget(name) {
            Some(receiver) => {
                self.ended.pids.insert(receiver.owner.who.pid);
                self.ended.connections.extend(receiver.requests);
            }
            None => self.ended.is_unknown = true,
        }
        if let Name::Block(block) = name {
            self.ended.blocks.insert(block);
        }
    }

    fn forget(&mut self, name: Name) -> Option<Receiver> {
        self.check_at(name, None);
        let receiver = self.receivers.0.remove(&name)?;
        if let Some(link) = &receiver.link {
            self.watches.remove(&link.socket, link.token);
        }
        Some(receiver)
    }

    /// Forgets the processes that nothing depends on, and closes the links to them.
    pub(super) fn tidy(&mut self, needs: &Needs<'_>) {
        let mut unneeded = Vec::new();
        for (name, receiver) in &mut self.receivers.0 {
            receiver.requests.retain(|id| (needs.waits)(*id));
            let is_needed = match name {
                Name::Block(block) => (needs.has_connections)(*block),
                Name::Port(_) => !receiver.requests.is_empty(),
            };
            if !is_needed {
                unneeded.push(*name);
            }
        }
        for name in unneeded {
            self.forget(name);
        }
    }
}

/// Sends the first packet over a new link. If the link is already closed, its process has ended or has no room: a retry shows
/// which.
fn send_first(socket: &OwnedFd, packet: &CmPacket) -> MessageSent {
    match socket::send(socket, packet) {
        MessageSent::NoReceiver => MessageSent::Busy,
        sent => sent,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Service;
    use super::super::limits::Limits;
    use super::super::tests::{Program, SETTINGS, connect, wait_for};
    use super::*;
    use crate::config::Share;
    use crate::peers::names::Scope;
    use rkey_cm::address::{PortSpace, ServiceId};
    use rkey_cm::manager::Event;
    use rkey_cm::wire::RejectReason;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::{Child, Command, Stdio};

    /// The environment variable with the name that the other process binds.
    const NAME: &str = "RKEY_TEST_CM_NAME";

    /// A child process, killed on drop.
    struct Other(Child);

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Runs in the child process: owns a port until it reads a byte, then lives on.
    #[test]
    fn child_process_that_releases_its_port_and_lives_on() {
        let Ok(name) = std::env::var(NAME) else {
            return;
        };
        let socket = socket::bind(&name).unwrap().unwrap();
        socket::listen(&socket).unwrap();
        println!("listens");
        let mut byte = [0];
        std::io::stdin().read_exact(&mut byte).unwrap();
        drop(socket);
        println!("released the port");
        let _ = std::io::stdin().read_exact(&mut byte);
    }

    #[test]
    fn a_running_process_that_released_its_port_is_not_taken_for_ended() {
        // A manager that keeps no links.
        let limits = || Limits {
            links: 0,
            per_party: 0,
            files_left: 0,
        };
        let client = Service::start_within(SETTINGS, Box::new(limits), Program::default()).unwrap();
        let port = super::super::random().unwrap() as u16;
        let at = ServiceId::new(PortSpace::Tcp, port.max(1));
        let name = Name::Port(at);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("cm::receivers::tests::child_process_that_releases_its_port_and_lives_on")
            .env(NAME, name.text(Scope::of(Share::User)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut other = Other(child.unwrap());
        let mut lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
        let mut says = |text: &str| {
            let found = lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with(text)));
            assert!(found.is_some(), "{text}");
        };
        says("listens");
        connect(&client, at);
        let next_check = || client.with(|parts| parts.carrier.receivers.0.get(&name)?.check);
        let wait_until = |holds: &dyn Fn() -> bool| {
            while !holds() {
                crate::time::sleep(std::time::Duration::from_millis(1));
            }
        };
        wait_until(&|| next_check().is_some());
        let mut stdin = other.0.stdin.take().unwrap();
        stdin.write_all(b"x").unwrap();
        says("released the port");
        let check = next_check();
        wait_until(&|| next_check() != check);
        assert!(next_check().is_some(), "it has not ended");
        drop(other);
        let reason = wait_for(&client, |event| match event {
            Event::Rejected { rej, .. } => Some(rej.reason),
            _ => None,
        });
        assert_eq!(reason, RejectReason::CONSUMER);
    }
}
