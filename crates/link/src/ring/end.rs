//! One end of a link: our sender, our receiver, and the acknowledgements between them.
//!
//! The ack word of a half contains, in one store, how many fragments its owner has consumed and how many responses it
//! had sent by then. A requester trusts the word only if `acked <= consumed <= produced` and that many responses are
//! possible, and it uses `consumed` only after it has taken all those responses. So a success, which is only an
//! acknowledgement, can never overtake a NAK.

use super::half::{Half, KeepMapped};
use super::receiver::{Cursor, Receiver};
use super::sender::Sender;
use crate::{
    AnsweredRequest, Header, Malformed, NotShort, ReceivedFragment, SendError, ShortRequest, Ticket,
};
use crossbeam_utils::CachePadded;
use rkey_base::fault::Fault;
use rkey_base::hint::prefetch_write;
use rkey_base::shared::OwnBytes;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The role of this side of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends requests and takes responses.
    Requester,
    /// Takes requests and sends responses.
    Responder,
}

/// The counts in an ack word: fragments consumed, responses sent by then.
type AckCounts = (u64, u64);

/// One end of a link, over any kind of memory.
pub(crate) struct End {
    role: Role,
    sender: Sender,
    receiver: Receiver,
    own: Half,
    peer: Half,
    /// The latest ack word that has been checked.
    checked_acks: Cell<AckCounts>,
    /// An ack word whose responses have not been taken yet.
    waiting: Cell<Option<AckCounts>>,
    /// Whether something was published since the peer's sleep word was last read.
    dirty: Cell<bool>,
    /// Set once the peer has violated the protocol.
    broken: Cell<Option<Malformed>>,
    /// Keeps the halves mapped. The last field, so that it is dropped last.
    keep: KeepMapped,
}

impl End {
    /// An end over two halves.
    ///
    /// `keep` keeps the memory of both halves valid; `own` must have no other sender.
    pub(crate) fn new(role: Role, own: Half, peer: Half, keep: KeepMapped) -> Self {
        Self {
            role,
            sender: Sender::new(own),
            receiver: Receiver::new(peer, role == Role::Requester),
            own,
            peer,
            checked_acks: Cell::new((0, 0)),
            waiting: Cell::new(None),
            dirty: Cell::new(false),
            broken: Cell::new(None),
            keep,
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The maximum payload of our fragments.
    pub(crate) fn fragment_max(&self) -> u32 {
        self.own.geometry().fragment_max
    }

    /// The rule that the peer violated, if any.
    #[inline]
    pub(crate) fn broken(&self) -> Option<Malformed> {
        self.broken.get()
    }

    /// Stops sending.
    pub(crate) fn stop(&self) {
        self.sender.stop();
    }

    #[cold]
    fn break_with(&self, malformed: Malformed) -> Malformed {
        self.broken.set(Some(malformed));
        self.stop();
        malformed
    }

    /// A handle for threads that only check whether there is something to do.
    pub(crate) fn poll_view(&self) -> PollView {
        PollView {
            cursor: Arc::clone(self.receiver.cursor()),
            own: self.own,
            peer: self.peer,
            _keep: self.keep.clone(),
        }
    }

    // ---- sending

    /// Sends a fragment; also returns `Full` if the link is down (the caller distinguishes the two).
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        if !self.sender.has_slot() {
            self.read_peer_ack_for_slot()?;
        }
        if header.len > super::slot::IN_SLOT_MAX && !self.sender.has_room() {
            // A full ring is not an error yet because a smaller fragment may still fit, but the peer's ack word may
            // have broken the link.
            self.read_peer_ack().map_err(|_| SendError::Full)?;
        }
        let ticket = self.sender.send(header, fill)?;
        self.dirty.set(true);
        Ok(ticket)
    }

    /// Sends a fragment with a remote iovec.
    pub(crate) fn send_remote_iovec(
        &mut self,
        header: &Header,
        remote_iovec: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        if !self.sender.has_slot() {
            self.read_peer_ack_for_slot()?;
        }
        let ticket = self.sender.send_remote_iovec(header, remote_iovec)?;
        self.dirty.set(true);
        Ok(ticket)
    }

    /// Reads the peer's ack word in the hope of a free slot.
    #[cold]
    fn read_peer_ack_for_slot(&self) -> Result<(), SendError> {
        let _ = self.read_peer_ack();
        if self.sender.has_slot() {
            Ok(())
        } else {
            Err(SendError::Full)
        }
    }

    /// Whether a slot and a whole fragment are free.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sender.has_room() || (self.read_peer_ack().is_ok() && self.sender.has_room())
    }

    /// How many bytes the peer can send in whole fragments before we consume any.
    pub(crate) fn room_of_peer(&self) -> u64 {
        self.peer.geometry().room()
    }

