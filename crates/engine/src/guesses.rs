//! Guessed keys: counts the unknown keys of each process, and delays the requests of those that name too many.
//!
//! A key protects memory only if a peer cannot find it by trial. Each process has an allowance of wrong keys, which
//! refills by a little more than one per second, so a program that makes one mistake per second never uses it up. When
//! the allowance is used up, the device takes no request of that process, over any link, for a pause that doubles from
//! [`PAUSE_FIRST`] to [`PAUSE_LAST`] while the process continues to guess. The pause delays the next request, not the
//! response, because a missing response would reveal a miss just as well. A new connection does not end the pause.
//!
//! A key that the process has named recently tells the process nothing new and does not count: a program that repeats
//! the same mistake in a loop is not slowed down.
//!
//! A process can fork, so the processes of one user also share an allowance. When that is used up, those that have
//! guessed before or have connected recently wait; others are not affected (unless the table of processes is full).
//!
//! Delayed requests stay in the peer's ring. The state here is two tables of bounded size; a process is forgotten when
//! it has made no guess for [`MEMORY`], or when its allowance is full again and another process needs the room.

use crate::{Origin, Process};
use rkey_core::{Denial, NamedKey, RKey, Reason};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::Hash;

/// How many wrong keys a process may name in a burst.
pub const ALLOWANCE: u32 = 64;
/// How many wrong keys the processes of a user may together name in a burst.
pub const USER_ALLOWANCE: u32 = 256;
/// Time until a process may name one more wrong key, in nanoseconds.
pub const REFILL: u64 = 800_000_000;
/// Time until the processes of a user may together name one more wrong key, in nanoseconds.
pub const USER_REFILL: u64 = 200_000_000;
/// The first pause, in nanoseconds.
pub const PAUSE_FIRST: u64 = 10_000_000;
/// The longest pause, in nanoseconds.
pub const PAUSE_LAST: u64 = 10_000_000_000;
/// The age from which a link no longer counts as new, in nanoseconds.
pub const NEW_LINK: u64 = 30_000_000_000;
/// A process is forgotten after this long without a guess, in nanoseconds. Its allowance is full again long before.
pub const MEMORY: u64 = 3_600_000_000_000;
/// How many processes, and users, are counted separately at the same time.
pub const TABLE_MAX: usize = 1024;
/// Time between two searches for entries to forget, in nanoseconds.
const TIDY: u64 = MEMORY / 60;
// A forgotten process has no pause, and its allowance is full.
const _: () = assert!(MEMORY > PAUSE_LAST + REFILL * ALLOWANCE as u64);
/// Recent keys of a process, kept to notice repetitions.
const REPEATS: usize = 16;
/// Stands for the users without an entry in the table. No user has this number: it means "none" to the kernel.
const OTHER_USERS: u32 = u32::MAX;

/// The guesses of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guesser {
    /// The process.
    pub process: Process,
    /// The number of keys that the process named and that granted it no access; recent repetitions do not count.
    pub tried: u64,
    /// The number of the `tried` keys that were never issued.
    pub never_issued: u64,
    /// How many times the process's requests were paused.
    pub pauses: u64,
    /// The length of the pause after its last guess, in nanoseconds; 0 if there was none, or once its allowance is full
    /// again.
    pub pause: u64,
}

impl std::fmt::Display for Guesser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            process,
            tried,
            never_issued,
            ..
        } = self;
        match (process.host, process.pid) {
            (Some(host), _) => write!(f, "host {host} has")?,
            (None, 0) => write!(
                f,
                "processes of user {} without a PID here have",
                process.user
            )?,
            (None, pid) => write!(f, "PID {pid} (user {}) has", process.user)?,
        }
        let keys = if *tried == 1 { "key" } else { "keys" };
        if tried == never_issued {
            write!(f, " tried {tried} {keys} that were never issued")?;
        } else {
            write!(
                f,
                " tried {tried} {keys} that grant it no access, {never_issued} of them never issued"
            )?;
        }
        if self.pause > 0 {
            let pause = std::time::Duration::from_nanos(self.pause);
            write!(
                f,
                "; after its last guess, its requests are paused for {pause:?}"
            )?;
        }
        Ok(())
    }
}

/// An allowance that refills over time.
#[derive(Debug)]
struct Allowance {
    size: u32,
    refill: u64,
    left: u32,
    /// The time at which `left` was computed.
    at: u64,
    /// The number of pauses since the allowance was last full.
    strikes: u32,
    /// The end of the last pause.
    until: u64,
}

impl Allowance {
    fn new(size: u32, refill: u64, now: u64) -> Self {
        Self {
            size,
            refill,
            left: size,
            at: now,
            strikes: 0,
            until: 0,
        }
    }

    fn refresh(&mut self, now: u64) {
        let more = now.saturating_sub(self.at) / self.refill;
        if more >= u64::from(self.size - self.left) {
            (self.left, self.at, self.strikes) = (self.size, now, 0);
        } else {
            self.left += more as u32;
            self.at += more * self.refill;
        }
    }

