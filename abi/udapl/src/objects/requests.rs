//! The posted requests of an EP that are not known to be complete.
//!
//! A completion of the device has room for 64 bits, which the program's cookie alone would fill. But an event needs more:
//! whether it notifies, which RMR was bound, whether a write had immediate data. So the device gets a sequence number, and
//! this list keeps the rest. Requests complete in order. A suppressed request that succeeds has no completion: it is known
//! to be complete when a later one is.

use crate::objects::rmr::{Binding, Rmr};
use rkey_device::engine::SendFlags;
use std::collections::VecDeque;
use std::sync::Arc;

/// The kind of a request.
#[derive(Clone)]
pub enum RequestKind {
    /// A send.
    Send,
    /// An RDMA write.
    Write,
    /// An RDMA write with immediate data.
    WriteImmediate,
    /// An RDMA read.
    Read,
    /// A fetch-and-add.
    FetchAdd,
    /// A compare-and-swap.
    CompareSwap,
    /// A datagram.
    Datagram,
    /// A receive.
    Receive,
    /// A bind of an RMR.
    Bind(Arc<Rmr>, Binding),
}

/// A posted request.
#[derive(Clone)]
pub struct Posted {
    /// The program's cookie.
    pub cookie: u64,
    /// Whether the completion of the request notifies.
    pub notify: bool,
    /// The kind of the request.
    pub what: RequestKind,
}

/// The options of a request.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The device's flags.
    pub flags: SendFlags,
    /// Whether the completion notifies.
    pub notify: bool,
}

/// The requests of one queue, in order.
#[derive(Default)]
pub struct Requests {
    /// The sequence number of the oldest one in the list.
    first: u64,
    list: VecDeque<Posted>,
}

impl Requests {
    /// The number of requests in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a request if `post` (which gets its sequence number) succeeds.
    ///
    /// # Errors
    /// The errors of `post`.
    #[inline]
    pub fn post<E>(
        &mut self,
        posted: Posted,
        post: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        post(self.next())?;
        self.list.push_back(posted);
        Ok(())
    }

    /// Takes the request that a completion names, and drops earlier ones, which have succeeded.
    #[inline]
    pub fn take(&mut self, number: u64) -> Option<Posted> {
        let index = number.checked_sub(self.first)?;
        if index >= self.list.len() as u64 {
            return None;
        }
        for _ in 0..index {
            self.pop_succeeded();
        }
        self.first += 1;
        self.list.pop_front()
    }

    /// The sequence number of the next request.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + self.list.len() as u64
    }

    /// Drops all requests before this number. They are complete and their completions were taken, so those still in the
    /// list have succeeded.
    pub fn forget_before(&mut self, number: u64) {
        while self.first < number && !self.list.is_empty() {
            self.pop_succeeded();
        }
    }

    fn pop_succeeded(&mut self) {
        self.first += 1;
        if let Some(Posted {
            what: RequestKind::Bind(rmr, to),
            ..
        }) = self.list.pop_front()
        {
            rmr.set_bound(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(requests: &mut Requests, cookie: u64) -> u64 {
        let posted = Posted {
            cookie,
            notify: true,
            what: RequestKind::Send,
        };
        let mut number = 0;
        let result = requests.post(posted, |given| {
            number = given;
            Ok::<(), ()>(())
        });
        assert_eq!(result, Ok(()));
        number
    }

    #[test]
    fn a_completion_finds_its_request_and_ends_earlier_ones() {
        let mut requests = Requests::default();
        let numbers: Vec<u64> = (10..20).map(|it| post(&mut requests, it)).collect();
        assert_eq!(requests.take(numbers[0]).unwrap().cookie, 10);
        assert_eq!(requests.take(numbers[4]).unwrap().cookie, 14);
        assert_eq!(requests.len(), 5);
        for gone in [numbers[3], numbers[4], numbers[9] + 1] {
            assert!(requests.take(gone).is_none());
        }
        requests.forget_before(numbers[8]);
        assert_eq!(requests.take(numbers[8]).unwrap().cookie, 18);
        assert_eq!(requests.next(), numbers[9] + 1);
        assert_eq!(post(&mut requests, 30), numbers[9] + 1);
    }

    #[test]
    fn a_refused_request_is_not_recorded() {
        let mut requests = Requests::default();
        let posted = Posted {
            cookie: 1,
            notify: true,
            what: RequestKind::Send,
        };
        assert_eq!(requests.post(posted, |_| Err(7)), Err(7));
        assert!(requests.is_empty());
        assert_eq!(post(&mut requests, 2), 0);
    }
}
