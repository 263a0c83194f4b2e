//! Sealed shared-memory segments, own and foreign.
#![allow(clippy::unimplemented, missing_docs)]
use crate::shared::{Foreign, Place};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
/// A segment that only this process can write.
#[derive(Debug)]
pub struct OwnSegment {
    _f: OwnedFd,
}
impl OwnSegment {
    pub fn create(_name: &str, _len: usize) -> io::Result<Self> {
        unimplemented!()
    }
    pub fn fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        false
    }
    pub fn as_ptr(&self) -> *mut u8 {
        unimplemented!()
    }
    pub fn place(&mut self, _offset: usize, _len: usize) -> Option<Place<'_>> {
        unimplemented!()
    }
    /// An aligned word; panics out of bounds.
    pub fn word_u32(&self, _offset: usize) -> &AtomicU32 {
        unimplemented!()
    }
    pub fn word_u64(&self, _offset: usize) -> &AtomicU64 {
        unimplemented!()
    }
}
/// A segment of a peer, mapped read-only.
#[derive(Debug)]
pub struct PeerSegment {
    _f: OwnedFd,
}
impl PeerSegment {
    pub fn map(_fd: OwnedFd, _min_len: usize, _max_len: usize) -> io::Result<Self> {
        unimplemented!()
    }
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        false
    }
    pub fn as_ptr(&self) -> *const u8 {
        unimplemented!()
    }
    pub fn foreign(&self, _offset: usize, _len: usize) -> Option<Foreign<'_>> {
        unimplemented!()
    }
    /// Acquire load of an aligned word; panics out of bounds.
    pub fn load_u32(&self, _offset: usize) -> u32 {
        unimplemented!()
    }
    pub fn load_u64(&self, _offset: usize) -> u64 {
        unimplemented!()
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    ReadOnly,
    ReadWrite,
}
/// Memory for programs, which peers may map.
#[derive(Debug)]
pub struct Arena {
    _f: OwnedFd,
}
impl Arena {
    /// `sharing`: what peers that get the descriptor can do.
    pub fn create(_name: &str, _len: usize, _sharing: Sharing) -> io::Result<Self> {
        unimplemented!()
    }
    pub fn fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }
    pub fn duplicate_fd(&self) -> io::Result<OwnedFd> {
        unimplemented!()
    }
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        false
    }
    pub fn sharing(&self) -> Sharing {
        unimplemented!()
    }
    /// The program's mapping.
    pub fn as_ptr(&self) -> *mut u8 {
        unimplemented!()
    }
    /// The engine's own mapping of the same bytes.
    pub fn engine_ptr(&self) -> *mut u8 {
        unimplemented!()
    }
}
/// An arena of a peer.
#[derive(Debug)]
pub struct PeerArena {
    _f: OwnedFd,
}
impl PeerArena {
    pub fn map(_fd: OwnedFd, _len: usize, _sharing: Sharing) -> io::Result<Self> {
        unimplemented!()
    }
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    pub fn is_empty(&self) -> bool {
        false
    }
    pub fn sharing(&self) -> Sharing {
        unimplemented!()
    }
    /// Writing is allowed only if sharing() is ReadWrite.
    pub fn as_ptr(&self) -> *mut u8 {
        unimplemented!()
    }
}
