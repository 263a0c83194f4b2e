//! The results as a plot: the time of one operation against its size, both on logarithmic scales, with one panel for each kind of
//! operation, one line for rkey, and one for each library that is compared. Registrations and key checks are plotted against the
//! number of live regions, polls against that of queue pairs or links.

use super::result::{Measurement, Subject};
use super::svg::{Anchor, Stroke, Svg, width, wrap};
use super::table;
use std::collections::BTreeMap;

/// The size of a panel, and its margins.
const PANEL: (f64, f64) = (640.0, 400.0);
const LEFT: f64 = 80.0;
const RIGHT: f64 = 40.0;
const BELOW: f64 = 50.0;
/// The font sizes of the heading and the axes, and of titles.
const SMALL: f64 = 12.0;
const LARGE: f64 = 15.0;
/// Line height of small text.
const LINE: f64 = 18.0;
/// The outer margin.
const EDGE: f64 = 20.0;
/// The distance between marks of two lines at the same size.
const APART: f64 = 4.0;

const GRID: Stroke = Stroke {
    colour: "#dddddd",
    width: 1.0,
    dashes: "",
};
const AXIS: Stroke = Stroke {
    colour: "#555555",
    width: 1.0,
    dashes: "",
};
/// Ours first.
const STROKES: [Stroke; 6] = [
    Stroke {
        colour: "#c83c1e",
        width: 3.0,
        dashes: "",
    },
    Stroke {
        colour: "#2864b4",
        width: 2.0,
        dashes: "",
    },
    Stroke {
        colour: "#3c8c46",
        width: 2.0,
        dashes: "6 3",
    },
    Stroke {
        colour: "#7850a0",
        width: 2.0,
        dashes: "2 3",
    },
    Stroke {
        colour: "#b07a10",
        width: 2.0,
        dashes: "8 3 2 3",
    },
    Stroke {
        colour: "#444444",
        width: 2.0,
        dashes: "4 2",
    },
];

const EXPLANATION: &str = "Time of one operation against its size, logarithmic: the median, and a bar from the best to the worst repetition.";

/// A figure in a panel.
#[derive(Debug, Clone, Copy)]
struct Point {
    /// Size in bytes, or number of live regions, queue pairs or links.
    x: u64,
    median: f64,
    least: f64,
    most: f64,
}

#[derive(Debug, Default)]
struct Panel {
    /// Whether the x axis is a number of regions, queue pairs or links.
    over_numbers: bool,
    /// The figures by name, ours first; a name with several sizes is split by size.
    lines: BTreeMap<(bool, u64, String), Vec<Point>>,
}

/// The panels of these figures, by title.
fn panels(figures: &[Measurement]) -> BTreeMap<String, Panel> {
    let mut panels: BTreeMap<String, Panel> = BTreeMap::new();
    for (subject, row) in table::rows(figures) {
        let Some(title) = title(&subject) else {
            continue;
        };
        let over_numbers = matches!(subject.op.as_str(), "register" | "check" | "poll");
        let panel = panels.entry(title).or_default();
        panel.over_numbers = over_numbers;
        let ours = row.ours.map(|figure| ("rkey", figure));
        let peers = row.peers.iter().map(|(name, figure)| (*name, *figure));
        for (name, figure) in ours.into_iter().chain(peers) {
            let (x, size, name) = match subject.op.as_str() {
                "register" => {
                    let size = table::bytes(subject.size);
                    (subject.live, subject.size, format!("{name}, {size}"))
                }
                "check" => (subject.live, 0, subject.mode.clone()),
                "poll" => (subject.live, 0, work_and_many(&subject.mode).0.to_owned()),
                _ => (subject.size, 0, name.to_owned()),
            };
            let key = (!figure.is_ours(), size, name);
            let line = panel.lines.entry(key).or_default();
            line.push(Point {
                x,
                median: figure.median_ns,
                least: figure.min_ns,
                most: figure.max_ns,
            });
        }
    }
    for line in panels
        .values_mut()
        .flat_map(|panel| panel.lines.values_mut())
    {
        line.sort_by_key(|point| point.x);
    }
    panels
}

