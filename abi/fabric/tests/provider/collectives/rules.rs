//! Rules for calls: registration, roots, flags, versions.

use super::*;
use crate::peer::strictly;
use std::ptr::null;

const BOTH: u64 = FI_SEND | FI_RECV;

/// The return code of an allreduce of one member on registered memory.
fn reduce_with(side: &Side, mc: &Mc, words: &mut [u64; 2], descs: [*mut c_void; 2]) -> c_int {
    let [source, result] = words;
    let it = Buffers {
        desc: descs[0],
        result_desc: descs[1],
        ..Buffers::new(
            std::slice::from_mut(source),
            std::slice::from_mut(result),
            1,
        )
    };
    call(side, mc, FI_ALLREDUCE, it, None, (FI_UINT64, FI_SUM))
}

fn bytes(word: &mut u64) -> &mut [u8] {
    // SAFETY: the bytes of a number.
    unsafe { std::slice::from_raw_parts_mut((&raw mut *word).cast(), 8) }
}

/// A member, its registered words and the regions.
fn registered(side: &Side, words: &mut [u64; 2], access: [u64; 2]) -> [Mr; 2] {
    let [source, result] = words;
    [
        side.reg(bytes(source), access[0], 1, 0).unwrap(),
        side.reg(bytes(result), access[1], 2, 0).unwrap(),
    ]
}

/// Proves: FI-023, FI-087, FI-101, FI-102
#[test]
fn with_fi_mr_collective_buffers_must_be_registered_for_collectives() {
    let wish = Wish {
        mr_mode: FI_MR_COLLECTIVE,
        ..wish()
    };
    let team = Team::open(2, &wish);
    let group = team.join_all();
    let side = &team.sides[0];
    let mut words = [[3u64, 0], [4, 0]];
    let refused = |words: &mut [u64; 2], access: [u64; 2]| {
        let regions = registered(side, words, access);
        let code = reduce_with(side, &group[0], words, regions.map(|mr| mr.desc()));
        assert_eq!(regions.map(Mr::close), [0, 0]);
        -code
    };
    let none = [null_mut(); 2];
    assert_eq!(
        reduce_with(side, &group[0], &mut words[0], none),
        -libc::EINVAL
    );
    let whole = FI_COLLECTIVE | BOTH;
    for access in [
        [BOTH, BOTH],
        [whole, BOTH],
        [BOTH, whole],
        // The right allows nothing on its own: it extends the others.
        [FI_COLLECTIVE, whole],
        [whole, FI_COLLECTIVE],
        [FI_COLLECTIVE | FI_RECV, whole],
        [whole, FI_COLLECTIVE | FI_SEND],
    ] {
        assert_eq!(refused(&mut words[0], access), libc::EACCES, "{access:x?}");
    }
    let exact = [FI_COLLECTIVE | FI_SEND, FI_COLLECTIVE | FI_RECV];
    let mut kept = Vec::new();
    for (me, words) in words.iter_mut().enumerate() {
        let regions = registered(&team.sides[me], words, exact);
        let other = regions.map(|mr| mr.desc());
        let swapped = [other[1], other[0]];
        let code = reduce_with(&team.sides[me], &group[me], words, swapped);
        assert_eq!(code, -libc::EINVAL, "the descriptor of another buffer");
        let code = reduce_with(&team.sides[me], &group[me], words, other);
        assert_eq!(code, 0);
        kept.extend(regions);
    }
    team.all_done();
    assert_eq!(words, [[3, 7], [4, 7]]);
    for mr in kept {
        assert_eq!(mr.close(), 0);
    }
    // An operation without data needs no buffer.
    for (side, mc) in team.sides.iter().zip(&group) {
        assert_eq!(barrier(side, mc), 0);
    }
    team.all_done();
    group.into_iter().for_each(Mc::close);
}

/// Proves: FI-088, FI-100
#[test]
fn without_fi_mr_collective_a_descriptor_is_optional() {
    let team = Team::open(2, &wish());
    let group = team.join_all();
    for access in [
        None,
        Some([FI_SEND, FI_RECV]),
        Some([FI_COLLECTIVE | BOTH; 2]),
    ] {
        let mut words = [[3u64, 0], [4, 0]];
        let mut kept = Vec::new();
        for (me, words) in words.iter_mut().enumerate() {
            let side = &team.sides[me];
            let descs = match access {
                None => [null_mut(); 2],
                Some(access) => {
                    let regions = registered(side, words, access);
                    kept.extend(regions);
                    regions.map(|mr| mr.desc())
                }
            };
            assert_eq!(reduce_with(side, &group[me], words, descs), 0);
        }
        team.all_done();
        assert_eq!(words, [[3, 7], [4, 7]]);
        for mr in kept {
            assert_eq!(mr.close(), 0);
        }
    }
    group.into_iter().for_each(Mc::close);
}

