//! `fi_getinfo` reports the limits of contexts, and more contexts are not available.

use super::*;
use crate::peer::strictly;

/// `FI_NAMED_RX_CTX` is granted only to programs that request it or several contexts. Some programs, such as MPICH, take it as
/// advice to use several contexts.
#[test]
fn named_contexts_are_offered_to_programs_with_several_contexts() {
    let wish = Wish::default();
    // SAFETY: the provider's `fi_info`.
    let caps = |info: *mut Info| unsafe { ((*info).caps, (*(*info).tx_attr).caps) };
    let has = |(all, tx): (u64, u64)| {
        assert_eq!(all & FI_NAMED_RX_CTX, tx & FI_NAMED_RX_CTX);
        all & FI_NAMED_RX_CTX != 0
    };
    assert!(!has(caps(wish.info())));
    assert!(!has(caps(info_for(&wish, FI_SHARED_CONTEXT, 1))));
    assert!(has(caps(info_for(&wish, 1, 2))) && has(caps(info_for(&wish, 2, 1))));
    assert!(has(caps(naming(&wish).info())));
}

/// Calls `fi_getinfo` with these counts and capabilities. Returns the counts and limits of the first result, or the
/// code.
fn ask(
    ep_type: c_int,
    caps: u64,
    (tx, rx): (usize, usize),
    most: usize,
) -> Result<[usize; 4], c_int> {
    let (provider, mut info) = (rkey_fi::fi_prov_ini(), null_mut());
    // SAFETY: the entry point's structure; complete hints, and the result.
    unsafe {
        let (mut ep, mut domain): (EpAttr, DomainAttr) = (std::mem::zeroed(), std::mem::zeroed());
        (ep.ep_type, ep.tx_ctx_cnt, ep.rx_ctx_cnt) = (ep_type, tx, rx);
        (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (most, most);
        let mut hints: Info = std::mem::zeroed();
        (hints.caps, hints.ep_attr, hints.domain_attr) = (caps, &mut ep, &mut domain);
        let none = std::ptr::null();
        match ((*provider).getinfo)(V1_17, none, none, 0, &hints, &mut info) {
            0 => {
                let (ep, domain) = (&*(*info).ep_attr, &*(*info).domain_attr);
                let counts = [ep.tx_ctx_cnt, ep.rx_ctx_cnt];
                Ok([
                    counts[0],
                    counts[1],
                    domain.max_ep_tx_ctx,
                    domain.max_ep_rx_ctx,
                ])
            }
            code => Err(code),
        }
    }
}

#[test]
fn as_many_contexts_as_announced_can_be_opened_but_no_more() {
    let none = Err(-libc::ENODATA);
    let [.., most, most_rx] = ask(FI_EP_RDM, 0, (0, 0), 0).unwrap();
    assert!(most == most_rx && most > 1);
    for ep_type in [FI_EP_RDM, FI_EP_DGRAM] {
        for (asked, given) in [
            ((0, 0), [1, 1]),
            ((3, most), [3, most]),
            ((most, 1), [most, 1]),
        ] {
            let [tx, rx] = given;
            assert_eq!(ask(ep_type, 0, asked, 0), Ok([tx, rx, most, most]));
        }
        assert_eq!(ask(ep_type, 0, (1, 1), most), Ok([1, 1, most, most]));
        assert_eq!(ask(ep_type, 0, (most + 1, 1), 0), none);
        assert_eq!(ask(ep_type, 0, (1, most + 1), 0), none);
        assert_eq!(ask(ep_type, 0, (1, 1), most + 1), none);
        assert!(ask(ep_type, FI_MSG | FI_NAMED_RX_CTX, (2, 2), 0).is_ok());
    }
    assert_eq!(ask(FI_EP_MSG, 0, (1, 1), 1), Ok([1, 1, 1, 1]));
    assert_eq!(ask(FI_EP_MSG, 0, (2, 1), 0), none);
    assert_eq!(ask(FI_EP_MSG, FI_MSG | FI_NAMED_RX_CTX, (1, 1), 0), none);
    // Groups of contexts are not supported.
    assert!(ask(FI_EP_RDM, FI_MSG | FI_COLLECTIVE, (1, 1), 0).is_ok());
    assert_eq!(ask(FI_EP_RDM, FI_MSG | FI_COLLECTIVE, (2, 1), 0), none);

    let wish = Wish::default();
    let (_, domain) = open_domain(wish.version, wish.info());
    let sep = scalable_ep(domain, info_for(&wish, most, 0)).unwrap();
    let last = most as c_int - 1;
    let contexts = [0, last].map(|index| tx_context(sep, index, null_mut()).unwrap());
    for index in [-1, last + 1, c_int::MAX, c_int::MIN] {
        assert_eq!(tx_context(sep, index, null_mut()), Err(INVAL));
    }
    // A count of 0 means one.
    assert_eq!(rx_context(sep, 1, null_mut()), Err(INVAL));
    let rx = rx_context(sep, 0, null_mut()).unwrap();
    assert_eq!(
        [contexts[0], contexts[1], rx, sep].map(|ep| close(ep.cast())),
        [0; 4]
    );
}

#[test]
fn endpoints_that_cannot_be_scalable_are_refused() {
    let wish = Wish::default();
    let (_, domain) = open_domain(wish.version, wish.info());
    let info = wish.info();
    for (tx, rx) in [
        (FI_SHARED_CONTEXT, 1),
        (1, FI_SHARED_CONTEXT),
        (65, 1),
        (1, 65),
    ] {
        // SAFETY: our own `fi_info`.
        unsafe { ((*(*info).ep_attr).tx_ctx_cnt, (*(*info).ep_attr).rx_ctx_cnt) = (tx, rx) };
        assert_eq!(scalable_ep(domain, info), Err(INVAL));
    }
    let connected = Wish {
        ep_type: FI_EP_MSG,
        ..wish
    };
    let info = info_for(&connected, 1, 1);
    assert_eq!(scalable_ep(domain, info), Err(-libc::EOPNOTSUPP));
    let group = Wish {
        caps: FI_MSG | FI_COLLECTIVE,
        ..wish
    };
    assert_eq!(scalable_ep(domain, info_for(&group, 1, 1)), Err(INVAL));
    assert_eq!(scalable_ep(domain, null_mut()), Err(INVAL));
    // An endpoint of `fi_endpoint` has no contexts to open.
    let (plain, ..) = open_disabled(domain, wish.info());
    assert_eq!(tx_context(plain, 0, null_mut()), Err(-libc::ENOSYS));
    let mut ep = null_mut();
    // SAFETY: a live handle, a complete `fi_info`, and room for a handle.
    let code = unsafe {
        let info = info_for(&wish, 2, 1);
        ((*(*domain).ops).endpoint)(domain, info, &mut ep, null_mut())
    };
    assert_eq!(code, INVAL);
}

/// A context may have fewer capabilities than its endpoint, but not more. The program learns the attributes in force.
#[test]
fn a_context_cannot_exceed_the_attributes_of_its_endpoint() {
    let wish = Wish {
        caps: FI_MSG | FI_TAGGED | FI_RMA,
        ..Wish::default()
    };
    let a = Scalable::without_contexts(&wish, 4, 4);
    // SAFETY: numbers only.
    let (tx, rx): (TxAttr, RxAttr) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    for wrong in [
        TxAttr {
            caps: FI_ATOMIC,
            ..tx
        },
        TxAttr {
            size: usize::MAX,
            ..tx
        },
        TxAttr {
            inject_size: 1 << 20,
            ..tx
        },
        TxAttr {
            iov_limit: 1000,
            ..tx
        },
        TxAttr {
            rma_iov_limit: 1000,
            ..tx
        },
        TxAttr {
            comp_order: 1,
            ..tx
        },
        TxAttr {
            msg_order: 1 << 63,
            ..tx
        },
    ] {
        assert_eq!(tx_context(a.sep, 0, &mut { wrong }), Err(INVAL));
    }
    for wrong in [
        RxAttr {
            caps: FI_ATOMIC,
            ..rx
        },
        RxAttr {
            size: usize::MAX,
            ..rx
        },
        RxAttr {
            iov_limit: 1000,
            ..rx
        },
        RxAttr {
            comp_order: 1,
            ..rx
        },
    ] {
        assert_eq!(rx_context(a.sep, 0, &mut { wrong }), Err(INVAL));
    }
    // Only messages without tags. The attributes of both directions may name those of the other.
    let mut only = TxAttr {
        caps: FI_MSG | FI_SEND | FI_RECV,
        ..tx
    };
    let side = a.side(tx_context(a.sep, 0, &mut only).unwrap(), FI_SEND);
    assert_eq!(only.caps, FI_MSG | FI_SEND);
    assert!(only.size > 0 && only.inject_size > 0 && only.iov_limit > 0 && only.msg_order != 0);
    let mut of_kind = RxAttr {
        caps: FI_TAGGED | FI_RMA | FI_REMOTE_WRITE,
        ..rx
    };
    let receiver = a.side(rx_context(a.sep, 0, &mut of_kind).unwrap(), FI_RECV);
    assert_eq!(
        of_kind.caps & (FI_TAGGED | FI_RECV | FI_MSG),
        FI_TAGGED | FI_RECV
    );
    assert_eq!([side.enable(), receiver.enable()], [0; 2]);
    let to = a.peer(&a);
    let at = [0u8; 4].as_ptr().cast();
    // SAFETY: live handles, and bytes that stay.
    let codes = unsafe {
        let (msg, tagged) = ((*side.ep).msg, (*side.ep).tagged);
        let none = null_mut();
        [
            again(|| ((*msg).send)(side.ep, at, 4, none, to, none)),
            ((*tagged).send)(side.ep, at, 4, none, to, 1, none),
            crate::shared::recv(receiver.ep, &mut [0; 4], 0),
        ]
    };
    let unsupported = -(libc::EOPNOTSUPP as isize);
    assert_eq!(codes, [0, unsupported, unsupported]);
}

/// Sends to the context that a number names, from an endpoint without the capability; returns the code.
fn send_to_unasked_context() -> isize {
    let wish = Wish::default();
    let plain = Wish {
        caps: FI_MSG | FI_SOURCE,
        ..wish
    };
    let (a, b) = (Scalable::open(&plain, 1, 1), Scalable::open(&wish, 1, 2));
    let to = a.peer(&b);
    let inject = |number| {
        let (ep, at) = (a.tx[0].ep, [0u8].as_ptr().cast());
        // SAFETY: the handle is live; the byte is copied.
        again(|| unsafe { ((*(*ep).msg).inject)(ep, at, 1, number) })
    };
    assert_eq!(inject(rx_addr(to, 0)), 0);
    assert_eq!(inject(to + 1), INVAL as isize, "no peer has this number");
    let code = inject(rx_addr(to, 1));
    if code == 0 {
        b.rx[1].recv_one(&a);
    }
    code
}

impl Side {
    /// Receives a byte.
    fn recv_one(&self, from: &Scalable) {
        assert_eq!(crate::shared::recv(self.ep, &mut [0; 1], 0), 0);
        assert_eq!(self.completion(&all(&[from])).unwrap().len, 1);
    }
}

/// Open MPI names contexts without requesting the capability.
#[test]
fn naming_a_receive_context_does_not_need_the_capability() {
    assert_eq!(send_to_unasked_context(), 0);
}

#[test]
fn in_strict_mode_naming_a_receive_context_needs_the_capability() {
    let test = "scalable::limits::in_strict_mode_naming_a_receive_context_needs_the_capability";
    strictly(test, || {
        assert_eq!(send_to_unasked_context(), -(libc::EOPNOTSUPP as isize));
    });
}

/// Looking an address up ignores the context that a number names.
#[test]
fn the_address_of_a_context_is_that_of_its_endpoint() {
    let a = Scalable::open(&Wish::default(), 1, 2);
    let (mut len, mut room) = (64, [0u8; 64]);
    let number = rx_addr(a.peer(&a), 1);
    // SAFETY: a live handle, and room.
    let code = unsafe {
        let lookup = (*(*a.av).ops).lookup;
        lookup(a.av, number, room.as_mut_ptr().cast(), &mut len)
    };
    assert_eq!((code, &room[..len]), (0, &*name_of(a.sep)));
}
