//! A network that loses, duplicates and delays (and so reorders) packets.

use rkey_roce::packet::Packet;
use std::collections::{BTreeMap, HashMap};

/// Random numbers from a seed.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit.max(1)
    }

    pub(crate) fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// How the network treats packets, in percent of all packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) late: u64,
    /// How many times in a row the same packet of a side may be lost.
    pub(crate) most_lost: u32,
}

pub(crate) const FAIR: Weather = Weather {
    lost: 0,
    doubled: 0,
    late: 0,
    most_lost: 0,
};

/// How long each packet takes, in nanoseconds.
const LATENCY: u64 = 5_000;
/// How much longer a late packet takes, at most.
const DELAY: u64 = 40_000;

type Censor = Box<dyn FnMut(usize, &Packet<'_>) -> bool>;

/// The network.
pub(crate) struct Network {
    pub(crate) weather: Weather,
    /// Decides whether a packet is lost, given the side that sent it.
    pub(crate) censor: Option<Censor>,
    random: Random,
    /// Packets in flight, by time of arrival, with their receiver.
    under_way: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    count: u64,
    lost_in_a_row: HashMap<(usize, u32, u32, u8), u32>,
}

impl Network {
    pub(crate) fn new(seed: u64, weather: Weather) -> Self {
        Self {
            weather,
            censor: None,
            random: Random::new(seed),
            under_way: BTreeMap::new(),
            count: 0,
            lost_in_a_row: HashMap::new(),
        }
    }

    /// When the next packet arrives.
    pub(crate) fn next_arrival(&self) -> Option<u64> {
        self.under_way.first_key_value().map(|((time, _), _)| *time)
    }

    /// Takes the next packet that has arrived, with its receiver.
    pub(crate) fn arrive(&mut self, now: u64) -> Option<(usize, Vec<u8>)> {
        self.next_arrival().filter(|time| *time <= now)?;
        self.under_way.pop_first().map(|(_, packet)| packet)
    }

    /// Takes a packet that side `from` sends.
    pub(crate) fn send(&mut self, now: u64, from: usize, packet: &[u8]) {
        let decoded = Packet::decode(packet).unwrap();
        if let Some(censor) = &mut self.censor
            && censor(from, &decoded)
        {
            return;
        }
        let Weather {
            lost,
            doubled,
            late,
            most_lost,
        } = self.weather;
        let headers = &decoded.headers;
        let name = (from, headers.destination, headers.psn.get(), packet[0]);
        let row = self.lost_in_a_row.entry(name).or_default();
        if *row < most_lost && self.random.happens(lost) {
            *row += 1;
            return;
        }
        *row = 0;
        for copy in 0..1 + u64::from(self.random.happens(doubled)) {
            let is_late = copy > 0 || self.random.happens(late);
            let delay = if is_late { self.random.below(DELAY) } else { 0 };
            self.count += 1;
            let time = now + LATENCY + delay;
            self.under_way
                .insert((time, self.count), (1 - from, packet.to_vec()));
        }
    }
}
