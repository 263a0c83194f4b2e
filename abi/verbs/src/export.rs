//! The exported functions, with the symbol versions of rdma-core 44 (Debian 12) and those added up to 65.
//!
//! Rust cannot version a function, so each exported symbol is a jump in assembly, and `.symver` sets its name and version.
//! `verbs.map` declares the versions to the linker. Symbols of version `IBVERBS_1.0` had another ABI in 2006; programs
//! of that time find no device, so they never call the others.

use core::arch::global_asm;

use rkey_kit::exports;

exports! { "__rkey_0_" "@@IBVERBS_1.0" {
    "ibv_copy_path_rec_from_kern" => crate::translate::convert::copy_path_rec_from_kern,
    "ibv_copy_path_rec_to_kern" => crate::translate::convert::copy_path_rec_to_kern,
    "ibv_copy_qp_attr_from_kern" => crate::translate::convert::copy_qp_attr_from_kern,
    "ibv_create_comp_channel" => crate::completion::channel::create_comp_channel,
    "ibv_destroy_comp_channel" => crate::completion::channel::destroy_comp_channel,
    "ibv_get_sysfs_path" => crate::device::devices::get_sysfs_path,
    "ibv_rate_to_mult" => crate::translate::strings::rate_to_mult,
    "ibv_read_sysfs_file" => crate::device::devices::read_sysfs_file,
    "mult_to_ibv_rate" => crate::translate::strings::mult_to_rate,
} }

exports! { "__rkey_1_" "@@IBVERBS_1.1" {
    "ibv_ack_async_event" => crate::events::async_event::ack_async_event,
    "ibv_ack_cq_events" => crate::events::completion_event::ack_cq_events,
    "ibv_alloc_pd" => crate::memory::pd::alloc_pd,
    "ibv_attach_mcast" => crate::queues::mcast::attach_mcast,
    "ibv_close_device" => crate::tables::context::close_device,
    "ibv_copy_ah_attr_from_kern" => crate::translate::convert::copy_ah_attr_from_kern,
    "ibv_create_ah" => crate::queues::ah::create_ah,
    "ibv_create_ah_from_wc" => crate::queues::ah::create_ah_from_wc,
    "ibv_create_cq" => crate::completion::cq::create_cq,
    "ibv_create_qp" => crate::queues::creation::create_qp,
    "ibv_create_srq" => crate::queues::srq::create_srq,
    "ibv_dealloc_pd" => crate::memory::pd::dealloc_pd,
    "ibv_dereg_mr" => crate::memory::mr::dereg_mr,
    "ibv_destroy_ah" => crate::queues::ah::destroy_ah,
    "ibv_destroy_cq" => crate::completion::cq::destroy_cq,
    "ibv_destroy_qp" => crate::queues::creation::destroy_qp,
    "ibv_destroy_srq" => crate::queues::srq::destroy_srq,
    "ibv_detach_mcast" => crate::queues::mcast::detach_mcast,
    "ibv_dofork_range" => crate::compat::fork::fork_range,
    "ibv_dontfork_range" => crate::compat::fork::fork_range,
    "ibv_event_type_str" => crate::translate::strings::event_type_str,
    "ibv_fork_init" => crate::compat::fork::fork_init,
    "ibv_free_device_list" => crate::device::devices::free_device_list,
    "ibv_get_async_event" => crate::events::async_event::get_async_event,
    "ibv_get_cq_event" => crate::events::completion_event::get_cq_event,
    "ibv_get_device_guid" => crate::device::devices::get_device_guid,
    "ibv_get_device_list" => crate::device::devices::get_device_list,
    "ibv_get_device_name" => crate::device::devices::get_device_name,
    "ibv_init_ah_from_wc" => crate::queues::ah::init_ah_from_wc,
    "ibv_modify_qp" => crate::queues::qp::modify_qp,
    "ibv_modify_srq" => crate::queues::srq::modify_srq,
    "ibv_node_type_str" => crate::translate::strings::node_type_str,
    "ibv_open_device" => crate::tables::context::open_device,
    "ibv_port_state_str" => crate::translate::strings::port_state_str,
    "ibv_query_device" => crate::device::query::query_device,
    "ibv_query_gid" => crate::device::query::query_gid,
    "ibv_query_pkey" => crate::device::query::query_pkey,
    "ibv_query_port" => crate::device::query::query_port,
    "ibv_query_qp" => crate::queues::qp::query_qp,
    "ibv_query_srq" => crate::queues::srq::query_srq,
    "ibv_rate_to_mbps" => crate::translate::strings::rate_to_mbps,
    "ibv_reg_mr" => crate::memory::mr::reg_mr,
    "ibv_rereg_mr" => crate::memory::rereg::rereg_mr,
    "ibv_resize_cq" => crate::completion::cq::resize_cq,
    "ibv_resolve_eth_l2_from_gid" => crate::queues::ah::resolve_eth_l2_from_gid,
    "ibv_wc_status_str" => crate::translate::strings::wc_status_str,
    "mbps_to_ibv_rate" => crate::translate::strings::mbps_to_rate,
} }

