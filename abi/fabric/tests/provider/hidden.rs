//! Buffers of programs that do not offer `FI_MR_LOCAL` where the mode requires it: the provider registers them itself, with a
//! registration cache.

use crate::harness::*;
use crate::peer::{Peer, hear, is_peer, rerun, say, say_name};
use crate::registration::pair;
use rkey_device::{CacheView, Config, list_devices};
use rkey_fakes::{CUDA, LEVEL_ZERO, Place, ROCR, Runtime};
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const LOCAL: (&str, &str) = ("FI_RKEY_MR_MODE", "LOCAL");
const MONITOR: &str = "FI_MR_CACHE_MONITOR";
/// One fragment, and a message that the peer reads.
const LENGTHS: [usize; 2] = [2000, 1 << 20];

/// The caches of this process.
fn caches() -> Vec<CacheView> {
    let pid = std::process::id();
    let all = list_devices(&Config::from_env().unwrap()).unwrap();
    let own = all.into_iter().filter(|device| device.pid == pid);
    own.flat_map(|device| device.caches).collect()
}

/// The sum of a counter over the caches of this process.
fn sum(of: impl Fn(&CacheView) -> u64) -> u64 {
    caches().iter().map(of).sum()
}

/// The hits and misses of this process.
fn counts() -> (u64, u64) {
    let all = caches().into_iter();
    all.fold((0, 0), |sum, it| (sum.0 + it.hits, sum.1 + it.misses))
}

fn post(side: &Side, at: *mut u8, len: usize, to: Option<u64>) {
    let (at, desc) = (at.cast::<c_void>(), null_mut());
    // SAFETY: a live handle; the caller keeps the buffer until the completion.
    let code = again(|| unsafe {
        let ops = &*(*side.ep).msg;
        match to {
            Some(peer) => (ops.send)(side.ep, at, len, desc, peer, null_mut()),
            None => (ops.recv)(side.ep, at, len, desc, FI_ADDR_UNSPEC, null_mut()),
        }
    });
    assert_eq!(code, 0);
}

/// Sends a buffer within the process, and compares what arrives.
fn exchange((a, b, peer): &(Side, Side, u64), from: &mut [u8], into: &mut [u8]) {
    into.fill(0);
    post(b, into.as_mut_ptr(), into.len(), None);
    post(a, from.as_mut_ptr(), from.len(), Some(*peer));
    a.completion(&[b]).unwrap();
    b.completion(&[a]).unwrap();
    assert!(from == into);
}

/// Runs the test again with these variables, and returns what it logs.
fn run(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = rerun(test);
    for variable in [MONITOR, "FI_MR_CACHE_MAX_COUNT", "FI_MR_CACHE_MAX_SIZE"] {
        command.env_remove(variable);
    }
    command
        .env("RKEY_LOG", "warn")
        .envs(variables.iter().copied());
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{variables:?}: {said}{log}");
    assert!(said.contains("1 passed"), "{said}");
    for line in said.lines().filter(|line| line.starts_with("skipped")) {
        println!("{line}");
    }
    log
}

/// New memory, which stays mapped.
fn mapped(len: usize) -> &'static mut [u8] {
    let at = map_at(0, len, RW) as *mut u8;
    // SAFETY: mapped just now, and nothing else refers to it.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// Prevents a monitor from failing unnoticed: each cache has the monitor that the environment names, unless this host allows none.
fn monitors_are_as_requested() {
    let wanted = std::env::var(MONITOR).unwrap_or_default();
    let expected = match &*wanted {
        "uffd" | "userfaultfd" => "userfaultfd",
        "memhooks" => "memhooks",
        "disabled" => "disabled",
        _ => "none",
    };
    let without = match expected {
        // The test may have forbidden the monitor itself.
        "userfaultfd" => rkey_cache::Userfaultfd::open()
            .err()
            .map(|it| it.to_string()),
        _ => None,
    };
    let all = caches();
    assert!(!all.is_empty());
    for cache in all.iter().filter(|cache| cache.monitor != "buffer ids") {
        match &without {
            None => {
                assert_eq!(cache.monitor, expected);
                // The reason why none is needed.
                assert_eq!(cache.monitor_reason.is_some(), expected == "none");
            }
            Some(why) => {
                println!("skipped: {wanted}: {why}");
                assert_eq!(cache.monitor, "disabled");
                assert_eq!(cache.monitor_reason.as_ref(), Some(why));
            }
        }
    }
}

