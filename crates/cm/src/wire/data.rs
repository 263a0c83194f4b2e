//! Private data: what the two programs exchange in the manager's messages.

use core::fmt;

/// Private data of at most `N` bytes. The field has a fixed size in the message and no length: unused bytes
/// are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData<const N: usize>(pub(super) [u8; N]);

/// The private data is longer than its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} B of private data do not fit into this message: pass at most {most} B")]
pub struct TooLong {
    /// The length that was passed, in bytes.
    pub given: usize,
    /// The length of the field, in bytes.
    pub most: usize,
}

impl<const N: usize> PrivateData<N> {
    /// Private data that starts with `bytes` and is padded with zeros.
    ///
    /// # Errors
    ///
    /// `bytes` is longer than `N`.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let mut field = [0; N];
        let part = field.get_mut(..bytes.len()).ok_or(TooLong {
            given: bytes.len(),
            most: N,
        })?;
        part.copy_from_slice(bytes);
        Ok(Self(field))
    }

    /// The whole field, including the zeros after the data.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// Splits off the first `M` bytes. `M` and `R` add up to `N`.
    pub(super) fn split<const M: usize, const R: usize>(&self) -> ([u8; M], PrivateData<R>) {
        const { assert!(M + R == N) };
        let mut first = [0; M];
        let mut rest = [0; R];
        first.copy_from_slice(&self.0[..M]);
        rest.copy_from_slice(&self.0[M..]);
        (first, PrivateData(rest))
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|&byte| byte != 0);
        f.debug_list()
            .entries(&self.0[..used.map_or(0, |last| last + 1)])
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_zero_padded_and_refused_if_too_long() {
        let data = PrivateData::<4>::new(b"ab").unwrap();
        assert_eq!(data.as_bytes(), b"ab\0\0");
        assert_eq!(format!("{data:?}"), "[97, 98]");
        assert_eq!(
            PrivateData::<4>::new(b"abcde"),
            Err(TooLong { given: 5, most: 4 })
        );
        assert_eq!(data.split::<1, 3>(), ([b'a'], PrivateData(*b"b\0\0")));
    }
}
