//! The buffer of an operation, as its requests name it.

use super::host::EndpointHost;
use super::slot::Slot;
use crate::memory::owned::{Exposed, Lent, LocalMemory};
use rkey_engine::Sge;
use rkey_rdm::endpoint::PayloadSource;
use rkey_rdm::error::Error as Code;
use rkey_rdm::sges::Sges;
use std::sync::Arc;

/// The buffer of an operation, in the form that its requests need.
pub(super) struct Bytes<'a> {
    memory: &'a LocalMemory,
    pub(super) sges: Sges,
    pub(super) slot: Arc<Slot>,
}

impl<'a> Bytes<'a> {
    pub(super) fn of(memory: &'a LocalMemory, buffer: Lent) -> Self {
        let sges = match buffer.len() {
            0 => Sges::new(),
            _ => Sges::from_buf([memory.element(&buffer)]),
        };
        Self {
            memory,
            sges,
            slot: Arc::new(Slot::new(buffer)),
        }
    }

    /// Uses the buffer of a message that has not been sent yet.
    fn with<T>(&self, body: impl FnOnce(&Lent) -> Option<T>) -> std::result::Result<T, Code> {
        self.slot.with_buffer(body).ok_or(Code::Fault)
    }
}

impl PayloadSource<EndpointHost> for Bytes<'_> {
    fn sges(&self) -> &[Sge] {
        &self.sges
    }

    fn copy(&self, into: &mut [u8]) -> std::result::Result<(), Code> {
        self.with(|buffer| self.memory.load(buffer, into).then_some(()))
    }

    fn expose(&self) -> std::result::Result<(Exposed, u32), Code> {
        let exposed = self.with(|buffer| Some(self.memory.expose(buffer)))?;
        let exposed = exposed.map_err(|_| Code::NoMemory)?;
        let key = exposed.key();
        Ok((exposed, key))
    }
}
