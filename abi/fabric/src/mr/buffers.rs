//! Buffers of transfers that the provider registers itself: the mode requires `FI_MR_LOCAL`, and the program did not offer it (FI-048,
//! FI-233).
//!
//! A buffer's registration comes from a cache, and is in use until the operation is complete.

use super::cached::{CachedRegion, Described, LocalCache, RegistrationScope, Watch};
use super::imported::Use;
use super::{monitor, runtimes};
use crate::errno::{FiError, Result};
use rkey_cache::Kind as CacheKind;
use rkey_device::base::VaRange;
use rkey_device::core::{DomainId, LKey, LocalUse};
use rkey_kinds::Kind;
use std::sync::Arc;

/// The caches of a domain whose buffers the provider registers.
pub(crate) struct Buffers {
    system: Described,
    /// The cache for accelerator memory, in a domain with `FI_HMEM`. It is a separate one, so addresses need not be unified (FI-232).
    devices: Option<Described>,
}

impl Buffers {
    /// Opens the caches for a domain. `hmem`: it also has accelerator memory.
    pub(crate) fn open(scope: &RegistrationScope, hmem: bool) -> Result<Self> {
        let watch = match Use::begin() {
            Some(imported) => Watch::Imported(imported),
            None => Watch::Chosen(monitor::chosen()),
        };
        let system = match LocalCache::open(scope, watch, true) {
            Ok(cache) => Ok(cache),
            Err(error) => {
                tracing::warn!("buffers are registered for each transfer: {error}");
                LocalCache::open(scope, Watch::Off, true)
            }
        };
        let devices = hmem.then(|| LocalCache::open(scope, Watch::Allocations, true));
        Ok(Self {
            system: system.map_err(|_| FiError::NOMEM)?,
            devices: devices.transpose().map_err(|_| FiError::NOMEM)?,
        })
    }

    /// The local key for a buffer of an endpoint in `pd`; `held` keeps its registration. `None` if the buffer needs no registration,
    /// because no cache is for memory like this.
    pub(super) fn key(
        &self,
        pd: DomainId,
        range: VaRange,
        usage: LocalUse,
        foreign: bool,
        held: &mut Held,
    ) -> Result<Option<LKey>> {
        let access = usage.needs();
        // Endpoints with an authorization key of their own are in another protection domain.
        if self.system.1.pd() != pd {
            return Ok(None);
        }
        let cached = match (foreign, &self.devices) {
            (false, _) => {
                let (_, cache) = &self.system;
                cache.find(range, access, CacheKind::HOST, false)?
            }
            (true, Some((_, cache))) => {
                let Some(kind) = runtimes::kind_of_one(range)? else {
                    return Ok(None);
                };
                cache.find(range, access, CacheKind(1 + kind as u32), !may_cache(kind))?
            }
            (true, None) => return Ok(None),
        };
        let key = cached.region().local_key;
        held.push(cached);
        Ok(Some(key))
    }
}

/// Whether the environment allows caching memory of a kind (FI-244, FI-245, FI-246).
fn may_cache(kind: Kind) -> bool {
    let settings = monitor::settings();
    let enabled = match kind {
        Kind::Cuda => settings.cuda,
        Kind::Rocr => settings.rocr,
        Kind::LevelZero => settings.level_zero,
        // The runtimes of Neuron and SynapseAI cannot report which memory is theirs.
        Kind::Neuron | Kind::SynapseAi => Some(false),
    };
    enabled.unwrap_or(true)
}

/// The registrations of an operation's buffers, which end with the operation. The engine may hold its lock at that time, so the caches
/// defer what would wait for the lock.
#[derive(Clone, Default)]
pub(crate) struct Held(Option<Arc<Link>>);

struct Link {
    _region: CachedRegion,
    _next: Held,
}

impl Held {
    fn push(&mut self, region: CachedRegion) {
        let next = std::mem::take(self);
        self.0 = Some(Arc::new(Link {
            _region: region,
            _next: next,
        }));
    }

    /// Whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}
