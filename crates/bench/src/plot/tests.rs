//! The contents of the plot, and that texts neither overlap nor leave the plot.

use super::super::contestant::Label;
use super::super::plan::{self, MODES, OPERATIONS};
use super::*;

/// Every kind of figure, with invented values.
fn figures(sizes: &[u64], peers: bool) -> Vec<Measurement> {
    let words = |list: &[&str]| -> Vec<String> { list.iter().map(|w| (*w).to_owned()).collect() };
    let operations: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    let steps = plan::steps(
        &words(&operations),
        &words(MODES),
        sizes,
        &[0, 1000, 100_000],
    );
    let names = [
        ("rkey", "shm"),
        ("libfabric", "shm"),
        ("libfabric", "tcp"),
        ("ucx", "posix,cma,self"),
    ];
    let mut figures = Vec::new();
    for (slower, (peer, provider)) in (1..).zip(names).take(if peers { 4 } else { 1 }) {
        for step in &steps {
            let label = Label {
                peer: peer.into(),
                version: "1.0".into(),
                provider: provider.into(),
                completion: "default".into(),
            };
            let mut figure = label.figure(step);
            // Only we have these figures.
            let is_own = matches!(figure.op.as_str(), "check" | "poll" | "sleep");
            if is_own && !figure.is_ours() {
                continue;
            }
            figure.median_ns = 40.0 * f64::from(slower) + figure.size as f64 / 10.0;
            (figure.min_ns, figure.max_ns) = (figure.median_ns * 0.8, figure.median_ns * 1.7);
            figures.push(figure);
        }
    }
    figures
}

/// A text of a plot with its bounding box.
#[derive(Debug)]
struct Placed {
    text: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// The value of an attribute.
fn attribute(element: &str, name: &str) -> String {
    let (_, rest) = element.split_once(&format!(" {name}=\"")).expect(name);
    rest.split_once('"').expect("a quote").0.to_owned()
}

fn number(element: &str, name: &str) -> f64 {
    attribute(element, name).parse().expect("a number")
}

fn texts(svg: &str) -> Vec<Placed> {
    let elements = svg.lines().filter(|line| line.starts_with("<text"));
    elements
        .map(|element| {
            let text = element.split_once('>').expect("an end").1;
            let text = text.strip_suffix("</text>").expect("an end").to_owned();
            let size = number(element, "font-size");
            let (x, y) = (number(element, "x"), number(element, "y"));
            let wide = width(&text, size);
            let left = match attribute(element, "text-anchor").as_str() {
                "start" => x,
                "middle" => x - wide / 2.0,
                _ => x - wide,
            };
            Placed {
                text,
                left,
                right: left + wide,
                top: y - 0.8 * size,
                bottom: y + 0.25 * size,
            }
        })
        .collect()
}

/// Texts that leave the plot, and pairs that overlap.
fn clashes(svg: &str) -> Vec<String> {
    let view = attribute(svg, "viewBox");
    let view: Vec<f64> = view.split(' ').map(|n| n.parse().unwrap()).collect();
    let texts = texts(svg);
    let mut clashes = Vec::new();
    for (index, a) in texts.iter().enumerate() {
        if a.left < 0.0 || a.top < 0.0 || a.right > view[2] || a.bottom > view[3] {
            clashes.push(format!("{a:?} leaves the picture"));
        }
        for b in &texts[index + 1..] {
            if a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom {
                clashes.push(format!("{a:?} overlaps {b:?}"));
            }
        }
    }
    clashes
}

const HEADING: &str = "A processor with a long name (family 25, model 17, stepping 1), 2 processors, virtual machine, Linux 6.18.0, release build\n\
    two processes pinned to cores 0 and 1, both polling; and a sentence that goes on until it is certainly wider than the picture, whatever that is, so that it has to be broken into lines";

#[test]
fn texts_neither_overlap_nor_leave_the_plot() {
    for sizes in [
        &[8, 4096, 65536, 1 << 20][..],
        &[8],
        &[
            8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 1000, 1024, 1032,
        ],
        &[8, 64 << 20],
    ] {
        for peers in [false, true] {
            let svg = draw(&figures(sizes, peers), HEADING);
            assert_eq!(clashes(&svg), Vec::<String>::new(), "{sizes:?}");
        }
    }
    assert_eq!(clashes(&draw(&[], HEADING)), Vec::<String>::new());
}

/// Overlapping texts, and texts that leave the plot, are found: the test above can fail.
#[test]
fn overlapping_texts_and_texts_outside_the_plot_are_found() {
    let mut svg = Svg::new(100.0, 50.0);
    svg.text((0.0, 20.0), 10.0, Anchor::Start, "one text");
    svg.text((40.0, 22.0), 10.0, Anchor::Middle, "another");
    svg.text((90.0, 45.0), 10.0, Anchor::Start, "outside");
    assert_eq!(clashes(&svg.finish()).len(), 2);
}

#[test]
fn the_plot_shows_sizes_ranges_and_growth() {
    let svg = draw(&figures(&[8, 4096, 1 << 20], true), HEADING);
    let shown: Vec<String> = texts(&svg).into_iter().map(|placed| placed.text).collect();
    for words in [
        "4 KiB",
        "1 MiB",
        "write stream, ordinary memory, static",
        "register and deregister, by live regions",
        "rkey, 4 KiB",
        "rkey, 1 MiB",
        "libfabric tcp",
        "100000",
        "the protection table alone, by live regions",
        "keys far apart",
        "1000000",
        "poll, by queue pairs",
        "poll, by links",
        "write and its completion",
        "1 us",
    ] {
        assert!(shown.iter().any(|text| text == words), "{words}: {shown:?}");
    }
    // Every figure has a dot and a bar with two ends.
    let count = |start: &str| svg.lines().filter(|line| line.starts_with(start)).count();
    let drawn = figures(&[8, 4096, 1 << 20], true);
    let drawn = drawn.iter().filter(|f| title(&f.subject()).is_some());
    assert_eq!(count("<circle"), drawn.count());
    assert!(count("<polyline") > 3 * count("<circle"));
}

#[test]
fn shapes_stay_inside_the_plot() {
    let svg = draw(&figures(&[8, 4096, 1 << 20], true), HEADING);
    let view = attribute(&svg, "viewBox");
    let view: Vec<f64> = view.split(' ').map(|n| n.parse().unwrap()).collect();
    for line in svg.lines().filter(|line| line.starts_with("<polyline")) {
        for point in attribute(line, "points").split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!(x > 0.0 && x < view[2] && y > 0.0 && y < view[3], "{line}");
        }
    }
}
