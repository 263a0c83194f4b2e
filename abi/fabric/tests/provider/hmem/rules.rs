//! What a program must specify about accelerator memory, and what is refused.

use super::*;
use crate::peer::{rerun, strictly};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Proves partly: FI-218, FI-219, FI-I27 (with fake runtimes, not on real hardware)
#[test]
fn without_peer_to_peer_transfers_the_runtime_copies() {
    let test = "hmem::rules::without_peer_to_peer_transfers_the_runtime_copies";
    if !is_peer() {
        for (word, disabled) in [("1", "yes"), ("on", "yes"), ("0", "no"), ("banana", "no")] {
            let mut run = rerun(test);
            run.env("FI_HMEM_DISABLE_P2P", word)
                .env("DISABLED", disabled);
            let run = run.output().unwrap();
            assert!(run.status.success(), "{word}: {run:?}");
        }
        return;
    }
    let Some(fake) = CUDA.load() else { return };
    let disabled = std::env::var("DISABLED").unwrap() == "yes";
    let (a, b, peer) = pair(&wish(0));
    let set = |wish: c_int| set_option(&a, FI_OPT_FI_HMEM_P2P, &wish.to_ne_bytes());
    assert_eq!(set(FI_HMEM_P2P_REQUIRED), -libc::EOPNOTSUPP);
    for wish in [
        FI_HMEM_P2P_PREFERRED,
        FI_HMEM_P2P_ENABLED,
        FI_HMEM_P2P_DISABLED,
    ] {
        assert_eq!(set(wish), 0);
        let now = if disabled { FI_HMEM_P2P_DISABLED } else { wish };
        assert_eq!(get_option(&a, FI_OPT_FI_HMEM_P2P), now);
    }
    let memory = (fake.alloc(Place::Device, 0, 4096), 4096);
    let mr = cuda(&b, memory, REMOTE, 1);
    let before = fake.copies();
    assert_eq!(a.write(peer, &[5; 8], 0, 1), 0);
    assert_eq!(
        (fake.peek(memory.0, 8), fake.copies()),
        (vec![5; 8], before + 1)
    );
    // Copies are calls of the CUDA driver.
    let permit = |yes: u8| set_option(&a, FI_OPT_CUDA_API_PERMITTED, &[yes]);
    assert_eq!((permit(1), permit(0)), (0, -libc::EOPNOTSUPP));
    assert_eq!(mr.close(), 0);
    fake.free(memory.0);
}

fn set_option(side: &Side, option: c_int, value: &[u8]) -> c_int {
    let (fid, at) = (side.ep.cast(), value.as_ptr().cast());
    // SAFETY: a live handle, and a value of this length.
    unsafe { ((*(*side.ep).ops).setopt)(fid, 0, option, at, value.len()) }
}

fn get_option(side: &Side, option: c_int) -> c_int {
    let (mut value, mut len) = (-1, size_of::<c_int>());
    let (fid, at) = (side.ep.cast(), (&raw mut value).cast());
    // SAFETY: a live handle, and room for a value of this length.
    let code = unsafe { ((*(*side.ep).ops).getopt)(fid, 0, option, at, &mut len) };
    assert_eq!(code, 0);
    value
}

/// FI-061 for a list of accelerator memory and system memory: the provider looks for the pages of the latter.
#[test]
fn system_memory_in_a_list_with_device_memory_needs_pages() {
    let Some(fake) = CUDA.load() else { return };
    let at = fake.alloc(Place::Device, 0, 4096);
    let page = map_at(0, 4096, libc::PROT_NONE);
    let entry = |at| libc::iovec {
        iov_base: at as *mut c_void,
        iov_len: 4096,
    };
    let both = [entry(at), entry(page as u64)];
    let attr = attributes(&both, REMOTE, 1);
    let (_a, b, _) = pair(&wish(FI_MR_ALLOCATED));
    assert_eq!(b.regattr(&attr, 0).err(), Some(-libc::EFAULT));
    map_at(page, 4096, RW);
    assert_eq!(b.regattr(&attr, 0).unwrap().close(), 0);
    // With notification, the region waits for a refresh, which also finds that the page is missing.
    map_at(page, 4096, libc::PROT_NONE);
    let (a, b, peer) = pair(&wish(FI_MR_MMU_NOTIFY));
    let mr = b.regattr(&attr, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 8], 4096, 1), libc::EACCES);
    assert_eq!(mr.refresh(&[]), -libc::EFAULT);
    assert_eq!(mr.refresh(&both[1..]), -libc::EFAULT);
    map_at(page, 4096, RW);
    assert_eq!(mr.refresh(&[]), 0);
    assert_eq!(a.write(peer, &[1; 8], 4096, 1), 0);
    assert_eq!(a.write(peer, &[2; 8], 0, 1), 0);
    assert_eq!(fake.peek(at, 8), [2; 8]);
    assert_eq!(mr.close(), 0);
    unmap(page, 4096);
    fake.free(at);
}

