//! Programs on two hosts.

mod failures;
mod networks;
mod ucx;

use crate::captures::{self, Captured};
use crate::support::{DEVICE, Running, Stage};
use rkey_harness::hosts;
use rkey_harness::key::KeyFile;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Any fixed port will do: no other program runs in these namespaces.
const PORT: u16 = 18515;

/// The UDP port of RoCEv2.
const WIRE: u16 = 4791;

/// The addresses of the hosts.
const ADDRESSES: [[&str; 2]; 2] = [["10.9.0.1", "fd09::1"], ["10.9.0.2", "fd09::2"]];

/// Two hosts, and programs on them.
struct Hosts {
    hosts: hosts::Hosts,
    /// The directory in which programs capture their packets.
    captures: Option<PathBuf>,
    /// The faults of the programs, with a seed each, so that the two sides lose different packets.
    faults: Option<&'static str>,
    /// The key of the programs.
    key: Option<KeyFile>,
    /// Whether only the server has the key.
    client_lacks_key: bool,
    /// Whether the programs log what happens to their packets.
    logs: bool,
}

impl Hosts {
    /// Returns `None` if this machine does not permit network namespaces.
    fn new(mtu: u32) -> Option<Self> {
        hosts::Hosts::new(mtu, &ADDRESSES).map(Self::of)
    }

    fn of(hosts: hosts::Hosts) -> Self {
        Self {
            hosts,
            captures: None,
            faults: None,
            key: None,
            client_lacks_key: false,
            logs: false,
        }
    }

    /// Starts a program on a host, as an ordinary user.
    fn start(&self, stage: &Stage, at: usize, words: &[&str]) -> Running {
        let mut command = self.hosts.enter_unprivileged(at, stage.command("nsenter"));
        command.args(words).env("RKEY_WIRE", "auto");
        if let Some(folder) = &self.captures {
            command.env("RKEY_CAPTURE", folder.join(format!("{at}.pcap")));
        }
        let key = self.key.as_ref();
        if let Some(key) = key.filter(|_| at == 0 || !self.client_lacks_key) {
            command.env("RKEY_WIRE_KEY", key.path());
        }
        if let Some(faults) = self.faults {
            command.env("RKEY_FAULT", format!("{faults},seed={at}"));
        }
        if self.logs || self.faults.is_some() {
            command.env("RKEY_LOG", "info");
        }
        stage.start(command, ["server", "client"][at])
    }

    /// Runs a server on the first host and a client on the second. Panics unless both succeed; returns their output.
    fn pair(&self, stage: &Stage, words: &[&str], server: &str) -> [String; 2] {
        let (succeeded, said) = self.run(stage, words, server);
        assert!(succeeded, "{words:?}: {said:#?}");
        said
    }

    /// Returns whether both have succeeded, and the output of server and client.
    fn run(&self, stage: &Stage, words: &[&str], server: &str) -> (bool, [String; 2]) {
        let mut first = self.start(stage, 0, words);
        first.wait_until_it_listens(PORT);
        let mut second = self.start(stage, 1, &[words, &[server]].concat());
        let has_succeeded = |running: &mut Running| {
            let status = running.wait();
            status.is_some_and(|status| status.success())
        };
        let succeeded = has_succeeded(&mut second) && has_succeeded(&mut first);
        first.kill();
        (succeeded, [first.text(), second.text()])
    }
}

/// The GID of index 1 is the IPv4 address, that of index 2 the IPv6 address.
const GIDS: [&str; 2] = ["1", "2"];

/// The words of a line, with the GID and the port to use.
fn words_of<'a>(line: &'a str, gid: &'a str, port: &'a str) -> Vec<&'a str> {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let option = if is_ping_pong(line) { "-g" } else { "-x" };
    words.extend([option, gid, "-p", port]);
    words
}

fn is_ping_pong(line: &str) -> bool {
    line.starts_with("ibv_")
}

/// Whether a program succeeds although packets get lost, or arrive twice or out of order, which nothing mends for datagrams and unreliable connections. The
/// ping-pongs do not agree on their end: if the last acknowledgement is lost, no queue pair is left to repeat it, as with any RDMA device.
fn is_reliable(line: &str) -> bool {
    !is_ping_pong(line) && !line.contains("-c U")
}

