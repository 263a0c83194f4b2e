//! `fi_ep_bind`: binds other objects to an endpoint.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::object::EpObject;
use super::*;
use crate::av::AvObject;
use crate::cntr::CntrObject;
use crate::cq::CqObject;
use crate::eq::EqObject;
use crate::lenient;
use crate::object::{find, input, status};
use shared::SrxObject;
use stx::StxObject;

/// `fi_ep_bind`.
pub(super) unsafe extern "C" fn bind(fid: *mut Fid, bound: *mut Fid, flags: u64) -> c_int {
    status(|| {
        // SAFETY: `find` validates the handle; every handle begins with a `fid`.
        let (object, class) =
            unsafe { (find::<EpObject, _>(fid)?, input(bound.cast_const())?.fclass) };
        let ep = &object.inner;
        let mut setup = ep.setup.lock();
        if setup.enabled && (class != FI_CLASS_CNTR || ep.closing.load(Ordering::Acquire)) {
            return Err(FiError::OPBADSTATE);
        }
        if let Some(context) = &ep.context {
            context.check_binding(class, flags)?;
        }
        match class {
            FI_CLASS_CQ => {
                // SAFETY: `find` validates the handle.
                let cq = &unsafe { find::<CqObject, _>(bound)? }.inner;
                bind_cq(ep, &mut setup, cq, flags)
            }
            FI_CLASS_CNTR => {
                // SAFETY: `find` validates the handle.
                let counter = &unsafe { find::<CntrObject, _>(bound)? }.inner;
                bind_counter(ep, &mut setup, counter, flags)
            }
            FI_CLASS_AV => {
                // SAFETY: `find` validates the handle.
                let av = &unsafe { find::<AvObject, _>(bound)? }.inner;
                bind_av(ep, &mut setup, av, flags)
            }
            FI_CLASS_SRX_CTX => {
                // SAFETY: `find` validates the handle.
                let srx = &unsafe { find::<SrxObject, _>(bound)? }.inner;
                accepts_shared(ep.shares, flags, "receive context", "rx_ctx_cnt")?;
                place(&mut setup.srx, srx, |srx| srx.join(ep))
            }
            FI_CLASS_STX_CTX => {
                // SAFETY: `find` validates the handle.
                let stx = &unsafe { find::<StxObject, _>(bound)? }.inner;
                accepts_shared(ep.shares_tx, flags, "transmit context", "tx_ctx_cnt")?;
                place(&mut setup.stx, stx, |stx| stx.join(ep))
            }
            FI_CLASS_EQ => {
                // SAFETY: `find` validates the handle.
                let eq = &unsafe { find::<EqObject, _>(bound)? }.inner;
                if !Arc::ptr_eq(&eq.fabric, &ep.domain.fabric) {
                    return Err(FiError::INVAL);
                }
                place(&mut setup.eq, eq, |eq| {
                    eq.users.add();
                    Ok(())
                })
            }
            _ => Err(FiError::INVAL),
        }
    })
}

/// Binds an object of a kind that an endpoint can have only once. Returns `FI_EBUSY` if the endpoint already has one.
fn place<T>(
    place: &mut Option<Arc<T>>,
    object: &Arc<T>,
    join: impl FnOnce(&Arc<T>) -> Result<()>,
) -> Result<()> {
    if place.is_some() {
        return Err(FiError::BUSY);
    }
    join(object)?;
    *place = Some(Arc::clone(object));
    Ok(())
}

/// Checks that an endpoint may be bound to a shared context; `count` names the attribute that allows it.
fn accepts_shared(shares: bool, flags: u64, context: &str, count: &str) -> Result<()> {
    if flags != 0 {
        return Err(FiError::BADFLAGS);
    }
    if !shares {
        tracing::warn!(
            "to use a shared {context}, open the endpoint with {count} set to FI_SHARED_CONTEXT"
        );
        return Err(FiError::INVAL);
    }
    Ok(())
}

