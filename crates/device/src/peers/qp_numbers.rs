//! Queue pair numbers: blocks of them, claimed from the kernel, and the numbers of each block.
//!
//! A claimed block is a listening socket (see [`crate::peers::names`]). Each block has its own random order of numbers, so that a
//! peer that sees one number does not know the next. Numbers are allocated in that order, so that the number of a destroyed
//! queue pair is reused as late as possible.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};

use parking_lot::Mutex;

use crate::error::DeviceError;
use crate::peers::handshake::{Acceptor, HandshakeError, Listener, LocalNode};
use crate::peers::names::{self, BLOCK_SIZE, BLOCKS, Scope};

/// How many random blocks to try before allocation fails.
const ATTEMPTS: u32 = 4096;

/// The blocks of one device.
#[derive(Debug)]
pub(crate) struct QpNumbers {
    scope: Scope,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: Vec<NumberBlock>,
    /// Where to start searching for a free number: after the last allocated one.
    next: usize,
}

#[derive(Debug)]
struct NumberBlock {
    number: u16,
    socket: Listener,
    /// The order in which the numbers are allocated: the low byte of each.
    order: [u8; BLOCK_SIZE as usize],
    /// Which numbers are in use, by their low byte.
    used: [bool; BLOCK_SIZE as usize],
}

impl NumberBlock {
    /// The low byte of the number at a position of the order.
    fn low(&self, position: usize) -> u8 {
        self.order[position % self.order.len()]
    }
}

impl QpNumbers {
    /// No blocks yet.
    pub(crate) fn new(scope: Scope) -> Self {
        Self {
            scope,
            inner: Mutex::new(Inner::default()),
        }
    }

