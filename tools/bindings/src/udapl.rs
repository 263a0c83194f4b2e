//! The parts of DAT's headers that the uDAPL front end needs.

use crate::api::Api;

/// `abi/udapl/src/sys`.
pub fn api() -> Api {
    Api {
        folder: "abi/udapl/src/sys",
        source: "`dat2/udat.h` and its extensions for InfiniBand",
        package: "libdapl-dev",
        // DAT's headers have no pkg-config file.
        asks: &["dpkg-query", "-W", "-f", "${Version}"],
        version: "2.1.10",
        headers: &[
            "netinet/in.h",
            "dat2/udat.h",
            "dat2/dat_registry.h",
            "dat2/dat_ib_extensions.h",
        ],
        types: &[
            // The provider's table names nearly every structure; these are the others.
            "dat_provider",
            "dat_provider_info",
            "dat_event",
            "dat_ib_extension_event_data",
            // Enumerations that no structure names.
            "dat_return_(type|subtype)",
            "dat_(boolean|evd_flags|handle_type|extension|proxy_type|srq_state|dtos|ep_state|evd_state)",
            "dat_(cno|cr|evd|lmr|pz|psp|rmr|rsp|srq|csp)_param_mask",
            "(ia|ep|evd|srq|lmr|rmr|pz)_async_error_reason",
            "dat_ib_(event_number|op|ext_type|status|dtos|evd_extension_flags|mem_priv_flags|service_type)",
            "dat_(ia|ep|evd)_counters",
            "dat_ia_counter_type",
        ],
        constants: &[
            "DAT_(CLASS_ERROR|CLASS_WARNING|TYPE_MASK|SUBTYPE_MASK|NAME_MAX_LENGTH|LMR_COOKIE_SIZE)",
            "DAT_IB_(EXTENSION_VERSION|ATTR_.*)",
            "DAT_IB_EXTENSION",
        ],
        opaque: &[
            ("DAT_UINT32", "u32"),
            ("DAT_UINT64", "u64"),
            ("DAT_UVERYLONG", "u64"),
            ("DAT_SOCK_ADDR", "libc::sockaddr"),
            ("DAT_SOCK_ADDR6", "libc::sockaddr_in6"),
            ("sockaddr_in6", "libc::sockaddr_in6"),
            ("__va_list_tag", "VaListTag"),
            // The provider's own name for a peer.
            ("ibv_ah", "c_void"),
        ],
        unwanted: &[
            "sockaddr|in6_addr.*|sa_family_t|in_port_t",
            "va_list|__gnuc_va_list|__builtin_va_list|u_int(32|64)_t|__uint(32|64)_t",
        ],
        type_prefix: "dat_",
        alias_prefix: "DAT_",
        constant_prefix: "DAT_",
        names: &[
            (
                "dat_ib_extension_event_data__bindgen_ty_1",
                "IbExtensionEventValue",
            ),
            (
                "dat_ib_extension_event_data__bindgen_ty_2",
                "IbExtensionEventSubject",
            ),
            ("dat_cno_param__bindgen_ty_1", "CnoProxy"),
        ],
        enums: &[
            ("dat_return_type", "u32"),
            ("dat_return_subtype", "u32"),
            ("dat_completion_flags", "u32"),
            ("dat_mem_priv_flags", "u32"),
            ("dat_ib_mem_priv_flags", "u32"),
            ("dat_evd_flags", "u32"),
            ("dat_ib_evd_extension_flags", "u32"),
            ("dat_evd_state", "u32"),
            ("dat_psp_flags", "u32"),
            ("dat_close_flags", "u32"),
            ("dat_connect_flags", "u32"),
            ("dat_cno_param_mask", "u32"),
            ("dat_cr_param_mask", "u32"),
            ("dat_evd_param_mask", "u32"),
            ("dat_lmr_param_mask", "u32"),
            ("dat_pz_param_mask", "u32"),
            ("dat_psp_param_mask", "u32"),
            ("dat_rmr_param_mask", "u32"),
            ("dat_rsp_param_mask", "u32"),
            ("dat_srq_param_mask", "u32"),
            ("dat_csp_param_mask", "u32"),
        ],
        constant_types: &[
            ("DAT_CLASS_", "u32"),
            ("DAT_TYPE_MASK", "u32"),
            ("DAT_SUBTYPE_MASK", "u32"),
            ("DAT_NAME_MAX_LENGTH", "usize"),
            ("DAT_LMR_COOKIE_SIZE", "usize"),
            ("DAT_IB_EXTENSION_VERSION", "c_int"),
        ],
        lists: &[
            ("RETURN_TYPES", "dat_return_type"),
            ("RETURN_SUBTYPES", "dat_return_subtype"),
            ("EVENT_NUMBERS", "dat_event_number"),
            ("EP_STATES", "dat_ep_state"),
        ],
        derives: &[
            ("dat_lmr_triplet", VALUE),
            ("dat_rmr_triplet", VALUE),
            ("dat_srq_attr", VALUE),
        ],
        fields: &[
            ("dat_ib_extension_event_data", "__bindgen_anon_1", "subject"),
            ("dat_ib_extension_event_data", "type_", "kind"),
        ],
        field_types: &[],
        dropped_fields: &[],
        complete_tables: &[],
        later: "",
    }
}

/// Plain values, which are compared and printed.
const VALUE: &[&str] = &["Debug", "Default", "PartialEq", "Eq"];
