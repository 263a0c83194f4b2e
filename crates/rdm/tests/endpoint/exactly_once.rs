//! Whatever happens, in any order, messages are received exactly once, in the order in which they were sent, and leave
//! nothing behind. When peers exit, every operation still ends.

use crate::host::Told;
use crate::world::{From, How, World, content};
use proptest::prelude::*;
use rkey_rdm::credit;
use rkey_rdm::endpoint::Service;
use rkey_rdm::error::Error;
use std::collections::{HashMap, HashSet};

const NODES: usize = 3;
const LENGTHS: [usize; 8] = [0, 1, 176, 177, 400, 500, 8192, 20_000];
const ROOM: usize = 20_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        from: usize,
        to: usize,
        len: usize,
        how: How,
    },
    Receive {
        node: usize,
        from: From,
    },
    /// How many steps a run has.
    Acts {
        choice: usize,
        count: usize,
    },
    Tick,
    /// Whether the program reads its completions.
    Full {
        node: usize,
        full: bool,
    },
    /// Whether peers keep memory in use.
    Held {
        node: usize,
        held: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let how =
        (0..3u64, any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(tag, inject, confirm)| {
            How {
                tag: (tag > 0).then_some(tag),
                inject,
                confirm,
            }
        });
    let send = (
        0..NODES,
        1..NODES,
        prop::sample::select(LENGTHS.to_vec()),
        how,
    )
        .prop_map(|(from, ahead, len, how)| Step::Send {
            from,
            to: (from + ahead) % NODES,
            len,
            how,
        });
    let receive = (0..NODES, prop::option::of(0..NODES), 0..3u64, any::<bool>()).prop_map(
        |(node, source, tag, any_tag)| {
            let from = From {
                node: source,
                tag: (tag > 0).then_some(tag),
                any_tag,
            };
            Step::Receive { node, from }
        },
    );
    let acts =
        (any::<usize>(), 1..20usize).prop_map(|(choice, count)| Step::Acts { choice, count });
    let full = (0..NODES, any::<bool>()).prop_map(|(node, full)| Step::Full { node, full });
    let held = (0..NODES, any::<bool>()).prop_map(|(node, held)| Step::Held { node, held });
    let step = prop_oneof![
        8 => send,
        6 => receive,
        12 => acts,
        1 => Just(Step::Tick),
        1 => full,
        1 => held,
    ];
    prop::collection::vec(step, 1..250)
}

/// A message that was sent.
struct Sent {
    from: usize,
    to: usize,
    len: usize,
    tag: Option<u64>,
}

#[derive(Default)]
struct Run {
    sent: Vec<Sent>,
    receives: Vec<usize>,
    told: [Vec<Told>; NODES],
}

impl Run {
    fn step(&mut self, world: &mut World, step: Step) {
        match step {
            Step::Send { from, .. } if !world.is_alive(from) => {}
            Step::Send { from, to, len, how } => match world.try_send(from, to, len, how) {
                Ok(id) => {
                    assert_eq!(id, self.sent.len());
                    let tag = how.tag;
                    self.sent.push(Sent { from, to, len, tag });
                }
                Err(Error::Again | Error::NotConnected | Error::ConnectionReset) => {}
                Err(error) => panic!("{error:?}"),
            },
            Step::Receive { node, .. } if !world.is_alive(node) => {}
            Step::Receive { node, from } => {
                let id = world.receive(node, from, ROOM);
                assert_eq!(id, self.receives.len());
                self.receives.push(node);
            }
            Step::Acts { choice, count } => {
                for index in 0..count {
                    world.act(choice.wrapping_mul(index + 1) >> 3);
                }
            }
            Step::Tick => world.tick(),
            Step::Full { node, full } => world.nodes[node].host.full.set(full),
            Step::Held { node, held } => world.nodes[node].host.held.set(held),
        }
    }

    /// Runs everything to its end: posts receives for the remaining messages.
    fn finish(&mut self, world: &mut World) {
        for node in &world.nodes {
            node.host.full.set(false);
            node.host.held.set(false);
        }
        world.settle();
        for node in 0..NODES {
            for tag in [None, Some(0)] {
                let from = From {
                    tag,
                    any_tag: true,
                    node: None,
                };
                while world.is_alive(node)
                    && world.nodes[node]
                        .ep
                        .receives()
                        .matching(tag.is_some())
                        .unexpected()
                        > 0
                {
                    world.receive(node, from, ROOM);
                    self.receives.push(node);
                }
            }
        }
        world.settle();
        for node in 0..NODES {
            self.told[node] = world.told(node);
        }
    }

