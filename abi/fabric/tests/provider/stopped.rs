//! A peer is stopped while it accesses our memory: once its region or the endpoint is closed, or the operation has
//! completed with an error, no byte changes.

use crate::harness::*;
use crate::peer::{Peer, hear, is_peer, name_in, say_name, until, word_of_name};
use rkey_fi::sys::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Long enough that a peer can be stopped in the middle of the transfer.
const LEN: usize = 128 << 20;
const KEY: u64 = 1;
const THEIRS: u8 = 0xee;
const OURS: u8 = 0x11;
/// Closing takes a second or two here; a busy machine may delay it, but the peer may not.
pub(crate) const BOUNDED: Duration = Duration::from_secs(20);

/// The peer offers memory to read, and sends it to the peer that the test names, until the test has ended.
fn target() {
    let side = Side::open(&Wish::default());
    let mut memory = vec![THEIRS; LEN];
    let mr = side.reg(&mut memory, REMOTE, KEY, 0).unwrap();
    say_name(&side);
    while let Some(word) = hear() {
        if word == "end" {
            break;
        }
        let to = side.insert(&name_in(&word));
        let at = memory.as_ptr().cast();
        // SAFETY: the handle is live; the memory outlives the endpoint.
        let code = again(|| unsafe {
            let send = (*(*side.ep).msg).send;
            send(side.ep, at, LEN, null_mut(), to, null_mut())
        });
        assert_eq!(code, 0);
    }
    // Gives the interrupted access time to continue, if it incorrectly can.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((close(side.ep.cast()), mr.close()), (0, 0));
}

/// Memory that a peer writes meanwhile. Its words are accessed as a whole, because there are many bytes.
struct Buffer(Box<[AtomicU64]>);

impl Buffer {
    fn new() -> Self {
        Self((0..LEN / 8).map(|_| AtomicU64::new(0)).collect())
    }

    fn fill(&self, value: u8) {
        let word = u64::from_ne_bytes([value; 8]);
        self.0
            .iter()
            .for_each(|it| it.store(word, Ordering::Relaxed));
    }

    /// Whether the first byte has this value.
    fn starts_with(&self, value: u8) -> bool {
        self.0[0].load(Ordering::Relaxed).to_ne_bytes()[0] == value
    }

    /// The index of the first word that has another byte than this one.
    fn other_than(&self, value: u8) -> Option<usize> {
        let word = u64::from_ne_bytes([value; 8]);
        self.0
            .iter()
            .position(|it| it.load(Ordering::Relaxed) != word)
    }
}

/// Starts to read all of the peer's memory into the buffer, and stops the peer in the middle of it.
fn interrupt(side: &Side, number: u64, buffer: &Buffer, peer: &Peer) {
    let at = buffer.0.as_ptr().cast_mut().cast();
    // SAFETY: the handle is live; the buffer outlives the endpoint, and is of atomic words.
    let code = again(|| unsafe {
        let read = (*(*side.ep).rma).read;
        read(side.ep, at, LEN, null_mut(), number, 0, KEY, null_mut())
    });
    assert_eq!(code, 0);
    until("the first byte", || buffer.starts_with(THEIRS));
    peer.stop();
}

#[test]
fn no_stopped_peer_writes_after_its_endpoint_is_closed() {
    if is_peer() {
        return target();
    }
    let test = "stopped::no_stopped_peer_writes_after_its_endpoint_is_closed";
    let buffer = Buffer::new();
    for _ in 0..3 {
        let mut peer = Peer::start(test, &[]);
        let side = Side::open(&Wish::default());
        let number = side.insert(&peer.name());
        buffer.fill(0);
        interrupt(&side, number, &buffer, &peer);
        let started = Instant::now();
        assert_eq!(close(side.ep.cast()), 0);
        assert!(started.elapsed() < BOUNDED, "{:?}", started.elapsed());
        buffer.fill(OURS);
        peer.goes_on();
        peer.finish();
        assert_eq!(buffer.other_than(OURS), None, "written after fi_close");
    }
}

#[test]
fn no_stopped_peer_writes_after_its_transfer_failed() {
    if is_peer() {
        return target();
    }
    let test = "stopped::no_stopped_peer_writes_after_its_transfer_failed";
    let buffer = Buffer::new();
    let mut peer = Peer::start(test, &[]);
    let side = Side::open(&Wish::default());
    let number = side.insert(&peer.name());
    buffer.fill(0);
    interrupt(&side, number, &buffer, &peer);
    // The operation succeeded only if it completed before the stop.
    if let Err(error) = side.completion(&[]) {
        assert_ne!(error.err, 0);
    }
    buffer.fill(OURS);
    peer.goes_on();
    peer.finish();
    assert_eq!(
        buffer.other_than(OURS),
        None,
        "written after the completion"
    );
}

/// The peer sends a long message, which is read from its memory.
#[test]
fn no_stopped_peer_writes_after_its_region_is_closed() {
    if is_peer() {
        return target();
    }
    let test = "stopped::no_stopped_peer_writes_after_its_region_is_closed";
    let buffer = Buffer::new();
    for _ in 0..3 {
        let mut peer = Peer::start(test, &[]);
        let side = Side::open(&Wish::mode(FI_MR_LOCAL));
        let number = side.insert(&peer.name());
        buffer.fill(0);
        let at = buffer.0.as_ptr() as usize;
        let sink = reg_in(side.domain, at, LEN, FI_RECV, 0, 0).unwrap();
        // SAFETY: the handle is live; the buffer outlives the endpoint, and is of atomic words.
        let code = unsafe {
            let recv = (*(*side.ep).msg).recv;
            recv(side.ep, at as *mut _, LEN, sink.desc(), number, null_mut())
        };
        assert_eq!(code, 0);
        peer.tell(&word_of_name(&side));
        let mut came = None;
        until("the first byte", || {
            came = came.take().or_else(|| poll(side.cq));
            buffer.starts_with(THEIRS)
        });
        peer.stop();
        let started = Instant::now();
        assert_eq!(sink.close(), 0);
        assert!(started.elapsed() < BOUNDED, "{:?}", started.elapsed());
        buffer.fill(OURS);
        peer.goes_on();
        // The receive ends as well, successfully only if it completed before the stop.
        if let Err(error) = came.unwrap_or_else(|| side.completion(&[])) {
            assert_ne!(error.err, 0);
        }
        peer.finish();
        assert_eq!(buffer.other_than(OURS), None, "written after fi_close");
        assert_eq!(close(side.ep.cast()), 0);
    }
}
