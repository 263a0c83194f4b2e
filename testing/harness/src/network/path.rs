//! One direction of a network: packets and the time go in; packets, and the time of the next one, come out.

use super::{Conditions, damage};
use std::collections::BTreeMap;
use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

const SECOND: u64 = 1_000_000_000;

/// What has happened to the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that were lost at random.
    pub lost: u64,
    /// Packets that did not fit into the queue.
    pub overflowed: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that others could overtake.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
}

impl Counts {
    fn fields(&mut self) -> [&mut u64; 6] {
        let Self {
            sent,
            lost,
            overflowed,
            duplicated,
            reordered,
            corrupted,
        } = self;
        [sent, lost, overflowed, duplicated, reordered, corrupted]
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut total = Self::default();
        for mut counts in all {
            for (field, count) in total.fields().into_iter().zip(counts.fields()) {
                *field += *count;
            }
        }
        total
    }
}

/// The fields in order, separated by spaces.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = *self;
        let words = all.fields().map(|it| it.to_string());
        f.write_str(&words.join(" "))
    }
}

impl FromStr for Counts {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::default();
        for (field, word) in all.fields().into_iter().zip(text.split(' ')) {
            *field = word.parse()?;
        }
        Ok(all)
    }
}

/// One direction. Times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Path {
    conditions: Conditions,
    /// The packets under way, by the time at which they arrive, and their number.
    under_way: BTreeMap<(u64, u64), Vec<u8>>,
    /// The number of the next packet under way.
    number: u64,
    /// When the last packet in order arrives.
    last: u64,
    /// When the packets that are waiting have passed, if the rate is limited.
    passed: u64,
    pub(super) counts: Counts,
}

impl Path {
    pub(super) fn new(conditions: Conditions) -> Self {
        Self {
            conditions,
            under_way: BTreeMap::new(),
            number: 0,
            last: 0,
            passed: 0,
            counts: Counts::default(),
        }
    }

    /// Takes a packet, an IP packet with its headers.
    pub(super) fn push(&mut self, now: u64, mut packet: Vec<u8>) {
        let mut dice = Dice::new(self.conditions.seed, self.counts.sent);
        self.counts.sent += 1;
        let Conditions {
            loss,
            duplicate,
            reorder,
            corrupt,
            mends_checksum,
            delay,
            jitter,
            spared,
            ..
        } = self.conditions;
        let [is_lost, is_double, is_late, is_damaged] =
            [loss, duplicate, reorder, corrupt].map(|share| dice.hits(share));
        let [bit, late, later] = [(); 3].map(|()| dice.next());
        let is_spared =
            spared != 0 && damage::tcp_ports(&packet).is_some_and(|ports| ports.contains(&spared));
        if is_lost && !is_spared {
            self.counts.lost += 1;
            return;
        }
        let Some(passed) = self.pass(now, packet.len() as u64) else {
            self.counts.overflowed += 1;
            return;
        };
        let jitter = jitter.as_nanos() as u64;
        let arrives = passed + delay.as_nanos() as u64 + later.checked_rem(jitter).unwrap_or(0);
        let arrives = arrives.max(self.last);
        if is_spared {
            self.add(arrives, packet);
            return;
        }
        if is_damaged && mends_checksum {
            self.counts.corrupted += u64::from(damage::flip_data(&mut packet, bit));
        } else if is_damaged {
            damage::flip_any(&mut packet, bit);
            self.counts.corrupted += 1;
        }
        if is_double {
            self.counts.duplicated += 1;
            self.add(arrives, packet.clone());
        }
        if is_late {
            self.counts.reordered += 1;
            self.under_way.insert(
                (
                    arrives + late % Conditions::LATE.as_nanos() as u64,
                    self.number,
                ),
                packet,
            );
            self.number += 1;
        } else {
            self.add(arrives, packet);
        }
    }

    /// Adds a packet after those that are in order.
    fn add(&mut self, arrives: u64, packet: Vec<u8>) {
        self.last = arrives;
        self.under_way.insert((arrives, self.number), packet);
        self.number += 1;
    }

    /// When a packet of this length, in bytes, has passed the bottleneck. `None` if it does not fit into its queue.
    fn pass(&mut self, now: u64, length: u64) -> Option<u64> {
        let Conditions { rate, queue, .. } = self.conditions;
        if rate == 0 {
            return Some(now);
        }
        let begins = self.passed.max(now);
        let waiting = u128::from(begins - now) * u128::from(rate) / u128::from(SECOND);
        if begins > now && waiting as u64 + length > queue {
            return None;
        }
        self.passed = begins + length * SECOND / rate;
        Some(self.passed)
    }