/// Runs programs with several sets of options on two hosts whose interfaces have this MTU, over IPv4 and IPv6 in turn, beginning with
/// the GID at `first`.
fn on_two_hosts(test: &str, mtu: u32, lines: &[&str], first: usize, check: impl Fn(&str, &str)) {
    let stage = Stage::new(test);
    stage.copy_libraries();
    let Some(hosts) = Hosts::new(mtu) else { return };
    let port = PORT.to_string();
    let is_unreliable = hosts.hosts.is_unreliable();
    let lines = lines.iter().zip(first..);
    for (line, number) in lines.filter(|(line, _)| !is_unreliable || is_reliable(line)) {
        let words = words_of(line, GIDS[number % GIDS.len()], &port);
        // The programs exchange their numbers over TCP and IPv4 in both cases.
        for text in hosts.pair(&stage, &words, ADDRESSES[0][0]) {
            check(&words.join(" "), &text);
        }
    }
}

#[test]
fn ibv_pingpong_programs_run_between_two_hosts() {
    let lines = [
        "ibv_rc_pingpong -n 200",
        "ibv_rc_pingpong -c -e -s 100000 -n 100",
        "ibv_uc_pingpong -n 200",
        "ibv_ud_pingpong -n 200",
        "ibv_ud_pingpong -c -e -n 200",
        "ibv_srq_pingpong -n 200",
    ];
    for first in [0, 1] {
        on_two_hosts("hosts-pingpong", 1500, &lines, first, |line, text| {
            assert!(text.contains("iters in"), "{line}: {text}");
        });
    }
}

#[test]
fn perftest_runs_between_two_hosts() {
    let lines = [
        "ib_write_bw -F -n 200 -q 2",
        "ib_write_bw -F -n 100 -b -c UC -s 8000",
        "ib_write_bw -F -n 200 -s 64 -I 64",
        "ib_send_bw -F -n 200 -e",
        "ib_send_bw -F -n 20 -c UD",
        "ib_send_bw -F -n 50 --use-srq",
        "ib_write_lat -F -n 20 -c UC",
        "ib_atomic_lat -F -n 20",
        "ib_read_bw -F -n 200 -b",
        "ib_atomic_bw -F -n 200 -A FETCH_AND_ADD",
        "ib_atomic_bw -F -n 200 -A CMP_AND_SWAP",
        "ib_write_lat -F -n 50",
        "ib_send_lat -F -n 50 -s 3000",
        "ib_read_lat -F -n 50",
    ];
    for (first, mtu) in [1500, 4400].into_iter().enumerate() {
        on_two_hosts("hosts-perftest", mtu, &lines, first, |line, text| {
            assert!(text.contains(DEVICE), "{line}: {text}");
        });
    }
}

/// One packet in a hundred is lost, in each direction. Both sides of perftest agree over TCP before they end.
#[test]
fn programs_succeed_on_a_network_that_loses_packets() {
    let lines = [
        "ib_write_bw -F -n 200 -b -x 1",
        "ib_send_bw -F -n 200 -e -x 1",
        "ib_read_bw -F -n 100 -x 1",
        "ib_atomic_bw -F -n 200 -A FETCH_AND_ADD -x 1",
    ];
    let stage = Stage::new("hosts-loss");
    stage.copy_libraries();
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    if !hosts.hosts.lose(WIRE, 100) {
        return;
    }
    let port = PORT.to_string();
    for line in lines {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["-p", &port]);
        hosts.pair(&stage, &words, ADDRESSES[0][0]);
    }
    let lost = hosts.hosts.lost();
    assert!(lost.iter().all(|count| *count > 0), "{lost:?}");
}

