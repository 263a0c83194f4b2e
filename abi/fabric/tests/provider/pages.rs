//! The pages of regions: absent, changing, refreshed.

use crate::harness::*;
use crate::peer::apart;
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

const PAGE: usize = 4096;

/// Proves: FI-030, FI-031, FI-064, FI-065, FI-066
#[test]
fn a_region_follows_changes_of_its_mapping() {
    let (a, b, peer) = pair(&Wish::default());
    let at = map_at(0, PAGE, libc::PROT_NONE);
    let mr = b.reg_at(at, PAGE, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 8], 0, 1), libc::EFAULT);
    for round in 1..5 {
        map_at(at, PAGE, RW);
        assert_eq!(a.write(peer, &[round; 8], 0, 1), 0);
        // SAFETY: mapped just now.
        assert_eq!(unsafe { (at as *const u8).read_volatile() }, round);
        unmap(at, PAGE);
        map_at(at, PAGE, libc::PROT_NONE);
        assert_eq!(a.read(peer, &mut [0; 8], 0, 1), libc::EFAULT);
    }
    assert_eq!(mr.close(), 0);
    unmap(at, PAGE);
}

/// Proves: FI-061, FI-257
#[test]
fn with_fi_mr_allocated_memory_must_be_mapped_at_registration() {
    let b = Side::open(&Wish::mode(FI_MR_ALLOCATED));
    let at = map_at(0, 2 * PAGE, RW);
    unmap(at + PAGE, PAGE);
    assert_eq!(
        b.reg_at(at, 2 * PAGE, REMOTE, 1, 0).err(),
        Some(-libc::EFAULT)
    );
    // Addresses that are only reserved have no pages, either.
    map_at(at + PAGE, PAGE, libc::PROT_NONE);
    assert_eq!(
        b.reg_at(at, 2 * PAGE, REMOTE, 1, 0).err(),
        Some(-libc::EFAULT)
    );
    map_at(at + PAGE, PAGE, libc::PROT_READ);
    assert_eq!(b.reg_at(at, 2 * PAGE, REMOTE, 1, 0).unwrap().close(), 0);
    unmap(at + PAGE, PAGE);
    let mr = b.reg_at(at, PAGE, REMOTE, 1, 0).unwrap();
    assert_eq!(mr.refresh(&[]), -libc::ENOSYS);
    assert_eq!(mr.close(), 0);
    unmap(at, PAGE);
}

/// A program replaces pages although it promised not to; the region still follows the addresses.
///
/// Proves: FI-062, FI-259
#[test]
fn with_fi_mr_allocated_replaced_pages_are_still_used() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_ALLOCATED));
    let at = map_at(0, PAGE, RW);
    let mr = b.reg_at(at, PAGE, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
    map_at(at, PAGE, RW);
    assert_eq!(a.write(peer, &[2; 8], 8, 1), 0);
    // SAFETY: mapped just now.
    let there = unsafe { std::slice::from_raw_parts(at as *const u8, 16) };
    assert_eq!(there, [0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(mr.close(), 0);
    unmap(at, PAGE);
}

/// Proves: FI-068, FI-069, FI-188, FI-196, FI-260
#[test]
fn with_notification_unbacked_memory_waits_for_a_refresh() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_MMU_NOTIFY));
    let at = map_at(0, PAGE, libc::PROT_NONE);
    let mr = b.reg_at(at, PAGE, REMOTE, 1, 0).unwrap();
    assert_eq!(mr.refresh(&[]), -libc::EFAULT);
    map_at(at, PAGE, RW);
    assert_eq!(
        a.write(peer, &[1; 8], 0, 1),
        libc::EACCES,
        "no refresh has announced the pages"
    );
    assert_eq!(mr.refresh(&[]), 0);
    assert_eq!(a.write(peer, &[2; 8], 0, 1), 0);
    assert_eq!(mr.refresh(&[]), 0);
    assert_eq!(a.write(peer, &[3; 8], 0, 1), 0, "the key is unchanged");
    let mut stable = vec![0u8; 8];
    let other = b.reg(&mut stable, REMOTE, 2, 0).unwrap();
    assert_eq!(
        a.write(peer, &[4; 8], 0, 2),
        0,
        "existing pages need no refresh"
    );
    assert_eq!((mr.close(), other.close()), (0, 0));
    unmap(at, PAGE);
}

