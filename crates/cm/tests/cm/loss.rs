//! Bad networks. Both sides always end in the same state, because a retransmitted message arrives eventually.

use crate::world::{A, B, Conditions, Policy, SECOND, World};
use proptest::prelude::*;
use rkey_cm::State;
use rkey_cm::manager::Event;
use std::collections::BTreeMap;

/// B's connections, by the number that A's program sent with each.
fn partners(world: &World) -> BTreeMap<u8, Vec<rkey_cm::ConnectionId>> {
    let mut partners: BTreeMap<u8, Vec<_>> = BTreeMap::new();
    for event in &world.hosts[B].events {
        if let Event::ConnectRequest(request) = event {
            let number = request.data.as_bytes()[0];
            partners.entry(number).or_default().push(request.connection);
        }
    }
    partners
}

fn conditions() -> impl Strategy<Value = Conditions> {
    (0..60_u32, 0..40_u32, 0..10 * SECOND).prop_map(|(lost, doubled, delay)| Conditions {
        lost,
        doubled,
        delay,
        // Two thirds of the requests and two thirds of their answers may be lost: of 16 requests, at least one gets
        // its answer.
        most_lost: 2,
    })
}

proptest! {
    /// While no program ends anything, each connection of A is established on both sides.
    #[test]
    fn connections_are_established_on_both_sides_or_on_neither(
        conditions in conditions(),
        seed: u64,
        gaps in proptest::collection::vec(0..4 * SECOND, 1..12),
    ) {
        let mut world = World::new();
        world.seed(seed);
        world.conditions = conditions;
        world.listen(B, 64);
        let mut asked = Vec::new();
        for (number, gap) in gaps.into_iter().enumerate() {
            asked.push(world.connect(A, &[number as u8]));
            world.run(gap);
        }
        world.run_to_the_end();
        let partners = partners(&world);
        for (number, &id) in asked.iter().enumerate() {
            prop_assert_eq!(world.state(A, id), Some(State::Established));
            let ends = &partners[&(number as u8)];
            let states: Vec<_> = ends.iter().filter_map(|&id| world.state(B, id)).collect();
            prop_assert_eq!(states, vec![State::Established]);
        }
    }

    /// Programs refuse, disconnect and close at any time, on both sides. Afterwards neither side has anything left.
    #[test]
    fn nothing_is_left_of_connections_that_either_side_ends(
        conditions in conditions(),
        seed: u64,
        script in proptest::collection::vec((0..6_u8, any::<u8>(), 0..3 * SECOND), 1..40),
    ) {
        let mut world = World::new();
        world.seed(seed);
        world.conditions = conditions;
        world.listen(B, 64);
        let mut asked = Vec::new();
        for (what, which, gap) in script {
            let policies = [Policy::Accept, Policy::Reject, Policy::Keep];
            let passive: Vec<_> = partners(&world).into_values().flatten().collect();
            let a = asked.get(usize::from(which) % asked.len().max(1)).copied();
            let b = passive.get(usize::from(which) % passive.len().max(1)).copied();
            let now = world.now;
            // Late calls fail, which is part of the test.
            match (what, a, b) {
                (0, ..) => asked.push(world.connect(A, &[asked.len() as u8])),
                (1, ..) => world.hosts[B].policy = policies[usize::from(which) % 3],
                (2, Some(a), _) => { let _ = world.hosts[A].manager.disconnect(now, a); }
                (3, _, Some(b)) => { let _ = world.hosts[B].manager.disconnect(now, b); }
                (4, Some(a), _) => { let _ = world.hosts[A].manager.close(now, a); }
                (5, _, Some(b)) => { let _ = world.hosts[B].manager.close(now, b); }
                _ => {}
            }
            world.run(gap);
        }
        // One side ends the remaining connections; the other must notice.
        let passive: Vec<_> = partners(&world).into_values().flatten().collect();
        for id in passive {
            let _ = world.hosts[B].manager.close(world.now, id);
        }
        world.hosts[B].policy = Policy::Reject;
        world.run_to_the_end();
        let left: Vec<_> = world.hosts[A].manager.connections().collect();
        prop_assert_eq!(left, vec![]);
        prop_assert_eq!(world.hosts[A].manager.remembered(), 0);
        prop_assert_eq!(world.hosts[B].manager.remembered(), 1);
    }
}
