//! Reads, writes and atomics.

use crate::host::{Op, Told};
use crate::net::{gather, sge};
use crate::world::{From, How, Node, World, address};
use rkey_core::{Key, RKey};
use rkey_engine::Target;
use rkey_rdm::atomic::{DataType, Kind, Op as AtomicOp};
use rkey_rdm::commit::RemoteRange;
use rkey_rdm::endpoint::{AtomicCall, Memory, PlainTransfer, Service, Transfer};
use rkey_rdm::error::{Error, Result};
use rkey_rdm::header::Atomic;
use rkey_rdm::operation_id::{Form, Plain};
use smallvec::smallvec;

/// A world of two connected nodes, and the index of the connection at node 0.
fn connected() -> (World, usize) {
    connected_by(Service::ReliableDatagram)
}

fn connected_by(service: Service) -> (World, usize) {
    let mut world = World::new(2, service);
    loop {
        let Node { ep, host, .. } = &mut world.nodes[0];
        let peer = ep.routes_mut().peer_at(address(1));
        match ep.connection_to(host, peer, || Some(0), || world.now) {
            Ok(connection) => return (world, connection),
            Err(error) => assert_eq!(error, Error::Again),
        }
        world.act(0);
    }
}

/// Only a caller that identified itself is notified that its call may be retried: a call that names no caller is retried anyway,
/// and must not wake the thread that happened to make it.
#[test]
fn only_identified_callers_are_notified_that_they_may_retry() {
    for caller in [Some(0), None] {
        let mut world = World::new(2, Service::ReliableDatagram);
        let Node { ep, host, .. } = &mut world.nodes[0];
        let peer = ep.routes_mut().peer_at(address(1));
        let connection = ep.connection_to(host, peer, || caller, || world.now);
        assert_eq!(connection, Err(Error::Again));
        while world.act(0) {}
        let ep = &mut world.nodes[0].ep;
        assert_eq!(ep.routes_mut().may_retry(0, world.now), caller.is_some());
    }
}

fn expose(world: &World, memory: &mut [u8]) -> RKey {
    let (addr, len) = (memory.as_mut_ptr() as u64, memory.len() as u32);
    RKey::Device(Key(world.net.borrow_mut().expose(addr, len)))
}

fn transfer(world: &mut World, it: Transfer<'_>) -> Result<()> {
    let Node { ep, host, .. } = &mut world.nodes[0];
    let op = Op {
        context: 5,
        form: None,
    };
    ep.transfer(host, it, op)
}

/// A plain operation with this context.
fn plain(context: usize) -> Plain {
    Plain {
        context,
        form: Form::Write,
        report: true,
    }
}

