//! Calls every entry of every operation table. A list has the entries that may return `-FI_ENOSYS`, with the limit or
//! manual page that permits it.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::{null, null_mut};

const NOSYS: i64 = -(libc::ENOSYS as i64);

/// The entries that were called, and those that are absent.
#[derive(Default)]
struct Walk {
    absent: Vec<String>,
}

/// Calls every entry of a table with these arguments, and checks that the table has no more.
macro_rules! walk {
    ($walk:ident, $object:literal, $table:expr, $($entry:ident($($arg:expr),* $(,)?)),* $(,)?) => {{
        let table = $table;
        let mut called = 0;
        $(
            // SAFETY: the handle is live and of the table's kind; other arguments are refused, require no action, or
            // point to our own memory.
            let code = unsafe { ((*table).$entry)($($arg),*) } as i64;
            called += 1;
            if code == NOSYS {
                $walk.absent.push(format!("{}.{}", $object, stringify!($entry)));
            }
        )*
        // SAFETY: it is the provider's table.
        let size = unsafe { (*table).size };
        assert_eq!(size, size_of::<usize>() * (called + 1), "{}: an entry is not called", $object);
    }};
}

/// The tables of an object that transfers data.
fn transfers(walk: &mut Walk, object: &str, ep: *mut FidEp) {
    let none = null_mut();
    let n = null();
    let (to, key) = (FI_ADDR_NOTAVAIL, 1);
    let (mut iov_count, mut one) = (0, 0u64);
    let at = (&raw mut one).cast();
    let mut here = Walk::default();
    // SAFETY: the handle is live.
    let (msg, tagged, rma, atomic) = unsafe { ((*ep).msg, (*ep).tagged, (*ep).rma, (*ep).atomic) };
    walk!(
        here,
        "msg",
        msg,
        recv(ep, none, 0, none, to, none),
        recvv(ep, n, null_mut(), 0, to, none),
        recvmsg(ep, null(), 0),
        send(ep, n.cast(), 0, none, to, none),
        sendv(ep, n, null_mut(), 0, to, none),
        sendmsg(ep, null(), 0),
        inject(ep, n.cast(), 0, to),
        senddata(ep, n.cast(), 0, none, 0, to, none),
        injectdata(ep, n.cast(), 0, 0, to)
    );
    walk!(
        here,
        "tagged",
        tagged,
        recv(ep, none, 0, none, to, 0, 0, none),
        recvv(ep, n, null_mut(), 0, to, 0, 0, none),
        recvmsg(ep, null(), 0),
        send(ep, n.cast(), 0, none, to, 0, none),
        sendv(ep, n, null_mut(), 0, to, 0, none),
        sendmsg(ep, null(), 0),
        inject(ep, n.cast(), 0, to, 0),
        senddata(ep, n.cast(), 0, none, 0, to, 0, none),
        injectdata(ep, n.cast(), 0, 0, to, 0)
    );
    walk!(
        here,
        "rma",
        rma,
        read(ep, none, 0, none, to, 0, key, none),
        readv(ep, n, null_mut(), 0, to, 0, key, none),
        readmsg(ep, null(), 0),
        write(ep, n.cast(), 0, none, to, 0, key, none),
        writev(ep, n, null_mut(), 0, to, 0, key, none),
        writemsg(ep, null(), 0),
        inject(ep, n.cast(), 0, to, 0, key),
        writedata(ep, n.cast(), 0, none, 0, to, 0, key, none),
        injectdata(ep, n.cast(), 0, 0, to, 0, key)
    );
    let (kind, sum, swap) = (FI_UINT64, FI_SUM, FI_CSWAP);
    walk!(
        here,
        "atomic",
        atomic,
        write(ep, at, 1, none, to, 0, key, kind, sum, none),
        writev(ep, null(), null_mut(), 0, to, 0, key, kind, sum, none),
        writemsg(ep, null(), 0),
        inject(ep, at, 1, to, 0, key, kind, sum),
        readwrite(ep, at, 1, none, at, none, to, 0, key, kind, sum, none),
        readwritev(
            ep,
            null(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0,
            to,
            0,
            key,
            kind,
            sum,
            none
        ),
        readwritemsg(ep, null(), null_mut(), null_mut(), 0, 0),
        compwrite(
            ep, at, 1, none, at, none, at, none, to, 0, key, kind, swap, none
        ),
        compwritev(
            ep,
            null(),
            null_mut(),
            0,
            null(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0,
            to,
            0,
            key,
            kind,
            swap,
            none
        ),
        compwritemsg(
            ep,
            null(),
            null(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0,
            0
        ),
        writevalid(ep, kind, sum, &mut iov_count),
        readwritevalid(ep, kind, sum, &mut iov_count),
        compwritevalid(ep, kind, swap, &mut iov_count)
    );
    let named = here.absent.into_iter();
    walk.absent.extend(named.map(|it| format!("{object}.{it}")));
}

/// The table of an endpoint itself.
fn own(walk: &mut Walk, object: &str, ep: *mut FidEp) {
    let none = null_mut();
    let mut here = Walk::default();
    let (mut value, mut len) = (100usize, size_of::<usize>());
    let mut other = null_mut();
    // SAFETY: the handle is live.
    let ops = unsafe { (*ep).ops };
    walk!(
        here,
        "ep",
        ops,
        cancel(ep.cast(), none),
        getopt(
            ep.cast(),
            0,
            FI_OPT_MIN_MULTI_RECV,
            (&raw mut value).cast(),
            &mut len
        ),
        setopt(
            ep.cast(),
            0,
            FI_OPT_MIN_MULTI_RECV,
            (&raw const value).cast(),
            len
        ),
        tx_ctx(ep, 0, none.cast(), &mut other, none),
        rx_ctx(ep, 0, none.cast(), &mut other, none),
        rx_size_left(ep),
        tx_size_left(ep),
        export_xpu(ep, none)
    );
    let named = here.absent.into_iter();
    walk.absent.extend(named.map(|it| format!("{object}.{it}")));
}

/// The collective operations of an endpoint.
fn collectives(walk: &mut Walk, ep: *mut FidEp) {
    let none = null_mut();
    let n = null();
    let (g, kind, sum) = (FI_ADDR_NOTAVAIL, FI_UINT64, FI_SUM);
    // SAFETY: the handle is live.
    let ops = unsafe { (*ep).collective };
    walk!(
        walk,
        "collective",
        ops,
        barrier(ep, g, none),
        broadcast(ep, none, 0, none, g, g, kind, 0, none),
        alltoall(ep, n, 0, none, none, none, g, kind, 0, none),
        allreduce(ep, n, 0, none, none, none, g, kind, sum, 0, none),
        allgather(ep, n, 0, none, none, none, g, kind, 0, none),
        reduce_scatter(ep, n, 0, none, none, none, g, kind, sum, 0, none),
        reduce(ep, n, 0, none, none, none, g, g, kind, sum, 0, none),
        scatter(ep, n, 0, none, none, none, g, g, kind, 0, none),
        gather(ep, n, 0, none, none, none, g, g, kind, 0, none),
        msg(ep, null(), null_mut(), null_mut(), 0, 0),
        barrier2(ep, g, 0, none)
    );
}

/// The absent entries, and the reason for each.
const ANNOUNCED: &[(&str, &str)] = &[
    (
        "endpoint.ep.tx_ctx",
        "fi_endpoint(3): takes a scalable endpoint",
    ),
    (
        "endpoint.ep.rx_ctx",
        "fi_endpoint(3): takes a scalable endpoint",
    ),
    ("domain.poll_open", "fi_poll(3), which is deprecated"),
    ("fabric.wait_open", "fi_poll(3), which is deprecated"),
    (
        "domain.xpu_ctx",
        "domain_attr.max_xpu_ctx_cnt is 0; in no release",
    ),
    (
        "endpoint.ep.export_xpu",
        "domain_attr.max_xpu_ctx_cnt is 0; in no release",
    ),
    (
        "cq.export_xpu",
        "domain_attr.max_xpu_ctx_cnt is 0; in no release",
    ),
    (
        "cntr.export_xpu",
        "domain_attr.max_xpu_ctx_cnt is 0; in no release",
    ),
    ("av.lookup2", "in no release"),
    // A scalable endpoint does not communicate: its contexts do, and they have the options.
    ("sep.ep.cancel", "fi_endpoint(3): receives are in contexts"),
    ("sep.ep.getopt", "the options are those of its contexts"),
    ("sep.ep.setopt", "the options are those of its contexts"),
    (
        "sep.ep.rx_size_left",
        "fi_endpoint(3): receives are in contexts",
    ),
    (
        "sep.ep.tx_size_left",
        "fi_endpoint(3): transfers are in contexts",
    ),
    (
        "sep.ep.export_xpu",
        "domain_attr.max_xpu_ctx_cnt is 0; in no release",
    ),
    (
        "context.ep.tx_ctx",
        "fi_endpoint(3): takes a scalable endpoint",
    ),
    (
        "context.ep.rx_ctx",
        "fi_endpoint(3): takes a scalable endpoint",
    ),
    (
        "context.ep.export_xpu",
        "domain_attr.max_xpu_ctx_cnt is 0; in no release",
    ),
    // Receive contexts transmit nothing.
    ("srx.ep.tx_ctx", "fi_endpoint(3): takes a scalable endpoint"),
    ("srx.ep.rx_ctx", "fi_endpoint(3): takes a scalable endpoint"),
    (
        "srx.ep.tx_size_left",
        "fi_endpoint(3): a receive context has no transmit queue",
    ),
    (
        "srx.ep.export_xpu",
        "domain_attr.max_xpu_ctx_cnt is 0; in no release",
    ),
    // Endpoints make connections, and passive endpoints accept them.
    ("cm.listen", "fi_cm(3): takes a passive endpoint"),
    ("cm.reject", "fi_cm(3): takes a passive endpoint"),
];

/// Every call of fi_endpoint(3), fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3), fi_cq(3), fi_cntr(3) and
/// fi_av(3) is supported, unless a capability or a limit excludes it.
#[test]
fn every_call_is_supported_or_announced_as_absent() {
    let wish = Wish::default();
    let info = wish.info();
    let side = Side::open(&wish);
    let (fabric, domain, av, cq, ep) = (side.fabric, side.domain, side.av, side.cq, side.ep);
    let eq = event_queue(fabric);
    let cntr = counter(domain);
    let (none, n) = (null_mut(), null());
    let mut walk = Walk::default();
    let (mut word, mut len, mut number) = ([0u8; 64], 64usize, FI_ADDR_NOTAVAIL);
    let room = (&raw mut word).cast();
    let text = c"127.0.0.1".as_ptr();
    let service = c"7471".as_ptr();
    let name = name_of(ep);
    // SAFETY: the handles are live.
    let (fabric_ops, domain_ops, mr_ops, av_ops) =
        unsafe { ((*fabric).ops, (*domain).ops, (*domain).mr, (*av).ops) };
    // SAFETY: as above.
    let (cq_ops, eq_ops, cntr_ops) = unsafe { ((*cq).ops, (*eq).ops, (*cntr).ops) };
    let (mut a, mut b, mut c) = (null_mut(), null_mut(), null_mut());
    let (mut d, mut e, mut f) = (null_mut(), null_mut(), null_mut());
    let (mut g, mut h, mut i) = (null_mut(), null_mut(), null_mut());
    let (mut s, mut tx, mut rx) = (null_mut(), null_mut(), null_mut());
    walk!(
        walk,
        "fabric",
        fabric_ops,
        domain(fabric, info, &mut a, none),
        passive_ep(fabric, info, &mut b, none),
        eq_open(fabric, null_mut(), &mut c, none),
        wait_open(fabric, none, &mut d),
        trywait(fabric, null_mut(), 0),
        domain2(fabric, info, &mut a, 0, none)
    );
    walk!(
        walk,
        "domain",
        domain_ops,
        av_open(domain, null_mut(), null_mut(), none),
        cq_open(domain, null_mut(), &mut e, none),
        endpoint(domain, info, &mut f, none),
        scalable_ep(domain, info, &mut s, none),
        cntr_open(domain, null_mut(), &mut g, none),
        poll_open(domain, none, &mut d),
        stx_ctx(domain, null_mut(), &mut h, none),
        srx_ctx(domain, null_mut(), &mut i, none),
        query_atomic(domain, FI_UINT64, FI_SUM, null_mut(), 0),
        query_collective(domain, FI_BARRIER, null_mut(), 0),
        endpoint2(domain, info, &mut f, 0, none),
        xpu_ctx(domain, none, &mut d, none)
    );
    let mut mr = null_mut();
    walk!(
        walk,
        "mr",
        mr_ops,
        reg(domain.cast(), n, 0, 0, 0, 1, 0, &mut mr, none),
        regv(domain.cast(), null(), 0, 0, 0, 1, 0, &mut mr, none),
        regattr(domain.cast(), null(), 0, &mut mr)
    );
    walk!(
        walk,
        "av",
        av_ops,
        insert(av, name.as_ptr().cast(), 1, &mut number, 0, none),
        insertsvc(av, text, service, &mut number, 0, none),
        insertsym(av, text, 1, service, 1, &mut number, 0, none),
        remove(av, &mut number, 1, 0),
        lookup(av, 0, room, &mut len),
        straddr(av, name.as_ptr().cast(), room.cast(), &mut len),
        av_set(av, null_mut(), null_mut(), none),
        insert_auth_key(av, n, 0, &mut number, 0),
        lookup_auth_key(av, 0, room, &mut len),
        set_user_id(av, 0, 0, 0),
        lookup2(av, 0, room, &mut len, 0)
    );
    walk!(
        walk,
        "cq",
        cq_ops,
        read(cq, none, 0),
        readfrom(cq, none, 0, null_mut()),
        readerr(cq, null_mut(), 0),
        sread(cq, none, 0, n, 0),
        sreadfrom(cq, none, 0, null_mut(), n, 0),
        signal(cq),
        strerror(cq, 1, n, room.cast(), 64),
        export_xpu(cq, none)
    );
    let mut event = 0;
    walk!(
        walk,
        "eq",
        eq_ops,
        read(eq, &mut event, none, 0, 0),
        readerr(eq, null_mut(), 0),
        write(eq, FI_NOTIFY, n, 0, 0),
        sread(eq, &mut event, none, 0, 0, 0),
        strerror(eq, 1, n, room.cast(), 64)
    );
    walk!(
        walk,
        "cntr",
        cntr_ops,
        read(cntr),
        readerr(cntr),
        add(cntr, 1),
        set(cntr, 1),
        wait(cntr, 1, 0),
        adderr(cntr, 1),
        seterr(cntr, 0),
        export_xpu(cntr, none)
    );
    // Only connected endpoints have the following calls.
    let connected = Wish {
        ep_type: FI_EP_MSG,
        ..wish
    };
    let msg_info = connected.info();
    let (_, msg_domain) = open_domain(wish.version, msg_info);
    let (msg, ..) = open_disabled(msg_domain, msg_info);
    // SAFETY: the handle is live.
    let cm_ops = unsafe { (*msg).cm };
    walk!(
        walk,
        "cm",
        cm_ops,
        setname(msg.cast(), none, 0),
        getname(msg.cast(), room, &mut len),
        getpeer(msg, room, &mut len),
        connect(msg, n, n, 0),
        listen(msg.cast()),
        accept(msg, n, 0),
        reject(msg.cast(), null_mut(), n, 0),
        shutdown(msg, 0),
        join(msg, n, FI_COLLECTIVE, &mut null_mut(), none)
    );
    own(&mut walk, "endpoint", ep);
    own(&mut walk, "srx", i);
    own(&mut walk, "sep", s);
    // SAFETY: a live handle, and room for handles. The first contexts are open already.
    unsafe {
        let info = wish.info();
        assert_eq!(
            (domain_ops.as_ref().unwrap().scalable_ep)(domain, info, &mut s, none),
            0
        );
        assert_eq!(((*(*s).ops).tx_ctx)(s, 0, none.cast(), &mut tx, none), 0);
        assert_eq!(((*(*s).ops).rx_ctx)(s, 0, none.cast(), &mut rx, none), 0);
    }
    own(&mut walk, "context", tx);
    for ep in [tx, rx] {
        transfers(&mut walk, "context", ep);
    }
    for (object, ep) in [
        ("endpoint", ep),
        ("disabled", open_disabled(domain, info).0),
    ] {
        transfers(&mut walk, object, ep);
    }
    collectives(&mut walk, ep);
    let mut absent = walk.absent;
    let mut announced: Vec<_> = ANNOUNCED
        .iter()
        .map(|(call, _)| (*call).to_owned())
        .collect();
    absent.sort();
    announced.sort();
    assert_eq!(absent, announced);
    // SAFETY: the provider's `fi_info`.
    unsafe {
        let attr = &*(*info).domain_attr;
        assert!(attr.max_ep_stx_ctx > 1 && attr.max_ep_srx_ctx > 1);
    }
}

/// `fi_control` with the commands that fi_endpoint(3), fi_cq(3) and fi_cntr(3) describe.
#[test]
fn every_documented_control_command_is_supported() {
    let side = Side::open(&Wish::default());
    let cntr = counter(side.domain);
    let answers = |fid: *mut Fid, command: c_int, argument: u64| {
        let mut argument = [argument, 0];
        let code = control(fid, command, (&raw mut argument).cast());
        assert_ne!(code, -libc::ENOSYS, "{command}");
    };
    for command in [FI_GETWAIT, FI_GETWAITOBJ] {
        answers(side.cq.cast(), command, 0);
        answers(cntr.cast(), command, 0);
    }
    for command in [FI_GETOPSFLAG, FI_SETOPSFLAG] {
        answers(side.ep.cast(), command, FI_SEND);
        answers(side.ep.cast(), command, FI_RECV);
        answers(cntr.cast(), command, 0);
    }
    answers(side.ep.cast(), FI_ENABLE, 0);
    answers(side.ep.cast(), FI_ALIAS, 0);
}
