//! Debian's uDAPL programs on two hosts, as ordinary users.

use crate::support::Stage;
use rkey_harness::hosts::Hosts;
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
    fn wait(mut self) -> String {
        let begun = Instant::now();
        while self
            .child
            .try_wait()
            .expect("the child can be awaited")
            .is_none()
        {
            assert!(begun.elapsed() < PATIENCE, "it hangs: {}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.text()
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
    command
        .args(words)
        .args(["-P", IA])
        .env("DAT_OVERRIDE", registry)
        .env("RKEY_WIRE", "auto")
        .env("RKEY_LOG", "info")
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors);
    let child = command.spawn().expect("nsenter is installed");
    Running { child, said }
}

/// Runs a program as server and client; both print `passed` if they have succeeded.
fn run(program: &[&str], passed: &str) {
    let stage = Stage::new("hosts");
    let Some(hosts) = Hosts::new(4400, &ADDRESSES) else {
        return;
    };
    let server = start(&stage, &hosts, 0, program);
    let begun = Instant::now();
    while !hosts.listens(0, PORT) {
        assert!(begun.elapsed() < PATIENCE, "{}", server.text());
        std::thread::sleep(Duration::from_millis(5));
    }
    let words = [program, &["-h", ADDRESSES[0][0]]].concat();
    let client = start(&stage, &hosts, 1, &words).wait();
    assert!(
        client.contains(passed),
        "{client}\nserver:\n{}",
        server.text()
    );
    let server = server.wait();
    assert!(server.contains(passed), "{server}");
}

/// Sends, RDMA reads and writes, and RMRs.
#[test]
fn dtest_runs_between_two_hosts() {
    run(
        &["dtest", "-b", "65536", "-B", "20"],
        "DAPL Test Complete. PASSED",
    );
}

/// Many connections and disconnections, whose messages also travel between the hosts.
#[test]
fn dtestcm_runs_between_two_hosts() {
    run(
        &["dtestcm", "-c", "50", "-w"],
        "DAPL Connection Test Complete.",
    );
}
