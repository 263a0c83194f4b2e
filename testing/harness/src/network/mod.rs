//! A bad network between two hosts, for kernels without `netem`: a process that passes packets between an interface of one network
//! namespace and one of another, and loses, repeats, reorders, damages and delays them on the way. The same happens to the packets of all
//! senders and protocols.
//!
//! | module | what it is |
//! | --- | --- |
//! | this | [`Conditions`]: what happens to the packets of one direction |
//! | `damage` | flips a bit of a packet |
//! | `path` | one direction: a state machine without a clock |
//! | `tun` | the interfaces (TUN) |
//! | `forwarder` | the process |
//!
//! A namespace can be entered only by a process that has one thread, so the forwarder is the test program itself, which
//! [`Hosts::over`](crate::hosts::Hosts::over) starts again: with the name of a test that calls [`serve`], or, for a program without
//! tests, whose `main` calls it.

mod damage;
mod forwarder;
mod path;
mod tun;

pub(crate) use forwarder::Forwarder;
pub use forwarder::serve;
pub use path::Counts;

use anyhow::Context;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

/// A program whose `main` calls [`serve`], a comma, and the [`Conditions`] of both directions.
const EVERYWHERE: &str = "RKEY_TEST_HOSTS_NETWORK";
/// A file to which each network appends its [`Counts`] when it ends: a line for each direction.
const COUNTED: &str = "RKEY_TEST_HOSTS_COUNTS";

/// The arguments with which a test program is the network: they name a test that calls [`serve`].
#[must_use]
pub fn role(test: &str) -> [&str; 4] {
    ["--exact", test, "--nocapture", "--test-threads=1"]
}

/// Makes a test program put this network between all hosts that [`Hosts::new`](crate::hosts::Hosts::new) creates. The `main` of `program`
/// calls [`serve`]. [`counted`] reads from the file `counts` what has happened.
pub fn put_everywhere(tests: &mut Command, program: &Path, conditions: &Conditions, counts: &Path) {
    tests.env(EVERYWHERE, format!("{},{conditions}", program.display()));
    tests.env(COUNTED, counts);
}

/// What has happened to the packets of all networks of [`put_everywhere`] that have ended.
///
/// # Errors
/// The file cannot be read, or has other lines.
pub fn counted(counts: &Path) -> anyhow::Result<Counts> {
    let text = std::fs::read_to_string(counts).context("no network has written its counts")?;
    let all: Vec<Counts> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
    Ok(all.into_iter().sum())
}

/// The program and the conditions of [`put_everywhere`].
pub(crate) fn everywhere() -> Option<(PathBuf, Conditions)> {
    let text = std::env::var(EVERYWHERE).ok()?;
    let (program, conditions) = text.split_once(',').expect("a program and conditions");
    let conditions = conditions.parse().expect("conditions are displayed so");
    Some((program.into(), conditions))
}

/// What happens to the packets of one direction. Shares are in parts per million. By default, nothing happens to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The share of packets that are lost.
    pub loss: u32,
    /// The share of packets that arrive twice.
    pub duplicate: u32,
    /// The share of packets that arrive up to [`Conditions::LATE`] later, so that others overtake them.
    pub reorder: u32,
    /// The share of packets with a flipped bit.
    pub corrupt: u32,
    /// The flipped bits are in the data of UDP datagrams, and the UDP checksum is corrected, so that only a checksum of the data itself
    /// can detect the damage. Otherwise any bit of an IP packet may flip.
    pub mends_checksum: bool,
    /// How long each packet takes.
    pub delay: Duration,
    /// Each packet takes up to this much longer. Packets stay in order.
    pub jitter: Duration,
    /// How many bytes pass in a second; 0 means no limit.
    pub rate: u64,
    /// The maximum number of bytes that wait until earlier ones have passed, if the rate is limited. Packets that do not fit are lost.
    pub queue: u64,
    /// TCP connections from or to this port are delayed like others, but nothing else happens to them; 0 means none.
    pub spared: u16,
    /// What happens to the n-th packet of a direction depends only on this number and on the other fields.
    pub seed: u64,
}

