//! Opening and closing the device, and what can be asked about it.

#![allow(unsafe_code)]
// UNSAFETY: C functions.

use crate::async_event::Events;
use crate::gid;
use crate::object::{Object, find, handle_of, input, output, place, remove};
use crate::port::{self, PORT};
use crate::sys::consts::*;
use crate::sys::{
    Context, ContextOps, Device, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr, ValuesEx,
    VerbsContext,
};
use crate::{
    async_event, channel, cq, cq_ex, device, dm, errno, flow, mr, mw, pd, post, qp, srq, wq, xrc,
};
use rkey_device::Config;
use rkey_kit::{Errno, Pool, fence};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Completion vectors. Events do not come through interrupts here, so their number means nothing.
const VECTORS: c_int = 1;
/// Reads and atomics that a queue pair may have outstanding.
pub const MAX_READS: i32 = 128;
/// Multicast groups, and queue pairs in each; nothing here has such a limit, but programs want a number.
const MAX_GROUPS: c_int = 8192;
/// Bytes of device memory.
pub const MAX_DM: u64 = 1 << 24;

/// The rkey device behind one or more contexts (importing gives a second one).
pub struct Open {
    /// The device.
    pub device: rkey_device::Device,
    /// Names it to `ibv_import_device`, in this process.
    command: OwnedFd,
    /// Asynchronous events.
    pub events: Events,
}

/// An open device, as a program sees it.
#[repr(C)]
pub struct ContextObject {
    verbs: UnsafeCell<VerbsContext>,
    /// What is behind it.
    pub open: Arc<Open>,
}

// SAFETY: the structure that programs read is written only while it is made.
unsafe impl Sync for ContextObject {}
// SAFETY: it may be dropped by any thread.
unsafe impl Send for ContextObject {}

static CONTEXTS: Pool<ContextObject> = Pool::new(4096);

// SAFETY: `verbs` is at the start, and its field `context` at this offset of it.
unsafe impl Object for ContextObject {
    type C = Context;
    const OFFSET: usize = core::mem::offset_of!(VerbsContext, context);
    fn pool() -> &'static Pool<Self> {
        &CONTEXTS
    }
}

impl ContextObject {
    /// The device.
    #[inline]
    #[must_use]
    pub fn device(&self) -> &rkey_device::Device {
        &self.open.device
    }

    /// Its handle.
    #[must_use]
    pub fn handle(&self) -> *mut Context {
        handle_of(self)
    }
}

/// The functions that programs find in a context.
const OPS: ContextOps = ContextOps {
    compat_query_device: None,
    compat_query_port: None,
    compat_pd: [None; 2],
    compat_mr: [None; 3],
    alloc_mw: Some(mw::alloc_mw),
    bind_mw: Some(mw::bind_mw),
    dealloc_mw: Some(mw::dealloc_mw),
    compat_create_cq: None,
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    compat_cq_srq: [None; 7],
    post_srq_recv: Some(post::post_srq_recv),
    compat_qp: [None; 4],
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    compat_rest: [None; 5],
};

