//! Random work over a bad network: whatever the network does, each request is executed once and in order, or a side gives up after too many
//! losses in a row.
//!
//! `RKEY_TEST_WIRE_SCHEDULES` sets how many schedules run (60 if unset), and `RKEY_TEST_SEED` the seed of the first one. A failure
//! prints how to repeat only its schedule.

use super::*;
use std::collections::VecDeque;

/// Where the model of a node's memory is, and what the other side may change of it.
const WINDOW: u64 = 1 << 15;
/// The word for atomics, after the part that writes change.
const WORD: u64 = WINDOW;
/// Bytes that no request changes.
const SOURCE: u64 = WINDOW + 4096;
const SOURCE_LENGTH: u64 = 1 << 14;
/// Where reads and the results of atomics are stored: one slot for each request.
const RESULTS: u64 = 1 << 16;
const RESULT: u64 = 4096;
/// Where receives are filled.
const RECEIVES: u64 = 1 << 20;
const RECEIVE: u64 = 8192;
const REQUESTS: u64 = 24;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("RKEY_TEST_SEED={} RKEY_TEST_WIRE_SCHEDULES=1", self.0);
        }
    }
}

/// The required effect of a request when it completes.
struct Expected {
    id: u64,
    op: CompletionOp,
    /// Bytes at an address of the requester.
    result: Option<(u64, Vec<u8>)>,
}

/// The requests of node `at` to the other node.
struct Side {
    at: usize,
    /// What the other node's window contains once everything posted has been executed.
    window: Vec<u8>,
    word: u64,
    expected: VecDeque<Expected>,
    /// The receives that must complete at the other node: id, bytes, immediate data.
    messages: VecDeque<(u64, Vec<u8>, Option<u32>, bool)>,
    /// The number of `messages` that have completed.
    consumed: u64,
    next_receive: u64,
    posted: u64,
    /// The next request must wait for a read.
    must_wait: bool,
}

