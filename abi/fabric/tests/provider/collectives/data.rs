//! The results of collective operations.

use super::*;

/// The element that a member has for another.
fn element(from: usize, to: usize, at: usize) -> u64 {
    (from * 1_000_003 + to * 10_007 + at * 13) as u64
}

/// A member's result, and the expected one.
type Outcome = (Vec<u64>, Vec<u64>);

/// Every member calls one operation on `count` elements; the root is the last member.
fn run(team: &Team, group: &[Mc], coll: c_int, count: usize) -> Vec<Outcome> {
    let n = group.len();
    let root = n - 1;
    let blocks = |to: usize, from: usize| -> Vec<u64> {
        (0..count).map(|at| element(from, to, at)).collect()
    };
    let row = |from: usize| -> Vec<u64> { (0..n).flat_map(|to| blocks(to, from)).collect() };
    let column = |to: usize| -> Vec<u64> { (0..n).flat_map(|from| blocks(to, from)).collect() };
    let sum = |to: usize| -> Vec<u64> {
        (0..count)
            .map(|at| (0..n).map(|from| element(from, to, at)).sum())
            .collect()
    };
    let mut memory: Vec<Outcome> = (0..n)
        .map(|me| {
            let nothing = vec![9; n * count];
            let (source, wanted) = match coll {
                FI_BROADCAST if me == root => (blocks(0, root), nothing),
                FI_BROADCAST => (blocks(0, root), nothing),
                FI_ALLTOALL => (row(me), column(me)),
                FI_ALLREDUCE => (blocks(0, me), sum(0)),
                FI_ALLGATHER => (blocks(0, me), column(0)),
                FI_REDUCE_SCATTER => (row(me), sum(me)),
                FI_REDUCE if me == root => (blocks(0, me), sum(0)),
                FI_SCATTER if me == root => (row(me), blocks(me, root)),
                FI_SCATTER => (vec![], blocks(me, root)),
                FI_GATHER if me == root => (blocks(0, me), column(0)),
                FI_BARRIER => (vec![], nothing),
                _ => (blocks(0, me), nothing),
            };
            (source, wanted)
        })
        .collect();
    let mut outcomes: Vec<Outcome> = memory
        .iter()
        .map(|(_, wanted)| (vec![9u64; n * count], wanted.clone()))
        .collect();
    for (me, mc) in group.iter().enumerate() {
        let (source, result) = (&mut memory[me].0, &mut outcomes[me].0);
        let root = (coll != FI_BARRIER).then_some(root as u64);
        let mut it = Buffers::new(source, result, count);
        if coll == FI_BROADCAST && root != Some(me as u64) {
            // The only buffer is that of the result.
            source.fill(0);
        }
        if coll == FI_SCATTER && root != Some(me as u64) {
            it.source = null_mut();
        }
        let code = call(&team.sides[me], mc, coll, it, root, (FI_UINT64, FI_SUM));
        assert_eq!(code, 0);
    }
    team.all_done();
    for (me, outcome) in outcomes.iter_mut().enumerate() {
        if coll == FI_BROADCAST {
            *outcome = (memory[me].0.clone(), blocks(0, root));
        }
        // Nothing past the result was touched.
        let rest = outcome.0.split_off(outcome.1.len());
        assert!(rest.iter().all(|&element| element == 9));
    }
    outcomes
}

/// Short parts travel in messages; long ones are read.
#[test]
fn every_operation_gives_every_member_its_result() {
    for n in 1..=5 {
        let team = Team::open(n, &wish());
        let group = team.join_all();
        for coll in FI_BARRIER..=FI_GATHER {
            for count in [0, 1, 3, 1200, 20_000] {
                for (me, (there_is, wanted)) in run(&team, &group, coll, count).iter().enumerate() {
                    assert!(
                        there_is == wanted,
                        "operation {coll} of {count} at {me} of {n}"
                    );
                }
            }
        }
        group.into_iter().for_each(Mc::close);
        team.close();
    }
}