exports! { "__rkey_2_" "@@IBVERBS_1.10" {
    "ibv_import_device" => crate::tables::context::import_device,
    "ibv_import_mr" => crate::memory::mr::import_mr,
    "ibv_import_pd" => crate::memory::pd::import_pd,
    "ibv_query_ece" => crate::queues::ece::query_ece,
    "ibv_set_ece" => crate::queues::ece::set_ece,
    "ibv_unimport_mr" => crate::memory::mr::unimport_mr,
    "ibv_unimport_pd" => crate::memory::pd::unimport_pd,
} }

exports! { "__rkey_3_" "@@IBVERBS_1.11" {
    "_ibv_query_gid_ex" => crate::device::query::query_gid_ex,
    "_ibv_query_gid_table" => crate::device::query::query_gid_table,
} }

exports! { "__rkey_4_" "@@IBVERBS_1.12" {
    "ibv_reg_dmabuf_mr" => crate::memory::mr::reg_dmabuf_mr,
} }

exports! { "__rkey_5_" "@@IBVERBS_1.13" {
    "ibv_import_dm" => crate::memory::dm::import_dm,
    "ibv_is_fork_initialized" => crate::compat::fork::is_fork_initialized,
    "ibv_unimport_dm" => crate::memory::dm::unimport_dm,
} }

exports! { "__rkey_6_" "@@IBVERBS_1.14" {
    "ibv_query_qp_data_in_order" => crate::queues::qp::query_qp_data_in_order,
} }

exports! { "__rkey_7_" "@@IBVERBS_1.5" {
    "ibv_get_pkey_index" => crate::device::query::get_pkey_index,
} }

exports! { "__rkey_8_" "@@IBVERBS_1.6" {
    "ibv_qp_to_qp_ex" => crate::queues::qp::qp_to_qp_ex,
} }

exports! { "__rkey_9_" "@@IBVERBS_1.7" {
    "ibv_reg_mr_iova" => crate::memory::mr::reg_mr_iova,
} }

exports! { "__rkey_10_" "@@IBVERBS_1.8" {
    "ibv_reg_mr_iova2" => crate::memory::mr::reg_mr_iova2,
} }

exports! { "__rkey_11_" "@@IBVERBS_1.9" {
    "ibv_get_device_index" => crate::device::devices::get_device_index,
} }

exports! { "__rkey_15_" "@@IBVERBS_1.15" {
    "ibv_alloc_dmah" => crate::compat::absent::create,
    "ibv_dealloc_dmah" => crate::compat::absent::use_object,
    "ibv_reg_mr_ex" => crate::memory::mr_ex::reg_mr_ex,
} }

exports! { "__rkey_16_" "@@IBVERBS_1.16" {
    "ibv_dm_export_dmabuf_fd" => crate::compat::absent::export,
    "ibv_query_port_speed" => crate::device::query::query_port_speed,
} }

exports! { "__rkey_17_" "@@IBVERBS_1.17" {
    "ibv_alloc_buf" => crate::memory::buf::alloc_buf,
    "ibv_free_buf" => crate::memory::buf::free_buf,
    "ibv_reg_buf_mr" => crate::memory::buf::reg_buf_mr,
} }

