//! An entry for every reader of a peer's bytes. Each entry accepts any bytes and must return: no panic, no
//! hang. If it accepts them, it checks that the result encodes to bytes with the same meaning.

use daplrkey::values::hello::{Hello, Purpose};
use rkey_core::{DENIAL_LEN, Denial, RKey, RawKey};

/// One reader of a peer's bytes.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The name of the fuzz target.
    pub name: &'static str,
    /// Runs the reader on some bytes.
    pub run: fn(&[u8]),
    /// Valid bytes that mutation starts from.
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Bytes that a coverage-guided run found: lines of hexadecimal digits, and comments after `#`.
    pub seeds: &'static str,
}

impl Entry {
    /// All initial inputs: the samples, and the seeds that can be parsed.
    #[must_use]
    pub fn inputs(&self) -> Vec<Vec<u8>> {
        let seeds = self.seeds.lines().filter_map(seed);
        (self.samples)().into_iter().chain(seeds).collect()
    }
}

/// The bytes of a line of seeds; `None` for comments and invalid lines.
fn seed(line: &str) -> Option<Vec<u8>> {
    let digits = line.bytes().all(|byte| byte.is_ascii_hexdigit());
    if line.is_empty() || !line.len().is_multiple_of(2) || !digits {
        return None;
    }
    (0..line.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&line[at..at + 2], 16).ok())
        .collect()
}

/// All entries.
pub const ALL: &[Entry] = &[
    Entry {
        name: "slot",
        run: slot,
        samples: slot_samples,
        seeds: include_str!("../../../fuzz/seeds/slot.hex"),
    },
    Entry {
        name: "packet",
        run: packet,
        samples: packet_samples,
        seeds: include_str!("../../../fuzz/seeds/packet.hex"),
    },
    Entry {
        name: "connect",
        run: connect,
        samples: connect_samples,
        seeds: include_str!("../../../fuzz/seeds/connect.hex"),
    },
    Entry {
        name: "denial",
        run: denial,
        samples: denial_samples,
        seeds: include_str!("../../../fuzz/seeds/denial.hex"),
    },
    Entry {
        name: "raw_key",
        run: raw_key,
        samples: raw_key_samples,
        seeds: include_str!("../../../fuzz/seeds/raw_key.hex"),
    },
    Entry {
        name: "remote_key",
        run: remote_key,
        samples: remote_key_samples,
        seeds: include_str!("../../../fuzz/seeds/remote_key.hex"),
    },
    Entry {
        name: "engine",
        run: engine,
        samples: engine_samples,
        seeds: include_str!("../../../fuzz/seeds/engine.hex"),
    },
    Entry {
        name: "fabric",
        run: fabric,
        samples: fabric_samples,
        seeds: include_str!("../../../fuzz/seeds/fabric.hex"),
    },
    Entry {
        name: "udapl",
        run: udapl,
        samples: udapl_samples,
        seeds: include_str!("../../../fuzz/seeds/udapl.hex"),
    },
    Entry {
        name: "cm",
        run: cm,
        samples: cm_samples,
        seeds: include_str!("../../../fuzz/seeds/cm.hex"),
    },
    Entry {
        name: "rsocket",
        run: rsocket,
        samples: rsocket_samples,
        seeds: include_str!("../../../fuzz/seeds/rsocket.hex"),
    },
    Entry {
        name: "roce",
        run: roce,
        samples: roce_samples,
        seeds: include_str!("../../../fuzz/seeds/roce.hex"),
    },
    Entry {
        name: "roce_queue_pair",
        run: roce_queue_pair,
        samples: roce_queue_pair_samples,
        seeds: include_str!("../../../fuzz/seeds/roce_queue_pair.hex"),
    },
    Entry {
        name: "datagram",
        run: datagram,
        samples: datagram_samples,
        seeds: include_str!("../../../fuzz/seeds/datagram.hex"),
    },
];

/// The entry with this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}