/// Regions that are bound to a counter or an endpoint also wait for a refresh.
///
/// Proves: FI-069, FI-191
#[test]
fn with_notification_bound_regions_also_wait_for_a_refresh() {
    for (mode, bound) in [
        (0, [true, false]),
        (0, [false, true]),
        (FI_MR_ENDPOINT, [true, true]),
    ] {
        let (a, b, peer) = pair(&Wish {
            caps: FI_MSG | FI_RMA | FI_RMA_EVENT,
            ..Wish::mode(mode | FI_MR_MMU_NOTIFY)
        });
        let (at, counter) = (map_at(0, PAGE, libc::PROT_NONE), counter(b.domain));
        let mr = b.reg_at(at, PAGE, REMOTE, 1, 0).unwrap();
        if bound[0] {
            assert_eq!(mr.bind(counter, FI_REMOTE_WRITE), 0);
        }
        if bound[1] {
            assert_eq!(mr.bind(b.ep, 0), 0);
        }
        assert_eq!(mr.enable(), 0);
        map_at(at, PAGE, RW);
        assert_eq!(a.write(peer, &[1; 8], 0, 1), libc::EACCES, "{bound:?}");
        assert_eq!(mr.refresh(&[]), 0);
        assert_eq!(a.write(peer, &[2; 8], 0, 1), 0, "{bound:?}");
        let written = u64::from(bound[0]);
        assert_eq!(wait_count(counter, written), written);
        assert_eq!((close(b.ep.cast()), close(counter.cast())), (0, 0));
        assert_eq!(mr.close(), 0);
        unmap(at, PAGE);
    }
}

/// A program that replaces the pages of a region reports it each time, as FI_MR_MMU_NOTIFY requires. The provider
/// cannot detect a change that is not reported, so it does not refuse it.
///
/// Proves: FI-187
#[test]
fn with_notification_a_region_is_refreshed_after_each_change() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_MMU_NOTIFY));
    let at = map_at(0, PAGE, RW);
    let mr = b.reg_at(at, PAGE, REMOTE, 1, 0).unwrap();
    for round in 1..=20 {
        map_at(at, PAGE, libc::PROT_NONE);
        assert_eq!(mr.refresh(&[]), -libc::EFAULT, "no pages yet");
        assert_ne!(a.write(peer, &[99; 8], 0, 1), 0);
        map_at(at, PAGE, RW);
        assert_eq!(mr.refresh(&[]), 0);
        assert_eq!(a.write(peer, &[round; 8], 0, 1), 0);
        // SAFETY: mapped just now.
        let there = unsafe { (at as *const [u8; 9]).read_volatile() };
        assert_eq!(
            there,
            [round, round, round, round, round, round, round, round, 0]
        );
    }
    assert_eq!(mr.close(), 0);
    unmap(at, PAGE);
}

/// Only the first half of the memory has pages: refreshing that half enables access to it. Access to the other
/// half, which has none, fails.
///
/// Proves: FI-186
#[test]
fn refreshing_a_part_of_a_region_updates_only_that_part() {
    let (a, b, peer) = pair(&Wish::mode(FI_MR_MMU_NOTIFY));
    let at = map_at(0, 2 * PAGE, libc::PROT_NONE);
    let mr = b.reg_at(at, 2 * PAGE, REMOTE, 1, 0).unwrap();
    map_at(at, PAGE, RW);
    assert_eq!(a.write(peer, &[5; 8], 0, 1), libc::EACCES, "not announced");
    let half = |offset| {
        [libc::iovec {
            iov_base: (at + offset) as *mut _,
            iov_len: PAGE,
        }]
    };
    assert_eq!(mr.refresh(&half(PAGE)), -libc::EFAULT);
    assert_eq!(
        a.write(peer, &[5; 8], 0, 1),
        libc::EACCES,
        "nothing was updated"
    );
    assert_eq!(mr.refresh(&half(0)), 0);
    assert_eq!(a.write(peer, &[6; 8], 0, 1), 0);
    // SAFETY: mapped above.
    assert_eq!(unsafe { (at as *const u8).read_volatile() }, 6);
    assert_eq!(a.write(peer, &[6; 8], PAGE as u64, 1), libc::EFAULT);
    map_at(at + PAGE, PAGE, RW);
    assert_eq!(mr.refresh(&half(PAGE)), 0);
    assert_eq!(a.write(peer, &[7; 8], PAGE as u64, 1), 0);
    assert_eq!(mr.close(), 0);
    unmap(at, 2 * PAGE);
}

