//! Warrants: a peer that does not poll is written to directly, until the right to do so ends.
// UNSAFETY: registers memory that is accessed only through atomics.
#![allow(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
#[cfg(target_arch = "x86_64")]
mod executed;
mod throttled;

use std::time::{Duration, Instant};

use common::{LONG, Peer, Remote, Side, WORDS, role, sleep_in_read, until};
use rkey_base::process::{CmaError, cma_read, cma_writes_words};
use rkey_base::range::VaRange;
use rkey_core::{Access, BindRegion, BindRequest, Key, RKey, Region, RegionSpec, WindowKind};
use rkey_device::{Config, Qp};
use rkey_engine::{
    Completion, QpAttributes, QpState, SendFlags, SendRequest, Sge, Status, Target, Work,
};

/// Where the target publishes a second key.
const KEY: usize = 10;
/// Where the initiator tells the target to act.
const ACT: usize = 12;
/// What the initiator writes again and again.
const COUNT: usize = 100;

fn write_to(remote: Target) -> Work {
    Work::Write { remote, imm: None }
}

/// Connects, and waits until the test says what to do.
fn target(act: impl FnOnce(&Side, Qp)) {
    let side = open();
    let (qp, _) = side.connect();
    act(&side, qp);
}

/// Waits, without polling, until the initiator writes [`ACT`], and then until its writes come.
fn wait_for_writes(side: &Side) {
    until("the command", || side.word(ACT) == 1);
    // Before, the word has a key, which is larger.
    until("the writes", || (100..1 << 32).contains(&side.word(COUNT)));
}

/// Asserts that nothing writes to our memory.
fn is_left_alone(side: &Side) {
    let before: Vec<u64> = (0..WORDS).map(|word| side.word(word)).collect();
    let end = Instant::now() + Duration::from_millis(50);
    while Instant::now() < end {
        let changed = (0..WORDS).find(|&word| side.word(word) != before[word]);
        assert_eq!(changed, None, "a word changed after the end");
    }
}

fn publish(side: &Side, key: Key) {
    side.set(KEY, u64::from(key.0) | 1 << 32);
}

/// How many writes this side has copied itself.
fn pushed(side: &Side) -> u64 {
    let links = side.device.inspect().unwrap().links;
    links.iter().map(|link| link.pushed).sum()
}

/// Starts the target of a test and connects to it. `None` if the kernel does not permit writes to it.
fn start(test: &str) -> Option<(Side, Peer, Qp, Remote)> {
    let side = open();
    let listener = side.listen();
    let peer = Peer::start(test, "target", listener.local_address());
    let (qp, remote) = side.accept(&listener);
    permits_copies(&peer).then_some((side, peer, qp, remote))
}

/// Whether the kernel permits copies to a peer. If not, says that the test is skipped.
fn permits_copies(peer: &Peer) -> bool {
    let mut byte = 0u8;
    // SAFETY: the byte is our own. Nothing is mapped at address 8, so a permitted read faults.
    let read = unsafe { cma_read(peer.0.id(), &raw mut byte, 8, 1) };
    let is_refused = matches!(read, Err(CmaError::Refused { .. }));
    if is_refused {
        eprintln!("SKIP: the kernel does not permit copies between processes here");
    }
    !is_refused
}

/// Writes to a target that is stopped, so that the write is slow, and lets the target continue.
fn write_slowly(side: &Side, peer: &Peer, qp: &Qp, to: Target, sge: Sge) {
    peer.stop();
    qp.post_send(&SendRequest::new(1, write_to(to), &[sge]))
        .unwrap();
    // If the write was pushed, it is complete.
    let complete = side.next_within(Duration::from_millis(2));
    peer.signal(libc::SIGCONT);
    let completion = complete.unwrap_or_else(|| side.next());
    assert_eq!(completion.status, Status::Success, "{completion:?}");
}

/// Makes slow writes until one is pushed.
fn get_warrant(side: &Side, peer: &Peer, qp: &Qp, to: Target) {
    let before = pushed(side);
    let deadline = Instant::now() + LONG;
    for _ in 0..4 {
        write_slowly(side, peer, qp, to, side.sge(0, 8));
    }
    while pushed(side) == before {
        assert!(Instant::now() < deadline, "no write was pushed");
        std::thread::sleep(Duration::from_millis(1));
        side.run(qp, write_to(to), &[side.sge(0, 8)]);
    }
}

