//! Completions of the device, and what follows from them.

#![allow(unsafe_code)]
// UNSAFETY: reads buffers that the device has filled.

use super::direct::Direct;
use super::operation::{Counts, Operation, What, counter_of, entry_of};
use super::order::Arrival;
use super::*;
use crate::cq::Entry;
use crate::errno::of_status;
use rkey_device::core::{Denial, NamedKey, WireKey};
use rkey_device::engine::{CompletionOp, QpState, RecvRequest, Status};
use rkey_rdm::header::{Header, Kind};
use rkey_rdm::operation::{UNTRACKED, Plain};

/// The error that a peer reports: 0 is none.
pub(super) fn reported(number: u64) -> Option<FiError> {
    match number {
        0 => None,
        1..=4095 => Some(FiError(number as i32)),
        _ => Some(FiError(libc::EREMOTEIO)),
    }
}

impl Endpoint {
    /// Handles what the device has completed.
    pub(super) fn advance(&self, live: &Live, state: &mut State) {
        // Before the completions are taken: what came from those peers is among them.
        let peers_gone = live.cq.peers_gone();
        self.take_completions(live, state);
        if !state.draining.is_empty() {
            self.drain(live, state);
        }
        if state.collective.as_ref().is_some_and(|it| !it.is_idle()) {
            self.carry_on(live, state);
        }
        self.settle(live, state);
        if state.owing {
            self.give_back(live, state);
        }
        if state.connections.awaits_teardown() && self.ep_type != FI_EP_MSG {
            self.tear_down(state);
        }
        if peers_gone != state.peers_gone {
            state.peers_gone = peers_gone;
            self.look_after(live, state);
        }
    }

    /// Takes the completions of the device that are there.
    fn take_completions(&self, live: &Live, state: &mut State) {
        let mut completions = std::mem::take(&mut state.completions);
        if completions.is_empty() {
            completions = vec![Completion::default(); 32];
        }
        loop {
            let mut direct = Direct {
                ep: self,
                live,
                state,
                refused: Vec::new(),
            };
            let polled = live.cq.poll_with(&mut completions, &mut direct);
            for denial in direct.refused {
                rkey_device::denials::refused(&denial.in_one_line());
            }
            let Ok(count) = polled else {
                break;
            };
            for completion in &completions[..count] {
                if completion.opcode.is_recv() {
                    self.incoming(live, state, completion);
                } else {
                    self.sent(live, state, completion);
                }
            }
            if count < completions.len() {
                break;
            }
        }
        state.completions = completions;
    }

    /// Looks for connections whose peer went without a word: its queue pair is in the error state then. Whoever
    /// still connects one looks himself when it is made.
    #[cold]
    pub(super) fn look_after(&self, live: &Live, state: &mut State) {
        let is_over = |&connection: &usize| {
            let it = &state.connections[connection];
            !it.state().is_lost() && !it.state().is_connecting() && Self::is_broken(it)
        };
        let over: Vec<usize> = (0..state.connections.places()).filter(is_over).collect();
        if over.is_empty() {
            return;
        }
        // The last messages of a peer that exits are there before its queue pair fails, and may have come since the
        // completions were taken: an answer among them ends an operation that would fail here.
        self.take_completions(live, state);
        for connection in over {
            self.lose(live, state, connection);
        }
    }

    /// A message is in one of our buffers.
    #[inline]
    fn incoming(&self, live: &Live, state: &mut State, completion: &Completion) {
        let index = completion.id as u32;
        if completion.status == Status::Success
            && let Some(connection) = state.connections.find(completion.qpn)
            && state.connections[connection].state().hears()
        {
            if completion.opcode == CompletionOp::RecvWriteImm {
                let (len, data) = (completion.bytes, completion.imm.into());
                self.written(live, state, connection, len, data);
                return self.post_buffer(live, index);
            }
            // SAFETY: the receive is complete, and the buffer is posted again below.
            let bytes = unsafe { live.buffers.read(index, completion.bytes as usize) };
            match Header::decode(bytes) {
                Some((header, payload)) => self.heard(live, state, connection, header, payload),
                None => {
                    self.cut_off(
                        live,
                        state,
                        connection,
                        "it sent something that is no message",
                    );
                }
            }
        }
        self.post_buffer(live, index);
    }

