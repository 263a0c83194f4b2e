//! Peers that break the protocol to keep access to our memory: they claim forever that they are copying, from threads
//! that never sleep, and write as long as they can.
// UNSAFETY: writes to mappings that belong to the library, sends signals to its thread, and calls
// `process_vm_writev` with a list in the permit of the link.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::process::{Peer, role, sleep_in_read};
use common::side::{AREA, Remote, SINK, SINK_COUNT, SINK_WORDS, Side, seed_of};
use common::{LONG, pattern, until};
use rkey_base::range::VaRange;
use rkey_core::{Access, RegionSpec};
use rkey_engine::{SendRequest, Status, Work};

/// The busy word of a responder's half: it is set while the responder accesses the requester's memory.
const BUSY: usize = 640;
/// What the peer writes to our memory.
const SCRIBBLE: u64 = 0xbad0_bad0_bad0_bad0;

/// The start addresses of our writable mappings of shared memory with this name.
fn mappings(name: &str) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains(name) && line.contains("rw-s"))
        .map(|line| usize::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap())
        .collect()
}

extern "C" fn spin(_: i32) {
    loop {
        std::hint::spin_loop();
    }
}

/// Makes the engine thread spin in a signal handler forever, so it no longer responds.
fn stall_the_engine_thread() {
    // SAFETY: a handler that touches nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = spin as extern "C" fn(i32) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()),
            0
        );
    }
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.trim() == "rkey-engine" {
            let tid: i32 = task.file_name().to_str().unwrap().parse().unwrap();
            let pid = std::process::id() as i32;
            // SAFETY: sends a signal to our own thread.
            let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGTRAP) };
            assert_eq!(sent, 0);
        }
    }
}

/// Sets the busy word of all halves forever.
fn claim_to_copy(halves: &[usize]) {
    loop {
        for half in halves {
            // SAFETY: an aligned word of a mapping that lives as long as the device, which is never closed
            // here.
            unsafe { AtomicU64::from_ptr((half + BUSY) as *mut u64).store(1, Ordering::Relaxed) };
        }
    }
}

/// Writes to the test's memory forever, with the list of addresses in the permit, as the protocol requires.
fn write_while_permitted(test: i32, to: u64) {
    let [permit] = mappings("memfd:rkey-permit")[..] else {
        panic!("not one permit")
    };
    let bytes = [SCRIBBLE; SINK_WORDS];
    let len = size_of_val(&bytes);
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: len,
    };
    let list = permit as *mut libc::iovec;
    // SAFETY: the permit's page is mapped, and nothing else uses it because the engine thread is stalled. The kernel
    // checks the addresses.
    unsafe {
        list.write(libc::iovec {
            iov_base: to as *mut libc::c_void,
            iov_len: len,
        });
        loop {
            libc::process_vm_writev(test, &raw const local, 1, list, 1, 0);
        }
    }
}

/// The hostile peer, with this many threads that claim to copy.
fn peer_that_never_rests(threads: usize) {
    let side = Side::open(seed_of(11) | 1);
    let (offer, qp) = (side.offer(), side.qp());
    let test = side.connect_to_test(&qp, &offer);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let pid = line.trim().parse().unwrap();
    stall_the_engine_thread();
    let halves = mappings("memfd:rkey-link");
    for _ in 0..threads {
        let halves = halves.clone();
        std::thread::spawn(move || claim_to_copy(&halves));
    }
    // Threads that sleep do not help the peer but must be checked.
    for _ in 0..200 {
        std::thread::spawn(|| std::thread::sleep(10 * LONG));
    }
    let to = test.base + 8 * SINK as u64;
    std::thread::spawn(move || write_while_permitted(pid, to));
    sleep_in_read();
    // The device cannot be closed because its thread is stalled.
    std::process::exit(0);
}

