//! What scalable endpoints and their contexts accept, and in which state.

use super::*;
use crate::deferred::{Work, add, rma};
use crate::shared::recv;

/// A send that is tried once.
fn try_send(ep: *mut FidEp, to: u64) -> isize {
    // SAFETY: the handle is live; the bytes stay valid.
    unsafe { ((*(*ep).msg).send)(ep, [1u8; 4].as_ptr().cast(), 4, null_mut(), to, null_mut()) }
}

/// Contexts are enabled one at a time, each when it is bound to everything that it needs.
#[test]
fn each_context_is_enabled_separately() {
    let wish = Wish::default();
    let info = info_for(&wish, 2, 1);
    let (_, domain) = open_domain(wish.version, info);
    let (sep, av) = (scalable_ep(domain, info).unwrap(), vector(domain));
    let [one, two] = [0, 1].map(|index| tx_context(sep, index, null_mut()).unwrap());
    let rx = rx_context(sep, 0, null_mut()).unwrap();
    assert_eq!([one, rx, sep].map(enable), [-267; 3], "FI_ENOAV");
    assert_eq!(bind(sep.cast(), av.cast(), 1), -260, "no flags");
    assert_eq!(bind(sep.cast(), av.cast(), 0), 0);
    assert_eq!(bind(sep.cast(), av.cast(), 0), -libc::EBUSY);
    assert_eq!([one, rx].map(enable), [-263; 2], "FI_ENOCQ");
    let cq = queue(domain);
    assert_eq!(bind(one.cast(), cq.cast(), FI_SEND), 0);
    assert_eq!(bind(rx.cast(), cq.cast(), FI_RECV), 0);
    assert_eq!([one, rx].map(enable), [0; 2]);
    assert_eq!([one, rx, sep].map(enable), [0; 3], "again");
    let to_itself = {
        let mut number = 0;
        // SAFETY: a live handle, and the name of an endpoint.
        unsafe {
            let (insert, name) = ((*(*av).ops).insert, name_of(sep));
            let at = name.as_ptr().cast();
            assert_eq!(insert(av, at, 1, &mut number, 0, null_mut()), 1);
        }
        number
    };
    assert_eq!(again(|| try_send(one, to_itself)), 0);
    assert_eq!(try_send(two, to_itself), BADSTATE as isize, "not enabled");
    assert_eq!(bind(one.cast(), cq.cast(), FI_SEND), BADSTATE, "too late");
    assert_eq!([one, rx, sep].map(name_of), [0; 3].map(|_| name_of(sep)));
}

/// Address vectors and event queues are bound to the scalable endpoint, the other objects to a context. Contexts have one direction.
#[test]
fn objects_are_bound_to_the_endpoint_or_to_its_contexts() {
    let wish = Wish::default();
    let a = Scalable::disabled(&wish, 1, 1);
    let (tx, rx) = (a.tx[0].ep, a.rx[0].ep);
    let (cq, cntr, eq) = (queue(a.domain), counter(a.domain), event_queue(a.fabric));
    let foreign = Side::open(&wish);
    assert_eq!(bind(a.sep.cast(), cq.cast(), FI_SEND), -260);
    assert_eq!(bind(a.sep.cast(), cq.cast(), 0), INVAL);
    assert_eq!(bind(a.sep.cast(), foreign.av.cast(), 0), INVAL);
    assert_eq!(bind(a.sep.cast(), eq.cast(), 0), 0);
    assert_eq!(bind(a.sep.cast(), eq.cast(), 0), -libc::EBUSY);
    for context in [tx, rx] {
        assert_eq!(bind(context.cast(), a.av.cast(), 0), INVAL);
        assert_eq!(bind(context.cast(), eq.cast(), 0), INVAL);
        assert_eq!(bind(context.cast(), foreign.cq.cast(), 0), INVAL);
    }
    assert_eq!(bind(tx.cast(), cq.cast(), FI_RECV), INVAL);
    assert_eq!(bind(rx.cast(), cq.cast(), FI_SEND | FI_RECV), INVAL);
    assert_eq!(bind(rx.cast(), cntr.cast(), FI_WRITE), INVAL);
    assert_eq!(bind(tx.cast(), cntr.cast(), FI_REMOTE_WRITE), INVAL);
    assert_eq!(bind(tx.cast(), cntr.cast(), FI_SEND | FI_WRITE), 0);
    assert_eq!(bind(rx.cast(), cntr.cast(), FI_RECV), 0);
    // The address vector is in use, and so is the event queue.
    assert_eq!([a.av.cast(), eq.cast()].map(close), [-libc::EBUSY; 2]);
    assert_eq!([cq.cast(), foreign.ep.cast()].map(close), [0; 2]);
    assert_eq!(close(cntr.cast()), -libc::EBUSY);
    a.close_all_but(eq.cast());
}

