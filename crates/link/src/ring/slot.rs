//! One slot: how a head is written into 256 bytes, and how a stranger's 256 bytes are read.
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 8 | `seq: u32` (index + 1), `op: u8`, `flags: u8`, `extension: u16`; stored last, at once |
//! | 8 | 8 | `dst_qp: u32`, `src_qp: u32` |
//! | 16 | 8 | `msn: u32`, `len: u32` |
//! | 24 | 8 | `addr` |
//! | 32 | 8 | `key` |
//! | 40 | 8 | `imm: u32`, `total: u32` |
//! | 48 | 208 | payload, or operands, or a payload offset, or a list of references |
//!
//! A message that says nothing from offset 24 on has the operation [`SHORT_SEND`], and its payload begins there: with
//! its head it mostly fits into one cache line, and the reader misses once.
//!
//! `extension` is the number of bytes used from offset 48 on (of a short send: from 24 on). The value [`BOUNCED`] says that
//! the payload lies in the payload ring, at the offset found at 48. All numbers are little-endian.

use super::half::SLOT;
use crate::link::REFERENCES_MAX;
use crate::{Head, HeadFlags, Malformed, Op, References};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(target_endian = "little"))]
compile_error!("slots are little-endian words; another byte order needs swaps here");

/// Where payload begins in a slot.
pub(crate) const PAYLOAD: usize = 48;
/// Where the payload of a short send begins.
const SHORT_PAYLOAD: usize = 24;
/// The operation of a message whose head ends there.
const SHORT_SEND: u8 = 7;
/// Payload that fits into a slot.
pub(crate) const INLINE_MAX: u32 = (SLOT - PAYLOAD) as u32;
/// The value of `extension` for payload in the payload ring.
pub(crate) const BOUNCED: u16 = u16::MAX;

/// What follows the head.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// `head.len` bytes at this offset of the slot.
    Inline(usize),
    /// `head.len` bytes at this offset of the payload ring.
    Bounced(u32),
    /// A list of places.
    References(Box<References>),
}

/// What a reader expects of the slots of one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether the ring carries responses.
    pub(crate) responses: bool,
    /// Bytes of the payload ring.
    pub(crate) payload: u32,
    /// The most payload of one piece.
    pub(crate) piece_max: u32,
}

/// Whether a piece with its payload in the slot is written as a short send.
#[inline(always)]
fn is_short(head: &Head) -> bool {
    head.op == Op::Send
        && head.addr | head.key == 0
        && head.imm == 0
        && head.total == head.len
        && head.flags.bits() & (SHORT | NOT_SHORT).bits() == SHORT.bits()
}

const SHORT: HeadFlags = HeadFlags::FIRST.union(HeadFlags::LAST);
const NOT_SHORT: HeadFlags = HeadFlags::IMMEDIATE
    .union(HeadFlags::INVALIDATE)
    .union(HeadFlags::REQUESTED_KEY)
    .union(HeadFlags::BY_REFERENCE);

/// Where in its slot the payload of a piece goes, if it goes there.
#[inline(always)]
pub(crate) fn payload_at(head: &Head) -> usize {
    if is_short(head) {
        SHORT_PAYLOAD
    } else {
        PAYLOAD
    }
}

/// Writes the head except for its first word, and returns that word, which is stored last.
///
/// # Safety
/// `slot` is a slot of the own half, aligned to 8, and only this thread writes it.
// Always inlined, like all that lies between it and whoever makes the head: a head in memory, written field by field
// and read by words, would stall the processor.
#[inline(always)]
pub(crate) unsafe fn write(slot: *mut u8, index: u64, head: &Head, extension: u16) -> u64 {
    let words = slot.cast::<AtomicU64>();
    let put = |at: usize, value: u64| {
        // SAFETY: `at` is below 32 (256 bytes), and the slot is ours to write (contract).
        unsafe { (*words.add(at)).store(value, Ordering::Relaxed) }
    };
    put(1, u64::from(head.dst_qp) | u64::from(head.src_qp) << 32);
    put(2, u64::from(head.msn) | u64::from(head.len) << 32);
    let op = if extension != BOUNCED && is_short(head) {
        SHORT_SEND
    } else {
        put(3, head.addr);
        put(4, head.key);
        put(5, u64::from(head.imm) | u64::from(head.total) << 32);
        head.op as u8
    };
    if head.op.has_operands() {
        put(6, head.operands[0]);
        put(7, head.operands[1]);
    }
    u64::from(index.wrapping_add(1) as u32)
        | u64::from(op) << 32
        | u64::from(head.flags.bits()) << 40
        | u64::from(extension) << 48
}

