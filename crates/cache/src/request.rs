//! What a lookup requests: rights and a kind of memory.

use std::fmt;

/// A set of access rights, as bits whose meaning only the registrar defines.
///
/// The cache compares sets and never adds a right: an entry does not serve a lookup that requests a right with which it
/// was not registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rights(pub u32);

impl Rights {
    /// Whether every right of `other` is in this set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A kind of memory: the host's or an accelerator's (interface and device number, in an encoding that the program chooses).
///
/// An entry serves lookups of its own kind only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind(pub u32);

impl Kind {
    /// Ordinary memory of this process.
    pub const HOST: Self = Self(0);
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::HOST {
            f.write_str("host")
        } else {
            write!(f, "device {:#x}", self.0)
        }
    }
}

/// Rights and kind in one word. The entries of one class are in one sorted list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u64);

impl Class {
    pub(crate) const fn new(rights: Rights, kind: Kind) -> Self {
        Self((kind.0 as u64) << 32 | rights.0 as u64)
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn rights(self) -> Rights {
        Rights(self.0 as u32)
    }

    #[inline]
    pub(crate) const fn kind(self) -> Kind {
        Kind((self.0 >> 32) as u32)
    }

    /// Whether an entry of this class may serve a lookup for `want`: the kind is the same, and no right is missing. If
    /// `exact`, it must not have other rights either.
    #[inline]
    pub(crate) const fn serves(self, want: Self, exact: bool) -> bool {
        self.0 == want.0
            || !exact && self.kind().0 == want.kind().0 && self.rights().contains(want.rights())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_never_serves_a_right_that_it_lacks() {
        for have in 0..16 {
            for want in 0..16 {
                let (entry, lookup) = (
                    Class::new(Rights(have), Kind(3)),
                    Class::new(Rights(want), Kind(3)),
                );
                assert_eq!(entry.serves(lookup, false), want & !have == 0);
                assert_eq!(entry.serves(lookup, true), want == have);
                let elsewhere = Class::new(Rights(want), Kind::HOST);
                assert!(!entry.serves(elsewhere, false) && !entry.serves(elsewhere, true));
            }
        }
    }
}
