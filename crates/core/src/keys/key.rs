//! Keys of the device: how they are chosen, and what a number names as a key.
//!
//! **Remote keys** are issued in the order of a keyed permutation of all 32-bit numbers ([`crate::keys::cipher`]): the first
//! key is the encrypted 0, the next the encrypted 1. A key contains nothing about its slot; a table maps it to one
//! ([`crate::keys::key_table`]). So an attacker who knows any number of keys, and knows or decides when regions are registered
//! and deregistered, learns nothing about the other keys except that they differ. No key is issued again before all have
//! been used; then the next permutation begins. To distinguish a stale key from one that was never issued, the device
//! decrypts the key and compares the result with the count of numbers drawn so far.
//!
//! **Type 2 windows** leave the low 8 bits to their consumer, so the device chooses only the upper 24. None of the 256
//! keys with these bits is in use, and usually none was issued before: the device tries a few values to find such bits.
//!
//! **Local keys** are not secret, because they work only in requests of this process. They name their slot directly:
//!
//! ```text
//!  31              12 11        1  0
//! +------------------+------------+---+
//! |     slot + 1     | generation | 1 |   exclusive or a mask of the device
//! +------------------+------------+---+
//! ```
//!
//! A number can be both a local and a remote key, with the small probability that a guess hits a key; whether it is used as
//! a local or as a remote key then decides what it names. Keys below 256 are never issued; programs use 0 for "no key".

use crate::keys::cipher::Cipher;
use crate::keys::key_table::KeyTable;
use crate::objects::id::GENERATIONS;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{Key, LKey, Limits, Secrets};

/// How many keys are encrypted at a time.
const BATCH: usize = 64;
/// Keys below this are never issued.
const LOWEST: u32 = 256;
/// A key's cell in the table is fetched into the cache this many keys ahead.
const AHEAD: usize = 12;
/// After this many tries, a type 2 window may get a prefix under which keys have already been issued.
const TRIES: u32 = 16;
/// Words of the bit map of prefixes.
const PREFIX_WORDS: u32 = 1 << 18;
/// Once this many prefixes (half of all) have been used, those of deallocated windows are freed.
const MANY_PREFIXES: u32 = 1 << 23;

/// What a number names when it is used as a key.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// A region, or a window whose key the device chose: the number is, or was, its remote key.
    Remote { index: u32, generation: u32 },
    /// A region, by its local key; the region need not exist.
    Local { index: u32, generation: u32 },
    /// A type 2 window; the low byte of the key is the consumer's.
    Type2 { index: u32, generation: u32 },
    /// A stale remote key; its slot no longer records the region or window.
    Ended,
    /// Never issued.
    Nothing,
}

/// The keys of one device.
pub(crate) struct Keys {
    secrets: Secrets,
    /// The first permutation.
    cipher: Cipher,
    /// The number of the current permutation (upper half), and how many numbers have been drawn from it (lower half).
    drawn: AtomicU64,
    /// How many times the generations of any slot have wrapped.
    wraps: AtomicU32,
    local_mask: u32,
    /// Keys of regions and of windows whose keys the device chooses.
    pub(crate) remote: KeyTable,
    /// Keys of type 2 windows, with zeros in place of the consumer's bits.
    pub(crate) type2: KeyTable,
}

/// The next keys. Kept under the protection table's lock.
pub(crate) struct KeySequence {
    /// The current permutation.
    cipher: Cipher,
    batch: [u32; BATCH],
    /// A bit for each prefix (upper 24 bits) that a type 2 window has used; `None` before the first such window.
    prefixes: Option<Box<[u64]>>,
    /// The number of prefixes used so far.
    had: u32,
    /// The next word of `prefixes` to check for deallocated windows, while that scan runs.
    freeing: Option<u32>,
}

