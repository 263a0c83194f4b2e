//! Messages of plain bytes: buffers that the peer's sends fill, and buffers for our own.

use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::region::Region;
use crate::queues::completion::{Cause, CompletionQueue};
use crate::queues::flight::Flight;
use crate::queues::queue_pair::QueuePair;
use parking_lot::Mutex;
use rkey_core::Access;
use rkey_engine::{Completion, CompletionFlags, CompletionOp, Sge};
use std::collections::VecDeque;
use std::time::Duration;

/// A message from the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The message's bytes; empty if the message announces a write ([`Message::written`]).
    pub bytes: Vec<u8>,
    /// The message's immediate data, as a number: a C program passes `htonl(number)`.
    pub immediate: Option<u32>,
    /// How many bytes the peer wrote, if the message announces a write into our memory with immediate data.
    pub written: Option<u32>,
}

/// The buffers of a connection.
pub(super) struct Inbox {
    queue: CompletionQueue,
    /// `SLOTS` receive buffers, then `SLOTS` send buffers.
    memory: Region<Vec<u8>>,
    slot_len: u64,
    arrivals: Mutex<Arrivals>,
    outgoing: Mutex<Outgoing>,
}

#[derive(Default)]
struct Arrivals {
    waiting: VecDeque<Completion>,
    /// Why no more messages will arrive.
    ended: Option<Cause>,
}

/// The send buffers.
struct Outgoing {
    free: Vec<u32>,
    /// Buffers whose send was not complete when its call returned, with the number of the send.
    in_flight: Vec<(u64, u32)>,
}

impl Inbox {
    /// How many messages may be in flight in each direction.
    pub(super) const SLOTS: u32 = 16;

    /// Registers the buffers and posts the receives.
    pub(super) fn prepare(
        domain: &Domain,
        queue_pair: &QueuePair,
        queue: CompletionQueue,
    ) -> Result<Self> {
        let slot_len = domain.device().inner.settings.max_message as u64;
        let bytes = slot_len as usize * 2 * Self::SLOTS as usize;
        let inbox = Self {
            queue,
            memory: domain.register(vec![0; bytes], Access::SEND | Access::RECV)?,
            slot_len,
            arrivals: Mutex::default(),
            outgoing: Mutex::new(Outgoing {
                free: (Self::SLOTS..2 * Self::SLOTS).collect(),
                in_flight: Vec::new(),
            }),
        };
        for slot in 0..Self::SLOTS {
            inbox.post(queue_pair, slot)?;
        }
        Ok(inbox)
    }

    /// The maximum length of a message, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.slot_len as usize
    }

    fn part(&self, slot: u32, len: u64) -> Result<Sge> {
        let at = u64::from(slot) * self.slot_len;
        self.memory.part(at..at + len)
    }

    fn post(&self, queue_pair: &QueuePair, slot: u32) -> Result<()> {
        let part = self.part(slot, self.slot_len)?;
        queue_pair.post_receive(u64::from(slot), &[part])
    }

    /// Copies a message into a free buffer.
    pub(super) fn fill(&self, sends: &Flight, bytes: &[u8]) -> Result<(u32, Sge)> {
        let mut outgoing = self.outgoing.lock();
        let Outgoing { free, in_flight } = &mut *outgoing;
        in_flight.retain(|(number, slot)| {
            let is_done = sends.is_finished(*number);
            if is_done {
                free.push(*slot);
            }
            !is_done
        });
        let slot = free.pop().ok_or_else(|| {
            Error::Busy("all send buffers, because the peer is not receiving messages".into())
        })?;
        drop(outgoing);
        let filled = self
            .memory
            .write(u64::from(slot) * self.slot_len, bytes)
            .and_then(|()| self.part(slot, bytes.len() as u64));
        match filled {
            Ok(part) => Ok((slot, part)),
            Err(error) => {
                self.give_back(slot, None);
                Err(error)
            }
        }
    }

    /// Frees a buffer, once the send of this number is complete.
    pub(super) fn give_back(&self, slot: u32, number: Option<u64>) {
        let mut outgoing = self.outgoing.lock();
        match number {
            Some(number) => outgoing.in_flight.push((number, slot)),
            None => outgoing.free.push(slot),
        }
    }

    /// The oldest message; `None` if none has arrived.
    ///
    /// # Errors
    /// No more messages will arrive.
    pub(super) fn take(&self, queue_pair: &QueuePair) -> Result<Option<Message>> {
        let mut arrivals = self.arrivals.lock();
        let mut batch = [Completion::default(); Self::SLOTS as usize];
        let count = self.queue.poll(&mut batch)?;
        for completion in &batch[..count] {
            if completion.status.is_success() {
                arrivals.waiting.push_back(*completion);
            } else if arrivals.ended.is_none() {
                arrivals.ended = Some(Cause::of(&self.queue, completion));
            }
        }
        if let Some(completion) = arrivals.waiting.pop_front() {
            let message = self.read(&completion)?;
            if arrivals.ended.is_none() {
                // The id of a receive is its slot. If the queue pair has failed, posting fails, and the flushed receives report that.
                let _ = self.post(queue_pair, completion.id as u32);
            }
            return Ok(Some(message));
        }
        match &arrivals.ended {
            None => Ok(None),
            Some(cause) => Err(cause.to_error()),
        }
    }

    fn read(&self, completion: &Completion) -> Result<Message> {
        let immediate = completion.flags.contains(CompletionFlags::IMM);
        let immediate = immediate.then_some(completion.imm);
        if completion.opcode == CompletionOp::RecvWriteImm {
            return Ok(Message {
                bytes: Vec::new(),
                immediate,
                written: Some(completion.bytes),
            });
        }
        let at = completion.id * self.slot_len;
        let len = u64::from(completion.bytes).min(self.slot_len);
        let bytes = match len {
            0 => Vec::new(),
            len => self.memory.read_vec(at..at + len)?,
        };
        Ok(Message {
            bytes,
            immediate,
            written: None,
        })
    }

    /// Waits until something may have arrived.
    pub(super) fn wait(&self, time: Duration) -> Result<()> {
        // Another thread may take the completion, and a disconnect does not wake the queue, so callers check again regularly.
        self.queue
            .wait(time.min(Duration::from_millis(20)))
            .map(|_| ())
    }
}
