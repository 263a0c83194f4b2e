//! Address vector sets, and groups that can be joined.

use super::*;

fn range(start: u64, end: u64, stride: u64) -> AvSetAttr {
    AvSetAttr {
        start_addr: start,
        end_addr: end,
        stride,
        ..empty()
    }
}

/// A side with this many numbers, the first of which is its own.
fn side(numbers: u16) -> Side {
    let side = open(&wish());
    side.peer(&side);
    for port in 1..numbers {
        side.insert(&name_at(port));
    }
    side
}

/// The numbers in a set, found by changing copies of it.
fn numbers(side: &Side, set: &Set) -> Vec<u64> {
    (0..20)
        .filter(|&number| {
            let probe = Set::new(side, empty()).unwrap();
            // SAFETY: the handles are live.
            unsafe { (set.ops().set_union)(probe.0, set.0) };
            // Only numbers in the set can be removed.
            // SAFETY: the handle is live.
            unsafe { (set.ops().remove)(probe.0, number) == 0 }
        })
        .collect()
}

#[test]
fn address_sets_are_made_from_ranges_and_combined() {
    let side = side(10);
    let made = |attr| Set::new(&side, attr).map(|set| numbers(&side, &set));
    assert_eq!(made(empty()), Ok(vec![]));
    assert_eq!(made(range(2, 5, 1)), Ok(vec![2, 3, 4, 5]));
    assert_eq!(made(range(1, 9, 3)), Ok(vec![1, 4, 7]));
    assert_eq!(
        made(range(7, u64::MAX - 1, 1)),
        Ok(vec![7, 8, 9]),
        "as far as numbers exist"
    );
    let universe = AvSetAttr {
        flags: FI_UNIVERSE | FI_COLLECTIVE_SETS,
        ..empty()
    };
    assert_eq!(made(universe), Ok((0..10).collect()));
    for wrong in [
        range(5, 2, 1),
        range(2, 5, 0),
        range(0, FI_ADDR_NOTAVAIL, 1),
    ] {
        assert_eq!(made(wrong), Err(-libc::EINVAL));
    }
    assert_eq!(
        made(AvSetAttr {
            flags: 1,
            ..empty()
        }),
        Err(-260)
    );
    let with_key = AvSetAttr {
        comm_key_size: 8,
        ..empty()
    };
    assert_eq!(made(with_key), Err(-libc::ENOSYS));
    let (low, odd) = (
        Set::new(&side, range(0, 4, 1)).unwrap(),
        Set::new(&side, range(1, 9, 2)).unwrap(),
    );
    // SAFETY: the handles are live.
    unsafe {
        let ops = low.ops();
        assert_eq!((ops.intersect)(low.0, odd.0), 0);
        assert_eq!(numbers(&side, &low), [1, 3]);
        assert_eq!((ops.diff)(odd.0, low.0), 0);
        assert_eq!(numbers(&side, &odd), [5, 7, 9]);
        assert_eq!((ops.set_union)(low.0, odd.0), 0);
        assert_eq!(numbers(&side, &low), [1, 3, 5, 7, 9]);
        assert_eq!((ops.set_union)(low.0, low.0), 0);
        assert_eq!((ops.insert)(low.0, 3), -libc::EINVAL, "already in the set");
        assert_eq!((ops.insert)(low.0, 99), -libc::EINVAL, "no such number");
        assert_eq!((ops.remove)(low.0, 3), 0);
        assert_eq!((ops.remove)(low.0, 3), -libc::EINVAL);
        assert_eq!((ops.diff)(low.0, low.0), 0);
        assert_eq!(numbers(&side, &low).len(), 0);
        let other = open(&wish());
        let foreign = Set::new(&other, empty()).unwrap();
        assert_eq!((ops.set_union)(low.0, foreign.0), -libc::EINVAL);
        assert_eq!(
            join(side.ep, &foreign, foreign.address(), 0).unwrap_err(),
            -libc::EINVAL
        );
    }
    assert_eq!(close(side.av.cast()), -libc::EBUSY);
}

#[test]
fn invalid_joins_of_groups_are_refused() {
    let side = side(3);
    let refused = |set: &Set, address| join(side.ep, set, address, 0).unwrap_err();
    let mine = Set::of(&side, &[0]);
    assert_eq!(
        refused(&mine, 5),
        -libc::EINVAL,
        "not the address of a group"
    );
    let others = Set::of(&side, &[1, 2]);
    assert_eq!(
        refused(&others, others.address()),
        -libc::EINVAL,
        "not a member"
    );
    // Our own name is in the set a second time.
    side.peer(&side);
    let twice = Set::of(&side, &[0, 3]);
    assert_eq!(refused(&twice, twice.address()), -libc::EINVAL);
    let addr = CollectiveAddr {
        set: mine.0,
        coll_addr: mine.address(),
    };
    let mut mc = null_mut();
    // SAFETY: live handles, and room for one.
    unsafe {
        let join = (*(*side.ep).cm).join;
        let mut with = |flags| {
            join(
                side.ep,
                (&raw const addr).cast(),
                flags,
                &mut mc,
                null_mut(),
            )
        };
        assert_eq!(with(0), -libc::ENOSYS, "multicast is not supported");
        assert_eq!(with(FI_COLLECTIVE | FI_MORE), -260);
        assert_eq!(with(FI_COLLECTIVE | FI_SEND), -libc::EOPNOTSUPP);
        assert_eq!(with(FI_COLLECTIVE | FI_SEND | FI_RECV), 0);
    }
    assert_eq!(close(mc.cast()), 0);
}

/// A group that the program has arranged exists at once; a subgroup is created with the address of its group.
#[test]
fn a_group_is_joined_at_once_or_as_a_subgroup_of_another() {
    let team = Team::open(3, &wish());
    let all = team.join_all();
    let members = [2, 0];
    let mut group = Vec::new();
    for at in members {
        let side = &team.sides[at];
        let set = Set::of(side, &members);
        // The join completes before any other member has called it.
        let mc = join(side.ep, &set, FI_ADDR_NOTAVAIL, 5).unwrap();
        assert_eq!(team.event(at).unwrap().1.fid, mc.0.cast());
        group.push(mc);
        // The first member does not wait for the other to join.
        assert_eq!(barrier(side, &mc), 0);
    }
    assert_eq!((team.done(0), team.done(2)), (Ok(7), Ok(7)));
    let subgroup: Vec<Mc> = [1, 2]
        .iter()
        .map(|&at| {
            let set = Set::of(&team.sides[at], &[1, 2]);
            join(team.sides[at].ep, &set, all[at].address(), 5).unwrap()
        })
        .collect();
    for (mc, at) in subgroup.iter().zip([1, 2]) {
        assert_eq!(team.event(at).unwrap().1.fid, mc.0.cast());
        assert_eq!(barrier(&team.sides[at], mc), 0);
    }
    assert_eq!((team.done(1), team.done(2)), (Ok(7), Ok(7)));
    for mc in all.into_iter().chain(group).chain(subgroup) {
        mc.close();
    }
    team.close();
}