/// The title of a subject's panel, if it is plotted.
fn title(subject: &Subject) -> Option<String> {
    match subject.op.as_str() {
        "write" | "read" | "send" | "atomic" => {
            let memory = if subject.memory == "own" {
                "shared memory"
            } else {
                "ordinary memory"
            };
            let (op, mode, condition) = (&subject.op, &subject.mode, &subject.condition);
            Some(format!("{op} {mode}, {memory}, {condition}"))
        }
        "register" => Some("register and deregister, by live regions".to_owned()),
        "check" => Some("the protection table alone, by live regions".to_owned()),
        "poll" => Some(format!("poll, {}", work_and_many(&subject.mode).1)),
        _ => None,
    }
}

/// The mode of a poll's figure: what was measured, and what there was many of.
fn work_and_many(mode: &str) -> (&str, &str) {
    mode.rsplit_once(", ").unwrap_or((mode, ""))
}

/// Draws `figures` as SVG below a heading.
pub(crate) fn draw(figures: &[Measurement], heading: &str) -> String {
    let panels = panels(figures);
    let columns = panels.len().clamp(1, 2);
    let wide = columns as f64 * PANEL.0 + 2.0 * EDGE;
    let mut lines = wrap(heading, SMALL, wide - 2.0 * EDGE);
    lines.push(if panels.is_empty() {
        "Nothing to draw: nothing with a size or a number was measured.".to_owned()
    } else {
        EXPLANATION.to_owned()
    });
    let top = EDGE + lines.len() as f64 * LINE + EDGE;
    let rows = panels.len().div_ceil(2) as f64;
    let mut svg = Svg::new(wide, top + rows * PANEL.1 + EDGE);
    for (index, line) in lines.iter().enumerate() {
        let y = EDGE + (index as f64 + 1.0) * LINE;
        svg.text((EDGE, y), SMALL, Anchor::Start, line);
    }
    for (index, (title, panel)) in panels.iter().enumerate() {
        let (column, row) = ((index % 2) as f64, (index / 2) as f64);
        let corner = (EDGE + column * PANEL.0, top + row * PANEL.1);
        panel.draw(&mut svg, corner, title);
    }
    svg.finish()
}

/// A logarithmic scale from values to coordinates.
#[derive(Debug, Clone, Copy)]
struct Scale {
    values: (f64, f64),
    places: (f64, f64),
}

impl Scale {
    fn place(&self, value: f64) -> f64 {
        let (from, to) = (self.values.0.ln(), self.values.1.ln());
        let part = (value.ln() - from) / (to - from);
        self.places.0 + part * (self.places.1 - self.places.0)
    }
}

impl Panel {
    fn draw(&self, svg: &mut Svg, corner: (f64, f64), title: &str) {
        let (left, right) = (corner.0 + LEFT, corner.0 + PANEL.0 - RIGHT);
        svg.text((left, corner.1 + LARGE), LARGE, Anchor::Start, title);
        let top = self.legend(svg, (left, corner.1 + LARGE + LINE), right) + LINE;
        let bottom = corner.1 + PANEL.1 - BELOW;
        let x = self.x_scale(left + 20.0, right - 20.0);
        let y = self.y_scale(bottom, top);

        for (value, label) in time_marks(y) {
            let at = y.place(value);
            svg.line(&[(left, at), (right, at)], GRID);
            svg.text((left - 6.0, at + SMALL / 3.0), SMALL, Anchor::End, &label);
        }
        let mut free = f64::MIN;
        for value in self.xs() {
            let at = x.place(x_value(value));
            svg.line(&[(at, bottom), (at, bottom + 5.0)], AXIS);
            let label = if self.over_numbers {
                value.to_string()
            } else {
                table::bytes(value)
            };
            // A label without room is left out; its mark stays.
            let half = width(&label, SMALL) / 2.0;
            if at - half > free {
                svg.text((at, bottom + LINE), SMALL, Anchor::Middle, &label);
                free = at + half + SMALL / 2.0;
            }
        }
        svg.line(&[(left, top), (left, bottom), (right, bottom)], AXIS);
        self.draw_lines(svg, x, y);
    }

