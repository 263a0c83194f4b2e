//! Durable writes (`FI_COMMIT_COMPLETE`): a commit request follows the bytes, and the write completes when the target has
//! answered. The target's endpoint asks the kernel to write the pages to their file. As with atomics, that requires progress
//! at the target.

#![allow(unsafe_code)]
// UNSAFETY: reads the protection table.

use super::host::{EpHost, identity_of, refuse};
use super::*;
use crate::info::offer::RMA_IOV_LIMIT;
use crate::mr::persistent;
use rkey_device::core::{Accessor, Operation as Access};
use rkey_endpoint::complaint::complain;
use rkey_rdm::commit::{self, RemoteRange};

// A write has at most `RMA_IOV_LIMIT` ranges.
const _: () = assert!(commit::RANGES_MAX == RMA_IOV_LIMIT);

/// Makes a peer's writes durable; returns the error, if any.
pub(super) fn commit(host: &EpHost, from: &Connection, payload: &[u8]) -> Result<()> {
    let who = Accessor {
        domain: host.pd.id,
        qp: host.regions,
        peer: identity_of(from),
    };
    // SAFETY: nothing is registered or closed through the table here.
    let table = unsafe { host.domain.device.protection() };
    for RemoteRange { addr, len, key } in commit::decode(payload)? {
        if len == 0 {
            continue;
        }
        let grant = table
            .check_remote(&who, key, addr, len, Access::Write)
            .map_err(|denial| refuse(from, denial))?;
        let promised = grant
            .region()
            .is_some_and(|region| host.domain.persistent.lock().contains(&region));
        if !promised {
            complain(format_args!(
                "a write of {len} B at {addr:#x} requests FI_COMMIT_COMPLETE, but its region was registered without FI_RMA_PMEM"
            ));
            return Err(FiError::INVAL);
        }
        let foreign = grant.spans().any(|span| span.in_process().is_none());
        let spans: Vec<_> = grant.spans().map(|span| span.range()).collect();
        // The memory behind the region may have changed since it was registered.
        persistent::check(&spans, foreign)?;
        spans.iter().try_for_each(persistent::sync)?;
    }
    Ok(())
}
