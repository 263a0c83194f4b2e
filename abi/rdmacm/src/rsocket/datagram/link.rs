//! The queue pair of a datagram socket, with its buffers.

#![allow(unsafe_code)]
// UNSAFETY: verbs calls.

use super::super::completions::Completions;
use super::super::memory::{Access, Area, Buffers};
use super::header::{LEN_MAX, ROUTE_LEN, origin};
use crate::lookup::address;
use crate::queues::verbs::{self, PORT, code, gid_index};
use crate::sys::{AhAttr, Qp, QpAttr, UDP_QKEY};
use ibverbs::sys::*;
use rkey_kit::Errno;
use std::ffi::c_uint;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

/// The depths of the receive queue and the send queue, in datagrams.
const RECEIVES: u32 = 256;
const SENDS: u32 = 64;
/// The length of the global routing header (GRH) that precedes each received datagram.
const ROUTE: u32 = ROUTE_LEN as u32;
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
        let ah = unsafe { ibverbs::queues::ah::create_ah(pd, &mut attr) };
        match ah.is_null() {
            true => Err(Errno::last()),
            false => Ok(Self { ah, qpn }),
        }
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // SAFETY: our own handle, which nothing uses any more.
        unsafe { ibverbs::queues::ah::destroy_ah(self.ah) };
    }
}

/// A datagram that arrived.
#[derive(Debug)]
pub struct Arrived {
    /// The sender's address, according to the device.
    pub origin: IpAddr,
    /// The queue pair that sent it, according to the device.
    pub qpn: u32,
    /// The sender's header and the data.
    pub data: Vec<u8>,
}

/// A datagram queue pair.
#[derive(Debug)]
pub struct Link {
    qp: *mut Qp,
    completions: Completions,
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
        let mut link = Self {
            qp: null_mut(),
            completions: Completions::new(SENDS + RECEIVES)?,
            out,
            into,
            next: 0,
            free: SENDS,
        };
        let attr = link.completions.attributes(QPT_UD, SENDS, RECEIVES);
        let mut longer = crate::queues::qp::extended(&attr, pd);
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
        self.completions.fd()
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
        code(unsafe { ibverbs::queues::post::post_recv(self.qp, &mut wr, &mut null_mut()) })
    }

    /// Whether another datagram can be sent.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.free > 0
    }

    /// Sends a datagram. There must be room, and the data must not be longer than [`DATA_MAX`].
    ///
    /// # Errors
    /// The queue pair has failed. `EFAULT`: the data cannot be read.
    pub fn send(
        &mut self,
        destination: &Destination,
        header: &[u8],
        data: &mut Buffers<'_>,
    ) -> Result<(), Errno> {
        let (at, len) = (self.next * SLOT, data.len() as u32);
        self.out.fill(at, header.as_ptr(), header.len() as u32)?;
        data.fill(&self.out, at + header.len() as u32, len)?;
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
        code(unsafe { ibverbs::queues::post::post_send(self.qp, &mut wr, &mut null_mut()) })?;
        self.next = (self.next + 1) % SENDS;
        self.free -= 1;
        Ok(())
    }

    /// Polls all completions, and passes each datagram that arrived to `each`.
    pub fn poll(&mut self, mut each: impl FnMut(Arrived)) {
        loop {
            let ([wc], got) = self.completions.take();
            if got != 1 {
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
                let mut route = [0; ROUTE as usize];
                let mut data = vec![0; len as usize];
                let at = slot * SLOT;
                // SAFETY: our own bytes.
                let copied = unsafe {
                    let first = self.into.read(at, route.as_mut_ptr(), ROUTE);
                    first.and_then(|()| self.into.read(at + ROUTE, data.as_mut_ptr(), len))
                };
                if copied.is_ok() {
                    each(Arrived {
                        origin: origin(&route),
                        qpn: wc.src_qp,
                        data,
                    });
                }
            }
            if self.receive(slot).is_err() {
                return;
            }
        }
    }

    /// Makes the descriptor unreadable until the next completion. The caller polls again afterwards.
    pub fn rearm(&self) {
        self.completions.rearm();
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