/// Where every transfer needs a descriptor, the rights to send and to receive matter.
///
/// Proves: FI-100, FI-042
#[test]
fn sources_need_the_right_to_send_and_results_the_right_to_receive() {
    let team = Team::open(
        2,
        &Wish {
            mr_mode: FI_MR_LOCAL,
            ..wish()
        },
    );
    let group = team.join_all();
    let side = &team.sides[0];
    let mut mine = [3u64, 0];
    let none = [null_mut(); 2];
    assert_eq!(reduce_with(side, &group[0], &mut mine, none), -libc::EINVAL);
    for access in [
        [FI_RECV, FI_RECV],
        [FI_SEND, FI_SEND],
        [FI_READ | FI_WRITE; 2],
    ] {
        let regions = registered(side, &mut mine, access);
        let code = reduce_with(side, &group[0], &mut mine, regions.map(|mr| mr.desc()));
        assert_eq!(code, -libc::EACCES, "{access:x?}");
        assert_eq!(regions.map(Mr::close), [0, 0]);
    }
    let mut theirs = [4u64, 0];
    let access = [FI_SEND, FI_RECV];
    let regions = [
        registered(side, &mut mine, access),
        registered(&team.sides[1], &mut theirs, access),
    ];
    let descs = regions.map(|regions| regions.map(|mr| mr.desc()));
    assert_eq!(reduce_with(side, &group[0], &mut mine, descs[0]), 0);
    assert_eq!(
        reduce_with(&team.sides[1], &group[1], &mut theirs, descs[1]),
        0
    );
    team.all_done();
    assert_eq!((mine, theirs), ([3, 7], [4, 7]));
    for mr in regions.into_iter().flatten() {
        assert_eq!(mr.close(), 0);
    }
    group.into_iter().for_each(Mc::close);
}

/// Capabilities and `mr_mode` of the offers for these capabilities.
fn infos(version: u32, caps: u64) -> Result<Vec<(u64, c_int)>, c_int> {
    let mut info = null_mut();
    let mut found = Vec::new();
    // SAFETY: the entry point's structure; complete hints; a null-terminated list.
    unsafe {
        let provider = rkey_fi::fi_prov_ini();
        let mut hints: Info = std::mem::zeroed();
        hints.caps = caps;
        match ((*provider).getinfo)(version, null(), null(), 0, &hints, &mut info) {
            0 => {}
            code => return Err(code),
        }
        while let Some(one) = info.as_ref() {
            found.push((one.caps, (*one.domain_attr).mr_mode));
            info = one.next;
        }
    }
    Ok(found)
}

/// Proves partly: FI-269
#[test]
fn before_1_9_there_are_no_collectives() {
    for (version, there) in [
        (version(1, 6), false),
        (version(1, 8), false),
        (version(1, 9), true),
        (V1_22, true),
    ] {
        let found = infos(version, FI_MSG | FI_COLLECTIVE);
        assert_eq!(found.is_ok(), there, "{version:x}");
        for (caps, mr_mode) in found.unwrap_or_default() {
            assert_eq!((caps & FI_COLLECTIVE, mr_mode), (FI_COLLECTIVE, 0));
        }
        for (caps, mr_mode) in infos(version, 0).unwrap() {
            // A program that does not request the capability does not see it.
            assert_eq!((caps & FI_COLLECTIVE, mr_mode & FI_MR_COLLECTIVE), (0, 0));
        }
    }
}

/// Proves in strict mode: FI-269
#[test]
fn in_strict_mode_fi_collective_is_a_right_from_1_9_on() {
    let test = "collectives::rules::in_strict_mode_fi_collective_is_a_right_from_1_9_on";
    strictly(test, || {
        for (version, there) in [(version(1, 8), false), (version(1, 9), true)] {
            let side = Side::open(&Wish {
                version,
                ..Wish::default()
            });
            let mut memory = [0u8; 8];
            let mr = side.reg(&mut memory, FI_COLLECTIVE | FI_SEND, 1, 0);
            assert_eq!(mr.is_ok(), there);
        }
    });
}

