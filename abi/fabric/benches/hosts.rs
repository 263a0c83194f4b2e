//! Transfers between two hosts (network namespaces): our connected endpoints beside those of libfabric's own `tcp` provider, in the same
//! run and on the same network.
//!
//! `cargo bench -p rkey-fabric --bench hosts [-- --rounds N --network NAME]` needs libfabric with its headers, a C compiler, `ip` and `nft`,
//! and root or user namespaces. The program is `pingpong.c`, over libfabric's API. For each network and kind of transfer, the
//! contestants take turns, and the first one changes from round to round. The table has the median of the rounds for the
//! median, the 99th and the 99.9th percentile of the times, and how many runs failed.
//!
//! Some networks are a veth pair, whose random losses (`nft`) hit all packets of both contestants alike. With losses, the sender segments,
//! so that a loss is one packet. The others are a process (`rkey_harness::network`), in which everything happens to all packets alike.
//! It needs a processor, so the programs then wait instead of polling.

#[path = "../tests/programs/place.rs"]
mod place;

use rkey_harness::hosts::{Hosts, Network};
use rkey_harness::network::{Conditions, serve};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ADDRESSES: [[&str; 2]; 2] = [["10.9.5.1", "fd09:5::1"], ["10.9.5.2", "fd09:5::2"]];
const PORT: u16 = 47_593;
/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(120);
const CONTESTANTS: [&str; 2] = ["rkey", "tcp"];
const MIB: u64 = 1 << 20;

/// A kind of transfer: its name, the size in bytes, the mode of `pingpong.c`, and how often on a fast, a slow and a very slow network.
const KINDS: [(&str, u64, &str, [u32; 3]); 4] = [
    ("64 B, us", 64, "pong", [5000, 1000, 200]),
    ("4096 B, us", 4096, "pong", [5000, 1000, 200]),
    ("1 MiB, MiB/s", MIB, "pong", [100, 30, 5]),
    ("1 MiB one way, MiB/s", MIB, "stream", [200, 50, 40]),
];

/// What is between the hosts.
enum Between {
    Veth(Network),
    Process(Conditions),
}

/// The networks by name, and how slow they are.
fn networks() -> Vec<(&'static str, Between, usize)> {
    let (whole, segmented) = (Network::default(), Network::segmented());
    let none = Conditions::default();
    let percent = Conditions::percent;
    let far = Conditions {
        delay: Duration::from_millis(25),
        ..none
    };
    let process = |name, conditions, slowness| (name, Between::Process(conditions), slowness);
    vec![
        ("no loss", Between::Veth(whole), 0),
        ("no loss, no offload", Between::Veth(segmented), 0),
        ("0.1 %", Between::Veth(segmented.with_loss(1)), 0),
        ("1 %", Between::Veth(segmented.with_loss(10)), 1),
        ("10 %", Between::Veth(segmented.with_loss(100)), 2),
        process("forwarded", none, 0),
        process(
            "reorder 5 %",
            Conditions {
                reorder: percent(5),
                ..none
            },
            1,
        ),
        process(
            "duplicate 5 %",
            Conditions {
                duplicate: percent(5),
                ..none
            },
            1,
        ),
        process(
            "corrupt 1 %",
            Conditions {
                corrupt: percent(1),
                ..none
            },
            1,
        ),
        process("50 ms", far, 2),
        process("50 ms, 0.1 %", Conditions { loss: 1000, ..far }, 2),
    ]
}

impl Between {
    /// The hosts, and whether the programs wait. `None` if this kernel lacks something.
    fn hosts(&self) -> Option<(Hosts, &'static str)> {
        match self {
            Self::Veth(network) => {
                let hosts = Hosts::new(1500, &ADDRESSES)?;
                hosts.impair(network).then_some((hosts, "spin"))
            }
            Self::Process(conditions) => {
                let hosts = Hosts::over(&conditions.both_ways(), &[], 1500, &ADDRESSES)?;
                Some((hosts, "wait"))
            }
        }
    }
}

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles the program into a directory.
fn compile(folder: &Path) -> bool {
    let source = folder.join("pingpong.c");
    let written = std::fs::write(&source, include_str!("pingpong.c"));
    let program = folder.join("pingpong");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-o"])
        .args([&program, &source])
        .arg("-lfabric");
    written.is_ok() && compiler.status().is_ok_and(|status| status.success())
}

