//! SRQs (shared receive queues).

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::argument;
use crate::evd::Evd;
use crate::event::bits;
use crate::fail::{Fail, Result, call};
use crate::ia::{Ia, MAX_DTOS, MAX_IOV};
use crate::object::{find, insert, remove};
use crate::post::segments;
use crate::pz::Pz;
use crate::sys::consts::*;
use crate::sys::{DtoCookie, IaHandle, LmrTriplet, PzHandle, Return, SrqAttr, SrqHandle, SrqParam};
use parking_lot::Mutex;
use rkey_device::Srq as Queue;
use rkey_device::engine::RecvRequest;
use rkey_kit::object::Users;
use std::sync::Arc;

/// A shared receive queue.
pub struct Srq {
    /// The PZ of the SRQ.
    pub pz: Arc<Pz>,
    /// The handle of the SRQ.
    pub handle: usize,
    /// The device's queue.
    pub queue: Queue,
    max_recv_iov: u32,
    /// The EPs and EVDs where its receives may complete.
    receivers: Mutex<Receivers>,
    /// EPs that take receives from the SRQ.
    pub users: Users,
}

#[derive(Default)]
struct Receivers {
    /// The capacity of the SRQ, in receives.
    depth: u32,
    /// The EVDs where its receives may complete, each with its number of EPs. `None`: EPs whose program wants no
    /// events.
    evds: Vec<(Option<Arc<Evd>>, u32)>,
}

impl Receivers {
    fn place(&self, evd: Option<&Arc<Evd>>) -> Option<usize> {
        let evd = evd.map(Arc::as_ptr);
        let mut known = self.evds.iter();
        known.position(|(other, _)| other.as_ref().map(Arc::as_ptr) == evd)
    }
}

crate::kind!(
    Srq,
    HANDLE_TYPE_SRQ,
    INVALID_HANDLE_SRQ,
    RESOURCE_SRQ,
    1 << 16
);

impl Srq {
    /// Closes the SRQ.
    pub fn close(&self) {
        self.pz.ia().remove_srq(self.queue.id());
        self.pz.users.remove();
    }

