//! Peers that violate the protocol of collectives: a separate device writes an endpoint's messages.

use super::*;
use crate::outsider::{Line, Outsider};
use rkey_fi::fuzzing;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Messages that it receives on a connection.
const RECEIVES: u64 = 128;

struct Stranger {
    home: Arc<Outsider>,
    line: Line,
    closed: Arc<AtomicBool>,
    /// Accepts the connections of peers that prefer their own.
    door: Option<JoinHandle<()>>,
}

impl Stranger {
    /// Connects to an endpoint, as another endpoint would.
    fn new(to: &Side) -> Self {
        let home = Arc::new(Outsider::open());
        let there = address_of(&name_of(to.ep));
        let line = home.connect(there, &home.hello(there), RECEIVES).unwrap();
        let closed = Arc::new(AtomicBool::new(false));
        let door = std::thread::spawn({
            let (home, closed) = (Arc::clone(&home), Arc::clone(&closed));
            move || {
                let mut guests = Vec::new();
                while !closed.load(Ordering::Acquire) {
                    let Some(incoming) = home.caller(Duration::from_millis(20)) else {
                        continue;
                    };
                    let answer = home.answer(&incoming);
                    guests.extend(home.accept(incoming, &answer, RECEIVES));
                }
            }
        });
        Self {
            home,
            line,
            closed,
            door: Some(door),
        }
    }

    /// The name with which an endpoint finds it.
    fn name(&self) -> Vec<u8> {
        self.home.name()
    }

    /// Sends a message and waits until it has arrived; returns `false` if the connection has ended.
    fn says(&self, bytes: &[u8]) -> bool {
        self.says_all(&[bytes.to_vec()])
    }

    /// Like [`Stranger::says`], for several messages at once.
    fn says_all(&self, messages: &[Vec<u8>]) -> bool {
        self.line.says(messages, || ())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        let door = self.door.take().map(JoinHandle::join);
        assert!(matches!(door, Some(Ok(()))) || std::thread::panicking());
    }
}

/// The contents of a group member's message.
#[derive(Clone)]
struct Words {
    kind: u8,
    len: u32,
    members: u64,
    instance: u32,
    seq: u32,
    signature: u32,
    payload: Vec<u8>,
}

impl Words {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, 4, 0, 0];
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(0x1234_5678_9abc_u64.to_le_bytes());
        bytes.extend(self.members.to_le_bytes());
        let data = u64::from(self.instance) << 32 | u64::from(self.seq);
        bytes.extend(data.to_le_bytes());
        bytes.extend(self.signature.to_le_bytes());
        bytes.extend(0x0bad_0bad_u32.to_le_bytes());
        bytes.extend(&self.payload);
        bytes
    }
}

const HERE: u8 = 10;
const THERE: u8 = 11;
const APART: u8 = 12;

