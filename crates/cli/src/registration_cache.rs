//! The registration cache, as `rkey info` shows it: its limits, the monitor in effect, and what each monitor would do here.

use crate::style;
use rkey_cache::{MonitorName, Settings, variables};
use serde::Serialize;

/// The cache's settings in this environment, and what the monitors can do on this machine.
#[derive(Serialize)]
pub(crate) struct CacheInfo {
    /// The monitor in effect for the device's regions, and why it is not the requested one.
    monitor: String,
    /// The monitor that watches buffers which the libfabric provider registers itself.
    provider: String,
    /// The maximum number of entries; 0: no cache.
    max_count: usize,
    /// The maximum total bytes of the entries.
    max_size: Option<u64>,
    /// Variables that have no effect because their values are invalid.
    ignored: Vec<String>,
    monitors: Vec<MonitorInfo>,
}

/// A monitor, which registrars that pin memory need.
#[derive(Serialize)]
struct MonitorInfo {
    name: &'static str,
    works: bool,
    /// What the monitor uses on this host, or why it cannot be used.
    why: String,
}

/// Reads the environment and tries each monitor.
pub(crate) fn gather() -> CacheInfo {
    let settings = Settings::read(|name| std::env::var(name).ok());
    let options = settings.options();
    let monitors = MonitorName::ALL.map(|name| {
        let (works, why) = match name.probe() {
            Ok(how) => (true, how),
            Err(why) => (false, why),
        };
        MonitorInfo {
            name: name.as_str(),
            works,
            why,
        }
    });
    CacheInfo {
        monitor: settings.choose_none().to_string(),
        provider: of_provider(&settings),
        max_count: options.max_count,
        max_size: options.max_size,
        ignored: settings.ignored.iter().map(ToString::to_string).collect(),
        monitors: monitors.into(),
    }
}

/// The libfabric provider uses the monitor that the environment names, if any.
fn of_provider(settings: &Settings) -> String {
    let Some(name) = settings.monitor else {
        return "none".to_owned();
    };
    match name.probe() {
        Ok(_) => name.to_string(),
        Err(why) => format!("{} ({name}: {why})", MonitorName::Disabled),
    }
}

pub(crate) fn print(info: &CacheInfo, colour: bool) {
    let size = info.max_size.map_or_else(
        || "any total size".to_owned(),
        |bytes| format!("{} in total", style::bytes(bytes)),
    );
    println!(
        "\nRegistration cache: at most {} entries of {size}; monitor: {}; for buffers that the libfabric provider registers itself: {}",
        info.max_count, info.monitor, info.provider
    );
    for ignored in &info.ignored {
        println!("warning: {ignored}");
    }
    println!("Memory monitors on this host (a cache of pinned registrations needs one):");
    let mut table = style::table(colour, ["", "monitor", "why"]);
    for monitor in &info.monitors {
        let word = if monitor.works { "yes" } else { "no" };
        table.add_row([word, monitor.name, &monitor.why]);
    }
    println!("{table}");
    println!("Variables:");
    let mut table = style::table(colour, ["variable", "meaning"]);
    for (name, meaning) in variables() {
        table.add_row([name, meaning]);
    }
    println!("{table}");
}
