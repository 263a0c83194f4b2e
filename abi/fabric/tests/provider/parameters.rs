//! Parameters that the manual pages hardly describe: contexts, flags, and combined modes.

use crate::harness::*;
use crate::keys::unmap_key;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Registers with each of the three calls, each with its own context. Returns regions and contexts.
fn by_each_call(side: &Side, buffer: &mut [u8]) -> [(Mr, usize); 3] {
    let iov = [iovec(buffer)];
    let mut made = [null_mut(); 3];
    let mut attr = attributes(&iov, REMOTE, 3);
    attr.known.context = 0x3333 as *mut c_void;
    // SAFETY: the handle is live; the caller keeps the buffer until the regions are closed.
    let codes = unsafe {
        let (domain, ops) = (side.domain.cast(), &*(*side.domain).mr);
        let (at, len) = (iov[0].iov_base, iov[0].iov_len);
        let [one, two, three] = &mut made;
        let (first, second) = (0x1111 as *mut c_void, 0x2222 as *mut c_void);
        [
            (ops.reg)(domain, at, len, REMOTE, 0, 1, 0, one, first),
            (ops.regv)(domain, iov.as_ptr(), 1, REMOTE, 0, 2, 0, two, second),
            (ops.regattr)(domain, &attr.known, 0, three),
        ]
    };
    assert_eq!(codes, [0; 3]);
    let [one, two, three] = made;
    [(Mr(one), 0x1111), (Mr(two), 0x2222), (Mr(three), 0x3333)]
}

/// Proves: FI-274
#[test]
fn the_context_of_a_region_is_in_its_handle() {
    for asynchronous in [false, true] {
        let mut side = Side::open(&Wish::default());
        if asynchronous {
            assert_eq!(side.bind_eq(FI_REG_MR), 0);
        }
        let mut buffer = [0u8; 8];
        for (mr, context) in by_each_call(&side, &mut buffer) {
            // SAFETY: the handle is live.
            let found = unsafe { (*mr.0).fid.context };
            assert_eq!(found as usize, context, "asynchronous: {asynchronous}");
            assert_eq!(mr.close(), 0);
        }
    }
}

/// `-FI_EBADFLAGS`.
const BADFLAGS: c_int = -260;
/// Flags that no version of the pages defines.
const UNKNOWN: [u64; 3] = [1, FI_RMA_EVENT, 1 << 63];

/// Proves: FI-276, FI-277
#[test]
fn reading_and_mapping_raw_keys_accept_no_flags() {
    for mode in [0, FI_MR_RAW] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut buffer = [0u8; 8];
        let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
        let (_, _, _, len) = mr.raw(0);
        let raw = |flags| {
            let (mut base, mut size, mut bytes) = (77, len, vec![0xa5; len]);
            let mut attr = MrRawAttr {
                flags,
                base_addr: &mut base,
                raw_key: bytes.as_mut_ptr(),
                key_size: &mut size,
            };
            let code = control(mr.0.cast(), FI_GET_RAW_MR, (&raw mut attr).cast());
            (code, base, size, bytes)
        };
        for flags in UNKNOWN {
            let untouched = (BADFLAGS, 77, len, vec![0xa5; len]);
            assert_eq!(raw(flags), untouched, "{flags:#x}");
        }
        let (code, base, _, mut bytes) = raw(0);
        assert_eq!(code, 0);
        let mut map = |flags| {
            let mut key = 77;
            let mut asked = MrMapRaw {
                flags,
                base_addr: base,
                raw_key: bytes.as_mut_ptr(),
                key_size: len,
                key: &mut key,
            };
            let code: c_int = control(a.domain.cast(), FI_MAP_RAW_MR, (&raw mut asked).cast());
            (code, key)
        };
        for flags in UNKNOWN {
            assert_eq!(map(flags), (BADFLAGS, 77), "{flags:#x}");
        }
        let (code, key) = map(0);
        assert_eq!((code, a.write(peer, &[1; 8], 0, key)), (0, 0));
        assert_eq!((unmap_key(a.domain, key), mr.close()), (0, 0));
        assert_eq!(buffer, [1; 8]);
    }
}

/// Proves: FI-278
#[test]
fn a_refresh_accepts_no_flags() {
    for mode in [0, FI_MR_MMU_NOTIFY] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut buffer = [0u8; 8];
        let iov = [iovec(&mut buffer)];
        let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
        let refresh = |flags| {
            let mut modify = MrModify {
                flags,
                attr: attributes(&iov, 0, 0).known,
            };
            control(mr.0.cast(), FI_REFRESH, (&raw mut modify).cast())
        };
        for flags in UNKNOWN {
            assert_eq!(refresh(flags), BADFLAGS, "{flags:#x}");
        }
        assert_eq!((refresh(0), a.write(peer, &[1; 8], 0, 1)), (0, 0));
        assert_eq!((mr.close(), buffer), (0, [1; 8]));
    }
}

/// Proves: FI-279
#[test]
fn with_fi_mr_local_and_fi_mr_hmem_system_memory_needs_registration() {
    let (a, b, peer) = pair(&Wish {
        caps: FI_MSG | FI_RMA | FI_HMEM,
        ..Wish::mode(FI_MR_LOCAL | FI_MR_HMEM)
    });
    let mut target = [0u8; 8];
    let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    let mut bytes = [7u8; 8];
    assert_eq!(a.write(peer, &bytes, 0, 1), -libc::EINVAL);
    assert_eq!(a.read(peer, &mut bytes, 0, 1), -libc::EINVAL);
    let iov = [iovec(&mut bytes)];
    // Like a program for accelerators, which registers all of its memory.
    let mut attr = attributes(&iov, FI_WRITE | FI_READ, 2);
    attr.known.iface = FI_HMEM_SYSTEM;
    let mr = a.regattr(&attr, 0).unwrap();
    assert_eq!(a.write_with(peer, &bytes, mr.desc(), 0, 1), 0);
    assert_eq!(a.read_with(peer, &mut bytes, mr.desc(), 0, 1), 0);
    assert_eq!((mr.close(), remote.close()), (0, 0));
    assert_eq!((target, bytes), ([7; 8], [7; 8]));
}
