//! The results as a table: one row for each subject, with our figure, each peer's best, and the ratio to the
//! better peer.

use super::probe::median;
use super::result::{Measurement, Subject, Turn};
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;
use std::collections::BTreeMap;

/// All figures for one subject.
#[derive(Debug, Default)]
pub(crate) struct Row<'a> {
    /// Our figure.
    pub(crate) ours: Option<&'a Measurement>,
    /// Each peer's best variant.
    pub(crate) peers: BTreeMap<&'a str, &'a Measurement>,
}

/// Our time compared with the better peer's, on one subject.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) op: String,
    pub(crate) memory: String,
    pub(crate) mode: String,
    pub(crate) condition: String,
    pub(crate) live: u64,
    pub(crate) size: u64,
    /// The better peer.
    pub(crate) peer: String,
    /// The better peer's time divided by ours: above 1, we are faster.
    pub(crate) ratio: f64,
}

impl<'a> Row<'a> {
    /// The fastest peer.
    pub(crate) fn best_peer(&self) -> Option<&'a Measurement> {
        self.peers
            .values()
            .copied()
            .min_by(|a, b| a.median_ns.total_cmp(&b.median_ns))
    }

    /// The better peer's time divided by ours: the median over the rounds that both have, because only repetitions in
    /// one round ran under the same conditions.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (peer, ours) = (self.best_peer()?, self.ours?);
        let of_round = |turn: &Turn| {
            let same = ours.turns.iter().find(|own| own.round == turn.round)?;
            Some(turn.ns / same.ns)
        };
        let mut ratios: Vec<f64> = peer.turns.iter().filter_map(of_round).collect();
        median(&mut ratios).or(Some(peer.median_ns / ours.median_ns))
    }

    /// The distance between the cores during these figures: the median, minimum and maximum of a cache line's round
    /// trip in nanoseconds, and the median of gigabytes per second.
    fn distance(&self) -> Option<(f64, f64, f64, f64)> {
        let figures = || self.ours.iter().chain(self.peers.values());
        let all = |value: fn(&Turn) -> Option<f64>| -> Vec<f64> {
            let turns = figures().flat_map(|figure| &figure.turns);
            turns.filter_map(value).collect()
        };
        let mut trips = all(|turn| turn.round_trip_ns);
        let middle = median(&mut trips)?;
        let rate = median(&mut all(|turn| turn.gigabytes_per_second))?;
        Some((middle, *trips.first()?, *trips.last()?, rate))
    }
}

/// Sorts the figures by subject and keeps each peer's best.
pub(crate) fn rows(figures: &[Measurement]) -> BTreeMap<Subject, Row<'_>> {
    let mut rows: BTreeMap<Subject, Row<'_>> = BTreeMap::new();
    for figure in figures {
        let row = rows.entry(figure.subject()).or_default();
        if figure.is_ours() {
            row.ours = Some(figure);
            continue;
        }
        let best = row.peers.entry(figure.column()).or_insert(figure);
        if figure.median_ns < best.median_ns {
            *best = figure;
        }
    }
    rows
}

/// The ratios of all subjects that we and a peer have.
pub(crate) fn ratios(figures: &[Measurement]) -> Vec<Ratio> {
    let with_ratio = |(subject, row): (Subject, Row<'_>)| {
        Some(Ratio {
            ratio: row.ratio()?,
            peer: label(row.best_peer()?),
            op: subject.op,
            memory: subject.memory,
            mode: subject.mode,
            condition: subject.condition,
            live: subject.live,
            size: subject.size,
        })
    };
    rows(figures).into_iter().filter_map(with_ratio).collect()
}

/// The column for the distance between the cores: a cache line's round trip, and the bandwidth from cache to cache.
const DISTANCE: &str = "cores apart";

