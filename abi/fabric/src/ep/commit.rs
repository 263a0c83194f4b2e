//! Durable writes (`FI_COMMIT_COMPLETE`): behind the bytes goes a request to commit them, and the write is
//! complete when the target has answered. The target's endpoint asks the kernel to write the pages to their
//! file; that takes its progress, as an atomic does.

#![allow(unsafe_code)]
// UNSAFETY: looks into the protection table.

use super::*;
use crate::complaint::complain;
use crate::info::offer::RMA_IOV_LIMIT;
use crate::mr::persistent;
use rkey_device::core::{Accessor, Operation as Access, WireKey};
use rkey_device::engine::{SendFlags, Work};
use rkey_rdm::commit::{self, Place};
use rkey_rdm::header::{Header, Kind, MAX_LEN};

// As many as one write has.
const _: () = assert!(commit::PLACES_MAX == RMA_IOV_LIMIT);

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
        let place = |(place, key): &(RmaIov, WireKey)| Place {
            addr: place.addr,
            len: place.len as u64,
            key: *key,
        };
        let places: Vec<_> = places.iter().map(place).collect();
        bytes.extend(commit::encode(&places));
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
            peer: connection::identity_of(from),
        };
        // SAFETY: nothing is registered or closed through the table here.
        let table = unsafe { self.domain.device.protection() };
        for Place { addr, len, key } in commit::decode(payload)? {
            if len == 0 {
                continue;
            }
            let lease = table
                .check_remote(&who, key, addr, len, Access::Write)
                .map_err(|denial| connection::refuse(from, denial))?;
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
