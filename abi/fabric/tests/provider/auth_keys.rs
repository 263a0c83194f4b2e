//! Authorization keys in address vectors (`FI_AV_AUTH_KEY`).

use crate::atomics::add;
use crate::harness::*;
use crate::messages::tsend;
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const BUSY: c_int = -libc::EBUSY;
const INVAL: c_int = -libc::EINVAL;

fn modern(mr_mode: c_int) -> Wish {
    Wish {
        version: V1_22,
        ..Wish::mode(mr_mode)
    }
}

/// A domain whose authorization keys are in address vectors.
struct Keyed {
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
    info: *mut Info,
}

impl Keyed {
    fn open(mr_mode: c_int) -> Self {
        Self::of(&modern(mr_mode))
    }

    fn of(wish: &Wish) -> Self {
        let info = wish.info();
        // SAFETY: our own `fi_info`.
        unsafe {
            (*(*info).domain_attr).auth_key_size = FI_AV_AUTH_KEY;
            (*(*info).domain_attr).auth_key = null_mut();
        }
        let (fabric, domain) = open_domain(V1_22, info);
        Self {
            fabric,
            domain,
            info,
        }
    }

    /// An address vector with keys, and their numbers.
    fn av(&self, keys: &[&[u8]]) -> (*mut FidAv, Vec<u64>) {
        let mut av = null_mut();
        // SAFETY: the handle is live, and the attributes are our own.
        unsafe {
            let mut attr: AvAttr = std::mem::zeroed();
            let open = (*(*self.domain).ops).av_open;
            assert_eq!(open(self.domain, &mut attr, &mut av, null_mut()), 0);
        }
        let numbers = keys.iter().map(|key| insert_key(av, key).unwrap());
        (av, numbers.collect())
    }

    /// An endpoint that is not enabled yet.
    fn waiting(&self, av: *mut FidAv) -> Side {
        let side = Side::waiting((self.fabric, self.domain), self.info);
        assert_eq!(bind(side.ep.cast(), av.cast(), 0), 0);
        Side { av, ..side }
    }

    fn endpoint(&self, av: *mut FidAv) -> Side {
        let side = self.waiting(av);
        assert_eq!(side.enable(), 0);
        side
    }

    fn register(
        &self,
        buffer: &mut [u8],
        key: u64,
        av: *mut FidAv,
        src_addr: u64,
        flags: u64,
    ) -> Result<Mr, c_int> {
        let mut auth = MrAuthKey { av, src_addr };
        let iov = [iovec(buffer)];
        let mut attr = attributes(&iov, REMOTE, key);
        attr.known.auth_key = (&raw mut auth).cast();
        attr.known.auth_key_size = size_of::<MrAuthKey>();
        self.regattr(&attr, flags)
    }

    fn regattr(&self, attr: &LongMrAttr, flags: u64) -> Result<Mr, c_int> {
        let mut mr = null_mut();
        // SAFETY: the handle is live; memory that the test keeps until the region is closed.
        let code = unsafe {
            ((*(*self.domain).mr).regattr)(self.domain.cast(), &attr.known, flags, &mut mr)
        };
        if code == 0 { Ok(Mr(mr)) } else { Err(code) }
    }
}

fn insert_key(av: *mut FidAv, key: &[u8]) -> Result<u64, c_int> {
    let mut number = 0;
    // SAFETY: a live handle, the bytes of the key, and room for a number.
    let code = unsafe {
        let insert = (*(*av).ops).insert_auth_key;
        insert(av, key.as_ptr().cast(), key.len(), &mut number, 0)
    };
    if code == 0 { Ok(number) } else { Err(code) }
}

fn lookup_key(av: *mut FidAv, number: u64) -> Result<Vec<u8>, c_int> {
    let (mut room, mut len) = ([0u8; 300], 300);
    // SAFETY: the handle is live, and the buffer is our own.
    let code = unsafe {
        let lookup = (*(*av).ops).lookup_auth_key;
        lookup(av, number, room.as_mut_ptr().cast(), &mut len)
    };
    if code == 0 {
        Ok(room[..len].to_vec())
    } else {
        Err(code)
    }
}

