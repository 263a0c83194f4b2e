//! Congestion: connections that share a bottleneck, whose queue marks packets; and the notifications of a single queue pair.

use crate::lone::{ACK, Lone};
use crate::program::{BASE, KEY, Program};
use crate::world::{configs, read, send, write};
use rkey_roce::packet::{Aeth, Request, Service, Syndrome, Tail};
use rkey_roce::packet::{Body, Credits, Headers, Packet, Psn, Reliable, Response};
use rkey_roce::transport::{
    Config, Connection, Counters, Event, PacketBuffer, Target, WorkRequest, obeys_notifications,
};
use std::collections::{BTreeMap, VecDeque};

/// The time in which the bottleneck sends one byte, in nanoseconds: 1 Gbit/s.
const BYTE: u64 = 8;
/// The time that a packet takes over the rest of the path in each direction, in nanoseconds.
const DELAY: u64 = 100_000;
/// How many bytes fit into the queue of the bottleneck.
const ROOM: usize = 100_000;
/// From this many bytes in the queue on, packets are marked.
const THRESHOLD: usize = 15_000;
/// How long to run before a measurement, and how long to measure, in nanoseconds: hundreds of round trips.
const WARM_UP: u64 = 200_000_000;
const TIME: u64 = 400_000_000;
/// The bytes of the IP and UDP headers and of the checksum.
const OVERHEAD: usize = 32;
const TARGET: Target = Target {
    address: BASE,
    rkey: KEY,
};

/// An end of a connection.
struct End {
    connection: Connection,
    program: Program,
    /// How many requests have ended, and how many are posted at least.
    done: u64,
    busy: u64,
}

/// A packet in transit: the connection and the end that receives it, whether it is marked, and its bytes.
type Transit = (usize, usize, bool, Vec<u8>);

/// Connections whose packets from end 0 to end 1 share a bottleneck. Packets of the other direction never wait.
struct Shared {
    now: u64,
    pairs: Vec<[End; 2]>,
    /// The queue, with the time at which its first packet has left.
    queue: VecDeque<Transit>,
    leaves: Option<u64>,
    queued: usize,
    arrivals: BTreeMap<(u64, u64), Transit>,
    sequence: u64,
    marks: bool,
    lost: u64,
    longest: usize,
    /// The bytes that have left the queue.
    sent: u64,
}

impl Shared {
    fn new(count: u32, marks: bool) -> Self {
        let pair = |number: u32| {
            let psn = Psn::new(number * 1000);
            configs(psn, psn).map(|config| End {
                connection: Connection::new(&config),
                program: Program::new(),
                done: 0,
                busy: 0,
            })
        };
        Self {
            now: 1_000_000,
            pairs: (0..count).map(pair).collect(),
            queue: VecDeque::new(),
            leaves: None,
            queued: 0,
            arrivals: BTreeMap::new(),
            sequence: 0,
            marks,
            lost: 0,
            longest: 0,
            sent: 0,
        }
    }

    /// Sends everything that an end may send now.
    fn transmit(&mut self, pair: usize, from: usize) {
        let mut buffer: PacketBuffer = [0; _];
        loop {
            let end = &mut self.pairs[pair][from];
            let sent = (end.connection).transmit(self.now, &mut end.program, &mut buffer);
            let Some(length) = sent else { break };
            let packet = buffer[..length].to_vec();
            if from == 1 {
                self.arrive(self.now + DELAY, (pair, 0, false, packet));
                continue;
            }
            let bytes = length + OVERHEAD;
            if self.queued + bytes > ROOM {
                self.lost += 1;
                continue;
            }
            let is_marked = self.marks && self.queued >= THRESHOLD && obeys_notifications(&packet);
            self.queued += bytes;
            self.longest = self.longest.max(self.queued);
            self.queue.push_back((pair, 1, is_marked, packet));
            if self.leaves.is_none() {
                self.leaves = Some(self.now + bytes as u64 * BYTE);
            }
        }
    }

    fn arrive(&mut self, time: u64, packet: Transit) {
        self.sequence += 1;
        self.arrivals.insert((time, self.sequence), packet);
    }

    /// The first packet leaves the queue.
    fn leave(&mut self) {
        let packet = self.queue.pop_front().expect("a packet");
        let bytes = packet.3.len() + OVERHEAD;
        (self.queued, self.sent) = (self.queued - bytes, self.sent + bytes as u64);
        self.arrive(self.now + DELAY, packet);
        let next = self.queue.front();
        self.leaves = next.map(|it| self.now + (it.3.len() + OVERHEAD) as u64 * BYTE);
    }

