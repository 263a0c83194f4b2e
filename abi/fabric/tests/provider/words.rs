//! What a program's author reads: one line for each refusal, in libfabric's words.

use crate::harness::*;
use crate::peer::{hear, is_peer, rerun};
use crate::registration::pair;
use rkey_fi::sys::*;
use std::ffi::{CStr, c_char};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::ptr::null_mut;
use std::sync::mpsc;

/// The `N` lines that this test, run once more by itself with some bits required, writes to standard error.
fn log_of<const N: usize>(test: &str, mode: &str) -> [String; N] {
    let mut child = rerun(test)
        .env("RKEY_LOG", "warn")
        .env("FI_RKEY_MR_MODE", mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    // It goes on when it has said so much, or should have.
    let (enough, wait) = mpsc::channel::<()>();
    let stdin = child.stdin.take();
    std::thread::spawn(move || {
        let _ = wait.recv_timeout(PATIENCE);
        drop(stdin);
    });
    let mut lines: Vec<String> = log.by_ref().take(N).map(Result::unwrap).collect();
    // A device may write a moment after the call that it is about.
    drop(enough);
    lines.extend(log.map(Result::unwrap));
    assert!(child.wait().unwrap().success(), "{lines:#?}");
    let told = lines.try_into();
    told.unwrap_or_else(|lines: Vec<String>| panic!("{lines:#?}"))
}

/// In the peer: waits until the test has heard enough.
fn wait_for_test() {
    while hear().is_some() {}
}

#[test]
fn a_refusal_is_told_once_on_each_side_in_the_words_of_libfabric() {
    if is_peer() {
        let (a, _b, peer) = pair(&Wish::default());
        assert_eq!(a.write(peer, &[6; 4], 0, 2), 266);
        return wait_for_test();
    }
    let lines = log_of(
        "words::a_refusal_is_told_once_on_each_side_in_the_words_of_libfabric",
        "",
    );
    let [one, two] = &lines;
    // The target's device tells first.
    let (target, initiator) = if one.contains("asked by") {
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

#[test]
fn a_use_against_the_mode_is_told_in_words() {
    if is_peer() {
        let (a, _b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
        let bytes = [1u8; 8];
        // SAFETY: a live handle; nothing is sent.
        let code = again(|| unsafe {
            let send = (*(*a.ep).msg).send;
            send(a.ep, bytes.as_ptr().cast(), 8, null_mut(), peer, null_mut())
        });
        assert_eq!(code, -(libc::EINVAL as isize));
        return wait_for_test();
    }
    let [line] = log_of("words::a_use_against_the_mode_is_told_in_words", "");
    assert!(line.contains(" send of 8 B at 0x"), "{line}");
}

/// A program that does not offer what the environment requires finds nothing, and reads why, once.
#[test]
fn bits_that_a_program_lacks_are_named() {
    if is_peer() {
        let provider = rkey_fi::fi_prov_ini();
        for _ in 0..3 {
            let mut info = null_mut();
            // SAFETY: the entry point's structure; hints with everything they need.
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
    let test = "words::bits_that_a_program_lacks_are_named";
    let [line] = log_of(test, "LOCAL,RAW,ENDPOINT,MMU_NOTIFY");
    let why = "requires FI_MR_RAW, FI_MR_MMU_NOTIFY, FI_MR_ENDPOINT, and";
    assert!(line.contains(why), "{line}");
}

/// `fi_cq_strerror` has the sentence for the data of the error, and the name without them.
#[test]
fn the_queue_explains_its_errors() {
    let (a, _b, peer) = pair(&Wish::default());
    let bytes = [6u8; 4];
    // SAFETY: a live handle; the bytes stay until the completion.
    let code = again(|| unsafe {
        let write = (*(*a.ep).rma).write;
        let at = bytes.as_ptr().cast();
        write(a.ep, at, 4, null_mut(), peer, 0, 2, null_mut())
    });
    assert_eq!(code, 0);
    let error = a.completion(&[]).unwrap_err();
    let strerror = |data, buf: *mut c_char, len| {
        // SAFETY: a live handle, and room of our own; the answer is a C string.
        unsafe {
            let text = ((*(*a.cq).ops).strerror)(a.cq, error.prov_errno, data, buf, len);
            CStr::from_ptr(text).to_str().unwrap().to_owned()
        }
    };
    let sentence = strerror(error.err_data.cast_const(), null_mut(), 0);
    assert!(sentence.contains("no memory has this key"), "{sentence}");
    assert!(
        sentence.contains("Check that the key arrived"),
        "{sentence}"
    );
    let mut room = [0; 9];
    let cut = strerror(error.err_data.cast_const(), room.as_mut_ptr(), room.len());
    assert_eq!(cut, sentence[..8]);
    let name = strerror(std::ptr::null(), null_mut(), 0);
    assert_eq!(name, "Required key not available");
    // Data that are not of this queue are not looked at.
    let other = std::ptr::dangling::<u8>().cast();
    assert_eq!(strerror(other, null_mut(), 0), name);

    // The key that a region without remote rights has.
    // SAFETY: a live handle; the bytes stay until the completion.
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
    // SAFETY: a live handle, and the data that the queue has just given.
    let text = unsafe { ((*(*a.cq).ops).strerror)(a.cq, 0, data, null_mut(), 0) };
    // SAFETY: a C string of the queue, until the next read.
    let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
    assert!(text.contains("The key is FI_KEY_NOTAVAIL"), "{text}");
}
