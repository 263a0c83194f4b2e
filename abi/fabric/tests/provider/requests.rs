//! Connection requests: their contents at the passive side, and their order.

use crate::connected::*;
use crate::harness::*;
use rkey_fi::sys::*;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::time::Instant;

/// A peer connects one endpoint after another, each once the previous one is connected: a program that reads
/// one queue for everything finds each connection before the next request.
#[test]
fn a_connection_is_reported_before_its_peers_next_request() {
    const ENDPOINTS: usize = 300;
    let (fabric, _) = open_domain(wish().version, wish().info());
    let eq = event_queue(fabric);
    let pep = listen(fabric, eq);
    let name = name_of_pep(pep);
    let peer = std::thread::spawn(move || {
        let (fabric, domain) = open_domain(wish().version, wish().info());
        let eq = event_queue(fabric);
        for _ in 0..ENDPOINTS {
            let (ep, cq, av) = open_disabled(domain, wish().info());
            assert_eq!(bind(ep.cast(), eq.cast(), 0), 0);
            // SAFETY: a live handle, and the name of a passive endpoint.
            let code = unsafe { ((*(*ep).cm).connect)(ep, name.as_ptr().cast(), null_mut(), 0) };
            assert_eq!(code, 0);
            wait_for(eq, Ok(FI_CONNECTED));
            take(eq);
            let all: [*mut Fid; 3] = [ep.cast(), cq.cast(), av.cast()];
            assert_eq!(all.map(close), [0; 3]);
        }
    });
    // The number of requests, and of established connections.
    let (mut requests, mut connected, started) = (0, 0, Instant::now());
    while connected < ENDPOINTS {
        match look(eq) {
            Ok(FI_CONNREQ) => {
                assert_eq!(requests, connected, "the previous one is not connected yet");
                requests += 1;
                let (here, _) = accept_request(fabric, take(eq).info, eq, |_| {});
                assert!(!here.is_null());
            }
            Ok(event) => {
                connected += usize::from(event == FI_CONNECTED);
                take(eq);
            }
            Err(_) => assert!(started.elapsed() < 6 * PATIENCE, "{requests} {connected}"),
        }
    }
    peer.join().unwrap();
    assert_eq!(close(pep.cast()), 0);
}

/// The numbers of an `fi_info`, and the strings and keys that it points to. Addresses are compared separately.
#[derive(Debug, PartialEq)]
struct Said {
    numbers: [u64; 3],
    tx: Vec<u8>,
    rx: Vec<u8>,
    ep: Vec<u8>,
    domain: Vec<u8>,
    keys: [Vec<u8>; 2],
    names: [CString; 2],
    versions: [u32; 2],
}