/// The owner repeatedly replaces all pages of a region and refreshes it while a peer reads. No read fails, and
/// one posted after a change (so also one during its refresh) returns nothing from older pages.
///
/// Proves: FI-194
#[test]
fn without_notification_a_refresh_is_atomic_for_peers() {
    const LEN: usize = 4 * PAGE;
    const CHANGES: u8 = 200;
    let (a, b, peer) = pair(&Wish::default());
    // SAFETY: a C string, and flags that exist.
    let memfd = unsafe { libc::memfd_create(c"rkey-refresh".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(memfd >= 0);
    // SAFETY: a descriptor that nothing else owns.
    let memfd = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(memfd) };
    // Change n maps part n of the file, whose bytes are all n.
    for change in 0..=CHANGES {
        use std::os::unix::fs::FileExt as _;
        let at = u64::from(change) * LEN as u64;
        memfd.write_all_at(&[change; LEN], at).unwrap();
    }
    let at = map_at(0, LEN, RW);
    let map = |change: u8| {
        use std::os::fd::AsRawFd as _;
        let (flags, from) = (
            libc::MAP_SHARED | libc::MAP_FIXED,
            i64::from(change) * LEN as i64,
        );
        // SAFETY: replaces a mapping of this test; nothing refers to its bytes.
        let mapped = unsafe { libc::mmap(at as *mut _, LEN, RW, flags, memfd.as_raw_fd(), from) };
        assert_eq!(mapped as usize, at);
    };
    map(0);
    let mr = b.reg_at(at, LEN, REMOTE, 1, 0).unwrap();
    let (current, region) = (AtomicU8::new(0), mr.0 as usize);
    let during = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mr = Mr(region as *mut FidMr);
            for change in 1..=CHANGES {
                map(change);
                current.store(change, Ordering::SeqCst);
                let before = during.load(Ordering::SeqCst);
                let started = Instant::now();
                // At least one whole read happens while refreshes continue.
                while during.load(Ordering::SeqCst) < before + 2 {
                    assert_eq!(mr.refresh(&[]), 0);
                    assert!(started.elapsed() < PATIENCE, "the reader makes no progress");
                }
            }
        });
        let mut bytes = vec![0u8; LEN];
        while current.load(Ordering::SeqCst) < CHANGES {
            let expected = current.load(Ordering::SeqCst);
            assert_eq!(a.read(peer, &mut bytes, 0, 1), 0, "a refresh never refuses");
            let oldest = *bytes.iter().min().unwrap();
            assert!(oldest >= expected, "pages {oldest} after change {expected}");
            during.fetch_add(1, Ordering::SeqCst);
        }
        during.store(usize::MAX / 2, Ordering::SeqCst);
    });
    assert_eq!(mr.close(), 0);
    unmap(at, LEN);
}

/// Proves: FI-012, FI-184, FI-185, FI-189, FI-190, FI-258
#[test]
fn a_refresh_covers_only_mapped_memory_of_the_region() {
    for mode in [0, FI_MR_MMU_NOTIFY] {
        let b = Side::open(&Wish::mode(mode));
        let at = map_at(0, 2 * PAGE, RW);
        let mr = b.reg_at(at, 2 * PAGE, REMOTE, 1, 0).unwrap();
        let part = |offset, len| {
            [libc::iovec {
                iov_base: (at + offset) as *mut _,
                iov_len: len,
            }]
        };
        assert_eq!(mr.refresh(&[]), 0);
        assert_eq!(mr.refresh(&part(PAGE, PAGE)), 0);
        assert_eq!(mr.refresh(&part(PAGE, PAGE + 1)), -libc::EINVAL);
        assert_eq!(mr.refresh(&part(0, 0)), -libc::EINVAL);
        unmap(at + PAGE, PAGE);
        assert_eq!(mr.refresh(&part(0, PAGE)), 0);
        assert_eq!(mr.refresh(&part(PAGE, PAGE)), -libc::EFAULT);
        map_at(at + PAGE, PAGE, libc::PROT_NONE);
        assert_eq!(mr.refresh(&part(PAGE, PAGE)), -libc::EFAULT);
        assert_eq!(mr.refresh(&[]), -libc::EFAULT);
        assert_eq!(mr.close(), 0);
        unmap(at, 2 * PAGE);
    }
}

