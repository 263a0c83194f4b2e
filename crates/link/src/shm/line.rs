//! The control socket of a link after the handshake: doorbell, small messages, and detection of the peer's end.

use super::hello::{self, CONTROL_MAX, Frame, Kind};
use super::socket::{Received, Socket};
use crate::Malformed;
use rkey_base::process::ForkMark;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An event on a control socket.
#[derive(Debug)]
pub enum Event {
    /// The peer rang the doorbell: check the rings.
    Wake,
    /// A message from the peer's device.
    Control(Control),
    /// The peer's process ended, or the peer closed the link. This is the last event.
    Gone,
    /// The peer sent something that is not a packet of this protocol. Handle it like [`Event::Gone`].
    Malformed(Malformed),
}

/// A message from device to device, with file descriptors.
#[derive(Debug)]
pub struct Control {
    /// The other device's bytes: untrusted input.
    pub bytes: Vec<u8>,
    /// File descriptors that came with it (at most 4), closed when dropped.
    pub fds: Vec<OwnedFd>,
}

/// The control socket of a link. Shared between the link and the thread that waits for events; all methods may be
/// called from any thread.
#[derive(Debug)]
pub struct Line {
    socket: Socket,
    gone: AtomicBool,
    fork: ForkMark,
}

impl Line {
    pub(crate) fn new(socket: Socket, fork: ForkMark) -> Self {
        Self {
            socket,
            gone: AtomicBool::new(false),
            fork,
        }
    }

    /// Whether this is a forked child, which does not own the link.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Returns the next event; `None` if none is waiting. Call it when the socket is readable, until it returns `None`,
    /// [`Event::Gone`] or [`Event::Malformed`]. Limit the number of events per round, because a peer can send without
    /// end.
    pub fn next_event(&self) -> Option<Event> {
        if self.gone.load(Ordering::Relaxed) {
            return Some(Event::Gone);
        }
        let packet = match self.socket.receive() {
            Ok(Received::Nothing) => return None,
            Ok(Received::Packet(packet)) => packet,
            Ok(Received::End) => return Some(self.end(Event::Gone)),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Some(self.end(Event::Malformed(Malformed::new("an overlong packet"))));
            }
            Err(_) => return Some(self.end(Event::Gone)),
        };
        if packet.bytes.len() == 1 {
            return Some(Event::Wake);
        }
        match hello::parse(&packet.bytes) {
            Ok(Frame::Known(Kind::Control, body)) => Some(Event::Control(Control {
                bytes: body.to_vec(),
                fds: packet.fds,
            })),
            Ok(_) => {
                let malformed = Malformed::new("a packet that is not allowed after the handshake");
                Some(self.end(Event::Malformed(malformed)))
            }
            Err(malformed) => Some(self.end(Event::Malformed(malformed))),
        }
    }

    fn end(&self, event: Event) -> Event {
        self.gone.store(true, Ordering::Relaxed);
        event
    }

    /// Whether the peer is known to have ended or closed the link.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Sends a message to the peer's device.
    ///
    /// # Errors
    /// `WouldBlock` if the peer does not read its socket (try again later); `BrokenPipe` or `ConnectionReset` if the
    /// peer has ended; `InvalidInput` for more than [`CONTROL_MAX`] bytes or 4 descriptors.
    pub fn send_control(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > CONTROL_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the control message is too long",
            ));
        }
        self.socket.send(&hello::frame(Kind::Control, bytes), fds)
    }

    /// Sends a packet that already has a header (the last one of a handshake).
    pub(crate) fn send_packet(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.socket.send(packet, fds)
    }

    /// Ends the connection. The peer notices at once, even if another owner still holds the link or this line.
    pub fn close(&self) {
        // A forked child of ours may hold a copy of the socket, so closing it would not tell the peer that the link has
        // ended. If we are such a child, the link belongs to our parent.
        if !self.fork.is_child() {
            self.gone.store(true, Ordering::Relaxed);
            self.socket.shutdown();
        }
    }

    /// Rings the peer's doorbell, whether or not the peer sleeps. Never blocks.
    pub fn ring_doorbell(&self) {
        self.socket.ring_doorbell();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsFd for Line {
    /// The socket to wait for: readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
