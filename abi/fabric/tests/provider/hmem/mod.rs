//! Memory of accelerators, with fake runtimes whose memory traps when the processor accesses it.

mod rules;

use crate::collectives::{Buffers, Mc, Team, call};
use crate::harness::*;
use crate::peer::{Peer, hear, is_peer, say, say_name};
use crate::registration::pair;
use rkey_fakes::{CUDA, LEVEL_ZERO, NEURON, Place, ROCR, Runtime, SYNAPSE_AI};
use rkey_fi::sys::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

const CAPS: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_HMEM;
const LOCAL: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
const ALL: u64 = LOCAL | REMOTE;
const EINVAL: c_int = -libc::EINVAL;
/// Longer than one fragment, whichever path the message takes.
const LEN: usize = 3 << 20;
const TAG: u64 = 5;

pub(crate) fn wish(mr_mode: c_int) -> Wish {
    Wish {
        caps: CAPS,
        ..Wish::mode(mr_mode)
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7 + at / 251 + seed) as u8)
        .collect()
}

/// Registers memory of an interface.
fn register(
    side: &Side,
    (iface, device): (fi_hmem_iface, u64),
    (at, len): (u64, usize),
    (access, key, flags): (u64, u64, u64),
) -> Result<Mr, c_int> {
    let iov = [libc::iovec {
        iov_base: at as *mut c_void,
        iov_len: len,
    }];
    let mut attr = attributes(&iov, access, key);
    attr.known.iface = iface;
    attr.known.device = device;
    side.regattr(&attr, flags)
}

fn cuda(side: &Side, memory: (u64, usize), access: u64, key: u64) -> Mr {
    register(side, (FI_HMEM_CUDA, 0), memory, (access, key, 0)).unwrap()
}

/// A buffer by its address, with a descriptor.
#[derive(Clone, Copy)]
struct Buffer {
    at: u64,
    len: usize,
    desc: *mut c_void,
}

impl Buffer {
    fn plain((at, len): (u64, usize)) -> Self {
        let desc = null_mut();
        Self { at, len, desc }
    }

    fn of((at, len): (u64, usize), mr: &Mr) -> Self {
        let desc = mr.desc();
        Self { at, len, desc }
    }
}

/// The end of an operation whose post returned this code: 0, its negative code, or the error of its completion.
fn end(side: &Side, others: &[&Side], code: isize) -> c_int {
    match code {
        0 => side.completion(others).err().map_or(0, |error| error.err),
        code => code as c_int,
    }
}

fn write(side: &Side, it: Buffer, peer: u64, addr: u64, key: u64) -> c_int {
    // SAFETY: a live handle; the buffer stays until the completion.
    let code = again(|| unsafe {
        let write = (*(*side.ep).rma).write;
        write(
            side.ep,
            it.at as *const c_void,
            it.len,
            it.desc,
            peer,
            addr,
            key,
            null_mut(),
        )
    });
    end(side, &[], code)
}

fn read(side: &Side, it: Buffer, peer: u64, addr: u64, key: u64) -> c_int {
    // SAFETY: as above.
    let code = again(|| unsafe {
        let read = (*(*side.ep).rma).read;
        read(
            side.ep,
            it.at as *mut c_void,
            it.len,
            it.desc,
            peer,
            addr,
            key,
            null_mut(),
        )
    });
    end(side, &[], code)
}

fn post_send(side: &Side, it: Buffer, peer: u64) -> isize {
    // SAFETY: as above.
    again(|| unsafe {
        let send = (*(*side.ep).tagged).send;
        send(
            side.ep,
            it.at as *const c_void,
            it.len,
            it.desc,
            peer,
            TAG,
            null_mut(),
        )
    })
}

fn post_recv(side: &Side, it: Buffer) -> isize {
    let (at, from) = (it.at as *mut c_void, FI_ADDR_UNSPEC);
    // SAFETY: as above.
    unsafe {
        let recv = (*(*side.ep).tagged).recv;
        recv(side.ep, at, it.len, it.desc, from, TAG, 0, null_mut())
    }
}

/// Adds to a number at a peer and fetches the old one; operand and result are at these buffers.
fn fetch_add(side: &Side, other: &[&Side], it: [Buffer; 2], peer: u64, addr: u64) -> c_int {
    let [operand, result] = it;
    // SAFETY: as above.
    let code = again(|| unsafe {
        let add = (*(*side.ep).atomic).readwrite;
        let from = (operand.at as *const c_void, operand.desc);
        let to = (result.at as *mut c_void, result.desc);
        let (ep, op) = (side.ep, FI_SUM);
        add(
            ep,
            from.0,
            1,
            from.1,
            to.0,
            to.1,
            peer,
            addr,
            1,
            FI_UINT64,
            op,
            null_mut(),
        )
    });
    end(side, other, code)
}

