//! Connections through the connection manager, with this API on both sides. `abi/rdmacm` has the tests with programs in C.

mod common;

use common::{ALL, LONG, device, pattern};
use rkey::cm::{self, Refusal};
use rkey::{Access, Device, Error, RemoteKey};
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A server and a client, each with a device of its own.
struct Pair {
    server: Device,
    client: Device,
    listener: cm::Listener,
}

impl Pair {
    fn new() -> Self {
        Self::with(device())
    }

    fn with(client: Device) -> Self {
        let server = device();
        let listener = server.listen_cm("127.0.0.1:0").unwrap();
        Self {
            server,
            client,
            listener,
        }
    }

    fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The next request.
    fn request(&self) -> cm::Request {
        self.listener.next_request_timeout(LONG).unwrap()
    }

    /// Connects; returns the server's end and the client's.
    fn connect(&self) -> (cm::Connection, cm::Connection) {
        let address = self.address();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| self.client.connect_cm(address, b"hello").unwrap());
            let server = self.request().accept(b"welcome").unwrap();
            (server, client.join().unwrap())
        })
    }

    /// Requests a connection that is refused, while the server handles the request with `answer`.
    fn refused(&self, serve: impl FnOnce(cm::Request)) -> (Refusal, Vec<u8>) {
        let address = self.address();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| self.client.connect_cm(address, b"").unwrap_err());
            serve(self.request());
            refusal(client.join().unwrap())
        })
    }
}

fn refusal(error: Error) -> (Refusal, Vec<u8>) {
    match error {
        Error::ConnectionRefused {
            why, private_data, ..
        } => (why, private_data),
        other => panic!("{other:?}"),
    }
}

/// Whether a request waits at a listener of this process.
fn waits_at(address: SocketAddr) -> bool {
    let address = address.to_string();
    let listing = rkey_device::cm::list(&rkey::Config::default()).unwrap();
    let mut ids = listing.managers.into_iter().flat_map(|it| it.ids);
    ids.any(|id| {
        id.local.as_ref() == Some(&address) && id.backlog.is_some_and(|(waiting, _)| waiting > 0)
    })
}

fn is_too_long(error: &Error) -> bool {
    matches!(
        error,
        Error::Device(rkey_device::DeviceError::TooLong { .. })
    )
}

#[test]
fn both_programs_get_each_others_private_data_and_addresses() {
    let pair = Pair::new();
    let (server, client) = pair.connect();
    let data = server.private_data();
    assert_eq!((&data[..6], data.len()), (&b"hello\0"[..], 56));
    let data = client.private_data();
    assert_eq!((&data[..8], data.len()), (&b"welcome\0"[..], 196));
    assert_eq!(client.peer_address(), pair.address());
    assert_eq!(server.local_address(), pair.address());
    assert_eq!(server.peer_address(), client.local_address());
    assert!(server.is_connected() && client.is_connected());
}

#[test]
fn messages_of_every_length_arrive_in_order() {
    let pair = Pair::new();
    let (server, client) = pair.connect();
    let lengths = [0, 1, 207, 208, 209, 1000, rkey::DEFAULT_MAX_MESSAGE];
    for (seed, len) in (0u8..).zip(lengths) {
        for (from, to) in [(&server, &client), (&client, &server)] {
            from.send(&pattern(seed, len)).unwrap();
            let message = to.receive().unwrap();
            assert!(message.bytes == pattern(seed, len), "{len}");
            assert_eq!((message.immediate, message.written), (None, None));
        }
    }
    // More than there are buffers: the sender waits for the receiver.
    std::thread::scope(|scope| {
        scope.spawn(|| (0..100u32).for_each(|n| client.send(&n.to_be_bytes()).unwrap()));
        for n in 0..100u32 {
            assert_eq!(server.receive().unwrap().bytes, n.to_be_bytes());
        }
    });
    let long = vec![0; rkey::DEFAULT_MAX_MESSAGE + 1];
    let error = client.send(&long).unwrap_err();
    assert!(matches!(error, Error::MessageTooLong { .. }), "{error}");
    assert!(server.try_receive().unwrap().is_none());
}

