//! What a request names: existing objects, near misses, and names that were never issued.
//!
//! Most requests would fail at the first check if everything in them were random. So most choices
//! match earlier ones, and a few do not.

use super::World;
use rkey_core::*;
use rkey_model::{Name, right};

const QPS: u64 = 3;

impl World {
    pub(super) fn some_domain(&mut self) -> Option<(usize, DomainId)> {
        let number = self.random.below(self.domains.len().max(1) as u64) as usize;
        let number = if self.random.one_in(3) { number } else { 0 };
        Some((number, *self.domains.get(number)?))
    }

    /// Usually the domain of the requested object.
    pub(super) fn domain_for(&mut self, number: Option<usize>) -> Option<(usize, DomainId)> {
        match number {
            Some(number) if !self.random.one_in(6) => Some((number, self.domains[number])),
            _ => self.some_domain(),
        }
    }

    /// The domain of what a key names.
    pub(super) fn domain_of(&self, name: Name) -> Option<usize> {
        match name {
            Name::Local(region) | Name::Remote(region) => Some(self.region_domains[region]),
            Name::Chosen(window, _) | Name::Type2(window, _) => Some(self.window_domains[window]),
            Name::Requested(_) | Name::Never => None,
        }
    }

    /// Any region, usually one of the last ones.
    pub(super) fn some_region(&mut self) -> Option<usize> {
        let count = self.regions.len() as u64;
        let near = if self.random.one_in(3) {
            count
        } else {
            count.min(4)
        };
        (count > 0).then(|| (count - 1 - self.random.below(near)) as usize)
    }

    pub(super) fn some_window(&mut self) -> Option<usize> {
        let count = self.windows.len() as u64;
        let near = if self.random.one_in(3) {
            count
        } else {
            count.min(3)
        };
        (count > 0).then(|| (count - 1 - self.random.below(near)) as usize)
    }

    pub(super) fn some_qp(&mut self) -> u32 {
        7 + self.random.below(QPS) as u32
    }

    /// Usually the queue pair that a window belongs to.
    pub(super) fn qp_for(&mut self, name: Name) -> u32 {
        match name {
            Name::Type2(window, _) | Name::Chosen(window, _) if !self.random.one_in(4) => self
                .bound
                .get(&window)
                .and_then(|bound| bound.3)
                .unwrap_or(7),
            _ => self.some_qp(),
        }
    }

    pub(super) fn some_name(&mut self) -> Name {
        let count = self.names.len() as u64;
        let near = if self.random.one_in(3) {
            count
        } else {
            count.min(8)
        };
        let name = self.names[(count - 1 - self.random.below(near)) as usize];
        match name {
            Name::Type2(window, bits) if self.random.one_in(4) => {
                Name::Type2(window, bits.wrapping_add(1))
            }
            name => name,
        }
    }

    pub(super) fn key(&mut self, name: Name) -> RKey {
        RKey::Device(match name {
            Name::Local(region) => Key(self.regions[region].local_key.0),
            Name::Remote(region) => self.regions[region].key,
            Name::Chosen(window, number) => self.chosen[&(window, number)],
            Name::Type2(window, bits) => {
                let key = self.windows[window].1;
                key.with_consumer_bits(bits)
            }
            Name::Requested(key) => return RKey::Requested(key),
            Name::Never => Key(self.random.below(256) as u32),
        })
    }

    pub(super) fn device_key(&mut self, name: Name) -> (Name, Key) {
        match self.key(name) {
            RKey::Device(key) => (name, key),
            RKey::Requested(_) => (Name::Never, Key(3)),
        }
    }

    /// Adds a name for requests to use, the newest last.
    pub(super) fn learn(&mut self, name: Name) {
        self.names.retain(|known| *known != name);
        self.names.push(name);
    }

    pub(super) fn some_access(&mut self) -> u32 {
        match self.random.below(4) {
            0 => 0xff,
            1 => right::REMOTE | right::RECV | right::READ | right::BIND,
            _ => self.random.below(256) as u32,
        }
    }

    /// A range inside, near or far from a region.
    pub(super) fn aim(&mut self, region: usize) -> (u64, u64) {
        let (ranges, base) = self.aims[region].clone();
        let (real, size) = self.random.pick(&ranges);
        let total: u64 = ranges.iter().map(|(_, len)| len).sum();
        let (from, size) = match self.random.below(8) {
            0 => (real, size),
            1 => (0, total),
            2 => (base, total),
            3 if base == ranges[0].0 => (real, size),
            _ => (base, total),
        };
        let offset = self.random.below(size + 2);
        let addr = if self.random.one_in(8) {
            from.wrapping_sub(1 + self.random.below(3))
        } else {
            from.wrapping_add(offset)
        };
        let len = match self.random.below(12) {
            0 => size,
            1 => 0,
            2 => u64::MAX - self.random.below(4),
            3 => u64::MAX.wrapping_sub(addr),
            4 => 8,
            _ => 1 + self.random.below(size.saturating_sub(offset).max(1)),
        };
        (addr, len)
    }
}