    /// A peer has written so many bytes, and these data come with them.
    fn written(&self, live: &Live, state: &mut State, connection: usize, len: u32, data: u64) {
        if !self.admit(live, state, connection, 0) {
            return;
        }
        self.taken(live, state, connection, 0);
        let entry = Entry {
            flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
            len: len as usize,
            data,
            source: FI_ADDR_NOTAVAIL,
            ..Entry::default()
        };
        let turn = self.turn(state, false);
        Self::in_turn(live, state, turn, Arrival::Data(entry));
    }

    /// Gives a buffer to the device.
    pub(super) fn post_buffer(&self, live: &Live, index: u32) {
        let sge = Sge {
            addr: live.buffers.address(index),
            len: BUFFER_LEN as u32,
            key: self.group.everything(),
        };
        let request = RecvRequest {
            id: u64::from(index),
            sges: &[sge],
        };
        if let Err(error) = live.srq.post_recv(&request) {
            tracing::warn!(%error, "a buffer for messages is lost");
        }
    }

    /// A peer said something.
    #[inline]
    fn heard(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        header: Header,
        payload: &[u8],
    ) {
        match header.kind {
            Kind::Message | Kind::Rts { .. } => {
                self.arrived(live, state, connection, header, payload);
            }
            Kind::Fin => {
                let error = reported(header.data);
                self.answered(live, state, connection, header.id, error);
            }
            Kind::WriteData => self.written(live, state, connection, header.len, header.data),
            Kind::Credit => {
                let messages = u32::try_from(header.data).unwrap_or(u32::MAX);
                state.connections[connection]
                    .credit
                    .add(messages, header.len);
            }
            Kind::Atomic(atomic) => {
                let (error, result) =
                    self.execute(&state.connections[connection], &atomic, payload);
                // FI-I24: what gives values back counts as a read.
                let place = usize::from(atomic.form == 0);
                if let (None, Some(counter)) = (&error, live.remote[place].get()) {
                    counter.count();
                }
                let answer = Header {
                    id: header.id,
                    data: error.map_or(0, |error| error.0 as u64),
                    ..Header::new(Kind::AtomicResult)
                };
                self.say(state, connection, &answer, &result);
            }
            Kind::AtomicResult => {
                let mut error = reported(header.data);
                if let Some(operation) = state.operations.get(header.id)
                    && operation.connection == connection
                    && let What::AtomicFetch { result } = &operation.what
                    && error.is_none()
                {
                    error = self.scatter_result(result, payload).err();
                }
                self.answered(live, state, connection, header.id, error);
            }
            Kind::Commit => {
                let error = self.commit(&state.connections[connection], payload).err();
                let answer = Header {
                    id: header.id,
                    data: error.map_or(0, |error| error.0 as u64),
                    ..Header::new(Kind::Fin)
                };
                self.say(state, connection, &answer, &[]);
            }
            Kind::Bye => self.lose(live, state, connection),
            Kind::Chunk { .. } | Kind::ChunkRts { .. } | Kind::Leave => {
                self.chunk_arrived(live, state, connection, &header, payload);
            }
        }
    }

    /// The peer answered an operation of ours. An answer to something else is not looked at.
    fn answered(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        id: u64,
        error: Option<FiError>,
    ) {
        let Some(operation) = state.operations.get(id) else {
            return;
        };
        if operation.connection != connection || !operation.answered {
            return;
        }
        operation.answered = false;
        if let Some(error) = error {
            operation.fail(error);
        }
        self.step(live, state, id);
    }