impl Scalable {
    /// Closes the endpoint and the objects that it was bound to.
    fn close_all_but(self, eq: *mut Fid) {
        for side in self.tx.iter().chain(&self.rx) {
            assert_eq!(close(side.ep.cast()), 0);
        }
        assert_eq!([self.sep.cast(), self.av.cast(), eq].map(close), [0; 3]);
    }
}

/// A context transfers in one direction; the scalable endpoint does not transfer at all.
#[test]
fn a_context_has_one_direction() {
    let a = Scalable::open(&Wish::default(), 1, 1);
    let to = a.peer(&a);
    let unsupported = -(libc::EOPNOTSUPP as isize);
    let mut into = [0u8; 4];
    assert_eq!(try_send(a.rx[0].ep, to), unsupported);
    assert_eq!(recv(a.tx[0].ep, &mut into, 0), unsupported);
    assert_eq!(try_send(a.sep, to), INVAL as isize);
    assert_eq!(recv(a.sep, &mut into, 0), INVAL as isize);
    // SAFETY: a live handle, and memory that stays.
    let written = unsafe {
        let (write, at) = ((*(*a.rx[0].ep).rma).write, into.as_ptr().cast());
        write(a.rx[0].ep, at, 4, null_mut(), to, 0, 1, null_mut())
    };
    assert_eq!(written, unsupported);
    a.close();
}

/// A scalable endpoint has no aliases. Its contexts have: an alias keeps its context open.
#[test]
fn contexts_can_have_aliases_but_scalable_endpoints_cannot() {
    let a = Scalable::open(&Wish::default(), 1, 1);
    let alias = |ep: *mut FidEp| {
        let mut fid: *mut Fid = null_mut();
        let mut arg = Alias {
            fid: &mut fid,
            flags: 0,
        };
        (control(ep.cast(), FI_ALIAS, (&raw mut arg).cast()), fid)
    };
    assert_eq!(alias(a.sep).0, -libc::EOPNOTSUPP);
    let (code, other) = alias(a.tx[0].ep);
    assert_eq!(code, 0);
    // SAFETY: the handle is live.
    assert_eq!(unsafe { (*other).fclass }, FI_CLASS_TX_CTX);
    assert_eq!(close(a.tx[0].ep.cast()), -libc::EBUSY);
    assert_eq!(close(other), 0);
    a.close();
}

/// A scalable endpoint is closed after its contexts; then its address is free. The index of a closed context can be used again.
#[test]
fn contexts_are_closed_before_their_endpoint() {
    let wish = Wish::default();
    let mut a = Scalable::open(&wish, 2, 1);
    let name = name_of(a.sep);
    assert_eq!(tx_context(a.sep, 1, null_mut()), Err(-libc::EBUSY));
    assert_eq!(rx_context(a.sep, 0, null_mut()), Err(-libc::EBUSY));
    let [one, two, rx] = [a.tx.remove(0), a.tx.remove(0), a.rx.remove(0)];
    for side in [one, two] {
        assert_eq!(close(a.sep.cast()), -libc::EBUSY);
        assert_eq!(close(side.ep.cast()), 0);
    }
    let again_one = a.transmitter(1);
    assert_eq!(again_one.enable(), 0);
    assert_eq!([rx.ep.cast(), again_one.ep.cast()].map(close), [0; 2]);
    assert_eq!(close(a.domain.cast()), -libc::EBUSY);
    assert_eq!(close(a.sep.cast()), 0);
    let b = Scalable::without_contexts(&wish, 1, 1);
    // SAFETY: a live handle, and a name.
    let setname = |ep: *mut FidEp| unsafe {
        let mut name = name.clone();
        ((*(*ep).cm).setname)(ep.cast(), name.as_mut_ptr().cast(), name.len())
    };
    assert_eq!(setname(b.sep), 0);
    assert_eq!(name_of(b.sep), name);
    let rx = b.receiver(0);
    assert_eq!(setname(rx.ep), INVAL, "a context has no address of its own");
    assert_eq!(enable(b.sep), 0);
    assert_eq!(setname(b.sep), BADSTATE);
    assert_eq!((name_of(b.sep), name_of(rx.ep)), (name.clone(), name));
}

