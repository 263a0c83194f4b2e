//! Peers that guess keys: which of them must wait, for how long, and what the guesses reveal.

use crate::support::*;
use rkey_core::{Key, RKey, Reason};
use rkey_engine::guesses::{ALLOWANCE, PAUSE_LAST, REFILL, USER_ALLOWANCE, USER_REFILL};
use rkey_engine::*;
use std::collections::HashMap;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;

fn process(user: u32, pid: u32) -> Origin {
    Origin {
        process: Process {
            user,
            pid,
            started: 1,
            host: None,
        },
        here: false,
        explain: true,
    }
}

/// Node 0 sends requests with guessed keys to node 1.
struct Attack {
    pair: Pair,
    mine: rkey_core::Region,
    theirs: rkey_core::Region,
    tried: u32,
    /// The other ends of queue pairs, by their numbers.
    ends: HashMap<u32, QpId>,
}

impl Attack {
    fn new() -> Self {
        let pair = Pair::new();
        let mine = pair.nodes[0].register(0, 64, ALL);
        let theirs = pair.nodes[1].register(0, 64, ALL);
        Self {
            pair,
            mine,
            theirs,
            tried: 0,
            ends: HashMap::new(),
        }
    }

    /// A queue pair that survives refusals and never times out, over a new link from a process.
    fn link(&mut self, origin: Origin) -> (Qp, [LinkId; 2]) {
        let change = |_: usize, config: &mut QpConfig| config.survive_remote_error = true;
        let qps = [0, 1].map(|at| self.pair.nodes[at].qp(|config| change(at, config)));
        self.pair.ready(&qps, |_, step| {
            if step.timeout.is_some() {
                step.timeout = Some(0);
            }
        });
        let wire = self.pair.add_wire(origin, &qps[0]);
        self.ends.insert(qps[0].qpn, qps[1].id);
        (qps[0].clone(), wire)
    }

    /// Drops a connection, even if requests are in flight.
    fn drop_link(&mut self, qp: &Qp, wire: [LinkId; 2]) {
        self.pair.cut_wire(wire);
        self.pair.nodes[0].engine.destroy_qp(qp.id).unwrap();
        let end = self.ends.remove(&qp.qpn).unwrap();
        self.pair.nodes[1].engine.destroy_qp(end).unwrap();
    }

    /// A write to the region of node 1: with its key, or with one that was never issued.
    fn post(&mut self, qp: &Qp, good: bool) {
        let mut remote = self.pair.nodes[1].target(&self.theirs, 0);
        if !good {
            self.tried += 1;
            remote.key = RKey::Requested(u64::from(self.tried) << 32);
        }
        let sge = [self.pair.nodes[0].sge(&self.mine, 0, 8)];
        let write = Work::Write { remote, imm: None };
        let request = SendRequest::new(1, write, &sge);
        self.pair.send(0, qp, &request);
    }

    /// Waits, in the engines' time, for the end of a request; returns its status.
    fn finish(&mut self, qp: &Qp) -> Status {
        loop {
            self.pair.run_until_idle();
            if let Some(done) = qp.poll().pop() {
                return done.status;
            }
            let next = [0, 1].map(|at| self.pair.drive(at, 64).next_deadline);
            let next = next.into_iter().flatten().min().expect("it waits forever");
            assert!(next > self.pair.now, "the deadline has already passed");
            self.pair.now = next;
        }
    }

    fn guess(&mut self, qp: &Qp) {
        self.post(qp, false);
        assert_eq!(self.finish(qp), Status::RemoteAccess);
    }

    fn warnings(&mut self) -> Vec<Guesser> {
        let guesser = |event| match event {
            Event::Guessing(guesser) => Some(guesser),
            _ => None,
        };
        self.pair.nodes[1]
            .events()
            .into_iter()
            .filter_map(guesser)
            .collect()
    }
}

/// 64 keys in a burst, then ever more slowly: an hour over one connection allows fewer than 500 keys. Without limits,
/// at 15,000 a second, it would allow 54 million.
#[test]
fn guesses_over_one_connection_are_slowed_down() {
    let mut attack = Attack::new();
    let (qp, _) = attack.link(process(1, 42));
    for _ in 0..ALLOWANCE {
        attack.guess(&qp);
        assert_eq!(attack.pair.now, 0, "within the allowance nothing waits");
    }
    assert!(attack.warnings().is_empty());
    while attack.pair.now < HOUR {
        attack.guess(&qp);
        assert!(attack.tried < 1000, "nothing waits");
    }
    assert!((100..500).contains(&attack.tried), "{}", attack.tried);
    let told = attack.warnings();
    assert!(
        told[0].to_string().starts_with(
            "PID 42 (user 1) has tried 65 keys that were never issued; after its last guess, its requests are paused"
        ),
        "{}",
        told[0]
    );
    let known = attack.pair.nodes[1].engine.guessers();
    assert_eq!(known[0].tried, u64::from(attack.tried));
    assert_eq!(known[0].pause, PAUSE_LAST);
}

