//! The function table of a context, and the calls that open and close one.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use super::{cq_ex, qp_ex};
use crate::completion::acks::make_blocking;
use crate::completion::{channel, cq};
use crate::device::context::{ContextObject, Open, Tables, identity, new_command};
use crate::device::registry::Events;
use crate::device::{devices, gid, query};
use crate::memory::{advise, buf, dm, dm_mr, mr, mr_ex, mw, pd};
use crate::object::{Object, find, insert, remove};
use crate::queues::{ah, bind, creation, flow, post, qp, srq, wq, xrc};
use crate::sys::{Context, ContextOps, Device, VerbsContext};
use crate::translate::errno;
use rkey_device::Config;
use rkey_device::core::Api;
use rkey_kit::{Errno, c_call};
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Completion vectors. No interrupts deliver events here, so one vector is enough.
const VECTORS: c_int = 1;

/// The constructors that a context passes to its completion queues and queue pairs.
static TABLES: Tables = Tables {
    cq: cq_ex::structure,
    qp: qp_ex::structure,
};

/// The functions of a context. No program calls those of old versions (`_compat_…`) today.
fn context_ops() -> ContextOps {
    ContextOps {
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(bind::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        ..ContextOps::default()
    }
}

fn verbs_context(cmd_fd: c_int, async_fd: c_int) -> VerbsContext {
    VerbsContext {
        free_buf: None,
        alloc_buf: None,
        dm_export_dmabuf_fd: None,
        reg_mr_ex: Some(mr_ex::reg_mr_ex),
        dealloc_dmah: None,
        alloc_dmah: None,
        query_port: Some(query::query_port_ex),
        advise_mr: Some(advise::advise_mr),
        alloc_null_mr: Some(mr::alloc_null_mr),
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: Some(dm_mr::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: None,
        destroy_flow_action: None,
        create_flow_action_esp: None,
        modify_qp_rate_limit: None,
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: Some(cq_ex::modify_cq),
        post_srq_ops: None,
        destroy_rwq_ind_table: Some(wq::destroy_table),
        create_rwq_ind_table: Some(wq::create_table),
        destroy_wq: Some(wq::destroy_wq),
        modify_wq: Some(wq::modify_wq),
        create_wq: Some(wq::create_wq),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        priv_: std::ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: Some(flow::destroy_flow),
        ABI_placeholder2: None,
        ibv_create_flow: Some(flow::create_flow),
        ABI_placeholder1: None,
        open_qp: Some(xrc::open_qp),
        create_qp_ex: Some(creation::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        _ABI_placeholder3: 0,
        sz: size_of::<VerbsContext>(),
        context: Context {
            device: devices::the_device(),
            ops: context_ops(),
            cmd_fd,
            async_fd,
            num_comp_vectors: VECTORS,
            mutex: [0; 5],
            abi_compat: usize::MAX,
        },
    }
}

/// Creates a context for an open device.
fn new_context(open: Arc<Open>) -> Result<*mut Context, Errno> {
    let verbs = verbs_context(open.command.as_raw_fd(), open.device.event_fd().as_raw_fd());
    insert(ContextObject::new(verbs, open, &TABLES))
}

/// `ibv_open_device`.
///
/// # Safety
/// See [`crate::object`] for the rules of handles.
pub unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    c_call(|| {
        rkey_kit::log::start();
        devices::check(device)?;
        let mut config = Config::from_env().map_err(|error| {
            tracing::error!("cannot open the device: {error}");
            Errno::INVAL
        })?;
        config.api = Api::Verbs;
        let device = rkey_device::Device::open_shared(config).map_err(|error| {
            tracing::error!("cannot open the device: {error}");
            errno::of(&error)
        })?;
        gid::refresh();
        make_blocking(device.event_fd().as_raw_fd());
        let open = Open {
            device,
            command: new_command()?,
            events: Events::default(),
        };
        new_context(Arc::new(open))
    })
}

/// `ibv_import_device`: a second context for a device that this process has open. It cannot import a descriptor from
/// another process: that device's engine and memory are in the other process.
///
/// # Safety
/// `cmd_fd` may be any number.
pub unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut Context {
    c_call(|| {
        let wanted = identity(cmd_fd).ok_or(Errno::BADF)?;
        let same = |c: &ContextObject| identity(c.open.command.as_raw_fd()) == Some(wanted);
        let open = ContextObject::pool()
            .find_map(|context| same(context).then(|| Arc::clone(&context.open)))
            .ok_or(Errno::INVAL)?;
        new_context(open)
    })
}

/// `ibv_close_device`. Destroys the remaining objects of this context, as the kernel does when it closes a device.
///
/// # Safety
/// Neither the context nor its objects may be used afterwards.
pub unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    c_call(|| {
        // SAFETY: unused, as the caller guarantees.
        unsafe {
            find::<ContextObject>(context)?;
            mw::sweep(context);
            flow::sweep(context);
            qp::sweep(context);
            ah::sweep(context);
            srq::sweep(context);
            wq::sweep(context);
            cq::sweep(context);
            channel::sweep(context);
            mr::sweep(context);
            dm::sweep(context);
            xrc::sweep(context);
            buf::sweep(|pd| find::<pd::PdObject>(pd).is_ok_and(|pd| pd.context == context));
            pd::sweep(context);
            drop(remove::<ContextObject>(context)?);
        }
        Ok(0)
    })
}
