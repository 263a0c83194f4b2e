//! The secrets of a device, from which its keys derive.

/// Random numbers that make the keys of a device unguessable: all of its secrets derive from them. Each device needs
/// its own, from the system's random number generator.
#[derive(Clone)]
pub struct Secrets(pub [u64; 4]);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// A secret for one purpose, independent of those for others.
    pub(crate) fn derive(&self, purpose: &str, number: u64) -> [u8; 32] {
        let mut mac = hmac_sha256::HMAC::new(self.0.map(u64::to_le_bytes).as_flattened());
        mac.update(number.to_le_bytes());
        mac.update(purpose);
        mac.finalize()
    }

    /// A number for one purpose.
    pub(crate) fn number(&self, purpose: &str) -> u64 {
        let bytes = self.derive(purpose, 0);
        bytes[..8]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}
