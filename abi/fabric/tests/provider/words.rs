//! The messages for the author of a program: one line for each refusal, in libfabric's terms.

use crate::harness::*;
use crate::peer::{hear, is_peer, rerun};
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::{CStr, c_char};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::ptr::null_mut;
use std::sync::mpsc;

/// The `N` lines that this test writes to standard error when it runs again alone with these required mode bits.
fn log_of<const N: usize>(test: &str, mode: &str) -> [String; N] {
    log_with(test, &[("RKEY_LOG", "warn"), ("FI_RKEY_MR_MODE", mode)])
}

/// The `N` lines that this test writes to standard error when it runs again alone with these variables.
fn log_with<const N: usize>(test: &str, variables: &[(&str, &str)]) -> [String; N] {
    let mut child = rerun(test)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    // Stops at the expected number of lines, or after a time limit.
    let (enough, wait) = mpsc::channel::<()>();
    let stdin = child.stdin.take();
    std::thread::spawn(move || {
        let _ = wait.recv_timeout(PATIENCE);
        drop(stdin);
    });
    let mut lines: Vec<String> = log.by_ref().take(N).map(Result::unwrap).collect();
    // A device may write slightly after the call in question.
    drop(enough);
    lines.extend(log.map(Result::unwrap));
    assert!(child.wait().unwrap().success(), "{lines:#?}");
    let told = lines.try_into();
    told.unwrap_or_else(|lines: Vec<String>| panic!("{lines:#?}"))
}

/// In the peer, waits until the test has read enough.
fn wait_for_test() {
    while hear().is_some() {}
}

#[test]
fn a_refusal_is_reported_once_on_each_side_in_libfabrics_terms() {
    if is_peer() {
        let (a, _b, peer) = pair(&Wish::default());
        assert_eq!(a.write(peer, &[6; 4], 0, 2), 266);
        return wait_for_test();
    }
    let lines = log_of(
        "words::a_refusal_is_reported_once_on_each_side_in_libfabrics_terms",
        "",
    );
    let [one, two] = &lines;
    // The target's device reports first.
    let (target, initiator) = if one.contains("requested by") {
        (one, two)
    } else {
        (two, one)
    };
    let said = "RDMA write of 4 B at 0x0 with requested key 0x2";
    assert!(
        target.contains(said) && target.contains(" over endpoint "),
        "{target}"
    );
    let to = "to fi_addr 0, fi_sockaddr_in://127.0.0.1:";
    assert!(
        initiator.contains(said) && initiator.contains("(endpoint ") && initiator.contains(to),
        "{initiator}"
    );
    assert!(lines.iter().all(|line| !line.contains("queue pair")));
}

/// An unknown level does not silence refusals, nor does an empty one.
#[test]
fn an_invalid_log_level_does_not_silence_refusals() {
    if is_peer() {
        let (a, _b, peer) = pair(&Wish::default());
        assert_eq!(a.write(peer, &[6; 4], 0, 2), 266);
        return wait_for_test();
    }
    let test = "words::an_invalid_log_level_does_not_silence_refusals";
    let refusals = |lines: &[String]| {
        let told = lines.iter().filter(|line| line.contains(" denied: "));
        told.count()
    };
    let lines: [String; 2] = log_with(test, &[("RKEY_LOG", "")]);
    assert_eq!(refusals(&lines), 2, "{lines:#?}");
    for bad in ["banana", "-1"] {
        let lines: [String; 3] = log_with(test, &[("RKEY_LOG", bad)]);
        assert_eq!(refusals(&lines), 2, "{lines:#?}");
        let told = format!("RKEY_LOG={bad:?} is not allowed: it must be off, error, warn");
        assert!(lines[0].contains(&told), "{lines:#?}");
    }
}

