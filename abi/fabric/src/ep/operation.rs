//! Operations that are under way: what is still to come before one is complete, and what it needs until
//! then. Each has a number that a peer may answer with; a number of before is refused.

use super::Landing;
use crate::cntr::Counter;
use crate::cq::Entry;
use crate::errno::FiError;
use rkey_device::core::Region;
use rkey_device::engine::Sge;
use std::sync::Arc;

/// An operation.
pub(crate) struct Operation {
    /// Completions and answers that have not come.
    pub(crate) left: u32,
    /// The first thing that went wrong.
    pub(crate) error: Option<(FiError, Vec<u8>)>,
    pub(crate) what: What,
    /// The completion of the program's.
    pub(crate) entry: Entry,
    /// Whether success is reported with an entry.
    pub(crate) report: bool,
    pub(crate) counts: Option<Counts>,
    /// The connection that it uses.
    pub(crate) connection: usize,
    /// An answer of the peer is among what is left.
    pub(crate) answered: bool,
    /// Its place in the order in which completions are told, if there is one.
    pub(crate) turn: Option<u64>,
    pub(crate) hold: Hold,
}

/// Which counter counts an operation.
pub(crate) enum Counts {
    /// That of the endpoint in this place; a failure is reported in any case.
    Place(usize),
    /// That of deferred work, which is reported only if it asks for that.
    Own(Option<Arc<Counter>>),
}

/// What kind of operation it is.
pub(crate) enum What {
    /// A transmission of the program's.
    Transmit,
    /// A payload that is being read into a receive; then `id` of the peer is told.
    Fetch { landing: Box<Landing>, id: u64 },
    /// A write of so many bytes; when they are there, the peer is told these data.
    Write { data: u64, len: u32 },
    /// A write that takes its data along.
    WriteTold,
    /// An atomic with a result.
    AtomicFetch { result: Vec<Sge> },
    /// A part of a collective operation, sent or read; then `taken` of the peer is told.
    Part { run: u64, taken: Option<u64> },
}

/// What stays until the operation is complete.
#[derive(Debug)]
pub(crate) enum Hold {
    Nothing,
    /// Bytes that are being sent.
    Bytes(#[allow(dead_code)] Box<[u8]>),
    /// Memory that the peer reads; it may be a copy of the program's.
    Region(Region, #[allow(dead_code)] Box<[u8]>),
}

/// Operations by number.
#[derive(Default)]
pub(crate) struct Operations {
    places: Vec<(u32, Option<Operation>)>,
    free: Vec<u32>,
}

impl Operations {
    /// Adds an operation; the answer is its number.
    #[inline]
    pub(crate) fn add(&mut self, operation: Operation) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((1, None));
            self.places.len() as u32 - 1
        });
        let (generation, place) = &mut self.places[index as usize];
        *place = Some(operation);
        u64::from(*generation) << 32 | u64::from(index)
    }

    #[inline]
    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Operation> {
        let (generation, place) = self.places.get_mut(id as u32 as usize)?;
        place
            .as_mut()
            .filter(|_| u64::from(*generation) == id >> 32)
    }

    #[inline]
    pub(crate) fn take(&mut self, id: u64) -> Option<Operation> {
        let (generation, place) = self.places.get_mut(id as u32 as usize)?;
        if u64::from(*generation) != id >> 32 {
            return None;
        }
        let operation = place.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id as u32);
        Some(operation)
    }

    /// Takes all operations.
    pub(crate) fn drain(&mut self) -> Vec<Operation> {
        let places = std::mem::take(self).places.into_iter();
        places.filter_map(|(_, place)| place).collect()
    }

    /// The numbers of all operations of a connection.
    pub(crate) fn of(&self, connection: usize) -> Vec<u64> {
        self.all(|operation| operation.connection == connection)
    }

    /// The numbers of all operations that are wanted.
    pub(crate) fn all(&self, wanted: impl Fn(&Operation) -> bool) -> Vec<u64> {
        let numbered = self.places.iter().enumerate();
        numbered
            .filter(|(_, (_, place))| place.as_ref().is_some_and(&wanted))
            .map(|(index, (generation, _))| u64::from(*generation) << 32 | index as u64)
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
