//! The exported functions, with the symbol versions of rdma-core 44 (Debian 12) and those added up to 65.
//!
//! Rust cannot version a function, so each exported symbol is a jump in assembly, and `.symver` sets its name and version.
//! `verbs.map` declares the versions to the linker. Symbols of version `IBVERBS_1.0` had another ABI in 2006; programs
//! of that time find no device, so they never call the others.

use core::arch::global_asm;

use rkey_kit::exports;

exports! { "__rkey_0_" "@@IBVERBS_1.0" {
    "ibv_copy_path_rec_from_kern" => crate::convert::copy_path_rec_from_kern,
    "ibv_copy_path_rec_to_kern" => crate::convert::copy_path_rec_to_kern,
    "ibv_copy_qp_attr_from_kern" => crate::convert::copy_qp_attr_from_kern,
    "ibv_create_comp_channel" => crate::channel::create_comp_channel,
    "ibv_destroy_comp_channel" => crate::channel::destroy_comp_channel,
    "ibv_get_sysfs_path" => crate::device::get_sysfs_path,
    "ibv_rate_to_mult" => crate::strings::rate_to_mult,
    "ibv_read_sysfs_file" => crate::device::read_sysfs_file,
    "mult_to_ibv_rate" => crate::strings::mult_to_rate,
} }

exports! { "__rkey_1_" "@@IBVERBS_1.1" {
    "ibv_ack_async_event" => crate::async_event::ack_async_event,
    "ibv_ack_cq_events" => crate::completion_event::ack_cq_events,
    "ibv_alloc_pd" => crate::pd::alloc_pd,
    "ibv_attach_mcast" => crate::mcast::attach_mcast,
    "ibv_close_device" => crate::tables::context::close_device,
    "ibv_copy_ah_attr_from_kern" => crate::convert::copy_ah_attr_from_kern,
    "ibv_create_ah" => crate::ah::create_ah,
    "ibv_create_ah_from_wc" => crate::ah::create_ah_from_wc,
    "ibv_create_cq" => crate::cq::create_cq,
    "ibv_create_qp" => crate::creation::create_qp,
    "ibv_create_srq" => crate::srq::create_srq,
    "ibv_dealloc_pd" => crate::pd::dealloc_pd,
    "ibv_dereg_mr" => crate::mr::dereg_mr,
    "ibv_destroy_ah" => crate::ah::destroy_ah,
    "ibv_destroy_cq" => crate::cq::destroy_cq,
    "ibv_destroy_qp" => crate::creation::destroy_qp,
    "ibv_destroy_srq" => crate::srq::destroy_srq,
    "ibv_detach_mcast" => crate::mcast::detach_mcast,
    "ibv_dofork_range" => crate::fork::fork_range,
    "ibv_dontfork_range" => crate::fork::fork_range,
    "ibv_event_type_str" => crate::strings::event_type_str,
    "ibv_fork_init" => crate::fork::fork_init,
    "ibv_free_device_list" => crate::device::free_device_list,
    "ibv_get_async_event" => crate::async_event::get_async_event,
    "ibv_get_cq_event" => crate::completion_event::get_cq_event,
    "ibv_get_device_guid" => crate::device::get_device_guid,
    "ibv_get_device_list" => crate::device::get_device_list,
    "ibv_get_device_name" => crate::device::get_device_name,
    "ibv_init_ah_from_wc" => crate::ah::init_ah_from_wc,
    "ibv_modify_qp" => crate::qp::modify_qp,
    "ibv_modify_srq" => crate::srq::modify_srq,
    "ibv_node_type_str" => crate::strings::node_type_str,
    "ibv_open_device" => crate::tables::context::open_device,
    "ibv_port_state_str" => crate::strings::port_state_str,
    "ibv_query_device" => crate::query::query_device,
    "ibv_query_gid" => crate::query::query_gid,
    "ibv_query_pkey" => crate::query::query_pkey,
    "ibv_query_port" => crate::query::query_port,
    "ibv_query_qp" => crate::qp::query_qp,
    "ibv_query_srq" => crate::srq::query_srq,
    "ibv_rate_to_mbps" => crate::strings::rate_to_mbps,
    "ibv_reg_mr" => crate::mr::reg_mr,
    "ibv_rereg_mr" => crate::rereg::rereg_mr,
    "ibv_resize_cq" => crate::cq::resize_cq,
    "ibv_resolve_eth_l2_from_gid" => crate::ah::resolve_eth_l2_from_gid,
    "ibv_wc_status_str" => crate::strings::wc_status_str,
    "mbps_to_ibv_rate" => crate::strings::mbps_to_rate,
} }

