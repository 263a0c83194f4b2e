//! Connections: data, atomics, messages, and failures.

mod common;

use common::{ALL, Pair, device, pattern};
use rkey::{Access, Connection, Device, Error, RemoteKey};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[test]
fn data_of_every_length_arrives_in_both_directions() {
    let pair = Pair::new();
    let (region, key) = pair.region(6 << 20, ALL);
    let local = pair.local(6 << 20);
    let lengths = [
        1,
        7,
        8,
        63,
        64,
        208,
        209,
        4095,
        4096,
        8193,
        32 << 10,
        (64 << 10) + 1,
        1 << 20,
        (2 << 20) + 5,
        (5 << 20) + 3,
    ];
    for (seed, len) in (1u8..).zip(lengths) {
        let offset = u64::from(seed) * 3;
        let bytes = pattern(seed, len);
        local.write(0, &bytes).unwrap();
        pair.outer
            .write(&local, ..len as u64, &key, offset)
            .unwrap()
            .wait()
            .unwrap();
        assert!(
            region.read_vec(offset..offset + len as u64).unwrap() == bytes,
            "write of {len}"
        );

        local.write(0, &vec![0; len]).unwrap();
        pair.outer
            .read(&local, ..len as u64, &key, offset)
            .unwrap()
            .wait()
            .unwrap();
        assert!(
            local.read_vec(..len as u64).unwrap() == bytes,
            "read of {len}"
        );
    }
    assert_eq!(
        region.read_vec(0..3).unwrap(),
        [0; 3],
        "nothing before the first offset"
    );
}

#[test]
fn both_sides_of_a_connection_can_write_to_each_others_memory() {
    let pair = Pair::new();
    let ours = pair.visitor.register(vec![0u8; 64], ALL).unwrap();
    let (theirs, key) = pair.region(64, ALL);
    pair.inner
        .write_bytes(b"from the owner", &ours.key(..).unwrap(), 0)
        .unwrap()
        .wait()
        .unwrap();
    pair.outer
        .write_bytes(b"from the visitor", &key, 0)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(ours.read_vec(..14).unwrap(), b"from the owner");
    assert_eq!(theirs.read_vec(..16).unwrap(), b"from the visitor");
}

#[test]
fn a_process_can_connect_to_itself() {
    let device = device();
    let pair = Pair::between(&device, &device);
    let (region, key) = pair.region(64, ALL);
    pair.outer
        .write_bytes(b"to myself", &key, 8)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(region.read_vec(8..17).unwrap(), b"to myself");
    pair.outer.send("hello").unwrap();
    assert_eq!(pair.inner.receive::<String>().unwrap(), "hello");
}

#[test]
fn atomics_from_many_threads_lose_nothing() {
    let pair = Pair::new();
    let counter = pair
        .owner
        .register(vec![0u64; 2], Access::REMOTE_ATOMIC)
        .unwrap();
    let key = counter.key(..).unwrap();
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let add = || {
                        pair.outer
                            .fetch_and_add(&key, 8, 1)
                            .unwrap()
                            .wait()
                            .unwrap()
                    };
                    (0..300).map(|_| add()).collect::<Vec<u64>>()
                })
            })
            .collect();
        for _ in 0..300 {
            counter.fetch_add(8, 1).unwrap();
        }
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    assert_eq!(counter.load_u64(8).unwrap(), 1200);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 900, "two additions got the same old value");
    assert_eq!(counter.load_u64(0).unwrap(), 0);

    assert_eq!(
        pair.outer
            .compare_and_swap(&key, 8, 1200, 5)
            .unwrap()
            .wait()
            .unwrap(),
        1200
    );
    assert_eq!(
        pair.outer
            .compare_and_swap(&key, 8, 1200, 6)
            .unwrap()
            .wait()
            .unwrap(),
        5
    );
    assert_eq!(counter.load_u64(8).unwrap(), 5);
    let odd = pair.outer.fetch_and_add(&key, 4, 1).unwrap().wait();
    assert!(odd.is_err(), "an address that is not a multiple of 8");
}