/// Writes the `at`-th word of what follows the head.
///
/// # Safety
/// As for [`write()`]; `at` is below 26.
#[inline]
pub(crate) unsafe fn put_extension(slot: *mut u8, at: usize, value: u64) {
    debug_assert!(at < (SLOT - PAYLOAD) / 8);
    // SAFETY: 48 + 8 * 26 = 256 bytes, all in the slot, which is ours to write (contract).
    unsafe { (*slot.cast::<AtomicU64>().add(PAYLOAD / 8 + at)).store(value, Ordering::Relaxed) }
}

/// Whether a first word belongs to the `index`-th piece.
#[inline]
pub(crate) fn is_current(first: u64, index: u64) -> bool {
    first as u32 == index.wrapping_add(1) as u32
}

/// Copies a head out of a slot that a stranger may be changing, and checks the copy.
///
/// # Safety
/// `slot` is readable for 256 bytes and aligned to 8.
///
/// # Errors
/// Any rule of the table above is broken.
#[inline(always)]
pub(crate) unsafe fn read(
    slot: *const u8,
    first: u64,
    rules: &Rules,
) -> Result<(Head, Body), Malformed> {
    let words = slot.cast::<AtomicU64>();
    let get = |at: usize| {
        debug_assert!(at < SLOT / 8);
        // SAFETY: `at` is below 32 at every call, and the slot is readable (contract).
        unsafe { (*words.add(at)).load(Ordering::Relaxed) }
    };
    if (first >> 32) as u8 == SHORT_SEND {
        return read_short(first, rules, get);
    }
    let Some(op) = Op::from_wire((first >> 32) as u8) else {
        return Err(Malformed::new("unknown operation"));
    };
    if op.is_response() != rules.responses {
        return Err(Malformed::new("the operation flows the wrong way"));
    }
    let flags = HeadFlags::from_bits_retain((first >> 40) as u8);
    let extension = (first >> 48) as u16;
    let (qps, counts, imm) = (get(1), get(2), get(5));
    let mut head = Head {
        op,
        flags,
        dst_qp: qps as u32,
        src_qp: (qps >> 32) as u32,
        msn: counts as u32,
        len: (counts >> 32) as u32,
        total: (imm >> 32) as u32,
        addr: get(3),
        key: get(4),
        imm: imm as u32,
        operands: [0; 2],
    };
    if flags.contains(HeadFlags::IMMEDIATE | HeadFlags::INVALIDATE) {
        return Err(Malformed::new(
            "immediate data and a key to invalidate at once",
        ));
    }
    if op.has_operands() {
        if extension != 16 || head.len != 0 || flags.contains(HeadFlags::BY_REFERENCE) {
            return Err(Malformed::new("an atomic with payload"));
        }
        head.operands = [get(6), get(7)];
        return Ok((head, Body::Inline(PAYLOAD)));
    }
    if flags.contains(HeadFlags::BY_REFERENCE) {
        let wanted = match op {
            Op::Send | Op::Write => Some(head.len),
            Op::Read if head.len == 0 => Some(head.total),
            // "Your read has been pushed."
            Op::ReadData if head.len == 0 && extension == 0 => {
                return Ok((head, Body::Inline(PAYLOAD)));
            }
            _ => None,
        };
        return match wanted {
            Some(wanted) => read_references(wanted, extension, get).map(|body| (head, body)),
            None => Err(Malformed::new("references where none belong")),
        };
    }
    if matches!(op, Op::Read | Op::Probe) && head.len != 0 {
        return Err(Malformed::new("payload where none belongs"));
    }
    if extension == BOUNCED {
        let offset = get(PAYLOAD / 8);
        if head.len == 0 || head.len > rules.piece_max {
            return Err(Malformed::new("a piece that is too long"));
        }
        if offset > u64::from(rules.payload)
            || u64::from(head.len) > u64::from(rules.payload) - offset
        {
            return Err(Malformed::new("payload outside its ring"));
        }
        return Ok((head, Body::Bounced(offset as u32)));
    }
    if u32::from(extension) != head.len || head.len > INLINE_MAX {
        return Err(Malformed::new("lengths that do not agree"));
    }
    Ok((head, Body::Inline(PAYLOAD)))
}

