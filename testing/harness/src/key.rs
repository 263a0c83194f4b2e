//! A file with a secret that hosts share (`RKEY_WIRE_KEY`).

use crate::hosts::Hosts;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The file, which exists until this value is dropped.
#[derive(Debug)]
pub struct KeyFile(PathBuf);

impl KeyFile {
    /// A file with 32 bytes of this value, which only unprivileged programs on the hosts can read.
    ///
    /// # Panics
    /// The file cannot be created.
    #[must_use]
    pub fn new(hosts: &Hosts, secret: u8) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rkey-key-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.expect("a new file");
        std::io::Write::write_all(&mut file, &[secret; 32]).expect("room for a key");
        // Only root can give files away, and only root has to.
        let _ = chown(&path, Some(hosts.user()), None);
        Self(path)
    }

    /// The value of `RKEY_WIRE_KEY`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
