//! All connections of an endpoint. The slot of an ended connection is reused.

use super::{Change, Connection, Event, Left};
use crate::address::Destination;
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

/// The pause between two scans for ended connections.
const PAUSE: Duration = Duration::from_millis(1);

/// The connections of an endpoint, by slot and by queue pair number.
#[derive(Debug)]
pub struct Connections<Q, I> {
    list: Vec<Connection<Q, I>>,
    /// Free slots.
    free: Vec<usize>,
    by_qpn: HashMap<u32, usize, BuildHasherDefault<NumberHasher>>,
    /// The queue pair number that was looked up last, and its slot. `None` after a change.
    last: Cell<Option<(u32, usize)>>,
    /// How many ended connections still have their slot.
    over: usize,
    look: Option<Instant>,
}

impl<Q, I> Default for Connections<Q, I> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            free: Vec::new(),
            by_qpn: HashMap::default(),
            last: Cell::new(None),
            over: 0,
            look: None,
        }
    }
}

impl<Q, I> Connections<Q, I> {
    /// Adds a connection whose queue pair has this number; returns its slot.
    pub fn add(&mut self, qpn: u32, connection: Connection<Q, I>) -> usize {
        let index = match self.free.pop() {
            Some(index) => {
                self.list[index] = connection;
                index
            }
            None => {
                self.list.push(connection);
                self.list.len() - 1
            }
        };
        self.by_qpn.insert(qpn, index);
        self.last.set(None);
        index
    }

    /// The slot of the connection whose queue pair has this number.
    #[inline]
    pub fn find(&self, qpn: u32) -> Option<usize> {
        match self.last.get() {
            Some((last, index)) if last == qpn => Some(index),
            _ => self.look_up(qpn),
        }
    }

    fn look_up(&self, qpn: u32) -> Option<usize> {
        let index = self.by_qpn.get(&qpn).copied();
        self.last.set(index.map(|index| (qpn, index)));
        index
    }

    /// How many slots are in use.
    pub fn count(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// How many slots there are, used or free.
    #[inline]
    pub fn slots(&self) -> usize {
        self.list.len()
    }

    /// The connection in the first slot: the only one of a connected endpoint.
    #[inline]
    pub fn first(&self) -> Option<&Connection<Q, I>> {
        self.list.first()
    }

    /// All slots, including free ones.
    pub fn iter(&self) -> impl Iterator<Item = &Connection<Q, I>> {
        self.list.iter()
    }

    /// Forgets all connections.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Applies an event to a connection.
    pub fn apply(&mut self, index: usize, event: Event) -> Change {
        let it = &mut self.list[index];
        let change = it.state.apply(event);
        self.over += usize::from(change.lost());
        change
    }

    /// Whether any ended connection still has its slot.
    #[inline]
    pub fn awaits_teardown(&self) -> bool {
        self.over > 0
    }

    /// Whether a scan for ended connections is due; if so, schedules the next one.
    pub fn is_teardown_due(&mut self, now: Instant) -> bool {
        if self.look.is_some_and(|at| now < at) {
            return false;
        }
        self.look = Some(now + PAUSE);
        true
    }

    /// Makes the next scan due at once.
    pub fn hurry_teardown(&mut self) {
        self.look = None;
    }

    /// Takes the queue pair with this number out of an ended connection.
    pub fn take_qp(&mut self, index: usize, qpn: u32) -> Option<Q> {
        self.by_qpn.remove(&qpn);
        self.last.set(None);
        self.list[index].qp.take()
    }

    /// Frees the slot of an ended connection, unless some of its messages are unread. Returns the destination of the
    /// freed connection, if it had one.
    pub fn release(&mut self, index: usize) -> Option<Destination> {
        let it = &mut self.list[index];
        if it.pending > 0 || !it.state.awaits_teardown() {
            return None;
        }
        it.state.apply(Event::Released);
        self.over -= 1;
        self.free.push(index);
        it.leads_to
    }

    /// An open connection to a destination whose queue pair can send, as `ready` says. Both sides may connect at the same
    /// time, so there can be several.
    #[cold]
    pub fn open_to(&self, to: Destination, ready: impl Fn(&Q) -> bool) -> Option<usize> {
        self.list.iter().position(|it| {
            let qp = it.qp.as_ref().filter(|_| it.state.is_open());
            it.leads_to == Some(to) && qp.is_some_and(&ready)
        })
    }

    /// What exited peers have left.
    pub fn left(&self) -> Left {
        let mut left = Left::default();
        let gone = |it: &&Connection<Q, I>| it.state.is_lost() && !it.state.is_free();
        for it in self.list.iter().filter(gone) {
            let (messages, bytes) = (u64::from(it.pending), it.window.unread());
            if messages > 0 || bytes > 0 {
                left.add(it.peer.ip(), messages, bytes);
            }
        }
        left
    }
}

impl<Q, I> Index<usize> for Connections<Q, I> {
    type Output = Connection<Q, I>;

    #[inline]
    fn index(&self, index: usize) -> &Connection<Q, I> {
        &self.list[index]
    }
}

impl<Q, I> IndexMut<usize> for Connections<Q, I> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Connection<Q, I> {
        &mut self.list[index]
    }
}

