//! One slot: writing a header to 256 bytes, and reading a peer's 256 bytes.
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 8 | `seq: u32` (index + 1), `op: u8`, `flags: u8`, `extension: u16`; stored last, in one store |
//! | 8 | 8 | `dst_qp: u32`, `src_qp: u32` |
//! | 16 | 8 | `msn: u32`, `len: u32` |
//! | 24 | 8 | `addr` |
//! | 32 | 8 | `key` |
//! | 40 | 8 | `imm: u32`, `total: u32` |
//! | 48 | 208 | payload, or operands, or a payload offset, or a remote iovec |
//!
//! A send that needs no header fields from offset 24 on has the operation [`SHORT_SEND`], and its payload begins there:
//! header and payload then usually fit into one cache line, so the reader has one cache miss.
//!
//! `extension` is the number of bytes used from offset 48 on (in a short send: from 24 on). The value
//! [`PAYLOAD_IN_RING`] means that the payload is in the payload ring, at the offset stored at 48. All numbers are
//! little-endian.

use super::half::SLOT;
use crate::fragment::REMOTE_IOVEC_MAX;
use crate::{
    AnsweredKind, AnsweredRequest, Header, HeaderFlags, Malformed, Op, RemoteIovec, ShortKind,
};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(target_endian = "little"))]
compile_error!("slots are little-endian words; another byte order needs swaps here");

/// The offset of the payload in a slot.
pub(crate) const PAYLOAD: usize = 48;
/// The offset of the payload of a short send.
pub(crate) const SHORT_PAYLOAD: usize = 24;
/// The operation of a send with a short header.
const SHORT_SEND: u8 = 7;
/// The maximum payload in a slot.
pub(crate) const IN_SLOT_MAX: u32 = (SLOT - PAYLOAD) as u32;
/// The value of `extension` for payload in the payload ring.
pub(crate) const PAYLOAD_IN_RING: u16 = u16::MAX;

/// What follows the header.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// `header.len` bytes at this offset of the slot.
    Inline(usize),
    /// `header.len` bytes at this offset of the payload ring.
    InPayloadRing(u32),
    /// A remote iovec.
    RemoteIovec(Box<RemoteIovec>),
}

/// The limits that a reader enforces for the slots of one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether the ring carries responses.
    pub(crate) responses: bool,
    /// The size of the payload ring, in bytes.
    pub(crate) payload: u32,
    /// The maximum payload of one fragment.
    pub(crate) fragment_max: u32,
}

/// Whether a fragment with its payload in the slot is written as a short send.
#[inline(always)]
fn is_short(header: &Header) -> bool {
    header.op == Op::Send
        && header.addr | header.key == 0
        && header.imm == 0
        && header.total == header.len
        && header.flags.bits() & (WHOLE_MESSAGE | EXTRA_FIELDS).bits() == WHOLE_MESSAGE.bits()
}

const WHOLE_MESSAGE: HeaderFlags = HeaderFlags::FIRST.union(HeaderFlags::LAST);
const EXTRA_FIELDS: HeaderFlags = HeaderFlags::IMMEDIATE
    .union(HeaderFlags::INVALIDATE)
    .union(HeaderFlags::REQUESTED_KEY)
    .union(HeaderFlags::REMOTE_IOVEC);

/// The offset of a fragment's payload in its slot, if it fits.
#[inline(always)]
pub(crate) fn payload_at(header: &Header) -> usize {
    if is_short(header) {
        SHORT_PAYLOAD
    } else {
        PAYLOAD
    }
}

