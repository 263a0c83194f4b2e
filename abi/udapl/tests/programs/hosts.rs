//! Debian's uDAPL programs on two hosts, as ordinary users.

mod failures;

use crate::support::Stage;
use rkey_harness::hosts::Hosts;
use rkey_harness::network::{Conditions, role, serve};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ADDRESSES: [[&str; 2]; 2] = [["10.9.5.1", "fd09:5::1"], ["10.9.5.2", "fd09:5::2"]];
/// The name of the IA on both hosts: the server of dtest tells the client which name to open.
const IA: &str = "rkey-hosts";
/// The port on which the programs exchange addresses.
const PORT: u16 = 15_828;
/// Only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running program, killed on drop, and the file with its output.
struct Running {
    child: Child,
    said: std::path::PathBuf,
}

impl Running {
    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.said).unwrap_or_default()).into_owned()
    }

    /// Waits until the program exits, and returns its output.
    fn wait(self) -> String {
        self.end().1
    }

    /// Waits until the program exits. Returns its exit code (`None` if it was killed) and its output.
    fn end(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the child can be awaited") {
                return (status.code(), self.text());
            }
            assert!(begun.elapsed() < PATIENCE, "it hangs: {}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a program on a host, with an IA at that host's address.
fn start(stage: &Stage, hosts: &Hosts, at: usize, words: &[&str]) -> Running {
    let registry = stage.file(&format!("{at}.conf"));
    let (library, address) = (stage.file("libdaplrkey.so.2"), ADDRESSES[at][0]);
    let library = library.display();
    let entry =
        format!("{IA} u2.0 nonthreadsafe default {library} dapl.2.0 \"{address} 0\" \"\"\n");
    fs::write(&registry, entry).expect("a file can be written");
    let said = stage.file(&format!("{at}.said"));
    let file = File::create(&said).expect("a file can be made");
    let errors = file.try_clone().expect("a descriptor is free");
    let nsenter = stage.command(Path::new("nsenter"));
    let mut command: Command = hosts.enter_unprivileged(at, nsenter);
    // Its output is line-buffered, so that it can be read while it runs.
    command
        .args(["stdbuf", "-oL"])
        .args(words)
        .env("DAT_OVERRIDE", registry)
        .env("RKEY_TEST_IA", IA)
        .env("RKEY_WIRE", "auto")
        .env("RKEY_LOG", "info")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors);
    let child = command.spawn().expect("nsenter is installed");
    Running { child, said }
}

/// When a server is ready.
#[derive(Clone, Copy)]
enum Ready<'a> {
    /// It listens on [`PORT`].
    Listens,
    /// It has printed this.
    Says(&'a str),
}