fn verbs_context(cmd_fd: c_int, async_fd: c_int) -> VerbsContext {
    VerbsContext {
        newer: [None; 6],
        query_port: Some(query_port_ex),
        advise_mr: Some(mr::advise_mr),
        alloc_null_mr: Some(mr::alloc_null_mr),
        read_counters: None,
        attach_counters_point_flow: None,
        create_counters: None,
        destroy_counters: None,
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        flow_actions: [None; 3],
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
        query_rt_values: Some(query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        private: 0,
        query_device_ex: Some(query_device_ex),
        destroy_flow: Some(flow::destroy_flow),
        placeholder2: 0,
        create_flow: Some(flow::create_flow),
        placeholder1: 0,
        open_qp: Some(xrc::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(xrc::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        placeholder3: 0,
        size: size_of::<VerbsContext>(),
        context: Context {
            device: device::the_device(),
            ops: OPS,
            cmd_fd,
            async_fd,
            num_comp_vectors: VECTORS,
            mutex: [0; 5],
            abi_compat: usize::MAX,
        },
    }
}

/// Makes a context for an open device.
fn new_context(open: Arc<Open>) -> Result<*mut Context, Errno> {
    let verbs = verbs_context(open.command.as_raw_fd(), open.device.event_fd().as_raw_fd());
    place(ContextObject {
        verbs: UnsafeCell::new(verbs),
        open,
    })
}

/// `ibv_open_device`.
///
/// # Safety
/// A device, or anything else.
pub unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    fence(|| {
        rkey_kit::log::start();
        device::check(device)?;
        let config = Config::from_env().map_err(|error| {
            tracing::error!("the device cannot be opened: {error}");
            Errno::INVAL
        })?;
        let device = rkey_device::Device::open(config).map_err(|error| {
            tracing::error!("the device cannot be opened: {error}");
            errno::of(&error)
        })?;
        gid::refresh();
        async_event::make_blocking(device.event_fd().as_raw_fd());
        let open = Open {
            device,
            command: new_command()?,
            events: Events::default(),
        };
        new_context(Arc::new(open))
    })
}

/// A descriptor whose file stands for the device.
fn new_command() -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"rkey-device".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Device and inode of a file.
pub(crate) fn identity(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeroes is a valid value, and the call only writes there.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for a stat.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// `ibv_import_device`: a second context of a device that this process has open. A descriptor of
/// another process's device does not help: its engine and its memory are there.
///
/// # Safety
/// Any number will do.
pub unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut Context {
    fence(|| {
        let wanted = identity(cmd_fd).ok_or(Errno::BADF)?;
        let same = |c: &ContextObject| identity(c.open.command.as_raw_fd()) == Some(wanted);
        let open = CONTEXTS
            .find_map(|context| same(context).then(|| Arc::clone(&context.open)))
            .ok_or(Errno::INVAL)?;
        new_context(open)
    })
}

/// `ibv_close_device`. What was made from this context and is still there goes with it, as it does when
/// the kernel closes a device.
///
/// # Safety
/// Neither the context nor anything made from it is used any more.
pub unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    fence(|| {
        // SAFETY: nobody uses it, as the caller promises.
        unsafe {
            find::<ContextObject>(context)?;
            mw::sweep(context);
            flow::sweep(context);
            qp::sweep(context);
            crate::ah::sweep(context);
            srq::sweep(context);
            wq::sweep(context);
            cq::sweep(context);
            channel::sweep(context);
            mr::sweep(context);
            dm::sweep(context);
            xrc::sweep(context);
            pd::sweep(context);
            drop(remove::<ContextObject>(context)?);
        }
        Ok(0)
    })
}

/// A limit as the field of an attribute.
fn number(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// What the device can do.
fn device_attributes(device: &rkey_device::Device) -> DeviceAttr {
    let config = device.config();
    let mut fw_ver = [0; 64];
    for (place, byte) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *place = byte as std::ffi::c_char;
    }
    DeviceAttr {
        fw_ver,
        node_guid: gid::guid().to_be(),
        sys_image_guid: gid::guid().to_be(),
        max_mr_size: config.limits.max_region_bytes,
        page_size_cap: !0xfff,
        vendor_id: 0xff_ffff,
        vendor_part_id: 1,
        hw_ver: 0,
        max_qp: number(config.max_qps),
        max_qp_wr: number(config.max_queue_depth),
        device_cap_flags: DEVICE_CURR_QP_STATE_MOD
            | DEVICE_PORT_ACTIVE_EVENT
            | DEVICE_SYS_IMAGE_GUID
            | DEVICE_RC_RNR_NAK_GEN
            | DEVICE_SRQ_RESIZE
            | DEVICE_MEM_WINDOW
            | DEVICE_XRC
            | DEVICE_MEM_MGT_EXTENSIONS
            | DEVICE_MEM_WINDOW_TYPE_2B,
        max_sge: number(config.max_sge),
        max_sge_rd: number(config.max_sge),
        max_cq: number(config.max_cqs),
        max_cqe: number(config.max_cq_depth),
        max_mr: number(config.limits.max_regions),
        max_pd: number(config.limits.max_domains),
        max_qp_rd_atom: MAX_READS,
        max_ee_rd_atom: 0,
        max_res_rd_atom: MAX_READS.saturating_mul(number(config.max_qps)),
        max_qp_init_rd_atom: MAX_READS,
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_GLOB,
        max_ee: 0,
        max_rdd: 0,
        max_mw: number(config.limits.max_windows),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: number(config.max_qps),
        max_mcast_grp: MAX_GROUPS,
        max_mcast_qp_attach: MAX_GROUPS,
        max_total_mcast_qp_attach: MAX_GROUPS.saturating_mul(MAX_GROUPS),
        max_ah: number(crate::ah::MAX),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: number(config.max_srqs),
        max_srq_wr: number(config.max_queue_depth),
        max_srq_sge: number(config.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

/// `ibv_query_device`.
///
/// # Safety
/// A context, and room for the attributes.
pub unsafe extern "C" fn query_device(context: *mut Context, attr: *mut DeviceAttr) -> c_int {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        let context = unsafe { find::<ContextObject>(context)? };
        // SAFETY: room as the caller promises.
        *unsafe { output(attr)? } = device_attributes(context.device());
        Ok(0)
    })
}

/// `struct ibv_rss_caps`: raw packet queue pairs; tables, and queues in one; fields; function.
fn rss_caps() -> [u64; 4] {
    let tables = u64::from(wq::TABLE_MAX);
    let fields = rkey_device::engine::HashFields::all().bits();
    [
        1 << QPT_RAW_PACKET | tables << 32,
        tables,
        fields.into(),
        wq::TOEPLITZ.into(),
    ]
}

/// `ibv_query_device_ex`.
///
/// # Safety
/// A context, and room for `size` bytes of attributes.
pub unsafe extern "C" fn query_device_ex(
    context: *mut Context,
    input_mask: *const c_void,
    attr: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        let context = unsafe { find::<ContextObject>(context)? };
        if !input_mask.is_null() {
            // SAFETY: the input is a structure that begins with its mask.
            let mask = *unsafe { input(input_mask.cast::<u32>())? };
            if mask != 0 {
                return Err(Errno::INVAL);
            }
        }
        if attr.is_null() || size < size_of::<DeviceAttr>() {
            return Err(Errno::INVAL);
        }
        let config = context.device().config();
        let odp = ODP_SUPPORT_SEND | ODP_SUPPORT_RECV | ODP_SUPPORT_SRQ_RECV;
        let full = DeviceAttrEx {
            orig_attr: device_attributes(context.device()),
            comp_mask: 0,
            odp_general_caps: ODP_GENERAL_CAPS,
            rc_odp_caps: odp | ODP_SUPPORT_WRITE | ODP_SUPPORT_READ | ODP_SUPPORT_ATOMIC,
            uc_odp_caps: odp | ODP_SUPPORT_WRITE,
            ud_odp_caps: odp,
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            device_cap_flags_ex: device_attributes(context.device()).device_cap_flags.into(),
            tso_caps: [0; 2],
            rss_caps: rss_caps(),
            max_wq_type_rq: config.max_srqs,
            packet_pacing_caps: [0; 3],
            raw_packet_caps: 0,
            tm_caps: [0; 5],
            max_cq_count: 0,
            max_cq_period: 0,
            max_dm_size: MAX_DM,
            pci_atomic_caps: [0; 3],
            xrc_odp_caps: odp | ODP_SUPPORT_WRITE | ODP_SUPPORT_READ | ODP_SUPPORT_ATOMIC,
            phys_port_cnt_ex: 1,
        };
        // SAFETY: the caller has room for `size` bytes; what this version does not know is cleared.
        unsafe { write_sized(attr, &full, size) };
        Ok(0)
    })
}

/// Writes a structure to a program that was compiled with one of another size.
///
/// # Safety
/// Room for `size` bytes.
unsafe fn write_sized<T: Copy>(to: *mut T, from: &T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: both ends have at least `known` bytes, and the target has `size`.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast::<u8>(), known);
        std::ptr::write_bytes(to.cast::<u8>().add(known), 0, size - known);
    }
}

