//! Small values between two programs: a ring of buffers of our own behind send and receive.
//!
//! Each side keeps receives posted, so that a message always has a place to go, and copies what
//! arrived out before it looks at it: a peer can put anything into a message, and gets an error for
//! it at most.

use crate::completion::CompletionQueue;
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::flight::{Cause, Flight};
use crate::queue_pair::QueuePair;
use crate::region::Region;
use rkey_core::Access;
use rkey_engine::{Completion, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages that can be under way, per direction, without the receiver calling receive.
pub(crate) const SLOTS: u32 = 16;
/// The first byte of a message that carries a value.
const VALUE: u8 = 1;
/// The first byte of the last message.
const BYE: u8 = 2;
/// How long the last message may take when a connection is dropped.
const BYE_TIME: Duration = Duration::from_millis(100);

/// The message half of a connection.
pub(crate) struct Mailbox {
    /// First, so that it goes before the memory that it receives into.
    queue_pair: QueuePair,
    sends: Flight,
    incoming: CompletionQueue,
    inbox: Mutex<Inbox>,
    /// One message of ours is built at a time.
    outbox: Mutex<()>,
    /// `SLOTS` places to receive into, then `SLOTS` places to send from.
    memory: Region<Vec<u8>>,
    slot_len: usize,
    peer_limit: usize,
}

#[derive(Default)]
struct Inbox {
    /// Messages that have arrived and were not asked for yet, oldest first.
    waiting: VecDeque<Completion>,
    /// Why nothing will come any more.
    ended: Option<Cause>,
    /// The peer said goodbye.
    bye: bool,
}

impl Mailbox {
    /// Registers the buffers and posts the receives. The queue pair is not connected yet, but it
    /// may take receives.
    pub(crate) fn prepare(
        domain: &Domain,
        queue_pair: QueuePair,
        sends: CompletionQueue,
        incoming: CompletionQueue,
    ) -> Result<Self> {
        let slot_len = domain.device().inner.settings.max_message + 1;
        let bytes = slot_len * 2 * SLOTS as usize;
        let memory = domain.register(vec![0; bytes], Access::SEND | Access::RECV)?;
        let mailbox = Self {
            queue_pair,
            sends: Flight::new(sends, SLOTS),
            incoming,
            inbox: Mutex::default(),
            outbox: Mutex::new(()),
            memory,
            slot_len,
            peer_limit: 0,
        };
        for slot in 0..u64::from(SLOTS) {
            mailbox.post_receive(slot)?;
        }
        Ok(mailbox)
    }

    pub(crate) fn set_peer_limit(&mut self, limit: usize) {
        self.peer_limit = limit.min(self.slot_len - 1);
    }

    fn post_receive(&self, slot: u64) -> Result<()> {
        let at = slot * self.slot_len as u64;
        let part = self.memory.part(at..at + self.slot_len as u64)?;
        self.queue_pair.post_receive(slot, &[part])
    }

    pub(crate) fn send<T: Serialize + ?Sized>(&self, message: &T, timeout: Duration) -> Result<()> {
        let bytes = postcard::to_extend(message, vec![VALUE])
            .map_err(|error| Error::BadMessage(format!("it cannot be serialised: {error}")))?;
        if bytes.len() - 1 > self.peer_limit {
            return Err(Error::MessageTooLong {
                len: bytes.len() - 1,
                limit: self.peer_limit,
            });
        }
        self.send_bytes(&bytes, timeout)
    }

    fn send_bytes(&self, bytes: &[u8], timeout: Duration) -> Result<()> {
        let outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        // At most SLOTS are in flight, so the place of the message before last lap is free.
        let number = self.sends.post(timeout, false, |number| {
            let slot = u64::from(SLOTS) + number % u64::from(SLOTS);
            let at = slot * self.slot_len as u64;
            self.memory.write(at, bytes)?;
            let part = self.memory.part(at..at + bytes.len() as u64)?;
            self.queue_pair
                .post_send(number, &[part], SendFlags::SIGNALED)
        })?;
        drop(outbox);
        self.sends
            .wait(number, timeout, "the message to be taken by the peer")
            .map(|_| ())
    }

    pub(crate) fn receive<T: DeserializeOwned>(&self, timeout: Duration) -> Result<T> {
        let bytes = self.receive_bytes(timeout)?;
        postcard::from_bytes(&bytes).map_err(|error| Error::BadMessage(error.to_string()))
    }

    fn receive_bytes(&self, timeout: Duration) -> Result<Vec<u8>> {
        let started = Instant::now();
        loop {
            if let Some(bytes) = self.take()? {
                return Ok(bytes);
            }
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(Error::Timeout {
                    what: "a message of the peer",
                    after: timeout,
                });
            }
            // Another thread may take the completion that we sleep for: look again now and then.
            self.incoming.wait(left.min(Duration::from_millis(20)))?;
        }
    }

    /// The oldest message, if there is one.
    fn take(&self) -> Result<Option<Vec<u8>>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = [Completion::default(); SLOTS as usize];
        let count = self.incoming.poll(&mut batch)?;
        for completion in &batch[..count] {
            if completion.status.is_success() {
                inbox.waiting.push_back(*completion);
            } else if inbox.ended.is_none() {
                inbox.ended = Some(Cause::of(&self.incoming, completion));
            }
        }
        while let Some(completion) = inbox.waiting.pop_front() {
            let slot = completion.id;
            let at = slot * self.slot_len as u64;
            let len = u64::from(completion.bytes).min(self.slot_len as u64);
            let mut bytes = if len == 0 {
                Vec::new()
            } else {
                self.memory.read_vec(at..at + len)?
            };
            if inbox.ended.is_none() {
                self.post_receive(slot)?;
            }
            match bytes.first() {
                Some(&VALUE) => {
                    bytes.remove(0);
                    return Ok(Some(bytes));
                }
                Some(&BYE) => inbox.bye = true,
                _ => return Err(Error::BadMessage("it is not framed like one".into())),
            }
        }
        if inbox.bye {
            return Err(Error::PeerGone {
                how: "it closed the connection".into(),
            });
        }
        match &inbox.ended {
            None => Ok(None),
            Some(Cause::Flushed) => Err(Error::PeerGone {
                how: "its process ended".into(),
            }),
            Some(cause) => Err(cause.to_error()),
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // Tell the peer that this is the end, unless it told us already or is gone. Messages that
        // nobody asked for are dropped here.
        let gone = loop {
            match self.take() {
                Ok(Some(_)) | Err(Error::BadMessage(_)) => {}
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        if !gone && !std::thread::panicking() {
            let _ = self.send_bytes(&[BYE], BYE_TIME);
        }
    }
}
