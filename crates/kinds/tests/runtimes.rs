//! Memory of accelerators, with fake runtimes whose memory traps when the processor touches it.

#![allow(unsafe_code)]
// UNSAFETY: makes a copier for any address.

use rkey_base::foreign::ForeignMemory;
use rkey_base::range::VaRange;
use rkey_fakes::{CUDA, Fake, LEVEL_ZERO, NEURON, Place, ROCR, Runtime, SYNAPSE_AI};
use rkey_kinds::{Kind, Refusal, Wanted, discover, hold};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::Metadata;
use tracing::span::{Attributes, Id, Record};

fn wanted(at: u64, len: usize) -> Wanted {
    Wanted {
        range: VaRange::new(at, len as u64).unwrap(),
        device: None,
        reads: true,
        device_only: false,
        host: false,
    }
}

fn held(fake: &Fake, kind: Kind, place: Place, len: usize) -> (u64, Arc<dyn ForeignMemory>) {
    let at = fake.alloc(place, 1, len);
    let wanted = Wanted {
        device: Some(1),
        ..wanted(at, len)
    };
    let copier = hold(kind, &wanted).unwrap();
    (at, copier.expect("the runtime copies"))
}

/// The runtimes that can tell whether an address is theirs.
const DISCOVERING: [(Kind, Runtime); 3] = [
    (Kind::Cuda, CUDA),
    (Kind::Rocr, ROCR),
    (Kind::LevelZero, LEVEL_ZERO),
];

#[test]
fn runtimes_copy_in_both_directions() {
    let both = [DISCOVERING.as_slice(), &[(Kind::SynapseAi, SYNAPSE_AI)]].concat();
    for (kind, runtime) in both {
        let Some(fake) = runtime.load() else { return };
        let places: &[Place] = match kind {
            Kind::Cuda | Kind::LevelZero => &[Place::Device, Place::Managed],
            _ => &[Place::Device],
        };
        for place in places {
            let len = 600_000;
            let (at, copier) = held(&fake, kind, *place, len);
            copier.store(at + 1, b"to the device").unwrap();
            assert_eq!(fake.peek(at + 1, 13), b"to the device", "{kind}");
            let all: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            fake.poke(at, &all);
            let mut back = vec![0; len];
            copier.load(&mut back, at).unwrap();
            assert!(back == all, "{kind}");
            back.reverse();
            copier.store(at, &back).unwrap();
            assert!(fake.peek(at, len) == back, "{kind}");
            fake.free(at);
        }
    }
}

#[test]
fn neuron_memory_can_only_be_written() {
    let Some(fake) = NEURON.load() else { return };
    let at = fake.alloc(Place::Device, 0, 4096);
    let refused = hold(Kind::Neuron, &wanted(at, 4096)).unwrap_err();
    assert!(matches!(refused, Refusal::NotReadable { .. }));
    let writes = Wanted {
        reads: false,
        ..wanted(at, 4096)
    };
    let copier = hold(Kind::Neuron, &writes).unwrap().unwrap();
    copier.store(at + 8, b"weights").unwrap();
    assert_eq!(fake.peek(at + 8, 7), b"weights");
    assert!(copier.load(&mut [0], at).is_err());
    fake.free(at);
}

#[test]
fn the_calling_threads_context_is_preserved() {
    let Some(fake) = CUDA.load() else { return };
    let (at, copier) = held(&fake, Kind::Cuda, Place::Device, 64);
    copier.store(at, &[1]).unwrap();
    assert_eq!(fake.depth(), 0);
    fake.fail(1);
    assert!(copier.load(&mut [0], at).is_err());
    assert_eq!(fake.depth(), 0);
    fake.free(at);
}

#[test]
fn a_copier_refuses_new_memory_at_a_reused_address() {
    for (kind, runtime) in DISCOVERING {
        let Some(fake) = runtime.load() else { return };
        let (at, copier) = held(&fake, kind, Place::Device, 4096);
        copier.store(at, &[7]).unwrap();
        fake.free(at);
        assert!(copier.store(at, &[1]).is_err(), "{kind}: freed");
        assert_eq!(fake.alloc(Place::Device, 1, 4096), at);
        assert!(copier.store(at, &[1]).is_err(), "{kind}: another's");
        assert!(copier.load(&mut [0], at).is_err(), "{kind}: another's");
        assert_eq!(fake.peek(at, 1), [7]);
        let again = hold(kind, &wanted(at, 4096)).unwrap().unwrap();
        again.store(at, &[2]).unwrap();
        assert_eq!(fake.peek(at, 1), [2]);
        fake.free(at);
    }
}

