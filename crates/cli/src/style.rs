//! Tables and colours, depending on the terminal and `NO_COLOR`.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use std::io::IsTerminal;

/// The width of tables that are not printed to a terminal, in columns.
const WIDTH: u16 = 118;
/// The narrowest readable table; a narrower terminal wraps the lines.
const NARROW: u16 = 60;

/// Whether to use colours: standard output is a terminal, and `NO_COLOR` is not set.
pub(crate) fn colour() -> bool {
    std::io::stdout().is_terminal() && wanted()
}

/// Whether `NO_COLOR` allows colours.
pub(crate) fn wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// An empty table with this header.
pub(crate) fn table<const N: usize>(colour: bool, header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    // A pipe has no width, and some terminals do not report theirs.
    let known = std::io::stdout()
        .is_terminal()
        .then(|| table.width())
        .flatten();
    table.set_width(
        known
            .filter(|width| *width > 0)
            .map_or(WIDTH, |width| width.max(NARROW)),
    );
    table.set_header(header);
    table
}

/// A human-readable number of bytes: exact below 10 KiB, then with a binary prefix.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 10 << 10 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A count with its noun.
pub(crate) fn count(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_are_shown_with_binary_prefixes() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4096), "4096 B");
        assert_eq!(bytes(65536), "64 KiB");
        assert_eq!(bytes(1_500_000), "1.4 MiB");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
    }
}