/// Neither new queue pairs, nor new links, nor new devices restart the count, and a guess counts even if its response
/// is never read.
#[test]
fn reconnecting_does_not_restart_the_count() {
    let mut attack = Attack::new();
    let mut looked_at = 0;
    // Each guess has its own connection, which is dropped at once and takes 1.5 ms of the clock.
    for _ in 0..4000 {
        let (qp, wire) = attack.link(process(1, 42));
        attack.post(&qp, false);
        attack.pair.run_until_idle();
        looked_at += qp.poll().len();
        attack.drop_link(&qp, wire);
        attack.pair.now += 3 * MS / 2;
    }
    let seconds = attack.pair.now / SECOND;
    let known = attack.pair.nodes[1].engine.guessers();
    // 4,000 guesses were sent within six seconds.
    assert_eq!(seconds, 6);
    assert_eq!(known.len(), 1);
    assert!(known[0].tried < 2 * u64::from(ALLOWANCE), "{known:?}");
    assert!(looked_at < 2 * ALLOWANCE as usize, "{looked_at}");
}

/// Guesses that are sent without waiting for responses stay in the guesser's ring, and those that are still there when
/// the link goes down are never read.
#[test]
fn guesses_in_the_ring_wait_until_the_pause_ends() {
    let mut attack = Attack::new();
    let (qp, wire) = attack.link(process(1, 42));
    for _ in 0..ALLOWANCE + 50 {
        attack.post(&qp, false);
        attack.pair.run_until_idle();
        qp.poll();
    }
    let tried = attack.pair.nodes[1].engine.guessers()[0].tried;
    assert_eq!(tried, u64::from(ALLOWANCE) + 1);
    attack.pair.cut_wire(wire);
    let tried = attack.pair.nodes[1].engine.guessers()[0].tried;
    assert_eq!(tried, u64::from(ALLOWANCE) + 1);
}

/// One mistake per second, each with a different key, for two hours never makes a request wait. A program that repeats the
/// same mistake in a loop is not slowed down either, because a repeated mistake reveals nothing.
#[test]
fn honest_mistakes_are_answered_at_once() {
    let mut attack = Attack::new();
    let (qp, _) = attack.link(process(1, 42));
    for second in 0..7200 {
        attack.pair.now = second * SECOND;
        attack.guess(&qp);
        attack.post(&qp, true);
        assert_eq!(attack.finish(&qp), Status::Success);
        assert_eq!(attack.pair.now, second * SECOND);
    }
    for _ in 0..10_000 {
        attack.tried = 7;
        attack.guess(&qp);
    }
    assert_eq!(attack.pair.now, 7199 * SECOND);
    let told = attack.warnings();
    // "has tried 1,000 keys" is worth a line, but no process had to wait.
    assert!(told.iter().all(|it| it.pauses == 0), "{told:?}");
}

/// While a process waits, others run at full speed, whether of the same or another user, over new or old links.
/// Afterwards, the process that waited runs, too.
#[test]
fn a_paused_process_does_not_delay_other_processes() {
    for user in [1, 2] {
        let mut attack = Attack::new();
        let (honest, _) = attack.link(process(user, 43));
        let (qp, _) = attack.link(process(1, 42));
        for _ in 0..ALLOWANCE + 5 {
            attack.guess(&qp);
        }
        // The process waits now, with a valid request after a bad one.
        attack.post(&qp, false);
        attack.post(&qp, true);
        attack.pair.run_until_idle();
        assert_eq!(qp.poll().len(), 0);
        let since = attack.pair.now;
        let (late, _) = attack.link(process(user, 44));
        for other in [&honest, &late] {
            for good in [true, false] {
                attack.post(other, good);
                attack.pair.run_until_idle();
                let done = other.poll().pop().expect("it waits");
                assert_eq!(done.status.is_success(), good);
            }
        }
        assert_eq!(attack.pair.now, since);
        assert_eq!(attack.finish(&qp), Status::RemoteAccess);
        assert_eq!(attack.finish(&qp), Status::Success);
        assert!(attack.pair.now > since);
    }
}

