//! How tables and colours look: as the terminal can, and as `NO_COLOR` asks.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use std::io::IsTerminal;

/// Width of tables that do not go to a terminal, in columns.
const WIDTH: u16 = 118;
/// Narrower tables cannot be read; a narrower terminal wraps their lines.
const NARROW: u16 = 60;

/// Whether standard output shows colours: a terminal does, unless the person set `NO_COLOR`.
pub(crate) fn colour() -> bool {
    std::io::stdout().is_terminal() && wanted()
}

/// Whether the person has nothing against colours.
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
    // Neither a pipe nor a terminal that does not know its size says how wide it is.
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

/// Bytes as a person says them: exact below 10 KiB, then with a binary prefix.
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

/// So many things, in words.
pub(crate) fn count(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_said_as_people_say_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4096), "4096 B");
        assert_eq!(bytes(65536), "64 KiB");
        assert_eq!(bytes(1_500_000), "1.4 MiB");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
    }
}
