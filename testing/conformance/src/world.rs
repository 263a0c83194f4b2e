//! An engine with a hostile peer: whatever the peer sends, only granted bytes change, private bytes are never
//! disclosed, and the engine returns.

use crate::hostile::{HOSTILE, HostileLink};
use crate::mutate::mix;
use rkey_base::memory::ArenaMemory;
use rkey_base::range::VaRange;
use rkey_core::{Access, Limits, Protection, RKey, Region, RegionSpec, Secrets};
use rkey_engine::{
    Completion, CqShared, Engine, EngineConfig, LinkId, Peer, QpAttributes, QpConfig, QpId,
    QpState, RecvRequest, SendFlags, SendRequest, Sge, Target, Work,
};
use rkey_link::NodeId;
use std::sync::Arc;

const BASE: u64 = 0x1000_0000;
const PART: u64 = 4096;
/// The parts of the memory, 4 KiB each. No key grants the private ones.
const GUARD: u64 = 0;
const OPEN: u64 = 1;
const READABLE: u64 = 2;
const SECRET: u64 = 3;
const LOCAL: u64 = 4;
const END: u64 = 5;
const PARTS: u64 = 6;
const PRIVATE: [u64; 3] = [GUARD, SECRET, END];
const QPN: u32 = 0x123;
const PEER_QPN: u32 = 0x456;

struct World {
    engine: Engine<HostileLink, Arc<ArenaMemory>>,
    memory: Arc<ArenaMemory>,
    qp: QpId,
    cq: Arc<CqShared>,
    link: LinkId,
    open: Region,
    readable: Region,
    local: Region,
    /// The content of the private parts.
    secret: [u8; 8],
    now: u64,
    posted: u64,
}

/// Runs a script: each step reads an action and its arguments from `bytes`.
///
/// # Panics
/// If a byte changed without a grant, or a private byte was disclosed.
pub fn run(bytes: &[u8]) {
    let Some(mut world) = World::new(secret_for(bytes)) else {
        return;
    };
    let mut script = Script { bytes };
    while !script.bytes.is_empty() {
        world.step(&mut script);
    }
    for _ in 0..8 {
        world.drive();
    }
    world.check();
}

/// Eight bytes that a script contains only by chance, because they depend on the whole script. So bytes that the
/// peer sent itself, and gets back in a refusal or from memory that it may write, are not mistaken for private ones.
fn secret_for(script: &[u8]) -> [u8; 8] {
    let start = mix(script.len() as u64 + 1);
    let word = script
        .iter()
        .fold(start, |word, byte| mix(word ^ u64::from(*byte)));
    word.to_le_bytes()
}

/// The initial content of a part, at any multiple of 8.
fn content(part: u64, secret: [u8; 8]) -> [u8; 8] {
    match PRIVATE.contains(&part) {
        true => secret,
        false => [part as u8; 8],
    }
}

/// Whether `answer` has eight bytes of a private part, or four past the end of the readable one.
fn leaks(answer: &[u8], secret: [u8; 8]) -> bool {
    let word = u64::from_le_bytes(secret);
    let end = [content(READABLE, secret), secret].concat();
    answer.windows(8).any(|window| {
        let inside = <[u8; 8]>::try_from(window).map(u64::from_le_bytes);
        // The window may begin at any byte of the pattern.
        inside.is_ok_and(|inside| (0..8).any(|bytes| inside.rotate_left(8 * bytes) == word))
            || window == &end[4..12]
    })
}

impl World {
    /// `None` if the engine refuses the setup, which the engine's own tests cover.
    fn new(secret: [u8; 8]) -> Option<Self> {
        let memory = Arc::new(ArenaMemory::new(BASE, (PARTS * PART) as usize));
        for part in 0..PARTS {
            let bytes = content(part, secret).repeat(PART as usize / 8);
            memory.write(BASE + part * PART, &bytes);
        }
        let limits = Limits {
            key_slots: 64,
            ..Limits::default()
        };
        let protection = Arc::new(Protection::new(limits, Secrets([1, 2, 3, 4])));
        let domain = protection.create_domain().ok()?;
        let register = |part: u64, access| {
            let range = VaRange::new(BASE + part * PART, PART)?;
            protection
                .register(&RegionSpec::new(domain, &[range], access))
                .ok()
        };
        let open = register(OPEN, Access::all())?;
        let readable = register(READABLE, Access::REMOTE_READ)?;
        let local = register(LOCAL, Access::all() - Access::REMOTE)?;
        let config = EngineConfig {
            node: NodeId { pid: 1, nonce: 1 },
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config, protection.section()?, Arc::clone(&memory));
        let cq = engine.create_cq(64).ok()?;
        let qp = engine
            .create_qp(&QpConfig::new(domain, &cq.id()), QPN)
            .ok()?;
        let link = engine.attach(HostileLink::default());
        let mut world = Self {
            engine,
            memory,
            qp,
            cq,
            link,
            open,
            readable,
            local,
            secret,
            now: 0,
            posted: 0,
        };
        world.connect()?;
        Some(world)
    }