/// Proves: FI-136, FI-137
#[test]
fn page_sizes_of_the_system_are_accepted() {
    for version in [V1_17, V1_22] {
        let b = Side::open(&Wish {
            version,
            ..Wish::default()
        });
        let mut buffer = [0u8; 8];
        let iov = [iovec(&mut buffer)];
        for page_size in [0, PAGE] {
            let attr = LongMrAttr {
                page_size,
                ..attributes(&iov, REMOTE, 1)
            };
            assert_eq!(b.regattr(&attr, 0).unwrap().close(), 0);
        }
    }
}

/// A page size is checked and then has no effect: memory with other pages works as well.
///
/// Proves: FI-140
#[test]
fn the_actual_page_size_does_not_matter() {
    let wish = Wish {
        version: V1_22,
        ..Wish::default()
    };
    let huge = std::fs::read_dir("/sys/kernel/mm/hugepages").map_or_else(
        |_| vec![],
        |sizes| {
            let names = sizes.map(|size| size.unwrap().file_name().into_string().unwrap());
            let kib = |name: String| {
                name.trim_start_matches("hugepages-")
                    .trim_end_matches("kB")
                    .parse::<usize>()
            };
            names
                .map(|name| 1024 * kib(name).unwrap())
                .collect::<Vec<usize>>()
        },
    );
    let (a, b, peer) = pair(&wish);
    let at = map_at(0, PAGE, RW);
    let iov = [libc::iovec {
        iov_base: at as *mut _,
        iov_len: PAGE,
    }];
    for page_size in [0, PAGE].into_iter().chain(huge) {
        let attr = LongMrAttr {
            page_size,
            ..attributes(&iov, REMOTE, 1)
        };
        let mr = b.regattr(&attr, 0).unwrap();
        for value in [1, 2] {
            map_at(at, PAGE, RW);
            assert_eq!(a.write(peer, &[value; 8], 0, 1), 0, "{page_size}");
            // SAFETY: mapped just now.
            assert_eq!(unsafe { (at as *const u8).read_volatile() }, value);
        }
        assert_eq!(mr.close(), 0);
    }
    unmap(at, PAGE);
}

/// Proves: FI-148, FI-151, FI-152, FI-153, FI-154, FI-155, FI-056
#[test]
fn peers_access_a_dma_buf_that_the_program_has_not_mapped() {
    is_reached(|| {
        // SAFETY: a name; a new descriptor.
        let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"buffer".as_ptr(), 0)) };
        let file = File::from(file);
        file.set_len(3 * PAGE as u64).unwrap();
        Some((file.try_clone().unwrap().into(), file.into()))
    });
}

/// Runs only where the kernel has a driver that makes DMA-bufs; elsewhere the suite's output says that the test was skipped.
#[test]
fn peers_access_a_dma_buf_of_the_kernel() {
    is_reached(|| rkey_fakes::dma_buf(3 * PAGE));
}

/// A peer can access the buffers that `make` returns, each with a file of its pages, in every mode.
fn is_reached(make: impl Fn() -> Option<(OwnedFd, OwnedFd)>) {
    for (mode, base) in [
        (0, 0),
        (FI_MR_VIRT_ADDR, 0),
        (FI_MR_VIRT_ADDR, 0x7000_0000_0000),
    ] {
        let Some((buffer, pages)) = make() else {
            return;
        };
        let wish = Wish {
            caps: FI_MSG | FI_RMA | FI_HMEM,
            ..Wish::mode(mode)
        };
        let (a, b, peer) = pair(&wish);
        let pages = File::from(pages);
        reaches(&a, &b, peer, (mode, base), buffer.as_raw_fd(), &pages);
    }
}

