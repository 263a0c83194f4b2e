//! One-sided operations of the program: reads and writes of a peer's memory, atomics, and durable writes.
//!
//! Reads and writes are requests of the connection; the peer's device executes them. Remote completion data travels as
//! the write's immediate data if it is short enough. Otherwise, or if there are several remote ranges, the data travels
//! in a separate message, which is sent when everything has been written: the data never arrives before the bytes of its
//! write. An atomic is sent as a message.

use super::Host;
use super::operation::{Operation, OperationKind, Retained};
use super::outbox::{Outbox, SEND, copied};
use crate::commit::{self, RemoteRange};
use crate::error::{Error, Result};
use crate::header::{Atomic, Header, Kind, MAX_LEN};
use crate::limits::INLINE_MAX;
use crate::sges::{self, Sges, part};
use rkey_engine::{SendFlags, SendRequest, Sge, Target, Work};

/// The local memory of a transfer.
#[derive(Debug)]
pub enum Memory {
    /// Memory of the program, without empty entries.
    InPlace(Sges),
    /// A copy of the program's bytes, for a write.
    Copy(Box<[u8]>),
}

/// A transfer between local and remote memory.
#[derive(Debug)]
pub struct Transfer<'a> {
    /// The connection to the peer, which has room.
    pub connection: usize,
    /// True for a read, false for a write.
    pub reads: bool,
    /// The local memory.
    pub local: Memory,
    /// The remote memory, of the same total length.
    pub remote: &'a [RemoteRange],
    /// Completion data of a write, for the peer's program.
    pub data: Option<u64>,
    /// Starts only when all earlier operations are complete.
    pub fence: bool,
    /// A write completes only when its bytes are durable.
    pub durable: bool,
}

impl Transfer<'_> {
    /// How many requests of the connection the transfer needs.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.remote.len() as u32 + u32::from(self.durable)
    }
}

/// A transfer between one local buffer and one remote range that is a plain operation.
#[derive(Clone, Copy, Debug)]
pub struct PlainTransfer {
    /// The connection to the peer, which has room.
    pub connection: usize,
    /// True for a read, false for a write.
    pub reads: bool,
    /// The local memory.
    pub local: Sge,
    /// The remote memory, of the same length.
    pub remote: Target,
    /// Starts only when all earlier operations are complete.
    pub fence: bool,
}

/// An atomic operation on a peer's memory.
#[derive(Debug)]
pub struct AtomicCall {
    /// The connection to the peer, which has room.
    pub connection: usize,
    /// The operation and its target.
    pub what: Atomic,
    /// The operands, then the compare operands.
    pub operands: Vec<u8>,
    /// The destination of the old values, if requested.
    pub result: Option<Sges>,
}

/// The operation of a transfer with one remote range.
#[inline]
fn work(reads: bool, remote: Target, imm: Option<u32>) -> Work {
    match reads {
        true => Work::Read { remote },
        false => Work::Write { remote, imm },
    }
}

/// The request of a transfer with one remote range.
#[inline]
fn request(id: u64, work: Work, local: &[Sge], fence: bool) -> SendRequest<'_> {
    let fence = match fence {
        true => SendFlags::FENCE,
        false => SendFlags::empty(),
    };
    SendRequest {
        flags: SendFlags::SIGNALED | fence,
        ..SendRequest::new(id, work, local)
    }
}

impl<H: Host> Outbox<H> {
    /// Begins a plain transfer, with its id from [`Outbox::plain_id`].
    ///
    /// # Errors
    /// An error of posting. Nothing was sent.
    #[inline]
    pub(super) fn transfer_plain(&mut self, host: &H, id: u64, it: &PlainTransfer) -> Result<()> {
        let work = work(it.reads, it.remote, None);
        let local = [it.local];
        let local = &local[..usize::from(it.local.len > 0)];
        self.post(host, it.connection, &request(id, work, local, it.fence))
    }

