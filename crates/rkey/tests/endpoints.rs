//! Endpoints: tagged messages between any number of peers.

mod common;

use common::{LONG, device, pattern};
use rkey::endpoint::{Address, Endpoint, Receiving, Sending, Tag};
use rkey::{Access, Device, Error, LKey, SendFlags, Sge, Status};
use std::time::{Duration, Instant};

fn endpoint() -> Endpoint {
    device().endpoint().unwrap()
}

/// A buffer for a short message.
fn room() -> Vec<u8> {
    vec![0; 64]
}

/// Posts a receive, then sends a message to it. Returns what arrived.
fn pass(from: &Endpoint, to: &Endpoint, tag: u64, message: &[u8]) -> Vec<u8> {
    let receive = to.receive_tagged(tag, from.address(), vec![0; message.len()]);
    let receive = receive.unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let sending = from.send_tagged(to.address(), tag, message).unwrap();
            sending.wait().unwrap()
        });
        let arrived = receive.wait().unwrap();
        assert_eq!((arrived.from, arrived.tag), (from.address(), tag));
        assert!(
            sender.join().unwrap() == message,
            "the send returned other bytes"
        );
        arrived.bytes
    })
}

#[test]
fn messages_of_every_length_arrive() {
    let (left, right) = (endpoint(), endpoint());
    let lengths = [0, 1, 8, 256, 257, 4096, 8192, 8193, 1 << 20, (3 << 20) + 5];
    for (seed, len) in (1u8..).zip(lengths) {
        let message = pattern(seed, len);
        let tag = u64::from(seed);
        assert!(pass(&left, &right, tag, &message) == message, "{len} B");
        assert!(pass(&right, &left, tag, &message) == message, "{len} B");
    }
}

#[test]
fn an_endpoint_can_send_to_itself() {
    let it = endpoint();
    let message = pattern(3, 1 << 20);
    assert!(pass(&it, &it, 1, b"short") == b"short");
    assert!(pass(&it, &it, 2, &message) == message);
}

#[test]
fn messages_match_by_tag_mask_and_sender() {
    let (server, one, other) = (endpoint(), endpoint(), endpoint());
    let to = server.address();
    for (client, tag, text) in [
        (&one, 0x11, "first"),
        (&other, 0x12, "second"),
        (&one, 0x22, "third"),
        (&other, 0x33, "fourth"),
    ] {
        client.send_tagged(to, tag, text).unwrap().wait().unwrap();
    }
    let next = |tag: Tag, from: Option<Address>| {
        let message = server
            .receive_tagged(tag, from, room())
            .unwrap()
            .wait()
            .unwrap();
        (
            String::from_utf8(message.bytes).unwrap(),
            message.from,
            message.tag,
        )
    };
    // The first receive accepts this tag from any sender. The second and third ignore the tag's low digit; the second
    // accepts only one sender. The fourth accepts anything.
    assert_eq!(
        next(0x22.into(), None),
        ("third".into(), one.address(), 0x22)
    );
    assert_eq!(
        next(Tag::masked(0x10, 0xf), Some(other.address())),
        ("second".into(), other.address(), 0x12)
    );
    assert_eq!(
        next(Tag::masked(0x10, 0xf), None),
        ("first".into(), one.address(), 0x11)
    );
    assert_eq!(
        next(Tag::ANY, None),
        ("fourth".into(), other.address(), 0x33)
    );
}

#[test]
fn tagged_and_untagged_messages_of_a_sender_each_match_in_order() {
    let (left, right) = (endpoint(), endpoint());
    for n in 0..20u8 {
        left.send_tagged(right.address(), 5, [n])
            .unwrap()
            .wait()
            .unwrap();
        left.send(right.address(), [100 + n])
            .unwrap()
            .wait()
            .unwrap();
    }
    for n in 0..20u8 {
        let plain = right.receive(None, room()).unwrap().wait().unwrap();
        assert_eq!((plain.bytes, plain.tag), (vec![100 + n], 0));
    }
    for n in 0..20u8 {
        let tagged = right
            .receive_tagged(5, None, room())
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(tagged.bytes, [n]);
    }
}

/// The sender exceeds its credit, so it waits until the receiver takes messages.
#[test]
fn unexpected_messages_are_kept_and_their_sender_waits_for_credit() {
    let (left, right) = (endpoint(), endpoint());
    const COUNT: u32 = 3000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..COUNT {
                let message = vec![n as u8; 1024];
                left.send_tagged(right.address(), n.into(), message)
                    .unwrap()
                    .wait()
                    .unwrap();
            }
        });
        // The last message is received first: the others are unexpected until then.
        for n in (0..COUNT).step_by(2).chain((1..COUNT).step_by(2)) {
            let receive = right
                .receive_tagged(u64::from(n), None, vec![0; 1024])
                .unwrap();
            assert_eq!(receive.wait().unwrap().bytes, [n as u8; 1024]);
        }
    });
}

