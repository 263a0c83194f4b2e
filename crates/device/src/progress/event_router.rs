//! Routes the engine's events to the objects that they concern, after the engine is unlocked, in the thread that drove it.

use std::sync::Arc;

use rkey_engine::{AsyncEvent, Event, LinkId, QpAttributes, QpId, QpState};
use rkey_link::Link;

use super::{EngineDriver, UnresponsivePeer};
use crate::inspect::denials::Denials;
use crate::objects::async_queues::AsyncQueues;
use crate::objects::{AccessCounters, CqTable, QpTable};
use crate::peers::qp_numbers::QpNumbers;
use crate::peers::{names, process};

/// The objects that engine events concern.
pub(crate) struct EventRouter {
    pub(crate) cqs: Arc<CqTable>,
    pub(crate) qps: Arc<QpTable>,
    pub(crate) qp_numbers: Arc<QpNumbers>,
    /// The program's queues of asynchronous events.
    pub(crate) events: Arc<AsyncQueues>,
    pub(crate) denials: Arc<Denials>,
    pub(crate) counters: Arc<AccessCounters>,
}

impl EventRouter {
    /// Acts on events, in order.
    pub(super) fn route(&self, driver: &EngineDriver, events: Vec<Event>) {
        for event in events {
            self.route_one(driver, event);
        }
    }

    fn route_one(&self, driver: &EngineDriver, event: Event) {
        match event {
            Event::CqReady(cq) => self.cqs.ready(cq),
            Event::CqSeen(cq) => self.cqs.seen(cq),
            Event::Async(event) => self.tell(driver, event),
            Event::LinkNeeded { qp, peer } => self.link_needed(driver, qp, peer),
            Event::PeerSilent { qp, link, peer } => {
                let peer = UnresponsivePeer { qp, link, peer };
                driver.requests.judge(peer);
            }
            Event::WarrantWanted { link, request } => {
                driver.requests.ask_for_warrant(link, request);
            }
            Event::PushesStalled(link) => log_stalls(driver, link),
            Event::GroupNeeded { qp, group } => driver.requests.find_group(qp, group),
            Event::LinkDown { link, reason } => {
                tracing::debug!(?link, %reason, "a link broke");
                driver.requests.remove_link(link);
            }
            Event::Denied(report) => self.denials.write(&report),
            Event::Guessing(guesser) => self.denials.write_guesser(&guesser),
            Event::CounterHit {
                counter,
                endpoint,
                bytes,
                write,
            } => self.counters.count(counter, endpoint, bytes, write),
            Event::BindFailed {
                qpn,
                work_id,
                error,
                ..
            } => self.denials.write_bind(qpn, work_id, &error),
            // A later engine may have events that this version of the device does not handle.
            other => tracing::debug!(?other, "ignored an unknown engine event"),
        }
    }

    /// Reports an event to the program, and updates the device's own state.
    fn tell(&self, driver: &EngineDriver, event: AsyncEvent) {
        match event {
            AsyncEvent::CqOverrun(cq) => {
                tracing::warn!(
                    ?cq,
                    "a completion queue overran; its queue pairs have failed"
                );
                self.events.push(event);
                self.cqs.ready(cq);
                self.cqs.seen(cq);
            }
            AsyncEvent::PeerGone { qp, qpn, why } => self.peer_ended(driver, qp, qpn, why),
            // The refusal of a peer's request completes nothing here.
            AsyncEvent::AccessError { qp, qpn }
            | AsyncEvent::RequestError { qp, qpn }
            | AsyncEvent::QpFatal { qp, qpn } => {
                if self.qps.fails_with_peer(qpn, qp) {
                    self.fail_with_peer(driver, qp);
                }
                self.events.push(event);
            }
            _ => self.events.push(event),
        }
    }

    /// Whether the program has armed a completion queue, and so is about to wait.
    #[inline]
    pub(super) fn is_any_cq_armed(&self) -> bool {
        self.cqs.is_any_armed()
    }

    /// Reports the end of a queue pair's peer, and fails the queue pair if its options require that. The report comes first: a program
    /// that takes a flushed receive finds the reason, too.
    pub(super) fn peer_ended(&self, driver: &EngineDriver, qp: QpId, qpn: u32, why: Option<u8>) {
        if self.qps.reports_end(qpn) {
            self.events.push(AsyncEvent::PeerGone { qp, qpn, why });
        }
        if self.qps.fails_with_peer(qpn, qp) {
            self.fail_with_peer(driver, qp);
        }
    }