/// The head of a short send.
#[inline(always)]
fn read_short(
    first: u64,
    rules: &Rules,
    get: impl Fn(usize) -> u64,
) -> Result<(Head, Body), Malformed> {
    if rules.responses {
        return Err(Malformed::new("the operation flows the wrong way"));
    }
    let flags = HeadFlags::from_bits_retain((first >> 40) as u8);
    if flags.bits() & (SHORT | NOT_SHORT).bits() != SHORT.bits() {
        return Err(Malformed::new("a short send that says more"));
    }
    let (qps, counts) = (get(1), get(2));
    let len = (counts >> 32) as u32;
    if (first >> 48) as u32 != len || len > INLINE_MAX {
        return Err(Malformed::new("lengths that do not agree"));
    }
    let head = Head {
        op: Op::Send,
        flags,
        dst_qp: qps as u32,
        src_qp: (qps >> 32) as u32,
        msn: counts as u32,
        len,
        total: len,
        addr: 0,
        key: 0,
        imm: 0,
        operands: [0; 2],
    };
    Ok((head, Body::Inline(SHORT_PAYLOAD)))
}

/// The list of a piece by reference.
#[cold]
fn read_references(
    wanted: u32,
    extension: u16,
    get: impl Fn(usize) -> u64,
) -> Result<Body, Malformed> {
    let count = usize::from(extension / 16);
    if !extension.is_multiple_of(16) || count == 0 || count > REFERENCES_MAX {
        return Err(Malformed::new("a list of references of impossible length"));
    }
    let mut list = [(0, 0); REFERENCES_MAX];
    let mut sum = 0u64;
    for (i, entry) in list.iter_mut().take(count).enumerate() {
        let (addr, len) = (get(PAYLOAD / 8 + 2 * i), get(PAYLOAD / 8 + 2 * i + 1));
        if len > u64::from(wanted) || addr.checked_add(len).is_none() {
            return Err(Malformed::new("a reference that is too long"));
        }
        sum += len;
        *entry = (addr, len);
    }
    if sum != u64::from(wanted) {
        return Err(Malformed::new("references that do not add up"));
    }
    match References::new(&list[..count]) {
        Some(list) => Ok(Body::References(Box::new(list))),
        None => Err(Malformed::new("a list of references of impossible length")),
    }
}

