//! A link whose other end is a script of bytes: it delivers arbitrary slots that pass a link's own checks, in any
//! order, acknowledges at any time, and stores the engine's responses.

use rkey_base::fault::Fault;
use rkey_base::memory::Memory;
use rkey_base::shared::{OwnBytes, PeerBytes};
use rkey_link::{
    Capabilities, DownReason, Header, HeaderFlags, Link, Malformed, NodeId, Payload, PullError,
    ReceivedFragment, RemoteIovec, SendError, Ticket,
};
use std::cell::Cell;
use std::collections::VecDeque;

/// The device that the hostile end claims to be.
pub const HOSTILE: NodeId = NodeId {
    pid: 666,
    nonce: 666,
};
const FRAGMENT_MAX: usize = 512;

/// A fragment for the engine.
#[derive(Debug)]
struct Fragment {
    header: Header,
    bytes: Vec<u8>,
    references: Option<RemoteIovec>,
}

impl Fragment {
    fn incoming(&self) -> ReceivedFragment<'_> {
        let payload = match self.references {
            Some(list) => Payload::RemoteIovec(Box::new(list)),
            None => Payload::Bytes(PeerBytes::from_slice(&self.bytes)),
        };
        ReceivedFragment {
            header: self.header,
            payload,
        }
    }
}

/// The link.
#[derive(Debug, Default)]
pub struct HostileLink {
    requests: VecDeque<Fragment>,
    responses: VecDeque<Fragment>,
    sent: Ticket,
    acked: Ticket,
    /// The result of the next pull or push: 0 means success, and other values are the kinds of failure.
    pub pull_fails: Cell<u8>,
    /// Payloads of the engine's responses.
    pub answers: Vec<Vec<u8>>,
}

impl HostileLink {
    /// Queues 256 bytes for the engine, if a link would accept them as a slot.
    pub fn deliver(&mut self, slot: &[u8; 256], response: bool) -> bool {
        let Some(header) = rkey_link::fuzzing::header(slot, response) else {
            return false;
        };
        let remote_iovec = header.flags.contains(HeaderFlags::REMOTE_IOVEC) && !response;
        if header.len as usize > FRAGMENT_MAX && !remote_iovec {
            return false;
        }
        let references = remote_iovec.then(|| remote_iovec_of(slot));
        let bytes = slot[48..].iter().copied().cycle().take(if remote_iovec {
            0
        } else {
            header.len as usize
        });
        let fragment = Fragment {
            header,
            bytes: bytes.collect(),
            references: references.flatten(),
        };
        let queue = if response {
            &mut self.responses
        } else {
            &mut self.requests
        };
        if queue.len() < 64 {
            queue.push_back(fragment);
        }
        true
    }

    /// Acknowledges up to `count` more of the engine's requests.
    pub fn acknowledge(&mut self, count: u64) {
        self.acked = self.acked.saturating_add(count).min(self.sent);
    }

    fn pull_result(&self, len: u64) -> Result<(), PullError> {
        match self.pull_fails.get() % 4 {
            0 if len <= 1 << 16 => Ok(()),
            1 => Err(PullError::Refused),
            2 => Err(PullError::Gone),
            _ => Err(PullError::Remote(7)),
        }
    }
}

/// The remote iovec of a slot that has passed the link's own check.
fn remote_iovec_of(slot: &[u8; 256]) -> Option<RemoteIovec> {
    let count = usize::from(u16::from_le_bytes([slot[6], slot[7]]) / 16);
    let word = |at: usize| {
        slot.get(at..at + 8)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    let list: Vec<(u64, u64)> = (0..count)
        .map(|i| (word(48 + 16 * i), word(56 + 16 * i)))
        .collect();
    RemoteIovec::new(&list)
}

impl Link for HostileLink {
    fn node(&self) -> NodeId {
        HOSTILE
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            in_slot_max: 208,
            fragment_max: FRAGMENT_MAX as u32,
            remote_iovec: true,
            remote_iovec_min: 4096,
            direct: false,
        }
    }

    fn is_up(&self) -> Result<(), DownReason> {
        Ok(())
    }

    fn send_request(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<Ticket, SendError> {
        if self.sent - self.acked >= 128 || header.len as usize > FRAGMENT_MAX {
            return Err(SendError::Full);
        }
        let mut bytes = vec![0; header.len as usize];
        if !bytes.is_empty() {
            fill(OwnBytes::from_slice(&mut bytes)).map_err(SendError::Fault)?;
        }
        self.sent += 1;
        Ok(self.sent - 1)
    }

    fn send_remote_iovec(
        &mut self,
        header: &Header,
        _refs: &[(u64, u64)],
    ) -> Result<Ticket, SendError> {
        self.send_request(&Header { len: 0, ..*header }, |_| Ok(()))
    }

    fn next_response(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        Ok(self.responses.front().map(Fragment::incoming))
    }

    fn response_done(&mut self) {
        self.responses.pop_front();
    }

    fn acknowledged(&mut self) -> Result<Ticket, Malformed> {
        Ok(self.acked)
    }

    fn next_request(&self) -> Result<Option<ReceivedFragment<'_>>, Malformed> {
        Ok(self.requests.front().map(Fragment::incoming))
    }

    fn request_done(&mut self) {
        self.requests.pop_front();
    }

    fn room_to_respond(&self) -> bool {
        true
    }

    fn send_response(
        &mut self,
        header: &Header,
        fill: impl FnOnce(OwnBytes<'_>) -> Result<(), Fault>,
    ) -> Result<(), SendError> {
        if header.len as usize > FRAGMENT_MAX {
            return Err(SendError::Full);
        }
        let mut bytes = vec![0; header.len as usize];
        if !bytes.is_empty() {
            fill(OwnBytes::from_slice(&mut bytes)).map_err(SendError::Fault)?;
        }
        self.answers.push(bytes);
        Ok(())
    }

    fn pull<M: Memory>(&self, mem: &M, dst: u64, _src: u64, len: u64) -> Result<(), PullError> {
        self.pull_result(len)?;
        mem.store_bytes(dst, &vec![0x77; len as usize])
            .map_err(PullError::Local)
    }

    fn push<M: Memory>(
        &self,
        mem: &M,
        _dst_remote: u64,
        src_local: u64,
        len: u64,
    ) -> Result<(), PullError> {
        self.pull_result(len)?;
        mem.load_bytes(&mut vec![0; len as usize], src_local)
            .map_err(PullError::Local)
    }

    fn pending(&self) -> bool {
        !self.requests.is_empty() || !self.responses.is_empty()
    }

    fn end_burst(&mut self) {}
}
