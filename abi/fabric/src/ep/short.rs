//! The express lane: short messages and receives with one buffer, without the structures that describe all that a call can ask for.
//!
//! The lane does what the long way ([`Endpoint::send`], [`Endpoint::receive`]) would do, in fewer steps. It refuses nothing. If a
//! call needs anything else, or cannot succeed at once, the lane changes nothing, and the long way decides.

use super::options::Limits;
use super::receive::PostedReceive;
use super::send::QUIET;
use super::*;
use crate::info::offer::MAX_MSG_SIZE;
use crate::mr::buffers::Held;
use crate::mr::local;
use rkey_device::core::LocalUse;
use rkey_rdm::endpoint::{SHORT_MAX, ShortMessage};
use rkey_rdm::operation_id::{Form, Plain};
use std::ffi::c_void;

/// The flags of messages in the lane: those that ask for nothing more than a plain operation does. Injected messages are not among
/// them: the device may have to send a message again, so it must have a copy of the bytes.
const SEND_FLAGS: u64 = QUIET | FI_COMPLETION | FI_MORE | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE;
/// The flags of receives in the lane.
const RECEIVE_FLAGS: u64 = FI_COMPLETION | FI_MORE;

/// One buffer of the program.
#[derive(Clone, Copy)]
pub(super) struct OneBuffer {
    pub(super) addr: u64,
    pub(super) len: usize,
    pub(super) desc: *mut c_void,
}

/// A message in one buffer.
#[derive(Clone, Copy)]
pub(super) struct ShortSend {
    pub(super) buffer: OneBuffer,
    pub(super) to: u64,
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
}

/// A receive into one buffer.
#[derive(Clone, Copy)]
pub(super) struct ShortReceive {
    pub(super) buffer: OneBuffer,
    pub(super) from: u64,
    /// The tag and its ignore mask.
    pub(super) tag: Option<(u64, u64)>,
    pub(super) context: *mut c_void,
    pub(super) flags: u64,
}

impl Endpoint {
    /// The state of an endpoint that has these capabilities.
    #[inline]
    fn live_with(&self, caps: u64) -> Option<&Live> {
        self.live.get().filter(|_| self.caps & caps == caps)
    }

    /// Sends a message at once. Returns false, with nothing changed, if [`Endpoint::send`] must decide.
    #[inline]
    pub(super) fn send_short(&self, it: &ShortSend) -> bool {
        self.try_send_short(it).is_some()
    }

    #[inline]
    fn try_send_short(&self, it: &ShortSend) -> Option<()> {
        let (kind, form, limit) = match it.tag {
            Some(_) => (FI_TAGGED, Form::Tagged, Limits::TAGGED),
            None => (FI_MSG, Form::Message, Limits::MESSAGE),
        };
        let live = self.live_with(FI_SEND | kind)?;
        let OneBuffer { addr, len, desc } = it.buffer;
        let usual = it.flags & !SEND_FLAGS == 0
            && (1..=SHORT_MAX as usize).contains(&len)
            && self.limits.check(limit, it.flags, len).is_ok()
            && self.ep_type == FI_EP_RDM
            && live.stx.is_none()
            && !self.domain.hmem;
        if !usual {
            return None;
        }
        // The device checks the rights each time it copies the bytes.
        let sge = local::named(&self.domain, &self.pd, addr, len as u32, desc)?;
        let tx = live.host.tx.as_ref();
        let report = BoundCq::reports(tx, it.flags);
        if report && tx.is_some_and(|tx| tx.cq.is_full()) {
            return None;
        }
        let plain = Plain {
            context: it.context as usize,
            form,
            report,
        };
        let id = plain.number()?;
        let removals = live.host.av.as_ref()?.removals();
        let mut state = live.state.lock();
        let message = ShortMessage {
            connection: state.rdm.routes().open_route(it.to, removals)?,
            id,
            tag: it.tag,
            data: it.data,
            sge,
        };
        state.rdm.send_short(&live.host, &message).then_some(())
    }

    /// Posts a receive. Returns false, with nothing changed, if [`Endpoint::receive`] must decide.
    #[inline]
    pub(super) fn receive_short(&self, it: &ShortReceive) -> bool {
        self.try_receive_short(it).is_some()
    }

    #[inline]
    fn try_receive_short(&self, it: &ShortReceive) -> Option<()> {
        let kind = match it.tag {
            Some(_) => FI_TAGGED,
            None => FI_MSG,
        };
        let live = self.live_with(FI_RECV | kind)?;
        let host = &live.host;
        let OneBuffer { addr, len, desc } = it.buffer;
        let from_any = it.from == FI_ADDR_UNSPEC || self.caps & FI_DIRECTED_RECV == 0;
        let usual = it.flags & !RECEIVE_FLAGS == 0
            && (1..=MAX_MSG_SIZE).contains(&len)
            && from_any
            && host.rx.is_some()
            && host.srx.is_none();
        if !usual {
            return None;
        }
        let len = u32::try_from(len).ok()?;
        let sge = match desc.is_null() && self.domain.plain {
            true => local::unnamed(&self.pd, addr, len),
            false => local::usual(&self.domain, &self.pd, addr, len, desc, LocalUse::Recv)?,
        };
        let attached = PostedReceive {
            context: it.context as usize,
            buffer: addr as usize,
            flags: it.flags,
            deferred: None,
            held: Held::default(),
        };
        let (tagged, pattern) = (it.tag.is_some(), it.tag.unwrap_or((0, 0)));
        let mut state = live.state.lock();
        let receives = state.rdm.receives_mut();
        receives
            .post_short(tagged, pattern, sge, attached)
            .then_some(())
    }
}
