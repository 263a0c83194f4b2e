//! The queue pair of a datagram socket, with its buffers.

#![allow(unsafe_code)]
// UNSAFETY: verbs calls.

use super::super::memory::{Access, Area, Buffers};
use super::header::LEN_MAX;
use crate::address;
use crate::bind::PORT;
use crate::sys::{AhAttr, CompChannel, Cq, Qp, QpAttr, QpInitAttr, UDP_QKEY};
use crate::verbs::{self, gid_index};
use ibverbs::sys::*;
use rkey_kit::Errno;
use std::ffi::{c_int, c_uint};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;

/// The depths of the receive queue and the send queue, in datagrams.
const RECEIVES: u32 = 256;
const SENDS: u32 = 64;
/// The length of the global routing header (GRH) that precedes each received datagram.
const ROUTE: u32 = 40;
/// The payload of the device's largest datagram, in bytes.
pub const MTU: usize = 4096;
/// The size of the buffer for one datagram.
const SLOT: u32 = MTU as u32 + ROUTE.next_multiple_of(64);
/// The maximum length of a program's datagram.
pub const DATA_MAX: usize = MTU - LEN_MAX;

/// The address handle and number of a peer's queue pair.
#[derive(Debug)]
pub struct Destination {
    ah: *mut Ah,
    /// The number of the queue pair.
    pub qpn: u32,
}

// SAFETY: a handle of the verbs front end, which any thread may use.
unsafe impl Send for Destination {}

impl Destination {
    /// Creates the address handle.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(to: SocketAddr, qpn: u32) -> Result<Self, Errno> {
        let (_, pd) = verbs::device()?;
        let mut attr = AhAttr {
            grh: GlobalRoute {
                dgid: address::gid(to),
                sgid_index: gid_index(to),
                hop_limit: 64,
                ..GlobalRoute::default()
            },
            is_global: 1,
            port_num: PORT,
            ..AhAttr::default()
        };
        // SAFETY: the library's own protection domain, and valid attributes.
        let ah = unsafe { ibverbs::ah::create_ah(pd, &mut attr) };
        match ah.is_null() {
            true => Err(Errno::last()),
            false => Ok(Self { ah, qpn }),
        }
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // SAFETY: our own handle, which nothing uses any more.
        unsafe { ibverbs::ah::destroy_ah(self.ah) };
    }
}

/// A datagram queue pair.
#[derive(Debug)]
pub struct Link {
    qp: *mut Qp,
    cq: *mut Cq,
    channel: *mut CompChannel,
    fd: RawFd,
    out: Area,
    into: Area,
    /// The next slot of `out`, and the number of free slots.
    next: u32,
    free: u32,
}

// SAFETY: handles of the verbs front end, which any thread may use.
unsafe impl Send for Link {}

const RECEIVE: u64 = 1 << 32;

impl Link {
    /// Creates the queue pair, and posts its receives.
    ///
    /// # Errors
    /// No memory, descriptor or queue pair is available.
    pub fn new() -> Result<Self, Errno> {
        let (context, pd) = verbs::device()?;
        let out = Area::new(pd, (SENDS * SLOT) as usize, Access::Local)?;
        let into = Area::new(pd, (RECEIVES * SLOT) as usize, Access::Local)?;
        // SAFETY: the library's own context.
        let (channel, cq) = unsafe { verbs::create_cq(context, SENDS + RECEIVES, null_mut()) }?;
        // SAFETY: just created.
        let fd = unsafe { (*channel).fd };
        let mut link = Self {
            qp: null_mut(),
            cq,
            channel,
            fd,
            out,
            into,
            next: 0,
            free: SENDS,
        };
        let _ = rustix::io::ioctl_fionbio(link.fd(), true);
        let attr = QpInitAttr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap: QpCap {
                max_send_wr: SENDS,
                max_recv_wr: RECEIVES,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: QPT_UD,
            sq_sig_all: 1,
        };
        let mut longer = crate::qp::extended(&attr, pd);
        // SAFETY: the library's own context, and live completion queues.
        link.qp = unsafe { verbs::create_qp(context, &mut longer) }?;
        link.make_ready()?;
        for slot in 0..RECEIVES {
            link.receive(slot)?;
        }
        Ok(link)
    }

