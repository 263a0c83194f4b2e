//! Messages with small values between two programs, sent through a ring of registered buffers.
//!
//! Each side keeps receives posted, so that a message always has a buffer, and copies a message before it parses it, so
//! an invalid message from a peer only causes an error.
//!
//! A message starts with one byte for its kind. A value continues with the hash of its shape (8 bytes, little
//! endian), the length of its type's description (1 byte), the description, and the value in postcard's format. The
//! receiver accepts it only if it has the shape of the requested type.

use crate::connections::shape::{self, Shape};
use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::region::Region;
use crate::queues::completion::{Cause, CompletionQueue};
use crate::queues::flight::Flight;
use crate::queues::queue_pair::QueuePair;
use parking_lot::Mutex;
use rkey_core::Access;
use rkey_device::time;
use rkey_engine::{Completion, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::time::Duration;

/// How many messages may be in flight in each direction before the receiver calls `receive`.
pub(crate) const SLOTS: u32 = 16;
/// The first byte of a message that carries a value.
const VALUE: u8 = 1;
/// The length of the bytes before a value, excluding the description of its type.
const HEAD: usize = 10;
/// The first byte of the last message.
const BYE: u8 = 2;
/// How long sending the last message may take when a connection is dropped.
const BYE_TIME: Duration = Duration::from_millis(100);

/// The message half of a connection.
pub(crate) struct Mailbox {
    /// The first field, so that it is dropped before the memory that it receives into.
    queue_pair: QueuePair,
    sends: Flight,
    incoming: CompletionQueue,
    arrivals: Mutex<Arrivals>,
    /// Only one outgoing message is built at a time.
    outbox: Mutex<()>,
    /// `SLOTS` receive buffers, then `SLOTS` send buffers.
    memory: Region<Vec<u8>>,
    slot_len: usize,
    peer_limit: usize,
}

#[derive(Default)]
struct Arrivals {
    /// Messages that have arrived but have not been received yet, oldest first.
    waiting: VecDeque<Completion>,
    /// Why no more messages will arrive.
    ended: Option<Cause>,
    /// The peer has sent its last message.
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
        let slot_len = domain.device().inner.settings.max_message + HEAD + shape::TITLE;
        let bytes = slot_len * 2 * SLOTS as usize;
        let memory = domain.register(vec![0; bytes], Access::SEND | Access::RECV)?;
        let mailbox = Self {
            queue_pair,
            sends: Flight::new(sends, SLOTS),
            incoming,
            arrivals: Mutex::default(),
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
        self.peer_limit = limit.min(self.slot_len - HEAD - shape::TITLE);
    }

    fn post_receive(&self, slot: u64) -> Result<()> {
        let at = slot * self.slot_len as u64;
        let part = self.memory.part(at..at + self.slot_len as u64)?;
        self.queue_pair.post_receive(slot, &[part])
    }

    pub(crate) fn send<T: Serialize + ?Sized>(&self, message: &T, timeout: Duration) -> Result<()> {
        let value =
            postcard::to_stdvec(message).map_err(|error| Error::Unsendable(error.to_string()))?;
        if value.len() > self.peer_limit {
            return Err(Error::MessageTooLong {
                len: value.len(),
                limit: self.peer_limit,
            });
        }
        let shape = Shape::of(message, value.len()).map_err(Error::Unsendable)?;
        self.send_bytes(&frame(&shape, &value), timeout)
    }

    fn send_bytes(&self, bytes: &[u8], timeout: Duration) -> Result<()> {
        let outbox = self.outbox.lock();
        // At most SLOTS messages are in flight, so the buffer of SLOTS messages ago is free.
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
            .wait(number, timeout, "the peer to receive the message")
            .map(|_| ())
    }

    pub(crate) fn receive<T: DeserializeOwned>(&self, timeout: Duration) -> Result<T> {
        let bytes = self.receive_bytes(timeout)?;
        open(&bytes).map_err(Error::BadMessage)
    }

    fn receive_bytes(&self, timeout: Duration) -> Result<Vec<u8>> {
        let started = time::now();
        loop {
            if let Some(bytes) = self.take()? {
                return Ok(bytes);
            }
            let left = timeout.saturating_sub(time::since(started));
            if left.is_zero() {
                return Err(Error::Timeout {
                    what: "a message from the peer",
                    after: timeout,
                });
            }
            // Another thread may take the completion that we sleep for, so this loop checks again regularly.
            self.incoming.wait(left.min(Duration::from_millis(20)))?;
        }
    }

    /// The oldest message, if any.
    fn take(&self) -> Result<Option<Vec<u8>>> {
        let mut arrivals = self.arrivals.lock();
        let mut batch = [Completion::default(); SLOTS as usize];
        let count = self.incoming.poll(&mut batch)?;
        for completion in &batch[..count] {
            if completion.status.is_success() {
                arrivals.waiting.push_back(*completion);
            } else if arrivals.ended.is_none() {
                arrivals.ended = Some(Cause::of(&self.incoming, completion));
            }
        }
        while let Some(completion) = arrivals.waiting.pop_front() {
            let slot = completion.id;
            let at = slot * self.slot_len as u64;
            let len = u64::from(completion.bytes).min(self.slot_len as u64);
            let mut bytes = if len == 0 {
                Vec::new()
            } else {
                self.memory.read_vec(at..at + len)?
            };
            if arrivals.ended.is_none() {
                self.post_receive(slot)?;
            }
            match bytes.first() {
                Some(&VALUE) => {
                    bytes.remove(0);
                    return Ok(Some(bytes));
                }
                Some(&BYE) => arrivals.bye = true,
                _ => return Err(Error::BadMessage("its framing is invalid".into())),
            }
        }
        if arrivals.bye {
            return Err(Error::PeerGone {
                how: "it closed the connection".into(),
            });
        }
        match &arrivals.ended {
            None => Ok(None),
            Some(Cause::Flushed) => Err(Error::PeerGone {
                how: "its process exited".into(),
            }),
            Some(cause) => Err(cause.to_error()),
        }
    }
}

/// The bytes of a message with a value.
fn frame(shape: &Shape, value: &[u8]) -> Vec<u8> {
    let title = shape.title().as_bytes();
    let mut bytes = Vec::with_capacity(HEAD + title.len() + value.len());
    bytes.push(VALUE);
    bytes.extend(shape.hash().to_le_bytes());
    // A description is at most `shape::TITLE` bytes long.
    bytes.push(u8::try_from(title.len()).unwrap_or(0));
    bytes.extend(title);
    bytes.extend(value);
    bytes
}

/// The value in a message, after its first byte, if it has the requested type. Otherwise the error is a sentence that
/// names both types.
fn open<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, String> {
    let not_framed = || "its framing is invalid".to_owned();
    let (hash, rest) = bytes.split_first_chunk::<8>().ok_or_else(not_framed)?;
    let (len, rest) = rest.split_first().ok_or_else(not_framed)?;
    let (title, value) = rest
        .split_at_checked(usize::from(*len))
        .filter(|(title, _)| title.len() <= shape::TITLE)
        .ok_or_else(not_framed)?;
    let sent = String::from_utf8_lossy(title);
    let (value, expected) = Shape::decode::<T>(value);
    let same = u64::from_le_bytes(*hash) == expected.hash();
    match value {
        Ok(value) if same => Ok(value),
        // A description comes from the peer: it may contain anything.
        _ if sent != expected.title() => Err(format!(
            "it has the type `{}`, but the program expected `{}`",
            sent.escape_debug(),
            expected.title()
        )),
        Ok(_) => Err(format!(
            "both sides call it `{}`, but the types of its fields differ",
            expected.title()
        )),
        Err(why) => Err(format!(
            "it does not decode as `{}`: {why}",
            expected.title()
        )),
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // Notify the peer that the connection ends, unless the peer has already notified us or has ended. Drop messages that the
        // program has not received.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of a message after its first byte.
    fn message<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
        let bytes = postcard::to_stdvec(value).unwrap();
        let shape = Shape::of(value, bytes.len()).unwrap();
        frame(&shape, &bytes).split_off(1)
    }

    #[test]
    fn a_message_of_another_type_is_refused_with_both_types_named() {
        assert_eq!(open::<String>(&message("a string")).unwrap(), "a string");
        let why = open::<u32>(&message("a string")).unwrap_err();
        assert_eq!(
            why,
            "it has the type `string`, but the program expected `u32`"
        );
        let why = open::<(u8, u8)>(&message(&(1u32, 2u32))).unwrap_err();
        assert_eq!(
            why,
            "both sides call it `tuple of 2`, but the types of its fields differ"
        );
    }

    /// A hostile peer may send a message that is truncated, or that has extra bytes, a false hash, or a description
    /// with terminal escapes.
    #[test]
    fn malformed_messages_cause_an_error_and_no_panic() {
        let good = message("a string");
        for len in 0..good.len() {
            assert!(open::<String>(&good[..len]).is_err(), "{len} bytes");
        }
        let mut longer = good.clone();
        longer.push(0);
        let why = open::<String>(&longer).unwrap_err();
        assert!(why.contains("1 B remain after the value"), "{why}");
        for at in 0..9 {
            let mut other = good.clone();
            other[at] ^= 0x10;
            assert!(open::<String>(&other).is_err(), "byte {at} changed");
        }
        let mut painted = good;
        painted[9..12].copy_from_slice(b"\x1b[2");
        let why = open::<u32>(&painted).unwrap_err();
        assert!(why.contains("u{1b}") && !why.contains('\u{1b}'), "{why}");
        let mut unending = vec![0; 9];
        unending[8] = 255;
        unending.extend([b'x'; 300]);
        assert_eq!(
            open::<u32>(&unending).unwrap_err(),
            "its framing is invalid"
        );
    }
}