    /// Takes one from the allowance; returns the pause if none was left.
    fn take(&mut self, now: u64) -> Option<u64> {
        self.refresh(now.max(self.at));
        if let Some(left) = self.left.checked_sub(1) {
            self.left = left;
            return None;
        }
        let pause = PAUSE_FIRST
            .checked_shl(self.strikes)
            .map_or(PAUSE_LAST, |pause| pause.min(PAUSE_LAST));
        self.strikes = (self.strikes + 1).min(40);
        self.until = now.saturating_add(pause);
        // The allowance does not refill during a pause.
        self.at = self.until;
        Some(pause)
    }

    fn is_full(&self, now: u64) -> bool {
        now.saturating_sub(self.at) / self.refill >= u64::from(self.size - self.left)
    }
}

struct ProcessGuesses {
    allowance: Allowance,
    /// The time of the last key that counted.
    last: u64,
    seen: Guesser,
    recent: [Option<RKey>; REPEATS],
    next: usize,
}

impl ProcessGuesses {
    fn new(process: Process, now: u64) -> Self {
        Self {
            allowance: Allowance::new(ALLOWANCE, REFILL, now),
            last: now,
            seen: Guesser {
                process,
                tried: 0,
                never_issued: 0,
                pauses: 0,
                pause: 0,
            },
            recent: [None; REPEATS],
            next: 0,
        }
    }

    /// Whether the last guess was so long ago that the entry can be forgotten.
    fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.last) >= MEMORY
    }

    fn view(&self, now: u64) -> Guesser {
        let mut seen = self.seen;
        if self.allowance.is_full(now) {
            seen.pause = 0;
        }
        seen
    }
}

/// The processes that have named unknown keys.
#[derive(Default)]
pub(crate) struct Guesses {
    processes: HashMap<Process, ProcessGuesses>,
    users: HashMap<u32, Allowance>,
    /// The latest end of any pause.
    last: u64,
    /// When to search again for entries to forget.
    tidy_at: u64,
}

/// Whether the table has room for this key, after removing recovered entries if necessary.
fn has_room<K: Eq + Hash, V>(
    table: &mut HashMap<K, V>,
    key: &K,
    recovered: impl Fn(&V) -> bool,
) -> bool {
    if table.len() >= TABLE_MAX && !table.contains_key(key) {
        table.retain(|_, value| !recovered(value));
    }
    table.len() < TABLE_MAX || table.contains_key(key)
}

impl Guesses {
    /// The time until which requests arriving over a link attached at `since` must wait; `None` if they need not
    /// wait.
    #[inline]
    pub(crate) fn paused_until(&self, origin: &Origin, since: u64, now: u64) -> Option<u64> {
        if now >= self.last {
            return None;
        }
        self.look_up(origin, since, now)
    }

    #[cold]
    fn look_up(&self, origin: &Origin, since: u64, now: u64) -> Option<u64> {
        if origin.here {
            return None;
        }
        let known = self.processes.get(&origin.process);
        let known = known.filter(|record| !record.is_over(now));
        let own = known.map_or(0, |record| record.allowance.until);
        let user = self.users.get(&origin.process.user);
        let user = user.or_else(|| self.users.get(&OTHER_USERS));
        let user = user.map_or(0, |allowance| allowance.until);
        let shared = if known.is_some() || self.processes.len() >= TABLE_MAX {
            user
        } else {
            user.min(since.saturating_add(NEW_LINK))
        };
        Some(own.max(shared)).filter(|until| *until > now)
    }

    /// Records that a process has named a key that grants it no access. Returns what to report about it, if a report is
    /// due.
    #[cold]
    pub(crate) fn note(&mut self, origin: &Origin, denial: &Denial, now: u64) -> Option<Guesser> {
        let NamedKey::Remote(key) = denial.key else {
            return None;
        };
        if origin.here || !denial.reason.is_about_the_key() {
            return None;
        }
        self.tidy(now);
        let process = origin.process;
        let full = |allowance: &Allowance| allowance.is_full(now);
        let mut told = None;
        if has_room(&mut self.processes, &process, |it| full(&it.allowance)) {
            let record = self
                .processes
                .entry(process)
                .or_insert_with(|| ProcessGuesses::new(process, now));
            if record.recent.contains(&Some(key)) {
                return None;
            }
            record.last = now;
            record.recent[record.next] = Some(key);
            record.next = (record.next + 1) % REPEATS;
            record.seen.tried += 1;
            record.seen.never_issued += u64::from(denial.reason == Reason::UnknownKey);
            let pause = record.allowance.take(now);
            record.seen.pause = pause.unwrap_or(0);
            record.seen.pauses += u64::from(pause.is_some());
            let first = pause.is_some() && record.allowance.strikes == 1;
            let many = record.seen.tried >= 100 && is_power_of_ten(record.seen.tried);
            if first || many {
                told = Some(record.seen);
            }
            self.last = self.last.max(record.allowance.until);
        }
        // Users without an entry of their own share one entry.
        let user = if has_room(&mut self.users, &process.user, full) {
            process.user
        } else {
            OTHER_USERS
        };
        let allowance = self
            .users
            .entry(user)
            .or_insert_with(|| Allowance::new(USER_ALLOWANCE, USER_REFILL, now));
        allowance.take(now);
        self.last = self.last.max(allowance.until);
        told
    }

