//! The result slots of atomics: eight registered bytes for each operation in flight.

use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::region::Region;
use crate::queues::flight::Flight;
use parking_lot::{Mutex, MutexGuard};
use rkey_core::Access;
use rkey_engine::Sge;
use std::time::Duration;

/// The result slots of one connection.
pub(crate) struct ResultPlaces {
    memory: Region<Vec<u64>>,
    places: Mutex<Places>,
}

struct Places {
    free: Vec<u32>,
    /// Slots whose operation (by number) may be in flight and whose result is no longer needed.
    abandoned: Vec<(u64, u32)>,
}

impl ResultPlaces {
    /// One slot for each operation that can be in flight.
    pub(crate) fn new(domain: &Domain, depth: u32) -> Result<Self> {
        let memory = domain.register(vec![0u64; depth as usize], Access::LOCAL_WRITE)?;
        let places = Places {
            free: (0..depth).collect(),
            abandoned: Vec::new(),
        };
        Ok(Self {
            memory,
            places: Mutex::new(places),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock()
    }

    /// Takes a slot. If all slots are taken, waits for an operation whose result is no longer needed.
    pub(crate) fn take(&self, flight: &Flight, timeout: Duration) -> Result<u32> {
        let mut places = self.lock();
        if let Some(place) = places.free.pop() {
            return Ok(place);
        }
        let (number, place) = places.abandoned.first().copied().ok_or_else(|| {
            Error::Busy("the result slots of all atomics in flight; wait for one of them, or raise the builder's depth".into())
        })?;
        places.abandoned.remove(0);
        drop(places);
        match flight.wait(number, timeout, "an earlier atomic to complete") {
            Ok(_) => Ok(place),
            Err(error) => {
                self.abandon(number, place);
                Err(error)
            }
        }
    }

    /// The slot as a local operand.
    pub(crate) fn operand(&self, place: u32) -> Result<Sge> {
        let at = u64::from(place) * 8;
        self.memory.part(at..at + 8)
    }

    /// The value that arrived in a slot.
    pub(crate) fn value(&self, place: u32) -> Result<u64> {
        self.memory.load_u64(u64::from(place) * 8)
    }

    /// Frees a slot: its operation is finished and its result taken, or it was never posted.
    pub(crate) fn give_back(&self, place: u32) {
        self.lock().free.push(place);
    }

    /// Records that the result of an operation, which may still be in flight, is no longer needed.
    pub(crate) fn abandon(&self, number: u64, place: u32) {
        self.lock().abandoned.push((number, place));
    }
}