/// Stock programs between hosts that share a key, also if packets are lost, repeated and damaged.
#[test]
fn programs_run_between_two_hosts_that_share_a_key() {
    let lines = [
        "ibv_rc_pingpong -c -e -s 100000 -n 200",
        "ibv_uc_pingpong",
        "ibv_ud_pingpong -c",
        "ib_write_bw -F -n 200 -q 2",
        "ib_read_bw -F -n 200 -b",
        "ib_atomic_bw -F -n 200 -A FETCH_AND_ADD",
    ];
    let stage = Stage::new("hosts-key");
    stage.copy_libraries();
    let Some(mut hosts) = Hosts::new(1500) else {
        return;
    };
    hosts.key = Some(KeyFile::new(&hosts.hosts, 1));
    let port = PORT.to_string();
    let is_unreliable = hosts.hosts.is_unreliable();
    let lines = lines.iter().zip(GIDS.iter().cycle());
    for (line, gid) in lines.filter(|(line, _)| !is_unreliable || is_reliable(line)) {
        let faults = "loss=1%,duplicate=2%,corrupt=1%,reorder=2%";
        hosts.faults = is_reliable(line).then_some(faults);
        hosts.pair(&stage, &words_of(line, gid, &port), ADDRESSES[0][0]);
    }
    // The key is in use: a client without it does not reach the server.
    hosts.faults = None;
    hosts.client_lacks_key = true;
    let words = words_of("ibv_rc_pingpong", GIDS[0], &port);
    let (succeeded, said) = hosts.run(&stage, &words, ADDRESSES[0][0]);
    assert!(!succeeded, "{said:#?}");
}

/// Both hosts mark packets beyond a rate. The receiver of the data sends notifications, and its sender slows down.
#[test]
fn programs_slow_down_on_a_congested_network() {
    // The line, and which side sends the data.
    let lines = [
        ("ib_write_bw -F -n 2000 -x 1", 1),
        ("ib_send_bw -F -n 2000 -x 2", 1),
        ("ib_write_bw -F -n 100 -s 1000000 -q 2 -x 2", 1),
        ("ib_read_bw -F -n 2000 -x 1", 0),
    ];
    let stage = Stage::new("hosts-ecn");
    stage.copy_libraries();
    let Some(mut hosts) = Hosts::new(1500) else {
        return;
    };
    if !hosts.hosts.mark(WIRE, 20) {
        return;
    }
    hosts.logs = true;
    let port = PORT.to_string();
    for (line, sender) in lines {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["-p", &port]);
        let said = hosts.pair(&stage, &words, ADDRESSES[0][0]);
        let count = |at: usize, name: &str| count_of(&said[at], "met loss or congestion", name);
        let receiver = 1 - sender;
        let [marked, sent] = ["marked", "cnps_sent"].map(|name| count(receiver, name));
        assert!(marked >= sent && sent > 0, "{line}: {said:#?}");
        // The window of the requester limits the data in flight, also that of reads.
        assert!(count(1, "slowed") > 0, "{line}: {said:#?}");
        assert!(count(sender, "cnps_received") > 0, "{line}: {said:#?}");
    }
}

/// The number of a program's packets that got a fault, according to its log.
fn faults_of(text: &str, kind: &str) -> u64 {
    count_of(text, "faults injected into packets", kind)
}

/// A count in a program's log, after these words.
fn count_of(text: &str, words: &str, kind: &str) -> u64 {
    let counts = text.split(words).nth(1);
    let count = counts.and_then(|rest| rest.split_once(&format!("{kind}: ")));
    let digits = count.and_then(|(_, rest)| rest.split(|it: char| !it.is_ascii_digit()).next());
    let digits = digits.unwrap_or_else(|| panic!("no count: {text}"));
    digits.parse().expect("a number")
}

/// Programs that do not agree on their end must not lose the last acknowledgement, so the ping-pongs lose no packets.
#[test]
fn programs_succeed_with_injected_faults() {
    let every = "loss=1%,duplicate=2%,reorder=5%,corrupt=1%,delay=200us";
    let lines = [
        (every, "ib_write_bw -F -n 100 -b -s 20000 -x 1"),
        (every, "ib_write_bw -F -n 100 -s 3000 -q 3 -x 2"),
        (every, "ib_send_bw -F -n 60 -e -s 20000 -x 2"),
        (every, "ib_read_bw -F -n 60 -s 20000 -x 1"),
        (every, "ib_atomic_bw -F -n 200 -A FETCH_AND_ADD -x 2"),
        (every, "ib_write_lat -F -n 100 -x 1"),
        (
            "duplicate=10%,reorder=20%,delay=1ms",
            "ibv_rc_pingpong -c -s 20000 -n 100 -g 2",
        ),
        ("delay=1ms", "ibv_ud_pingpong -c -n 100 -g 1"),
    ];
    let stage = Stage::new("hosts-faults");
    stage.copy_libraries();
    let Some(mut hosts) = Hosts::new(1500) else {
        return;
    };
    let port = PORT.to_string();
    for (faults, line) in lines {
        hosts.faults = Some(faults);
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["-p", &port]);
        let said = hosts.pair(&stage, &words, ADDRESSES[0][0]);
        for kind in ["lost", "duplicated", "reordered", "corrupted"] {
            let name = kind.trim_end_matches("ed");
            let wanted = faults.contains(if kind == "lost" { "loss" } else { name });
            let count: u64 = said.iter().map(|text| faults_of(text, kind)).sum();
            assert_eq!(count > 0, wanted, "{line}: {kind}: {said:#?}");
        }
        assert!(said.iter().all(|text| text.contains("RKEY_FAULT is set")));
    }
}