    fn run_for(&mut self, time: u64) {
        let until = self.now + time;
        loop {
            for pair in 0..self.pairs.len() {
                for end in 0..2 {
                    self.work(pair, end);
                    self.transmit(pair, end);
                }
            }
            let ends = self.pairs.iter().flatten();
            let timers = ends.filter_map(|end| end.connection.next_deadline());
            let arrival = self.arrivals.first_key_value().map(|((time, _), _)| *time);
            let next = timers
                .chain(arrival)
                .chain(self.leaves)
                .min()
                .expect("work");
            if next > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(next);
            if self.leaves.is_some_and(|time| time <= self.now) {
                self.leave();
            }
            while let Some(entry) = self.arrivals.first_entry()
                && entry.key().0 <= self.now
            {
                let (pair, to, is_marked, bytes) = entry.remove();
                let end = &mut self.pairs[pair][to];
                let packet = Packet::decode(&bytes).unwrap();
                if is_marked {
                    end.connection.receive_mark(self.now, &packet);
                }
                end.connection.receive(self.now, &mut end.program, &packet);
            }
            for end in self.pairs.iter_mut().flatten() {
                end.connection.advance(self.now);
            }
        }
    }

    /// Keeps an end's queue filled.
    fn work(&mut self, pair: usize, at: usize) {
        let end = &mut self.pairs[pair][at];
        while let Some(event) = end.connection.next_event() {
            match event {
                Event::Completed { id, status } => {
                    assert_eq!(status, rkey_roce::transport::Status::Success);
                    end.program.requests.remove(&id);
                    end.done += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        while (end.program.requests.len() as u64) < end.busy {
            let id = end.done + end.program.requests.len() as u64;
            let request = match at {
                0 => write(id, TARGET, 8192),
                _ => read(id, TARGET, 8192),
            };
            end.program.requests.insert(id, vec![0; 8192]);
            end.connection.post(request);
        }
    }

    /// Runs for [`WARM_UP`], and then measures for [`TIME`]: the share of the capacity that was used, and each connection's requests.
    fn measure(&mut self) -> (f64, Vec<u64>) {
        self.run_for(WARM_UP);
        let done =
            |it: &Self| -> Vec<u64> { it.pairs.iter().map(|[a, b]| a.done + b.done).collect() };
        let before = (self.sent, done(self));
        (self.longest, self.lost) = (0, 0);
        self.run_for(TIME);
        let used = (self.sent - before.0) as f64 * BYTE as f64 / TIME as f64;
        let after = done(self);
        let each = after
            .iter()
            .zip(before.1)
            .map(|(after, before)| after - before);
        (used, each.collect())
    }

    fn counters(&self, pair: usize, end: usize) -> Counters {
        self.pairs[pair][end].connection.counters()
    }
}

/// Two senders share a bottleneck whose queue marks packets: the queue stays short, the bottleneck is busy, and nothing is lost.
#[test]
#[cfg_attr(miri, ignore)]
fn senders_that_share_a_bottleneck_keep_its_queue_short() {
    let mut shared = Shared::new(2, true);
    shared.pairs.iter_mut().for_each(|pair| pair[0].busy = 32);
    let (used, done) = shared.measure();
    assert!(used > 0.95, "{used}");
    assert_eq!(shared.lost, 0);
    assert!(shared.longest < 2 * THRESHOLD, "{}", shared.longest);
    let fair = done[0].abs_diff(done[1]) * 4 < done[0] + done[1];
    assert!(fair, "{done:?}");
    for pair in 0..2 {
        let [sender, receiver] = [0, 1].map(|end| shared.counters(pair, end));
        assert!(receiver.marked > receiver.cnps_sent && receiver.cnps_sent > 100);
        // The last ones are in transit.
        assert!(receiver.cnps_sent - sender.cnps_received <= 5);
        assert!((100..=sender.cnps_received).contains(&sender.slowed));
        assert_eq!(sender.cnps_sent + receiver.cnps_received, 0);
    }
}

/// Without marks, senders notice congestion only when the queue overflows.
#[test]
#[cfg_attr(miri, ignore)]
fn without_marks_the_same_queue_overflows() {
    let mut shared = Shared::new(2, false);
    shared.pairs.iter_mut().for_each(|pair| pair[0].busy = 32);
    shared.measure();
    assert!(shared.lost > 0 && shared.longest > ROOM - 2000);
}

/// The responses to reads share the bottleneck: requesters then ask for less at once.
#[test]
#[cfg_attr(miri, ignore)]
fn readers_that_share_a_bottleneck_lose_nothing() {
    let mut shared = Shared::new(2, true);
    shared.pairs.iter_mut().for_each(|pair| pair[1].busy = 32);
    let (used, done) = shared.measure();
    assert!(used > 0.9 && shared.lost == 0, "{used} {}", shared.lost);
    // A part of a read, 8 packets here, is sent at once.
    assert!(shared.longest < 4 * THRESHOLD, "{}", shared.longest);
    assert!(done.iter().all(|done| *done > 1000), "{done:?}");
    let [responder, requester] = [0, 1].map(|end| shared.counters(0, end));
    assert!(requester.slowed > 100 && requester.cnps_sent > 100);
    assert!(responder.cnps_received > 100);
}

/// When another connection ends, the remaining one takes its share within a fifth of a second.
#[test]
#[cfg_attr(miri, ignore)]
fn a_sender_recovers_when_congestion_ends() {
    let mut shared = Shared::new(4, true);
    shared.pairs.iter_mut().for_each(|pair| pair[0].busy = 32);
    shared.measure();
    assert_eq!(shared.lost, 0);
    shared.pairs[1..]
        .iter_mut()
        .for_each(|pair| pair[0].busy = 0);
    let (used, _) = shared.measure();
    assert!(used > 0.95, "{used}");
}

fn marked(lone: &mut Lone, body: Body, payload: &[u8]) {
    let headers = Headers::new(0xa, Psn::new(500), body);
    let packet = Packet { headers, payload };
    lone.connection.receive_mark(lone.now, &packet);
}

fn is_notification(body: Body) -> bool {
    body == Body::Congestion
}

const SEND: Request = Request::SendOnly(Tail::None);

#[test]
fn marked_data_gets_a_notification_before_its_acknowledgement() {
    let mut lone = Lone::new(|_| {});
    lone.program.receives.push_back((1, vec![0; 100]));
    marked(&mut lone, Body::Request(Service::Rc, SEND), &[1; 100]);
    lone.request(500, SEND, &[1; 100]);
    let sent = lone.sent();
    assert_eq!(sent.len(), 2);
    assert!(is_notification(sent[0].headers.body) && sent[0].headers.destination == 0xb);
    assert!(matches!(sent[1].response(), Response::Acknowledge(_)));
    let counters = lone.connection.counters();
    assert_eq!((counters.marked, counters.cnps_sent), (1, 1));
}

#[test]
fn marks_of_other_packets_are_only_counted() {
    let aeth = Aeth {
        syndrome: Syndrome::Ack(Credits::UNLIMITED),
        msn: 0,
    };
    let acknowledge = Body::Response(Reliable::Rc, Response::Acknowledge(aeth));
    let unreliable = Body::Request(Service::Uc, SEND);
    let mut lone = Lone::new(|_| {});
    for body in [acknowledge, unreliable, Body::Congestion] {
        for _ in 0..10 {
            marked(&mut lone, body, &[]);
            lone.now += 1_000_000;
            assert!(lone.sent().is_empty());
        }
    }
    lone.connection.flush();
    marked(&mut lone, Body::Request(Service::Rc, SEND), &[1; 100]);
    assert!(lone.sent().is_empty(), "the queue pair has failed");
    let counters = lone.connection.counters();
    assert_eq!((counters.marked, counters.cnps_sent), (31, 0));
}

/// A queue pair with 16 outstanding packets, from PSN 100.
fn sending() -> Lone {
    let mut lone = Lone::new(|config: &mut Config| config.window = 16);
    let long: WorkRequest = send(1, 1 << 20);
    lone.post(long, vec![0; 1 << 20]);
    assert_eq!(lone.psns().len(), 16);
    lone
}

#[test]
fn a_notification_halves_the_window_once_in_a_round_trip() {
    let mut lone = sending();
    for _ in 0..5 {
        lone.give(9, Body::Congestion, false, &[]);
    }
    lone.acknowledge(106, ACK);
    assert_eq!(lone.psns(), [], "nine are outstanding");
    lone.give(9, Body::Congestion, false, &[]);
    lone.acknowledge(115, ACK);
    // As many packets as the window has have been acknowledged.
    assert_eq!(lone.psns().len(), 9);
    lone.give(9, Body::Congestion, false, &[]);
    lone.acknowledge(124, ACK);
    let counters = lone.connection.counters();
    assert_eq!((counters.cnps_received, counters.slowed), (7, 2));
    // The window grows again, by one packet for each window.
    let mut windows = Vec::new();
    let mut last = 124;
    for _ in 0..20 {
        let sent = lone.psns();
        windows.push(sent.len());
        last += sent.len() as u32;
        lone.acknowledge(last, ACK);
    }
    assert!(windows[0] < 9 && windows.is_sorted() && windows[19] == 16);
    assert_eq!(counters.dropped, 0);
}

#[test]
fn endless_notifications_leave_a_window_of_two_or_three_packets() {
    let mut lone = sending();
    let mut last = 99;
    let mut outstanding = 16;
    for _ in 0..20 {
        lone.give(9, Body::Congestion, false, &[]);
        last += outstanding;
        lone.acknowledge(last, ACK);
        outstanding = lone.psns().len() as u32;
    }
    assert!((2..=3).contains(&outstanding), "{outstanding}");
}

#[test]
fn an_unreliable_or_failed_queue_pair_drops_notifications() {
    let mut lone = Lone::new(|config| {
        config.connection = rkey_roce::transport::ConnectionType::Unreliable;
    });
    lone.give(9, Body::Congestion, false, &[]);
    let counters = lone.connection.counters();
    assert_eq!((counters.dropped, counters.cnps_received), (1, 0));
    let mut lone = sending();
    lone.connection.flush();
    lone.give(9, Body::Congestion, false, &[]);
    let counters = lone.connection.counters();
    assert_eq!((counters.dropped, counters.slowed), (1, 0));
}
