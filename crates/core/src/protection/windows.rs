//! The windows of a table: creating and deallocating them, and the keys of future binds.

use crate::objects::state::{WindowEvent, WindowState};
use crate::protection::entry::NONE;
use crate::protection::table::{Protection, Registry, reached};
use crate::sync::Ordering;
use crate::{
    BindError, CoreError, DomainId, Key, Limit, Limits, RegionId, Window, WindowId, WindowKind,
};

/// The windows of a table.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    records: Vec<WindowRecord>,
    free: Vec<u32>,
    live: u32,
    /// Type 2 windows that are bound.
    pub(crate) bound_type2: u32,
}

/// The registry's record of a window.
#[derive(Debug)]
pub(crate) struct WindowRecord {
    pub(crate) generation: u32,
    pub(crate) open: bool,
    pub(crate) kind: WindowKind,
    pub(crate) domain: DomainId,
    /// The slot of its current key.
    pub(crate) slot: KeySlot,
    /// Slots of keys that are reserved for future binds.
    pub(crate) promised: Vec<KeySlot>,
    pub(crate) bound: Option<Bound>,
    /// Slots and generations of the keys that ended last, for the text of a denial.
    pub(crate) recent: [Option<(u32, u32)>; 4],
}

/// A window's key, and its slot.
#[derive(Copy, Clone, Debug)]
pub(crate) struct KeySlot {
    pub(crate) key: Key,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What a window is bound to.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) region: RegionId,
    /// The queue pair that the window belongs to (type 2).
    pub(crate) qp: Option<u32>,
}

impl Windows {
    /// The number of windows.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// The index of the next window.
    fn next_index(&self) -> u32 {
        self.free
            .last()
            .copied()
            .unwrap_or(self.records.len() as u32)
    }

    /// Adds a window at [`Self::next_index`].
    fn add(&mut self, record: WindowRecord) -> WindowId {
        self.live += 1;
        let index = self.next_index();
        let generation = match self.free.pop() {
            Some(index) => {
                let old = &mut self.records[index as usize];
                let generation = old.generation;
                *old = WindowRecord {
                    generation,
                    ..record
                };
                generation
            }
            None => {
                self.records.push(record);
                0
            }
        };
        WindowId { index, generation }
    }

    /// Frees the index of a deallocated window.
    fn remove(&mut self, index: u32) {
        self.free.push(index);
        self.live -= 1;
    }

    /// A window that has not been deallocated.
    pub(crate) fn find(&mut self, window: WindowId) -> Option<&mut WindowRecord> {
        self.records
            .get_mut(window.index as usize)
            .filter(|record| record.open && record.generation == window.generation)
    }

    /// The window that has or last had this index.
    pub(crate) fn at(&self, index: u32) -> Option<&WindowRecord> {
        self.records.get(index as usize)
    }

    /// All windows that have not been deallocated.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WindowId, &WindowRecord)> {
        let records = self.records.iter().zip(0..);
        records
            .filter(|(record, _)| record.open)
            .map(|(record, index)| {
                let generation = record.generation;
                (WindowId { index, generation }, record)
            })
    }
}

impl Protection {
    /// Creates a window. Its key is refused until the window is bound.
    ///
    /// # Errors
    /// [`CoreError::NoSuchDomain`], [`CoreError::LimitReached`].
    pub fn create_window(&self, domain: DomainId, kind: WindowKind) -> Result<Window, CoreError> {
        let mut registry = self.registry.lock();
        let max = self.limits.max_windows;
        if registry.windows.live() >= max {
            return Err(reached(Limit::Windows, u64::from(max)));
        }
        registry.domains.children(domain)?;
        let index = registry.windows.next_index();
        let slot = self
            .window_slot(&mut registry, domain, kind, index)
            .ok_or_else(|| match kind {
                _ if kind.is_type2() => {
                    reached(Limit::Type2Windows, u64::from(Limits::TYPE2_SLOTS))
                }
                _ => reached(Limit::KeySlots, u64::from(self.slots.capacity())),
            })?;
        let record = WindowRecord {
            open: true,
            ..WindowRecord::new(kind, domain, slot)
        };
        let id = registry.windows.add(record);
        registry.domains.children(domain)?.windows += 1;
        Ok(Window { id, key: slot.key })
    }

    /// Deallocates a window, and unbinds it first if necessary (VB-I16, DA-I06). Its keys are refused from now on.
    ///
    /// # Errors
    /// [`CoreError::NoSuchWindow`].
    pub fn deallocate_window(&self, window: WindowId) -> Result<(), CoreError> {
        let mut registry = self.registry.lock();
        let record = registry
            .windows
            .find(window)
            .ok_or(CoreError::NoSuchWindow(window))?;
        let (kind, domain, slot) = (record.kind, record.domain, record.slot);
        if record
            .state()
            .step(kind.is_type2(), WindowEvent::Deallocate)
            .is_none()
        {
            return Err(CoreError::NoSuchWindow(window));
        }
        record.open = false;
        record.generation = record.generation.wrapping_add(1);
        record.replaced(slot);
        let bound = record.bound.take();
        let promised = std::mem::take(&mut record.promised);
        self.let_go(&mut registry, kind, bound);
        for slot in promised.into_iter().chain([slot]) {
            self.retire_slot(&mut registry, kind, slot);
        }
        registry.windows.remove(window.index);
        registry.domains.children(domain)?.windows -= 1;
        Ok(())
    }

