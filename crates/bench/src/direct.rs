//! Measurements on memory of the peer that this process has mapped under a lease, without the peer's processor.
//! A call of [`DirectMemory`](rkey::DirectMemory) is complete when it returns.

use super::control::Command;
use super::measure::{self, each, nanoseconds};
use super::rig::{Kind, Rig};
use super::stats::histogram;
use anyhow::Result;
use hdrhistogram::Histogram;
use std::time::Instant;

/// Nanoseconds per copy, one after the other.
pub(super) fn stream(rig: &mut Rig, kind: Kind, size: u64, count: u64, slots: u64) -> Result<f64> {
    let (slots, size) = (slots as usize, size as usize);
    let mut buffer = vec![1_u8; slots * size];
    let direct = rig.direct()?;
    let mut slot = 0;
    let start = Instant::now();
    for _ in 0..count {
        let at = slot * size;
        one(direct, kind, at as u64, &mut buffer[at..at + size])?;
        slot = if slot + 1 == slots { 0 } else { slot + 1 };
    }
    Ok(each(start.elapsed(), count))
}

/// One copy at a time. Buffers are touched as for posted operations.
pub(super) fn single(
    rig: &mut Rig,
    kind: Kind,
    size: u64,
    count: u64,
    touched: bool,
) -> Result<Histogram<u64>> {
    let mut buffer = vec![1_u8; size as usize];
    let mut samples = histogram();
    for index in 0..count {
        if touched {
            let reading = kind == Kind::Read;
            if reading {
                // Touch each cache line, as in the other measurements.
                std::hint::black_box(
                    buffer
                        .iter()
                        .step_by(64)
                        .fold(0_u8, |sum, byte| sum.wrapping_add(*byte)),
                );
            } else {
                buffer.fill(index as u8);
            }
            let number = rig.control.command(
                Command::TouchShared,
                size,
                if reading { index + 1 } else { 0 },
            );
            rig.await_done(number)?;
        }
        let direct = rig.direct()?;
        let start = Instant::now();
        one(direct, kind, 0, &mut buffer)?;
        samples.saturating_record(nanoseconds(start.elapsed()));
    }
    Ok(samples)
}

#[inline]
fn one(direct: &mut rkey::DirectMemory, kind: Kind, offset: u64, bytes: &mut [u8]) -> Result<()> {
    match kind {
        Kind::Write => direct.write(offset, bytes)?,
        Kind::Read => direct.read(offset, bytes)?,
        Kind::Atomic => {
            std::hint::black_box(direct.fetch_and_add(offset, 1)?);
        }
    }
    Ok(())
}

/// Writes travel back and forth, and each side polls its own memory; returns half a round trip. Both sides run it.
pub(super) fn one_way(rig: &mut Rig, number: u32, size: u64, count: u64) -> Result<f64> {
    let first = rig.side() == 0;
    let last = size - 8;
    let mut buffer = vec![0_u8; size as usize];
    rig.shared_words.store(last, 0);
    if first {
        rig.poll_until("the target to be ready", |rig| {
            rig.control.has_arrived(1, measure::ready(number))
        })?;
    } else {
        rig.control.arrive(1, measure::ready(number));
    }
    let start = Instant::now();
    for round in 1..=count {
        if first {
            send(rig, &mut buffer, 2 * round)?;
            rig.wait_for_word(last, 2 * round + 1)?;
        } else {
            rig.wait_for_word(last, 2 * round)?;
            send(rig, &mut buffer, 2 * round + 1)?;
        }
    }
    Ok(each(start.elapsed(), 2 * count))
}

/// Sends a message whose last word is its number.
fn send(rig: &mut Rig, buffer: &mut [u8], value: u64) -> Result<()> {
    let last = buffer.len() - 8;
    buffer[last..].copy_from_slice(&value.to_le_bytes());
    Ok(rig.direct()?.write(0, buffer)?)
}