/// Writes the header except for its first word, and returns that word, which is stored last.
///
/// # Safety
/// `slot` is a slot of our own half, aligned to 8, and only this thread writes it.
// Always inlined, as is everything between this and the code that builds the header: a header in memory that is written
// by fields and read by words would stall the processor.
#[inline(always)]
pub(crate) unsafe fn write(slot: *mut u8, index: u64, header: &Header, extension: u16) -> u64 {
    let words = slot.cast::<AtomicU64>();
    let put = |at: usize, value: u64| {
        // SAFETY: `at` is below 32 (256 bytes), and the slot is ours to write (contract).
        unsafe { (*words.add(at)).store(value, Ordering::Relaxed) }
    };
    put(1, u64::from(header.dst_qp) | u64::from(header.src_qp) << 32);
    put(2, u64::from(header.msn) | u64::from(header.len) << 32);
    let op = if extension != PAYLOAD_IN_RING && is_short(header) {
        SHORT_SEND
    } else {
        put(3, header.addr);
        put(4, header.key);
        put(5, u64::from(header.imm) | u64::from(header.total) << 32);
        header.op as u8
    };
    if header.op.has_operands() {
        put(6, header.operands[0]);
        put(7, header.operands[1]);
    }
    u64::from(index.wrapping_add(1) as u32)
        | u64::from(op) << 32
        | u64::from(header.flags.bits()) << 40
        | u64::from(extension) << 48
}

/// Writes the `at`-th word after the header.
///
/// # Safety
/// Same as for [`write()`]; `at` is below 26.
#[inline]
pub(crate) unsafe fn put_extension(slot: *mut u8, at: usize, value: u64) {
    debug_assert!(at < (SLOT - PAYLOAD) / 8);
    // SAFETY: 48 + 8 * 26 = 256 bytes, all in the slot, which is ours to write (contract).
    unsafe { (*slot.cast::<AtomicU64>().add(PAYLOAD / 8 + at)).store(value, Ordering::Relaxed) }
}

/// Whether a first word belongs to the `index`-th fragment.
#[inline]
pub(crate) fn is_current(first: u64, index: u64) -> bool {
    first as u32 == index.wrapping_add(1) as u32
}

/// Copies words out of a slot that the peer may be changing.
///
/// # Safety
/// `slot` is readable for 256 bytes and aligned to 8, as long as the result is used, and only words below 32 are asked for.
#[inline(always)]
unsafe fn words_in(slot: *const u8) -> impl Fn(usize) -> u64 + Copy {
    let words = slot.cast::<AtomicU64>();
    move |at| {
        debug_assert!(at < SLOT / 8);
        // SAFETY: the word is in the slot, which is readable (contract).
        unsafe { (*words.add(at)).load(Ordering::Relaxed) }
    }
}

/// Copies a header out of a slot that the peer may be changing, and checks the copy.
///
/// # Safety
/// `slot` is readable for 256 bytes and aligned to 8.
///
/// # Errors
/// The header is invalid, and why.
#[inline(always)]
pub(crate) unsafe fn read(
    slot: *const u8,
    first: u64,
    rules: &Rules,
) -> Result<(Header, Body), Malformed> {
    // SAFETY: the same contract; every word asked for below is below 32.
    let get = unsafe { words_in(slot) };
    if (first >> 32) as u8 == SHORT_SEND {
        return read_short(first, rules, get);
    }
    let Some(op) = Op::from_code((first >> 32) as u8) else {
        return Err(Malformed::new("unknown operation"));
    };
    if op.is_response() != rules.responses {
        return Err(Malformed::new("an operation in the wrong direction"));
    }
    let mut header = read_header(op, first, get);
    let extension = (first >> 48) as u16;
    let flags = header.flags;
    if flags.contains(HeaderFlags::IMMEDIATE | HeaderFlags::INVALIDATE) {
        return Err(Malformed::new(
            "a send with both immediate data and a key to invalidate",
        ));
    }
    if op.has_operands() {
        if extension != 16 || header.len != 0 || flags.contains(HeaderFlags::REMOTE_IOVEC) {
            return Err(Malformed::new("an atomic with a payload"));
        }
        header.operands = [get(6), get(7)];
        return Ok((header, Body::Inline(PAYLOAD)));
    }
    let body = if flags.contains(HeaderFlags::REMOTE_IOVEC) {
        remote_body(&header, extension, get)?
    } else {
        payload_body(&header, extension, rules, get)?
    };
    Ok((header, body))
}

/// The header fields of a short request, and where its payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortFields {
    pub(crate) dst_qp: u32,
    pub(crate) src_qp: u32,
    pub(crate) msn: u32,
    pub(crate) kind: ShortKind,
    /// The length of the payload, at most [`IN_SLOT_MAX`].
    pub(crate) len: u32,
    /// The offset of the payload in the slot: [`PAYLOAD`] or [`SHORT_PAYLOAD`].
    pub(crate) payload_at: usize,
}

