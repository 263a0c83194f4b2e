//! Assembles sends and writes from their packets.

use crate::packet::{NakCode, Request, Reth, Tail};
use crate::transport::event::{Received, Status};
use crate::transport::host::{Access, Host, Receive, Refusal, RemoteRange};
use crate::transport::step::{Output, Step};
use crate::transport::work::MESSAGE_MAX;

/// The message that is being received, and the receive taken for it.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    current: Option<Message>,
    /// A receive that was taken for a message and not completed. If the message is abandoned, the next one uses it.
    receive: Option<Receive>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    /// The destination of a write; `None` for a send.
    target: Option<Reth>,
    /// The number of bytes that have arrived.
    done: u32,
}

/// Why a packet was not executed.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExecuteError {
    /// No receive is posted. Nothing has changed.
    NoReceive,
    /// The request is refused permanently.
    Refused {
        /// The code that the peer gets.
        code: NakCode,
        /// The status of the message's receive.
        receive: Status,
    },
}

impl ExecuteError {
    /// The packet does not match the packets before it, or its own headers.
    pub(super) const INVALID: Self = Self::Refused {
        code: NakCode::InvalidRequest,
        receive: Status::Flushed,
    };
}

impl From<Refusal> for ExecuteError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused {
            code: refusal.into(),
            receive: Status::LocalAccess,
        }
    }
}

impl Assembly {
    /// Whether a message is in progress.
    pub(super) fn is_active(&self) -> bool {
        self.current.is_some()
    }

    /// Abandons the message in progress; the next one uses its receive.
    pub(super) fn abandon(&mut self) {
        self.current = None;
    }

    /// Ends the receive of the message in progress with an error.
    pub(super) fn fail_receive(&mut self, out: &mut Output, status: Status) {
        self.current = None;
        if let Some(receive) = self.receive.take() {
            out.fail_receive(receive.id, status);
        }
    }

    /// Handles the next packet, whose payload length is valid for its position. Returns whether it ends the message.
    pub(super) fn accept<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        request: &Request,
        solicited: bool,
        payload: &[u8],
    ) -> Result<bool, ExecuteError> {
        let position = request.position();
        let message = match (self.current, position.starts()) {
            (None, true) => self.begin(step, request, payload)?,
            (Some(message), false) if message.target.is_some() == is_write(request) => message,
            _ => return Err(ExecuteError::INVALID),
        };
        if immediate(request).is_some() {
            self.need_receive(step)?;
        }
        let done = self.store(step, &message, position.ends(), payload)?;
        self.current = Some(Message { done, ..message });
        if position.ends() {
            self.end(step, request, solicited, done)?;
        }
        Ok(position.ends())
    }

    /// Checks the first packet of a message. Has no effect except that it may take a receive.
    fn begin<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        request: &Request,
        payload: &[u8],
    ) -> Result<Message, ExecuteError> {
        let (reth, fits) = match *request {
            Request::WriteFirst(reth) => (reth, payload.len() < reth.length as usize),
            Request::WriteOnly(reth, _) => (reth, payload.len() == reth.length as usize),
            _ => {
                self.need_receive(step)?;
                return Ok(Message {
                    target: None,
                    done: 0,
                });
            }
        };
        if !fits || reth.length > MESSAGE_MAX {
            return Err(ExecuteError::INVALID);
        }
        if reth.length > 0 {
            step.host.check(&super::range(&reth), Access::Write)?;
        }
        Ok(Message {
            target: Some(reth),
            done: 0,
        })
    }

    fn need_receive<H: Host>(&mut self, step: &mut Step<'_, H>) -> Result<(), ExecuteError> {
        if self.receive.is_none() {
            self.receive = step.host.take_receive(0);
        }
        self.receive.map(drop).ok_or(ExecuteError::NoReceive)
    }

    /// Stores the payload of a packet; returns how much of the message has arrived.
    fn store<H: Host>(
        &self,
        step: &mut Step<'_, H>,
        message: &Message,
        is_last: bool,
        payload: &[u8],
    ) -> Result<u32, ExecuteError> {
        // Neither overflows: the first is at most the longest message, the second at most the largest path MTU.
        let length = payload.len() as u32;
        let end = message.done + length;
        if end > MESSAGE_MAX {
            return Err(ExecuteError::INVALID);
        }
        match message.target {
            Some(reth) => {
                let fits = if is_last {
                    end == reth.length
                } else {
                    end < reth.length
                };
                if !fits {
                    return Err(ExecuteError::INVALID);
                }
                if length > 0 {
                    let range = RemoteRange {
                        address: reth.address.wrapping_add(message.done.into()),
                        rkey: reth.rkey,
                        length,
                    };
                    step.host.write(&range, payload)?;
                }
            }
            None => self.fill(step, message.done, end, payload)?,
        }
        Ok(end)
    }

    /// Stores the payload of a send in its receive.
    fn fill<H: Host>(
        &self,
        step: &mut Step<'_, H>,
        done: u32,
        end: u32,
        payload: &[u8],
    ) -> Result<(), ExecuteError> {
        let receive = self.receive.ok_or(ExecuteError::INVALID)?;
        if u64::from(end) > receive.capacity {
            return Err(ExecuteError::Refused {
                code: NakCode::InvalidRequest,
                receive: Status::LocalLength,
            });
        }
        if payload.is_empty() {
            return Ok(());
        }
        let filled = step.host.fill(receive.id, done, payload);
        filled.map_err(|_| ExecuteError::Refused {
            code: NakCode::RemoteOperationalError,
            receive: Status::LocalProtection,
        })
    }

    /// Completes a message after its last packet has been stored.
    fn end<H: Host>(
        &mut self,
        step: &mut Step<'_, H>,
        request: &Request,
        solicited: bool,
        bytes: u32,
    ) -> Result<(), ExecuteError> {
        let invalidated = match request {
            Request::SendLast(Tail::Invalidate(ieth))
            | Request::SendOnly(Tail::Invalidate(ieth)) => {
                step.host.invalidate(ieth.rkey)?;
                Some(ieth.rkey)
            }
            _ => None,
        };
        self.current = None;
        let immediate = immediate(request);
        if is_write(request) && immediate.is_none() {
            return Ok(());
        }
        if let Some(receive) = self.receive.take() {
            step.out.receive(Received {
                id: receive.id,
                bytes,
                is_write: is_write(request),
                immediate,
                invalidated,
                solicited,
                source: None,
            });
        }
        Ok(())
    }
}

fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::WriteFirst(_)
            | Request::WriteMiddle
            | Request::WriteLast(_)
            | Request::WriteOnly(..)
    )
}

fn immediate(request: &Request) -> Option<u32> {
    match request {
        Request::SendLast(Tail::Immediate(immediate))
        | Request::SendOnly(Tail::Immediate(immediate))
        | Request::WriteLast(Some(immediate))
        | Request::WriteOnly(_, Some(immediate)) => Some(immediate.data),
        _ => None,
    }
}