#[test]
fn a_key_in_parts_allows_writes_reads_and_atomics() {
    let pair = Pair::new();
    let (_server, client) = pair.connect();
    let region = pair.server.domain().unwrap();
    let region = region.register(vec![0u64; 512], ALL).unwrap();
    let key = region.key(..).unwrap();
    let number = u32::try_from(key.key()).unwrap();
    let key = RemoteKey::from_parts(key.address(), key.len(), number).unwrap();
    let local = client.domain().register(pattern(3, 4096), Access::empty());
    let local = local.unwrap();
    client.write(&local, 8.., &key, 8).unwrap().wait().unwrap();
    assert!(region.read_vec(8..).unwrap() == pattern(3, 4096)[8..]);
    client
        .write_bytes(b"few", &key, 100)
        .unwrap()
        .wait()
        .unwrap();
    client.read(&local, .., &key, 0).unwrap().wait().unwrap();
    assert_eq!(local.read_vec(100..103).unwrap(), b"few");
    let old = client.fetch_and_add(&key, 0, 5).unwrap().wait().unwrap();
    let swapped = client.compare_and_swap(&key, 0, 5, 9).unwrap();
    assert_eq!((old, swapped.wait().unwrap()), (0, 5));
    assert_eq!(region.load_u64(0).unwrap(), 9);
    drop(region);
    let error = client.write_bytes(b"late", &key, 0).unwrap().wait();
    assert!(matches!(error, Err(Error::Denied(_))), "{error:?}");
}

#[test]
fn a_rejection_carries_its_private_data() {
    let pair = Pair::new();
    let (why, data) = pair.refused(|request| request.reject(b"no room").unwrap());
    assert!(matches!(why, Refusal::Program(_)), "{why:?}");
    assert_eq!((&data[..8], data.len()), (&b"no room\0"[..], 148));
    let (why, data) = pair.refused(drop);
    assert!(matches!(why, Refusal::Program(_)), "{why:?}");
    assert!(data.iter().all(|byte| *byte == 0));
    // The listener still works.
    pair.connect();
}

#[test]
fn without_a_listener_the_connection_is_refused() {
    let pair = Pair::new();
    let address = pair.address();
    drop(pair.listener);
    let error = pair.client.connect_cm(address, b"").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("nothing listens"), "{text}");
    assert_eq!(refusal(error).0, Refusal::NothingListens);
}

#[test]
fn a_pending_request_is_refused_when_its_listener_is_dropped() {
    let Pair {
        client, listener, ..
    } = Pair::new();
    let address = listener.address();
    let error = std::thread::scope(|scope| {
        let asks = scope.spawn(|| client.connect_cm(address, b"").unwrap_err());
        // Wait until the request has reached the listener.
        let begun = Instant::now();
        while !waits_at(address) {
            assert!(begun.elapsed() < LONG, "no request arrived");
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(listener);
        asks.join().unwrap()
    });
    assert!(matches!(error, Error::ConnectionRefused { .. }), "{error}");
}

#[test]
fn private_data_has_a_limit_in_each_message() {
    let pair = Pair::new();
    let error = pair
        .client
        .connect_cm(pair.address(), &[1; 57])
        .unwrap_err();
    assert!(is_too_long(&error), "{error}");
    let address = pair.address();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| pair.client.connect_cm(address, &[1; 56]).unwrap());
        let request = pair.request();
        assert_eq!(request.private_data(), [1; 56]);
        let server = request.accept(&[2; 196]).unwrap();
        assert_eq!(client.join().unwrap().private_data(), [2; 196]);
        drop(server);
    });
    let (why, _) = pair.refused(|request| {
        let error = request.accept(&[2; 197]).unwrap_err();
        assert!(is_too_long(&error), "{error}");
    });
    assert!(matches!(why, Refusal::Program(_)), "{why:?}");
    let (_, data) = pair.refused(|request| request.reject(&[3; 148]).unwrap());
    assert_eq!(data, [3; 148]);
    pair.refused(|request| {
        let error = request.reject(&[3; 149]).unwrap_err();
        assert!(is_too_long(&error), "{error}");
    });
}

#[test]
fn both_sides_see_a_disconnect_and_receive_earlier_messages() {
    for first in [0, 1] {
        let pair = Pair::new();
        let ends = <[_; 2]>::from(pair.connect());
        let [one, other] = match first {
            0 => ends,
            _ => {
                let [server, client] = ends;
                [client, server]
            }
        };
        one.send(b"the last message").unwrap();
        one.disconnect().unwrap();
        other.wait_disconnected(LONG).unwrap();
        assert!(!other.is_connected());
        assert_eq!(other.receive().unwrap().bytes, b"the last message");
        let error = other.receive().unwrap_err();
        assert!(error.is_peer_gone(), "{error}");
    }
}

#[test]
fn dropping_a_connection_disconnects() {
    let pair = Pair::new();
    let (server, client) = pair.connect();
    drop(server);
    client.wait_disconnected(LONG).unwrap();
    let error = client.receive().unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
    // Queue pair numbers and communication ids are reused.
    for _ in 0..20 {
        pair.connect();
    }
}