    /// Begins a transfer.
    ///
    /// # Errors
    /// An error of posting, or [`Error::Again`] if there is no credit for the data. Nothing was sent.
    #[inline]
    pub(super) fn transfer(
        &mut self,
        host: &H,
        it: Transfer<'_>,
        attached: H::Operation,
    ) -> Result<()> {
        let connection = it.connection;
        let posts = it.requests();
        let imm = it.data.filter(|_| it.remote.len() == 1);
        let imm = imm.and_then(|data| u32::try_from(data).ok());
        let len: u64 = it.remote.iter().map(|place| place.len).sum();
        // The data needs an entry in the peer's completion queue, so it spends credit.
        if it.data.is_some() && !self.connection(connection).credit.spend(0) {
            return Err(Error::Again);
        }
        let what = match (it.data, imm) {
            (Some(_), Some(_)) => OperationKind::WriteWithImmediate,
            (Some(data), None) => OperationKind::Write {
                data,
                len: len as u32,
            },
            (None, _) => OperationKind::Transmit,
        };
        let mut operation = Operation {
            left: posts,
            ..Operation::new(connection, what, Some(attached))
        };
        if it.durable {
            operation = operation.awaiting_answer();
        }
        let sges = match it.local {
            Memory::InPlace(sges) => sges,
            Memory::Copy(bytes) => {
                let sge = Sge {
                    addr: bytes.as_ptr() as u64,
                    len: bytes.len() as u32,
                    key: host.everything(),
                };
                operation.retained = Retained::Bytes(bytes);
                sges::of(sge)
            }
        };
        let id = self.begin(operation);
        let mut skip = 0;
        for (index, place) in it.remote.iter().enumerate() {
            let remote = Target {
                addr: place.addr,
                key: place.key,
            };
            let part = (it.remote.len() > 1).then(|| part(&sges, skip, place.len as usize));
            skip += place.len as usize;
            let local = part.as_ref().unwrap_or(&sges);
            let work = work(it.reads, remote, imm);
            let request = request(id, work, local, it.fence && index == 0);
            if let Err(error) = self.post(host, connection, &request) {
                return self.cut_short(id, index as u32, error);
            }
        }
        if it.durable
            && let Err(error) = self.ask_to_commit(host, connection, it.remote, id)
        {
            return self.cut_short(id, it.remote.len() as u32, error);
        }
        Ok(())
    }

    /// Handles a transfer of which only the first `posted` requests could be posted: it fails when they are complete.
    #[cold]
    fn cut_short(&mut self, id: u64, posted: u32, error: Error) -> Result<()> {
        if posted == 0 {
            if let Some(operation) = self.forget(id) {
                self.refund(&operation);
            }
            return Err(error);
        }
        if let Some(operation) = self.operation(id) {
            operation.fail(error);
            operation.left = posted;
            operation.awaits_answer = false;
        }
        Ok(())
    }

    /// Requests that the peer make an operation's writes durable.
    fn ask_to_commit(
        &mut self,
        host: &H,
        connection: usize,
        ranges: &[RemoteRange],
        id: u64,
    ) -> Result<()> {
        let header = Header {
            id,
            ..Header::new(Kind::Commit)
        };
        let mut header_bytes = [0; MAX_LEN];
        let len = header.encode(&mut header_bytes);
        let mut bytes = header_bytes[..len].to_vec();
        bytes.extend(commit::encode(ranges));
        self.post(host, connection, &copied(id, &bytes))
    }

    /// Begins an atomic operation.
    ///
    /// # Errors
    /// An error of posting; nothing was sent.
    pub(super) fn atomic(
        &mut self,
        host: &H,
        mut it: AtomicCall,
        attached: H::Operation,
    ) -> Result<()> {
        let connection = it.connection;
        let what = match it.result {
            Some(result) => OperationKind::AtomicFetch { result },
            None => OperationKind::Transmit,
        };
        let id = self.begin(Operation::new(connection, what, Some(attached)).awaiting_answer());
        let header = Header {
            id,
            ..Header::new(Kind::Atomic(it.what))
        };
        let mut header_bytes = [0; MAX_LEN];
        let len = header.encode(&mut header_bytes);
        let mut bytes = header_bytes[..len].to_vec();
        bytes.append(&mut it.operands);
        let posted = if bytes.len() <= INLINE_MAX {
            self.post(host, connection, &copied(id, &bytes))
        } else {
            let bytes = bytes.into_boxed_slice();
            let sges = [Sge {
                addr: bytes.as_ptr() as u64,
                len: bytes.len() as u32,
                key: host.everything(),
            }];
            if let Some(operation) = self.operation(id) {
                operation.retained = Retained::Bytes(bytes);
            }
            self.post(host, connection, &SendRequest::new(id, SEND, &sges))
        };
        posted.inspect_err(|_| drop(self.forget(id)))
    }
}
