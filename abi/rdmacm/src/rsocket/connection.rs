//! A connected stream: the state machine and the queue pair.

use super::complaint::{complain, mention};
use super::link::{Completion, Link};
use super::memory::Buffers;
use super::stream::{Shutdown, Stream, Write};
use super::wire::{Iomap, Offer, RemoteSge};
use rkey_kit::Errno;

/// `ECONNRESET`.
pub const RESET: Errno = Errno::from_raw(libc::ECONNRESET);
/// `EPROTO`.
const PROTOCOL: Errno = Errno::from_raw(libc::EPROTO);

/// A connected stream.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    stream: Stream,
    /// Why it failed, until a call or `SO_ERROR` has reported it.
    pub error: Option<Errno>,
}

impl Connection {
    /// Creates the state machine for a queue pair and the peer's offer.
    #[must_use]
    pub fn new(link: Link, offer: &Offer) -> Self {
        let stream = Stream::new(&link.sizes, link.ring(), offer);
        Self {
            link,
            stream,
            error: None,
        }
    }

    /// The state machine.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The queue pair.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Processes the completions that have arrived, and posts the control messages that are due.
    pub fn progress(&mut self) {
        let (mut receives, mut failure) = (0, None);
        let (link, stream) = (&self.link, &mut self.stream);
        link.poll(|completion| match completion {
            Completion::Arrived(immediate) => {
                receives += 1;
                let taken = stream.received(immediate, |slot| link.take_target(slot));
                if let Err(violation) = taken {
                    complain(format_args!(
                        "the peer of an rsocket violated the protocol; closing the connection: {violation}"
                    ));
                    failure = Some(PROTOCOL);
                    stream.end();
                }
            }
            Completion::NoReceive => {}
            Completion::Sent(work) => stream.completed(work),
            Completion::Failed(work) => {
                stream.completed(work);
                failure = failure.or(Some(RESET));
            }
        });
        if let Some(error) = failure {
            self.fail(error);
        }
        if self.stream.has_ended() {
            return;
        }
        if self.link.receive(receives).is_err() {
            self.fail(RESET);
        }
        while let Some(write) = self.stream.due() {
            self.post(&write);
        }
    }

    /// Ends the connection with an error. If it has already ended, records the error only if it is a violation of the protocol.
    fn fail(&mut self, error: Errno) {
        if error == PROTOCOL || !self.stream.has_ended() {
            mention(format_args!("the connection of an rsocket failed: {error}"));
            self.error = Some(error);
        }
        self.stream.end();
        self.link.fail();
    }

    fn post(&mut self, write: &Write) {
        if let Err(error) = self.link.post(write) {
            mention(format_args!(
                "an rsocket cannot post a write to its peer: {error}"
            ));
            self.stream.completed(write.work);
            self.fail(RESET);
        }
    }

    /// Ends the connection after the connection manager has reported a disconnection.
    pub fn disconnected(&mut self) {
        // What the peer sent before is in the completion queue.
        self.progress();
        self.stream.end();
        self.link.fail();
    }

    /// Sends as many bytes as there is room for. Adds their number to `done`.
    ///
    /// # Errors
    /// `EFAULT`: the next bytes cannot be read. None of them are sent.
    pub fn send(&mut self, from: &mut Buffers<'_>, done: &mut usize) -> Result<(), Errno> {
        while !from.is_empty()
            && let Some((at, len)) = self.stream.room(from.len())
        {
            self.link.fill(from, at, len)?;
            let Some(write) = self.stream.send(len as usize) else {
                break;
            };
            self.post(&write);
            *done += len as usize;
        }
        Ok(())
    }

    /// Writes as many bytes as there is room for to memory that the peer has mapped. Adds their number to `done`.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send).
    pub fn send_to(
        &mut self,
        from: &mut Buffers<'_>,
        to: RemoteSge,
        done: &mut usize,
    ) -> Result<(), Errno> {
        let mut to = to;
        while to.len > 0
            && let Some((at, len)) = self.stream.direct_room(to.len)
        {
            self.link.fill(from, at, len)?;
            let Some(write) = self.stream.send_to(RemoteSge { len, ..to }) else {
                break;
            };
            self.post(&write);
            to.addr = to.addr.wrapping_add(len.into());
            to.len -= len;
            *done += len as usize;
        }
        Ok(())
    }

    /// Sends the record of a mapped area to the peer. Returns whether there was room.
    pub fn map(&mut self, index: u16, area: Iomap) -> bool {
        let write = self.stream.map(index, area);
        if let Some(write) = &write {
            self.post(write);
        }
        write.is_some()
    }

    /// The memory that the peer has mapped at an offset, from there to the end of the area.
    #[must_use]
    pub fn mapped(&self, offset: u64) -> Option<RemoteSge> {
        (0..self.link.sizes.iomaps).find_map(|index| {
            let area = self.link.iomap(index);
            let into = offset.checked_sub(area.offset)?;
            let len = u64::from(area.memory.len).checked_sub(into)?;
            (len > 0).then_some(RemoteSge {
                addr: area.memory.addr.wrapping_add(into),
                key: area.memory.key,
                len: len as u32,
            })
        })
    }

    /// Copies received bytes after the first `skip`, without consuming them. Returns their number.
    ///
    /// # Errors
    /// `EFAULT`: the buffers cannot be written.
    pub fn peek(&self, to: &mut Buffers<'_>, skip: u32) -> Result<u32, Errno> {
        let mut done = 0;
        while !to.is_empty()
            && let Some((at, len)) = self.stream.peek(skip + done, to.len())
        {
            self.link.read(to, at, len)?;
            done += len;
        }
        Ok(done)
    }

    /// Copies and consumes received bytes. Returns their number.
    ///
    /// # Errors
    /// The errors of [`peek`](Self::peek). In that case, nothing is consumed.
    pub fn receive(&mut self, to: &mut Buffers<'_>) -> Result<usize, Errno> {
        let done = self.peek(to, 0)?;
        self.stream.consume(done);
        self.progress_credits();
        Ok(done as usize)
    }

    fn progress_credits(&mut self) {
        while let Some(write) = self.stream.due() {
            self.post(&write);
        }
    }

    /// Shuts down one or both directions.
    pub fn shut(&mut self, how: Shutdown) {
        self.stream.shut(how);
        self.progress_credits();
    }
}
