//! Operations in flight: each follows its plan, round by round, whenever the endpoint makes progress.

use super::super::Host;
use super::carrier::Carrier;
use super::{Groups, reserved, zeroed};
use crate::atomic::{DataType, Op, apply};
use crate::collective::WINDOW;
use crate::collective::early_chunks::LEFT;
use crate::collective::kind::Kind;
use crate::collective::names::signature;
use crate::collective::plan::{How, Plan, Receive};
use crate::error::{Error, Failure, Result};
use rkey_core::LocalUse;
use rkey_engine::Sge;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The pause between two checks of the peers that an operation waits for.
const LOOK: Duration = Duration::from_millis(50);

/// A collective operation, as the program requests it.
#[derive(Debug)]
pub struct Call {
    /// The program's number for the group.
    pub group: u64,
    /// How many members the group has, and our rank ([`Groups::seat`]).
    pub seat: (usize, usize),
    /// The operation.
    pub kind: Kind,
    /// The rank of the root.
    pub root: usize,
    /// The size of a block, in bytes.
    pub block: usize,
    /// Type and operation of a reduction.
    pub reduction: Option<(DataType, Op)>,
    /// The destination of the result.
    pub result: Vec<Sge>,
}

/// A collective operation with a copy of its source, ready to begin.
#[derive(Debug)]
pub struct Loaded {
    call: Call,
    plan: Plan,
    work: Vec<u8>,
}

impl Call {
    /// Copies the source with `gather`. The copy can take a long time, and does not need the endpoint.
    ///
    /// # Errors
    /// Errors of `gather`; [`Error::NoMemory`].
    pub fn load(self, gather: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Loaded> {
        let (n, me) = self.seat;
        let plan = Plan::new(self.kind, n, me, self.root);
        let work = load(&plan, self.block, gather)?;
        Ok(Loaded {
            call: self,
            plan,
            work,
        })
    }
}

/// An operation.
pub(super) struct Run<O> {
    pub(super) number: u64,
    pub(super) group: u64,
    /// The number of the operation in its group.
    pub(super) seq: u32,
    /// The signature, which all members must agree on.
    pub(super) signature: u32,
    plan: Plan,
    /// The size of a block, in bytes.
    block: usize,
    reduction: Option<(DataType, Op)>,
    pub(super) work: Vec<u8>,
    round: usize,
    /// How many sends of the round are posted.
    sent: usize,
    /// How many chunks are unanswered.
    open: u32,
    /// Whether a chunk is being read.
    pub(super) fetching: bool,
    pub(super) fetched: Option<Box<[u8]>>,
    error: Option<Error>,
    end: End<O>,
}

/// What happens at the end of an operation: a group is joined, or a result is stored and reported.
pub(super) enum End<O> {
    Join,
    Completion { attached: O, result: Vec<Sge> },
}

/// A chunk that has been answered or read.
pub(super) struct Finished {
    pub(super) run: u64,
    pub(super) fetched: Option<Box<[u8]>>,
    pub(super) error: Option<Error>,
}

/// The working memory of a plan; `gather` copies the source to it.
fn load(
    plan: &Plan,
    block: usize,
    gather: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut bytes = zeroed(plan.load.len() * block)?;
    gather(&mut bytes)?;
    let in_order = plan.load.iter().enumerate().all(|(from, &to)| from == to);
    if in_order && !plan.load.is_empty() {
        let more = plan.blocks * block - bytes.len();
        let reserved = bytes.try_reserve_exact(more);
        reserved.map_err(|_| Error::NoMemory)?;
        bytes.resize(plan.blocks * block, 0);
        return Ok(bytes);
    }
    let mut work = zeroed(plan.blocks * block)?;
    for (from, &to) in plan.load.iter().enumerate() {
        let there = &bytes[from * block..(from + 1) * block];
        work[to * block..(to + 1) * block].copy_from_slice(there);
    }
    Ok(work)
}

impl<O> Run<O> {
    pub(super) fn new(group: u64, plan: Plan, end: End<O>) -> Self {
        Self {
            number: 0,
            group,
            seq: 0,
            signature: 0,
            plan,
            block: 0,
            reduction: None,
            work: Vec::new(),
            round: 0,
            sent: 0,
            open: 0,
            fetching: false,
            fetched: None,
            error: None,
            end,
        }
    }

    /// The byte range of some blocks.
    pub(super) fn bytes(&self, blocks: &Range<usize>) -> Range<usize> {
        blocks.start * self.block..blocks.end * self.block
    }

    /// Records that one of the operation's chunks has been answered or read.
    fn hear(&mut self, finished: Finished) {
        self.error = self.error.or(finished.error);
        match finished.fetched {
            Some(bytes) => {
                self.fetching = false;
                self.fetched = Some(bytes);
            }
            None => self.open = self.open.saturating_sub(1),
        }
    }

    /// Stores what was received.
    fn put(&mut self, receive: &Receive, mut bytes: Box<[u8]>) -> Result<()> {
        let place = self.bytes(&receive.blocks);
        let place = self.work.get_mut(place).ok_or(Error::Invalid)?;
        match (receive.how, self.reduction) {
            (How::Put, _) => place.copy_from_slice(&bytes),
            (How::Reduce, Some((datatype, op))) => apply(datatype, op, place, &bytes, &[])?,
            (How::ReduceBehind, Some((datatype, op))) => {
                apply(datatype, op, &mut bytes, place, &[])?;
                place.copy_from_slice(&bytes);
            }
            (_, None) => return Err(Error::Invalid),
        }
        Ok(())
    }

