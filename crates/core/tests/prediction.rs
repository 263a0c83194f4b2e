//! Whether keys can be predicted from other keys. The tests collect keys that an attacker can see, and derive guesses
//! that beat chance if keys follow any of the patterns that keys had before 0.2.
//!
//! The same guesser runs against a copy of the old key layout, to prove that it finds a pattern where there is one.

use rkey_base::range::VaRange;
use rkey_core::*;
use std::collections::{HashMap, HashSet};

/// The old key layout. The upper 24 bits of a key were the slot and the low 3 bits of its generation, scrambled by
/// three multiplications and shifts on 24 bits. The low byte was the rest of the generation, XORed with a hash of the
/// upper bits. So the upper bits of a slot's keys repeated after eight generations.
struct Old {
    mask: u32,
    factors: [u32; 3],
}

impl Old {
    const WIDE: u32 = (1 << 24) - 1;

    fn key(&self, slot: u32, generation: u32) -> u32 {
        let [first, second, third] = self.factors;
        let name = (generation & 7) << 21 | slot;
        let mut x = (name ^ self.mask).wrapping_mul(first) & Self::WIDE;
        x = (x ^ x >> 12).wrapping_mul(second) & Self::WIDE;
        x = (x ^ x >> 12).wrapping_mul(third) & Self::WIDE;
        let wide = x ^ x >> 12;
        let mixed = wide.wrapping_mul(0x9e37_79b1);
        wide << 8 | ((generation >> 3) ^ mixed >> 24) & 0xff
    }
}

/// The keys that an attacker sees if it can cause regions to be registered and deregistered.
struct Seen {
    /// Keys of regions that are all live.
    side_by_side: Vec<u32>,
    /// Keys of consecutive regions, each deregistered before the next is registered.
    in_turn: Vec<u32>,
}

const KEYS: usize = 2_000;

fn seen_before() -> Seen {
    let old = Old {
        mask: 0x5a_5a5a,
        factors: [0x3a_b7c5, 0xc5_1d2f, 0x71_e4a9],
    };
    Seen {
        side_by_side: (0..KEYS as u32).map(|slot| old.key(slot, 0)).collect(),
        in_turn: (0..KEYS as u32).map(|turn| old.key(3, turn)).collect(),
    }
}

fn seen_now(secret: u64) -> Seen {
    let table = Protection::new(Limits::default(), Secrets([secret, 2, 3, 4]));
    let domain = table.create_domain().unwrap();
    let register = || {
        let ranges = [VaRange::new(0x1000, 64).unwrap()];
        let region = table.register(&RegionSpec::new(domain, &ranges, Access::all()));
        region.unwrap()
    };
    let side_by_side = (0..KEYS).map(|_| register().key.0).collect();
    let in_turn = (0..KEYS).map(|_| {
        let region = register();
        table.deregister(region.id).unwrap().finish().unwrap();
        region.key.0
    });
    Seen {
        side_by_side,
        in_turn: in_turn.collect(),
    }
}

/// Guesses for the upper 24 bits of the key that comes after `seen`.
fn guesses(seen: &[u32]) -> HashSet<u32> {
    const WIDE: u32 = (1 << 24) - 1;
    let seen: Vec<u32> = seen.iter().map(|key| key >> 8).collect();
    let now = seen.len();
    let mut guesses = HashSet::new();
    for lag in 1..=16 {
        let last = seen[now - lag];
        // Keys repeat after the same number of keys.
        let same = (lag..now).filter(|at| seen[*at] == seen[at - lag]).count();
        if same > 4 {
            guesses.insert(last);
        }
        // The difference from an earlier key repeats, by addition or by XOR.
        let (mut steps, mut turns) = (HashMap::new(), HashMap::new());
        for at in lag..now {
            let step = seen[at].wrapping_sub(seen[at - lag]) & WIDE;
            *steps.entry(step).or_insert(0) += 1;
            *turns.entry(seen[at] ^ seen[at - lag]).or_insert(0) += 1;
        }
        let often = |counts: HashMap<u32, u32>| {
            let often = counts.into_iter().filter(|(_, count)| *count > 1);
            often.map(|(value, _)| value)
        };
        guesses.extend(often(steps).map(|step| last.wrapping_add(step) & WIDE));
        guesses.extend(often(turns).map(|turn| last ^ turn));
    }
    guesses
}

