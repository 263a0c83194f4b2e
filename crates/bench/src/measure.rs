//! The measurements: what the initiator does, and how the target responds. Both run on a [`Rig`], and measure
//! the same way as `benches/peers`.

use super::control::Command;
use super::direct;
use super::rig::{Kind, Rig};
use super::stats::histogram;
use anyhow::Result;
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Operations in flight in a stream: enough to hide the latency, few enough to stay in the cache.
fn window_of(size: u64) -> u64 {
    match size {
        size if size >= 1 << 20 => 2,
        size if size >= 1 << 14 => 16,
        _ => 128,
    }
}

/// Distinct buffers of a rotating stream.
pub(crate) fn slots_of(size: u64) -> u64 {
    match size {
        size if size >= 1 << 20 => 2,
        _ => 16,
    }
}

/// Nanoseconds per operation, with many in flight, until the last one has completed.
pub(crate) fn stream(rig: &mut Rig, kind: Kind, size: u64, count: u64, slots: u64) -> Result<f64> {
    let window = window_of(size);
    let parts = (0..slots)
        .map(|slot| rig.part(slot * size, size))
        .collect::<Result<Vec<_>>>()?;
    let base = rig.completed;
    let start = Instant::now();
    let mut slot = 0;
    for posted in 0..count {
        if base + posted >= rig.completed + window {
            rig.drain(base + posted + 1 - window)?;
        }
        rig.post(kind, parts[slot], slot as u64 * size)?;
        slot = if slot + 1 == parts.len() { 0 } else { slot + 1 };
    }
    rig.drain(base + count)?;
    Ok(each(start.elapsed(), count))
}

/// One operation at a time, from the post to its completion. Touched: before each one, outside the timing, the
/// initiator rewrites the source and the target reads the destination (for a read, the reverse).
pub(crate) fn single(
    rig: &mut Rig,
    kind: Kind,
    size: u64,
    count: u64,
    touched: bool,
) -> Result<Histogram<u64>> {
    let part = rig.part(0, size)?;
    let mut samples = histogram();
    for index in 0..count {
        if touched {
            let reading = kind == Kind::Read;
            if reading {
                std::hint::black_box(rig.words.touch_read(size));
            } else {
                rig.words.touch_write(size, index);
            }
            let number =
                rig.control
                    .command(Command::Touch, size, if reading { index + 1 } else { 0 });
            rig.await_done(number)?;
        }
        let until = rig.completed + 1;
        let start = Instant::now();
        rig.post(kind, part, 0)?;
        rig.drain(until)?;
        samples.saturating_record(nanoseconds(start.elapsed()));
    }
    Ok(samples)
}

/// Writes travel back and forth, and each side polls its memory; returns half a round trip.
pub(crate) fn one_way(rig: &mut Rig, size: u64, count: u64) -> Result<f64> {
    rig.words.store(size - 8, 0);
    let number = rig.control.command(Command::PingPong, size, count);
    rig.poll_until("the target to be ready", |rig| {
        rig.control.has_arrived(1, ready(number))
    })?;
    let base = rig.completed;
    let start = Instant::now();
    for round in 1..=count {
        ping(rig, size, 2 * round)?;
        rig.poll_until("a pong", |rig| rig.words.load(size - 8) == 2 * round + 1)?;
    }
    let elapsed = start.elapsed();
    rig.await_done(number)?;
    rig.drain(base + count)?;
    Ok(each(elapsed, 2 * count))
}

/// Marks of readiness for a ping-pong, above the marks of the start.
const READY: u32 = 1_000;

/// The target's mark of readiness for command `number`.
pub(super) fn ready(number: u32) -> u32 {
    number + READY
}

/// Sends a message whose last word is its number. An 8-byte message is only that word, and does not touch the memory in
/// which the response arrives.
fn ping(rig: &mut Rig, size: u64, value: u64) -> Result<()> {
    if size == 8 {
        return rig.post_word(value, 0);
    }
    rig.words.store(size - 8, value);
    let part = rig.part(0, size)?;
    rig.post(Kind::Write, part, 0)
}

