//! Denials use the words of the program's API.

use crate::fixture::*;
use rkey_base::range::VaRange;
use rkey_core::*;

/// The denial names the flag that the owner left out, in the owner's API, on both sides.
#[test]
fn a_missing_right_is_named_by_its_flag() {
    for (api, missing, granted, qp_advice) in [
        (
            Api::Verbs,
            "IBV_ACCESS_REMOTE_WRITE",
            "IBV_ACCESS_REMOTE_READ",
            "Add IBV_ACCESS_REMOTE_WRITE to qp_access_flags of the target's queue pair.",
        ),
        (
            Api::Libfabric,
            "FI_REMOTE_WRITE",
            "FI_REMOTE_READ",
            "Add FI_REMOTE_WRITE to the capabilities of the target's endpoint.",
        ),
    ] {
        let mut it = Fixture::new();
        it.table = Protection::new(Limits::default(), Secrets([11, 22, 33, 44])).for_api(api);
        it.domain = it.table.create_domain().unwrap();
        let region = it.register(Access::REMOTE_READ | Access::RECV, Addressing::Virtual);
        says(
            &it.write(region.key.0, 0x7000, 8),
            &format!(
                "RDMA write of 8 B at 0x7000 with {} over queue pair 0x12 denied: \
                 the region lacks {missing}; it grants peers {granted}",
                region.key
            ),
            &format!("Register the region with {missing} as well."),
        );
        let (who, key) = (it.who(), RKey::Device(region.key));
        let granted = Access::REMOTE_READ;
        let denial = Denial::by_queue_pair(&who, key, 0, 8, Operation::Write, granted, api);
        assert_eq!(denial.advice(), qp_advice);
    }
}

/// Proves partly: DA-025 (the words)
#[test]
fn a_denial_to_a_udapl_program_uses_udapl_terms() {
    let mut it = Fixture::new();
    it.table = Protection::new(Limits::default(), Secrets([11, 22, 33, 44])).for_api(Api::Udapl);
    it.domain = it.table.create_domain().unwrap();
    let lmr = it.register(Access::all(), Addressing::Virtual);
    let rmr = it.table.create_window(it.domain, WindowKind::Dat).unwrap();
    let bind = || {
        let request = BindRequest {
            window: rmr.id,
            region: BindRegion::Id(lmr.id),
            range: VaRange::new(0x7100, 16).unwrap(),
            access: Access::REMOTE_READ,
            zero_based: false,
            new_key: None,
            qp: None,
            domain: it.domain,
            rules: Rules::UDAPL,
        };
        it.table.bind_window(&request).unwrap()
    };
    let old = bind();
    says(
        &it.write(old.0, 0x7100, 8),
        &format!(
            "RDMA write of 8 B at 0x7100 with RMR context {:#010x} over EP 0x12 denied: the RMR lacks \
             DAT_MEM_PRIV_REMOTE_WRITE_FLAG; it grants peers DAT_MEM_PRIV_REMOTE_READ_FLAG",
            old.0
        ),
        "Bind the RMR with DAT_MEM_PRIV_REMOTE_WRITE_FLAG as well.",
    );
    bind();
    says(
        &it.write(old.0, 0x7100, 8),
        &format!(
            "RDMA write of 8 B at 0x7100 with RMR context {:#010x} over EP 0x12 denied: \
             stale context: the RMR was rebound and has a new context",
            old.0
        ),
        "Ask the owner for the current context. Tell peers before you free or rebind.",
    );
    let last = bind();
    it.table.deallocate_window(rmr.id).unwrap();
    says(
        &it.write(last.0, 0x7100, 8),
        &format!(
            "RDMA write of 8 B at 0x7100 with RMR context {:#010x} over EP 0x12 denied: \
             stale context: the RMR was freed",
            last.0
        ),
        "Ask the owner for the current context. Tell peers before you free or rebind.",
    );
    says(
        &it.write(lmr.local_key.0, 0x7100, 8),
        &format!(
            "RDMA write of 8 B at 0x7100 with RMR context {:#010x} over EP 0x12 denied: \
             LMR context used where an RMR context is needed",
            lmr.local_key.0
        ),
        "Give the peer the LMR's RMR context.",
    );
}