    fn draw_lines(&self, svg: &mut Svg, x: Scale, y: Scale) {
        let middle = (self.lines.len() as f64 - 1.0) / 2.0;
        for (index, line) in self.lines.values().enumerate() {
            let stroke = STROKES[index % STROKES.len()];
            let aside = (index as f64 - middle) * APART;
            let at = |point: &Point, ns: f64| (x.place(x_value(point.x)) + aside, y.place(ns));
            let middles: Vec<_> = line.iter().map(|point| at(point, point.median)).collect();
            svg.line(&middles, stroke);
            let thin = Stroke {
                width: 1.0,
                dashes: "",
                ..stroke
            };
            for point in line {
                let (least, most) = (at(point, point.least), at(point, point.most));
                svg.line(&[least, most], thin);
                for end in [least, most] {
                    svg.line(&[(end.0 - 2.0, end.1), (end.0 + 2.0, end.1)], thin);
                }
                svg.dot(at(point, point.median), 3.0, stroke.colour);
            }
        }
    }

    /// Writes the names of the lines; returns the base line of the last row.
    fn legend(&self, svg: &mut Svg, start: (f64, f64), right: f64) -> f64 {
        const SWATCH: f64 = 22.0;
        let (mut at, mut base) = start;
        for (index, (_, _, name)) in self.lines.keys().enumerate() {
            let room = SWATCH + 6.0 + width(name, SMALL);
            if at > start.0 && at + room > right {
                (at, base) = (start.0, base + LINE);
            }
            let level = base - SMALL / 3.0;
            let stroke = STROKES[index % STROKES.len()];
            svg.line(&[(at, level), (at + SWATCH, level)], stroke);
            svg.text((at + SWATCH + 6.0, base), SMALL, Anchor::Start, name);
            at += room + 16.0;
        }
        base
    }

    /// All sizes or numbers of regions, without duplicates.
    fn xs(&self) -> Vec<u64> {
        let mut xs: Vec<u64> = self.lines.values().flatten().map(|point| point.x).collect();
        xs.sort_unstable();
        xs.dedup();
        xs
    }

    fn x_scale(&self, left: f64, right: f64) -> Scale {
        let xs = self.xs();
        let least = x_value(xs.first().copied().unwrap_or(1));
        let most = x_value(xs.last().copied().unwrap_or(1));
        // A single value is centred.
        let spread = if most > least { 1.0 } else { 2.0 };
        Scale {
            values: (least / spread, most * spread),
            places: (left, right),
        }
    }

    fn y_scale(&self, bottom: f64, top: f64) -> Scale {
        let points = || self.lines.values().flatten();
        let least = points().map(|point| point.least).fold(f64::MAX, f64::min);
        let most = points().map(|point| point.most).fold(0.0, f64::max);
        Scale {
            // A logarithmic scale has no zero, so the shortest time is a picosecond.
            values: (least.max(0.001) / 1.2, most.max(0.001) * 1.2),
            places: (bottom, top),
        }
    }
}

/// A value of the x axis. Its logarithmic scale has no zero, so zero live regions are drawn as one.
fn x_value(x: u64) -> f64 {
    x.max(1) as f64
}

/// Round times within a scale whose labels fit.
fn time_marks(y: Scale) -> Vec<(f64, String)> {
    let all = |factors: &[u32]| -> Vec<f64> {
        let decades = (-3..=12).map(|power| 10_f64.powi(power));
        let times = decades.flat_map(|decade| factors.iter().map(move |f| f64::from(*f) * decade));
        times
            .filter(|time| *time >= y.values.0 && *time <= y.values.1)
            .collect()
    };
    let marks = [&[1][..], &[1, 2, 5], &[1, 2, 3, 4, 5, 6, 7, 8, 9]]
        .into_iter()
        .map(all)
        .find(|marks| marks.len() >= 3)
        .unwrap_or_else(|| all(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
    let mut free = f64::MAX;
    let mut shown = Vec::new();
    for time in marks {
        let at = y.place(time);
        if at < free {
            shown.push((time, round_time(time)));
            free = at - 1.5 * SMALL;
        }
    }
    shown
}

/// A round time without insignificant digits.
fn round_time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.0 => (ns, "ns"),
        ns if ns < 999_000.0 => (ns / 1e3, "us"),
        ns if ns < 999e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    // Removes binary rounding errors such as 0.30000000000000004.
    format!("{} {unit}", (value * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests;
