//! Shared transmit contexts, aliases of endpoints, and the flags of their operations.

use crate::harness::*;
use crate::registration::pair;
use crate::waiting::{AGAIN, waitable_with};
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::time::Instant;

const OPBADSTATE: c_int = -258;
const BADFLAGS: c_int = -260;

/// A shared transmit context of this size.
fn stx_of(domain: *mut FidDomain, size: usize) -> *mut FidStx {
    let mut stx = null_mut();
    // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
    let code = unsafe {
        let mut attr: TxAttr = std::mem::zeroed();
        attr.size = size;
        ((*(*domain).ops).stx_ctx)(domain, &mut attr, &mut stx, null_mut())
    };
    assert_eq!(code, 0);
    stx
}

/// Sends a message; returns 0 or a negative code.
fn send(ep: *mut FidEp, bytes: &[u8], to: u64) -> isize {
    let (at, len) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    unsafe { ((*(*ep).msg).send)(ep, at, len, null_mut(), to, null_mut()) }
}

/// Injects 8 bytes from an invalid address.
fn inject_nothing(ep: *mut FidEp, to: u64) -> isize {
    let nowhere = null::<u64>().wrapping_add(1);
    // SAFETY: the handle is live; the provider's copy survives a bad address.
    unsafe { ((*(*ep).msg).inject)(ep, nowhere.cast(), 8, to) }
}

fn recv(ep: *mut FidEp, into: &mut [u8]) {
    let (at, len) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: the handle is live; the buffer stays valid until the completion.
    let code = unsafe { ((*(*ep).msg).recv)(ep, at, len, null_mut(), FI_ADDR_UNSPEC, null_mut()) };
    assert_eq!(code, 0);
}

#[test]
fn a_shared_transmit_context_is_offered_on_request() {
    let provider = rkey_fi::fi_prov_ini();
    for count in [0, 1, 1000, FI_SHARED_CONTEXT] {
        let mut info = null_mut();
        // SAFETY: the entry point's structure; complete hints; the provider's list.
        unsafe {
            let mut ep: EpAttr = std::mem::zeroed();
            (ep.ep_type, ep.tx_ctx_cnt) = (FI_EP_RDM, count);
            let mut hints: Info = std::mem::zeroed();
            hints.ep_attr = &mut ep;
            let code = ((*provider).getinfo)(V1_17, null(), null(), 0, &hints, &mut info);
            if count == 1000 {
                assert_eq!(code, -libc::ENODATA, "more than max_ep_tx_ctx");
                continue;
            }
            assert_eq!(code, 0);
            assert_eq!((*(*info).ep_attr).tx_ctx_cnt, count.max(1));
            assert!((*(*info).domain_attr).max_ep_stx_ctx > 1);
        }
    }
}