/// The printed table.
pub(crate) fn render(figures: &[Measurement]) -> String {
    let rows = rows(figures);
    let mut columns: Vec<&str> = rows
        .values()
        .flat_map(|row| row.peers.keys().copied())
        .collect();
    columns.sort_unstable();
    columns.dedup();
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let mut head = vec!["operation", "size", "condition", "rkey", "GB/s"];
    head.extend(&columns);
    let shows_distance = rows.values().any(|row| row.distance().is_some());
    if shows_distance {
        head.push(DISTANCE);
    }
    if !columns.is_empty() {
        head.push("better peer / rkey");
    }
    table.set_header(head);
    for (subject, row) in &rows {
        let mut cells = vec![
            Cell::new(operation(subject)),
            right(bytes(subject.size)),
            Cell::new(&subject.condition),
            right(row.ours.map_or_else(dash, with_spread)),
            right(
                row.ours
                    .and_then(Measurement::gigabytes_per_second)
                    .map_or_else(dash, |v| format!("{v:.1}")),
            ),
        ];
        for column in &columns {
            cells.push(right(
                row.peers
                    .get(column)
                    .map_or_else(dash, |peer| peer_cell(peer)),
            ));
        }
        if shows_distance {
            let text = row
                .distance()
                .map_or_else(dash, |(middle, least, most, rate)| {
                    format!("{middle:.0} ({least:.0}-{most:.0}) ns, {rate:.1} GB/s")
                });
            cells.push(right(text));
        }
        if !columns.is_empty() {
            cells.push(right(
                row.ratio().map_or_else(dash, |ratio| format!("{ratio:.2}")),
            ));
        }
        table.add_row(cells);
    }
    table.to_string()
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn dash() -> String {
    "-".to_owned()
}

/// The name of a row.
fn operation(subject: &Subject) -> String {
    let memory = if subject.memory == "own" {
        ", shared memory"
    } else {
        ""
    };
    let live = match (subject.op.as_str(), subject.live) {
        (_, 0) => String::new(),
        // Its mode says of what.
        ("poll", count) => format!(": {count}"),
        (_, live) => format!(", {live} live regions"),
    };
    format!("{} {}{memory}{live}", subject.op, subject.mode)
}

fn with_spread(figure: &Measurement) -> String {
    let p99 = figure
        .p99_ns
        .map(|ns| format!(", p99 {}", time(ns)))
        .unwrap_or_default();
    let floor = figure
        .above_floor_ns()
        .map(|ns| {
            format!(
                " = floor {} {}",
                if ns < 0.0 { '-' } else { '+' },
                time(ns.abs())
            )
        })
        .unwrap_or_default();
    format!(
        "{}{floor} ({}-{}{p99})",
        time(figure.median_ns),
        time(figure.min_ns),
        time(figure.max_ns)
    )
}

fn peer_cell(figure: &Measurement) -> String {
    let variant = match (
        figure.peer.as_str(),
        figure.provider.as_str(),
        figure.completion.as_str(),
    ) {
        ("ucx_perftest", ..) => " perftest".to_owned(),
        ("ucx", ..) => String::new(),
        (_, provider, "delivery") => format!(" {provider}, delivery"),
        (_, provider, _) => format!(" {provider}"),
    };
    format!("{}{variant}", time(figure.median_ns))
}

fn label(figure: &Measurement) -> String {
    format!(
        "{} {} ({}, {})",
        figure.peer, figure.version, figure.provider, figure.completion
    )
}

/// A time in its most readable unit.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 100.0 => format!("{ns:.1} ns"),
        ns if ns < 1_000.0 => format!("{ns:.0} ns"),
        ns if ns < 100_000.0 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} us", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

/// A size in its most readable unit.
pub(crate) fn bytes(size: u64) -> String {
    match size {
        0 => dash(),
        size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 && size % (1 << 10) == 0 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(peer: &str, provider: &str, ns: f64) -> Measurement {
        Measurement {
            peer: peer.into(),
            version: "1".into(),
            provider: provider.into(),
            memory: "ordinary".into(),
            completion: "default".into(),
            op: "write".into(),
            mode: "stream".into(),
            size: 65536,
            condition: "static".into(),
            live: 0,
            median_ns: ns,
            min_ns: ns,
            max_ns: ns,
            reps: 1,
            p99_ns: None,
            turns: Vec::new(),
        }
    }

    fn turn(round: u32, ns: f64, round_trip_ns: f64) -> Turn {
        Turn {
            round,
            ns,
            round_trip_ns: Some(round_trip_ns),
            gigabytes_per_second: Some(8.0),
            steady: Some(true),
        }
    }

    /// The machine is four times slower in the second half, where only the peer has one repetition more.
    #[test]
    fn ratios_compare_repetitions_of_the_same_round() {
        let mut ours = figure("rkey", "shm", 100.0);
        ours.turns = vec![
            turn(0, 100.0, 90.0),
            turn(1, 100.0, 90.0),
            turn(2, 400.0, 360.0),
        ];
        let mut peer = figure("ucx", "posix", 1200.0);
        peer.turns = vec![
            turn(0, 300.0, 90.0),
            turn(2, 1200.0, 360.0),
            turn(3, 1200.0, 360.0),
        ];
        let figures = [ours, peer];
        assert!((ratios(&figures)[0].ratio - 3.0).abs() < 1e-9);
        let text = render(&figures);
        assert!(text.contains("360 (90-360) ns, 8.0 GB/s"), "{text}");
    }

    #[test]
    fn one_way_figures_are_shown_relative_to_the_floor() {
        let mut ours = figure("rkey", "shm", 200.0);
        ours.mode = "oneway".into();
        ours.turns = vec![
            turn(0, 200.0, 90.0),
            turn(1, 230.0, 100.0),
            turn(2, 190.0, 80.0),
        ];
        let text = render(&[ours]);
        assert!(text.contains("200 ns = floor + 155 ns"), "{text}");
    }

    #[test]
    fn ratios_use_the_best_variant_of_the_better_peer() {
        let figures = [
            figure("rkey", "shm", 100.0),
            figure("libfabric", "shm", 900.0),
            figure("libfabric", "shm ordered", 500.0),
            figure("ucx", "posix", 400.0),
            figure("ucx_perftest", "posix", 200.0),
        ];
        let ratios = ratios(&figures);
        assert_eq!(ratios.len(), 1);
        assert!((ratios[0].ratio - 2.0).abs() < 1e-9);
        assert!(ratios[0].peer.starts_with("ucx_perftest"));
        let text = render(&figures);
        for expected in ["shm ordered", "100 ns", "200 ns perftest", "2.00", "64 KiB"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn without_peers_there_is_no_ratio() {
        let figures = [figure("rkey", "shm", 100.0)];
        assert!(ratios(&figures).is_empty());
        assert!(!render(&figures).contains("better"));
    }

    #[test]
    fn times_and_sizes_are_shown_in_readable_units() {
        assert_eq!(
            [time(18.25), time(145.0), time(1500.0), time(2.5e6)],
            ["18.2 ns", "145 ns", "1.50 us", "2.50 ms"]
        );
        assert_eq!(
            [bytes(8), bytes(4096), bytes(1 << 20), bytes(1000)],
            ["8 B", "4 KiB", "1 MiB", "1000 B"]
        );
    }
}
