//! The responder of an unreliable connection: a message arrives whole or is dropped (IBA volume 1, 9.8.2).

use super::assembly::{Assembly, ExecuteError};
use crate::packet::{Headers, Mtu, Request, Tail};
use crate::transport::config::Config;
use crate::transport::event::Status;
use crate::transport::host::Host;
use crate::transport::sequence::Sequence;
use crate::transport::step::{Output, Step};

/// A packet that is at most this many positions late was overtaken or is a duplicate. At any other position the sequence
/// restarts there: any number of the peer's packets may have been lost.
const LATE_MAX: u32 = 1 << 16;

/// The responding half of an unreliable connection.
#[derive(Debug)]
pub(crate) struct UnreliableResponder {
    mtu: Mtu,
    /// The position after that of the last packet.
    expected: Sequence,
    assembly: Assembly,
}

impl UnreliableResponder {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            mtu: config.mtu,
            expected: Sequence::first(config.receive_psn),
            assembly: Assembly::default(),
        }
    }

    /// Executes or drops a request.
    pub(crate) fn receive<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        headers: &Headers,
        request: &Request,
        payload: &[u8],
    ) {
        let at = self.expected.near(headers.psn);
        if (1..=LATE_MAX).contains(&self.expected.since(at)) {
            step.out.counters.duplicates += 1;
            return;
        }
        if at != self.expected {
            // The part of the message received so far is dropped, and so is everything until the next message starts.
            step.out.counters.out_of_sequence += 1;
            self.assembly.abandon();
        }
        self.expected = Sequence::first(headers.psn).next();
        if request.position().starts() {
            self.assembly.abandon();
        } else if !self.assembly.is_active() {
            step.out.counters.dropped += 1;
            return;
        }
        let invalidates = matches!(
            request,
            Request::SendLast(Tail::Invalidate(_)) | Request::SendOnly(Tail::Invalidate(_))
        );
        let fits = headers.body.check_length(payload.len(), self.mtu).is_ok();
        let executable = fits && request.has_payload() && !invalidates;
        let result = if executable {
            self.assembly
                .accept(step, request, headers.solicited, payload)
                .map(drop)
        } else {
            Err(ExecuteError::INVALID)
        };
        if let Err(error) = result {
            step.out.counters.dropped += 1;
            self.drop_message(step, error);
        }
    }

    /// Drops the message in progress. Its receive ends only if the receive itself has an error.
    fn drop_message<H>(&mut self, step: &mut Step<'_, H>, error: ExecuteError) {
        match error {
            ExecuteError::Refused {
                receive: status @ (Status::LocalLength | Status::LocalProtection),
                ..
            } => self.assembly.fail_receive(step.out, status),
            _ => self.assembly.abandon(),
        }
    }

    /// Abandons the message in progress.
    pub(crate) fn flush(&mut self, out: &mut Output) {
        self.assembly.fail_receive(out, Status::Flushed);
    }
}