#[test]
fn a_request_whose_client_has_given_up_cannot_be_accepted() {
    let impatient = Device::builder().timeout(Duration::from_millis(300));
    let pair = Pair::with(impatient.open().unwrap());
    let error = pair.client.connect_cm(pair.address(), b"").unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    // The request may have been withdrawn before it was taken.
    match pair.listener.next_request_timeout(Duration::ZERO) {
        Ok(request) => assert!(request.accept(b"").unwrap_err().is_peer_gone()),
        Err(error) => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
    }
    // The withdrawn request does not count against the backlog, either.
    let patient = device();
    let address = pair.address();
    std::thread::scope(|scope| {
        scope.spawn(|| patient.connect_cm(address, b"").unwrap());
        loop {
            if pair.request().accept(b"").is_ok() {
                break;
            }
        }
    });
}

#[test]
fn a_port_has_one_listener_and_is_free_when_the_listener_is_dropped() {
    let pair = Pair::new();
    let address = pair.address();
    for device in [&pair.server, &pair.client] {
        let error = device.listen_cm(address).unwrap_err();
        assert!(error.to_string().contains("already listens"), "{error}");
    }
    let error = pair.client.listen_cm("192.0.2.1:7471").unwrap_err();
    assert!(error.to_string().contains("this host"), "{error}");
    let error = pair.client.connect_cm("192.0.2.1:7471", b"").unwrap_err();
    assert!(error.to_string().contains("another host"), "{error}");
    let Pair {
        client, listener, ..
    } = pair;
    drop(listener);
    assert_eq!(client.listen_cm(address).unwrap().address(), address);
}

#[test]
fn a_listener_at_a_wildcard_is_reached_at_every_address() {
    let (server, client) = (device(), device());
    let listener = server.listen_cm("[::]:0").unwrap();
    for to in ["127.0.0.1", "[::1]", "0.0.0.0"] {
        let address = format!("{to}:{}", listener.address().port());
        std::thread::scope(|scope| {
            let client = scope.spawn(|| client.connect_cm(address.as_str(), b"").unwrap());
            let server = listener.next_request_timeout(LONG).unwrap();
            let server = server.accept(b"").unwrap();
            client.join().unwrap().send(to.as_bytes()).unwrap();
            assert_eq!(server.receive().unwrap().bytes, to.as_bytes());
        });
    }
}

#[test]
fn many_threads_can_connect_a_device_to_itself_at_once() {
    let device = device();
    let listener = device.listen_cm("127.0.0.1:0").unwrap();
    let (address, done) = (listener.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8u8)
            .map(|n| {
                let device = &device;
                scope.spawn(move || {
                    for _ in 0..5 {
                        let server = device.connect_cm(address, &[n]).unwrap();
                        server.send(&[n]).unwrap();
                        assert_eq!(server.receive().unwrap().bytes, [n]);
                        server.disconnect().unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..40 {
            let request = listener.next_request_timeout(LONG).unwrap();
            let n = request.private_data()[0];
            let client = request.accept(b"").unwrap();
            scope.spawn(move || {
                let message = client.receive().unwrap();
                assert_eq!(message.bytes, [n]);
                client.send(&message.bytes).unwrap();
                client.wait_disconnected(LONG).unwrap();
            });
        }
        clients.into_iter().for_each(|it| it.join().unwrap());
        done.store(true, Ordering::Release);
    });
    assert!(done.load(Ordering::Acquire));
}

/// A peer may send more than fits: only its connection breaks.
#[test]
fn a_message_that_is_too_long_breaks_only_its_connection() {
    let talkative = Device::builder().timeout(LONG).max_message(64 << 10);
    let pair = Pair::with(talkative.open().unwrap());
    let (server, client) = pair.connect();
    let error = client.send(&[7; 5000]).unwrap_err();
    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
    assert!(server.receive().is_err());
    let (server, client) = pair.connect();
    client.send(b"short").unwrap();
    assert_eq!(server.receive().unwrap().bytes, b"short");
}

const ADDRESS: &str = "RKEY_TEST_CM_VICTIM_OF";

/// This is not a separate test but the other process of the test below.
#[test]
fn peer_that_is_killed() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let device = device();
    let server = device.connect_cm(address.as_str(), b"victim").unwrap();
    server.send(b"here").unwrap();
    let _ = server.receive_timeout(2 * LONG);
}

fn start_victim(address: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_that_is_killed", "--quiet"])
        .env(ADDRESS, address.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_peer_is_reported_as_gone() {
    let pair = Pair::new();
    // Kill the peer while its request waits.
    let mut child = start_victim(pair.address());
    let request = pair.request();
    child.kill().unwrap();
    child.wait().unwrap();
    let error = request.accept(b"").unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
    // Kill the peer while it is connected.
    let mut child = start_victim(pair.address());
    let server = pair.request().accept(b"").unwrap();
    assert_eq!(server.receive().unwrap().bytes, b"here");
    child.kill().unwrap();
    child.wait().unwrap();
    let error = server.receive().unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
    server.wait_disconnected(LONG).unwrap();
}
