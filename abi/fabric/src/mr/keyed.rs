//! Regions whose authorization keys are in an address vector: the memory is registered again for each key, so that
//! endpoints with that key can reach it. Peers use only these copies.

#![allow(unsafe_code)]
// UNSAFETY: registers memory for which the program is responsible.

use super::attr::AvKeys;
use super::hmem;
use super::region::{Mr, Shape, State};
use crate::domain::ProtectionDomain;
use crate::errno::{FiError, Result};
use rkey_device::core::{Region, RegionSpec};
use std::sync::{Arc, OnceLock};

/// The copies of a region, one for each key of an address vector.
pub(super) struct Copies {
    pub(super) keys: AvKeys,
    pub(super) shape: Shape,
    /// The copies, which are created when the region is enabled.
    pub(super) regions: OnceLock<Vec<Keyed>>,
}

impl Copies {
    pub(super) fn new(keys: AvKeys, shape: Shape) -> Box<Self> {
        Box::new(Self {
            keys,
            shape,
            regions: OnceLock::new(),
        })
    }
}

/// A copy for the peers of one authorization key.
pub(super) struct Keyed {
    region: Region,
    /// Keeps the copy's protection domain open.
    _pd: Arc<ProtectionDomain>,
}

impl Mr {
    /// The authorization keys that it was registered with, in an `FI_AV_AUTH_KEY` domain.
    pub(crate) fn keys(&self) -> Option<&AvKeys> {
        self.copies.as_ref().map(|copies| &copies.keys)
    }

    /// The region whose key peers use.
    pub(super) fn for_peers(&self) -> Region {
        let copies = self.copies.as_ref().and_then(|copies| copies.regions.get());
        let first = copies.and_then(|regions| regions.first());
        first.map_or(self.region, |keyed| keyed.region)
    }

    /// All regions of the registration in the protection table: the copies, then the region itself.
    pub(super) fn everywhere(&self) -> impl Iterator<Item = Region> {
        let copies = self.copies.as_ref().and_then(|copies| copies.regions.get());
        let keyed = copies.into_iter().flatten();
        // Other regions may share a cached registration.
        let own = self.cached.is_none().then_some(self.region);
        keyed.map(|keyed| keyed.region).chain(own)
    }

    /// Makes copies for the chosen key, or for all keys that the address vector has now (FI-211, FI-I21), with the region's
    /// bindings.
    pub(super) fn take_keys(&self, state: &State) -> Result<()> {
        let Some(copies) = &self.copies else {
            return Ok(());
        };
        let keys = &copies.keys;
        let keys = match &keys.only {
            Some(key) => vec![Arc::clone(key)],
            None => keys.av.auth_keys(),
        };
        if copies.shape.requested_key.is_none() && keys.len() > 1 {
            tracing::warn!(
                "a region has one key for peers: with FI_MR_PROV_KEY it can have only one authorization key, but the address vector has {}",
                keys.len()
            );
            return Err(FiError::OPNOTSUPP);
        }
        let mut all: Vec<Keyed> = Vec::with_capacity(keys.len());
        for key in keys {
            let made = self.domain.pd(&key.bytes).and_then(|pd| {
                Ok(Keyed {
                    region: self.make_for(copies, &pd, state)?,
                    _pd: pd,
                })
            });
            match made {
                Ok(keyed) => all.push(keyed),
                Err(error) => {
                    all.iter().for_each(|keyed| self.revoke(keyed.region));
                    return Err(error);
                }
            }
        }
        if copies.regions.set(all).is_err() {
            return Err(FiError::OPBADSTATE);
        }
        Ok(())
    }

    fn make_for(&self, copies: &Copies, pd: &ProtectionDomain, state: &State) -> Result<Region> {
        let device = &self.domain.device;
        // Binds before enabling; copies that start enabled can still be bound.
        let counting = match &state.counter {
            Some(counter) => Some(counter.number()),
            None => self
                .domain
                .remote_counted
                .get()
                .copied()
                .filter(|_| state.counted),
        };
        let bound = state.counter.is_some() || state.endpoint.is_some();
        let disabled = bound || state.unbacked;
        let spec = RegionSpec {
            peer: copies.keys.peer.as_ref().map(|peer| peer.number),
            ..copies.shape.spec(pd.id, &self.ranges, disabled)
        };
        // SAFETY: as for the region itself: the program keeps the memory valid until it closes the region.
        let region = unsafe { hmem::register(device, &spec, self.foreign.as_deref())? };
        let configure = || {
            if let Some(number) = counting {
                device.bind_counter(region.id, number)?;
            }
            if let Some(number) = state.endpoint {
                device.bind_endpoint(region.id, number)?;
            }
            if bound && !state.unbacked {
                device.enable_region(region.id)?;
            }
            Ok(())
        };
        if let Err(error) = configure() {
            self.revoke(region);
            return Err(error);
        }
        if self.durable {
            self.domain.persistent.lock().insert(region.id);
        }
        Ok(region)
    }

    fn revoke(&self, region: Region) {
        self.forget_persistent(region);
        if let Err(error) = self.domain.device.revoke_and_deregister(region) {
            tracing::debug!(%error, "cannot deregister {}", region.id);
        }
    }
}