/// Starts a server on the first host, and waits until it is ready.
fn start_server(stage: &Stage, hosts: &Hosts, words: &[&str], ready: Ready<'_>) -> Running {
    let server = start(stage, hosts, 0, words);
    let begun = Instant::now();
    let is_ready = || match ready {
        Ready::Listens => hosts.listens(0, PORT),
        Ready::Says(words) => server.text().contains(words),
    };
    while !is_ready() {
        assert!(begun.elapsed() < PATIENCE, "{}", server.text());
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

/// Runs a program as server and client; both print all of `passed` if they have succeeded, and no error.
fn run(program: &str, ready: Ready<'_>, passed: &[&str]) {
    if let Some(hosts) = Hosts::new(4400, &ADDRESSES) {
        run_on(&hosts, program, ready, passed);
    }
}

/// Like [`run`], on these hosts.
fn run_on(hosts: &Hosts, program: &str, ready: Ready<'_>, passed: &[&str]) {
    let stage = Stage::new("hosts");
    let words: Vec<&str> = program.split_whitespace().chain(["-P", IA]).collect();
    let server = start_server(&stage, hosts, &words, ready);
    let words = [&words[..], &["-h", ADDRESSES[0][0]]].concat();
    let client = start(&stage, hosts, 1, &words).wait();
    let server = server.wait();
    for wanted in passed {
        let both = client.contains(wanted) && server.contains(wanted);
        assert!(both, "{program}: {client}\nserver:\n{server}");
    }
}

/// Sends, RDMA reads and writes, and RMRs.
#[test]
fn dtest_runs_between_two_hosts() {
    let passed = ["DAPL Test Complete. PASSED"];
    run("dtest -b 65536 -B 20", Ready::Listens, &passed);
}

/// Many connections and disconnections, whose messages also travel between the hosts.
#[test]
fn dtestcm_runs_between_two_hosts() {
    let Some(hosts) = Hosts::new(4400, &ADDRESSES) else {
        return;
    };
    // The server counts events, and hangs if the end of one connection overtakes the confirmation of another.
    if hosts.is_unreliable() {
        return;
    }
    let passed = ["DAPL Connection Test Complete."];
    run_on(&hosts, "dtestcm -c 50 -w", Ready::Listens, &passed);
}

/// Writes with immediate data, and atomics.
#[test]
fn dtestx_runs_between_two_hosts() {
    let passed = ["IB extension test - immed/atomic test PASSED"];
    run("dtestx", Ready::Listens, &passed);
}

/// Receives that ten EPs share.
#[test]
fn dtestsrq_runs_between_two_hosts() {
    let passed = ["SRQ Test Complete."];
    let ready = Ready::Says("ready on port");
    run("dtestsrq -c 10 -b 2048", ready, &passed);
}

/// Transactions (messages, RDMA reads and writes, with several threads and EPs, and verification), and performance tests.
#[test]
fn dapltest_runs_between_two_hosts() {
    let stage = Stage::new("dapltest-hosts");
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    dapltest(
        &stage,
        &hosts,
        &[
            "T -i 100 client SR 256 1 server SR 256 1",
            "T -i 20 -t 2 -w 4 -V client SR 1024 3 server SR 256 3 client RW 4096 1 server RR 2048 4",
            "P -i 256 -m b RW 4096 2",
            "P -i 256 -m p RR 4096 2",
        ],
    );
}

/// Starts the server of dapltest.
fn start_dapltest(stage: &Stage, hosts: &Hosts) -> Running {
    let words = ["dapltest", "-T", "S", "-D", IA];
    start_server(stage, hosts, &words, Ready::Says("Service Point Ready"))
}

/// Starts a test of dapltest, with these options.
fn start_dapltest_client(stage: &Stage, hosts: &Hosts, line: &str) -> Running {
    let at = ["-s", ADDRESSES[0][0], "-D", IA];
    let (test, options) = line.split_once(' ').unwrap_or((line, ""));
    let words = [&["dapltest", "-T", test][..], &at].concat();
    let options = options.split_whitespace();
    let words: Vec<&str> = words.into_iter().chain(options).collect();
    start(stage, hosts, 1, &words)
}

/// Whether the client of dapltest has finished without an error.
fn has_passed(client: &str) -> bool {
    client.contains("End of Work") && !client.contains("rror")
}

/// Runs these tests of dapltest, one after the other.
fn dapltest(stage: &Stage, hosts: &Hosts, lines: &[&str]) {
    let server = start_dapltest(stage, hosts);
    let client = |line: &str| start_dapltest_client(stage, hosts, line).wait();
    for line in lines {
        let said = client(line);
        assert!(
            has_passed(&said),
            "{line}: {said}\nserver: {}",
            server.text()
        );
    }
    client("Q");
    let said = server.wait();
    for (test, finished) in [
        ("T ", "Transaction Test Finished for this client"),
        ("P ", "Finished performance test.  Exiting."),
    ] {
        let wanted = lines.iter().filter(|line| line.starts_with(test)).count();
        assert_eq!(said.matches(finished).count(), wanted, "{said}");
    }
}

/// This is not a separate test but the network of the next one, in a process of its own.
#[test]
fn the_network() {
    serve();
}

/// The network treats the packets of all senders alike. `dtestx` compares the results of atomics, `dapltest -V` the data.
#[test]
fn atomics_and_transactions_are_right_over_a_bad_network() {
    let bad = Conditions {
        loss: Conditions::percent(1),
        corrupt: Conditions::percent(1),
        ..Conditions::ROUGH
    };
    let Some(hosts) = Hosts::over(
        &bad.both_ways(),
        &role("hosts::the_network"),
        1500,
        &ADDRESSES,
    ) else {
        return;
    };
    let passed = ["IB extension test - immed/atomic test PASSED"];
    run_on(&hosts, "dtestx", Ready::Listens, &passed);
    let stage = Stage::new("dapltest-network");
    let line =
        "T -i 20 -t 2 -w 2 -V client SR 1024 3 server SR 256 3 client RW 4096 1 server RR 2048 4";
    dapltest(&stage, &hosts, &[line]);
    let counts = hosts.counts();
    let happened = (counts.iter()).all(|of| of.lost > 0 && of.corrupted > 0 && of.reordered > 0);
    assert!(happened, "{counts:?}");
}

/// A side that disconnects, frees its EP or exits right after that, even before the other side has confirmed the connection, ends it with
/// `DAT_CONNECTION_EVENT_DISCONNECTED`.
#[test]
fn early_disconnections_reach_the_other_host() {
    let stage = Stage::new("endings-hosts");
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    let program = stage.compile("endings", include_str!("endings.c"), &["-ldat2"]);
    let program = program.to_str().expect("a path");
    let server = start_server(&stage, &hosts, &[program, "server"], Ready::Says("ready"));
    let client = start(&stage, &hosts, 1, &[program, "client", ADDRESSES[0][0]]).wait();
    let server = server.wait();
    for said in [&client, &server] {
        assert!(said.ends_with("done\n"), "{client}\nserver:\n{server}");
    }
}

/// Datagram EPs reach this host only. The program is told so, and does not hang.
#[test]
fn dtestx_cannot_send_datagrams_to_another_host() {
    let stage = Stage::new("dtestx-hosts");
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    let server = ["dtestx", "-P", IA, "-u", "-s", "-h", ADDRESSES[1][0]];
    let _server = start_server(&stage, &hosts, &server, Ready::Listens);
    let client = ["dtestx", "-P", IA, "-u", "-c", "-h", ADDRESSES[0][0]];
    let said = start(&stage, &hosts, 1, &client).wait();
    assert!(said.contains("DAT_INVALID_ADDRESS_UNREACHABLE"), "{said}");
}
