//! A bounded queue with one producer and many consumers; the producer and the consumers do not block each other.
//!
//! The producer pushes without a lock: only the owner of the [`Producer`] (usually a larger object behind a lock) can
//! push. Consumers take entries under a small separate lock, so taking never waits for the producer's owner; checking
//! whether there is anything to take needs no lock.

// UNSAFETY: entries pass from one thread to another through uninitialised slots of a shared buffer.
#![allow(unsafe_code)]

use crate::lock::SpinLock;
use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::mem::MaybeUninit;
use thiserror::Error;

/// The queue has no room for one more entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("the queue is full")]
pub struct Full;

/// The slots. Their number is a power of two, so a mask turns an ever-growing counter into the index of a slot.
struct Buffer<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    mask: usize,
}

impl<T: Copy> Buffer<T> {
    fn new(capacity: usize) -> Self {
        let len = capacity.next_power_of_two();
        let slots = (0..len)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect();
        Self {
            slots,
            mask: len - 1,
        }
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[position & self.mask]
    }
}

/// The state that both sides share.
///
/// The producer stores `tail`, and the holder of `taking` stores `head`; all may load both. Slots `head..tail` hold
/// entries and belong to the holder of `taking`; the others belong to the producer. The producer and the holder of
/// `taking` read `buffer` itself; only the producer replaces it, *while* it holds `taking`.
struct Ring<T> {
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
    capacity: AtomicUsize,
    buffer: UnsafeCell<Buffer<T>>,
    taking: SpinLock<()>,
}

// SAFETY: entries move from the producer's thread to consumers' threads (`T: Send`); the slots and the buffer are
// accessed only as the comment above says, which the acquire and release operations on `head`, `tail` and `taking`
// turn into exclusive access.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: sending the ring sends the entries in it.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    #[inline(always)]
    fn len(&self) -> usize {
        // The head is loaded first: it never passes the tail, so the difference cannot be negative.
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).wrapping_sub(head)
    }
}

/// The consumers' side. It can be cloned and shared: any number of threads may take entries, and each entry is taken
/// once.
pub struct Fifo<T> {
    ring: Arc<Ring<T>>,
}

impl<T> Clone for Fifo<T> {
    fn clone(&self) -> Self {
        Self {
            ring: Arc::clone(&self.ring),
        }
    }
}

/// The producer's side; a queue has exactly one.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    /// The producer's own copy of `tail`.
    tail: usize,
    /// The last known `head`; the real one may be higher.
    seen_head: usize,
    /// The producer's own copy of `capacity`.
    capacity: usize,
}

impl<T: Copy + Send> Fifo<T> {
    /// An empty queue for `capacity` entries (at least one).
    #[must_use]
    pub fn new(capacity: usize) -> (Producer<T>, Self) {
        let capacity = capacity.max(1);
        let ring = Arc::new(Ring {
            head: CachePadded::new(AtomicUsize::new(0)),
            tail: CachePadded::new(AtomicUsize::new(0)),
            capacity: AtomicUsize::new(capacity),
            buffer: UnsafeCell::new(Buffer::new(capacity)),
            taking: SpinLock::new(()),
        });
        let fifo = Self {
            ring: Arc::clone(&ring),
        };
        (
            Producer {
                ring,
                tail: 0,
                seen_head: 0,
                capacity,
            },
            fifo,
        )
    }

    /// Takes the oldest entry.
    #[inline]
    #[must_use]
    pub fn pop(&self) -> Option<T> {
        let mut taken = None;
        self.take(1, |_, entry| taken = Some(entry));
        taken
    }

    /// Takes the oldest entries that fit into `into`; returns how many.
    #[inline]
    #[must_use]
    pub fn pop_many(&self, into: &mut [T]) -> usize {
        self.take(into.len(), |at, entry| into[at] = entry)
    }

