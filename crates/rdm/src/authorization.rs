//! Proves to a peer that we have an authorization key (FI-119), without disclosing the key.
//!
//! The side that requests a connection sends a code that can only be computed with the key, over its own device and the
//! port that it connects to; the other side answers with a code over its own device and the first code. The kernel
//! confirms which device each side is, if both are on one host, so a code cannot be reused by another device or at another port, and an answer
//! computed without the key is refused. A code does not disclose the key, but lets an attacker test guesses: keys
//! should not be words.
//!
//! The code is HMAC-SHA-256. Its key is the hash of the authorization key: HMAC itself would pad short keys with zeros,
//! so two different keys could be equivalent.

use hmac_sha256::{HMAC, Hash};
use rkey_link::NodeId;

/// The proof of one side.
pub type Proof = [u8; 32];

/// The two sides use different texts, so that a request is never a valid answer.
const ASKS: &[u8] = b"rkey fabric asks";
const ANSWERS: &[u8] = b"rkey fabric answers";

/// The proof of a device that requests a connection at a port.
#[must_use]
pub fn ask(key: &[u8], device: NodeId, port: u16) -> Proof {
    asking(key, device, port).finalize()
}

/// Whether a device that requests a connection at our port has the key.
#[must_use]
pub fn may_ask(key: &[u8], device: NodeId, port: u16, proof: &Proof) -> bool {
    asking(key, device, port).finalize_verify(proof)
}

/// The proof of a device that answers.
#[must_use]
pub fn answer(key: &[u8], device: NodeId, asked: &Proof) -> Proof {
    answering(key, device, asked).finalize()
}

/// Whether a device that answers has the key.
#[must_use]
pub fn may_answer(key: &[u8], device: NodeId, asked: &Proof, proof: &Proof) -> bool {
    answering(key, device, asked).finalize_verify(proof)
}

fn asking(key: &[u8], device: NodeId, port: u16) -> HMAC {
    code(key, ASKS, device, &port.to_le_bytes())
}

fn answering(key: &[u8], device: NodeId, asked: &Proof) -> HMAC {
    code(key, ANSWERS, device, asked)
}

fn code(key: &[u8], side: &[u8], device: NodeId, about: &[u8]) -> HMAC {
    let mut code = HMAC::new(Hash::hash(key));
    code.update(side);
    code.update(device.pid.to_le_bytes());
    code.update(device.nonce.to_le_bytes());
    code.update(about);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: NodeId = NodeId { pid: 7, nonce: 9 };

    fn hex(proof: &Proof) -> String {
        proof.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Other builds compute the same values.
    #[test]
    fn authorization_codes_never_change() {
        let asked = ask(b"a key", DEVICE, 7471);
        let answered = answer(b"a key", DEVICE, &asked);
        assert_eq!(
            hex(&asked),
            "4abd9f82896ac31bb5f0a62ece53e3dd68b73b6feb1b6d2364ca4d1692889f53"
        );
        assert_eq!(
            hex(&answered),
            "bf348d3ca6f6a8389315b007d83e0963a9209e68771db4e6e6061fe3fbd7fccd"
        );
    }

    #[test]
    fn a_code_is_valid_for_one_key_one_device_and_one_port() {
        let other = NodeId { nonce: 8, ..DEVICE };
        let asked = ask(b"a key", DEVICE, 1);
        assert!(may_ask(b"a key", DEVICE, 1, &asked));
        for key in [&b"a ke"[..], b"a key\0", b""] {
            assert!(!may_ask(key, DEVICE, 1, &asked));
        }
        assert!(!may_ask(b"a key", other, 1, &asked));
        assert!(!may_ask(b"a key", DEVICE, 2, &asked));

        let answered = answer(b"a key", DEVICE, &asked);
        assert!(may_answer(b"a key", DEVICE, &asked, &answered));
        assert!(!may_answer(b"another", DEVICE, &asked, &answered));
        assert!(!may_answer(b"a key", other, &asked, &answered));
        assert!(!may_answer(b"a key", DEVICE, &answered, &answered));
        assert!(
            !may_answer(b"a key", DEVICE, &asked, &asked),
            "our own code is no answer"
        );
    }
}
