//! Decides what happens to each packet: a state machine without a clock. Datagrams and the time go in; datagrams to send now, and
//! the time of the next one, come out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rkey_roce::icrc;
use serde::{Deserialize, Serialize};

use crate::config::{Faults, Rate};
use crate::wire::datagram::Outgoing;

/// The maximum number of packets that overtake a reordered one. Packets that are reordered themselves do not count.
const OVERTAKING: u64 = 8;
/// The longest time for which a reordered packet waits to be overtaken.
const WAIT: Duration = Duration::from_millis(1);
/// The maximum number of bytes that wait. Further packets are lost, like those that a router with full buffers drops.
const MAX_BYTES: usize = 64 << 20;

/// The number of packets that each fault affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Packets that were not sent, including those dropped because too many bytes were waiting.
    pub lost: u64,
    /// Packets that were sent twice.
    pub duplicated: u64,
    /// Packets that waited for later ones.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
}

/// A reordered packet, which waits until others have overtaken it.
#[derive(Debug)]
struct Overtaken {
    /// The number of packets that have yet to overtake this one.
    left: u64,
    until: Instant,
    datagram: Outgoing,
}

/// Decides the fate of each packet, and holds the packets that wait.
#[derive(Debug)]
pub(super) struct FaultMachine {
    faults: Faults,
    seed: u64,
    /// How many packets have been pushed.
    come: u64,
    overtaken: Vec<Overtaken>,
    /// Packets and when to send them, in order.
    delayed: VecDeque<(Instant, Outgoing)>,
    /// The bytes that wait in `overtaken` and `delayed`.
    bytes: usize,
    counts: FaultCounts,
}

impl FaultMachine {
    /// A machine with these faults, in which what happens to the n-th packet depends only on `seed`.
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            seed,
            come: 0,
            overtaken: Vec::new(),
            delayed: VecDeque::new(),
            bytes: 0,
            counts: FaultCounts::default(),
        }
    }

    /// The faults as they are set.
    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Takes a datagram to send. The caller then takes what is due.
    pub(super) fn push(&mut self, now: Instant, mut datagram: Outgoing) {
        let mut dice = Dice::new(self.seed, self.come);
        self.come += 1;
        let Faults {
            loss,
            duplicate,
            reorder,
            corrupt,
            ..
        } = self.faults;
        let [lost, duplicated, reordered, corrupted] =
            [loss, duplicate, reorder, corrupt].map(|rate| dice.hits(rate));
        let [bit, overtaking] = [(); 2].map(|()| dice.next());
        let bytes = datagram.bytes.len() * (1 + usize::from(duplicated));
        if lost || self.bytes + bytes > MAX_BYTES {
            self.counts.lost += 1;
            return;
        }
        self.bytes += bytes;
        if corrupted {
            damage(&mut datagram.bytes, bit);
            self.counts.corrupted += 1;
        }
        if duplicated {
            self.counts.duplicated += 1;
            self.advance(now, datagram.clone());
        }
        if reordered {
            self.counts.reordered += 1;
            self.overtaken.push(Overtaken {
                left: 1 + overtaking % OVERTAKING,
                until: now + WAIT,
                datagram,
            });
        } else {
            self.advance(now, datagram);
        }
    }

    /// Appends a packet to the output, and after it the reordered packets for which it is the last one to overtake them.
    fn advance(&mut self, now: Instant, datagram: Outgoing) {
        let due = now + self.faults.delay;
        self.delayed.push_back((due, datagram));
        for it in &mut self.overtaken {
            it.left -= 1;
        }
        for it in self.overtaken.extract_if(.., |it| it.left == 0) {
            self.delayed.push_back((due, it.datagram));
        }
    }

    /// The next datagram to send now.
    pub(super) fn due(&mut self, now: Instant) -> Option<Outgoing> {
        let due = now + self.faults.delay;
        for it in self.overtaken.extract_if(.., |it| it.until <= now) {
            self.delayed.push_back((due, it.datagram));
        }
        if self.delayed.front()?.0 > now {
            return None;
        }
        let (_, datagram) = self.delayed.pop_front()?;
        self.bytes -= datagram.bytes.len();
        Some(datagram)
    }

    /// When the next datagram is due; `None` if none waits.
    pub(super) fn next(&self) -> Option<Instant> {
        let delayed = self.delayed.front().map(|(due, _)| *due);
        let overtaken = self.overtaken.iter().map(|it| it.until).min();
        delayed.into_iter().chain(overtaken).min()
    }

    /// All datagrams that wait, in order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Outgoing> {
        self.bytes = 0;
        let delayed = std::mem::take(&mut self.delayed).into_iter();
        let overtaken = std::mem::take(&mut self.overtaken).into_iter();
        (delayed.map(|(_, datagram)| datagram)).chain(overtaken.map(|it| it.datagram))
    }
}

