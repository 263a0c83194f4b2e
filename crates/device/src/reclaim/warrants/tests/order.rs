//! Pushes and requests in the ring of one queue pair take effect in order.

use proptest::prelude::*;
use rkey_engine::SendFlags;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A write that may be pushed.
    Write,
    /// A write that is not.
    Unsignaled,
    /// Reads the word back.
    Read,
    /// Waits for all completions.
    Wait,
    /// Waits until the engine of the target is in this state, and lets it run or not.
    Stall(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => Just(Step::Write),
        2 => Just(Step::Unsignaled),
        2 => Just(Step::Read),
        6 => Just(Step::Wait),
        1 => any::<bool>().prop_map(Step::Stall),
    ];
    prop::collection::vec(step, 1..60)
}

/// Makes requests of one queue pair, each write with a larger number than the one before. The target never sees a smaller number after
/// a larger one, and each read returns the number of the last write before it.
fn runs_in_order(pair: &Pair, last: &mut u64, steps: &[Step]) {
    let (qp, side) = (&pair.qps[0], &pair.initiator);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let observer = scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                let now = pair.target.word(0);
                assert!(now >= seen, "{now} after {seen}");
                seen = now;
            }
        });
        let _stop = Stop(&stop);
        let (mut outstanding, mut reads, mut stalled) = (0, Vec::new(), None);
        for (index, step) in steps.iter().enumerate() {
            let word = 1 + index;
            let sges = [side.sge(word, 8)];
            match step {
                Step::Write | Step::Unsignaled => {
                    *last += 1;
                    side.memory[word].store(*last, Ordering::Release);
                    let request = SendRequest::new(1, write_to(pair.target.at(0)), &sges);
                    let is_signaled = matches!(step, Step::Write);
                    let flags = match is_signaled {
                        true => SendFlags::SIGNALED,
                        false => SendFlags::empty(),
                    };
                    qp.post_send(&SendRequest { flags, ..request }).unwrap();
                    outstanding += u32::from(is_signaled);
                }
                Step::Read => {
                    let remote = pair.target.at(0);
                    let read = Work::Read { remote };
                    qp.post_send(&SendRequest::new(2, read, &sges)).unwrap();
                    outstanding += 1;
                    reads.push((word, *last));
                }
                Step::Wait => {
                    stalled = None;
                    for _ in 0..std::mem::take(&mut outstanding) {
                        assert_eq!(side.next().status, Status::Success);
                    }
                }
                Step::Stall(true) if stalled.is_none() => {
                    stalled = Some(pair.target.driver().lock());
                }
                Step::Stall(_) => stalled = None,
            }
        }
        drop(stalled);
        // It is signaled, and behind all others.
        let read = Work::Read {
            remote: pair.target.at(0),
        };
        let sges = [side.sge(0, 8)];
        qp.post_send(&SendRequest::new(3, read, &sges)).unwrap();
        for _ in 0..=outstanding {
            assert_eq!(side.next().status, Status::Success);
        }
        stop.store(true, Ordering::Relaxed);
        observer.join().unwrap();
        for (word, expected) in reads {
            assert_eq!(side.word(word), expected);
        }
        assert_eq!((side.word(0), pair.target.word(0)), (*last, *last));
    });
}

#[test]
fn pushes_and_requests_in_the_ring_stay_in_order() {
    let Some(pair) = Pair::with_warrant() else {
        return;
    };
    let (before, last) = (pair.pushed(), Mutex::new(0));
    pair.target.memory[0].store(0, Ordering::Release);
    proptest!(ProptestConfig::with_cases(60), |(steps in steps())| {
        runs_in_order(&pair, &mut last.lock(), &steps);
        if pair.target.issued() == 0 {
            pair.get_warrant(&pair.qps[0]);
        }
    });
    assert!(pair.pushed() > before + 60, "few writes were pushed");
}
