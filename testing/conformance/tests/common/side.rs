//! A device with memory in a fixed layout, guard pages in between: a pattern that peers may read, an inbox that
//! they may write, two words for atomics, receive buffers, and buffers for our reads.
#![allow(unsafe_code)] // UNSAFETY: registers memory for peers.

use std::time::{Duration, Instant};

use rkey_base::range::VaRange;
use rkey_core::{Access, DomainId, Key, RKey, Region, RegionSpec};
use rkey_device::{Config, Cq, Device, Listener, Qp, QpOptions};
use rkey_engine::{Completion, SendRequest, Sge, Status, Target, Work};

use super::memory::{Mapped, PAGE};
use super::process::address;
use super::{LONG, mix, pattern};

/// Words of the pattern and of the inbox.
pub const AREA: usize = 512 << 7;
const GUARD: usize = PAGE / 8;
/// The start of each area, in words.
pub const PATTERN: usize = 0;
pub const INBOX: usize = PATTERN + AREA + GUARD;
pub const ATOMICS: usize = INBOX + AREA + GUARD;
pub const RECEIVES: usize = ATOMICS + 2 * GUARD;
/// The number of receive buffers, and the words of each.
pub const RECEIVE_COUNT: usize = 32;
pub const RECEIVE_WORDS: usize = PAGE / 8;
pub const SINK: usize = RECEIVES + RECEIVE_COUNT * RECEIVE_WORDS + GUARD;
/// The number of buffers for our reads, and the words of each.
pub const SINK_COUNT: usize = 32;
pub const SINK_WORDS: usize = 128 << 7;
pub const WORDS: usize = SINK + SINK_COUNT * SINK_WORDS + GUARD;

/// The initial content of the words that no peer may change.
const CANARY: u64 = 0xc0de_c0de_c0de_c0de;
/// The initial content of the inbox.
pub const EMPTY: u64 = 0x0e0e_0e0e_0e0e_0e0e;

pub struct Side {
    /// The region of all memory, for our own requests only.
    pub local: Region,
    pub memory: Mapped,
    pub seed: u64,
    pub cq: Cq,
    pub domain: DomainId,
    pub device: Device,
}

/// The regions whose keys a peer gets.
pub struct Offer {
    pub pattern: Region,
    pub inbox: Region,
    pub atomics: Region,
}

impl Side {
    pub fn open(seed: u64) -> Self {
        let mut config = Config::from_env().unwrap();
        if seed % 2 == 1 {
            // The ring is small, so many messages travel as remote iovecs.
            config.ring_bytes = 64 << 10;
        }
        Self::with(config, seed)
    }

    pub fn with(config: Config, seed: u64) -> Self {
        let device = Device::open(config).unwrap();
        let domain = device.create_domain().unwrap();
        let memory = Mapped::new(WORDS * 8, None);
        memory.fill(0, WORDS, |_| CANARY);
        memory.fill(PATTERN, AREA, |word| pattern(seed, word));
        let cq = device.create_cq(4096, None).unwrap();
        let local = register_all(&device, domain, &memory);
        let side = Self {
            local,
            memory,
            seed,
            cq,
            domain,
            device,
        };
        side.empty_inbox();
        side
    }

    /// Deregisters all memory: from now on only we access it.
    pub fn close_local(&self) {
        self.device.deregister(self.local).unwrap();
    }

    /// Registers all memory again.
    pub fn open_local(&mut self) {
        self.local = register_all(&self.device, self.domain, &self.memory);
    }

    /// Resets the areas that peers may write.
    pub fn empty_inbox(&self) {
        self.memory.fill(INBOX, AREA, |_| EMPTY);
        self.memory.fill(ATOMICS, 2, |_| 0);
    }

    fn register(&self, from: usize, words: usize, access: Access) -> Region {
        let ranges = [VaRange::new(self.address_of(from), words as u64 * 8).unwrap()];
        let spec = RegionSpec::new(self.domain, &ranges, access);
        // SAFETY: as for the region of all memory; the holder of the offer withdraws it, or drops the device,
        // before the memory is unmapped.
        unsafe { self.device.register(&spec) }.unwrap()
    }