#[test]
fn a_ping_pong_is_captured_on_both_hosts() {
    let stage = Stage::new("hosts-capture");
    stage.copy_libraries();
    let Some(mut hosts) = Hosts::new(1500) else {
        return;
    };
    if hosts.hosts.is_unreliable() {
        return;
    }
    let folder = stage.file("captures");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    hosts.captures = Some(folder.clone());
    let port = PORT.to_string();
    let line = format!("ibv_rc_pingpong -n 50 -s 100 -g 1 -p {port}");
    let words: Vec<&str> = line.split_whitespace().collect();
    hosts.pair(&stage, &words, ADDRESSES[0][0]);
    for name in ["0.pcap", "1.pcap"] {
        let all = captures::read(&folder.join(name));
        for Captured { from, to, .. } in &all {
            let mut ends = [from, to].map(|it| it.ip().to_string());
            ends.sort();
            assert_eq!(ends, ADDRESSES.map(|it| it[0]));
        }
        let sends = all.iter().filter(|it| it.is_request()).count();
        // Some requests may have been sent again.
        assert!(sends >= 100 && all.len() > sends, "{all:?}");
    }
}

/// The output of a ping-pong on the second host that takes the GID of this index and must fail, because it cannot reach the first
/// host.
fn output_without_a_path(test: &str, wire: Option<&str>, index: &str) -> Option<String> {
    let stage = Stage::new(test);
    stage.copy_libraries();
    let hosts = Hosts::new(1500)?;
    let port = PORT.to_string();
    let words = |index| ["ibv_rc_pingpong", "-g", index, "-p", &port];
    let mut server = hosts.start(&stage, 0, &words("1"));
    server.wait_until_it_listens(PORT);
    let mut command = hosts.hosts.enter_unprivileged(1, stage.command("nsenter"));
    command.args(words(index)).arg(ADDRESSES[0][0]);
    command.envs(wire.map(|setting| ("RKEY_WIRE", setting)));
    let mut client = stage.start(command, "client");
    let status = client.wait();
    let text = client.text();
    assert!(status.is_some_and(|status| !status.success()), "{text}");
    server.kill();
    Some(text)
}

/// Extended reliable connections stay on one host, and the log says so.
#[test]
fn extended_reliable_connections_to_other_hosts_are_refused() {
    let stage = Stage::new("hosts-xrc");
    stage.copy_libraries();
    let Some(mut hosts) = Hosts::new(1500) else {
        return;
    };
    hosts.logs = true;
    let port = PORT.to_string();
    let words = words_of("ibv_xsrq_pingpong", GIDS[0], &port);
    let (succeeded, said) = hosts.run(&stage, &words, ADDRESSES[0][0]);
    assert!(!succeeded, "{said:#?}");
    let why = "cannot connect a XrcRecv queue pair to a peer on another host";
    assert!(said.iter().any(|text| text.contains(why)), "{said:#?}");
}

/// Without `RKEY_WIRE`, other hosts are unreachable, and the log says what to set.
#[test]
fn other_hosts_are_unreachable_by_default() {
    let Some(text) = output_without_a_path("hosts-off", None, "1") else {
        return;
    };
    assert!(
        text.contains("is not on this host") && text.contains("RKEY_WIRE"),
        "{text}"
    );
}

/// Many programs take GID 0 by default, which is a link-local address. The log says which index to choose.
#[test]
fn the_log_names_the_gid_indexes_that_reach_another_host() {
    let Some(text) = output_without_a_path("hosts-gid", Some("auto"), "0") else {
        return;
    };
    let wanted = format!("choose GID index 1 ({})", ADDRESSES[1][0]);
    assert!(text.contains(&wanted), "{text}");
}
