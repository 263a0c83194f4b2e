//! One side of a benchmark: a device, a connected queue pair, a registered buffer and the other side's key. It
//! posts and polls through the queue pair API, as a program would.

use super::control::Control;
use super::pages::{self, Pages, Words};
use anyhow::{Context, Result, bail, ensure};
use rkey::{
    Access, Completion, CompletionQueue, Device, DirectMemory, Domain, QueuePair, QueuePairAddress,
    Region, RemoteKey, SendFlags, Sge, SharedMemory,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The longest payload that travels inside a request.
const INLINE: u64 = 64;
/// The maximum number of operations posted and not complete.
pub(crate) const DEPTH: u32 = 256;
/// How long the other side may be silent; on a busy machine, other programs share its core.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of regions that may be live.
const MOST_REGIONS: u32 = 1_010_000;
/// The queue pair's timeout, as an exponent: 4.096 us * 2^23 are 34 s.
pub(super) const TRANSPORT_TIMEOUT: u8 = 23;

/// The data that each side sends to the other at the start.
#[derive(Debug, Serialize, Deserialize)]
struct Introduction {
    address: QueuePairAddress,
    key: RemoteKey,
    shared: RemoteKey,
}

/// The operations of streams and single measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Read,
    Atomic,
}

/// One side.
pub(crate) struct Rig {
    pub(crate) control: Control,
    pub(crate) domain: Domain,
    sends: CompletionQueue,
    receives: CompletionQueue,
    pair: QueuePair,
    region: Region<Pages>,
    remote: RemoteKey,
    /// The registered memory as this program accesses it.
    pub(crate) words: Words,
    /// Memory from rkey's allocator, which the other side maps.
    pub(crate) shared_words: Words,
    _shared: Region<SharedMemory>,
    /// The other side's memory, mapped, or the error of mapping it.
    direct: Result<DirectMemory, rkey::Error>,
    side: usize,
    ends: Option<OwnedFd>,
    completions: [Completion; 32],
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    pub(crate) received: u64,
}

impl Rig {
    /// Opens the device and connects to the other side. Both sides call it; `side` is 0 for the initiator.
    /// `ends` is a pidfd of the other process (pidfd_open(2)): no wait outlasts that process.
    pub(crate) fn open(
        control: Control,
        side: usize,
        length: u64,
        ends: Option<OwnedFd>,
    ) -> Result<Self> {
        let mut config = rkey::Config::from_env()?;
        if std::env::var_os("RKEY_TIMEOUT").is_none() {
            config.timeout = TRANSPORT_TIMEOUT;
        }
        // For registrations among a million others.
        config.limits.max_regions = config.limits.max_regions.max(MOST_REGIONS);
        let device = Device::builder().config(config).timeout(PATIENCE).open()?;
        let domain = device.domain()?;
        let sends = domain.completion_queue(1024)?;
        let receives = domain.completion_queue(1024)?;
        let pair = domain
            .queue_pair(&sends)
            .receive_queue(&receives)
            .depth(DEPTH, DEPTH)
            .max_inline(INLINE as u32)
            .build()?;
        let pages = Pages::map(length as usize, true)?;
        let words = pages.words();
        let access = Access::all() - Access::BIND - Access::COLLECTIVE;
        let region = domain.register(pages, access)?;
        let shared = domain.register(device.allocate(length as usize)?, access)?;
        let shared_words = pages::words_of(&shared)?;
        let introduction = Introduction {
            address: pair.address(),
            key: region.key(..)?,
            shared: shared.key(..)?,
        };
        control.leave(side, &serde_json::to_vec(&introduction)?)?;
        control.arrive(side, 1);
        wait_for(&control, 1 - side, 1, ends.as_ref())?;
        let theirs: Introduction = serde_json::from_slice(&control.read(1 - side))
            .context("cannot read the other side's introduction")?;
        pair.connect(&theirs.address)?;
        let direct = pair.map(&theirs.shared);
        control.arrive(side, 2);
        wait_for(&control, 1 - side, 2, ends.as_ref())?;
        Ok(Self {
            control,
            domain,
            sends,
            receives,
            pair,
            region,
            remote: theirs.key,
            words,
            shared_words,
            _shared: shared,
            direct,
            side,
            ends,
            completions: [Completion::default(); 32],
            posted: 0,
            completed: 0,
            received: 0,
        })
    }

    /// A range of our memory, as a scatter/gather entry.
    pub(crate) fn part(&self, offset: u64, size: u64) -> Result<Sge> {
        Ok(self.region.part(offset..offset + size)?)
    }

    /// Posts one operation between the same offsets on both sides.
    #[inline]
    pub(crate) fn post(&mut self, kind: Kind, part: Sge, offset: u64) -> Result<()> {
        let id = self.posted;
        match kind {
            Kind::Write if u64::from(part.len) <= INLINE => {
                // Gather small payloads here, as any RDMA library does for inline sends.
                let mut bytes = [0; INLINE as usize];
                for (index, chunk) in bytes[..part.len as usize].chunks_mut(8).enumerate() {
                    chunk.copy_from_slice(
                        &self.words.load(offset + 8 * index as u64).to_le_bytes()[..chunk.len()],
                    );
                }
                let bytes = &bytes[..part.len as usize];
                self.pair.post_write_inline(
                    id,
                    bytes,
                    &self.remote,
                    offset,
                    SendFlags::SIGNALED,
                )?;
            }
            Kind::Write => {
                self.pair
                    .post_write(id, &[part], &self.remote, offset, SendFlags::SIGNALED)?
            }
            Kind::Read => {
                self.pair
                    .post_read(id, &[part], &self.remote, offset, SendFlags::SIGNALED)?
            }
            Kind::Atomic => self.pair.post_fetch_and_add(
                id,
                part,
                &self.remote,
                offset,
                1,
                SendFlags::SIGNALED,
            )?,
        }
        self.posted += 1;
        Ok(())
    }

