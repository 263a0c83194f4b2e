//! Collective groups: joining and leaving them.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::object::EpObject;
use super::*;
use crate::av::set::{AvSet, AvSetObject, new_address};
use crate::nosys;
use crate::object::{find, handle_of, input, object, publish, remove, status};
use rkey_device::time;
use rkey_rdm::collective::MEMBERS_MAX;
use rkey_rdm::endpoint::Members;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Weak;
use std::time::Duration;

/// The object behind the program's handle.
#[repr(C)]
struct McObject {
    fid: UnsafeCell<FidMc>,
    ep: Weak<Endpoint>,
    /// The queue for the group's events.
    eq: Arc<Eq>,
    address: u64,
}
object!(McObject, FidMc, 65536);

static FID_OPS: Ops = Ops {
    close,
    ..nosys::OPS
};

/// The data for a group's events: its handle, and the context of the call that joined.
pub(crate) struct Joined {
    fid: usize,
    context: usize,
}

impl Joined {
    /// Reports that all members have joined, or why the join failed.
    pub(super) fn report(&self, eq: &Eq, result: Result<()>) {
        let (fid, context) = (self.fid, self.context);
        match result {
            Ok(()) => eq.completed(FI_JOIN_COMPLETE, fid, context, 0),
            Err(error) => eq.failed(crate::eq::Failure {
                fid,
                context,
                data: 0,
                error,
                error_data: Vec::new(),
            }),
        }
    }
}

/// `fi_join_collective`.
///
/// # Safety
/// The arguments must be valid as described in fi_collective(3).
pub(super) unsafe extern "C" fn join(
    ep: *mut FidEp,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut FidMc,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle.
        let ep = &unsafe { find::<EpObject, _>(ep)? }.inner;
        if flags & FI_COLLECTIVE == 0 {
            tracing::warn!("fi_join: multicast groups are not supported, only collective groups");
            return Err(FiError::NOSYS);
        }
        let sides = flags & (FI_SEND | FI_RECV);
        if flags & !(FI_COLLECTIVE | FI_SEND | FI_RECV) != 0 {
            return Err(FiError::BADFLAGS);
        }
        if sides != 0 && sides != FI_SEND | FI_RECV {
            tracing::warn!(
                "fi_join: a collective group needs both FI_SEND and FI_RECV, or neither"
            );
            return Err(FiError::OPNOTSUPP);
        }
        // SAFETY: with this flag the address is that of a collective, as the caller guarantees.
        let addr = unsafe { input(addr.cast::<CollectiveAddr>())? };
        // SAFETY: `find` validates the handle.
        let set = unsafe { find::<AvSetObject, _>(addr.set)? };
        check(ep.ep_type, ep.caps)?;
        let live = ep.live()?;
        let Some(eq) = &live.host.eq else {
            tracing::warn!(
                "fi_join_collective: first bind the endpoint to an event queue (fi_ep_bind), which reports the result"
            );
            return Err(FiError::NOEQ);
        };
        let members = ep.members(live, &set.inner)?;
        let by_itself = addr.coll_addr == FI_ADDR_NOTAVAIL;
        if !by_itself && addr.coll_addr != set.inner.address {
            let state = live.state.lock();
            let groups = state.rdm.groups();
            let seat = groups.and_then(|all| all.seat(addr.coll_addr));
            seat.ok_or(FiError::INVAL)?;
        }
        let address = new_address();
        let object = McObject {
            fid: UnsafeCell::new(FidMc {
                fid: Fid::new(FI_CLASS_MC, context, &FID_OPS),
                fi_addr: address,
            }),
            ep: Arc::downgrade(ep),
            eq: Arc::clone(eq),
            address,
        };
        // SAFETY: room for a handle, as the caller guarantees.
        let fid = handle_of(unsafe { publish(object, mc)? }) as usize;
        let joined = Joined {
            fid,
            context: context as usize,
        };
        ep.enter(live, members, address, joined, by_itself);
        Ok(())
    })
}

