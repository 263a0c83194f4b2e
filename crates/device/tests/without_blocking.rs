//! What a front end's own thread needs: connections that it drives without blocking, and waits that it can end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rkey_device::engine::QpState;
use rkey_device::{Config, Connecting, Cq, Device, DeviceError, Peer, Qp, QpOptions};

const TIME: Duration = Duration::from_secs(30);

fn device() -> (Device, Cq, Qp) {
    let device = Device::open(Config::default()).unwrap();
    let cq = device.create_cq(16, None).unwrap();
    let domain = device.create_domain().unwrap();
    let qp = device.create_qp(&QpOptions::new(domain, &cq)).unwrap();
    (device, cq, qp)
}

/// Tries until the connection is made or refused.
fn finish(connecting: &mut Connecting) -> Result<Peer, DeviceError> {
    let end = Instant::now() + TIME;
    loop {
        if let Some(peer) = connecting.try_finish()? {
            return Ok(peer);
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_can_be_driven_without_blocking() {
    let ((one, _, active), (two, _, passive)) = (device(), device());
    let reserved = two.reserve(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = reserved.local_address();
    let mut connecting = one.begin_connect(address, &[&active], b"hello").unwrap();
    // There is no listener yet, and the caller decides when to try again.
    for _ in 0..2 {
        let result = connecting.try_finish();
        assert!(
            matches!(result, Err(DeviceError::NotListening { .. })),
            "{result:?}"
        );
        assert!(connecting.socket().is_none());
    }
    let listener = reserved.listen().unwrap();
    assert!(connecting.try_finish().unwrap().is_none());
    assert!(connecting.socket().is_some());
    let incoming = listener.accept(Some(TIME)).unwrap();
    assert_eq!(incoming.peer().private_data, b"hello");
    let accepting = incoming.answer(&[&passive], b"answer").unwrap();
    assert!(!accepting.is_ready().unwrap());
    let peer = finish(&mut connecting).unwrap();
    assert_eq!(
        (peer.node, &*peer.private_data),
        (two.node(), &b"answer"[..])
    );
    assert!(accepting.is_ready().unwrap());
    for qp in [active, passive] {
        assert_eq!(qp.query().unwrap().state, QpState::Rts);
    }
}

#[test]
fn a_dropped_request_is_withdrawn_and_a_refusal_carries_its_reason() {
    let ((one, _, active), (two, ..)) = (device(), device());
    let listener = two.listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let begin = || {
        let address = listener.local_address();
        let mut connecting = one.begin_connect(address, &[&active], b"").unwrap();
        assert!(connecting.try_finish().unwrap().is_none());
        connecting
    };
    let connecting = begin();
    let incoming = listener.accept(Some(TIME)).unwrap();
    assert!(!incoming.is_gone());
    drop(connecting);
    assert!(incoming.is_gone());
    let mut connecting = begin();
    listener.accept(Some(TIME)).unwrap().reject("no room");
    let refused = finish(&mut connecting).unwrap_err();
    assert!(matches!(&refused, DeviceError::Refused { reason } if reason == "no room"));
    let mut connecting = begin();
    drop(listener.accept(Some(TIME)).unwrap());
    let gone = finish(&mut connecting).unwrap_err();
    assert!(matches!(gone, DeviceError::Handshake(_)), "{gone:?}");
}

#[test]
fn a_wait_for_completions_ends_when_another_condition_holds() {
    let (_, cq, _) = device();
    let other = AtomicBool::new(false);
    let look = || other.load(Ordering::SeqCst);
    assert!(!cq.wait_or(Some(Duration::from_millis(20)), look).unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cq.wait_or(Some(TIME), look).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        // A wake-up whose condition is false does not end the wait.
        cq.wake();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        other.store(true, Ordering::SeqCst);
        cq.wake();
        assert!(waiter.join().unwrap());
    });
    assert!(cq.wait_or(Some(TIME), look).unwrap());
}
