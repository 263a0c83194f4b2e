//! Peers that pretend to have an authorization key.

use crate::harness::*;
use crate::outsider::Outsider;
use rkey_device::DeviceError;
use rkey_fi::sys::*;

const KEYED: Wish = Wish {
    version: V1_17,
    mr_mode: 0,
    caps: 0,
    ep_type: FI_EP_RDM,
    auth_key: b"members only",
    domain_key: &[],
    queue: 0,
    auto_progress: false,
    contexts: (0, 0),
};

/// Makes an endpoint send to a peer.
fn post(from: &Side, to: u64) -> isize {
    // SAFETY: the handle is live, and the byte is copied.
    unsafe { ((*(*from.ep).msg).inject)(from.ep, [0u8].as_ptr().cast(), 1, to) }
}

const AGAIN: isize = -(libc::EAGAIN as isize);

/// A peer without the key gets no connection, whatever it answers to our request.
///
/// Proves: FI-119
#[test]
fn a_peer_that_answers_without_the_key_is_refused() {
    let outsider = Outsider::open();
    let ask = |side: &Side, with_echo: bool| {
        let number = side.insert(&outsider.name());
        assert_eq!(post(side, number), AGAIN, "it is connecting");
        let incoming = outsider.caller(PATIENCE).unwrap();
        let answer = match with_echo {
            true => incoming.peer().private_data.clone(),
            false => outsider.answer(&incoming),
        };
        let line = outsider.accept(incoming, &answer, 8);
        (line.map(drop), again(|| post(side, number)))
    };
    let (line, code) = ask(&Side::open(&Wish::default()), false);
    assert!(line.is_ok(), "no key is required");
    assert_eq!(code, 0);
    for with_echo in [false, true] {
        let (line, code) = ask(&Side::open(&KEYED), with_echo);
        assert!(line.is_err(), "{with_echo}");
        assert_eq!(code, -(libc::ECONNRESET as isize), "{with_echo}");
    }
}

/// A peer of another protocol version gets our version in the refusal, and our log names the peer's version.
#[test]
fn a_peer_of_another_protocol_version_is_refused_with_our_version() {
    let (side, outsider) = (Side::open(&Wish::default()), Outsider::open());
    let there = address_of(&name_of(side.ep));
    let refused = outsider.connect(there, b"fi2 and what version 2 says", 0);
    let Err(DeviceError::Refused { reason }) = refused.map(drop) else {
        panic!("the peer was accepted");
    };
    assert!(reason.contains("speaks version 4"), "{reason}");
    // Here such a peer answers our request instead of sending one.
    let number = side.insert(&outsider.name());
    assert_eq!(post(&side, number), AGAIN, "it is connecting");
    let incoming = outsider.caller(PATIENCE).unwrap();
    assert!(
        outsider
            .accept(incoming, b"fi2 and what version 2 says", 0)
            .is_err()
    );
    assert_eq!(again(|| post(&side, number)), -(libc::ECONNRESET as isize));
    assert_eq!(close(side.ep.cast()), 0);
}

/// A stranger cannot reuse the proof that a member sent to it.
///
/// Proves: FI-119
#[test]
fn a_stranger_cannot_reuse_the_proof_of_a_member() {
    let (a, b) = (Side::open(&KEYED), Side::open(&KEYED));
    let outsider = Outsider::open();
    let number = a.insert(&outsider.name());
    assert_eq!(post(&a, number), AGAIN, "it is connecting");
    let incoming = outsider.caller(PATIENCE).unwrap();
    let shown = incoming.peer().private_data.clone();
    incoming.reject("only curious");
    for member in [&a, &b] {
        let there = address_of(&name_of(member.ep));
        for hello in [&shown, &outsider.hello(there)] {
            let refused = outsider.connect(there, hello, 0);
            let Err(DeviceError::Refused { reason }) = refused.map(drop) else {
                panic!("the stranger was accepted");
            };
            assert!(reason.contains("authorization keys"), "{reason}");
        }
    }
    // Endpoints with the right key are accepted.
    let b_of_a = a.peer(&b);
    assert_eq!(again(|| post(&a, b_of_a)), 0);
    let sides = [a, b];
    assert_eq!(sides.map(|side| close(side.ep.cast())), [0; 2]);
}