/// Every kind of transfer, twice with the same buffers: the second time, the cache has all registrations.
fn transfers() {
    let sides = pair(&Wish::default());
    let (a, b, peer) = (&sides.0, &sides.1, sides.2);
    let mut target = vec![0u8; 1 << 20];
    let mr = b.reg(&mut target, REMOTE, 1, 0).unwrap();
    monitors_are_as_requested();
    let on = caches().iter().all(|cache| cache.off.is_none());
    for len in LENGTHS {
        // Put each buffer into pages of its own, so that no other allocation changes them.
        let (bytes, into, number) = (mapped(len), mapped(len), mapped(8));
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        for round in 0..2 {
            let before = counts();
            bytes[0] = round;
            exchange(&sides, bytes, into);
            assert_eq!(a.write(peer, bytes, 0, 1), 0);
            assert!(target[..len] == *bytes);
            into.fill(0);
            assert_eq!(a.read(peer, into, 0, 1), 0);
            assert!(bytes == into);
            fetch(a, b, peer, number);
            let after = counts();
            let (hits, misses) = (after.0 - before.0, after.1 - before.1);
            match (on, round) {
                (false, _) => assert_eq!((hits, misses), (0, 0)),
                (true, 0) => assert!(misses > 0),
                // The source and target of a message, those of a write and a read, operand and result of an atomic; more if a post
                // was repeated.
                (true, _) => assert!(hits >= 6 && misses == 0, "{hits} {misses}"),
            }
        }
    }
    assert_eq!(mr.close(), 0);
    assert_eq!([sides.0.ep, sides.1.ep].map(|ep| close(ep.cast())), [0; 2]);
    sides.0.close_rest();
    sides.1.close_rest();
    assert!(caches().is_empty());
}

/// Fetches a number, and adds to it.
fn fetch(a: &Side, b: &Side, peer: u64, number: &mut [u8]) {
    let (at, none) = (number.as_mut_ptr().cast::<c_void>(), null_mut());
    // SAFETY: a live handle; the buffer stays until the completion.
    let code = again(|| unsafe {
        let add = (*(*a.ep).atomic).readwrite;
        let (kind, op) = (FI_UINT64, FI_SUM);
        add(a.ep, at, 1, none, at, none, peer, 0, 1, kind, op, none)
    });
    assert_eq!(code, 0);
    a.completion(&[b]).unwrap();
}

/// Proves: FI-048, FI-231, FI-233, FI-238, FI-239, FI-240
#[test]
fn buffers_are_registered_once_under_every_monitor() {
    if is_peer() {
        transfers();
        return;
    }
    let test = "hidden::buffers_are_registered_once_under_every_monitor";
    for monitor in ["", "userfaultfd", "uffd", "memhooks", "disabled"] {
        let log = run(test, &[LOCAL, (MONITOR, monitor)]);
        let told = log
            .matches("the provider registers the program's buffers itself")
            .count();
        assert_eq!(told, 1, "{log}");
    }
    run(test, &[LOCAL, ("FI_MR_CACHE_MAX_COUNT", "0")]);
    let log = run(
        test,
        &[LOCAL, (MONITOR, "kdreg3"), ("FI_MR_CACHE_MAX_SIZE", "-7")],
    );
    for said in [
        "FI_MR_CACHE_MONITOR=kdreg3 has no effect: choose userfaultfd, memhooks or disabled",
        "FI_MR_CACHE_MAX_SIZE=-7 has no effect: give a number of bytes",
    ] {
        assert_eq!(log.matches(said).count(), 1, "{log}");
    }
}

/// Proves in strict mode: FI-039
#[test]
fn in_strict_mode_fi_mr_local_is_required() {
    if is_peer() {
        let provider = rkey_fi::fi_prov_ini();
        let mut info = null_mut();
        // SAFETY: the entry point's structure; complete hints.
        let code = unsafe {
            let mut domain: DomainAttr = std::mem::zeroed();
            let mut hints: Info = std::mem::zeroed();
            hints.domain_attr = &mut domain;
            let none = std::ptr::null();
            ((*provider).getinfo)(V1_17, none, none, 0, &hints, &mut info)
        };
        let strict = std::env::var("FI_RKEY_STRICT").is_ok_and(|it| it == "1");
        assert_eq!(code, if strict { -libc::ENODATA } else { 0 });
        if !strict {
            // SAFETY: the provider's `fi_info`.
            assert_eq!(unsafe { (*(*info).domain_attr).mr_mode }, 0);
        }
        return;
    }
    let test = "hidden::in_strict_mode_fi_mr_local_is_required";
    run(test, &[LOCAL, ("FI_RKEY_STRICT", "0")]);
    let log = run(test, &[LOCAL, ("FI_RKEY_STRICT", "1")]);
    assert!(log.contains("requires FI_MR_LOCAL"), "{log}");
}

