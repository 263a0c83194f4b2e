//! The costs of the table: nanoseconds for a check, and for registering and deregistering with a magazine; bytes per live
//! region.
//!
//! `cargo run --release -p rkey-core --example cost`. Run it on an otherwise idle machine.

use rkey_base::range::VaRange;
use rkey_core::*;
use std::hint::black_box;
use std::time::Instant;

const SIZE: u64 = 4096;

/// The best of many short runs, in nanoseconds per operation: the undisturbed cost.
fn measure(mut run: impl FnMut(u64)) -> f64 {
    const OPERATIONS: u64 = 10_000;
    let mut once = || {
        let start = Instant::now();
        run(OPERATIONS);
        start.elapsed().as_nanos() as f64 / OPERATIONS as f64
    };
    (0..300).map(|_| once()).fold(f64::MAX, f64::min)
}

fn memory() -> u64 {
    rkey_base::process::resident().unwrap_or_default()
}

fn main() {
    println!(
        "nanoseconds; the third and fourth are checks in a section, without a pin; so is the check by requested key"
    );
    println!("     live    check   random  section   random    local requested reg+close B/region");
    for live in [1u32, 1_000, 100_000, 1_000_000] {
        let limits = Limits {
            max_regions: Limits::KEY_SLOTS,
            ..Limits::default()
        };
        let table = std::sync::Arc::new(Protection::new(limits, Secrets([1, 2, 3, 4])));
        let domain = match table.create_domain() {
            Ok(domain) => domain,
            Err(error) => return eprintln!("{error}"),
        };
        let range = |number: u32| VaRange::new(0x7f00_0000_0000 + u64::from(number) * SIZE, SIZE);
        let register = |number: u32, requested_key: Option<u64>| {
            let ranges = [range(number)?];
            let spec = RegionSpec::new(domain, &ranges, Access::all());
            table
                .register(&RegionSpec {
                    requested_key,
                    ..spec
                })
                .ok()
        };
        let Some(hot_range) = range(7) else { return };
        let before = memory();
        let regions: Vec<(Region, u64)> = (0..live)
            .filter_map(|number| Some((register(number, None)?, range(number)?.start())))
            .collect();
        let list = regions.len() as u64 * size_of::<(Region, u64)>() as u64;
        let bytes = (memory() - before).saturating_sub(list) / u64::from(live);

        let who = Accessor {
            domain,
            qp: 1,
            peer: None,
        };
        let check = |(region, start): &(Region, u64)| {
            let key = RKey::Device(black_box(region.key));
            let grant = table.check_remote(&who, key, black_box(start + 64), 8, Operation::Write);
            black_box(grant.is_ok_and(|grant| black_box(grant.single()).is_some()));
        };
        let hot = regions[regions.len() / 2];
        let hot_check = measure(|count| (0..count).for_each(|_| check(&hot)));
        let random_check = measure(|count| {
            let mut place = 1u64;
            for _ in 0..count {
                place = place
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(0x1405_7b7e_f767_814f);
                check(&regions[((place >> 33) % regions.len() as u64) as usize]);
            }
        });
        let section = table.section().expect("the first");
        let check_in_section = |(region, start): &(Region, u64)| {
            let key = RKey::Device(black_box(region.key));
            let grant = section.check_remote(&who, key, black_box(start + 64), 8, Operation::Write);
            black_box(grant.is_ok_and(|grant| black_box(grant.single()).is_some()));
        };
        let hot_section = measure(|count| (0..count).for_each(|_| check_in_section(&hot)));
        let random_section = measure(|count| {
            let mut place = 1u64;
            for _ in 0..count {
                place = place
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(0x1405_7b7e_f767_814f);
                check_in_section(&regions[((place >> 33) % regions.len() as u64) as usize]);
            }
        });
        let local = measure(|count| {
            for _ in 0..count {
                let key = black_box(hot.0.local_key);
                let grant = table.check_local(domain, key, hot.1, 8, LocalUse::Send);
                black_box(grant.is_ok());
            }
        });
        let asked = register(live, Some(77)).map_or(0, |_| 77);
        let requested = measure(|count| {
            for _ in 0..count {
                let key = RKey::Requested(black_box(asked));
                let addr = 0x7f00_0000_0000 + u64::from(live) * SIZE;
                black_box(
                    table
                        .check_remote(&who, key, addr, 8, Operation::Write)
                        .is_ok(),
                );
            }
        });
        // The table has more than a million slots, so the magazine gets some even with a million live regions.
        let magazine = table.magazine();
        let ranges = [hot_range];
        let spec = RegionSpec::new(domain, &ranges, Access::all());
        let cycle = measure(|count| {
            for _ in 0..count {
                if let Ok(region) = table.register_from(&magazine, black_box(&spec))
                    && let Ok(deregistering) = table.deregister_into(&magazine, region.id)
                {
                    black_box(deregistering.finish().is_ok());
                }
            }
        });
        print!("{live:>9}");
        let numbers = [
            hot_check,
            random_check,
            hot_section,
            random_section,
            local,
            requested,
            cycle,
        ];
        numbers.iter().for_each(|number| print!(" {number:>8.1}"));
        println!(" {bytes:>8}");
    }
}
