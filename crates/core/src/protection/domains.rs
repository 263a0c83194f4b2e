//! The domains of a table: opening and closing them, and counting what they contain.

use crate::protection::entry::flag;
use crate::protection::stock::Prepaid;
use crate::protection::table::{Protection, reached};
use crate::{Api, CoreError, DomainChildren, DomainId, Limit};

/// The domains of a table.
#[derive(Default)]
pub(crate) struct Domains {
    records: Vec<DomainRecord>,
    free: Vec<u32>,
    open: u32,
}

#[derive(Default)]
struct DomainRecord {
    generation: u16,
    /// The domain, while it is open.
    id: Option<DomainId>,
    children: DomainChildren,
    /// The number of regions that the front end registered for itself.
    internal: u32,
}

impl Domains {
    /// Opens a domain, if there are fewer than `max`.
    fn open(&mut self, max: u32, api: Api, exclusive: bool) -> Result<DomainId, CoreError> {
        if self.open >= max {
            return Err(reached(Limit::Domains, u64::from(max)));
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.records.push(DomainRecord::default());
                (self.records.len() - 1) as u32
            }
        };
        self.open += 1;
        let record = &mut self.records[index as usize];
        let id = DomainId::new(api, exclusive, record.generation, index + 1);
        record.id = Some(id);
        Ok(id)
    }

    /// Closes a domain without children.
    fn close(&mut self, domain: DomainId) -> Result<(), CoreError> {
        let record = self.find(domain)?;
        if !record.children.is_empty() {
            return Err(CoreError::DomainBusy {
                domain,
                children: record.children,
            });
        }
        record.id = None;
        record.generation = (record.generation + 1) % DomainId::GENERATIONS;
        self.open -= 1;
        self.free.push((domain.0 & 0xffff) - 1);
        Ok(())
    }

    #[inline]
    fn find(&mut self, domain: DomainId) -> Result<&mut DomainRecord, CoreError> {
        let index = (domain.0 & 0xffff).wrapping_sub(1) as usize;
        match self.records.get_mut(index) {
            Some(record) if record.id == Some(domain) => Ok(record),
            _ => Err(CoreError::NoSuchDomain(domain)),
        }
    }

    /// The object counts of an open domain, for updating.
    #[inline]
    pub(crate) fn children(&mut self, domain: DomainId) -> Result<&mut DomainChildren, CoreError> {
        Ok(&mut self.find(domain)?.children)
    }

    /// Counts a new region with these rights and flags in an open domain.
    #[inline]
    pub(crate) fn region_came(&mut self, domain: DomainId, rights: u32) -> Result<(), CoreError> {
        let record = self.find(domain)?;
        record.children.regions += 1;
        record.internal += u32::from(rights & flag::INTERNAL != 0);
        Ok(())
    }

    /// Removes a region from the counts.
    #[inline]
    pub(crate) fn region_went(&mut self, domain: DomainId, rights: u32) {
        if let Ok(record) = self.find(domain) {
            record.children.regions -= 1;
            record.internal -= u32::from(rights & flag::INTERNAL != 0);
        }
    }

    /// The open domains, and their objects without prepaid ones.
    pub(crate) fn iter(
        &self,
        prepaid: &Prepaid,
    ) -> impl Iterator<Item = (DomainId, DomainChildren)> {
        self.records
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
        let max = self.limits.max_domains.min(u32::from(u16::MAX));
        self.registry.lock().domains.open(max, api, exclusive)
    }

    /// Closes a domain.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`]; [`CoreError::DomainBusy`] while regions, windows, queue pairs or shared receive
    /// queues are left in it.
    pub fn close_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        if registry.domains.children(domain)?.regions > 0 {
            self.empty_all_magazines(&mut registry);
        }
        registry.domains.close(domain)
    }

    /// Counts a queue pair or a shared receive queue, so that the domain cannot be closed while it is in use.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`].
    pub fn hold_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        self.registry.lock().domains.children(domain)?.holders += 1;
        Ok(())
    }

    /// Releases one [`Self::hold_domain`].
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`], also if the domain is not held.
    pub fn release_domain(&self, domain: DomainId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        let children = registry.domains.children(domain)?;
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
        let record = registry.domains.find(domain)?;
        let regions = record.children.regions - record.internal;
        Ok(regions - registry.prepaid().regions(domain))
    }
}
