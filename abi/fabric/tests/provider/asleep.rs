//! Rendezvous messages, whose sender completes only when the receiver has read the payload: between programs that sleep
//! until then, and with receivers that poll no longer than necessary.

use crate::connected::{listen, look, name_of_pep, take, wait_for, wish};
use crate::harness::*;
use crate::peer::{Peer, hear, is_peer, name_in, say};
use crate::waiting::*;
use rkey_fi::sys::*;
use std::ptr::null_mut;
use std::time::Instant;

/// The size of a message in bytes: enough for a rendezvous.
const LEN: usize = 1 << 20;
/// The number of messages in each direction, for each kind of wait. `RKEY_TEST_ROUNDS` sets another number, to search
/// for a bug.
const ROUNDS: usize = 100;

/// How a program waits for its queue.
#[derive(Clone, Copy, Debug)]
enum Wait {
    /// `fi_cq_sread`.
    Call,
    /// `fi_trywait` for this queue and its event queue, and both descriptors.
    Descriptors,
    /// Both in turn.
    Both,
}

const WAITS: [Wait; 3] = [Wait::Call, Wait::Descriptors, Wait::Both];

/// One end of a connection.
struct End {
    fabric: *mut FidFabric,
    ep: *mut FidEp,
    cq: *mut FidCq,
    eq: *mut FidEq,
    bytes: Vec<u8>,
}

impl End {
    fn open(
        fabric: *mut FidFabric,
        domain: *mut FidDomain,
        info: *mut Info,
        eq: *mut FidEq,
    ) -> Self {
        let (cq, mut ep) = (waitable_cq(domain), null_mut());
        // SAFETY: live handles, and the provider's `fi_info`.
        let code = unsafe { ((*(*domain).ops).endpoint)(domain, info, &mut ep, null_mut()) };
        assert_eq!(code, 0);
        assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
        assert_eq!(bind(ep.cast(), cq.cast(), FI_SEND | FI_RECV), 0);
        Self {
            fabric,
            ep,
            cq,
            eq,
            bytes: vec![1; LEN],
        }
    }

    fn send(&self, round: usize, wait: Wait) {
        let at = self.bytes.as_ptr().cast();
        // SAFETY: a live handle, and memory that stays until the completion.
        let code = again(|| unsafe {
            ((*(*self.ep).msg).send)(self.ep, at, LEN, null_mut(), 0, null_mut())
        });
        assert_eq!(code, 0);
        assert_eq!(self.completion(round, wait).flags & FI_SEND, FI_SEND);
    }

    fn receive(&mut self, round: usize, wait: Wait) {
        let at = self.bytes.as_mut_ptr().cast();
        // SAFETY: as above.
        let code = unsafe { ((*(*self.ep).msg).recv)(self.ep, at, LEN, null_mut(), 0, null_mut()) };
        assert_eq!(code, 0);
        assert_eq!(self.completion(round, wait).flags & FI_RECV, FI_RECV);
    }

    /// The next completion.
    fn completion(&self, round: usize, wait: Wait) -> CqTaggedEntry {
        let started = Instant::now();
        let by_call = match wait {
            Wait::Call => true,
            Wait::Descriptors => false,
            Wait::Both => round.is_multiple_of(2),
        };
        let entry = if by_call {
            // SAFETY: a live handle, and room for an entry of the longest format.
            let (code, entry) = unsafe {
                let mut entry: CqTaggedEntry = std::mem::zeroed();
                let sread = (*(*self.cq).ops).sread;
                let code = sread(self.cq, (&raw mut entry).cast(), 1, null_mut(), LONG);
                (code, entry)
            };
            assert_eq!(code, 1, "{wait:?}, round {round}");
            entry
        } else {
            loop {
                if let Some(entry) = poll(self.cq) {
                    break entry.unwrap();
                }
                let queues = [self.cq.cast::<Fid>(), self.eq.cast()];
                if queues.map(|queue| trywait(self.fabric, queue)) == [0; 2] {
                    assert!(
                        either_readable(queues.map(descriptor)),
                        "{wait:?}, round {round}"
                    );
                }
            }
        };
        let took = started.elapsed();
        assert!(
            took < PATIENCE,
            "{wait:?}, round {round}: no wake-up for {took:?}"
        );
        entry
    }