/// Reads the second key that the target has published.
fn second_key(side: &Side, qp: &Qp, remote: &Remote) -> RKey {
    loop {
        let read = Work::Read {
            remote: remote.at(KEY),
        };
        side.run(qp, read, &[side.sge(0, 8)]);
        if side.word(0) != 0 {
            return RKey::Device(Key(side.word(0) as u32));
        }
    }
}

/// Tells the target to act, and then writes under `key` until a write fails, or until the target has exited; returns the status
/// of that write.
fn write_until_the_end(
    side: &Side,
    peer: &mut Peer,
    qp: &Qp,
    remote: &Remote,
    key: RKey,
) -> Option<Status> {
    side.set(0, 1);
    side.run(qp, write_to(remote.at(ACT)), &[side.sge(0, 8)]);
    let (mut count, start, mut most) = (0, pushed(side), 0);
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "neither side came to an end");
        count += 1;
        if count % 16 == 0 {
            // The count ends with the link.
            most = most.max(pushed(side));
        }
        side.set(0, count);
        let Target { addr, .. } = remote.at(COUNT);
        let write = write_to(Target { addr, key });
        qp.post_send(&SendRequest::new(2, write, &[side.sge(0, 8)]))
            .unwrap();
        let mut one = [Completion::default()];
        while side.cq.poll(&mut one).unwrap() == 0 {
            if peer.0.try_wait().unwrap().is_some() {
                break;
            }
        }
        if one[0].status != Status::Success || peer.0.try_wait().unwrap().is_some() {
            assert!(most > start + 50, "the writes were not pushed");
            return (one[0].id == 2).then_some(one[0].status);
        }
    }
}

fn has_succeeded(mut peer: Peer) {
    let status = peer.0.wait().unwrap();
    assert!(status.success(), "the target failed: {status}");
}

/// A side that pushes, and into whose memory its peer may push.
fn open() -> Side {
    open_with(true)
}

fn open_with(push: bool) -> Side {
    let mut config = Config::from_env().unwrap();
    config.push = push;
    config.timeout = 21;
    Side::with(config)
}

#[test]
fn writes_to_a_target_that_does_not_poll_are_pushed_in_order() {
    const TEST: &str = "writes_to_a_target_that_does_not_poll_are_pushed_in_order";
    if role().is_some() {
        return target(|_, _qp| sleep_in_read());
    }
    let Some((side, peer, qp, remote)) = start(TEST) else {
        return;
    };
    get_warrant(&side, &peer, &qp, remote.at(0));
    // The warrant is for the whole region, and a push needs nothing of the target.
    peer.stop();
    let before = pushed(&side);
    let mut lens = vec![1, 7, 8, 63, 64, 65, 300, 4096, 65_536, 100_000];
    lens.retain(|&len| cma_writes_words(len as usize));
    let rounds = lens.len() as u64;
    for (round, len) in (1..).zip(lens) {
        (0..WORDS / 2).for_each(|word| side.set(word, round * 0x0101_0101_0101_0101));
        side.run(&qp, write_to(remote.at(1000)), &[side.sge(0, len)]);
        assert_eq!(pushed(&side), before + round, "{len} B");
    }
    let bytes = 77u64.to_ne_bytes();
    let inline = SendRequest {
        inline: Some(&bytes),
        ..SendRequest::new(3, write_to(remote.at(1001)), &[])
    };
    qp.post_send(&inline).unwrap();
    assert_eq!(side.next().status, Status::Success);
    assert_eq!(pushed(&side), before + rounds + 1);
    peer.signal(libc::SIGCONT);
    // A read, in the ring, sees the pushed bytes.
    let read = |word, len| {
        let remote = remote.at(word);
        side.run(&qp, Work::Read { remote }, &[side.sge(WORDS / 2, len)]);
    };
    read(1000, 100_000);
    let last = rounds * 0x0101_0101_0101_0101;
    let word = |index| side.word(WORDS / 2 + index);
    assert_eq!([word(0), word(1), word(2)], [last, 77, last]);
    assert_eq!(word(12_499), last);
    read(13_500, 8);
    assert_eq!(word(0), 0, "past the end of the writes");
    // Writes behind others, and those that the ring does better, are not pushed; the last one decides.
    peer.stop();
    let before = pushed(&side);
    for id in 1..=6 {
        side.set(id, id as u64);
        let request = SendRequest::new(id as u64, write_to(remote.at(2000)), &[]);
        let sges = [side.sge(id, 8)];
        qp.post_send(&SendRequest {
            sges: &sges,
            flags: if id == 1 {
                SendFlags::empty()
            } else {
                SendFlags::SIGNALED
            },
            ..request
        })
        .unwrap();
    }
    assert_eq!(pushed(&side), before);
    peer.signal(libc::SIGCONT);
    for id in 2..=6 {
        let completion = side.next();
        assert_eq!((completion.id, completion.status), (id, Status::Success));
    }
    read(2000, 8);
    assert_eq!(word(0), 6);
    let imm = Work::Write {
        remote: remote.at(0),
        imm: Some(1),
    };
    let before = pushed(&side);
    peer.stop();
    qp.post_send(&SendRequest::new(9, imm, &[side.sge(0, 8)]))
        .unwrap();
    assert!(side.next_within(Duration::from_millis(1)).is_none());
    assert_eq!(pushed(&side), before, "it needs a receive");
    peer.signal(libc::SIGCONT);
}