    /// A request of ours is complete.
    #[inline]
    fn sent(&self, live: &Live, state: &mut State, completion: &Completion) {
        let Some(connection) = state.connections.find(completion.qpn) else {
            return;
        };
        let it = &mut state.connections[connection];
        it.outstanding = it.outstanding.saturating_sub(1);
        let failed = completion.status != Status::Success;
        let waiting = !it.backlog.is_empty();
        if completion.id != UNTRACKED {
            let id = match Plain::of(completion.id) {
                Some(plain) if !failed => {
                    Self::report_plain(live, plain);
                    None
                }
                Some(plain) => Some(state.operations.add(Operation::of_plain(plain, connection))),
                None => Some(completion.id),
            };
            if let Some(id) = id {
                if failed {
                    self.fail(live, state, completion, id);
                }
                self.step(live, state, id);
            }
        }
        if failed {
            self.check(live, state, connection);
        }
        if waiting {
            self.catch_up(state, connection);
        }
    }

    /// Notes why a request failed. No answer will come to one that did not arrive.
    #[cold]
    fn fail(&self, live: &Live, state: &mut State, completion: &Completion, id: u64) {
        if completion.status == Status::LocalProtection && completion.opcode == CompletionOp::Send {
            // A message whose memory could not be read: it has not left, and needed no credit.
            let len = completion.bytes.saturating_sub(header::LEN as u32);
            if let Some(connection) = state.connections.find(completion.qpn) {
                state.connections[connection].credit.add(1, len);
            }
        }
        let report = self.domain.device.denial(completion.vendor);
        let denial = report.as_ref().map(|report| &report.denial);
        let error = of_status(completion.status, denial);
        let Some(operation) = state.operations.get(id) else {
            return;
        };
        let detail = match &report {
            Some(report) => {
                let denial = &report.denial;
                let peer = state.connections[operation.connection].peer;
                let here = self.number - crate::domain::FIRST_NUMBER;
                let peer = match live.av.as_ref().map(|av| av.number(&peer)) {
                    None | Some(FI_ADDR_NOTAVAIL) => rkey_rdm::address::to_text(peer),
                    Some(number) => {
                        format!("fi_addr {number}, {}", rkey_rdm::address::to_text(peer))
                    }
                };
                let advice = advice(denial);
                let id = report.id;
                let detail = format!("{denial} (endpoint {here} to {peer}; denial {id}). {advice}");
                self.domain.device.tell_own_denial(&detail);
                detail
            }
            None => String::new(),
        };
        operation.fail_with(error, detail.into_bytes());
        if operation.answered {
            operation.answered = false;
            self.step(live, state, id);
        }
    }

    /// A connection on which something failed is lost if the queue pair is.
    #[cold]
    pub(super) fn check(&self, live: &Live, state: &mut State, connection: usize) {
        if Self::is_broken(&state.connections[connection]) {
            self.lose(live, state, connection);
        }
    }

    /// Whether the queue pair of a connection has failed.
    fn is_broken(connection: &Connection) -> bool {
        let info = connection.qp.as_ref().and_then(|qp| qp.query().ok());
        info.is_some_and(|info| matches!(info.state, QpState::Error | QpState::Sqe))
    }

    /// One thing that an operation waited for has come.
    #[inline]
    pub(super) fn step(&self, live: &Live, state: &mut State, id: u64) {
        let Some(operation) = state.operations.get(id) else {
            return;
        };
        operation.left = operation.left.saturating_sub(1);
        if operation.left > 0 {
            return;
        }
        if let (What::Write { data, len }, None) = (&operation.what, &operation.error) {
            let (data, len, connection) = (*data, *len, operation.connection);
            let header = Header {
                data,
                len,
                ..Header::new(Kind::WriteData)
            };
            operation.what = What::Transmit;
            operation.left = 1;
            return self.say_for(state, connection, &header, &[], id);
        }
        if let Some(operation) = state.operations.take(id) {
            self.end(live, state, operation);
        }
    }