#[test]
fn a_truncated_message_is_an_error_and_the_next_message_arrives() {
    let (left, right) = (endpoint(), endpoint());
    for len in [100, 1 << 20] {
        let short = right.receive_tagged(1, None, vec![0; 99]).unwrap();
        let next = right.receive_tagged(1, None, vec![0; len]).unwrap();
        let sending = [0, 1].map(|_| left.send_tagged(right.address(), 1, vec![7; len]).unwrap());
        let error = short.wait().unwrap_err();
        assert!(
            matches!(error, Error::Truncated { len: it, room: 99 } if it == len),
            "{error}"
        );
        assert_eq!(next.wait().unwrap().bytes, vec![7; len]);
        for it in sending {
            assert_eq!(it.wait().unwrap().len(), len);
        }
    }
}

#[test]
fn a_dropped_receive_consumes_no_message() {
    let (left, right) = (endpoint(), endpoint());
    drop(right.receive_tagged(1, None, room()).unwrap());
    let timed_out = right.receive_tagged(1, None, room()).unwrap();
    let error = timed_out
        .wait_timeout(Duration::from_millis(10))
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    left.send_tagged(right.address(), 1, "kept")
        .unwrap()
        .wait()
        .unwrap();
    let third = right.receive_tagged(1, None, room()).unwrap();
    assert_eq!(third.wait().unwrap().bytes, b"kept");
}

/// The buffers of sender and receiver are in use when the operations are dropped.
#[test]
fn long_operations_can_be_dropped_in_progress() {
    let (left, right) = (endpoint(), endpoint());
    for round in 0..20u64 {
        let receive = right.receive_tagged(round, None, vec![0; 1 << 20]).unwrap();
        drop(
            left.send_tagged(right.address(), round, vec![1; 1 << 20])
                .unwrap(),
        );
        if round % 2 == 0 {
            // The receiver may begin to read the payload.
            let _ = receive.is_done();
        }
        drop(receive);
    }
    assert_eq!(
        pass(&left, &right, 1000, b"after all that"),
        b"after all that"
    );
}

#[test]
fn results_can_be_polled_without_waiting() {
    let (left, right) = (endpoint(), endpoint());
    let receive = right.receive_tagged(1, None, room()).unwrap();
    let mut receive = receive.try_wait().unwrap_err();
    let sending = left.send_tagged(right.address(), 1, "there").unwrap();
    let started = Instant::now();
    let message = loop {
        assert!(started.elapsed() < LONG);
        receive = match receive.try_wait() {
            Ok(message) => break message.unwrap(),
            Err(receive) => receive,
        };
    };
    assert_eq!(message.bytes, b"there");
    while !sending.is_done() {
        assert!(started.elapsed() < LONG);
    }
    assert_eq!(sending.try_wait().unwrap().unwrap(), b"there");
}

#[test]
fn many_threads_share_an_endpoint() {
    let (server, client) = (endpoint(), endpoint());
    let to = server.address();
    const ROUNDS: u64 = 200;
    std::thread::scope(|scope| {
        for tag in 0..4u64 {
            let (server, client) = (server.clone(), client.clone());
            scope.spawn(move || {
                for n in 0..ROUNDS {
                    let question = server
                        .receive_tagged(tag, None, room())
                        .unwrap()
                        .wait()
                        .unwrap();
                    assert_eq!(question.bytes, n.to_le_bytes());
                    server
                        .send_tagged(question.from, 100 + tag, question.bytes)
                        .unwrap()
                        .wait()
                        .unwrap();
                }
            });
            scope.spawn(move || {
                for n in 0..ROUNDS {
                    client
                        .send_tagged(to, tag, n.to_le_bytes())
                        .unwrap()
                        .wait()
                        .unwrap();
                    let answer = client
                        .receive_tagged(100 + tag, to, room())
                        .unwrap()
                        .wait()
                        .unwrap();
                    assert_eq!(answer.bytes, n.to_le_bytes());
                }
            });
        }
    });
}