/// `ibv_query_port`, as the inline function of the header calls it.
///
/// # Safety
/// A context, and room for `size` bytes of attributes.
pub unsafe extern "C" fn query_port_ex(
    context: *mut Context,
    port: u8,
    attr: *mut PortAttr,
    size: usize,
) -> c_int {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        if u32::from(port) != PORT || attr.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller has room for so many bytes.
        unsafe { write_sized(attr, &port::attributes(), size) };
        Ok(0)
    })
}

/// `ibv_query_port`, the function: for programs whose structure was shorter.
///
/// # Safety
/// A context, and room for [`port::COMPAT_LEN`] bytes of attributes.
pub unsafe extern "C" fn query_port(context: *mut Context, port: u8, attr: *mut PortAttr) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { query_port_ex(context, port, attr, port::COMPAT_LEN) }
}

/// `ibv_query_gid`: an empty place of the table is all zeroes.
///
/// # Safety
/// A context, and room for a GID.
pub unsafe extern "C" fn query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    let body = || {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        if u32::from(port) != PORT || index >= gid::TABLE_LEN {
            return Err(Errno::INVAL);
        }
        // SAFETY: room as the caller promises.
        *unsafe { output(gid)? } = gid::get(index).map_or([0; 16], |entry| entry.gid.0);
        Ok(0)
    };
    minus_one(fence(body))
}