fn remove(av: *mut FidAv, mut number: u64, flags: u64) -> c_int {
    // SAFETY: a live handle, and one number.
    unsafe { ((*(*av).ops).remove)(av, &mut number, 1, flags) }
}

/// A peer with this key, and its number at one of our endpoints.
fn peer_of(key: &'static [u8], ours: &Side) -> (Side, u64) {
    let side = Side::open(&Wish {
        auth_key: key,
        ..Wish::default()
    });
    let number = side.peer(ours);
    (side, number)
}

/// Proves: FI-209, FI-211
#[test]
fn a_region_serves_the_endpoints_of_every_key_in_its_vector() {
    let keyed = Keyed::open(0);
    let (first, _) = keyed.av(&[b"one"]);
    let (second, _) = keyed.av(&[b"two"]);
    let (both, _) = keyed.av(&[b"one", b"two"]);
    let (ends, [(a, to_first), (b, to_second)]) = {
        let ends = [keyed.endpoint(first), keyed.endpoint(second)];
        let peers = [peer_of(b"one", &ends[0]), peer_of(b"two", &ends[1])];
        (ends, peers)
    };
    let (mut common, mut single) = ([0u8; 8], [0u8; 8]);
    let for_all = keyed
        .register(&mut common, 1, both, FI_ADDR_UNSPEC, 0)
        .unwrap();
    let one = keyed
        .register(&mut single, 2, first, FI_ADDR_UNSPEC, 0)
        .unwrap();
    let counted = counter(keyed.domain);
    assert_eq!(for_all.bind(counted, FI_REMOTE_WRITE), 0);
    assert_eq!(for_all.key(), 1);
    assert_eq!(a.write(to_first, &[1; 4], 0, 1), 0);
    assert_eq!(b.write(to_second, &[2; 4], 4, 1), 0);
    assert_eq!(wait_count(counted, 2), 2);
    assert_eq!(a.write(to_first, &[3; 8], 0, 2), 0);
    assert_eq!(
        b.write(to_second, &[4; 8], 0, 2),
        266,
        "another key's region"
    );
    assert_eq!((for_all.close(), close(counted.cast())), (0, 0));
    assert_eq!(a.write(to_first, &[9; 4], 0, 1), 266);
    assert_eq!(b.write(to_second, &[9; 4], 0, 1), 266);
    assert_eq!((common, single), ([1, 1, 1, 1, 2, 2, 2, 2], [3; 8]));
    assert_eq!(one.close(), 0);
    // A peer with another key gets no connection.
    let (stranger, number) = peer_of(b"two", &ends[0]);
    assert_ne!(stranger.write(number, &[9; 4], 0, 1), 0);
}

