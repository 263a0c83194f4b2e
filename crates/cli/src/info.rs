//! `rkey info`: what the device offers on this machine, and why.

use crate::failure::hinted;
use crate::registration_cache::{self, CacheInfo};
use crate::style;
use clap::Args;
use comfy_table::{Cell, Color};
use rkey_device::config::VARIABLES;
use rkey_device::wire::WireDescription;
use rkey_device::{CopyPaths, copy_paths};
use rkey_kit::dat_conf;
use rkey_kit::interfaces::addresses;
use rkey_kit::settings::SETTINGS;
use serde::Serialize;

/// Arguments of `rkey info`.
#[derive(Args, Debug, Clone)]
pub(crate) struct InfoArgs {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// The output of the command.
#[derive(Serialize)]
struct Info {
    version: &'static str,
    identity: Identity,
    /// The mechanisms for copying and waking that the kernel allows, and the reasons.
    copy_paths: CopyPaths,
    wire: WireInfo,
    registration_cache: CacheInfo,
    settings: Vec<Setting>,
    /// What the device can do on every machine.
    offers: Vec<Offer>,
}

#[derive(Serialize)]
struct Identity {
    /// The name of the device that this command has just opened: its process id and a random number.
    node: String,
    user: u32,
    /// The processes that can reach it.
    reachable_by: String,
    /// The names of the adapters that uDAPL programs open.
    adapters: Vec<String>,
    kernel: String,
    processors: usize,
    page_bytes: usize,
}

/// How other hosts reach the device.
#[derive(Serialize)]
struct WireInfo {
    /// Why other hosts cannot reach the device; `None` if they can.
    off: Option<&'static str>,
    #[serde(flatten)]
    wire: WireDescription,
}

impl WireInfo {
    fn of(wire: Option<WireDescription>) -> Self {
        let off = match &wire {
            Some(wire) if wire.addresses.is_empty() => Some("no address of this host is usable"),
            Some(_) => None,
            None => Some("RKEY_WIRE=off, the default; RKEY_WIRE=auto turns it on"),
        };
        Self {
            off,
            wire: wire.unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
struct Setting {
    variable: &'static str,
    /// The value in effect, as a user would write it.
    value: String,
    /// Whether the environment sets it.
    set: bool,
    allowed: &'static str,
    meaning: &'static str,
}

impl Setting {
    /// A variable with its value from the environment.
    fn of(
        variable: &'static str,
        default: &str,
        allowed: &'static str,
        meaning: &'static str,
    ) -> Self {
        let value = std::env::var(variable).ok();
        let value = value.filter(|value| !value.trim().is_empty());
        Self {
            variable,
            set: value.is_some(),
            value: value.unwrap_or_else(|| default.to_owned()),
            allowed,
            meaning,
        }
    }
}

#[derive(Serialize)]
struct Offer {
    what: &'static str,
    how: &'static str,
}

/// What the device can do on every machine.
const OFFERS: [Offer; 7] = [
    Offer {
        what: "transports",
        how: "reliable connection (RC), extended (XRC), unreliable connection (UC), datagram (UD, with groups), raw frames",
    },
    Offer {
        what: "operations",
        how: "send and RDMA write (with or without immediate data), receive, RDMA read, 8-byte compare-and-swap and fetch-and-add",
    },
    Offer {
        what: "regions",
        how: "contiguous or scattered; virtual, zero-based or chosen addresses; memory of any kind and alignment",
    },
    Offer {
        what: "windows",
        how: "type 1, 2A, 2B and DAT; bind, rebind, local and remote invalidation",
    },
    Offer {
        what: "keys",
        how: "32 bits, unguessable, refused once stale; or 64 bits of the program's choice",
    },
    Offer {
        what: "links",
        how: "within one process; between processes of this host through shared memory",
    },
    Offer {
        what: "pinned memory",
        how: "none: registration needs no locked-memory limit, and fork is safe",
    },
];

/// Runs `rkey info`.
pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<()> {
    let info = gather()?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&info)?);
        return Ok(());
    }
    print(&info);
    Ok(())
}

fn gather() -> anyhow::Result<Info> {
    let config = rkey::Config::from_env()?;
    let reachable_by = match config.share {
        rkey_device::Share::User => "processes of this user on this host (RKEY_SHARE=user)",
        rkey_device::Share::All => "processes of all users on this host (RKEY_SHARE=all)",
    };
    let device = rkey::Device::builder()
        .config(config)
        .open()
        .map_err(|error| {
            hinted(
                error,
                "check the limits on threads, memory and file descriptors (ulimit -a)",
            )
        })?;
    let inspection = device.inspect()?;
    let of_device = VARIABLES
        .iter()
        .map(|v| Setting::of(v.name, v.default, v.allowed, v.meaning));
    let of_front_ends = SETTINGS
        .iter()
        .map(|s| Setting::of(s.name, s.default, s.allowed, s.meaning));
    let settings = of_device.chain(of_front_ends).collect();
    Ok(Info {
        version: env!("CARGO_PKG_VERSION"),
        identity: Identity {
            node: inspection.node.to_string(),
            user: inspection.uid,
            reachable_by: reachable_by.to_owned(),
            adapters: dat_conf::interfaces(&addresses())
                .into_iter()
                .map(dat_conf::adapter)
                .collect(),
            kernel: kernel(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            page_bytes: rustix::param::page_size(),
        },
        copy_paths: copy_paths(),
        wire: WireInfo::of(device.wire()),
        registration_cache: registration_cache::gather(),
        settings,
        offers: OFFERS.into_iter().collect(),
    })
}

fn print_wire(info: &WireInfo, colour: bool) {
    println!("\nOther hosts (RoCEv2):");
    if let Some(why) = info.off {
        println!("unreachable: {why}");
    }
    if info.wire.sealed {
        println!(
            "RKEY_WIRE_KEY is set: only hosts that have the key are reached, and packets are encrypted"
        );
    }
    if let Some(faults) = &info.wire.faults {
        println!(
            "RKEY_FAULT is set: faults are injected into outgoing packets: {}",
            faults.faults
        );
    }
    if let Some(file) = &info.wire.capture {
        println!(
            "RKEY_CAPTURE is set: packets are captured in {}",
            file.display()
        );
    }
    if info.wire.addresses.is_empty() && info.wire.refused.is_empty() {
        return;
    }
    let mut table = style::table(colour, ["address", "state", "GID", "path MTU"]);
    for it in &info.wire.addresses {
        table.add_row([
            it.address.to_string(),
            format!("UDP port {} on {}", it.port, it.interface),
            it.gid.to_string(),
            style::bytes(it.path_mtu as u64),
        ]);
    }
    for (address, why) in &info.wire.refused {
        table.add_row([address.to_string(), why.clone()]);
    }
    println!("{table}");
}

fn kernel() -> String {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    format!(
        "{} {} {}",
        text(name.sysname()),
        text(name.release()),
        text(name.machine())
    )
}

fn print(info: &Info) {
    let colour = style::colour();
    let identity = &info.identity;
    println!(
        "rkey {}: a software RDMA device. It needs no NIC, no kernel module and no privileges.\n",
        info.version
    );
    println!(
        "device      {} (a new one each time it is opened)",
        identity.node
    );
    println!("user        {}", identity.user);
    println!("reachable   by {}", identity.reachable_by);
    println!("adapters    {} (uDAPL)", identity.adapters.join(", "));
    println!(
        "machine     {}, {} processors, pages of {}",
        identity.kernel,
        identity.processors,
        style::bytes(identity.page_bytes as u64)
    );

    println!("\nWhat the kernel allows here (just tested):");
    let mut table = style::table(colour, ["", "mechanism", "why"]);
    for path in &info.copy_paths.paths {
        let (word, paint) = if path.works {
            ("yes", Color::Green)
        } else {
            ("no", Color::Yellow)
        };
        let verdict = if colour {
            Cell::new(word).fg(paint)
        } else {
            Cell::new(word)
        };
        table.add_row([verdict, Cell::new(&path.name), Cell::new(&path.why)]);
    }
    println!("{table}");

    print_wire(&info.wire, colour);

    println!("\nWhat the device offers:");
    let mut table = style::table(colour, ["what", "how"]);
    for offer in &info.offers {
        table.add_row([offer.what, offer.how]);
    }
    println!("{table}");

    registration_cache::print(&info.registration_cache, colour);

    println!("\nLimits and settings (environment variables; those marked * are set):");
    let mut table = style::table(colour, ["variable", "value", "meaning"]);
    for setting in &info.settings {
        let mark = if setting.set { " *" } else { "" };
        table.add_row([
            format!("{}{mark}", setting.variable),
            setting.value.clone(),
            setting.meaning.to_owned(),
        ]);
    }
    println!("{table}");
}