    /// Reads and checks the peer's ack word; returns the ticket up to which requests are acknowledged.
    #[inline]
    pub(crate) fn read_peer_ack(&self) -> Result<Ticket, Malformed> {
        if let Some(malformed) = self.broken.get() {
            return Err(malformed);
        }
        if let Some((consumed, responses)) = self.waiting.get()
            && responses <= self.receiver.consumed()
        {
            self.waiting.set(None);
            self.sender.set_acked(consumed);
        }
        let word = self.peer.ack().load(Ordering::Acquire);
        let seen = &self.receiver.cursor().ack_seen;
        if word != seen.load(Ordering::Relaxed) {
            seen.store(word, Ordering::Relaxed);
            self.apply_ack_word(word)
                .map_err(|malformed| self.break_with(malformed))?;
        }
        Ok(self.sender.acknowledged())
    }

    /// Checks a new ack word. Applies it once all responses that it counts have been taken.
    #[inline]
    fn apply_ack_word(&self, word: u64) -> Result<(), Malformed> {
        if self.role == Role::Responder && word >> 32 != 0 {
            return Err(Malformed::new("the requester announces responses"));
        }
        let (consumed, responses) = self.checked_acks.get();
        let consumed = self.sender.extend(consumed, word as u32)?;
        let responses = responses + u64::from(((word >> 32) as u32).wrapping_sub(responses as u32));
        self.checked_acks.set((consumed, responses));
        let taken = self.receiver.consumed();
        if responses <= taken {
            self.waiting.set(None);
            self.sender.set_acked(consumed);
            return Ok(());
        }
        if responses - taken > u64::from(self.peer.geometry().slots) {
            return Err(Malformed::new(
                "it announces more responses than the ring can hold",
            ));
        }
        if !self.receiver.is_ready() {
            return Err(Malformed::new("it announces a response that was not sent"));
        }
        // Keep the older ack word: its responses come first, so we always reach it, even if newer ack words stay ahead
        // of us.
        if self.waiting.get().is_none() {
            self.waiting.set(Some((consumed, responses)));
        } else {
            // Makes a later call read the newest word again.
            self.receiver
                .cursor()
                .ack_seen
                .store(!word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether something was sent that is not acknowledged yet, according to the last ack word that we read.
    #[inline]
    pub(crate) fn has_unacked(&self) -> bool {
        self.sender.acknowledged() != self.sender.produced()
    }

    // ---- receiving

    /// The peer's next fragment.
    #[inline(always)]
    pub(crate) fn next(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        if let Some(malformed) = self.broken.get() {
            return Err(malformed);
        }
        match self.receiver.next() {
            Ok(None) => {
                self.found_nothing();
                Ok(None)
            }
            Err(malformed) => Err(self.break_with(malformed)),
            Ok(some) => {
                if self.receiver.is_ack_due() {
                    // The peer's reads took the cache line of our ack word from us, so prefetch the line before writing
                    // it.
                    prefetch_write(self.own.ack().as_ptr().cast());
                }
                Ok(some)
            }
        }
    }

    /// Like [`Self::next`], for short requests only. Invalid fragments are left to [`Self::next`].
    #[inline(always)]
    pub(crate) fn next_short(&self) -> Result<Option<ShortRequest<'_>>, NotShort> {
        if self.broken.get().is_some() {
            return Err(NotShort);
        }
        let short = self.receiver.next_short()?;
        if short.is_none() {
            self.found_nothing();
        } else if self.receiver.is_ack_due() {
            prefetch_write(self.own.ack().as_ptr().cast());
        }
        Ok(short)
    }

    /// Like [`Self::next`], for reads whose data fit into a slot and atomics only. Invalid fragments are left to [`Self::next`].
    #[inline]
    pub(crate) fn next_answered(&self) -> Option<AnsweredRequest> {
        if self.broken.get().is_some() {
            return None;
        }
        self.receiver.next_answered()
    }

    /// Counts a look that found nothing, and publishes the acknowledgement if it is due.
    #[inline]
    fn found_nothing(&self) {
        if self.receiver.count_empty() {
            self.publish_ack();
        }
    }

    /// Consumes the current fragment.
    #[inline]
    pub(crate) fn done(&mut self) {
        if self.receiver.done() {
            self.publish_ack();
            self.receiver.forget_bytes();
        }
    }

    /// Writes our ack word.
    #[inline]
    fn publish_ack(&self) {
        let responses = match self.role {
            Role::Requester => 0,
            Role::Responder => self.sender.produced() as u32,
        };
        let word = u64::from(self.receiver.consumed() as u32) | u64::from(responses) << 32;
        self.own.ack().store(word, Ordering::Release);
        self.receiver.set_reported();
        self.dirty.set(true);
    }

    /// Writes our ack word if it is not up to date.
    #[inline]
    pub(crate) fn publish_ack_if_due(&mut self) {
        if self.receiver.is_unreported() {
            self.publish_ack();
            self.receiver.forget_bytes();
        }
    }

    // ---- polling and sleeping

    /// Whether there is anything to receive or to report, including a protocol violation by the peer.
    #[inline(always)]
    pub(crate) fn pending(&self) -> bool {
        self.receiver.is_ready()
            || self.receiver.is_unreported()
            || self.peer.ack().load(Ordering::Relaxed)
                != self.receiver.cursor().ack_seen.load(Ordering::Relaxed)
            || self
                .waiting
                .get()
                .is_some_and(|(_, responses)| responses <= self.receiver.consumed())
            || self.broken.get().is_some()
    }

    /// Ends a step of the engine. Counts as a poll that found nothing (and publishes the acknowledgement if it is
    /// due), and records how many responses the peer has taken, which a responder does not poll for.
    #[inline]
    pub(crate) fn end_step(&self) {
        self.found_nothing();
        if self.role == Role::Responder {
            // An invalid acknowledgement breaks the link; the next call reports it.
            let _ = self.read_peer_ack();
        }
    }

    /// Whether something was published since [`take_dirty`](Self::take_dirty).
    #[inline]
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// Whether anything was published since the previous call.
    #[inline]
    pub(crate) fn take_dirty(&self) -> bool {
        self.dirty.replace(false)
    }

    /// The peer's sleep epoch.
    #[inline]
    pub(crate) fn peer_epoch(&self) -> u64 {
        self.peer.sleep().load(Ordering::Relaxed)
    }

    /// Pretends that `count` fragments have been sent: for tests of counters that wrap.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, count: u64) {
        self.checked_acks.set((count, 0));
        match self.role {
            Role::Requester => {
                self.sender.start_at(count);
                self.receiver
                    .cursor()
                    .ack_seen
                    .store(u64::from(count as u32), Ordering::Relaxed);
            }
            Role::Responder => {
                self.receiver
                    .cursor()
                    .consumed
                    .store(count, Ordering::Relaxed);
                self.checked_acks.set((0, 0));
                self.publish_ack();
            }
        }
    }
}

/// Checks whether a link has work, without the link's lock.
///
/// Any thread may use the view while another thread uses the link; results may be stale at once. The view keeps the shared
/// memory mapped.
#[derive(Clone)]
pub struct PollView {
    cursor: Arc<CachePadded<Cursor>>,
    own: Half,
    peer: Half,
    _keep: KeepMapped,
}

impl PollView {
    /// Makes the peer ring the doorbell from now on.
    ///
    /// To sleep without missing anything: announce the sleep on every link, issue one `rkey_base::barrier::heavy`,
    /// check [`pending`](Self::pending) of every link once more, and only then wait. Only one thread of a process may
    /// do this for a link.
    pub fn announce_sleep(&self) {
        // Only we write the word; the read-modify-write is the fence that a peer without membarrier relies on.
        self.own.sleep().fetch_or(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Ends the announced sleep.
    pub fn awake(&self) {
        let epoch = self.own.sleep().load(Ordering::Relaxed);
        if epoch & 1 == 1 {
            self.own
                .sleep()
                .store(epoch.wrapping_add(1), Ordering::Release);
        }
    }

    /// Whether a fragment has arrived, an acknowledgement has changed, or our own acknowledgement is due.
    #[inline]
    pub fn pending(&self) -> bool {
        self.has_arrived() || self.owes()
    }

    /// Whether a fragment has arrived, or an acknowledgement has changed.
    #[inline]
    pub fn has_arrived(&self) -> bool {
        let next = self.cursor.consumed.load(Ordering::Relaxed);
        super::slot::is_current(self.peer.slot_word(next).load(Ordering::Relaxed), next)
            || self.peer.ack().load(Ordering::Relaxed)
                != self.cursor.ack_seen.load(Ordering::Relaxed)
    }

    /// Whether our acknowledgement is delayed. A thread that polls without holding the link publishes it after a few
    /// unsuccessful polls ([`crate::Link::publish`]).
    #[inline]
    pub fn owes(&self) -> bool {
        self.cursor.consumed.load(Ordering::Relaxed) != self.cursor.reported.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for PollView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PollView")
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("End")
            .field("role", &self.role)
            .field("sent", &self.sender.produced())
            .field("acked", &self.sender.acknowledged())
            .field("consumed", &self.receiver.consumed())
            .field("broken", &self.broken.get())
            .finish_non_exhaustive()
    }
}