/// Proves: FI-121, FI-122, FI-207, FI-208
#[test]
fn regions_with_authorization_keys_need_regattr_and_an_address_vector() {
    let keyed = Keyed::open(0);
    let (av, _) = keyed.av(&[b"key"]);
    let mut buffer = [0u8; 16];
    let iov = [iovec(&mut buffer)];
    let mut mr = null_mut();
    // SAFETY: a live handle, and a buffer that lives long enough.
    let (reg, regv) = unsafe {
        let (ops, fid) = (&*(*keyed.domain).mr, keyed.domain.cast());
        let at = iov[0].iov_base;
        (
            (ops.reg)(fid, at, 16, REMOTE, 0, 1, 0, &mut mr, null_mut()),
            (ops.regv)(fid, iov.as_ptr(), 1, REMOTE, 0, 1, 0, &mut mr, null_mut()),
        )
    };
    assert_eq!((reg, regv), (-libc::ENOSYS, -libc::ENOSYS));
    let mut auth = MrAuthKey {
        av,
        src_addr: FI_ADDR_UNSPEC,
    };
    let mut attr = attributes(&iov, REMOTE, 1);
    assert_eq!(keyed.regattr(&attr, 0).unwrap_err(), INVAL, "no key at all");
    attr.known.auth_key = (&raw mut auth).cast();
    for len in [0, 8, 15, 17] {
        attr.known.auth_key_size = len;
        assert_eq!(keyed.regattr(&attr, 0).unwrap_err(), INVAL, "{len} bytes");
    }
    attr.known.auth_key_size = size_of::<MrAuthKey>();
    let mr = keyed.regattr(&attr, 0).unwrap();
    assert_eq!(mr.close(), 0);
    let (foreign, _) = Keyed::open(0).av(&[b"key"]);
    for nothing in [null_mut(), keyed.domain.cast(), foreign] {
        let refused = keyed.register(&mut buffer, 1, nothing, FI_ADDR_UNSPEC, 0);
        assert_eq!(refused.unwrap_err(), INVAL);
    }
}

/// Proves: FI-150
#[test]
fn a_region_can_be_limited_to_one_authorization_key() {
    let keyed = Keyed::open(0);
    let (first, _) = keyed.av(&[b"one"]);
    let (second, _) = keyed.av(&[b"two"]);
    let (both, numbers) = keyed.av(&[b"one", b"two"]);
    let ends = [keyed.endpoint(first), keyed.endpoint(second)];
    let (a, to_first) = peer_of(b"one", &ends[0]);
    let (b, to_second) = peer_of(b"two", &ends[1]);
    let mut buffer = [0u8; 4];
    let mr = keyed
        .register(&mut buffer, 1, both, numbers[1], FI_AUTH_KEY)
        .unwrap();
    assert_eq!(a.write(to_first, &[1; 4], 0, 1), 266);
    assert_eq!(b.write(to_second, &[2; 4], 0, 1), 0);
    assert_eq!((mr.close(), buffer), (0, [2; 4]));
    for (number, flags, refusal) in [
        (numbers[1] + 1, FI_AUTH_KEY, INVAL),
        // Without FI_AUTH_KEY, the number of a key is not the number of an address.
        (numbers[1], 0, INVAL),
    ] {
        let refused = keyed.register(&mut buffer, 1, both, number, flags);
        assert_eq!(refused.unwrap_err(), refusal);
    }
}

/// Inserts the address of an endpoint, with the number of its key if it has one.
fn insert_address(av: *mut FidAv, of: &Side, key: Option<u64>) -> u64 {
    let (name, mut number) = (name_of(of.ep), key.unwrap_or(0));
    let flags = if key.is_some() { FI_AUTH_KEY } else { 0 };
    // SAFETY: a live handle, an address, and a number for it.
    let code = unsafe {
        let insert = (*(*av).ops).insert;
        insert(av, name.as_ptr().cast(), 1, &mut number, flags, null_mut())
    };
    assert_eq!(code, 1);
    number
}