exports! { "__rkey_2_" "@@IBVERBS_1.10" {
    "ibv_import_device" => crate::tables::context::import_device,
    "ibv_import_mr" => crate::mr::import_mr,
    "ibv_import_pd" => crate::pd::import_pd,
    "ibv_query_ece" => crate::ece::query_ece,
    "ibv_set_ece" => crate::ece::set_ece,
    "ibv_unimport_mr" => crate::mr::unimport_mr,
    "ibv_unimport_pd" => crate::pd::unimport_pd,
} }

exports! { "__rkey_3_" "@@IBVERBS_1.11" {
    "_ibv_query_gid_ex" => crate::query::query_gid_ex,
    "_ibv_query_gid_table" => crate::query::query_gid_table,
} }

exports! { "__rkey_4_" "@@IBVERBS_1.12" {
    "ibv_reg_dmabuf_mr" => crate::mr::reg_dmabuf_mr,
} }

exports! { "__rkey_5_" "@@IBVERBS_1.13" {
    "ibv_import_dm" => crate::dm::import_dm,
    "ibv_is_fork_initialized" => crate::fork::is_fork_initialized,
    "ibv_unimport_dm" => crate::dm::unimport_dm,
} }

exports! { "__rkey_6_" "@@IBVERBS_1.14" {
    "ibv_query_qp_data_in_order" => crate::qp::query_qp_data_in_order,
} }

exports! { "__rkey_7_" "@@IBVERBS_1.5" {
    "ibv_get_pkey_index" => crate::query::get_pkey_index,
} }

exports! { "__rkey_8_" "@@IBVERBS_1.6" {
    "ibv_qp_to_qp_ex" => crate::qp::qp_to_qp_ex,
} }

exports! { "__rkey_9_" "@@IBVERBS_1.7" {
    "ibv_reg_mr_iova" => crate::mr::reg_mr_iova,
} }

exports! { "__rkey_10_" "@@IBVERBS_1.8" {
    "ibv_reg_mr_iova2" => crate::mr::reg_mr_iova2,
} }

exports! { "__rkey_11_" "@@IBVERBS_1.9" {
    "ibv_get_device_index" => crate::device::get_device_index,
} }

exports! { "__rkey_15_" "@@IBVERBS_1.15" {
    "ibv_alloc_dmah" => crate::absent::create,
    "ibv_dealloc_dmah" => crate::absent::use_object,
    "ibv_reg_mr_ex" => crate::mr_ex::reg_mr_ex,
} }

exports! { "__rkey_16_" "@@IBVERBS_1.16" {
    "ibv_dm_export_dmabuf_fd" => crate::absent::export,
    "ibv_query_port_speed" => crate::query::query_port_speed,
} }

exports! { "__rkey_17_" "@@IBVERBS_1.17" {
    "ibv_alloc_buf" => crate::buf::alloc_buf,
    "ibv_free_buf" => crate::buf::free_buf,
    "ibv_reg_buf_mr" => crate::buf::reg_buf_mr,
} }

exports! { "__rkey_18_" "@@IBVERBS_1.18" {
    "ibv_create_comp_cntr" => crate::absent::create,
    "ibv_destroy_comp_cntr" => crate::absent::use_object,
    "ibv_inc_comp_cntr" => crate::absent::use_object,
    "ibv_inc_err_comp_cntr" => crate::absent::use_object,
    "ibv_qp_attach_comp_cntr" => crate::absent::use_object,
    "ibv_query_comp_cntr_caps" => crate::absent::query,
    "ibv_read_comp_cntr" => crate::absent::use_object,
    "ibv_read_err_comp_cntr" => crate::absent::use_object,
    "ibv_set_comp_cntr" => crate::absent::use_object,
    "ibv_set_err_comp_cntr" => crate::absent::use_object,
} }

