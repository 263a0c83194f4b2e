//! perftest: bandwidth and latency of every operation, with its options. The figures are ignored.
//!
//! For each size, perftest measures the processor's clock with half a second of arithmetic, so runs over all sizes
//! (`-a`) have few rounds. Where a program spins on memory instead of a completion queue (`ib_write_lat`), each round
//! waits until the device's thread gets a processor: milliseconds on a busy machine.

// UNSAFETY: pins programs to a processor between fork and exec.
#![allow(unsafe_code)]

use crate::support::{DEVICE, Stage};
use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs one program with several sets of options; both sides must succeed.
fn perftest(program: &str, options: &[&str]) {
    let stage = Stage::new(program);
    for line in options {
        let words: Vec<&str> = line.split_whitespace().collect();
        for text in stage.pair(program, &words, |_| {}) {
            assert!(text.contains(DEVICE), "{program} {line}: {text}");
        }
    }
}

#[test]
fn ib_write_bw_runs() {
    let options = [
        "-n 100 -q 4",
        "-n 100 -b",
        "-n 5 -a",
        "-n 100 -c UC",
        "-n 100 -s 64 -I 64",
    ];
    perftest("ib_write_bw", &options);
}

#[test]
fn ib_write_lat_runs() {
    let options = ["-n 20", "-n 20 -I 64", "-n 20 -c UC", "-n 5 -s 8388608"];
    perftest("ib_write_lat", &options);
}

/// Makes a program run on one processor only.
fn pin(command: &mut Command, processor: usize) {
    // SAFETY: all zeros is an empty set, `processor` is below its size, and the closure makes one system call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        command.pre_exec(move || {
            match libc::sched_setaffinity(0, size_of_val(&set), &raw const set) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// The processors on which this process may run.
fn allowed_processors() -> Vec<usize> {
    // SAFETY: all zeros is an empty set; the call fills it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let status = libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        assert_eq!(status, 0);
        set
    };
    // SAFETY: the index is below the size of the set.
    let is_allowed = |processor: &usize| unsafe { libc::CPU_ISSET(*processor, &set) };
    let size = libc::CPU_SETSIZE as usize;
    (0..size).filter(is_allowed).collect()
}

/// Each program has one processor, and spins on memory, so the thread of its device does not get the processor in time: both programs push
/// their writes.
#[test]
fn ib_write_lat_pushes_its_writes() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    // SAFETY: a system call without arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    let is_permitted = matches!(scope.trim(), "" | "0" | "1") || is_root;
    if !is_permitted || !cfg!(target_arch = "x86_64") {
        eprintln!("SKIP: no pushes here: the kernel or the processor does not permit them");
        return;
    }
    let [first, second, ..] = allowed_processors()[..] else {
        eprintln!("SKIP: the programs need a processor each");
        return;
    };
    let stage = Stage::new("ib_write_lat-pushes");
    let processors = Cell::new([first, second]);
    // 8 B are pushed on every processor.
    let words = ["-n", "1000", "-s", "8"];
    let said = stage.pair("ib_write_lat", &words, |command| {
        let [own, other] = processors.get();
        processors.set([other, own]);
        pin(command, own);
        command.env("RKEY_LOG", "debug").env("RKEY_PTRACER", "any");
    });
    for text in said {
        let line = text.lines().find(|it| it.contains("has pushed writes"));
        let line = line.unwrap_or_else(|| panic!("nothing was pushed: {text}"));
        let count = line.split("pushed=").nth(1).and_then(|rest| {
            let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
            let end = digits.find(|c: char| !c.is_ascii_digit());
            digits[..end.unwrap_or(digits.len())].parse().ok()
        });
        let count: u32 = count.unwrap_or_else(|| panic!("{line}"));
        // The first ones were slow.
        assert!(count >= 500, "{line}");
    }
}

#[test]
fn ib_read_bw_runs() {
    let options = ["-n 100 -q 4", "-n 100 -b", "-n 100 -e", "-n 5 -a"];
    perftest("ib_read_bw", &options);
}

#[test]
fn ib_read_lat_runs() {
    perftest("ib_read_lat", &["-n 20", "-n 20 -e"]);
}

#[test]
fn ib_send_bw_runs() {
    let options = [
        "-n 100 -q 4",
        "-n 100 -b -e",
        "-n 100 -c UC",
        "-n 100 -c UD -b",
        "-n 100 -c UD -e",
        "-n 5 -a",
    ];
    perftest("ib_send_bw", &options);
}

#[test]
fn ib_send_lat_runs() {
    let options = [
        "-n 20 -e",
        "-n 20 -I 64",
        "-n 20 -c UC",
        "-n 20 -c UD",
        "-n 5 -s 8388608",
    ];
    perftest("ib_send_lat", &options);
}

#[test]
fn ib_atomic_bw_runs() {
    perftest(
        "ib_atomic_bw",
        &[
            "-n 100 -A CMP_AND_SWAP -q 4",
            "-n 100 -A FETCH_AND_ADD -b",
            "-n 100 -e",
        ],
    );
}

#[test]
fn ib_atomic_lat_runs() {
    perftest(
        "ib_atomic_lat",
        &["-n 20 -A CMP_AND_SWAP", "-n 20 -A FETCH_AND_ADD"],
    );
}

/// Extended reliable connections: both halves get all attributes of a reliable connection, and each uses its
/// own.
#[test]
fn perftest_runs_over_extended_reliable_connections() {
    /// perftest leaves these files behind, which another user could not open.
    struct Domains;
    impl Drop for Domains {
        fn drop(&mut self) {
            for side in ["server", "client"] {
                let _ = std::fs::remove_file(format!("/tmp/xrc_domain_{side}"));
            }
        }
    }
    let _domains = Domains;
    for (program, options) in [
        ("ib_write_bw", "-n 100 -c XRC"),
        ("ib_write_bw", "-n 100 -c XRC -q 4 -b"),
        ("ib_write_lat", "-n 20 -c XRC"),
        ("ib_read_bw", "-n 100 -c XRC"),
        ("ib_read_lat", "-n 20 -c XRC"),
        ("ib_send_bw", "-n 100 -c XRC"),
        ("ib_send_bw", "-n 100 -c XRC -b -e"),
        ("ib_send_lat", "-n 20 -c XRC"),
        ("ib_atomic_bw", "-n 100 -c XRC -A CMP_AND_SWAP"),
        ("ib_atomic_lat", "-n 20 -c XRC -A FETCH_AND_ADD"),
    ] {
        perftest(program, &[options]);
    }
}

/// Sends more datagrams to a group than fit into the link to its member, which has posted enough receives for them.
#[test]
fn ib_send_bw_sends_to_a_multicast_group() {
    perftest(
        "ib_send_bw",
        &["-n 500 -c UD -g -x 0", "-n 500 -c UD -g -x 0 -s 1024"],
    );
}

/// Shared receive queues, and the older posting calls.
#[test]
fn ib_send_bw_uses_shared_receive_queues_and_old_posting_calls() {
    perftest(
        "ib_send_bw",
        &["-n 100 -r 100 --use-srq -q 2", "-n 100 --use_old_post_send"],
    );
}
