//! The tables of operations through which programs call us, at their full length of API 2.6. Programs
//! that are older look at the beginning only.

use super::collective::*;
use super::events::*;
use super::info::{Info, RxAttr, TxAttr};
use super::mr::MrAttr;
use super::objects::*;
use super::transfer::*;
use libc::iovec;
use std::ffi::{c_char, c_int, c_void};

/// A table whose first word is its length in bytes.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident: fn($($arg:ty),* $(,)?) -> $result:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            pub size: usize,
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }
    };
}

table!(Ops {
    close: fn(*mut Fid) -> c_int,
    bind: fn(*mut Fid, *mut Fid, u64) -> c_int,
    control: fn(*mut Fid, c_int, *mut c_void) -> c_int,
    ops_open: fn(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> c_int,
    tostr: fn(*const Fid, *mut c_char, usize) -> c_int,
    ops_set: fn(*mut Fid, *const c_char, u64, *mut c_void, *mut c_void) -> c_int,
});

table!(OpsFabric {
    domain: fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
    passive_ep: fn(*mut FidFabric, *mut Info, *mut *mut FidPep, *mut c_void) -> c_int,
    eq_open: fn(*mut FidFabric, *mut EqAttr, *mut *mut FidEq, *mut c_void) -> c_int,
    wait_open: fn(*mut FidFabric, *mut c_void, *mut *mut c_void) -> c_int,
    trywait: fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
    domain2: fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, u64, *mut c_void) -> c_int,
});

