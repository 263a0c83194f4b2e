//! Binomial trees around a root. Members are numbered from the root: a member's number is its
//! distance from the root in rank order.

use super::plan::{How, Round, Send};
use std::ops::Range;

/// A binomial tree: the parent of a number is that number with its lowest set bit cleared.
pub(super) struct Tree {
    n: usize,
    root: usize,
    /// Our number.
    pub(super) at: usize,
}

impl Tree {
    pub(super) fn new(n: usize, me: usize, root: usize) -> Self {
        Self {
            n,
            root,
            at: (me + n - root) % n,
        }
    }

    fn member(&self, number: usize) -> usize {
        (number + self.root) % self.n
    }

    /// The number of each member.
    pub(super) fn places(&self) -> Vec<usize> {
        (0..self.n)
            .map(|member| (member + self.n - self.root) % self.n)
            .collect()
    }

    /// The size of a subtree if it is complete.
    fn span(&self, of: usize) -> usize {
        match of {
            0 => self.n.next_power_of_two(),
            _ => 1 << of.trailing_zeros(),
        }
    }

    /// The numbers of a subtree.
    pub(super) fn below(&self, of: usize) -> Range<usize> {
        of..(of + self.span(of)).min(self.n)
    }

    /// The subtree of a child, relative to our own number.
    pub(super) fn relative(&self, of: usize) -> Range<usize> {
        let below = self.below(of);
        let first = below.start.saturating_sub(self.at);
        first..first + below.len()
    }

    /// Our children, nearest first.
    fn children(&self) -> Vec<usize> {
        let distances = std::iter::successors(Some(1), |distance| Some(distance << 1));
        distances
            .take_while(|&distance| distance < self.span(self.at))
            .map(|distance| self.at + distance)
            .filter(|&child| child < self.n)
            .collect()
    }

    fn parent(&self) -> Option<usize> {
        (self.at > 0).then(|| self.at & (self.at - 1))
    }

    /// From the root to all: each member gets the blocks of its subtree.
    pub(super) fn down(&self, blocks: impl Fn(usize) -> Range<usize>) -> Vec<Round> {
        let mut rounds = Vec::new();
        if let Some(parent) = self.parent() {
            let from = self.member(parent);
            rounds.push(Round::receive(from, blocks(self.at), How::Put));
        }
        // The child with the largest subtree comes first, because it has the most to pass on.
        let children = self.children().into_iter().rev();
        rounds.push(Round {
            sends: children
                .map(|child| Send {
                    to: self.member(child),
                    blocks: blocks(child),
                })
                .collect(),
            receive: None,
        });
        rounds
    }

    /// From all to the root.
    pub(super) fn up(&self, blocks: impl Fn(usize) -> Range<usize>, how: How) -> Vec<Round> {
        let children = self.children().into_iter();
        let mut rounds: Vec<_> = children
            .map(|child| Round::receive(self.member(child), blocks(child), how))
            .collect();
        if let Some(parent) = self.parent() {
            rounds.push(Round::send(self.member(parent), blocks(self.at)));
        }
        rounds
    }
}