/// Messages travel back and forth; returns half a round trip. Both sides run it; the initiator sends first.
pub(crate) fn messages(rig: &mut Rig, number: u32, size: u64, count: u64) -> Result<f64> {
    let first = rig.side() == 0;
    let (out, into) = (rig.part(0, size)?, rig.part(size, size)?);
    let (sent, received) = (rig.completed, rig.received);
    rig.post_receive(into)?;
    if first {
        rig.poll_until("the target to be ready", |rig| {
            rig.control.has_arrived(1, ready(number))
        })?;
    } else {
        rig.control.arrive(1, ready(number));
    }
    let start = Instant::now();
    for round in 0..count {
        if first {
            rig.post_send(out)?;
        }
        while rig.received < received + round + 1 {
            rig.poll_receives()?;
        }
        if round + 1 < count {
            rig.post_receive(into)?;
        }
        if !first {
            rig.post_send(out)?;
        }
        // Occasional polls keep the send queue from filling: one poll takes up to 32.
        if round % 16 == 15 {
            rig.poll()?;
        }
    }
    let elapsed = start.elapsed();
    rig.drain(sent + count)?;
    Ok(each(elapsed, 2 * count))
}

/// Writes of a word to a target whose program sleeps, with a `pause` between them.
pub(crate) fn to_sleeper(rig: &mut Rig, count: u64, pause: Duration) -> Result<Histogram<u64>> {
    let mut samples = histogram();
    for index in 0..count {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let until = rig.completed + 1;
        let start = Instant::now();
        rig.post_word(index, 0)?;
        rig.drain(until)?;
        samples.saturating_record(nanoseconds(start.elapsed()));
    }
    Ok(samples)
}

/// The target: executes the initiator's commands, and polls in between.
pub(crate) fn serve(rig: &mut Rig) -> Result<()> {
    let mut seen = 0;
    loop {
        let Some((number, command, size, count)) = rig.control.next(seen) else {
            rig.poll()?;
            continue;
        };
        seen = number;
        match command {
            Command::None => {}
            Command::Exit => return Ok(()),
            Command::Touch if count > 0 => rig.words.touch_write(size, count),
            Command::Touch => {
                std::hint::black_box(rig.words.touch_read(size));
            }
            Command::TouchShared if count > 0 => rig.shared_words.touch_write(size, count),
            Command::TouchShared => {
                std::hint::black_box(rig.shared_words.touch_read(size));
            }
            Command::PingPongDirect => {
                direct::one_way(rig, number, size, count)?;
            }
            Command::PingPong => answer_pings(rig, number, size, count)?,
            Command::Messages => {
                messages(rig, number, size, count)?;
            }
            Command::Sleep => {
                rig.control.finish(number);
                rig.control.sleep(number);
                continue;
            }
        }
        rig.control.finish(number);
    }
}

fn answer_pings(rig: &mut Rig, number: u32, size: u64, count: u64) -> Result<()> {
    rig.words.store(size - 8, 0);
    rig.control.arrive(1, ready(number));
    let base = rig.completed;
    for round in 1..=count {
        rig.poll_until("a ping", |rig| rig.words.load(size - 8) == 2 * round)?;
        ping(rig, size, 2 * round + 1)?;
    }
    rig.drain(base + count)
}

/// How many operations take about `seconds`, but at least `least`.
pub(crate) fn enough(ns: f64, seconds: f64, least: u64) -> u64 {
    ((seconds * 1e9 / ns.max(1.0)) as u64).max(least)
}

pub(super) fn each(elapsed: Duration, count: u64) -> f64 {
    elapsed.as_nanos() as f64 / count as f64
}

pub(super) fn nanoseconds(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}