    /// Fails a queue pair, and notifies its completion queues: if nothing was posted to the queue pair, no completion does so.
    fn fail_with_peer(&self, driver: &EngineDriver, qp: QpId) {
        let Some(info) = driver.command(|engine| engine.query_qp(qp)) else {
            return;
        };
        let mut cqs = vec![info.config.send_cq, info.config.recv_cq];
        cqs.dedup();
        let notified: Vec<_> = cqs.iter().filter_map(|&cq| self.cqs.find(cq)).collect();
        let moved = driver.command(|engine| {
            let moved = engine.modify_qp(qp, &QpAttributes::to(QpState::Error));
            for notify in &notified {
                notify.count_ended_peer(engine);
            }
            moved
        });
        // Without the engine's lock: the log may block.
        if let Err(error) = moved {
            tracing::debug!(?qp, %error, "cannot move a queue pair to the error state after its peer ended");
        }
        for cq in cqs {
            self.cqs.ready(cq);
            self.cqs.seen(cq);
        }
    }

    /// Connects a queue pair to this device at once, and leaves connections to other devices to the engine thread.
    fn link_needed(&self, driver: &EngineDriver, qp: QpId, peer: u32) {
        if !self.qp_numbers.owns(names::block_of(peer)) {
            driver.requests.connect(qp, peer);
            return;
        }
        let link = driver.use_loopback();
        driver.command(|engine| {
            engine.connect_qpn(peer, link);
            // This call fails for datagram queue pairs, which do not have their own link.
            let _ = engine.connect_qp(qp, link);
        });
    }
}

/// Logs that this device pushes less to a peer.
#[cold]
fn log_stalls(driver: &EngineDriver, link: LinkId) {
    let peer = driver.lock().link(link).and_then(Link::peer);
    let pid = peer.and_then(|peer| peer.process.pid());
    tracing::warn!(
        peer = process::name_of(pid),
        "fewer pushes to a peer: writes to its memory took long, and this process waited"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::driver::tests::{driver, router};
    use crate::{Config, Device, QpOptions};
    use rkey_engine::SrqId;

    #[test]
    fn events_reach_the_program_in_order() {
        let (driver, router) = (driver(), router());
        let (qp, qpn) = (QpId::from((1, 1)), 0x100);
        let srq = SrqId::from((2, 1));
        let events = [
            AsyncEvent::CommEstablished { qp, qpn },
            AsyncEvent::SrqLimit(srq),
            AsyncEvent::PeerGone { qp, qpn, why: None },
        ];
        router.route(&driver, events.map(Event::from).into());
        let took: Vec<_> = std::iter::from_fn(|| router.events.first().try_next()).collect();
        assert_eq!(took, events);
    }

    #[test]
    fn the_engine_thread_connects_to_other_devices_only() {
        let (driver, router) = (driver(), router());
        let qp = QpId::from((1, 1));
        let ours = router.qp_numbers.allocate(|_, _| Ok(())).unwrap();
        let other = ours ^ 0x1000;
        for peer in [ours, other] {
            router.route(&driver, vec![Event::LinkNeeded { qp, peer }]);
        }
        assert_eq!(driver.requests.take_links(), [(qp, other)]);
    }

    /// Nothing completes when a queue pair fails because it has refused a request.
    #[test]
    fn the_failure_of_a_queue_pair_is_counted_like_the_end_of_its_peer() {
        let device = Device::open(Config::default()).unwrap();
        let domain = device.create_domain().unwrap();
        let cq = device.create_cq(4, None).unwrap();
        let driver = &device.shared().driver;
        for fail_with_peer in [false, true] {
            let options = QpOptions {
                fail_with_peer,
                ..QpOptions::new(domain, &cq)
            };
            let made = device.create_qp(&options).unwrap();
            let (qp, qpn) = (made.id(), made.qpn());
            let events = [
                AsyncEvent::AccessError { qp, qpn },
                AsyncEvent::RequestError { qp, qpn },
                AsyncEvent::QpFatal { qp, qpn },
            ];
            for (before, event) in (0..).zip(events) {
                assert_eq!(cq.ended_peers(), if fail_with_peer { before } else { 0 });
                driver.router.route(driver, vec![event.into()]);
            }
        }
        assert_eq!(cq.ended_peers(), 3);
    }

    #[test]
    fn counted_accesses_reach_the_counter() {
        let (driver, router) = (driver(), router());
        let hit = Event::CounterHit {
            counter: 3,
            endpoint: 0,
            bytes: 8,
            write: true,
        };
        router.route(&driver, vec![hit]);
        assert_eq!(router.counters.all()[&3].bytes, 8);
    }
}
