//! Posted receives: the ring of a receive queue or a shared receive queue.

use crate::send_queue::NO_SGE;
use crate::{RecvRequest, Sge};
use rkey_core::DomainId;

/// A ring of posted receives.
pub(crate) struct RecvQueue {
    entries: Box<[Entry]>,
    sges: Box<[Sge]>,
    mask: u64,
    limit: u32,
    stride: usize,
    head: u64,
    tail: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    sges: u32,
}

/// The receive that a message is filling.
pub(crate) struct Recv {
    /// Whether a receive has been taken from its queue and is not complete.
    pub(crate) taken: bool,
    pub(crate) id: u64,
    /// The domain of the keys in `sges`.
    pub(crate) domain: DomainId,
    pub(crate) sges: Vec<Sge>,
    /// The capacity, in bytes.
    pub(crate) capacity: u64,
}

impl Recv {
    pub(crate) const fn none() -> Self {
        Self {
            taken: false,
            id: 0,
            domain: DomainId(0),
            sges: Vec::new(),
            capacity: 0,
        }
    }
}

impl RecvQueue {
    pub(crate) fn new(limit: u32, max_sge: u32) -> Self {
        let ring = (limit.max(1) as usize).next_power_of_two();
        let stride = max_sge as usize;
        Self {
            entries: vec![Entry { id: 0, sges: 0 }; ring].into(),
            sges: vec![NO_SGE; ring * stride].into(),
            mask: ring as u64 - 1,
            limit,
            stride,
            head: 0,
            tail: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.tail - self.head >= u64::from(self.limit)
    }

    /// Appends a receive. The caller has checked that there is room, and the number of scatter/gather entries.
    #[inline]
    pub(crate) fn push(&mut self, request: &RecvRequest<'_>) {
        let slot = (self.tail & self.mask) as usize;
        self.entries[slot] = Entry {
            id: request.id,
            sges: request.sges.len() as u32,
        };
        let from = slot * self.stride;
        self.sges[from..from + request.sges.len()].copy_from_slice(request.sges);
        self.tail += 1;
    }

    /// The capacity of the oldest receive, if any is posted.
    pub(crate) fn room(&self) -> Option<u64> {
        if self.head == self.tail {
            return None;
        }
        let slot = (self.head & self.mask) as usize;
        let from = slot * self.stride;
        let sges = &self.sges[from..from + self.entries[slot].sges as usize];
        Some(sges.iter().map(|sge| u64::from(sge.len)).sum())
    }

    /// Moves the oldest receive to `into`; returns false if there is none.
    #[inline]
    pub(crate) fn take(&mut self, into: &mut Recv) -> bool {
        if self.head == self.tail {
            return false;
        }
        let slot = (self.head & self.mask) as usize;
        let Entry { id, sges } = self.entries[slot];
        let from = slot * self.stride;
        let sges = &self.sges[from..from + sges as usize];
        into.taken = true;
        into.id = id;
        into.capacity = sges.iter().map(|sge| u64::from(sge.len)).sum();
        into.sges.clear();
        into.sges.extend_from_slice(sges);
        self.head += 1;
        true
    }

    /// Removes all receives; returns their ids, oldest first.
    pub(crate) fn drain(&mut self) -> Vec<u64> {
        let mut recv = Recv::none();
        let mut ids = Vec::new();
        while self.take(&mut recv) {
            ids.push(recv.id);
        }
        ids
    }

    /// Moves the receives to a ring of another size, which must hold them.
    pub(crate) fn resized(mut self, limit: u32) -> Self {
        let mut other = Self::new(limit, self.stride as u32);
        let mut recv = Recv::none();
        while self.take(&mut recv) {
            other.push(&RecvRequest {
                id: recv.id,
                sges: &recv.sges,
            });
        }
        other
    }
}
