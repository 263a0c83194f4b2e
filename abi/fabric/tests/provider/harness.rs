//! Two sides in one process, each with a fabric, a domain and an endpoint, and calls as in the inline functions
//! of libfabric's headers.

use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::ptr::{null, null_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const V1_17: u32 = version(1, 17);
pub(crate) const V1_22: u32 = version(1, 22);
/// The rights of most regions in these tests.
pub(crate) const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The hints and attributes of a side.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) version: u32,
    pub(crate) mr_mode: c_int,
    pub(crate) caps: u64,
    pub(crate) ep_type: c_int,
    pub(crate) auth_key: &'static [u8],
    pub(crate) domain_key: &'static [u8],
    /// The number of entries of the completion queue; 0 means the provider's choice.
    pub(crate) queue: usize,
    pub(crate) auto_progress: bool,
    /// How many transmit and receive contexts; 0: the provider's choice.
    pub(crate) contexts: (usize, usize),
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            version: V1_17,
            mr_mode: 0,
            caps: 0,
            ep_type: FI_EP_RDM,
            auth_key: &[],
            domain_key: &[],
            queue: 0,
            auto_progress: false,
            contexts: (0, 0),
        }
    }
}

impl Wish {
    pub(crate) fn mode(mr_mode: c_int) -> Self {
        Self {
            mr_mode,
            ..Self::default()
        }
    }

    /// The `fi_info` for an endpoint of this kind.
    pub(crate) fn info(&self) -> *mut Info {
        let mut info = null_mut();
        let provider = rkey_fi::fi_prov_ini();
        // SAFETY: the entry point's structure; complete hints.
        unsafe {
            let mut ep: EpAttr = std::mem::zeroed();
            ep.ep_type = self.ep_type;
            (ep.tx_ctx_cnt, ep.rx_ctx_cnt) = self.contexts;
            ep.auth_key = self.auth_key.as_ptr().cast_mut();
            ep.auth_key_size = self.auth_key.len();
            let mut hints: Info = std::mem::zeroed();
            hints.caps = self.caps;
            hints.ep_attr = &mut ep;
            let code = ((*provider).getinfo)(self.version, null(), null(), 0, &hints, &mut info);
            assert_eq!(code, 0);
            // Works as if the provider required these bits: a domain follows its own attributes.
            (*(*info).domain_attr).mr_mode = self.mr_mode;
            if self.queue > 0 {
                (*(*info).rx_attr).size = self.queue;
            }
            if self.auto_progress {
                (*(*info).domain_attr).data_progress = FI_PROGRESS_AUTO;
            }
            (*(*info).domain_attr).auth_key = self.domain_key.as_ptr().cast_mut();
            (*(*info).domain_attr).auth_key_size = self.domain_key.len();
        }
        info
    }
}

/// Registers one buffer in a domain.
pub(crate) fn reg_in(
    domain: *mut FidDomain,
    at: usize,
    len: usize,
    access: u64,
    key: u64,
    flags: u64,
) -> Result<Mr, c_int> {
    let (mut mr, buf) = (null_mut(), at as *const c_void);
    // SAFETY: the handle is live; the test keeps the memory until the region is closed.
    let code = unsafe {
        let (reg, domain, none) = ((*(*domain).mr).reg, domain.cast(), null_mut());
        reg(domain, buf, len, access, 0, key, flags, &mut mr, none)
    };
    if code == 0 { Ok(Mr(mr)) } else { Err(code) }
}

/// One side.
pub(crate) struct Side {
    pub(crate) fabric: *mut FidFabric,
    pub(crate) domain: *mut FidDomain,
    pub(crate) cq: *mut FidCq,
    pub(crate) av: *mut FidAv,
    pub(crate) ep: *mut FidEp,
    pub(crate) eq: *mut FidEq,
}

/// An address vector, a queue and an endpoint in a domain.
pub(crate) fn open_ep(
    domain: *mut FidDomain,
    info: *mut Info,
) -> (*mut FidEp, *mut FidCq, *mut FidAv) {
    let (ep, cq, av) = open_disabled(domain, info);
    assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
    assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);
    (ep, cq, av)
}

