//! Handles, and the table that issues them.
//!
//! A handle is an index and a generation: looking up a handle after its object was destroyed finds nothing, even if the
//! index is in use again.

use serde::Serialize;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub struct $name {
            /// The index in the engine's table.
            pub index: u32,
            /// Distinguishes objects that had the same index.
            pub generation: u32,
        }

        impl From<(u32, u32)> for $name {
            fn from((index, generation): (u32, u32)) -> Self {
                Self { index, generation }
            }
        }

        impl From<$name> for (u32, u32) {
            fn from(id: $name) -> Self {
                (id.index, id.generation)
            }
        }
    )*};
}

handles! {
    /// Names a queue pair of an engine.
    QpId
    /// Names a completion queue of an engine.
    CqId
    /// Names a shared receive queue of an engine.
    SrqId
    /// Names a link of an engine.
    LinkId
}

/// A table with generations.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// How many objects are live.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Inserts `make(id)` and returns its id.
    pub(crate) fn insert<I: From<(u32, u32)> + Copy>(&mut self, make: impl FnOnce(I) -> T) -> I {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let id = I::from((index, slot.generation));
        slot.value = Some(make(id));
        id
    }

    #[inline]
    pub(crate) fn get<I: Into<(u32, u32)>>(&self, id: I) -> Option<&T> {
        let (index, generation) = id.into();
        let slot = self.slots.get(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        slot.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut<I: Into<(u32, u32)>>(&mut self, id: I) -> Option<&mut T> {
        let (index, generation) = id.into();
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        slot.value.as_mut()
    }

    /// The live object at an index, of any generation.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// The live object at an index, of any generation.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    /// One more than the greatest index ever used.
    pub(crate) fn bound(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn remove<I: Into<(u32, u32)>>(&mut self, id: I) -> Option<T> {
        let (index, generation) = id.into();
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut table = Table::new();
        let a: QpId = table.insert(|_| 'a');
        assert_eq!(table.remove(a), Some('a'));
        let b: QpId = table.insert(|_| 'b');
        assert_eq!(a.index, b.index);
        assert_eq!((table.get(a), table.get(b)), (None, Some(&'b')));
        assert_eq!(table.remove(a), None);
        assert_eq!(table.len(), 1);
    }
}
