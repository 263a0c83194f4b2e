//! Changing a queue pair: the rules come from the table in [`super::state`].

use super::QpAttributes;
use super::pair::{MSN_MASK, Qp};
use super::state::{QpState, rule};
use crate::context::Context;
use crate::requester::{request_link, send_queued};
use crate::{Engine, ModifyError, QpId, wire};
use rkey_base::memory::Memory;
use rkey_core::Access;
use rkey_link::Link;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Changes the state or attributes of a queue pair.
    ///
    /// # Errors
    /// [`ModifyError`] says what is wrong; nothing changed.
    pub fn modify_qp(&mut self, qp: QpId, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let qp = self.qps.get_mut(qp).ok_or(ModifyError::NoSuchQp)?;
        check(qp, attributes)?;
        let from = qp.state;
        let to = attributes.state.unwrap_or(from);
        if attributes.access.is_some() || attributes.peer.is_some() {
            self.x.warrants.revoke_of_qp(qp.id);
        }
        apply(qp, attributes);
        step(&mut self.x, qp, from, to);
        wire::follow(&self.x.wire.kept, qp, from, to);
        let link = qp.out;
        if to == QpState::Rts {
            send_queued(&mut self.x, &mut self.links, qp);
        }
        if let Some(link) = link {
            self.after_post(link);
        }
        self.fail_users_of_overrun_cqs();
        Ok(())
    }
}

/// Checks that the table allows the change and the values are in range.
fn check(qp: &Qp, attributes: &QpAttributes) -> Result<(), ModifyError> {
    let qp_type = qp.config.qp_type;
    let (from, to) = (qp.state, attributes.state.unwrap_or(qp.state));
    let rule = rule(qp_type, from, to).ok_or(ModifyError::Step { qp_type, from, to })?;
    let given = attributes.given();
    let missing = rule.required.difference(given);
    if !missing.is_empty() {
        return Err(ModifyError::Missing(missing));
    }
    let extra = given.difference(rule.required.union(rule.optional));
    if !extra.is_empty() {
        return Err(ModifyError::NotAllowed(extra));
    }
    let moves = attributes.peer.is_some() && attributes.wire.is_some() != qp.wire.is_some();
    if (attributes.wire.is_some() && !(attributes.peer.is_some() && qp_type.is_plain_connection()))
        || (moves && from == QpState::Sqd)
    {
        return Err(ModifyError::Wire(qp_type));
    }
    let limits: [(&'static str, Option<u32>, u32); 8] = [
        ("the timeout", attributes.timeout.map(u32::from), 31),
        ("the retry count", attributes.retry_count.map(u32::from), 7),
        (
            "the RNR retry count (rnr_retry)",
            attributes.rnr_retry.map(u32::from),
            7,
        ),
        (
            "the minimum RNR timer (min_rnr_timer)",
            attributes.min_rnr_timer.map(u32::from),
            31,
        ),
        (
            "the initial send PSN (sq_psn)",
            attributes.send_msn,
            MSN_MASK,
        ),
        (
            "the initial receive PSN (rq_psn)",
            attributes.recv_msn,
            MSN_MASK,
        ),
        (
            "the peer's queue pair number",
            attributes.peer.map(|peer| peer.qpn),
            MSN_MASK,
        ),
        ("the path MTU", attributes.path_mtu, 4096),
    ];
    for (what, given, limit) in limits {
        if let Some(given) = given.filter(|given| *given > limit) {
            return Err(ModifyError::Value {
                what,
                given: given.into(),
                limit: limit.into(),
            });
        }
    }
    Ok(())
}

fn apply(qp: &mut Qp, attributes: &QpAttributes) {
    let set = &mut qp.settings;
    if let Some(access) = attributes.access {
        set.access = access & Access::REMOTE;
    }
    set.timeout = attributes.timeout.unwrap_or(set.timeout);
    set.retry_count = attributes.retry_count.unwrap_or(set.retry_count);
    set.rnr_retry = attributes.rnr_retry.unwrap_or(set.rnr_retry);
    set.min_rnr_timer = attributes.min_rnr_timer.unwrap_or(set.min_rnr_timer);
    set.max_reads_out = attributes.max_reads_out.unwrap_or(set.max_reads_out);
    set.max_reads_in = attributes.max_reads_in.unwrap_or(set.max_reads_in);
    set.path_mtu = attributes.path_mtu.unwrap_or(set.path_mtu);
    set.qkey = attributes.qkey.unwrap_or(set.qkey);
    if let Some(peer) = attributes.peer {
        qp.peer = Some(peer);
        qp.wire_peer = attributes.wire;
        qp.settings.selective = attributes.selective.unwrap_or(false);
        (qp.out, qp.inbound) = (None, None);
        qp.req.warrants.clear();
        qp.req.link_requested = false;
    }
    qp.req.msn = attributes.send_msn.unwrap_or(qp.req.msn);
    qp.resp.msn = attributes.recv_msn.unwrap_or(qp.resp.msn);
    if attributes.rnr_retry.is_some() {
        qp.req.rnr_left = qp.settings.rnr_retry;
    }
}

fn step<M: Memory>(x: &mut Context<M>, qp: &mut Qp, from: QpState, to: QpState) {
    match to {
        QpState::Reset => {
            for seq in qp.sq.head..qp.sq.tail {
                x.forfeit(qp, seq);
            }
            x.leave_orphans(qp, qp.started());
            x.warrants.revoke_of_qp(qp.id);
            x.forget_completions(qp);
            let life = x.life();
            qp.reset(life);
        }
        QpState::Error => x.enter_error(qp),
        QpState::Sqd if from == QpState::Rts => {
            qp.state = to;
            qp.draining = true;
            // If nothing that was started is outstanding, this call reports the queue as drained.
            x.complete_ended_sends(qp);
        }
        _ => qp.state = to,
    }
    if to == QpState::Rtr && !qp.config.qp_type.is_datagram() && qp.wire_peer.is_none() {
        // The peer's requests are accepted only once its device is known.
        request_link(x, qp, qp.peer.map_or(0, |peer| peer.qpn));
    }
    if to == QpState::Rts {
        qp.draining = false;
    }
}