/// Like [`open_ep`], but only up to the queue: the endpoint still needs an address vector and must be enabled.
pub(crate) fn open_disabled(
    domain: *mut FidDomain,
    info: *mut Info,
) -> (*mut FidEp, *mut FidCq, *mut FidAv) {
    let (mut cq, mut av, mut ep) = (null_mut(), null_mut(), null_mut());
    // SAFETY: handles opened just now, and our own attributes.
    unsafe {
        let ops = &*(*domain).ops;
        let mut cq_attr: CqAttr = std::mem::zeroed();
        cq_attr.format = FI_CQ_FORMAT_TAGGED;
        cq_attr.size = (*(*info).rx_attr).size;
        assert_eq!((ops.cq_open)(domain, &mut cq_attr, &mut cq, null_mut()), 0);
        let mut av_attr: AvAttr = std::mem::zeroed();
        assert_eq!((ops.av_open)(domain, &mut av_attr, &mut av, null_mut()), 0);
        assert_eq!((ops.endpoint)(domain, info, &mut ep, null_mut()), 0);
    }
    assert_eq!(bind(ep.cast(), cq.cast(), FI_SEND | FI_RECV), 0);
    (ep, cq, av)
}

/// Raises the limit for descriptors: most tests leave sides open, and all tests may run in one process.
fn allow_descriptors() {
    static ONCE: Once = Once::new();
    // SAFETY: our own structure.
    ONCE.call_once(|| unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    });
}

/// An event queue.
pub(crate) fn event_queue(fabric: *mut FidFabric) -> *mut FidEq {
    let mut eq = null_mut();
    // SAFETY: the handle is live, the attributes are our own, and there is room for a handle.
    unsafe {
        let mut attr: EqAttr = std::mem::zeroed();
        let code = ((*(*fabric).ops).eq_open)(fabric, &mut attr, &mut eq, null_mut());
        assert_eq!(code, 0);
    }
    eq
}

/// A fabric and a domain.
pub(crate) fn open_domain(version: u32, info: *mut Info) -> (*mut FidFabric, *mut FidDomain) {
    allow_descriptors();
    let (mut fabric, mut domain) = (null_mut(), null_mut());
    let provider = rkey_fi::fi_prov_ini();
    // SAFETY: the entry point's structure and its `fi_info`; the version is stored as the core does.
    unsafe {
        assert_eq!(
            ((*provider).fabric)((*info).fabric_attr, &mut fabric, null_mut()),
            0
        );
        (*fabric).api_version = version;
        assert_eq!(
            ((*(*fabric).ops).domain)(fabric, info, &mut domain, null_mut()),
            0
        );
    }
    (fabric, domain)
}

impl Side {
    pub(crate) fn open(wish: &Wish) -> Self {
        let info = wish.info();
        let side = Self::waiting(open_domain(wish.version, info), info);
        assert_eq!(bind(side.ep.cast(), side.av.cast(), 0), 0);
        assert_eq!(side.enable(), 0);
        side
    }

    /// A side in a domain whose endpoint still needs an address vector and must be enabled; bound to no event
    /// queue.
    pub(crate) fn waiting(
        (fabric, domain): (*mut FidFabric, *mut FidDomain),
        info: *mut Info,
    ) -> Self {
        let (ep, cq, av) = open_disabled(domain, info);
        Self {
            fabric,
            domain,
            cq,
            av,
            ep,
            eq: null_mut(),
        }
    }

    pub(crate) fn enable(&self) -> c_int {
        control(self.ep.cast(), FI_ENABLE, null_mut())
    }