    fn make_ready(&self) -> Result<(), Errno> {
        let steps = [
            (QPS_INIT, QP_PKEY_INDEX | QP_PORT | QP_QKEY),
            (QPS_RTR, 0),
            (QPS_RTS, QP_SQ_PSN),
        ];
        for (state, mask) in steps {
            let mut attr = QpAttr {
                qp_state: state,
                port_num: PORT,
                qkey: UDP_QKEY,
                ..QpAttr::default()
            };
            // SAFETY: our live queue pair.
            unsafe { verbs::modify_qp(self.qp, &mut attr, QP_STATE | mask) }?;
        }
        Ok(())
    }

    /// The number of the queue pair.
    ///
    /// # Errors
    /// `EINVAL`: a bug.
    pub fn number(&self) -> Result<u32, Errno> {
        // SAFETY: our live queue pair.
        unsafe { verbs::qp_number(self.qp) }.map(|(number, _)| number)
    }

    /// The descriptor that becomes readable after a completion.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open until drop.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    fn receive(&self, slot: u32) -> Result<(), Errno> {
        let (addr, lkey) = self.into.local(slot * SLOT);
        let mut sge = Sge {
            addr,
            length: SLOT,
            lkey,
        };
        let mut wr = RecvWr {
            wr_id: RECEIVE | u64::from(slot),
            next: null_mut(),
            sg_list: &raw mut sge,
            num_sge: 1,
        };
        // SAFETY: our live queue pair; the request names memory of our area.
        code(unsafe { ibverbs::post::post_recv(self.qp, &mut wr, &mut null_mut()) })
    }

    /// Whether another datagram can be sent.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.free > 0
    }

    /// Sends a datagram. There must be room, and the data must not be longer than [`DATA_MAX`].
    ///
    /// # Errors
    /// The queue pair has failed.
    pub fn send(
        &mut self,
        destination: &Destination,
        header: &[u8],
        data: &mut Buffers<'_>,
    ) -> Result<(), Errno> {
        let (at, len) = (self.next * SLOT, data.len() as u32);
        // SAFETY: our own bytes.
        unsafe { self.out.fill(at, header.as_ptr(), header.len() as u32) };
        data.fill(&self.out, at + header.len() as u32, len);
        let (addr, lkey) = self.out.local(at);
        let mut sge = Sge {
            addr,
            length: header.len() as u32 + len,
            lkey,
        };
        // SAFETY: all fields are numbers or pointers, which may be all zeros.
        let mut wr: SendWr = unsafe { std::mem::zeroed() };
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = WR_SEND;
        wr.send_flags = SEND_SIGNALED as c_uint;
        wr.wr.ud = UdWr {
            ah: destination.ah,
            remote_qpn: destination.qpn,
            remote_qkey: UDP_QKEY,
        };
        // SAFETY: our live queue pair and address handle; the request names memory of our area.
        code(unsafe { ibverbs::post::post_send(self.qp, &mut wr, &mut null_mut()) })?;
        self.next = (self.next + 1) % SENDS;
        self.free -= 1;
        Ok(())
    }

    /// Polls all completions, and passes each datagram that arrived to `each`.
    pub fn poll(&mut self, mut each: impl FnMut(&[u8])) {
        loop {
            // SAFETY: all fields are numbers.
            let mut wc: Wc = unsafe { std::mem::zeroed() };
            // SAFETY: our live completion queue, and room for one completion.
            if unsafe { ibverbs::cq::poll_cq(self.cq, 1 as c_int, &mut wc) } != 1 {
                return;
            }
            if wc.wr_id & RECEIVE == 0 {
                // Sends complete in order, so this frees the oldest slot.
                self.free += 1;
                continue;
            }
            let slot = wc.wr_id as u32;
            if wc.status == WC_SUCCESS && wc.byte_len >= ROUTE {
                let len = (wc.byte_len - ROUTE).min(MTU as u32);
                let mut data = vec![0; len as usize];
                // SAFETY: our own bytes.
                unsafe { self.into.read(slot * SLOT + ROUTE, data.as_mut_ptr(), len) };
                each(&data);
            }
            if self.receive(slot).is_err() {
                return;
            }
        }
    }

    /// Makes the descriptor unreadable until the next completion. The caller polls again afterwards.
    pub fn rearm(&self) {
        // SAFETY: our live channel and completion queue.
        unsafe { verbs::rearm(self.channel, self.cq) };
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: nothing uses them any more. The areas are dropped afterwards.
        unsafe {
            if !self.qp.is_null() {
                verbs::destroy_qp(self.qp);
            }
            verbs::destroy_cq(self.channel, self.cq);
        }
    }
}

fn code(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        number => Err(Errno::from_raw(number)),
    }
}