fn start(hosts: &Hosts, place: &place::Folder, at: usize, words: &[&str]) -> Guard {
    let mut command = hosts.enter_unprivileged(at, Command::new("nsenter"));
    command
        .arg(place.0.join("pingpong"))
        .args(words)
        .env("FI_PROVIDER_PATH", &place.0)
        .env("RKEY_WIRE", "auto")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    Guard(command.spawn().expect("util-linux has nsenter"))
}

/// What the client prints: times in nanoseconds. `None` if the run failed or took too long.
fn run(hosts: &Hosts, place: &place::Folder, words: &[&str]) -> Option<Vec<u64>> {
    let mut server = start(hosts, place, 0, words);
    let until = Instant::now() + PATIENCE;
    while !hosts.listens(0, PORT) {
        if Instant::now() > until || server.0.try_wait().ok()?.is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut client = start(hosts, place, 1, &[words, &[ADDRESSES[0][0]]].concat());
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
    let times = said.split_whitespace().map(|word| word.parse().ok());
    times.collect()
}

/// The medians of the runs, and how many failed.
fn summary(size: u64, count: u32, runs: &[Option<Vec<u64>>]) -> String {
    let done: Vec<&Vec<u64>> = runs.iter().flatten().collect();
    let median = |at: usize| -> Option<u64> {
        let mut all: Vec<u64> = done
            .iter()
            .filter_map(|times| times.get(at).copied())
            .collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    };
    let shown = |time: u64| match size {
        MIB => format!("{:.1}", 1e9 / time as f64),
        _ => format!("{:.1}", time as f64 / 1000.0),
    };
    // With fewer transfers, the 99.9th percentile is that of one of them.
    let percentiles = if size == MIB {
        1
    } else if count < 1000 {
        2
    } else {
        3
    };
    let times = (0..percentiles).filter_map(median).map(shown);
    let mut text = times.collect::<Vec<_>>().join(" / ");
    let failed = runs.len() - done.len();
    if failed > 0 {
        text.push_str(&format!(" ({failed} failed)"));
    }
    text
}

fn main() {
    // This program is also the network between the hosts.
    serve();
    let words: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only builds it.
    if !words.iter().any(|it| it == "--bench") {
        return;
    }
    let rounds = words.iter().position(|it| it == "--rounds");
    let rounds = rounds.map_or(5, |at| words[at + 1].parse().expect("--rounds NUMBER"));
    let only = words.iter().position(|it| it == "--network");
    let only = only.and_then(|at| words.get(at + 1));
    let place = place::Folder::new();
    place.copy_libraries();
    if !compile(&place.0) {
        println!("skipped: pingpong.c needs a C compiler and libfabric-dev");
        return;
    }
    println!("Medians of {rounds} rounds; half a round trip: median / 99 % / 99.9 %\n");
    println!("| network | transfer | rkey | libfabric's `tcp` |\n| --- | --- | --- | --- |");
    for (name, between, slowness) in networks() {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let Some((hosts, waits)) = between.hosts() else {
            println!("| {name} | skipped: this kernel cannot do that | | |");
            continue;
        };
        for (what, size, mode, counts) in KINDS {
            let (port, bytes) = (PORT.to_string(), size.to_string());
            let (count, mut runs) = (counts[slowness], [Vec::new(), Vec::new()]);
            let times = count.to_string();
            for round in 0..rounds {
                for turn in 0..2 {
                    let who = (round + turn) % 2;
                    let words = [CONTESTANTS[who], &port, &bytes, &times, waits, mode];
                    runs[who].push(run(&hosts, &place, &words));
                }
            }
            let [ours, theirs] = runs.map(|runs| summary(size, count, &runs));
            println!("| {name} | {what} | {ours} | {theirs} |");
        }
    }
}