/// A ring slot, as a request and as a response.
pub fn slot(bytes: &[u8]) {
    let both = rkey_link::fuzzing::request_slot(bytes) && rkey_link::fuzzing::response_slot(bytes);
    assert!(
        !both,
        "a slot was accepted both as a request and as a response"
    );
}

fn slot_samples() -> Vec<Vec<u8>> {
    let sample = |op: u8, flags: u8, inline: u16, len: u32| {
        let mut slot = vec![0_u8; 256];
        slot[..4].copy_from_slice(&1_u32.to_le_bytes());
        slot[4] = op;
        slot[5] = flags;
        slot[6..8].copy_from_slice(&inline.to_le_bytes());
        slot[20..24].copy_from_slice(&len.to_le_bytes());
        slot[44..48].copy_from_slice(&len.to_le_bytes());
        slot
    };
    let ops = [1, 2, 3, 4, 5, 6, 64, 65, 66];
    ops.iter()
        .flat_map(|&op| {
            [
                sample(op, 3, 8, 8),
                sample(op, 3, 0, 4096),
                sample(op, 0x23, 0, 64),
            ]
        })
        .collect()
}

/// A packet on the control socket of a link, the identity page of a segment, or a direct lease.
pub fn packet(bytes: &[u8]) {
    let _ = rkey_link::fuzzing::hello(bytes);
    let _ = rkey_link::fuzzing::control(bytes);
    let _ = rkey_link::fuzzing::identity(bytes);
    let _ = rkey_link::fuzzing::grant(bytes);
}

fn packet_samples() -> Vec<Vec<u8>> {
    vec![b"rkey".to_vec()]
}

/// A packet of a client that connects by address.
pub fn connect(bytes: &[u8]) {
    let _ = rkey_device::fuzzing::connect(bytes);
    let _ = rkey_device::fuzzing::inspection(bytes);
    let _ = rkey_device::fuzzing::lease(bytes);
}

fn connect_samples() -> Vec<Vec<u8>> {
    Vec::new()
}

/// A denial in the form in which a NAK carries it.
pub fn denial(bytes: &[u8]) {
    let mut wire = [0; DENIAL_LEN];
    let len = bytes.len().min(DENIAL_LEN);
    wire[..len].copy_from_slice(&bytes[..len]);
    let denial = Denial::decode(&wire);
    assert!(!denial.to_string().is_empty() && !denial.explain().is_empty());
    let again = Denial::decode(&denial.encode());
    assert_eq!(
        again.to_string(),
        denial.to_string(),
        "encoding and decoding changes a denial"
    );
}

fn denial_samples() -> Vec<Vec<u8>> {
    (0..32)
        .map(|reason| vec![1, 0, reason, 0, 9, 9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8])
        .collect()
}

/// A raw key from a program.
pub fn raw_key(bytes: &[u8]) {
    if let Some(key) = RawKey::from_bytes(bytes) {
        assert_eq!(RawKey::from_bytes(&key.to_bytes()), Some(key));
    }
}

fn raw_key_samples() -> Vec<Vec<u8>> {
    let key = RawKey {
        key: RKey::Requested(0x5a_03c1),
        base: 0x7f12_a000,
        len: 4096,
        node: 7,
    };
    vec![key.to_bytes().to_vec()]
}

/// A remote key from a program.
pub fn remote_key(bytes: &[u8]) {
    if let Ok(key) = rkey::RemoteKey::from_bytes(bytes) {
        let again = rkey::RemoteKey::from_bytes(&key.to_bytes());
        assert!(
            again.is_ok_and(|again| again == key),
            "encoding and decoding changes a key"
        );
        assert!(
            key.address().checked_add(key.len()).is_some(),
            "the range of a key wraps around"
        );
    }
}

fn remote_key_samples() -> Vec<Vec<u8>> {
    let key = rkey::RemoteKey::from_parts(0x7f12_a000, 4096, 0x5a_03c1);
    key.map(|key| key.to_bytes().to_vec()).into_iter().collect()
}

