//! Describes what an endpoint has in flight (`rkey ls PID`): which operations wait for which peer. The
//! description contains numbers and tags, but no message contents and no keys.

use super::*;
use rkey_device::describe::{EndpointView, PEERS, PeerView, TAGS, Traffic, lock_until};
use rkey_rdm::endpoint::Groups;
use rkey_rdm::peers::Route;
use std::time::Instant;

/// A peer, while the description is built.
#[derive(Default)]
struct Tally {
    route: &'static str,
    qpn: Option<u32>,
    outstanding: u32,
    unanswered: usize,
    out_of_credit: bool,
    receives: usize,
    unexpected: usize,
}

impl Tally {
    fn is_at_rest(&self) -> bool {
        let waits = self.outstanding as usize + self.unanswered + self.receives + self.unexpected;
        waits == 0 && !self.out_of_credit && self.route != CONNECTING
    }

    fn view(&self, address: SocketAddr, number: Option<u64>) -> PeerView {
        let route = if self.route.is_empty() {
            NONE
        } else {
            self.route
        };
        PeerView {
            address: rkey_rdm::address::to_text(address),
            number,
            connection: route.to_owned(),
            qpn: self.qpn,
            outstanding: self.outstanding,
            unanswered: self.unanswered,
            out_of_credit: self.out_of_credit,
            receives: self.receives,
            unexpected: self.unexpected,
        }
    }
}

const NONE: &str = "none";
const CONNECTING: &str = "connecting";
const OPEN: &str = "open";
const LOST: &str = "lost";

type Tallies = HashMap<SocketAddr, Tally>;

impl Endpoint {
    /// Shows the endpoint in inspections of the device, until it is closed.
    pub(super) fn show(&self, live: &Live) {
        let weak = live.host.this.clone();
        let number = self.number;
        let ep_type = match &self.context {
            None => type_name(self.ep_type).to_owned(),
            Some(context) => format!("{}, {context}", type_name(self.ep_type)),
        };
        let describe = move |until| {
            // The endpoint exists: closing it removes the description first.
            let ep = weak.upgrade();
            let live = ep.as_ref().and_then(|ep| ep.live.get());
            EndpointView {
                number: number - crate::domain::FIRST_NUMBER,
                ep_type: ep_type.clone(),
                name: live
                    .and_then(|live| lock_until(&live.name, until))
                    .map(|name| rkey_rdm::address::to_text(*name)),
                traffic: live.and_then(|live| live.traffic(until)),
            }
        };
        *live.description.lock() = Some(self.domain.device.describe(describe));
    }
}

impl Live {
    /// What the endpoint has in flight; `None` if its state stays locked until `until`.
    fn traffic(&self, until: Instant) -> Option<Traffic> {
        let rdm = &lock_until(&self.state, until)?.rdm;
        let mut peers = tally(rdm);
        let (messages, tagged) = (
            rdm.receives().matching(false),
            rdm.receives().matching(true),
        );
        let mut traffic = Traffic {
            unexpected: messages.unexpected(),
            tagged_unexpected: tagged.unexpected(),
            unexpected_tags: tagged.unexpected_tags().take(TAGS).collect(),
            operations: rdm.outbox().operations(),
            collectives: rdm.groups().map_or(0, Groups::under_way),
            ..Traffic::default()
        };
        for source in messages.sources().chain(tagged.sources()) {
            peers.entry(*source).or_default().unexpected += 1;
        }
        traffic.unexpected_from = peers.values().filter(|it| it.unexpected > 0).count();
        if let Some(srx) = &self.host.srx {
            traffic.shared_receives = true;
            srx.count(until, &mut traffic, &mut |source| {
                peers.entry(source).or_default().receives += 1;
            })?;
        } else {
            traffic.receives = messages.posted();
            traffic.tagged_receives = tagged.posted();
            traffic.wanted_tags = tagged.wanted_tags().take(TAGS).collect();
            let wanted = messages.wanted().chain(tagged.wanted());
            for source in wanted {
                peers.entry(*source).or_default().receives += 1;
            }
        }
        let (tx, rx) = (self.host.tx.as_ref(), self.host.rx.as_ref());
        let rx = rx.filter(|rx| !tx.is_some_and(|tx| Arc::ptr_eq(&tx.cq, &rx.cq)));
        traffic.completions = [tx, rx]
            .into_iter()
            .flatten()
            .map(|it| it.cq.unread())
            .sum();
        traffic.peers = peers.len();
        traffic.listed = self.list(peers);
        Some(traffic)
    }

    /// The peers to list, at most [`PEERS`]: those with operations in flight before the others.
    fn list(&self, peers: Tallies) -> Vec<PeerView> {
        let number = |address: &_| self.host.av.as_ref().and_then(|av| av.number_now(address));
        let mut all: Vec<_> = peers
            .into_iter()
            .map(|(address, it)| (it.is_at_rest(), number(&address), address, it))
            .collect();
        all.sort_by_key(|&(at_rest, number, address, _)| {
            (at_rest, number.unwrap_or(u64::MAX), address)
        });
        all.truncate(PEERS);
        let views = all.iter();
        views
            .map(|(_, number, address, it)| it.view(*address, *number))
            .collect()
    }
}

/// The peers, and the traffic of their connections.
fn tally(rdm: &Rdm) -> Tallies {
    let mut all = Tallies::new();
    for (connection, unanswered) in rdm.connections().iter().zip(rdm.outbox().unanswered()) {
        let state = connection.state();
        if state.is_free() {
            continue;
        }
        let it = all.entry(connection.peer).or_default();
        it.route = match (state.is_lost(), state.is_open()) {
            _ if it.route == OPEN => OPEN,
            (true, _) => LOST,
            (false, true) => OPEN,
            (false, false) => CONNECTING,
        };
        if !state.is_lost() {
            it.qpn = connection.qp.as_ref().map(rkey_device::Qp::qpn);
            it.outstanding += connection.outstanding;
            it.unanswered += unanswered;
            it.out_of_credit = state.is_open() && connection.credit.is_used_up();
        }
    }
    for peer in rdm.routes().peers().iter() {
        let it = all.entry(peer.destination.address).or_default();
        match peer.route {
            Route::None => {}
            Route::Connecting => it.route = CONNECTING,
            // If there is a connection in each direction, this is the one on which we send.
            Route::Open(connection) => {
                let connection = &rdm.connections()[connection];
                it.route = OPEN;
                it.qpn = connection.qp.as_ref().map(rkey_device::Qp::qpn);
                it.out_of_credit = connection.credit.is_used_up();
            }
        }
    }
    all
}

fn type_name(ep_type: c_int) -> &'static str {
    match ep_type {
        FI_EP_MSG => "FI_EP_MSG",
        FI_EP_DGRAM => "FI_EP_DGRAM",
        _ => "FI_EP_RDM",
    }
}