/// Memory that changes between transfers: if the environment names a monitor, the entries of unmapped memory are removed.
fn changes() {
    let sides = pair(&Wish::default());
    let (mut into, len) = (vec![0u8; 1 << 16], 1 << 16);
    let ended = sum(|it| it.invalidations);
    for round in 1..=20u8 {
        let at = map_at(0, len, RW);
        // SAFETY: mapped just now, and nothing else refers to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) };
        bytes.fill(round);
        exchange(&sides, bytes, &mut into);
        unmap(at, len);
    }
    let ended = sum(|it| it.invalidations) - ended;
    let named = std::env::var(MONITOR).is_ok_and(|name| !name.is_empty());
    monitors_are_as_requested();
    let works = caches().iter().all(|it| it.off.is_none());
    assert_eq!(ended >= 20, named && works, "{ended} {:?}", caches());
}

/// Proves: FI-241, FI-242, FI-243
#[test]
fn a_monitor_named_in_the_environment_removes_entries() {
    if is_peer() {
        return changes();
    }
    let test = "hidden::a_monitor_named_in_the_environment_removes_entries";
    for monitor in ["", "userfaultfd", "memhooks", "disabled"] {
        run(test, &[LOCAL, (MONITOR, monitor)]);
    }
}

/// Proves: FI-234, FI-236
#[test]
fn cache_limits_hold_except_for_buffers_in_use() {
    if is_peer() {
        let sides = pair(&Wish::default());
        let mut buffers = vec![vec![0u8; 8192]; 6];
        for buffer in &mut buffers {
            post(&sides.1, buffer.as_mut_ptr(), 8192, None);
        }
        let (entries, bytes) = (sum(|it| it.entries), sum(|it| it.bytes));
        match limited_by("COUNT") {
            true => assert_eq!(entries, 2),
            // Each entry is in use, so the limit of bytes does not remove it.
            false => assert!(entries == 6 && bytes > 24_576, "{entries} {bytes}"),
        }
        let mut bytes = vec![9u8; 8192];
        for _ in 0..6 {
            post(&sides.0, bytes.as_mut_ptr(), 8192, Some(sides.2));
            sides.0.completion(&[&sides.1]).unwrap();
            sides.1.completion(&[&sides.0]).unwrap();
        }
        assert!(buffers.iter().all(|buffer| *buffer == bytes));
        let largest = |it: &CacheView| it.entries <= 2 && it.bytes <= 24_576;
        assert!(caches().iter().all(largest), "{:?}", caches());
        return;
    }
    let test = "hidden::cache_limits_hold_except_for_buffers_in_use";
    run(test, &[LOCAL, ("FI_MR_CACHE_MAX_COUNT", "2")]);
    run(test, &[LOCAL, ("FI_MR_CACHE_MAX_SIZE", "24576")]);
}

/// Proves: FI-235, FI-237, FI-I46
#[test]
fn by_default_the_cache_has_at_most_1024_entries_of_any_size() {
    if is_peer() {
        let (a, b, peer) = pair(&Wish::default());
        let mut target = vec![0u8; 8];
        let mr = b.reg(&mut target, REMOTE, 1, 0).unwrap();
        for page in mapped(1100 * 4096).chunks(4096) {
            assert_eq!(a.write(peer, &page[..8], 0, 1), 0);
        }
        let large = mapped(1 << 30);
        assert_eq!(a.write(peer, &large[..8], 0, 1), 0);
        assert_eq!((sum(|it| it.entries), sum(|it| it.evictions)), (1024, 77));
        assert_eq!(mr.close(), 0);
        return;
    }
    run(
        "hidden::by_default_the_cache_has_at_most_1024_entries_of_any_size",
        &[LOCAL],
    );
}

