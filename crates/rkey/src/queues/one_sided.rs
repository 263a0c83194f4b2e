//! The operations of a queue pair on its peer's memory, for every kind of connection.

use crate::device::domain::Domain;
use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use crate::memory::memory_region::MemoryRegion;
use crate::queues::flight::Flight;
use crate::queues::pending::Pending;
use crate::queues::queue_pair::{INLINE, QueuePair};
use crate::queues::results::ResultPlaces;
use rkey_engine::SendFlags;
use std::ops::RangeBounds;
use std::time::Duration;

/// A connected queue pair, with the state of its send queue.
pub(crate) struct OneSided {
    /// The first field, so that it is dropped before the memory that it uses.
    pub(crate) data: QueuePair,
    pub(crate) domain: Domain,
    /// All operations of the send queue.
    pub(crate) sends: Flight,
    pub(crate) results: ResultPlaces,
}

impl OneSided {
    pub(crate) fn timeout(&self) -> Duration {
        self.domain.device().timeout()
    }

    pub(crate) fn write<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'a>> {
        let part = local.part(range)?;
        key.at(offset, u64::from(part.len))?;
        let number = self.post(|id| {
            self.data
                .post_write(id, &[part], key, offset, SendFlags::SIGNALED)
        })?;
        Ok(self.plain(number))
    }

    pub(crate) fn write_bytes(
        &self,
        bytes: &[u8],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'_>> {
        if bytes.len() > INLINE as usize {
            return Err(Error::OutOfRange {
                what: "inline write",
                offset: 0,
                len: bytes.len() as u64,
                available: u64::from(INLINE),
            });
        }
        key.at(offset, bytes.len() as u64)?;
        let flags = SendFlags::SIGNALED;
        let number = self.post(|id| self.data.post_write_inline(id, bytes, key, offset, flags))?;
        Ok(self.plain(number))
    }

    pub(crate) fn read<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Pending<'a>> {
        let part = local.part(range)?;
        key.at(offset, u64::from(part.len))?;
        let number = self.post(|id| {
            self.data
                .post_read(id, &[part], key, offset, SendFlags::SIGNALED)
        })?;
        Ok(self.plain(number))
    }

    pub(crate) fn compare_and_swap(
        &self,
        key: &RemoteKey,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Pending<'_, u64>> {
        self.atomic(key, offset, |id, place| {
            self.data.post_compare_and_swap(
                id,
                place,
                key,
                offset,
                (compare, swap),
                SendFlags::SIGNALED,
            )
        })
    }

    pub(crate) fn fetch_and_add(
        &self,
        key: &RemoteKey,
        offset: u64,
        add: u64,
    ) -> Result<Pending<'_, u64>> {
        self.atomic(key, offset, |id, place| {
            self.data
                .post_fetch_and_add(id, place, key, offset, add, SendFlags::SIGNALED)
        })
    }

    fn atomic(
        &self,
        key: &RemoteKey,
        offset: u64,
        post: impl FnOnce(u64, rkey_engine::Sge) -> Result<()>,
    ) -> Result<Pending<'_, u64>> {
        key.at(offset, 8)?;
        let place = self.results.take(&self.sends, self.timeout())?;
        let operand = self.results.operand(place);
        match operand.and_then(|operand| self.post(|id| post(id, operand))) {
            Ok(number) => Ok(Pending::atomic(
                &self.sends,
                self.timeout(),
                number,
                (&self.results, place),
            )),
            Err(error) => {
                self.results.give_back(place);
                Err(error)
            }
        }
    }

    pub(crate) fn send_from<'a>(
        &'a self,
        local: &'a MemoryRegion,
        range: impl RangeBounds<u64>,
    ) -> Result<Pending<'a>> {
        let part = local.part(range)?;
        let number = self.post(|id| self.data.post_send(id, &[part], SendFlags::SIGNALED))?;
        Ok(self.plain(number))
    }

    pub(crate) fn post(&self, post: impl FnOnce(u64) -> Result<()>) -> Result<u64> {
        self.sends.post(self.timeout(), false, post)
    }

    fn plain(&self, number: u64) -> Pending<'_> {
        Pending::plain(&self.sends, self.timeout(), number)
    }
}
