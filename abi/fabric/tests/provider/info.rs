//! The offers of `fi_getinfo`.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::{null, null_mut};

/// `mr_mode` and mode of the first match, or the code.
fn ask(version: u32, mr_mode: c_int, mode: u64, caps: u64) -> Result<(c_int, u64), c_int> {
    ask_with(version, mode, caps, |domain| domain.mr_mode = mr_mode)
}

/// Like [`ask`], with other hints about the domain.
fn ask_with(
    version: u32,
    mode: u64,
    caps: u64,
    hint: impl FnOnce(&mut DomainAttr),
) -> Result<(c_int, u64), c_int> {
    let mut info = null_mut();
    // SAFETY: the entry point's structure; complete hints.
    unsafe {
        let provider = rkey_fi::fi_prov_ini();
        let mut domain: DomainAttr = std::mem::zeroed();
        hint(&mut domain);
        let mut hints: Info = std::mem::zeroed();
        hints.domain_attr = &mut domain;
        hints.mode = mode;
        hints.caps = caps;
        match ((*provider).getinfo)(version, null(), null(), 0, &hints, &mut info) {
            0 => Ok(((*(*info).domain_attr).mr_mode, (*info).mode)),
            code => Err(code),
        }
    }
}

const ALL: c_int = FI_MR_LOCAL
    | FI_MR_RAW
    | FI_MR_VIRT_ADDR
    | FI_MR_ALLOCATED
    | FI_MR_PROV_KEY
    | FI_MR_MMU_NOTIFY
    | FI_MR_RMA_EVENT
    | FI_MR_ENDPOINT
    | FI_MR_HMEM
    | FI_MR_COLLECTIVE;

/// Proves: FI-025, FI-027, FI-038, FI-255
#[test]
fn by_default_no_mode_bit_is_required() {
    for version in [version(1, 5), V1_17, V1_22, version(2, 5)] {
        for offered in [0, FI_MR_LOCAL, ALL] {
            assert_eq!(ask(version, offered, 0, 0), Ok((0, 0)));
        }
    }
}

/// Proves: FI-028, FI-029, FI-249, FI-251, FI-252, FI-253, FI-261, FI-I17, FI-I18
#[test]
fn basic_and_scalable_are_granted_without_other_bits() {
    let (old, new) = (version(1, 4), version(1, 5));
    for version in [old, new, V1_22] {
        assert_eq!(ask(version, FI_MR_BASIC, 0, 0), Ok((FI_MR_BASIC, 0)));
        assert_eq!(ask(version, FI_MR_SCALABLE, 0, 0), Ok((FI_MR_SCALABLE, 0)));
        for other in [FI_MR_LOCAL, FI_MR_PROV_KEY] {
            // For programs of version 1.4 the page of 1.6.2 applies, which allows one pair.
            let pair = other == FI_MR_LOCAL && version == old;
            let answer = ask(version, FI_MR_BASIC | other, 0, 0);
            assert_eq!(
                answer,
                if pair {
                    Ok((FI_MR_BASIC, 0))
                } else {
                    Err(-libc::ENODATA)
                }
            );
            assert_eq!(
                ask(version, FI_MR_SCALABLE | other, 0, 0),
                Err(-libc::ENODATA)
            );
        }
    }
    assert_eq!(ask(version(1, 4), 0, 0, 0), Ok((FI_MR_SCALABLE, 0)));
}

/// Proves: FI-050, FI-I19
#[test]
fn fi_local_mr_changes_nothing_for_newer_programs() {
    assert_eq!(
        ask(V1_17, FI_MR_LOCAL, FI_LOCAL_MR, 0),
        ask(V1_17, FI_MR_LOCAL, 0, 0)
    );
    assert_eq!(ask(V1_17, 0, FI_LOCAL_MR, 0), Ok((0, 0)));
}

/// The expected number of regions is a hint, in both directions.
///
/// Proves: FI-I15
#[test]
fn mr_cnt_does_not_limit_the_number_of_regions() {
    for mr_cnt in [0, 1, usize::MAX] {
        let answer = ask_with(V1_22, 0, 0, |domain| domain.mr_cnt = mr_cnt);
        assert_eq!(answer, Ok((0, 0)), "{mr_cnt}");
    }
    // The number that the provider reports is not a limit, either.
    let wish = Wish::default();
    // SAFETY: the provider's `fi_info`.
    let count = unsafe { (*(*wish.info()).domain_attr).mr_cnt };
    let side = Side::open(&wish);
    let mut buffer = [0u8; 8];
    let regions: Vec<Mr> = (0..=count as u64)
        .map(|key| side.reg(&mut buffer, REMOTE, key, 0).unwrap())
        .collect();
    assert!(regions.len() > count);
    assert!(regions.into_iter().all(|mr| mr.close() == 0));
}

