//! The cost of a poll with many queue pairs, and with many links: one pair of them works, the others are idle.
//!
//! Both ends of all connections are devices of this process, and both sides of a connection take turns in one thread, so that the figures
//! do not depend on the distance between cores.

use super::measure::each;
use super::rig::TRANSPORT_TIMEOUT;
use anyhow::{Result, bail, ensure};
use rkey::{
    Access, Completion, CompletionQueue, Config, Device, QueuePair, Region, RemoteKey, SendFlags,
};
use std::time::{Duration, Instant};

/// How long an operation may take, so that a lost one is an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many completions one poll returns at most.
const BATCH: usize = 32;
/// The depth of each queue pair's queues. Small, because there are many.
const DEPTH: u32 = 4;

/// What there is many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Many {
    /// Queue pairs of one device that are connected to one other device, over one link.
    QueuePairs,
    /// Other devices, with one queue pair and one link in each direction to each.
    Links,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A poll that finds nothing.
    EmptyPoll,
    /// A write of 8 B from its post to its completion: both sides poll until it is there.
    Write,
}

/// A device with queue pairs.
struct Side {
    _device: Device,
    queue: CompletionQueue,
    pairs: Vec<QueuePair>,
    region: Region<Vec<u64>>,
    completions: [Completion; BATCH],
}

impl Side {
    fn open(pairs: u64) -> Result<Self> {
        let mut config = Config::from_env()?;
        config.max_links_per_process = config.max_links;
        config.max_links_per_user = config.max_links;
        config.timeout = TRANSPORT_TIMEOUT;
        let device = Device::builder().config(config).open()?;
        let domain = device.domain()?;
        let queue = domain.completion_queue(BATCH as u32)?;
        let pair = |_| {
            let builder = domain.queue_pair(&queue).receive_queue(&queue);
            builder.depth(DEPTH, DEPTH).max_inline(8).build()
        };
        Ok(Self {
            pairs: (0..pairs).map(pair).collect::<Result<_, _>>()?,
            region: domain.register(vec![0; 8], Access::REMOTE)?,
            queue,
            _device: device,
            completions: [Completion::default(); BATCH],
        })
    }

    /// How many completions a poll finds.
    fn poll(&mut self) -> Result<usize> {
        let count = self.queue.poll(&mut self.completions)?;
        for completion in &self.completions[..count] {
            self.queue.check(completion)?;
        }
        Ok(count)
    }
}

/// Connected devices.
pub(crate) struct Crowd {
    us: Side,
    others: Vec<Side>,
    key: RemoteKey,
}

impl Crowd {
    /// Connects `count` queue pairs. Each has carried a write in both directions, so all links exist.
    pub(crate) fn with(many: Many, count: u64) -> Result<Self> {
        let count = count.max(1);
        let (devices, pairs_each) = match many {
            Many::QueuePairs => (1, count),
            Many::Links => (count, 1),
        };
        let mut us = Side::open(count)?;
        let mut others = Vec::new();
        for index in 0..devices {
            let mut other = Side::open(pairs_each)?;
            let first = (index * pairs_each) as usize;
            for place in 0..other.pairs.len() {
                us.pairs[first + place].connect(&other.pairs[place].address())?;
                other.pairs[place].connect(&us.pairs[first + place].address())?;
            }
            let (ours, theirs) = (us.region.key(..)?, other.region.key(..)?);
            for place in 0..other.pairs.len() {
                write(&mut us, first + place, &theirs, &mut other)?;
                write(&mut other, place, &ours, &mut us)?;
            }
            others.push(other);
        }
        let key = others[0].region.key(..)?;
        Ok(Self { us, others, key })
    }

    /// Nanoseconds of one operation.
    pub(crate) fn measure(&mut self, work: Work, count: u64) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            match work {
                Work::EmptyPoll => {
                    ensure!(self.us.poll()? == 0, "a completion that was not expected");
                }
                Work::Write => write(&mut self.us, 0, &self.key, &mut self.others[0])?,
            }
        }
        Ok(each(start.elapsed(), count))
    }
}

/// One write through a queue pair of `from`; `to` serves it.
fn write(from: &mut Side, pair: usize, key: &RemoteKey, to: &mut Side) -> Result<()> {
    from.pairs[pair].post_write_inline(0, &[7; 8], key, 0, SendFlags::SIGNALED)?;
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        to.poll()?;
        if from.poll()? > 0 {
            return Ok(());
        }
    }
    bail!("a write did not complete within {} s", PATIENCE.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_queue_pairs_and_links_carry_writes() {
        for many in [Many::QueuePairs, Many::Links] {
            let mut crowd = Crowd::with(many, 3).expect("connects");
            for work in [Work::EmptyPoll, Work::Write] {
                assert!(crowd.measure(work, 10).expect("measures") > 0.0);
            }
        }
    }
}