    /// Makes room in an EVD for the completions of its receives, before an EP takes them.
    ///
    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`.
    pub fn attach(&self, evd: Option<&Arc<Evd>>) -> Result {
        let mut receivers = self.receivers.lock();
        match receivers
            .place(evd)
            .and_then(|at| receivers.evds.get_mut(at))
        {
            Some((_, eps)) => *eps += 1,
            None => {
                let ia = self.pz.ia();
                ia.expect(evd.map(|evd| &**evd), receivers.depth)?;
                receivers.evds.push((evd.cloned(), 1));
            }
        }
        Ok(())
    }

    /// Undoes [`Srq::attach`].
    pub fn detach(&self, evd: Option<&Arc<Evd>>) {
        let mut receivers = self.receivers.lock();
        let Some(place) = receivers.place(evd) else {
            return;
        };
        if let Some((_, eps)) = receivers.evds.get_mut(place) {
            *eps -= 1;
            if *eps == 0 {
                receivers.evds.swap_remove(place);
                let ia = self.pz.ia();
                ia.expect_less(evd.map(|evd| &**evd), receivers.depth);
            }
        }
    }

    /// Takes completions out of the completion queues of the SRQ's EVDs if those queues are filling up.
    fn relieve(&self) {
        let ia = self.pz.ia();
        let mut crowded = Vec::new();
        for (evd, _) in &self.receivers.lock().evds {
            if ia.is_crowded(evd.as_deref()) {
                crowded.push(evd.clone());
            }
        }
        for evd in crowded {
            ia.collect(evd.as_deref());
        }
    }

    /// Changes how many receives the SRQ can hold, and makes room for their completions.
    fn resize(&self, depth: u32) -> Result {
        let ia = self.pz.ia();
        let mut receivers = self.receivers.lock();
        let more = depth.saturating_sub(receivers.depth);
        let mut failed = Ok(());
        let mut grown = 0;
        for (evd, _) in &receivers.evds {
            failed = ia.expect(evd.as_deref(), more);
            if failed.is_err() {
                break;
            }
            grown += 1;
        }
        let result = failed.and_then(|()| Ok(self.queue.modify(None, Some(depth))?));
        let (less, from) = match result {
            Ok(()) => (receivers.depth.saturating_sub(depth), receivers.evds.len()),
            Err(_) => (more, grown),
        };
        for (evd, _) in receivers.evds.iter().take(from) {
            ia.expect_less(evd.as_deref(), less);
        }
        if result.is_ok() {
            receivers.depth = depth;
        }
        result
    }

    /// How many receives the SRQ can hold, its low watermark, and how many it holds.
    fn state(&self) -> Result<(u32, u32, u32)> {
        Ok(self.queue.query()?)
    }
}

/// `dat_srq_create`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn create(
    ia: IaHandle,
    pz: PzHandle,
    attr: *mut SrqAttr,
    srq: *mut SrqHandle,
) -> Return {
    call("dat_srq_create", || {
        // SAFETY: `find` validates the handles; the caller promises the attributes.
        let (ia, pz, attr) = unsafe {
            let ia = find::<Ia>(ia)?;
            (ia, find::<Pz>(pz)?, argument::input(3, attr.cast_const())?)
        };
        argument::room(4, srq)?;
        if !Arc::ptr_eq(pz.ia(), ia) {
            return Err(Fail::handle(INVALID_HANDLE_PZ));
        }
        let depth = argument::count(3, attr.max_recv_dtos)?;
        let segments = argument::count(3, attr.max_recv_iov)?;
        let low = argument::count(3, attr.low_watermark)?;
        if depth == 0 || depth > MAX_DTOS || segments > MAX_IOV || low > depth {
            return Err(Fail::argument(3));
        }
        let queue = ia.device.create_srq(pz.domain, depth, segments.max(1))?;
        let mut made = None;
        let handle = insert::<Srq>(ia.table, |handle| {
            let srq = Arc::new(Srq {
                pz: Arc::clone(pz),
                handle,
                queue,
                max_recv_iov: segments.max(1),
                receivers: Mutex::new(Receivers {
                    depth,
                    evds: Vec::new(),
                }),
                users: Users::default(),
            });
            made = Some(Arc::clone(&srq));
            Ok(srq)
        })?;
        pz.users.add();
        if let Some(srq) = made {
            ia.add_srq(&srq);
            // Set only now: the event may come at once, and must find the SRQ.
            if low > 0
                && let Err(error) = srq.queue.modify(Some(low), None)
            {
                // SAFETY: the program does not know the handle.
                unsafe { remove::<Srq>(handle as usize)? }.close();
                return Err(error.into());
            }
        }
        // SAFETY: room for a handle.
        unsafe { argument::store(4, srq, handle) }
    })
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn post_recv(
    srq: SrqHandle,
    count: Count,
    iov: *mut LmrTriplet,
    cookie: DtoCookie,
) -> Return {
    call("dat_srq_post_recv", || {
        // SAFETY: `find` validates the handle; the caller promises the list.
        let (srq, (segments, _)) = unsafe { (find::<Srq>(srq)?, segments(count, iov)?) };
        let request = RecvRequest {
            id: bits(cookie),
            sges: &segments,
        };
        srq.relieve();
        Ok(srq.queue.post_recv(&request)?)
    })
}

/// `dat_srq_query`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn query(
    srq: SrqHandle,
    mask: dat_srq_param_mask,
    param: *mut SrqParam,
) -> Return {
    call("dat_srq_query", || {
        // SAFETY: `find` validates the handle.
        let srq = unsafe { find::<Srq>(srq)? };
        argument::mask(2, mask.into(), SRQ_FIELD_ALL.into())?;
        let (depth, low, held) = srq.state()?;
        let value = SrqParam {
            ia_handle: srq.pz.ia().number(),
            srq_state: SRQ_STATE_OPERATIONAL,
            pz_handle: srq.pz.handle as PzHandle,
            max_recv_dtos: depth as Count,
            max_recv_iov: srq.max_recv_iov as Count,
            low_watermark: low as Count,
            available_dto_count: held as Count,
            outstanding_dto_count: held as Count,
        };
        // SAFETY: the caller promises that there is room.
        unsafe { argument::store(3, param, value) }
    })
}

/// `dat_srq_resize`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn resize(srq: SrqHandle, depth: Count) -> Return {
    call("dat_srq_resize", || {
        // SAFETY: `find` validates the handle.
        let srq = unsafe { find::<Srq>(srq)? };
        let depth = argument::count(2, depth)?;
        if depth == 0 || depth > MAX_DTOS {
            return Err(Fail::argument(2));
        }
        let (_, low, held) = srq.state()?;
        if depth < held || depth < low {
            return Err(Fail::state(INVALID_STATE_SRQ_IN_USE));
        }
        srq.resize(depth)
    })
}

/// `dat_srq_set_lw`: one event when fewer receives than this are left.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn set_low_watermark(srq: SrqHandle, low: Count) -> Return {
    call("dat_srq_set_lw", || {
        // SAFETY: `find` validates the handle.
        let srq = unsafe { find::<Srq>(srq)? };
        let low = argument::count(2, low)?;
        if low > srq.state()?.0 {
            return Err(Fail::argument(2));
        }
        Ok(srq.queue.modify(Some(low), None)?)
    })
}

/// `dat_srq_free`.
///
/// # Safety
/// The arguments must be valid as described in the manual page.
pub unsafe extern "C" fn free(srq: SrqHandle) -> Return {
    call("dat_srq_free", || {
        // SAFETY: `find` validates the handle.
        let object = unsafe { find::<Srq>(srq)? };
        if !object.users.is_empty() {
            return Err(Fail::state(INVALID_STATE_SRQ_IN_USE));
        }
        // SAFETY: the last use of the handle.
        unsafe { remove::<Srq>(srq as usize)? }.close();
        Ok(())
    })
}
