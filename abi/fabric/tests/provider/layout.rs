//! The generated structures and constants match the headers of the installed libfabric.

#[path = "../../../../tools/bindings/checks.rs"]
mod checks;

use rkey_fi::sys::*;
use std::process::Command;

/// A number: the C expression and ours.
macro_rules! numbers {
    ($($c:literal = $ours:expr;)*) => { [$(($c, $ours)),*] };
}

#[test]
fn sizes_and_offsets_match_the_headers() {
    let known = numbers! {
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
    let (count, layouts) = checks::static_assertions(include_str!("../../src/sys/layouts.rs"));
    assert!(count >= 400, "only {count} checks were found");
    let numbers: String = known
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
    std::fs::write(
        &source,
        format!("#include <stddef.h>\n{includes}{layouts}{numbers}"),
    )
    .unwrap();
    let compiled = Command::new("cc")
        .arg("-fsyntax-only")
        .arg(&source)
        .output();
    let _ = std::fs::remove_dir_all(&folder);
    let Ok(compiled) = compiled else {
        println!("skipped: no C compiler is installed");
        return;
    };
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
}
