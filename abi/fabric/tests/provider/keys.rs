//! Keys: in use, reused, raw, mapped.

use crate::harness::*;
use crate::registration::pair;
use rkey_fi::sys::*;

/// `fi_mr_map_raw`: the key, or the code.
pub(crate) fn map(domain: *mut FidDomain, base: u64, raw: &mut [u8]) -> Result<u64, i32> {
    let mut key = 0;
    let mut arg = MrMapRaw {
        flags: 0,
        base_addr: base,
        raw_key: raw.as_mut_ptr(),
        key_size: raw.len(),
        key: &mut key,
    };
    match control(domain.cast(), FI_MAP_RAW_MR, (&raw mut arg).cast()) {
        0 => Ok(key),
        code => Err(code),
    }
}

pub(crate) fn unmap_key(domain: *mut FidDomain, mut key: u64) -> i32 {
    control(domain.cast(), FI_UNMAP_KEY, (&raw mut key).cast())
}

/// Proves: FI-225, FI-I41
#[test]
fn a_key_is_in_use_while_its_region_lives() {
    let b = Side::open(&Wish::default());
    let (mut one, mut two) = ([0u8; 8], [0u8; 8]);
    let first = b.reg(&mut one, REMOTE, 3, 0).unwrap();
    assert_eq!(b.reg(&mut two, REMOTE, 3, 0).err(), Some(-266));
    assert_eq!(first.close(), 0);
    let second = b.reg(&mut two, REMOTE, 3, 0).unwrap();
    assert_eq!(second.close(), 0);
}

/// Without raw keys every 64-bit number is a valid key, except for the one that means none.
///
/// Proves: FI-I14
#[test]
fn every_64_bit_key_except_the_reserved_one_can_be_requested() {
    let wish = Wish::default();
    // SAFETY: the provider's `fi_info`.
    assert_eq!(unsafe { (*(*wish.info()).domain_attr).mr_key_size }, 8);
    let (a, b, peer) = pair(&wish);
    let mut buffer = vec![0u8; 8];
    for key in [0, 1 << 32, u64::MAX - 1] {
        let mr = b.reg(&mut buffer, REMOTE, key, 0).unwrap();
        assert_eq!((mr.key(), a.write(peer, &[1; 8], 0, key)), (key, 0));
        assert_eq!(mr.close(), 0);
    }
    let beyond = b.reg(&mut buffer, REMOTE, u64::MAX, 0);
    assert_eq!(beyond.err(), Some(-libc::EKEYREJECTED));
}

/// Counting up and down does not find keys that the provider chose.
///
/// Proves: FI-105
#[test]
fn counting_does_not_find_keys_that_the_provider_chose() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_PROV_KEY));
    let mut buffers = vec![[0u8; 8]; 8];
    let regions: Vec<Mr> = buffers
        .iter_mut()
        .map(|buffer| b.reg(buffer, REMOTE, 0, 0).unwrap())
        .collect();
    let keys: Vec<u64> = regions.iter().map(Mr::key).collect();
    let near = keys[0].saturating_sub(100)..keys[0].saturating_add(100);
    for guess in (0..100).chain(near).filter(|guess| !keys.contains(guess)) {
        assert_ne!(a.write(peer, &[1; 8], 0, guess), 0, "{guess:#x}");
    }
    for mr in regions {
        assert_eq!(mr.close(), 0);
    }
    assert_eq!(buffers, [[0; 8]; 8]);
}

/// Proves: FI-226, FI-I33
#[test]
fn fi_key_notavail_is_rejected_as_a_requested_key() {
    let b = Side::open(&Wish::default());
    assert_eq!(
        b.reg(&mut [0u8; 8], REMOTE, u64::MAX, 0).err(),
        Some(-libc::EKEYREJECTED)
    );
    let mr = b.reg(&mut [0u8; 8], REMOTE, u64::MAX - 1, 0).unwrap();
    assert_eq!((mr.key(), mr.close()), (u64::MAX - 1, 0));
}

/// Proves: FI-106, FI-I32
#[test]
fn a_region_for_local_use_has_a_descriptor_and_no_key() {
    let b = Side::open(&Wish::default());
    let (mut one, mut two) = ([0u8; 8], [0u8; 8]);
    let first = b.reg(&mut one, FI_SEND | FI_RECV, 3, 0).unwrap();
    let second = b.reg(&mut two, FI_SEND | FI_RECV, 3, 0).unwrap();
    assert!(!first.desc().is_null());
    assert_eq!(
        (first.key(), second.key()),
        (FI_KEY_NOTAVAIL, FI_KEY_NOTAVAIL)
    );
    assert_eq!((first.close(), second.close()), (0, 0));
}

