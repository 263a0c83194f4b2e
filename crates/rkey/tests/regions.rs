//! Registered memory: who owns it, who may access it, and its state afterwards.

mod common;

use common::{ALL, Pair, device, pattern};
use rkey::{Access, Error, Reason, RegionOptions};

fn reason(outcome: rkey::Result<()>) -> Reason {
    match outcome {
        Err(Error::Denied(denial)) => denial.reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn deregistering_returns_the_same_buffer_with_the_written_bytes() {
    let pair = Pair::new();
    let buffer = vec![1u8; 5000];
    let address = buffer.as_ptr();
    let region = pair.owner.register(buffer, ALL).unwrap();
    let key = region.key(..).unwrap();
    region.write(0, b"ours").unwrap();
    pair.outer
        .write_bytes(b"theirs", &key, 4994)
        .unwrap()
        .wait()
        .unwrap();
    let buffer = region.deregister().unwrap();
    assert_eq!(buffer.as_ptr(), address);
    assert_eq!(
        (&buffer[..4], &buffer[4994..]),
        (&b"ours"[..], &b"theirs"[..])
    );
    assert!(matches!(
        reason(pair.outer.write_bytes(b"x", &key, 0).unwrap().wait()),
        Reason::StaleKey { .. }
    ));
}

#[test]
fn every_kind_of_buffer_can_be_registered() {
    let pair = Pair::new();
    let domain = &pair.owner;
    let boxed: Box<[u8]> = vec![7u8; 100].into_boxed_slice();
    let words: Box<[u64]> = vec![7u64; 100].into_boxed_slice();
    let boxed = domain.register(boxed, ALL).unwrap();
    let words = domain.register(words, ALL).unwrap();
    let vector = domain.register(vec![7u64; 3], ALL).unwrap();
    let shared = domain
        .register(domain.device().allocate(10_000).unwrap(), ALL)
        .unwrap();
    assert_eq!((boxed.len(), words.len(), vector.len()), (100, 800, 24));
    assert!(shared.len() >= 10_000);
    for key in [boxed.key(..), words.key(..), vector.key(..), shared.key(..)] {
        pair.outer
            .write_bytes(b"hello", &key.unwrap(), 1)
            .unwrap()
            .wait()
            .unwrap();
    }
    assert_eq!(&boxed.deregister().unwrap()[..6], b"\x07hello");
    assert_eq!(
        &words.deregister().unwrap()[0].to_le_bytes()[..6],
        b"\x07hello"
    );
    assert_eq!(shared.read_vec(1..6).unwrap(), b"hello");
    // The allocated memory is ours again, and can be registered again.
    let shared = pair
        .owner
        .register(shared.deregister().unwrap(), ALL)
        .unwrap();
    assert_eq!(shared.read_vec(1..6).unwrap(), b"hello");
}

#[test]
fn a_key_for_a_part_reaches_only_that_part() {
    let pair = Pair::new();
    let (region, whole) = pair.region(4096, ALL);
    let part = region.key(1000..1064).unwrap();
    assert_ne!(part.key(), whole.key());
    assert_eq!((part.len(), part.address()), (64, whole.address() + 1000));
    assert_eq!(region.key(1000..1064).unwrap(), part);
    pair.outer
        .write_bytes(&[9; 64], &part, 0)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(region.read_vec(999..1065).unwrap()[..2], [0, 9]);

    // A peer that ignores the length of its key accesses one byte on either side.
    for (address, before, after) in [(part.address() - 1, 1, 0), (part.address() + 1, 0, 1)] {
        let forged = rkey::RemoteKey::from_parts(address, 64, part.key() as u32).unwrap();
        let (_inner, outer) = pair.again();
        let why = reason(outer.write_bytes(&[1; 64], &forged, 0).unwrap().wait());
        assert!(
            matches!(why, Reason::OutOfRange { before: b, after: a, .. } if (b, a) == (before, after)),
            "{why:?}"
        );
    }
    assert_eq!(region.read_vec(999..1065).unwrap()[64..], [9, 0]);
    assert!(!region.revoke(&whole).unwrap());
    assert!(region.revoke(&part).unwrap());
    let (_inner, outer) = pair.again();
    assert!(matches!(
        reason(outer.write_bytes(b"x", &part, 0).unwrap().wait()),
        Reason::Unbound | Reason::StaleKey { .. }
    ));
    pair.outer
        .write_bytes(b"x", &whole, 1000)
        .unwrap()
        .wait()
        .unwrap();
}

#[test]
fn a_key_can_have_fewer_rights_than_its_region_but_never_more() {
    let pair = Pair::new();
    let (region, _) = pair.region(64, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let read_only = region.key_with(.., Access::REMOTE_READ).unwrap();
    let local = pair.local(64);
    pair.outer
        .read(&local, .., &read_only, 0)
        .unwrap()
        .wait()
        .unwrap();
    assert!(matches!(
        reason(pair.outer.write_bytes(b"x", &read_only, 0).unwrap().wait()),
        Reason::Right { missing, .. } if missing == Access::REMOTE_WRITE
    ));
    let atomic = region.key_with(.., Access::REMOTE_ATOMIC);
    assert!(matches!(atomic, Err(Error::Rights(_))), "{atomic:?}");
    assert!(matches!(
        region.key_with(.., Access::empty()),
        Err(Error::Rights(_))
    ));
    let hidden = pair.owner.register(vec![0u8; 8], Access::empty()).unwrap();
    assert!(matches!(hidden.key(..), Err(Error::Rights(_))));
}

#[test]
fn ranges_outside_a_region_are_refused_before_anything_is_sent() {
    let pair = Pair::new();
    let (region, key) = pair.region(100, ALL);
    let local = pair.local(50);
    let out = |error: Option<Error>| {
        assert!(matches!(error, Some(Error::OutOfRange { .. })), "{error:?}")
    };
    out(region.read(96, &mut [0; 5]).err());
    out(region.write(u64::MAX, b"x").err());
    out(region.key(50..101).err());
    out(region.key(7..7).err());
    out(region.load_u64(93).err());
    out(pair.outer.write(&local, 0..51, &key, 0).err());
    out(pair.outer.write(&local, 0..50, &key, 51).err());
    out(pair.outer.read(&local, 0..50, &key, u64::MAX).err());
    out(pair.outer.write_bytes(&[0; 209], &key, 0).err());
    // The connection works as before.
    pair.outer
        .write(&local, .., &key, 50)
        .unwrap()
        .wait()
        .unwrap();
}

#[test]
fn empty_and_invalid_regions_cannot_be_registered() {
    let domain = device().domain().unwrap();
    assert!(domain.register(Vec::<u8>::new(), ALL).is_err());
    assert!(domain.publish(Vec::<u8>::new()).is_err());
    assert!(domain.device().allocate(0).is_err());
    let nonsense = Access::from_bits_retain(1 << 29);
    assert!(matches!(
        domain.register(vec![0u8; 8], nonsense),
        Err(Error::Rights(_))
    ));
    domain.scope(|scope| assert!(scope.register(&mut [], ALL).is_err()));
}

#[test]
fn words_are_read_and_updated_atomically() {
    let domain = device().domain().unwrap();
    let region = domain.register(vec![0u64; 4], ALL).unwrap();
    region.store_u64(8, 41).unwrap();
    assert_eq!(region.fetch_add(8, 1).unwrap(), 41);
    assert_eq!(region.compare_and_swap(8, 42, 7).unwrap(), 42);
    assert_eq!(region.compare_and_swap(8, 42, 9).unwrap(), 7);
    assert_eq!(region.load_u64(8).unwrap(), 7);
    assert_eq!(region.fetch_add(8, u64::MAX).unwrap(), 7);
    assert_eq!(region.deregister().unwrap(), [0, 6, 0, 0]);

    let odd = domain.register(vec![0u8; 64], ALL).unwrap();
    let at = 8 - odd.base() % 8 + 1;
    assert!(matches!(odd.load_u64(at), Err(Error::Misaligned { .. })));
    assert!(matches!(
        odd.fetch_add(at, 1),
        Err(Error::Misaligned { .. })
    ));
}

#[test]
fn published_bytes_never_change() {
    let pair = Pair::new();
    let published = pair.owner.publish(pattern(1, 1000)).unwrap();
    let key = published.key(..).unwrap();
    let local = pair.local(1000);
    pair.outer
        .read(&local, .., &key, 0)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(local.read_vec(..).unwrap(), published.as_slice());
    assert_eq!(published.as_slice(), pattern(1, 1000));

    // Neither the owner, nor a peer, nor one of our operations can change a byte.
    let rights = |outcome: rkey::Result<()>| assert!(matches!(outcome, Err(Error::Rights(_))));
    rights(published.write(0, b"x"));
    rights(published.store_u64(0, 1));
    rights(published.fetch_add(0, 1).map(|_| ()));
    rights(published.compare_and_swap(0, 0, 1).map(|_| ()));
    rights(published.key_with(.., Access::REMOTE_WRITE).map(|_| ()));
    rights(
        pair.owner
            .window()
            .unwrap()
            .bind(&published, .., Access::REMOTE_WRITE)
            .map(|_| ()),
    );
    let (region, _) = pair.region(8, ALL);
    let back = pair.visitor.register(vec![1u8; 8], ALL).unwrap();
    let sink = pair
        .inner
        .read(&published, 0..8, &back.key(..).unwrap(), 0)
        .unwrap()
        .wait();
    assert!(matches!(reason(sink), Reason::Right { .. }));
    let (_inner, outer) = pair.again();
    assert!(matches!(
        reason(outer.write_bytes(b"x", &key, 0).unwrap().wait()),
        Reason::Right { .. }
    ));
    assert_eq!(published.withdraw().unwrap(), pattern(1, 1000));
    drop(region);
}

#[test]
fn memory_registered_in_a_scope_is_inaccessible_after_the_scope() {
    let pair = Pair::new();
    let mut bytes = pattern(2, 300);
    let constant = pattern(3, 300);
    let (writable, readable) = pair.owner.scope(|scope| {
        let region = scope.register(&mut bytes, ALL).unwrap();
        let published = scope.publish(&constant).unwrap();
        let (writable, readable) = (region.key(..).unwrap(), published.key(..).unwrap());
        pair.outer
            .write_bytes(b"written in the scope", &writable, 0)
            .unwrap()
            .wait()
            .unwrap();
        let local = pair.local(300);
        pair.outer
            .read(&local, .., &readable, 0)
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(local.read_vec(..).unwrap(), constant);
        assert!(matches!(published.write(0, b"x"), Err(Error::Rights(_))));
        (writable, readable)
    });
    assert_eq!(&bytes[..20], b"written in the scope");
    let (_inner, outer) = pair.again();
    reason(outer.write_bytes(b"late", &writable, 0).unwrap().wait());
    let local = pair.local(8);
    reason(pair.outer.read(&local, .., &readable, 0).unwrap().wait());
    assert_eq!(&bytes[..20], b"written in the scope");
}

#[test]
fn a_scope_deregisters_forgotten_regions_even_after_a_panic() {
    let pair = Pair::new();
    let mut bytes = vec![0u8; 64];
    let forgotten = pair.owner.scope(|scope| {
        let region = scope.register(&mut bytes, ALL).unwrap();
        let key = region.key(0..32).unwrap();
        std::mem::forget(region);
        key
    });
    reason(
        pair.outer
            .write_bytes(b"late", &forgotten, 0)
            .unwrap()
            .wait(),
    );
    assert_eq!(bytes, [0; 64]);

    let (sender, receiver) = std::sync::mpsc::channel();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pair.owner.scope(|scope| {
            let region = scope.register(&mut bytes, ALL).unwrap();
            sender.send(region.key(..).unwrap()).unwrap();
            std::mem::forget(region);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
    }));
    assert!(outcome.is_err());
    let (_inner, outer) = pair.again();
    reason(
        outer
            .write_bytes(b"late", &receiver.recv().unwrap(), 0)
            .unwrap()
            .wait(),
    );
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn a_region_dropped_inside_a_scope_is_deregistered_at_once() {
    let domain = device().domain().unwrap();
    let mut bytes = [[0u8; 16]; 100];
    domain.scope(|scope| {
        for part in &mut bytes {
            let region = scope.register(part, ALL).unwrap();
            region.write(0, b"sixteen bytes ok").unwrap();
        }
        assert_eq!(domain.device().inspect().unwrap().regions, 0);
    });
    assert!(bytes.iter().all(|part| part == b"sixteen bytes ok"));
}

#[test]
fn a_window_is_bound_rebound_and_unbound() {
    let pair = Pair::new();
    let (region, _) = pair.region(100, ALL);
    let window = pair.owner.window().unwrap();
    window.unbind().unwrap();
    let first = window.bind(&region, 0..10, ALL).unwrap();
    pair.outer
        .write_bytes(b"first", &first, 0)
        .unwrap()
        .wait()
        .unwrap();
    let second = window.bind(&region, 50..60, ALL).unwrap();
    assert_ne!(first.key(), second.key());
    reason(pair.outer.write_bytes(b"stale", &first, 0).unwrap().wait());
    let (_inner, outer) = pair.again();
    outer
        .write_bytes(b"second", &second, 0)
        .unwrap()
        .wait()
        .unwrap();
    window.unbind().unwrap();
    reason(outer.write_bytes(b"unbound", &second, 0).unwrap().wait());
    assert_eq!(region.read_vec(0..5).unwrap(), b"first");
    assert_eq!(region.read_vec(50..56).unwrap(), b"second");

    // A bound window does not prevent the deregistration of its region.
    window.bind(&region, .., ALL).unwrap();
    region.deregister().unwrap();
    let other = pair.visitor.register(vec![0u8; 8], ALL).unwrap();
    assert!(
        window.bind(&other, .., ALL).is_err(),
        "a region of another device"
    );
}

#[test]
fn a_domain_cannot_access_the_regions_of_another_domain() {
    let pair = Pair::new();
    let other = pair.owner.device().new_domain().unwrap();
    let region = other.register(vec![0u8; 8], ALL).unwrap();
    let why = reason(
        pair.outer
            .write_bytes(b"x", &region.key(..).unwrap(), 0)
            .unwrap()
            .wait(),
    );
    assert!(matches!(why, Reason::OtherDomain { .. }), "{why:?}");
    // A connection of the region's domain may reach it.
    let (_inner, outer) = common::connect(&other, &pair.visitor);
    outer
        .write_bytes(b"x", &region.key(..).unwrap(), 0)
        .unwrap()
        .wait()
        .unwrap();
    // Our own operations cannot use memory of another domain as local memory, either.
    let stranger = pair
        .visitor
        .device()
        .new_domain()
        .unwrap()
        .register(vec![0u8; 8], ALL)
        .unwrap();
    let (target, key) = pair.region(8, ALL);
    let (_inner, outer) = pair.again();
    let why = reason(outer.write(&stranger, .., &key, 0).unwrap().wait());
    assert!(matches!(why, Reason::OtherDomain { .. }), "{why:?}");
    drop(target);
}

#[test]
fn regions_can_be_addressed_from_zero_or_by_a_chosen_address_and_key() {
    let pair = Pair::new();
    let zero = pair
        .owner
        .register(vec![0u8; 64], RegionOptions::new(ALL).zero_based())
        .unwrap();
    let chosen = RegionOptions::new(ALL)
        .iova(0x1234_0000)
        .requested_key(0xdead_beef_0001);
    let chosen = pair.owner.register(vec![0u8; 64], chosen).unwrap();
    assert_eq!((zero.key(..).unwrap().address(), zero.base()), (0, 0));
    let key = chosen.key(..).unwrap();
    assert_eq!((key.address(), key.key()), (0x1234_0000, 0xdead_beef_0001));
    for region in [&zero, &chosen] {
        pair.outer
            .write_bytes(b"hello", &region.key(..).unwrap(), 3)
            .unwrap()
            .wait()
            .unwrap();
        pair.outer
            .write_bytes(b"part", &region.key(32..40).unwrap(), 2)
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(region.read_vec(3..8).unwrap(), b"hello");
        assert_eq!(region.read_vec(34..38).unwrap(), b"part");
    }
    let again = RegionOptions::new(ALL).requested_key(0xdead_beef_0001);
    assert!(
        pair.owner.register(vec![0u8; 8], again).is_err(),
        "a requested key was granted twice"
    );
    // Local operations use the same addressing.
    let source = pair.visitor.publish(b"local".to_vec()).unwrap();
    pair.inner
        .read(&zero, 9..14, &source.key(..).unwrap(), 0)
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(zero.read_vec(9..14).unwrap(), b"local");
}

#[test]
fn a_window_cannot_be_bound_to_a_region_of_another_device() {
    let pair = Pair::new();
    let (other, mine) = (device(), &pair.owner);
    let elsewhere = other.domain().unwrap();
    let here = mine.register(vec![0u8; 64], ALL).unwrap();
    let there = elsewhere.register(vec![0u8; 64], ALL).unwrap();
    let window = mine.window().unwrap();
    let refused = window.bind(&there, .., Access::REMOTE_WRITE);
    assert!(matches!(refused, Err(Error::Rights(_))), "{refused:?}");
    window.bind(&here, .., Access::REMOTE_WRITE).unwrap();
}

#[test]
fn memory_allocated_for_reading_cannot_be_mapped_for_writing() {
    let owner = device();
    let pair = Pair::between(&owner, &device());
    let memory = owner.allocate_for_reading(4096).unwrap();
    let region = pair.owner.register(memory, ALL).unwrap();
    let key = region.key(..).unwrap();
    assert!(pair.outer.map(&key).is_err());
    let mut reader = pair.outer.map_for_reading(&key).unwrap();
    region.store_u64(8, 7).unwrap();
    let mut word = [0; 8];
    reader.read(8, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 7);
}
