//! Domains of several APIs in one table, and when peers of one API reach memory of another.

use rkey_base::range::VaRange;
use rkey_core::*;

const APIS: [Api; 3] = [Api::Verbs, Api::Libfabric, Api::Udapl];

struct World {
    table: Protection,
    /// For each API, a domain with a region.
    sides: Vec<(DomainId, Region)>,
}

fn register(table: &Protection, domain: DomainId) -> Region {
    let ranges = [VaRange::new(0x7000, 0x1000).unwrap()];
    let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    table
        .register(&RegionSpec::new(domain, &ranges, access))
        .unwrap()
}

impl World {
    fn new(across_apis: bool) -> Self {
        let table =
            Protection::new(Limits::default(), Secrets([1, 2, 3, 4])).across_apis(across_apis);
        let sides = APIS.map(|api| {
            let domain = table.create_domain_for(api, false).unwrap();
            (domain, register(&table, domain))
        });
        Self {
            sides: sides.into(),
            table,
        }
    }

    fn write(&self, from: DomainId, key: RKey, len: u64) -> Result<(), Box<Denial>> {
        let who = Accessor {
            domain: from,
            qp: 0x12,
            peer: None,
        };
        let want = Operation::Write;
        self.table
            .check_remote(&who, key, 0x7000, len, want)
            .map(drop)
    }
}

/// By default, a domain is as separate from those of other APIs as from those of its own; the refusal names both APIs.
#[test]
fn memory_of_another_api_is_refused_by_default() {
    let it = World::new(false);
    for &(from, _) in &it.sides {
        for &(owner, region) in &it.sides {
            let result = it.write(from, RKey::Device(region.key), 8);
            if from == owner {
                assert!(result.is_ok());
                continue;
            }
            let denial = result.unwrap_err();
            assert_eq!(denial.reason, Reason::OtherDomain { owner });
            let text = denial.explain();
            let name = owner.api().name();
            assert!(
                text.contains(&format!(" {} of {name}, ", owner.number())),
                "{text}"
            );
            assert!(text.contains("RKEY_CROSS_API=on"), "{text}");
        }
    }
}

/// A requested key can equal a key that the device chose for another API. The device then looks in the request's own domain
/// first.
#[test]
fn a_requested_key_can_name_a_region_of_another_api() {
    for across in [false, true] {
        let it = World::new(across);
        let (fabric, _) = it.sides[1];
        for side in [0, 2] {
            let (owner, region) = it.sides[side];
            let key = RKey::Requested(region.key.0.into());
            match it.write(fabric, key, 8) {
                Ok(()) => assert!(across),
                Err(denial) => {
                    assert!(!across);
                    assert_eq!(denial.reason, Reason::OtherDomain { owner });
                }
            }
            let wide = RKey::Requested(u64::from(region.key.0) | 1 << 32);
            let denial = it.write(fabric, wide, 8).unwrap_err();
            assert_eq!(denial.reason, Reason::UnknownKey);
        }
        // A 64-bit key does not name regions of the same API in another domain.
        let other = it.table.create_domain_for(Api::Libfabric, false).unwrap();
        let key = RKey::Requested(it.sides[1].1.key.0.into());
        assert_eq!(
            it.write(other, key, 8).unwrap_err().reason,
            Reason::UnknownKey
        );
    }
}

#[test]
fn the_owner_may_admit_peers_across_apis() {
    let it = World::new(true);
    for &(from, own) in &it.sides {
        for &(owner, region) in &it.sides {
            let key = RKey::Device(region.key);
            assert!(it.write(from, key, 8).is_ok());
            // What the memory does not allow is still refused, in the words of the API that registered it.
            let denial = it.write(from, key, 0x1001).unwrap_err();
            assert!(matches!(denial.reason, Reason::OutOfRange { after: 1, .. }));
            assert_eq!(denial.api, owner.api());
            // Local requests can use only memory of their own domain.
            let local = it
                .table
                .check_local(from, region.local_key, 0x7000, 8, LocalUse::Recv);
            assert_eq!(local.is_ok(), from == owner);
        }
        // Two domains of one API remain separate.
        let second = it.table.create_domain_for(from.api(), false).unwrap();
        let denial = it.write(second, RKey::Device(own.key), 8).unwrap_err();
        assert_eq!(denial.reason, Reason::OtherDomain { owner: from });
    }
}

#[test]
fn windows_are_reachable_across_apis_like_regions() {
    for across in [false, true] {
        let it = World::new(across);
        let (owner, region) = it.sides[2];
        let rmr = it.table.create_window(owner, WindowKind::Dat).unwrap();
        let request = BindRequest {
            window: rmr.id,
            region: BindRegion::Id(region.id),
            range: VaRange::new(0x7000, 16).unwrap(),
            access: Access::REMOTE_WRITE,
            zero_based: false,
            new_key: None,
            qp: None,
            domain: owner,
            rules: Rules::default(),
        };
        let key = RKey::Device(it.table.bind_window(&request).unwrap());
        for &(from, _) in &it.sides {
            let result = it.write(from, key, 16);
            assert_eq!(result.is_ok(), across || from == owner, "{result:?}");
            assert!(it.write(from, key, 17).is_err());
        }
    }
}

/// FI-119: only endpoints with the same authorization key can reach the memory.
#[test]
fn an_exclusive_domain_is_unreachable_from_other_apis() {
    let it = World::new(true);
    let owner = it.table.create_domain_for(Api::Libfabric, true).unwrap();
    let region = register(&it.table, owner);
    assert!(it.write(owner, RKey::Device(region.key), 8).is_ok());
    for &(side, own) in &it.sides {
        let denial = it.write(side, RKey::Device(region.key), 8).unwrap_err();
        assert_eq!(denial.reason, Reason::OtherDomain { owner });
        assert!(!denial.advice().contains("RKEY_CROSS_API"));
        let denial = it.write(owner, RKey::Device(own.key), 8).unwrap_err();
        assert_eq!(denial.reason, Reason::OtherDomain { owner: side });
    }
}