/// A member that violates the protocol ends the operation, with an error, and its group, but nothing else.
#[test]
fn a_member_that_violates_the_protocol_ends_the_operation() {
    let team = Team::open(2, &wish());
    let honest = team.join_all();
    let side = &team.sides[0];
    let stranger = Stranger::new(side);
    let number = side.insert(&stranger.name());
    let addresses = [address_of(&name_of(side.ep)), address_of(&stranger.name())];
    let good = Words {
        kind: HERE,
        len: 8,
        members: fuzzing::group_name(&addresses),
        instance: 0,
        seq: 1,
        signature: 99,
        payload: vec![0; 8],
    };
    let say = |change: &dyn Fn(&mut Words)| {
        let mut words = good.clone();
        change(&mut words);
        words
    };
    let nonsense = [
        say(&|_| {}),
        say(&|it| it.payload = vec![1; 400]),
        say(&|it| (it.kind, it.len) = (THERE, 8)),
        say(&|it| (it.kind, it.len) = (THERE, u32::MAX)),
        say(&|it| (it.kind, it.seq) = (APART, libc::EIO as u32)),
        say(&|it| (it.kind, it.seq) = (APART, u32::MAX)),
        say(&|it| it.kind = 200),
    ];
    for (instance, mut words) in nonsense.into_iter().enumerate() {
        words.instance = instance as u32;
        if words.kind == HERE {
            words.len = words.payload.len() as u32;
        }
        let set = Set::of(side, &[0, number as usize]);
        let mc = join(side.ep, &set, FI_ADDR_NOTAVAIL, 1).unwrap();
        assert!(team.event(0).is_ok());
        let mut numbers = [5u64, 0];
        let [source, result] = &mut numbers;
        let it = Buffers::new(
            std::slice::from_mut(source),
            std::slice::from_mut(result),
            1,
        );
        let sum = (FI_UINT64, FI_SUM);
        assert_eq!(call(side, &mc, FI_ALLREDUCE, it, None, sum), 0);
        stranger.says(&words.bytes());
        let ended = team.done(0).unwrap_err();
        let wanted = match words.kind {
            APART if words.seq == u32::MAX => libc::EREMOTEIO,
            APART => libc::EIO,
            200 => libc::ECONNRESET,
            _ => libc::EINVAL,
        };
        assert_eq!((ended, numbers), (wanted, [5, 0]), "{}", words.kind);
        mc.close();
    }
    for (side, mc) in team.sides.iter().zip(&honest) {
        assert_eq!(barrier(side, mc), 0);
    }
    team.all_done();
    honest.into_iter().for_each(Mc::close);
}

/// More messages than any peer may leave at an endpoint.
const TOO_MANY: u32 = 5000;

/// Sends messages until the connection has ended.
fn is_shut_out(team: &Team, stranger: &Stranger, words: &Words) {
    let mut said = 0;
    let mut enough = None;
    loop {
        let some: Vec<_> = (said..said + 32)
            .map(|seq| {
                let words = words.clone();
                Words { seq, ..words }.bytes()
            })
            .collect();
        if !stranger.says_all(&some) {
            return;
        }
        said += 32;
        team.progress();
        if said > TOO_MANY {
            // The connection takes a moment to end.
            let since = enough.get_or_insert_with(Instant::now);
            assert!(since.elapsed() < PATIENCE, "the peer is not cut off");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Messages from a peer that is not a member are dropped, and cannot fill our memory.
#[test]
fn a_peer_that_is_not_a_member_is_disconnected() {
    let team = Team::open(2, &wish());
    let group = team.join_all();
    let addresses: Vec<_> = team
        .sides
        .iter()
        .map(|side| address_of(&name_of(side.ep)))
        .collect();
    let words = Words {
        kind: HERE,
        len: 400,
        members: fuzzing::group_name(&addresses),
        instance: 0,
        seq: 1,
        signature: 0,
        payload: vec![0; 400],
    };
    for members in [words.members, 77] {
        for kind in [HERE, THERE, APART] {
            let words = Words {
                kind,
                members,
                ..words.clone()
            };
            if kind == APART && members != 77 {
                // There is no operation to end, so the message is dropped.
                let stranger = Stranger::new(&team.sides[0]);
                assert!(stranger.says(&words.bytes()));
                continue;
            }
            is_shut_out(&team, &Stranger::new(&team.sides[0]), &words);
        }
    }
    for (side, mc) in team.sides.iter().zip(&group) {
        assert_eq!(barrier(side, mc), 0);
    }
    team.all_done();
    group.into_iter().for_each(Mc::close);
}

/// An endpoint without collectives drops their messages.
#[test]
fn an_endpoint_without_collectives_drops_collective_messages() {
    let team = Team {
        sides: vec![Side::open(&Wish::default())],
    };
    let words = Words {
        kind: HERE,
        len: 0,
        members: 1,
        instance: 0,
        seq: 1,
        signature: 0,
        payload: Vec::new(),
    };
    let stranger = Stranger::new(&team.sides[0]);
    is_shut_out(&team, &stranger, &words);
}
