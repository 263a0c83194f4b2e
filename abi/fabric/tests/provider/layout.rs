//! The structures, compared with the headers of libfabric that are installed.

use rkey_fi::sys::*;
use std::mem::offset_of;
use std::process::Command;

/// A size or an offset: the C expression and ours.
macro_rules! sizes {
    ($($c:literal = $ours:expr;)*) => { [$(($c, $ours)),*] };
}

#[test]
fn sizes_and_offsets_are_those_of_the_headers() {
    let known = sizes! {
        "sizeof(struct fi_info)" = size_of::<Info>();
        "offsetof(struct fi_info, nic)" = offset_of!(Info, nic);
        "sizeof(struct fi_tx_attr)" = size_of::<TxAttr>();
        "sizeof(struct fi_rx_attr)" = size_of::<RxAttr>();
        "sizeof(struct fi_fabric_attr)" = size_of::<FabricAttr>();
        "offsetof(struct fi_ep_attr, auth_key)" = offset_of!(EpAttr, auth_key);
        "offsetof(struct fi_domain_attr, mr_mode)" = offset_of!(DomainAttr, mr_mode);
        "offsetof(struct fi_domain_attr, caps)" = offset_of!(DomainAttr, caps);
        "offsetof(struct fi_domain_attr, tclass)" = offset_of!(DomainAttr, tclass);
        "offsetof(struct fi_mr_attr, device)" = offset_of!(MrAttr, device);
        "offsetof(struct fi_mr_attr, requested_key)" = offset_of!(MrAttr, requested_key);
        "sizeof(struct fi_mr_raw_attr)" = size_of::<MrRawAttr>();
        "sizeof(struct fi_mr_map_raw)" = size_of::<MrMapRaw>();
        "offsetof(struct fi_mr_modify, attr)" = offset_of!(MrModify, mr_iov);
        "sizeof(struct fid_fabric)" = size_of::<FidFabric>();
        "sizeof(struct fid_domain)" = size_of::<FidDomain>();
        "sizeof(struct fid_ep)" = size_of::<FidEp>();
        "sizeof(struct fid_pep)" = size_of::<FidPep>();
        "sizeof(struct fid_stx)" = size_of::<FidStx>();
        "offsetof(struct fid_stx, ops)" = offset_of!(FidStx, ops);
        "sizeof(struct fi_alias)" = size_of::<Alias>();
        "offsetof(struct fi_alias, flags)" = offset_of!(Alias, flags);
        "sizeof(struct fid_mr)" = size_of::<FidMr>();
        "offsetof(struct fid_mr, key)" = offset_of!(FidMr, key);
        "sizeof(struct fi_cq_tagged_entry)" = size_of::<CqTaggedEntry>();
        "offsetof(struct fi_cq_err_entry, err_data_size)" = offset_of!(CqErrEntry, err_data_size);
        "sizeof(struct fi_triggered_context)" = size_of::<TriggeredContext>();
        "offsetof(struct fi_triggered_context, trigger.threshold.threshold)" = offset_of!(TriggeredContext, threshold);
        "sizeof(struct fi_op_compare_atomic)" = size_of::<DeferredCompare>();
        "offsetof(struct fi_op_compare_atomic, compare)" = offset_of!(DeferredCompare, compare);
        "sizeof(struct fi_op_cntr)" = size_of::<DeferredCount>();
        "sizeof(struct fi_deferred_work)" = size_of::<DeferredWork>();
        "offsetof(struct fi_deferred_work, op)" = offset_of!(DeferredWork, op);
        "sizeof(struct fi_eq_attr)" = size_of::<EqAttr>();
        "sizeof(struct fi_eq_entry)" = size_of::<EqEntry>();
        "sizeof(struct fi_eq_err_entry)" = size_of::<EqErrEntry>();
        "offsetof(struct fi_eq_cm_entry, data)" = size_of::<EqCmEntry>();
        "sizeof(struct fi_av_attr)" = size_of::<AvAttr>();
        "offsetof(struct fi_cq_attr, wait_set)" = offset_of!(CqAttr, wait_set);
        "offsetof(struct fi_cntr_attr, flags)" = offset_of!(CntrAttr, flags);
        "sizeof(struct fi_msg)" = size_of::<Msg>();
        "sizeof(struct fi_msg_tagged)" = size_of::<MsgTagged>();
        "sizeof(struct fi_msg_rma)" = size_of::<MsgRma>();
        "sizeof(struct fi_msg_atomic)" = size_of::<MsgAtomic>();
        "sizeof(struct fi_rma_iov)" = size_of::<RmaIov>();
        "sizeof(struct fi_ops_msg)" = size_of::<OpsMsg>();
        "sizeof(struct fi_ops_tagged)" = size_of::<OpsTagged>();
        "sizeof(struct fi_ops_rma)" = size_of::<OpsRma>();
        "sizeof(struct fi_ops_atomic)" = size_of::<OpsAtomic>();
        "sizeof(struct fi_av_set_attr)" = size_of::<AvSetAttr>();
        "offsetof(struct fi_av_set_attr, flags)" = offset_of!(AvSetAttr, flags);
        "sizeof(struct fi_collective_attr)" = size_of::<CollectiveAttr>();
        "offsetof(struct fi_collective_attr, max_members)" = offset_of!(CollectiveAttr, max_members);
        "sizeof(struct fi_collective_addr)" = size_of::<CollectiveAddr>();
        "sizeof(struct fi_msg_collective)" = size_of::<MsgCollective>();
        "offsetof(struct fi_msg_collective, op)" = offset_of!(MsgCollective, op);
        "sizeof(struct fid_mc)" = size_of::<FidMc>();
        "offsetof(struct fid_mc, fi_addr)" = offset_of!(FidMc, fi_addr);
        "sizeof(struct fid_av_set)" = size_of::<FidAvSet>();
        "sizeof(struct fi_ops_av_set)" = size_of::<OpsAvSet>();
        "sizeof(struct fi_ops_collective)" = size_of::<OpsCollective>();
        "sizeof(struct fi_ops_cm)" = size_of::<OpsCm>();
        "sizeof(struct fi_ops_mr)" = size_of::<OpsMr>();
        "sizeof(struct fi_ops_eq)" = size_of::<OpsEq>();
        "sizeof(struct fi_ops_fabric)" = size_of::<OpsFabric>();
        "offsetof(struct fi_ops_domain, endpoint2)" = offset_of!(OpsDomain, endpoint2);
        "offsetof(struct fi_ops_av, av_set)" = offset_of!(OpsAv, av_set);
        "offsetof(struct fi_ops_cq, strerror)" = offset_of!(OpsCq, strerror);
        "offsetof(struct fi_ops_cntr, seterr)" = offset_of!(OpsCntr, seterr);
        "offsetof(struct fi_ops_ep, tx_size_left)" = offset_of!(OpsEp, tx_size_left);
        "sizeof(struct fi_provider)" = size_of::<Provider>();
        "FI_MR_COLLECTIVE" = FI_MR_COLLECTIVE as usize;
        "FI_CLASS_CNTR" = FI_CLASS_CNTR;
        "FI_CLASS_CONNREQ" = FI_CLASS_CONNREQ;
        "FI_CLASS_MC" = FI_CLASS_MC;
        "FI_CLASS_AV_SET" = FI_CLASS_AV_SET;
        "FI_JOIN_COMPLETE" = FI_JOIN_COMPLETE as usize;
        "FI_UNIVERSE" = FI_UNIVERSE as usize;
        "FI_BARRIER_SET | FI_BROADCAST_SET | FI_ALLTOALL_SET | FI_ALLREDUCE_SET | FI_ALLGATHER_SET \
         | FI_REDUCE_SCATTER_SET | FI_REDUCE_SET | FI_SCATTER_SET | FI_GATHER_SET" = FI_COLLECTIVE_SETS as usize;
        "FI_GATHER" = FI_GATHER as usize;
        "FI_VOID" = FI_VOID as usize;
        "FI_NOOP" = FI_NOOP as usize;
        "FI_REFRESH" = FI_REFRESH as usize;
        "FI_UNMAP_KEY" = FI_UNMAP_KEY as usize;
        "FI_GETWAITOBJ" = FI_GETWAITOBJ as usize;
        "FI_MSWAP" = FI_MSWAP as usize;
        "FI_LONG_DOUBLE_COMPLEX" = FI_LONG_DOUBLE_COMPLEX as usize;
        "FI_OPT_FI_HMEM_P2P" = FI_OPT_FI_HMEM_P2P as usize;
        "FI_OPT_XPU_TRIGGER" = FI_OPT_XPU_TRIGGER as usize;
        "FI_HMEM_P2P_PREFERRED" = FI_HMEM_P2P_PREFERRED as usize;
        "FI_ALIAS" = FI_ALIAS as usize;
        "FI_CLASS_STX_CTX" = FI_CLASS_STX_CTX;
        "FI_ADDR_STR" = FI_ADDR_STR as usize;
        "FI_RMA_EVENT" = FI_RMA_EVENT as usize;
        "FI_SELECTIVE_COMPLETION" = FI_SELECTIVE_COMPLETION as usize;
        "FI_REG_MR" = FI_REG_MR as usize;
        "FI_AV_COMPLETE" = FI_AV_COMPLETE as usize;
    };
    if !std::path::Path::new("/usr/include/rdma/fabric.h").exists() {
        println!("skipped: the headers of libfabric are not installed");
        return;
    }
    let checks: String = known
        .iter()
        .map(|(c, ours)| {
            format!("_Static_assert((unsigned long long)({c}) == {ours}ull, \"{c}\");\n")
        })
        .collect();
    let headers = [
        "fabric",
        "fi_domain",
        "fi_endpoint",
        "fi_cm",
        "fi_rma",
        "fi_tagged",
        "fi_atomic",
        "fi_collective",
        "fi_trigger",
        "fi_eq",
        "fi_errno",
        "providers/fi_prov",
    ];
    let includes: String = headers
        .iter()
        .map(|name| format!("#include <rdma/{name}.h>\n"))
        .collect();
    let folder = std::env::temp_dir().join(format!("rkey-fi-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("layout.c");
    std::fs::write(&source, format!("#include <stddef.h>\n{includes}{checks}")).unwrap();
    let compiled = Command::new("cc")
        .arg("-fsyntax-only")
        .arg(&source)
        .output();
    let _ = std::fs::remove_dir_all(&folder);
    let Ok(compiled) = compiled else {
        println!("skipped: there is no C compiler");
        return;
    };
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
}
