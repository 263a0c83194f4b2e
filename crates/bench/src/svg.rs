//! Writes the shapes of a plot as SVG, and estimates the width of texts.

use std::fmt::Write;

/// The average width of a character, as a fraction of the font size. Sans-serif fonts are narrower.
const WIDTH: f64 = 0.6;

/// The approximate width of a text.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * WIDTH * size
}

/// The part of a text that is at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stroke {
    pub(super) colour: &'static str,
    pub(super) width: f64,
    /// Dashes and gaps; empty for a solid line.
    pub(super) dashes: &'static str,
}

/// A picture under construction.
#[derive(Debug)]
pub(super) struct Svg {
    text: String,
}

impl Svg {
    /// An empty white picture.
    pub(super) fn new(width: f64, height: f64) -> Self {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        Self { text }
    }

    /// The picture as a file.
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    /// A text whose base line begins, is centred, or ends at a point.
    pub(super) fn text(&mut self, at: (f64, f64), size: f64, anchor: Anchor, text: &str) {
        let text = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        self.put(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size}\" text-anchor=\"{}\">{text}</text>",
            at.0,
            at.1,
            anchor.word()
        ));
    }

    /// A line through some points.
    pub(super) fn line(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let mut list = String::new();
        for (x, y) in points {
            // Writing to a string does not fail.
            let _ = write!(list, "{x:.1},{y:.1} ");
        }
        self.put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-dasharray=\"{}\"/>",
            list.trim_end(),
            stroke.colour,
            stroke.width,
            if stroke.dashes.is_empty() { "none" } else { stroke.dashes }
        ));
    }

    /// A filled circle.
    pub(super) fn dot(&mut self, at: (f64, f64), radius: f64, colour: &str) {
        self.put(format_args!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{colour}\"/>",
            at.0, at.1
        ));
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.text, "{element}");
    }
}

/// Breaks a text into lines of at most this width.
pub(super) fn wrap(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let longer = format!("{line} {word}");
            if !line.is_empty() && width(&longer, size) > room {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}
