//! The attributes that the machine of a queue pair gets from the queue pair.

use super::machine::{Machine, Wire};
use crate::QpState;
use crate::qp::pair::Qp;
use rkey_roce::packet::{Mtu, Psn, RnrTimer};
use rkey_roce::transport::{
    Config, Connection, ConnectionType, DatagramConfig, DatagramQueuePair, KeepBudget,
};

/// The maximum number of unacknowledged packets.
const WINDOW: u32 = 128;

/// Creates the machine of a datagram queue pair.
pub(super) fn of_datagrams(qp: &Qp) -> Box<Wire> {
    let config = DatagramConfig {
        number: qp.qpn,
        mtu: mtu(qp),
        pkey: PKEY,
        qkey: qp.settings.qkey,
        send_psn: Psn::new(qp.req.msn),
    };
    let datagrams = Box::new(DatagramQueuePair::new(config));
    Box::new(Wire::new(Machine::Datagrams(datagrams)))
}

/// Applies a change of state or attributes that the queue pair has already made. All connections share the budget `kept`.
pub(crate) fn follow(kept: &KeepBudget, qp: &mut Qp, from: QpState, to: QpState) {
    if to == QpState::Rtr && qp.wire_peer.is_some() {
        let mut connection = Box::new(Connection::new(&config(qp)));
        connection.limit_kept(kept.clone());
        qp.wire = Some(Box::new(Wire::new(Machine::Connection(connection))));
        return;
    }
    let config = config(qp);
    let qkey = qp.settings.qkey;
    match (qp.wire.as_deref_mut().map(|wire| &mut wire.machine), from) {
        (Some(Machine::Datagrams(datagrams)), _) => datagrams.set_qkey(qkey),
        (Some(Machine::Connection(connection)), QpState::Rtr) if to == QpState::Rts => {
            connection.prepare_to_send(&config);
        }
        (Some(Machine::Connection(connection)), QpState::Sqe) if to == QpState::Rts => {
            connection.resume_sending();
        }
        (Some(Machine::Connection(connection)), _) if to.responds() => connection.update(&config),
        _ => {}
    }
}

/// The default partition key: a full member of the default partition.
const PKEY: u16 = 0xffff;

/// The largest path MTU of RoCE that does not exceed the queue pair's.
fn mtu(qp: &Qp) -> Mtu {
    let fits = |mtu: &&Mtu| mtu.bytes() <= qp.settings.path_mtu as usize;
    let largest = Mtu::ALL.iter().rev().find(fits);
    largest.copied().unwrap_or(Mtu::Bytes256)
}

fn config(qp: &Qp) -> Config {
    let set = &qp.settings;
    let (peer, send, receive) = (qp.peer_qpn(), qp.req.msn, qp.resp.msn);
    let usual = Config::reliable(peer, Psn::new(send), Psn::new(receive));
    Config {
        connection: if qp.config.qp_type.is_reliable() {
            ConnectionType::Reliable
        } else {
            ConnectionType::Unreliable
        },
        mtu: mtu(qp),
        pkey: PKEY,
        timeout: set.timeout,
        retry_count: set.retry_count,
        rnr_retry: set.rnr_retry,
        min_rnr_timer: RnrTimer::new(set.min_rnr_timer).unwrap_or(usual.min_rnr_timer),
        max_reads_out: set.max_reads_out,
        max_reads_in: set.max_reads_in,
        window: WINDOW,
        selective: set.selective,
        ..usual
    }
}
