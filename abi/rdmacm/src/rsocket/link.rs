//! The queue pair of a stream socket, with its completion queue and its memory.

#![allow(unsafe_code)]
// UNSAFETY: verbs calls.

use super::cm::Id;
use super::completions::Completions;
use super::memory::{Access, Area, Buffers};
use super::stream::{CONTROLS, Sizes, Source, TARGETS, Work, Write};
use super::wire::{Iomap, Offer, RemoteSge};
use crate::queues::verbs::{self, code};
use ibverbs::sys::*;
use rkey_kit::Errno;
use std::ffi::{c_int, c_uint};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

/// The number of receives for the peer's control messages, which need no credits. The peer never has this many outstanding.
const SPARE_RECEIVES: u32 = 16;
/// The maximum length of inline data, which is enough for every record.
const INLINE: u32 = 32;
/// The maximum number of completions per poll.
const BATCH: usize = 32;

const RECEIVE: u64 = 1 << 33;
const CONTROL: u64 = 1 << 32;

/// A completion.
#[derive(Clone, Copy, Debug)]
pub enum Completion {
    /// An immediate value arrived.
    Arrived(u32),
    /// A receive completed with an error: the queue pair has failed.
    NoReceive,
    /// A write completed.
    Sent(Work),
    /// A write failed.
    Failed(Work),
}

/// A queue pair with its completion queue and memory.
#[derive(Debug)]
pub struct Link {
    qp: *mut Qp,
    completions: Completions,
    /// The send ring.
    out: Area,
    /// The receive ring, which the peer writes.
    ring: Area,
    /// The records of targets and mapped areas, which the peer writes.
    records: Area,
    /// The sizes of the queues and rings.
    pub sizes: Sizes,
}

// SAFETY: handles of the verbs front end, which any thread may use.
unsafe impl Send for Link {}

impl Link {
    /// Creates the queue pair of an identifier that has a device, and posts its receives.
    ///
    /// # Errors
    /// No memory, descriptor or queue pair is available.
    pub fn new(id: &Id, sizes: Sizes) -> Result<Self, Errno> {
        let (_, pd) = verbs::device()?;
        let records = TARGETS as usize * RemoteSge::SIZE + usize::from(sizes.iomaps) * Iomap::SIZE;
        let out = Area::new(pd, sizes.send_bytes as usize, Access::Local)?;
        let ring = Area::new(pd, sizes.receive_bytes as usize, Access::Remote)?;
        let records = Area::new(pd, records, Access::Remote)?;
        let receives = u32::from(sizes.credits) + SPARE_RECEIVES;
        let sends = sizes.send_requests + CONTROLS;
        let mut link = Self {
            qp: null_mut(),
            completions: Completions::new(receives + sends)?,
            out,
            ring,
            records,
            sizes,
        };
        let mut attr = link.completions.attributes(QPT_RC, sends, receives);
        attr.cap.max_inline_data = INLINE;
        link.qp = id.create_qp(&mut attr)?;
        link.receive(receives)?;
        Ok(link)
    }

