//! The requests that a program posts to a queue pair: sends, writes, reads, atomics, binds and receives.

use crate::error::{Error, Result};
use crate::memory::key::RemoteKey;
use crate::memory::memory_region::{MemoryRegion, resolve};
use crate::memory::window::{BIND_RULES, Window};
use crate::queues::queue_pair::QueuePair;
use rkey_core::{Access, Key, RKey};
use rkey_device::ReservedKey;
use rkey_device::base::VaRange;
use rkey_engine::{RecvRequest, SendFlags, SendRequest, Sge, Target, Work};
use std::ops::RangeBounds;

impl QueuePair {
    /// Posts any request except the bind of a window; the methods below are more convenient.
    ///
    /// # Errors
    /// The send queue is full or not connected, or does not accept such a request. Nothing is posted.
    #[inline]
    pub fn post(&self, request: &SendRequest<'_>) -> Result<()> {
        if matches!(request.work, Work::Bind { .. }) {
            return Err(bind_by_hand());
        }
        Ok(self.raw.post_send(request)?)
    }

    /// Posts requests in order until one is refused, ringing the doorbell once for all.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`], with the number of posted requests.
    pub fn post_many(
        &self,
        requests: &[SendRequest<'_>],
    ) -> std::result::Result<(), (usize, Error)> {
        if requests
            .iter()
            .any(|request| matches!(request.work, Work::Bind { .. }))
        {
            return Err((0, bind_by_hand()));
        }
        self.raw
            .post_sends(requests)
            .map_err(|(taken, error)| (taken, error.into()))
    }

    #[inline]
    fn post_work(&self, id: u64, work: Work, sges: &[Sge], flags: SendFlags) -> Result<()> {
        self.post(&SendRequest {
            id,
            work,
            sges,
            inline: None,
            prefix: &[],
            flags,
            ud: None,
        })
    }

    #[inline]
    fn post_inline(&self, id: u64, work: Work, bytes: &[u8], flags: SendFlags) -> Result<()> {
        self.post(&SendRequest {
            id,
            work,
            sges: &[],
            inline: Some(bytes),
            prefix: &[],
            flags,
            ud: None,
        })
    }

    /// Posts a send of these buffers as one message.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    #[inline]
    pub fn post_send(&self, id: u64, parts: &[Sge], flags: SendFlags) -> Result<()> {
        self.post_work(
            id,
            Work::Send {
                imm: None,
                invalidate: None,
            },
            parts,
            flags,
        )
    }

    /// Posts a send of bytes that need not be registered and are copied at once.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`]; also for more bytes than the queue pair was built for.
    #[inline]
    pub fn post_send_inline(&self, id: u64, bytes: &[u8], flags: SendFlags) -> Result<()> {
        self.post_inline(
            id,
            Work::Send {
                imm: None,
                invalidate: None,
            },
            bytes,
            flags,
        )
    }

    /// Posts a send that also invalidates a type 2 window of the peer on arrival.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    pub fn post_send_and_invalidate(
        &self,
        id: u64,
        parts: &[Sge],
        window: Key,
        flags: SendFlags,
    ) -> Result<()> {
        self.post_work(
            id,
            Work::Send {
                imm: None,
                invalidate: Some(window),
            },
            parts,
            flags,
        )
    }

    /// Posts a write of these buffers to `offset` of the peer's memory.
    ///
    /// The offset is not checked against the key's length on this side: the peer decides.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    #[inline]
    pub fn post_write(
        &self,
        id: u64,
        parts: &[Sge],
        key: &RemoteKey,
        offset: u64,
        flags: SendFlags,
    ) -> Result<()> {
        self.post_work(
            id,
            Work::Write {
                remote: target(key, offset),
                imm: None,
            },
            parts,
            flags,
        )
    }

    /// Posts a write that also completes a receive of the peer, which gets `immediate` with it.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    #[inline]
    pub fn post_write_with_immediate(
        &self,
        id: u64,
        parts: &[Sge],
        (key, offset): (&RemoteKey, u64),
        immediate: u32,
        flags: SendFlags,
    ) -> Result<()> {
        let work = Work::Write {
            remote: target(key, offset),
            imm: Some(immediate),
        };
        self.post_work(id, work, parts, flags)
    }

