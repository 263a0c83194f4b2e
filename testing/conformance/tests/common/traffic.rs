//! Mixed traffic of every kind on one queue pair, fully recorded: every request completes once, in order, and its
//! effect is checked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rkey_base::range::VaRange;
use rkey_core::{Access, Key, LKey, Rules, WindowId, WindowKind};
use rkey_device::Qp;
use rkey_engine::{
    Completion, CompletionOp, RecvRequest, SendFlags, SendRequest, Sge, Status, Work,
};

use super::Random;
use super::side::{
    AREA, ATOMICS, INBOX, Offer, PATTERN, RECEIVE_COUNT, RECEIVE_WORDS, RECEIVES, Remote, SINK,
    SINK_COUNT, SINK_WORDS, Side,
};

/// The maximum number of outstanding sends: one for each buffer for reads.
const WINDOW: usize = SINK_COUNT;
/// Anything that takes longer counts as a hang.
pub const HANG: Duration = super::LONG;

/// A send that has not completed.
struct Sent {
    id: u64,
    opcode: CompletionOp,
    place: usize,
    from: usize,
    words: usize,
    /// The expected old value, for atomics.
    old: u64,
}

/// Our own window, which is repeatedly bound and unbound.
struct Window {
    id: WindowId,
    key: Key,
    bound: bool,
    region: LKey,
    range: VaRange,
}

pub struct Traffic<'a> {
    side: &'a Side,
    qp: &'a Qp,
    remote: Remote,
    random: Random,
    sends: VecDeque<Sent>,
    receives: VecDeque<(u64, usize)>,
    next_id: u64,
    /// Sends posted so far.
    posted: usize,
    window: Window,
    sum: u64,
    swapped: u64,
    pub completed: u64,
    pub failed: u64,
    /// Whether the peer is honest, so that the data that arrives is checked.
    pub peer_is_honest: bool,
    /// The status of the first failed request.
    pub first_failure: Option<(CompletionOp, Status)>,
}

impl<'a> Traffic<'a> {
    /// Posts receives; sends nothing yet.
    pub fn new(side: &'a Side, qp: &'a Qp, offer: &Offer, remote: Remote, random: Random) -> Self {
        let window = side
            .device
            .create_window(side.domain, WindowKind::Type2A)
            .unwrap();
        let mut traffic = Self {
            side,
            qp,
            remote,
            random,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            next_id: 1,
            posted: 0,
            window: Window {
                id: window.id,
                key: window.key,
                bound: false,
                region: offer.inbox.local_key,
                range: VaRange::new(side.address_of(INBOX), 4096).unwrap(),
            },
            sum: 0,
            swapped: 0,
            completed: 0,
            failed: 0,
            peer_is_honest: true,
            first_failure: None,
        };
        for place in 0..RECEIVE_COUNT {
            traffic.receive(place);
        }
        traffic
    }

