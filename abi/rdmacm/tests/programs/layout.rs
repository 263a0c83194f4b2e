//! Compares the generated structures with those that a C compiler lays out.

use crate::support::Stage;
use rdmacm::sys::*;
use std::mem::offset_of;

#[test]
fn structures_have_the_layout_of_the_installed_header() {
    let checks = [
        (
            "sizeof(struct rdma_event_channel)",
            size_of::<EventChannel>(),
        ),
        ("sizeof(struct rdma_cm_id)", size_of::<CmId>()),
        (
            "offsetof(struct rdma_cm_id, route)",
            offset_of!(CmId, route),
        ),
        ("offsetof(struct rdma_cm_id, ps)", offset_of!(CmId, ps)),
        (
            "offsetof(struct rdma_cm_id, event)",
            offset_of!(CmId, event),
        ),
        ("offsetof(struct rdma_cm_id, pd)", offset_of!(CmId, pd)),
        (
            "offsetof(struct rdma_cm_id, qp_type)",
            offset_of!(CmId, qp_type),
        ),
        ("sizeof(struct rdma_route)", size_of::<Route>()),
        ("sizeof(struct rdma_addr)", size_of::<Addr>()),
        ("sizeof(struct rdma_cm_event)", size_of::<CmEvent>()),
        (
            "offsetof(struct rdma_cm_event, param)",
            offset_of!(CmEvent, param),
        ),
        ("sizeof(struct rdma_conn_param)", size_of::<ConnParam>()),
        ("sizeof(struct rdma_ud_param)", size_of::<UdParam>()),
        (
            "offsetof(struct rdma_ud_param, qkey)",
            offset_of!(UdParam, qkey),
        ),
        ("sizeof(struct rdma_addrinfo)", size_of::<Addrinfo>()),
        (
            "offsetof(struct rdma_addrinfo, ai_next)",
            offset_of!(Addrinfo, ai_next),
        ),
    ];
    let asserts: String = checks
        .iter()
        .map(|(what, number)| format!("_Static_assert({what} == {number}, \"{what}\");\n"))
        .collect();
    let source = format!(
        "#include <stddef.h>\n#include <rdma/rdma_cma.h>\n{asserts}int main(void) {{ return 0; }}\n"
    );
    Stage::new("layout").compile("layout", &source, &[]);
}