#[test]
fn invalid_collective_calls_are_refused() {
    let team = Team::open(3, &wish());
    let side = &team.sides[0];
    let mut words = [1u64; 8];
    let mut results = [0u64; 8];
    let mut one = || Buffers::new(&mut words, &mut results, 1);
    let sum = (FI_UINT64, FI_SUM);
    let incomplete = team.start(0, &[2, 0]);
    assert_eq!(
        barrier(side, &incomplete),
        -258,
        "not every member has joined"
    );
    incomplete.close();
    let group = team.join(&[0, 1]);
    for root in [2, 3, FI_ADDR_NOTAVAIL] {
        let code = call(side, &group[0], FI_BROADCAST, one(), Some(root), sum);
        assert_eq!(code, -libc::EINVAL, "not a member");
    }
    let typed = |datatype| (datatype, FI_SUM);
    for datatype in [-1, FI_VOID, FI_UINT128 + 1] {
        let code = call(side, &group[0], FI_ALLGATHER, one(), None, typed(datatype));
        assert_eq!(code, -libc::EOPNOTSUPP);
    }
    let huge = Buffers {
        count: usize::MAX / 4,
        ..one()
    };
    let code = call(side, &group[0], FI_ALLGATHER, huge, None, sum);
    assert_eq!(code, -libc::EMSGSIZE);
    let hole = map_at(0, 4096, libc::PROT_NONE);
    let unmapped = Buffers {
        source: hole as *mut u8,
        ..one()
    };
    let code = call(side, &group[0], FI_ALLREDUCE, unmapped, None, sum);
    assert_eq!(code, -libc::EFAULT);
    // SAFETY: the handles are live; the address is not that of a group.
    unsafe {
        let ops = &*(*side.ep).collective;
        let address = group[0].address();
        assert_eq!(
            (ops.barrier)(side.ep, 0, null_mut()),
            -(libc::EINVAL as isize)
        );
        assert_eq!(
            (ops.barrier2)(side.ep, address, FI_TRIGGER, null_mut()),
            -260
        );
        assert_eq!((ops.barrier2)(side.ep, address, FI_COMPLETION, CONTEXT), 0);
    }
    assert_eq!(barrier(&team.sides[1], &group[1]), 0);
    assert_eq!(
        (team.done(0), team.done(1)),
        (Ok(7), Ok(7)),
        "nothing began"
    );
    // A result that cannot be written is an error of this member alone.
    let result = Buffers {
        result: hole as *mut u8,
        ..one()
    };
    assert_eq!(call(side, &group[0], FI_ALLREDUCE, result, None, sum), 0);
    let mut theirs = [5u64; 2];
    let [source, sink] = &mut theirs;
    let it = Buffers::new(std::slice::from_mut(source), std::slice::from_mut(sink), 1);
    assert_eq!(
        call(&team.sides[1], &group[1], FI_ALLREDUCE, it, None, sum),
        0
    );
    assert_eq!((team.done(0), team.done(1)), (Err(libc::EFAULT), Ok(7)));
    assert_eq!(theirs, [5, 6]);
    unmap(hole, 4096);
    group.into_iter().for_each(Mc::close);
}

/// Neither endpoints without the capability nor connected endpoints have groups.
#[test]
fn only_endpoints_with_fi_collective_can_join_groups() {
    for caps in [0, FI_MSG] {
        let side = open(&Wish { caps, ..wish() });
        side.peer(&side);
        let set = Set::of(&side, &[0]);
        let refused = join(side.ep, &set, set.address(), 0).unwrap_err();
        assert_eq!(refused, -libc::EOPNOTSUPP);
        // SAFETY: the handle is live.
        let code = unsafe { ((*(*side.ep).collective).barrier)(side.ep, 0, null_mut()) };
        assert_eq!(code, -(libc::EOPNOTSUPP as isize));
    }
    let side = Side::open(&wish());
    side.peer(&side);
    let set = Set::of(&side, &[0]);
    assert_eq!(
        join(side.ep, &set, set.address(), 0).unwrap_err(),
        -261,
        "no event queue"
    );
}

/// Counters count collectives as atomic writes.
#[test]
fn a_write_counter_counts_collective_operations() {
    let mut counted = null_mut();
    let side = open_with(&wish(), |domain, ep| {
        counted = counter(domain);
        assert_eq!(bind(ep.cast(), counted.cast(), FI_WRITE), 0);
    });
    assert_eq!(side.peer(&side), 0);
    let team = Team { sides: vec![side] };
    let group = team.join_all();
    assert_eq!(barrier(&team.sides[0], &group[0]), 0);
    assert_eq!((wait_count(counted, 1), team.done(0)), (1, Ok(7)));
}
