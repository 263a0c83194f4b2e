//! When the engine panics, waiting threads, later calls and peers get errors, and nothing hangs.
//!
//! No known input makes the engine panic, so these tests set a trap that does.
// UNSAFETY: registers memory.
#![allow(unsafe_code)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rkey_core::{Access, Region, RegionSpec};
use rkey_engine::{Completion, RecvRequest, SendRequest, Sge, Status, Work};

use crate::shared::Shared;
use crate::{Config, Cq, Device, DeviceError, Listener, Qp, QpOptions};

/// Only a hang lasts longer.
const LONG: Duration = Duration::from_secs(60);

/// Makes the engine thread panic.
#[derive(Debug, Default)]
pub(crate) struct Trap(AtomicU8);

const IN_THE_THREAD: u8 = 1;
const IN_THE_ENGINE: u8 = 2;

impl Trap {
    /// The engine thread calls this in each iteration.
    pub(crate) fn spring(&self, shared: &Shared) {
        match self.0.swap(0, Ordering::AcqRel) {
            IN_THE_THREAD => panic!("a test: in the engine thread"),
            IN_THE_ENGINE => shared
                .driver
                .command(|_| panic!("a test: under the engine's lock")),
            _ => {}
        }
    }
}

/// A device with a queue pair and some memory.
struct Side {
    region: Region,
    qp: Qp,
    cq: Cq,
    device: Device,
    address: u64,
}

const LEN: u64 = 4096;

impl Side {
    fn open(config: Config) -> Self {
        let device = Device::open(config).unwrap();
        let domain = device.create_domain().unwrap();
        let cq = device.create_cq(64, None).unwrap();
        let qp = device.create_qp(&QpOptions::new(domain, &cq)).unwrap();
        let memory: &'static [AtomicU64] = Box::leak((0..LEN / 8).map(AtomicU64::new).collect());
        let address = memory.as_ptr() as u64;
        let ranges = [rkey_base::range::VaRange::new(address, LEN).unwrap()];
        let rights = Access::REMOTE | Access::LOCAL_READ | Access::LOCAL_WRITE;
        let spec = RegionSpec::new(domain, &ranges, rights);
        // SAFETY: the memory is made of atomics and is never freed.
        let region = unsafe { device.register(&spec) }.unwrap();
        Self {
            region,
            qp,
            cq,
            device,
            address,
        }
    }

    fn sges(&self) -> [Sge; 1] {
        [Sge {
            addr: self.address,
            len: 8,
            key: self.region.local_key,
        }]
    }
}

/// Two connected devices, the near one with this configuration. The far queue pair has a message in flight for which the near one
/// has no receive.
fn connected(near: Config) -> (Side, Side, Listener) {
    let (near, far) = (Side::open(near), Side::open(Config::default()));
    let listener = near.device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let address = listener.local_address();
            far.device.connect(address, &[&far.qp], &[], LONG).unwrap();
        });
        let incoming = listener.accept(Some(LONG)).unwrap();
        incoming.accept(&[&near.qp], &[]).unwrap();
    });
    let message = Work::Send {
        imm: None,
        invalidate: None,
    };
    let sges = far.sges();
    far.qp
        .post_send(&SendRequest::new(7, message, &sges))
        .unwrap();
    (near, far, listener)
}

fn has_failed<T>(result: Result<T, DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Failed(_)))
}

/// Starts a thread that calls `wait` and returns its result.
fn waiter<'a>(
    scope: &'a Scope<'a, '_>,
    ready: &'a Barrier,
    wait: impl FnOnce() -> bool + Send + 'a,
) -> ScopedJoinHandle<'a, bool> {
    scope.spawn(|| {
        ready.wait();
        wait()
    })
}

/// Runs `fail` while threads of the program wait in every way, and checks these threads, later calls and the peer.
fn all_waiters_get_errors(fail: impl FnOnce(&Device)) {
    all_waiters_get_errors_with(Config::default(), fail);
}