/// An engine with a hostile peer: requests, responses and acknowledgements in any order.
pub fn engine(bytes: &[u8]) {
    crate::world::run(bytes);
}

fn engine_samples() -> Vec<Vec<u8>> {
    // Long random scripts, most of which are meaningful in the script language.
    let mut random = crate::mutate::Random::new(1);
    (0..8)
        .map(|_| (0..400).map(|_| random.draw() as u8).collect())
        .collect()
}

/// The bytes that an endpoint of the libfabric provider gets from another one: the hello, and messages.
pub fn fabric(bytes: &[u8]) {
    let _ = rkey_fi::fuzzing::hello(bytes);
    let _ = rkey_fi::fuzzing::message(bytes);
}

fn fabric_samples() -> Vec<Vec<u8>> {
    [rkey_fi::fuzzing::hellos(), rkey_fi::fuzzing::messages()].concat()
}

/// The data that uDAPL providers exchange when they connect and disconnect.
pub fn udapl(bytes: &[u8]) {
    if let Some(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
    let text = String::from_utf8_lossy(bytes);
    let data = daplrkey::values::hello::from_text(&text);
    assert!(data.len() <= bytes.len() / 2);
}

fn udapl_samples() -> Vec<Vec<u8>> {
    let hello = |purpose| {
        let hello = Hello {
            purpose,
            control: ([127, 0, 0, 1], 4791).into(),
            address: [127, 0, 0, 1].into(),
            port: 45_248,
            qpn: 0x0012_3456,
            msn: 7,
            data: b"private data".to_vec(),
        };
        hello.encode()
    };
    vec![
        hello(Purpose::Request),
        hello(Purpose::Answer),
        hello(Purpose::Disconnect),
        b"00ff".to_vec(),
    ]
}

/// A message of the connection manager, and a hostile network between two managers.
pub fn cm(bytes: &[u8]) {
    let _ = rkey_device::fuzzing::cm_packet(bytes);
    crate::cm::message(bytes);
    crate::cm::run(bytes);
}

fn cm_samples() -> Vec<Vec<u8>> {
    let mut random = crate::mutate::Random::new(2);
    (0..8)
        .map(|_| (0..600).map(|_| random.draw() as u8).collect())
        .collect()
}

/// What an rsocket gets from its peer: private data and messages of a stream, headers of datagrams.
pub fn rsocket(bytes: &[u8]) {
    crate::rsocket::datagram(bytes);
    crate::rsocket::stream(bytes);
}

fn rsocket_samples() -> Vec<Vec<u8>> {
    crate::rsocket::samples()
}

/// A datagram of RoCEv2.
pub fn roce(bytes: &[u8]) {
    crate::roce::datagram(bytes);
}

fn roce_samples() -> Vec<Vec<u8>> {
    crate::roce::samples()
}

/// Packets for a queue pair of RoCEv2, and what its program does.
pub fn roce_queue_pair(bytes: &[u8]) {
    crate::roce_queue_pair::script(bytes);
}

fn roce_queue_pair_samples() -> Vec<Vec<u8>> {
    crate::roce_queue_pair::samples()
}

/// A datagram from another host, as a device's socket gets it.
pub fn datagram(bytes: &[u8]) {
    let _ = rkey_device::fuzzing::datagram(bytes);
}

fn datagram_samples() -> Vec<Vec<u8>> {
    crate::roce::samples()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_seeds_can_be_parsed() {
        assert_eq!(seed("00ff7a"), Some(vec![0, 0xff, 0x7a]));
        for line in ["", "# words", "abc", "zz", "+1"] {
            assert_eq!(seed(line), None, "{line}");
        }
        for entry in ALL {
            let lines = entry.seeds.lines().filter(|line| !line.starts_with('#'));
            let read = lines.clone().filter_map(seed).count();
            assert_eq!(read, lines.count(), "{}", entry.name);
            assert!(read > 0, "{} has no seeds", entry.name);
        }
    }
}
