//! Measures the protection table alone: a key check among many live regions, registering, and the memory of a
//! live region.

use super::measure::each;
use anyhow::{Context, Result};
use rkey_device::base::{VaRange, resident};
use rkey_device::core::{
    Access, Accessor, DomainId, Limits, Operation, Protection, RKey, Region, RegionSpec, Secrets,
};
use std::hint::black_box;
use std::time::Instant;

const PAGE: u64 = 4096;
const NO_FIGURE: &str = "/proc does not say how much memory this process uses";
/// The address of the fictitious regions, whose memory is never touched.
const BASE: u64 = 1 << 32;

/// A protection table with live regions.
pub(super) struct Table {
    protection: Protection,
    domain: DomainId,
    regions: Vec<Region>,
    /// How many bytes the process grew by for each region.
    pub(super) bytes_each: f64,
}

impl Table {
    pub(super) fn with(live: u64) -> Result<Self> {
        let secrets = Secrets([0x5eed, 1, 2, 3]);
        let mut limits = Limits::default();
        // Another one comes and goes.
        limits.max_regions = limits.max_regions.max(live as u32 + 1);
        let protection = Protection::new(limits, secrets);
        let domain = protection.create_domain()?;
        let mut regions = Vec::with_capacity(live as usize);
        regions.resize(live as usize, register(&protection, domain, 0)?);
        let before = resident().context(NO_FIGURE)?;
        for (index, region) in regions.iter_mut().enumerate().skip(1) {
            *region = register(&protection, domain, index as u64)?;
        }
        let grown = resident().context(NO_FIGURE)?.saturating_sub(before);
        let bytes_each = grown as f64 / live.max(1) as f64;
        Ok(Self {
            protection,
            domain,
            regions,
            bytes_each,
        })
    }
}

fn register(protection: &Protection, domain: DomainId, index: u64) -> Result<Region> {
    let range = VaRange::new(BASE + index * PAGE, PAGE).context("too many regions")?;
    Ok(protection.register(&RegionSpec::new(
        domain,
        &[range],
        Access::REMOTE_WRITE | Access::LOCAL_WRITE,
    ))?)
}

/// Nanoseconds per check of a remote access, with the same key every time, or with all keys in turn, far apart.
pub(super) fn check(table: &Table, scattered: bool, count: u64) -> Result<f64> {
    let who = Accessor {
        domain: table.domain,
        qp: 7,
        peer: None,
    };
    // An odd stride visits every region in an order that no prefetcher expects.
    let step = if scattered { 0x9e37_79b1 } else { 0 };
    let mut at = table.regions.len() / 2;
    let start = Instant::now();
    for _ in 0..count {
        let key = RKey::Device(table.regions[at].key);
        let address = BASE + at as u64 * PAGE + 64;
        let lease = table
            .protection
            .check_remote(&who, key, address, 8, Operation::Write);
        anyhow::ensure!(black_box(lease).is_ok(), "a granted access was refused");
        at = (at + step) % table.regions.len();
    }
    Ok(each(start.elapsed(), count))
}

/// Nanoseconds to register and deregister in the table alone, with its live regions.
pub(super) fn pair(table: &Table, count: u64) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..count {
        let region = register(
            &table.protection,
            table.domain,
            table.regions.len() as u64 + 1,
        )?;
        let deregistering = table.protection.deregister(region.id)?;
        anyhow::ensure!(
            deregistering.finish().is_ok(),
            "cannot deregister an unused region"
        );
    }
    Ok(each(start.elapsed(), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_of_the_core_yields_a_positive_figure() {
        let table = Table::with(100).expect("registers");
        for scattered in [false, true] {
            assert!(check(&table, scattered, 1000).expect("checks") > 0.0);
        }
        assert!(pair(&table, 100).expect("registers") > 0.0);
    }
}