/// Registers and deregisters regions for which the peer has no key, until `is_over`. Returns the shortest time of a
/// deregistration.
fn close_others(side: &Side, is_over: impl Fn() -> bool) -> Duration {
    let memory = [0u64; 512];
    let ranges = [VaRange::new(memory.as_ptr() as u64, 4096).unwrap()];
    let mut least = Duration::MAX;
    while !is_over() {
        let spec = RegionSpec::new(side.domain, &ranges, Access::REMOTE_READ);
        // SAFETY: memory that is only read, and outlives the region.
        let region = unsafe { side.device.register(&spec) }.unwrap();
        let started = Instant::now();
        side.device.deregister(region).unwrap();
        if is_over() {
            break;
        }
        least = least.min(started.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    least
}

/// Deregistering a region returns even if such a peer has its key, and no byte of the region changes afterwards.
/// Deregistering other regions does not wait for the peer at all.
fn is_no_hindrance(test: &str, role_of_peer: &str) {
    // A deregistration that hangs would hang this test, because its peer never rests.
    let over = std::sync::Arc::new(());
    let watched = std::sync::Arc::downgrade(&over);
    std::thread::spawn(move || {
        std::thread::sleep(3 * LONG);
        if watched.upgrade().is_some() {
            eprintln!("a region has still not been deregistered");
            std::process::abort();
        }
    });
    let mut side = Side::open(seed_of(12) | 1);
    let listener = side.listen();
    let mut peer = Peer::start(test, role_of_peer, listener.local_address());
    let (offer, qp) = (side.offer(), side.qp());
    let remote: Remote = side.accept(&listener, &qp, &offer);
    let mut direct = None;
    until("a link to the peer", || {
        let links = side.device.inspect().unwrap().links;
        direct = links
            .iter()
            .find(|l| l.role == "requester")
            .map(|l| l.remote_iovec);
        direct.is_some()
    });
    if direct == Some(false) {
        eprintln!("SKIP: the kernel does not permit copies between processes here");
        return side.withdraw(&offer);
    }
    // This request has been executed, so the peer has used its permit.
    let read = Work::Read {
        remote: remote.pattern(0),
    };
    side.run(&qp, read, &[side.sge(SINK, AREA)]);
    let stdin = peer.0.stdin.as_mut().unwrap();
    std::io::Write::write_all(stdin, format!("{}\n", std::process::id()).as_bytes()).unwrap();
    let word = || {
        side.memory
            .first_other(SINK, 1, |_, value| value == SCRIBBLE)
    };
    until("the peer's first write", || word().is_none());
    // The region to deregister, in a request that the peer never completes.
    let read = Work::Read {
        remote: remote.pattern(0),
    };
    qp.post_send(&SendRequest::new(1, read, &[side.sge(SINK, AREA)]))
        .unwrap();
    let (closed, others) = std::thread::scope(|scope| {
        let closing = scope.spawn(|| {
            let started = Instant::now();
            side.close_local();
            started.elapsed()
        });
        let is_gone = || {
            !side
                .device
                .inspect()
                .unwrap()
                .links
                .iter()
                .any(|l| l.role == "requester")
        };
        while !closing.is_finished() && !is_gone() {
            std::thread::sleep(Duration::from_micros(300));
        }
        let others = close_others(&side, || closing.is_finished());
        (closing.join().unwrap(), others)
    });
    eprintln!("{test}: deregistered after {closed:.1?}, others in {others:.1?}");
    let fill = |word: usize| pattern(seed_of(13), word);
    side.memory.fill(SINK, SINK_COUNT * SINK_WORDS, fill);
    std::thread::sleep(Duration::from_millis(200));
    let other = side
        .memory
        .first_other(SINK, SINK_COUNT * SINK_WORDS, |word, value| {
            value == fill(word)
        });
    assert_eq!(other, None, "written after the region was deregistered");
    assert_eq!(side.next().status, Status::RetryExceeded);
    assert!(
        others < Duration::from_millis(500),
        "another region waited: {others:?}"
    );
    assert!(
        peer.0.try_wait().unwrap().is_none(),
        "the peer died, so it delayed nothing"
    );
    side.open_local();
    drop((qp, over));
    side.withdraw(&offer);
}

#[test]
fn a_peer_that_claims_to_copy_forever_delays_only_its_own_regions() {
    match role() {
        None => is_no_hindrance(
            "a_peer_that_claims_to_copy_forever_delays_only_its_own_regions",
            "peer",
        ),
        Some(_) => peer_that_never_rests(1),
    }
}

/// Each of many threads gets only a little processor time, so none of them uses enough to be cleared in time.
#[test]
fn a_peer_whose_threads_claim_to_copy_delays_only_its_own_regions() {
    match role() {
        None => is_no_hindrance(
            "a_peer_whose_threads_claim_to_copy_delays_only_its_own_regions",
            "peer",
        ),
        Some(_) => peer_that_never_rests(16),
    }
}