/// A peer can access the bytes of a DMA-buf with these pages.
fn reaches(a: &Side, b: &Side, peer: u64, (mode, base): (c_int, u64), fd: c_int, pages: &File) {
    let offset = PAGE as u64 + 64;
    let register = |len, base: u64| {
        let buf = MrDmabuf {
            fd,
            offset,
            len,
            base_addr: base as *mut _,
        };
        let mut attr = attributes(&[], REMOTE, 1);
        attr.known.mr_iov = (&raw const buf).cast();
        attr.known.iov_count = 1;
        b.regattr(&attr, FI_MR_DMABUF)
    };
    let mr = register(128, base).unwrap();
    let first = if mode == 0 { 0 } else { base + offset };
    assert_eq!(a.write(peer, &[7; 8], first, 1), 0);
    assert_eq!(a.write(peer, &[8; 1], first + 127, 1), 0);
    assert_eq!(a.write(peer, &[9; 1], first + 128, 1), libc::EACCES);
    let mut bytes = [0u8; 192];
    pages.read_exact_at(&mut bytes, PAGE as u64).unwrap();
    assert_eq!(
        (&bytes[63..73], bytes[191]),
        (&[0, 7, 7, 7, 7, 7, 7, 7, 7, 0][..], 8)
    );
    assert_eq!(mr.close(), 0);
    let refused = Some(-libc::EINVAL);
    assert_eq!(register(128, base + 8).err(), refused, "not page-aligned");
    assert_eq!(register(3 * PAGE, base).err(), refused, "too long");
    absurd_buffers(b, fd);
}

/// Buffers with inconsistent numbers, or a descriptor of something else: all are refused.
fn absurd_buffers(b: &Side, memfd: c_int) {
    let page = PAGE as u64;
    let last = u64::MAX - (page - 1);
    let numbers = [0, 1, page, i64::MAX as u64 - 1, 1 << 63, last, u64::MAX];
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    for fd in [memfd, pipe[0], -1, c_int::MIN, c_int::MAX] {
        for offset in numbers {
            for len in numbers {
                for base in [0, page, 1 << 63, last] {
                    let small = offset <= page && (1..=page).contains(&len);
                    let end = base.checked_add(offset).and_then(|at| at.checked_add(len));
                    let buf = MrDmabuf {
                        fd,
                        offset,
                        len: len as usize,
                        base_addr: base as *mut _,
                    };
                    let mut attr = attributes(&[], REMOTE, 1);
                    attr.known.mr_iov = (&raw const buf).cast();
                    attr.known.iov_count = 1;
                    let made = b.regattr(&attr, FI_MR_DMABUF);
                    let expected = fd == memfd && small && end.is_some();
                    assert_eq!(
                        made.is_ok(),
                        expected,
                        "{fd} {offset:#x} {len:#x} {base:#x}"
                    );
                    if let Ok(mr) = made {
                        assert_eq!(mr.close(), 0);
                    }
                }
            }
        }
    }
    for end in pipe {
        // SAFETY: our own descriptor.
        unsafe { libc::close(end) };
    }
}

/// Proves: FI-123, FI-124, FI-130, FI-146
#[test]
fn the_memory_interface_is_ignored_without_fi_hmem() {
    let test = "pages::the_memory_interface_is_ignored_without_fi_hmem";
    // In a process of its own, because other tests load fake runtimes.
    apart(test, ("FI_HMEM_DISABLE_P2P", "0"), refused_without_runtimes);
}

fn refused_without_runtimes() {
    let plain = Side::open(&Wish::default());
    let hmem = Side::open(&Wish {
        caps: FI_MSG | FI_RMA | FI_HMEM,
        ..Wish::default()
    });
    let mut buffer = [0u8; 8];
    let iov = [iovec(&mut buffer)];
    for iface in -1..8 {
        let mut attr = attributes(&iov, REMOTE, 1);
        attr.known.iface = iface;
        attr.known.device = u64::MAX;
        assert_eq!(plain.regattr(&attr, 0).unwrap().close(), 0);
        let result = hmem.regattr(&attr, 0);
        match iface {
            FI_HMEM_SYSTEM => {
                assert_eq!(result.unwrap().close(), 0);
                assert_eq!(hmem.regattr(&attr, FI_HMEM_HOST_ALLOC).unwrap().close(), 0);
            }
            FI_HMEM_CUDA if std::path::Path::new("/dev/nvidiactl").exists() => {
                assert_eq!(result.err(), Some(-libc::EINVAL), "not its memory");
            }
            FI_HMEM_CUDA..=FI_HMEM_SYNAPSEAI => assert_eq!(result.err(), Some(-libc::ENOSYS)),
            _ => assert_eq!(result.err(), Some(-libc::EINVAL)),
        }
    }
}