    /// Forgets expired entries occasionally: the tables are small, but not every guess should pay for a scan.
    fn tidy(&mut self, now: u64) {
        if now >= self.tidy_at {
            self.tidy_at = now.saturating_add(TIDY);
            self.processes.retain(|_, record| !record.is_over(now));
            self.users.retain(|_, allowance| !allowance.is_full(now));
        }
    }

    /// All remembered processes, those with the most attempts first.
    pub(crate) fn all(&self, now: u64) -> Vec<Guesser> {
        let known = self.processes.values().filter(|it| !it.is_over(now));
        let mut all: Vec<_> = known.map(|it| it.view(now)).collect();
        all.sort_by_key(|it| (std::cmp::Reverse(it.tried), it.process));
        all
    }
}

fn is_power_of_ten(number: u64) -> bool {
    number
        .checked_ilog10()
        .is_some_and(|log| 10u64.pow(log) == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_core::{Attempt, Operation};

    fn origin(user: u32, pid: u32) -> Origin {
        let process = Process {
            user,
            pid,
            started: 7,
            host: None,
        };
        Origin {
            process,
            here: false,
            explain: false,
        }
    }

    fn unknown(key: u64) -> Denial {
        let attempt = Attempt::Remote(Operation::Read);
        let mut denial = Denial::withheld(attempt, RKey::Requested(key), 0, 8);
        denial.reason = Reason::UnknownKey;
        denial
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let (mut guesses, who) = (Guesses::default(), origin(1, 1));
        let mut now = 5;
        let mut pauses = Vec::new();
        for key in 0..u64::from(ALLOWANCE) + 14 {
            guesses.note(&who, &unknown(key), now);
            if let Some(until) = guesses.paused_until(&who, 0, now) {
                pauses.push(until - now);
                now = until;
            }
        }
        let expected: Vec<u64> = (0..14)
            .map(|n| (PAUSE_FIRST << n).min(PAUSE_LAST))
            .collect();
        assert_eq!(pauses, expected);
        assert_eq!(guesses.all(now)[0].pause, PAUSE_LAST);
        // A process that stays quiet until its allowance is full starts over.
        now += REFILL * u64::from(ALLOWANCE);
        assert_eq!(guesses.all(now)[0].pause, 0);
        guesses.note(&who, &unknown(1000), now);
        assert_eq!(guesses.paused_until(&who, 0, now), None);
    }

    /// Any number of processes and users: the tables stay within their bounds, and users without an entry share one.
    #[test]
    fn the_tables_of_guesses_are_bounded() {
        let mut guesses = Guesses::default();
        let count = 10 * TABLE_MAX as u32;
        for n in 0..count {
            let now = u64::from(n);
            guesses.note(&origin(n, n), &unknown(1), now);
        }
        assert!(guesses.processes.len() <= TABLE_MAX);
        assert!(guesses.users.len() <= TABLE_MAX + 1);
        let late = origin(count, count);
        assert!(
            guesses
                .paused_until(&late, u64::MAX, count.into())
                .is_some()
        );
        // Processes with a single mistake are forgotten when room is needed.
        let later = REFILL * u64::from(USER_ALLOWANCE) * 20;
        guesses.note(&late, &unknown(2), later);
        assert_eq!(guesses.processes.len(), 1);
    }

    #[test]
    fn a_process_that_stops_guessing_is_forgotten() {
        let (mut guesses, quiet, busy) = (Guesses::default(), origin(1, 1), origin(2, 2));
        for key in 0..100 {
            guesses.note(&quiet, &unknown(key), 0);
        }
        guesses.note(&busy, &unknown(0), 0);
        let now = MEMORY - 1;
        guesses.note(&busy, &unknown(1), now);
        assert_eq!(guesses.all(now).len(), 2, "not yet long enough");
        // The process is no longer reported, even while nothing happens, and the next guess of any process frees its
        // entry.
        let now = MEMORY + TIDY;
        assert_eq!(guesses.all(now)[0].process, busy.process);
        assert_eq!((guesses.all(now).len(), guesses.processes.len()), (1, 2));
        guesses.note(&busy, &unknown(2), now);
        assert_eq!((guesses.processes.len(), guesses.users.len()), (1, 1));
        // If the process tries again, it starts over.
        guesses.note(&quiet, &unknown(0), now);
        assert_eq!(guesses.all(now)[1].tried, 1);
        // Repeating a recent key is not a guess, so the process is forgotten all the same.
        guesses.note(&busy, &unknown(2), now + MEMORY - 1);
        assert_eq!(guesses.all(now + MEMORY).len(), 0);
    }

    #[test]
    fn guesses_of_this_process_are_not_counted() {
        let mut guesses = Guesses::default();
        let who = Origin {
            here: true,
            ..origin(1, 1)
        };
        for key in 0..1000 {
            assert_eq!(guesses.note(&who, &unknown(key), 0), None);
        }
        assert_eq!(guesses.paused_until(&who, 0, 0), None);
        assert!(guesses.all(0).is_empty());
    }
}