/// Two endpoints share four entries: entries that one uses are not available to the other.
#[test]
fn endpoints_share_the_capacity_of_their_transmit_context() {
    const PLACES: usize = 4;
    let wish = Wish::default();
    let info = wish.info();
    // SAFETY: our own `fi_info`.
    unsafe { (*(*info).ep_attr).tx_ctx_cnt = FI_SHARED_CONTEXT };
    let (fabric, domain) = open_domain(wish.version, info);
    let stx = stx_of(domain, PLACES);
    let [a, b] = [(); 2].map(|()| {
        let side = Side::waiting((fabric, domain), info);
        let ep = side.ep;
        assert_eq!(bind(ep.cast(), side.av.cast(), 0), 0);
        assert_eq!(side.enable(), OPBADSTATE, "not bound to the context");
        assert_eq!(bind(ep.cast(), stx.cast(), 1), BADFLAGS);
        assert_eq!(bind(ep.cast(), stx.cast(), 0), 0);
        assert_eq!(bind(ep.cast(), stx.cast(), 0), -libc::EBUSY);
        assert_eq!(side.enable(), 0);
        side
    });
    assert_eq!(close(stx.cast()), -libc::EBUSY);
    let target = Side::open(&wish);
    let (from_a, from_b) = (a.peer(&target), b.peer(&target));
    // Make the connections first.
    for (side, to) in [(&a, from_a), (&b, from_b)] {
        let mut there = [0u8; 1];
        recv(target.ep, &mut there);
        assert_eq!(again(|| send(side.ep, &[7], to)), 0);
        assert!(side.completion(&[&target]).is_ok());
        assert!(target.completion(&[]).is_ok());
        assert_eq!(there, [7]);
    }
    // A failed post uses no capacity, even if its endpoint makes no progress afterwards.
    for _ in 0..PLACES {
        assert_eq!(inject_nothing(a.ep, from_a), -libc::EFAULT as isize);
    }
    let mut there = [[0u8; 8]; PLACES];
    there.iter_mut().for_each(|place| recv(target.ep, place));
    for _ in 0..PLACES {
        assert_eq!(send(b.ep, &[1; 8], from_b), 0);
    }
    for _ in 0..PLACES {
        assert!(b.completion(&[&target]).is_ok());
        assert!(target.completion(&[&b]).is_ok());
    }
    assert_eq!(there, [[1; 8]; PLACES]);
    // Long messages wait for their receives.
    let long = vec![5u8; 100_000];
    for _ in 0..PLACES {
        assert_eq!(send(a.ep, &long, from_a), 0);
    }
    for (side, to) in [(&a, from_a), (&b, from_b)] {
        assert_eq!(send(side.ep, &[1], to), AGAIN);
        assert!(poll(side.cq).is_none());
        assert_eq!(send(side.ep, &[1], to), AGAIN, "progress changes nothing");
    }
    // Receiving one message frees one entry.
    let mut there = vec![0u8; long.len()];
    recv(target.ep, &mut there);
    assert!(a.completion(&[&target]).is_ok());
    assert_eq!(target.completion(&[&a]).unwrap().len, long.len());
    assert_eq!(send(b.ep, &[2], from_b), 0);
    assert_eq!(send(a.ep, &[3], from_a), AGAIN);
    assert!(b.completion(&[&target]).is_ok());
    // Closing an endpoint frees its entries.
    assert_eq!(close(a.ep.cast()), 0);
    for _ in 0..PLACES {
        assert_eq!(send(b.ep, &long, from_b), 0);
    }
    assert_eq!(send(b.ep, &[4], from_b), AGAIN);
    assert_eq!([close(b.ep.cast()), close(stx.cast())], [0; 2]);
    assert_eq!([a.cq, b.cq].map(|cq| close(cq.cast())), [0; 2]);
    assert_eq!([a.av, b.av].map(|av| close(av.cast())), [0; 2]);
    assert_eq!([close(domain.cast()), close(fabric.cast())], [0; 2]);
}

#[test]
fn a_shared_transmit_context_refuses_endpoints_that_do_not_match_it() {
    let (a, b) = (Side::open(&Wish::default()), Side::open(&Wish::default()));
    let stx = stx_of(a.domain, 0);
    let info = Wish::default().info();
    let (plain, ..) = open_disabled(a.domain, info);
    assert_eq!(bind(plain.cast(), stx.cast(), 0), -libc::EINVAL);
    // SAFETY: our own `fi_info`.
    unsafe { (*(*info).ep_attr).tx_ctx_cnt = FI_SHARED_CONTEXT };
    let (foreign, ..) = open_disabled(b.domain, info);
    assert_eq!(bind(foreign.cast(), stx.cast(), 0), -libc::EINVAL);
    let mut wrong = null_mut();
    let open = |attr: TxAttr, wrong: &mut *mut FidStx| {
        let mut attr = attr;
        // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
        unsafe { ((*(*a.domain).ops).stx_ctx)(a.domain, &mut attr, wrong, null_mut()) }
    };
    // SAFETY: numbers only.
    let none: fn() -> TxAttr = || unsafe { std::mem::zeroed() };
    let flags = TxAttr {
        op_flags: FI_MULTI_RECV,
        ..none()
    };
    assert_eq!(open(flags, &mut wrong), BADFLAGS);
    let size = TxAttr {
        size: usize::MAX,
        ..none()
    };
    assert_eq!(open(size, &mut wrong), -libc::EINVAL);
    // A context for messages is not enough for an endpoint with all capabilities.
    let caps = TxAttr {
        caps: FI_MSG | FI_SEND,
        ..none()
    };
    assert_eq!(open(caps, &mut wrong), 0);
    let (all, ..) = open_disabled(a.domain, info);
    assert_eq!(bind(all.cast(), wrong.cast(), 0), -libc::EINVAL);
    assert_eq!([close(wrong.cast()), close(stx.cast())], [0; 2]);
}

