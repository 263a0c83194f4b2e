//! The sentences that people read when an access is denied: ten classic mistakes, word for word.

use rkey_base::range::VaRange;
use rkey_core::*;

const QP: u32 = 0x12;

struct Fixture {
    table: Protection,
    domain: DomainId,
}

impl Fixture {
    fn new() -> Self {
        let table = Protection::new(Limits::default(), Secrets([11, 22, 33, 44]));
        let domain = table.create_domain().unwrap();
        Self { table, domain }
    }

    fn register(&self, access: Access, addressing: Addressing) -> Region {
        let ranges = [VaRange::new(0x7000, 0x1000).unwrap()];
        let spec = RegionSpec {
            addressing,
            ..RegionSpec::new(self.domain, &ranges, access)
        };
        self.table.register(&spec).unwrap()
    }

    fn write(&self, key: u32, addr: u64, len: u64) -> Box<Denial> {
        let who = Accessor {
            domain: self.domain,
            qp: QP,
            peer: None,
        };
        let key = WireKey::Device(Key(key));
        self.table
            .check_remote(&who, key, addr, len, Operation::Write)
            .unwrap_err()
    }
}

/// What both sides print: the owner's sentence and advice; the peer's differ in the queue pair only.
#[track_caller]
fn says(denial: &Denial, sentence: &str, advice: &str) {
    assert_eq!(denial.to_string(), sentence);
    assert_eq!(denial.explain(), format!("{sentence}\n  {advice}"));
    let peer = Denial::from_wire(&denial.to_wire());
    let over = format!(" over queue pair {QP:#x}");
    if !matches!(denial.reason, Reason::OtherDomain { .. }) {
        assert_eq!(peer.to_string(), sentence.replace(&over, ""));
    }
    assert_eq!(peer.advice(), advice);
}

/// Proves: FI-104
#[test]
fn a_key_that_never_was() {
    let it = Fixture::new();
    says(
        &it.write(0x42, 0x7000, 8),
        "RDMA write of 8 B at 0x7000 with rkey 0x00000042 over queue pair 0x12 denied: \
         no memory has this key, and none had it before",
        "Check that the key arrived whole and that the connection leads to the process that made it.",
    );
}

/// Proves: FI-156
#[test]
fn a_region_that_was_closed() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.close_region(region.id).unwrap().finish().unwrap();
    let denial = it.write(region.key.0, 0x7000, 8);
    assert_eq!(denial.reason, Reason::StaleKey { now: SlotNow::Free });
    says(
        &denial,
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             the key is stale, its memory was closed or bound anew",
            region.key
        ),
        "Ask the owner for the present key, and tell peers before closing or rebinding.",
    );
}

#[test]
fn a_region_whose_place_was_given_out_again() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.close_region(region.id).unwrap().finish().unwrap();
    let _next = it.register(Access::all(), Addressing::Virtual);
    says(
        &it.write(region.key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             the key is stale, its memory was closed or bound anew; something else has taken its place",
            region.key
        ),
        "Ask the owner for the present key, and tell peers before closing or rebinding.",
    );
}

/// Proves: VB-I05, FI-I42, DA-I10
#[test]
fn a_region_of_another_domain() {
    let mut it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.domain = it.table.create_domain().unwrap();
    says(
        &it.write(region.key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             the memory belongs to domain 1, the request to domain 2",
            region.key
        ),
        "Register the memory in the domain of the queue pair, or make the queue pair in its domain.",
    );
}

#[test]
fn a_local_key_sent_to_a_peer() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    says(
        &it.write(region.local_key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with rkey {:#010x} over queue pair 0x12 denied: \
             this is a local key (lkey), and a peer needs the remote one (rkey)",
            region.local_key.0
        ),
        "Hand the region's rkey to the peer.",
    );
}