    fn run(&mut self, wait: Wait, sends_first: bool) {
        let rounds = std::env::var("RKEY_TEST_ROUNDS").map_or(ROUNDS, |it| it.parse().unwrap());
        for round in 0..rounds {
            if sends_first {
                self.send(round, wait);
            }
            self.receive(round, wait);
            if !sends_first {
                self.send(round, wait);
            }
        }
    }
}

/// Waits until one of two descriptors is readable; returns `false` if neither becomes readable.
fn either_readable(fds: [i32; 2]) -> bool {
    let mut set = fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: a list of this length.
    unsafe { libc::poll(set.as_mut_ptr(), 2, LONG) > 0 }
}

/// An event queue with a descriptor.
fn events(fabric: *mut FidFabric) -> *mut FidEq {
    let mut eq = null_mut();
    // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
    let code = unsafe {
        let mut attr: EqAttr = std::mem::zeroed();
        attr.wait_obj = FI_WAIT_FD;
        ((*(*fabric).ops).eq_open)(fabric, &mut attr, &mut eq, null_mut())
    };
    assert_eq!(code, 0);
    eq
}

/// Two processes, each of which sleeps between messages.
#[test]
fn programs_that_sleep_are_woken_for_every_message() {
    if is_peer() {
        let name = name_in(&hear().unwrap());
        let info = wish().info();
        let (fabric, domain) = open_domain(wish().version, info);
        let eq = events(fabric);
        for wait in WAITS {
            let mut end = End::open(fabric, domain, info, eq);
            // SAFETY: a live handle, and the name of a passive endpoint.
            let code = unsafe {
                let connect = (*(*end.ep).cm).connect;
                connect(end.ep, name.as_ptr().cast(), null_mut(), 0)
            };
            assert_eq!(code, 0);
            wait_for(eq, Ok(FI_CONNECTED));
            take(eq);
            end.run(wait, true);
            say("sent");
            wait_for(eq, Ok(FI_SHUTDOWN));
            take(eq);
            assert_eq!(close(end.ep.cast()), 0);
        }
        return;
    }
    let test = "asleep::programs_that_sleep_are_woken_for_every_message";
    let mut peer = Peer::start(test, &[]);
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = events(fabric);
    let pep = listen(fabric, eq);
    let name: Vec<String> = name_of_pep(pep)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    peer.tell(&name.concat());
    for wait in WAITS {
        wait_for(eq, Ok(FI_CONNREQ));
        let (info, mut domain) = (take(eq).info, null_mut());
        // SAFETY: live handles, and the `fi_info` of a request.
        let code = unsafe { ((*(*fabric).ops).domain)(fabric, info, &mut domain, null_mut()) };
        assert_eq!(code, 0);
        let mut end = End::open(fabric, domain, info, eq);
        // SAFETY: the handle is live.
        let code = unsafe { ((*(*end.ep).cm).accept)(end.ep, null_mut(), 0) };
        assert_eq!(code, 0);
        wait_for(eq, Ok(FI_CONNECTED));
        take(eq);
        end.run(wait, false);
        assert_eq!(peer.heard(), "sent");
        assert_eq!(look(eq), Err(AGAIN));
        assert_eq!(close(end.ep.cast()), 0);
    }
    assert_eq!(close(pep.cast()), 0);
}

