//! Accesses without the required right, outside the range, or with an unknown key.

use crate::harness::*;
use crate::registration::pair;
use crate::shared::{Server, recv, send};
use rkey_fi::sys::*;

/// Proves: FI-021, FI-096, FI-097, FI-098, FI-099, FI-111, FI-I09
#[test]
fn a_peer_has_exactly_the_rights_of_the_region() {
    let (a, b, peer) = pair(&Wish::default());
    let local = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    for access in [FI_REMOTE_READ, FI_REMOTE_WRITE, REMOTE, REMOTE | local] {
        let mut buffer = vec![5u8; 16];
        let mr = b.reg(&mut buffer, access, 1, 0).unwrap();
        let mut back = [0; 16];
        let read = a.read(peer, &mut back, 0, 1);
        if access & FI_REMOTE_READ != 0 {
            assert_eq!((read, back), (0, [5; 16]));
        } else {
            assert_eq!((read, back), (libc::EACCES, [0; 16]));
        }
        let write = a.write(peer, &[6; 16], 0, 1);
        assert_eq!(
            write,
            if access & FI_REMOTE_WRITE != 0 {
                0
            } else {
                libc::EACCES
            }
        );
        assert_eq!(mr.close(), 0);
        assert_eq!(buffer, vec![if write == 0 { 6 } else { 5 }; 16]);
    }
    let mut buffer = vec![5u8; 16];
    let mr = b.reg(&mut buffer, local, 1, 0).unwrap();
    assert_ne!(a.write(peer, &[6; 4], 0, 1), 0);
    assert_eq!(mr.close(), 0);
    assert_eq!(buffer, [5; 16]);
}

/// Proves: FI-022, FI-023, FI-104, FI-213, FI-I36
#[test]
fn an_unknown_key_gives_an_error_and_changes_nothing() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![5u8; 16];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[6; 4], 0, 2), 266);
    assert_eq!(a.read(peer, &mut [0; 4], 0, 2), 266);
    assert_eq!(
        a.write(peer, &[6; 4], 0, 1),
        0,
        "the endpoints are unaffected"
    );
    assert_eq!(mr.close(), 0);
    assert_eq!(buffer[..5], [6, 6, 6, 6, 5]);
}

/// Proves: FI-156, FI-158, FI-159, FI-160, FI-I10
#[test]
fn only_the_initiator_gets_an_error_for_a_closed_region() {
    let (a, b, peer) = pair(&Wish::default());
    let mut buffer = vec![5u8; 16];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[6; 4], 0, 1), 0);
    assert_eq!(mr.close(), 0);
    assert_eq!(a.write(peer, &[7; 4], 0, 1), 266);
    assert!(poll(b.cq).is_none(), "the target gets no completion");
    let again = b.reg(&mut buffer, REMOTE, 2, 0).unwrap();
    assert_eq!(a.write(peer, &[8; 4], 4, 2), 0);
    assert_eq!(again.close(), 0);
    assert_eq!(buffer[..9], [6, 6, 6, 6, 8, 8, 8, 8, 5]);
}

/// Between connected endpoints, an access to a closed region disables neither, and the connection stays usable both ways.
///
/// Proves: FI-I10
#[test]
fn on_a_connection_only_the_initiator_gets_an_error_for_a_closed_region() {
    let wish = Wish {
        ep_type: FI_EP_MSG,
        ..Wish::default()
    };
    let server = Server::open(&wish);
    let (there, here) = server.connect(&wish);
    let (mut buffer, mut back) = (vec![5u8; 16], vec![5u8; 16]);
    let mr = here.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let other_way = there.reg(&mut back, REMOTE, 1, 0).unwrap();
    assert_eq!(there.write(0, &[6; 4], 0, 1), 0);
    assert_eq!(mr.close(), 0);
    for _ in 0..3 {
        assert_eq!(there.write(0, &[7; 4], 0, 1), 266);
        assert_eq!(there.read(0, &mut [0; 4], 0, 1), 266);
    }
    assert!(poll(here.cq).is_none(), "the target gets no completion");
    assert_eq!(here.write(0, &[8; 4], 0, 1), 0, "from the target");
    let mut into = [0; 8];
    assert_eq!(recv(server.srx, &mut into, 1), 0);
    send(&there, 0, &[9; 8]);
    assert_eq!(here.completion(&[&there]).unwrap().len, 8);
    assert_eq!(there.completion(&[&here]).unwrap().op_context as usize, 8);
    let again = here.reg(&mut buffer, REMOTE, 2, 0).unwrap();
    assert_eq!(there.write(0, &[8; 4], 4, 2), 0);
    assert_eq!((again.close(), other_way.close()), (0, 0));
    assert_eq!(buffer[..9], [6, 6, 6, 6, 8, 8, 8, 8, 5]);
    assert_eq!((back[..5].to_vec(), into), (vec![8, 8, 8, 8, 5], [9; 8]));
}

/// Proves: FI-I39
#[test]
fn a_range_past_the_end_is_refused_as_a_whole() {
    for (mode, base) in [(0, false), (FI_MR_VIRT_ADDR, true)] {
        let (a, b, peer) = pair(&Wish::mode(mode));
        let mut buffer = vec![5u8; 16];
        let start = if base { buffer.as_ptr() as u64 } else { 0 };
        let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
        for addr in [start + 9, start + 16, u64::MAX - 3, start.wrapping_sub(1)] {
            assert_eq!(a.write(peer, &[6; 8], addr, 1), libc::EACCES, "{addr:#x}");
            assert_eq!(
                a.read(peer, &mut [0; 8], addr, 1),
                libc::EACCES,
                "{addr:#x}"
            );
        }
        assert_eq!(mr.close(), 0);
        assert_eq!(buffer, [5; 16]);
    }
}

/// Proves: FI-I42
#[test]
fn a_region_serves_every_endpoint_of_its_domain_and_none_of_another() {
    let wish = Wish::default();
    let (a, b, peer) = pair(&wish);
    let info = wish.info();
    let (second, _, _) = open_ep(b.domain, info);
    let to_second = a.peer_ep(second);
    let c = Side::open(&wish);
    let to_c = a.peer(&c);
    let mut buffer = vec![0u8; 16];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    assert_eq!(a.write(peer, &[1; 4], 0, 1), 0);
    assert_eq!(a.write(to_second, &[2; 4], 4, 1), 0);
    assert_eq!(a.write(to_c, &[3; 4], 8, 1), 266);
    assert_eq!(mr.close(), 0);
    assert_eq!(buffer[..9], [1, 1, 1, 1, 2, 2, 2, 2, 0]);
}

/// Proves: FI-I12
#[test]
fn an_empty_transfer_needs_neither_buffer_nor_key() {
    let (a, _b, peer) = pair(&Wish::mode(FI_MR_LOCAL));
    assert_eq!(a.write(peer, &[], 0, 99), 0);
}