/// A region of an `FI_MR_ENDPOINT` domain that is bound to the scalable endpoint serves all its contexts, and no other endpoint.
#[test]
fn a_region_serves_all_contexts_of_its_endpoint() {
    let wish = Wish::mode(FI_MR_ENDPOINT);
    let a = Scalable::open(&Wish::default(), 1, 1);
    let b = Scalable::open(&wish, 1, 2);
    let (other, ..) = open_ep(b.domain, wish.info());
    let mut memory = [0u8; 16];
    let mr = b.rx[0].reg(&mut memory, REMOTE, 1, 0).unwrap();
    assert_eq!(mr.bind(b.rx[1].ep, 0), INVAL);
    assert_eq!(mr.bind(b.sep, 0), 0);
    assert_eq!(mr.enable(), 0);
    let (to_b, to_other) = (a.peer(&b), a.insert(&name_of(other)));
    let tx = &a.tx[0];
    assert_eq!(tx.write(rx_addr(to_b, 0), &[1; 4], 0, 1), 0);
    assert_eq!(tx.write(rx_addr(to_b, 1), &[2; 4], 4, 1), 0);
    assert_eq!(tx.write(to_other, &[3; 4], 8, 1), libc::EACCES);
    assert_eq!(
        crate::atomics::add(tx, &b.rx[1], rx_addr(to_b, 1), 1, 4, 1),
        0
    );
    assert_eq!(memory[..9], [1, 1, 1, 1, 3, 2, 2, 2, 0]);
    assert_eq!(mr.close(), 0);
}

/// Setting the operation flags of one context does not change those of another.
#[test]
fn each_context_has_its_own_operation_flags() {
    let wish = Wish::default();
    let a = Scalable::without_contexts(&wish, 2, 1);
    // SAFETY: numbers only.
    let mut attr: TxAttr = unsafe { std::mem::zeroed() };
    attr.op_flags = FI_DELIVERY_COMPLETE;
    let one = tx_context(a.sep, 0, &mut attr).unwrap();
    let two = tx_context(a.sep, 1, null_mut()).unwrap();
    let flags = |ep: *mut FidEp| {
        let mut flags = FI_SEND;
        assert_eq!(
            control(ep.cast(), FI_GETOPSFLAG, (&raw mut flags).cast()),
            0
        );
        flags
    };
    assert_eq!(
        (flags(one), flags(two)),
        (FI_DELIVERY_COMPLETE, FI_TRANSMIT_COMPLETE)
    );
    attr.op_flags = FI_MULTI_RECV;
    assert_eq!(close(two.cast()), 0);
    assert_eq!(tx_context(a.sep, 1, &mut attr), Err(-260));
    assert_eq!(
        control(a.sep.cast(), FI_GETOPSFLAG, null_mut()),
        -libc::ENOSYS
    );
}

/// The transmit context of a deferred write executes it.
#[test]
fn a_transmit_context_executes_its_deferred_work() {
    let wish = Wish::default();
    let (a, b) = (Scalable::open(&wish, 2, 1), Scalable::open(&wish, 1, 2));
    let to = rx_addr(a.peer(&b), 1);
    let mut memory = [0u8; 8];
    let mr = b.rx[1].reg(&mut memory, REMOTE, 1, 0).unwrap();
    assert_eq!(a.tx[1].write(to, &[1; 4], 0, 1), 0);
    let (go, done) = (counter(a.domain), counter(a.domain));
    let mut bytes = [5u8; 4];
    let (iov, place) = (
        [iovec(&mut bytes)],
        [RmaIov {
            addr: 4,
            len: 4,
            key: 1,
        }],
    );
    let op = DeferredRma {
        ep: a.tx[1].ep,
        msg: rma(&iov, &place, to),
        flags: 0,
    };
    let work = Work::new(FI_OP_WRITE, op, go, 1, done);
    assert_eq!(work.queue(a.domain), 0);
    assert_eq!(count(done), 0);
    add(go, 1);
    assert_eq!(wait_count(done, 1), 1);
    assert_eq!(memory, [1, 1, 1, 1, 5, 5, 5, 5]);
    assert_eq!(mr.close(), 0);
}