/// Flips one bit that the checksum covers.
fn damage(bytes: &mut [u8], bit: u64) {
    let bits = bytes.len() * 8;
    if bits == 0 {
        return;
    }
    let bit = (bit % bits as u64) as usize;
    let at = match bit / 8 {
        icrc::CONGESTION => 0,
        at => at,
    };
    bytes[at] ^= 1 << (bit % 8);
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

    fn hits(&mut self, rate: Rate) -> bool {
        self.next() % 1_000_000 < u64::from(rate.per_million())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::ecn::Ecn;

    const NONE: Faults = Faults::NONE;
    const ALL: Rate = Rate::new(1_000_000);

    fn datagram(number: usize) -> Outgoing {
        Outgoing {
            from: [10, 0, 0, 1].into(),
            to: ([10, 0, 0, 2], 4791).into(),
            ecn: Ecn::default(),
            bytes: number.to_be_bytes().repeat(4),
        }
    }

    /// The datagrams that are due.
    fn due(machine: &mut FaultMachine, now: Instant) -> Vec<Outgoing> {
        std::iter::from_fn(|| machine.due(now)).collect()
    }

    /// The numbers of the packets that come out of a machine, in order, when a thousand go in, one each microsecond.
    fn run(faults: Faults, seed: u64) -> (Vec<usize>, FaultMachine) {
        let start = crate::time::now();
        let mut machine = FaultMachine::new(faults, seed);
        let mut out = Vec::new();
        for n in 0..1000 {
            let now = start + Duration::from_micros(n as u64);
            machine.push(now, datagram(n));
            out.extend(due(&mut machine, now));
        }
        let mut previous = start;
        while let Some(next) = machine.next() {
            assert!(next >= previous, "time goes on");
            previous = next;
            out.extend(due(&mut machine, next));
        }
        assert_eq!(machine.bytes, 0);
        let number = |it: Outgoing| {
            (0..1000)
                .find(|n| datagram(*n).bytes == it.bytes)
                .unwrap_or(usize::MAX)
        };
        (out.into_iter().map(number).collect(), machine)
    }

    #[test]
    fn packets_pass_unchanged_without_faults() {
        let (out, machine) = run(NONE, 1);
        assert_eq!(out, (0..1000).collect::<Vec<_>>());
        assert_eq!(machine.counts(), FaultCounts::default());
    }

    #[test]
    fn the_seed_determines_the_faults() {
        let faults = Faults {
            loss: Rate::new(10_000),
            duplicate: Rate::new(20_000),
            reorder: Rate::new(30_000),
            corrupt: Rate::new(40_000),
            ..NONE
        };
        let (out, machine) = run(faults, 7);
        let (again, same) = run(faults, 7);
        assert_eq!((&out, machine.counts()), (&again, same.counts()));
        assert_ne!(run(faults, 8).0, out);
        // The loss of a packet does not depend on the other faults.
        let alone = Faults {
            loss: faults.loss,
            ..NONE
        };
        assert_eq!(run(alone, 7).1.counts().lost, machine.counts().lost);
    }

    #[test]
    fn each_fault_happens_at_about_its_configured_rate() {
        let rate = Rate::new(100_000);
        for seed in 0..20 {
            let faults = Faults {
                loss: rate,
                duplicate: rate,
                reorder: rate,
                corrupt: rate,
                ..NONE
            };
            let counts = run(faults, seed).1.counts();
            let FaultCounts {
                lost,
                duplicated,
                reordered,
                corrupted,
            } = counts;
            for count in [lost, duplicated, reordered, corrupted] {
                assert!((50..160).contains(&count), "{seed}: {counts:?}");
            }
        }
    }

    #[test]
    fn lost_packets_are_not_sent_and_duplicated_packets_are_sent_twice() {
        let half = Rate::new(500_000);
        let (out, machine) = run(Faults { loss: half, ..NONE }, 3);
        assert_eq!(out.len() as u64, 1000 - machine.counts().lost);
        assert!(out.is_sorted_by(|a, b| a < b));
        let (out, machine) = run(
            Faults {
                duplicate: half,
                ..NONE
            },
            3,
        );
        assert_eq!(out.len() as u64, 1000 + machine.counts().duplicated);
        assert!(out.is_sorted());
        assert!(run(Faults { loss: ALL, ..NONE }, 3).0.is_empty());
    }

    #[test]
    fn at_a_low_rate_few_packets_overtake_a_reordered_packet() {
        let (out, machine) = run(
            Faults {
                reorder: Rate::new(50_000),
                ..NONE
            },
            5,
        );
        assert_eq!(out.len(), 1000);
        let overtaken = (0..1000).map(|n| {
            let at = out.iter().position(|it| *it == n).expect("none is lost");
            out[..at].iter().filter(|it| **it > n).count()
        });
        let overtaken: Vec<usize> = overtaken.collect();
        let moved = overtaken.iter().filter(|it| **it > 0).count() as u64;
        assert_eq!(moved, machine.counts().reordered);
        // While one waits, others that wait may be sent with it.
        assert!(overtaken.iter().all(|it| *it <= 16), "{overtaken:?}");
    }

    #[test]
    fn a_reordered_packet_without_followers_waits_for_a_millisecond() {
        let start = crate::time::now();
        let mut machine = FaultMachine::new(
            Faults {
                reorder: ALL,
                ..NONE
            },
            5,
        );
        machine.push(start, datagram(1));
        assert_eq!(machine.next(), Some(start + WAIT));
        assert_eq!(due(&mut machine, start + WAIT / 2), []);
        assert_eq!(due(&mut machine, start + WAIT), [datagram(1)]);
        assert_eq!(machine.next(), None);
    }

    #[test]
    fn a_duplicate_overtakes_its_reordered_packet() {
        let start = crate::time::now();
        let faults = Faults {
            reorder: ALL,
            duplicate: ALL,
            ..NONE
        };
        let mut machine = FaultMachine::new(faults, 5);
        machine.push(start, datagram(1));
        assert_eq!(due(&mut machine, start), [datagram(1)]);
        assert_eq!(due(&mut machine, start + WAIT), [datagram(1)]);
    }

    #[test]
    fn delayed_packets_keep_their_order() {
        let start = crate::time::now();
        let delay = Duration::from_millis(50);
        let mut machine = FaultMachine::new(Faults { delay, ..NONE }, 1);
        machine.push(start, datagram(1));
        machine.push(start + WAIT, datagram(2));
        assert_eq!(machine.next(), Some(start + delay));
        assert_eq!(due(&mut machine, start + delay - WAIT), []);
        assert_eq!(due(&mut machine, start + delay), [datagram(1)]);
        machine.push(start + delay, datagram(3));
        assert_eq!(due(&mut machine, start + delay + WAIT), [datagram(2)]);
        assert_eq!(machine.take_all().collect::<Vec<_>>(), [datagram(3)]);
        assert_eq!((machine.next(), machine.bytes), (None, 0));
    }

    #[test]
    fn a_corrupted_packet_differs_in_one_bit_that_the_checksum_covers() {
        let start = crate::time::now();
        let mut machine = FaultMachine::new(
            Faults {
                corrupt: ALL,
                ..NONE
            },
            1,
        );
        for n in 0..2000 {
            machine.push(start, datagram(n));
            let sent = machine.due(start).expect("it is sent").bytes;
            let original = datagram(n).bytes;
            let changed = sent
                .iter()
                .zip(&original)
                .map(|(a, b)| (a ^ b).count_ones());
            assert_eq!(changed.sum::<u32>(), 1);
            assert_eq!(sent[icrc::CONGESTION], original[icrc::CONGESTION]);
        }
        damage(&mut [], 7);
    }

    #[test]
    fn the_bytes_of_delayed_packets_are_limited() {
        let start = crate::time::now();
        let delay = Duration::from_secs(1);
        let mut machine = FaultMachine::new(Faults { delay, ..NONE }, 1);
        let long = Outgoing {
            bytes: vec![0; MAX_BYTES / 2],
            ..datagram(0)
        };
        for _ in 0..3 {
            machine.push(start, long.clone());
        }
        assert_eq!(machine.counts().lost, 1);
        assert_eq!(due(&mut machine, start + delay).len(), 2);
        machine.push(start + delay, long);
        assert_eq!(machine.counts().lost, 1);
    }
}