/// Proves: FI-008, FI-009, FI-010, FI-052, FI-164, FI-165, FI-172, FI-215
#[test]
fn with_fi_mr_raw_a_key_must_be_mapped_before_use() {
    for other in [
        0,
        FI_MR_VIRT_ADDR,
        FI_MR_PROV_KEY,
        FI_MR_VIRT_ADDR | FI_MR_PROV_KEY,
    ] {
        let (a, b, peer) = pair(&Wish::mode(FI_MR_RAW | other));
        let mut buffer = vec![0u8; 32];
        let mr = b.reg(&mut buffer, REMOTE, 4, 0).unwrap();
        assert_eq!(mr.key(), FI_KEY_NOTAVAIL);
        let (_, _, _, size) = mr.raw(0);
        let (code, base, mut raw, _) = mr.raw(size);
        assert_eq!(code, 0);
        assert_ne!(a.write(peer, &[1; 4], base, 4), 0, "not mapped");
        let bytes = u64::from_le_bytes(raw[8..16].try_into().unwrap());
        assert_ne!(
            a.write(peer, &[1; 4], base, bytes),
            0,
            "the bytes are not a key"
        );
        let key = map(a.domain, base, &mut raw).unwrap();
        assert_eq!(a.write(peer, &[2; 4], base + 8, key), 0);
        assert_eq!(unmap_key(a.domain, key), 0);
        assert_ne!(a.write(peer, &[3; 4], base, key), 0, "no longer mapped");
        assert_eq!(mr.close(), 0);
        assert_eq!(
            buffer[..16],
            [0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 0, 0, 0, 0]
        );
    }
}

/// Proves: FI-168, FI-173, FI-216
#[test]
fn raw_keys_also_work_without_fi_mr_raw() {
    for mode in [0, FI_MR_PROV_KEY] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut buffer = vec![0u8; 8];
        let mr = b.reg(&mut buffer, REMOTE, 0xabcd_ef01_2345, 0).unwrap();
        let (code, base, mut raw, size) = mr.raw(8);
        assert_eq!((code, base, size), (0, 0, 8));
        let key = map(a.domain, base, &mut raw).unwrap();
        assert_eq!(a.write(peer, &[2; 8], 0, key), 0);
        assert_eq!((unmap_key(a.domain, key), mr.close()), (0, 0));
        assert_eq!(buffer, [2; 8]);
    }
}

/// Proves: FI-169, FI-170, FI-171, FI-230, FI-263
#[test]
fn a_raw_key_that_does_not_fit_reports_its_length() {
    for mode in [0, FI_MR_RAW] {
        let wish = Wish::mode(mode);
        let b = Side::open(&wish);
        let mr = b.reg(&mut [0u8; 8], REMOTE, 4, 0).unwrap();
        let (code, _, _, size) = mr.raw(0);
        assert_eq!(code, -257);
        let (code, _, _, again) = mr.raw(size - 1);
        assert_eq!((code, again), (-257, size));
        let (code, _, _, exactly) = mr.raw(size);
        assert_eq!((code, exactly), (0, size));
        let (code, _, _, plenty) = mr.raw(size + 10);
        assert_eq!((code, plenty), (0, size));
        assert_eq!(size, if mode == 0 { 8 } else { 40 });
        assert_eq!(mr.close(), 0);
    }
}

/// Proves: FI-174, FI-175
#[test]
fn each_mapping_of_a_raw_key_is_unmapped_separately() {
    for mode in [0, FI_MR_RAW] {
        let wish = Wish::mode(mode);
        let b = Side::open(&wish);
        let mr = b.reg(&mut [0u8; 8], REMOTE, 4, 0).unwrap();
        let (_, _, mut raw, _) = mr.raw(if mode == 0 { 8 } else { 40 });
        let info = wish.info();
        let (_, domain) = open_domain(wish.version, info);
        let one = map(domain, 0, &mut raw).unwrap();
        let two = map(domain, 0, &mut raw).unwrap();
        assert_eq!(unmap_key(domain, one), 0);
        assert_eq!(unmap_key(domain, two), 0);
        assert_eq!(unmap_key(domain, two), -libc::EINVAL);
        assert_eq!(map(domain, 0, &mut raw[1..]), Err(-libc::EINVAL));
        assert_eq!(close(domain.cast()), 0);
        assert_eq!(mr.close(), 0);
    }
}