    /// Registers the areas for a peer.
    pub fn offer(&self) -> Offer {
        let write = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::LOCAL_WRITE | Access::BIND;
        Offer {
            pattern: self.register(PATTERN, AREA, Access::REMOTE_READ),
            inbox: self.register(INBOX, AREA, write),
            atomics: self.register(ATOMICS, 2, Access::REMOTE_ATOMIC | Access::LOCAL_WRITE),
        }
    }

    /// Deregisters the areas that [`Self::offer`] registered.
    pub fn withdraw(&self, offer: &Offer) {
        for region in [offer.pattern, offer.inbox, offer.atomics] {
            self.device.revoke_and_deregister(region).unwrap();
        }
    }

    /// Checks that guard pages and our pattern are unchanged, and that the inbox only contains its initial
    /// content and the peer's pattern.
    pub fn check_memory(&self, peer_seed: u64, when: &str) {
        self.check_outside(when);
        let theirs = |word: usize, value| {
            value == EMPTY || value == pattern(peer_seed, word - INBOX + PATTERN)
        };
        let other = self.memory.first_other(INBOX, AREA, theirs);
        assert_eq!(
            other, None,
            "{when}: the inbox contains words that the peer never wrote"
        );
    }

    /// Checks that guard pages and our pattern are unchanged, whatever the peers do.
    pub fn check_outside(&self, when: &str) {
        let own = |word, value| value == pattern(self.seed, word);
        assert_eq!(
            self.memory.first_other(PATTERN, AREA, own),
            None,
            "{when}: our pattern was changed"
        );
        for (start, words) in [
            (PATTERN + AREA, GUARD),
            (INBOX + AREA, GUARD),
            (ATOMICS + 2, 2 * GUARD - 2),
            (SINK - GUARD, GUARD),
            (WORDS - GUARD, GUARD),
        ] {
            let other = self
                .memory
                .first_other(start, words, |_, value| value == CANARY);
            assert_eq!(
                other, None,
                "{when}: memory outside the granted regions was changed"
            );
        }
    }

    pub fn address_of(&self, word: usize) -> u64 {
        self.memory.base() + 8 * word as u64
    }

    pub fn sge(&self, word: usize, words: usize) -> Sge {
        assert!(word + words <= WORDS);
        Sge {
            addr: self.address_of(word),
            len: words as u32 * 8,
            key: self.local.local_key,
        }
    }

    pub fn qp(&self) -> Qp {
        self.qp_on(&self.cq)
    }

    pub fn qp_on(&self, cq: &Cq) -> Qp {
        self.device
            .create_qp(&QpOptions::new(self.domain, cq))
            .unwrap()
    }