/// The peer: copies between its accelerator memory and the test's, as the test requests.
fn target(mode: c_int) {
    let fake = CUDA.load().unwrap();
    let side = Side::open(&wish(mode));
    let memory = (fake.alloc(Place::Device, 0, LEN), LEN);
    let mr = cuda(&side, memory, ALL, 1);
    say_name(&side);
    while let Some(line) = hear() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "fill" => fake.poke(memory.0, &pattern(LEN, number(1))),
            "receive" => {
                let len = number(1);
                assert_eq!(post_recv(&side, Buffer::of((memory.0, len), &mr)), 0);
                side.completion(&[]).unwrap();
            }
            "compare" => {
                let (len, seed) = (number(1), number(2));
                assert!(fake.peek(memory.0, len) == pattern(len, seed), "{line}");
            }
            _ => break,
        }
        say("done");
    }
    assert!(fake.copies() > 0);
    assert_eq!((close(side.ep.cast()), mr.close()), (0, 0));
}

/// Proves partly: FI-082, FI-083 (with fake runtimes, not on real hardware)
#[test]
fn device_memory_travels_between_two_processes() {
    let test = "hmem::device_memory_travels_between_two_processes";
    if is_peer() {
        return target(FI_MR_HMEM);
    }
    let Some(fake) = CUDA.load() else { return };
    for mode in [FI_MR_HMEM, 0] {
        let mut peer = Peer::start(test, &[]);
        let side = Side::open(&wish(mode));
        let number = side.insert(&peer.name());
        let memory = (fake.alloc(Place::Device, 0, LEN), LEN);
        let mr = cuda(&side, memory, ALL, 7);
        for (seed, len) in [8, 64, 5000, 100_000, LEN].into_iter().enumerate() {
            let buffer = match mode {
                FI_MR_HMEM => Buffer::of((memory.0, len), &mr),
                _ => Buffer::plain((memory.0, len)),
            };
            let mut ask = |what: String| {
                peer.tell(&what);
                assert_eq!(peer.heard(), "done");
            };
            fake.poke(memory.0, &pattern(len, seed));
            assert_eq!(write(&side, buffer, number, 0, 1), 0, "{len}");
            ask(format!("compare {len} {seed}"));
            ask(format!("fill {}", seed + 100));
            assert_eq!(read(&side, buffer, number, 0, 1), 0, "{len}");
            assert!(
                fake.peek(memory.0, len) == pattern(len, seed + 100),
                "{len}"
            );
            peer.tell(&format!("receive {len}"));
            fake.poke(memory.0, &pattern(len, seed + 50));
            assert_eq!(
                end(&side, &[], post_send(&side, buffer, number)),
                0,
                "{len}"
            );
            assert_eq!(peer.heard(), "done");
            peer.tell(&format!("compare {len} {}", seed + 50));
            assert_eq!(peer.heard(), "done");
        }
        peer.finish();
        assert_eq!((close(side.ep.cast()), mr.close()), (0, 0));
        fake.free(memory.0);
    }
}

/// Each interface, the number of a device, and its fake runtime.
const INTERFACES: [(fi_hmem_iface, u64, Runtime); 5] = [
    (FI_HMEM_CUDA, 1, CUDA),
    (FI_HMEM_ROCR, 1, ROCR),
    // What fi_hmem_ze_device(1, 1) returns.
    (FI_HMEM_ZE, 1 << 16 | 1, LEVEL_ZERO),
    (FI_HMEM_NEURON, 1, NEURON),
    (FI_HMEM_SYNAPSEAI, 1, SYNAPSE_AI),
];