    #[inline]
    fn take(&self, most: usize, mut each: impl FnMut(usize, T)) -> usize {
        if self.is_empty() {
            return 0;
        }
        let _taking = self.ring.taking.lock();
        // Only the holder of the lock stores `head`.
        let head = self.ring.head.load(Ordering::Relaxed);
        // Acquire: the entries before the tail are visible.
        let count = self
            .ring
            .tail
            .load(Ordering::Acquire)
            .wrapping_sub(head)
            .min(most);
        self.ring.buffer.with(|buffer| {
            // SAFETY: the buffer is replaced only under the lock that we hold.
            let buffer = unsafe { &*buffer };
            for at in 0..count {
                let slot = buffer.slot(head.wrapping_add(at));
                // SAFETY: this slot is between head and tail, so it holds an entry and belongs to the holder of the
                // lock: the producer wrote it before it stored a tail past it, and writes it again only after it has
                // seen a head past it, which we store below.
                each(at, slot.with(|entry| unsafe { (*entry).assume_init() }));
            }
        });
        self.ring
            .head
            .store(head.wrapping_add(count), Ordering::Release);
        count
    }
}

impl<T> Fifo<T> {
    /// The number of entries at some moment during the call.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether the queue was empty at some moment during the call. Two loads; takes no lock.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.head.load(Ordering::Acquire) == self.ring.tail.load(Ordering::Acquire)
    }

    /// The capacity, in entries.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.capacity.load(Ordering::Relaxed)
    }
}

impl<T: Copy + Send> Producer<T> {
    /// Appends an entry.
    ///
    /// # Errors
    ///
    /// [`Full`] when the queue holds as many entries as its capacity allows.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full> {
        if self.tail.wrapping_sub(self.seen_head) >= self.capacity {
            // Acquire: the consumers are done with the slots before the head.
            self.seen_head = self.ring.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.seen_head) >= self.capacity {
                return Err(Full);
            }
        }
        self.ring.buffer.with(|buffer| {
            // SAFETY: the buffer is replaced only by the producer, which is `self`, borrowed exclusively.
            let buffer = unsafe { &*buffer };
            // SAFETY: fewer than `capacity` slots, hence fewer than the buffer has, are between the head that was seen
            // and the tail; so the slot at the tail is not among those that belong to consumers.
            buffer
                .slot(self.tail)
                .with_mut(|slot| unsafe { (*slot).write(value) });
        });
        self.tail = self.tail.wrapping_add(1);
        self.ring.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Removes the queued entries for which `keep` returns false, and returns how many it removed. The others stay, in
    /// order.
    ///
    /// An entry that a consumer takes at the same time is either taken by it or passed to `keep`, never both.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) -> usize {
        let ring = &*self.ring;
        let _taking = ring.taking.lock();
        // This is exact because the head cannot move while we hold the consumers' lock.
        let head = ring.head.load(Ordering::Relaxed);
        // The remaining entries move towards the tail, so that only the head changes, and only forwards.
        let mut first_kept = self.tail;
        ring.buffer.with(|buffer| {
            // SAFETY: the buffer is replaced only by the producer, which is `self`, borrowed exclusively.
            let buffer = unsafe { &*buffer };
            let mut position = self.tail;
            while position != head {
                position = position.wrapping_sub(1);
                // SAFETY: slots between head and tail hold entries, and belong to the holder of the lock.
                let entry = buffer
                    .slot(position)
                    .with(|entry| unsafe { (*entry).assume_init() });
                if keep(&entry) {
                    first_kept = first_kept.wrapping_sub(1);
                    // SAFETY: as above; this slot lies between `position` and the tail, so it was read already.
                    buffer
                        .slot(first_kept)
                        .with_mut(|slot| unsafe { (*slot).write(entry) });
                }
            }
        });
        ring.head.store(first_kept, Ordering::Release);
        self.seen_head = first_kept;
        first_kept.wrapping_sub(head)
    }

    /// Changes the capacity (to at least one). Entries that are queued stay queued, in order.
    ///
    /// # Errors
    ///
    /// [`Full`] when more entries than that are queued; then nothing changes.
    pub fn resize(&mut self, capacity: usize) -> Result<(), Full> {
        let capacity = capacity.max(1);
        let replacement = Buffer::new(capacity);
        let ring = &*self.ring;
        let _taking = ring.taking.lock();
        // This is exact because the head cannot move while we hold the consumers' lock.
        let head = ring.head.load(Ordering::Relaxed);
        if self.tail.wrapping_sub(head) > capacity {
            return Err(Full);
        }
        ring.buffer.with_mut(|buffer| {
            // SAFETY: consumers use the buffer only under the lock that we hold, and the producer is `self`, borrowed
            // exclusively; so there is no other reference to it.
            let buffer = unsafe { &mut *buffer };
            let mut position = head;
            while position != self.tail {
                // SAFETY: slots between head and tail hold entries, and belong to the holder of the lock.
                let entry = buffer.slot(position).with(|entry| unsafe { *entry });
                // SAFETY: the replacement is not published yet.
                replacement
                    .slot(position)
                    .with_mut(|slot| unsafe { *slot = entry });
                position = position.wrapping_add(1);
            }
            *buffer = replacement;
        });
        ring.capacity.store(capacity, Ordering::Relaxed);
        self.capacity = capacity;
        self.seen_head = head;
        Ok(())
    }
}