/// Several operations may be in progress, in one group and in groups that share members.
#[test]
fn concurrent_operations_do_not_mix() {
    let team = Team::open(4, &wish());
    let (all, odd, again) = (team.join_all(), team.join(&[3, 1]), team.join_all());
    let mut sums = vec![[0u64; 40]; 4];
    let mut ones: Vec<[u64; 40]> = (0..4).map(|me| [me as u64; 40]).collect();
    let one = (FI_UINT64, FI_SUM);
    let mut begin = |me: usize, mc: &Mc, at: usize| {
        let it = Buffers::new(&mut ones[me][at..at + 1], &mut sums[me][at..at + 1], 1);
        assert_eq!(call(&team.sides[me], mc, FI_ALLREDUCE, it, None, one), 0);
    };
    for me in 0..4 {
        for at in 0..10 {
            begin(me, &all[me], at);
            // Each member has its own order.
            begin(me, &again[me], 10 + at);
        }
    }
    for (place, me) in [(0, 3), (1, 1)] {
        for at in 20..30 {
            begin(me, &odd[place], at);
        }
    }
    for (me, sums) in sums.iter().enumerate() {
        let operations = if me % 2 == 1 { 30 } else { 20 };
        for _ in 0..operations {
            assert_eq!(team.done(me), Ok(7));
        }
        assert_eq!(sums[..20], [6; 20]);
        let of_odd = if me % 2 == 1 { 4 } else { 0 };
        assert_eq!(sums[20..30], [of_odd; 10]);
    }
    for mc in all.into_iter().chain(odd).chain(again) {
        mc.close();
    }
}

/// No message of a collective operation matches a receive, whatever the receive accepts.
#[test]
fn collective_messages_match_no_receive_of_the_program() {
    let team = Team::open(2, &wish());
    let group = team.join_all();
    let side = &team.sides[1];
    let (mut plain, mut tagged) = ([0u8; 64], [0u8; 64]);
    // SAFETY: the handles are live; the buffers stay valid until the messages arrive.
    unsafe {
        let (recv, trecv) = ((*(*side.ep).msg).recv, (*(*side.ep).tagged).recv);
        let (plain, tagged) = (plain.as_mut_ptr().cast(), tagged.as_mut_ptr().cast());
        let (any, none) = (FI_ADDR_UNSPEC, null_mut());
        assert_eq!(recv(side.ep, plain, 64, none, any, CONTEXT), 0);
        let context = 8 as *mut c_void;
        assert_eq!(
            trecv(side.ep, tagged, 64, none, any, 0, u64::MAX, context),
            0
        );
    }
    let outcomes = run(&team, &group, FI_ALLTOALL, 4);
    assert!(outcomes.iter().all(|(there_is, wanted)| there_is == wanted));
    let sender = &team.sides[0];
    // SAFETY: the handles are live; the bytes are copied.
    unsafe {
        let (inject, tinject) = ((*(*sender.ep).msg).inject, (*(*sender.ep).tagged).inject);
        let bytes: *const c_void = [5u8; 8].as_ptr().cast();
        assert_eq!(again(|| inject(sender.ep, bytes, 8, 1)), 0);
        assert_eq!(again(|| tinject(sender.ep, bytes, 8, 1, 77)), 0);
    }
    let contexts = [side.completion(&[sender]), side.completion(&[sender])]
        .map(|entry| entry.unwrap().op_context as usize);
    assert_eq!(contexts, [7, 8]);
    assert_eq!(
        (plain[..8].to_vec(), tagged[..8].to_vec()),
        (vec![5; 8], vec![5; 8])
    );
    group.into_iter().for_each(Mc::close);
}

