//! Operations that cannot complete do not make a member wait forever.

use super::*;

fn sum(side: &Side, mc: &Mc, words: &mut [u64]) -> c_int {
    let half = words.len() / 2;
    let (source, result) = words.split_at_mut(half);
    let it = Buffers::new(source, result, half);
    call(side, mc, FI_ALLREDUCE, it, None, (FI_UINT64, FI_SUM))
}

/// Members that wait for one that has ended, directly or through others, get an error, and so do later operations.
#[test]
fn closing_a_members_endpoint_fails_operations_of_the_other_members() {
    for (n, len) in [(2, 2), (4, 2), (4, 8192), (5, 2)] {
        for gone in [0, n - 1] {
            let team = Team::open(n, &wish());
            let group = team.join_all();
            let mut words = vec![vec![1u64; len]; n];
            for me in 0..n {
                if me != gone {
                    assert_eq!(sum(&team.sides[me], &group[me], &mut words[me]), 0);
                }
            }
            team.progress();
            assert_eq!(close(team.sides[gone].ep.cast()), 0);
            for me in (0..n).filter(|&me| me != gone) {
                // A member that never connected to the lost one finds no peer.
                let reasons = [libc::ECONNRESET, libc::ECONNREFUSED];
                let ended = team.done(me).unwrap_err();
                assert!(
                    reasons.contains(&ended),
                    "{ended}: {me} of {n} without {gone}"
                );
                assert_eq!(barrier(&team.sides[me], &group[me]), -ended);
            }
            for mc in group {
                mc.close();
            }
        }
    }
}

/// One member never joins because it ended before.
#[test]
fn joining_fails_if_a_member_has_closed_its_endpoint() {
    let team = Team::open(4, &wish());
    assert_eq!(close(team.sides[3].ep.cast()), 0);
    let members = [0, 1, 2, 3];
    let started: Vec<Mc> = (0..3).map(|at| team.start(at, &members)).collect();
    for (at, mc) in started.iter().enumerate() {
        let failed = team.event(at).unwrap_err();
        assert_eq!(failed.fid, mc.0.cast());
        assert_eq!(failed.context as usize, 100 + at);
        let refused = [libc::ECONNREFUSED, libc::ECONNRESET].contains(&failed.err);
        assert!(refused, "{}", failed.err);
    }
    started.into_iter().for_each(Mc::close);
    // The other members can form a group without the one that has ended.
    let group = team.join(&[0, 1, 2]);
    for (side, mc) in team.sides.iter().zip(&group) {
        assert_eq!(barrier(side, mc), 0);
    }
    for at in 0..3 {
        assert_eq!(team.done(at), Ok(7));
    }
    group.into_iter().for_each(Mc::close);
}

/// A member that leaves a group ends its operations there, and the others get an error.
#[test]
fn leaving_a_group_ends_its_operations() {
    let team = Team::open(3, &wish());
    let (group, other) = (team.join_all(), team.join_all());
    let mut words = vec![vec![1u64; 4096]; 2];
    for me in 0..2 {
        assert_eq!(sum(&team.sides[me], &group[me], &mut words[me]), 0);
    }
    group[0].close();
    assert_eq!(team.done(0), Err(libc::ECANCELED));
    assert_eq!(team.done(1), Err(libc::ECANCELED));
    // The third member has called nothing, and no longer can.
    let started = Instant::now();
    while barrier(&team.sides[2], &group[2]) == 0 {
        assert_eq!(team.done(2), Err(libc::ECANCELED));
        assert!(started.elapsed() < PATIENCE);
    }
    group[1].close();
    group[2].close();
    for (side, mc) in team.sides.iter().zip(&other) {
        assert_eq!(barrier(side, mc), 0);
    }
    team.all_done();
    // Members do not wait for one that left without operations in progress.
    other[2].close();
    for (side, mc) in team.sides.iter().zip(&other).take(2) {
        assert_eq!(barrier(side, mc), 0);
    }
    for me in 0..2 {
        let error = team.done(me).unwrap_err();
        assert!(
            [libc::ECONNRESET, libc::ESHUTDOWN].contains(&error),
            "{error}"
        );
    }
    other[0].close();
    other[1].close();
    team.close();
}

/// If members call different operations, all of them end with an error, and no byte of a result is written.
#[test]
fn members_must_call_the_same_operation() {
    for (coll, count) in [(FI_ALLREDUCE, 2), (FI_REDUCE_SCATTER, 1), (FI_BARRIER, 1)] {
        let team = Team::open(3, &wish());
        let group = team.join_all();
        let mut words = vec![vec![1u64; 8]; 3];
        let mut results = vec![vec![0u64; 8]; 3];
        let mut codes = [0; 3];
        for me in 0..3 {
            let (coll, count) = if me == 1 {
                (coll, count)
            } else {
                (FI_ALLREDUCE, 1)
            };
            let it = Buffers::new(&mut words[me], &mut results[me], count);
            let (side, reduction) = (&team.sides[me], (FI_UINT64, FI_SUM));
            codes[me] = call(side, &group[me], coll, it, None, reduction);
        }
        // The last member may get the error of the others before its own call.
        assert_eq!(codes[..2], [0; 2]);
        assert!([0, -libc::EINVAL].contains(&codes[2]), "{}", codes[2]);
        for me in (0..3).filter(|&me| codes[me] == 0) {
            assert_eq!(team.done(me), Err(libc::EINVAL), "{coll} at {me}");
        }
        assert_eq!(results, vec![vec![0u64; 8]; 3]);
        group.into_iter().for_each(Mc::close);
        team.close();
    }
}

/// Closing an endpoint ends its groups; their handles can be closed afterwards.
#[test]
fn closing_an_endpoint_ends_its_groups() {
    let team = Team::open(2, &wish());
    let group = team.join_all();
    let mut words = vec![1u64; 20_000];
    assert_eq!(sum(&team.sides[0], &group[0], &mut words), 0);
    for side in &team.sides {
        assert_eq!(close(side.ep.cast()), 0);
    }
    group.into_iter().for_each(Mc::close);
}

/// More operations than an endpoint accepts at a time must wait.
#[test]
fn collective_operations_in_progress_are_bounded() {
    let team = Team::open(2, &wish());
    let group = team.join_all();
    let (side, mc) = (&team.sides[0], &group[0]);
    // SAFETY: the handle is live.
    let begin = |side: &Side, mc: &Mc| unsafe {
        ((*(*side.ep).collective).barrier)(side.ep, mc.address(), CONTEXT)
    };
    let mut begun = 0;
    let code = loop {
        match begin(side, mc) {
            0 => begun += 1,
            code => break code,
        }
        assert!(begun < 100_000);
    };
    assert_eq!(code, -(libc::EAGAIN as isize));
    for _ in 0..begun {
        assert_eq!(again(|| begin(&team.sides[1], &group[1])), 0);
        assert_eq!((team.done(1), team.done(0)), (Ok(7), Ok(7)));
    }
    group.into_iter().for_each(Mc::close);
}
