//! Operations that are under way: what is still to come before one is complete, and what it needs until
//! then. Each has a number that a peer may answer with; a number of before is refused.

use super::elements::Sges;
use super::{Landing, READ, SENT, WRITTEN};
use crate::cntr::Counter;
use crate::cq::Entry;
use crate::errno::FiError;
use crate::sys::*;
use rkey_device::core::{LocalKey, Region};
use smallvec::SmallVec;
use std::sync::Arc;

/// An operation.
pub(crate) struct Operation {
    /// Completions and answers that have not come.
    pub(crate) left: u32,
    /// The first thing that went wrong.
    pub(crate) error: Option<Box<(FiError, Vec<u8>)>>,
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

impl Operation {
    /// Notes why it fails. The first reason counts.
    #[cold]
    pub(crate) fn fail(&mut self, error: FiError) {
        self.fail_with(error, Vec::new());
    }

    /// The same, with what there is to say about it.
    #[cold]
    pub(crate) fn fail_with(&mut self, error: FiError, detail: Vec<u8>) {
        self.error.get_or_insert_with(|| Box::new((error, detail)));
    }
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
    AtomicFetch { result: Sges },
    /// A part of a collective operation, sent or read; then `taken` of the peer is told.
    Part { run: u64, taken: Option<u64> },
}

/// What stays until the operation is complete.
#[derive(Debug)]
pub(crate) enum Hold {
    Nothing,
    /// Bytes that are being sent.
    Bytes(#[allow(dead_code)] Box<[u8]>),
    /// Memory that the peer reads.
    Announcement(Box<Announcement>),
}

/// A payload that the peer reads by a key of its own.
#[derive(Debug)]
pub(crate) struct Announcement {
    pub(crate) region: Region,
    /// The regions of the program's that it lies in, as far as it named them.
    pub(crate) owners: SmallVec<[LocalKey; 1]>,
    /// The payload may be a copy of the program's.
    pub(crate) _copy: Box<[u8]>,
}

/// An operation that is one request, waits for nothing else and keeps nothing: its number says all that there is to
/// know when it is complete. It counts, and a failure is reported in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) context: usize,
    pub(crate) form: Form,
    /// Whether success is reported with an entry.
    pub(crate) report: bool,
}

/// What a plain operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Message,
    Tagged,
    Read,
    Write,
}

impl Form {
    const ALL: [Self; 4] = [Self::Message, Self::Tagged, Self::Read, Self::Write];

    /// The flags of its completion.
    #[inline]
    pub(crate) fn flags(self) -> u64 {
        match self {
            Self::Message => FI_SEND | FI_MSG,
            Self::Tagged => FI_SEND | FI_TAGGED,
            Self::Read => FI_RMA | FI_READ,
            Self::Write => FI_RMA | FI_WRITE,
        }
    }

    /// The place of its counter.
    #[inline]
    pub(crate) fn place(self) -> usize {
        match self {
            Self::Message | Self::Tagged => SENT,
            Self::Read => READ,
            Self::Write => WRITTEN,
        }
    }
}

const PLAIN: u64 = 1 << 63;
const PLAIN_REPORT: u64 = 1 << 62;
const CONTEXT_BITS: u32 = 56;

impl Plain {
    /// The plain operation that an operation amounts to, if it does.
    #[inline]
    pub(crate) fn like(operation: &Operation) -> Option<Self> {
        let one = operation.left == 1 && !operation.answered && operation.turn.is_none();
        let what = matches!(operation.what, What::Transmit);
        if !one || !what || !matches!(operation.hold, Hold::Nothing) {
            return None;
        }
        let flags = operation.entry.flags;
        let form = Form::ALL.into_iter().find(|form| form.flags() == flags)?;
        let counts =
            matches!(operation.counts, Some(Counts::Place(place)) if place == form.place());
        counts.then_some(Self {
            context: operation.entry.context,
            form,
            report: operation.report,
        })
    }

    /// Its number; none if its context is longer than addresses are.
    #[inline]
    pub(crate) fn number(self) -> Option<u64> {
        let context = self.context as u64;
        let mut number = PLAIN | (self.form as u64) << CONTEXT_BITS | context;
        number |= if self.report { PLAIN_REPORT } else { 0 };
        (context >> CONTEXT_BITS == 0).then_some(number)
    }

    /// The plain operation that has a number.
    #[inline]
    pub(crate) fn of(number: u64) -> Option<Self> {
        let form = number >> CONTEXT_BITS & 0x3f;
        Some(Self {
            context: (number & ((1 << CONTEXT_BITS) - 1)) as usize,
            form: *Form::ALL
                .get(form as usize)
                .filter(|_| number & PLAIN != 0)?,
            report: number & PLAIN_REPORT != 0,
        })
    }

    /// What its completion says.
    #[inline]
    pub(crate) fn entry(self) -> Entry {
        Entry {
            context: self.context,
            flags: self.form.flags(),
            ..Entry::default()
        }
    }

    /// The same as an operation that can be found by number.
    #[cold]
    pub(crate) fn operation(self, connection: usize) -> Operation {
        Operation {
            left: 1,
            error: None,
            what: What::Transmit,
            entry: self.entry(),
            report: self.report,
            counts: Some(Counts::Place(self.form.place())),
            connection,
            answered: false,
            turn: None,
            hold: Hold::Nothing,
        }
    }
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
        // The highest bit is that of `Plain`.
        *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
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

    /// All operations.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.places.iter().filter_map(|(_, place)| place.as_ref())
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ep::post::NOBODY;

    #[test]
    fn plain_operations_are_in_their_numbers() {
        for form in Form::ALL {
            for report in [false, true] {
                let plain = Plain {
                    context: 0x0012_3456_789a_bcde,
                    form,
                    report,
                };
                let number = plain.number().unwrap();
                assert_eq!(Plain::of(number), Some(plain));
                assert_eq!(Plain::like(&plain.operation(3)), Some(plain));
                assert!(Operations::default().get(number).is_none());
                let wide = Plain {
                    context: 1 << CONTEXT_BITS,
                    ..plain
                };
                assert_eq!(wide.number(), None);
            }
        }
        assert_eq!(Plain::of(NOBODY), None);
    }

    #[test]
    fn what_waits_or_keeps_something_is_not_plain() {
        let plain = Plain {
            context: 1,
            form: Form::Tagged,
            report: true,
        };
        type Change = fn(&mut Operation);
        let changes: [Change; 7] = [
            |it| it.left = 2,
            |it| it.answered = true,
            |it| it.turn = Some(0),
            |it| it.what = What::WriteTold,
            |it| it.hold = Hold::Bytes(Box::default()),
            |it| it.counts = None,
            |it| it.counts = Some(Counts::Own(None)),
        ];
        for change in changes {
            let mut operation = plain.operation(3);
            change(&mut operation);
            assert_eq!(Plain::like(&operation), None);
        }
    }

    #[test]
    fn numbers_of_others_are_not_plain() {
        let mut operations = Operations::default();
        let plain = Plain {
            context: 0,
            form: Form::Write,
            report: true,
        };
        let first = operations.add(plain.operation(7));
        assert_eq!(Plain::of(first), None);
        operations.places[0].0 = u32::MAX >> 1;
        assert!(operations.get(first).is_none());
        let last = u64::from(u32::MAX >> 1) << 32;
        assert_eq!(Plain::of(last), None);
        assert_eq!(operations.take(last).map(|it| it.connection), Some(7));
        let next = operations.add(plain.operation(8));
        assert_eq!((Plain::of(next), next), (None, 0), "generations begin anew");
    }
}
