//! A program that takes exactly the steps that the mode bits in force require works in every mode.

use crate::harness::*;
use crate::keys::{map, unmap_key};
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const BITS: [c_int; 8] = [
    FI_MR_LOCAL,
    FI_MR_RAW,
    FI_MR_VIRT_ADDR,
    FI_MR_ALLOCATED,
    FI_MR_PROV_KEY,
    FI_MR_MMU_NOTIFY,
    FI_MR_RMA_EVENT,
    FI_MR_ENDPOINT,
];
const PAGE: usize = 4096;
/// The key that the program requests where it is allowed to.
const ASKED: u64 = 0x77;

/// How the program gets keys.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    /// As the mode requires: requested, chosen by the provider, or raw.
    Plain,
    /// With the raw calls, which work in every mode.
    Raw,
}

/// In one run, a peer writes to the region and reads it back.
fn program(version: u32, mode: c_int, keys: Keys) {
    let what = format!("version {version:#x}, mode {mode:#x}, {keys:?}");
    let has = |bit| mode & bit != 0;
    let wish = Wish {
        version,
        ..Wish::mode(mode)
    };
    let (a, b, peer) = pair(&wish);

    // The target. With ALLOCATED, the memory has pages first; with MMU_NOTIFY, the program reports them to the
    // provider.
    let at = map_at(
        0,
        PAGE,
        if has(FI_MR_ALLOCATED) {
            RW
        } else {
            libc::PROT_NONE
        },
    );
    let events = has(FI_MR_RMA_EVENT);
    let flags = if events { FI_RMA_EVENT } else { 0 };
    let region = b.reg_at(at, PAGE, REMOTE, ASKED, flags).expect(&what);
    let counted = counter(b.domain);
    if events {
        assert_eq!(region.bind(counted, FI_REMOTE_WRITE), 0, "{what}");
    }
    if has(FI_MR_ENDPOINT) {
        assert_eq!(region.bind(b.ep, 0), 0, "{what}");
    }
    if events || has(FI_MR_ENDPOINT) {
        assert_eq!(region.enable(), 0, "{what}");
    }
    if !has(FI_MR_ALLOCATED) {
        map_at(at, PAGE, RW);
        if has(FI_MR_MMU_NOTIFY) {
            assert_eq!(region.refresh(&[]), 0, "{what}");
        }
    }

    // An address and a key, for the peer.
    let (base, key) = if has(FI_MR_RAW) || keys == Keys::Raw {
        let (_, _, _, size) = region.raw(0);
        let (code, base, mut raw, _) = region.raw(size);
        assert_eq!(code, 0, "{what}");
        (base, map(a.domain, base, &mut raw).expect(&what))
    } else {
        let base = if has(FI_MR_VIRT_ADDR) { at as u64 } else { 0 };
        let key = if has(FI_MR_PROV_KEY) {
            region.key()
        } else {
            ASKED
        };
        (base, key)
    };

    // The initiator.
    let mut bytes = [7u8; 16];
    let local = has(FI_MR_LOCAL).then(|| {
        let mr = a.reg(&mut bytes, FI_WRITE | FI_READ, 1, 0).expect(&what);
        if has(FI_MR_ENDPOINT) {
            assert_eq!((mr.bind(a.ep, 0), mr.enable()), (0, 0), "{what}");
        }
        mr
    });
    let desc: *mut c_void = local.map_or(null_mut(), |mr| mr.desc());
    assert_eq!(a.write_with(peer, &bytes, desc, base + 8, key), 0, "{what}");
    // SAFETY: it was mapped above, and nothing writes to it now.
    let arrived = unsafe { std::slice::from_raw_parts(at as *const u8, 32) };
    assert_eq!(
        arrived[7..25],
        [&[0][..], &[7; 16], &[0]].concat(),
        "{what}"
    );
    assert_eq!(a.read_with(peer, &mut bytes, desc, base, key), 0, "{what}");
    assert_eq!(bytes, arrived[..16], "{what}");
    if events {
        assert_eq!(wait_count(counted, 1), 1, "{what}");
    }

    if has(FI_MR_RAW) || keys == Keys::Raw {
        assert_eq!(unmap_key(a.domain, key), 0, "{what}");
    }
    assert_eq!(close(counted.cast()), 0, "{what}");
    let close_regions = || {
        assert_eq!(local.map_or(0, Mr::close), 0, "{what}");
        assert_eq!(region.close(), 0, "{what}");
    };
    // An endpoint with bound regions is closed first, except in programs of 2.0 and later.
    let later = version >= rkey_fi::sys::version(2, 0);
    if later {
        close_regions();
    }
    assert_eq!((close(a.ep.cast()), close(b.ep.cast())), (0, 0), "{what}");
    if !later {
        close_regions();
    }
    for side in [a, b] {
        side.close_rest();
    }
    unmap(at, PAGE);
}

fn modes() -> impl Iterator<Item = c_int> {
    let all = 0..1 << BITS.len();
    all.map(|set: usize| {
        let chosen = BITS.iter().enumerate().filter(|(n, _)| set >> n & 1 != 0);
        chosen.map(|(_, bit)| bit).sum()
    })
}

/// Proves: FI-026, FI-040, FI-041, FI-055, FI-059
#[test]
fn a_program_that_follows_the_mode_bits_succeeds_in_every_mode() {
    for mode in modes() {
        program(V1_22, mode, Keys::Plain);
    }
}

/// Proves: FI-217
#[test]
fn raw_keys_work_in_every_mode() {
    for mode in modes() {
        program(V1_22, mode, Keys::Raw);
    }
}

#[test]
fn each_mode_bit_means_the_same_in_every_version() {
    for version in [version(1, 5), V1_17, version(2, 0), version(2, 5)] {
        for mode in [0].into_iter().chain(BITS) {
            program(version, mode, Keys::Plain);
        }
    }
}