#[test]
fn devices_of_level_zero_are_numbered_by_driver() {
    let Some(fake) = LEVEL_ZERO.load() else {
        return;
    };
    for number in [0, 1, 1 << 16, 1 << 16 | 1] {
        let at = fake.alloc(Place::Device, number, 4096);
        for asked in [0, 1, 1 << 16, 1 << 16 | 1, 2, 2 << 16] {
            let wanted = Wanted {
                device: Some(asked),
                ..wanted(at, 4096)
            };
            let held = hold(Kind::LevelZero, &wanted);
            assert_eq!(
                held.is_ok(),
                asked == number as u64,
                "{number:#x} {asked:#x}"
            );
            if let Ok(copier) = held {
                copier.unwrap().store(at, &[9]).unwrap();
            }
        }
        assert_eq!(fake.peek(at, 1), [9]);
        fake.free(at);
    }
}

#[test]
fn memory_of_a_sub_device_is_copied_by_its_device() {
    const SUB: i32 = 0x100;
    let Some(fake) = LEVEL_ZERO.load() else {
        return;
    };
    for number in [0, 1, 1 << 16, 1 << 16 | 1] {
        let at = fake.alloc(Place::Device, SUB | number, 4096);
        let wanted = Wanted {
            device: Some(number as u64),
            ..wanted(at, 4096)
        };
        let copier = hold(Kind::LevelZero, &wanted).unwrap().unwrap();
        copier.store(at, b"tile").unwrap();
        assert_eq!(fake.peek(at, 4), b"tile");
        let other = Wanted {
            device: Some(number as u64 ^ 1),
            ..wanted
        };
        let refused = hold(Kind::LevelZero, &other).unwrap_err();
        assert!(matches!(refused, Refusal::OtherDevice { .. }), "{refused}");
        fake.free(at);
    }
}

#[test]
fn a_device_without_host_memory_opens_at_most_one_stream() {
    let Some(fake) = SYNAPSE_AI.load() else {
        return;
    };
    let at = fake.alloc(Place::Device, 0, 64);
    let wanted = Wanted {
        device: Some(0),
        ..wanted(at, 64)
    };
    let copier = hold(Kind::SynapseAi, &wanted).unwrap().unwrap();
    let before = fake.streams();
    fake.fail(1);
    for _ in 0..10 {
        assert!(copier.store(at, b"no").is_err());
    }
    fake.fail(0);
    copier.store(at, b"yes").unwrap();
    assert_eq!(fake.peek(at, 3), b"yes");
    assert!(fake.streams() <= before + 1);
    fake.free(at);
}

/// Counts the warnings of its thread.
#[derive(Default)]
struct Warnings(Arc<AtomicU64>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, it: &Metadata<'_>) -> bool {
        *it.level() == tracing::Level::WARN
    }
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn failing_accesses_do_not_flood_the_log() {
    let Some(fake) = CUDA.load() else { return };
    let (at, held) = held(&fake, Kind::Cuda, Place::Device, 64);
    // SAFETY: the memory is the fake's, for copies.
    let anywhere = unsafe { discover::Anywhere::copier() };
    fake.fail(1);
    for copier in [held, anywhere] {
        let warnings = Warnings::default();
        let count = Arc::clone(&warnings.0);
        tracing::subscriber::with_default(warnings, || {
            for _ in 0..1000 {
                assert!(copier.load(&mut [0], at).is_err());
            }
        });
        // 1, 2, 4 and so on up to 512.
        assert_eq!(count.load(Ordering::Relaxed), 10);
    }
    fake.fail(0);
    fake.free(at);
}

#[test]
fn a_refusal_names_the_runtime_that_owns_the_memory() {
    let Some(fake) = ROCR.load() else { return };
    let at = fake.alloc(Place::Device, 0, 4096);
    // Loads the library.
    assert!(hold(Kind::Rocr, &wanted(at, 4096)).unwrap().is_some());
    drop(fake);
    for (kind, runtime) in [
        (Kind::Cuda, CUDA),
        (Kind::LevelZero, LEVEL_ZERO),
        (Kind::SynapseAi, SYNAPSE_AI),
    ] {
        let Some(other) = runtime.load() else { return };
        let refused = hold(kind, &wanted(at, 4096)).unwrap_err().to_string();
        let told = format!("is not {kind} memory but ROCr memory");
        assert!(refused.contains(&told), "{refused}");
        drop(other);
    }
    ROCR.load().unwrap().free(at);
}