/// `fi_ep_alias`: the handle, or the code.
fn alias(ep: *mut FidEp, flags: u64) -> Result<*mut FidEp, c_int> {
    let mut fid: *mut Fid = null_mut();
    let mut arg = Alias {
        fid: &mut fid,
        flags,
    };
    match control(ep.cast(), FI_ALIAS, (&raw mut arg).cast()) {
        0 => Ok(fid.cast()),
        code => Err(code),
    }
}

/// `FI_GETOPSFLAG`: the flags, or the code.
fn flags(ep: *mut FidEp, side: u64) -> Result<u64, c_int> {
    let mut flags = side;
    match control(ep.cast(), FI_GETOPSFLAG, (&raw mut flags).cast()) {
        0 => Ok(flags),
        code => Err(code),
    }
}

fn set_flags(ep: *mut FidEp, mut flags: u64) -> c_int {
    control(ep.cast(), FI_SETOPSFLAG, (&raw mut flags).cast())
}

/// An alias differs in its flags: its sends complete in the queue, but those of the endpoint do not.
#[test]
fn an_alias_has_its_own_operation_flags() {
    let a = waitable_with(&Wish::default(), FI_SELECTIVE_COMPLETION, |_| {});
    let b = Side::open(&Wish::default());
    let to_b = a.peer(&b);
    assert_eq!(set_flags(a.ep, FI_SEND), 0);
    let loud = alias(a.ep, FI_SEND | FI_COMPLETION).unwrap();
    assert_eq!(flags(a.ep, FI_SEND), Ok(0));
    assert_eq!(flags(loud, FI_SEND), Ok(FI_COMPLETION));
    assert_eq!(flags(loud, FI_RECV), flags(a.ep, FI_RECV));
    let started = Instant::now();
    for (ep, reported) in [(a.ep, false), (loud, true), (a.ep, false)] {
        let mut there = [0u8; 3];
        recv(b.ep, &mut there);
        assert_eq!(again(|| send(ep, b"abc", to_b)), 0);
        assert!(b.completion(&[&a]).is_ok());
        assert_eq!(&there, b"abc");
        match reported {
            true => assert!(a.completion(&[&b]).is_ok()),
            // The send has completed, because the target has the message; but it reports no completion.
            false => assert!(poll(a.cq).is_none()),
        }
    }
    assert!(started.elapsed() < PATIENCE);
    // Flags set later apply to the endpoint; an alias of an alias starts with the flags of the latter.
    assert_eq!(set_flags(a.ep, FI_SEND | FI_COMPLETION), 0);
    let again_loud = alias(loud, 0).unwrap();
    assert_eq!(flags(again_loud, FI_SEND), Ok(FI_COMPLETION));
    assert_eq!(set_flags(loud, FI_SEND | FI_DELIVERY_COMPLETE), 0);
    assert_eq!(flags(loud, FI_SEND), Ok(FI_DELIVERY_COMPLETE));
    assert_eq!(flags(a.ep, FI_SEND), Ok(FI_COMPLETION));
    for (wrong, code) in [
        (0, -libc::EINVAL),
        (FI_COMPLETION, -libc::EINVAL),
        (FI_SEND | FI_RECV, -libc::EINVAL),
        (FI_SEND | FI_MULTI_RECV, BADFLAGS),
        (FI_RECV | FI_INJECT, BADFLAGS),
    ] {
        assert_eq!(set_flags(a.ep, wrong), code, "{wrong:#x}");
        if wrong != 0 {
            assert_eq!(alias(a.ep, wrong), Err(code), "{wrong:#x}");
        }
    }
    assert_eq!(flags(a.ep, FI_SEND | FI_RECV), Err(-libc::EINVAL));
    assert_eq!(control(a.ep.cast(), FI_ALIAS, null_mut()), -libc::EINVAL);
    // The endpoint is closed after its aliases.
    assert_eq!(close(a.ep.cast()), -libc::EBUSY);
    assert_eq!(close(loud.cast()), 0);
    assert_eq!(send(loud, b"abc", to_b), -(libc::EINVAL as isize));
    assert_eq!(close(a.ep.cast()), -libc::EBUSY);
    assert_eq!([again_loud, a.ep].map(|ep| close(ep.cast())), [0; 2]);
    a.close_rest();
}