/// For how many keys the upper 24 bits were among the guesses, how many keys were tried, and how many guesses were
/// made.
fn luck(keys: &[u32]) -> (usize, usize, usize) {
    let (mut hits, mut rounds, mut tried) = (0, 0, 0);
    for now in (1_000..keys.len()).step_by(25) {
        let guesses = guesses(&keys[..now]);
        tried += guesses.len();
        hits += usize::from(guesses.contains(&(keys[now] >> 8)));
        rounds += 1;
    }
    (hits, rounds, tried)
}

/// How well linear functions of a key's number and of the two previous keys predict single bits of the key: the largest
/// difference from one half, over all bits, of the share of correct guesses.
fn linear(keys: &[u32]) -> f64 {
    let features = |at: usize| {
        u128::from(keys[at - 1]) | u128::from(keys[at - 2]) << 32 | (at as u128) << 64 | 1 << 96
    };
    let (known, unknown) = (2..1_000, 1_000..keys.len());
    let mut worst = 0f64;
    for bit in 0..32 {
        let value = |at: usize| u128::from(keys[at] >> bit & 1);
        // Gaussian elimination: each row has the features, with the value in the bit above them.
        let mut pivots: Vec<(u32, u128)> = Vec::new();
        for at in known.clone() {
            let mut row = features(at) | value(at) << 127;
            for (place, pivot) in &pivots {
                if row >> place & 1 != 0 {
                    row ^= pivot;
                }
            }
            let rest = row & !(1 << 127);
            if rest != 0 {
                pivots.push((rest.trailing_zeros(), row));
            }
        }
        let foretold = |at: usize| {
            let mut row = features(at);
            for (place, pivot) in &pivots {
                if row >> place & 1 != 0 {
                    row ^= pivot;
                }
            }
            row >> 127 == value(at)
        };
        let correct = unknown.clone().filter(|at| foretold(*at)).count();
        worst = worst.max((correct as f64 / unknown.len() as f64 - 0.5).abs());
    }
    worst
}

#[test]
#[cfg_attr(miri, ignore = "millions of steps")]
fn keys_of_the_old_layout_can_be_predicted() {
    let seen = seen_before();
    let (hits, rounds, tried) = luck(&seen.in_turn);
    assert_eq!(hits, rounds, "in turn, {tried} guesses");
}

/// A thousand keys reveal nothing about the next: it is not among the guesses, and no bit of it is predicted.
#[test]
#[cfg_attr(miri, ignore = "millions of steps")]
fn a_thousand_keys_reveal_nothing_about_the_next_key() {
    for secret in 0..2 {
        let seen = seen_now(secret);
        for (what, keys) in [
            ("side by side", &seen.side_by_side),
            ("in turn", &seen.in_turn),
        ] {
            let (hits, rounds, tried) = luck(keys);
            assert_eq!(hits, 0, "{what}: {tried} guesses for {rounds} keys");
            let all: HashSet<u32> = keys.iter().copied().collect();
            assert_eq!(all.len(), keys.len(), "{what}");
            // With 1,000 guesses for each bit, 0.08 is five standard deviations.
            let linear = linear(keys);
            assert!(linear < 0.08, "{what}: {linear}");
            let ones: u32 = keys.iter().map(|key| key.count_ones()).sum();
            let ones = f64::from(ones) / KEYS as f64;
            assert!((15.6..16.4).contains(&ones), "{what}: {ones} bits are set");
        }
    }
}

