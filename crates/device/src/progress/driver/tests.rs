//! A driver without an engine thread: which thread drives after each call, and what a panic does.

use super::*;
use std::sync::Arc;

use rkey_base::process::ForkMark;
use rkey_core::{Limits, Protection, Secrets};
use rkey_engine::{Engine, EngineConfig, LinkId};
use rkey_link::NodeId;
use rkey_link::loopback::Loopback;

use crate::inspect::denials::Denials;
use crate::objects::async_queues::AsyncQueues;
use crate::peers::names::Scope;
use crate::peers::qp_numbers::QpNumbers;
use crate::progress::polling::POLLS_PER_CLOCK;
use crate::progress::reactor::{Reactor, Token};

/// An engine without links.
pub(in crate::progress) fn engine() -> DeviceEngine {
    let protection = Arc::new(Protection::new(Limits::default(), Secrets([1, 2, 3, 4])));
    let memory = crate::device::process_memory();
    Engine::new(
        EngineConfig::default(),
        protection.section().unwrap(),
        memory,
    )
}

/// A router of new objects.
pub(in crate::progress) fn router() -> EventRouter {
    let qps = Arc::default();
    EventRouter {
        cqs: Arc::default(),
        qps: Arc::clone(&qps),
        qp_numbers: Arc::new(QpNumbers::new(Scope::of(crate::Share::User))),
        events: Arc::new(AsyncQueues::new().unwrap()),
        denials: Denials::new(engine().reports(), None, &qps),
        counters: Arc::default(),
    }
}

/// A driver without an engine thread.
pub(in crate::progress) fn driver() -> EngineDriver {
    let lifecycle = Lifecycle::new(ForkMark::new().unwrap());
    let tick = Duration::from_secs(3600);
    let loopback = Loopback::new(NodeId::default()).into();
    EngineDriver::new(loopback, engine(), tick, router(), lifecycle, None).unwrap()
}

fn sleeping() -> EngineDriver {
    let driver = driver();
    assert!(driver.fall_asleep());
    assert_eq!(driver.schedule.mode(), Mode::Asleep);
    driver
}

#[test]
fn a_program_that_polls_takes_over_a_sleeping_engine() {
    let driver = sleeping();
    for _ in 0..POLLS_PER_CLOCK {
        driver.poll();
    }
    assert_eq!(driver.schedule.mode(), Mode::Program);
    assert_eq!(driver.polling.empty_polls(), POLLS_PER_CLOCK);
    driver.hand_over();
    assert_eq!(driver.schedule.mode(), Mode::Asleep);
}

#[test]
fn a_post_takes_over_a_sleeping_engine_unless_a_queue_is_armed() {
    let driver = sleeping();
    driver.post(|_| {});
    assert_eq!(driver.schedule.mode(), Mode::Program);
    let driver = sleeping();
    driver.router.cqs.arm_one_for_test();
    driver.post(|_| {});
    assert_eq!(driver.schedule.mode(), Mode::Asleep);
}

#[test]
fn a_waiting_program_leaves_the_engine_to_the_engine_thread() {
    let driver = driver();
    driver.hand_over();
    assert_eq!(driver.schedule.mode(), Mode::Thread);
    driver.give_way(Some(0));
    driver.take_over();
    assert_eq!(driver.schedule.mode(), Mode::Thread);
}

#[test]
fn a_post_is_pending_work_only_if_the_loopback_is_in_use() {
    let driver = driver();
    assert!(driver.has_work(), "the engine was never driven");
    driver.drive_until_idle();
    assert!(!driver.has_work());
    driver.post(|_| {});
    assert!(!driver.has_work());
    assert_eq!(driver.use_loopback(), driver.pending.loopback);
    driver.post(|_| {});
    assert!(driver.has_work());
}

#[test]
fn a_panic_under_the_lock_fails_the_device_and_wakes_the_engine_thread() {
    let driver = driver();
    let reactor = Reactor::new().unwrap();
    reactor.add(&driver.requests, Token::DOORBELL).unwrap();
    let run = std::panic::AssertUnwindSafe(|| driver.command(|_| panic!("a test")));
    assert!(std::panic::catch_unwind(run).is_err());
    assert!(driver.has_failed() && driver.lifecycle.check().is_err());
    assert_eq!(reactor.wait(Some(Duration::ZERO)), [Token::DOORBELL]);
    assert!(driver.engine.try_lock().is_some(), "unlocked by unwinding");
}

/// A device's transfer to itself may take longer than the device waits for a silent peer.
#[test]
fn the_loopback_is_never_cut() {
    let driver = driver();
    let other = LinkId::from((7, 7));
    driver.cut_links("a test", &[driver.pending.loopback]);
    assert!(driver.requests.take_cut().is_empty());
    driver.cut_links("a test", &[driver.pending.loopback, other]);
    assert_eq!(driver.requests.take_cut(), [other]);
}

#[test]
fn the_engine_thread_sends_packets_that_other_threads_leave() {
    let ip = crate::wire::tests::address();
    let config = crate::Config {
        wire: crate::config::WireSetting::Addresses(vec![ip]).into(),
        ..crate::Config::default()
    };
    let device = crate::Device::open(config).unwrap();
    let shared = device.shared();
    let sent = || shared.wire.as_ref().unwrap().describe().counts.sent;
    for n in 1..=3 {
        shared.driver.transmitter.as_ref().unwrap().take_one(ip);
        shared.driver.requests.send_packets();
        crate::wire::tests::wait_until(|| sent() == n);
    }
}