#[test]
fn a_send_without_the_required_descriptor_is_explained() {
    if is_peer() {
        let (a, _b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
        let bytes = [1u8; 8];
        // SAFETY: the handle is live; nothing is sent.
        let code = again(|| unsafe {
            let send = (*(*a.ep).msg).send;
            send(a.ep, bytes.as_ptr().cast(), 8, null_mut(), peer, null_mut())
        });
        assert_eq!(code, -(libc::EINVAL as isize));
        return wait_for_test();
    }
    let [line] = log_of(
        "words::a_send_without_the_required_descriptor_is_explained",
        "",
    );
    assert!(line.contains(" send of 8 B at 0x"), "{line}");
}

/// An error number alone does not say what was wrong: `RKEY_LOG=info` explains it.
#[test]
fn at_level_info_the_log_explains_failed_calls() {
    if is_peer() {
        let wish = Wish::default();
        let side = Side::waiting(open_domain(wish.version, wish.info()), wish.info());
        let mut bytes = vec![0u8; 100_000];
        let at = bytes.as_mut_ptr().cast();
        // SAFETY: the handles are live; nothing is sent or written.
        unsafe {
            let inject_write = (*(*side.ep).rma).inject;
            let inject_write = |len, peer| inject_write(side.ep, at, len, peer, 0, 2);
            let trecv = (*(*side.ep).tagged).recv;
            let trecv = trecv(side.ep, at.cast(), 8, null_mut(), 0, 0, 0, null_mut());
            assert_eq!([inject_write(8, 0), trecv], [-258; 2]);
            assert_eq!(side.enable(), -267);
            assert_eq!(bind(side.ep.cast(), side.av.cast(), 0), 0);
            assert_eq!(side.enable(), 0);
            assert_eq!(inject_write(8, 77), -libc::EINVAL as isize);
            assert_eq!(inject_write(100_000, 0), -libc::EMSGSIZE as isize);
        }
        assert_eq!(
            side.reg_at(4096, 0, REMOTE, 1, 0).unwrap_err(),
            -libc::EINVAL
        );
        let mr = side.reg(&mut bytes, REMOTE, 1, 0).unwrap();
        for open in [side.domain.cast(), side.cq.cast(), side.fabric.cast()] {
            assert_eq!(close(open), -libc::EBUSY);
        }
        assert_eq!([mr.close(), close(side.ep.cast())], [0; 2]);
        side.close_rest();
        return;
    }
    let test = "words::at_level_info_the_log_explains_failed_calls";
    let lines: [String; 9] = log_with(test, &[("RKEY_LOG", "info")]);
    for (line, words) in lines.iter().zip([
        "the endpoint is not enabled (fi_enable)",
        "the endpoint is not enabled (fi_enable)",
        "the endpoint is not bound to an address vector (fi_ep_bind)",
        "fi_addr 0x4d is not in the endpoint's address vector",
        "an injected transfer (inject_size) may have at most 4096 B",
        "cannot register 0 B from 0x1000",
        "still in use by 1 endpoint, 1 completion queue, 1 address vector, 1 memory region; close",
        "still in use by endpoints that are bound to the completion queue",
        "still in use by domains, event queues or passive endpoints of the fabric",
    ]) {
        assert!(line.contains(words), "{lines:#?}");
    }
}

/// The advice names the limit that was reached.
#[test]
fn the_log_names_the_limit_that_was_reached() {
    if is_peer() {
        let wish = Wish::default();
        let (_fabric, domain) = open_domain(wish.version, wish.info());
        let mut ep = null_mut();
        // SAFETY: live handles, and room for a handle.
        let code = unsafe { ((*(*domain).ops).endpoint)(domain, wish.info(), &mut ep, null_mut()) };
        assert_eq!(code, -libc::ENOMEM);
        return;
    }
    let test = "words::the_log_names_the_limit_that_was_reached";
    for limit in ["RKEY_MAX_TOTAL_BYTES", "RKEY_MAX_REGION_BYTES"] {
        let [line] = log_with(test, &[("RKEY_LOG", "warn"), (limit, "1")]);
        assert_eq!(line.matches("RKEY_MAX").count(), 1, "{line}");
        assert!(line.contains(&format!("(raise it with {limit})")), "{line}");
    }
}

/// What this test reports to `rkey watch` when it runs again alone.
fn reported(test: &str) -> String {
    watched(test).0
}

/// Like [`reported`], and also what it writes to standard error meanwhile.
fn watched(test: &str) -> (String, String) {
    let name = format!("rkey-{}-{test}", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, "").unwrap();
    let output = rerun(test)
        .env("RKEY_REPORT", &file)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    // A device that opens writes an empty line.
    let lines = text.lines().filter(|line| !line.is_empty());
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{text}");
    (text, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Repeated refusals do not flood the log, on either side.
#[test]
fn repeated_refusals_are_rate_limited() {
    const MANY: usize = 5000;
    if is_peer() {
        let (a, _b, peer) = pair(&Wish::default());
        for _ in 0..MANY {
            assert_eq!(a.write(peer, &[6; 4], 0, 2), 266);
        }
        return;
    }
    let test = "words::repeated_refusals_are_rate_limited";
    let output = rerun(test)
        .env("RKEY_LOG", "warn")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let lines = text.lines().count();
    assert!((2..MANY / 4).contains(&lines), "{lines} lines");
    // If a watcher is running, only it gets reports.
    let (report, log) = watched(test);
    assert!(
        report.contains("further refusals are not listed"),
        "{report}"
    );
    assert_eq!(log, "");
}

/// Both sides are in one process, so there is only one refusal.
#[test]
fn a_refusal_within_a_process_is_reported_once() {
    if is_peer() {
        let (a, b, peer) = pair(&Wish::default());
        for key in [2, 3] {
            assert_eq!(a.write(peer, &[6; 4], 0, key), 266);
        }
        // Closed devices have reported everything.
        for side in [a, b] {
            assert_eq!(close(side.ep.cast()), 0);
            side.close_rest();
        }
        return;
    }
    let text = reported("words::a_refusal_within_a_process_is_reported_once");
    for key in ["0x2", "0x3"] {
        let said = format!("RDMA write of 4 B at 0x0 with requested key {key}");
        assert_eq!(text.matches(&said).count(), 1, "{text}");
    }
    assert_eq!(
        text.matches("Check that the key arrived").count(),
        2,
        "{text}"
    );
}

/// A watcher gets not only refused accesses but also calls that the mode in force forbids.
#[test]
fn calls_that_the_mode_forbids_are_reported() {
    if is_peer() {
        let wish = Wish::mode(FI_MR_LOCAL | FI_MR_RAW | FI_MR_ENDPOINT | FI_MR_ALLOCATED);
        let (a, _b, peer) = pair(&wish);
        let mut bytes = [1u8; 8];
        // SAFETY: the handle is live; nothing is sent.
        let code = again(|| unsafe {
            let send = (*(*a.ep).msg).send;
            send(a.ep, bytes.as_ptr().cast(), 8, null_mut(), peer, null_mut())
        });
        assert_eq!(code, -(libc::EINVAL as isize));
        let mr = a
            .reg(&mut bytes, REMOTE | FI_READ | FI_WRITE, 1, 0)
            .unwrap();
        assert_eq!(mr.enable(), -258);
        assert_eq!(mr.bind(a.ep, 0), 0);
        assert_eq!(mr.enable(), 0);
        assert_eq!(a.write_with(peer, &bytes, mr.desc(), 0, 77), -266);
        let gone = map_at(0, 4096, RW);
        unmap(gone, 4096);
        assert_eq!(a.reg_at(gone, 64, REMOTE, 2, 0).unwrap_err(), -libc::EFAULT);
        return;
    }
    let text = reported("words::calls_that_the_mode_forbids_are_reported");
    for (words, bit) in [
        ("send of 8 B at 0x", "FI_MR_LOCAL"),
        ("before enabling it", "FI_MR_ENDPOINT"),
        ("key 0x4d was not mapped", "FI_MR_RAW"),
        ("is not fully mapped", "FI_MR_ALLOCATED"),
    ] {
        let told = |line: &str| line.contains(words) && line.contains(bit) && line.contains(": ");
        assert_eq!(text.lines().filter(|line| told(line)).count(), 1, "{text}");
    }
    assert_eq!(text.lines().count(), 4, "{text}");
}

/// A program that does not offer the required bits finds nothing and gets the reason, once.
#[test]
fn the_log_names_the_missing_mode_bits() {
    if is_peer() {
        let provider = rkey_fi::fi_prov_ini();
        for _ in 0..3 {
            let mut info = null_mut();
            // SAFETY: the entry point's structure; complete hints.
            let code = unsafe {
                let mut domain: DomainAttr = std::mem::zeroed();
                domain.mr_mode = FI_MR_LOCAL;
                let mut hints: Info = std::mem::zeroed();
                hints.domain_attr = &mut domain;
                let none = std::ptr::null();
                ((*provider).getinfo)(V1_17, none, none, 0, &hints, &mut info)
            };
            assert_eq!(code, -libc::ENODATA);
        }
        return wait_for_test();
    }
    let test = "words::the_log_names_the_missing_mode_bits";
    let [line] = log_of(test, "LOCAL,RAW,ENDPOINT,MMU_NOTIFY");
    let why = "requires FI_MR_RAW, FI_MR_MMU_NOTIFY, FI_MR_ENDPOINT;";
    assert!(line.contains(why), "{line}");
}

/// A peer on another host is reported once, at the default level.
#[test]
fn an_address_of_another_host_is_reported() {
    if is_peer() {
        let provider = rkey_fi::fi_prov_ini();
        for node in [c"192.0.2.77", c"192.0.2.77", c"192.0.2.78"] {
            let (mut info, hints) = (null_mut(), Wish::default().info());
            let service = c"7471".as_ptr();
            // SAFETY: the entry point's structure, C strings, hints that it gave, and room for a list.
            let code = unsafe {
                ((*provider).getinfo)(V1_17, node.as_ptr(), service, 0, hints, &mut info)
            };
            assert_eq!(code, -libc::ENODATA);
        }
        return;
    }
    let test = "words::an_address_of_another_host_is_reported";
    let lines: [String; 2] = log_with(test, &[("RKEY_LOG", "warn")]);
    for (line, address) in lines.iter().zip(["192.0.2.77", "192.0.2.78"]) {
        let words = format!("no match for {address}: it is on another host");
        assert!(line.contains(&words), "{lines:#?}");
    }
}

/// `fi_cq_strerror` explains the data of an error; without data it names the number.
#[test]
fn fi_cq_strerror_explains_the_data_of_an_error() {
    let (a, _b, peer) = pair(&Wish::default());
    let bytes = [6u8; 4];
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        let write = (*(*a.ep).rma).write;
        let at = bytes.as_ptr().cast();
        write(a.ep, at, 4, null_mut(), peer, 0, 2, null_mut())
    });
    assert_eq!(code, 0);
    let error = a.completion(&[]).unwrap_err();
    let strerror = |data, buf: *mut c_char, len| {
        // SAFETY: the handle is live, and the buffer is our own; the answer is a C string.
        unsafe {
            let text = ((*(*a.cq).ops).strerror)(a.cq, error.prov_errno, data, buf, len);
            CStr::from_ptr(text).to_str().unwrap().to_owned()
        }
    };
    let sentence = strerror(error.err_data.cast_const(), null_mut(), 0);
    assert!(sentence.contains("unknown key"), "{sentence}");
    assert!(
        sentence.contains("Check that the key arrived"),
        "{sentence}"
    );
    let mut room = [0; 9];
    let cut = strerror(error.err_data.cast_const(), room.as_mut_ptr(), room.len());
    assert_eq!(cut, sentence[..8]);
    let name = strerror(std::ptr::null(), null_mut(), 0);
    assert_eq!(name, "Required key not available");
    // Data of another queue is ignored.
    let other = std::ptr::dangling::<u8>().cast();
    assert_eq!(strerror(other, null_mut(), 0), name);

    // The key of a region without remote rights.
    // SAFETY: the handle is live; the bytes stay valid until the completion.
    let code = again(|| unsafe {
        let write = (*(*a.ep).rma).write;
        let at = bytes.as_ptr().cast();
        write(
            a.ep,
            at,
            4,
            null_mut(),
            peer,
            0,
            FI_KEY_NOTAVAIL,
            null_mut(),
        )
    });
    assert_eq!(code, 0);
    let error = a.completion(&[]).unwrap_err();
    let data: *const libc::c_void = error.err_data.cast_const();
    // SAFETY: a live handle, and data that the queue has just returned.
    let text = unsafe { ((*(*a.cq).ops).strerror)(a.cq, 0, data, null_mut(), 0) };
    // SAFETY: a C string of the queue, valid until the next read.
    let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
    assert!(text.contains("The key is FI_KEY_NOTAVAIL"), "{text}");
}

/// A call that a page forbids and other providers accept is reported once for each kind, with the page; in strict mode
/// it is reported as a refusal.
#[test]
fn a_tolerated_violation_is_reported_once_and_cites_the_page() {
    if is_peer() {
        let b = Side::open(&Wish::default());
        for _ in 0..2 {
            let mr = b.reg(&mut [0u8; 8], REMOTE, 1, 0).unwrap();
            let counted = counter(b.domain);
            assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
            let closed = mr.close();
            assert!([0, -libc::EBUSY].contains(&closed));
            assert_eq!(close(counted.cast()), 0);
            assert!(closed == 0 || mr.close() == 0);
        }
        return wait_for_test();
    }
    let test = "words::a_tolerated_violation_is_reported_once_and_cites_the_page";
    for (strict, verdict) in [("", "allowed"), ("0", "allowed"), ("1", "refused")] {
        let [line] = log_with(test, &[("RKEY_LOG", "warn"), ("FI_RKEY_STRICT", strict)]);
        let told = format!("closed while a counter was bound to it ({verdict}): fi_mr(3) says");
        assert!(line.contains(&told) && line.contains("-FI_EBUSY"), "{line}");
    }
}