    /// Posts a write of bytes that need not be registered and are copied at once.
    ///
    /// # Errors
    /// Same as [`QueuePair::post_send_inline`].
    #[inline]
    pub fn post_write_inline(
        &self,
        id: u64,
        bytes: &[u8],
        key: &RemoteKey,
        offset: u64,
        flags: SendFlags,
    ) -> Result<()> {
        self.post_inline(
            id,
            Work::Write {
                remote: target(key, offset),
                imm: None,
            },
            bytes,
            flags,
        )
    }

    /// Posts a read from `offset` of the peer's memory into these parts.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    #[inline]
    pub fn post_read(
        &self,
        id: u64,
        parts: &[Sge],
        key: &RemoteKey,
        offset: u64,
        flags: SendFlags,
    ) -> Result<()> {
        self.post_work(
            id,
            Work::Read {
                remote: target(key, offset),
            },
            parts,
            flags,
        )
    }

    /// Posts a compare-and-swap (`(compare, swap)`) of an 8-byte word of the peer. The old value
    /// arrives in `result`, 8 bytes.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    pub fn post_compare_and_swap(
        &self,
        id: u64,
        result: Sge,
        key: &RemoteKey,
        offset: u64,
        (compare, swap): (u64, u64),
        flags: SendFlags,
    ) -> Result<()> {
        let work = Work::CompareSwap {
            remote: target(key, offset),
            compare,
            swap,
        };
        self.post_work(id, work, &[result], flags)
    }

    /// Posts a fetch-and-add of an 8-byte word of the peer. The old value arrives in `result`.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    pub fn post_fetch_and_add(
        &self,
        id: u64,
        result: Sge,
        key: &RemoteKey,
        offset: u64,
        add: u64,
        flags: SendFlags,
    ) -> Result<()> {
        let work = Work::FetchAdd {
            remote: target(key, offset),
            add,
        };
        self.post_work(id, work, &[result], flags)
    }

    /// Posts the bind of a window to a part of a region, in order with the other operations of this queue pair, and
    /// returns the key that the window will have.
    ///
    /// `bits` are the low 8 bits of the key of a type 2 window; use different bits for each bind. Windows of type 1
    /// ignore them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Rights`], and the errors of [`QueuePair::post`].
    pub fn post_bind(
        &self,
        id: u64,
        (window, bits): (&Window, u8),
        region: &MemoryRegion,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Result<RemoteKey> {
        window.check_device(&self.domain)?;
        region.check_device(&self.domain)?;
        region.check_grant(access)?;
        let (offset, len) = resolve("region", region.len(), &range)?;
        let start = region.base().wrapping_add(offset);
        let range = VaRange::new(start, len)
            .ok_or_else(|| Error::Rights("the range wraps around the address space".into()))?;
        let reserved = window.reserve_key()?;
        let key = reserved
            .as_ref()
            .map_or_else(|| window.key_with(bits), ReservedKey::key);
        let remote = RemoteKey::from_rkey(start, len, RKey::Device(key), access)?;
        let work = Work::Bind {
            window: window.id(),
            region: region.local_key(),
            range,
            access,
            zero_based: false,
            key: Some(key),
            rules: BIND_RULES,
        };
        let request = SendRequest {
            id,
            work,
            sges: &[],
            inline: None,
            prefix: &[],
            flags: SendFlags::SIGNALED,
            ud: None,
        };
        self.raw.post_send(&request)?;
        if let Some(reserved) = reserved {
            reserved.posted();
        }
        Ok(remote)
    }

    /// Posts the invalidation of a local type 2 window: its key is refused afterwards.
    ///
    /// # Errors
    /// Same as [`QueuePair::post`].
    pub fn post_invalidate(&self, id: u64, key: Key) -> Result<()> {
        self.post_work(id, Work::Invalidate { key }, &[], SendFlags::SIGNALED)
    }

    /// Posts a receive into these parts. The peer's messages take the receives in posting order.
    ///
    /// # Errors
    /// The receive queue is full, or the queue pair takes no receives in its state.
    #[inline]
    pub fn post_receive(&self, id: u64, parts: &[Sge]) -> Result<()> {
        Ok(self.raw.post_recv(&RecvRequest { id, sges: parts })?)
    }
}

/// The error for a bind that is not posted with `post_bind`. A bind request carries the rules by which it is checked,
/// and published memory relies on the rules that `post_bind` sets.
#[cold]
fn bind_by_hand() -> Error {
    Error::Rights("post binds with post_bind, which checks the rights of the region".into())
}

#[inline]
fn target(key: &RemoteKey, offset: u64) -> Target {
    Target {
        addr: key.address().wrapping_add(offset),
        key: key.rkey(),
    }
}
