//! The short paths, with both sides in turn in one thread.
//!
//! A round is one operation. In a counted round each side polls once, the target first, and finds what it is waiting for,
//! so a count does not depend on time. A round in which a poll finds nothing fails the run.

use anyhow::{Context, Result, bail, ensure};
use rkey::{
    Access, Completion, CompletionQueue, Config, Device, QueuePair, Region, RemoteKey, SendFlags,
    endpoint::Endpoint,
};
use std::time::{Duration, Instant};

/// How many operations are counted. A multiple of the periods in which a poller reads the clock and an endpoint returns credit.
pub(crate) const ROUNDS: u32 = 1024;
/// How many operations run before the counted ones. In that time the connection is made, and buffers grow to their final
/// size.
pub(crate) const WARM_UP: u32 = 300;
/// The operation of the warm-up before which the program pauses for [`SETTLE`].
const PAUSE_AT: u32 = WARM_UP / 2;
/// How long the devices' threads have to handle what the connection has woken them for. On a busy machine they might do so
/// only in a counted round, and take the engine from the poll.
const SETTLE: Duration = Duration::from_millis(300);
/// How long an operation may take, so that a lost one is an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval at which a device's thread checks whether the program still polls: longer than a run, even under
/// valgrind.
const TICK: Duration = Duration::from_secs(3600);
/// The tag of messages.
const TAG: u64 = 7;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    Write,
    Read,
    Atomic,
    Send,
    Tagged,
    Register,
}

impl Path {
    pub(crate) const ALL: [Self; 6] = [
        Self::Write,
        Self::Read,
        Self::Atomic,
        Self::Send,
        Self::Tagged,
        Self::Register,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write-8",
            Self::Read => "read-8",
            Self::Atomic => "fetch-and-add",
            Self::Send => "send-8",
            Self::Tagged => "tagged-8",
            Self::Register => "register-4096",
        }
    }

    /// How many sides of a connection the path involves.
    pub(crate) fn sides(self) -> usize {
        match self {
            Self::Register => 1,
            _ => 2,
        }
    }

    /// Runs the path: some operations that are not counted, then [`ROUNDS`] that are.
    ///
    /// # Errors
    /// The device fails, or an operation does not complete.
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Register => registrations(),
            Self::Tagged => messages(),
            _ => operations(self),
        }
    }
}

/// The code that callgrind counts at the initiator.
#[inline(never)]
pub(crate) fn initiator(step: &mut dyn FnMut() -> Result<bool>) -> Result<bool> {
    // The number keeps the compiler from merging this function with the next.
    std::hint::black_box(1);
    step()
}

/// The code that callgrind counts at the target.
#[inline(never)]
pub(crate) fn target(step: &mut dyn FnMut() -> Result<bool>) -> Result<bool> {
    std::hint::black_box(2);
    step()
}

/// Pauses once in the warm-up.
fn settle(round: u32) {
    if round == PAUSE_AT {
        std::thread::sleep(SETTLE);
    }
}

/// Runs a step without counting it.
fn uncounted(step: &mut dyn FnMut() -> Result<bool>) -> Result<bool> {
    step()
}

/// Runs a step of a side.
type Runner = fn(&mut dyn FnMut() -> Result<bool>) -> Result<bool>;

/// The runners of both sides in a round.
fn runners(round: u32) -> (Runner, Runner) {
    match round < WARM_UP {
        true => (uncounted, uncounted),
        false => (initiator, target),
    }
}

/// Lets the target poll, then the initiator, until both are done. In a counted round they are done after one poll each.
fn take_turns(
    round: u32,
    us: &mut dyn FnMut() -> Result<bool>,
    them: &mut dyn FnMut() -> Result<bool>,
) -> Result<()> {
    let (ours, theirs) = runners(round);
    let started = Instant::now();
    let mut done = (false, false);
    while started.elapsed() < PATIENCE {
        // Run both sides: one that has its completion may still have to serve the other.
        done.1 |= theirs(them)?;
        done.0 |= ours(us)?;
        if done == (true, true) {
            return Ok(());
        }
        ensure!(
            round < WARM_UP,
            "a poll found nothing in counted round {}",
            round - WARM_UP
        );
    }
    bail!(
        "an operation did not complete within {} s",
        PATIENCE.as_secs()
    )
}

/// A device whose engine thread leaves the work to us.
fn device() -> Result<Device> {
    let mut config = Config::default();
    config.tick = TICK;
    Ok(Device::builder().config(config).open()?)
}

/// One side of a connection.
struct Side {
    _device: Device,
    region: Region<Vec<u64>>,
    queue: CompletionQueue,
    pair: QueuePair,
    completions: [Completion; 32],
}

