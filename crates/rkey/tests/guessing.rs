//! Guessing another client's key, over a connection.

mod common;

use common::{ALL, connect, device};
use rkey::{Error, RemoteKey};

/// The checksum of an encoded key, which is not secret (FNV-1a).
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// A client connects 16 times to a server that registers a buffer for each of its clients while they are connected, and
/// records its own keys. It then tries to map the next client's buffer, about which it knows everything except the key, with
/// keys that share the upper bits of its own key. (`crates/core/tests/prediction.rs` makes more and better guesses.)
#[test]
fn a_client_does_not_guess_the_next_clients_key() {
    let (server, attacker, victim) = (device(), device(), device());
    let [server, attacker, victim] = [server, attacker, victim].map(|it| it.domain().unwrap());
    let mut own = Vec::new();
    for _ in 0..16 {
        let (inner, outer) = connect(&server, &attacker);
        let buffer = server.register(vec![1u8; 4096], ALL).unwrap();
        own.push(buffer.key(..).unwrap());
        drop((outer, inner));
        buffer.deregister().unwrap();
    }
    let (_inner, _outer) = connect(&server, &victim);
    // Memory that can be mapped, because a refusal to map it does not end the connection.
    let memory = server.device().allocate(4096).unwrap();
    let buffer = server.register(memory, ALL).unwrap();
    let right = buffer.key(..).unwrap();

    let (_inner, outer) = connect(&server, &attacker);
    for key in own.iter().rev().step_by(4) {
        for low in (0..=u8::MAX).step_by(4) {
            // Bytes 8 to 11 are the key, the lowest first.
            let (mut bytes, seen) = (right.to_bytes(), key.to_bytes());
            bytes[8..12].copy_from_slice(&[low, seen[9], seen[10], seen[11]]);
            let check = checksum(&bytes[..36]);
            bytes[36..].copy_from_slice(&check.to_le_bytes());
            let guess = RemoteKey::from_bytes(&bytes).unwrap();
            let refused = outer.map(&guess).unwrap_err();
            assert!(matches!(refused, Error::Denied(_)), "{refused}");
        }
    }
    assert!(
        outer.map(&right).is_ok(),
        "mapping with the right key failed"
    );
}
