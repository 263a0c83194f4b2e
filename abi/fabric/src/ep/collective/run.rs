//! Operations under way: each follows its plan, round after round, whenever the endpoint makes progress.

use super::*;
use crate::cq::Entry;
use crate::ep::operation::{Counts, Hold, What};
use rkey_device::core::LocalUse;
use rkey_rdm::atomic::{DataType, Op, apply};
use rkey_rdm::collective::plan::{How, Plan, Receive};
use std::ops::Range;
use std::time::Duration;

/// How often peers are looked after while something waits for them.
const LOOK: Duration = Duration::from_millis(50);

/// An operation.
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) group: u64,
    /// Its number in the group.
    pub(super) seq: u32,
    /// What all members have to agree about.
    pub(super) signature: u32,
    plan: Plan,
    /// Bytes of a block.
    pub(super) block: usize,
    /// Type and operation, if it reduces.
    pub(super) reduction: Option<(DataType, Op)>,
    pub(super) work: Vec<u8>,
    round: usize,
    /// Sends of the round that are posted.
    sent: usize,
    /// Chunks that are not answered.
    open: u32,
    /// A chunk is being read, or was.
    pub(super) fetching: bool,
    pub(super) fetched: Option<Box<[u8]>>,
    error: Option<FiError>,
    end: End,
}

/// What comes at the end.
pub(super) enum End {
    Join,
    Completion {
        entry: Entry,
        report: bool,
        result: Vec<Sge>,
    },
}

/// A chunk that is answered, or read.
pub(super) struct Finished {
    pub(super) run: u64,
    pub(super) fetched: Option<Box<[u8]>>,
    pub(super) error: Option<FiError>,
}

impl Run {
    pub(super) fn new(number: u64, group: u64, seq: u32, plan: Plan, end: End) -> Self {
        Self {
            number,
            group,
            seq,
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

    /// Where some blocks are.
    pub(super) fn bytes(&self, blocks: &Range<usize>) -> Range<usize> {
        blocks.start * self.block..blocks.end * self.block
    }

    /// A chunk of it is over.
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

    /// Puts what was received to its place.
    fn put(&mut self, receive: &Receive, mut bytes: Box<[u8]>) -> Result<()> {
        let place = self.bytes(&receive.blocks);
        let place = self.work.get_mut(place).ok_or(FiError::INVAL)?;
        match (receive.how, self.reduction) {
            (How::Put, _) => place.copy_from_slice(&bytes),
            (How::Reduce, Some((datatype, op))) => apply(datatype, op, place, &bytes, &[])?,
            (How::ReduceBehind, Some((datatype, op))) => {
                apply(datatype, op, &mut bytes, place, &[])?;
                place.copy_from_slice(&bytes);
            }
            (_, None) => return Err(FiError::INVAL),
        }
        Ok(())
    }

    /// The bytes of the result.
    fn result(&self) -> Result<Vec<u8>> {
        let mut bytes = reserved(self.plan.store.len() * self.block)?;
        for &block in &self.plan.store {
            bytes.extend_from_slice(&self.work[self.bytes(&(block..block + 1))]);
        }
        Ok(bytes)
    }
}

impl Endpoint {
    /// Lets operations go on as far as they can.
    #[cold]
    pub(in crate::ep) fn carry_on(&self, live: &Live, state: &mut State) {
        self.look_for_gone(live, state);
        loop {
            let Some(it) = &mut state.collective else {
                return;
            };
            let mut runs = std::mem::take(&mut it.runs);
            for finished in std::mem::take(&mut it.finished) {
                let run = runs.iter_mut().find(|run| run.number == finished.run);
                if let Some(run) = run {
                    run.hear(finished);
                }
            }
            let mut waiting = Vec::with_capacity(runs.len());
            let mut ended = false;
            for mut run in runs {
                match self.follow(live, state, &mut run) {
                    Ok(false) => waiting.push(run),
                    Ok(true) => self.conclude(live, state, run, None),
                    Err(error) => {
                        ended = true;
                        self.break_up(state, run.group, error);
                        self.conclude(live, state, run, Some(error));
                    }
                }
            }
            let Some(it) = &mut state.collective else {
                return;
            };
            it.runs.append(&mut waiting);
            // The end of one operation of a group is that of all.
            if !ended && it.finished.is_empty() {
                break;
            }
        }
        self.tell_members(state);
    }

    /// Peers that went without a word are found by looking.
    fn look_for_gone(&self, live: &Live, state: &mut State) {
        let Some(it) = &mut state.collective else {
            return;
        };
        let now = Instant::now();
        if it.look.is_some_and(|at| now < at) {
            return;
        }
        it.look = Some(now + LOOK);
        self.look_after(live, state);
    }

    /// Follows the plan of an operation; whether it is at its end.
    fn follow(&self, live: &Live, state: &mut State, run: &mut Run) -> Result<bool> {
        let it = state.collective.as_mut();
        let group = it.and_then(|it| it.group(run.group));
        let broken = group.ok_or(FiError::SHUTDOWN)?.broken;
        if let Some(error) = broken.or(run.error) {
            return Err(error);
        }
        let plan = std::mem::take(&mut run.plan);
        let followed = self.follow_plan(live, state, run, &plan);
        run.plan = plan;
        followed
    }

    fn follow_plan(
        &self,
        live: &Live,
        state: &mut State,
        run: &mut Run,
        plan: &Plan,
    ) -> Result<bool> {
        while let Some(round) = plan.rounds.get(run.round) {
            while let Some(send) = round.sends.get(run.sent) {
                if run.open >= WINDOW {
                    return Ok(false);
                }
                match self.send_chunk(live, state, run, send) {
                    Ok(()) => {}
                    Err(FiError::AGAIN) => return Ok(false),
                    Err(error) => return Err(error),
                }
                run.sent += 1;
                run.open += 1;
            }
            // What is received may change what was to be sent: not before that.
            if let Some(receive) = &round.receive {
                match self.take_chunk(live, state, run, receive)? {
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
    fn conclude(&self, live: &Live, state: &mut State, run: Run, error: Option<FiError>) {
        if error.is_some() {
            self.give_up_chunks(live, state, run.number);
        }
        match (&run.end, error) {
            (End::Join, None) => self.joined(live, state, run.group),
            (End::Join, Some(error)) => self.not_joined(live, state, run.group, error),
            (
                End::Completion {
                    entry,
                    report,
                    result,
                },
                error,
            ) => {
                let stored = match error {
                    Some(error) => Err(error),
                    None => run
                        .result()
                        .and_then(|bytes| self.scatter_for(result, &bytes, LocalUse::Recv)),
                };
                let operation = Operation {
                    left: 0,
                    error: stored.err().map(|error| Box::new((error, Vec::new()))),
                    what: What::Transmit,
                    entry: entry.clone(),
                    report: *report,
                    counts: Some(Counts::Place(WRITTEN)),
                    connection: 0,
                    answered: false,
                    turn: None,
                    hold: Hold::Nothing,
                };
                Self::report(live, operation);
            }
        }
    }

    /// Nobody waits any more for answers to the chunks of an operation.
    fn give_up_chunks(&self, live: &Live, state: &mut State, run: u64) {
        let of_run = |operation: &Operation| matches!(operation.what, What::Chunk { run: of, .. } if of == run);
        for id in state.operations.all(of_run) {
            if let Some(operation) = state.operations.get(id)
                && operation.answered
            {
                operation.answered = false;
                self.fail_with(live, state, id, FiError::CANCELED);
            }
        }
    }
}
