//! The results as a picture: time of one operation over its size, both on logarithmic scales, one
//! panel for each kind of operation, one line for us and for each peer.

use super::result::Measurement;
use super::table;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const PANEL: (u32, u32) = (620, 420);
const COLOURS: [RGBColor; 4] = [
    RGBColor(200, 60, 30),
    RGBColor(40, 100, 180),
    RGBColor(60, 140, 70),
    RGBColor(120, 80, 160),
];

/// Points of one line: size in bytes, nanoseconds.
type Line = Vec<(f64, f64)>;

/// Panels in their order, each with its lines by name.
fn panels(figures: &[Measurement]) -> BTreeMap<String, BTreeMap<String, Line>> {
    let mut panels: BTreeMap<String, BTreeMap<String, Line>> = BTreeMap::new();
    for (subject, row) in table::rows(figures) {
        if !matches!(subject.op.as_str(), "write" | "read" | "send") {
            continue;
        }
        let memory = if subject.memory == "own" {
            "shared memory"
        } else {
            "ordinary memory"
        };
        let title = format!(
            "{} {}, {memory}, {}",
            subject.op, subject.mode, subject.condition
        );
        let lines = panels.entry(title).or_default();
        let ours = row.ours.map(|figure| ("rkey", figure));
        for (name, figure) in ours
            .into_iter()
            .chain(row.peers.iter().map(|(name, figure)| (*name, *figure)))
        {
            lines
                .entry(name.to_owned())
                .or_default()
                .push((subject.size as f64, figure.median_ns));
        }
    }
    // A panel needs a line with two points to show anything.
    panels.retain(|_, lines| lines.values().any(|line| line.len() > 1));
    panels
}

/// Draws `figures` into an SVG file.
///
/// # Errors
/// No operation was measured at two sizes, or the file cannot be written.
pub(crate) fn draw(figures: &[Measurement], heading: &str, file: &Path) -> Result<()> {
    let panels = panels(figures);
    if panels.is_empty() {
        return Err(anyhow!(
            "nothing to plot: measure write, read or send at two sizes at least"
        ));
    }
    let rows = panels.len().div_ceil(2) as u32;
    let area = SVGBackend::new(file, (2 * PANEL.0, rows * PANEL.1 + 30)).into_drawing_area();
    area.fill(&WHITE)
        .map_err(|error| anyhow!("{}: {error}", file.display()))?;
    let area = area
        .titled(heading, ("sans-serif", 14))
        .map_err(|error| anyhow!("{error}"))?;
    for (cell, (title, lines)) in area.split_evenly((rows as usize, 2)).iter().zip(&panels) {
        panel(cell, title, lines).map_err(|error| anyhow!("{title}: {error}"))?;
    }
    area.present()
        .map_err(|error| anyhow!("{}: {error}", file.display()))?;
    Ok(())
}

type Drawing<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(area: &Drawing<'_>, title: &str, lines: &BTreeMap<String, Line>) -> Result<()> {
    let points = || lines.values().flatten();
    let span = |value: fn(&(f64, f64)) -> f64| {
        points()
            .map(value)
            .fold((f64::MAX, 0.0_f64), |(least, most), v| {
                (least.min(v), most.max(v))
            })
    };
    let (x, y) = (span(|point| point.0), span(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(65)
        .build_cartesian_2d(
            (x.0 * 0.8..x.1 * 1.25).log_scale(),
            (y.0 * 0.7..y.1 * 1.5).log_scale(),
        )
        .map_err(|error| anyhow!("{error}"))?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .x_label_formatter(&|size| table::bytes(*size as u64))
        .y_label_formatter(&|ns| table::time(*ns))
        .light_line_style(WHITE)
        .draw()
        .map_err(|error| anyhow!("{error}"))?;
    for (index, (name, line)) in lines.iter().enumerate() {
        let colour = if name == "rkey" {
            COLOURS[0]
        } else {
            COLOURS[1 + index % (COLOURS.len() - 1)]
        };
        let style = colour.stroke_width(if name == "rkey" { 3 } else { 2 });
        chart
            .draw_series(LineSeries::new(line.iter().copied(), style))
            .map_err(|error| anyhow!("{error}"))?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(|error| anyhow!("{error}"))?;
    Ok(())
}
