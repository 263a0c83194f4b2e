//! Binding, enabling, closing.

use crate::harness::*;
use crate::registration::pair;
use crate::waiting::*;
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// Proves: FI-011, FI-142, FI-177, FI-179, FI-180
#[test]
fn a_regions_counter_counts_writes_but_not_reads_of_peers() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 16];
    let mr = b.reg(&mut buffer, REMOTE, 1, FI_RMA_EVENT).unwrap();
    let counted = counter(b.domain);
    for flags in [
        0,
        FI_REMOTE_READ,
        FI_REMOTE_WRITE | FI_REMOTE_READ,
        FI_WRITE,
    ] {
        assert_eq!(mr.bind(counted, flags), -libc::EINVAL);
    }
    assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
    for n in 1..=5 {
        assert_eq!(a.write(peer, &[9; 4], 0, 1), 0);
        assert_eq!(a.read(peer, &mut [0; 4], 0, 1), 0);
        assert_eq!(wait_count(counted, n), n);
    }
    assert_eq!(a.write(peer, &[9; 4], 20, 1), libc::EACCES);
    assert_eq!(count(counted), 5, "a refused write is not counted");
    assert_eq!((close(counted.cast()), mr.close()), (0, 0));
}

/// Counting requires the capability: without it, a bind is refused, and nothing else changes.
///
/// Proves: FI-183, FI-227
/// Proves partly: FI-181 (an endpoint without the capability in a domain that has it is counted as well)
#[test]
fn without_fi_rma_event_a_counter_cannot_be_bound_to_a_region() {
    let (a, b, peer) = pair(&Wish {
        caps: FI_MSG | FI_RMA,
        ..Wish::default()
    });
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let counted = counter(b.domain);
    assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), -libc::ENOSYS);
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
    assert_eq!(
        (mr.close(), count(counted), close(counted.cast())),
        (0, 0, 0)
    );
}

/// Proves: FI-I37
#[test]
fn a_region_takes_one_counter_of_the_same_domain() {
    let (a, b, _) = pair(&Wish::default());
    let mr = b.reg(&mut [0u8; 8], REMOTE, 1, 0).unwrap();
    let (first, second, foreign) = (counter(b.domain), counter(b.domain), counter(a.domain));
    assert_eq!(mr.bind(foreign, FI_REMOTE_WRITE), -libc::EINVAL);
    assert_eq!(mr.bind(first, FI_REMOTE_WRITE), 0);
    assert_eq!(mr.bind(second, FI_REMOTE_WRITE), -libc::EBUSY);
    assert_eq!(mr.bind(b.cq, FI_REMOTE_WRITE), -libc::ENOSYS);
    assert_eq!(mr.bind(a.ep, 0), -libc::EINVAL);
    assert_eq!((close(first.cast()), mr.close()), (0, 0));
}

/// Proves: FI-013, FI-070, FI-071, FI-072, FI-073, FI-074, FI-075, FI-197, FI-198, FI-199, FI-I35, FI-163, FI-167
#[test]
fn with_fi_mr_rma_event_a_region_is_usable_once_enabled() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_RMA_EVENT));
    let (mut plain, mut buffer) = (vec![0u8; 8], vec![0u8; 8]);
    let counted = counter(b.domain);
    let without = b.reg(&mut plain, REMOTE, 1, 0).unwrap();
    assert_eq!(without.bind(counted, FI_REMOTE_WRITE), -libc::EINVAL);
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0, "enabled at once");
    let mr = b.reg(&mut buffer, REMOTE, 2, FI_RMA_EVENT).unwrap();
    assert_eq!(mr.key(), FI_KEY_NOTAVAIL);
    assert_eq!(mr.raw(64).0, -258, "no raw key either");
    assert_eq!(a.write(peer, &[1; 8], 0, 2), libc::EACCES);
    assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
    assert_eq!(a.write(peer, &[1; 8], 0, 2), libc::EACCES);
    assert_eq!(mr.enable(), 0);
    assert_eq!(mr.key(), 2);
    assert_eq!(mr.bind(counter(b.domain), FI_REMOTE_WRITE), -258);
    assert_eq!(mr.enable(), -258);
    assert_eq!(a.write(peer, &[1; 8], 0, 2), 0);
    assert_eq!(wait_count(counted, 1), 1);
    assert_eq!(
        (close(counted.cast()), mr.close(), without.close()),
        (0, 0, 0)
    );
}

