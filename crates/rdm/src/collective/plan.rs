//! Which member sends which blocks to which others in a collective operation. A plan lists what one member does, round
//! by round, with blocks of its working memory. This file touches no memory.
//!
//! | operation | how |
//! | --- | --- |
//! | barrier | dissemination: after the last round every member knows that every other has entered |
//! | broadcast, reduce, scatter, gather | binomial trees around the root |
//! | allreduce | recursive doubling; members beyond a power of two first pass their values to a neighbour |
//! | allgather | a ring |
//! | alltoall, reduce-scatter | pairwise exchange |

use super::kind::Kind;
use super::tree::Tree;
use std::ops::Range;

/// What a member sends in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The destination member.
    pub to: usize,
    /// The blocks to send.
    pub blocks: Range<usize>,
}

/// What a member receives in a round, after it has sent everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The source member.
    pub from: usize,
    /// The blocks that receive the data.
    pub blocks: Range<usize>,
    /// How the data is stored.
    pub how: How,
}

/// How received data is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The data replaces the blocks.
    Put,
    /// The data is the second operand of a reduction with the blocks.
    Reduce,
    /// The data is the first operand, so that two members that exchange values get the same result, bit for bit.
    ReduceBehind,
}

/// A round of a plan.
#[derive(Debug, Default)]
pub struct Round {
    /// The blocks to send, in this order.
    pub sends: Vec<Send>,
    /// What the member receives after that.
    pub receive: Option<Receive>,
}

impl Round {
    pub(super) fn send(to: usize, blocks: Range<usize>) -> Self {
        Self {
            sends: vec![Send { to, blocks }],
            receive: None,
        }
    }