#[test]
fn a_remote_key_in_a_local_request() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    let key = LocalKey(region.key.0);
    let denial = it
        .table
        .check_local(it.domain, key, 0x7000, 8, LocalUse::Send)
        .unwrap_err();
    says(
        &denial,
        &format!(
            "send of 8 B at 0x7000 with lkey {:#010x} denied: \
             this is a remote key (rkey), and local memory needs the local one (lkey)",
            region.key.0
        ),
        "Use the region's lkey in scatter/gather entries.",
    );
}

/// Proves: VB-002, FI-054
#[test]
fn off_by_eight() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    let denial = it.write(region.key.0, 0x7ff8, 16);
    says(
        &denial,
        &format!(
            "RDMA write of 16 B at 0x7ff8 with {} over queue pair 0x12 denied: \
             8 B of it lie behind the end of the memory, which is 0x7000..0x8000 (4096 B)",
            region.key
        ),
        "Ask for at most 8 B here, or register 8 B more.",
    );
    says(
        &it.write(region.key.0, 0x6fff, 8),
        &format!(
            "RDMA write of 8 B at 0x6fff with {} over queue pair 0x12 denied: \
             1 B of it lie in front of the memory, which is 0x7000..0x8000 (4096 B)",
            region.key
        ),
        "Begin 1 B later, or register from 1 B earlier on.",
    );
    says(
        &it.write(region.key.0, 0x9000, 8),
        &format!(
            "RDMA write of 8 B at 0x9000 with {} over queue pair 0x12 denied: \
             8 B of it lie behind the end of the memory, which is 0x7000..0x8000 (4096 B)",
            region.key
        ),
        "Ask for addresses inside the 4096 B that were registered.",
    );
}

/// Proves: VB-010
#[test]
fn a_right_that_was_not_granted() {
    let it = Fixture::new();
    let region = it.register(Access::REMOTE_READ | Access::RECV, Addressing::Virtual);
    says(
        &it.write(region.key.0, 0x7000, 8),
        &format!(
            "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
             it needs \"remote write\", and the memory grants peers \"remote read\"",
            region.key
        ),
        "Register or bind the memory with \"remote write\" as well.",
    );
}

/// Proves: DA-025
#[test]
fn a_device_key_window_that_was_bound_anew() {
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
fn a_window_that_was_bound_anew() {
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
            "RDMA write of 8 B at 0x7100 with {} over queue pair 0x12 denied: the key is stale, \
             its memory was closed or bound anew; the same window has another key now",
            keys[0]
        ),
        "Ask the owner for the present key, and tell peers before closing or rebinding.",
    );
}

/// Proves: FI-053
#[test]
fn an_offset_where_an_address_belongs_and_the_reverse() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    says(
        &it.write(region.key.0, 16, 8),
        &format!(
            "RDMA write of 8 B at 0x10 with {} over queue pair 0x12 denied: \
             the memory is addressed by 0x7000..0x8000, and this looks like an offset into it",
            region.key
        ),
        "Ask for address 0x7010.",
    );
    let region = it.register(Access::all(), Addressing::Zero);
    says(
        &it.write(region.key.0, 0x7010, 8),
        &format!(
            "RDMA write of 8 B at 0x7010 with {} over queue pair 0x12 denied: \
             the memory is addressed from 0 to 0x1000, and this is a virtual address",
            region.key
        ),
        "Ask for offset 0x10.",
    );
}

#[test]
fn a_region_that_nobody_enabled() {
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
             the region is disabled, nobody has enabled it yet",
            region.key
        ),
        "The owner has to enable the region first.",
    );
}

#[test]
fn what_the_engine_finds_out_by_itself() {
    let who = Accessor {
        domain: DomainId(1),
        qp: QP,
        peer: None,
    };
    let key = WireKey::Requested(7);
    let denial = Denial::by_queue_pair(&who, key, 0, 8, Operation::Read, Access::REMOTE_WRITE);
    says(
        &denial,
        "RDMA read of 8 B at 0x0 with requested key 0x7 over queue pair 0x12 denied: \
         it needs \"remote read\", and the target's queue pair grants peers \"remote write\"",
        "Give the target's queue pair \"remote read\" in its access flags.",
    );
    let attempt = Attempt::Remote(Operation::Write);
    let denial = Denial::fault(attempt, NamedKey::Remote(key), 4096, 8, 0x1000);
    assert_eq!(
        denial.to_string(),
        "RDMA write of 8 B at 0x1000 with requested key 0x7 denied: \
         there is no usable memory at 0x1000: not mapped, or not writable"
    );
    let peer = Denial::from_wire(&denial.to_wire());
    assert!(
        peer.to_string()
            .ends_with("there is no usable memory behind the key")
    );
}