    /// What an operation waited for will not come. There may be none.
    #[cold]
    pub(super) fn fail_with(&self, live: &Live, state: &mut State, id: u64, error: FiError) {
        if let Some(operation) = state.operations.get(id) {
            operation.fail(error);
            self.step(live, state, id);
        }
    }

    /// An operation is complete, and its memory the program's.
    pub(super) fn finish(&self, live: &Live, state: &mut State, operation: Operation) {
        if let What::Fetch { landing, id } = operation.what {
            let error = operation.error.map(|trouble| trouble.0);
            let number = error.map_or(0, |error| error.0 as u64);
            self.send_fin(live, state, operation.connection, id, number);
            self.received(live, state, *landing, error);
            return;
        }
        if let What::Chunk { .. } = operation.what {
            return self.chunk_over(state, operation);
        }
        if operation.error.is_some() {
            Self::refund(state, &operation);
        }
        let Some(turn) = operation.turn else {
            return Self::report(live, operation);
        };
        state.sends.finish(turn, operation);
        while let Some(operation) = state.sends.pop() {
            Self::report(live, operation);
        }
    }

    /// Tells the program that a plain operation has succeeded.
    #[inline]
    fn report_plain(live: &Live, plain: Plain) {
        if let Some(counter) = live.counters[counter_of(plain.form)].get() {
            counter.count();
        }
        if plain.report
            && let Some(tx) = &live.tx
        {
            tx.cq.push(entry_of(plain));
        }
    }

    /// Tells the program that an operation is complete.
    pub(super) fn report(live: &Live, operation: Operation) {
        let counter = match &operation.counts {
            Some(Counts::Place(place)) => live.counters[*place].get(),
            Some(Counts::Own(counter)) => counter.as_ref(),
            None => None,
        };
        match (&operation.error, counter) {
            (Some(_), Some(counter)) => counter.count_error(),
            (None, Some(counter)) => counter.count(),
            _ => {}
        }
        let Some(tx) = &live.tx else { return };
        match operation.error {
            // What the program asked not to hear of (fi_inject, no FI_COMPLETION) is told when it fails (fi_msg(3)).
            Some(trouble)
                if operation.report || matches!(operation.counts, Some(Counts::Place(_))) =>
            {
                let (error, detail) = *trouble;
                tx.cq.push(operation.entry.failed_with(error, 0, detail));
            }
            None if operation.report => tx.cq.push(operation.entry),
            _ => {}
        }
    }

    /// The peer was not told of a write: the credit for that was not used.
    pub(super) fn refund(state: &mut State, operation: &Operation) {
        if matches!(operation.what, What::Write { .. } | What::WriteTold) {
            state.connections[operation.connection].credit.add(1, 0);
        }
    }

    /// Waits until what was posted has arrived, for a short while: before an endpoint goes.
    pub(super) fn linger(&self, live: &Live) {
        let until = std::time::Instant::now() + std::time::Duration::from_millis(500);
        loop {
            let mut state = live.state.lock();
            self.advance(live, &mut state);
            if !state.connections.iter().any(Connection::is_busy)
                || std::time::Instant::now() >= until
            {
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Gives the receives of a connected endpoint back, whose connection ended, and tells its event queue, once.
    pub(super) fn tell_shutdown(&self, live: &Live, state: &mut State) {
        if std::mem::replace(&mut state.shut, true) {
            return;
        }
        self.flush_receives(live, state);
        if let Some(eq) = &live.eq {
            let fid = self.handle.load(Ordering::Relaxed);
            eq.unless_closing(&self.closing, || {
                eq.connection(FI_SHUTDOWN, fid, std::ptr::null_mut(), &[]);
            });
        }
    }
}

/// What to do about a refusal.
fn advice(denial: &Denial) -> String {
    if denial.key == NamedKey::Remote(WireKey::Requested(FI_KEY_NOTAVAIL)) {
        return "The key is FI_KEY_NOTAVAIL: fi_mr_key gives it for a region without remote rights, or not enabled yet.".to_owned();
    }
    denial.advice()
}