    /// Opens an event queue and binds the domain to it.
    pub(crate) fn bind_eq(&mut self, flags: u64) -> c_int {
        // SAFETY: handles of this side, and our own attributes.
        unsafe {
            let mut attr: EqAttr = std::mem::zeroed();
            attr.wait_obj = FI_WAIT_UNSPEC;
            let ops = &*(*self.fabric).ops;
            assert_eq!(
                (ops.eq_open)(self.fabric, &mut attr, &mut self.eq, null_mut()),
                0
            );
            let fid = self.domain.cast::<Fid>();
            ((*(*fid).ops).bind)(fid, self.eq.cast(), flags)
        }
    }

    /// Closes everything but the endpoint, which is already closed, and the test's own objects.
    pub(crate) fn close_rest(self) {
        let Self {
            fabric,
            domain,
            cq,
            av,
            ..
        } = self;
        let rest: [*mut Fid; 4] = [cq.cast(), av.cast(), domain.cast(), fabric.cast()];
        assert_eq!(rest.map(close), [0; 4]);
    }

    /// Our number for a peer.
    pub(crate) fn peer(&self, other: &Self) -> u64 {
        self.peer_ep(other.ep)
    }

    pub(crate) fn peer_ep(&self, other: *mut FidEp) -> u64 {
        self.insert(&name_of(other))
    }

    /// Our number for the endpoint with this name.
    pub(crate) fn insert(&self, name: &[u8]) -> u64 {
        let mut number = 0;
        // SAFETY: a handle of this side, and the name of an endpoint.
        unsafe {
            let insert = (*(*self.av).ops).insert;
            assert_eq!(
                insert(self.av, name.as_ptr().cast(), 1, &mut number, 0, null_mut()),
                1
            );
        }
        number
    }

    /// Registers one buffer.
    pub(crate) fn reg(
        &self,
        buffer: &mut [u8],
        access: u64,
        key: u64,
        flags: u64,
    ) -> Result<Mr, c_int> {
        self.reg_at(
            buffer.as_mut_ptr() as usize,
            buffer.len(),
            access,
            key,
            flags,
        )
    }

    pub(crate) fn reg_at(
        &self,
        at: usize,
        len: usize,
        access: u64,
        key: u64,
        flags: u64,
    ) -> Result<Mr, c_int> {
        reg_in(self.domain, at, len, access, key, flags)
    }

    /// Registers by attributes.
    pub(crate) fn regattr(&self, attr: &LongMrAttr, flags: u64) -> Result<Mr, c_int> {
        let mut mr = null_mut();
        // SAFETY: as for `reg`.
        let code = unsafe {
            ((*(*self.domain).mr).regattr)(self.domain.cast(), &attr.known, flags, &mut mr)
        };
        if code == 0 { Ok(Mr(mr)) } else { Err(code) }
    }