/// Proves: FI-212
#[test]
fn a_region_can_be_limited_to_one_address() {
    for mr_mode in [0, FI_MR_ENDPOINT] {
        for with_key in [false, true] {
            let keyed = Keyed::open(mr_mode);
            let (av, numbers) = keyed.av(&[b"key"]);
            let end = keyed.endpoint(av);
            let peers = [peer_of(b"key", &end), peer_of(b"key", &end)];
            let ([(a, to_a), (b, to_b)], mut buffer) = (peers, [0u8; 8]);
            // Peer `a` connects before the region exists, peer `b` after.
            let mut common = [0u8; 4];
            let common_mr = keyed
                .register(&mut common, 9, av, FI_ADDR_UNSPEC, 0)
                .unwrap();
            let enable = |mr: &Mr| {
                if mr_mode != 0 {
                    assert_eq!((mr.bind(end.ep, 0), mr.enable()), (0, 0));
                }
            };
            enable(&common_mr);
            assert_eq!(a.write(to_a, &[5; 4], 0, 9), 0);
            let key = with_key.then_some(numbers[0]);
            let address_of_a = insert_address(av, &a, key);
            insert_address(av, &b, key);
            let mr = keyed.register(&mut buffer, 1, av, address_of_a, 0).unwrap();
            enable(&mr);
            assert_eq!(a.write(to_a, &[1; 4], 0, 1), 0);
            assert_eq!(b.write(to_b, &[2; 4], 4, 1), libc::EACCES);
            assert_eq!(b.write(to_b, &[6; 4], 0, 9), 0, "a region for all peers");
            // The limit remains when the peer's number is removed.
            assert_eq!(remove(av, address_of_a, 0), 0);
            assert_eq!(a.write(to_a, &[3; 4], 4, 1), 0);
            assert_eq!(b.write(to_b, &[2; 4], 4, 1), libc::EACCES);
            assert_eq!(add(&a, &end, to_a, 1, 0, 1), 0);
            assert_eq!(add(&b, &end, to_b, 1, 0, 1), libc::EACCES);
            // A limit can also name a peer to which this side connects.
            let (c, to_c) = peer_of(b"key", &end);
            let address_of_c = insert_address(av, &c, key);
            let mut private = [0u8; 4];
            let private_mr = keyed
                .register(&mut private, 3, av, address_of_c, 0)
                .unwrap();
            enable(&private_mr);
            assert_eq!(end.write(address_of_c, &[0], 0, 1), 266, "connected");
            assert_eq!(c.write(to_c, &[7; 4], 0, 3), 0);
            assert_eq!(a.write(to_a, &[8; 4], 0, 3), libc::EACCES);
            if mr_mode != 0 {
                assert_eq!(close(end.ep.cast()), 0);
            }
            let closed = [mr, common_mr, private_mr].map(Mr::close);
            assert_eq!((closed, private), ([0; 3], [7; 4]));
            assert_eq!((buffer, common), ([2, 1, 1, 1, 3, 3, 3, 3], [6; 4]));
            let again = keyed.register(&mut buffer, 2, av, address_of_a, 0);
            assert_eq!(again.unwrap_err(), INVAL, "no peer has that number");
        }
    }
}

/// Proves: FI-275
#[test]
fn without_fi_directed_recv_an_address_does_not_limit_a_region() {
    for caps in [FI_RMA, FI_RMA | FI_DIRECTED_RECV] {
        let keyed = Keyed::of(&Wish { caps, ..modern(0) });
        let (av, _) = keyed.av(&[b"key"]);
        let end = keyed.endpoint(av);
        let ((a, to_a), (b, to_b)) = (peer_of(b"key", &end), peer_of(b"key", &end));
        let address_of_a = insert_address(av, &a, None);
        let mut buffer = [0u8; 8];
        let mr = keyed.register(&mut buffer, 1, av, address_of_a, 0).unwrap();
        let limited = caps & FI_DIRECTED_RECV != 0;
        let expected = if limited { libc::EACCES } else { 0 };
        assert_eq!(a.write(to_a, &[1; 4], 0, 1), 0);
        assert_eq!(b.write(to_b, &[2; 4], 4, 1), expected);
        assert_eq!(mr.close(), 0);
        // A number that no peer has is also ignored.
        let unknown = keyed.register(&mut buffer, 2, av, 99, 0);
        match limited {
            true => assert_eq!(unknown.unwrap_err(), INVAL),
            false => assert_eq!(unknown.unwrap().close(), 0),
        }
    }
}

