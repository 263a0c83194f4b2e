//! A peer that is no libfabric program: it connects as one does, and then says anything.

use crate::harness::*;
use crate::messages::trecv;
use crate::registration::pair;
use rkey_conformance::mutate::{Random, input};
use rkey_device::base::range::VaRange;
use rkey_device::core::{Access, Region, RegionSpec};
use rkey_device::engine::{
    Completion, QpState, RecvRequest, SendFlags, SendRequest, Sge, Status, Work,
};
use rkey_device::{Config, Cq, Device, Listener, Qp, QpOptions};
use rkey_fi::fuzzing;
use rkey_fi::sys::*;
use std::net::{Ipv4Addr, SocketAddr};
use std::ptr::null_mut;
use std::time::Instant;

/// Connections, one after the other, and what is said on each at most.
const CONNECTIONS: usize = 60;
const MESSAGES: usize = 80;
/// A tag that no random message has.
const OURS: u64 = 0x5eed_0f0a_c0ff_ee01;

/// A device without a provider on it.
struct Hostile {
    device: Device,
    cq: Cq,
    options: QpOptions,
    region: Region,
    memory: Box<[u8]>,
    listener: Listener,
}

impl Hostile {
    fn open() -> Self {
        let mut config = Config::from_env().unwrap();
        // Whom nobody answers any more hears of it soon: 4 ms, five times.
        config.set("RKEY_TIMEOUT", "10").unwrap();
        let device = Device::open(config).unwrap();
        let domain = device.create_domain().unwrap();
        let cq = device.create_cq(4096, None).unwrap();
        let memory = vec![0; 1 << 16].into_boxed_slice();
        let ranges = [VaRange::new(memory.as_ptr() as u64, 1 << 16).unwrap()];
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        // SAFETY: the memory lives as long as the device, and is changed only while nothing is posted that reads it.
        let region = unsafe { device.register(&RegionSpec::new(domain, &ranges, access)) }.unwrap();
        let listener = device.listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let options = QpOptions {
            max_send: 256,
            max_recv: 256,
            ..QpOptions::new(domain, &cq)
        };
        Self {
            device,
            cq,
            options,
            region,
            memory,
            listener,
        }
    }

    /// Lets an endpoint call us, and gives what it says first, with our name in it.
    fn hello(&self, from: &Side) -> Vec<u8> {
        let ours = self.listener.local_address();
        let number = from.insert(&name_at(ours.port()));
        // SAFETY: a live handle; nothing is sent, as the connection is refused.
        let code = unsafe {
            ((*(*from.ep).msg).send)(
                from.ep,
                [0u8].as_ptr().cast(),
                1,
                null_mut(),
                number,
                null_mut(),
            )
        };
        assert_eq!(code, -(libc::EAGAIN as isize), "it is connecting");
        let incoming = self.listener.accept(Some(PATIENCE)).unwrap();
        let like = incoming.peer().private_data.clone();
        incoming.reject("only curious");
        fuzzing::hello_from(ours, &like).expect("a hello")
    }

    /// Connects, and takes what comes, or not.
    fn connect(&self, to: SocketAddr, hello: &[u8], receives: usize) -> Option<Qp> {
        let qp = self.device.create_qp(&self.options).unwrap();
        self.device.connect(to, &[&qp], hello, PATIENCE).ok()?;
        for id in 0..receives {
            let sges = [self.sge(1 << 15, 1 << 15)];
            let id = id as u64;
            // One that is cut off at once takes none.
            let _ = qp.post_recv(&RecvRequest { id, sges: &sges });
        }
        Some(qp)
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge {
            addr: &raw const self.memory[at] as u64,
            len: len as u32,
            key: self.region.local_key,
        }
    }

    /// Says something and waits for what becomes of it, while an endpoint makes progress; whether the connection is
    /// still there.
    fn say(&mut self, qp: &Qp, bytes: &[u8], listener: &Side) -> bool {
        self.memory[..bytes.len()].copy_from_slice(bytes);
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        let sges = [self.sge(0, bytes.len())];
        let request = SendRequest {
            flags: SendFlags::SIGNALED,
            ..SendRequest::new(7, send, &sges)
        };
        if qp.post_send(&request).is_err() {
            return false;
        }
        let started = Instant::now();
        loop {
            let mut one = [Completion::default()];
            if self.cq.poll(&mut one).unwrap() == 1 && !one[0].opcode.is_recv() {
                return one[0].status == Status::Success;
            }
            if qp.query().unwrap().state == QpState::Error {
                return false;
            }
            let _ = poll(listener.cq);
            assert!(started.elapsed() < PATIENCE, "{bytes:02x?} hangs");
        }
    }
}

/// One message of a decent peer, received by its tag.
fn exchange(a: &Side, b: &Side, peer: u64, round: usize) {
    let bytes = [round as u8; 300];
    let mut into = [0u8; 300];
    trecv(b, FI_ADDR_UNSPEC, &mut into, OURS, 0, 99);
    // SAFETY: a live handle; the bytes stay until the completion.
    let code = again(|| unsafe {
        let send = (*(*a.ep).tagged).send;
        let _ = poll(b.cq);
        send(
            a.ep,
            bytes.as_ptr().cast(),
            300,
            null_mut(),
            peer,
            OURS,
            null_mut(),
        )
    });
    assert_eq!(code, 0);
    loop {
        // What the hostile peer caused is in the queue, too.
        if b.completion(&[a]).is_ok_and(|entry| entry.tag == OURS) {
            break;
        }
    }
    a.completion(&[b]).unwrap();
    assert_eq!(into, bytes);
}

/// Whatever a peer says, it changes no byte that it may not, others are served, and it is cut off at most.
#[test]
fn a_peer_that_says_anything_does_no_harm() {
    // Collectives are there only if they are asked for: then everything that a peer may say is heard.
    let everything = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_COLLECTIVE;
    let (a, b, peer) = pair(&Wish {
        caps: everything,
        ..Wish::default()
    });
    let (mut secret, mut shown) = ([0x77u8; 4096], [0x33u8; 4096]);
    let regions = [
        b.reg(&mut secret, FI_RECV, 0, 0).unwrap(),
        b.reg(&mut shown, FI_REMOTE_READ, 1, 0).unwrap(),
    ];
    let mut hostile = Hostile::open();
    let hello = hostile.hello(&b);
    let to = address_of(&name_of(b.ep));
    let samples = fuzzing::messages();
    let mut random = Random::new(4);
    let mut cut_off = 0;
    for round in 0..CONNECTIONS {
        // Some do not even say what they are.
        let odd = round % 10 == 9;
        let first = if odd {
            input(&mut random, std::slice::from_ref(&hello))
        } else {
            hello.clone()
        };
        let receives = if round % 2 == 0 { 200 } else { 0 };
        let Some(qp) = hostile.connect(to, &first, receives) else {
            assert!(odd, "a good hello was refused");
            continue;
        };
        let said = (0..MESSAGES).all(|_| {
            let bytes = input(&mut random, &samples);
            hostile.say(&qp, &bytes, &b)
        });
        cut_off += usize::from(!said);
        exchange(&a, &b, peer, round);
        assert_eq!((secret, shown), ([0x77; 4096], [0x33; 4096]));
    }
    assert!(cut_off > 0, "nothing was nonsense");
    assert_eq!(regions.map(|mr| mr.close()), [0; 2]);
    assert_eq!([a, b].map(|side| close(side.ep.cast())), [0; 2]);
}
