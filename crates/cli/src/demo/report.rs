//! The steps of the demo: printed as they happen, and at the end as a table.

use crate::style;
use comfy_table::{Attribute, Cell, CellAlignment, Color, Table};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The steps so far.
pub(super) struct Report {
    rows: Vec<Row>,
    talkative: bool,
}

#[derive(Serialize)]
struct Row {
    step: String,
    green: bool,
    result: String,
    #[serde(rename = "milliseconds", serialize_with = "as_milliseconds")]
    time: Duration,
}

fn as_milliseconds<S: serde::Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_f64(time.as_secs_f64() * 1e3)
}

impl Report {
    pub(super) fn new(talkative: bool) -> Self {
        Self {
            rows: Vec::new(),
            talkative,
        }
    }

    /// Prints a remark between the steps.
    pub(super) fn say(&self, text: &str) {
        if self.talkative {
            println!("{text}");
        }
    }

    /// Runs a step, which is green if it succeeds. The table shows its result; the running text also shows `detail`.
    pub(super) fn row(
        &mut self,
        step: &str,
        detail: &str,
        work: impl FnOnce() -> anyhow::Result<String>,
    ) -> bool {
        let started = Instant::now();
        let outcome = work();
        let time = started.elapsed();
        let green = outcome.is_ok();
        let result = outcome.unwrap_or_else(|error| format!("{error:#}"));
        if self.talkative {
            println!("{} {step}", if green { "[ok]    " } else { "[FAILED]" });
            for line in detail.lines().chain(result.lines()) {
                println!("             {line}");
            }
        }
        let result = shorten(&result);
        self.rows.push(Row {
            step: step.to_owned(),
            green,
            result,
            time,
        });
        green
    }

    /// Whether every step is green.
    pub(super) fn all_green(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.green)
    }

    /// The rows as JSON.
    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(&self.rows)?)
    }

    /// Prints the table.
    pub(super) fn print(&self) {
        println!("{}", self.table(style::colour()));
        let green = self.rows.iter().filter(|row| row.green).count();
        println!("{green} of {} steps succeeded.", self.rows.len());
    }

    fn table(&self, colour: bool) -> Table {
        let mut table = style::table(colour, ["", "step", "ms", "result"]);
        for (number, row) in self.rows.iter().enumerate() {
            let (word, paint) = if row.green {
                ("ok", Color::Green)
            } else {
                ("FAILED", Color::Red)
            };
            let mut verdict = Cell::new(word);
            if colour {
                verdict = verdict.fg(paint).add_attribute(Attribute::Bold);
            }
            table.add_row([
                verdict,
                Cell::new(format!("{:2} {}", number + 1, row.step)),
                Cell::new(format!("{:.2}", row.time.as_secs_f64() * 1e3))
                    .set_alignment(CellAlignment::Right),
                Cell::new(&row.result),
            ]);
        }
        table
    }
}

/// The first line. For a refusal, it contains only the reason, because the row already names the attempt.
fn shorten(result: &str) -> String {
    let line = result.lines().next().unwrap_or_default();
    match line.split_once(" denied: ") {
        Some((_, reason)) => format!("denied: {reason}"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_row_fails_the_report() {
        let mut report = Report::new(false);
        assert!(!report.all_green());
        report.row("good", "", || Ok("fine".into()));
        assert!(report.all_green());
        report.row("bad", "", || anyhow::bail!("broken"));
        assert!(!report.all_green());
        let table = report.table(false).to_string();
        assert!(table.contains("FAILED") && table.contains("broken") && !table.contains('\u{1b}'));
        assert!(report.table(true).to_string().contains('\u{1b}'));
    }
}