    /// Posts a write of one word to `offset` of the other side.
    #[inline]
    pub(crate) fn post_word(&mut self, value: u64, offset: u64) -> Result<()> {
        let bytes = value.to_le_bytes();
        self.pair.post_write_inline(
            self.posted,
            &bytes,
            &self.remote,
            offset,
            SendFlags::SIGNALED,
        )?;
        self.posted += 1;
        Ok(())
    }

    /// Posts a send of `part`.
    pub(crate) fn post_send(&mut self, part: Sge) -> Result<()> {
        if u64::from(part.len) <= INLINE {
            let value = self.words.load(0).to_le_bytes();
            let mut bytes = [0; INLINE as usize];
            bytes[..8].copy_from_slice(&value);
            self.pair.post_send_inline(
                self.posted,
                &bytes[..part.len as usize],
                SendFlags::SIGNALED,
            )?;
        } else {
            self.pair
                .post_send(self.posted, &[part], SendFlags::SIGNALED)?;
        }
        self.posted += 1;
        Ok(())
    }

    /// Posts a receive into `part`.
    pub(crate) fn post_receive(&mut self, part: Sge) -> Result<()> {
        Ok(self.pair.post_receive(0, &[part])?)
    }

    /// Polls once, which also drives the device.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<()> {
        let count = self.sends.poll(&mut self.completions)?;
        for completion in &self.completions[..count] {
            if !completion.status.is_success() {
                self.sends.check(completion)?;
            }
        }
        self.completed += count as u64;
        Ok(())
    }

    /// Polls for received messages once.
    pub(crate) fn poll_receives(&mut self) -> Result<()> {
        let count = self.receives.poll(&mut self.completions)?;
        for completion in &self.completions[..count] {
            self.receives.check(completion)?;
        }
        self.received += count as u64;
        Ok(())
    }

    /// Polls until `until` operations have completed since the start.
    #[inline]
    pub(crate) fn drain(&mut self, until: u64) -> Result<()> {
        if self.completed < until {
            let mut patience = Patience::new();
            while self.completed < until {
                self.poll()?;
                patience.check("a completion", self.ends.as_ref())?;
            }
        }
        Ok(())
    }

    /// Polls until `reached` returns true.
    pub(crate) fn poll_until(
        &mut self,
        what: &str,
        mut reached: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let mut patience = Patience::new();
        while !reached(self) {
            self.poll()?;
            patience.check(what, self.ends.as_ref())?;
        }
        Ok(())
    }

    /// Polls until the other side has finished command `number`.
    pub(crate) fn await_done(&mut self, number: u32) -> Result<()> {
        self.poll_until("the target to finish", |rig| rig.control.is_done(number))
    }

    /// The other side's memory, mapped.
    ///
    /// # Errors
    /// Why it could not be mapped.
    #[inline]
    pub(crate) fn direct(&mut self) -> Result<&mut DirectMemory> {
        match &mut self.direct {
            Ok(direct) => Ok(direct),
            Err(error) => bail!("the other side's memory is not mapped: {error}"),
        }
    }

    /// Polls a word of our shared memory until it has a value. The device need not be driven.
    pub(crate) fn wait_for_word(&self, offset: u64, value: u64) -> Result<()> {
        let mut patience = Patience::new();
        while self.shared_words.load(offset) != value {
            std::hint::spin_loop();
            patience.check("a write by the other side", self.ends.as_ref())?;
        }
        Ok(())
    }

    /// Which side this is.
    pub(crate) fn side(&self) -> usize {
        self.side
    }
}

fn wait_for(control: &Control, side: usize, turn: u32, ends: Option<&OwnedFd>) -> Result<()> {
    let start = Instant::now();
    while !control.has_arrived(side, turn) {
        ensure!(
            start.elapsed() < PATIENCE,
            "the other process of the benchmark did not start"
        );
        ensure!(!has_ended(ends), GONE);
        std::thread::yield_now();
    }
    Ok(())
}

const GONE: &str = "the target process has exited";

/// Whether the process of a pidfd has exited.
fn has_ended(process: Option<&OwnedFd>) -> bool {
    let now = Timespec::default();
    process.is_some_and(|process| {
        let mut polled = [PollFd::new(process, PollFlags::IN)];
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    })
}

/// A timeout for busy-wait loops; reads the clock only every 2^20 iterations.
struct Patience {
    turns: u64,
    start: Option<Instant>,
}

impl Patience {
    fn new() -> Self {
        Self {
            turns: 0,
            start: None,
        }
    }

    #[inline]
    fn check(&mut self, what: &str, ends: Option<&OwnedFd>) -> Result<()> {
        self.turns += 1;
        if self.turns.is_multiple_of(1 << 20) {
            ensure!(!has_ended(ends), GONE);
            let start = *self.start.get_or_insert_with(Instant::now);
            if start.elapsed() > PATIENCE {
                bail!(
                    "timed out after {} s waiting for {what}",
                    PATIENCE.as_secs()
                );
            }
        }
        Ok(())
    }
}