    fn connect(&mut self) -> Option<()> {
        let peer = Peer {
            qpn: PEER_QPN,
            node: Some(HOSTILE),
        };
        let steps = [
            QpAttributes::init(Access::all()),
            QpAttributes::rtr(peer, 0),
            QpAttributes::rts(0),
        ];
        for step in steps {
            self.engine.modify_qp(self.qp, &step).ok()?;
        }
        self.engine.connect_qp(self.qp, self.link).ok()?;
        for id in 0..8 {
            let _ = self.engine.post_recv(
                self.qp,
                &RecvRequest {
                    id,
                    sges: &[self.sge(0, 512)],
                },
            );
        }
        Some(())
    }

    fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: BASE + LOCAL * PART + offset,
            len,
            key: self.local.local_key,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 12 {
            0..=4 => self.deliver(script, false),
            5..=6 => self.deliver(script, true),
            7 => self.post(script),
            8 => {
                let count = u64::from(script.byte() % 8);
                if let Some(link) = self.engine.link_mut(self.link) {
                    link.acknowledge(count);
                }
            }
            9 => {
                let how = script.byte();
                if let Some(link) = self.engine.link_mut(self.link) {
                    link.pull_fails.set(how);
                }
            }
            10 => {
                // A refusal fails the queue pair; reconnect it, so that the script can continue.
                let _ = self
                    .engine
                    .modify_qp(self.qp, &QpAttributes::to(QpState::Error));
                self.drive();
                let _ = self
                    .engine
                    .modify_qp(self.qp, &QpAttributes::to(QpState::Reset));
                let _ = self.connect();
            }
            _ => self.drive(),
        }
    }

    /// Delivers a slot whose fields are often right, so that it passes the first checks.
    fn deliver(&mut self, script: &mut Script<'_>, response: bool) {
        let mut slot = [0_u8; 256];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        let op = if response {
            64 + script.byte() % 3
        } else {
            1 + script.byte() % 6
        };
        let flags = match script.byte() % 4 {
            0 => script.byte(),
            1 => 1,
            2 => 2,
            _ => 3,
        };
        let len = [0, 8, u32::from(script.byte()) % 209, 512][usize::from(script.byte() % 4)];
        let inline = if matches!(op, 4 | 5 | 65) {
            16
        } else {
            len.min(208) as u16
        };
        let len = if matches!(op, 3..=6 | 65) { 0 } else { len };
        put(0, &1_u32.to_le_bytes());
        put(4, &[op, flags]);
        put(
            6,
            &(if len > 208 {
                u16::MAX
            } else {
                inline.min(len.max(u32::from(inline)) as u16)
            })
            .to_le_bytes(),
        );
        put(8, &script.pick32(QPN).to_le_bytes());
        put(12, &script.pick32(PEER_QPN).to_le_bytes());
        put(16, &(u32::from(script.byte()) % 12).to_le_bytes());
        put(20, &len.to_le_bytes());
        let places = [
            BASE + OPEN * PART,
            BASE + READABLE * PART,
            BASE + SECRET * PART,
            BASE + GUARD * PART + PART - 4,
        ];
        let place = places[usize::from(script.byte() % 4)].wrapping_add(script.offset());
        put(24, &script.pick64(place).to_le_bytes());
        let key = if script.byte().is_multiple_of(3) {
            self.readable.key.0
        } else {
            self.open.key.0
        };
        put(32, &script.pick64(u64::from(key)).to_le_bytes());
        put(40, &script.pick32(0).to_le_bytes());
        put(
            44,
            &script.pick32(if op == 3 { 64 } else { len }).to_le_bytes(),
        );
        for at in (48..256).step_by(64) {
            put(at, &[script.byte(); 8]);
        }
        if op == 6 || op == 3 {
            put(6, &0_u16.to_le_bytes());
        }
        if let Some(link) = self.engine.link_mut(self.link) {
            link.deliver(&slot, response);
        }
        if script.byte().is_multiple_of(2) {
            self.drive();
        }
    }

    fn post(&mut self, script: &mut Script<'_>) {
        let remote = Target {
            addr: 0x5000,
            key: RKey::Requested(7),
        };
        let work = match script.byte() % 5 {
            0 => Work::Send {
                imm: None,
                invalidate: None,
            },
            1 => Work::Write {
                remote,
                imm: Some(1),
            },
            2 => Work::FetchAdd { remote, add: 1 },
            3 => Work::CompareSwap {
                remote,
                compare: 0,
                swap: 1,
            },
            _ => Work::Read { remote },
        };
        let len = if matches!(work, Work::FetchAdd { .. } | Work::CompareSwap { .. }) {
            8
        } else {
            1024
        };
        let sges = [self.sge(1024, len)];
        let request = SendRequest {
            flags: SendFlags::SIGNALED,
            ..SendRequest::new(self.posted, work, &sges)
        };
        if self.engine.post_send(self.qp, &request).is_ok() {
            self.posted += 1;
        }
    }

    fn drive(&mut self) {
        self.now += 1_000_000;
        self.engine.drive(self.now, 64);
        let mut completions = [Completion::default(); 16];
        self.cq.pop(&mut completions);
        while self.engine.poll_event().is_some() {}
    }

    fn check(&self) {
        for part in [GUARD, READABLE, SECRET, END] {
            let bytes = self.memory.read(BASE + part * PART, PART as usize);
            let expected = content(part, self.secret);
            assert!(
                bytes.chunks(8).all(|chunk| chunk == expected),
                "part {part} of the memory changed without a grant"
            );
        }
        let link = self.engine.link(self.link);
        let mut answers = link.iter().flat_map(|link| &link.answers);
        let leaked = answers.any(|answer| leaks(answer, self.secret));
        assert!(!leaked, "private bytes were disclosed");
    }
}

