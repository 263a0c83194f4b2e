//! The sentences of denials, word for word, for common mistakes.

mod api_words;
mod fixture;

use fixture::*;
use rkey_base::range::VaRange;
use rkey_core::*;

/// Proves: FI-104
#[test]
fn a_key_that_was_never_issued_is_unknown() {
    let it = Fixture::new();
    says(
        &it.write(0x42, 0x7000, 8),
        "RDMA write of 8 B at 0x7000 with rkey 0x00000042 over queue pair 0x12 denied: \
         unknown key: never issued",
        "Check that the key arrived intact and that the connection leads to the process that issued it.",
    );
}

/// Proves: FI-156
#[test]
fn a_key_of_a_deregistered_region_is_stale() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.deregister(region.id).unwrap().finish().unwrap();
    let denial = it.write(region.key.0, 0x7000, 8);
    assert_eq!(denial.reason, Reason::StaleKey { now: SlotNow::Free });
    says(
        &denial,
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             stale key: region deregistered or window rebound",
            region.key
        ),
        "Ask the owner for the current key. Tell peers before you deregister or rebind.",
    );
}

#[test]
fn a_stale_key_is_recognised_after_its_slot_is_reused() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.deregister(region.id).unwrap().finish().unwrap();
    let _next = it.register(Access::all(), Addressing::Virtual);
    says(
        &it.write(region.key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             stale key: region deregistered or window rebound; its key slot is in use again",
            region.key
        ),
        "Ask the owner for the current key. Tell peers before you deregister or rebind.",
    );
}

/// Proves: VB-I05, FI-I42, DA-I10
#[test]
fn a_key_of_another_domain_is_refused() {
    let mut it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.domain = it.table.create_domain().unwrap();
    says(
        &it.write(region.key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             the memory is in domain 1, but the request came from domain 2",
            region.key
        ),
        "Register the memory in the queue pair's domain, or create the queue pair in the memory's domain.",
    );
}

#[test]
fn a_local_key_used_by_a_peer_is_refused() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    says(
        &it.write(region.local_key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with rkey {:#010x} over queue pair 0x12 denied: \
             local key (lkey) used where a remote key (rkey) is needed",
            region.local_key.0
        ),
        "Give the peer the region's rkey.",
    );
}

#[test]
fn a_remote_key_in_a_local_request_is_refused() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    let key = LKey(region.key.0);
    let denial = it
        .table
        .check_local(it.domain, key, 0x7000, 8, LocalUse::Send)
        .unwrap_err();
    says(
        &denial,
        &format!(
            "send of 8 B at 0x7000 with lkey {:#010x} denied: \
             remote key (rkey) used where a local key (lkey) is needed",
            region.key.0
        ),
        "Use the region's lkey in scatter/gather entries.",
    );
}

/// Proves: VB-002, FI-054
#[test]
fn requests_outside_the_region_are_refused() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    let denial = it.write(region.key.0, 0x7ff8, 16);
    says(
        &denial,
        &format!(
            "RDMA write of 16 B at 0x7ff8 with {} over queue pair 0x12 denied: \
             the last 8 B are past the end of the region (0x7000..0x8000, 4096 B)",
            region.key
        ),
        "Access at most 8 B here, or register 8 B more.",
    );
    says(
        &it.write(region.key.0, 0x6fff, 8),
        &format!(
            "RDMA write of 8 B at 0x6fff with {} over queue pair 0x12 denied: \
             the first 1 B is before the start of the region (0x7000..0x8000, 4096 B)",
            region.key
        ),
        "Start 1 B later, or register from 1 B earlier.",
    );
    says(
        &it.write(region.key.0, 0x9000, 8),
        &format!(
            "RDMA write of 8 B at 0x9000 with {} over queue pair 0x12 denied: \
             all 8 B are past the end of the region (0x7000..0x8000, 4096 B)",
            region.key
        ),
        "Use addresses inside the 4096 B of the region.",
    );
}

/// Proves: VB-010
#[test]
fn a_denial_names_the_missing_right() {
    let it = Fixture::new();
    let region = it.register(Access::REMOTE_READ | Access::RECV, Addressing::Virtual);
    says(
        &it.write(region.key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             the region lacks \"remote write\"; it grants peers \"remote read\"",
            region.key
        ),
        "Register the region with \"remote write\" as well.",
    );
}