/// Proves: FI-I21
#[test]
fn a_region_gets_the_authorization_keys_present_when_it_is_enabled() {
    for mr_mode in [0, FI_MR_RMA_EVENT] {
        let keyed = Keyed::open(mr_mode);
        let (first, _) = keyed.av(&[b"one"]);
        let (second, _) = keyed.av(&[b"two"]);
        let (growing, _) = keyed.av(&[b"one"]);
        let ends = [keyed.endpoint(first), keyed.endpoint(second)];
        let (a, to_first) = peer_of(b"one", &ends[0]);
        let (b, to_second) = peer_of(b"two", &ends[1]);
        let mut buffer = [0u8; 4];
        let mr = keyed
            .register(&mut buffer, 1, growing, FI_ADDR_UNSPEC, FI_RMA_EVENT)
            .unwrap();
        let waits = mr_mode != 0;
        insert_key(growing, b"two").unwrap();
        if waits {
            assert_ne!(a.write(to_first, &[1; 4], 0, 1), 0, "not enabled yet");
            let counted = counter(keyed.domain);
            assert_eq!(mr.bind(counted, FI_REMOTE_WRITE), 0);
            assert_eq!(mr.enable(), 0);
            assert_eq!(b.write(to_second, &[2; 4], 0, 1), 0, "inserted in time");
            assert_eq!(wait_count(counted, 1), 1);
            assert_eq!(close(counted.cast()), 0);
        } else {
            assert_eq!(b.write(to_second, &[2; 4], 0, 1), 266);
        }
        assert_eq!(a.write(to_first, &[1; 4], 0, 1), 0);
        assert_eq!((mr.close(), buffer), (0, [1; 4]));
    }
}

/// Proves: FI-210
#[test]
fn a_region_and_its_endpoint_need_the_same_address_vector() {
    let keyed = Keyed::open(FI_MR_ENDPOINT);
    let (av, _) = keyed.av(&[b"key"]);
    let (other, _) = keyed.av(&[b"key"]);
    let end = keyed.endpoint(av);
    let (a, to_end) = peer_of(b"key", &end);
    let (mut own, mut foreign) = ([0u8; 4], [0u8; 4]);
    let mr = keyed.register(&mut own, 1, av, FI_ADDR_UNSPEC, 0).unwrap();
    let wrong = keyed
        .register(&mut foreign, 2, other, FI_ADDR_UNSPEC, 0)
        .unwrap();
    assert_eq!(wrong.bind(end.ep, 0), INVAL);
    assert_eq!((mr.bind(end.ep, 0), mr.enable()), (0, 0));
    assert_eq!(a.write(to_end, &[1; 4], 0, 1), 0);
    assert_eq!((mr.close(), close(end.ep.cast()), wrong.close()), (0, 0, 0));
    assert_eq!((own, foreign), ([1; 4], [0; 4]));
}