exports! { "__rkey_18_" "@@IBVERBS_1.18" {
    "ibv_create_comp_cntr" => crate::compat::absent::create,
    "ibv_destroy_comp_cntr" => crate::compat::absent::use_object,
    "ibv_inc_comp_cntr" => crate::compat::absent::use_object,
    "ibv_inc_err_comp_cntr" => crate::compat::absent::use_object,
    "ibv_qp_attach_comp_cntr" => crate::compat::absent::use_object,
    "ibv_query_comp_cntr_caps" => crate::compat::absent::query,
    "ibv_read_comp_cntr" => crate::compat::absent::use_object,
    "ibv_read_err_comp_cntr" => crate::compat::absent::use_object,
    "ibv_set_comp_cntr" => crate::compat::absent::use_object,
    "ibv_set_err_comp_cntr" => crate::compat::absent::use_object,
} }

exports! { "__rkey_12_" "@@IBVERBS_PRIVATE_34" {
    "__ioctl_final_num_attrs" => crate::compat::private::ignore_zero,
    "__verbs_log" => crate::compat::private::ignore,
    "_verbs_init_and_alloc_context" => crate::compat::private::refuse_null,
    "execute_ioctl" => crate::compat::private::refuse,
    "ibv_cmd_advise_mr" => crate::compat::private::refuse,
    "ibv_cmd_alloc_dm" => crate::compat::private::refuse,
    "ibv_cmd_alloc_mw" => crate::compat::private::refuse,
    "ibv_cmd_alloc_pd" => crate::compat::private::refuse,
    "ibv_cmd_attach_mcast" => crate::compat::private::refuse,
    "ibv_cmd_close_xrcd" => crate::compat::private::refuse,
    "ibv_cmd_create_ah" => crate::compat::private::refuse,
    "ibv_cmd_create_counters" => crate::compat::private::refuse,
    "ibv_cmd_create_cq" => crate::compat::private::refuse,
    "ibv_cmd_create_cq_ex" => crate::compat::private::refuse,
    "ibv_cmd_create_flow" => crate::compat::private::refuse,
    "ibv_cmd_create_flow_action_esp" => crate::compat::private::refuse,
    "ibv_cmd_create_qp" => crate::compat::private::refuse,
    "ibv_cmd_create_qp_ex2" => crate::compat::private::refuse,
    "ibv_cmd_create_qp_ex" => crate::compat::private::refuse,
    "ibv_cmd_create_rwq_ind_table" => crate::compat::private::refuse,
    "ibv_cmd_create_srq" => crate::compat::private::refuse,
    "ibv_cmd_create_srq_ex" => crate::compat::private::refuse,
    "ibv_cmd_create_wq" => crate::compat::private::refuse,
    "ibv_cmd_dealloc_mw" => crate::compat::private::refuse,
    "ibv_cmd_dealloc_pd" => crate::compat::private::refuse,
    "ibv_cmd_dereg_mr" => crate::compat::private::refuse,
    "ibv_cmd_destroy_ah" => crate::compat::private::refuse,
    "ibv_cmd_destroy_counters" => crate::compat::private::refuse,
    "ibv_cmd_destroy_cq" => crate::compat::private::refuse,
    "ibv_cmd_destroy_flow" => crate::compat::private::refuse,
    "ibv_cmd_destroy_flow_action" => crate::compat::private::refuse,
    "ibv_cmd_destroy_qp" => crate::compat::private::refuse,
    "ibv_cmd_destroy_rwq_ind_table" => crate::compat::private::refuse,
    "ibv_cmd_destroy_srq" => crate::compat::private::refuse,
    "ibv_cmd_destroy_wq" => crate::compat::private::refuse,
    "ibv_cmd_detach_mcast" => crate::compat::private::refuse,
    "ibv_cmd_free_dm" => crate::compat::private::refuse,
    "ibv_cmd_get_context" => crate::compat::private::refuse,
    "ibv_cmd_modify_cq" => crate::compat::private::refuse,
    "ibv_cmd_modify_flow_action_esp" => crate::compat::private::refuse,
    "ibv_cmd_modify_qp" => crate::compat::private::refuse,
    "ibv_cmd_modify_qp_ex" => crate::compat::private::refuse,
    "ibv_cmd_modify_srq" => crate::compat::private::refuse,
    "ibv_cmd_modify_wq" => crate::compat::private::refuse,
    "ibv_cmd_open_qp" => crate::compat::private::refuse,
    "ibv_cmd_open_xrcd" => crate::compat::private::refuse,
    "ibv_cmd_poll_cq" => crate::compat::private::refuse,
    "ibv_cmd_post_recv" => crate::compat::private::refuse,
    "ibv_cmd_post_send" => crate::compat::private::refuse,
    "ibv_cmd_post_srq_recv" => crate::compat::private::refuse,
    "ibv_cmd_query_context" => crate::compat::private::refuse,
    "ibv_cmd_query_device_any" => crate::compat::private::refuse,
    "ibv_cmd_query_mr" => crate::compat::private::refuse,
    "ibv_cmd_query_port" => crate::compat::private::refuse,
    "ibv_cmd_query_qp" => crate::compat::private::refuse,
    "ibv_cmd_query_srq" => crate::compat::private::refuse,
    "ibv_cmd_read_counters" => crate::compat::private::refuse,
    "ibv_cmd_reg_dm_mr" => crate::compat::private::refuse,
    "ibv_cmd_reg_dmabuf_mr" => crate::compat::private::refuse,
    "ibv_cmd_reg_mr" => crate::compat::private::refuse,
    "ibv_cmd_req_notify_cq" => crate::compat::private::refuse,
    "ibv_cmd_rereg_mr" => crate::compat::private::refuse,
    "ibv_cmd_resize_cq" => crate::compat::private::refuse,
    "ibv_query_gid_type" => crate::device::query::query_gid_type,
    "ibv_read_ibdev_sysfs_file" => crate::compat::private::refuse_minus_one,
    "verbs_init_cq" => crate::compat::private::ignore,
    "verbs_open_device" => crate::compat::private::refuse_null,
    "verbs_register_driver_34" => crate::compat::private::ignore,
    "verbs_set_ops" => crate::compat::private::ignore,
    "verbs_uninit_context" => crate::compat::private::ignore,
} }

