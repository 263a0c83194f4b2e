//! `fi_pingpong` between two hosts (network namespaces joined by a veth pair): our connected endpoints beside those of libfabric's own
//! `tcp` provider, in the same run and on the same network.
//!
//! `cargo bench -p rkey-fabric --bench hosts [-- --rounds N --network NAME]` needs `fi_pingpong`, `ip` and `nft`, and root or user namespaces. For
//! each network and size, the contestants take turns, and the first one changes from round to round. The table has the median of the
//! rounds, with the best and the worst. Random losses (`nft`) hit all packets of both contestants alike in both directions, except those
//! of `fi_pingpong`'s own connection. With losses, the sender segments, so that a loss is one packet.

#[path = "../tests/programs/place.rs"]
mod place;

use rkey_harness::hosts::{Hosts, Network};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ADDRESSES: [[&str; 2]; 2] = [["10.9.5.1", "fd09:5::1"], ["10.9.5.2", "fd09:5::2"]];
/// The port of fi_pingpong's own connection.
const PORT: u16 = 47592;
/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(120);
const CONTESTANTS: [&str; 2] = ["rkey", "tcp"];

/// A size in bytes, and how often it is sent on a network with up to 0.1 %, 1 % and more loss.
const SIZES: [(&str, [u32; 3]); 3] = [
    ("64", [5000, 1000, 100]),
    ("4096", [5000, 1000, 100]),
    ("1048576", [100, 30, 3]),
];

/// A network, by name.
fn networks() -> [(&'static str, Network); 6] {
    let (whole, segmented) = (Network::default(), Network::segmented(PORT));
    [
        ("no loss", whole),
        ("no loss, no offload", segmented),
        ("0.1 %", segmented.with_loss(1)),
        ("1 %", segmented.with_loss(10)),
        ("10 %", segmented.with_loss(100)),
        ("50 ms", segmented.with_delay(25)),
    ]
}

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(hosts: &Hosts, place: &place::Folder, at: usize, words: &[&str]) -> Guard {
    let mut command = hosts.enter_unprivileged(at, Command::new("nsenter"));
    command
        .arg("fi_pingpong")
        .args(words)
        .env("FI_PROVIDER_PATH", &place.0)
        .env("RKEY_WIRE", "auto")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    Guard(command.spawn().expect("util-linux has nsenter"))
}

/// The time of one transfer in microseconds. `None` if the run failed or took too long.
fn run(
    hosts: &Hosts,
    place: &place::Folder,
    provider: &str,
    size: &str,
    count: u32,
) -> Option<f64> {
    let count = count.to_string();
    let words = ["-p", provider, "-e", "msg", "-S", size, "-I", &count];
    let mut server = start(hosts, place, 0, &words);
    let until = Instant::now() + PATIENCE;
    while !hosts.listens(0, PORT) {
        if Instant::now() > until || server.0.try_wait().ok()?.is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut client = start(hosts, place, 1, &[&words[..], &[ADDRESSES[0][0]]].concat());
    let status = loop {
        match client.0.try_wait().ok()? {
            Some(status) => break status,
            None if Instant::now() > until => return None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if !status.success() {
        return None;
    }
    let mut said = String::new();
    std::io::Read::read_to_string(client.0.stdout.as_mut()?, &mut said).ok()?;
    let line = said.lines().last()?;
    // bytes, sent, acknowledged, total, time, MB/s, microseconds, transfers
    let time: f64 = line.split_whitespace().nth(6)?.parse().ok()?;
    (time > 0.0).then_some(time)
}

/// The median, the best and the worst of all times, and how many runs failed.
fn summary(size: u64, times: &[Option<f64>]) -> String {
    let mut all: Vec<f64> = times.iter().copied().flatten().collect();
    all.sort_by(f64::total_cmp);
    let failed = times.len() - all.len();
    let shown = |time: f64| match size {
        1_048_576 => format!("{:.1}", size as f64 / time / 1.048_576),
        _ => format!("{time:.1}"),
    };
    let Some((first, last)) = all.first().zip(all.last()) else {
        return format!("{failed} failed");
    };
    let median = all[all.len() / 2];
    let failed = match failed {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    format!(
        "{} ({} to {}{failed})",
        shown(median),
        shown(*first),
        shown(*last)
    )
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only builds it.
    if !words.iter().any(|it| it == "--bench") {
        return;
    }
    let rounds = words.iter().position(|it| it == "--rounds");
    let rounds = rounds.map_or(5, |at| words[at + 1].parse().expect("--rounds NUMBER"));
    let only = words.iter().position(|it| it == "--network");
    let only = only.and_then(|at| words.get(at + 1));
    if !rkey_harness::process::exists("fi_pingpong") {
        println!("skipped: fi_pingpong is not installed (libfabric-bin)");
        return;
    }
    let place = place::Folder::new();
    place.copy_libraries();
    println!("fi_pingpong -e msg, medians of {rounds} rounds (best to worst)\n");
    println!("| network | transfer | rkey | libfabric's `tcp` |\n| --- | --- | --- | --- |");
    for (name, network) in networks() {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
            return;
        };
        if !hosts.impair(&network) {
            println!("| {name} | skipped: this kernel cannot do that | | |");
            continue;
        }
        let which = match network.loss {
            0 | 1 => 0,
            2..=10 => 1,
            _ => 2,
        };
        for (size, counts) in SIZES {
            let count = match network.delay {
                0 => counts[which],
                _ => counts[2],
            };
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                for turn in 0..2 {
                    let who = (round + turn) % 2;
                    times[who].push(run(&hosts, &place, CONTESTANTS[who], size, count));
                }
            }
            let bytes: u64 = size.parse().unwrap_or(0);
            let what = match bytes {
                1_048_576 => "1 MiB, MiB/s".to_owned(),
                _ => format!("{size} B, us"),
            };
            let [ours, theirs] = times.map(|times| summary(bytes, &times));
            println!("| {name} | {what} | {ours} | {theirs} |");
        }
    }
}