    /// Allocates a queue pair number. If that claims a block, `added` gets its socket.
    ///
    /// # Errors
    /// No block can be claimed: no descriptor is available, or (in theory) no block.
    pub(crate) fn allocate(
        &self,
        added: impl FnOnce(u16, BorrowedFd<'_>) -> Result<(), DeviceError>,
    ) -> Result<u32, DeviceError> {
        let mut inner = self.inner.lock();
        let size = BLOCK_SIZE as usize;
        let total = inner.blocks.len() * size;
        let start = inner.next;
        let free = (0..total).map(|step| (start + step) % total).find(|&i| {
            let block = &inner.blocks[i / size];
            !block.used[usize::from(block.low(i))]
        });
        let index = match free {
            Some(index) => index,
            None => {
                let block = claim(self.scope)?;
                added(block.number, block.socket.as_fd())?;
                inner.blocks.push(block);
                total
            }
        };
        inner.next = index + 1;
        let block = &mut inner.blocks[index / size];
        let low = block.low(index);
        block.used[usize::from(low)] = true;
        Ok(u32::from(block.number) << 8 | u32::from(low))
    }

    /// Claims a first block, so that the device can be found before it has a queue pair.
    pub(crate) fn claim_first(
        &self,
        added: impl FnOnce(u16, BorrowedFd<'_>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let block = claim(self.scope)?;
        added(block.number, block.socket.as_fd())?;
        self.inner.lock().blocks.push(block);
        Ok(())
    }

    /// Frees a number.
    pub(crate) fn free(&self, qpn: u32) {
        let number = names::block_of(qpn);
        if let Some(block) = self
            .inner
            .lock()
            .blocks
            .iter_mut()
            .find(|b| b.number == number)
        {
            block.used[(qpn % BLOCK_SIZE) as usize] = false;
        }
    }

    /// Whether this device owns a block.
    pub(crate) fn owns(&self, number: u16) -> bool {
        self.inner.lock().blocks.iter().any(|b| b.number == number)
    }

    /// The numbers of our blocks.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        self.inner.lock().blocks.iter().map(|b| b.number).collect()
    }

    /// Accepts one client of a block's socket; `None` if none is waiting.
    ///
    /// # Errors
    /// The client's user is not allowed, or no descriptor is available.
    pub(crate) fn accept(
        &self,
        number: u16,
        local: &LocalNode,
    ) -> Result<Option<Acceptor>, HandshakeError> {
        let inner = self.inner.lock();
        match inner.blocks.iter().find(|b| b.number == number) {
            Some(block) => block.socket.accept(local),
            None => Ok(None),
        }
    }

    /// Calls `act` with the socket of a block.
    pub(crate) fn with_socket(&self, number: u16, act: impl FnOnce(BorrowedFd<'_>)) {
        let inner = self.inner.lock();
        if let Some(block) = inner.blocks.iter().find(|b| b.number == number) {
            act(block.socket.as_fd());
        }
    }

    /// Releases all blocks; `closing` gets each socket first.
    pub(crate) fn close(&self, closing: impl Fn(BorrowedFd<'_>)) {
        let blocks = std::mem::take(&mut self.inner.lock().blocks);
        for block in &blocks {
            closing(block.socket.as_fd());
        }
    }
}

/// Claims a random free block.
fn claim(scope: Scope) -> Result<NumberBlock, DeviceError> {
    let no_random = |e: getrandom::Error| {
        DeviceError::io("choosing queue pair numbers")(std::io::Error::other(e))
    };
    for _ in 0..ATTEMPTS {
        let random = getrandom::u32().map_err(no_random)?;
        // The first and the last block are never claimed: queue pair numbers 0 and 1 are special, and 0xffffff means a
        // group.
        let number = (random % (BLOCKS - 2) + 1) as u16;
        match Listener::bind(names::block_name(scope, number).as_bytes()) {
            Ok(socket) => {
                return Ok(NumberBlock {
                    number,
                    socket,
                    order: random_order().map_err(no_random)?,
                    used: [false; BLOCK_SIZE as usize],
                });
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(DeviceError::io("claiming queue pair numbers")(error)),
        }
    }
    Err(DeviceError::Limit {
        what: "blocks of queue pair numbers of this user",
        limit: (BLOCKS - 2).into(),
        variable: "close other devices, because no variable",
    })
}

/// All low bytes in a random order (Fisher-Yates).
fn random_order() -> Result<[u8; BLOCK_SIZE as usize], getrandom::Error> {
    let mut order = std::array::from_fn(|low| low as u8);
    let mut random = [0; 4 * BLOCK_SIZE as usize];
    getrandom::fill(&mut random)?;
    let (random, _) = random.as_chunks::<4>();
    for (last, bytes) in random.iter().enumerate().rev() {
        order.swap(last, u32::from_ne_bytes(*bytes) as usize % (last + 1));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that sees one number guesses the next: with numbers in order, it would be right nearly always.
    #[test]
    fn the_next_queue_pair_number_cannot_be_guessed() {
        let blocks = QpNumbers::new(Scope::of(crate::Share::User));
        let numbers: Vec<u32> = (0..1024)
            .map(|_| blocks.allocate(|_, _| Ok(())).unwrap())
            .collect();
        let guessed = |step: u32| {
            let pairs = numbers.windows(2);
            pairs.filter(|it| it[0].wrapping_add(step) == it[1]).count()
        };
        // Each guess is right about 4 times by chance, and 30 times with a probability of less than 1 in 10^15.
        for step in (1..256).chain((1..256).map(u32::wrapping_neg)) {
            assert!(guessed(step) < 30, "{step}: {} times", guessed(step));
        }
    }

    #[test]
    fn queue_pair_numbers_are_unique_and_not_reused_at_once() {
        let blocks = QpNumbers::new(Scope::of(crate::Share::User));
        let mut claimed = Vec::new();
        let mut add = |number: u16| {
            claimed.push(number);
            Ok(())
        };
        let mut numbers: Vec<u32> = (0..300)
            .map(|_| blocks.allocate(|n, _| add(n)).unwrap())
            .collect();
        let first = numbers[0];
        blocks.free(first);
        let next = blocks.allocate(|_, _| Ok(())).unwrap();
        assert_ne!(next, first);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 300);
        assert_eq!(claimed.len(), 2);
        assert!(claimed.iter().all(|&n| n != 0 && blocks.owns(n)));
        let seen = names::claimed_blocks(Scope::of(crate::Share::User)).unwrap();
        assert!(claimed.iter().all(|n| seen.contains(n)));
        drop(blocks);
        let seen = names::claimed_blocks(Scope::of(crate::Share::User)).unwrap();
        assert!(
            !claimed.iter().any(|n| seen.contains(n)),
            "the names outlived the device"
        );
    }
}