table!(OpsDomain {
    av_open: fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    cq_open: fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    endpoint: fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
    scalable_ep: fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
    cntr_open: fn(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, *mut c_void) -> c_int,
    poll_open: fn(*mut FidDomain, *mut c_void, *mut *mut c_void) -> c_int,
    stx_ctx: fn(*mut FidDomain, *mut TxAttr, *mut *mut FidStx, *mut c_void) -> c_int,
    srx_ctx: fn(*mut FidDomain, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> c_int,
    query_atomic: fn(*mut FidDomain, c_int, c_int, *mut AtomicAttr, u64) -> c_int,
    query_collective: fn(*mut FidDomain, c_int, *mut CollectiveAttr, u64) -> c_int,
    endpoint2: fn(*mut FidDomain, *mut Info, *mut *mut FidEp, u64, *mut c_void) -> c_int,
    xpu_ctx: fn(*mut FidDomain, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int,
});

table!(OpsMr {
    reg: fn(*mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int,
    regv: fn(*mut Fid, *const iovec, usize, u64, u64, u64, u64, *mut *mut FidMr, *mut c_void) -> c_int,
    regattr: fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
});

table!(OpsEp {
    cancel: fn(*mut Fid, *mut c_void) -> isize,
    getopt: fn(*mut Fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
    setopt: fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
    tx_ctx: fn(*mut FidEp, c_int, *mut c_void, *mut *mut FidEp, *mut c_void) -> c_int,
    rx_ctx: fn(*mut FidEp, c_int, *mut c_void, *mut *mut FidEp, *mut c_void) -> c_int,
    rx_size_left: fn(*mut FidEp) -> isize,
    tx_size_left: fn(*mut FidEp) -> isize,
    export_xpu: fn(*mut FidEp, *mut c_void) -> c_int,
});

table!(OpsMsg {
    recv: fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    recvv: fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> isize,
    recvmsg: fn(*mut FidEp, *const Msg, u64) -> isize,
    send: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize,
    sendv: fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, *mut c_void) -> isize,
    sendmsg: fn(*mut FidEp, *const Msg, u64) -> isize,
    inject: fn(*mut FidEp, *const c_void, usize, u64) -> isize,
    senddata: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
    injectdata: fn(*mut FidEp, *const c_void, usize, u64, u64) -> isize,
});

table!(OpsTagged {
    recv: fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    recvv: fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
    recvmsg: fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    send: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
    sendv: fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, *mut c_void) -> isize,
    sendmsg: fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    inject: fn(*mut FidEp, *const c_void, usize, u64, u64) -> isize,
    senddata: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    injectdata: fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> isize,
});

table!(OpsRma {
    read: fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    readv: fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
    readmsg: fn(*mut FidEp, *const MsgRma, u64) -> isize,
    write: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    writev: fn(*mut FidEp, *const iovec, *mut *mut c_void, usize, u64, u64, u64, *mut c_void) -> isize,
    writemsg: fn(*mut FidEp, *const MsgRma, u64) -> isize,
    inject: fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> isize,
    writedata: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, u64, *mut c_void) -> isize,
    injectdata: fn(*mut FidEp, *const c_void, usize, u64, u64, u64, u64) -> isize,
});

table!(OpsAtomic {
    write: fn(*mut FidEp, *const c_void, usize, *mut c_void, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
    writev: fn(*mut FidEp, *const Ioc, *mut *mut c_void, usize, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
    writemsg: fn(*mut FidEp, *const MsgAtomic, u64) -> isize,
    inject: fn(*mut FidEp, *const c_void, usize, u64, u64, u64, c_int, c_int) -> isize,
    readwrite: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
    readwritev: fn(*mut FidEp, *const Ioc, *mut *mut c_void, usize, *mut Ioc, *mut *mut c_void, usize, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
    readwritemsg: fn(*mut FidEp, *const MsgAtomic, *mut Ioc, *mut *mut c_void, usize, u64) -> isize,
    compwrite: fn(*mut FidEp, *const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
    compwritev: fn(*mut FidEp, *const Ioc, *mut *mut c_void, usize, *const Ioc, *mut *mut c_void, usize, *mut Ioc, *mut *mut c_void, usize, u64, u64, u64, c_int, c_int, *mut c_void) -> isize,
    compwritemsg: fn(*mut FidEp, *const MsgAtomic, *const Ioc, *mut *mut c_void, usize, *mut Ioc, *mut *mut c_void, usize, u64) -> isize,
    writevalid: fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
    readwritevalid: fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
    compwritevalid: fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
});

table!(OpsCm {
    setname: fn(*mut Fid, *mut c_void, usize) -> c_int,
    getname: fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    getpeer: fn(*mut FidEp, *mut c_void, *mut usize) -> c_int,
    connect: fn(*mut FidEp, *const c_void, *const c_void, usize) -> c_int,
    listen: fn(*mut FidPep) -> c_int,
    accept: fn(*mut FidEp, *const c_void, usize) -> c_int,
    reject: fn(*mut FidPep, *mut Fid, *const c_void, usize) -> c_int,
    shutdown: fn(*mut FidEp, u64) -> c_int,
    join: fn(*mut FidEp, *const c_void, u64, *mut *mut FidMc, *mut c_void) -> c_int,
});

table!(OpsAv {
    insert: fn(*mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    insertsvc: fn(*mut FidAv, *const c_char, *const c_char, *mut u64, u64, *mut c_void) -> c_int,
    insertsym: fn(*mut FidAv, *const c_char, usize, *const c_char, usize, *mut u64, u64, *mut c_void) -> c_int,
    remove: fn(*mut FidAv, *mut u64, usize, u64) -> c_int,
    lookup: fn(*mut FidAv, u64, *mut c_void, *mut usize) -> c_int,
    straddr: fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    av_set: fn(*mut FidAv, *mut AvSetAttr, *mut *mut FidAvSet, *mut c_void) -> c_int,
    insert_auth_key: fn(*mut FidAv, *const c_void, usize, *mut u64, u64) -> c_int,
    lookup_auth_key: fn(*mut FidAv, u64, *mut c_void, *mut usize) -> c_int,
    set_user_id: fn(*mut FidAv, u64, u64, u64) -> c_int,
    lookup2: fn(*mut FidAv, u64, *mut c_void, *mut usize, u64) -> c_int,
});

table!(OpsCq {
    read: fn(*mut FidCq, *mut c_void, usize) -> isize,
    readfrom: fn(*mut FidCq, *mut c_void, usize, *mut u64) -> isize,
    readerr: fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    sread: fn(*mut FidCq, *mut c_void, usize, *const c_void, c_int) -> isize,
    sreadfrom: fn(*mut FidCq, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize,
    signal: fn(*mut FidCq) -> c_int,
    strerror: fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    export_xpu: fn(*mut FidCq, *mut c_void) -> c_int,
});

table!(OpsEq {
    read: fn(*mut FidEq, *mut u32, *mut c_void, usize, u64) -> isize,
    readerr: fn(*mut FidEq, *mut EqErrEntry, u64) -> isize,
    write: fn(*mut FidEq, u32, *const c_void, usize, u64) -> isize,
    sread: fn(*mut FidEq, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
    strerror: fn(*mut FidEq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
});

table!(OpsCntr {
    read: fn(*mut FidCntr) -> u64,
    readerr: fn(*mut FidCntr) -> u64,
    add: fn(*mut FidCntr, u64) -> c_int,
    set: fn(*mut FidCntr, u64) -> c_int,
    wait: fn(*mut FidCntr, u64, c_int) -> c_int,
    adderr: fn(*mut FidCntr, u64) -> c_int,
    seterr: fn(*mut FidCntr, u64) -> c_int,
    export_xpu: fn(*mut FidCntr, *mut c_void) -> c_int,
});

table!(OpsAvSet {
    set_union: fn(*mut FidAvSet, *const FidAvSet) -> c_int,
    intersect: fn(*mut FidAvSet, *const FidAvSet) -> c_int,
    diff: fn(*mut FidAvSet, *const FidAvSet) -> c_int,
    insert: fn(*mut FidAvSet, u64) -> c_int,
    remove: fn(*mut FidAvSet, u64) -> c_int,
    addr: fn(*mut FidAvSet, *mut u64) -> c_int,
});

table!(OpsCollective {
    barrier: fn(*mut FidEp, u64, *mut c_void) -> isize,
    broadcast: fn(*mut FidEp, *mut c_void, usize, *mut c_void, u64, u64, c_int, u64, *mut c_void) -> isize,
    alltoall: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, c_int, u64, *mut c_void) -> isize,
    allreduce: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, c_int, c_int, u64, *mut c_void) -> isize,
    allgather: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, c_int, u64, *mut c_void) -> isize,
    reduce_scatter: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, c_int, c_int, u64, *mut c_void) -> isize,
    reduce: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, c_int, c_int, u64, *mut c_void) -> isize,
    scatter: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, c_int, u64, *mut c_void) -> isize,
    gather: fn(*mut FidEp, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, u64, u64, c_int, u64, *mut c_void) -> isize,
    msg: fn(*mut FidEp, *const MsgCollective, *mut Ioc, *mut *mut c_void, usize, u64) -> isize,
    barrier2: fn(*mut FidEp, u64, u64, *mut c_void) -> isize,
});
