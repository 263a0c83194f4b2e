//! A bounded queue whose consumers need no lock of the producer.
#![allow(clippy::unimplemented, missing_docs, clippy::new_ret_no_self)]
use thiserror::Error;
/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the queue is full")]
pub struct Full;
/// The consumers' side: clone and share it freely.
pub struct Fifo<T> {
    _t: std::sync::Arc<std::sync::Mutex<Vec<T>>>,
}
impl<T> Clone for Fifo<T> {
    fn clone(&self) -> Self {
        unimplemented!()
    }
}
/// The producer's side: one per queue.
pub struct Producer<T> {
    _t: std::sync::Arc<std::sync::Mutex<Vec<T>>>,
}
impl<T: Copy + Send> Fifo<T> {
    pub fn new(_capacity: usize) -> (Producer<T>, Fifo<T>) {
        unimplemented!()
    }
    pub fn pop(&self) -> Option<T> {
        unimplemented!()
    }
    /// Fills `into` from its start, returns how many.
    pub fn pop_many(&self, _into: &mut [T]) -> usize {
        unimplemented!()
    }
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        unimplemented!()
    }
    pub fn capacity(&self) -> usize {
        unimplemented!()
    }
}
impl<T: Copy + Send> Producer<T> {
    pub fn push(&mut self, _value: T) -> Result<(), Full> {
        unimplemented!()
    }
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        unimplemented!()
    }
    pub fn capacity(&self) -> usize {
        unimplemented!()
    }
    pub fn free(&self) -> usize {
        unimplemented!()
    }
    /// Changes the capacity, keeping what is queued; Full if more than that is queued.
    pub fn resize(&mut self, _capacity: usize) -> Result<(), Full> {
        unimplemented!()
    }
}