#[test]
fn an_endpoint_keeps_working_after_denied_accesses() {
    let (owner, visitor) = (endpoint(), endpoint());
    let region = owner
        .register(vec![0u8; 1 << 20], Access::REMOTE_WRITE)
        .unwrap();
    let key = region.key(..).unwrap();
    let local = visitor
        .register(pattern(1, 1 << 20), Access::empty())
        .unwrap();
    let to = owner.address();
    visitor
        .write(to, &local, .., &key, 0)
        .unwrap()
        .wait()
        .unwrap();
    assert!(region.read_vec(..).unwrap() == pattern(1, 1 << 20));

    let denied = visitor
        .read(to, &local, ..8, &key, 0)
        .unwrap()
        .wait()
        .unwrap_err();
    assert!(denied.to_string().contains("remote read"), "{denied}");
    assert!(denied.denial().is_some());
    let out = visitor
        .write(to, &local, ..8, &key, (1 << 20) - 7)
        .unwrap_err();
    assert!(matches!(out, Error::OutOfRange { .. }), "{out}");
    visitor
        .write(to, &local, ..8, &key, 8)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(region.read_vec(8..16).unwrap(), pattern(1, 8));
    assert_eq!(pass(&visitor, &owner, 1, b"and messages"), b"and messages");

    // Memory of the same device in another domain is not the endpoint's.
    let elsewhere = device().domain().unwrap();
    let foreign = elsewhere.register(vec![0u8; 8], Access::REMOTE).unwrap();
    let foreign = foreign.key(..).unwrap();
    let denied = visitor
        .write(to, &local, ..8, &foreign, 0)
        .unwrap()
        .wait()
        .unwrap_err();
    assert!(denied.denial().is_some(), "{denied}");
}

/// The endpoint's own local key covers all memory of the process: programs cannot use it.
#[test]
fn the_internal_local_key_of_an_endpoint_cannot_be_used_by_programs() {
    let device = device();
    let endpoint = device.endpoint().unwrap();
    let mine = endpoint.register(vec![7u8; 8], Access::empty()).unwrap();
    let domain = device.domain().unwrap();
    let queue = domain.completion_queue(16).unwrap();
    // The region of all memory is in a slot next to that of the first region: the keys differ in the bits of the slot's number.
    let part = mine.part(..).unwrap();
    for slots in 0..64 {
        let key = part.key.0 ^ slots << 12;
        let part = Sge {
            key: LKey(key),
            ..part
        };
        let pair = [(); 2].map(|()| domain.queue_pair(&queue).build().unwrap());
        pair[0].connect(&pair[1].address()).unwrap();
        pair[1].connect(&pair[0].address()).unwrap();
        pair[0].post_send(1, &[part], SendFlags::SIGNALED).unwrap();
        let completion = queue.next(LONG).unwrap().unwrap();
        assert_eq!(completion.status, Status::LocalProtection, "key {key}");
    }
}

#[test]
fn a_peer_that_closes_its_endpoint_is_reported() {
    let (left, right) = (endpoint(), endpoint());
    let to = right.address();
    assert_eq!(pass(&left, &right, 1, b"hello"), b"hello");
    // The peer never reads the payload of this message.
    let sending = left.send_tagged(to, 2, vec![1; 1 << 20]).unwrap();
    drop(right);
    let error = sending.wait().unwrap_err();
    assert!(
        error.is_peer_gone() && error.to_string().contains(&to.to_string()),
        "{error}"
    );
}

#[test]
fn sending_to_an_address_without_an_endpoint_is_an_error() {
    let left = endpoint();
    // Listeners get free ports only from 49152, so no other program gets this one while the endpoint searches.
    let to: Address = "127.0.0.1:1".parse().unwrap();
    let error = left.send_tagged(to, 1, "hello?").unwrap_err();
    assert!(
        matches!(error, Error::Unreachable { address, .. } if address == to),
        "{error}"
    );
    let elsewhere: Address = "192.0.2.1:7".parse().unwrap();
    let error = left.send_tagged(elsewhere, 1, "hello?").unwrap_err();
    assert!(error.to_string().contains("RKEY_WIRE=auto"), "{error}");
    // A send does not wait longer than the device's timeout.
    let hasty = Device::builder()
        .timeout(Duration::from_millis(20))
        .open()
        .unwrap();
    let error = hasty
        .endpoint()
        .unwrap()
        .send_tagged(to, 1, "hello?")
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
fn an_address_belongs_to_one_endpoint() {
    let first = endpoint();
    assert!(device().endpoint_at(first.address().to_string()).is_err());
    let address = first.address();
    drop(first);
    let second = device().endpoint_at(address.to_string()).unwrap();
    assert_eq!(second.address(), address);
}

#[test]
fn public_types_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Endpoint>();
    shared::<Sending>();
    shared::<Receiving>();
}