/// A script, which decides each step by its next bytes.
struct Script<'a> {
    bytes: &'a [u8],
}

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        match self.bytes {
            [first, rest @ ..] => {
                let first = *first;
                self.bytes = rest;
                first
            }
            [] => 0,
        }
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    /// Usually a small offset forwards, sometimes backwards.
    fn offset(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => u64::from(self.byte()),
            1 => PART - u64::from(self.byte()),
            2 => 0u64.wrapping_sub(u64::from(self.byte())),
            _ => 0,
        }
    }

    /// Usually `usual`, sometimes any value.
    fn pick64(&mut self, usual: u64) -> u64 {
        match self.byte() % 8 {
            0 => self.word(),
            1 => usual ^ u64::from(self.byte()),
            _ => usual,
        }
    }

    fn pick32(&mut self, usual: u32) -> u32 {
        self.pick64(u64::from(usual)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET_BYTES: [u8; 8] = *b"\x91\x5e\xc2\x07\xaa\x30\xf8\x6d";

    fn world() -> World {
        World::new(SECRET_BYTES).expect("the engine accepts the set-up")
    }

    /// A write of 8 bytes, as the peer's link delivers it.
    fn write_of(payload: [u8; 8], address: u64, key: u64) -> [u8; 256] {
        let mut slot = [0_u8; 256];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &1_u32.to_le_bytes());
        put(4, &[2, 3]);
        put(6, &8_u16.to_le_bytes());
        put(8, &QPN.to_le_bytes());
        put(12, &PEER_QPN.to_le_bytes());
        put(20, &8_u32.to_le_bytes());
        put(24, &address.to_le_bytes());
        put(32, &key.to_le_bytes());
        put(44, &8_u32.to_le_bytes());
        put(48, &payload);
        slot
    }

    fn deliver(world: &mut World, slot: &[u8; 256]) {
        let link = world.engine.link_mut(world.link).expect("attached");
        assert!(link.deliver(slot, false));
        world.drive();
    }

    fn answers(world: &mut World) -> &mut Vec<Vec<u8>> {
        let link = world.engine.link_mut(world.link).expect("attached");
        &mut link.answers
    }

    /// Scripts are useful only if their usual choices reach the memory.
    #[test]
    fn a_plain_write_arrives() {
        let mut world = world();
        let key = u64::from(world.open.key.0);
        deliver(&mut world, &write_of(*b"arrived!", BASE + OPEN * PART, key));
        assert_eq!(world.memory.read(BASE + OPEN * PART, 8), b"arrived!");
        world.check();
    }

    /// A refusal repeats the address of the request. Private bytes of 0xee once failed here, because a fuzzer
    /// chose 0xee for the whole address.
    #[test]
    fn a_refusal_that_repeats_the_request_is_not_a_leak() {
        let mut world = world();
        let address = u64::from_le_bytes([0xee; 8]);
        deliver(&mut world, &write_of([0xee; 8], address, 0xeeee_eeee));
        let repeated = |answer: &Vec<u8>| answer.windows(4).any(|w| w == [0xee; 4]);
        assert!(answers(&mut world).iter().any(repeated));
        world.check();
    }

    #[test]
    fn a_leak_is_detected_wherever_it_begins() {
        for at in 0..8 {
            let mut private = SECRET_BYTES.repeat(2);
            private.rotate_left(at);
            assert!(leaks(&private[..8], SECRET_BYTES), "{at}");
            assert!(!leaks(&private[..7], SECRET_BYTES), "{at}");
        }
        let past_the_end = [&[READABLE as u8; 100][..], &SECRET_BYTES[..4]].concat();
        assert!(leaks(&past_the_end, SECRET_BYTES));
    }

    #[test]
    #[should_panic(expected = "private bytes were disclosed")]
    fn the_check_detects_a_leak() {
        let mut world = world();
        let private = world.memory.read(BASE + SECRET * PART + 3, 8);
        answers(&mut world).push(private);
        world.check();
    }

    #[test]
    #[should_panic(expected = "without a grant")]
    fn the_check_detects_a_change_without_a_grant() {
        let world = world();
        world.memory.write(BASE + GUARD * PART + 100, &[9]);
        world.check();
    }
}
