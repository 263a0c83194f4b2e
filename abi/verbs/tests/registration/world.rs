//! Two connected queue pairs in one process, with memory that the tests register.

#![allow(unsafe_code)]
// UNSAFETY: calls the C functions.

use ibverbs::completion::cq;
use ibverbs::device::{devices, query};
use ibverbs::memory::{mr, pd};
use ibverbs::queues::{bind, creation, post, qp};
use ibverbs::sys::consts::*;
use ibverbs::sys::{
    Context, Cq, Mr, Mw, MwBind, MwBindInfo, Pd, Qp, QpAttr, QpInitAttr, RecvWr, SendWr, Sge, Wc,
};
use ibverbs::tables::context;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// The size of the memory, in bytes.
pub(crate) const LEN: usize = 1 << 14;
/// All remote rights, and the local write that they need.
pub(crate) const ALL: u32 = ACCESS_LOCAL_WRITE
    | ACCESS_REMOTE_WRITE
    | ACCESS_REMOTE_READ
    | ACCESS_REMOTE_ATOMIC
    | ACCESS_MW_BIND;

/// A context with a protection domain, a completion queue, and memory.
pub(crate) struct World {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) cq: *mut Cq,
    memory: Box<[u64]>,
}

impl World {
    pub(crate) fn new() -> Self {
        // SAFETY: the device is ours, and every object is live while it is used.
        unsafe {
            let context = context::open_device(devices::the_device());
            assert!(!context.is_null());
            Self {
                context,
                pd: pd::alloc_pd(context),
                cq: cq::create_cq(context, 256, null_mut(), null_mut(), 0),
                memory: vec![0; LEN / 8].into_boxed_slice(),
            }
        }
    }

    /// The address of an offset in the memory.
    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.memory.as_ptr() as u64 + offset as u64
    }

    /// The current value of a word of the memory.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        // SAFETY: inside the memory, which only the device writes, and no request is outstanding.
        unsafe { (self.at(offset) as *const u64).read_volatile() }
    }

    pub(crate) fn set(&mut self, offset: usize, value: u64) {
        self.memory[offset / 8] = value;
    }

    /// Registers a part of the memory.
    pub(crate) fn register(&self, offset: usize, len: usize, access: u32) -> *mut Mr {
        // SAFETY: the memory stays as long as the world.
        let region = unsafe { mr::reg_mr(self.pd, self.at(offset) as *mut _, len, access as i32) };
        assert!(!region.is_null(), "{access:#x}");
        region
    }

    /// A queue pair in the state RESET.
    pub(crate) fn qp(&self, qp_type: i32) -> *mut Qp {
        // SAFETY: all zeros is valid; objects are live.
        unsafe {
            let mut attr: QpInitAttr = std::mem::zeroed();
            (attr.send_cq, attr.recv_cq, attr.qp_type) = (self.cq, self.cq, qp_type);
            attr.cap.max_send_wr = 16;
            attr.cap.max_recv_wr = 16;
            attr.cap.max_send_sge = 2;
            attr.cap.max_recv_sge = 2;
            attr.cap.max_inline_data = 64;
            let pair = creation::create_qp(self.pd, &raw mut attr);
            assert!(!pair.is_null());
            pair
        }
    }

    /// Two connected queue pairs.
    pub(crate) fn pair(&self, qp_type: i32) -> [*mut Qp; 2] {
        let qps = [self.qp(qp_type), self.qp(qp_type)];
        for (own, other) in [(qps[0], qps[1]), (qps[1], qps[0])] {
            // SAFETY: the queue pair is live.
            self.connect(own, qp_type, unsafe { (*other).qp_num });
        }
        qps
    }

    /// Moves a queue pair to RTS.
    pub(crate) fn connect(&self, own: *mut Qp, qp_type: i32, peer: u32) {
        // 8 times 2 seconds: a slow peer on a loaded machine is not a silent one.
        self.connect_with(own, qp_type, peer, 19);
    }

    /// Like [`World::connect`], with a timeout.
    pub(crate) fn connect_with(&self, own: *mut Qp, qp_type: i32, peer: u32, timeout: u8) {
        let reliable = qp_type == QPT_RC;
        let mut attr = QpAttr {
            qp_state: QPS_INIT,
            port_num: 1,
            qp_access_flags: ALL & !ACCESS_MW_BIND,
            path_mtu: MTU_4096,
            dest_qp_num: peer,
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            qkey: 0x11,
            ..QpAttr::default()
        };
        // SAFETY: the objects are live; `gid` is writable.
        unsafe {
            let gid = &raw mut attr.ah_attr.grh.dgid.0;
            assert_eq!(query::query_gid(self.context, 1, 0, gid), 0);
            (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
            let connected = qp_type != QPT_UD;
            let rights = if connected { QP_ACCESS_FLAGS } else { QP_QKEY };
            let mut masks = [
                QP_STATE | QP_PKEY_INDEX | QP_PORT | rights,
                QP_STATE,
                QP_STATE | QP_SQ_PSN,
            ];
            if connected {
                masks[1] |= QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN;
            }
            if reliable {
                masks[1] |= QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
                masks[2] |= QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC;
            }
            for (state, mask) in [QPS_INIT, QPS_RTR, QPS_RTS].into_iter().zip(masks) {
                attr.qp_state = state;
                assert_eq!(qp::modify_qp(own, &raw mut attr, mask as i32), 0, "{state}");
            }
        }
    }

    /// The next completion.
    pub(crate) fn next(&self) -> Wc {
        self.next_within(Duration::from_secs(60))
    }

    /// The next completion within `patience`.
    pub(crate) fn next_within(&self, patience: Duration) -> Wc {
        let end = Instant::now() + patience;
        loop {
            let mut wc = Wc::default();
            // SAFETY: a live queue, with room for one completion.
            match unsafe { cq::poll_cq(self.cq, 1, &raw mut wc) } {
                0 => {
                    assert!(Instant::now() < end, "no completion");
                    std::thread::yield_now();
                }
                got => {
                    assert_eq!(got, 1);
                    return wc;
                }
            }
        }
    }

    /// Ids and statuses of the next completions, sorted by id.
    pub(crate) fn statuses(&self, count: usize) -> Vec<(u64, i32)> {
        let mut all: Vec<_> = (0..count)
            .map(|_| self.next())
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        all.sort_unstable();
        all
    }

    /// Posts one request and returns its status.
    pub(crate) fn run(&self, pair: *mut Qp, request: &mut SendWr) -> i32 {
        assert_eq!(send(pair, request), (0, false));
        let wc = self.next();
        assert_eq!(wc.wr_id, request.wr_id);
        wc.status
    }

    /// Posts a bind of a window of type 1 and returns its status.
    pub(crate) fn bind(&self, pair: *mut Qp, window: *mut Mw, info: MwBindInfo) -> i32 {
        let mut bind = MwBind {
            wr_id: 77,
            send_flags: SEND_SIGNALED,
            bind_info: info,
        };
        // SAFETY: the objects are live.
        assert_eq!(unsafe { bind::bind_mw(pair, window, &raw mut bind) }, 0);
        let wc = self.next();
        assert_eq!(wc.wr_id, 77);
        if wc.status == WC_SUCCESS {
            assert_eq!(wc.opcode, WC_BIND_MW);
        }
        wc.status
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: nothing of the context is used afterwards.
        unsafe { context::close_device(self.context) };
    }
}