/// Each side alone can turn pushes off. In the child, its role says which side does.
#[test]
fn nothing_is_pushed_if_one_side_forbids_it() {
    const TEST: &str = "nothing_is_pushed_if_one_side_forbids_it";
    if let Some(role) = role() {
        let side = open_with(role == "permits");
        let (_qp, _) = side.connect();
        return sleep_in_read();
    }
    for permits in [true, false] {
        let side = open_with(!permits);
        let listener = side.listen();
        let role = if permits { "permits" } else { "forbids" };
        let peer = Peer::start(TEST, role, listener.local_address());
        let (qp, remote) = side.accept(&listener);
        // A warrant would come after the fourth slow write.
        for _ in 0..8 {
            write_slowly(&side, &peer, &qp, remote.at(0), side.sge(0, 8));
        }
        for _ in 0..100 {
            side.run(&qp, write_to(remote.at(0)), &[side.sge(0, 8)]);
        }
        assert_eq!(pushed(&side), 0, "{role}");
    }
}

#[test]
fn pushes_stop_before_deregistering_returns() {
    const TEST: &str = "pushes_stop_before_deregistering_returns";
    if role().is_some() {
        return target(|side, _qp| {
            let another = side.another_region();
            publish(side, another.key);
            wait_for_writes(side);
            side.device.deregister(another).unwrap();
            is_left_alone(side);
        });
    }
    let Some((side, mut peer, qp, remote)) = start(TEST) else {
        return;
    };
    let key = second_key(&side, &qp, &remote);
    get_warrant(&side, &peer, &qp, remote.at(0));
    let Target { addr, .. } = remote.at(COUNT);
    get_warrant(&side, &peer, &qp, Target { addr, key });
    let end = write_until_the_end(&side, &mut peer, &qp, &remote, key);
    assert_eq!(end, Some(Status::RemoteAccess));
    has_succeeded(peer);
}

#[test]
fn pushes_stop_before_a_region_has_changed() {
    const TEST: &str = "pushes_stop_before_a_region_has_changed";
    if role().is_some() {
        return target(|side, _qp| {
            let another = side.another_region();
            publish(side, another.key);
            wait_for_writes(side);
            let change = rkey_core::Change {
                access: Some(Access::LOCAL_WRITE | Access::REMOTE_READ),
                ..rkey_core::Change::default()
            };
            // SAFETY: the same memory, with fewer rights.
            let changed = unsafe { side.device.change_region(another, &change) }.unwrap();
            is_left_alone(side);
            side.device.deregister(changed).unwrap();
        });
    }
    let Some((side, mut peer, qp, remote)) = start(TEST) else {
        return;
    };
    let key = second_key(&side, &qp, &remote);
    let Target { addr, .. } = remote.at(COUNT);
    get_warrant(&side, &peer, &qp, Target { addr, key });
    let end = write_until_the_end(&side, &mut peer, &qp, &remote, key);
    assert_eq!(end, Some(Status::RemoteAccess));
    has_succeeded(peer);
}