exports! { "__rkey_12_" "@@IBVERBS_PRIVATE_34" {
    "__ioctl_final_num_attrs" => crate::private::ignore_zero,
    "__verbs_log" => crate::private::ignore,
    "_verbs_init_and_alloc_context" => crate::private::refuse_null,
    "execute_ioctl" => crate::private::refuse,
    "ibv_cmd_advise_mr" => crate::private::refuse,
    "ibv_cmd_alloc_dm" => crate::private::refuse,
    "ibv_cmd_alloc_mw" => crate::private::refuse,
    "ibv_cmd_alloc_pd" => crate::private::refuse,
    "ibv_cmd_attach_mcast" => crate::private::refuse,
    "ibv_cmd_close_xrcd" => crate::private::refuse,
    "ibv_cmd_create_ah" => crate::private::refuse,
    "ibv_cmd_create_counters" => crate::private::refuse,
    "ibv_cmd_create_cq" => crate::private::refuse,
    "ibv_cmd_create_cq_ex" => crate::private::refuse,
    "ibv_cmd_create_flow" => crate::private::refuse,
    "ibv_cmd_create_flow_action_esp" => crate::private::refuse,
    "ibv_cmd_create_qp" => crate::private::refuse,
    "ibv_cmd_create_qp_ex2" => crate::private::refuse,
    "ibv_cmd_create_qp_ex" => crate::private::refuse,
    "ibv_cmd_create_rwq_ind_table" => crate::private::refuse,
    "ibv_cmd_create_srq" => crate::private::refuse,
    "ibv_cmd_create_srq_ex" => crate::private::refuse,
    "ibv_cmd_create_wq" => crate::private::refuse,
    "ibv_cmd_dealloc_mw" => crate::private::refuse,
    "ibv_cmd_dealloc_pd" => crate::private::refuse,
    "ibv_cmd_dereg_mr" => crate::private::refuse,
    "ibv_cmd_destroy_ah" => crate::private::refuse,
    "ibv_cmd_destroy_counters" => crate::private::refuse,
    "ibv_cmd_destroy_cq" => crate::private::refuse,
    "ibv_cmd_destroy_flow" => crate::private::refuse,
    "ibv_cmd_destroy_flow_action" => crate::private::refuse,
    "ibv_cmd_destroy_qp" => crate::private::refuse,
    "ibv_cmd_destroy_rwq_ind_table" => crate::private::refuse,
    "ibv_cmd_destroy_srq" => crate::private::refuse,
    "ibv_cmd_destroy_wq" => crate::private::refuse,
    "ibv_cmd_detach_mcast" => crate::private::refuse,
    "ibv_cmd_free_dm" => crate::private::refuse,
    "ibv_cmd_get_context" => crate::private::refuse,
    "ibv_cmd_modify_cq" => crate::private::refuse,
    "ibv_cmd_modify_flow_action_esp" => crate::private::refuse,
    "ibv_cmd_modify_qp" => crate::private::refuse,
    "ibv_cmd_modify_qp_ex" => crate::private::refuse,
    "ibv_cmd_modify_srq" => crate::private::refuse,
    "ibv_cmd_modify_wq" => crate::private::refuse,
    "ibv_cmd_open_qp" => crate::private::refuse,
    "ibv_cmd_open_xrcd" => crate::private::refuse,
    "ibv_cmd_poll_cq" => crate::private::refuse,
    "ibv_cmd_post_recv" => crate::private::refuse,
    "ibv_cmd_post_send" => crate::private::refuse,
    "ibv_cmd_post_srq_recv" => crate::private::refuse,
    "ibv_cmd_query_context" => crate::private::refuse,
    "ibv_cmd_query_device_any" => crate::private::refuse,
    "ibv_cmd_query_mr" => crate::private::refuse,
    "ibv_cmd_query_port" => crate::private::refuse,
    "ibv_cmd_query_qp" => crate::private::refuse,
    "ibv_cmd_query_srq" => crate::private::refuse,
    "ibv_cmd_read_counters" => crate::private::refuse,
    "ibv_cmd_reg_dm_mr" => crate::private::refuse,
    "ibv_cmd_reg_dmabuf_mr" => crate::private::refuse,
    "ibv_cmd_reg_mr" => crate::private::refuse,
    "ibv_cmd_req_notify_cq" => crate::private::refuse,
    "ibv_cmd_rereg_mr" => crate::private::refuse,
    "ibv_cmd_resize_cq" => crate::private::refuse,
    "ibv_query_gid_type" => crate::query::query_gid_type,
    "ibv_read_ibdev_sysfs_file" => crate::private::refuse_minus_one,
    "verbs_init_cq" => crate::private::ignore,
    "verbs_open_device" => crate::private::refuse_null,
    "verbs_register_driver_34" => crate::private::ignore,
    "verbs_set_ops" => crate::private::ignore,
    "verbs_uninit_context" => crate::private::ignore,
} }