#[test]
fn unclaimed_results_do_not_use_up_the_result_slots() {
    let owner = device();
    let visitor = Device::builder().depth(4).open().unwrap();
    let pair = Pair::between(&owner, &visitor);
    let counter = pair.owner.register(vec![0u64; 1], ALL).unwrap();
    let key = counter.key(..).unwrap();
    for _ in 0..100 {
        drop(pair.outer.fetch_and_add(&key, 0, 1).unwrap());
    }
    pair.outer.flush().unwrap();
    assert_eq!(counter.load_u64(0).unwrap(), 100);
    let kept: Vec<_> = (0..4)
        .map(|_| pair.outer.fetch_and_add(&key, 0, 1).unwrap())
        .collect();
    assert!(matches!(
        pair.outer.fetch_and_add(&key, 0, 1),
        Err(Error::Busy(_))
    ));
    let values: Vec<u64> = kept
        .into_iter()
        .map(|pending| pending.wait().unwrap())
        .collect();
    assert_eq!(values, [100, 101, 102, 103]);
}

#[derive(Serialize, Deserialize, PartialEq, Debug, Clone)]
enum Note {
    Number(u64),
    Text(String),
    Key(RemoteKey),
}

#[test]
fn messages_arrive_in_order_and_unchanged() {
    let pair = Pair::new();
    let (_region, key) = pair.region(64, ALL);
    let notes: Vec<Note> = (0..100)
        .map(|n| match n % 3 {
            0 => Note::Number(n),
            1 => Note::Text("x".repeat(n as usize * 40)),
            _ => Note::Key(key),
        })
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| notes.iter().for_each(|note| pair.outer.send(note).unwrap()));
        for note in &notes {
            assert_eq!(&pair.inner.receive::<Note>().unwrap(), note);
        }
    });
    assert!(pair.inner.try_receive::<Note>().unwrap().is_none());
}