    /// The number of requests that have not completed.
    pub fn outstanding(&self) -> usize {
        self.sends.len() + self.receives.len()
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn receive(&mut self, place: usize) {
        let id = self.id();
        let sges = [self
            .side
            .sge(RECEIVES + place * RECEIVE_WORDS, RECEIVE_WORDS)];
        self.qp.post_recv(&RecvRequest { id, sges: &sges }).unwrap();
        self.receives.push_back((id, place));
    }

    /// Posts until the window is full.
    pub fn fill(&mut self) {
        while self.sends.len() < WINDOW {
            self.post();
        }
    }

    fn post(&mut self) {
        let most = match self.random.below(100) {
            0..60 => 26,
            60..90 => 1024,
            _ => SINK_WORDS,
        };
        let words = 1 + self.random.below(most as u64) as usize;
        let from = self.random.below((AREA - words) as u64 + 1) as usize;
        let inbox = self.remote.inbox(from);
        let source = PATTERN + from;
        match self.random.below(100) {
            0..40 => {
                let write = Work::Write {
                    remote: inbox,
                    imm: None,
                };
                self.send(CompletionOp::Write, write, source, from, words, 0);
            }
            40..50 => {
                let write = Work::Write {
                    remote: inbox,
                    imm: Some(from as u32),
                };
                self.send(CompletionOp::Write, write, source, from, words, 0);
            }
            50..66 => {
                let words = words.min(RECEIVE_WORDS);
                let send = Work::Send {
                    imm: Some(from as u32),
                    invalidate: None,
                };
                self.send(CompletionOp::Send, send, source, from, words, 0);
            }
            66..84 => {
                let read = Work::Read {
                    remote: self.remote.pattern(from),
                };
                let sink = self.sink();
                self.send(CompletionOp::Read, read, sink, from, words, 0);
            }
            84..89 => {
                let add = self.random.below(1 << 20);
                let work = Work::FetchAdd {
                    remote: self.remote.atomic(0),
                    add,
                };
                let (sink, old) = (self.sink(), self.sum);
                self.sum = self.sum.wrapping_add(add);
                self.send(CompletionOp::FetchAdd, work, sink, 0, 1, old);
            }
            89..94 => {
                let swap = self.random.next();
                let work = Work::CompareSwap {
                    remote: self.remote.atomic(1),
                    compare: self.swapped,
                    swap,
                };
                let (sink, old) = (self.sink(), self.swapped);
                self.swapped = swap;
                self.send(CompletionOp::CompareSwap, work, sink, 0, 1, old);
            }
            _ => self.post_window(),
        }
    }

    /// A buffer for reads that no other outstanding request uses.
    fn sink(&self) -> usize {
        SINK + self.posted % SINK_COUNT * SINK_WORDS
    }

    fn post_window(&mut self) {
        let window = &mut self.window;
        let (opcode, work) = if window.bound {
            (
                CompletionOp::Invalidate,
                Work::Invalidate { key: window.key },
            )
        } else {
            let low = (window.key.0 as u8).wrapping_add(1);
            window.key = Key(window.key.0 & !0xff | u32::from(low));
            let bind = Work::Bind {
                window: window.id,
                region: window.region,
                range: window.range,
                access: Access::REMOTE_WRITE,
                zero_based: false,
                key: Some(window.key),
                rules: Rules::VERBS,
            };
            (CompletionOp::Bind, bind)
        };
        window.bound = !window.bound;
        self.send(opcode, work, 0, 0, 0, 0);
    }

    fn send(
        &mut self,
        opcode: CompletionOp,
        work: Work,
        place: usize,
        from: usize,
        words: usize,
        old: u64,
    ) {
        let id = self.id();
        let one: [Sge; 1];
        let two: [Sge; 2];
        let sges: &[Sge] = match words {
            0 => &[],
            1..4 => {
                one = [self.side.sge(place, words)];
                &one
            }
            _ => {
                two = [self.side.sge(place, 3), self.side.sge(place + 3, words - 3)];
                &two
            }
        };
        let mut request = SendRequest::new(id, work, sges);
        if self.random.below(8) == 0 {
            request.flags |= SendFlags::FENCE;
        }
        self.qp.post_send(&request).unwrap();
        self.posted += 1;
        self.sends.push_back(Sent {
            id,
            opcode,
            place,
            from,
            words,
            old,
        });
    }

    /// Takes completions; with `asleep`, waits for one.
    pub fn step(&mut self, asleep: bool) -> usize {
        let mut batch = [Completion::default(); 16];
        if asleep {
            self.side.cq.wait(Some(Duration::from_millis(50))).unwrap();
        }
        let count = self.side.cq.poll(&mut batch).unwrap();
        for completion in &batch[..count] {
            assert_eq!(completion.qpn, self.qp.qpn(), "{completion:?}");
            self.complete(completion);
        }
        count
    }

    fn complete(&mut self, done: &Completion) {
        let ours = |front: Option<u64>| front == Some(done.id);
        let success = done.status == Status::Success;
        if success {
            assert_eq!(self.first_failure, None, "success after failure: {done:?}");
            self.completed += 1;
        } else {
            self.failed += 1;
            self.first_failure.get_or_insert((done.opcode, done.status));
        }
        if ours(self.sends.front().map(|s| s.id)) {
            let Some(sent) = self.sends.pop_front() else {
                return;
            };
            assert_eq!(done.opcode, sent.opcode, "{done:?}");
            if success && self.peer_is_honest {
                self.check_sent(&sent, done);
            }
        } else if ours(self.receives.front().map(|r| r.0)) {
            let Some((_, place)) = self.receives.pop_front() else {
                return;
            };
            if success {
                if self.peer_is_honest {
                    self.check_received(place, done);
                }
                self.receive(place);
            }
        } else {
            panic!("out of order, never posted, or completed before: {done:?}");
        }
    }

    fn check_sent(&self, sent: &Sent, done: &Completion) {
        match sent.opcode {
            CompletionOp::Read => {
                assert_eq!(done.bytes as usize, 8 * sent.words, "{done:?}");
                self.side.expect(
                    sent.place,
                    sent.words,
                    self.remote.seed,
                    sent.from,
                    "a read",
                );
            }
            CompletionOp::FetchAdd | CompletionOp::CompareSwap => {
                let old = self.side.memory.word(sent.place);
                assert_eq!(old, sent.old, "an atomic was lost or executed twice");
            }
            _ => {}
        }
    }

    fn check_received(&self, place: usize, done: &Completion) {
        let (words, from) = (done.bytes as usize / 8, done.imm as usize);
        let at = match done.opcode {
            CompletionOp::Recv => RECEIVES + place * RECEIVE_WORDS,
            _ => INBOX + from,
        };
        self.side
            .expect(at, words, self.remote.seed, from, "a receive");
    }

    /// After the first failure: waits until everything has completed, and checks that nothing follows.
    pub fn drain(&mut self) {
        let deadline = Instant::now() + HANG;
        while self.outstanding() > 0 {
            self.step(false);
            assert!(
                Instant::now() < deadline,
                "{} sends and {} receives never completed",
                self.sends.len(),
                self.receives.len()
            );
        }
    }

    /// The peer's atomics so far: the final values of its words.
    pub fn sums(&self) -> (u64, u64) {
        (self.sum, self.swapped)
    }

    /// Deallocates the window.
    pub fn close(self) {
        self.side.device.deallocate_window(self.window.id).unwrap();
    }
}

/// The words of `side` for atomics.
pub fn atomics(side: &Side) -> (u64, u64) {
    (side.memory.word(ATOMICS), side.memory.word(ATOMICS + 1))
}
