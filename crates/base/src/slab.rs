//! Numbered slots with generations, reference counts and a two-step end of life.
#![allow(clippy::unimplemented, missing_docs)]
use std::ops::Deref;
/// The slab.
pub struct Slab<T> {
    _t: Vec<T>,
}
/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Free,
    Claimed,
    Live,
    Retired,
}
pub struct Claimed<'a, T> {
    _s: &'a Slab<T>,
}
pub struct Pin<'a, T> {
    _s: &'a Slab<T>,
}
#[must_use]
pub struct Retired<'a, T> {
    _s: &'a Slab<T>,
}
impl<T: Default + Sync> Slab<T> {
    /// Capacity at most 2^24 - 1 slots.
    pub fn new(_capacity: u32) -> Self {
        unimplemented!()
    }
    pub fn claim(&self) -> Option<Claimed<'_, T>> {
        unimplemented!()
    }
    pub fn pin(&self, _index: u32, _generation: u32) -> Option<Pin<'_, T>> {
        unimplemented!()
    }
    pub fn retire(&self, _index: u32, _generation: u32) -> Option<Retired<'_, T>> {
        unimplemented!()
    }
    /// Slots that are not free.
    pub fn live(&self) -> usize {
        unimplemented!()
    }
    pub fn capacity(&self) -> u32 {
        unimplemented!()
    }
    /// None: an index that was never used.
    pub fn peek(&self, _index: u32) -> Option<(u32, State)> {
        unimplemented!()
    }
    pub fn iter_live(&self) -> impl Iterator<Item = Pin<'_, T>> {
        std::iter::empty()
    }
}
impl<'a, T> Claimed<'a, T> {
    pub fn index(&self) -> u32 {
        unimplemented!()
    }
    /// The generation given at the last release; 0 for a slot never used before.
    pub fn generation(&self) -> u32 {
        unimplemented!()
    }
    pub fn publish(self) {
        unimplemented!()
    }
    /// The same, with another generation.
    pub fn publish_as(self, _generation: u32) {
        unimplemented!()
    }
}
impl<'a, T> Pin<'a, T> {
    pub fn index(&self) -> u32 {
        unimplemented!()
    }
    pub fn generation(&self) -> u32 {
        unimplemented!()
    }
}
impl<'a, T> Retired<'a, T> {
    pub fn index(&self) -> u32 {
        unimplemented!()
    }
    pub fn generation(&self) -> u32 {
        unimplemented!()
    }
    pub fn is_drained(&self) -> bool {
        unimplemented!()
    }
    /// Frees the slot; Err(self) if it is not drained.
    pub fn release(self, _next_generation: u32) -> Result<(), Self> {
        unimplemented!()
    }
    /// Frees the slot, to be reused only when no other slot is left (oldest first).
    pub fn set_aside(self, _next_generation: u32) -> Result<(), Self> {
        unimplemented!()
    }
}
impl<T> Deref for Claimed<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        unimplemented!()
    }
}
impl<T> Deref for Pin<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        unimplemented!()
    }
}
impl<T> Deref for Retired<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        unimplemented!()
    }
}
