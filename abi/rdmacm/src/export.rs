//! The exported functions, with the symbol versions of rdma-core 44 (Debian 12) and those added up to 61.
//!
//! Rust cannot version a function, so each exported symbol is a jump in assembly, and `.symver` sets its name and version.
//! `rdmacm.map` declares the versions to the linker.

use rkey_kit::exports;

exports! { "__rkey_cm_" "@@RDMACM_1.0" {
    "rdma_accept" => crate::calls::accept::accept,
    "rdma_ack_cm_event" => crate::objects::event::ack_cm_event,
    "rdma_bind_addr" => crate::calls::bind::bind_addr,
    "rdma_connect" => crate::calls::connect::connect,
    "rdma_create_ep" => crate::calls::endpoint::create_ep,
    "rdma_create_event_channel" => crate::objects::channel::create_event_channel,
    "rdma_create_id" => crate::objects::ids::create_id,
    "rdma_create_qp" => crate::queues::qp::create_qp,
    "rdma_create_qp_ex" => crate::queues::qp::create_qp_ex,
    "rdma_create_srq" => crate::queues::srq::create_srq,
    "rdma_create_srq_ex" => crate::queues::srq::create_srq_ex,
    "rdma_destroy_ep" => crate::calls::endpoint::destroy_ep,
    "rdma_destroy_event_channel" => crate::objects::channel::destroy_event_channel,
    "rdma_destroy_id" => crate::objects::ids::destroy_id,
    "rdma_destroy_qp" => crate::queues::qp::destroy_qp,
    "rdma_destroy_srq" => crate::queues::srq::destroy_srq,
    "rdma_disconnect" => crate::calls::connect::disconnect,
    "rdma_event_str" => crate::objects::event::event_str,
    "rdma_free_devices" => crate::calls::devices::free_devices,
    "rdma_freeaddrinfo" => crate::lookup::addrinfo::freeaddrinfo,
    "rdma_get_cm_event" => crate::fetching::next_event::get_cm_event,
    "rdma_get_devices" => crate::calls::devices::get_devices,
    "rdma_get_dst_port" => crate::objects::ids::get_dst_port,
    "rdma_get_request" => crate::calls::endpoint::get_request,
    "rdma_get_src_port" => crate::objects::ids::get_src_port,
    "rdma_getaddrinfo" => crate::lookup::addrinfo::getaddrinfo,
    "rdma_join_multicast" => crate::calls::multicast::join_multicast,
    "rdma_leave_multicast" => crate::calls::multicast::leave_multicast,
    "rdma_listen" => crate::calls::bind::listen,
    "rdma_migrate_id" => crate::objects::ids::migrate_id,
    "rdma_notify" => crate::calls::connect::notify,
    "rdma_reject" => crate::calls::accept::reject,
    "rdma_resolve_addr" => crate::calls::resolve::resolve_addr,
    "rdma_resolve_route" => crate::calls::resolve::resolve_route,
    "rdma_set_option" => crate::calls::options::set_option,
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
    "rdma_join_multicast_ex" => crate::calls::multicast::join_multicast_ex,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.2" {
    "rdma_establish" => crate::calls::connect::establish,
    "rdma_init_qp_attr" => crate::queues::qp::init_qp_attr,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.3" {
    "rdma_get_remote_ece" => crate::calls::options::get_remote_ece,
    "rdma_reject_ece" => crate::calls::accept::reject_ece,
    "rdma_set_local_ece" => crate::calls::options::set_local_ece,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.4" {
    "rdma_query_addrinfo" => crate::calls::later::query_addrinfo,
    "rdma_resolve_addrinfo" => crate::calls::later::resolve_addrinfo,
    "rdma_write_cm_event" => crate::calls::later::write_cm_event,
} }

exports! { "__rkey_cm_" "@@RDMACM_1.5" {
    "repoll_create" => crate::rsocket::repolling::repoll_create,
    "repoll_ctl" => crate::rsocket::repolling::repoll_ctl,
    "repoll_wait" => crate::rsocket::repolling::repoll_wait,
} }
