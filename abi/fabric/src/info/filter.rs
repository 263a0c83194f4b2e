//! Matches offers with hints, and narrows an offer down to them.

#![allow(unsafe_code)]
// UNSAFETY: reads the program's structures.

use super::offer::{self, *};
use super::{DOMAIN_NAME, FABRIC_NAME};
use crate::mode::{self, Request};
use crate::object::list;
use crate::sys::*;
use std::ffi::{CStr, c_char, c_int};

/// The mismatch of a program that does not accept the required mode bits.
pub(crate) const MR_MODE: &str = "mr_mode";

/// The parts of a program's hints that are evaluated.
#[derive(Default)]
pub(crate) struct Hints<'a> {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) addr_format: u32,
    pub(crate) src_addr: Option<&'a [u8]>,
    pub(crate) dest_addr: Option<&'a [u8]>,
    /// The address of a handle, or 0.
    pub(crate) handle: usize,
    pub(crate) tx: Option<&'a TxAttr>,
    pub(crate) rx: Option<&'a RxAttr>,
    pub(crate) ep: Option<&'a EpAttr>,
    pub(crate) domain: Option<&'a DomainAttr>,
    pub(crate) fabric: Option<&'a FabricAttr>,
}

impl Hints<'_> {
    /// Reads hints; null means none.
    ///
    /// # Safety
    /// `info` is null, or a complete `fi_info` from libfabric's core, which does not change while the result is used.
    pub(crate) unsafe fn read<'a>(info: *const Info) -> Hints<'a> {
        // SAFETY: the caller guarantees null or a valid structure.
        let Some(info) = (unsafe { info.as_ref() }) else {
            return Hints::default();
        };
        let bytes = |at: *const std::ffi::c_void, len: usize| {
            // SAFETY: the caller guarantees an address of this length, or null.
            unsafe { list(at.cast::<u8>(), len) }
                .ok()
                .filter(|bytes| !bytes.is_empty())
        };
        // SAFETY: the caller guarantees that attributes are null or valid.
        unsafe {
            Hints {
                caps: info.caps,
                mode: info.mode,
                addr_format: info.addr_format,
                src_addr: bytes(info.src_addr, info.src_addrlen),
                dest_addr: bytes(info.dest_addr, info.dest_addrlen),
                handle: info.handle as usize,
                tx: info.tx_attr.as_ref(),
                rx: info.rx_attr.as_ref(),
                ep: info.ep_attr.as_ref(),
                domain: info.domain_attr.as_ref(),
                fabric: info.fabric_attr.as_ref(),
            }
        }
    }
}

/// Checks a number against the largest on offer.
fn at_most(what: &'static str, wanted: usize, offered: usize) -> Result<(), &'static str> {
    if wanted <= offered { Ok(()) } else { Err(what) }
}

/// The program's choice among the values on offer; 0 takes the default.
fn choice(
    what: &'static str,
    wanted: c_int,
    offered: &[c_int],
    default: c_int,
) -> Result<c_int, &'static str> {
    match wanted {
        0 => Ok(default),
        _ if offered.contains(&wanted) => Ok(wanted),
        _ => Err(what),
    }
}

/// Compares a name that the program passed, if any, with ours.
fn named(what: &'static str, given: *const c_char, ours: &CStr) -> Result<(), &'static str> {
    // SAFETY: null or a C string: names in attributes are.
    if given.is_null() || unsafe { CStr::from_ptr(given) } == ours {
        Ok(())
    } else {
        Err(what)
    }
}

/// Narrows the offer for a kind of endpoint down to the hints.
///
/// # Errors
/// The first mismatch, in a few words.
pub(crate) fn matches(
    version: u32,
    ep_type: c_int,
    hints: &Hints<'_>,
    required: c_int,
) -> Result<Offer, &'static str> {
    let caps = capabilities(version, ep_type, hints.caps)?;
    let request = Request {
        version,
        mr_mode: hints.domain.map(|domain| domain.mr_mode),
        mode: hints.mode,
        caps: hints.caps,
    };
    let kind = mode::negotiate(required, &request, mode::hides()).ok_or_else(|| {
        mode::explain(required, &request);
        MR_MODE
    })?;
    mode::explain_match(&request, kind);
    let tx_caps = caps & !(RX_ONLY | DOMAIN_ONLY);
    let rx_caps = caps & !(TX_ONLY | DOMAIN_ONLY);
    let mut offer = Offer {
        ep_type,
        version,
        caps,
        mode: kind.mode,
        mr_mode: kind.mr_mode,
        tx_caps,
        rx_caps,
        tx_op_flags: FI_TRANSMIT_COMPLETE,
        rx_op_flags: 0,
        msg_order: MSG_ORDER,
        tx_contexts: 1,
        rx_contexts: 1,
        inject_size: INJECT_SIZE,
        tx_size: TX_SIZE,
        rx_size: RX_SIZE,
        threading: FI_THREAD_SAFE,
        control_progress: FI_PROGRESS_MANUAL,
        data_progress: FI_PROGRESS_MANUAL,
        resource_mgmt: FI_RM_ENABLED,
        av_type: FI_AV_UNSPEC,
        auth_key: Vec::new(),
        domain_auth_key: Vec::new(),
        av_keys: false,
        prov_name: None,
    };
    if ep_type == FI_EP_DGRAM {
        offer.inject_size = INJECT_SIZE.min(MAX_DGRAM_SIZE);
    }
    transmit(&mut offer, hints)?;
    receive(&mut offer, hints)?;
    endpoint(&mut offer, hints)?;
    domain(&mut offer, hints)?;
    if let Some(fabric) = hints.fabric {
        named("fabric name", fabric.name, FABRIC_NAME)?;
    }
    Ok(offer)
}