    /// Checks what holds whether or not peers have exited.
    fn check(&self, world: &World) {
        let mut received = HashSet::new();
        for (node, told) in self.told.iter().enumerate() {
            for told in told {
                match told {
                    Told::Violation => panic!("an endpoint exceeded its credit"),
                    Told::Received {
                        receive, data, how, ..
                    } => {
                        let message = &self.sent[*data as usize];
                        assert!(received.insert(*data), "a message was received twice");
                        assert_eq!((message.to, self.receives[*receive]), (node, node));
                        if how.error.is_none() {
                            let expected = content(*data as usize, message.len);
                            assert_eq!(how.len, message.len);
                            assert_eq!(world.received(*receive)[..message.len], expected);
                        }
                    }
                    _ => {}
                }
            }
        }
        // Messages with the same sender, receiver and tag arrive in the order in which they were sent.
        for (node, it) in world.nodes.iter().enumerate() {
            let mut last = HashMap::new();
            for &(source, _, data) in &*it.host.matched.borrow() {
                let message = &self.sent[data as usize];
                let before = last.insert((source, message.tag), data);
                assert!(
                    before.is_none_or(|before| before < data),
                    "messages matched out of order"
                );
                assert_eq!(message.to, node);
            }
        }
        for (node, it) in world.nodes.iter().enumerate() {
            if !world.is_alive(node) {
                continue;
            }
            assert_eq!(
                it.ep.outbox().operations(),
                0,
                "an operation is still in flight"
            );
            assert_eq!(
                it.ep.outbox().under_way(),
                0,
                "a request is still in flight"
            );
            assert!(it.ep.is_at_rest(&it.host) && !it.ep.outbox().is_busy());
            let kept = it.ep.receives().matching(false).unexpected()
                + it.ep.receives().matching(true).unexpected();
            assert_eq!(kept, 0, "a message is still unexpected");
        }
    }

    /// A sender's remaining credit and the credit that its receiver counts as used add up to the maximum.
    fn check_credit(world: &World) {
        let open: HashMap<usize, _> = world
            .nodes
            .iter()
            .flat_map(|node| node.ep.connections().iter())
            .filter_map(|it| Some((it.qp?, it)))
            .collect();
        for (qp, connection) in &open {
            // Connected queue pairs have neighbouring numbers.
            let there = open[&(qp ^ 1)];
            let (left, used) = (connection.credit.left(), there.window.used());
            let sum = (left.0 + used.0, left.1 + used.1);
            assert_eq!(sum, (credit::MESSAGES, credit::BYTES));
        }
    }

    /// The results of the sends of living nodes, by message; each has one.
    fn results(&self, world: &World) -> HashMap<usize, Option<Error>> {
        let mut results = HashMap::new();
        for told in self.told.iter().flatten() {
            if let Told::Done(id, error) = told {
                assert!(
                    results.insert(*id, *error).is_none(),
                    "a send completed twice"
                );
            }
        }
        for (id, message) in self.sent.iter().enumerate() {
            let ended = results.contains_key(&id);
            assert!(
                ended || !world.is_alive(message.from),
                "the send of message {id} never ends"
            );
        }
        results
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_is_received_once_and_in_order(
        steps in steps(),
        connected in any::<bool>(),
        lane in any::<bool>(),
    ) {
        let service = match connected {
            true => Service::Connected,
            false => Service::ReliableDatagram,
        };
        let (mut world, mut run) = (World::new(NODES, service), Run::default());
        world.lane = lane;
        for step in steps {
            run.step(&mut world, step);
        }
        run.finish(&mut world);
        run.check(&world);
        let received = run.told.iter().flatten();
        let received = received.filter(|told| matches!(told, Told::Received { .. })).count();
        prop_assert_eq!(received, world.messages());
        prop_assert!(run.results(&world).values().all(Option::is_none));
        prop_assert_eq!(world.net.borrow().exposed(), 0, "a key is still valid");
        Run::check_credit(&world);
    }

    #[test]
    fn the_express_lane_changes_nothing_that_a_program_or_a_peer_sees(
        before in steps(),
        after in steps(),
        connected in any::<bool>(),
        kills in any::<bool>(),
    ) {
        let service = match connected {
            true => Service::Connected,
            false => Service::ReliableDatagram,
        };
        let play = |lane| {
            let (mut world, mut run) = (World::new(NODES, service), Run::default());
            world.lane = lane;
            for step in &before {
                run.step(&mut world, *step);
            }
            if kills && !connected {
                world.kill(2);
            }
            for step in &after {
                run.step(&mut world, *step);
            }
            run.finish(&mut world);
            run.check(&world);
            let bytes: Vec<_> = (0..run.receives.len()).map(|id| world.received(id)).collect();
            let of_nodes = world.nodes.iter().map(|node| {
                let matched = node.host.matched.borrow().clone();
                let credit = node.ep.connections().iter().map(|it| {
                    (it.credit.left(), it.window.used(), it.outstanding)
                });
                (matched, credit.collect::<Vec<_>>())
            });
            (run.told, bytes, of_nodes.collect::<Vec<_>>())
        };
        prop_assert_eq!(play(true), play(false));
    }

    #[test]
    fn every_operation_ends_when_peers_exit(
        before in steps(),
        between in steps(),
        after in steps(),
        two in any::<bool>(),
    ) {
        let (mut world, mut run) = (World::new(NODES, Service::ReliableDatagram), Run::default());
        for step in before {
            run.step(&mut world, step);
        }
        world.kill(2);
        for step in between {
            run.step(&mut world, step);
        }
        if two {
            world.kill(1);
        }
        for step in after {
            run.step(&mut world, step);
        }
        run.finish(&mut world);
        run.check(&world);
        run.results(&world);
        let living = if two { 1 } else { 2 };
        for node in &world.nodes[..living] {
            let lost = node.ep.connections().iter().filter(|it| {
                it.state().is_lost() && !it.state().is_free()
            });
            prop_assert_eq!(lost.count(), 0, "a lost connection keeps its slot");
        }
    }
}