#[test]
fn a_denial_through_a_window_names_the_window_not_the_region() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    let window = it
        .table
        .create_window(it.domain, WindowKind::Type1)
        .unwrap();
    let key = it.table.bind_window(&BindRequest {
        window: window.id,
        region: BindRegion::Id(region.id),
        range: VaRange::new(0x7100, 16).unwrap(),
        access: Access::REMOTE_WRITE,
        zero_based: false,
        new_key: None,
        qp: None,
        domain: it.domain,
        rules: Rules::VERBS,
    });
    let key = key.unwrap();
    says(
        &it.write(key.0, 0x7108, 16),
        &format!(
            "RDMA write of 16 B at 0x7108 with {key} over queue pair 0x12 denied: \
             the last 8 B are past the end of the window (0x7100..0x7110, 16 B)"
        ),
        "Access at most 8 B here, or bind 8 B more.",
    );
}

/// Proves: DA-025
#[test]
fn the_old_key_of_a_rebound_type_1_window_is_stale() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    let window = it
        .table
        .create_window(it.domain, WindowKind::Type1)
        .unwrap();
    let mut old = vec![window.key];
    for _ in 0..4 {
        let key = it.table.bind_window(&BindRequest {
            window: window.id,
            region: BindRegion::Id(region.id),
            range: VaRange::new(0x7100, 16).unwrap(),
            access: Access::REMOTE_WRITE,
            zero_based: false,
            new_key: None,
            qp: None,
            domain: it.domain,
            rules: Rules::VERBS,
        });
        old.push(key.unwrap());
    }
    old.pop();
    for key in old {
        let denial = it.write(key.0, 0x7100, 8);
        assert_eq!(
            denial.reason,
            Reason::StaleKey {
                now: SlotNow::Rebound
            }
        );
    }
}

#[test]
fn the_old_key_of_a_rebound_type_2_window_is_stale() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    let window = it
        .table
        .create_window(it.domain, WindowKind::Type2B)
        .unwrap();
    let who = Accessor {
        domain: it.domain,
        qp: QP,
        peer: None,
    };
    let mut keys = Vec::new();
    for bits in [1, 2] {
        let key = window.key.with_consumer_bits(bits);
        it.table
            .bind_window(&BindRequest {
                window: window.id,
                region: BindRegion::Id(region.id),
                range: VaRange::new(0x7100, 16).unwrap(),
                access: Access::REMOTE_WRITE,
                zero_based: false,
                new_key: Some(key),
                qp: Some(QP),
                domain: it.domain,
                rules: Rules::VERBS,
            })
            .unwrap();
        keys.push(key);
        if bits == 1 {
            it.table.invalidate(key, &who, false).unwrap();
        }
    }
    says(
        &it.write(keys[0].0, 0x7100, 8),
        &format!(
            "RDMA write of 8 B at 0x7100 with {} over queue pair 0x12 denied: \
             stale key: the window was rebound and has a new key",
            keys[0]
        ),
        "Ask the owner for the current key. Tell peers before you deregister or rebind.",
    );
}

/// Proves: FI-053
#[test]
fn a_mix_up_of_offset_and_address_is_recognised() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    says(
        &it.write(region.key.0, 16, 8),
        &format!(
            "RDMA write of 8 B at 0x10 with {} over queue pair 0x12 denied: \
             the region has virtual addresses (0x7000..0x8000), but the request used an offset",
            region.key
        ),
        "Use address 0x7010.",
    );
    let region = it.register(Access::all(), Addressing::Zero);
    says(
        &it.write(region.key.0, 0x7010, 8),
        &format!(
            "RDMA write of 8 B at 0x7010 with {} over queue pair 0x12 denied: \
             the region is zero-based (offsets below 0x1000), but the request used a virtual address",
            region.key
        ),
        "Use offset 0x10.",
    );
}

#[test]
fn access_to_a_region_that_is_not_enabled_is_refused() {
    let it = Fixture::new();
    let ranges = [VaRange::new(0x7000, 0x1000).unwrap()];
    let spec = RegionSpec {
        disabled: true,
        ..RegionSpec::new(it.domain, &ranges, Access::all())
    };
    let region = it.table.register(&spec).unwrap();
    says(
        &it.write(region.key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             the region is not enabled yet",
            region.key
        ),
        "The owner must enable the region first.",
    );
}