/// Like [`all_waiters_get_errors`], on a device with this configuration.
fn all_waiters_get_errors_with(config: Config, fail: impl FnOnce(&Device)) {
    let (near, far, listener) = connected(config);
    let channel = near.device.create_channel().unwrap();
    let waited = near.device.create_cq(8, Some(&channel)).unwrap();
    let ready = Barrier::new(5);
    let events = || loop {
        match near.device.next_event(None) {
            Ok(Some(_)) => {}
            other => return has_failed(other),
        }
    };
    std::thread::scope(|scope| {
        let waiting = [
            waiter(scope, &ready, || has_failed(near.cq.wait(None))),
            waiter(scope, &ready, || has_failed(channel.next_event(None))),
            waiter(scope, &ready, || has_failed(listener.accept(None))),
            waiter(scope, &ready, events),
        ];
        ready.wait();
        // Let most of the threads fall asleep; those still awake test another case.
        std::thread::sleep(Duration::from_millis(30));
        fail(&near.device);
        let told = waiting.map(|waiter| waiter.join().unwrap());
        assert_eq!(told, [true; 4], "a waiting thread got something else");
    });
    the_peer_notices(&far);
    let sges = near.sges();
    let message = Work::Send {
        imm: None,
        invalidate: None,
    };
    assert!(has_failed(near.cq.poll(&mut [Completion::default()])));
    assert!(has_failed(
        near.qp.post_send(&SendRequest::new(1, message, &sges))
    ));
    let receive = RecvRequest { id: 1, sges: &sges };
    assert!(has_failed(near.qp.post_recv(&receive)));
    assert!(has_failed(near.qp.query()));
    assert!(has_failed(waited.req_notify(false)));
    assert!(has_failed(near.device.create_cq(1, None)));
    assert!(has_failed(near.device.inspect()));
    let text = near.device.drive_until_idle().unwrap_err().to_string();
    assert!(text.contains("panicked"), "{text}");
    // Deregistering works: no peer can reach the memory.
    near.device.deregister(near.region).unwrap();
    drop((waited, channel, listener));
    drop(near);
    far.device.deregister(far.region).unwrap();
}

/// The peer's operations in flight end, its links go down, and its device continues to work.
fn the_peer_notices(far: &Side) {
    let mut one = [Completion::default()];
    assert!(far.cq.wait(Some(LONG)).unwrap(), "the peer noticed nothing");
    assert_eq!(far.cq.poll(&mut one).unwrap(), 1);
    assert_eq!((one[0].id, one[0].status), (7, Status::RetryExceeded));
    let until = Instant::now() + LONG;
    while far.device.inspect().unwrap().links.len() > 1 {
        assert!(
            Instant::now() < until,
            "still has links to a device that failed"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_panic_in_the_engine_thread_wakes_all_waiters() {
    all_waiters_get_errors(|device| {
        let shared = device.shared();
        shared.trap.0.store(IN_THE_THREAD, Ordering::Release);
        shared.driver.requests.wake_engine_thread();
    });
}

#[test]
fn a_panic_in_the_engine_thread_under_the_lock_wakes_all_waiters() {
    all_waiters_get_errors(|device| {
        let shared = device.shared();
        shared.trap.0.store(IN_THE_ENGINE, Ordering::Release);
        shared.driver.requests.wake_engine_thread();
    });
}

/// The thread that panics is the program's own, and the panic continues there; the others get errors, and the engine
/// thread, which may be asleep, closes the links.
#[test]
fn a_panic_of_the_engine_in_a_program_thread_wakes_all_waiters() {
    all_waiters_get_errors(|device| {
        let panics = || {
            device
                .shared()
                .driver
                .command(|_| panic!("a test: in a call of the program"))
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(panicked.is_err());
    });
}

#[test]
fn a_panic_in_the_thread_of_the_wire_wakes_all_waiters() {
    let ip = crate::wire::tests::address();
    let config = Config {
        wire: crate::config::WireSetting::Addresses(vec![ip]).into(),
        ..Config::default()
    };
    all_waiters_get_errors_with(config, |device| {
        crate::wire::tests::make_panic(device.shared().wire.as_ref().unwrap(), ip);
    });
}
