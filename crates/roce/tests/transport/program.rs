//! The program at one end: the memory of its requests and receives, and the memory that it exposes to the peer.

use rkey_roce::transport::{Access, Atomic, Host, LocalFault, Receive, Refusal, RemoteRange};
use std::collections::{BTreeMap, VecDeque};

/// The key of the exposed memory.
pub(crate) const KEY: u32 = 0x5eed;
/// The address of the exposed memory's first byte.
pub(crate) const BASE: u64 = 0x7fff_0000_1000;
/// The length of the exposed memory, in bytes.
pub(crate) const EXPOSED: usize = 16 << 10;

/// A program.
#[derive(Debug)]
pub(crate) struct Program {
    /// The memory of work requests, by id. A request that is missing here has no memory.
    pub(crate) requests: BTreeMap<u64, Vec<u8>>,
    /// Posted receives: id and buffer.
    pub(crate) receives: VecDeque<(u64, Vec<u8>)>,
    /// Receives that the transport has taken.
    pub(crate) taken: BTreeMap<u64, Vec<u8>>,
    pub(crate) exposed: Vec<u8>,
    /// The rights of the key.
    pub(crate) rights: Vec<Access>,
    /// Keys that the peer has invalidated, in order.
    pub(crate) invalidated: Vec<u32>,
    /// Whether receives hold messages of any length, and store nothing.
    pub(crate) endless: bool,
    /// Whether no memory can be written.
    pub(crate) unmapped: bool,
    /// How many accesses by the peer were executed.
    pub(crate) accesses: u64,
    /// The last range that `check` granted.
    granted: Option<(RemoteRange, Access)>,
}

impl Program {
    pub(crate) fn new() -> Self {
        Self {
            requests: BTreeMap::new(),
            receives: VecDeque::new(),
            taken: BTreeMap::new(),
            exposed: vec![0; EXPOSED],
            rights: vec![Access::Read, Access::Write, Access::Atomic],
            invalidated: Vec::new(),
            endless: false,
            unmapped: false,
            accesses: 0,
            granted: None,
        }
    }

    /// Finds the range in the exposed memory.
    fn find(&self, range: &RemoteRange, access: Access) -> Result<std::ops::Range<usize>, Refusal> {
        let offset = range.address.checked_sub(BASE).ok_or(Refusal::Access)?;
        let end = offset.checked_add(range.length.into());
        let end = end
            .filter(|end| *end <= self.exposed.len() as u64)
            .ok_or(Refusal::Access)?;
        if range.rkey != KEY || !self.rights.contains(&access) {
            return Err(Refusal::Access);
        }
        Ok(offset as usize..end as usize)
    }
}

impl Host for Program {
    fn load(&mut self, request: u64, offset: u32, to: &mut [u8]) -> Result<(), LocalFault> {
        let memory = self.requests.get(&request).ok_or(LocalFault)?;
        let from = &memory[offset as usize..];
        to.copy_from_slice(&from[..to.len()]);
        Ok(())
    }

    fn store(&mut self, request: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        let memory = self.requests.get_mut(&request).ok_or(LocalFault)?;
        memory[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn take_receive(&mut self, least: u64) -> Option<Receive> {
        if (self.receives.front()?.1.len() as u64) < least {
            return None;
        }
        let (id, buffer) = self.receives.pop_front()?;
        let capacity = if self.endless {
            u64::MAX
        } else {
            buffer.len() as u64
        };
        self.taken.insert(id, buffer);
        Some(Receive { id, capacity })
    }

    fn fill(&mut self, receive: u64, offset: u32, bytes: &[u8]) -> Result<(), LocalFault> {
        if self.unmapped {
            return Err(LocalFault);
        }
        let buffer = self.taken.get_mut(&receive).ok_or(LocalFault)?;
        if self.endless {
            return Ok(());
        }
        buffer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn check(&mut self, range: &RemoteRange, access: Access) -> Result<(), Refusal> {
        self.find(range, access)?;
        self.granted = Some((*range, access));
        Ok(())
    }

    fn write(&mut self, range: &RemoteRange, bytes: &[u8]) -> Result<(), Refusal> {
        assert_eq!(range.length as usize, bytes.len());
        let place = self.find(range, Access::Write)?;
        let (whole, access) = self.granted.expect("the range was checked");
        assert_eq!((whole.rkey, access), (range.rkey, Access::Write));
        let end = range.address + u64::from(range.length);
        assert!(range.address >= whole.address && end <= whole.address + u64::from(whole.length));
        if self.unmapped {
            return Err(Refusal::Operation);
        }
        self.exposed[place].copy_from_slice(bytes);
        self.accesses += 1;
        Ok(())
    }

    fn read(&mut self, range: &RemoteRange, to: &mut [u8]) -> Result<(), Refusal> {
        assert_eq!(range.length as usize, to.len());
        let place = self.find(range, Access::Read)?;
        to.copy_from_slice(&self.exposed[place]);
        self.accesses += 1;
        Ok(())
    }

    fn atomic(&mut self, range: &RemoteRange, operation: Atomic) -> Result<u64, Refusal> {
        assert!(range.address.is_multiple_of(8) && range.length == 8);
        let place = self.find(range, Access::Atomic)?;
        let word = &mut self.exposed[place];
        let old = u64::from_ne_bytes((&*word).try_into().unwrap());
        word.copy_from_slice(&result(operation, old).to_ne_bytes());
        self.accesses += 1;
        Ok(old)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), Refusal> {
        if rkey == KEY {
            return Err(Refusal::Access);
        }
        self.invalidated.push(rkey);
        Ok(())
    }
}

/// The word after an atomic operation.
pub(crate) fn result(operation: Atomic, old: u64) -> u64 {
    match operation {
        Atomic::CompareSwap { compare, swap } if old == compare => swap,
        Atomic::CompareSwap { .. } => old,
        Atomic::FetchAdd { add } => old.wrapping_add(add),
    }
}