impl Keys {
    pub(crate) fn new(secrets: &Secrets) -> Self {
        // The upper bits of the mask belong to no slot, so no local key is below 256.
        let random = secrets.number("local keys");
        let none = Limits::KEY_SLOTS + 1 + (random >> 32) as u32 % Limits::TYPE2_SLOTS;
        Self {
            secrets: secrets.clone(),
            cipher: Cipher::new(secrets, 0),
            drawn: AtomicU64::new(0),
            wraps: AtomicU32::new(0),
            local_mask: none << 12 | random as u32 & 0xffe,
            remote: KeyTable::new(),
            type2: KeyTable::new(),
        }
    }

    /// How many times the generations of any slot have wrapped. If this number did not change between the lookup of a
    /// key and the check of its slot's generation, the slot still holds the key's object. Acquire: a reader that sees a
    /// wrap also sees that the earlier keys are stale.
    #[inline]
    pub(crate) fn wraps(&self) -> u32 {
        self.wraps.load(Ordering::Acquire)
    }

    /// Records that a slot's generations wrap. Call it before the slot is freed.
    #[cold]
    pub(crate) fn wrap(&self) {
        self.wraps.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn draw(&self) -> KeySequence {
        KeySequence {
            cipher: self.cipher.clone(),
            batch: [0; BATCH],
            prefixes: None,
            had: 0,
            freeing: None,
        }
    }

    /// The local key of a generation of a slot.
    #[inline]
    pub(crate) fn local(&self, index: u32, generation: u32) -> LKey {
        LKey(((index + 1) << 12 | generation << 1 | 1) ^ self.local_mask)
    }

    /// The slot and the generation that a number names as a local key.
    #[inline]
    pub(crate) fn open_local(&self, key: LKey) -> Option<(u32, u32)> {
        let name = key.0 ^ self.local_mask;
        let index = (name >> 12).wrapping_sub(1);
        (name & 1 != 0 && index < Limits::KEY_SLOTS)
            .then_some((index, name >> 1 & (GENERATIONS - 1)))
    }

    /// What a number names, for a denial and for other slow paths. `is_live` says whether a slot is in use under a
    /// generation.
    #[cold]
    pub(crate) fn open(&self, key: u32, is_live: impl Fn(u32, u32) -> bool) -> Named {
        let local = self.open_local(LKey(key));
        let remote = self.remote.recall(key);
        let type2 = self.type2.recall(key & !0xff);
        match (remote, local, type2) {
            (Some(it), ..) if it.live => Named::Remote {
                index: it.index,
                generation: it.generation,
            },
            (_, Some((index, generation)), _) if is_live(index, generation) => {
                Named::Local { index, generation }
            }
            (.., Some(it)) if it.live => Named::Type2 {
                index: it.index,
                generation: it.generation,
            },
            (Some(it), ..) => Named::Remote {
                index: it.index,
                generation: it.generation,
            },
            (.., Some(it)) => Named::Type2 {
                index: it.index,
                generation: it.generation,
            },
            _ if key < LOWEST => Named::Nothing,
            _ if self.was_drawn([key]) => Named::Ended,
            (_, Some((index, generation)), _) => Named::Local { index, generation },
            _ => Named::Nothing,
        }
    }

    /// Whether one of these numbers has been drawn from the current permutation.
    fn was_drawn<const N: usize>(&self, numbers: [u32; N]) -> bool {
        let drawn = self.drawn.load(Ordering::Relaxed);
        let indices = match (drawn >> 32) as u32 {
            0 => self.cipher.decrypt(numbers),
            epoch => Cipher::new(&self.secrets, epoch).decrypt(numbers),
        };
        indices.iter().any(|index| *index < drawn as u32)
    }

    /// The number of the permutation that keys currently come from.
    #[inline]
    pub(crate) fn permutation(&self) -> u32 {
        (self.drawn.load(Ordering::Relaxed) >> 32) as u32
    }

    /// The next number of the permutation.
    #[inline]
    fn next(&self, draw: &mut KeySequence) -> u32 {
        let drawn = self.drawn.load(Ordering::Relaxed);
        let index = drawn as usize % BATCH;
        if index == 0 {
            self.refill(draw, drawn);
        }
        self.drawn.store(drawn + 1, Ordering::Relaxed);
        if let Some(later) = draw.batch.get(index + AHEAD) {
            self.remote.prefetch(*later);
        }
        draw.batch[index]
    }

    #[cold]
    fn refill(&self, draw: &mut KeySequence, drawn: u64) {
        if drawn as u32 == 0 && drawn > 0 {
            draw.cipher = Cipher::new(&self.secrets, (drawn >> 32) as u32);
        }
        let numbers = std::array::from_fn(|index| drawn as u32 + index as u32);
        draw.batch = draw.cipher.encrypt(numbers);
    }

    /// A new remote key for a generation of a slot, entered into the table; `None` if the table is full.
    #[inline]
    pub(crate) fn give_remote(
        &self,
        draw: &mut KeySequence,
        index: u32,
        generation: u32,
    ) -> Option<Key> {
        let key = loop {
            let key = self.next(draw);
            if key >= LOWEST && !draw.had_prefix(key) && !self.comes_again(key) {
                break key;
            }
        };
        self.remote
            .insert(key, index, generation)
            .then_some(Key(key))
    }

    /// Whether a key of an earlier permutation equals this one and is still live.
    #[inline]
    fn comes_again(&self, key: u32) -> bool {
        self.drawn.load(Ordering::Relaxed) > 1 << 32 && self.remote.find(key).is_some()
    }

    /// A new key for a generation of a slot of a type 2 window, with zeros in place of the consumer's bits; `None` if
    /// the table is full.
    #[cold]
    pub(crate) fn give_type2(
        &self,
        draw: &mut KeySequence,
        index: u32,
        generation: u32,
    ) -> Option<Key> {
        let mut tries = 0;
        let key = loop {
            let key = self.next(draw) & !0xff;
            let used = key < LOWEST || draw.had_prefix(key) || self.remote.any_with_prefix(key);
            tries += 1;
            if !used && (tries > TRIES || !self.any_was_drawn(key)) {
                break key;
            }
        };
        draw.note_prefix(key, &self.type2);
        self.type2
            .insert(key, index, generation)
            .then_some(Key(key))
    }

    /// Whether one of the 256 keys with these upper bits has been drawn, other than the number that the prefix comes from.
    fn any_was_drawn(&self, prefix: u32) -> bool {
        let keys = |block: u32| {
            std::array::from_fn::<u32, BATCH, _>(|low| prefix | block << 6 | low as u32)
        };
        let drawn = self.drawn.load(Ordering::Relaxed);
        let cipher = match (drawn >> 32) as u32 {
            0 => self.cipher.clone(),
            epoch => Cipher::new(&self.secrets, epoch),
        };
        let indices = (0..4).flat_map(|block| cipher.decrypt(keys(block)));
        indices.filter(|index| *index < drawn as u32).count() > 1
    }
}

impl KeySequence {
    /// Whether a type 2 window has or had this key.
    #[inline]
    fn had_prefix(&self, key: u32) -> bool {
        let Some(prefixes) = &self.prefixes else {
            return false;
        };
        prefixes[(key >> 14) as usize] >> (key >> 8 & 63) & 1 != 0
    }