/// For calls that answer -1 instead of the error number.
fn minus_one(code: c_int) -> c_int {
    if code == 0 { 0 } else { -1 }
}

/// `ibv_query_gid_type`: 0 for InfiniBand and RoCE v1, 1 for RoCE v2, as sysfs has it.
///
/// # Safety
/// A context, and room for a number.
pub unsafe extern "C" fn query_gid_type(
    context: *mut Context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    let body = || {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        if u32::from(port) != PORT || index as usize >= gid::TABLE_LEN {
            return Err(Errno::INVAL);
        }
        // SAFETY: room as the caller promises.
        *unsafe { output(gid_type)? } = c_int::from(gid::get(index as usize).is_some());
        Ok(0)
    };
    minus_one(fence(body))
}

fn gid_entry(index: usize, entry: gid::Entry) -> GidEntry {
    GidEntry {
        gid: entry.gid,
        gid_index: index as u32,
        port_num: PORT,
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.interface,
    }
}

/// `ibv_query_gid_ex`.
///
/// # Safety
/// A context, and room for an entry of `size` bytes.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        if port != PORT || flags != 0 || index as usize >= gid::TABLE_LEN || entry.is_null() {
            return Err(Errno::INVAL);
        }
        let found = gid::get(index as usize).ok_or(Errno::NODATA)?;
        // SAFETY: the caller has room for so many bytes.
        unsafe { write_sized(entry, &gid_entry(index as usize, found), size) };
        Ok(0)
    })
}

/// `ibv_query_gid_table`: the number of valid entries.
///
/// # Safety
/// A context, and room for `max` entries of `size` bytes.
pub unsafe extern "C" fn query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        if flags != 0 || (entries.is_null() && max > 0) || size == 0 {
            return Err(Errno::INVAL);
        }
        let table = gid::table();
        if max < table.len() {
            return Err(Errno::INVAL);
        }
        for (index, entry) in table.iter().enumerate() {
            let place = entries.wrapping_byte_add(index * size);
            // SAFETY: the index is below `max`, and the caller has room for so many entries.
            unsafe { write_sized(place, &gid_entry(index, *entry), size) };
        }
        Ok(table.len() as isize)
    })
}

/// `ibv_query_pkey`.
///
/// # Safety
/// A context, and room for a number.
pub unsafe extern "C" fn query_pkey(
    context: *mut Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let body = || {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        if u32::from(port) != PORT || index != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: room as the caller promises.
        *unsafe { output(pkey)? } = port::PKEY.to_be();
        Ok(0)
    };
    minus_one(fence(body))
}

/// `ibv_get_pkey_index`: -1 where the key is not in the table.
///
/// # Safety
/// A context, or anything else.
pub unsafe extern "C" fn get_pkey_index(context: *mut Context, port: u8, pkey: u16) -> c_int {
    // SAFETY: a context as the caller promises, or something that is refused.
    let open = unsafe { find::<ContextObject>(context) }.is_ok();
    if open && u32::from(port) == PORT && u16::from_be(pkey) == port::PKEY {
        0
    } else {
        -1
    }
}

/// `ibv_query_rt_values_ex`: the clock of completion timestamps.
///
/// # Safety
/// A context, and values to fill in.
pub unsafe extern "C" fn query_rt_values(context: *mut Context, values: *mut ValuesEx) -> c_int {
    fence(|| {
        // SAFETY: a context as the caller promises, or something that is refused.
        unsafe { find::<ContextObject>(context)? };
        // SAFETY: values as the caller promises.
        let values = unsafe { output(values)? };
        if values.comp_mask & !VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if values.comp_mask & VALUES_MASK_RAW_CLOCK != 0 {
            let now = cq_ex::timestamp();
            values.raw_clock = [(now / 1_000_000_000) as i64, (now % 1_000_000_000) as i64];
        }
        Ok(0)
    })
}