    /// Returns one completion or error; peers make progress meanwhile.
    pub(crate) fn completion(&self, peers: &[&Self]) -> Result<CqTaggedEntry, CqErrEntry> {
        let started = Instant::now();
        loop {
            if let Some(result) = poll(self.cq) {
                return result;
            }
            for peer in peers {
                // A read of zero entries makes progress and takes nothing.
                // SAFETY: a handle of the peer.
                unsafe { ((*(*peer.cq).ops).read)(peer.cq, null_mut(), 0) };
            }
            assert!(started.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        }
    }

    /// Writes to a peer; returns 0 or the error of the completion.
    pub(crate) fn write(&self, peer: u64, bytes: &[u8], addr: u64, key: u64) -> c_int {
        self.write_with(peer, bytes, null_mut(), addr, key)
    }

    pub(crate) fn write_with(
        &self,
        peer: u64,
        bytes: &[u8],
        desc: *mut c_void,
        addr: u64,
        key: u64,
    ) -> c_int {
        let (at, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: a handle of this side; the bytes stay valid until the completion.
        let code = again(|| unsafe {
            ((*(*self.ep).rma).write)(self.ep, at, len, desc, peer, addr, key, null_mut())
        });
        self.end_of(code)
    }

    /// The result of a transfer whose post returned this code.
    fn end_of(&self, code: isize) -> c_int {
        if code != 0 {
            return code as c_int;
        }
        self.completion(&[]).err().map_or(0, |error| error.err)
    }

    /// Reads from a peer; returns 0 or the error of the completion.
    pub(crate) fn read(&self, peer: u64, into: &mut [u8], addr: u64, key: u64) -> c_int {
        self.read_with(peer, into, null_mut(), addr, key)
    }

    pub(crate) fn read_with(
        &self,
        peer: u64,
        into: &mut [u8],
        desc: *mut c_void,
        addr: u64,
        key: u64,
    ) -> c_int {
        let (at, len) = (into.as_mut_ptr().cast(), into.len());
        // SAFETY: a handle of this side; the buffer stays valid until the completion.
        let code = again(|| unsafe {
            ((*(*self.ep).rma).read)(self.ep, at, len, desc, peer, addr, key, null_mut())
        });
        self.end_of(code)
    }
}

/// The name of an endpoint.
pub(crate) fn name_of(ep: *mut FidEp) -> Vec<u8> {
    let mut name = vec![0u8; 128];
    let mut len = name.len();
    // SAFETY: the handle is live, and the buffer is our own.
    let code = unsafe { ((*(*ep).cm).getname)(ep.cast(), name.as_mut_ptr().cast(), &mut len) };
    assert_eq!(code, 0);
    name.truncate(len);
    name
}

/// The address in the name of an endpoint of this host: a `sockaddr_in`.
pub(crate) fn address_of(name: &[u8]) -> SocketAddr {
    let port = u16::from_be_bytes([name[2], name[3]]);
    (Ipv4Addr::new(name[4], name[5], name[6], name[7]), port).into()
}

/// The name of an endpoint at a port of this host. Ports that endpoints choose themselves are above 49152.
pub(crate) fn name_at(port: u16) -> Vec<u8> {
    let mut name = (libc::AF_INET as u16).to_ne_bytes().to_vec();
    name.extend(port.to_be_bytes());
    name.extend([127, 0, 0, 1]);
    name.extend([0; 8]);
    name
}

/// Repeats a post while it returns `-FI_EAGAIN`.
pub(crate) fn again(mut post: impl FnMut() -> isize) -> isize {
    let started = Instant::now();
    loop {
        match post() {
            code if code == -(libc::EAGAIN as isize) => {
                assert!(started.elapsed() < PATIENCE, "-FI_EAGAIN for too long");
                std::thread::yield_now();
            }
            code => return code,
        }
    }
}

/// Polls a queue once.
pub(crate) fn poll(cq: *mut FidCq) -> Option<Result<CqTaggedEntry, CqErrEntry>> {
    // SAFETY: a handle, and room for an entry of the longest format.
    unsafe {
        let mut entry: CqTaggedEntry = std::mem::zeroed();
        let ops = &*(*cq).ops;
        match (ops.read)(cq, (&raw mut entry).cast(), 1) {
            1 => Some(Ok(entry)),
            -259 => {
                let mut error: LongCqErrEntry = std::mem::zeroed();
                assert_eq!((ops.readerr)(cq, (&raw mut error).cast(), 0), 1);
                Some(Err(error.known))
            }
            code => {
                assert_eq!(code, -(libc::EAGAIN as isize));
                None
            }
        }
    }
}

/// A region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr(pub(crate) *mut FidMr);

impl Mr {
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: the handle is live.
        unsafe { (*self.0).key }
    }

    pub(crate) fn desc(&self) -> *mut c_void {
        // SAFETY: the handle is live.
        unsafe { (*self.0).mem_desc }
    }

    pub(crate) fn close(self) -> c_int {
        close(self.0.cast())
    }

    pub(crate) fn bind<T>(&self, to: *mut T, flags: u64) -> c_int {
        bind(self.0.cast(), to.cast(), flags)
    }

    pub(crate) fn enable(&self) -> c_int {
        control(self.0.cast(), FI_ENABLE, null_mut())
    }

    pub(crate) fn refresh(&self, iov: &[libc::iovec]) -> c_int {
        let mut modify = MrModify {
            flags: 0,
            attr: attributes(iov, 0, 0).known,
        };
        control(self.0.cast(), FI_REFRESH, (&raw mut modify).cast())
    }

    /// `fi_mr_raw_attr` with a buffer of this size: its code, base, bytes and the required size.
    pub(crate) fn raw(&self, room: usize) -> (c_int, u64, Vec<u8>, usize) {
        let (mut base, mut size) = (0, room);
        let mut bytes = vec![0xa5; room + 64];
        let mut attr = MrRawAttr {
            flags: 0,
            base_addr: &mut base,
            raw_key: if room == 0 {
                null_mut()
            } else {
                bytes.as_mut_ptr()
            },
            key_size: &mut size,
        };
        let code = control(self.0.cast(), FI_GET_RAW_MR, (&raw mut attr).cast());
        assert!(
            bytes[room..].iter().all(|&byte| byte == 0xa5),
            "wrote past the end of the buffer"
        );
        bytes.truncate(room);
        (code, base, bytes, size)
    }
}

pub(crate) fn bind(fid: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
    // SAFETY: the handles are live.
    unsafe { ((*(*fid).ops).bind)(fid, to, flags) }
}

pub(crate) fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a live handle, and the argument of the command.
    unsafe { ((*(*fid).ops).control)(fid, command, arg) }
}