/// Proves: FI-I22
#[test]
fn the_number_of_an_authorization_key_is_not_accepted_as_an_address() {
    let keyed = Keyed::open(0);
    let (av, numbers) = keyed.av(&[b"key"]);
    assert_eq!(insert_key(av, b"key"), Ok(numbers[0]), "a known key");
    assert_eq!(insert_key(av, b""), Err(INVAL));
    assert_eq!(insert_key(av, &[1; 257]), Err(INVAL));
    let plain = Side::open(&modern(0));
    assert_eq!(insert_key(plain.av, b"key"), Err(INVAL), "no such domain");
    assert_eq!(lookup_key(av, numbers[0]), Ok(b"key".to_vec()));
    assert_eq!(lookup_key(av, 0), Err(INVAL));
    let end = keyed.endpoint(av);
    assert_eq!(remove(av, numbers[0], 0), INVAL, "without the flag");
    assert_eq!(end.write(numbers[0], &[1], 0, 1), INVAL, "not an address");
    // An address with the endpoint's key, and one with another key.
    let target = keyed.endpoint(keyed.av(&[b"key"]).0);
    let name = name_of(target.ep);
    let insert = |mut number: u64, flags: u64| {
        // SAFETY: a live handle, an address, and a number for it.
        let code = unsafe {
            let insert = (*(*av).ops).insert;
            insert(av, name.as_ptr().cast(), 1, &mut number, flags, null_mut())
        };
        (code, number)
    };
    let (code, with_key) = insert(numbers[0], FI_AUTH_KEY);
    assert_eq!((code, lookup_key(av, with_key)), (1, Ok(b"key".to_vec())));
    assert_eq!(insert(numbers[0] + 9, FI_AUTH_KEY), (0, FI_ADDR_NOTAVAIL));
    let (_, without) = insert(0, 0);
    assert_eq!(lookup_key(av, without), Err(INVAL));
    let other_key = insert_key(av, b"other").unwrap();
    let (_, with_other) = insert(other_key, FI_AUTH_KEY);
    let mut buffer = [0u8; 4];
    let mr = keyed
        .register(&mut buffer, 1, target.av, FI_ADDR_UNSPEC, 0)
        .unwrap();
    assert_eq!(end.write(with_key, &[1; 4], 0, 1), 0);
    assert_eq!(end.write(without, &[2; 4], 0, 1), 0);
    assert_eq!(end.write(with_other, &[3; 4], 0, 1), INVAL);
    assert_eq!((mr.close(), buffer), (0, [2; 4]));
    // SAFETY: a live handle of a plain domain, an address, and a number for it.
    let code = unsafe {
        let insert = (*(*plain.av).ops).insert;
        let at = name.as_ptr().cast::<c_void>();
        insert(plain.av, at, 1, &mut 0, FI_AUTH_KEY, null_mut())
    };
    assert_eq!(code, -260);
}

/// Proves: FI-I23
#[test]
fn an_authorization_key_of_an_enabled_endpoint_cannot_be_removed() {
    let keyed = Keyed::open(0);
    let (av, numbers) = keyed.av(&[b"key"]);
    let end = keyed.endpoint(av);
    assert_eq!(remove(av, numbers[0], FI_AUTH_KEY), BUSY);
    assert_eq!(close(end.ep.cast()), 0);
    assert_eq!(remove(av, numbers[0], FI_AUTH_KEY), 0);
    assert_eq!(remove(av, numbers[0], FI_AUTH_KEY), INVAL);
    let end = keyed.waiting(av);
    assert_eq!(end.enable(), INVAL, "the vector has no key");
    insert_key(av, b"one").unwrap();
    insert_key(av, b"two").unwrap();
    assert_eq!(end.enable(), INVAL, "max_ep_auth_key is 1");
}

/// Proves: FI-I20
#[test]
fn hints_request_authorization_keys_by_size_only() {
    let provider = rkey_fi::fi_prov_ini();
    let mut byte = 0u8;
    let mut ask = |version: u32, ep_type: c_int, with_key: bool| {
        let mut info = null_mut();
        // SAFETY: the entry point's structure; complete hints.
        unsafe {
            let mut ep: EpAttr = std::mem::zeroed();
            ep.ep_type = ep_type;
            let mut domain: DomainAttr = std::mem::zeroed();
            domain.auth_key_size = FI_AV_AUTH_KEY;
            if with_key {
                domain.auth_key = &mut byte;
            }
            let mut hints: Info = std::mem::zeroed();
            hints.ep_attr = &mut ep;
            hints.domain_attr = &mut domain;
            let getinfo = (*provider).getinfo;
            let code = getinfo(version, null_mut(), null_mut(), 0, &hints, &mut info);
            if code == 0 {
                let attr = &*(*info).domain_attr;
                assert_eq!(attr.auth_key_size, FI_AV_AUTH_KEY);
                assert!(attr.auth_key.is_null());
                let long = (*info).domain_attr.cast::<LongDomainAttr>();
                assert_eq!((*long).max_ep_auth_key, 1);
            }
            code
        }
    };
    assert_eq!(ask(V1_22, FI_EP_RDM, false), 0);
    for (version, ep_type, with_key) in [
        (V1_22, FI_EP_RDM, true),
        (V1_17, FI_EP_RDM, false),
        (V1_22, FI_EP_MSG, false),
    ] {
        assert_eq!(ask(version, ep_type, with_key), -libc::ENODATA);
    }
    let info = modern(0).info();
    let (fabric, _) = open_domain(V1_22, info);
    // SAFETY: live handles, and our own `fi_info`.
    let code = unsafe {
        (*(*info).domain_attr).auth_key_size = FI_AV_AUTH_KEY;
        (*(*info).domain_attr).auth_key = &mut byte;
        let open = (*(*fabric).ops).domain;
        open(fabric, info, &mut null_mut(), null_mut())
    };
    assert_eq!(code, INVAL);
}