    /// Reserves the key of a future bind (type 1 and DAT), so that the program knows it before the bind executes; the
    /// bind then names it. A reservation ends with the bind that names it, successful or not, with
    /// [`Self::forfeit_window_key`], or with the window. For type 2: the current key, whose low byte the consumer
    /// varies.
    ///
    /// # Errors
    /// [`BindError::NoSuchWindow`], [`BindError::NoKeySlot`].
    pub fn next_window_key(&self, window: WindowId) -> Result<Key, BindError> {
        let mut registry = self.registry.lock();
        let record = registry
            .windows
            .find(window)
            .ok_or(BindError::NoSuchWindow(window))?;
        let (kind, domain, current) = (record.kind, record.domain, record.slot);
        if kind.is_type2() {
            return Ok(current.key);
        }
        let slot = self
            .window_slot(&mut registry, domain, kind, window.index)
            .ok_or(BindError::NoKeySlot(self.slots.capacity()))?;
        if let Some(record) = registry.windows.find(window) {
            record.promised.push(slot);
        }
        Ok(slot.key)
    }

    /// The key of a bound window; `None` if the window is unbound or deallocated.
    #[must_use]
    pub fn bound_key(&self, window: WindowId) -> Option<Key> {
        let mut registry = self.registry.lock();
        let record = registry.windows.find(window)?;
        record.bound.is_some().then_some(record.slot.key)
    }

    /// Releases a reserved key whose bind will not execute. Does nothing if the key is not reserved.
    pub fn forfeit_window_key(&self, window: WindowId, key: Key) {
        let mut registry = self.registry.lock();
        if let Some(record) = registry.windows.find(window)
            && let Some(slot) = record.take_promise(key)
        {
            let kind = record.kind;
            self.retire_slot(&mut registry, kind, slot);
        }
    }

    /// A slot for an unbound window, with its key.
    pub(crate) fn window_slot(
        &self,
        registry: &mut Registry,
        domain: DomainId,
        kind: WindowKind,
        window: u32,
    ) -> Option<KeySlot> {
        let (claimed, key) = if kind.is_type2() {
            let claimed = self.claim(registry, true)?;
            match self.give_type2_key(registry, &claimed) {
                Some(key) => (claimed, key),
                None => {
                    claimed.release_to(&mut registry.pool.free_type2);
                    return None;
                }
            }
        } else {
            let ready = self.ready_slot_of_all(registry)?;
            (self.take_up(&ready)?, ready.key)
        };
        let (index, generation) = (claimed.index(), claimed.generation());
        // A region may have stored part of its requested key here.
        claimed.version.store(0, Ordering::Relaxed);
        claimed.rebind(None);
        claimed.domain.store(domain.0, Ordering::Relaxed);
        claimed.endpoint.store(NONE, Ordering::Relaxed);
        claimed.window.store(window, Ordering::Relaxed);
        claimed.publish_held();
        Some(KeySlot {
            key,
            index,
            generation,
        })
    }

    pub(crate) fn retire_slot(&self, registry: &mut Registry, kind: WindowKind, slot: KeySlot) {
        let type2 = kind.is_type2();
        let (slab, keys, key) = if type2 {
            (
                &self.type2,
                &self.keys.type2,
                slot.key.with_consumer_bits(0),
            )
        } else {
            (&self.slots, &self.keys.remote, slot.key)
        };
        keys.end(key.0, slot.index, slot.generation);
        if let Some(retired) = slab.retire(slot.index, slot.generation) {
            self.put_back(registry, type2, retired);
        }
    }
}

impl WindowRecord {
    fn new(kind: WindowKind, domain: DomainId, slot: KeySlot) -> Self {
        let (open, promised) = (false, Vec::new());
        Self {
            generation: 0,
            open,
            kind,
            domain,
            slot,
            promised,
            bound: None,
            recent: [None; 4],
        }
    }

    /// Records an ended key, for the text of denials.
    pub(crate) fn replaced(&mut self, slot: KeySlot) {
        self.recent.rotate_right(1);
        self.recent[0] = Some((slot.index, slot.generation));
    }

    pub(crate) fn state(&self) -> WindowState {
        match self.bound {
            _ if !self.open => WindowState::Deallocated,
            Some(_) => WindowState::Bound,
            None => WindowState::Unbound,
        }
    }

    pub(crate) fn take_promise(&mut self, key: Key) -> Option<KeySlot> {
        let index = self.promised.iter().position(|slot| slot.key == key)?;
        Some(self.promised.swap_remove(index))
    }
}