/// Proves: FI-250
#[test]
fn basic_mode_behaves_as_its_three_bits() {
    let (a, b, peer) = crate::registration::pair(&Wish::mode(FI_MR_BASIC));
    let mut buffer = vec![0u8; 16];
    let start = buffer.as_ptr() as u64;
    let mr = b.reg(&mut buffer, REMOTE, 7, 0).unwrap();
    assert_ne!(mr.key(), 7);
    assert_eq!(a.write(peer, &[1; 4], start + 4, mr.key()), 0);
    assert_eq!(a.write(peer, &[1; 4], 4, mr.key()), libc::EACCES);
    let hole = map_at(0, 4096, RW);
    unmap(hole, 4096);
    assert_eq!(
        b.reg_at(hole, 4096, REMOTE, 8, 0).err(),
        Some(-libc::EFAULT)
    );
    assert_eq!(mr.close(), 0);
    assert_eq!(buffer[3..9], [0, 1, 1, 1, 1, 0]);
}

#[test]
fn hints_that_exceed_the_offer_do_not_match() {
    assert_eq!(ask(V1_17, 0, 0, FI_MSG | FI_MULTICAST), Err(-libc::ENODATA));
    assert_eq!(ask(V1_17, 0, 0, FI_MSG | FI_RMA_PMEM), Err(-libc::ENODATA));
}

/// The capabilities of an `fi_info`, of its contexts and of its domain.
fn capabilities(hints: &Info) -> Result<[u64; 4], c_int> {
    let mut info = null_mut();
    // SAFETY: the entry point's structure; complete hints.
    unsafe {
        let getinfo = (*rkey_fi::fi_prov_ini()).getinfo;
        match getinfo(V1_17, null(), null(), 0, hints, &mut info) {
            0 => Ok([
                (*info).caps,
                (*(*info).tx_attr).caps,
                (*(*info).rx_attr).caps,
                (*(*info).domain_attr).caps,
            ]),
            code => Err(code),
        }
    }
}

/// Each capability of a context can be requested alone, for the endpoint and for the context.
#[test]
fn capabilities_of_contexts_can_be_requested_one_by_one() {
    const COMM: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
    for ep_type in [FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM] {
        for caps in [
            0,
            FI_MSG,
            FI_MSG | COMM,
            FI_RMA | FI_ATOMIC,
            FI_TAGGED | FI_RECV,
        ] {
            // SAFETY: structures of numbers and null pointers.
            let (hints, mut ep): (Info, EpAttr) = unsafe { std::mem::zeroed() };
            ep.ep_type = ep_type;
            let asking = |caps| Info {
                caps,
                ep_attr: &raw const ep as *mut _,
                ..hints
            };
            let Ok([all, tx, rx, domain]) = capabilities(&asking(caps)) else {
                assert!(ep_type == FI_EP_DGRAM && caps & FI_MSG == 0);
                continue;
            };
            assert_eq!((all & COMM, domain & COMM), (COMM, COMM));
            assert_eq!(
                (tx & COMM, rx & COMM),
                (0, 0),
                "contexts do not say where peers are"
            );
            assert_eq!(
                (tx | rx | COMM) & !all,
                0,
                "contexts have the endpoint's capabilities"
            );
            for bit in (0..64).map(|bit| 1 << bit) {
                // SAFETY: structures of numbers and null pointers.
                let (mut tx_attr, mut rx_attr): (TxAttr, RxAttr) = unsafe { std::mem::zeroed() };
                (tx_attr.caps, rx_attr.caps) = (tx & bit, rx & bit);
                let case = format!("{ep_type} {caps:#x}: {bit:#x}");
                if (tx | rx) & bit == 0 {
                    continue;
                }
                let [alone, ..] = capabilities(&asking(bit)).expect(&case);
                assert_eq!(alone & bit, bit, "{case}");
                for endpoint in [0, bit] {
                    let [_, tx_alone, rx_alone, _] = capabilities(&Info {
                        tx_attr: &mut tx_attr,
                        rx_attr: &mut rx_attr,
                        ..asking(endpoint)
                    })
                    .expect(&case);
                    assert_eq!(
                        (tx_alone & tx & bit, rx_alone & rx & bit),
                        (tx & bit, rx & bit)
                    );
                }
            }
        }
    }
}

/// The handle of the hints is that of the results (fi_getinfo(3)), for every kind of endpoint.
#[test]
fn getinfo_returns_the_handle_of_the_hints() {
    let mut handle = 0u64;
    let mut info = null_mut();
    // SAFETY: the entry point's structure; complete hints. The handle is ignored.
    unsafe {
        let mut hints: Info = std::mem::zeroed();
        hints.handle = (&raw mut handle).cast();
        let getinfo = (*rkey_fi::fi_prov_ini()).getinfo;
        assert_eq!(getinfo(V1_17, null(), null(), 0, &hints, &mut info), 0);
        while let Some(it) = info.as_ref() {
            assert_eq!(it.handle, hints.handle);
            info = it.next;
        }
        assert_eq!(getinfo(V1_17, null(), null(), 0, null(), &mut info), 0);
        assert!((*info).handle.is_null());
    }
}