/// Proves: FI-076, FI-077, FI-078, FI-178, FI-182
#[test]
fn with_fi_mr_endpoint_a_region_serves_only_its_endpoint() {
    let wish = Wish::mode(FI_MR_ENDPOINT);
    let (a, b, peer) = pair(&wish);
    let (second, _, _) = open_ep(b.domain, wish.info());
    let to_second = a.peer_ep(second);
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!(mr.enable(), -258, "no endpoint yet");
    assert_eq!(mr.bind(b.ep, 1), -libc::EINVAL, "flags");
    assert_eq!(mr.bind(b.ep, 0), 0);
    assert_eq!(
        a.write(peer, &[1; 8], 0, 1),
        libc::EACCES,
        "not enabled yet"
    );
    assert_eq!(mr.enable(), 0);
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
    assert_eq!(
        a.write(to_second, &[2; 8], 0, 1),
        libc::EACCES,
        "another endpoint"
    );
    assert_eq!(buffer, [1; 8]);
    assert_eq!((close(b.ep.cast()), mr.close()), (0, 0));
}

/// Proves: FI-I07
#[test]
fn since_2_0_a_region_is_closed_before_its_endpoint() {
    let version = version(2, 0);
    let wish = Wish {
        version,
        ..Wish::mode(FI_MR_ENDPOINT)
    };
    let (a, b, peer) = pair(&wish);
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!((mr.bind(b.ep, 0), mr.enable()), (0, 0));
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
    assert_eq!(mr.close(), 0);
    assert_eq!(a.write(peer, &[2; 8], 0, 1), 266);
    assert_eq!((close(b.ep.cast()), buffer), (0, vec![1; 8]));
}

/// Proves: FI-005, FI-I05
#[test]
fn a_domain_with_a_region_is_busy() {
    let wish = Wish::default();
    let (fabric, domain) = open_domain(wish.version, wish.info());
    let mut mr = null_mut();
    let mut buffer = [0u8; 8];
    // SAFETY: a live handle, and a buffer that lives until the region is closed.
    let code = unsafe {
        let at = buffer.as_mut_ptr().cast();
        ((*(*domain).mr).reg)(domain.cast(), at, 8, REMOTE, 0, 1, 0, &mut mr, null_mut())
    };
    assert_eq!(code, 0);
    assert_eq!(close(fabric.cast()), -libc::EBUSY);
    assert_eq!(close(domain.cast()), -libc::EBUSY);
    assert_eq!(Mr(mr).close(), 0);
    assert_eq!((close(domain.cast()), close(fabric.cast())), (0, 0));
}

#[test]
fn closed_handles_are_refused() {
    let b = Side::open(&Wish::default());
    let mr = b.reg(&mut [0u8; 8], REMOTE, 1, 0).unwrap();
    let fid = mr.0.cast::<Fid>();
    // SAFETY: the handle is live.
    let ops = unsafe { &*(*fid).ops };
    assert_eq!(mr.close(), 0);
    // SAFETY: a handle that is closed: it is recognised without being dereferenced.
    unsafe {
        assert_eq!((ops.close)(fid), -libc::EINVAL);
        assert_eq!((ops.bind)(fid, b.ep.cast(), 0), -libc::EINVAL);
        assert_eq!((ops.control)(fid, FI_ENABLE, null_mut()), -libc::EINVAL);
        assert_eq!(
            (ops.control)(null_mut(), FI_ENABLE, null_mut()),
            -libc::EINVAL
        );
    }
}