impl Conditions {
    /// The maximum additional time of a packet that others overtake.
    pub const LATE: Duration = Duration::from_millis(1);
    /// The share of all packets.
    pub const ALL: u32 = 1_000_000;

    /// Nothing happens to packets.
    pub const PERFECT: Self = Self {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
        mends_checksum: false,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        rate: 0,
        queue: 0,
        spared: 0,
        seed: 1,
    };

    /// Packets are repeated, reordered and delayed, but none is lost or damaged.
    pub const ROUGH: Self = Self {
        duplicate: Self::percent(3),
        reorder: Self::percent(5),
        delay: Duration::from_micros(500),
        jitter: Duration::from_micros(300),
        ..Self::PERFECT
    };

    /// These conditions in both directions, with other random numbers in the second.
    #[must_use]
    pub const fn both_ways(self) -> [Self; 2] {
        let seed = self.seed + 1;
        [self, Self { seed, ..self }]
    }

    /// Whether packets may not arrive, be so damaged that their receiver drops them, or arrive twice or out of order.
    #[must_use]
    pub const fn is_unreliable(&self) -> bool {
        self.loss > 0 || self.corrupt > 0 || self.duplicate > 0 || self.reorder > 0
    }

    /// This share in percent, for the fields that are shares.
    #[must_use]
    pub const fn percent(percent: u32) -> u32 {
        percent * 10_000
    }
}

/// The fields in order, separated by spaces; durations in nanoseconds.
impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            loss,
            duplicate,
            reorder,
            corrupt,
            mends_checksum,
            delay,
            jitter,
            rate,
            queue,
            spared,
            seed,
        } = self;
        let (mends, delay, jitter) = (
            u8::from(*mends_checksum),
            delay.as_nanos(),
            jitter.as_nanos(),
        );
        write!(f, "{loss} {duplicate} {reorder} {corrupt} {mends} ")?;
        write!(f, "{delay} {jitter} {rate} {queue} {spared} {seed}")
    }
}

/// The text is not what [`Conditions`] display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotConditions;

impl FromStr for Conditions {
    type Err = NotConditions;

    fn from_str(text: &str) -> Result<Self, NotConditions> {
        let mut words = text.split(' ');
        let mut next = || -> Result<u64, NotConditions> {
            let word = words.next().ok_or(NotConditions)?;
            word.parse().map_err(|_| NotConditions)
        };
        let mut share = || next()?.try_into().map_err(|_| NotConditions);
        let (loss, duplicate, reorder, corrupt) = (share()?, share()?, share()?, share()?);
        let read = Self {
            loss,
            duplicate,
            reorder,
            corrupt,
            mends_checksum: next()? != 0,
            delay: Duration::from_nanos(next()?),
            jitter: Duration::from_nanos(next()?),
            rate: next()?,
            queue: next()?,
            spared: next()?.try_into().map_err(|_| NotConditions)?,
            seed: next()?,
        };
        words.next().is_none().then_some(read).ok_or(NotConditions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_they_are_displayed() {
        let bad = Conditions {
            loss: 1,
            duplicate: 2,
            reorder: 3,
            corrupt: Conditions::ALL,
            mends_checksum: true,
            delay: Duration::from_millis(25),
            jitter: Duration::from_micros(6),
            rate: 7,
            queue: 8,
            spared: 9,
            seed: u64::MAX,
        };
        for conditions in [Conditions::default(), bad] {
            assert_eq!(conditions.to_string().parse(), Ok(conditions));
        }
        for text in [
            "",
            "1 2 3",
            "1 2 3 4 5 6 7 8 9 10 11 12",
            "a 2 3 4 1 6 7 8 9 10 11",
        ] {
            assert_eq!(text.parse::<Conditions>(), Err(NotConditions));
        }
    }
}