/// What the target does with its queue pair, once the initiator pushes.
fn end_of_queue_pair(test: &str, end: impl FnOnce(&Side, Qp)) {
    if role().is_some() {
        return target(|side, qp| {
            wait_for_writes(side);
            end(side, qp);
            is_left_alone(side);
        });
    }
    let Some((side, mut peer, qp, remote)) = start(test) else {
        return;
    };
    get_warrant(&side, &peer, &qp, remote.at(0));
    write_until_the_end(&side, &mut peer, &qp, &remote, remote.key);
    has_succeeded(peer);
}

#[test]
fn pushes_stop_before_a_queue_pair_is_destroyed() {
    end_of_queue_pair("pushes_stop_before_a_queue_pair_is_destroyed", |_, qp| {
        drop(qp);
    });
}

#[test]
fn pushes_stop_before_a_queue_pair_is_in_the_error_state() {
    let test = "pushes_stop_before_a_queue_pair_is_in_the_error_state";
    end_of_queue_pair(test, |_, qp| {
        qp.modify(&QpAttributes::to(QpState::Error)).unwrap();
        std::mem::forget(qp);
    });
}

#[test]
fn pushes_stop_before_a_queue_pair_has_lost_the_right_to_write() {
    let test = "pushes_stop_before_a_queue_pair_has_lost_the_right_to_write";
    end_of_queue_pair(test, |_, qp| {
        let mut attributes = QpAttributes::to(QpState::Rts);
        attributes.access = Some(Access::REMOTE_READ);
        qp.modify(&attributes).unwrap();
        std::mem::forget(qp);
    });
}

/// A counter would not count pushes.
#[test]
fn pushes_stop_before_a_counter_is_bound() {
    const TEST: &str = "pushes_stop_before_a_counter_is_bound";
    if role().is_some() {
        return target(|side, _qp| {
            wait_for_writes(side);
            side.device.bind_counter(side.region.id, 7).unwrap();
            until("counted writes", || side.device.counter(7).writes > 100);
        });
    }
    let Some((side, mut peer, qp, remote)) = start(TEST) else {
        return;
    };
    get_warrant(&side, &peer, &qp, remote.at(0));
    write_until_the_end(&side, &mut peer, &qp, &remote, remote.key);
    has_succeeded(peer);
}

fn bind(side: &Side, words: std::ops::Range<usize>) -> (rkey_core::Window, Key) {
    let window = side
        .device
        .create_window(side.domain, WindowKind::Type1)
        .unwrap();
    let len = 8 * words.len() as u64;
    let key = side.device.bind_window(&BindRequest {
        window: window.id,
        region: BindRegion::Id(side.region.id),
        range: VaRange::new(side.address_of(words.start), len).unwrap(),
        access: Access::REMOTE_WRITE,
        zero_based: false,
        new_key: None,
        qp: None,
        domain: side.domain,
        rules: Default::default(),
    });
    (window, key.unwrap())
}

/// A posted request can rebind a window, and cannot wait for a peer: so windows get no warrants, also not that of their region.
#[test]
fn writes_through_a_window_are_never_pushed() {
    const TEST: &str = "writes_through_a_window_are_never_pushed";
    if role().is_some() {
        return target(|side, _qp| {
            let (window, key) = bind(side, COUNT..COUNT + 8);
            publish(side, key);
            until("the command", || side.word(ACT) == 1);
            side.device.deallocate_window(window.id).unwrap();
            side.set(ACT, 2);
            sleep_in_read();
            assert_eq!([COUNT, COUNT + 8].map(|word| side.word(word)), [5, 0]);
        });
    }
    let Some((side, peer, qp, remote)) = start(TEST) else {
        return;
    };
    let key = second_key(&side, &qp, &remote);
    get_warrant(&side, &peer, &qp, remote.at(0));
    let before = pushed(&side);
    let at = |word| Target {
        key,
        ..remote.at(word)
    };
    side.set(1, 5);
    for _ in 0..20 {
        write_slowly(&side, &peer, &qp, at(COUNT), side.sge(1, 8));
    }
    assert_eq!(pushed(&side), before);
    side.set(0, 1);
    side.run(&qp, write_to(remote.at(ACT)), &[side.sge(0, 8)]);
    let read = Work::Read {
        remote: remote.at(ACT),
    };
    while side.word(0) != 2 {
        side.run(&qp, read, &[side.sge(0, 8)]);
    }
    // The window's key is refused, although its region has a warrant.
    qp.post_send(&SendRequest::new(4, write_to(at(COUNT)), &[side.sge(0, 8)]))
        .unwrap();
    assert_eq!(side.next().status, Status::RemoteAccess);
    peer.finish();
}