/// The driver of an accelerator's DMA-buf does not let the processor map it; the runtime finds the bytes by their address.
#[test]
fn a_dma_buf_of_a_device_is_copied_by_its_runtime() {
    let Some(fake) = CUDA.load() else { return };
    let (a, b, peer) = pair(&wish(0));
    let at = fake.alloc(Place::Device, 0, 8192);
    // A descriptor that cannot be mapped, as the driver's.
    let (file, _other) = UnixStream::pair().unwrap();
    let register = |iface, base: u64, flags| {
        let buf = MrDmabuf {
            fd: file.as_raw_fd(),
            offset: 4096,
            len: 4096,
            base_addr: base as *mut _,
        };
        let mut attr = attributes(&[], REMOTE, 1);
        attr.known.mr_iov = (&raw const buf).cast();
        attr.known.iov_count = 1;
        attr.known.iface = iface;
        b.regattr(&attr, FI_MR_DMABUF | flags)
    };
    for (iface, base) in [(FI_HMEM_SYSTEM, at), (FI_HMEM_CUDA, 0)] {
        let refused = register(iface, base, 0).err();
        assert_eq!(refused, Some(-libc::EOPNOTSUPP), "{iface} {base:#x}");
    }
    let alone = register(FI_HMEM_SYSTEM, 0, FI_HMEM_DEVICE_ONLY).err();
    assert_eq!(alone, Some(EINVAL));
    let past_its_end = register(FI_HMEM_CUDA, at + 4096, 0).err();
    assert_eq!(past_its_end, Some(EINVAL));
    let mr = register(FI_HMEM_CUDA, at, FI_HMEM_DEVICE_ONLY).unwrap();
    assert_eq!(a.write(peer, &[5; 8], 0, 1), 0);
    assert_eq!(fake.peek(at + 4096, 8), [5; 8]);
    assert_eq!(mr.close(), 0);
    fake.free(at);
}

/// Proves: FI-080, FI-084, FI-085, FI-279
/// Proves partly: FI-083 (with fake runtimes, not on real hardware)
#[test]
fn fi_mr_local_and_fi_mr_hmem_apply_each_to_its_kind_of_memory() {
    let Some(fake) = CUDA.load() else { return };
    let at = fake.alloc(Place::Device, 0, 4096);
    let mut bytes = vec![0u8; 4096];
    let system = bytes.as_mut_ptr().expose_provenance() as u64;
    for mode in [0, FI_MR_LOCAL, FI_MR_HMEM, FI_MR_LOCAL | FI_MR_HMEM] {
        let (a, b, peer) = pair(&wish(mode));
        let mut target = vec![0u8; 64];
        let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
        for (memory, iface, bit) in [
            ((system, 64), FI_HMEM_SYSTEM, FI_MR_LOCAL),
            ((at, 64), FI_HMEM_CUDA, FI_MR_HMEM),
        ] {
            let without = if mode & bit == 0 { 0 } else { EINVAL };
            let plain = Buffer::plain(memory);
            assert_eq!(write(&a, plain, peer, 0, 1), without, "{mode:#x} {iface}");
            assert_eq!(read(&a, plain, peer, 0, 1), without, "{mode:#x} {iface}");
            let posted = post_recv(&a, plain) as c_int;
            assert_eq!(posted, without, "{mode:#x} {iface}");
            let mr = register(&a, (iface, 0), memory, (LOCAL, 0, 0)).unwrap();
            let described = Buffer::of(memory, &mr);
            assert_eq!(write(&a, described, peer, 0, 1), 0, "{mode:#x} {iface}");
            assert_eq!(read(&a, described, peer, 0, 1), 0, "{mode:#x} {iface}");
            assert_eq!(mr.close(), 0);
        }
        assert_eq!((close(a.ep.cast()), remote.close()), (0, 0));
    }
    fake.free(at);
}

/// Proves: FI-081, FI-130, FI-144, FI-145, FI-146
#[test]
fn registrations_that_contradict_the_runtime_are_refused() {
    let Some(fake) = CUDA.load() else { return };
    let device = (fake.alloc(Place::Device, 1, 4096), 4096);
    let host = (fake.alloc(Place::Host, 0, 4096), 4096);
    let mut bytes = vec![0u8; 4096];
    let system = (bytes.as_mut_ptr().expose_provenance() as u64, 4096);
    let (strict, lax) = (Side::open(&wish(FI_MR_HMEM)), Side::open(&wish(0)));
    for side in [&strict, &lax] {
        let code = |iface, device, memory, flags| {
            let made = register(side, (iface, device), memory, (REMOTE, 1, flags));
            made.map_or_else(|code| code, |mr| mr.close())
        };
        let (only, of_host) = (FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC);
        assert_eq!(code(FI_HMEM_CUDA, 1, device, 0), 0);
        assert_eq!(code(FI_HMEM_CUDA, 1, device, only), 0);
        assert_eq!(code(FI_HMEM_CUDA, 1, device, of_host), EINVAL);
        assert_eq!(code(FI_HMEM_CUDA, 1, device, only | of_host), EINVAL);
        assert_eq!(
            code(FI_HMEM_CUDA, 77, host, of_host),
            0,
            "device is ignored"
        );
        assert_eq!(code(FI_HMEM_CUDA, 0, host, only), EINVAL);
        assert_eq!(code(FI_HMEM_CUDA, 0, system, 0), EINVAL, "not CUDA's");
        assert_eq!(
            code(FI_HMEM_CUDA, 1, (device.0, 8192), 0),
            EINVAL,
            "too long"
        );
        assert_eq!(code(FI_HMEM_SYSTEM, 0, system, only), EINVAL);
        assert_eq!(code(FI_HMEM_SYSTEM, 0, system, of_host), 0);
    }
    // Accelerator memory that the program calls system memory.
    let all = |side: &Side, expected: c_int| {
        let at = device.0 as usize;
        let code = |made: Result<Mr, c_int>| made.map_or_else(|code| code, |mr| mr.close());
        assert_eq!(code(side.reg_at(at, 8, REMOTE, 1, 0)), expected);
        let plain = register(side, (FI_HMEM_SYSTEM, 0), device, (REMOTE, 1, 0));
        assert_eq!(code(plain), expected);
    };
    all(&strict, EINVAL);
    all(&lax, 0);
    fake.free(device.0);
    fake.free(host.0);
}