/// Proves: FI-I30
#[test]
fn regions_are_registered_and_closed_in_many_threads() {
    let (a, b, peer) = pair(&Wish::default());
    let domain = b.domain as usize;
    let mut kept = vec![0u8; 8];
    let steady = b.reg(&mut kept, REMOTE, 1, 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let domain = domain as *mut FidDomain;
                let mut buffer = [0u8; 64];
                for n in 0..200 {
                    let (at, key) = (buffer.as_mut_ptr() as usize, 1000 * (thread + 1) + n);
                    let mr = reg_in(domain, at, 64, REMOTE, key, 0).unwrap();
                    assert_eq!(mr.close(), 0);
                }
            });
        }
        for n in 0..50 {
            assert_eq!(a.write(peer, &[n; 8], 0, 1), 0);
        }
    });
    assert_eq!(steady.close(), 0);
    assert_eq!(kept, [49; 8]);
}

/// Proves: FI-I24
#[test]
fn counters_of_an_endpoint_count_accesses_by_peers() {
    let wish = Wish::default();
    let a = Side::open(&wish);
    let (fabric, domain) = open_domain(wish.version, wish.info());
    let (mut before, mut own) = (vec![0u8; 64], vec![0u8; 64]);
    let [reads, writes, of_region] = [(); 3].map(|()| counter(domain));
    let register = |buffer: &mut [u8], key| {
        reg_in(domain, buffer.as_mut_ptr() as usize, 64, REMOTE, key, 0).unwrap()
    };
    let first = register(&mut before, 1);
    let open = |counted: bool| {
        let side = Side::waiting((fabric, domain), wish.info());
        let ep = side.ep;
        assert_eq!(bind(ep.cast(), side.av.cast(), 0), 0);
        if counted {
            assert_eq!(bind(ep.cast(), reads.cast(), FI_REMOTE_READ), 0);
            assert_eq!(bind(ep.cast(), writes.cast(), FI_REMOTE_WRITE), 0);
            let again = bind(ep.cast(), reads.cast(), FI_REMOTE_WRITE);
            assert_eq!(again, -libc::EBUSY);
        }
        assert_eq!(side.enable(), 0);
        side
    };
    let (counted, plain) = (open(true), open(false));
    let second = register(&mut own, 2);
    assert_eq!(second.bind(of_region, FI_REMOTE_WRITE), 0);
    let (to, beside) = (a.peer(&counted), a.peer(&plain));
    let values = || (count(reads), count(writes));
    // A completion may be reported just before the target has counted.
    let reach = |r, w| {
        wait_count(reads, r);
        wait_count(writes, w);
        assert_eq!(values(), (r, w));
    };
    for key in [1, 2] {
        assert_eq!(a.write(to, &[1; 8], 0, key), 0);
        assert_eq!(a.read(to, &mut [0; 8], 0, key), 0);
        assert_eq!(a.write(beside, &[2; 8], 0, key), 0);
        assert_eq!(a.read(beside, &mut [0; 8], 0, key), 0);
    }
    assert_eq!(wait_count(of_region, 2), 2);
    reach(2, 2);
    assert_eq!(a.write(to, &[1; 8], 60, 1), libc::EACCES);
    // Fetching atomics count as reads.
    let (operand, mut old) = (1u64, 0u64);
    let (at, back, none) = (
        (&raw const operand).cast(),
        (&raw mut old).cast(),
        null_mut(),
    );
    // SAFETY: the handle is live; operand and result stay until the completion.
    let code = again(|| unsafe {
        ((*(*a.ep).atomic).write)(a.ep, at, 1, none, to, 8, 1, FI_UINT64, FI_SUM, none)
    });
    assert_eq!(code, 0);
    assert!(a.completion(&[&counted]).is_ok());
    reach(2, 3);
    // SAFETY: as above.
    let code = again(|| unsafe {
        let call = (*(*a.ep).atomic).readwrite;
        call(
            a.ep, at, 1, none, back, none, to, 8, 1, FI_UINT64, FI_SUM, none,
        )
    });
    assert_eq!(code, 0);
    assert!(a.completion(&[&counted]).is_ok());
    reach(3, 3);
    assert_eq!(old, 1);
    // The receiver of a long message reads it from our memory, which is not an access by the program.
    let (long, mut into) = (vec![5u8; 100_000], vec![0u8; 100_000]);
    let to_a = counted.peer(&a);
    // SAFETY: the handles are live; both buffers stay valid until the completions.
    unsafe {
        let (recv, send) = ((*(*a.ep).msg).recv, (*(*counted.ep).msg).send);
        let at = into.as_mut_ptr().cast();
        assert_eq!(recv(a.ep, at, 100_000, none, FI_ADDR_UNSPEC, none), 0);
        let at = long.as_ptr().cast();
        assert_eq!(again(|| send(counted.ep, at, 100_000, none, to_a, none)), 0);
    }
    assert_eq!(a.completion(&[&counted]).unwrap().len, 100_000);
    assert_eq!(values(), (3, 3));
    assert_eq!(close(reads.cast()), -libc::EBUSY);
    assert_eq!(close(counted.ep.cast()), 0);
    assert_eq!(values(), (3, 3), "counts are kept");
    assert_eq!((close(reads.cast()), close(writes.cast())), (0, 0));
    assert_eq!(
        (first.close(), close(of_region.cast()), second.close()),
        (0, 0, 0)
    );
    let silent = Wish {
        caps: FI_MSG | FI_RMA,
        ..wish
    };
    let (_, domain) = open_domain(wish.version, silent.info());
    let (ep, ..) = open_disabled(domain, silent.info());
    let refused = bind(ep.cast(), counter(domain).cast(), FI_REMOTE_READ);
    assert_eq!(refused, -libc::EOPNOTSUPP, "FI_RMA_EVENT was not asked for");
}

