//! Durable writes (`FI_COMMIT_COMPLETE`): behind the bytes goes a request to commit them, and the write is
//! complete when the target has answered. The target's endpoint asks the kernel to write the pages to their
//! file; that takes its progress, as an atomic does.

#![allow(unsafe_code)]
// UNSAFETY: looks into the protection table.

use super::*;
use crate::complaint::complain;
use crate::mr::persistent;
use rkey_device::core::{Accessor, Key, Operation as Access, WireKey};
use rkey_device::engine::{SendFlags, Work};
use rkey_rdm::header::{Header, Kind, MAX_LEN};

/// Bytes of one place in a request: address, length, key, and whether the device chose the key.
const PLACE: usize = 32;

/// The payload of a request.
fn encode(places: &[(RmaIov, WireKey)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(places.len() * PLACE);
    for (place, key) in places {
        let (key, by_device) = match key {
            WireKey::Device(key) => (u64::from(key.0), 1u64),
            WireKey::Requested(key) => (*key, 0),
        };
        for word in [place.addr, place.len as u64, key, by_device] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

/// The places of a request; a key that no device chooses names nothing.
pub(super) fn decode(payload: &[u8]) -> Result<Vec<(u64, u64, WireKey)>> {
    let places = payload.chunks_exact(PLACE);
    if !places.remainder().is_empty() || places.len() > crate::info::offer::RMA_IOV_LIMIT {
        return Err(FiError::INVAL);
    }
    let word = |place: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&place[8 * at..8 * at + 8]);
        u64::from_le_bytes(word)
    };
    places
        .map(|place| {
            let key = match word(place, 3) {
                0 => WireKey::Requested(word(place, 2)),
                _ => WireKey::Device(Key(
                    u32::try_from(word(place, 2)).map_err(|_| FiError::NOKEY)?
                )),
            };
            Ok((word(place, 0), word(place, 1), key))
        })
        .collect()
}

impl Endpoint {
    /// Asks the peer to make durable what an operation has written.
    pub(super) fn ask_to_commit(
        &self,
        state: &mut State,
        connection: usize,
        places: &[(RmaIov, WireKey)],
        id: u64,
    ) -> Result<()> {
        let header = Header {
            id,
            ..Header::new(Kind::Commit)
        };
        let mut head = [0; MAX_LEN];
        let len = header.encode(&mut head);
        let mut bytes = head[..len].to_vec();
        bytes.extend(encode(places));
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        let none = SendFlags::empty();
        self.post(state, connection, send, &[], Some(&bytes), none, id)
    }

    /// Makes durable what a peer wrote: the error, if any.
    pub(super) fn commit(&self, from: &Connection, payload: &[u8]) -> Result<()> {
        let who = Accessor {
            domain: self.group.id,
            qp: self.number,
            peer: from.identity(),
        };
        // SAFETY: nothing is registered or closed through the table here.
        let table = unsafe { self.domain.device.protection() };
        for (addr, len, key) in decode(payload)? {
            if len == 0 {
                continue;
            }
            let lease = table
                .check_remote(&who, key, addr, len, Access::Write)
                .map_err(|denial| from.refuse(denial))?;
            let promised = lease
                .region()
                .is_some_and(|region| self.domain.persistent.lock().contains(&region));
            if !promised {
                complain(format_args!(
                    "a write is to be durable (FI_COMMIT_COMPLETE), and its region was registered without FI_RMA_PMEM"
                ));
                return Err(FiError::INVAL);
            }
            let spans: Vec<_> = lease.spans().collect();
            // The memory behind the region may have changed since it was registered.
            persistent::check(&spans)?;
            spans.iter().try_for_each(persistent::sync)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_way() {
        let place = RmaIov {
            addr: 5,
            len: 6,
            key: 0,
        };
        let sent = [
            (place, WireKey::Device(Key(7))),
            (place, WireKey::Requested(u64::MAX - 1)),
        ];
        let bytes = encode(&sent);
        let got = decode(&bytes).unwrap();
        assert_eq!(got.len(), 2);
        assert!(matches!(got[0], (5, 6, WireKey::Device(Key(7)))));
        assert!(matches!(got[1], (5, 6, WireKey::Requested(key)) if key == u64::MAX - 1));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(decode(&[0; PLACE - 1]).is_err());
        assert!(decode(&[0; 9 * PLACE]).is_err());
        assert!(decode(&[0xff; PLACE]).is_err());
    }
}