/// Exactly the reductions that `fi_query_collective` reports are supported.
#[test]
fn collective_reductions_are_those_that_atomics_support() {
    let team = Team::open(3, &wish());
    let group = team.join_all();
    let side = &team.sides[0];
    let mut supported = 0;
    for datatype in FI_INT8..=FI_UINT128 {
        for op in FI_MIN..=FI_MSWAP {
            let mut attr = CollectiveAttr {
                op,
                datatype,
                ..CollectiveAttr::default()
            };
            let mut atomic = AtomicAttr::default();
            // SAFETY: the handles are live, and the buffer is our own.
            let (code, atomic_code) = unsafe {
                let ops = &*(*side.domain).ops;
                (
                    (ops.query_collective)(side.domain, FI_ALLREDUCE, &mut attr, 0),
                    (ops.query_atomic)(side.domain, datatype, op, &mut atomic, 0),
                )
            };
            let reduces = op <= FI_BXOR;
            let wanted = if reduces {
                atomic_code
            } else {
                -libc::EOPNOTSUPP
            };
            assert_eq!(code, wanted, "{datatype} {op}");
            let mut bytes = [[0u8; 64], [0u8; 64], [0u8; 64]];
            let mut results = bytes;
            if code != 0 {
                let it = Buffers::new(&mut bytes[0], &mut results[0], 1);
                let refused = call(side, &group[0], FI_ALLREDUCE, it, None, (datatype, op));
                assert_eq!(refused, -libc::EOPNOTSUPP);
                continue;
            }
            assert_eq!(attr.datatype_attr.size, atomic.size);
            assert!(attr.datatype_attr.count > 1000 && attr.max_members >= 3);
            supported += 1;
            for me in 0..3 {
                bytes[me][..8].copy_from_slice(&(3u64 << me).to_ne_bytes());
                let it = Buffers::new(&mut bytes[me], &mut results[me], 1);
                let code = call(
                    &team.sides[me],
                    &group[me],
                    FI_ALLREDUCE,
                    it,
                    None,
                    (datatype, op),
                );
                assert_eq!(code, 0);
            }
            team.all_done();
            assert_eq!(results[0], results[1]);
            assert_eq!(results[0], results[2]);
            let value = u64::from_ne_bytes(results[0][..8].try_into().unwrap());
            let of_three = match op {
                FI_MIN => 3,
                FI_MAX => 12,
                FI_SUM => 21,
                FI_PROD => (3 * 6 * 12) & 0xff,
                FI_BOR => 15,
                FI_BAND => 0,
                FI_BXOR => 3 ^ 6 ^ 12,
                // With three true values, `or`, `and` and `xor` are all true.
                _ => 1,
            };
            if datatype == FI_UINT8 {
                assert_eq!(value, of_three, "operation {op}");
            }
        }
    }
    // There are ten operations on each of ten integer types, seven on the real ones, and five on the complex ones.
    assert!(supported >= 10 * 10, "{supported}");
    group.into_iter().for_each(Mc::close);
}

/// `fi_collective` with lists of buffers.
#[test]
fn lists_of_buffers_are_concatenated() {
    let team = Team::open(3, &wish());
    let group = team.join_all();
    let mut sources: Vec<Vec<u32>> = (0..3u32)
        .map(|me| (0..6).map(|at| me * 10 + at).collect())
        .collect();
    let mut results = vec![vec![0u32; 6]; 3];
    for me in 0..3 {
        let (source, result) = (sources[me].as_mut_ptr(), results[me].as_mut_ptr());
        let ioc = |at: *mut u32, skip: usize, count| Ioc {
            addr: at.wrapping_add(skip).cast(),
            count,
        };
        let segments = [ioc(source, 0, 1), ioc(source, 1, 5)];
        let mut into = [ioc(result, 4, 2), ioc(result, 0, 4)];
        let it = MsgCollective {
            msg_iov: segments.as_ptr(),
            desc: null_mut(),
            iov_count: 2,
            coll_addr: group[me].address(),
            root_addr: FI_ADDR_NOTAVAIL,
            coll: FI_ALLTOALL,
            datatype: FI_UINT32,
            op: FI_NOOP,
            context: CONTEXT,
        };
        let ep = team.sides[me].ep;
        // SAFETY: a live handle, and lists of these lengths.
        let mut msg = |count| unsafe {
            let (call, into) = ((*(*ep).collective).msg, into.as_mut_ptr());
            again(|| call(ep, &it, into, null_mut(), count, FI_COMPLETION))
        };
        let too_short = msg(1);
        assert_eq!((too_short, msg(2)), (-(libc::EINVAL as isize), 0));
    }
    team.all_done();
    for (me, result) in results.iter().enumerate() {
        let blocks: Vec<u32> = (0..3u32)
            .flat_map(|from| [from * 10 + 2 * me as u32, from * 10 + 2 * me as u32 + 1])
            .collect();
        assert_eq!(result[..4], blocks[2..]);
        assert_eq!(result[4..], blocks[..2]);
    }
    group.into_iter().for_each(Mc::close);
}

/// With automatic progress no thread has to poll a queue.
#[test]
fn with_automatic_progress_an_operation_completes_by_itself() {
    let team = Team::open(
        3,
        &Wish {
            auto_progress: true,
            ..wish()
        },
    );
    let group = team.join_all();
    for (side, mc) in team.sides.iter().zip(&group) {
        assert_eq!(barrier(side, mc), 0);
    }
    for side in &team.sides {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(entry) = poll(side.cq) {
                assert_eq!(entry.unwrap().op_context, CONTEXT);
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(started.elapsed() < PATIENCE);
    }
    group.into_iter().for_each(Mc::close);
    team.close();
}