    /// The next packet that arrives until `now`.
    pub(super) fn due(&mut self, now: u64) -> Option<Vec<u8>> {
        let first = self.under_way.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the next packet arrives; `None` if none is under way.
    pub(super) fn next(&self) -> Option<u64> {
        let first = self.under_way.first_key_value();
        first.map(|((time, _), _)| *time)
    }
}

/// Random numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    /// The random numbers for the n-th packet.
    fn new(seed: u64, n: u64) -> Self {
        Self(Self(seed ^ Self(n).next()).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Whether something with this share happens.
    fn hits(&mut self, share: u32) -> bool {
        self.next() % u64::from(Conditions::ALL) < u64::from(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MICROSECOND: u64 = 1000;

    /// Sends ten thousand packets of 100 bytes, one each microsecond; returns the number of each that arrives, with the time.
    fn run(conditions: Conditions) -> (Vec<(u64, u64)>, Counts) {
        let mut path = Path::new(conditions);
        let mut arrived = Vec::new();
        let take = |path: &mut Path, now: u64, arrived: &mut Vec<(u64, u64)>| {
            while let Some(packet) = path.due(now) {
                let number = u64::from_ne_bytes(packet[92..].try_into().unwrap());
                arrived.push((number, now));
            }
        };
        for number in 0..10_000_u64 {
            let now = number * MICROSECOND;
            while let Some(next) = path.next().filter(|next| *next <= now) {
                take(&mut path, next, &mut arrived);
            }
            let mut packet = vec![0; 100];
            packet[92..].copy_from_slice(&number.to_ne_bytes());
            path.push(now, packet);
        }
        while let Some(next) = path.next() {
            take(&mut path, next, &mut arrived);
        }
        (arrived, path.counts)
    }

    fn numbers(arrived: &[(u64, u64)]) -> Vec<u64> {
        arrived.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn a_good_network_passes_everything_in_order_and_at_once() {
        let (arrived, counts) = run(Conditions::default());
        assert!(
            arrived
                .iter()
                .zip(0..)
                .all(|(it, n)| *it == (n, n * MICROSECOND))
        );
        let expected = Counts {
            sent: 10_000,
            ..Counts::default()
        };
        assert_eq!((arrived.len(), counts), (10_000, expected));
    }

    #[test]
    fn each_fault_happens_to_its_share_of_the_packets() {
        let share = Conditions::percent(3);
        let usual = |count: u64| (250..350).contains(&count);
        let (arrived, counts) = run(Conditions {
            loss: share,
            ..Conditions::default()
        });
        assert!(usual(counts.lost) && arrived.len() as u64 == 10_000 - counts.lost);
        assert!(numbers(&arrived).is_sorted());
        let (arrived, counts) = run(Conditions {
            duplicate: share,
            ..Conditions::default()
        });
        assert!(usual(counts.duplicated) && arrived.len() as u64 == 10_000 + counts.duplicated);
        let (arrived, counts) = run(Conditions {
            reorder: share,
            ..Conditions::default()
        });
        let mut all = numbers(&arrived);
        let overtaken = all.windows(2).filter(|it| it[1] < it[0]).count() as u64;
        assert!(usual(counts.reordered) && overtaken > counts.reordered / 2);
        all.sort_unstable();
        assert!(
            all.into_iter().eq(0..10_000),
            "nothing else happens to them"
        );
        let longest = arrived.iter().map(|(n, time)| time - n * MICROSECOND).max();
        assert!(longest.unwrap() < Conditions::LATE.as_nanos() as u64);
        let (_, counts) = run(Conditions {
            corrupt: share,
            ..Conditions::default()
        });
        assert!(usual(counts.corrupted));
    }

    #[test]
    fn delay_and_jitter_keep_the_order() {
        let (delay, jitter) = (Duration::from_millis(25), Duration::from_millis(2));
        let (arrived, _) = run(Conditions {
            delay,
            jitter,
            ..Conditions::default()
        });
        assert!(numbers(&arrived).is_sorted() && arrived.len() == 10_000);
        let times = arrived.iter().map(|(n, time)| time - n * MICROSECOND);
        let (least, most) = (times.clone().min().unwrap(), times.max().unwrap());
        let delay = delay.as_nanos() as u64;
        assert!(least >= delay && most > delay + 1_000_000 && most < delay + 2_000_000);
    }

    /// 100 bytes each microsecond are 100 MB/s.
    #[test]
    fn a_limited_rate_fills_the_queue_and_then_loses_packets() {
        let (arrived, counts) = run(Conditions {
            rate: 50_000_000,
            queue: 10_000,
            ..Conditions::default()
        });
        assert!((4900..5100).contains(&counts.overflowed), "{counts:?}");
        assert_eq!(arrived.len() as u64 + counts.overflowed, 10_000);
        let longest = arrived
            .iter()
            .map(|(n, time)| time - n * MICROSECOND)
            .max()
            .unwrap();
        // 10,000 bytes take 200 µs.
        assert!((190_000..=202_000).contains(&longest), "{longest}");
        let (_, counts) = run(Conditions {
            rate: 100_000_000,
            ..Conditions::default()
        });
        assert_eq!(counts.overflowed, 0);
    }

    #[test]
    fn the_seed_decides_and_spared_connections_lose_nothing() {
        let half = Conditions {
            loss: Conditions::percent(50),
            duplicate: Conditions::percent(5),
            seed: 1,
            ..Conditions::default()
        };
        let (first, _) = run(half);
        assert_eq!(run(half).0, first);
        assert_ne!(run(Conditions { seed: 2, ..half }).0, first);
        let mut path = Path::new(Conditions {
            loss: Conditions::ALL,
            spared: 0x1234,
            ..half
        });
        let mut packet = vec![0; 60];
        (packet[0], packet[9]) = (0x45, 6);
        path.push(0, packet.clone());
        assert_eq!((path.due(0), path.counts.lost), (None, 1));
        packet[22..24].copy_from_slice(&[0x12, 0x34]);
        path.push(0, packet.clone());
        assert_eq!((path.due(0), path.counts.lost), (Some(packet), 1));
    }

    #[test]
    fn counts_are_read_as_they_are_displayed() {
        let (_, counts) = run(Conditions {
            loss: 1000,
            corrupt: 5000,
            ..Conditions::default()
        });
        assert_eq!(counts.to_string().parse(), Ok(counts));
        assert!("1 x".parse::<Counts>().is_err());
    }
}
