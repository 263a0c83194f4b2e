//! How far a clause is proved, from the tests that cite it and the recorded reasons.

use super::clauses::Section;
use super::proofs::{Citation, Extent, Proof};
use super::reasons;
use std::collections::BTreeMap;

/// How far a clause is proved. The order is that of the columns of the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Proved through the API that the clause is about.
    Shown,
    /// Proved through the API, but only in strict mode.
    Strict,
    /// Proved in part.
    Partly,
    /// The rule that the clause states is proved below the API.
    Rule,
    /// The clause requires nothing of rkey.
    DoesNotApply,
    /// Not proved.
    Open,
}

impl State {
    pub(super) const ALL: [Self; 6] = [
        Self::Shown,
        Self::Strict,
        Self::Partly,
        Self::Rule,
        Self::DoesNotApply,
        Self::Open,
    ];

    /// The word for the state in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shown => "shown",
            Self::Strict => "strict",
            Self::Partly => "partly",
            Self::Rule => "rule",
            Self::DoesNotApply => "does not apply",
            Self::Open => "open",
        }
    }
}

/// The tests of each clause.
pub(super) struct Evidence<'a> {
    by_id: BTreeMap<&'a str, Vec<(&'a Proof, &'a Citation)>>,
}

impl<'a> Evidence<'a> {
    pub(super) fn of(proofs: &'a [Proof]) -> Self {
        let mut by_id: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for proof in proofs {
            for citation in &proof.cited {
                by_id
                    .entry(&citation.id)
                    .or_default()
                    .push((proof, citation));
            }
        }
        Self { by_id }
    }

    /// The tests that cite a clause, and how.
    pub(super) fn tests(&self, id: &str) -> &[(&'a Proof, &'a Citation)] {
        self.by_id.get(id).map_or(&[], Vec::as_slice)
    }

    pub(super) fn state(&self, id: &str) -> State {
        if reasons::not_applicable(id).is_some() {
            return State::DoesNotApply;
        }
        let tests = self.tests(id);
        let through_api = tests.iter().filter(|(proof, _)| proof.through_api());
        match through_api.map(|(_, citation)| citation.extent).min() {
            Some(Extent::Whole) => State::Shown,
            Some(Extent::Strict) => State::Strict,
            Some(Extent::Part) => State::Partly,
            None => match tests.iter().map(|(_, citation)| citation.extent).min() {
                Some(Extent::Part) => State::Partly,
                Some(_) => State::Rule,
                None => State::Open,
            },
        }
    }

    /// How many of these clauses are in each state, in the order of [`State::ALL`].
    pub(super) fn counts<'b>(&self, ids: impl Iterator<Item = &'b str>) -> [(State, usize); 6] {
        let mut counts = State::ALL.map(|state| (state, 0));
        for id in ids {
            counts[self.state(id) as usize].1 += 1;
        }
        counts
    }

    /// Clauses that have a recorded reason for not being proved, although a test proves them.
    pub(super) fn contradictions(&self, sections: &[Section]) -> Vec<String> {
        let ids = sections
            .iter()
            .flat_map(|s| &s.clauses)
            .map(|c| c.id.as_str());
        ids.filter(|id| {
            let tests = self.tests(id).iter();
            // The checks in C also run with other providers, to which the clause may apply.
            let mut ours = tests.filter(|(proof, _)| !proof.of_stage);
            let shown = !matches!(self.state(id), State::Open | State::Partly);
            match reasons::not_applicable(id) {
                Some(_) => ours.next().is_some(),
                None => reasons::of_open(id).is_some() && shown,
            }
        })
        .map(|id| {
            format!(
                "{id} has a reason for not being proved (xtask/src/conform/reasons.rs), but a test proves it"
            )
        })
        .collect()
    }
}
