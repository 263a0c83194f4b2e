//! `fi_getopt` and `fi_setopt`.

use crate::harness::*;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

const NO_SUCH: c_int = -libc::ENOPROTOOPT;
const TOOSMALL: c_int = -257;
const MSGSIZE: isize = -(libc::EMSGSIZE as isize);

fn get_at<T: Default>(ep: *mut FidEp, level: c_int, option: c_int) -> Result<T, c_int> {
    let (mut value, mut len) = (T::default(), size_of::<T>());
    // SAFETY: a live handle, and room of this length.
    let code = unsafe {
        let getopt = (*(*ep).ops).getopt;
        let value: *mut c_void = (&raw mut value).cast();
        getopt(ep.cast(), level, option, value, &mut len)
    };
    assert!(code != 0 || len == size_of::<T>());
    if code == 0 { Ok(value) } else { Err(code) }
}

fn get(ep: *mut FidEp, option: c_int) -> Result<usize, c_int> {
    get_at(ep, 0, option)
}

fn set<T>(ep: *mut FidEp, option: c_int, value: T) -> c_int {
    // SAFETY: a live handle, and a value of this length.
    unsafe {
        let setopt = (*(*ep).ops).setopt;
        let at: *const c_void = (&raw const value).cast();
        setopt(ep.cast(), 0, option, at, size_of::<T>())
    }
}

/// Each option of fi_endpoint(3).
#[test]
fn every_endpoint_option_behaves_as_documented() {
    let side = Side::open(&Wish::default());
    let ep = side.ep;
    assert!(get(ep, FI_OPT_MIN_MULTI_RECV).is_ok());
    assert_eq!(set(ep, FI_OPT_MIN_MULTI_RECV, 100usize), 0);
    assert_eq!(get(ep, FI_OPT_MIN_MULTI_RECV), Ok(100));
    assert_eq!(get(ep, FI_OPT_CM_DATA_SIZE), Ok(256));
    assert_eq!(set(ep, FI_OPT_CM_DATA_SIZE, 1usize), NO_SUCH, "read only");
    // FI_BUFFERED_RECV is not offered.
    for option in [FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN] {
        assert_eq!(
            (get(ep, option), set(ep, option, 1usize)),
            (Err(NO_SUCH), NO_SUCH)
        );
    }
    for wish in [
        FI_HMEM_P2P_DISABLED,
        FI_HMEM_P2P_PREFERRED,
        FI_HMEM_P2P_ENABLED,
    ] {
        assert_eq!(set(ep, FI_OPT_FI_HMEM_P2P, wish), 0);
        assert_eq!(get_at::<c_int>(ep, 0, FI_OPT_FI_HMEM_P2P), Ok(wish));
    }
    let required = set(ep, FI_OPT_FI_HMEM_P2P, FI_HMEM_P2P_REQUIRED);
    assert_eq!(required, -libc::EOPNOTSUPP);
    assert_eq!(get(ep, FI_OPT_XPU_TRIGGER), Err(-libc::EOPNOTSUPP));
    // With a CUDA device both calls return 0: without FI_HMEM the provider never calls the interface, permitted or not.
    let cuda = [0u8, 1].map(|permitted| set(ep, FI_OPT_CUDA_API_PERMITTED, permitted));
    assert!([[-libc::EINVAL; 2], [0; 2]].contains(&cuda), "{cuda:?}");
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        assert_eq!(cuda[0], -libc::EINVAL, "no device");
    }
    assert_eq!(set(ep, FI_OPT_CUDA_API_PERMITTED, 1usize), -libc::EINVAL);
    assert_eq!(get(ep, FI_OPT_CUDA_API_PERMITTED), Err(NO_SUCH));
    assert_eq!(set(ep, FI_OPT_SHARED_MEMORY_PERMITTED, 1u8), 0);
    let prohibited = set(ep, FI_OPT_SHARED_MEMORY_PERMITTED, 0u8);
    assert_eq!(prohibited, -libc::EOPNOTSUPP);
    for unknown in [FI_OPT_TX_SIZE, 20, 77, -1, c_int::MAX, c_int::MIN] {
        assert_eq!(get(ep, unknown), Err(NO_SUCH), "{unknown}");
        assert_eq!(set(ep, unknown, 1usize), NO_SUCH, "{unknown}");
    }
    assert_eq!(
        get_at::<usize>(ep, 1, FI_OPT_CM_DATA_SIZE),
        Err(NO_SUCH),
        "level"
    );
}