exports! { "__rkey_13_" "@IBVERBS_1.0" {
    "ibv_ack_async_event" => crate::events::async_event::ack_async_event,
    "ibv_ack_cq_events" => crate::events::completion_event::ack_cq_events,
    "ibv_alloc_pd" => crate::memory::pd::alloc_pd,
    "ibv_attach_mcast" => crate::queues::mcast::attach_mcast,
    "ibv_close_device" => crate::tables::context::close_device,
    "ibv_create_ah" => crate::queues::ah::create_ah,
    "ibv_create_cq" => crate::completion::cq::create_cq,
    "ibv_create_qp" => crate::queues::creation::create_qp,
    "ibv_create_srq" => crate::queues::srq::create_srq,
    "ibv_dealloc_pd" => crate::memory::pd::dealloc_pd,
    "ibv_dereg_mr" => crate::memory::mr::dereg_mr,
    "ibv_destroy_ah" => crate::queues::ah::destroy_ah,
    "ibv_destroy_cq" => crate::completion::cq::destroy_cq,
    "ibv_destroy_qp" => crate::queues::creation::destroy_qp,
    "ibv_destroy_srq" => crate::queues::srq::destroy_srq,
    "ibv_detach_mcast" => crate::queues::mcast::detach_mcast,
    "ibv_free_device_list" => crate::device::devices::free_device_list,
    "ibv_get_async_event" => crate::events::async_event::get_async_event,
    "ibv_get_cq_event" => crate::events::completion_event::get_cq_event,
    "ibv_get_device_guid" => crate::device::devices::get_device_guid,
    "ibv_get_device_list" => crate::device::devices::get_device_list_1_0,
    "ibv_get_device_name" => crate::device::devices::get_device_name,
    "ibv_modify_qp" => crate::queues::qp::modify_qp,
    "ibv_modify_srq" => crate::queues::srq::modify_srq,
    "ibv_open_device" => crate::tables::context::open_device,
    "ibv_query_device" => crate::device::query::query_device,
    "ibv_query_gid" => crate::device::query::query_gid,
    "ibv_query_pkey" => crate::device::query::query_pkey,
    "ibv_query_port" => crate::device::query::query_port,
    "ibv_query_qp" => crate::queues::qp::query_qp,
    "ibv_query_srq" => crate::queues::srq::query_srq,
    "ibv_reg_mr" => crate::memory::mr::reg_mr,
    "ibv_resize_cq" => crate::completion::cq::resize_cq,
} }

exports! { "__rkey_14_" "@IBVERBS_1.1" {
    "ibv_register_driver" => crate::compat::private::ignore,
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