/// Prevents this thread, and threads that it starts, from opening a userfaultfd.
fn forbid_userfaultfd() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const NEW: u32 = 0xaa00; // USERFAULTFD_IOC_NEW
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut lines = [
        line(LOAD, 0, 0, 0), // the number of the call
        line(EQUAL, 3, 0, libc::SYS_userfaultfd as u32),
        line(EQUAL, 0, 3, libc::SYS_ioctl as u32),
        line(LOAD, 0, 0, 24), // its second argument
        line(EQUAL, 0, 1, NEW),
        line(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        line(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: lines.len() as u16,
        filter: lines.as_mut_ptr(),
    };
    // SAFETY: a complete program, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

/// The log says of each lookup why it was a hit or a miss, and nothing if it is not asked for.
#[test]
fn the_log_explains_each_lookup() {
    const TEST: &str = "hidden::the_log_explains_each_lookup";
    if is_peer() {
        let (a, b, peer) = pair(&Wish::default());
        let mut target = vec![0u8; 4096];
        let mr = b.reg(&mut target, REMOTE, 1, 0).unwrap();
        let bytes = mapped(4096);
        for _ in 0..2 {
            assert_eq!(a.write(peer, bytes, 0, 1), 0);
        }
        assert_eq!(mr.close(), 0);
        return;
    }
    let explained = ["miss: no entry overlaps the range", ", host: hit"];
    let log = run(TEST, &[LOCAL, ("RKEY_LOG", "rkey_fi::mr=trace")]);
    for said in explained {
        assert!(log.contains(said), "{said}: {log}");
    }
    let log = run(
        TEST,
        &[
            LOCAL,
            (MONITOR, "disabled"),
            ("RKEY_LOG", "rkey_fi::mr=trace"),
        ],
    );
    assert!(log.contains("not cached: the monitor is disabled"), "{log}");
    let log = run(TEST, &[LOCAL, ("RKEY_LOG", "info")]);
    assert!(explained.iter().all(|said| !log.contains(said)), "{log}");
}

/// Proves: FI-I47
#[test]
fn a_monitor_that_does_not_start_turns_the_cache_off() {
    if is_peer() {
        forbid_userfaultfd();
        transfers();
        let (_a, _b, _) = pair(&Wish::default());
        let all = caches();
        assert!(
            all.iter()
                .all(|it| it.monitor == "disabled" && it.off.is_some()),
            "{all:?}"
        );
        assert!(all.iter().all(|it| it.monitor_reason.is_some()), "{all:?}");
        return;
    }
    let test = "hidden::a_monitor_that_does_not_start_turns_the_cache_off";
    let log = run(test, &[LOCAL, (MONITOR, "userfaultfd")]);
    let said = "FI_MR_CACHE_MONITOR=userfaultfd cannot be used, so registrations are not cached: ";
    assert_eq!(log.matches(said).count(), 1, "{log}");
}

fn limited_by(what: &str) -> bool {
    std::env::var(format!("FI_MR_CACHE_MAX_{what}")).is_ok()
}

/// The fake runtime and the variable of each kind.
const DEVICES: [(Runtime, &str); 3] = [
    (CUDA, "FI_MR_CUDA_CACHE_MONITOR_ENABLED"),
    (ROCR, "FI_MR_ROCR_CACHE_MONITOR_ENABLED"),
    (LEVEL_ZERO, "FI_MR_ZE_CACHE_MONITOR_ENABLED"),
];

/// Sends memory of a device twice, then from another allocation at the same address.
fn of_device(runtime: Runtime, enabled: bool) {
    let Some(fake) = runtime.load() else { return };
    let sides = pair(&crate::hmem::wish(0));
    let len = 8192;
    let mut into = vec![0u8; len];
    let devices = || {
        let all = caches().into_iter();
        let of = all
            .filter(|it| it.monitor == "buffer ids")
            .map(|it| (it.hits, it.misses));
        of.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    };
    let mut addresses = Vec::new();
    for seed in 1..4u8 {
        let at = fake.alloc(Place::Device, 0, len);
        addresses.push(at);
        for _ in 0..2 {
            fake.poke(at, &vec![seed; len]);
            into.fill(0);
            post(&sides.1, into.as_mut_ptr(), len, None);
            post(&sides.0, at as *mut u8, len, Some(sides.2));
            sides.0.completion(&[&sides.1]).unwrap();
            sides.1.completion(&[&sides.0]).unwrap();
            assert_eq!(into, vec![seed; len]);
        }
        fake.free(at);
    }
    let again = addresses.iter().all(|at| *at == addresses[0]);
    assert!(again, "the fake runtime gives out {addresses:x?}");
    // There is one registration for each allocation, and the cache never returns a registration of freed memory.
    let (hits, misses) = devices();
    match enabled {
        true => assert!(hits >= 3 && misses == 3, "{hits} {misses}"),
        false => assert_eq!((hits, misses), (0, 0)),
    }
}

/// Proves: FI-232
/// Proves partly: FI-244, FI-245, FI-246 (with fake runtimes, not on real hardware)
#[test]
fn device_memory_is_cached_by_its_buffer_id() {
    let test = "hidden::device_memory_is_cached_by_its_buffer_id";
    if is_peer() {
        let number: usize = std::env::var("RKEY_TEST_DEVICE").unwrap().parse().unwrap();
        let (runtime, variable) = DEVICES[number];
        let value = std::env::var(variable).unwrap_or_default();
        return of_device(runtime, value != "0");
    }
    for (number, (_, variable)) in DEVICES.into_iter().enumerate() {
        let number = ("RKEY_TEST_DEVICE", &*number.to_string());
        for value in ["", "1", "0"] {
            run(test, &[LOCAL, number, (variable, value)]);
        }
        let log = run(test, &[LOCAL, number, (variable, "yes")]);
        let said = format!("{variable}=yes has no effect: choose 0 or 1");
        assert_eq!(log.matches(&said).count(), 1, "{log}");
    }
}

/// The peer process: receives each message and sends it back, then reports its cache's hits and misses.
fn answers() {
    let side = Side::open(&Wish::default());
    say_name(&side);
    let other = side.insert(&crate::peer::name_in(&hear().unwrap()));
    let mut buffer = vec![0u8; 1 << 20];
    for len in LENGTHS {
        post(&side, buffer.as_mut_ptr(), len, None);
        say("posted");
        side.completion(&[]).unwrap();
        post(&side, buffer.as_mut_ptr(), len, Some(other));
        side.completion(&[]).unwrap();
    }
    let (hits, misses) = counts();
    say(&format!("{hits} {misses}"));
    while hear().is_some_and(|word| word != "end") {}
}

#[test]
fn messages_travel_between_two_processes_under_every_monitor() {
    if is_peer() {
        return answers();
    }
    let test = "hidden::messages_travel_between_two_processes_under_every_monitor";
    for monitor in ["userfaultfd", "memhooks", "disabled"] {
        let mut peer = Peer::start(test, &[LOCAL, (MONITOR, monitor)]);
        let side = Side::open(&Wish::default());
        let number = side.insert(&peer.name());
        peer.tell(&crate::peer::word_of_name(&side));
        for len in LENGTHS {
            let mut bytes: Vec<u8> = (0..len).map(|at| (at % 241) as u8).collect();
            let mut back = vec![0u8; len];
            assert_eq!(peer.heard(), "posted");
            post(&side, back.as_mut_ptr(), len, None);
            post(&side, bytes.as_mut_ptr(), len, Some(number));
            side.completion(&[]).unwrap();
            side.completion(&[]).unwrap();
            assert!(bytes == back);
        }
        let counts = peer.heard();
        match monitor {
            "disabled" => assert_eq!(counts, "0 0"),
            // The second message is longer: it has entries of its own.
            _ => assert_ne!(counts, "0 0"),
        }
        peer.finish();
        assert_eq!(close(side.ep.cast()), 0);
    }
}

/// A transfer with a buffer that is not mapped, or whose address is invalid, completes with an error.
#[test]
fn a_write_from_an_unmapped_buffer_fails() {
    if is_peer() {
        let (a, b, peer) = pair(&Wish::default());
        let mut target = vec![0u8; 4096];
        let mr = b.reg(&mut target, REMOTE, 1, 0).unwrap();
        let gone = map_at(0, 4096, RW);
        unmap(gone, 4096);
        for at in [gone, usize::MAX - 8191, 1 << 47] {
            // SAFETY: a live handle; the provider copies with care.
            let code: isize = again(|| unsafe {
                let write = (*(*a.ep).rma).write;
                let (at, none) = (at as *const c_void, null_mut());
                write(a.ep, at, 4096, none, peer, 0, 1, none)
            });
            let refused = code != 0 || a.completion(&[&b]).is_err();
            assert!(refused, "{at:#x}");
        }
        let ok: c_int = a.write(peer, &[1; 64], 0, 1);
        assert_eq!((ok, mr.close()), (0, 0));
        return;
    }
    for monitor in ["", "userfaultfd", "memhooks"] {
        run(
            "hidden::a_write_from_an_unmapped_buffer_fails",
            &[LOCAL, (MONITOR, monitor)],
        );
    }
}
