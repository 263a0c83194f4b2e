//! Reports completed operations to the program, and counts them.

use super::host::EpHost;
use super::{READ, SENT, WRITTEN};
use crate::cntr::Counter;
use crate::cq::Entry;
use crate::mr::buffers::Held;
use crate::sys::*;
use rkey_rdm::error::Failure;
use rkey_rdm::operation_id::{Form, Plain};
use std::ffi::c_void;
use std::sync::Arc;

/// The data of one of the program's operations.
pub(crate) struct Posted {
    pub(crate) context: usize,
    /// The flags of its completion.
    pub(crate) flags: u64,
    /// Whether success is reported with an entry.
    pub(crate) report: bool,
    pub(crate) counts: Counts,
    /// The registrations of the operation's buffers, if the provider made them.
    pub(crate) held: Held,
}

/// Which counter counts an operation, and whether a failure is reported without a requested completion.
pub(crate) enum Counts {
    /// The endpoint's counter with this index. A failure is always reported.
    Endpoint(usize),
    /// The counter of deferred work, if it has one. A failure is reported only if the program requested a completion.
    Own(Option<Arc<Counter>>),
}

/// The counter of an operation of the deferred work queue. Nothing else reports the operation unless it requests
/// a completion.
#[derive(Clone)]
pub(crate) struct Deferred {
    pub(super) counter: Option<Arc<Counter>>,
}

/// The counter of an operation whose default counter is `usual`.
pub(super) fn counts(deferred: Option<&Deferred>, usual: usize) -> Counts {
    deferred.map_or(Counts::Endpoint(usual), |it| {
        Counts::Own(it.counter.clone())
    })
}

/// The flags of the completion of a plain operation.
#[inline]
fn flags(form: Form) -> u64 {
    match form {
        Form::Message => FI_SEND | FI_MSG,
        Form::Tagged => FI_SEND | FI_TAGGED,
        Form::Read => FI_RMA | FI_READ,
        Form::Write => FI_RMA | FI_WRITE,
    }
}

/// The index of the counter of a plain operation.
#[inline]
fn counter_of(form: Form) -> usize {
    match form {
        Form::Message | Form::Tagged => SENT,
        Form::Read => READ,
        Form::Write => WRITTEN,
    }
}

impl Posted {
    /// An operation on remote memory: `kind` is `FI_RMA` or `FI_ATOMIC`, and `reads` says whether it returns data.
    pub(super) fn one_sided(
        kind: u64,
        reads: bool,
        context: *mut c_void,
        report: bool,
        deferred: Option<&Deferred>,
        held: Held,
    ) -> Self {
        let (direction, counter) = match reads {
            true => (FI_READ, READ),
            false => (FI_WRITE, WRITTEN),
        };
        Self {
            context: context as usize,
            flags: kind | direction,
            report,
            counts: counts(deferred, counter),
            held,
        }
    }

    /// The equivalent plain operation, if there is one.
    #[inline]
    pub(crate) fn plain(&self) -> Option<Plain> {
        let form = Form::ALL
            .into_iter()
            .find(|form| flags(*form) == self.flags)?;
        let counts = matches!(self.counts, Counts::Endpoint(place) if place == counter_of(form));
        (counts && self.held.is_empty()).then_some(Plain {
            context: self.context,
            form,
            report: self.report,
        })
    }

    /// The data of a plain operation.
    #[cold]
    pub(crate) fn of_plain(plain: Plain) -> Self {
        Self {
            context: plain.context,
            flags: flags(plain.form),
            report: plain.report,
            counts: Counts::Endpoint(counter_of(plain.form)),
            held: Held::default(),
        }
    }

    fn entry(&self) -> Entry {
        Entry {
            context: self.context,
            flags: self.flags,
            ..Entry::default()
        }
    }
}

impl EpHost {
    /// Reports to the program that a plain operation has succeeded.
    #[inline]
    pub(super) fn report_plain(&self, plain: Plain) {
        if let Some(counter) = self.counters[counter_of(plain.form)].get() {
            counter.count();
        }
        if plain.report
            && let Some(tx) = &self.tx
        {
            tx.cq.push(Entry {
                context: plain.context,
                flags: flags(plain.form),
                ..Entry::default()
            });
        }
    }

    /// Reports to the program that an operation is complete.
    pub(super) fn report(&self, it: Posted, failure: Option<Box<Failure>>) {
        let counter = match &it.counts {
            Counts::Endpoint(place) => self.counters[*place].get(),
            Counts::Own(counter) => counter.as_ref(),
        };
        match (&failure, counter) {
            (Some(_), Some(counter)) => counter.count_error(),
            (None, Some(counter)) => counter.count(),
            _ => {}
        }
        let Some(tx) = &self.tx else { return };
        match failure {
            // Failures are reported even if the program suppressed the completion (fi_inject, no FI_COMPLETION;
            // fi_msg(3)).
            Some(failure) if it.report || matches!(it.counts, Counts::Endpoint(_)) => {
                let (error, detail) = (failure.error.into(), failure.detail.into_bytes());
                tx.cq.push(it.entry().failed_with(error, 0, detail));
            }
            None if it.report => tx.cq.push(it.entry()),
            _ => {}
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
                assert_eq!(Posted::of_plain(plain).plain(), Some(plain));
            }
        }
    }

    #[test]
    fn operations_with_other_counters_are_not_plain() {
        let plain = Plain {
            context: 1,
            form: Form::Tagged,
            report: true,
        };
        for counts in [Counts::Own(None), Counts::Endpoint(READ)] {
            let operation = Posted {
                counts,
                ..Posted::of_plain(plain)
            };
            assert_eq!(operation.plain(), None);
        }
    }
}
