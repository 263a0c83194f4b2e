//! The parts of librdmacm's headers that the connection manager's front end needs.

use crate::api::{Api, PKG_CONFIG};

/// `abi/rdmacm/src/sys`.
pub fn api() -> Api {
    Api {
        folder: "abi/rdmacm/src/sys",
        source: "`rdma/rdma_cma.h`",
        package: "librdmacm",
        asks: PKG_CONFIG,
        version: "1.3.44",
        headers: &["rdma/rdma_cma.h"],
        types: &[
            "rdma_(event_channel|cm_id|cm_event|addrinfo|cm_join_mc_attr_ex)",
            // Enumerations that no structure names.
            "rdma_(cm_event_type|port_space|cm_join_mc_attr_mask|cm_mc_join_flags)",
        ],
        constants: &["RAI_.*", "RDMA_(MAX_RESP_RES|MAX_INIT_DEPTH|UDP_QKEY|OPTION_.*)"],
        opaque: &[
            ("ibv_context", "Context"),
            ("ibv_qp", "Qp"),
            ("ibv_qp_type", "ibv_qp_type"),
            ("ibv_cq", "Cq"),
            ("ibv_comp_channel", "CompChannel"),
            ("ibv_srq", "Srq"),
            ("ibv_pd", "Pd"),
            ("ibv_ah_attr", "AhAttr"),
            ("ibv_sa_path_rec", "SaPathRec"),
            ("ibv_gid", "Gid"),
            ("sockaddr", "libc::sockaddr"),
            ("sockaddr_in", "libc::sockaddr_in"),
            ("sockaddr_in6", "libc::sockaddr_in6"),
            ("sockaddr_storage", "libc::sockaddr_storage"),
            ("socklen_t", "libc::socklen_t"),
            ("__be16", "u16"),
        ],
        unwanted: &[
            "(ibv|ib|verbs|_ibv|_compat|pthread)_.*|pthread.*",
            "in6?_addr.*|sa_family_t|in_port_t|__(u|be)[0-9]+|__(pthread|atomic|socklen).*",
        ],
        type_prefix: "rdma_",
        alias_prefix: "",
        constant_prefix: "RDMA_",
        names: &[
            ("rdma_addr__bindgen_ty_1", "SourceAddress"),
            ("rdma_addr__bindgen_ty_2", "DestinationAddress"),
            ("rdma_addr__bindgen_ty_3", "Gids"),
            ("rdma_cm_event__bindgen_ty_1", "EventParam"),
        ],
        enums: &[
            ("rdma_cm_join_mc_attr_mask", "u32"),
            ("rdma_cm_mc_join_flags", "u32"),
        ],
        constant_types: &[("RAI_", "c_int"), ("RDMA_MAX_", "u8"), ("RDMA_UDP_QKEY", "u32")],
        lists: &[],
        derives: &[],
        fields: &[
            ("rdma_addr", "__bindgen_anon_1", "src"),
            ("rdma_addr", "__bindgen_anon_2", "dst"),
        ],
        field_types: &[],
        dropped_fields: &[],
        complete_tables: &[],
        later: "",
    }
}