/// Proves in strict mode: FI-131
#[test]
fn in_strict_mode_the_device_must_be_that_of_the_memory() {
    strictly(
        "hmem::rules::in_strict_mode_the_device_must_be_that_of_the_memory",
        || {
            let Some(fake) = CUDA.load() else { return };
            let memory = (fake.alloc(Place::Device, 1, 64), 64);
            let side = Side::open(&wish(0));
            // Only the member `cuda` of the union counts, an int.
            for (device, accepted) in [(0, false), (1, true), (2, false), (7 << 32 | 1, true)] {
                let made = register(&side, (FI_HMEM_CUDA, device), memory, (REMOTE, 1, 0));
                assert_eq!(made.is_ok(), accepted, "{device:#x}");
                if let Ok(mr) = made {
                    assert_eq!(mr.close(), 0);
                }
            }
        },
    );
}

/// Without `FI_HMEM`, the program has promised system memory. When the processor accesses the memory, it gets a fault.
#[test]
fn an_operation_on_device_memory_fails_in_a_domain_without_hmem() {
    let Some(fake) = CUDA.load() else { return };
    let (a, b, peer) = pair(&Wish::default());
    let at = fake.alloc(Place::Device, 0, 4096);
    let mr = b.reg_at(at as usize, 4096, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 8], 0, 1), libc::EFAULT);
    let mut target = vec![0u8; 64];
    let other = b.reg(&mut target, REMOTE, 2, 0).unwrap();
    assert_eq!(write(&a, Buffer::plain((at, 8)), peer, 0, 2), libc::EFAULT);
    assert_eq!(a.write(peer, &[1; 8], 0, 2), 0, "still usable");
    assert_eq!((mr.close(), other.close()), (0, 0));
    fake.free(at);
}

/// Proves: FI-I13
#[test]
fn with_fi_mr_hmem_only_system_memory_can_be_injected() {
    let Some(fake) = CUDA.load() else { return };
    let at = fake.alloc(Place::Device, 0, 4096);
    for (mode, expected) in [(FI_MR_HMEM, EINVAL), (0, 0)] {
        let (a, b, peer) = pair(&wish(mode));
        let mut target = vec![0u8; 8];
        let remote = b.reg(&mut target, REMOTE, 1, 0).unwrap();
        let bytes = [9u8; 8];
        fake.poke(at, &bytes);
        let inject = |from: *const c_void| {
            // SAFETY: live handles; 8 bytes, or memory that the provider must not touch.
            let codes = unsafe {
                let (ep, msg, rma) = (a.ep, &*(*a.ep).msg, &*(*a.ep).rma);
                let atomic = (*(*a.ep).atomic).inject;
                [
                    again(|| (msg.inject)(ep, from, 8, peer)),
                    again(|| (rma.inject)(ep, from, 8, peer, 0, 1)),
                    again(|| atomic(ep, from, 1, peer, 0, 1, FI_UINT64, FI_ATOMIC_WRITE)),
                ]
            };
            codes.map(|code| code as c_int)
        };
        assert_eq!(inject(bytes.as_ptr().cast()), [0; 3]);
        assert_eq!(inject(at as *const c_void), [expected; 3]);
        assert_eq!(remote.close(), 0);
    }
    fake.free(at);
}

/// Accelerator memory does not outlive the process.
#[test]
fn device_memory_cannot_be_registered_as_persistent() {
    let Some(fake) = CUDA.load() else { return };
    let side = Side::open(&wish(0));
    let memory = (fake.alloc(Place::Device, 0, 4096), 4096);
    let made = register(&side, (FI_HMEM_CUDA, 0), memory, (REMOTE, 1, FI_RMA_PMEM));
    assert_eq!(made.err(), Some(EINVAL));
    fake.free(memory.0);
}