/// A region of a part of the memory, with other rights.
fn narrow(side: &Side, access: Access) -> Region {
    let ranges = [VaRange::new(side.address_of(COUNT), 64).unwrap()];
    let spec = RegionSpec::new(side.domain, &ranges, access);
    // SAFETY: the memory is accessed only through atomics, and outlives the region.
    unsafe { side.device.register(&spec) }.unwrap()
}

#[test]
fn a_warrant_is_for_no_other_key_and_no_other_byte() {
    const TEST: &str = "a_warrant_is_for_no_other_key_and_no_other_byte";
    if role().is_some() {
        return target(|side, _qp| {
            let narrow = narrow(side, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
            publish(side, narrow.key);
            sleep_in_read();
            assert_eq!(side.word(COUNT + 8), 0, "past the end of the region");
            side.device.deregister(narrow).unwrap();
        });
    }
    let Some((side, peer, qp, remote)) = start(TEST) else {
        return;
    };
    let key = second_key(&side, &qp, &remote);
    let at = |word| Target {
        key,
        ..remote.at(word)
    };
    get_warrant(&side, &peer, &qp, remote.at(0));
    get_warrant(&side, &peer, &qp, at(COUNT));
    let before = pushed(&side);
    side.run(&qp, write_to(at(COUNT + 7)), &[side.sge(0, 8)]);
    assert_eq!(pushed(&side), before + 1);
    side.set(0, 1);
    qp.post_send(&SendRequest::new(
        5,
        write_to(at(COUNT + 7)),
        &[side.sge(0, 16)],
    ))
    .unwrap();
    assert_eq!(side.next().status, Status::RemoteAccess);
    assert_eq!(pushed(&side), before + 1);
    peer.finish();
}

#[test]
fn a_key_for_reading_gets_no_warrant() {
    const TEST: &str = "a_key_for_reading_gets_no_warrant";
    if role().is_some() {
        return target(|side, _qp| {
            let readable = narrow(side, Access::REMOTE_READ);
            publish(side, readable.key);
            sleep_in_read();
            assert_eq!(side.word(COUNT), 0);
            side.device.deregister(readable).unwrap();
        });
    }
    let Some((side, peer, qp, remote)) = start(TEST) else {
        return;
    };
    let key = second_key(&side, &qp, &remote);
    get_warrant(&side, &peer, &qp, remote.at(0));
    let at = Target {
        key,
        ..remote.at(COUNT)
    };
    side.set(0, 1);
    qp.post_send(&SendRequest::new(5, write_to(at), &[side.sge(0, 8)]))
        .unwrap();
    assert_eq!(side.next().status, Status::RemoteAccess);
    peer.finish();
}

#[test]
fn a_target_that_is_killed_during_pushes_fails_the_next_write() {
    const TEST: &str = "a_target_that_is_killed_during_pushes_fails_the_next_write";
    if role().is_some() {
        return target(|side, _qp| {
            wait_for_writes(side);
            // SAFETY: ends this process at once.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
    }
    let Some((side, mut peer, qp, remote)) = start(TEST) else {
        return;
    };
    get_warrant(&side, &peer, &qp, remote.at(0));
    let last = write_until_the_end(&side, &mut peer, &qp, &remote, remote.key);
    if last != Some(Status::RetryExceeded) {
        // The write during which the target died may still be outstanding.
        let write = write_to(remote.at(COUNT));
        let _ = qp.post_send(&SendRequest::new(3, write, &[side.sge(0, 8)]));
        let mut status = side.next().status;
        while status == Status::Success {
            status = side.next().status;
        }
        assert!(
            matches!(status, Status::RetryExceeded | Status::Flushed),
            "{status:?}"
        );
    }
    assert!(!peer.0.wait().unwrap().success());
}
