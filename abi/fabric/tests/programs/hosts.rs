//! libfabric's own programs on two hosts, as ordinary users.

use crate::{Guard, folder, program};
use rkey_harness::hosts::Hosts;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ADDRESSES: [[&str; 2]; 2] = [["10.9.4.1", "fd09:4::1"], ["10.9.4.2", "fd09:4::2"]];

/// The port of fi_pingpong's own connection.
const PORT: u16 = 47592;

/// fi_pingpong on a host.
fn pingpong(hosts: &Hosts, at: usize, words: &[&str], faults: &str) -> Command {
    let mut command = hosts.enter_unprivileged(at, Command::new("nsenter"));
    command
        .arg("fi_pingpong")
        .args(words)
        .env("FI_PROVIDER_PATH", folder())
        .env("RKEY_LOG", "warn")
        .env("RKEY_WIRE", "auto")
        .env("RKEY_FAULT", faults);
    command
}

/// Runs fi_pingpong between two hosts; it compares the data.
fn run(hosts: &Hosts, words: &[&str], faults: &str) {
    let words = [&["-c", "-I", "20"], words].concat();
    let client_words = [&words[..], &[ADDRESSES[0][0]]].concat();
    let start = |at: usize, words: &[&str]| {
        let mut command = pingpong(hosts, at, words, faults);
        Guard(command.stdout(Stdio::null()).spawn().unwrap())
    };
    let mut server = start(0, &words);
    let until = Instant::now() + Duration::from_secs(120);
    while !hosts.listens(0, PORT) {
        assert!(
            Instant::now() < until,
            "{words:?}: the server does not listen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        start(1, &client_words).wait(),
        "{words:?}: the client failed"
    );
    assert!(server.wait(), "{words:?}: the server failed");
}

#[test]
fn ping_pong_over_connections_between_hosts() {
    let (Some(_), Some(hosts)) = (program("fi_pingpong"), Hosts::new(1500, &ADDRESSES)) else {
        return;
    };
    let words = ["-p", "rkey", "-e", "msg"];
    run(&hosts, &words, "");
    run(
        &hosts,
        &words,
        "loss=1%,duplicate=2%,reorder=5%,delay=100us,seed=1",
    );
}

/// Endpoints for reliable datagrams reach other hosts through libfabric's layer over our connections. Without the layer, the program
/// learns that it needs it.
#[test]
fn ping_pong_over_ofi_rxm_between_hosts() {
    let (Some(_), Some(hosts)) = (program("fi_pingpong"), Hosts::new(4400, &ADDRESSES)) else {
        return;
    };
    for mode in ["msg", "tagged"] {
        run(&hosts, &["-p", "rkey;ofi_rxm", "-e", "rdm", "-m", mode], "");
    }
    let mut info = hosts.enter_unprivileged(1, Command::new("nsenter"));
    info.args([
        "fi_info",
        "-p",
        "rkey",
        "-t",
        "FI_EP_RDM",
        "-n",
        ADDRESSES[0][0],
    ])
    .args(["-P", "7000"])
    .env("FI_PROVIDER_PATH", folder())
    .env("RKEY_WIRE", "auto");
    let output = info.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("rkey;ofi_rxm"),
        "{said}"
    );
}