impl ShortFields {
    /// Whether a slot that was read as a whole has these fields.
    fn is_in(&self, whole: &Result<(Header, Body), Malformed>) -> bool {
        let Ok((header, Body::Inline(at))) = whole else {
            return false;
        };
        let flags = header.flags;
        let kind = match header.op {
            Op::Send => ShortKind::Send {
                solicited: flags.contains(HeaderFlags::SOLICITED),
            },
            _ => ShortKind::Write {
                addr: header.addr,
                key: header.key,
                requested: flags.contains(HeaderFlags::REQUESTED_KEY),
            },
        };
        let of_whole = Self {
            dst_qp: header.dst_qp,
            src_qp: header.src_qp,
            msn: header.msn,
            kind,
            len: header.len,
            payload_at: *at,
        };
        let is_one_fragment = header.total == header.len && flags.contains(WHOLE_MESSAGE);
        *self == of_whole && is_one_fragment && matches!(header.op, Op::Send | Op::Write)
    }
}

/// The fields of a slot that holds a valid short request ([`ShortRequest`](crate::ShortRequest)); `None` for any other slot, which
/// [`read()`] reads or refuses.
///
/// # Safety
/// Same as for [`read()`].
#[inline(always)]
pub(crate) unsafe fn read_if_short(
    slot: *const u8,
    first: u64,
    rules: &Rules,
) -> Option<ShortFields> {
    // SAFETY: the same contract; every word asked for below is below 32.
    let get = unsafe { words_in(slot) };
    let flags = HeaderFlags::from_bits_retain((first >> 40) as u8);
    let extras = flags.bits() & (WHOLE_MESSAGE | EXTRA_FIELDS).bits();
    // Reads only the first word of other requests, which are read again as a whole.
    let is_send = match (first >> 32) as u8 {
        SHORT_SEND if extras == WHOLE_MESSAGE.bits() => true,
        op if op == Op::Write as u8
            && extras & !HeaderFlags::REQUESTED_KEY.bits() == WHOLE_MESSAGE.bits() =>
        {
            false
        }
        _ => return None,
    };
    let (qps, counts) = (get(1), get(2));
    let len = (counts >> 32) as u32;
    if rules.responses || (first >> 48) as u32 != len || len > IN_SLOT_MAX {
        return None;
    }
    let (kind, payload_at) = if is_send {
        let solicited = flags.contains(HeaderFlags::SOLICITED);
        (ShortKind::Send { solicited }, SHORT_PAYLOAD)
    } else if len > 0 && (get(5) >> 32) as u32 == len {
        let kind = ShortKind::Write {
            addr: get(3),
            key: get(4),
            requested: flags.contains(HeaderFlags::REQUESTED_KEY),
        };
        (kind, PAYLOAD)
    } else {
        return None;
    };
    Some(ShortFields {
        dst_qp: qps as u32,
        src_qp: (qps >> 32) as u32,
        msn: counts as u32,
        kind,
        len,
        payload_at,
    })
}

/// A valid read whose data fit into a slot, or a valid atomic; `None` for any other slot, which [`read()`] reads or refuses.
///
/// # Safety
/// Same as for [`read()`].
#[inline]
pub(crate) unsafe fn read_if_answered(
    slot: *const u8,
    first: u64,
    rules: &Rules,
) -> Option<AnsweredRequest> {
    // SAFETY: the same contract; every word asked for below is below 32.
    let get = unsafe { words_in(slot) };
    let flags = HeaderFlags::from_bits_retain((first >> 40) as u8);
    let extras = flags.bits() & (WHOLE_MESSAGE | EXTRA_FIELDS).bits();
    let requested = flags.contains(HeaderFlags::REQUESTED_KEY);
    let (op, extension) = (Op::from_code((first >> 32) as u8)?, (first >> 48) as u16);
    let (qps, counts) = (get(1), get(2));
    if rules.responses
        || extras & !HeaderFlags::REQUESTED_KEY.bits() != WHOLE_MESSAGE.bits()
        || counts >> 32 != 0
    {
        return None;
    }
    let kind = match (op, extension) {
        (Op::Read, 0) => AnsweredKind::Read((get(5) >> 32) as u32),
        (Op::CompareSwap, 16) => AnsweredKind::CompareSwap(get(6), get(7)),
        (Op::FetchAdd, 16) => AnsweredKind::FetchAdd(get(6)),
        _ => return None,
    };
    if let AnsweredKind::Read(len) = kind
        && !(1..=IN_SLOT_MAX).contains(&len)
    {
        return None;
    }
    Some(AnsweredRequest {
        dst_qp: qps as u32,
        src_qp: (qps >> 32) as u32,
        msn: counts as u32,
        addr: get(3),
        key: get(4),
        requested,
        kind,
    })
}