#[test]
fn the_length_of_an_option_value_is_checked() {
    let side = Side::open(&Wish::default());
    let ep: *mut Fid = side.ep.cast();
    // SAFETY: the handle is live; lengths that fit or are refused.
    unsafe {
        let ops = &*(*side.ep).ops;
        let (mut value, mut len) = (0u64, 4);
        let room: *mut c_void = (&raw mut value).cast();
        let code = (ops.getopt)(ep, 0, FI_OPT_MAX_MSG_SIZE, room, &mut len);
        assert_eq!((code, len, value), (TOOSMALL, 8, 0));
        let code = (ops.getopt)(ep, 0, FI_OPT_MAX_MSG_SIZE, null_mut(), &mut len);
        assert_eq!((code, len), (TOOSMALL, 8));
        let code = (ops.getopt)(ep, 0, FI_OPT_MAX_MSG_SIZE, room, null_mut());
        assert_eq!(code, -libc::EINVAL);
        for option in [
            FI_OPT_MIN_MULTI_RECV,
            FI_OPT_FI_HMEM_P2P,
            FI_OPT_MAX_RMA_SIZE,
        ] {
            for (at, len) in [(room.cast_const(), 2), (null(), 8), (null(), 4)] {
                let code = (ops.setopt)(ep, 0, option, at, len);
                assert_eq!(code, -libc::EINVAL, "{option}");
            }
        }
    }
}

/// Limits that the program lowers apply, each to its kind of transfer, and can be raised again.
#[test]
fn limits_of_transfers_are_enforced() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![0u8; 64];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 64], 0, 1), 0);
    let bytes = [2u8; 64];
    let at: *const c_void = bytes.as_ptr().cast();
    // SAFETY: the handles are live; the bytes stay valid, and a refused transfer does not start.
    let (message, tagged, write, atomic) = unsafe {
        let (msg, tag) = ((*(*a.ep).msg).inject, (*(*a.ep).tagged).inject);
        let (rma, add) = ((*(*a.ep).rma).inject, (*(*a.ep).atomic).inject);
        (
            move |len| msg(a.ep, at, len, peer),
            move |len| tag(a.ep, at, len, peer, 5),
            move |len| rma(a.ep, at, len, peer, 0, 1),
            move |len| add(a.ep, at, len, peer, 0, 1, FI_UINT8, FI_SUM),
        )
    };
    let calls: [&dyn Fn(usize) -> isize; 4] = [&message, &tagged, &write, &atomic];
    let most = [1 << 31, 1 << 31, 1 << 31, 4096];
    for (place, call) in (0..).zip(calls) {
        for (option, all) in [
            (FI_OPT_MAX_MSG_SIZE + place, most[place as usize]),
            (FI_OPT_INJECT_MSG_SIZE + place, 4096),
        ] {
            assert_eq!(get(a.ep, option), Ok(all));
            assert_eq!(set(a.ep, option, all + 1), -libc::EINVAL);
            assert_eq!(set(a.ep, option, 16usize), 0);
            assert_eq!(get(a.ep, option), Ok(16));
            assert_eq!(call(17), MSGSIZE, "{option}");
            assert_eq!(again(|| call(16)), 0, "{option}");
            assert_eq!(set(a.ep, option, all), 0);
            assert_eq!(again(|| call(17)), 0, "{option}");
        }
    }
    // A limit for injected data applies to nothing else.
    assert_eq!(set(a.ep, FI_OPT_INJECT_RMA_SIZE, 16usize), 0);
    assert_eq!(a.write(peer, &[3; 64], 0, 1), 0);
    assert_eq!(set(a.ep, FI_OPT_MAX_RMA_SIZE, 16usize), 0);
    assert_eq!(a.write(peer, &[4; 64], 0, 1), MSGSIZE as c_int);
    assert_eq!((buffer[63], mr.close()), (3, 0));
}

/// A shared receive context only has the option for receives.
#[test]
fn a_shared_receive_context_has_one_option() {
    let side = Side::open(&Wish::default());
    let mut srx = null_mut();
    // SAFETY: a live handle, no attributes, and room for a handle.
    let code = unsafe {
        let srx_ctx = (*(*side.domain).ops).srx_ctx;
        srx_ctx(side.domain, null_mut(), &mut srx, null_mut())
    };
    assert_eq!(code, 0);
    assert_eq!(set(srx, FI_OPT_MIN_MULTI_RECV, 77usize), 0);
    assert_eq!(get(srx, FI_OPT_MIN_MULTI_RECV), Ok(77));
    for other in [
        FI_OPT_CM_DATA_SIZE,
        FI_OPT_MAX_MSG_SIZE,
        FI_OPT_XPU_TRIGGER,
        77,
    ] {
        assert_eq!(get(srx, other), Err(NO_SUCH));
        assert_eq!(set(srx, other, 1usize), NO_SUCH);
    }
}