/// Reads 256 arbitrary bytes as a slot, exactly as a link does with a stranger's: the checked head
/// and the number of payload bytes or references that a link would hand on.
pub(crate) fn read_bytes(bytes: &[u8; SLOT], responses: bool) -> Result<(Head, usize), Malformed> {
    let words: [AtomicU64; SLOT / 8] = std::array::from_fn(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
        AtomicU64::new(u64::from_le_bytes(word))
    });
    let rules = Rules {
        responses,
        payload: 1 << 18,
        piece_max: 1 << 14,
    };
    let first = words[0].load(Ordering::Relaxed);
    // SAFETY: 32 words of our own.
    let (head, body) = unsafe { read(words.as_ptr().cast(), first, &rules)? };
    let amount = match body {
        Body::Inline(at) => {
            assert!(at + head.len as usize <= SLOT, "payload outside its slot");
            head.len as usize
        }
        Body::Bounced(offset) => {
            assert!(
                offset <= rules.payload && head.len <= rules.payload - offset,
                "payload outside its ring"
            );
            head.len as usize
        }
        Body::References(list) => list.as_slice().len(),
    };
    Ok((head, amount))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of a slot that is good, as (op, flags, extension, len).
    fn slot(op: u8, flags: HeadFlags, extension: u16, len: u32) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        bytes[4] = op;
        bytes[5] = flags.bits();
        bytes[6..8].copy_from_slice(&extension.to_le_bytes());
        bytes[20..24].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    fn put(bytes: &mut [u8; SLOT], at: usize, value: u64) {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn why_not(bytes: &[u8; SLOT], responses: bool) -> &'static str {
        read_bytes(bytes, responses).unwrap_err().reason
    }

    #[test]
    fn each_rule_is_kept() {
        let none = HeadFlags::empty();
        let by_reference = HeadFlags::BY_REFERENCE;
        let (write, read, swap) = (Op::Write as u8, Op::Read as u8, Op::CompareSwap as u8);
        let data = Op::ReadData as u8;
        assert!(read_bytes(&slot(write, none, 208, 208), false).is_ok());
        assert_eq!(
            why_not(&slot(write, none, 209, 209), false),
            "lengths that do not agree"
        );
        assert_eq!(
            why_not(&slot(write, none, 8, 9), false),
            "lengths that do not agree"
        );
        assert_eq!(
            why_not(&slot(write, none, 8, 8), true),
            "the operation flows the wrong way"
        );
        assert_eq!(
            why_not(&slot(data, none, 8, 8), false),
            "the operation flows the wrong way"
        );
        assert_eq!(why_not(&slot(0, none, 0, 0), false), "unknown operation");
        assert_eq!(
            why_not(&slot(read, none, 8, 8), false),
            "payload where none belongs"
        );
        assert_eq!(
            why_not(&slot(swap, none, 0, 0), false),
            "an atomic with payload"
        );
        assert_eq!(
            why_not(&slot(swap, by_reference, 16, 0), false),
            "an atomic with payload"
        );
        let both = HeadFlags::IMMEDIATE | HeadFlags::INVALIDATE;
        assert!(read_bytes(&slot(write, both, 0, 0), false).is_err());

        let mut bounced = slot(write, none, BOUNCED, 1 << 14);
        put(&mut bounced, 48, (1 << 18) - (1 << 14));
        assert!(read_bytes(&bounced, false).is_ok());
        for offset in [
            (1 << 18) - (1 << 14) + 1,
            1 << 18,
            (1 << 18) + 1,
            u64::MAX,
            1 << 32,
        ] {
            put(&mut bounced, 48, offset);
            assert_eq!(why_not(&bounced, false), "payload outside its ring");
        }
        for len in [0, (1 << 14) + 1, u32::MAX] {
            let bytes = slot(write, none, BOUNCED, len);
            assert_eq!(why_not(&bytes, false), "a piece that is too long");
        }
        assert!(read_bytes(&slot(data, by_reference, 0, 0), true).is_ok());
        assert!(read_bytes(&slot(data, by_reference, 16, 0), true).is_err());
    }

    #[test]
    fn short_sends_say_nothing_more() {
        let whole = HeadFlags::FIRST | HeadFlags::LAST;
        let word = |op, flags, extension, len| slot(op, flags, extension, len);
        let good = read_bytes(&word(SHORT_SEND, whole | HeadFlags::ACK_NOW, 40, 40), false);
        let (head, amount) = good.unwrap();
        assert_eq!(
            (head.op, head.total, head.addr, amount),
            (Op::Send, 40, 0, 40)
        );
        assert!(read_bytes(&word(SHORT_SEND, whole, 208, 208), false).is_ok());
        for extension in [209, BOUNCED] {
            let bytes = word(SHORT_SEND, whole, extension, extension.into());
            assert_eq!(why_not(&bytes, false), "lengths that do not agree");
        }
        assert!(read_bytes(&word(SHORT_SEND, whole, 8, 9), false).is_err());
        assert!(read_bytes(&word(SHORT_SEND, whole, 8, 8), true).is_err());
        for flags in [
            HeadFlags::FIRST,
            whole | HeadFlags::IMMEDIATE,
            whole | HeadFlags::INVALIDATE,
            whole | HeadFlags::BY_REFERENCE,
        ] {
            let bytes = word(SHORT_SEND, flags, 8, 8);
            assert_eq!(why_not(&bytes, false), "a short send that says more");
        }
    }

    #[test]
    fn heads_survive_the_way_short_and_long() {
        let send = Head {
            dst_qp: 1,
            src_qp: 2,
            msn: 3,
            len: 8,
            total: 8,
            ..Head::new(Op::Send)
        };
        let with_imm = Head {
            imm: 9,
            flags: send.flags | HeadFlags::IMMEDIATE,
            ..send
        };
        for (head, at) in [
            (send, SHORT_PAYLOAD),
            (with_imm, PAYLOAD),
            (Head { addr: 5, ..send }, PAYLOAD),
            (Head { key: 5, ..send }, PAYLOAD),
            (
                Head {
                    total: 80,
                    flags: HeadFlags::FIRST,
                    ..send
                },
                PAYLOAD,
            ),
            (
                Head {
                    op: Op::Write,
                    ..send
                },
                PAYLOAD,
            ),
        ] {
            assert_eq!(payload_at(&head), at);
            let words: [AtomicU64; SLOT / 8] = std::array::from_fn(|_| AtomicU64::new(!0));
            let rules = Rules {
                responses: false,
                payload: 1 << 18,
                piece_max: 1 << 14,
            };
            // SAFETY: 32 words of our own, aligned to 8.
            let read = unsafe {
                let first = write(words.as_ptr().cast_mut().cast(), 0, &head, 8);
                assert!(is_current(first, 0));
                read(words.as_ptr().cast(), first, &rules)
            };
            let (back, body) = read.unwrap();
            assert_eq!(back, head);
            assert!(matches!(body, Body::Inline(place) if place == at));
        }
    }

    #[test]
    fn references_must_add_up() {
        let with = |entries: &[(u64, u64)], extension: usize, len: u32| {
            let mut bytes = slot(
                Op::Write as u8,
                HeadFlags::BY_REFERENCE,
                extension as u16,
                len,
            );
            for (i, &(addr, size)) in entries.iter().enumerate() {
                put(&mut bytes, 48 + 16 * i, addr);
                put(&mut bytes, 56 + 16 * i, size);
            }
            read_bytes(&bytes, false).map(|(_, count)| count)
        };
        assert_eq!(with(&[(1, 2), (3, 4)], 32, 6), Ok(2));
        assert_eq!(with(&[(0, 1); 13], 208, 13), Ok(13));
        assert!(with(&[(1, 2), (3, 4)], 32, 7).is_err());
        assert!(with(&[(1, 2), (3, 4)], 31, 6).is_err());
        assert!(with(&[], 0, 0).is_err());
        assert!(with(&[(0, 1); 13], 224, 13).is_err());
        assert!(with(&[(u64::MAX, 2)], 16, 2).is_err());
        // Lengths whose sum wraps around.
        assert!(with(&[(0, u64::MAX), (0, 7)], 32, 6).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn random_bytes_are_refused_or_make_sense() {
        let mut random = 0x0123_4567_89ab_cdef_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut good = 0;
        for _ in 0..200_000 {
            let mut bytes = [0; SLOT];
            for at in (0..SLOT).step_by(8) {
                put(&mut bytes, at, next());
            }
            // Often something that looks right at the first glance.
            if next() % 4 != 0 {
                bytes[4] = [1, 2, 3, 4, 5, 6, 7, 64, 65, 66][next() as usize % 10];
                bytes[5] &= 0xb7;
                let extension = [0, 8, 16, 32, 208, u16::MAX][next() as usize % 6];
                bytes[6..8].copy_from_slice(&extension.to_le_bytes());
                let len = u32::from(extension).min(next() as u32 % 20_000);
                bytes[20..24].copy_from_slice(&len.to_le_bytes());
                put(&mut bytes, 48, next() % (1 << 19));
            }
            for responses in [false, true] {
                if let Ok((head, amount)) = read_bytes(&bytes, responses) {
                    assert!(amount <= 1 << 14);
                    assert_eq!(head.op.is_response(), responses);
                    good += 1;
                }
            }
        }
        assert!(good > 1000, "only {good} were good: the test tests little");
    }
}
