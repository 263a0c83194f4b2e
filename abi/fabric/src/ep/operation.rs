//! Operations that are under way: what is still to come before one is complete, and what it needs until then.

use super::elements::Sges;
use super::{Landing, READ, SENT, WRITTEN};
use crate::cntr::Counter;
use crate::cq::Entry;
use crate::errno::FiError;
use crate::sys::*;
use rkey_device::core::{LocalKey, Region};
use rkey_rdm::operation::{Form, Plain};
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
    /// A chunk of a collective operation, sent or read; then `taken` of the peer is told.
    Chunk { run: u64, taken: Option<u64> },
}

/// What stays until the operation is complete.
#[derive(Debug)]
pub(crate) enum Hold {
    Nothing,
    /// Bytes that are being sent.
    Bytes(#[allow(dead_code)] Box<[u8]>),
    /// Memory that the peer reads.
    Exposed(Box<Exposed>),
}

/// A payload that the peer reads by a key of its own.
#[derive(Debug)]
pub(crate) struct Exposed {
    pub(crate) region: Region,
    /// The regions of the program's that it lies in, as far as it named them.
    pub(crate) owners: SmallVec<[LocalKey; 1]>,
    /// The payload may be a copy of the program's.
    pub(crate) _copy: Box<[u8]>,
}

/// The flags of the completion of a plain operation. Those that succeed count, and a failure is reported in any case.
#[inline]
fn flags(form: Form) -> u64 {
    match form {
        Form::Message => FI_SEND | FI_MSG,
        Form::Tagged => FI_SEND | FI_TAGGED,
        Form::Read => FI_RMA | FI_READ,
        Form::Write => FI_RMA | FI_WRITE,
    }
}

/// The place of the counter of a plain operation.
#[inline]
pub(crate) fn counter_of(form: Form) -> usize {
    match form {
        Form::Message | Form::Tagged => SENT,
        Form::Read => READ,
        Form::Write => WRITTEN,
    }
}

/// What the completion of a plain operation says.
#[inline]
pub(crate) fn entry_of(plain: Plain) -> Entry {
    Entry {
        context: plain.context,
        flags: flags(plain.form),
        ..Entry::default()
    }
}

impl Operation {
    /// The plain operation that it amounts to, if it does.
    #[inline]
    pub(crate) fn plain(&self) -> Option<Plain> {
        let one = self.left == 1 && !self.answered && self.turn.is_none();
        let what = matches!(self.what, What::Transmit);
        if !one || !what || !matches!(self.hold, Hold::Nothing) {
            return None;
        }
        let form = Form::ALL
            .into_iter()
            .find(|form| flags(*form) == self.entry.flags)?;
        let counts = matches!(self.counts, Some(Counts::Place(place)) if place == counter_of(form));
        counts.then_some(Plain {
            context: self.entry.context,
            form,
            report: self.report,
        })
    }

    /// A plain operation as one that can be found by number.
    #[cold]
    pub(crate) fn of_plain(plain: Plain, connection: usize) -> Self {
        Self {
            left: 1,
            error: None,
            what: What::Transmit,
            entry: entry_of(plain),
            report: plain.report,
            counts: Some(Counts::Place(counter_of(plain.form))),
            connection,
            answered: false,
            turn: None,
            hold: Hold::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_operations_are_recognized() {
        for form in Form::ALL {
            for report in [false, true] {
                let plain = Plain {
                    context: 0x0012_3456_789a_bcde,
                    form,
                    report,
                };
                assert_eq!(Operation::of_plain(plain, 3).plain(), Some(plain));
            }
        }
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
            let mut operation = Operation::of_plain(plain, 3);
            change(&mut operation);
            assert_eq!(operation.plain(), None);
        }
    }
}
