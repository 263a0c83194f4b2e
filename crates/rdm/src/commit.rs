//! Requests to make durable what was written before: the payload of [`Kind::Commit`](crate::header::Kind::Commit).

use rkey_core::{Key, WireKey};

/// Bytes of one place in a request: address, length, key, and whether the device chose the key.
const PLACE: usize = 32;
/// Places of one request.
pub const PLACES_MAX: usize = 8;

/// Memory of the peer that is to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it begins, in the memory that the key names.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The key of the memory.
    pub key: WireKey,
}

/// Why a request cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// It is no list of places, or one that is too long.
    #[error("the request is no list of places")]
    Malformed,
    /// A key that no device chooses names nothing.
    #[error("no device chooses such a key")]
    UnknownKey,
}

/// The payload of a request.
#[must_use]
pub fn encode(places: &[Place]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(places.len() * PLACE);
    for place in places {
        let (key, by_device) = match place.key {
            WireKey::Device(key) => (u64::from(key.0), 1u64),
            WireKey::Requested(key) => (key, 0),
        };
        for word in [place.addr, place.len, key, by_device] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

/// The places of a request.
///
/// # Errors
/// [`CommitError::Malformed`]: not a whole number of places, or more than [`PLACES_MAX`];
/// [`CommitError::UnknownKey`]: a key of a device that is no number of 32 bits.
pub fn decode(payload: &[u8]) -> Result<Vec<Place>, CommitError> {
    let places = payload.chunks_exact(PLACE);
    if !places.remainder().is_empty() || places.len() > PLACES_MAX {
        return Err(CommitError::Malformed);
    }
    let word = |place: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&place[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    };
    let read = |place: &[u8]| {
        let key = match word(place, 3) {
            0 => WireKey::Requested(word(place, 2)),
            _ => {
                let key = u32::try_from(word(place, 2)).map_err(|_| CommitError::UnknownKey)?;
                WireKey::Device(Key(key))
            }
        };
        Ok(Place {
            addr: word(place, 0),
            len: word(place, 1),
            key,
        })
    };
    places.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_way() {
        let place = |key| Place {
            addr: 5,
            len: 6,
            key,
        };
        let sent = [
            place(WireKey::Device(Key(7))),
            place(WireKey::Requested(u64::MAX - 1)),
        ];
        assert_eq!(decode(&encode(&sent)), Ok(sent.to_vec()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(decode(&[0; PLACE - 1]), Err(CommitError::Malformed));
        assert_eq!(decode(&[0; 9 * PLACE]), Err(CommitError::Malformed));
        assert_eq!(decode(&[0xff; PLACE]), Err(CommitError::UnknownKey));
    }
}
