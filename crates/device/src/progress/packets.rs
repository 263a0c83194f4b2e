//! The packets that the driver exchanges with other hosts.
//!
//! Each call that runs the engine takes its packets under the lock, and sends them after it has released the lock.

use rkey_engine::{QpId, WirePeer};
use rkey_roce::packet::{Body, Response, Syndrome};

use super::driver::PanicAlarm;
use super::{DeviceEngine, EngineDriver, Mode, Transmitter};
use crate::wire::Arrived;

/// How often a queue pair that ends repeats its last acknowledgement.
const LAST_ACKNOWLEDGEMENTS: u32 = 2;

impl EngineDriver {
    /// Takes the engine's packets for other hosts, and returns whether there are any.
    #[inline]
    pub(super) fn take_packets(&self, engine: &mut DeviceEngine, now: u64) -> bool {
        engine.has_wire_output() && self.take_some_packets(engine, now)
    }

    #[cold]
    fn take_some_packets(&self, engine: &mut DeviceEngine, now: u64) -> bool {
        if let Some(transmitter) = &self.transmitter {
            transmitter.take(engine, now);
            // Sending packets sets timers.
            let next_deadline = engine.drive(now, 0).next_deadline;
            self.schedule.set_deadline(next_deadline);
        }
        self.transmitter.is_some()
    }

    /// Takes the packets of a post or a command. Their timers start now.
    #[cold]
    pub(super) fn take_posted(&self, engine: &mut DeviceEngine) -> bool {
        let now = self.schedule.refresh_clock();
        if let Some(transmitter) = &self.transmitter {
            transmitter.posted(now);
        }
        self.take_packets(engine, now)
    }

    /// Sends the packets that have been taken, and those that the engine has by then. The caller must not hold the engine's lock.
    #[cold]
    pub(super) fn send_packets(&self) {
        if let Some(transmitter) = &self.transmitter {
            if transmitter.send(|| self.take_more_packets()) {
                self.requests.send_packets();
            }
            let engine = self.engine.lock();
            if engine.has_events() {
                self.route_events(engine);
            }
        }
    }

    fn take_more_packets(&self) {
        let mut engine = self.engine.lock();
        let now = self.schedule.refresh_clock();
        let alarm = PanicAlarm(self);
        self.take_packets(&mut engine, now);
        std::mem::forget(alarm);
    }

    /// Sends the packets that other threads have left to the engine thread.
    pub(super) fn send_left_packets(&self) {
        if self.requests.take_packets() {
            self.take_more_packets();
            self.send_packets();
        }
    }

    /// Sends acknowledgements that wait for the program's answer.
    #[inline]
    pub(crate) fn send_held_packets(&self) {
        if (self.transmitter.as_ref()).is_some_and(Transmitter::holds) {
            self.send_packets();
        }
    }

    /// Like [`EngineDriver::send_held_packets`], for the wire's thread.
    pub(crate) fn send_all_held_packets(&self) {
        if (self.transmitter.as_ref()).is_some_and(Transmitter::holds_now) {
            self.send_packets();
        }
    }

    /// Returns once the packets for other hosts that have been taken are sent. Called when a queue pair fails or is
    /// destroyed, because the program may disconnect or exit next, while its peer waits for the last acknowledgement.
    pub(crate) fn drain_packets(&self) {
        if self.transmitter.as_ref().is_some_and(Transmitter::drain) {
            self.requests.send_packets();
        }
    }

    /// Repeats the last acknowledgement of a queue pair that is about to be destroyed or flushed, so that its peer gets it although the
    /// network loses some packets.
    pub(crate) fn repeat_acknowledgement(&self, qp: QpId) {
        for _ in 0..LAST_ACKNOWLEDGEMENTS {
            if !self.command(|engine| engine.wire_repeat_acknowledgement(qp)) {
                return;
            }
            self.drain_packets();
        }
    }

    /// Delivers packets from other hosts to the engine, and sends its responses. If `in_poll`, the program's poll has received them:
    /// acknowledgements may wait for its answer.
    pub(crate) fn receive_packets(&self, packets: &[Arrived<'_>], in_poll: bool) {
        let now = self.schedule.refresh_clock();
        let mut engine = self.engine.lock();
        let alarm = PanicAlarm(self);
        let first = packets
            .iter()
            .filter(|it| is_first(&it.packet.headers.body));
        let others = packets
            .iter()
            .filter(|it| !is_first(&it.packet.headers.body));
        for it in first.chain(others) {
            let from = WirePeer {
                local: it.local,
                remote: it.remote,
            };
            engine.wire_receive(now, from, &it.packet, it.is_marked);
        }
        // Driving also sets the deadline.
        let (_, sends) = self.drive_locked(&mut engine, now, None, None);
        std::mem::forget(alarm);
        let holds = |it: &Transmitter| it.hold(now);
        let holds = sends && in_poll && self.transmitter.as_ref().is_some_and(holds);
        self.unlock(engine, sends && !holds);
        if self.schedule.mode() == Mode::Asleep {
            let engine = self.engine.lock();
            if self.schedule.mode() == Mode::Asleep {
                self.schedule.fire_by_deadline(&engine);
            }
        }
    }
}

/// Whether a packet is handled before others of its batch: responses are. They may follow an answer, but programs expect that a request
/// has ended when its answer arrives. Refusals keep their place, because they fail the queue pair.
fn is_first(body: &Body) -> bool {
    match body {
        Body::Response(_, Response::Acknowledge(aeth)) => {
            matches!(aeth.syndrome, Syndrome::Ack(_))
        }
        Body::Response(..) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_roce::packet::{Aeth, Credits, NakCode, Reliable, Request, Service, Tail};

    /// If acknowledgements overtook the data of earlier reads, the reads would be taken for lost.
    #[test]
    fn responses_come_before_requests_and_keep_their_order() {
        let aeth = |syndrome| Aeth { syndrome, msn: 0 };
        let done = aeth(Syndrome::Ack(Credits::UNLIMITED));
        let response = |it| Body::Response(Reliable::Rc, it);
        assert!(is_first(&response(Response::Acknowledge(done))));
        assert!(is_first(&response(Response::ReadOnly(done))));
        assert!(is_first(&response(Response::ReadMiddle)));
        let refusal = aeth(Syndrome::Nak(NakCode::RemoteAccessError));
        assert!(!is_first(&response(Response::Acknowledge(refusal))));
        let request = Body::Request(Service::Rc, Request::SendOnly(Tail::None));
        assert!(!is_first(&request));
        assert!(!is_first(&Body::Congestion));
    }
}
