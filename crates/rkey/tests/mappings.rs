//! Memory that a peer maps: leases for reading and writing, and their end.

mod common;

use common::{ALL, Pair, pattern};
use rkey::{Access, Error, RemoteKey};
use std::time::Duration;

#[test]
fn allocated_memory_can_be_mapped_by_the_peer_until_it_is_deregistered() {
    let pair = Pair::new();
    let memory = pair.owner.device().allocate(100_000).unwrap();
    let region = pair.owner.register(memory, ALL).unwrap();
    let key = region.key(..).unwrap();
    let mut direct = pair.outer.map(&key).unwrap();
    assert!(direct.is_live() && direct.is_writable() && direct.len() == region.len());
    direct.write(5, b"straight into it").unwrap();
    assert_eq!(region.read_vec(5..21).unwrap(), b"straight into it");
    region.write(50_000, &pattern(4, 40_000)).unwrap();
    let mut back = vec![0; 40_000];
    direct.read(50_000, &mut back).unwrap();
    assert_eq!(back, pattern(4, 40_000));
    assert_eq!(direct.fetch_and_add(40, 3).unwrap(), 0);
    assert_eq!(direct.compare_and_swap(40, 3, 9).unwrap(), 3);
    assert_eq!(region.fetch_add(40, 1).unwrap(), 9);
    assert!(matches!(
        direct.fetch_and_add(41, 1),
        Err(Error::Misaligned { offset: 41, address }) if address % 8 == 1 && address > 4096
    ));
    assert!(matches!(
        direct.write(key.len(), b"x"),
        Err(Error::OutOfRange { .. })
    ));

    // Another lease of the same memory, for reading.
    let mut reader = pair.outer.map_for_reading(&key).unwrap();
    reader.read(5, &mut back[..16]).unwrap();
    assert_eq!(&back[..16], b"straight into it");
    assert!(matches!(reader.write(0, b"x"), Err(Error::Rights(_))));

    let memory = region.deregister().unwrap();
    assert!(matches!(direct.write(5, b"late"), Err(Error::Revoked)));
    assert!(matches!(
        reader.read(5, &mut back[..1]),
        Err(Error::Revoked)
    ));
    assert!(!direct.is_live());
    // After a new registration, the old lease stays revoked and a new one is granted.
    let region = pair.owner.register(memory, Access::REMOTE_READ).unwrap();
    assert!(matches!(direct.write(5, b"late"), Err(Error::Revoked)));
    assert_eq!(region.read_vec(5..21).unwrap(), b"straight into it");
    let mut again = pair.outer.map(&region.key(..).unwrap()).unwrap();
    assert!(!again.is_writable());
    again.read(5, &mut back[..16]).unwrap();
    assert!(
        matches!(pair.outer.map(&key), Err(Error::Denied(_))),
        "the old key was mapped"
    );
}

/// The number of the file that is mapped at an address of this process.
fn inode_mapped_at(address: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |range: &str| {
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address)
    };
    let fields = maps.lines().map(|line| line.split_ascii_whitespace());
    let mut found = fields.filter(|fields| holds(fields.clone().next().unwrap()));
    found.next().unwrap().nth(4).unwrap().parse().unwrap()
}

/// The first lease of allocated memory is for reading, and the peer that has it tries to write: the descriptor, the
/// owner's descriptor through `/proc`, and a lease for writing with a key that allows it.
#[test]
fn a_peer_that_maps_for_reading_cannot_write() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let pair = Pair::new();
    let memory = pair.owner.device().allocate(12_288).unwrap();
    let region = pair.owner.register(memory, ALL).unwrap();
    region.write(0, b"the owner's").unwrap();
    let key = region.key(..).unwrap();
    let mut reader = pair.outer.map_for_reading(&key).unwrap();
    let mut seen = [0; 11];
    reader.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"the owner's");

    // Owner and peer are one process here, so this is the owner's own descriptor: no peer has a better one.
    let inode = inode_mapped_at(region.base());
    let mut tried = 0;
    for fd in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = fd.unwrap().path();
        // Other tests of this process have their own memory.
        let is_memory = std::fs::metadata(&path).is_ok_and(|file| file.ino() == inode);
        let Ok(file) = std::fs::File::options().write(true).open(&path) else {
            continue;
        };
        if is_memory {
            tried += 1;
            let written = file.write_at(b"the peer's", 0);
            assert!(written.is_err(), "{written:?}");
            assert!(file.set_len(0).is_err());
        }
    }
    assert!(tried > 0, "no descriptor of the memory was found");
    let error = pair.outer.map(&key).unwrap_err();
    assert!(matches!(error, Error::NotMappable(_)), "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");

    // The peer can still write through requests, and the owner can still write.
    let write = pair.outer.write_bytes(b"by request", &key, 0).unwrap();
    write.wait().unwrap();
    region.write(10, b"!").unwrap();
    reader.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"by request!");
}

/// Memory that one peer has mapped for writing is not leased to another for reading, because the other peer could write
/// it as well.
#[test]
fn memory_mapped_for_writing_is_not_mapped_for_reading_by_others() {
    let pair = Pair::new();
    let memory = pair.owner.device().allocate(4096).unwrap();
    let region = pair.owner.register(memory, ALL).unwrap();
    let key = region.key(..).unwrap();
    let mut writer = pair.outer.map(&key).unwrap();
    writer.write(0, b"mine").unwrap();
    assert!(pair.outer.map_for_reading(&key).is_ok());

    let other = common::device().domain().unwrap();
    let (_inner, outer) = common::connect(&pair.owner, &other);
    let error = outer.map_for_reading(&key).unwrap_err();
    assert!(matches!(error, Error::NotMappable(_)), "{error}");
    assert!(error.to_string().contains("for writing"), "{error}");
    // A peer that may write it can map it for writing.
    let mut second = outer.map(&key).unwrap();
    let mut seen = [0; 4];
    second.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"mine");
}

#[test]
fn only_whole_regions_of_allocated_memory_can_be_mapped() {
    let pair = Pair::new();
    let (ordinary, key) = pair.region(4096, ALL);
    assert!(matches!(pair.outer.map(&key), Err(Error::NotMappable(_))));
    let shared = pair
        .owner
        .register(pair.owner.device().allocate(8192).unwrap(), ALL)
        .unwrap();
    let part = shared.key(0..4096).unwrap();
    assert!(
        matches!(pair.outer.map(&part), Err(Error::NotMappable(_))),
        "the key of a window was mapped"
    );
    let longer =
        RemoteKey::from_parts(shared.base(), 8193, shared.key(..).unwrap().key() as u32).unwrap();
    assert!(matches!(pair.outer.map(&longer), Err(Error::Denied(_))));
    drop(ordinary);
}

#[test]
fn revoking_a_mapping_waits_for_the_copy_in_progress() {
    let pair = Pair::new();
    for round in 1..20u8 {
        let region = pair
            .owner
            .register(pair.owner.device().allocate(1 << 20).unwrap(), ALL)
            .unwrap();
        let mut direct = pair.outer.map(&region.key(..).unwrap()).unwrap();
        let memory = std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let bytes = vec![round; 200_000];
                while direct.write(0, &bytes).is_ok() {}
            });
            std::thread::sleep(Duration::from_micros(300));
            let memory = region.deregister().unwrap();
            let memory = pair.owner.register(memory, Access::empty()).unwrap();
            memory.write(0, &[0; 200_000]).unwrap();
            writer.join().unwrap();
            memory
        });
        assert!(
            memory
                .read_vec(..200_000)
                .unwrap()
                .iter()
                .all(|byte| *byte == 0),
            "round {round}"
        );
    }
}
