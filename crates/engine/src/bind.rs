//! Local work requests, executed in send queue order: binding and invalidating windows.
//!
//! Later requests of the same queue pair start only after the bind or invalidation has executed, so they can rely on
//! its result (DA-033).

use crate::context::Context;
use crate::qp::pair::Qp;
use crate::send_queue::Detail;
use crate::{CompletionOp, Side, Status};
use rkey_base::memory::Memory;
use rkey_core::{BindRegion, BindRequest, Key};

/// Executes the bind or invalidation at `seq`; returns the vendor code of a failure.
pub(crate) fn execute<M: Memory>(x: &mut Context<M>, qp: &Qp, seq: u64) -> (Status, u32) {
    let wqe = qp.sq.wqe(seq);
    if wqe.op == CompletionOp::Invalidate {
        let done = x
            .checked
            .protection
            .invalidate(Key(wqe.imm), &qp.accessor(), false);
        return match done {
            Ok(()) => (Status::Success, 0),
            Err(denial) => {
                let node = x.config.node;
                let report = x.report(Side::Local, qp, node, Some(wqe.id), *denial);
                (Status::LocalQpOperation, report)
            }
        };
    }
    let Detail::Bind(bind) = qp.sq.detail(seq) else {
        return (Status::Fatal, 0);
    };
    let request = BindRequest {
        window: bind.window,
        region: BindRegion::Key(bind.region),
        range: bind.range,
        access: bind.access,
        zero_based: bind.zero_based,
        new_key: bind.key,
        qp: Some(qp.qpn),
        domain: qp.config.domain,
        rules: bind.rules,
    };
    match x.checked.protection.bind_window(&request) {
        Ok(_) => (Status::Success, 0),
        Err(error) => {
            x.events.push_back(crate::Event::BindFailed {
                qp: qp.id,
                qpn: qp.qpn,
                work_id: wqe.id,
                error: Box::new(error),
            });
            (Status::WindowBind, 0)
        }
    }
}
