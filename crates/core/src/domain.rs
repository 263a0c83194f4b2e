//! Protection domains: a queue pair reaches only memory of its own domain.

use crate::entry::flag;
use crate::magazine::Prepaid;
use crate::table::{Protection, Registry, reached};
use crate::{Api, CoreError, DomainId, Limit};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The objects that a domain still contains.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DomainChildren {
    /// Registered regions.
    pub regions: u32,
    /// Windows, bound or not.
    pub windows: u32,
    /// Queue pairs and shared receive queues, counted by `hold_domain`.
    pub holders: u32,
}

impl DomainChildren {
    /// Whether the domain has no children.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.regions == 0 && self.windows == 0 && self.holders == 0
    }
}

impl fmt::Display for DomainChildren {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count| if count == 1 { "" } else { "s" };
        write!(
            out,
            "{} region{}, {} window{}, {} queue pair{} or shared receive queue{}",
            self.regions,
            plural(self.regions),
            self.windows,
            plural(self.windows),
            self.holders,
            plural(self.holders),
            plural(self.holders),
        )
    }
}

#[derive(Default)]
pub(crate) struct DomainRecord {
    generation: u16,
    /// The domain, while it is open.
    id: Option<DomainId>,
    children: DomainChildren,
    /// The number of regions that the front end registered for itself.
    internal: u32,
}

impl Protection {
    /// Opens a domain of the table's API.
    ///
    /// # Errors
    /// [`CoreError::LimitReached`].
    pub fn create_domain(&self) -> Result<DomainId, CoreError> {
        self.create_domain_for(self.api, false)
    }

    /// Opens a domain of an API. Other APIs cannot reach the memory of an `exclusive` domain.
    ///
    /// # Errors
    /// [`CoreError::LimitReached`].
    pub fn create_domain_for(&self, api: Api, exclusive: bool) -> Result<DomainId, CoreError> {
        let mut registry = self.registry.lock();
        let max = self.limits.max_domains.min(u32::from(u16::MAX));
        if registry.open_domains >= max {
            return Err(reached(Limit::Domains, u64::from(max)));
        }
        let place = match registry.free_domains.pop() {
            Some(place) => place,
            None => {
                registry.domains.push(DomainRecord::default());
                (registry.domains.len() - 1) as u32
            }
        };
        registry.open_domains += 1;
        let record = &mut registry.domains[place as usize];
        let id = DomainId::new(api, exclusive, record.generation, place + 1);
        record.id = Some(id);
        Ok(id)
    }

    /// Closes a domain.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`]; [`CoreError::DomainBusy`] while regions, windows, queue pairs or shared receive
    /// queues are left in it.
    pub fn close_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        if registry.domain(domain)?.children.regions > 0 {
            self.empty_all_magazines(&mut registry);
        }
        let record = registry.domain(domain)?;
        if !record.children.is_empty() {
            return Err(CoreError::DomainBusy {
                domain,
                children: record.children,
            });
        }
        record.id = None;
        record.generation = (record.generation + 1) % DomainId::GENERATIONS;
        registry.open_domains -= 1;
        registry.free_domains.push((domain.0 & 0xffff) - 1);
        Ok(())
    }

    /// Counts a queue pair or a shared receive queue, so that the domain cannot be closed while it is in use.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`].
    pub fn hold_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        self.registry.lock().domain(domain)?.children.holders += 1;
        Ok(())
    }

    /// Releases one [`Self::hold_domain`].
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`], also if the domain is not held.
    pub fn release_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        let children = &mut registry.domain(domain)?.children;
        match children.holders.checked_sub(1) {
            Some(holders) => children.holders = holders,
            None => return Err(CoreError::NoSuchDomain(domain)),
        }
        Ok(())
    }

    /// How many regions are registered in a domain, excluding those that the front end registered for itself.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`].
    pub fn regions_of_program(&self, domain: DomainId) -> Result<u32, CoreError> {
        let mut registry = self.registry.lock();
        let record = registry.domain(domain)?;
        let regions = record.children.regions - record.internal;
        Ok(regions - registry.prepaid().regions(domain))
    }
}

impl Registry {
    #[inline]
    fn domain(&mut self, domain: DomainId) -> Result<&mut DomainRecord, CoreError> {
        let place = (domain.0 & 0xffff).wrapping_sub(1) as usize;
        match self.domains.get_mut(place) {
            Some(record) if record.id == Some(domain) => Ok(record),
            _ => Err(CoreError::NoSuchDomain(domain)),
        }
    }

    /// The object counts of an open domain, for updating.
    #[inline]
    pub(crate) fn children(&mut self, domain: DomainId) -> Result<&mut DomainChildren, CoreError> {
        Ok(&mut self.domain(domain)?.children)
    }

    /// Counts a new region with these rights and flags in an open domain.
    #[inline]
    pub(crate) fn region_came(&mut self, domain: DomainId, rights: u32) -> Result<(), CoreError> {
        let record = self.domain(domain)?;
        record.children.regions += 1;
        record.internal += u32::from(rights & flag::INTERNAL != 0);
        Ok(())
    }

    /// Removes a region from the counts.
    #[inline]
    pub(crate) fn region_went(&mut self, domain: DomainId, rights: u32) {
        if let Ok(record) = self.domain(domain) {
            record.children.regions -= 1;
            record.internal -= u32::from(rights & flag::INTERNAL != 0);
        }
    }

    /// The open domains.
    pub(crate) fn open_domains(
        &self,
        prepaid: &Prepaid,
    ) -> impl Iterator<Item = (DomainId, DomainChildren)> {
        self.domains
            .iter()
            .filter_map(|record| Some((record, record.id?)))
            .map(|(record, id)| {
                let regions = record.children.regions - prepaid.regions(id);
                (
                    id,
                    DomainChildren {
                        regions,
                        ..record.children
                    },
                )
            })
    }
}