/// Proves partly: FI-125, FI-126, FI-127, FI-128, FI-129, FI-133, FI-220, FI-223 (with fake runtimes, not on real hardware)
#[test]
fn memory_of_each_interface_is_copied_by_its_runtime() {
    for (iface, device, runtime) in INTERFACES {
        let Some(fake) = runtime.load() else { return };
        let (a, b, peer) = pair(&wish(FI_MR_HMEM));
        let memory = (fake.alloc(Place::Device, device as i32, 2 * LEN), 2 * LEN);
        // Neuron memory cannot be read by address.
        let reads = iface != FI_HMEM_NEURON;
        let all = register(&b, (iface, device), memory, (ALL, 1, 0));
        assert_eq!(all.is_ok(), reads, "{}", runtime.name);
        let mr = match all {
            Ok(mr) => mr,
            Err(code) => {
                assert_eq!(code, -libc::EOPNOTSUPP);
                let writes = FI_RECV | FI_READ | FI_REMOTE_WRITE;
                register(&b, (iface, device), memory, (writes, 1, 0)).unwrap()
            }
        };
        let mut bytes = vec![0u8; LEN];
        let before = fake.copies();
        for (seed, len) in [8, 3000, LEN].into_iter().enumerate() {
            let sent = pattern(len, seed);
            assert_eq!(a.write(peer, &sent, 0, 1), 0, "{} {len}", runtime.name);
            assert!(fake.peek(memory.0, len) == sent, "{} {len}", runtime.name);
            let (at, message) = (memory.0 + LEN as u64, pattern(len, seed + 9));
            assert_eq!(post_recv(&b, Buffer::of((at, len), &mr)), 0);
            let from = Buffer::plain((message.as_ptr() as u64, len));
            assert_eq!(post_send(&a, from, peer), 0);
            assert!(a.completion(&[&b]).is_ok() && b.completion(&[&a]).is_ok());
            assert!(fake.peek(at, len) == message, "{} {len}", runtime.name);
            if !reads {
                continue;
            }
            let into = &mut bytes[..len];
            assert_eq!(
                a.read(peer, into, LEN as u64, 1),
                0,
                "{} {len}",
                runtime.name
            );
            assert!(into == message, "{} {len}", runtime.name);
            let to = Buffer::plain((into.as_mut_ptr() as u64, len));
            let number = b.peer(&a);
            assert_eq!(post_recv(&a, to), 0);
            assert_eq!(post_send(&b, Buffer::of((memory.0, len), &mr), number), 0);
            assert!(b.completion(&[&a]).is_ok() && a.completion(&[&b]).is_ok());
            assert!(into == sent, "{} {len}", runtime.name);
        }
        assert!(fake.copies() > before);
        assert_eq!(mr.close(), 0);
        fake.free(memory.0);
    }
}

/// Both sides in this process, and buffers of every kind on both sides.
///
/// Proves partly: FI-224 (managed memory of a fake runtime, which does not really migrate)
#[test]
fn every_pair_of_kinds_of_memory_exchanges_messages_and_atomics() {
    let Some(fake) = CUDA.load() else { return };
    let (a, b, peer) = pair(&wish(0));
    let mut bytes = vec![0u8; 2 * LEN];
    let system = bytes.as_mut_ptr().expose_provenance() as u64;
    let places = [Place::Device, Place::Managed, Place::Host];
    let mut memories: Vec<u64> = places.map(|place| fake.alloc(place, 0, 2 * LEN)).to_vec();
    memories.push(system);
    let mut seed = 0;
    for from in &memories {
        for to in &memories {
            let to = to + LEN as u64;
            for len in [40, 6000, LEN] {
                seed += 1;
                fake.poke(*from, &pattern(len, seed));
                let receive = Buffer::plain((to, len));
                assert_eq!(post_recv(&b, receive), 0);
                assert_eq!(post_send(&a, Buffer::plain((*from, len)), peer), 0);
                assert!(a.completion(&[&b]).is_ok() && b.completion(&[&a]).is_ok());
                assert!(fake.peek(to, len) == pattern(len, seed), "{len}");
                // An unexpected message waits in the provider.
                fake.poke(*from, &pattern(len, seed + 1));
                assert_eq!(post_send(&a, Buffer::plain((*from, len)), peer), 0);
                poll(b.cq);
                assert_eq!(post_recv(&b, receive), 0);
                assert!(a.completion(&[&b]).is_ok() && b.completion(&[&a]).is_ok());
                assert!(fake.peek(to, len) == pattern(len, seed + 1), "{len}");
            }
            let target = b.reg_at(to as usize, 64, REMOTE, 1, 0).unwrap();
            fake.poke(to + 8, &40u64.to_ne_bytes());
            fake.poke(*from, &2u64.to_ne_bytes());
            let here = [0, 16].map(|at| Buffer::plain((*from + at, 8)));
            assert_eq!(fetch_add(&a, &[&b], here, peer, 8), 0);
            assert_eq!(fake.peek(to + 8, 8), 42u64.to_ne_bytes());
            assert_eq!(fake.peek(*from + 16, 8), 40u64.to_ne_bytes());
            assert_eq!(target.close(), 0);
        }
    }
    for at in &memories[..3] {
        fake.free(*at);
    }
}

