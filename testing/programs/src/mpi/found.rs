//! The results of mpi4py's tests on all ranks, compared with the recorded results.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The last line of a rank's report.
const END: &str = "ended";

/// The results of mpi4py's tests.
pub(super) struct Found {
    pub(super) mpi: &'static str,
    /// Result and reason by test.
    pub(super) rows: BTreeMap<String, (String, String)>,
    /// All ranks finished; otherwise, some tests are missing.
    pub(super) ended: bool,
    /// The output of the ranks, shown only if a result differs from the recorded one.
    pub(super) output: String,
}

impl Found {
    /// Adds the report file of each rank.
    pub(super) fn add_ranks(&mut self, results: &Path) -> Result<()> {
        for rank in 0..4 {
            let file = results.with_extension(format!("results.{rank}"));
            let text = fs::read_to_string(&file).with_context(|| {
                format!("cannot read {}, the report of rank {rank}", file.display())
            })?;
            self.add(&text);
        }
        Ok(())
    }

    /// Adds the report of one rank: a test that fails on any rank has failed.
    fn add(&mut self, text: &str) {
        self.ended &= text.lines().next_back() == Some(END);
        for line in text.lines() {
            let mut columns = line.splitn(3, '\t').map(str::to_owned);
            let (Some(name), Some(result)) = (columns.next(), columns.next()) else {
                continue;
            };
            let reason = columns.next().unwrap_or_default();
            let row = self
                .rows
                .entry(name)
                .or_insert_with(|| (result.clone(), reason.clone()));
            if result == "FAIL" && row.0 != "FAIL" {
                *row = (result, reason);
            }
        }
    }

    fn with(&self, result: &str) -> impl Iterator<Item = (&String, &String)> {
        self.rows
            .iter()
            .filter(move |(_, row)| row.0 == result)
            .map(|(name, row)| (name, &row.1))
    }

    pub(super) fn passed(&self) -> usize {
        self.with("ok").count()
    }

    pub(super) fn render(&self) -> String {
        let mpi = self.mpi;
        let mut text = format!("{mpi}\tpass\t{}\n", self.passed());
        for (name, reason) in self.with("FAIL") {
            text.push_str(format!("{mpi}\t{name}\t{reason}").trim_end());
            text.push('\n');
        }
        text
    }

    /// Differences from the list; the number of passing tests counts only for the ordinary modules.
    pub(super) fn judge(&self, list: &str, ordinary: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        let start = format!("{}\t", self.mpi);
        let lines = list.lines().filter_map(|line| line.strip_prefix(&start));
        let known: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('\t')).collect();
        for (name, reason) in self.with("FAIL") {
            if !known.contains_key(name.as_str()) {
                wrong.push(format!("{name} failed: {reason}"));
            }
        }
        let passed = self.passed().to_string();
        if ordinary && known.get("pass") != Some(&passed.as_str()) {
            let before = known.get("pass").unwrap_or(&"none");
            wrong.push(format!(
                "{passed} tests pass, but {before} are recorded as passing: use --record"
            ));
        }
        if !self.ended {
            wrong.push("not every rank finished".to_owned());
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrecorded_failures_and_missing_ranks_are_reported() {
        let mut found = Found {
            mpi: "mpich",
            rows: BTreeMap::new(),
            ended: true,
            output: String::new(),
        };
        found.add("a.A.one\tok\t\na.A.two\tok\t\na.A.three\tskip\tnot here\nended\n");
        found.add("a.A.one\tok\t\na.A.two\tFAIL\t1 != 2\na.A.three\tskip\tnot here\nended\n");
        assert_eq!(found.passed(), 1);
        let list = found.render();
        assert_eq!(list, "mpich\tpass\t1\nmpich\ta.A.two\t1 != 2\n");
        assert!(found.judge(&list, true).is_empty());
        assert_eq!(found.judge("mpich\tpass\t1\n", true).len(), 1);
        assert_eq!(found.judge("openmpi\tpass\t1\n", true).len(), 2);
        assert_eq!(found.judge("", false).len(), 1);
        found.add("a.A.one\tok\t\n");
        assert_eq!(found.judge(&list, true), ["not every rank finished"]);
    }
}
