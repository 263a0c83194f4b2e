//! A network that loses, duplicates, delays (and so reorders) and damages datagrams.

use rkey_roce::icrc::Flow;
use rkey_roce::packet::Packet;
use std::collections::{BTreeMap, HashMap};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// Random numbers from a seed.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Similar seeds yield very different sequences.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit.max(1)
    }

    pub(crate) fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// How the network treats datagrams. Percentages are of all datagrams, times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// The minimum transit time of a datagram.
    pub(crate) transit: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) damaged: u64,
    /// Datagrams that take up to `delay` longer than others and so may be overtaken.
    pub(crate) late: u64,
    pub(crate) delay: u64,
    /// How many times in a row the same packet of a side may be lost or damaged.
    pub(crate) most_lost: u32,
}

pub(crate) const FAIR: Conditions = Conditions {
    transit: LATENCY,
    lost: 0,
    doubled: 0,
    damaged: 0,
    late: 0,
    delay: 0,
    most_lost: 0,
};

/// The usual transit time of a datagram, in nanoseconds.
pub(crate) const LATENCY: u64 = 5_000;

/// The buffer of a receiver: datagrams wait in it until earlier ones have been taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    /// How long it takes to take a datagram, in nanoseconds.
    pub(crate) each: u64,
    /// How many datagrams fit. Further ones are lost.
    pub(crate) room: u64,
    /// How many were lost.
    pub(crate) overflowed: u64,
    /// When all datagrams in it have been taken.
    empty_at: u64,
}

impl Buffer {
    pub(crate) fn new(each: u64, room: u64) -> Self {
        Self {
            each,
            room,
            overflowed: 0,
            empty_at: 0,
        }
    }

    /// When a datagram is taken that arrives at `time`.
    fn take(&mut self, time: u64) -> Option<u64> {
        let begins = self.empty_at.max(time);
        if begins - time >= self.room * self.each {
            self.overflowed += 1;
            return None;
        }
        self.empty_at = begins + self.each;
        Some(self.empty_at)
    }
}

type DropIf = Box<dyn FnMut(usize, &Packet<'_>) -> bool>;

/// The network.
pub(crate) struct Network {
    pub(crate) conditions: Conditions,
    /// Decides whether a side's packet is lost, before random losses.
    pub(crate) drop_if: Option<DropIf>,
    /// The buffer of B.
    pub(crate) buffer: Option<Buffer>,
    /// Datagrams in transit, by arrival time: the receiver and the bytes.
    under_way: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    flows: [Flow; 2],
    sequence: u64,
    lost_in_a_row: HashMap<(usize, u32, u8), u32>,
    /// All datagrams that were sent.
    pub(crate) sent: [u64; 2],
}

impl Network {
    pub(crate) fn new() -> Self {
        let address = |side: u16| format!("[fd77::{}]:4791", side + 1).parse().unwrap();
        let flow = |from, to| Flow::new(address(from), address(to)).unwrap();
        Self {
            conditions: FAIR,
            drop_if: None,
            buffer: None,
            under_way: BTreeMap::new(),
            flows: [flow(0, 1), flow(1, 0)],
            sequence: 0,
            lost_in_a_row: HashMap::new(),
            sent: [0; 2],
        }
    }

    /// When the next datagram arrives.
    pub(crate) fn next_arrival(&self) -> Option<u64> {
        self.under_way.first_key_value().map(|((time, _), _)| *time)
    }

    /// Removes the next datagram; returns its receiver and its packet. `None` if it is damaged.
    pub(crate) fn arrive(&mut self) -> Option<(usize, Vec<u8>)> {
        let (_, (to, datagram)) = self.under_way.pop_first()?;
        let opened = self.flows[1 - to].open(&datagram).ok()?;
        Some((to, opened.packet.to_vec()))
    }

    /// Transmits a packet from side `from`.
    pub(crate) fn send(&mut self, now: u64, random: &mut Random, from: usize, packet: &[u8]) {
        self.sent[from] += 1;
        let decoded = Packet::decode(packet).unwrap();
        if let Some(drop_if) = &mut self.drop_if
            && drop_if(from, &decoded)
        {
            return;
        }
        let conditions = self.conditions;
        let name = (from, decoded.headers.psn.get(), packet[0]);
        let row = self.lost_in_a_row.entry(name).or_default();
        let may_fail = *row < conditions.most_lost;
        let lost = may_fail && random.happens(conditions.lost);
        let damaged = may_fail && random.happens(conditions.damaged);
        *row = if lost || damaged { *row + 1 } else { 0 };
        if lost {
            return;
        }
        let copies = 1 + u64::from(random.happens(conditions.doubled));
        for copy in 0..copies {
            let mut datagram = packet.to_vec();
            self.flows[from].seal(&mut datagram, 0);
            if damaged && copy == 0 {
                let bit = random.below(datagram.len() as u64 * 8);
                datagram[bit as usize / 8] ^= 1 << (bit % 8);
            }
            let mut time = now + conditions.transit;
            if copy > 0 || random.happens(conditions.late) {
                time += random.below(conditions.delay);
            }
            let buffer = self.buffer.as_mut().filter(|_| from == A);
            let Some(time) = buffer.map_or(Some(time), |it| it.take(time)) else {
                continue;
            };
            self.sequence += 1;
            self.under_way
                .insert((time, self.sequence), (1 - from, datagram));
        }
    }
}
