//! The table against the reference model: random requests, every answer compared.
//!
//! `RKEY_MODEL_SEQUENCES` sets how many sequences run, `RKEY_MODEL_SEED` the first seed; a failure prints the seed of
//! its sequence and the requests that led to it.

mod answers;
mod world;

use rkey_model::No;
use std::collections::HashMap;
use world::World;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

#[test]
fn the_protection_table_agrees_with_the_model() {
    let sequences = setting("RKEY_MODEL_SEQUENCES", if cfg!(miri) { 5 } else { 20_000 });
    let first = setting("RKEY_MODEL_SEED", 1);
    let mut seen: HashMap<_, u64> = HashMap::new();
    for seed in first..first + sequences {
        let mut world = World::new(seed);
        world.open_domain();
        let steps = 20 + world.random.below(60);
        for _ in 0..steps {
            let step = std::panic::AssertUnwindSafe(|| world.step());
            if let Err(panic) = std::panic::catch_unwind(step) {
                let mut world = world;
                let last = world.log.split_off(world.log.len().saturating_sub(40));
                println!("RKEY_MODEL_SEED={seed}:\n{}", last.join("\n"));
                std::panic::resume_unwind(panic);
            }
        }
        for (what, count) in world.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    let mut lines: Vec<String> = seen
        .iter()
        .map(|((kind, no), count)| format!("{kind:24} {no:?} {count}"))
        .collect();
    lines.sort();
    println!(
        "{sequences} sequences, all in agreement:\n{}",
        lines.join("\n")
    );
    if sequences >= 10_000 {
        everything_happened(&seen);
    }
}

/// Checks the coverage of the comparison: each kind of request must have received each kind of answer that is possible
/// for it.
fn everything_happened(seen: &HashMap<(&'static str, Option<No>), u64>) {
    use No::*;
    let access = [
        OtherDomain,
        Disabled,
        Right,
        Wraps,
        OutOfRange,
        CrossesSegments,
    ];
    let window = [
        OtherDomain,
        Unbound,
        Stale,
        Right,
        Wraps,
        OutOfRange,
        Misaligned,
    ];
    let bind = [
        NoSuchWindow,
        NoSuchRegion,
        OtherDomain,
        Disabled,
        RegionLacks,
        NotRemote,
        OutOfRange,
        CrossesSegments,
        StillBound,
        ZeroLength,
        ForeignKey,
        KeyAndQpNeeded,
        ZeroBasedWindow,
        ZeroBasedRegion,
    ];
    let expected: [(&'static str, &[No]); 20] = [
        ("open domain", &[Limit]),
        ("close domain", &[NoSuchDomain, Busy]),
        (
            "register",
            &[
                NoSuchDomain,
                Limit,
                Empty,
                AddressWraps,
                AccessNeeds,
                KeyTaken,
                KeyReserved,
            ],
        ),
        (
            "reregister",
            &[
                NoSuchRegion,
                Busy,
                NoSuchDomain,
                Limit,
                Empty,
                AccessNeeds,
                KeyTaken,
            ],
        ),
        ("enable", &[NoSuchRegion, AlreadyEnabled, NeedsEndpoint]),
        ("bind region", &[NoSuchRegion, AlreadyEnabled, AlreadyBound]),
        ("deregister", &[NoSuchRegion, Busy]),
        ("create window", &[NoSuchDomain, Limit]),
        ("deallocate window", &[NoSuchWindow]),
        ("promise", &[NoSuchWindow]),
        ("bind", &bind),
        (
            "invalidate",
            &[
                UnknownKey,
                Stale,
                OtherDomain,
                WrongEndpoint,
                NotAWindow,
                WindowKind,
            ],
        ),
        ("access by key", &access),
        (
            "access by key",
            &[UnknownKey, Stale, LKey, WrongEndpoint, Misaligned],
        ),
        ("access by requested key", &[UnknownKey, Right, OutOfRange]),
        ("access by window", &window),
        ("access by type 2 window", &window),
        ("access by type 2 window", &[WrongEndpoint]),
        ("local access", &access),
        ("local access", &[UnknownKey, Stale, RemoteKey]),
    ];
    for (kind, answers) in expected {
        for answer in answers.iter().copied().map(Some).chain([None]) {
            assert!(
                seen.contains_key(&(kind, answer)),
                "never seen: {kind} -> {answer:?}"
            );
        }
    }
}
