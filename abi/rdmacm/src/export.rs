//! The exported functions, with the symbol versions of rdma-core 44 (Debian 12) and those added up to 61.
//!
//! Rust cannot version a function, so each exported symbol is a jump in assembly, and `.symver` sets its name and version.
//! `rdmacm.map` declares the versions to the linker.

use rkey_kit::exports;

exports! { "__rkey_cm_" "@@RDMACM_1.0" {
    "rdma_accept" => crate::accept::accept,
    "rdma_ack_cm_event" => crate::event::ack_cm_event,
    "rdma_bind_addr" => crate::bind::bind_addr,
    "rdma_connect" => crate::connect::connect,
    "rdma_create_ep" => crate::endpoint::create_ep,
    "rdma_create_event_channel" => crate::channel::create_event_channel,
    "rdma_create_id" => crate::ids::create_id,
    "rdma_create_qp" => crate::qp::create_qp,
    "rdma_create_qp_ex" => crate::qp::create_qp_ex,
    "rdma_create_srq" => crate::srq::create_srq,
    "rdma_create_srq_ex" => crate::srq::create_srq_ex,
    "rdma_destroy_ep" => crate::endpoint::destroy_ep,
    "rdma_destroy_event_channel" => crate::channel::destroy_event_channel,
    "rdma_destroy_id" => crate::ids::destroy_id,
    "rdma_destroy_qp" => crate::qp::destroy_qp,
    "rdma_destroy_srq" => crate::srq::destroy_srq,
    "rdma_disconnect" => crate::connect::disconnect,
    "rdma_event_str" => crate::event::event_str,
    "rdma_free_devices" => crate::devices::free_devices,
    "rdma_freeaddrinfo" => crate::addrinfo::freeaddrinfo,
    "rdma_get_cm_event" => crate::next_event::get_cm_event,
    "rdma_get_devices" => crate::devices::get_devices,
    "rdma_get_dst_port" => crate::ids::get_dst_port,
    "rdma_get_request" => crate::endpoint::get_request,
    "rdma_get_src_port" => crate::ids::get_src_port,
    "rdma_getaddrinfo" => crate::addrinfo::getaddrinfo,
    "rdma_join_multicast" => crate::multicast::join_multicast,
    "rdma_leave_multicast" => crate::multicast::leave_multicast,
    "rdma_listen" => crate::bind::listen,
    "rdma_migrate_id" => crate::ids::migrate_id,
    "rdma_notify" => crate::connect::notify,
    "rdma_reject" => crate::accept::reject,
    "rdma_resolve_addr" => crate::resolve::resolve_addr,
    "rdma_resolve_route" => crate::resolve::resolve_route,
    "rdma_set_option" => crate::options::set_option,
    "raccept" => crate::rsocket::open::raccept,
    "rbind" => crate::rsocket::open::rbind,
    "rclose" => crate::rsocket::closing::rclose,
    "rconnect" => crate::rsocket::connecting::rconnect,
    "rfcntl" => crate::rsocket::setting::rfcntl,
    "rgetpeername" => crate::rsocket::names::rgetpeername,
    "rgetsockname" => crate::rsocket::names::rgetsockname,
    "rgetsockopt" => crate::rsocket::setting::rgetsockopt,
    "riomap" => crate::rsocket::iomap_calls::riomap,
    "riounmap" => crate::rsocket::iomap_calls::riounmap,
    "riowrite" => crate::rsocket::iomap_calls::riowrite,
    "rlisten" => crate::rsocket::open::rlisten,
    "rpoll" => crate::rsocket::polling::rpoll,
    "rread" => crate::rsocket::transfer::rread,
    "rreadv" => crate::rsocket::transfer::rreadv,
    "rrecv" => crate::rsocket::transfer::rrecv,
    "rrecvfrom" => crate::rsocket::transfer::rrecvfrom,
    "rrecvmsg" => crate::rsocket::transfer::rrecvmsg,
    "rselect" => crate::rsocket::polling::rselect,
    "rsend" => crate::rsocket::transfer::rsend,
    "rsendmsg" => crate::rsocket::transfer::rsendmsg,
    "rsendto" => crate::rsocket::transfer::rsendto,
    "rsetsockopt" => crate::rsocket::setting::rsetsockopt,
    "rshutdown" => crate::rsocket::closing::rshutdown,
    "rsocket" => crate::rsocket::open::rsocket,
    "rwrite" => crate::rsocket::transfer::rwrite,
    "rwritev" => crate::rsocket::transfer::rwritev,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.1" {
    "rdma_join_multicast_ex" => crate::multicast::join_multicast_ex,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.2" {
    "rdma_establish" => crate::connect::establish,
    "rdma_init_qp_attr" => crate::qp::init_qp_attr,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.3" {
    "rdma_get_remote_ece" => crate::options::get_remote_ece,
    "rdma_reject_ece" => crate::accept::reject_ece,
    "rdma_set_local_ece" => crate::options::set_local_ece,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.4" {
    "rdma_query_addrinfo" => crate::later::query_addrinfo,
    "rdma_resolve_addrinfo" => crate::later::resolve_addrinfo,
    "rdma_write_cm_event" => crate::later::write_cm_event,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.5" {
    "repoll_create" => crate::absent::call,
    "repoll_ctl" => crate::absent::call,
    "repoll_wait" => crate::absent::call,
} }