/// A request's own memory comes from nowhere, and nobody else owns it.
#[test]
fn advice_about_local_memory_is_for_whoever_posted_the_request() {
    let it = Fixture::new();
    let key = LocalKey(0x42);
    let unknown = it
        .table
        .check_local(it.domain, key, 0x7000, 8, LocalUse::Send);
    says(
        &unknown.unwrap_err(),
        "send of 8 B at 0x7000 with lkey 0x00000042 denied: no memory has this key, and none had it before",
        "A request names its own memory by the lkey of a region that its process has registered.",
    );
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.close_region(region.id).unwrap().finish().unwrap();
    let key = region.local_key;
    let stale = it
        .table
        .check_local(it.domain, key, 0x7000, 8, LocalUse::Recv);
    let stale = stale.unwrap_err();
    assert_eq!(stale.reason, Reason::StaleKey { now: SlotNow::Free });
    assert_eq!(
        stale.advice(),
        "Close a region when no request needs it any more."
    );
    for (attempt, able, who) in [
        (
            Attempt::Local(LocalUse::WriteSource),
            "readable",
            "Whoever posts a request has to keep its memory mapped and readable until it is done.",
        ),
        (
            Attempt::Local(LocalUse::ReadSink),
            "writable",
            "Whoever posts a request has to keep its memory mapped and writable until it is done.",
        ),
        (
            Attempt::Remote(Operation::Read),
            "readable",
            "The owner has to keep the memory mapped and readable.",
        ),
        (
            Attempt::Remote(Operation::Atomic),
            "writable",
            "The owner has to keep the memory mapped and writable.",
        ),
    ] {
        let denial = Denial::fault(attempt, NamedKey::Local(key), 4096, 8, 0x1000);
        let why = format!("at 0x1000: not mapped, or not {able}");
        assert!(denial.to_string().ends_with(&why), "{denial}");
        assert_eq!(denial.advice(), who);
    }
}

/// An address that is not even the owner's own: all that is left to say is that offsets are meant.
#[test]
fn memory_addressed_from_zero_is_told_to_whoever_asks_for_an_address() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Zero);
    says(
        &it.write(region.key.0, 0x7f12_0000_0000, 10),
        &format!(
            "RDMA write of 10 B at 0x7f1200000000 with {} over queue pair 0x12 denied: \
             10 B of it lie behind the end of the memory, which is 0x0..0x1000 (4096 B) and addressed from 0",
            region.key
        ),
        "Ask for an offset into the memory, below 0x1000, not for an address.",
    );
    // One byte too far is another mistake.
    let denial = it.write(region.key.0, 0xffc, 8);
    assert!(!denial.to_string().contains("addressed from 0"), "{denial}");
    assert_eq!(
        denial.advice(),
        "Ask for at most 4 B here, or register 4 B more."
    );
}

/// A denial says nothing about memory that is not behind the key: it has the same form whatever the slot holds now.
#[test]
fn a_stale_key_learns_nothing_about_its_successor() {
    let it = Fixture::new();
    let region = it.register(Access::all(), Addressing::Virtual);
    it.table.close_region(region.id).unwrap().finish().unwrap();
    let _next = it.register(Access::REMOTE_READ, Addressing::Zero);
    let denial = it.write(region.key.0, 0x7000, 8);
    assert_eq!(denial.to_wire()[4..8], [0; 4]);
    assert_eq!(denial.to_wire()[32..], [0; 16]);
}

#[test]
fn denials_and_snapshots_survive_json() {
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
