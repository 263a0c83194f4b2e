//! Structures as text.

#![allow(unsafe_code)]
// UNSAFETY: reads structures of the program.

use super::names::{self, extensible, flags, value};
use super::{address, pointer};
use rkey_fi::sys::{
    DomainAttr, EpAttr, FI_ORDER_DATA, FI_ORDER_STRICT, FI_SHARED_CONTEXT, FabricAttr, Info,
    RxAttr, TxAttr,
};
use std::ffi::{CStr, c_char};

/// The lines of a structure: its name, then a line for each field.
struct Lines {
    text: String,
    indent: String,
}

impl Lines {
    fn new(name: &str, indent: &str) -> Self {
        Self {
            text: format!("{indent}{name}:\n"),
            indent: format!("{indent}    "),
        }
    }

    fn field(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.text += &format!("{}{name}: {value}\n", self.indent);
        self
    }

    fn flags(self, name: &str, set: u64, names: names::Flags) -> Self {
        let words = flags(set, names);
        self.field(name, format_args!("[ {words} ]"))
    }
}

fn missing(name: &str, indent: &str) -> String {
    format!("{indent}{name}: (null)\n")
}

/// # Safety
/// `text` is null or a C string.
unsafe fn string(text: *const c_char) -> String {
    match text.is_null() {
        true => "(null)".to_owned(),
        // SAFETY: not null, so a C string, as the caller promises.
        false => unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    }
}

fn version(number: u32) -> String {
    format!("{}.{}", number >> 16, number & 0xffff)
}

/// The number of contexts of an endpoint, or `FI_SHARED_CONTEXT`.
fn contexts(count: usize) -> String {
    match count {
        FI_SHARED_CONTEXT => "FI_SHARED_CONTEXT".to_owned(),
        count => count.to_string(),
    }
}

/// The order of completions. Orders between `FI_ORDER_NONE` and `FI_ORDER_STRICT` have no names.
fn completion_order(order: u64) -> String {
    let strict = match order & FI_ORDER_STRICT {
        0 => Some("FI_ORDER_NONE"),
        FI_ORDER_STRICT => Some("FI_ORDER_STRICT"),
        _ => None,
    };
    let data = (order & FI_ORDER_DATA != 0).then_some("FI_ORDER_DATA");
    let words: Vec<&str> = strict.into_iter().chain(data).collect();
    format!("[ {} ]", words.join(", "))
}

/// # Safety
/// `attr` is null or points to attributes.
pub(super) unsafe fn tx_attr(attr: *const TxAttr, indent: &str) -> String {
    // SAFETY: guaranteed by the caller.
    let Some(it) = (unsafe { attr.as_ref() }) else {
        return missing("fi_tx_attr", indent);
    };
    Lines::new("fi_tx_attr", indent)
        .flags("caps", it.caps, names::CAPS)
        .flags("mode", it.mode, names::MODE)
        .flags("op_flags", it.op_flags, names::OP_FLAGS)
        .flags("msg_order", it.msg_order, names::ORDER)
        .field("comp_order", completion_order(it.comp_order))
        .field("inject_size", it.inject_size)
        .field("size", it.size)
        .field("iov_limit", it.iov_limit)
        .field("rma_iov_limit", it.rma_iov_limit)
        .field("tclass", format_args!("{:#x}", it.tclass))
        .text
}

/// # Safety
/// `attr` is null or points to attributes.
pub(super) unsafe fn rx_attr(attr: *const RxAttr, indent: &str) -> String {
    // SAFETY: guaranteed by the caller.
    let Some(it) = (unsafe { attr.as_ref() }) else {
        return missing("fi_rx_attr", indent);
    };
    Lines::new("fi_rx_attr", indent)
        .flags("caps", it.caps, names::CAPS)
        .flags("mode", it.mode, names::MODE)
        .flags("op_flags", it.op_flags, names::OP_FLAGS)
        .flags("msg_order", it.msg_order, names::ORDER)
        .field("comp_order", completion_order(it.comp_order))
        .field("total_buffered_recv", it.total_buffered_recv)
        .field("size", it.size)
        .field("iov_limit", it.iov_limit)
        .text
}

/// # Safety
/// `attr` is null or points to attributes.
pub(super) unsafe fn ep_attr(attr: *const EpAttr, indent: &str) -> String {
    // SAFETY: guaranteed by the caller.
    let Some(it) = (unsafe { attr.as_ref() }) else {
        return missing("fi_ep_attr", indent);
    };
    Lines::new("fi_ep_attr", indent)
        .field("type", value(it.ep_type.cast_unsigned(), names::EP_TYPE))
        .field("protocol", extensible(it.protocol, names::PROTOCOL))
        .field("protocol_version", it.protocol_version)
        .field("max_msg_size", it.max_msg_size)
        .field("msg_prefix_size", it.msg_prefix_size)
        .field("max_order_raw_size", it.max_order_raw_size)
        .field("max_order_war_size", it.max_order_war_size)
        .field("max_order_waw_size", it.max_order_waw_size)
        .field(
            "mem_tag_format",
            format_args!("{:#018x}", it.mem_tag_format),
        )
        .field("tx_ctx_cnt", contexts(it.tx_ctx_cnt))
        .field("rx_ctx_cnt", contexts(it.rx_ctx_cnt))
        .field("auth_key_size", it.auth_key_size)
        .text
}