#[test]
fn plain_transfers_copy_in_both_directions() {
    for (reads, len) in [(false, 8), (true, 8), (false, 0), (true, 0)] {
        let (mut world, connection) = connected();
        let (mut here, mut there) = ([1u8; 8], [2u8; 8]);
        let key = expose(&world, &mut there);
        let it = PlainTransfer {
            connection,
            reads,
            local: sge(here.as_mut_ptr() as u64, len),
            remote: Target { addr: 0, key },
            fence: true,
        };
        let Node { ep, host, .. } = &mut world.nodes[0];
        let id = ep.outbox().plain_id(plain(9)).unwrap();
        ep.transfer_plain(host, id, &it).unwrap();
        assert_eq!(ep.outbox().under_way(), 1);
        world.settle();
        assert_eq!(world.told(0), [Told::Done(9, None)]);
        let found = [&here, &there].map(|it| gather(&[sge(it.as_ptr() as u64, 8)]));
        let expected = match (reads, len) {
            (_, 0) => [[1; 8], [2; 8]],
            (false, _) => [[1; 8], [1; 8]],
            (true, _) => [[2; 8], [2; 8]],
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn contexts_of_more_than_56_bits_are_not_plain() {
    let (world, _) = connected();
    assert!(
        world.nodes[0]
            .ep
            .outbox()
            .plain_id(plain((1 << 56) - 1))
            .is_some()
    );
    assert_eq!(world.nodes[0].ep.outbox().plain_id(plain(1 << 56)), None);
}

#[test]
fn no_operation_of_a_connected_endpoint_is_plain_while_an_earlier_one_waits() {
    let (mut world, _) = connected_by(Service::Connected);
    assert!(world.nodes[0].ep.outbox().plain_id(plain(9)).is_some());
    let confirm = How {
        confirm: true,
        ..How::default()
    };
    world.send(0, 1, 8, confirm);
    assert_eq!(world.nodes[0].ep.outbox().plain_id(plain(9)), None);
    let untagged = From {
        node: None,
        tag: None,
        any_tag: true,
    };
    world.receive(1, untagged, 8);
    world.settle();
    assert!(world.nodes[0].ep.outbox().plain_id(plain(9)).is_some());
}

#[test]
fn remote_cq_data_arrives_with_the_bytes_of_a_write() {
    // Short data is sent with the write, other data after it.
    for data in [7, u64::MAX] {
        let (mut world, connection) = connected();
        let mut there = vec![0; 64];
        let key = expose(&world, &mut there);
        let place = |addr, len| RemoteRange { addr, len, key };
        let remote = [place(8, 16), place(32, 8)];
        let copy: Vec<u8> = (1..25).collect();
        let it = Transfer {
            connection,
            reads: false,
            local: Memory::Copy(copy.clone().into_boxed_slice()),
            remote: if data == 7 { &remote[..1] } else { &remote },
            data: Some(data),
            fence: true,
            durable: false,
        };
        let len = it.remote.iter().map(|place| place.len).sum::<u64>() as u32;
        let local = Memory::Copy(copy[..len as usize].to_vec().into_boxed_slice());
        transfer(&mut world, Transfer { local, ..it }).unwrap();
        world.settle();
        assert_eq!(world.told(0), [Told::Done(5, None)]);
        assert_eq!(world.told(1), [Told::Written { len, data }]);
        let there = gather(&[sge(there.as_ptr() as u64, 64)]);
        assert_eq!(there[8..24], copy[..16]);
    }
}

#[test]
fn a_refused_write_returns_its_credit() {
    let (mut world, connection) = connected();
    let place = RemoteRange {
        addr: 0,
        len: 8,
        key: RKey::Device(Key(99)),
    };
    for data in [1, u64::MAX] {
        // More times than the credit allows.
        for _ in 0..5000 {
            let it = Transfer {
                connection,
                reads: false,
                local: Memory::Copy(Box::new([0; 8])),
                remote: &[place],
                data: Some(data),
                fence: false,
                durable: false,
            };
            transfer(&mut world, it).unwrap();
            while world.act(0) {}
        }
        let told = world.told(0);
        assert!(
            told.iter()
                .all(|it| *it == Told::Done(5, Some(Error::UnknownKey)))
        );
        assert_eq!((told.len(), world.told(1)), (5000, vec![]));
    }
}

#[test]
fn a_durable_write_waits_for_the_answer() {
    let (mut world, connection) = connected();
    let mut there = vec![0; 8];
    let key = expose(&world, &mut there);
    let it = Transfer {
        connection,
        reads: false,
        local: Memory::Copy(Box::new([1; 8])),
        remote: &[RemoteRange {
            addr: 0,
            len: 8,
            key,
        }],
        data: None,
        fence: false,
        durable: true,
    };
    assert_eq!(it.requests(), 2);
    transfer(&mut world, it).unwrap();
    for _ in 0..2 {
        world.act(0);
    }
    world.look(0);
    assert_eq!(world.told(0), [], "the write completed before the answer");
    world.settle();
    assert_eq!(world.told(0), [Told::Done(5, None)]);
}

#[test]
fn an_atomic_returns_the_old_values() {
    for count in [1, 100] {
        let (mut world, connection) = connected();
        let mut numbers = vec![40u64; count];
        let mut old = vec![0u64; count];
        let (there, here) = (numbers.as_mut_ptr() as u64, old.as_mut_ptr() as u64);
        let call = AtomicCall {
            connection,
            what: Atomic {
                addr: there,
                key: 0,
                device_key: true,
                datatype: DataType::Uint64 as u8,
                op: AtomicOp::Sum as u8,
                form: Kind::Fetch as u8,
                count: count as u32,
            },
            operands: 2u64.to_ne_bytes().repeat(count),
            result: Some(smallvec![sge(here, 8 * count)]),
        };
        let op = Op {
            context: 3,
            form: None,
        };
        let Node { ep, host, .. } = &mut world.nodes[0];
        ep.atomic(host, call, op).unwrap();
        world.settle();
        assert_eq!(world.told(0), [Told::Done(3, None)]);
        let bytes = |number: u64| number.to_ne_bytes().repeat(count);
        assert_eq!(gather(&[sge(there, 8 * count)]), bytes(42));
        assert_eq!(gather(&[sge(here, 8 * count)]), bytes(40));
        drop((numbers, old));
    }
}