/// A new process for each guess: the user's shared allowance is used up, and its new processes wait. Another user does
/// not wait, and neither does a process of the same user that has been connected for a while.
#[test]
fn new_processes_of_a_user_share_the_users_allowance() {
    let mut attack = Attack::new();
    let (old, _) = attack.link(process(1, 5));
    attack.post(&old, true);
    assert_eq!(attack.finish(&old), Status::Success);
    attack.pair.now = 60 * SECOND;
    let begin = attack.pair.now;
    for pid in 100..2100 {
        let (qp, wire) = attack.link(process(1, pid));
        attack.post(&qp, false);
        attack.pair.run_until_idle();
        attack.drop_link(&qp, wire);
        attack.pair.now += 3 * MS;
    }
    let seconds = (attack.pair.now - begin) / SECOND;
    let tried: u64 = attack.pair.nodes[1]
        .engine
        .guessers()
        .iter()
        .map(|it| it.tried)
        .sum();
    let most = u64::from(USER_ALLOWANCE) + seconds * SECOND / USER_REFILL + 16;
    assert!(tried <= most, "{tried} of 2000 in {seconds} s");
    let (other, _) = attack.link(process(2, 9));
    let (new, _) = attack.link(process(1, 3000));
    for (qp, waits) in [(&old, false), (&other, false), (&new, true)] {
        attack.post(qp, true);
        attack.pair.run_until_idle();
        assert_eq!(qp.poll().is_empty(), waits);
    }
    assert_eq!(attack.finish(&new), Status::Success);
}

/// A key that was never issued, a key of another domain and a local key each count as a guess. A stale key does not, and
/// neither does an access past the end of a region with its valid key.
#[test]
fn wrong_keys_count_as_guesses_unless_they_were_once_valid() {
    let mut attack = Attack::new();
    let (qp, _) = attack.link(process(1, 42));
    let node = &mut attack.pair.nodes[1];
    let gone = node.register(0, 64, ALL);
    assert!(node.close(&gone));
    let elsewhere = node.protection.create_domain().unwrap();
    let range = [rkey_base::range::VaRange::new(node.base(), 64).unwrap()];
    let spec = rkey_core::RegionSpec::new(elsewhere, &range, ALL);
    let foreign = node.protection.register(&spec).unwrap();
    let bounds = attack.theirs.key;
    let keys = [
        (Key(0x7777_7777), 0, true),
        // This key was valid once.
        (gone.key, 0, false),
        (foreign.key, 0, true),
        (Key(attack.theirs.local_key.0), 0, true),
        (bounds, 64, false),
    ];
    let sge = [attack.pair.nodes[0].sge(&attack.mine, 0, 8)];
    let mut counted = 0;
    for (key, offset, counts) in keys {
        let mut remote = attack.pair.nodes[1].target(&attack.theirs, offset);
        remote.key = RKey::Device(key);
        let write = Work::Write { remote, imm: None };
        attack.pair.send(0, &qp, &SendRequest::new(1, write, &sge));
        assert_eq!(attack.finish(&qp), Status::RemoteAccess);
        counted += u64::from(counts);
        let known = attack.pair.nodes[1].engine.guessers();
        assert_eq!(known[0].tried, counted, "{key}");
    }
    let known = attack.pair.nodes[1].engine.guessers();
    assert_eq!(
        known[0].to_string(),
        "PID 42 (user 1) has tried 3 keys that grant it no access, 1 of them never issued"
    );
    let reports = attack.pair.nodes[1].engine.reports().all();
    assert!(matches!(
        reports.last().map(|it| it.denial.reason),
        Some(Reason::OutOfRange { .. })
    ));
}

/// In the long run, a process that paces itself gets one key for each refill and no more.
#[test]
fn a_process_that_paces_itself_can_try_one_key_per_refill() {
    let mut attack = Attack::new();
    let (qp, _) = attack.link(process(1, 42));
    let begin = attack.pair.now;
    for _ in 0..ALLOWANCE {
        attack.guess(&qp);
    }
    for _ in 0..5000 {
        attack.pair.now += REFILL;
        let now = attack.pair.now;
        attack.guess(&qp);
        assert_eq!(attack.pair.now, now);
    }
    let seconds = (attack.pair.now - begin) / SECOND;
    assert_eq!(seconds, 4000, "1.25 keys per second");
}