/// The receiver's queue is full when the message arrives. It reads the entries of its queue, which is all that it waits
/// for, and then does something else. The sender still completes.
#[test]
fn a_send_completes_once_the_receiver_reads_its_last_completion() {
    let small = Wish {
        queue: 1,
        ..Wish::default()
    };
    let (a, info) = (Side::open(&Wish::default()), small.info());
    let b = Side::waiting(open_domain(small.version, info), info);
    let [sent, received] = [FI_SEND, FI_RECV].map(|kind| {
        let counter = counter(b.domain);
        assert_eq!(bind(b.ep.cast(), counter.cast(), kind), 0);
        counter
    });
    assert_eq!(bind(b.ep.cast(), b.av.cast(), 0), 0);
    assert_eq!(b.enable(), 0);
    let (to_a, to_b) = (b.peer(&a), a.peer(&b));
    // Makes progress without taking an entry.
    let progress = |counter| {
        let started = Instant::now();
        while count(counter) == 0 {
            // SAFETY: the handle is live; nothing is read.
            unsafe { ((*(*b.cq).ops).read)(b.cq, null_mut(), 0) };
            assert!(started.elapsed() < PATIENCE);
        }
    };
    let (word, mut inbox) = ([5u8; 8], [0u8; 8]);
    recv(a.ep, &mut inbox);
    let send = |from: &Side, to, bytes: &[u8]| {
        // SAFETY: a live handle, and memory that stays until the completion.
        let code = again(|| unsafe {
            let send = (*(*from.ep).msg).send;
            send(
                from.ep,
                bytes.as_ptr().cast(),
                bytes.len(),
                null_mut(),
                to,
                null_mut(),
            )
        });
        assert_eq!(code, 0);
    };
    send(&b, to_a, &word);
    assert!(a.completion(&[&b]).is_ok());
    // The completion of this send fills the queue.
    progress(sent);
    let (message, mut place) = (vec![6u8; LEN], vec![0u8; LEN]);
    // SAFETY: as above.
    let code = unsafe {
        let recv = (*(*b.ep).msg).recv;
        recv(
            b.ep,
            place.as_mut_ptr().cast(),
            LEN,
            null_mut(),
            FI_ADDR_UNSPEC,
            null_mut(),
        )
    };
    assert_eq!(code, 0);
    send(&a, to_b, &message);
    progress(received);
    // SAFETY: a live handle, and room for this many entries.
    let read = unsafe {
        let mut room: [CqTaggedEntry; 4] = std::mem::zeroed();
        ((*(*b.cq).ops).read)(b.cq, room.as_mut_ptr().cast(), room.len())
    };
    assert_eq!((read, &place), (2, &message));
    // From here on no thread polls b.
    assert!(a.completion(&[]).is_ok());
}

/// A receiver owes more responses than its connection takes requests at a time. When it reads its last completion and then stops
/// polling, all of them have been sent.
#[test]
fn all_sends_complete_when_the_receiver_reads_and_then_stops_polling() {
    const MANY: usize = 2000;
    const SHORT: usize = 16384;
    let (a, b) = (Side::open(&Wish::default()), Side::open(&Wish::default()));
    let to = a.peer(&b);
    let (message, mut place) = (vec![6u8; SHORT], vec![0u8; SHORT]);
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    for _ in 0..MANY {
        // SAFETY: a live handle, and memory that stays until the completion.
        let code = unsafe {
            let recv = (*(*b.ep).msg).recv;
            recv(
                b.ep,
                place.as_mut_ptr().cast(),
                SHORT,
                null_mut(),
                FI_ADDR_UNSPEC,
                null_mut(),
            )
        };
        assert_eq!(code, 0);
    }
    let started = Instant::now();
    while received < MANY {
        // SAFETY: as above.
        let code = unsafe {
            let send = (*(*a.ep).msg).send;
            match posted < MANY {
                true => send(
                    a.ep,
                    message.as_ptr().cast(),
                    SHORT,
                    null_mut(),
                    to,
                    null_mut(),
                ),
                false => AGAIN,
            }
        };
        if code == 0 {
            posted += 1;
            continue;
        }
        assert_eq!(code, AGAIN);
        sent += usize::from(poll(a.cq).is_some_and(|it| it.is_ok()));
        received += usize::from(poll(b.cq).is_some_and(|it| it.is_ok()));
        assert!(
            started.elapsed() < 3 * PATIENCE,
            "{posted} {sent} {received}"
        );
    }
    // From here on no thread polls b.
    for _ in sent..MANY {
        assert!(a.completion(&[]).is_ok());
    }
}