/// # Safety
/// `at` is null or has `len` elements.
unsafe fn bytes<T>(at: *const T, len: usize) -> Vec<u8> {
    if at.is_null() {
        return vec![];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec()
}

fn said(info: *const Info) -> Said {
    // SAFETY: the provider's `fi_info`, with everything on it; its structures have the longest layout.
    unsafe {
        let it = &*info;
        let mut ep = std::ptr::read(it.ep_attr.cast::<LongEpAttr>());
        let mut domain = std::ptr::read(it.domain_attr.cast::<LongDomainAttr>());
        let fabric = &*it.fabric_attr;
        let (ep_key, domain_key) = (ep.known.auth_key, domain.known.auth_key);
        ep.known.auth_key = null_mut();
        domain.known.auth_key = null_mut();
        let keys = [
            bytes(ep_key, ep.known.auth_key_size),
            bytes(domain_key, domain.known.auth_key_size),
        ];
        let domain_name = std::mem::replace(&mut domain.known.name, null_mut());
        Said {
            numbers: [it.caps, it.mode, it.addr_format.into()],
            tx: bytes(it.tx_attr, size_of::<TxAttr>()),
            rx: bytes(it.rx_attr, size_of::<RxAttr>()),
            ep: bytes(&raw const ep, size_of_val(&ep)),
            domain: bytes(&raw const domain, size_of_val(&domain)),
            keys,
            names: [fabric.name, domain_name].map(|name| CStr::from_ptr(name).to_owned()),
            versions: [fabric.prov_version, fabric.api_version],
        }
    }
}

/// The `fi_info` list for `hints`, for connected endpoints; this side's address is `node`.
fn ask(version: u32, hints: &Info, node: Option<&CStr>) -> *mut Info {
    let mut info = null_mut();
    let node = node.map_or(null(), CStr::as_ptr);
    // SAFETY: the entry point's structure; complete hints.
    let code = unsafe {
        let getinfo = (*rkey_fi::fi_prov_ini()).getinfo;
        getinfo(version, node, null(), FI_SOURCE, hints, &mut info)
    };
    assert_eq!(code, 0);
    info
}

/// The fields that programs read before they accept, or pass on, are as `fi_getinfo` returned them for the passive
/// endpoint.
#[test]
fn the_info_of_a_request_is_that_of_the_passive_endpoint() {
    const MODES: [i32; 3] = [0, FI_MR_BASIC, FI_MR_SCALABLE];
    let capabilities = [
        0,
        FI_MSG,
        FI_MSG | FI_RMA | FI_HMEM,
        FI_TAGGED | FI_SEND | FI_RECV,
    ];
    let cases = MODES
        .iter()
        .flat_map(|&mode| capabilities.map(|caps| (mode, caps)));
    for (case, (mr_mode, caps)) in cases.enumerate() {
        let prov_name = [null_mut(), c"a layer;rkey".as_ptr().cast_mut()][case % 2];
        let key = [&b""[..], b"key"][case / 2 % 2];
        // SAFETY: structures of numbers and null pointers.
        let (mut hints, mut ep, mut domain, mut tx): (Info, EpAttr, DomainAttr, TxAttr) =
            unsafe { std::mem::zeroed() };
        ep.ep_type = FI_EP_MSG;
        ep.auth_key = key.as_ptr().cast_mut();
        ep.auth_key_size = key.len();
        domain.mr_mode = mr_mode;
        domain.data_progress = FI_PROGRESS_AUTO;
        tx.op_flags = FI_DELIVERY_COMPLETE;
        tx.size = 64;
        hints.caps = caps;
        hints.ep_attr = &mut ep;
        hints.domain_attr = &mut domain;
        hints.tx_attr = &mut tx;
        let info = ask(V1_17, &hints, Some(c"127.0.0.1"));
        // Set the name as libfabric's core does, which may have put layers on top.
        // SAFETY: it is the provider's `fi_info`, and the name is removed again below.
        unsafe { (*(*info).fabric_attr).prov_name = prov_name };
        let (fabric, _) = open_domain(V1_17, info);
        let eq = event_queue(fabric);
        let mut pep = null_mut();
        // SAFETY: live handles, and the provider's `fi_info`.
        unsafe {
            let open = (*(*fabric).ops).passive_ep;
            assert_eq!(open(fabric, info, &mut pep, null_mut()), 0);
            assert_eq!(bind(pep.cast(), eq.cast(), 0), 0);
            assert_eq!(((*(*pep).cm).listen)(pep), 0);
        }
        let peer = Wish {
            auth_key: key,
            ..wish()
        };
        let (there, theirs) = connect_as(&peer, &name_of_pep(pep));
        wait_for(eq, Ok(FI_CONNREQ));
        let request = take(eq).info;
        assert_eq!(said(request), said(info), "{mr_mode} {caps:#x}");
        // SAFETY: the `fi_info` of a request, with names and addresses.
        unsafe {
            let it = &*request;
            let name = (*it.fabric_attr).prov_name;
            assert!(!name.is_null(), "programs read it");
            let expected = [c"rkey", c"a layer;rkey"][case % 2];
            assert_eq!(CStr::from_ptr(name), expected);
            assert_eq!(bytes(it.src_addr, it.src_addrlen), name_of_pep(pep));
            assert_eq!(bytes(it.dest_addr, it.dest_addrlen), name_of(there));
            assert!(it.next.is_null() && it.nic.is_null() && !it.handle.is_null());
            // A program may pass the request's `fi_info` to `fi_getinfo`, which returns the same offer with the same handle.
            let again = ask(V1_17, it, None);
            assert_eq!((said(again), (*again).handle), (said(request), it.handle));
            (*(*again).fabric_attr).prov_name = null_mut();
            let (here, _) = accept_request(fabric, again, eq, |_| {});
            wait_for(eq, Ok(FI_CONNECTED));
            wait_for(theirs, Ok(FI_CONNECTED));
            assert_eq!((close(here.cast()), close(there.cast())), (0, 0));
        }
        assert_eq!(close(pep.cast()), 0);
    }
}