/// The fields of 1.17 only, because this function cannot know whether the program's structure is longer.
///
/// # Safety
/// `attr` is null or points to attributes.
pub(super) unsafe fn domain_attr(attr: *const DomainAttr, indent: &str) -> String {
    // SAFETY: guaranteed by the caller.
    let Some(it) = (unsafe { attr.as_ref() }) else {
        return missing("fi_domain_attr", indent);
    };
    let word = |number: i32, names| value(number.cast_unsigned(), names);
    Lines::new("fi_domain_attr", indent)
        .field("domain", format_args!("{:#x}", it.domain as usize))
        // SAFETY: guaranteed by the caller.
        .field("name", unsafe { string(it.name) })
        .field("threading", word(it.threading, names::THREADING))
        .field(
            "control_progress",
            word(it.control_progress, names::PROGRESS),
        )
        .field("data_progress", word(it.data_progress, names::PROGRESS))
        .field(
            "resource_mgmt",
            word(it.resource_mgmt, names::RESOURCE_MGMT),
        )
        .field("av_type", word(it.av_type, names::AV_TYPE))
        .flags("mr_mode", it.mr_mode.cast_unsigned().into(), names::MR_MODE)
        .field("mr_key_size", it.mr_key_size)
        .field("cq_data_size", it.cq_data_size)
        .field("cq_cnt", it.cq_cnt)
        .field("ep_cnt", it.ep_cnt)
        .field("tx_ctx_cnt", it.tx_ctx_cnt)
        .field("rx_ctx_cnt", it.rx_ctx_cnt)
        .field("max_ep_tx_ctx", it.max_ep_tx_ctx)
        .field("max_ep_rx_ctx", it.max_ep_rx_ctx)
        .field("max_ep_stx_ctx", it.max_ep_stx_ctx)
        .field("max_ep_srx_ctx", it.max_ep_srx_ctx)
        .field("cntr_cnt", it.cntr_cnt)
        .field("mr_iov_limit", it.mr_iov_limit)
        .flags("caps", it.caps, names::CAPS)
        .flags("mode", it.mode, names::MODE)
        .field("auth_key_size", it.auth_key_size)
        .field("max_err_data", it.max_err_data)
        .field("mr_cnt", it.mr_cnt)
        .field("tclass", format_args!("{:#x}", it.tclass))
        .text
}

/// # Safety
/// `attr` is null or points to attributes.
pub(super) unsafe fn fabric_attr(attr: *const FabricAttr, indent: &str) -> String {
    // SAFETY: guaranteed by the caller.
    let Some(it) = (unsafe { attr.as_ref() }) else {
        return missing("fi_fabric_attr", indent);
    };
    // SAFETY: guaranteed by the caller.
    let (name, prov_name) = unsafe { (string(it.name), string(it.prov_name)) };
    Lines::new("fi_fabric_attr", indent)
        .field("name", name)
        .field("prov_name", prov_name)
        .field("prov_version", version(it.prov_version))
        .field("api_version", version(it.api_version))
        .text
}

/// # Safety
/// `info` points to a valid `fi_info`.
pub(super) unsafe fn info(info: *const Info) -> String {
    const INDENT: &str = "    ";
    // SAFETY: guaranteed by the caller.
    let it = unsafe { &*info };
    // SAFETY: guaranteed by the caller.
    let (source, dest) = unsafe {
        (
            address::text(it.addr_format, it.src_addr),
            address::text(it.addr_format, it.dest_addr),
        )
    };
    let head = Lines::new("fi_info", "")
        .flags("caps", it.caps, names::CAPS)
        .flags("mode", it.mode, names::MODE)
        .field(
            "addr_format",
            extensible(it.addr_format, names::ADDR_FORMAT),
        )
        .field("src_addrlen", it.src_addrlen)
        .field("dest_addrlen", it.dest_addrlen)
        .field("src_addr", source)
        .field("dest_addr", dest)
        .field("handle", pointer(it.handle.cast()))
        .text;
    // SAFETY: guaranteed by the caller.
    unsafe {
        [
            head,
            tx_attr(it.tx_attr, INDENT),
            rx_attr(it.rx_attr, INDENT),
            ep_attr(it.ep_attr, INDENT),
            domain_attr(it.domain_attr, INDENT),
            fabric_attr(it.fabric_attr, INDENT),
            format!("{INDENT}nic: {}\n", pointer(it.nic)),
        ]
        .concat()
    }
}
