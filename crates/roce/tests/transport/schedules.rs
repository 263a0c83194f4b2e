//! Random schedules: both sides post random requests over a bad network. Each request is executed once and in order, or ends with
//! the status that the specification demands; then all later requests fail, too.
//!
//! `seeds.rs` describes how to run more schedules, or to repeat one.

use crate::model::{MAX_LEN, Model};
use crate::network::{Conditions, LATENCY, Random};
use crate::program::EXPOSED;
use crate::seeds::{Named, count, seeds};
use crate::world::{Action, World, configs};
use rkey_roce::packet::{Mtu, Psn, RnrTimer};
use rkey_roce::transport::{Config, ConnectionType, Event, Status};

fn random_config(random: &mut Random, connection: ConnectionType) -> [Config; 2] {
    let psn = |random: &mut Random| match random.below(3) {
        0 => Psn::new(0xff_ffff - random.below(50) as u32),
        _ => Psn::new(random.next() as u32),
    };
    let (a, b) = (psn(random), psn(random));
    let mut configs = configs(a, b);
    let mtu = Mtu::ALL[random.below(5) as usize];
    let longest_window = random.below(200) as u32;
    let reads = 1 + random.below(8) as u8;
    for config in &mut configs {
        config.connection = connection;
        config.mtu = mtu;
        config.window = 1 + random.below(64) as u32;
        config.longest_window = longest_window;
        (config.max_reads_in, config.max_reads_out) = (reads, reads);
        // About 1 ms.
        config.timeout = 8;
        config.min_rnr_timer = RnrTimer::new(1 + random.below(14) as u8).unwrap();
    }
    configs
}

/// A bad network that still delivers at least one of a few copies of each packet within the timeout.
fn bad_conditions(random: &mut Random) -> Conditions {
    Conditions {
        transit: LATENCY,
        lost: random.below(30),
        doubled: random.below(20),
        damaged: random.below(10),
        late: random.below(60),
        delay: random.below(300_000),
        most_lost: 1,
    }
}

/// Every second network has long delays, in which windows grow; their queue pairs have timeouts to match.
fn stretch(random: &mut Random, configs: &mut [Config; 2], conditions: &mut Conditions) {
    if random.happens(50) {
        return;
    }
    conditions.transit = 1_000_000 * (1 + random.below(60));
    conditions.delay = random.below(conditions.transit / 2);
    for config in configs {
        // About 134 ms.
        config.timeout = 15;
    }
}

/// Plans random requests of both sides, with receives for them; returns their expected effects.
fn plan(world: &mut World, random: &mut Random, reliable: bool) -> [Model; 2] {
    [0, 1].map(|side| {
        let mut model = Model::new();
        for _ in 0..random.below(30) {
            model.add(random, reliable);
        }
        let mut time = world.now;
        for (request, (memory, _)) in model.requests.iter().zip(&model.memory) {
            time += random.below(40_000) * random.below(2);
            let requests = &mut world.sides[side].program.requests;
            requests.insert(request.id, memory.clone());
            world.plan(side, time, Action::Post(*request));
        }
        let mut time = world.now;
        for id in 0..model.messages.len() as u64 {
            time += random.below(100_000) * random.below(2);
            let buffer = MAX_LEN + random.below(100) as usize;
            world.plan(1 - side, time, Action::Receive(id, buffer));
        }
        model
    })
}

/// Compares the effects of a side's requests with the expected ones. Returns how many succeeded.
fn verify(world: &World, side: usize, model: &Model) -> usize {
    let (own, other) = (&world.sides[side], &world.sides[1 - side]);
    let ids: Vec<u64> = own.completed.iter().map(|(id, _)| *id).collect();
    assert!(
        ids.iter().copied().eq(0..model.requests.len() as u64),
        "{ids:?}"
    );
    let statuses = world.statuses(side);
    let done = statuses
        .iter()
        .take_while(|status| **status == Status::Success);
    let done = done.count();
    for (id, (_, after)) in model.memory[..done].iter().enumerate() {
        // A request without bytes succeeds even without memory.
        let memory = own.program.requests.get(&(id as u64));
        let same = memory.map_or(after.is_empty(), |memory| memory == after);
        assert!(same, "the memory of request {id} is wrong");
    }
    assert!(
        model.explains(&other.program.exposed, done),
        "the exposed memory is wrong after {done} requests"
    );
    assert_eq!(other.program.exposed.len(), EXPOSED);
    let messages = model.messages.iter().zip(&other.received);
    for ((_, expected), (received, bytes)) in messages {
        let same = expected.bytes == *bytes
            && expected.length == received.bytes
            && expected.is_write == received.is_write
            && expected.immediate == received.immediate
            && expected.invalidated == received.invalidated
            && expected.solicited == received.solicited;
        assert!(same, "{expected:?} {received:?}");
    }
    let received = other.received.len();
    let due = model.messages.iter().take_while(|(index, _)| *index < done);
    assert!((due.count()..=model.messages.len()).contains(&received));
    let invalidated = &other.program.invalidated;
    assert!(model.invalidated.starts_with(invalidated));
    done
}

/// Which sides have agreed to selective retransmission.
type Agreement = fn(u64) -> [bool; 2];

const NEITHER: Agreement = |_| [false, false];
const BOTH: Agreement = |_| [true, true];
const ONE: Agreement = |seed| [seed & 1 == 0, seed & 1 == 1];

fn agree(configs: &mut [Config; 2], sides: [bool; 2]) {
    for (config, selective) in configs.iter_mut().zip(sides) {
        config.selective = selective;
    }
}

#[test]
fn every_request_is_executed_once_and_in_order() {
    execute_all(NEITHER);
}