    /// The descriptor that becomes readable after a completion.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.completions.fd()
    }

    /// The offer for the peer.
    #[must_use]
    pub fn offer(&self) -> Offer {
        Offer {
            credits: self.sizes.credits,
            iomaps: self.sizes.iomaps,
            targets: self.records.remote(TARGETS),
            first: self.ring.remote(self.sizes.receive_bytes / 2),
        }
    }

    /// The receive ring, as the peer addresses it.
    #[must_use]
    pub fn ring(&self) -> RemoteSge {
        self.ring.remote(self.sizes.receive_bytes)
    }

    /// Copies a program's bytes into the send ring.
    ///
    /// # Errors
    /// `EFAULT`: they cannot be read.
    pub fn fill(&self, from: &mut Buffers<'_>, at: u32, len: u32) -> Result<(), Errno> {
        from.fill(&self.out, at, len)
    }

    /// Copies received bytes to a program.
    ///
    /// # Errors
    /// `EFAULT`: the buffers cannot be written.
    pub fn read(&self, to: &mut Buffers<'_>, at: u32, len: u32) -> Result<(), Errno> {
        to.read(&self.ring, at, len)
    }

    /// Reads the target in a slot, and clears the slot.
    #[must_use]
    pub fn take_target(&self, slot: u32) -> RemoteSge {
        self.records.take_target(slot)
    }

    /// The record of an area that the peer has mapped.
    #[must_use]
    pub fn iomap(&self, index: u16) -> Iomap {
        self.records.iomap(TARGETS, index)
    }

    /// Posts receives.
    ///
    /// # Errors
    /// The queue pair has failed.
    pub fn receive(&self, count: u32) -> Result<(), Errno> {
        for _ in 0..count {
            let mut wr = RecvWr {
                wr_id: RECEIVE,
                next: null_mut(),
                sg_list: null_mut(),
                num_sge: 0,
            };
            // SAFETY: our live queue pair, and a valid request without memory.
            code(unsafe { ibverbs::queues::post::post_recv(self.qp, &mut wr, &mut null_mut()) })?;
        }
        Ok(())
    }

    /// Posts a write.
    ///
    /// # Errors
    /// The queue pair has failed.
    pub fn post(&self, write: &Write) -> Result<(), Errno> {
        let at = |bytes: &[u8]| bytes.as_ptr().expose_provenance() as u64;
        let (addr, length, lkey, flags) = match &write.source {
            Source::Ring { at, len } => {
                let (addr, key) = self.out.local(*at);
                (addr, *len, key, 0)
            }
            Source::Target(bytes) => (at(bytes), bytes.len() as u32, 0, SEND_INLINE),
            Source::Iomap(bytes) => (at(bytes), bytes.len() as u32, 0, SEND_INLINE),
            Source::Nothing => (0, 0, 0, 0),
        };
        let mut sge = Sge { addr, length, lkey };
        // SAFETY: all fields are numbers or pointers, which may be all zeros.
        let mut wr: SendWr = unsafe { std::mem::zeroed() };
        wr.wr_id = match write.work {
            Work::Data(len) => len.into(),
            Work::Control => CONTROL,
        };
        wr.sg_list = &raw mut sge;
        wr.num_sge = c_int::from(length > 0);
        wr.send_flags = (flags | SEND_SIGNALED) as c_uint;
        wr.opcode = match write.message {
            Some(message) => {
                wr.imm_data = message.encode().to_be();
                WR_RDMA_WRITE_WITH_IMM
            }
            None => WR_RDMA_WRITE,
        };
        wr.wr.rdma = RdmaWr {
            remote_addr: write.to,
            rkey: write.key,
        };
        // SAFETY: our live queue pair, and a valid request. Its memory is an area of ours, or inline data that the call copies.
        code(unsafe { ibverbs::queues::post::post_send(self.qp, &mut wr, &mut null_mut()) })
    }

    /// Polls all completions.
    pub fn poll(&self, mut each: impl FnMut(Completion)) {
        loop {
            let (batch, got) = self.completions.take::<BATCH>();
            for wc in &batch[..got] {
                each(completion(wc));
            }
            if got < BATCH {
                return;
            }
        }
    }

    /// Makes the descriptor unreadable until the next completion. The caller polls again afterwards.
    pub fn rearm(&self) {
        self.completions.rearm();
    }

    /// Moves the queue pair to the error state, which flushes its requests and fails those of the peer.
    pub fn fail(&self) {
        // SAFETY: our live queue pair.
        unsafe { verbs::fail_qp(self.qp) };
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.qp.is_null() {
            // SAFETY: nothing uses it any more. Its completion queue and the areas follow.
            unsafe { verbs::destroy_qp(self.qp) };
        }
    }
}

fn completion(wc: &Wc) -> Completion {
    let succeeded = wc.status == WC_SUCCESS;
    match wc.wr_id {
        RECEIVE if succeeded => Completion::Arrived(u32::from_be(wc.imm_data)),
        RECEIVE => Completion::NoReceive,
        id => {
            let work = match id & CONTROL {
                0 => Work::Data(id as u32),
                _ => Work::Control,
            };
            match succeeded {
                true => Completion::Sent(work),
                false => Completion::Failed(work),
            }
        }
    }
}