fn bind_av(ep: &Endpoint, setup: &mut Setup, av: &Arc<Av>, flags: u64) -> Result<()> {
    if !Arc::ptr_eq(&av.domain, &ep.domain) || ep.ep_type == FI_EP_MSG || flags != 0 {
        return Err(FiError::INVAL);
    }
    place(&mut setup.av, av, |av| {
        av.users.add();
        Ok(())
    })
}

fn bind_cq(ep: &Endpoint, setup: &mut Setup, cq: &Arc<Cq>, flags: u64) -> Result<()> {
    if flags & !(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 {
        return Err(FiError::BADFLAGS);
    }
    if flags & (FI_SEND | FI_RECV) == 0 || !Arc::ptr_eq(&cq.domain, &ep.domain) {
        return Err(FiError::INVAL);
    }
    let taken = (flags & FI_SEND != 0 && setup.tx.is_some())
        || (flags & FI_RECV != 0 && setup.rx.is_some());
    if taken {
        return Err(FiError::BUSY);
    }
    let side = BoundCq {
        cq: Arc::clone(cq),
        selective: flags & FI_SELECTIVE_COMPLETION != 0,
    };
    if flags & FI_SEND != 0 {
        cq.users.add();
        setup.tx = Some(side.clone());
    }
    if flags & FI_RECV != 0 {
        cq.users.add();
        setup.rx = Some(side);
    }
    Ok(())
}

/// Binds a counter. If the endpoint is already enabled, the counter counts from now on (in strict mode, that is refused).
fn bind_counter(
    ep: &Arc<Endpoint>,
    setup: &mut Setup,
    counter: &Arc<Counter>,
    flags: u64,
) -> Result<()> {
    if !Arc::ptr_eq(&counter.domain, &ep.domain) || flags == 0 {
        return Err(FiError::INVAL);
    }
    let remote = flags & (FI_REMOTE_READ | FI_REMOTE_WRITE);
    if remote != 0 {
        // FI-I24: counting peers' accesses needs the capability FI_RMA_EVENT.
        ep.check_caps(FI_RMA_EVENT)?;
    }
    let flags = flags & !remote;
    let places = [
        (FI_SEND, SENT),
        (FI_RECV, RECEIVED),
        (FI_READ, READ),
        (FI_WRITE, WRITTEN),
    ];
    if flags & !places.iter().fold(0, |all, (flag, _)| all | flag) != 0 {
        return Err(FiError::BADFLAGS);
    }
    let wanted = || {
        places
            .iter()
            .filter(|(flag, _)| flags & flag != 0)
            .map(|&(_, place)| place)
    };
    let of_peers = || {
        REMOTE
            .iter()
            .enumerate()
            .filter(|(_, (flag, _))| remote & flag != 0)
    };
    if wanted().any(|place| setup.counters[place].is_some())
        || of_peers().any(|(place, _)| setup.remote[place].is_some())
    {
        return Err(FiError::BUSY);
    }
    let live = ep.live.get();
    if live.is_some() {
        lenient::unless_strict(&lenient::LATE_COUNTER, FiError::OPBADSTATE)?;
    }
    if remote != 0 {
        crate::mr::bind::count_for_endpoints(&ep.domain);
    }
    for (place, &(_, kind)) in of_peers() {
        counter.users.add();
        counter.watch(ep.number, kind);
        setup.remote[place] = Some(Arc::clone(counter));
        if let Some(live) = live {
            live.host.remote[place].get_or_init(|| Arc::clone(counter));
        }
    }
    for place in wanted() {
        counter.users.add();
        setup.counters[place] = Some(Arc::clone(counter));
        if let Some(live) = live {
            live.host.counters[place].get_or_init(|| Arc::clone(counter));
        }
    }
    if live.is_some() {
        counter.attach(ep);
    }
    Ok(())
}