/// An endpoint that fails to be enabled, because a queue accepts no more descriptors, is unchanged.
#[test]
fn an_endpoint_that_failed_to_be_enabled_can_be_enabled_later() {
    let wish = Wish::default();
    let a = Side::open(&wish);
    let info = wish.info();
    let (fabric, domain) = open_domain(wish.version, info);
    let [sent, received] = [(); 2].map(|()| waitable_cq(domain));
    let (mut av, mut ep) = (null_mut(), null_mut());
    // SAFETY: the handles are live, and the attributes are our own.
    unsafe {
        let ops = &*(*domain).ops;
        let mut attr: AvAttr = std::mem::zeroed();
        assert_eq!((ops.av_open)(domain, &mut attr, &mut av, null_mut()), 0);
        assert_eq!((ops.endpoint)(domain, info, &mut ep, null_mut()), 0);
    }
    assert_eq!(bind(ep.cast(), sent.cast(), FI_SEND), 0);
    assert_eq!(bind(ep.cast(), received.cast(), FI_RECV), 0);
    assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
    let enable = || control(ep.cast(), FI_ENABLE, null_mut());
    // Replaces the queue's descriptor temporarily.
    let fd = descriptor(received.cast());
    // SAFETY: our own descriptors.
    unsafe {
        let kept = libc::dup(fd);
        let other = libc::eventfd(0, 0);
        assert_eq!(libc::dup2(other, fd), fd);
        assert_eq!(enable(), -libc::EINVAL);
        assert_eq!(libc::dup2(kept, fd), fd);
        assert_eq!([libc::close(kept), libc::close(other)], [0; 2]);
    }
    assert_eq!(enable(), 0);
    let mut there = [0u8; 8];
    recv(ep, &mut there);
    assert_eq!(trywait(fabric, received.cast()), 0);
    assert_eq!(again(|| inject(a.ep, a.peer_ep(ep))), 0);
    assert!(readable(fd), "the queue is not connected to its endpoint");
    let rest: [*mut Fid; 6] = [
        ep.cast(),
        sent.cast(),
        received.cast(),
        av.cast(),
        domain.cast(),
        fabric.cast(),
    ];
    assert_eq!(rest.map(close), [0; 6]);
}
