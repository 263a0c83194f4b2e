//! Two ends in one thread.

use super::*;
use crate::rsocket::wire::Iomap;
use proptest::prelude::*;
use std::collections::VecDeque;

/// The addresses of an end's ring and of its records.
const RING: u64 = 1 << 20;
const RECORDS: u64 = 1 << 10;

/// An end, with its memory and the messages in flight to it.
struct End {
    stream: Stream,
    out: Vec<u8>,
    ring: Vec<u8>,
    targets: [RemoteSge; TARGETS as usize],
    arriving: VecDeque<Message>,
    finished: VecDeque<Work>,
}

fn offer(sizes: &Sizes) -> Offer {
    Offer {
        credits: sizes.credits,
        iomaps: sizes.iomaps,
        targets: RemoteSge {
            addr: RECORDS,
            key: 1,
            len: TARGETS,
        },
        first: RemoteSge {
            addr: RING,
            key: 2,
            len: sizes.receive_bytes / 2,
        },
    }
}

impl End {
    fn new(sizes: &Sizes, of_peer: &Sizes) -> Self {
        let ring = RemoteSge {
            addr: RING,
            key: 2,
            len: sizes.receive_bytes,
        };
        Self {
            stream: Stream::new(sizes, ring, &offer(of_peer)),
            out: vec![0; sizes.send_bytes as usize],
            ring: vec![0; sizes.receive_bytes as usize],
            targets: [RemoteSge::default(); TARGETS as usize],
            arriving: VecDeque::new(),
            finished: VecDeque::new(),
        }
    }

    /// Executes a write, as a queue pair would.
    fn write(&mut self, write: &Write, peer: &mut Self) {
        match write.source {
            Source::Ring { at, len } => {
                assert_eq!(write.key, 2);
                let to = (write.to - RING) as usize;
                let (at, len) = (at as usize, len as usize);
                peer.ring[to..to + len].copy_from_slice(&self.out[at..at + len]);
            }
            Source::Target(record) => {
                assert_eq!(write.key, 1);
                let word = |at: usize| u64::from_ne_bytes(*record[at..].first_chunk().unwrap());
                let slot = (write.to - RECORDS) as usize / RemoteSge::SIZE;
                peer.targets[slot] = RemoteSge::from_words([word(0), word(8)]);
            }
            Source::Iomap(_) | Source::Nothing => {}
        }
        peer.arriving.extend(write.message);
        self.finished.push_back(write.work);
    }

    fn send(&mut self, peer: &mut Self, data: &[u8]) -> usize {
        let Some(write) = self.stream.send(data.len()) else {
            return 0;
        };
        let Source::Ring { at, len } = write.source else {
            panic!("{write:?}");
        };
        self.out[at as usize..][..len as usize].copy_from_slice(&data[..len as usize]);
        self.write(&write, peer);
        len as usize
    }

    fn receive(&mut self, want: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while let Some((at, len)) = self.stream.peek(data.len() as u32, want - data.len()) {
            data.extend_from_slice(&self.ring[at as usize..][..len as usize]);
        }
        self.stream.consume(data.len() as u32);
        data
    }

    fn take(&mut self, immediate: u32) -> Result<(), Violation> {
        let targets = &mut self.targets;
        self.stream.received(immediate, |slot| {
            std::mem::take(&mut targets[slot as usize])
        })
    }

