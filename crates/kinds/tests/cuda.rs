//! CUDA memory, with a fake driver whose memory traps when the processor touches it.

#![allow(unsafe_code)]
// UNSAFETY: makes a copier for any address.

use rkey_base::foreign::ForeignMemory;
use rkey_base::range::VaRange;
use rkey_fakes::{CUDA, Fake, Place};
use rkey_kinds::{Kind, Refusal, Wanted, discover, hold};
use std::sync::Arc;

fn wanted(at: u64, len: usize) -> Wanted {
    Wanted {
        range: VaRange::new(at, len as u64).unwrap(),
        device: None,
        reads: true,
        device_only: false,
        host: false,
    }
}

fn held(fake: &Fake, place: Place, len: usize) -> (u64, Arc<dyn ForeignMemory>) {
    let at = fake.alloc(place, 1, len);
    let copier = hold(Kind::Cuda, &wanted(at, len)).unwrap();
    (at, copier.expect("the runtime copies"))
}

#[test]
fn a_runtime_that_is_not_there_is_named() {
    let absent = hold(Kind::Neuron, &wanted(4096, 1)).unwrap_err();
    assert!(matches!(absent, Refusal::Absent(_)));
    let said = absent.to_string();
    assert!(
        said.starts_with("Neuron memory is not available: "),
        "{said}"
    );
}

#[test]
fn the_driver_copies_in_both_directions() {
    let Some(fake) = CUDA.load() else { return };
    for place in [Place::Device, Place::Managed] {
        let (at, copier) = held(&fake, place, 10_000);
        copier.store(at + 1, b"to the device").unwrap();
        assert_eq!(fake.peek(at + 1, 13), b"to the device");
        fake.poke(at + 9000, b"from the device");
        let mut back = [0; 15];
        copier.load(&mut back, at + 9000).unwrap();
        assert_eq!(&back, b"from the device");
        assert_eq!(fake.depth(), 0, "the context of this thread is as before");
        fake.free(at);
    }
}

#[test]
fn an_address_that_was_given_out_again_is_other_memory() {
    let Some(fake) = CUDA.load() else { return };
    let (at, copier) = held(&fake, Place::Device, 4096);
    copier.store(at, &[7]).unwrap();
    fake.free(at);
    assert!(copier.store(at, &[1]).is_err(), "freed");
    assert_eq!(fake.alloc(Place::Device, 1, 4096), at);
    assert!(copier.store(at, &[1]).is_err(), "another's");
    assert!(copier.load(&mut [0], at).is_err(), "another's");
    assert_eq!(fake.peek(at, 1), [7]);
    let again = hold(Kind::Cuda, &wanted(at, 4096)).unwrap().unwrap();
    again.store(at, &[2]).unwrap();
    assert_eq!(fake.peek(at, 1), [2]);
    fake.free(at);
}

#[test]
fn what_the_program_says_is_compared_with_what_the_driver_says() {
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
        panic!("the memory is of device 1");
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
    // The processor copies memory of the host; the device of such memory does not count.
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
fn a_driver_that_fails_is_a_fault_until_it_heals() {
    let Some(fake) = CUDA.load() else { return };
    let (at, copier) = held(&fake, Place::Device, 4096);
    fake.fail(2);
    copier.store(at, &[1]).unwrap();
    assert!(copier.store(at, &[2]).is_err());
    assert!(copier.load(&mut [0], at).is_err());
    fake.fail(0);
    assert_eq!(fake.peek(at, 1), [1]);
    copier.store(at, &[3]).unwrap();
    assert_eq!((fake.peek(at, 1), fake.depth()), (vec![3], 0));
    fake.free(at);
}

#[test]
fn memory_of_any_kind_is_found_at_each_copy() {
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
    assert_eq!(&back, b"bytes", "it is whatever is there now");
    assert!(discover::discover(there).unwrap().is_none());
    fake.free(at);
}
