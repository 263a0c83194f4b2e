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
//! `extension` is the number of bytes used from offset 48 on. The value [`BOUNCED`] says that
//! the payload lies in the payload ring, at the offset found at 48. All numbers are little-endian.

use super::half::SLOT;
use crate::link::REFERENCES_MAX;
use crate::{Head, HeadFlags, Malformed, Op, References};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(target_endian = "little"))]
compile_error!("slots are little-endian words; another byte order needs swaps here");

/// Where payload begins in a slot.
pub(crate) const PAYLOAD: usize = 48;
/// Payload that fits into a slot.
pub(crate) const INLINE_MAX: u32 = (SLOT - PAYLOAD) as u32;
/// The value of `extension` for payload in the payload ring.
pub(crate) const BOUNCED: u16 = u16::MAX;

/// What follows the head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// `head.len` bytes at offset 48.
    Inline,
    /// `head.len` bytes at this offset of the payload ring.
    Bounced(u32),
    /// A list of places.
    References(References),
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

/// Writes the head except for its first word, and returns that word for [`publish`].
///
/// # Safety
/// `slot` is a slot of the own half, aligned to 8, and only this thread writes it.
#[inline]
pub(crate) unsafe fn write(slot: *mut u8, index: u64, head: &Head, extension: u16) -> u64 {
    let words = slot.cast::<AtomicU64>();
    let put = |at: usize, value: u64| {
        // SAFETY: `at` is below 32 (256 bytes), and the slot is ours to write (contract).
        unsafe { (*words.add(at)).store(value, Ordering::Relaxed) }
    };
    put(1, u64::from(head.dst_qp) | u64::from(head.src_qp) << 32);
    put(2, u64::from(head.msn) | u64::from(head.len) << 32);
    put(3, head.addr);
    put(4, head.key);
    put(5, u64::from(head.imm) | u64::from(head.total) << 32);
    if head.op.has_operands() {
        put(6, head.operands[0]);
        put(7, head.operands[1]);
    }
    u64::from(index.wrapping_add(1) as u32)
        | (head.op as u64) << 32
        | u64::from(head.flags.bits()) << 40
        | u64::from(extension) << 48
}

/// Writes the `at`-th word of what follows the head.
///
/// # Safety
/// As for [`write`]; `at` is below 26.
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
        return Ok((head, Body::Inline));
    }
    if flags.contains(HeadFlags::BY_REFERENCE) {
        return read_references(&head, extension, get).map(|body| (head, body));
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
    Ok((head, Body::Inline))
}

/// The list of a piece by reference; the answer "your read has been pushed" has none.
#[cold]
fn read_references(
    head: &Head,
    extension: u16,
    get: impl Fn(usize) -> u64,
) -> Result<Body, Malformed> {
    if head.op == Op::ReadData {
        if extension != 0 || head.len != 0 {
            return Err(Malformed::new("pushed data with payload"));
        }
        return Ok(Body::Inline);
    }
    let count = usize::from(extension / 16);
    if !extension.is_multiple_of(16) || count == 0 || count > REFERENCES_MAX {
        return Err(Malformed::new("a list of references of impossible length"));
    }
    let wanted = match head.op {
        Op::Send | Op::Write => head.len,
        Op::Read if head.len == 0 => head.total,
        _ => return Err(Malformed::new("references where none belong")),
    };
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
        Some(list) => Ok(Body::References(list)),
        None => Err(Malformed::new("a list of references of impossible length")),
    }
}

/// Reads 256 arbitrary bytes as a slot, exactly as a link does with a stranger's: for fuzzing.
///
/// Gives the checked head and the number of payload bytes or references that a link would hand on.
///
/// # Errors
/// The bytes are not a slot.
pub fn fuzz_slot(bytes: &[u8; SLOT], responses: bool) -> Result<(Head, usize), Malformed> {
    #[repr(align(64))]
    struct Aligned([u8; SLOT]);
    let copy = Aligned(*bytes);
    let rules = Rules {
        responses,
        payload: 1 << 18,
        piece_max: 1 << 14,
    };
    let first = u64::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7],
    ]);
    // SAFETY: an aligned local array of 256 bytes.
    let (head, body) = unsafe { read(copy.0.as_ptr(), first, &rules)? };
    let amount = match body {
        Body::Inline => head.len as usize,
        Body::Bounced(offset) => {
            assert!(
                offset + head.len <= rules.payload,
                "payload outside its ring"
            );
            head.len as usize
        }
        Body::References(list) => list.as_slice().len(),
    };
    Ok((head, amount))
}