/// Whether a slot that was read as a whole is this request.
fn is_answered_in(request: &AnsweredRequest, whole: &Result<(Header, Body), Malformed>) -> bool {
    let Ok((header, Body::Inline(_))) = whole else {
        return false;
    };
    let [a, b] = header.operands;
    let kind = match header.op {
        Op::CompareSwap => AnsweredKind::CompareSwap(a, b),
        Op::FetchAdd => AnsweredKind::FetchAdd(a),
        _ => AnsweredKind::Read(header.total),
    };
    let of_whole = AnsweredRequest {
        dst_qp: header.dst_qp,
        src_qp: header.src_qp,
        msn: header.msn,
        addr: header.addr,
        key: header.key,
        requested: header.flags.contains(HeaderFlags::REQUESTED_KEY),
        kind,
    };
    let may_be_answered = header.op.has_operands() || header.op == Op::Read;
    *request == of_whole && may_be_answered && header.flags.contains(WHOLE_MESSAGE)
}

/// Whether the fragment with this first word requests an immediate acknowledgement.
#[inline(always)]
pub(crate) fn wants_ack_now(first: u64) -> bool {
    HeaderFlags::from_bits_retain((first >> 40) as u8).contains(HeaderFlags::ACK_NOW)
}

/// The fields of a long header, except for the operands.
#[inline(always)]
fn read_header(op: Op, first: u64, get: impl Fn(usize) -> u64) -> Header {
    let (qps, counts, imm) = (get(1), get(2), get(5));
    Header {
        op,
        flags: HeaderFlags::from_bits_retain((first >> 40) as u8),
        dst_qp: qps as u32,
        src_qp: (qps >> 32) as u32,
        msn: counts as u32,
        len: (counts >> 32) as u32,
        total: (imm >> 32) as u32,
        addr: get(3),
        key: get(4),
        imm: imm as u32,
        operands: [0; 2],
    }
}

/// What follows a header with [`HeaderFlags::REMOTE_IOVEC`].
#[inline(always)]
fn remote_body(
    header: &Header,
    extension: u16,
    get: impl Fn(usize) -> u64,
) -> Result<Body, Malformed> {
    let wanted = match header.op {
        Op::Send | Op::Write => header.len,
        Op::Read if header.len == 0 => header.total,
        // The notification that the data of a read has been pushed.
        Op::ReadData if header.len == 0 && extension == 0 => return Ok(Body::Inline(PAYLOAD)),
        _ => return Err(Malformed::new("an unexpected remote iovec")),
    };
    read_remote_iovec(wanted, extension, get)
}

/// What follows a header with payload or with nothing.
#[inline(always)]
fn payload_body(
    header: &Header,
    extension: u16,
    rules: &Rules,
    get: impl Fn(usize) -> u64,
) -> Result<Body, Malformed> {
    if matches!(header.op, Op::Read | Op::Probe) && header.len != 0 {
        return Err(Malformed::new("an unexpected payload"));
    }
    if extension == PAYLOAD_IN_RING {
        let offset = get(PAYLOAD / 8);
        if header.len == 0 || header.len > rules.fragment_max {
            return Err(Malformed::new("a fragment that is too long"));
        }
        if offset > u64::from(rules.payload)
            || u64::from(header.len) > u64::from(rules.payload) - offset
        {
            return Err(Malformed::new("a payload outside its ring"));
        }
        return Ok(Body::InPayloadRing(offset as u32));
    }
    if u32::from(extension) != header.len || header.len > IN_SLOT_MAX {
        return Err(Malformed::new("inconsistent lengths"));
    }
    Ok(Body::Inline(PAYLOAD))
}

