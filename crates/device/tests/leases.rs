//! Memory from the device's allocator, leased to another process, and deregistering memory in use.
// UNSAFETY: registers memory that is accessed only through atomics and volatile reads.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{LONG, Peer, Side, role, sleep_in_read, until};
use rkey_core::{Access, BindRegion, BindRequest, Key, RKey, Region, RegionSpec, WindowKind};
use rkey_device::{DeviceError, SharedMemory};
use rkey_engine::{SendRequest, Status, Work};
use rkey_link::direct::DirectError;

const LEN: usize = 1 << 16;

/// Allocates and registers memory, for reading only or also for writing.
fn share(side: &Side, writable: bool) -> (SharedMemory, Region) {
    let memory = side.device.allocate_shared(LEN, writable).unwrap();
    let ranges = [memory.range().unwrap()];
    let rights = if writable {
        Access::REMOTE
    } else {
        Access::REMOTE_READ
    };
    let mut spec = RegionSpec::new(
        side.domain,
        &ranges,
        rights | Access::BIND | Access::LOCAL_READ,
    );
    spec.memory = memory.kind(0);
    // SAFETY: the memory is accessed only by address, with volatile accesses, and outlives the region.
    let region = unsafe { side.device.register(&spec) }.unwrap();
    (memory, region)
}

fn word(memory: &SharedMemory, index: usize) -> u64 {
    assert!(index < LEN / 8);
    // SAFETY: inside the memory, aligned, and mapped while `memory` lives.
    unsafe { memory.as_ptr().cast::<u64>().add(index).read_volatile() }
}

/// Writes the memory's address and key into the plain region, where the initiator reads them.
fn publish(side: &Side, at: usize, memory: &SharedMemory, key: Key) {
    side.set(at + 1, memory.as_ptr() as u64);
    side.set(at, u64::from(key.0) | 1 << 32);
}

fn owner() {
    let side = Side::open();
    let (_qp, _) = side.connect();
    let (writable, region) = share(&side, true);
    let (readable, read_region) = share(&side, false);
    let window = side
        .device
        .create_window(side.domain, WindowKind::Type1)
        .unwrap();
    let window_key = side
        .device
        .bind_window(&BindRequest {
            window: window.id,
            region: BindRegion::Id(region.id),
            range: writable.range().unwrap(),
            access: Access::REMOTE_READ,
            zero_based: false,
            new_key: None,
            qp: None,
            domain: side.domain,
            rules: Default::default(),
        })
        .unwrap();
    publish(&side, 10, &writable, region.key);
    publish(&side, 12, &readable, read_region.key);
    publish(&side, 14, &writable, window_key);
    // The initiator writes until we revoke the lease.
    until("direct writes", || word(&writable, 100) > 1000);
    side.device.revoke_and_deregister(region).unwrap();
    let last = word(&writable, 100);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(
        word(&writable, 100),
        last,
        "written after the region was deregistered"
    );
    side.set(20, 1);
    sleep_in_read();
    side.device.deregister(read_region).unwrap();
}

/// The holder of a lease reads and writes without the owner, within its rights, until the owner deregisters the region, and never
/// after that.
#[test]
fn a_lease_ends_with_its_region() {
    if role().is_some() {
        return owner();
    }
    let side = Side::open();
    let listener = side.listen();
    let peer = Peer::start(
        "a_lease_ends_with_its_region",
        "target",
        listener.local_address(),
    );
    let (qp, remote) = side.accept(&listener);
    let fetch = |index: usize| loop {
        side.run(
            &qp,
            Work::Read {
                remote: remote.at(index),
            },
            &[side.sge(0, 16)],
        );
        if side.word(0) != 0 {
            return (RKey::Device(Key(side.word(0) as u32)), side.word(1));
        }
    };
    let (key, base) = fetch(10);
    let (read_key, read_base) = fetch(12);
    let (window_key, _) = fetch(14);
    // Leases that are refused.
    let none = |key, base, len, write| {
        qp.lease(key, base, len, write, LONG)
            .map(|_| ())
            .unwrap_err()
    };
    let error = none(read_key, read_base, 8, true);
    assert!(matches!(error, DeviceError::Denied(_)), "{error}");
    let error = none(key, base, LEN as u64 + 1, false);
    assert!(matches!(error, DeviceError::Denied(_)), "{error}");
    let error = none(remote.key, remote.base, 8, false);
    assert!(matches!(error, DeviceError::Refused { .. }), "{error}");
    let error = none(window_key, base, 8, false);
    assert!(matches!(error, DeviceError::Refused { .. }), "{error}");

    let mut reader = qp.lease(read_key, read_base + 8, 64, false, LONG).unwrap();
    let mut bytes = [1u8; 64];
    reader.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
    assert!(matches!(
        reader.write(0, &bytes),
        Err(DirectError::ReadOnly)
    ));
    assert!(matches!(
        reader.read(1, &mut bytes),
        Err(DirectError::OutOfRange { .. })
    ));

    let mut writer = qp.lease(key, base, LEN as u64, true, LONG).unwrap();
    writer.write(8, b"directly").unwrap();
    side.run(
        &qp,
        Work::Read {
            remote: rkey_engine::Target {
                addr: base + 8,
                key,
            },
        },
        &[side.sge(0, 8)],
    );
    assert_eq!(side.word(0).to_ne_bytes(), *b"directly");
    assert_eq!(writer.fetch_add(16, 5).unwrap(), 0);
    assert_eq!(writer.fetch_add(16, 5).unwrap(), 5);
    let until = Instant::now() + LONG;
    let mut count = 0u64;
    let end = loop {
        assert!(Instant::now() < until, "the lease was not taken back");
        count += 1;
        match writer.write(800, &count.to_ne_bytes()) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(end, DirectError::Revoked), "{end}");
    let error = none(key, base, 8, false);
    assert!(matches!(error, DeviceError::Denied(_)), "{error}");
    let (_, _) = fetch(20);
    // The other lease is not affected, and ends with its owner.
    reader.read(0, &mut bytes).unwrap();
    peer.finish();
    common::until("the end of the link", || {
        side.device.inspect().unwrap().links.len() == 1
    });
    assert!(reader.read(0, &mut bytes).is_err());
}