#[test]
fn a_region_with_an_authorization_key_works_as_a_local_buffer() {
    let keyed = Keyed::open(FI_MR_LOCAL);
    let (av, _) = keyed.av(&[b"key"]);
    let end = keyed.endpoint(av);
    let target = Side::open(&Wish {
        auth_key: b"key",
        ..Wish::default()
    });
    let number = end.peer(&target);
    let mut into = [0u8; 4];
    let there = {
        let iov = [iovec(&mut into)];
        let mut attr = attributes(&iov, REMOTE, 5);
        attr.known.auth_key = b"key".as_ptr().cast_mut();
        attr.known.auth_key_size = 3;
        target.regattr(&attr, 0).unwrap()
    };
    let mut source = [7u8; 4];
    let mut auth = MrAuthKey {
        av,
        src_addr: FI_ADDR_UNSPEC,
    };
    let iov = [iovec(&mut source)];
    let mut attr = attributes(&iov, FI_WRITE, 0);
    attr.known.auth_key = (&raw mut auth).cast();
    attr.known.auth_key_size = size_of::<MrAuthKey>();
    let mr = keyed.regattr(&attr, 0).unwrap();
    assert_eq!(end.write_with(number, &source, mr.desc(), 0, 5), 0);
    assert_eq!(end.write_with(number, &source, null_mut(), 0, 5), INVAL);
    let code = end.read_with(number, &mut source, mr.desc(), 0, 5);
    assert_eq!(code, -libc::EACCES, "no right to read into it");
    assert_eq!((mr.close(), there.close(), into), (0, 0, [7; 4]));
}

#[test]
fn a_receive_can_be_limited_to_peers_with_an_authorization_key() {
    let keyed = Keyed::open(0);
    let (av, numbers) = keyed.av(&[b"key"]);
    let end = keyed.endpoint(av);
    let later = insert_key(av, b"later").unwrap();
    let (a, to_end) = peer_of(b"key", &end);
    let address_of_a = insert_address(av, &a, None);
    let mut into = [0u8; 4];
    let mut receive = |addr: u64, flags: u64| {
        let iov = [iovec(&mut into)];
        let msg = MsgTagged {
            msg_iov: iov.as_ptr(),
            desc: null_mut(),
            iov_count: 1,
            addr,
            tag: 5,
            ignore: 0,
            context: null_mut(),
            data: 0,
        };
        // SAFETY: the handle is live; the buffer stays valid until the completion.
        unsafe { ((*(*end.ep).tagged).recvmsg)(end.ep, &msg, flags) }
    };
    let refused = INVAL as isize;
    assert_eq!(
        receive(later, FI_AUTH_KEY),
        refused,
        "not the endpoint's key"
    );
    assert_eq!(receive(address_of_a, FI_AUTH_KEY), refused, "not a key");
    assert_eq!(receive(numbers[0], 0), refused, "not an address");
    assert_eq!(receive(numbers[0], FI_AUTH_KEY), 0);
    tsend(&a, to_end, &[8; 4], 5, 0);
    assert_eq!(end.completion(&[&a]).unwrap().tag, 5);
    assert_eq!(into, [8; 4]);
}