    fn progress(&mut self, peer: &mut Self) {
        while let Some(message) = self.arriving.pop_front() {
            self.take(message.encode()).unwrap();
        }
        while let Some(work) = self.finished.pop_front() {
            self.stream.completed(work);
        }
        while let Some(write) = self.stream.due() {
            self.write(&write, peer);
        }
    }
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (1u32..8, 1u16..8, 1u32..64, 1u32..64).prop_map(|(send_requests, credits, send, receive)| {
        Sizes {
            send_requests,
            credits,
            send_bytes: send,
            receive_bytes: receive * 2,
            iomaps: 4,
        }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Send { first: bool, len: usize },
    Receive { first: bool, want: usize },
    Progress { first: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (any::<bool>(), 1usize..100).prop_map(|(first, len)| Step::Send { first, len }),
        (any::<bool>(), 1usize..100).prop_map(|(first, want)| Step::Receive { first, want }),
        any::<bool>().prop_map(|first| Step::Progress { first }),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// For all sizes and orders of calls, both directions deliver all bytes in order, and neither gets stuck.
    #[test]
    fn streams_deliver_all_bytes_in_order(of_first in sizes(), of_second in sizes(), steps in steps()) {
        let mut ends = [End::new(&of_first, &of_second), End::new(&of_second, &of_first)];
        let (mut sent, mut got) = ([0usize; 2], [0usize; 2]);
        let check = |data: &[u8], from: usize| {
            for (index, byte) in data.iter().enumerate() {
                assert_eq!(*byte, (from + index) as u8);
            }
        };
        for step in steps {
            let (index, call) = match step {
                Step::Send { first, .. } | Step::Receive { first, .. } | Step::Progress { first } => (usize::from(!first), step),
            };
            let [a, b] = &mut ends;
            let (own, peer) = if index == 0 { (a, b) } else { (b, a) };
            match call {
                Step::Send { len, .. } => {
                    let data: Vec<u8> = (0..len).map(|at| (sent[index] + at) as u8).collect();
                    sent[index] += own.send(peer, &data);
                }
                Step::Receive { want, .. } => {
                    let data = own.receive(want);
                    check(&data, got[index]);
                    got[index] += data.len();
                }
                Step::Progress { .. } => own.progress(peer),
            }
        }
        for index in [0, 1] {
            let goal = sent[index] + 500;
            for _ in 0..10_000 {
                if got[1 - index] >= goal {
                    break;
                }
                let [a, b] = &mut ends;
                let (own, peer) = if index == 0 { (a, b) } else { (b, a) };
                let data: Vec<u8> = (0..7).map(|at| (sent[index] + at) as u8).collect();
                sent[index] += own.send(peer, &data);
                peer.progress(own);
                let data = peer.receive(1000);
                check(&data, got[1 - index]);
                got[1 - index] += data.len();
                peer.progress(own);
                own.progress(peer);
            }
            prop_assert!(got[1 - index] >= goal, "{} of {}", got[1 - index], goal);
        }
    }

    /// No sequence of immediate values makes an end panic, or report more data than fits into its ring.
    #[test]
    fn a_hostile_peer_cannot_overflow_the_ring(
        own in sizes(),
        peer in sizes(),
        values in prop::collection::vec((prop_oneof![any::<u32>(), 0u32..200, 0x8000_0000u32..0x8000_0020, 0xe000_0000u32..0xe000_0004], any::<u32>()), 1..200),
    ) {
        let mut end = End::new(&own, &peer);
        for (value, len) in values {
            end.targets = [RemoteSge { addr: 1, key: 1, len }; TARGETS as usize];
            let taken = end.take(value);
            prop_assert!(end.stream.waiting() <= own.receive_bytes);
            let _ = end.stream.due();
            let _ = end.stream.send(len as usize);
            if taken.is_err() {
                break;
            }
            if value % 3 == 0 {
                let _ = end.receive(own.receive_bytes as usize);
            }
        }
    }
}

const SMALL: Sizes = Sizes {
    send_requests: 4,
    credits: 4,
    send_bytes: 64,
    receive_bytes: 64,
    iomaps: 2,
};

fn pair() -> [End; 2] {
    [End::new(&SMALL, &SMALL), End::new(&SMALL, &SMALL)]
}

#[test]
fn messages_that_the_peer_may_not_send_are_violations() {
    let refused = |value: u32| pair()[0].take(value).unwrap_err();
    assert_eq!(refused(0), Violation::Length(0));
    assert_eq!(refused(33), Violation::Length(33));
    assert_eq!(refused(0x8000_0000 | 5), Violation::Credits(5));
    assert_eq!(refused(0x8000_0000 | 3), Violation::Credits(3));
    assert_eq!(refused(0xc000_0002), Violation::Iomap(2));
    assert_eq!(refused(0x2000_0000), Violation::Message(0x2000_0000));
    let [mut end, _] = pair();
    for _ in 0..4 {
        end.take(1).unwrap();
    }
    assert_eq!(end.take(1), Err(Violation::Messages));
    let [mut end, _] = pair();
    let target = RemoteSge {
        addr: 1,
        key: 1,
        len: 1,
    };
    for expected in [Ok(()), Err(Violation::Targets)] {
        end.targets = [target; 2];
        assert_eq!(end.take(0x8000_0004), expected);
    }
    let [mut end, _] = pair();
    end.take(Message::Shutdown.encode()).unwrap();
    assert_eq!(end.take(1), Err(Violation::AfterEnd));
}

#[test]
fn each_direction_is_shut_down_separately() {
    let [mut a, mut b] = pair();
    a.send(&mut b, b"last");
    a.stream.shut(Shutdown::Write);
    assert!(!a.stream.is_writable() && a.stream.is_readable());
    a.progress(&mut b);
    b.progress(&mut a);
    assert_eq!(b.receive(100), b"last");
    assert!(!b.stream.is_readable() && b.stream.is_writable() && !b.stream.has_ended());
    assert_eq!(b.send(&mut a, b"answer"), 6);
    b.stream.shut(Shutdown::Write);
    b.progress(&mut a);
    assert!(b.stream.has_ended());
    a.progress(&mut b);
    assert!(a.stream.has_ended());
    assert_eq!(a.receive(100), b"answer");
    b.progress(&mut a);
    assert!(b.stream.is_idle());
}

#[test]
fn data_after_a_shutdown_of_receiving_is_discarded() {
    let [mut a, mut b] = pair();
    b.stream.shut(Shutdown::Read);
    for _ in 0..100 {
        assert!(a.send(&mut b, b"unread") > 0);
        b.progress(&mut a);
        a.progress(&mut b);
    }
    assert_eq!(b.stream.waiting(), 0);
}

#[test]
fn no_more_areas_are_mapped_than_the_peer_has_room_for() {
    let [mut a, mut b] = pair();
    let area = Iomap {
        offset: 3,
        memory: RemoteSge {
            addr: 4,
            key: 5,
            len: 6,
        },
    };
    let write = a.stream.map(1, area).unwrap();
    assert_eq!(write.to, RECORDS + 2 * 16 + 24);
    a.write(&write, &mut b);
    assert_eq!(a.stream.map(2, area), None);
    b.progress(&mut a);
    // Mapping consumes no ring space, only a credit, which is renewed.
    for _ in 0..20 {
        let write = a.stream.map(0, area).unwrap();
        a.write(&write, &mut b);
        b.progress(&mut a);
        a.progress(&mut b);
    }
    let direct = a
        .stream
        .send_to(RemoteSge {
            addr: 9,
            key: 8,
            len: 100,
        })
        .unwrap();
    assert_eq!(direct.source, Source::Ring { at: 0, len: 64 });
    assert_eq!((direct.to, direct.key, direct.message), (9, 8, None));
}