#[test]
fn memory_that_is_not_as_the_program_says_is_refused() {
    let Some(fake) = CUDA.load() else { return };
    let at = fake.alloc(Place::Device, 1, 4096);
    let host = fake.alloc(Place::Host, 0, 4096);
    let managed = fake.alloc(Place::Managed, 0, 4096);
    let ask = |wanted: &Wanted| hold(Kind::Cuda, wanted);
    let on = |device, at| Wanted {
        device: Some(device),
        ..wanted(at, 8)
    };
    let Err(Refusal::OtherDevice {
        wanted: 0,
        found: 1,
        ..
    }) = ask(&on(0, at))
    else {
        panic!("the memory is on device 1");
    };
    let device_only = Wanted {
        device_only: true,
        ..on(1, at)
    };
    assert!(ask(&device_only).is_ok());
    assert!(matches!(
        ask(&wanted(at + 1, 4096)),
        Err(Refusal::Outside { .. })
    ));
    // The processor copies host memory, so its device number is ignored.
    let of_host = Wanted {
        host: true,
        ..on(7, host)
    };
    assert!(ask(&of_host).unwrap().is_none());
    for (memory, device_only, host) in [
        (at, false, true),
        (managed, false, true),
        (host, true, false),
        (managed, true, false),
    ] {
        let wrong = ask(&Wanted {
            device_only,
            host,
            ..wanted(memory, 8)
        });
        assert!(
            matches!(wrong, Err(Refusal::OtherPlace { .. })),
            "{wrong:?}"
        );
    }
    let mut here = [0u8; 8];
    let system = ask(&wanted(here.as_mut_ptr() as u64, 8)).unwrap_err();
    let said = system.to_string();
    assert!(
        said.contains("is not CUDA memory but system memory"),
        "{said}"
    );
    for at in [at, host, managed] {
        fake.free(at);
    }
}

#[test]
fn a_failing_runtime_causes_faults_until_it_recovers() {
    let all = [DISCOVERING.as_slice(), &[(Kind::SynapseAi, SYNAPSE_AI)]].concat();
    for (kind, runtime) in all {
        let Some(fake) = runtime.load() else { return };
        let (at, copier) = held(&fake, kind, Place::Device, 4096);
        fake.fail(2);
        copier.store(at, &[1]).unwrap();
        assert!(copier.store(at, &[2]).is_err(), "{kind}");
        assert!(copier.load(&mut [0], at).is_err(), "{kind}");
        fake.fail(0);
        assert_eq!(fake.peek(at, 1), [1]);
        copier.store(at, &[3]).unwrap();
        assert_eq!(fake.peek(at, 1), [3], "{kind}");
        fake.free(at);
    }
}

#[test]
fn the_kind_of_memory_is_determined_at_each_copy() {
    let Some(fake) = CUDA.load() else { return };
    rkey_base::copy::install().unwrap();
    discover::load_all();
    // SAFETY: only addresses of this test.
    let anywhere = unsafe { discover::Anywhere::copier() };
    let at = fake.alloc(Place::Device, 0, 4096);
    let mut here = vec![0u8; 16];
    let there = here.as_mut_ptr().expose_provenance() as u64;
    anywhere.store(at, b"bytes").unwrap();
    anywhere.store(there, b"here").unwrap();
    assert_eq!(
        (fake.peek(at, 5), &here[..4]),
        (b"bytes".to_vec(), &b"here"[..])
    );
    fake.free(at);
    assert!(anywhere.store(at, b"other").is_err());
    assert_eq!(fake.alloc(Place::Device, 1, 4096), at);
    let mut back = [0; 5];
    anywhere.load(&mut back, at).unwrap();
    assert_eq!(&back, b"bytes", "the memory that is there now is copied");
    assert!(discover::discover(there).unwrap().is_none());
    fake.free(at);
}

/// Runs only where the kernel has a driver that makes DMA-bufs; the suite's output says if it was skipped. The tests of
/// `file` show the same with a memfd.
#[test]
fn a_dma_buf_of_the_kernel_is_written_and_read() {
    let Some((buf, pages)) = rkey_fakes::dma_buf(8192) else {
        return;
    };
    rkey_base::copy::install().unwrap();
    let memory = rkey_kinds::file::map(buf.as_raw_fd(), 4096, 4096, true).unwrap();
    let copier = memory
        .copier
        .as_ref()
        .expect("its driver is told about accesses");
    copier.store(memory.range.start() + 1, b"bytes").unwrap();
    let pages = std::fs::File::from(pages);
    let mut there = [0; 6];
    pages.read_exact_at(&mut there, 4096).unwrap();
    assert_eq!(&there, b"\0bytes");
    pages.write_all_at(b"other", 4097).unwrap();
    let mut back = [0; 5];
    copier.load(&mut back, memory.range.start() + 1).unwrap();
    assert_eq!(&back, b"other");
}