    pub(super) fn receive(from: usize, blocks: Range<usize>, how: How) -> Self {
        Self {
            sends: Vec::new(),
            receive: Some(Receive { from, blocks, how }),
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.sends.extend(other.sends);
        self.receive = self.receive.or(other.receive);
        self
    }
}

/// The plan of one member.
#[derive(Debug, Default)]
pub struct Plan {
    /// How many blocks of working memory the member needs.
    pub blocks: usize,
    /// The working block for each block of the source.
    pub load: Vec<usize>,
    /// The working block of each block of the result.
    pub store: Vec<usize>,
    /// The rounds, in order.
    pub rounds: Vec<Round>,
}

impl Plan {
    /// The plan of member `me` of `n`.
    #[must_use]
    pub fn new(kind: Kind, n: usize, me: usize, root: usize) -> Self {
        let tree = Tree::new(n, me, root);
        match kind {
            Kind::Barrier => Self {
                rounds: dissemination(n, me),
                ..Self::default()
            },
            Kind::Broadcast => Self {
                blocks: 1,
                load: if tree.at == 0 { vec![0] } else { vec![] },
                store: if tree.at == 0 { vec![] } else { vec![0] },
                rounds: tree.down(|_| 0..1),
            },
            Kind::AllToAll => Self {
                blocks: 2 * n,
                load: (0..n).collect(),
                store: (0..n)
                    .map(|from| if from == me { me } else { n + from })
                    .collect(),
                rounds: pairwise(n, me, |from| (n + from..n + from + 1, How::Put)),
            },
            Kind::AllReduce => Self {
                blocks: 1,
                load: vec![0],
                store: vec![0],
                rounds: doubling(n, me),
            },
            Kind::AllGather => Self {
                blocks: n,
                load: vec![me],
                store: (0..n).collect(),
                rounds: ring(n, me),
            },
            Kind::ReduceScatter => Self {
                blocks: n,
                load: (0..n).collect(),
                store: vec![me],
                rounds: pairwise(n, me, |_| (me..me + 1, How::Reduce)),
            },
            Kind::Reduce => Self {
                blocks: 1,
                load: vec![0],
                store: if tree.at == 0 { vec![0] } else { vec![] },
                rounds: tree.up(|_| 0..1, How::Reduce),
            },
            Kind::Scatter => Self {
                blocks: tree.below(tree.at).len(),
                load: if tree.at == 0 { tree.places() } else { vec![] },
                store: vec![0],
                rounds: tree.down(|of| tree.relative(of)),
            },
            Kind::Gather => Self {
                blocks: tree.below(tree.at).len(),
                load: vec![0],
                store: if tree.at == 0 { tree.places() } else { vec![] },
                rounds: tree.up(|of| tree.relative(of), How::Put),
            },
        }
    }
}

fn dissemination(n: usize, me: usize) -> Vec<Round> {
    let distances = std::iter::successors(Some(1), |distance| Some(distance << 1));
    distances
        .take_while(|&distance| distance < n)
        .map(|distance| {
            let there = Round::send((me + distance) % n, 0..0);
            there.and(Round::receive((me + n - distance) % n, 0..0, How::Put))
        })
        .collect()
}

/// Sends each member its block; `place` returns the working block for a member's data, and how the data is stored.
fn pairwise(n: usize, me: usize, place: impl Fn(usize) -> (Range<usize>, How)) -> Vec<Round> {
    (1..n)
        .map(|distance| {
            let (to, from) = ((me + distance) % n, (me + n - distance) % n);
            let (blocks, how) = place(from);
            Round::send(to, to..to + 1).and(Round::receive(from, blocks, how))
        })
        .collect()
}

fn ring(n: usize, me: usize) -> Vec<Round> {
    (1..n)
        .map(|round| {
            let (mine, theirs) = ((me + 1 + n - round) % n, (me + n - round) % n);
            let there = Round::send((me + 1) % n, mine..mine + 1);
            let from = (me + n - 1) % n;
            there.and(Round::receive(from, theirs..theirs + 1, How::Put))
        })
        .collect()
}

fn doubling(n: usize, me: usize) -> Vec<Round> {
    let pairs = n - (1 << n.ilog2());
    // Of the first `2 * pairs` members, the even ones pass their values to a neighbour and get the result back.
    let paired = me < 2 * pairs;
    if paired && me.is_multiple_of(2) {
        let neighbour = me + 1;
        return vec![
            Round::send(neighbour, 0..1),
            Round::receive(neighbour, 0..1, How::Put),
        ];
    }
    let mut rounds = Vec::new();
    if paired {
        rounds.push(Round::receive(me - 1, 0..1, How::ReduceBehind));
    }
    let number = if paired { me / 2 } else { me - pairs };
    let member = |number: usize| match number < pairs {
        true => 2 * number + 1,
        false => number + pairs,
    };
    for bit in 0..n.ilog2() {
        let partner = number ^ (1 << bit);
        let how = match partner < number {
            true => How::ReduceBehind,
            false => How::Reduce,
        };
        let there = Round::send(member(partner), 0..1);
        rounds.push(there.and(Round::receive(member(partner), 0..1, how)));
    }
    if paired {
        rounds.push(Round::send(me - 1, 0..1));
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    /// A member's block: a text, so that a reduction shows its order.
    type Block = String;

    struct Member {
        plan: Plan,
        work: Vec<Block>,
        round: usize,
        sent: bool,
    }

    /// Runs the plans of all members; returns the results.
    fn run(kind: Kind, n: usize, root: usize) -> Vec<Vec<Block>> {
        let mut members: Vec<Member> = (0..n)
            .map(|me| {
                let plan = Plan::new(kind, n, me, root);
                let mut work = vec![Block::new(); plan.blocks];
                for (block, &to) in plan.load.iter().enumerate() {
                    work[to] = format!("{me}.{block}");
                }
                Member {
                    plan,
                    work,
                    round: 0,
                    sent: false,
                }
            })
            .collect();
        let mut ways: HashMap<(usize, usize), VecDeque<Vec<Block>>> = HashMap::new();
        loop {
            let mut moved = false;
            for (me, member) in members.iter_mut().enumerate() {
                let Some(round) = member.plan.rounds.get(member.round) else {
                    continue;
                };
                if !std::mem::replace(&mut member.sent, true) {
                    for send in &round.sends {
                        assert_ne!(send.to, me, "a member sends to itself");
                        let blocks = member.work[send.blocks.clone()].to_vec();
                        ways.entry((me, send.to)).or_default().push_back(blocks);
                    }
                }
                if let Some(receive) = &round.receive {
                    let way = ways.get_mut(&(receive.from, me));
                    let Some(blocks) = way.and_then(VecDeque::pop_front) else {
                        continue;
                    };
                    let places = &mut member.work[receive.blocks.clone()];
                    assert_eq!(places.len(), blocks.len(), "{kind:?} of {n}");
                    for (place, block) in places.iter_mut().zip(blocks) {
                        *place = match receive.how {
                            How::Put => block,
                            How::Reduce => format!("({place}+{block})"),
                            How::ReduceBehind => format!("({block}+{place})"),
                        };
                    }
                }
                member.round += 1;
                member.sent = false;
                moved = true;
            }
            if !moved {
                break;
            }
        }
        assert!(ways.values().all(VecDeque::is_empty), "{kind:?} of {n}");
        members
            .iter()
            .map(|member| {
                assert_eq!(member.round, member.plan.rounds.len(), "{kind:?} of {n}");
                let places = member.plan.store.iter();
                places.map(|&at| member.work[at].clone()).collect()
            })
            .collect()
    }

    /// Every operand is in the reduction once.
    fn sums(text: &str, block: usize, n: usize) -> bool {
        let mut parts: Vec<&str> = text.split(['(', '+', ')']).collect();
        parts.retain(|part| !part.is_empty());
        parts.sort_by_key(|part| {
            part.split_once('.')
                .and_then(|it| it.0.parse::<usize>().ok())
        });
        parts == (0..n).map(|m| format!("{m}.{block}")).collect::<Vec<_>>()
    }

    #[test]
    fn every_collective_gives_each_member_the_right_result() {
        for n in 1..=19 {
            for root in 0..n {
                assert!(run(Kind::Barrier, n, root).iter().all(Vec::is_empty));
                let broadcast = run(Kind::Broadcast, n, root);
                let gather = run(Kind::Gather, n, root);
                let scatter = run(Kind::Scatter, n, root);
                let reduce = run(Kind::Reduce, n, root);
                for me in 0..n {
                    if me == root {
                        assert!(broadcast[me].is_empty());
                        let all: Vec<_> = (0..n).map(|m| format!("{m}.0")).collect();
                        assert_eq!(gather[me], all);
                        assert!(sums(&reduce[me][0], 0, n));
                    } else {
                        assert_eq!(broadcast[me], [format!("{root}.0")]);
                        assert!(gather[me].is_empty() && reduce[me].is_empty());
                    }
                    assert_eq!(scatter[me], [format!("{root}.{me}")]);
                }
            }
            let gathered = run(Kind::AllGather, n, 0);
            let exchanged = run(Kind::AllToAll, n, 0);
            let scattered = run(Kind::ReduceScatter, n, 0);
            let reduced = run(Kind::AllReduce, n, 0);
            for me in 0..n {
                let all = |block: usize| -> Vec<_> {
                    (0..n).map(|member| format!("{member}.{block}")).collect()
                };
                assert_eq!(gathered[me], all(0));
                assert_eq!(exchanged[me], all(me));
                assert!(sums(&scattered[me][0], me, n), "{scattered:?}");
                assert!(sums(&reduced[me][0], 0, n));
                assert_eq!(
                    reduced[me], reduced[0],
                    "members reduce in different orders"
                );
            }
        }
    }

    /// No member leaves a barrier before all have arrived: each member has heard from all others, directly or through
    /// other members.
    #[test]
    fn a_barrier_waits_for_all_members() {
        for n in 1..=19usize {
            let plans: Vec<_> = (0..n).map(|me| dissemination(n, me)).collect();
            let mut known: Vec<u32> = (0..n).map(|me| 1 << me).collect();
            for round in 0..plans[0].len() {
                let before = known.clone();
                for (me, plan) in plans.iter().enumerate() {
                    let from = plan[round].receive.as_ref().map(|receive| receive.from);
                    known[me] |= before[from.unwrap()];
                }
            }
            assert!(known.iter().all(|&all| all == (1 << n) - 1));
        }
    }
}