/// A region is deregistered while a peer writes to it as fast as it can: nothing is written after the call returns, the peer
/// gets an error, and neither side hangs.
#[test]
fn deregistering_stops_a_peer_that_keeps_writing() {
    if role().is_some() {
        let side = Side::open();
        for round in 0.. {
            let qp = side.qp();
            let Ok(peer) = side
                .device
                .connect(common::address(), &[&qp], &side.invitation(), LONG)
            else {
                assert!(round > 0);
                return;
            };
            let remote = common::Remote::from(&peer.private_data[..]);
            let mut posted = 0u64;
            let mut done = 0u64;
            let mut one = [rkey_engine::Completion::default()];
            let status = loop {
                if posted - done < 32 {
                    side.set(0, posted);
                    let bytes = [8, 4096, 131_072][posted as usize % 3];
                    let write = Work::Write {
                        remote: remote.at(0),
                        imm: None,
                    };
                    let sges = [side.sge(0, bytes)];
                    if qp
                        .post_send(&SendRequest::new(posted, write, &sges))
                        .is_ok()
                    {
                        posted += 1;
                    }
                }
                if side.cq.poll(&mut one).unwrap() == 1 {
                    done += 1;
                    if one[0].status != Status::Success {
                        break one[0].status;
                    }
                }
            };
            assert_eq!(status, Status::RemoteAccess);
            while done < posted {
                assert_eq!(side.next().status, Status::Flushed);
                done += 1;
            }
        }
    }
    let side = Side::open();
    let listener = side.listen();
    let peer = Peer::start(
        "deregistering_stops_a_peer_that_keeps_writing",
        "target",
        listener.local_address(),
    );
    // Each queue pair stays until the peer has reconnected, so that its requests are refused and not left without a response.
    let mut last = None;
    for round in 0..20 {
        let target: Box<[std::sync::atomic::AtomicU64]> = (0..16_384)
            .map(|_| std::sync::atomic::AtomicU64::new(0))
            .collect();
        let range = rkey_base::range::VaRange::new(target.as_ptr() as u64, 131_072).unwrap();
        let ranges = [range];
        let spec = RegionSpec::new(
            side.domain,
            &ranges,
            Access::REMOTE_WRITE | Access::LOCAL_WRITE,
        );
        // SAFETY: accessed only through atomics, and deregistered before it is freed.
        let region = unsafe { side.device.register(&spec) }.unwrap();
        let mut invitation = (target.as_ptr() as u64).to_le_bytes().to_vec();
        invitation.extend_from_slice(&region.key.0.to_le_bytes());
        let qp = side.qp();
        listener
            .accept(Some(LONG))
            .unwrap()
            .accept(&[&qp], &invitation)
            .unwrap();
        last = Some(qp);
        let polling = AtomicBool::new(round % 2 == 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while polling.load(Ordering::Relaxed) {
                    let _ = side.cq.poll(&mut [rkey_engine::Completion::default()]);
                }
            });
            until("the first writes", || {
                target[0].load(Ordering::Relaxed) > 20
            });
            side.device.deregister(region).unwrap();
            let last = target[0].load(Ordering::Acquire);
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(
                target[0].load(Ordering::Acquire),
                last,
                "written after closing"
            );
            polling.store(false, Ordering::Relaxed);
        });
    }
    listener.accept(Some(LONG)).unwrap().reject("it is over");
    drop(last);
    peer.finish();
}