exports! { "__rkey_13_" "@IBVERBS_1.0" {
    "ibv_ack_async_event" => crate::async_event::ack_async_event,
    "ibv_ack_cq_events" => crate::completion_event::ack_cq_events,
    "ibv_alloc_pd" => crate::pd::alloc_pd,
    "ibv_attach_mcast" => crate::mcast::attach_mcast,
    "ibv_close_device" => crate::tables::context::close_device,
    "ibv_create_ah" => crate::ah::create_ah,
    "ibv_create_cq" => crate::cq::create_cq,
    "ibv_create_qp" => crate::creation::create_qp,
    "ibv_create_srq" => crate::srq::create_srq,
    "ibv_dealloc_pd" => crate::pd::dealloc_pd,
    "ibv_dereg_mr" => crate::mr::dereg_mr,
    "ibv_destroy_ah" => crate::ah::destroy_ah,
    "ibv_destroy_cq" => crate::cq::destroy_cq,
    "ibv_destroy_qp" => crate::creation::destroy_qp,
    "ibv_destroy_srq" => crate::srq::destroy_srq,
    "ibv_detach_mcast" => crate::mcast::detach_mcast,
    "ibv_free_device_list" => crate::device::free_device_list,
    "ibv_get_async_event" => crate::async_event::get_async_event,
    "ibv_get_cq_event" => crate::completion_event::get_cq_event,
    "ibv_get_device_guid" => crate::device::get_device_guid,
    "ibv_get_device_list" => crate::device::get_device_list_1_0,
    "ibv_get_device_name" => crate::device::get_device_name,
    "ibv_modify_qp" => crate::qp::modify_qp,
    "ibv_modify_srq" => crate::srq::modify_srq,
    "ibv_open_device" => crate::tables::context::open_device,
    "ibv_query_device" => crate::query::query_device,
    "ibv_query_gid" => crate::query::query_gid,
    "ibv_query_pkey" => crate::query::query_pkey,
    "ibv_query_port" => crate::query::query_port,
    "ibv_query_qp" => crate::qp::query_qp,
    "ibv_query_srq" => crate::srq::query_srq,
    "ibv_reg_mr" => crate::mr::reg_mr,
    "ibv_resize_cq" => crate::cq::resize_cq,
} }

exports! { "__rkey_14_" "@IBVERBS_1.1" {
    "ibv_register_driver" => crate::private::ignore,
} }

// The one exported variable: a flag for provider libraries, which have no device here.
global_asm!(
    ".pushsection .bss",
    ".globl __rkey_allow_disassociate_destroy",
    ".type __rkey_allow_disassociate_destroy,@object",
    "__rkey_allow_disassociate_destroy:",
    ".zero 1",
    ".size __rkey_allow_disassociate_destroy, 1",
    ".symver __rkey_allow_disassociate_destroy, verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34",
    ".popsection",
);
