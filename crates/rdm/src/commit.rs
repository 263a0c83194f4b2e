//! Requests to make earlier writes durable: the payload of
//! [`Kind::Commit`](crate::header::Kind::Commit).

use rkey_core::{Key, RKey};

/// The size of one range in a request, in bytes: address, length, key, and whether the device chose
/// the key.
const RANGE_LEN: usize = 32;
/// The maximum number of ranges in one request.
pub const RANGES_MAX: usize = 8;

/// Memory of the peer that a transfer reads or writes, or that a request makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange {
    /// The start of the range, in the addressing of the key's region or window.
    pub addr: u64,
    /// The length of the range, in bytes.
    pub len: u64,
    /// The key of the memory.
    pub key: RKey,
}

/// Why a request cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The request is not a list of ranges, or the list is too long.
    #[error("the request is not a list of ranges")]
    Malformed,
    /// The request has a key that no device could have issued.
    #[error("no device issues such a key")]
    UnknownKey,
}

/// Encodes the payload of a request.
#[must_use]
pub fn encode(ranges: &[RemoteRange]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ranges.len() * RANGE_LEN);
    for range in ranges {
        let (key, by_device) = match range.key {
            RKey::Device(key) => (u64::from(key.0), 1u64),
            RKey::Requested(key) => (key, 0),
        };
        for word in [range.addr, range.len, key, by_device] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

/// Decodes the ranges of a request.
///
/// # Errors
/// [`CommitError::Malformed`]: not a whole number of ranges, or more than [`RANGES_MAX`];
/// [`CommitError::UnknownKey`]: a device key of more than 32 bits.
pub fn decode(payload: &[u8]) -> Result<Vec<RemoteRange>, CommitError> {
    let ranges = payload.chunks_exact(RANGE_LEN);
    if !ranges.remainder().is_empty() || ranges.len() > RANGES_MAX {
        return Err(CommitError::Malformed);
    }
    let word = |range: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&range[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    };
    let read = |range: &[u8]| {
        let key = match word(range, 3) {
            0 => RKey::Requested(word(range, 2)),
            _ => {
                let key = u32::try_from(word(range, 2)).map_err(|_| CommitError::UnknownKey)?;
                RKey::Device(Key(key))
            }
        };
        Ok(RemoteRange {
            addr: word(range, 0),
            len: word(range, 1),
            key,
        })
    };
    ranges.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_requests_round_trip() {
        let range = |key| RemoteRange {
            addr: 5,
            len: 6,
            key,
        };
        let sent = [
            range(RKey::Device(Key(7))),
            range(RKey::Requested(u64::MAX - 1)),
        ];
        assert_eq!(decode(&encode(&sent)), Ok(sent.to_vec()));
    }

    #[test]
    fn malformed_commit_requests_are_refused() {
        assert_eq!(decode(&[0; RANGE_LEN - 1]), Err(CommitError::Malformed));
        assert_eq!(decode(&[0; 9 * RANGE_LEN]), Err(CommitError::Malformed));
        assert_eq!(decode(&[0xff; RANGE_LEN]), Err(CommitError::UnknownKey));
    }
}