#[test]
fn a_message_never_overtakes_the_data_before_it() {
    let pair = Pair::new();
    let (region, key) = pair.region(1 << 20, ALL);
    let local = pair.local(1 << 20);
    for round in 1..20u8 {
        local.write(0, &vec![round; 1 << 20]).unwrap();
        drop(pair.outer.write(&local, .., &key, 0).unwrap());
        pair.outer.send(&round).unwrap();
        let round: u8 = pair.inner.receive().unwrap();
        assert!(
            region
                .read_vec(..)
                .unwrap()
                .iter()
                .all(|byte| *byte == round)
        );
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Nested(Option<Box<Nested>>);

#[test]
fn a_message_too_long_or_of_another_type_ends_no_connection() {
    let pair = Pair::new();
    let long = "x".repeat(5000);
    assert!(matches!(
        pair.outer.send(&long),
        Err(Error::MessageTooLong { limit: 4096, .. })
    ));
    pair.outer.send("text").unwrap();
    assert!(matches!(
        pair.inner.receive::<Note>(),
        Err(Error::BadMessage(_))
    ));
    pair.outer.send(&Note::Number(1)).unwrap();
    assert_eq!(pair.inner.receive::<Note>().unwrap(), Note::Number(1));

    // Without the check of the type, the bytes of these messages would decode.
    pair.outer.send("a string").unwrap();
    let error = pair.inner.receive::<u32>().unwrap_err().to_string();
    assert!(
        error.contains("`string`") && error.contains("`u32`"),
        "{error}"
    );
    pair.outer.send(&(1u32, 2u32)).unwrap();
    assert!(matches!(
        pair.inner.receive::<(u8, u8)>(),
        Err(Error::BadMessage(_))
    ));
    pair.outer.send(&7u64).unwrap();
    assert!(matches!(
        pair.inner.try_receive::<u32>(),
        Err(Error::BadMessage(_))
    ));
    pair.outer.send(&[Note::Number(3)][..]).unwrap();
    assert_eq!(
        pair.inner.receive::<Vec<Note>>().unwrap(),
        [Note::Number(3)]
    );

    // A value that the receiver would refuse is not sent.
    let mut nested = Nested(None);
    for _ in 0..64 {
        nested = Nested(Some(Box::new(nested)));
    }
    let error = pair.outer.send(&nested).unwrap_err();
    assert!(matches!(&error, Error::Unsendable(_)), "{error}");
    assert!(error.to_string().contains("128 levels"), "{error}");
    let Nested(Some(inner)) = nested else {
        unreachable!()
    };
    pair.outer.send(&inner).unwrap();
    assert!(pair.inner.receive::<Nested>().is_ok());

    // The lower of the two limits applies.
    let small = Device::builder().max_message(100).open().unwrap();
    let pair = Pair::between(&device(), &small);
    assert!(matches!(
        pair.inner.send(&"x".repeat(101)),
        Err(Error::MessageTooLong { limit: 100, .. })
    ));
    pair.inner.send(&"x".repeat(98)).unwrap();
    assert_eq!(pair.outer.receive::<String>().unwrap().len(), 98);
}

#[test]
fn a_region_is_sent_directly_into_a_region_of_the_peer() {
    let pair = Pair::new();
    let (source, sink) = (
        pair.local(100_000),
        pair.owner
            .register(vec![0u8; 100_000], Access::empty())
            .unwrap(),
    );
    source.write(0, &pattern(9, 100_000)).unwrap();
    let first = pair.inner.receive_into(&sink, 0..50_000).unwrap();
    let second = pair.inner.receive_into(&sink, 50_000..100_000).unwrap();
    pair.outer
        .send_from(&source, 0..40_000)
        .unwrap()
        .wait()
        .unwrap();
    pair.outer
        .send_from(&source, 40_000..90_000)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(
        (first.wait().unwrap(), second.wait().unwrap()),
        (40_000, 50_000)
    );
    assert_eq!(
        sink.read_vec(..40_000).unwrap(),
        pattern(9, 100_000)[..40_000]
    );
    assert_eq!(
        sink.read_vec(50_000..).unwrap(),
        pattern(9, 100_000)[40_000..90_000]
    );
}

#[test]
fn operations_after_a_refusal_are_flushed_and_messages_continue() {
    let pair = Pair::new();
    let (region, key) = pair.region(64, Access::REMOTE_READ);
    let bad = pair.outer.write_bytes(b"refused", &key, 0).unwrap();
    let _ = bad.is_done();
    let late = pair.outer.write_bytes(b"late", &key, 0);
    let denied = bad.wait().unwrap_err();
    assert!(
        denied.denial().is_some() && denied.explain().lines().count() > 1,
        "{denied}"
    );
    let late = match late {
        Ok(pending) => pending.wait().unwrap_err(),
        Err(error) => error,
    };
    assert!(
        matches!(late, Error::Flushed { .. } | Error::Denied(_)),
        "{late}"
    );
    let next = pair.outer.write_bytes(b"next", &key, 0).unwrap_err();
    assert!(
        matches!(&next, Error::Flushed { first } if first.contains("remote write")),
        "{next}"
    );
    assert_eq!(region.read_vec(..).unwrap(), [0; 64]);
    pair.outer.send("still here").unwrap();
    assert_eq!(pair.inner.receive::<String>().unwrap(), "still here");
    let noted = pair.owner.device().denials();
    assert_eq!(noted.len(), 1, "the owner's device recorded no denial");
}

#[test]
fn an_unclaimed_failure_is_reported_by_the_next_call() {
    let pair = Pair::new();
    let (_region, key) = pair.region(64, Access::REMOTE_READ);
    drop(pair.outer.write_bytes(b"refused", &key, 0).unwrap());
    assert!(matches!(pair.outer.send("all done"), Err(Error::Denied(_))));
    // The failure was reported once, so messages can be sent again.
    pair.outer.send("with a gap").unwrap();
    assert_eq!(pair.inner.receive::<String>().unwrap(), "with a gap");
}

#[test]
fn a_region_can_be_deregistered_with_operations_in_flight() {
    let pair = Pair::new();
    let (region, key) = pair.region(8 << 20, ALL);
    for round in 0..5 {
        let local = pair.local(8 << 20);
        local.write(0, &pattern(round, 8 << 20)).unwrap();
        let (_inner, outer) = pair.again();
        drop(outer.write(&local, .., &key, 0).unwrap());
        drop(outer.read(&local, .., &key, 0).unwrap());
        // The buffer is ours from here on; the device must no longer read or write it.
        let mut buffer = local.deregister().unwrap();
        buffer.fill(round);
        let outcome = outer.flush();
        assert!(
            buffer.iter().all(|byte| *byte == round),
            "a write reached a buffer that had been returned"
        );
        assert!(
            matches!(outcome, Ok(()) | Err(Error::Denied(_))),
            "{outcome:?}"
        );
    }
    drop(region);
}

#[test]
fn the_owners_region_can_be_deregistered_while_peers_write_to_it() {
    let pair = Pair::new();
    for round in 0..5 {
        let (region, key) = pair.region(4 << 20, ALL);
        let local = pair.local(4 << 20);
        local.write(0, &vec![0xaa; 4 << 20]).unwrap();
        let (_inner, outer) = pair.again();
        let writes: Vec<_> = (0..4)
            .map(|_| outer.write(&local, .., &key, 0).unwrap())
            .collect();
        let mut buffer = region.deregister().unwrap();
        buffer.fill(round);
        let failed = writes
            .into_iter()
            .map(rkey::Pending::wait)
            .filter(Result::is_err)
            .count();
        assert!(
            buffer.iter().all(|byte| *byte == round),
            "a peer wrote after deregistration"
        );
        assert!(failed <= 4);
    }
}

#[test]
fn the_end_of_a_connection_is_detected() {
    let pair = Pair::new();
    let (_region, key) = pair.region(64, ALL);
    let Pair { inner, outer, .. } = pair;
    outer.send("last words").unwrap();
    drop(outer);
    assert_eq!(inner.receive::<String>().unwrap(), "last words");
    // The error is not a timeout.
    let gone = inner.receive::<String>().unwrap_err();
    assert!(gone.is_peer_gone(), "{gone}");
    let gone = inner.send("hello?").unwrap_err();
    assert!(gone.is_peer_gone(), "{gone}");
    let late = inner
        .write_bytes(b"x", &key, 0)
        .and_then(rkey::Pending::wait);
    assert!(late.is_err());
}

#[test]
fn blocking_calls_end_at_their_time_limit() {
    let device = Device::builder()
        .timeout(Duration::from_millis(50))
        .open()
        .unwrap();
    // The connecting side waits for the answer up to the time limit of its own device, which is
    // long here.
    let pair = Pair::between(&device, &common::device());
    assert!(matches!(
        pair.inner.receive::<u8>(),
        Err(Error::Timeout { .. })
    ));
    let sink = pair.owner.register(vec![0u8; 8], Access::empty()).unwrap();
    let nothing = pair.inner.receive_into(&sink, ..).unwrap();
    assert!(matches!(nothing.wait(), Err(Error::Timeout { .. })));
    // The peer does not receive: the ring of messages fills up, and the sender gets an error.
    let full = (0..100).find_map(|n: u32| pair.inner.send(&n).err());
    assert!(
        matches!(full, Some(Error::Timeout { .. } | Error::NotReceiving)),
        "{full:?}"
    );

    let listener = device.listen("127.0.0.1:0").unwrap();
    assert!(matches!(
        listener.accept_timeout(Duration::from_millis(20)),
        Err(Error::Timeout { .. })
    ));
    let address = listener.address();
    assert!(
        device.listen(address).is_err(),
        "two listeners share an address"
    );
    drop(listener);
    // Reserves the address, so that no other program listens there while the client tries.
    let other = rkey_device::Device::open(rkey_device::Config::default()).unwrap();
    let _reserved = other.reserve(address).unwrap();
    assert!(device.connect(address).is_err(), "the listener is dropped");
    assert!(device.connect("not an address").is_err());
    assert!(
        device.listen("192.0.2.1:1").is_err(),
        "not an address of this host"
    );
}

#[test]
fn public_types_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Device>();
    shared::<Connection>();
    shared::<rkey::Region<Vec<u8>>>();
    shared::<rkey::Published<Vec<u8>>>();
    shared::<rkey::SharedMemory>();
    shared::<rkey::Window>();
    shared::<rkey::QueuePair>();
    shared::<rkey::CompletionQueue>();
    shared::<Error>();
    shared::<rkey::Pending<'_>>();
}