struct Run {
    hosts: Hosts,
    qps: [Qp; 2],
    regions: [Region; 2],
    random: Random,
    sides: [Side; 2],
    /// Whether a side gave up, after too many losses in a row.
    gave_up: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather {
            lost: random.below(20),
            doubled: random.below(20),
            late: random.below(40),
            most_lost: 3,
        };
        let mut hosts = Hosts::new(seed ^ 0x5555, weather);
        let mtu = [256, 512, 1024, 2048, 4096][random.below(5) as usize];
        let reads = 1 + random.below(4) as u8;
        let qps = hosts.connect_with(
            |_, config| config.signal_all = true,
            |_, step| {
                step.path_mtu = step.path_mtu.map(|_| mtu);
                step.max_reads_out = step.max_reads_out.map(|_| reads);
                step.retry_count = step.retry_count.map(|_| 7);
                step.timeout = step.timeout.map(|_| 6);
                step.selective = step.peer.map(|_| seed % 2 == 1);
            },
        );
        let regions = [0, 1].map(|at| hosts.nodes[at].register(0, 1 << 21, ALL));
        let sides = [0, 1].map(|at| {
            let window = pattern(seed + at as u64, WINDOW as usize);
            hosts.nodes[1 - at].fill(0, &window);
            hosts.nodes[at].fill(SOURCE, &pattern(seed, SOURCE_LENGTH as usize));
            let word = seed;
            hosts.nodes[1 - at].fill(WORD, &word.to_ne_bytes());
            Side {
                at,
                window,
                word,
                expected: VecDeque::new(),
                messages: VecDeque::new(),
                consumed: 0,
                next_receive: 0,
                posted: 0,
                must_wait: false,
            }
        });
        Self {
            hosts,
            qps,
            regions,
            random,
            sides,
            gave_up: false,
        }
    }

    /// Posts a random request at a node.
    fn post(&mut self, at: usize) {
        let id = self.sides[at].posted;
        self.sides[at].posted += 1;
        let length = match self.random.below(3) {
            0 => self.random.below(16),
            1 => self.random.below(600),
            _ => self.random.below(RESULT + 1),
        };
        let offset = self.random.below(WINDOW - length);
        let range = offset as usize..(offset + length) as usize;
        let here = RESULTS + id * RESULT;
        let remote =
            |run: &Self, offset| run.hosts.nodes[1 - at].target(&run.regions[1 - at], offset);
        let kind = self.random.below(7);
        let mut result = None;
        let mut waits_for_reads = false;
        let immediate = self.random.happens(50).then_some(id as u32 * 3);
        let data = pattern(
            id * 2 + at as u64 + self.random.below(1000),
            length as usize,
        );
        let word = self.sides[at].word;
        let work = match kind {
            0 | 1 => {
                self.expect_message(at, data.clone(), immediate, false);
                let imm = immediate;
                Work::Send {
                    imm,
                    invalidate: None,
                }
            }
            2 | 3 => {
                if kind == 3 && immediate.is_some() {
                    self.expect_message(at, vec![0; length as usize], immediate, true);
                }
                self.sides[at].window[range].copy_from_slice(&data);
                Work::Write {
                    remote: remote(self, offset),
                    imm: immediate.filter(|_| kind == 3),
                }
            }
            4 => {
                // A read whose response is lost is executed again, and sees later writes unless they wait for the read.
                let changes = self.random.happens(50);
                let from = if changes {
                    offset
                } else {
                    SOURCE + self.random.below(SOURCE_LENGTH - length)
                };
                let bytes = if changes {
                    self.sides[at].window[range].to_vec()
                } else {
                    self.hosts.nodes[1 - at].bytes(from, length as usize)
                };
                waits_for_reads = std::mem::replace(&mut self.sides[at].must_wait, changes);
                result = Some((here, bytes));
                Work::Read {
                    remote: remote(self, from),
                }
            }
            5 => {
                result = Some((here, word.to_ne_bytes().to_vec()));
                self.sides[at].word = word.wrapping_add(id + 1);
                let remote = remote(self, WORD);
                Work::FetchAdd {
                    remote,
                    add: id + 1,
                }
            }
            _ => {
                result = Some((here, word.to_ne_bytes().to_vec()));
                let hits = self.random.happens(50);
                if hits {
                    self.sides[at].word = id << 32;
                }
                Work::CompareSwap {
                    remote: remote(self, WORD),
                    compare: if hits { word } else { !word },
                    swap: id << 32,
                }
            }
        };
        let sends = result.is_none();
        if sends {
            self.hosts.nodes[at].fill(here, &data);
        }
        let size = if kind >= 5 { 8 } else { length as u32 };
        let cut = self.random.below(u64::from(size) + 1) as u32;
        let node = &self.hosts.nodes[at];
        let region = &self.regions[at];
        let sges = [
            node.sge(region, here, cut),
            node.sge(region, here + u64::from(cut), size - cut),
        ];
        // An atomic has one entry.
        let sges = if kind >= 5 {
            vec![node.sge(region, here, 8)]
        } else {
            sges.to_vec()
        };
        let mut request = SendRequest::new(id, work, &sges);
        if sends && length <= 64 && self.random.happens(50) {
            (request.inline, request.sges) = (Some(&data[..]), &[]);
        }
        waits_for_reads |= kind != 4 && std::mem::take(&mut self.sides[at].must_wait);
        let fence = waits_for_reads || self.random.happens(20);
        request.flags.set(SendFlags::FENCE, fence);
        let op = match work {
            Work::Send { .. } => CompletionOp::Send,
            Work::Write { .. } => CompletionOp::Write,
            Work::Read { .. } => CompletionOp::Read,
            Work::FetchAdd { .. } => CompletionOp::FetchAdd,
            _ => CompletionOp::CompareSwap,
        };
        let qp = self.qps[at].clone();
        self.hosts.send(at, &qp, &request);
        self.sides[at]
            .expected
            .push_back(Expected { id, op, result });
    }

    fn expect_message(&mut self, at: usize, data: Vec<u8>, imm: Option<u32>, is_write: bool) {
        let id = self.sides[at].messages.len() as u64 + self.sides[at].consumed;
        self.sides[at].messages.push_back((id, data, imm, is_write));
    }

    /// Posts a receive for node `at`'s messages, at the other node.
    fn receive(&mut self, at: usize) {
        let id = self.sides[at].next_receive;
        self.sides[at].next_receive += 1;
        let to = 1 - at;
        let sges =
            [
                self.hosts.nodes[to].sge(
                    &self.regions[to],
                    RECEIVES + id * RECEIVE,
                    RECEIVE as u32,
                ),
            ];
        let qp = self.qps[to].clone();
        self.hosts.recv(to, &qp, 1000 + id, &sges);
    }

    /// Checks what has completed.
    fn check(&mut self) {
        for to in 0..2 {
            for done in self.qps[to].poll() {
                if matches!(done.status, Status::RetryExceeded | Status::Flushed) {
                    self.gave_up = true;
                    continue;
                }
                assert_eq!(done.status, Status::Success, "{done:?}");
                if done.opcode.is_recv() {
                    self.check_message(1 - to, &done);
                } else {
                    let expected = self.sides[to].expected.pop_front().expect("a request");
                    assert_eq!((done.id, done.opcode), (expected.id, expected.op));
                    if let Some((place, bytes)) = expected.result {
                        let here = self.hosts.nodes[to].bytes(place, bytes.len());
                        assert!(here == bytes, "{done:?}");
                    }
                }
            }
        }
    }

    fn check_message(&mut self, from: usize, done: &Completion) {
        let (id, data, imm, is_write) = self.sides[from].messages.pop_front().expect("a message");
        self.sides[from].consumed += 1;
        assert_eq!((done.id, done.bytes as usize), (1000 + id, data.len()));
        let op = if is_write {
            CompletionOp::RecvWriteImm
        } else {
            CompletionOp::Recv
        };
        assert_eq!(done.opcode, op);
        let flag = done.flags.contains(CompletionFlags::IMM);
        assert_eq!(flag.then_some(done.imm), imm);
        if !is_write {
            let here = self.hosts.nodes[1 - from].bytes(RECEIVES + id * RECEIVE, data.len());
            assert!(here == data);
        }
    }

    fn play(&mut self) {
        while self.sides.iter().any(|side| side.posted < REQUESTS) {
            for at in 0..2 {
                for _ in 0..self.random.below(6) {
                    if self.sides[at].posted < REQUESTS {
                        self.post(at);
                    }
                }
                for _ in 0..self.random.below(4) {
                    if self.sides[at].next_receive < REQUESTS {
                        self.receive(at);
                    }
                }
            }
            for _ in 0..self.random.below(10) {
                self.some_time();
            }
            self.check();
            if self.gave_up {
                return;
            }
        }
        for at in 0..2 {
            while self.sides[at].next_receive < REQUESTS {
                self.receive(at);
            }
        }
        assert!(self.hosts.run(), "it becomes idle");
        self.check();
        if self.gave_up {
            return;
        }
        for side in &self.sides {
            assert!(side.expected.is_empty() && side.messages.is_empty());
            let there = &self.hosts.nodes[1 - side.at];
            assert!(there.bytes(0, WINDOW as usize) == side.window);
            assert_eq!(there.bytes(WORD, 8), side.word.to_ne_bytes());
        }
    }

    /// Performs the next event.
    fn some_time(&mut self) {
        let hosts = &mut self.hosts;
        let mut next = hosts.network.next_arrival();
        for at in 0..2 {
            let deadline = hosts.nodes[at].engine.drive(hosts.now, 64).next_deadline;
            next = next.into_iter().chain(deadline).min();
            hosts.transmit(at);
        }
        hosts.now = hosts.now.max(next.unwrap_or(hosts.now));
        while let Some((to, packet)) = hosts.network.arrive(hosts.now) {
            hosts.deliver(to, path(to), &packet);
        }
    }
}

#[test]
fn every_request_is_executed_once_and_in_order() {
    let count = setting("RKEY_TEST_WIRE_SCHEDULES").unwrap_or(60);
    let first = setting("RKEY_TEST_SEED").unwrap_or(1);
    let (mut retransmitted, mut gave_up) = (0, 0);
    for seed in first..first + count {
        let named = Named(seed);
        let mut run = Run::new(seed);
        run.play();
        for at in 0..2 {
            let counters = run.hosts.nodes[at].engine.wire_counters(run.qps[at].id);
            retransmitted += counters.unwrap().retransmitted;
        }
        gave_up += u64::from(run.gave_up);
        drop(named);
    }
    // Without retransmissions, the test would have shown nothing.
    assert!(count < 10 || retransmitted > count);
    assert!(gave_up <= count / 20 + 1, "{gave_up} of {count}");
}