/// Capabilities that belong to one side's attributes only, and those that belong to neither: only the `fi_info` and the
/// domain carry `FI_LOCAL_COMM` and `FI_REMOTE_COMM`.
pub(crate) const RX_ONLY: u64 = FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_DIRECTED_RECV
    | FI_RMA_EVENT;
pub(crate) const TX_ONLY: u64 = FI_SEND | FI_READ | FI_WRITE | FI_NAMED_RX_CTX;
const DOMAIN_ONLY: u64 = COMM;

/// The capabilities of an offer for the requested ones.
fn capabilities(version: u32, ep_type: c_int, asked: u64) -> Result<u64, &'static str> {
    let (primary, secondary) = (offer::primary(ep_type), offer::secondary(ep_type));
    if asked == 0 {
        return Ok(primary | secondary);
    }
    if asked & !(primary | secondary | on_demand(ep_type)) != 0 {
        return Err("capabilities");
    }
    // FI-269: before 1.9 the bit had no meaning.
    if asked & FI_COLLECTIVE != 0 && version < COLLECTIVE_SINCE {
        return Err("capabilities");
    }
    let mut caps = asked | COMM;
    // FI_RMA_EVENT and FI_RMA_PMEM modify RMA, so they imply RMA if the program requests neither a kind of transfer nor a side.
    if asked & primary == 0 && asked & (FI_RMA_EVENT | FI_RMA_PMEM) != 0 {
        caps |= FI_RMA;
    }
    caps = with_sides(caps);
    // FI-I25: Only targets have RMA events.
    if asked & FI_RMA_EVENT != 0 && caps & (FI_REMOTE_READ | FI_REMOTE_WRITE) == 0 {
        return Err("FI_RMA_EVENT without a remote side");
    }
    // FI-I26: the capability FI_RMA_PMEM needs FI_RMA.
    if asked & FI_RMA_PMEM != 0 && caps & FI_RMA == 0 {
        return Err("FI_RMA_PMEM without FI_RMA");
    }
    Ok(caps)
}

/// The capabilities, with all sides added for messages, and for RMA and atomics, if they name none (fi_getinfo(3)).
pub(crate) fn with_sides(mut caps: u64) -> u64 {
    if caps & (FI_MSG | FI_TAGGED) != 0 && caps & SIDES_MSG == 0 {
        caps |= SIDES_MSG;
    }
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & SIDES_RMA == 0 {
        caps |= SIDES_RMA;
    }
    caps
}