    pub fn listen(&self) -> Listener {
        self.device.listen("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    /// The information that a peer needs to reach our memory.
    pub fn invitation(&self, offer: &Offer) -> Vec<u8> {
        [
            self.memory.base(),
            u64::from(offer.pattern.key.0),
            u64::from(offer.inbox.key.0),
            u64::from(offer.atomics.key.0),
            self.seed,
        ]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
    }

    /// Accepts the connection of a peer.
    pub fn accept(&self, listener: &Listener, qp: &Qp, offer: &Offer) -> Remote {
        let incoming = listener.accept(Some(LONG)).unwrap();
        let peer = incoming.accept(&[qp], &self.invitation(offer)).unwrap();
        Remote::from(&peer.private_data[..])
    }

    /// Connects to a peer.
    pub fn connect(&self, to: std::net::SocketAddr, qp: &Qp, offer: &Offer) -> Remote {
        let peer = self
            .device
            .connect(to, &[qp], &self.invitation(offer), LONG)
            .unwrap();
        Remote::from(&peer.private_data[..])
    }

    /// Connects to the test that started this process.
    pub fn connect_to_test(&self, qp: &Qp, offer: &Offer) -> Remote {
        self.connect(address(), qp, offer)
    }

    /// Polls for the next completion of a queue.
    pub fn next_of(&self, cq: &Cq) -> Completion {
        let until = Instant::now() + LONG;
        let mut one = [Completion::default()];
        loop {
            if cq.poll(&mut one).unwrap() == 1 {
                return one[0];
            }
            assert!(Instant::now() < until, "no completion in time");
        }
    }

    pub fn next(&self) -> Completion {
        self.next_of(&self.cq)
    }

    pub fn next_within(&self, time: Duration) -> Option<Completion> {
        let mut one = [Completion::default()];
        self.cq.wait(Some(time)).unwrap();
        (self.cq.poll(&mut one).unwrap() == 1).then_some(one[0])
    }

    /// Posts one request and returns its completion.
    pub fn finish(&self, qp: &Qp, work: Work, sges: &[Sge]) -> Completion {
        qp.post_send(&SendRequest::new(77, work, sges)).unwrap();
        let completion = self.next_of(&qp.options().send_cq);
        assert_eq!(completion.id, 77, "{completion:?}");
        completion
    }

    /// Posts one request, which must succeed.
    pub fn run(&self, qp: &Qp, work: Work, sges: &[Sge]) -> Completion {
        let completion = self.finish(qp, work, sges);
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }

    /// Reads the peer's whole pattern, writes ours to its inbox and reads that back: all data must arrive
    /// unchanged.
    pub fn verify(&self, qp: &Qp, remote: &Remote, when: &str) {
        let target = SINK;
        for step in 0..AREA / SINK_WORDS {
            let from = step * SINK_WORDS;
            let read = Work::Read {
                remote: remote.pattern(from),
            };
            self.run(qp, read, &[self.sge(target, SINK_WORDS)]);
            self.expect(target, SINK_WORDS, remote.seed, from, when);
            let write = Work::Write {
                remote: remote.inbox(from),
                imm: None,
            };
            self.run(qp, write, &[self.sge(PATTERN + from, SINK_WORDS)]);
            let back = Work::Read {
                remote: remote.inbox(from),
            };
            self.run(qp, back, &[self.sge(target, SINK_WORDS)]);
            self.expect(target, SINK_WORDS, self.seed, from, when);
        }
    }

    /// Checks that our words are a part of a peer's pattern.
    pub fn expect(&self, at: usize, words: usize, seed: u64, from: usize, when: &str) {
        let right = |word: usize, value| value == pattern(seed, word - at + from);
        let other = self.memory.first_other(at, words, right);
        assert_eq!(other, None, "{when}: the data changed in transit");
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        match self.device.revoke_and_deregister(self.local) {
            Ok(()) | Err(rkey_device::DeviceError::Forked) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn register_all(device: &Device, domain: DomainId, memory: &Mapped) -> Region {
    let ranges = [memory.range()];
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
    let spec = RegionSpec::new(domain, &ranges, access);
    // SAFETY: the memory is only accessed through atomics, and lives until the region is deregistered, at the
    // latest when the side is dropped.
    unsafe { device.register(&spec) }.unwrap()
}

/// The memory of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pub base: u64,
    pub pattern: u32,
    pub inbox: u32,
    pub atomics: u32,
    pub seed: u64,
}

impl From<&[u8]> for Remote {
    fn from(bytes: &[u8]) -> Self {
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap());
        Self {
            base: word(0),
            pattern: word(1) as u32,
            inbox: word(2) as u32,
            atomics: word(3) as u32,
            seed: word(4),
        }
    }
}

impl Remote {
    fn at(&self, word: usize, key: u32) -> Target {
        Target {
            addr: self.base + 8 * word as u64,
            key: RKey::Device(Key(key)),
        }
    }

    /// A word of its pattern.
    pub fn pattern(&self, word: usize) -> Target {
        self.at(PATTERN + word, self.pattern)
    }

    /// A word of its inbox.
    pub fn inbox(&self, word: usize) -> Target {
        self.at(INBOX + word, self.inbox)
    }

    /// One of the side's two words for atomics.
    pub fn atomic(&self, which: usize) -> Target {
        self.at(ATOMICS + which, self.atomics)
    }
}

/// The seed for a number.
pub fn seed_of(number: u64) -> u64 {
    mix(number.wrapping_add(0x5eed))
}