#[test]
fn every_request_is_executed_once_and_in_order_with_selective_retransmission() {
    execute_all(BOTH);
}

#[test]
fn every_request_is_executed_once_and_in_order_if_one_side_has_agreed() {
    execute_all(ONE);
}

fn execute_all(agreement: Agreement) {
    let mut attached = 0;
    for seed in seeds() {
        let _named = Named(seed);
        let mut random = Random::new(seed);
        let mut configs = random_config(&mut random, ConnectionType::Reliable);
        agree(&mut configs, agreement(seed));
        let mut conditions = bad_conditions(&mut random);
        stretch(&mut random, &mut configs, &mut conditions);
        let mut world = World::new(&configs, random.next());
        world.network.conditions = conditions;
        // In every second schedule, acknowledgements are attached to requests.
        world.attached = (seed & 2 == 0).then_some(0);
        let models = plan(&mut world, &mut random, true);
        world.run();
        let may_attach = agreement(seed) == [true, true];
        attached += world.attached.unwrap_or_default();
        assert!(may_attach || attached == 0);
        for (side, model) in models.iter().enumerate() {
            let done = verify(&world, side, model);
            assert_eq!(done, model.requests.len(), "{:?}", world.statuses(side));
            let other = &world.sides[1 - side];
            assert_eq!(other.received.len(), model.messages.len());
            assert_eq!(other.program.invalidated, model.invalidated);
            assert!(other.program.exposed == *model.states.last().unwrap());
            assert_eq!(
                (&other.failures[..], &other.failed_receives[..]),
                (&[][..], &[][..])
            );
        }
    }
    // A few schedules may have no answer.
    assert!(attached > 0 || agreement(0) != [true, true] || count() < 100);
}

/// The network may fail permanently, memory may become inaccessible, and receives may be missing. Requests are executed once and
/// in order; the status of the first one that was not executed says why.
#[test]
fn requests_fail_with_the_status_of_the_specification() {
    fail_some(NEITHER);
}

#[test]
fn requests_fail_with_the_same_status_with_selective_retransmission() {
    fail_some(BOTH);
}

#[test]
fn requests_fail_with_the_same_status_if_one_side_has_agreed() {
    fail_some(ONE);
}

fn fail_some(agreement: Agreement) {
    let mut seen = std::collections::BTreeMap::new();
    for seed in seeds() {
        let _named = Named(seed);
        let mut random = Random::new(seed);
        let mut configs = random_config(&mut random, ConnectionType::Reliable);
        agree(&mut configs, agreement(seed));
        for config in &mut configs {
            config.retry_count = random.below(3) as u8;
            config.rnr_retry = random.below(3) as u8;
        }
        let mut storm = Conditions {
            lost: random.below(30),
            most_lost: 100,
            ..bad_conditions(&mut random)
        };
        stretch(&mut random, &mut configs, &mut storm);
        let mut world = World::new(&configs, random.next());
        world.network.conditions = storm;
        let models = plan(&mut world, &mut random, true);
        for side in &mut world.sides {
            match random.below(6) {
                0 => {
                    side.program.rights.remove(random.below(3) as usize);
                }
                1 => {
                    side.program.requests.remove(&random.below(30));
                }
                _ => {}
            }
        }
        world.run();
        for (side, model) in models.iter().enumerate() {
            let done = verify(&world, side, model);
            let statuses = world.statuses(side);
            let failed = statuses[done..].first().copied();
            *seen.entry(format!("{failed:?}")).or_insert(0) += 1;
            let rest = statuses.iter().skip(done + 1);
            assert!(
                rest.copied().all(|status| status == Status::Flushed),
                "{statuses:?}"
            );
            let failures = &world.sides[side].failures;
            match failed {
                None => {}
                Some(Status::Flushed) => {
                    assert!(
                        matches!(failures[..], [Event::Refused(_), ..]),
                        "{failures:?}"
                    );
                }
                Some(
                    Status::RetryExceeded
                    | Status::RnrRetryExceeded
                    | Status::RemoteAccess
                    | Status::LocalProtection,
                ) => assert!(failures.contains(&Event::Failed), "{failures:?}"),
                Some(other) => panic!("{other:?} {statuses:?}"),
            }
        }
    }
    println!("{seen:?}");
    if count() >= 1500 {
        for status in [
            "RetryExceeded",
            "RnrRetryExceeded",
            "RemoteAccess",
            "LocalProtection",
        ] {
            assert!(
                seen.contains_key(&format!("Some({status})")),
                "{status}: {seen:?}"
            );
        }
    }
}

/// A message arrives whole, at most once and in order, or not at all.
#[test]
fn messages_of_unreliable_connections_arrive_whole() {
    for seed in seeds() {
        let _named = Named(seed);
        let mut random = Random::new(seed);
        let configs = random_config(&mut random, ConnectionType::Unreliable);
        let mut world = World::new(&configs, random.next());
        world.network.conditions = bad_conditions(&mut random);
        let models = plan(&mut world, &mut random, false);
        world.run();
        for (side, model) in models.iter().enumerate() {
            let statuses = world.statuses(side);
            assert_eq!(statuses, vec![Status::Success; model.requests.len()]);
            let other = &world.sides[1 - side];
            assert_eq!(
                (&other.failures[..], &other.failed_receives[..]),
                (&[][..], &[][..])
            );
            let mut expected = model.messages.iter();
            for (received, bytes) in &other.received {
                // Messages before this one may be missing.
                let found = expected.any(|(_, message)| {
                    message.bytes == *bytes
                        && message.length == received.bytes
                        && message.immediate == received.immediate
                        && message.solicited == received.solicited
                });
                assert!(found, "{received:?}");
            }
        }
    }
}
