//! Differences between API versions of the program.

use crate::harness::*;
use rkey_fi::sys::*;
use std::ptr::null_mut;

/// Fields of later versions are not read if the program's version lacks them.
///
/// Proves: FI-265, FI-135, FI-I43
#[test]
fn only_the_attributes_of_the_requested_version_are_read() {
    let mut buffer = [0u8; 8];
    let iov = [iovec(&mut buffer)];
    let poisoned = LongMrAttr {
        hmem_data: 8 as *mut _,
        page_size: 12345,
        base_mr: 8 as *const _,
        sub_mr_cnt: usize::MAX,
        ..attributes(&iov, REMOTE, 1)
    };
    let einval = Some(-libc::EINVAL);
    for (version, expected) in [
        (version(1, 4), None),
        (V1_17, None),
        (version(1, 18), None),
        (version(1, 19), einval),
        (V1_22, einval),
    ] {
        let b = Side::open(&Wish {
            version,
            ..Wish::default()
        });
        let result = b.regattr(&poisoned, 0);
        assert_eq!(result.err(), expected, "{version:#x}");
        if let Ok(mr) = result {
            assert_eq!(mr.close(), 0);
        }
    }
    let only_base = LongMrAttr {
        base_mr: 8 as *const _,
        ..attributes(&iov, REMOTE, 1)
    };
    for (version, expected) in [(V1_22, None), (version(2, 0), Some(-libc::ENOSYS))] {
        let b = Side::open(&Wish {
            version,
            ..Wish::default()
        });
        let result = b.regattr(&only_base, 0);
        assert_eq!(result.err(), expected);
        if let Ok(mr) = result {
            assert_eq!(mr.close(), 0);
        }
    }
}

/// An error entry from before 1.20 has no source address; nothing is written past its end.
#[test]
fn only_the_error_fields_of_the_requested_version_are_written() {
    for (version, written) in [(V1_17, false), (version(1, 20), true)] {
        let (a, _b, peer) = crate::registration::pair(&Wish {
            version,
            ..Wish::default()
        });
        // SAFETY: live handles, and room for the longest entry.
        unsafe {
            let bytes = [0u8; 4];
            let write = (*(*a.ep).rma).write;
            let (at, none) = (bytes.as_ptr().cast(), null_mut());
            assert_eq!(again(|| write(a.ep, at, 4, none, peer, 0, 99, none)), 0);
            let ops = &*(*a.cq).ops;
            let mut entry: LongCqErrEntry = std::mem::zeroed();
            entry.src_addr = 0x7777;
            let code = again(|| match (ops.readerr)(a.cq, (&raw mut entry).cast(), 0) {
                1 => 0,
                code => {
                    (ops.read)(a.cq, none, 0);
                    code
                }
            });
            assert_eq!((code, entry.known.err), (0, 266));
            assert_eq!(entry.src_addr != 0x7777, written);
        }
    }
}