    /// Returns the bytes of the result.
    fn result(&self) -> Result<Vec<u8>> {
        let mut bytes = reserved(self.plan.store.len() * self.block)?;
        for &block in &self.plan.store {
            bytes.extend_from_slice(&self.work[self.bytes(&(block..block + 1))]);
        }
        Ok(bytes)
    }
}

impl<H: Host> Groups<H> {
    /// Adds an operation and numbers it.
    pub(super) fn add(&mut self, mut run: Run<H::Operation>) {
        self.started += 1;
        run.number = self.started;
        self.runs.push(run);
    }

    /// Begins a collective operation.
    ///
    /// # Errors
    /// [`Error::Invalid`]: unknown group; [`Error::NotConnected`]: not all members have joined; or why the group has
    /// ended.
    pub(super) fn begin(&mut self, it: Loaded, attached: H::Operation) -> Result<()> {
        let Loaded {
            call: it,
            plan,
            work,
        } = it;
        let end = End::Completion {
            attached,
            result: it.result,
        };
        let mut run = Run {
            block: it.block,
            signature: signature(it.kind, it.root, it.block, it.reduction),
            reduction: it.reduction,
            work,
            ..Run::new(it.group, plan, end)
        };
        let group = self.group_mut(it.group).ok_or(Error::Invalid)?;
        if let Some(error) = group.broken {
            return Err(error);
        }
        if !group.joined {
            return Err(Error::NotConnected);
        }
        run.seq = group.next;
        group.next = match run.seq + 1 {
            LEFT => 1,
            next => next,
        };
        self.add(run);
        Ok(())
    }

    /// Advances all operations as far as possible.
    #[cold]
    pub(super) fn carry_on(&mut self, carrier: &mut Carrier<'_, H>, now: Instant) {
        loop {
            let mut runs = std::mem::take(&mut self.runs);
            for finished in std::mem::take(&mut self.finished) {
                let run = runs.iter_mut().find(|run| run.number == finished.run);
                if let Some(run) = run {
                    run.hear(finished);
                }
            }
            let mut waiting = Vec::with_capacity(runs.len());
            let mut ended = false;
            for mut run in runs {
                match self.follow(carrier, &mut run, now) {
                    Ok(false) => waiting.push(run),
                    Ok(true) => self.conclude(carrier, run, None),
                    Err(error) => {
                        ended = true;
                        self.break_up(carrier.host, run.group, error);
                        self.conclude(carrier, run, Some(error));
                    }
                }
            }
            self.runs.append(&mut waiting);
            // If one operation of a group fails, they all end.
            if !ended && self.finished.is_empty() {
                break;
            }
        }
        self.tell_members(carrier);
    }

    /// Whether it is time to check for peers that ended without a message; if so, schedules the next check.
    pub(super) fn is_look_due(&mut self, now: Instant) -> bool {
        let due = self.look.is_none_or(|at| now >= at);
        if due {
            self.look = Some(now + LOOK);
        }
        due
    }

    /// Advances an operation along its plan; returns whether it is complete.
    fn follow(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        run: &mut Run<H::Operation>,
        now: Instant,
    ) -> Result<bool> {
        let broken = self.group(run.group).ok_or(Error::Shutdown)?.broken;
        if let Some(error) = broken.or(run.error) {
            return Err(error);
        }
        let plan = std::mem::take(&mut run.plan);
        let followed = self.follow_plan(carrier, run, &plan, now);
        run.plan = plan;
        followed
    }

    fn follow_plan(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        run: &mut Run<H::Operation>,
        plan: &Plan,
        now: Instant,
    ) -> Result<bool> {
        while let Some(round) = plan.rounds.get(run.round) {
            while let Some(send) = round.sends.get(run.sent) {
                if run.open >= WINDOW {
                    return Ok(false);
                }
                match self.send_chunk(carrier, run, send, now) {
                    Ok(()) => {}
                    Err(Error::Again) => return Ok(false),
                    Err(error) => return Err(error),
                }
                run.sent += 1;
                run.open += 1;
            }
            // Received data may overwrite blocks that are still to be sent, so it must wait for the sends.
            if let Some(receive) = &round.receive {
                match self.take_chunk(carrier, run, receive, now)? {
                    Some(bytes) => run.put(receive, bytes)?,
                    None => return Ok(false),
                }
            }
            run.round += 1;
            run.sent = 0;
        }
        Ok(run.open == 0)
    }

    /// Ends an operation.
    fn conclude(
        &mut self,
        carrier: &mut Carrier<'_, H>,
        run: Run<H::Operation>,
        error: Option<Error>,
    ) {
        if error.is_some() {
            self.give_up_chunks(carrier, run.number);
        }
        let host = carrier.host;
        let result = match error {
            Some(error) => Err(error),
            None => run.result(),
        };
        match run.end {
            End::Join => self.joined(host, run.group, result.map(drop)),
            End::Completion {
                attached,
                result: sges,
            } => {
                let stored = result.and_then(|it| host.store(&sges, &it, LocalUse::Recv));
                let failure = stored.err().map(|error| Box::new(Failure::from(error)));
                host.completed(attached, failure);
            }
        }
    }
}