fn transmit(offer: &mut Offer, hints: &Hints<'_>) -> Result<(), &'static str> {
    let Some(tx) = hints.tx else { return Ok(()) };
    if tx.caps & !(offer.caps | offer::on_demand(offer.ep_type)) != 0 {
        return Err("transmit capabilities");
    }
    if tx.op_flags & !TX_OP_FLAGS != 0 {
        return Err("transmit flags");
    }
    if tx.msg_order & !MSG_ORDER != 0 || tx.comp_order != 0 {
        return Err("transmit order");
    }
    at_most("inject_size", tx.inject_size, offer.inject_size)?;
    at_most("transmit size", tx.size, TX_SIZE)?;
    at_most("iov_limit", tx.iov_limit, IOV_LIMIT)?;
    at_most("rma_iov_limit", tx.rma_iov_limit, RMA_IOV_LIMIT)?;
    if tx.caps & !DOMAIN_ONLY != 0 {
        offer.tx_caps = tx.caps & !DOMAIN_ONLY;
    }
    if tx.op_flags != 0 {
        offer.tx_op_flags = tx.op_flags;
    }
    if tx.size != 0 {
        offer.tx_size = tx.size;
    }
    Ok(())
}

fn receive(offer: &mut Offer, hints: &Hints<'_>) -> Result<(), &'static str> {
    let Some(rx) = hints.rx else { return Ok(()) };
    if rx.caps & !(offer.caps | offer::on_demand(offer.ep_type)) != 0 {
        return Err("receive capabilities");
    }
    if rx.op_flags & !RX_OP_FLAGS != 0 {
        return Err("receive flags");
    }
    if rx.msg_order & !MSG_ORDER != 0 || rx.comp_order != 0 {
        return Err("receive order");
    }
    at_most("receive size", rx.size, RX_SIZE)?;
    at_most("receive iov_limit", rx.iov_limit, IOV_LIMIT)?;
    if rx.caps & !DOMAIN_ONLY != 0 {
        offer.rx_caps = rx.caps & !DOMAIN_ONLY;
    }
    offer.rx_op_flags = rx.op_flags;
    if rx.size != 0 {
        offer.rx_size = rx.size;
    }
    Ok(())
}

fn endpoint(offer: &mut Offer, hints: &Hints<'_>) -> Result<(), &'static str> {
    let Some(ep) = hints.ep else { return Ok(()) };
    if ep.ep_type != FI_EP_UNSPEC && ep.ep_type != offer.ep_type {
        return Err("type of endpoint");
    }
    if ep.protocol != 0 && ep.protocol != PROTO_RKEY || ep.protocol_version > 1 {
        return Err("protocol");
    }
    let longest = if offer.ep_type == FI_EP_DGRAM {
        MAX_DGRAM_SIZE
    } else {
        MAX_MSG_SIZE
    };
    at_most("max_msg_size", ep.max_msg_size, longest)?;
    at_most("max_order_raw_size", ep.max_order_raw_size, longest)?;
    at_most("max_order_war_size", ep.max_order_war_size, 0)?;
    at_most("max_order_waw_size", ep.max_order_waw_size, longest)?;
    offer.tx_contexts = contexts("transmit contexts", offer, ep.tx_ctx_cnt)?;
    offer.rx_contexts = contexts("receive contexts", offer, ep.rx_ctx_cnt)?;
    // Only programs that request several contexts get this without naming it: MPICH takes it as advice to use several.
    let several = |count: usize| count > 1 && count != FI_SHARED_CONTEXT;
    if hints.caps == 0 && (several(offer.tx_contexts) || several(offer.rx_contexts)) {
        offer.caps |= FI_NAMED_RX_CTX;
        if hints.tx.is_none_or(|tx| tx.caps == 0) {
            offer.tx_caps |= FI_NAMED_RX_CTX;
        }
    }
    if offer.version >= version(1, 5) {
        // SAFETY: null, or as long as the hints say.
        offer.auth_key = unsafe { list(ep.auth_key, ep.auth_key_size) }
            .map_err(|_| "auth_key")?
            .to_vec();
    }
    Ok(())
}

/// How many contexts an endpoint has for one direction, by the program's choice; 0 means one.
fn contexts(what: &'static str, offer: &Offer, wanted: usize) -> Result<usize, &'static str> {
    if wanted != FI_SHARED_CONTEXT {
        at_most(what, wanted, offer::contexts(offer.ep_type))?;
        if wanted > 1 && offer.caps & FI_COLLECTIVE != 0 {
            return Err("collective operations of a scalable endpoint");
        }
    }
    Ok(wanted.max(1))
}

fn domain(offer: &mut Offer, hints: &Hints<'_>) -> Result<(), &'static str> {
    let Some(domain) = hints.domain else {
        return Ok(());
    };
    named("domain name", domain.name, DOMAIN_NAME)?;
    // The domain is thread-safe, which includes every weaker threading model.
    offer.threading = match domain.threading {
        FI_THREAD_UNSPEC => FI_THREAD_SAFE,
        other => other,
    };
    let manual = [FI_PROGRESS_MANUAL, FI_PROGRESS_CONTROL_UNIFIED];
    offer.control_progress = choice(
        "control progress",
        domain.control_progress,
        &[
            FI_PROGRESS_AUTO,
            FI_PROGRESS_MANUAL,
            FI_PROGRESS_CONTROL_UNIFIED,
        ],
        FI_PROGRESS_AUTO,
    )?;
    offer.data_progress = choice(
        "data progress",
        domain.data_progress,
        &[FI_PROGRESS_AUTO, manual[0], manual[1]],
        FI_PROGRESS_MANUAL,
    )?;
    offer.resource_mgmt = choice(
        "resource management",
        domain.resource_mgmt,
        &[FI_RM_DISABLED, FI_RM_ENABLED],
        FI_RM_ENABLED,
    )?;
    offer.av_type = choice(
        "type of address vector",
        domain.av_type,
        &[FI_AV_MAP, FI_AV_TABLE],
        FI_AV_UNSPEC,
    )?;
    if domain.caps & !(COMM | on_demand(offer.ep_type) & FI_HMEM) != 0 {
        return Err("domain capabilities");
    }
    offer.caps |= domain.caps & FI_AV_USER_ID;
    at_most("cq_data_size", domain.cq_data_size, CQ_DATA_SIZE)?;
    at_most("mr_iov_limit", domain.mr_iov_limit, MR_IOV_LIMIT)?;
    at_most(
        "mr_key_size",
        domain.mr_key_size,
        build_key_size(offer.mr_mode),
    )?;
    at_most("max_ep_stx_ctx", domain.max_ep_stx_ctx, MAX_SHARING)?;
    at_most("max_ep_srx_ctx", domain.max_ep_srx_ctx, MAX_SHARING)?;
    let contexts = offer::contexts(offer.ep_type);
    at_most("max_ep_tx_ctx", domain.max_ep_tx_ctx, contexts)?;
    at_most("max_ep_rx_ctx", domain.max_ep_rx_ctx, contexts)?;
    if offer.version >= version(1, 5) {
        if domain.auth_key_size == FI_AV_AUTH_KEY {
            // FI-I20: only the size counts here, not the keys.
            let usable = offer.version >= version(1, 20)
                && domain.auth_key.is_null()
                && offer.auth_key.is_empty()
                && offer.ep_type != FI_EP_MSG;
            offer.av_keys = true;
            return if usable {
                Ok(())
            } else {
                Err("authorization keys in the address vector")
            };
        }
        // SAFETY: null, or as long as the hints say.
        offer.domain_auth_key = unsafe { list(domain.auth_key, domain.auth_key_size) }
            .map_err(|_| "auth_key")?
            .to_vec();
    }
    Ok(())
}

/// The size of a key in bytes: more than 8 only with raw keys (FI-035, FI-051).
pub(crate) fn build_key_size(mr_mode: c_int) -> usize {
    if mr_mode & FI_MR_RAW != 0 && mr_mode & (FI_MR_BASIC | FI_MR_SCALABLE) == 0 {
        rkey_device::core::RawKey::LEN
    } else {
        8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(ep_type: c_int, caps: u64) -> Result<Offer, &'static str> {
        let hints = Hints {
            caps,
            ..Hints::default()
        };
        matches(version(1, 17), ep_type, &hints, 0)
    }

    #[test]
    fn hints_with_unsupported_capabilities_do_not_match() {
        assert!(ask(FI_EP_RDM, FI_MSG | FI_MULTICAST).is_err());
        assert!(ask(FI_EP_MSG, FI_MSG | FI_NAMED_RX_CTX).is_err());
        assert!(ask(FI_EP_DGRAM, FI_RMA).is_err());
        assert!(ask(FI_EP_MSG, FI_DIRECTED_RECV | FI_MSG).is_err());
    }

    /// Proves: FI-I25
    #[test]
    fn rma_events_need_a_capability_for_remote_access() {
        assert!(ask(FI_EP_RDM, FI_RMA | FI_WRITE | FI_RMA_EVENT).is_err());
        assert!(ask(FI_EP_RDM, FI_RMA | FI_REMOTE_WRITE | FI_RMA_EVENT).is_ok());
        assert!(ask(FI_EP_RDM, FI_RMA | FI_RMA_EVENT).is_ok());
    }

    #[test]
    fn a_capability_without_directions_means_both_directions() {
        let offer = ask(FI_EP_RDM, FI_MSG).unwrap();
        assert_eq!(offer.caps, FI_MSG | SIDES_MSG | COMM);
        let offer = ask(FI_EP_RDM, FI_RMA | FI_READ).unwrap();
        assert_eq!(offer.caps, FI_RMA | FI_READ | COMM);
    }

    #[test]
    fn persistent_memory_needs_rma() {
        assert!(ask(FI_EP_RDM, FI_MSG | FI_RMA_PMEM).is_err());
        let offer = ask(FI_EP_RDM, FI_RMA | FI_RMA_PMEM).unwrap();
        assert_eq!(offer.caps & FI_RMA_PMEM, FI_RMA_PMEM);
        assert!(ask(FI_EP_DGRAM, FI_MSG | FI_RMA_PMEM).is_err());
    }

    /// Proves: FI-035, FI-051
    #[test]
    fn only_raw_keys_are_longer_than_eight_bytes() {
        assert_eq!(build_key_size(0), 8);
        assert_eq!(build_key_size(FI_MR_BASIC), 8);
        assert!(build_key_size(FI_MR_RAW) > 8);
    }
}