/// An alias made before the endpoint is enabled works afterwards; receives posted through it belong to the endpoint.
#[test]
fn an_alias_may_be_made_before_the_endpoint_is_enabled() {
    let (a, wish) = (Side::open(&Wish::default()), Wish::default());
    let b = Side::waiting(open_domain(wish.version, wish.info()), wish.info());
    let other = alias(b.ep, FI_RECV | FI_COMPLETION).unwrap();
    assert_eq!(bind(other.cast(), b.av.cast(), 0), 0);
    assert_eq!(control(other.cast(), FI_ENABLE, null_mut()), 0);
    assert_eq!(name_of(other), name_of(b.ep));
    let mut there = [0u8; 3];
    recv(other, &mut there);
    assert_eq!(again(|| send(a.ep, b"abc", a.peer(&b))), 0);
    assert!(b.completion(&[&a]).is_ok());
    assert_eq!(&there, b"abc");
    assert_eq!([other, b.ep].map(|ep| close(ep.cast())), [0; 2]);
    b.close_rest();
}

/// Some bits of a number name a receive context: the first context of an ordinary endpoint is the endpoint itself, and it
/// has no other.
#[test]
fn an_address_number_can_name_a_receive_context() {
    const BITS: c_int = 8;
    let wish = Wish {
        caps: FI_MSG | FI_NAMED_RX_CTX,
        ..Wish::default()
    };
    let (a, b, _) = pair(&wish);
    let (ep, cq, _) = open_disabled(a.domain, wish.info());
    let open = |bits| {
        let mut av = null_mut();
        // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
        let code = unsafe {
            let mut attr: AvAttr = std::mem::zeroed();
            attr.rx_ctx_bits = bits;
            ((*(*a.domain).ops).av_open)(a.domain, &mut attr, &mut av, null_mut())
        };
        (code, av)
    };
    for wrong in [-1, 33, c_int::MAX] {
        assert_eq!(open(wrong).0, -libc::EINVAL);
    }
    let (code, av) = open(BITS);
    assert_eq!(code, 0);
    assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
    assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);
    let side = Side {
        fabric: a.fabric,
        domain: a.domain,
        cq,
        av,
        ep,
        eq: null_mut(),
    };
    let to_b = side.peer(&b);
    let rx_addr = |index: u64| index << (64 - BITS) | to_b;
    let mut there = [0u8; 3];
    recv(b.ep, &mut there);
    assert_eq!(again(|| send(ep, b"abc", rx_addr(0))), 0);
    assert!(b.completion(&[&side]).is_ok());
    assert_eq!(&there, b"abc");
    assert_eq!(
        again(|| send(ep, b"abc", rx_addr(1))),
        -(libc::ECONNREFUSED as isize)
    );
}
