//! The key of the wire: `RKEY_WIRE_KEY`.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hmac_sha256::HMAC;

/// A secret that hosts share. Packets and handshakes between them are encrypted and authenticated with it.
#[derive(Clone, PartialEq, Eq)]
pub struct WireKey([u8; 32]);

impl WireKey {
    /// The minimum number of bytes in a key's file.
    pub const MIN: usize = 32;
    /// The maximum number of bytes in a key's file.
    pub const MAX: usize = 4096;

    /// A key that is derived from a secret of at least [`WireKey::MIN`] random bytes. `None` if it is shorter.
    #[must_use]
    pub fn new(secret: &[u8]) -> Option<Self> {
        (secret.len() >= Self::MIN).then(|| Self(HMAC::mac(b"rkey wire key 1", secret)))
    }

    /// Reads a key from a file that belongs to this user or to root, and that only its owner may read or write. `None` otherwise, or if
    /// its length is not between [`WireKey::MIN`] and [`WireKey::MAX`] bytes.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let mut options = std::fs::OpenOptions::new();
        // A FIFO must not make the program wait.
        options
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).ok()?;
        let about = file.metadata().ok()?;
        let owner = about.uid();
        let is_private = about.is_file()
            && about.mode() & 0o077 == 0
            && (owner == 0 || owner == rustix::process::geteuid().as_raw());
        let mut secret = Vec::new();
        if !is_private
            || file
                .take(1 + Self::MAX as u64)
                .read_to_end(&mut secret)
                .is_err()
        {
            return None;
        }
        Self::new(&secret).filter(|_| secret.len() <= Self::MAX)
    }

    /// A key for one purpose.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        HMAC::mac(purpose.as_bytes(), self.0)
    }
}

impl fmt::Debug for WireKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WireKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_read_only_from_a_private_file_of_enough_bytes() {
        let folder = std::env::temp_dir().join(format!("rkey-wire-key-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key");
        let read = |bytes: &[u8], mode| {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            WireKey::read(&path)
        };
        let key = read(&[7; 32], 0o600).expect("a key");
        assert_eq!(WireKey::new(&[7; 32]), Some(key.clone()));
        assert_ne!(read(&[8; 32], 0o400), Some(key.clone()));
        assert_eq!(read(&[7; 31], 0o600), None);
        assert_eq!(read(&[7; WireKey::MAX + 1], 0o600), None);
        for mode in [0o640, 0o604, 0o620, 0o610] {
            assert_eq!(read(&[7; 32], mode), None, "{mode:o}");
        }
        assert_eq!(WireKey::read(&folder), None);
        assert_eq!(WireKey::read(&folder.join("missing")), None);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_ne!(key.derive("a"), key.derive("b"));
        assert_eq!(format!("{key:?}"), "WireKey(..)");
    }
}
