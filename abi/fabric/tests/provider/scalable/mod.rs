//! Scalable endpoints: several transmit and receive contexts with one address.

mod limits;
mod peers;
mod rules;
mod transfers;

use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::c_int;
use std::ptr::null_mut;

/// How many bits of a number name a receive context.
const BITS: c_int = 4;
const INVAL: c_int = -libc::EINVAL;
const BADSTATE: c_int = -258;

/// A scalable endpoint, and the contexts that a test has opened.
struct Scalable {
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
    sep: *mut FidEp,
    av: *mut FidAv,
    /// A context and its queue, as a side.
    tx: Vec<Side>,
    rx: Vec<Side>,
}

/// Hints without capabilities get all that these tests need, including named receive contexts.
fn naming(wish: &Wish) -> Wish {
    let all = match wish.ep_type {
        FI_EP_DGRAM => FI_MSG | FI_SOURCE,
        _ => FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER | FI_SOURCE | FI_DIRECTED_RECV,
    };
    Wish {
        caps: match wish.caps {
            0 => all | FI_NAMED_RX_CTX,
            caps => caps,
        },
        ..*wish
    }
}

/// The `fi_info` for this many contexts.
fn info_for(wish: &Wish, tx: usize, rx: usize) -> *mut Info {
    let contexts = (tx, rx);
    Wish { contexts, ..*wish }.info()
}

/// Calls `fi_scalable_ep`. Returns the endpoint, or the code.
fn scalable_ep(domain: *mut FidDomain, info: *mut Info) -> Result<*mut FidEp, c_int> {
    let mut sep = null_mut();
    // SAFETY: a live handle, a complete `fi_info`, and room for a handle.
    match unsafe { ((*(*domain).ops).scalable_ep)(domain, info, &mut sep, null_mut()) } {
        0 => Ok(sep),
        code => Err(code),
    }
}

/// Calls `fi_tx_context`. Returns the context, or the code.
fn tx_context(sep: *mut FidEp, index: c_int, attr: *mut TxAttr) -> Result<*mut FidEp, c_int> {
    let mut ep = null_mut();
    // SAFETY: a live handle, null or attributes, and room for a handle.
    match unsafe { ((*(*sep).ops).tx_ctx)(sep, index, attr, &mut ep, null_mut()) } {
        0 => Ok(ep),
        code => Err(code),
    }
}

/// Calls `fi_rx_context`. Returns the context, or the code.
fn rx_context(sep: *mut FidEp, index: c_int, attr: *mut RxAttr) -> Result<*mut FidEp, c_int> {
    let mut ep = null_mut();
    // SAFETY: as above.
    match unsafe { ((*(*sep).ops).rx_ctx)(sep, index, attr, &mut ep, null_mut()) } {
        0 => Ok(ep),
        code => Err(code),
    }
}

/// An address vector whose numbers can name receive contexts.
fn vector(domain: *mut FidDomain) -> *mut FidAv {
    let mut av = null_mut();
    // SAFETY: a live handle, our own attributes, and room for a handle.
    unsafe {
        let mut attr: AvAttr = std::mem::zeroed();
        attr.rx_ctx_bits = BITS;
        let code = ((*(*domain).ops).av_open)(domain, &mut attr, &mut av, null_mut());
        assert_eq!(code, 0);
    }
    av
}

fn queue(domain: *mut FidDomain) -> *mut FidCq {
    let mut cq = null_mut();
    // SAFETY: a live handle, our own attributes, and room for a handle.
    unsafe {
        let mut attr: CqAttr = std::mem::zeroed();
        attr.format = FI_CQ_FORMAT_TAGGED;
        let code = ((*(*domain).ops).cq_open)(domain, &mut attr, &mut cq, null_mut());
        assert_eq!(code, 0);
    }
    cq
}

fn enable(ep: *mut FidEp) -> c_int {
    control(ep.cast(), FI_ENABLE, null_mut())
}

/// `fi_rx_addr`.
fn rx_addr(number: u64, index: usize) -> u64 {
    (index as u64) << (64 - BITS) | number
}

impl Scalable {
    /// All contexts are enabled.
    fn open(wish: &Wish, tx: usize, rx: usize) -> Self {
        let it = Self::disabled(wish, tx, rx);
        for side in it.tx.iter().chain(&it.rx) {
            assert_eq!(side.enable(), 0);
        }
        assert_eq!(enable(it.sep), 0);
        it
    }

    /// Each context is bound to its own queue, and nothing is enabled.
    fn disabled(wish: &Wish, tx: usize, rx: usize) -> Self {
        let mut it = Self::without_contexts(wish, tx, rx);
        let sides = |count| 0..count;
        it.tx = sides(tx).map(|index| it.transmitter(index)).collect();
        it.rx = sides(rx).map(|index| it.receiver(index)).collect();
        it
    }

    /// There is only the scalable endpoint with its address vector.
    fn without_contexts(wish: &Wish, tx: usize, rx: usize) -> Self {
        let info = info_for(&naming(wish), tx, rx);
        let (fabric, domain) = open_domain(wish.version, info);
        let (sep, av) = (scalable_ep(domain, info).unwrap(), vector(domain));
        assert_eq!(bind(sep.cast(), av.cast(), 0), 0);
        Self {
            fabric,
            domain,
            sep,
            av,
            tx: Vec::new(),
            rx: Vec::new(),
        }
    }

    /// Opens a transmit context, bound to its own queue.
    fn transmitter(&self, index: usize) -> Side {
        let ep = tx_context(self.sep, index as c_int, null_mut()).unwrap();
        self.side(ep, FI_SEND)
    }

    /// Opens a receive context, bound to its own queue.
    fn receiver(&self, index: usize) -> Side {
        let ep = rx_context(self.sep, index as c_int, null_mut()).unwrap();
        self.side(ep, FI_RECV)
    }

    /// Converts a context into a side.
    fn side(&self, ep: *mut FidEp, flags: u64) -> Side {
        let cq = queue(self.domain);
        assert_eq!(bind(ep.cast(), cq.cast(), flags), 0);
        Side {
            fabric: self.fabric,
            domain: self.domain,
            cq,
            av: self.av,
            ep,
            eq: null_mut(),
        }
    }

    /// Our number for the endpoint with this name, whose first receive context it names.
    fn insert(&self, name: &[u8]) -> u64 {
        let mut number = 0;
        // SAFETY: a live handle, and the name of an endpoint.
        unsafe {
            let insert = (*(*self.av).ops).insert;
            let at = name.as_ptr().cast();
            assert_eq!(insert(self.av, at, 1, &mut number, 0, null_mut()), 1);
        }
        number
    }

    /// Our number for a peer.
    fn peer(&self, other: &Self) -> u64 {
        self.insert(&name_of(other.sep))
    }

    /// Closes everything.
    fn close(self) {
        for side in self.tx.into_iter().chain(self.rx) {
            assert_eq!([close(side.ep.cast()), close(side.cq.cast())], [0; 2]);
        }
        let rest: [*mut Fid; 4] = [
            self.sep.cast(),
            self.av.cast(),
            self.domain.cast(),
            self.fabric.cast(),
        ];
        assert_eq!(rest.map(close), [0; 4]);
    }
}

/// All sides, for progress.
fn all<'a>(of: &[&'a Scalable]) -> Vec<&'a Side> {
    of.iter()
        .flat_map(|it| it.tx.iter().chain(&it.rx))
        .collect()
}