impl<T> Producer<T> {
    /// The number of entries at some moment during the call.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether the consumers have taken all entries.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The capacity, in entries.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of further entries that certainly fit; consumers may make more room at any time.
    #[inline]
    #[must_use]
    pub fn free(&self) -> usize {
        self.capacity - self.len()
    }
}

impl<T> fmt::Debug for Fifo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fifo")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("len", &self.len())
            .field("capacity", &self.capacity)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn entries_keep_their_order_and_a_full_queue_refuses_more() {
        let (mut producer, fifo) = Fifo::new(3);
        assert!(fifo.is_empty());
        assert_eq!(fifo.pop(), None);
        for i in 0..3 {
            producer.push(i).unwrap();
        }
        assert_eq!(producer.push(3), Err(Full));
        assert_eq!((fifo.len(), producer.free(), fifo.capacity()), (3, 0, 3));
        assert_eq!(fifo.pop(), Some(0));
        producer.push(3).unwrap();
        assert_eq!(producer.push(4), Err(Full));
        let mut out = [9; 5];
        assert_eq!(fifo.pop_many(&mut out), 3);
        assert_eq!(out, [1, 2, 3, 9, 9]);
        assert_eq!(fifo.pop_many(&mut out), 0);
        assert_eq!(fifo.pop_many(&mut []), 0);
    }

    #[test]
    fn resizing_keeps_entries() {
        let (mut producer, fifo) = Fifo::new(2);
        for round in 0..5 {
            producer.push(round).unwrap();
            assert_eq!(fifo.pop(), Some(round));
        }
        producer.push(10).unwrap();
        producer.push(11).unwrap();
        producer.resize(5).unwrap();
        for i in 12..15 {
            producer.push(i).unwrap();
        }
        assert_eq!(producer.push(15), Err(Full));
        assert_eq!(producer.resize(4), Err(Full));
        assert_eq!((producer.capacity(), fifo.capacity()), (5, 5));
        assert_eq!(fifo.pop(), Some(10));
        producer.resize(4).unwrap();
        assert_eq!(producer.push(15), Err(Full));
        let mut out = [0; 8];
        assert_eq!(fifo.pop_many(&mut out), 4);
        assert_eq!(out[..4], [11, 12, 13, 14]);
    }

    #[test]
    fn retain_keeps_the_order_of_the_remaining_entries() {
        let (mut producer, fifo) = Fifo::new(6);
        for round in 0..20u32 {
            for i in 0..6 {
                producer.push(round * 10 + i).unwrap();
            }
            assert_eq!(producer.push(0), Err(Full));
            let mut asked = Vec::new();
            let gone = producer.retain(|entry| {
                asked.push(entry % 10);
                entry % 2 == 1
            });
            assert_eq!((gone, fifo.len(), producer.free()), (3, 3, 3));
            assert_eq!(
                asked,
                [5, 4, 3, 2, 1, 0],
                "each entry is passed to `keep` once"
            );
            for i in 6..9 {
                producer.push(round * 10 + i).unwrap();
            }
            assert_eq!(producer.push(0), Err(Full));
            let mut out = [0; 9];
            assert_eq!(fifo.pop_many(&mut out), 6);
            assert_eq!(
                out[..6].iter().map(|e| e % 10).collect::<Vec<_>>(),
                [1, 3, 5, 6, 7, 8]
            );
            assert_eq!(producer.retain(|_| false), 0);
        }
        producer.push(7).unwrap();
        assert_eq!((producer.retain(|_| true), fifo.pop()), (0, Some(7)));
        producer.push(8).unwrap();
        assert_eq!((producer.retain(|_| false), fifo.pop()), (1, None));
    }

    #[test]
    fn every_entry_is_taken_once_and_in_order() {
        const COUNT: u64 = if cfg!(miri) { 300 } else { 100_000 };
        let (mut producer, fifo) = Fifo::new(64);
        let done = AtomicBool::new(false);
        let mut taken: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let consumers: Vec<_> = (0..3)
                .map(|which| {
                    let (fifo, done) = (fifo.clone(), &done);
                    scope.spawn(move || {
                        let mut mine = Vec::new();
                        let mut batch = [0; 7];
                        loop {
                            // Loaded before popping: the pop then finds every entry pushed before the flag was set.
                            let last = done.load(Ordering::Acquire);
                            let n = fifo.pop_many(&mut batch[..1 + which * 3]);
                            mine.extend_from_slice(&batch[..n]);
                            if n == 0 && last {
                                break mine;
                            }
                            if n == 0 {
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            for i in 0..COUNT {
                while producer.push(i).is_err() {
                    std::thread::yield_now();
                }
                if i % (COUNT / 100) == 0 {
                    let _ = producer.resize(16 + (i as usize / 1000) % 100);
                }
            }
            done.store(true, Ordering::Release);
            consumers
                .into_iter()
                .map(|consumer| consumer.join().unwrap())
                .collect()
        });
        for mine in &taken {
            assert!(mine.is_sorted());
        }
        let mut all = taken.concat();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..COUNT));
        taken.clear();
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::thread;

    #[test]
    fn two_consumers_take_every_entry_once_when_the_queue_wraps() {
        loom::model(|| {
            let (mut producer, fifo) = Fifo::new(2);
            let consumers: Vec<_> = (0..2)
                .map(|_| {
                    let fifo = fifo.clone();
                    thread::spawn(move || fifo.pop())
                })
                .collect();
            let mut pushed: Vec<u32> = (1..=3).filter(|&i| producer.push(i).is_ok()).collect();
            let mut taken: Vec<u32> = consumers
                .into_iter()
                .filter_map(|consumer| consumer.join().unwrap())
                .collect();
            while let Some(entry) = fifo.pop() {
                taken.push(entry);
            }
            taken.sort_unstable();
            pushed.sort_unstable();
            assert_eq!(taken, pushed);
        });
    }

    #[test]
    fn an_entry_is_either_taken_or_dropped_by_retain() {
        loom::model(|| {
            let (mut producer, fifo) = Fifo::new(3);
            for i in 1..=3 {
                producer.push(i).unwrap();
            }
            let consumer = {
                let fifo = fifo.clone();
                thread::spawn(move || fifo.pop())
            };
            let mut refused = Vec::new();
            producer.retain(|&entry| {
                let keep = entry != 1;
                if !keep {
                    refused.push(entry);
                }
                keep
            });
            producer.push(4).unwrap();
            let mut taken: Vec<u32> = consumer.join().unwrap().into_iter().collect();
            while let Some(entry) = fifo.pop() {
                taken.push(entry);
            }
            // The entry was either taken or refused.
            refused.extend(&taken);
            assert_eq!(refused, [1, 2, 3, 4]);
        });
    }

    #[test]
    fn no_entry_is_lost_when_the_queue_is_resized() {
        loom::model(|| {
            let (mut producer, fifo) = Fifo::new(1);
            producer.push(1).unwrap();
            let consumer = {
                let fifo = fifo.clone();
                thread::spawn(move || fifo.pop())
            };
            producer.resize(2).unwrap();
            producer.push(2).unwrap();
            let mut taken: Vec<u32> = consumer.join().unwrap().into_iter().collect();
            while let Some(entry) = fifo.pop() {
                taken.push(entry);
            }
            assert_eq!(taken, [1, 2]);
        });
    }
}