/// A scatter/gather entry.
pub(crate) fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    Sge { addr, length, lkey }
}

/// A signalled request. The entry must stay valid until the request is posted.
pub(crate) fn request(id: u64, opcode: i32, entry: &mut Sge) -> SendWr {
    // SAFETY: all zeros is valid.
    let mut wr: SendWr = unsafe { std::mem::zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (id, opcode, SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (entry, 1);
    wr
}

/// A request with an address and key of the peer's memory, for RDMA or an atomic.
pub(crate) fn remote(id: u64, opcode: i32, entry: &mut Sge, addr: u64, rkey: u32) -> SendWr {
    let mut wr = request(id, opcode, entry);
    if matches!(opcode, WR_ATOMIC_CMP_AND_SWP | WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic = ibverbs::sys::AtomicWr {
            remote_addr: addr,
            compare_add: 1,
            swap: 2,
            rkey,
        };
    } else {
        wr.wr.rdma = ibverbs::sys::RdmaWr {
            remote_addr: addr,
            rkey,
        };
    }
    wr
}

/// Posts requests. Returns the code, and whether `bad_wr` names the first.
pub(crate) fn send(pair: *mut Qp, wr: &mut SendWr) -> (i32, bool) {
    let mut bad = null_mut();
    // SAFETY: the queue pair is live; the list stays until the call returns.
    let code = unsafe { post::post_send(pair, wr, &raw mut bad) };
    (code, std::ptr::eq(bad, wr))
}

/// Posts a receive.
pub(crate) fn receive(pair: *mut Qp, id: u64, entry: &mut Sge) {
    let mut wr = RecvWr {
        wr_id: id,
        next: null_mut(),
        sg_list: entry,
        num_sge: 1,
    };
    // SAFETY: the queue pair is live; the request stays until the call returns.
    assert_eq!(unsafe { post::post_recv(pair, &raw mut wr, null_mut()) }, 0);
}