/// Proves partly: FI-067 (with fake runtimes, not on real hardware)
#[test]
fn freed_device_memory_is_refused_even_if_its_address_is_reused() {
    let Some(fake) = CUDA.load() else { return };
    let (a, b, peer) = pair(&wish(0));
    let at = fake.alloc(Place::Device, 0, 4096);
    let mr = cuda(&b, (at, 4096), REMOTE, 1);
    assert_eq!(a.write(peer, &[1; 8], 0, 1), 0);
    assert_eq!(mr.refresh(&[]), 0, "the runtime knows that it is there");
    fake.free(at);
    assert_eq!(a.write(peer, &[2; 8], 0, 1), libc::EFAULT);
    assert_eq!(fake.alloc(Place::Device, 0, 4096), at);
    assert_eq!(a.write(peer, &[3; 8], 0, 1), libc::EFAULT);
    assert_eq!(a.read(peer, &mut [0; 8], 0, 1), libc::EFAULT);
    assert_eq!(fake.peek(at, 8), [1; 8]);
    assert_eq!(mr.close(), 0);
    let again = cuda(&b, (at, 4096), REMOTE, 1);
    assert_eq!(a.write(peer, &[4; 8], 0, 1), 0);
    assert_eq!((fake.peek(at, 8), again.close()), (vec![4; 8], 0));
    fake.free(at);
}

#[test]
fn a_runtime_that_fails_gives_error_completions() {
    let Some(fake) = CUDA.load() else { return };
    let (a, b, peer) = pair(&wish(0));
    let at = fake.alloc(Place::Device, 0, LEN);
    let mr = cuda(&b, (at, LEN), REMOTE, 1);
    let mut bytes = vec![7u8; LEN];
    let here = bytes.as_mut_ptr().expose_provenance() as u64;
    for len in [8, LEN] {
        for copies in [1, 2] {
            fake.fail(copies);
            let results = [0, 1].map(|_| a.write(peer, &bytes[..len], 0, 1));
            assert!(
                results.contains(&libc::EFAULT),
                "{len} {copies} {results:?}"
            );
            fake.fail(1);
            assert_eq!(a.read(peer, &mut vec![0; len], 0, 1), libc::EFAULT);
            // The runtime also fails for a buffer on our own side.
            let own = Buffer::plain((at, len));
            let target = b.reg_at(here as usize, LEN, REMOTE, 2, 0).unwrap();
            let sides = [write(&a, own, peer, 0, 2), read(&a, own, peer, 0, 2)];
            assert_eq!(sides, [libc::EFAULT; 2], "{len}");
            // A short message is read when it is sent, a long one when it has a receive.
            let long = len == LEN;
            if long {
                assert_eq!(post_recv(&b, Buffer::plain((here, len))), 0);
            }
            let message = post_send(&a, own, peer);
            assert_ne!(end(&a, &[&b], message), 0, "{len}");
            assert!(!long || b.completion(&[&a]).is_err());
            fake.fail(0);
            assert_eq!((a.write(peer, &bytes[..len], 0, 1), target.close()), (0, 0));
        }
    }
    assert_eq!(mr.close(), 0);
    fake.free(at);
}

/// Three members, whose sources and results are in accelerator memory.
#[test]
fn collective_operations_read_and_write_device_memory() {
    let Some(fake) = CUDA.load() else { return };
    let team = Team::open(
        3,
        &Wish {
            caps: FI_MSG | FI_TAGGED | FI_COLLECTIVE | FI_HMEM,
            ..Wish::default()
        },
    );
    let groups = team.join_all();
    for count in [4, 20_000] {
        let len = 8 * count;
        let sources = [0; 3].map(|_| fake.alloc(Place::Device, 0, len));
        let results = [0; 3].map(|_| fake.alloc(Place::Device, 1, len));
        for (at, source) in sources.iter().enumerate() {
            let numbers = (0..count as u64).flat_map(|n| (n + at as u64).to_ne_bytes());
            fake.poke(*source, &numbers.collect::<Vec<_>>());
        }
        for (at, side) in team.sides.iter().enumerate() {
            let buffers = Buffers {
                source: sources[at] as *mut u8,
                desc: null_mut(),
                result: results[at] as *mut u8,
                result_desc: null_mut(),
                count,
            };
            let kind = (FI_UINT64, FI_SUM);
            let code = call(side, &groups[at], FI_ALLREDUCE, buffers, None, kind);
            assert_eq!(code, 0);
        }
        team.all_done();
        let sums = (0..count as u64).flat_map(|n| (3 * n + 3).to_ne_bytes());
        let sums: Vec<u8> = sums.collect();
        for at in results {
            assert!(fake.peek(at, len) == sums, "{count}");
        }
        for at in sources.into_iter().chain(results) {
            fake.free(at);
        }
    }
    groups.into_iter().for_each(Mc::close);
    team.close();
}
