//! The cipher of the wire's key (`RKEY_WIRE_KEY`): XChaCha20-Poly1305. A nonce is the id of a sender, and a number that the sender
//! uses once.

use std::io;

use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use rkey_base::process::ForkMark;

use crate::config::WireKey;

/// The length of an id, in bytes.
pub(crate) const ID: usize = 16;
/// The length of a tag, in bytes.
pub(crate) const TAG: usize = 16;

/// What a sender draws once, so that no other has the same nonces.
pub(crate) type SenderId = [u8; ID];

/// Seals and opens with a key that is derived for one purpose.
pub(crate) struct Cipher {
    cipher: XChaCha20Poly1305,
    /// A forked child would use the numbers of its parent again.
    process: ForkMark,
}

impl Cipher {
    /// # Errors
    /// The system cannot recognise a forked child.
    pub(crate) fn new(key: &WireKey, purpose: &str) -> io::Result<Self> {
        Ok(Self {
            cipher: XChaCha20Poly1305::new(&key.derive(purpose).into()),
            process: ForkMark::new()?,
        })
    }

    /// Appends `plain`, encrypted, and its tag to `to`. The tag also covers `covered`. Returns false in a forked child, with nothing
    /// appended. No number of an id may be used twice.
    #[must_use]
    pub(crate) fn seal(
        &self,
        id: SenderId,
        number: u64,
        covered: &[u8],
        plain: &[u8],
        to: &mut Vec<u8>,
    ) -> bool {
        if self.process.is_child() {
            return false;
        }
        let start = to.len();
        to.extend_from_slice(plain);
        let bytes = &mut to[start..];
        let nonce = nonce(id, number);
        // Fails only for more than 256 GiB; then the tag is wrong, and the receiver refuses the bytes.
        let tag = self
            .cipher
            .encrypt_inout_detached(&nonce.into(), covered, bytes.into());
        to.extend_from_slice(&tag.unwrap_or_default());
        true
    }

    /// Replaces what `into` contains by the decrypted bytes. Returns false if no holder of the key has sealed them with these
    /// arguments; `into` is then meaningless.
    #[must_use]
    pub(crate) fn open(
        &self,
        id: SenderId,
        number: u64,
        covered: &[u8],
        sealed: &[u8],
        into: &mut Vec<u8>,
    ) -> bool {
        let Some((bytes, tag)) = sealed.split_last_chunk::<TAG>() else {
            return false;
        };
        into.clear();
        into.reserve_exact(bytes.len());
        into.extend_from_slice(bytes);
        let nonce = nonce(id, number);
        let opened = self.cipher.decrypt_inout_detached(
            &nonce.into(),
            covered,
            into.as_mut_slice().into(),
            tag.into(),
        );
        opened.is_ok()
    }
}

fn nonce(id: SenderId, number: u64) -> [u8; ID + 8] {
    let mut nonce = [0; ID + 8];
    let (of, at) = nonce.split_at_mut(ID);
    of.copy_from_slice(&id);
    at.copy_from_slice(&number.to_be_bytes());
    nonce
}