/// The header of a short send.
#[inline(always)]
fn read_short(
    first: u64,
    rules: &Rules,
    get: impl Fn(usize) -> u64,
) -> Result<(Header, Body), Malformed> {
    if rules.responses {
        return Err(Malformed::new("an operation in the wrong direction"));
    }
    let flags = HeaderFlags::from_bits_retain((first >> 40) as u8);
    if flags.bits() & (WHOLE_MESSAGE | EXTRA_FIELDS).bits() != WHOLE_MESSAGE.bits() {
        return Err(Malformed::new("a short send with extra fields"));
    }
    let (qps, counts) = (get(1), get(2));
    let len = (counts >> 32) as u32;
    if (first >> 48) as u32 != len || len > IN_SLOT_MAX {
        return Err(Malformed::new("inconsistent lengths"));
    }
    let header = Header {
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
    Ok((header, Body::Inline(SHORT_PAYLOAD)))
}

/// The remote iovec of a fragment.
#[cold]
fn read_remote_iovec(
    wanted: u32,
    extension: u16,
    get: impl Fn(usize) -> u64,
) -> Result<Body, Malformed> {
    let count = usize::from(extension / 16);
    if !extension.is_multiple_of(16) || count == 0 || count > REMOTE_IOVEC_MAX {
        return Err(Malformed::new("a remote iovec of invalid length"));
    }
    let mut list = [(0, 0); REMOTE_IOVEC_MAX];
    let mut sum = 0u64;
    for (i, entry) in list.iter_mut().take(count).enumerate() {
        let (addr, len) = (get(PAYLOAD / 8 + 2 * i), get(PAYLOAD / 8 + 2 * i + 1));
        if len > u64::from(wanted) || addr.checked_add(len).is_none() {
            return Err(Malformed::new("a remote iovec with an overlong range"));
        }
        sum += len;
        *entry = (addr, len);
    }
    if sum != u64::from(wanted) {
        return Err(Malformed::new("a remote iovec with inconsistent lengths"));
    }
    match RemoteIovec::new(&list[..count]) {
        Some(list) => Ok(Body::RemoteIovec(Box::new(list))),
        None => Err(Malformed::new("a remote iovec of invalid length")),
    }
}

/// The words of a slot with these bytes.
fn words_of(bytes: &[u8; SLOT]) -> [AtomicU64; SLOT / 8] {
    std::array::from_fn(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
        AtomicU64::new(u64::from_le_bytes(word))
    })
}

/// The limits for slots of arbitrary bytes.
const fn arbitrary_rules(responses: bool) -> Rules {
    Rules {
        responses,
        payload: 1 << 18,
        fragment_max: 1 << 14,
    }
}

/// Reads 256 arbitrary bytes as a slot, exactly as a link does with a peer's: the checked header and the number of
/// payload bytes or of ranges of a remote iovec. If there is another way to read it, both must agree.
pub(crate) fn read_bytes(
    bytes: &[u8; SLOT],
    responses: bool,
) -> Result<(Header, usize), Malformed> {
    let (words, rules) = (words_of(bytes), arbitrary_rules(responses));
    let first = words[0].load(Ordering::Relaxed);
    // SAFETY: our own 32 words.
    let (short, answered, whole) = unsafe {
        let slot = words.as_ptr().cast();
        (
            read_if_short(slot, first, &rules),
            read_if_answered(slot, first, &rules),
            read(slot, first, &rules),
        )
    };
    if let Some(answered) = answered {
        assert!(
            is_answered_in(&answered, &whole),
            "{answered:?} read from {whole:?}"
        );
    }
    if let Some(short) = short {
        assert!(short.is_in(&whole), "{short:?} read from {whole:?}");
    }
    let (header, body) = whole?;
    let amount = match body {
        Body::Inline(at) => {
            assert!(at + header.len as usize <= SLOT, "payload outside its slot");
            header.len as usize
        }
        Body::InPayloadRing(offset) => {
            assert!(
                offset <= rules.payload && header.len <= rules.payload - offset,
                "a payload outside its ring"
            );
            header.len as usize
        }
        Body::RemoteIovec(list) => list.as_slice().len(),
    };
    Ok((header, amount))
}

#[cfg(test)]
mod tests;