    /// Records the prefix of a new type 2 window. When half of the prefixes have been used, those of deallocated windows
    /// become free again: each call checks 64 of them, so the lock is never held for long. That comes before the new
    /// prefix is recorded, because the new key is not yet in the table of live keys.
    fn note_prefix(&mut self, key: u32, live: &KeyTable) {
        if self.had >= MANY_PREFIXES {
            self.freeing.get_or_insert(0);
        }
        if let Some(word) = self.freeing {
            self.free_prefixes(word, live);
            self.freeing = (word + 1 < PREFIX_WORDS).then_some(word + 1);
        }
        let prefixes = self
            .prefixes
            .get_or_insert_with(|| vec![0; PREFIX_WORDS as usize].into_boxed_slice());
        prefixes[(key >> 14) as usize] |= 1 << (key >> 8 & 63);
        self.had += 1;
    }

    /// Frees the prefixes in one word that belong to no live window.
    fn free_prefixes(&mut self, word: u32, live: &KeyTable) {
        let Some(bits) = self
            .prefixes
            .as_mut()
            .and_then(|prefixes| prefixes.get_mut(word as usize))
        else {
            return;
        };
        let mut left = *bits;
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            if live.find(word << 14 | bit << 8).is_none() {
                *bits &= !(1 << bit);
                self.had -= 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn keys(seed: u64) -> (Keys, KeySequence) {
        let keys = Keys::new(&Secrets([seed, 2, 3, 4]));
        let draw = keys.draw();
        (keys, draw)
    }

    fn none(_: u32, _: u32) -> bool {
        false
    }

    #[test]
    fn a_key_names_the_slot_and_generation_it_was_issued_for() {
        let (keys, mut draw) = keys(1);
        for index in 0..if cfg!(miri) { 40 } else { 4_000 } {
            let generation = index * 37 % GENERATIONS;
            let key = keys.give_remote(&mut draw, index, generation).unwrap();
            let named = Named::Remote { index, generation };
            assert_eq!(keys.open(key.0, none), named);
            assert_eq!(keys.remote.find(key.0), Some((index, generation)));
            keys.remote.end(key.0, index, generation);
            assert_eq!(keys.remote.find(key.0), None);
            assert_eq!(keys.open(key.0, none), named);
        }
        for index in (0..Limits::KEY_SLOTS)
            .step_by(9_973)
            .chain([Limits::KEY_SLOTS - 1])
        {
            for generation in [0, 1, 1_000, GENERATIONS - 1] {
                let key = keys.local(index, generation);
                assert!(key.0 >= LOWEST);
                assert_eq!(keys.open_local(key), Some((index, generation)));
                let named = Named::Local { index, generation };
                assert_eq!(
                    keys.open(key.0, |slot, turn| (slot, turn) == (index, generation)),
                    named
                );
            }
        }
    }

    /// A stale key is never mistaken for one that was never issued, even long after the table has forgotten its object.
    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn stale_keys_differ_from_numbers_that_were_never_keys() {
        let (keys, mut draw) = keys(1);
        let given: Vec<u32> = (0..20_000)
            .map(|_| {
                let key = keys.give_remote(&mut draw, 3, 4).unwrap();
                keys.remote.end(key.0, 3, 4);
                key.0
            })
            .collect();
        let forgotten = given
            .iter()
            .filter(|key| keys.remote.recall(**key).is_none());
        assert!(forgotten.count() > 19_000);
        for key in &given {
            let named = keys.open(*key, none);
            assert!(
                matches!(named, Named::Ended | Named::Remote { .. }),
                "{named:?}"
            );
        }
        let all: HashSet<u32> = given.iter().copied().collect();
        let others = (LOWEST..)
            .step_by(214_013)
            .take(10_000)
            .filter(|key| !all.contains(key));
        for key in others {
            assert!(!matches!(keys.open(key, none), Named::Ended), "{key}");
        }
    }

    #[test]
    fn numbers_below_256_are_not_keys() {
        let (keys, mut draw) = keys(3);
        for key in 0..LOWEST {
            assert_eq!(keys.open(key, none), Named::Nothing);
        }
        keys.next(&mut draw);
        draw.batch[1..6].copy_from_slice(&[0, 7, 255, 256, 300]);
        let mut give = || keys.give_remote(&mut draw, 1, 1).unwrap().0;
        assert_eq!([give(), give()], [256, 300]);
    }

    /// No key of a type 2 window, with any low bits, is or was another key, and no later key is one of the
    /// window's.
    #[test]
    #[cfg_attr(miri, ignore = "many thousand steps")]
    fn type_2_windows_share_no_keys() {
        let (keys, mut draw) = keys(5);
        let mut upper = HashSet::new();
        for round in 0..60_000 {
            let key = keys.give_remote(&mut draw, 1, 0).unwrap();
            if round % 2 == 0 {
                keys.remote.end(key.0, 1, 0);
            }
            upper.insert(key.0 >> 8);
        }
        let mut windows = HashSet::new();
        for index in 0..2_000 {
            let key = keys.give_type2(&mut draw, index, 4).unwrap();
            assert_eq!(key.consumer_bits(), 0);
            assert!(!upper.contains(&(key.0 >> 8)), "{key}");
            assert!(windows.insert(key.0 >> 8), "{key}");
            for low in [0, 1, 255] {
                let (named, generation) = (keys.open(key.with_consumer_bits(low).0, none), 4);
                assert_eq!(named, Named::Type2 { index, generation });
            }
        }
        for _ in 0..100_000 {
            let key = keys.give_remote(&mut draw, 1, 0).unwrap();
            assert!(!windows.contains(&(key.0 >> 8)), "{key}");
            keys.remote.end(key.0, 1, 0);
        }
    }

    /// When half of the prefixes have been used, those of deallocated windows become free again, and those of live
    /// windows do not.
    #[test]
    #[cfg_attr(miri, ignore = "millions of steps")]
    fn prefixes_of_deallocated_windows_are_reused_once_half_are_used() {
        let (keys, mut draw) = keys(5);
        let live = keys.give_type2(&mut draw, 1, 1).unwrap().0;
        let ended = keys.give_type2(&mut draw, 2, 1).unwrap().0;
        keys.type2.end(ended, 2, 1);
        assert!(draw.had_prefix(live) && draw.had_prefix(ended));
        // As if deallocated windows had used half of all prefixes.
        let prefixes = draw.prefixes.as_mut().unwrap();
        prefixes.iter_mut().for_each(|word| *word |= u64::MAX >> 32);
        draw.had = prefixes.iter().map(|word| word.count_ones()).sum();
        assert!(draw.had >= MANY_PREFIXES);
        for key in (0..PREFIX_WORDS).map(|word| word << 14 | 40 << 8) {
            let before = draw.had;
            draw.note_prefix(key, &keys.type2);
            // The work for one key is bounded.
            assert!(before + 1 - draw.had <= 64, "{before}, {}", draw.had);
            assert!(draw.had_prefix(key));
        }
        assert!(draw.had_prefix(live) && !draw.had_prefix(ended));
        assert_eq!((draw.had, draw.freeing), (PREFIX_WORDS + 1, None));
        let set: u32 = draw
            .prefixes
            .iter()
            .flatten()
            .map(|word| word.count_ones())
            .sum();
        assert_eq!(set, draw.had);
    }

    /// A key can be issued while the word that contains its own prefix is being checked.
    #[test]
    fn a_new_prefix_is_not_freed_by_the_check_of_its_word() {
        let (keys, mut draw) = keys(5);
        let (key, other) = (0x1234_5600, 0x1234_5700);
        draw.note_prefix(other, &keys.type2);
        draw.freeing = Some(key >> 14);
        draw.note_prefix(key, &keys.type2);
        assert!(draw.had_prefix(key) && !draw.had_prefix(other));
        assert_eq!((draw.had, draw.freeing), (1, Some((key >> 14) + 1)));
    }

    /// After 2^32 keys another permutation begins, which skips keys that are still live.
    #[test]
    fn another_permutation_begins_when_all_keys_are_used() {
        let (keys, mut draw) = keys(6);
        let first = keys.give_remote(&mut draw, 1, 0).unwrap();
        keys.drawn.store(1 << 32, Ordering::Relaxed);
        let next = keys.give_remote(&mut draw, 2, 0).unwrap();
        assert_ne!(next, first);
        assert_eq!(next.0, Cipher::new(&keys.secrets, 1).encrypt([0])[0]);
        draw.batch[1] = first.0;
        let third = keys.give_remote(&mut draw, 3, 0).unwrap();
        assert_eq!(third.0, draw.batch[2]);
        assert_eq!(
            keys.open(third.0, none),
            Named::Remote {
                index: 3,
                generation: 0
            }
        );
        keys.remote.end(next.0, 2, 0);
        assert!(keys.was_drawn([next.0]));
    }

    #[test]
    fn different_secrets_give_different_keys() {
        let ((one, mut first), (two, mut second)) = (keys(1), keys(2));
        let same = (0..100).filter(|slot| {
            one.give_remote(&mut first, *slot, 0) == two.give_remote(&mut second, *slot, 0)
        });
        assert_eq!(same.count(), 0);
    }
}