pub(crate) fn close(fid: *mut Fid) -> c_int {
    // SAFETY: a handle that was live when the test got it.
    unsafe { ((*(*fid).ops).close)(fid) }
}

pub(crate) fn counter(domain: *mut FidDomain) -> *mut FidCntr {
    let mut counter = null_mut();
    // SAFETY: the handle is live.
    let code =
        unsafe { ((*(*domain).ops).cntr_open)(domain, null_mut(), &mut counter, null_mut()) };
    assert_eq!(code, 0);
    counter
}

pub(crate) fn count(counter: *mut FidCntr) -> u64 {
    // SAFETY: the handle is live.
    unsafe { ((*(*counter).ops).read)(counter) }
}

/// Waits until a counter reaches a value. Returns the final value.
pub(crate) fn wait_count(counter: *mut FidCntr, value: u64) -> u64 {
    let started = Instant::now();
    while count(counter) < value && started.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    count(counter)
}

/// Attributes for one buffer; the fields that are newer than 1.17 hold values that would be refused if they were read.
pub(crate) fn attributes(iov: &[libc::iovec], access: u64, key: u64) -> LongMrAttr {
    LongMrAttr {
        known: MrAttr {
            mr_iov: if iov.is_empty() { null() } else { iov.as_ptr() },
            iov_count: iov.len(),
            access,
            offset: 0,
            requested_key: key,
            context: null_mut(),
            auth_key_size: 0,
            auth_key: null_mut(),
            iface: FI_HMEM_SYSTEM,
            device: 0,
        },
        hmem_data: null_mut(),
        page_size: 0,
        base_mr: null(),
        sub_mr_cnt: 0,
    }
}

pub(crate) fn iovec(buffer: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    }
}

/// The address of the next mapping: far below the addresses that the kernel chooses, and never reused. So a
/// hole that a test makes stays a hole, whatever other threads map.
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);

/// Maps pages: at a new address, or where the test had pages before.
pub(crate) fn map_at(at: usize, len: usize, protection: c_int) -> usize {
    let (at, fixed) = match at {
        0 => (
            NEXT.fetch_add(len.next_multiple_of(4096) + 4096, Ordering::Relaxed),
            libc::MAP_FIXED_NOREPLACE,
        ),
        _ => (at, libc::MAP_FIXED),
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: unused addresses, or those of a mapping of the test.
    let start = unsafe { libc::mmap(at as *mut _, len, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start as usize
}

pub(crate) fn unmap(at: usize, len: usize) {
    // SAFETY: a mapping of the test.
    assert_eq!(unsafe { libc::munmap(at as *mut _, len) }, 0);
}

pub(crate) const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