/// `fi_close` of a group: the endpoint leaves it.
unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    status(|| {
        // SAFETY: the program no longer uses the group; `remove` validates the handle.
        let object = unsafe { remove::<McObject, _>(fid)? };
        if let Some(ep) = object.ep.upgrade()
            && let Some(live) = ep.live.get()
        {
            let rdm = &mut live.state.lock().rdm;
            rdm.leave(&live.host, object.address, time::now());
        }
        // The next group may get the same handle.
        object.eq.forget(fid as usize);
        Ok(())
    })
}

/// Checks that an endpoint of this type, with these capabilities, has collective operations.
pub(super) fn check(ep_type: c_int, caps: u64) -> Result<()> {
    if ep_type != FI_EP_RDM {
        return Err(FiError::OPNOTSUPP);
    }
    check_caps(caps, FI_COLLECTIVE)
}

impl Endpoint {
    /// The members of a set, and our rank.
    fn members(&self, live: &Live, set: &AvSet) -> Result<Members> {
        let own = live.name();
        let av = live.host.av.as_ref();
        if !av.is_some_and(|av| Arc::ptr_eq(av, &set.av)) {
            tracing::warn!(
                "fi_join_collective: the address vector set must come from the endpoint's address vector"
            );
            return Err(FiError::INVAL);
        }
        let mut addresses = Vec::new();
        for number in set.members() {
            let allowed = set.av.allows(number, &self.pd.key);
            let address = set.av.get(number).filter(|_| allowed);
            addresses.push(address.ok_or(FiError::INVAL)?);
        }
        if addresses.len() > MEMBERS_MAX {
            return Err(FiError::MSGSIZE);
        }
        let mut sorted = addresses.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let twice = rkey_rdm::address::to_text(pair[0]);
            tracing::warn!("fi_join_collective: {twice} is in the address vector set twice");
            return Err(FiError::INVAL);
        }
        let rank = addresses.iter().position(|address| *address == own);
        let rank = rank.ok_or_else(|| {
            let own = rkey_rdm::address::to_text(own);
            tracing::warn!(
                "fi_join_collective: {own}, the endpoint's address, is not in the address vector set"
            );
            FiError::INVAL
        })?;
        Ok(Members { addresses, rank })
    }

    /// Joins a group. Unless it joins `by_itself`, the group is complete when all other members have joined. Until then, a thread drives
    /// the endpoint, if the domain has no automatic progress.
    fn enter(
        self: &Arc<Self>,
        live: &Live,
        members: Members,
        address: u64,
        joined: Joined,
        by_itself: bool,
    ) {
        let now = time::now();
        let rdm = &mut live.state.lock().rdm;
        rdm.join(&live.host, members, address, joined, by_itself, now);
        // Joining must progress even if the program makes no calls (control progress FI_PROGRESS_AUTO).
        if !by_itself && !self.domain.auto_progress {
            let ep = Arc::clone(self);
            let spawned = rkey_device::threads::spawn("rkey-fi-join", move || ep.attend(address));
            if let Err(error) = spawned {
                tracing::debug!(%error, "cannot start a thread that joins a group: the program must make progress meanwhile");
            }
        }
    }

    /// Drives the endpoint until the group is joined or has failed; runs in a separate thread.
    fn attend(&self, address: u64) {
        let time = Duration::from_millis(50);
        while !self.closing.load(Ordering::Acquire) {
            let Some(live) = self.live.get() else { return };
            {
                let mut state = live.state.lock();
                if self.closing.load(Ordering::Acquire) {
                    return;
                }
                live.advance(&mut state);
                let groups = state.rdm.groups();
                if !groups.is_some_and(|all| all.is_joining(address)) {
                    return;
                }
            }
            if live.cq.wait(Some(time)).is_err() {
                return;
            }
        }
    }
}