impl Side {
    fn open() -> Result<Self> {
        let device = device()?;
        let domain = device.domain()?;
        let queue = domain.completion_queue(64)?;
        let pair = domain
            .queue_pair(&queue)
            .receive_queue(&queue)
            .depth(16, 16)
            .max_inline(64)
            .build()?;
        let region = domain.register(vec![0u64; 512], Access::REMOTE)?;
        Ok(Self {
            _device: device,
            region,
            queue,
            pair,
            completions: [Completion::default(); 32],
        })
    }

    /// Whether a poll finds a completion.
    fn poll(&mut self) -> Result<bool> {
        let count = self.queue.poll(&mut self.completions)?;
        for completion in &self.completions[..count] {
            self.queue.check(completion)?;
        }
        Ok(count > 0)
    }

    fn post(&self, path: Path, key: &RemoteKey) -> Result<()> {
        let (bytes, flags) = ([7; 8], SendFlags::SIGNALED);
        match path {
            Path::Write => self.pair.post_write_inline(0, &bytes, key, 64, flags)?,
            Path::Read => {
                let into = [self.region.part(0..8)?];
                self.pair.post_read(0, &into, key, 64, flags)?;
            }
            Path::Atomic => {
                let into = self.region.part(0..8)?;
                self.pair.post_fetch_and_add(0, into, key, 128, 1, flags)?;
            }
            _ => self.pair.post_send_inline(0, &bytes, flags)?,
        }
        Ok(())
    }
}

/// Operations of a connected queue pair.
fn operations(path: Path) -> Result<()> {
    let (mut us, mut them) = (Side::open()?, Side::open()?);
    let key = them.region.key(..)?;
    us.pair.connect(&them.pair.address())?;
    them.pair.connect(&us.pair.address())?;
    // Make the link from the target to the initiator before anything is counted.
    them.post(Path::Write, &us.region.key(..)?)?;
    take_turns(0, &mut || us.poll().map(|_| true), &mut || them.poll())?;
    for round in 0..WARM_UP + ROUNDS {
        settle(round);
        let (ours, theirs) = runners(round);
        let receives = path == Path::Send;
        if receives {
            let part = [them.region.part(8..16)?];
            theirs(&mut || {
                them.pair.post_receive(0, &part)?;
                Ok(true)
            })?;
        }
        ours(&mut || {
            us.post(path, &key)?;
            Ok(true)
        })?;
        // The target of a one-sided operation sees no completion, but must serve it.
        take_turns(round, &mut || us.poll(), &mut || {
            Ok(them.poll()? || !receives)
        })?;
    }
    Ok(())
}

/// Tagged messages between endpoints.
fn messages() -> Result<()> {
    let open = || -> Result<Endpoint> { Ok(device()?.endpoint()?) };
    let (us, them) = (open()?, open()?);
    let mut buffer = vec![0; 8];
    // Make the link from the target to the initiator before anything is counted.
    let receiving = us.receive_tagged(TAG, None, vec![0; 8])?;
    let sending = them.send_tagged(us.address(), TAG, vec![1; 8])?;
    take_turns(0, &mut || Ok(receiving.is_done()), &mut || {
        Ok(sending.is_done())
    })?;
    receiving.wait()?;
    sending.wait()?;
    for round in 0..WARM_UP + ROUNDS {
        settle(round);
        let (ours, theirs) = runners(round);
        let mut receiving = None;
        theirs(&mut || {
            let room = std::mem::take(&mut buffer);
            receiving = Some(them.receive_tagged(TAG, None, room)?);
            Ok(true)
        })?;
        let receiving = receiving.context("no receive was posted")?;
        let mut sending = None;
        ours(&mut || {
            sending = Some(us.send_tagged(them.address(), TAG, vec![1; 8])?);
            Ok(true)
        })?;
        let sending = sending.context("no send was posted")?;
        take_turns(round, &mut || Ok(sending.is_done()), &mut || {
            Ok(receiving.is_done())
        })?;
        // Both have ended, so these calls do not poll.
        sending
            .try_wait()
            .ok()
            .context("the send has not ended")??;
        let received = receiving.try_wait().ok();
        buffer = received.context("the receive has not ended")??.bytes;
        ensure!(
            buffer.len() == 8,
            "a message of 8 B arrived with {} B",
            buffer.len()
        );
    }
    Ok(())
}

/// Registrations and deregistrations.
fn registrations() -> Result<()> {
    let domain = device()?.domain()?;
    let mut memory = Some(vec![0u64; 512]);
    for round in 0..WARM_UP + ROUNDS {
        let (ours, _) = runners(round);
        ours(&mut || {
            let free = memory.take().context("the last round lost its memory")?;
            let region = domain.register(free, Access::REMOTE)?;
            memory = Some(region.deregister()?);
            Ok(true)
        })?;
    }
    Ok(())
}
