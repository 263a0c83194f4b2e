//! Slots that are valid, and slots that break a rule.

use super::*;

/// The bytes of a slot with these fields; all others are zero.
fn slot(op: u8, flags: HeaderFlags, extension: u16, len: u32) -> [u8; SLOT] {
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

/// What a reader of short requests makes of a slot.
fn read_short_request(bytes: &[u8; SLOT], responses: bool) -> Option<ShortFields> {
    let (words, rules) = (words_of(bytes), arbitrary_rules(responses));
    let first = words[0].load(Ordering::Relaxed);
    // SAFETY: our own 32 words.
    unsafe { super::read_if_short(words.as_ptr().cast(), first, &rules) }
}

/// A write of one fragment with its payload in the slot.
fn short_write(flags: HeaderFlags, extension: u16, len: u32, total: u32) -> [u8; SLOT] {
    let mut bytes = slot(Op::Write as u8, flags, extension, len);
    put(&mut bytes, 8, 5 | 6 << 32);
    bytes[16..20].copy_from_slice(&9u32.to_le_bytes());
    put(&mut bytes, 24, 0x1000);
    put(&mut bytes, 32, 0x77);
    put(&mut bytes, 40, u64::from(total) << 32);
    bytes
}

#[test]
fn only_valid_short_sends_are_read_as_such() {
    let whole = WHOLE_MESSAGE;
    for (flags, solicited) in [(whole, false), (whole | HeaderFlags::SOLICITED, true)] {
        let mut short = slot(SHORT_SEND, flags, 16, 16);
        put(&mut short, 8, 5 | 6 << 32);
        short[16..20].copy_from_slice(&9u32.to_le_bytes());
        // Compares both ways to read it.
        assert!(read_bytes(&short, false).is_ok());
        let read = read_short_request(&short, false).unwrap();
        assert_eq!(read.kind, ShortKind::Send { solicited });
        assert_eq!((read.len, read.payload_at), (16, SHORT_PAYLOAD));
        assert_eq!((read.dst_qp, read.src_qp, read.msn), (5, 6, 9));
        assert_eq!(
            read_short_request(&short, true),
            None,
            "a ring of responses"
        );
    }
    assert!(read_short_request(&slot(SHORT_SEND, whole, 0, 0), false).is_some());
    let others = [
        slot(Op::Send as u8, whole, 16, 16),
        slot(SHORT_SEND, whole, 16, 17),
        slot(SHORT_SEND, whole, 209, 209),
        slot(SHORT_SEND, HeaderFlags::FIRST, 16, 16),
        slot(SHORT_SEND, whole | HeaderFlags::IMMEDIATE, 16, 16),
        slot(SHORT_SEND, whole | HeaderFlags::REQUESTED_KEY, 16, 16),
    ];
    for other in others {
        assert_eq!(read_short_request(&other, false), None);
    }
}

#[test]
fn only_valid_writes_of_one_fragment_in_the_slot_are_read_as_short() {
    let whole = WHOLE_MESSAGE;
    for requested in [false, true] {
        let mut flags = whole | HeaderFlags::ACK_NOW;
        flags.set(HeaderFlags::REQUESTED_KEY, requested);
        let bytes = short_write(flags, 208, 208, 208);
        let (header, _) = read_bytes(&bytes, false).unwrap();
        let kind = ShortKind::Write {
            addr: header.addr,
            key: header.key,
            requested,
        };
        let read = read_short_request(&bytes, false).unwrap();
        assert_eq!((read.kind, read.len, read.payload_at), (kind, 208, PAYLOAD));
        assert_eq!((read.dst_qp, read.src_qp, read.msn), (5, 6, 9));
        assert_eq!(
            read_short_request(&bytes, true),
            None,
            "a ring of responses"
        );
    }
    let others = [
        short_write(whole, 0, 0, 0),
        short_write(whole, 16, 16, 17),
        short_write(whole, 16, 17, 17),
        short_write(whole, 209, 209, 209),
        short_write(whole, PAYLOAD_IN_RING, 16, 16),
        short_write(HeaderFlags::FIRST, 16, 16, 32),
        short_write(HeaderFlags::LAST, 16, 16, 16),
        short_write(whole | HeaderFlags::IMMEDIATE, 16, 16, 16),
        short_write(whole | HeaderFlags::INVALIDATE, 16, 16, 16),
        short_write(whole | HeaderFlags::REMOTE_IOVEC, 16, 16, 16),
    ];
    for other in others {
        assert_eq!(read_short_request(&other, false), None);
    }
}

#[test]
fn a_slot_that_breaks_a_rule_is_refused_with_the_reason() {
    let none = HeaderFlags::empty();
    let remote_iovec = HeaderFlags::REMOTE_IOVEC;
    let (write, read, swap) = (Op::Write as u8, Op::Read as u8, Op::CompareSwap as u8);
    let data = Op::ReadData as u8;
    assert!(read_bytes(&slot(write, none, 208, 208), false).is_ok());
    assert_eq!(
        why_not(&slot(write, none, 209, 209), false),
        "inconsistent lengths"
    );
    assert_eq!(
        why_not(&slot(write, none, 8, 9), false),
        "inconsistent lengths"
    );
    assert_eq!(
        why_not(&slot(write, none, 8, 8), true),
        "an operation in the wrong direction"
    );
    assert_eq!(
        why_not(&slot(data, none, 8, 8), false),
        "an operation in the wrong direction"
    );
    assert_eq!(why_not(&slot(0, none, 0, 0), false), "unknown operation");
    assert_eq!(
        why_not(&slot(read, none, 8, 8), false),
        "an unexpected payload"
    );
    assert_eq!(
        why_not(&slot(swap, none, 0, 0), false),
        "an atomic with a payload"
    );
    assert_eq!(
        why_not(&slot(swap, remote_iovec, 16, 0), false),
        "an atomic with a payload"
    );
    let both = HeaderFlags::IMMEDIATE | HeaderFlags::INVALIDATE;
    assert!(read_bytes(&slot(write, both, 0, 0), false).is_err());

    let mut in_ring = slot(write, none, PAYLOAD_IN_RING, 1 << 14);
    put(&mut in_ring, 48, (1 << 18) - (1 << 14));
    assert!(read_bytes(&in_ring, false).is_ok());
    for offset in [
        (1 << 18) - (1 << 14) + 1,
        1 << 18,
        (1 << 18) + 1,
        u64::MAX,
        1 << 32,
    ] {
        put(&mut in_ring, 48, offset);
        assert_eq!(why_not(&in_ring, false), "a payload outside its ring");
    }
    for len in [0, (1 << 14) + 1, u32::MAX] {
        let bytes = slot(write, none, PAYLOAD_IN_RING, len);
        assert_eq!(why_not(&bytes, false), "a fragment that is too long");
    }
    assert!(read_bytes(&slot(data, remote_iovec, 0, 0), true).is_ok());
    assert!(read_bytes(&slot(data, remote_iovec, 16, 0), true).is_err());
}

#[test]
fn a_short_send_with_extra_fields_is_refused() {
    let whole = HeaderFlags::FIRST | HeaderFlags::LAST;
    let word = |op, flags, extension, len| slot(op, flags, extension, len);
    let good = read_bytes(
        &word(SHORT_SEND, whole | HeaderFlags::ACK_NOW, 40, 40),
        false,
    );
    let (header, amount) = good.unwrap();
    assert_eq!(
        (header.op, header.total, header.addr, amount),
        (Op::Send, 40, 0, 40)
    );
    assert!(read_bytes(&word(SHORT_SEND, whole, 208, 208), false).is_ok());
    for extension in [209, PAYLOAD_IN_RING] {
        let bytes = word(SHORT_SEND, whole, extension, extension.into());
        assert_eq!(why_not(&bytes, false), "inconsistent lengths");
    }
    assert!(read_bytes(&word(SHORT_SEND, whole, 8, 9), false).is_err());
    assert!(read_bytes(&word(SHORT_SEND, whole, 8, 8), true).is_err());
    for flags in [
        HeaderFlags::FIRST,
        whole | HeaderFlags::IMMEDIATE,
        whole | HeaderFlags::INVALIDATE,
        whole | HeaderFlags::REMOTE_IOVEC,
    ] {
        let bytes = word(SHORT_SEND, flags, 8, 8);
        assert_eq!(why_not(&bytes, false), "a short send with extra fields");
    }
}

#[test]
fn short_and_long_headers_round_trip() {
    let send = Header {
        dst_qp: 1,
        src_qp: 2,
        msn: 3,
        len: 8,
        total: 8,
        ..Header::new(Op::Send)
    };
    let with_imm = Header {
        imm: 9,
        flags: send.flags | HeaderFlags::IMMEDIATE,
        ..send
    };
    for (header, at) in [
        (send, SHORT_PAYLOAD),
        (with_imm, PAYLOAD),
        (Header { addr: 5, ..send }, PAYLOAD),
        (Header { key: 5, ..send }, PAYLOAD),
        (
            Header {
                total: 80,
                flags: HeaderFlags::FIRST,
                ..send
            },
            PAYLOAD,
        ),
        (
            Header {
                op: Op::Write,
                ..send
            },
            PAYLOAD,
        ),
    ] {
        assert_eq!(payload_at(&header), at);
        let words: [AtomicU64; SLOT / 8] = std::array::from_fn(|_| AtomicU64::new(!0));
        let rules = Rules {
            responses: false,
            payload: 1 << 18,
            fragment_max: 1 << 14,
        };
        // SAFETY: our own 32 words, aligned to 8.
        let read = unsafe {
            let first = write(words.as_ptr().cast_mut().cast(), 0, &header, 8);
            assert!(is_current(first, 0));
            read(words.as_ptr().cast(), first, &rules)
        };
        let (back, body) = read.unwrap();
        assert_eq!(back, header);
        assert!(matches!(body, Body::Inline(offset) if offset == at));
    }
}

#[test]
fn a_remote_iovec_must_add_up_to_the_length_of_its_fragment() {
    let with = |entries: &[(u64, u64)], extension: usize, len: u32| {
        let mut bytes = slot(
            Op::Write as u8,
            HeaderFlags::REMOTE_IOVEC,
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
    // The sum of these lengths wraps around.
    assert!(with(&[(0, u64::MAX), (0, 7)], 32, 6).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn random_slots_are_refused_or_have_valid_lengths() {
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
        // Three of four inputs are nearly valid.
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
            if let Ok((header, amount)) = read_bytes(&bytes, responses) {
                assert!(amount <= 1 << 14);
                assert_eq!(header.op.is_response(), responses);
                good += 1;
            }
        }
    }
    assert!(good > 1000, "only {good} were valid: this shows little");
}

/// What a reader of reads and atomics makes of a slot.
fn read_answered_request(bytes: &[u8; SLOT], responses: bool) -> Option<AnsweredRequest> {
    let (words, rules) = (words_of(bytes), arbitrary_rules(responses));
    let first = words[0].load(Ordering::Relaxed);
    // SAFETY: our own 32 words.
    unsafe { super::read_if_answered(words.as_ptr().cast(), first, &rules) }
}

#[test]
fn only_reads_that_fit_into_a_slot_and_atomics_are_read_as_such() {
    let whole = WHOLE_MESSAGE;
    let with = |op: Op, flags, extension, len, total: u32| {
        let mut bytes = slot(op as u8, flags, extension, len);
        put(&mut bytes, 8, 5 | 6 << 32);
        bytes[16..20].copy_from_slice(&9u32.to_le_bytes());
        for at in [24, 32, 48, 56] {
            put(&mut bytes, at, 1000 + at as u64);
        }
        put(&mut bytes, 40, u64::from(total) << 32);
        bytes
    };
    for requested in [false, true] {
        let mut flags = whole;
        flags.set(HeaderFlags::REQUESTED_KEY, requested);
        for (op, extension, total, kind) in [
            (Op::Read, 0, 208, AnsweredKind::Read(208)),
            (Op::Read, 0, 1, AnsweredKind::Read(1)),
            (Op::FetchAdd, 16, 8, AnsweredKind::FetchAdd(1048)),
            (
                Op::CompareSwap,
                16,
                8,
                AnsweredKind::CompareSwap(1048, 1056),
            ),
        ] {
            let bytes = with(op, flags, extension, 0, total);
            // Compares both ways to read it.
            assert!(read_bytes(&bytes, false).is_ok());
            let want = AnsweredRequest {
                dst_qp: 5,
                src_qp: 6,
                msn: 9,
                addr: 1024,
                key: 1032,
                requested,
                kind,
            };
            assert_eq!(read_answered_request(&bytes, false), Some(want));
            let in_responses = read_answered_request(&bytes, true);
            assert_eq!(in_responses, None, "a ring of responses");
        }
    }
    let others = [
        with(Op::Read, whole, 0, 0, 0),
        with(Op::Read, whole, 0, 0, 209),
        with(Op::Read, whole, 0, 8, 8),
        with(Op::Read, whole, 16, 0, 8),
        with(Op::Read, whole | HeaderFlags::REMOTE_IOVEC, 16, 0, 8),
        with(Op::Read, HeaderFlags::FIRST, 0, 0, 8),
        with(Op::Read, whole | HeaderFlags::IMMEDIATE, 0, 0, 8),
        with(Op::FetchAdd, whole, 0, 0, 8),
        with(Op::FetchAdd, whole, 16, 8, 8),
        with(Op::FetchAdd, whole | HeaderFlags::INVALIDATE, 16, 0, 8),
        with(Op::CompareSwap, HeaderFlags::LAST, 16, 0, 8),
        with(Op::Write, whole, 0, 0, 8),
        with(Op::Send, whole, 0, 0, 8),
        with(Op::Probe, whole, 0, 0, 8),
        with(Op::ReadData, whole, 0, 0, 8),
        with(Op::Nak, whole, 0, 0, 8),
    ];
    for other in others {
        assert_eq!(read_answered_request(&other, false), None);
    }
}