#[test]
fn queue_pair_denials_and_page_faults_are_explained() {
    let who = Accessor {
        domain: DomainId(1),
        qp: QP,
        peer: None,
    };
    let key = RKey::Requested(7);
    let denial = Denial::by_queue_pair(
        &who,
        key,
        0,
        8,
        Operation::Read,
        Access::REMOTE_WRITE,
        Api::Native,
    );
    says(
        &denial,
        "RDMA read of 8 B at 0x0 with requested key 0x7 over queue pair 0x12 denied: \
         the target's queue pair lacks \"remote read\"; it allows peers \"remote write\"",
        "Add \"remote read\" to the access flags of the target's queue pair.",
    );
    let attempt = Attempt::Remote(Operation::Write);
    let denial = Denial::fault(attempt, NamedKey::Remote(key), 4096, 8, 0x1000);
    assert_eq!(
        denial.to_string(),
        "RDMA write of 8 B at 0x1000 with requested key 0x7 denied: \
         page fault at 0x1000: memory not mapped or not writable"
    );
    let peer = Denial::decode(&denial.encode());
    assert!(
        peer.to_string()
            .ends_with("page fault: memory not mapped or not writable")
    );
}

#[test]
fn advice_about_local_memory_is_for_the_program_that_posted() {
    let it = Fixture::new();
    let key = LKey(0x42);
    let unknown = it
        .table
        .check_local(it.domain, key, 0x7000, 8, LocalUse::Send);
    says(
        &unknown.unwrap_err(),
        "send of 8 B at 0x7000 with lkey 0x00000042 denied: unknown key: never issued",
        "Name local memory by the lkey of a region that this process has registered.",
    );
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.deregister(region.id).unwrap().finish().unwrap();
    let key = region.local_key;
    let stale = it
        .table
        .check_local(it.domain, key, 0x7000, 8, LocalUse::Recv);
    let stale = stale.unwrap_err();
    assert_eq!(stale.reason, Reason::StaleKey { now: SlotNow::Free });
    assert_eq!(
        stale.advice(),
        "Deregister a region only after all requests that use it have completed."
    );
    for (attempt, able, who) in [
        (
            Attempt::Local(LocalUse::WriteSource),
            "readable",
            "Keep the memory of a request mapped and readable until the request completes.",
        ),
        (
            Attempt::Local(LocalUse::ReadSink),
            "writable",
            "Keep the memory of a request mapped and writable until the request completes.",
        ),
        (
            Attempt::Remote(Operation::Read),
            "readable",
            "The owner must keep the memory mapped and readable.",
        ),
        (
            Attempt::Remote(Operation::Atomic),
            "writable",
            "The owner must keep the memory mapped and writable.",
        ),
    ] {
        let denial = Denial::fault(attempt, NamedKey::Local(key), 4096, 8, 0x1000);
        let why = format!("at 0x1000: memory not mapped or not {able}");
        assert!(denial.to_string().ends_with(&why), "{denial}");
        assert_eq!(denial.advice(), who);
    }
}

/// The address is not inside the region's virtual addresses either, so the advice cannot name the intended offset.
#[test]
fn the_advice_names_no_offset_for_an_unrelated_address() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Zero);
    says(
        &it.write(region.key.0, 0x7f12_0000_0000, 10),
        &format!(
            "RDMA write of 10 B at 0x7f1200000000 with {} over queue pair 0x12 denied: \
             all 10 B are past the end of the region (0x0..0x1000, 4096 B, zero-based)",
            region.key
        ),
        "Use an offset below 0x1000 instead of an address.",
    );
    // An access that starts inside and extends past the end is a different mistake.
    let denial = it.write(region.key.0, 0xffc, 8);
    assert!(!denial.to_string().contains("zero-based"), "{denial}");
    assert_eq!(
        denial.advice(),
        "Access at most 4 B here, or register 4 B more."
    );
}

/// A denial of a stale key discloses nothing about the new object in its slot.
#[test]
fn the_denial_of_a_stale_key_reveals_nothing_about_the_next_region() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.deregister(region.id).unwrap().finish().unwrap();
    let _next = it.register(Access::REMOTE_READ, Addressing::Zero);
    let denial = it.write(region.key.0, 0x7000, 8);
    assert_eq!(denial.encode()[4..8], [0; 4]);
    assert_eq!(denial.encode()[32..], [0; 16]);
}

#[test]
fn denials_and_snapshots_round_trip_through_json() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    for denial in [
        it.write(region.key.0, 0x7ff8, 16),
        it.write(region.key.0, 1, 1),
    ] {
        let text = serde_json::to_string(&denial).unwrap();
        assert_eq!(serde_json::from_str::<Denial>(&text).unwrap(), *denial);
    }
    let snapshot = it.table.snapshot();
    assert_eq!(snapshot.regions.len(), 1);
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
    assert!(
        !text.contains(&format!("{}", region.key.0)),
        "keys do not belong in an inspection"
    );
}
