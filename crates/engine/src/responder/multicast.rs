//! Datagrams to groups: delivery to every local member.

use super::Reply;
use super::datagram::on_datagram;
use crate::context::Context;
use crate::groups::{FLOW_MAX, Group, RAW_FRAMES_KEY};
use crate::id::Table;
use crate::qp::pair::Qp;
use crate::ud::GRH_LEN;
use rkey_base::memory::Memory;
use rkey_base::shared::PeerBytes;
use rkey_link::{Payload, ReceivedFragment};

/// Delivers a datagram to all local members.
#[cold]
pub(super) fn deliver_to_group<M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    incoming: &ReceivedFragment<'_>,
) -> Reply {
    let Payload::Bytes(bytes) = &incoming.payload else {
        return Reply::Done;
    };
    let group = if incoming.header.key == RAW_FRAMES_KEY {
        Group::RawFrames
    } else if bytes.len() >= GRH_LEN as usize {
        let mut target = [0; 16];
        bytes.get(GRH_LEN as usize - target.len(), &mut target);
        Group::Gid(target)
    } else {
        return Reply::Done;
    };
    for member in x.members.get(&group).cloned().unwrap_or_default() {
        if let Some(qp) = qps.get_mut(member) {
            on_datagram(x, qp, incoming);
        }
    }
    Reply::Done
}

/// Whether a raw queue pair takes a frame.
pub(super) fn takes_frame(qp: &Qp, key: u64, frame: &PeerBytes<'_>) -> bool {
    if key != RAW_FRAMES_KEY {
        return false;
    }
    let mut start = [0; FLOW_MAX];
    let len = frame.len().min(FLOW_MAX);
    frame.get(0, &mut start[..len]);
    qp.flows.iter().any(|(_, flow)| flow.takes(&start[..len]))
}