/// Hashes numbers that the device or the program chooses. It need not resist collisions, because no peer chooses the
/// numbers.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|&byte| self.write_u32(u32::from(byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The hash table uses the highest and the lowest bits of the hash.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backlog::Later;
    use crate::connection::Teardown;
    use crate::connection::left::LEFT_BYTES;
    use crate::credit;
    use core::net::{IpAddr, SocketAddr};

    type Table = Connections<&'static str, ()>;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn open(table: &mut Table, qpn: u32) -> usize {
        let index = table.add(qpn, Connection::new("qp", peer(qpn as u16).into(), ()));
        table.apply(index, Event::Made);
        index
    }

    #[test]
    fn a_freed_slot_serves_the_next_connection() {
        let mut table = Table::default();
        let (first, second) = (open(&mut table, 7), open(&mut table, 8));
        assert_eq!((table.find(7), table.find(8)), (Some(first), Some(second)));
        assert!(!table.awaits_teardown());
        assert_eq!(table.release(first), None, "the slot is in use");

        assert!(table.apply(first, Event::Lost).lost());
        assert!(table.awaits_teardown() && table.count() == 2);
        assert_eq!(table[first].teardown(false), Teardown::End);
        table.apply(first, Event::Ended);
        assert_eq!(table[first].teardown(false), Teardown::Release);
        assert_eq!(table.take_qp(first, 7), Some("qp"));
        assert_eq!(table.release(first), Some(peer(7).into()));
        assert_eq!((table.find(7), table.count()), (None, 1));
        assert!(!table.awaits_teardown() && table[first].state().is_free());

        assert_eq!(open(&mut table, 9), first);
        assert_eq!((table.slots(), table.count()), (2, 2));
    }

    #[test]
    fn a_connection_keeps_its_slot_while_work_or_messages_refer_to_it() {
        let mut table = Table::default();
        let it = open(&mut table, 7);
        assert_eq!(
            table[it].teardown(false),
            Teardown::Wait,
            "the connection is open"
        );
        table.apply(it, Event::Lost);
        assert_eq!(
            table[it].teardown(true),
            Teardown::Wait,
            "an operation uses it"
        );
        table[it].outstanding = 1;
        assert_eq!(
            table[it].teardown(false),
            Teardown::Wait,
            "a request is posted"
        );
        table[it].outstanding = 0;
        table[it].backlog.push_back(Later::Read(1));
        assert_eq!(table[it].teardown(false), Teardown::Wait, "an answer waits");
        table[it].backlog.pop_front();
        table[it].pending = 1;
        assert_eq!(table[it].teardown(false), Teardown::End);
        table.apply(it, Event::Ended);
        assert_eq!(table.release(it), None, "a message is unread");
        table[it].pending = 0;
        assert_eq!(table.release(it), Some(peer(7).into()));
        assert_eq!(table.release(it), None, "the slot was freed before");
    }

    #[test]
    fn scans_for_ended_connections_are_spaced_by_a_pause() {
        let (mut table, now) = (Table::default(), Instant::now());
        assert!(table.is_teardown_due(now) && !table.is_teardown_due(now));
        assert!(table.is_teardown_due(now + PAUSE));
        table.hurry_teardown();
        assert!(table.is_teardown_due(now + PAUSE));
    }

    /// The address of a peer on a host; host 0 is this one.
    fn address(host: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, host], 7))
    }

    /// Whether a new peer on a host is refused.
    fn is_littered(table: &Table, host: u8) -> bool {
        let host_of = |ip| match ip {
            IpAddr::V4(ip) => Some(ip.octets()[3]).filter(|host| *host > 0),
            IpAddr::V6(_) => None,
        };
        table.left().keeps_out(address(host).ip(), host_of)
    }

    /// A peer on a host that fills its credit with messages which the program does not read, and is then lost.
    fn leave_messages(table: &mut Table, qpn: u32, host: u8) {
        let it = table.add(qpn, Connection::new("qp", address(host).into(), ()));
        table.apply(it, Event::Made);
        while table[it].window.has_room(8192) {
            table[it].window.charge(8192);
            table[it].pending += 1;
        }
        assert!(!is_littered(table, host), "the peer is still connected");
        table.apply(it, Event::Lost);
    }

    #[test]
    fn only_unread_messages_of_lost_peers_count_against_the_limit() {
        let mut table = Table::default();
        let mut littered = 0;
        for qpn in 0.. {
            leave_messages(&mut table, qpn, 0);
            littered += u64::from(credit::BYTES);
            if is_littered(&table, 0) {
                break;
            }
        }
        assert_eq!(littered, LEFT_BYTES);
        assert!(!is_littered(&table, 1), "another host has left nothing");
    }

    #[test]
    fn messages_that_one_host_has_left_do_not_keep_others_out() {
        let mut table = Table::default();
        let mut qpns = 0..;
        let mut leaves_a_quarter = |table: &mut Table, host: u8| {
            let mut littered = 0;
            while !is_littered(table, host) {
                leave_messages(table, qpns.next().unwrap(), host);
                littered += u64::from(credit::BYTES);
            }
            assert_eq!(littered, LEFT_BYTES / 4);
        };
        for host in 1..4 {
            leaves_a_quarter(&mut table, host);
            assert!(!is_littered(&table, 9) && !is_littered(&table, 0));
        }
        leaves_a_quarter(&mut table, 4);
        assert!(is_littered(&table, 9), "all hosts together have a limit");
        assert!(
            !is_littered(&table, 0),
            "peers on this host do not share it"
        );
    }

    #[test]
    fn part_of_the_send_queue_is_reserved_for_answers() {
        let mut it = Connection::new((), peer(1).into(), ());
        while it.has_room(1) {
            it.outstanding += 1;
        }
        assert!(it.outstanding < crate::limits::SENDS && it.takes_answers());
        it.outstanding = crate::limits::SENDS;
        assert!(!it.takes_answers() && it.is_busy());
    }
}