/// An attacker who has seen a thousand keys tries all keys near them, and all that their differences suggest: more than
/// 1.2 million guesses against a hundred live regions, of which 0.03 would succeed by chance.
#[test]
#[cfg_attr(miri, ignore = "millions of steps")]
fn keys_near_known_keys_grant_nothing() {
    let table = Protection::new(Limits::default(), Secrets([1, 2, 3, 5]));
    let domain = table.create_domain().unwrap();
    let register = || {
        let ranges = [VaRange::new(0x1000, 64).unwrap()];
        let region = table.register(&RegionSpec::new(domain, &ranges, Access::all()));
        region.unwrap().key.0
    };
    let mut own = Vec::new();
    let mut others = HashSet::new();
    for round in 0..1_100 {
        if round % 11 == 5 {
            others.insert(register());
        } else {
            own.push(register());
        }
    }
    let who = Accessor {
        domain,
        qp: 1,
        peer: None,
    };
    let mine: HashSet<u32> = own.iter().copied().collect();
    let mut tried = 0u32;
    let mut try_it = |key: u32| {
        if !mine.contains(&key) {
            tried += 1;
            let asked =
                table.check_remote(&who, RKey::Device(Key(key)), 0x1000, 8, Operation::Write);
            assert_eq!(asked.is_ok(), others.contains(&key));
            assert!(asked.is_err(), "{key:#x} after {tried} guesses");
        }
    };
    for key in &own {
        (1..=500).for_each(|near| {
            try_it(key.wrapping_add(near));
            try_it(key.wrapping_sub(near));
        });
        (0..32).for_each(|bit| try_it(key ^ 1 << bit));
        (1..32).for_each(|turn| try_it(key.rotate_left(turn)));
    }
    for (at, key) in own.iter().enumerate() {
        for two in own.windows(2).skip(at % 7).step_by(7) {
            try_it(key.wrapping_add(two[1].wrapping_sub(two[0])));
            try_it(key ^ two[0] ^ two[1]);
        }
    }
    assert!(tried > 1_200_000, "{tried}");
}

/// A server registers a buffer for each client and deregisters it when the client disconnects. One client connects 16
/// times and records the keys of its buffers. Then another client connects, and the first one tries to reach the new
/// buffer: first with the 256 keys that share their upper bits with one of its own keys (in the old layout, the key of
/// eight registrations ago has the right ones), then with keys that its own keys and their differences suggest.
#[test]
#[cfg_attr(miri, ignore = "many thousand steps")]
fn old_keys_of_one_client_do_not_reach_the_next_clients_buffer() {
    for secret in 0..20 {
        let table = Protection::new(Limits::default(), Secrets([secret, 7, 8, 9]));
        let domain = table.create_domain().unwrap();
        let register = || {
            let ranges = [VaRange::new(0x1000, 64).unwrap()];
            let region = table.register(&RegionSpec::new(domain, &ranges, Access::all()));
            region.unwrap()
        };
        let own: Vec<u32> = (0..16)
            .map(|_| {
                let region = register();
                table.deregister(region.id).unwrap().finish().unwrap();
                region.key.0
            })
            .collect();
        let other = register();
        let upper = |key: u32| (0..=0xff).map(move |low| key & !0xff | low);
        let mut tries: Vec<u32> = own.iter().rev().flat_map(|key| upper(*key)).collect();
        for one in &own {
            for two in &own {
                let step = two.wrapping_sub(*one);
                let last = own[15];
                tries.extend([last.wrapping_add(step), last ^ one ^ two]);
                tries.extend([
                    one.wrapping_add(step.rotate_left(8)),
                    one.wrapping_mul(*two),
                ]);
            }
        }
        let who = Accessor {
            domain,
            qp: 1,
            peer: None,
        };
        for (tried, key) in tries.into_iter().enumerate() {
            let asked =
                table.check_remote(&who, RKey::Device(Key(key)), 0x1000, 8, Operation::Write);
            assert!(asked.is_err(), "reached {} by guess {tried}", other.key);
        }
    }
}
