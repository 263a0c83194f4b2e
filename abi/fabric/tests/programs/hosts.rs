//! libfabric's own programs on two hosts, as ordinary users.

mod failures;

use crate::{Guard, folder, program};
use rkey_harness::hosts::Hosts;
use rkey_harness::network::{Conditions, role, serve};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
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

/// Starts fi_pingpong between two hosts; it compares the data. Server and client.
fn start(hosts: &Hosts, words: &[&str], faults: &str) -> [Guard; 2] {
    let words = [&["-c"], words].concat();
    let client_words = [&words[..], &[ADDRESSES[0][0]]].concat();
    let start = |at: usize, words: &[&str]| {
        let mut command = pingpong(hosts, at, words, faults);
        Guard(command.stdout(Stdio::null()).spawn().unwrap())
    };
    let server = start(0, &words);
    let until = Instant::now() + Duration::from_secs(120);
    while !hosts.listens(0, PORT) {
        assert!(
            Instant::now() < until,
            "{words:?}: the server does not listen"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    [server, start(1, &client_words)]
}

/// Runs fi_pingpong between two hosts.
fn run(hosts: &Hosts, words: &[&str], faults: &str) {
    let [mut server, mut client] = start(hosts, &[&["-I", "20"], words].concat(), faults);
    assert!(client.wait(), "{words:?}: the client failed");
    assert!(server.wait(), "{words:?}: the server failed");
}

#[test]
fn fi_pingpong_runs_over_connections_between_hosts() {
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

/// This is not a separate test but the network of the next one, in a process of its own.
#[test]
fn the_network() {
    serve();
}

/// The network treats the packets of all senders alike: those of our TCP connections, too. fi_pingpong's own connection is only
/// delayed. fi_pingpong compares the data.
#[test]
fn fi_pingpong_runs_over_a_bad_network() {
    let bad = Conditions {
        loss: Conditions::percent(1),
        corrupt: Conditions::percent(1),
        mends_checksum: true,
        spared: PORT,
        ..Conditions::ROUGH
    };
    let hosts = Hosts::over(
        &bad.both_ways(),
        &role("hosts::the_network"),
        1500,
        &ADDRESSES,
    );
    let (Some(_), Some(hosts)) = (program("fi_pingpong"), hosts) else {
        return;
    };
    run(&hosts, &["-p", "rkey", "-e", "msg", "-I", "10"], "");
    let counts = hosts.counts();
    let happened = (counts.iter()).all(|of| of.lost > 0 && of.corrupted > 0 && of.reordered > 0);
    assert!(happened, "{counts:?}");
}

/// Our own endpoints for datagrams.
#[test]
fn fi_pingpong_runs_over_datagrams_between_hosts() {
    let (Some(_), Some(hosts)) = (program("fi_pingpong"), Hosts::new(1500, &ADDRESSES)) else {
        return;
    };
    for kind in [
        &["-e", "rdm", "-m", "msg"][..],
        &["-e", "rdm", "-m", "tagged"],
        &["-e", "dgram"],
    ] {
        run(&hosts, &[&["-p", "rkey"], kind].concat(), "");
    }
    let rough = "loss=1%,duplicate=2%,reorder=5%,delay=100us,seed=1";
    run(&hosts, &["-p", "rkey", "-e", "rdm", "-m", "tagged"], rough);
}

/// Libfabric's layer over our connections makes endpoints for reliable datagrams, too.
#[test]
fn fi_pingpong_runs_over_ofi_rxm_between_hosts() {
    let (Some(_), Some(hosts)) = (program("fi_pingpong"), Hosts::new(4400, &ADDRESSES)) else {
        return;
    };
    for mode in ["msg", "tagged"] {
        run(&hosts, &["-p", "rkey;ofi_rxm", "-e", "rdm", "-m", mode], "");
    }
}

#[test]
fn open_mpi_runs_on_two_hosts() {
    open_mpi("rkey");
}

#[test]
fn open_mpi_runs_over_ofi_rxm_on_two_hosts() {
    open_mpi("rkey;ofi_rxm");
}

/// Four ranks of Open MPI, two on each host. Open MPI starts programs on the other host with an agent such as ssh.
fn open_mpi(provider: &str) {
    let Some(hosts) = Hosts::new(4400, &ADDRESSES) else {
        return;
    };
    let place = folder();
    let (program, agent) = (place.join("pairs"), place.join("agent"));
    let source = place.join("pairs.c");
    std::fs::write(&source, include_str!("pairs.c")).unwrap();
    let mut compiler = Command::new("mpicc.openmpi");
    let compiled = compiler.arg("-O1").arg("-o").arg(&program).arg(&source);
    let compiled = compiled.status().expect("openmpi-bin is installed");
    assert!(compiled.success(), "libopenmpi-dev is installed");
    std::fs::write(&agent, hosts.agent(ADDRESSES[0][0])).unwrap();
    std::fs::set_permissions(&agent, Permissions::from_mode(0o755)).unwrap();
    let mut command = hosts.enter(0, Command::new("nsenter"));
    command.args(["timeout", "300", "mpirun.openmpi", "--allow-run-as-root"]);
    for (name, value) in [
        ("plm_rsh_agent", agent.to_str().unwrap()),
        ("oob_tcp_if_include", "10.9.4.0/24"),
        ("pml", "cm"),
        ("mtl", "ofi"),
        ("mtl_ofi_provider_include", provider),
        ("mpi_yield_when_idle", "1"),
    ] {
        command.args(["--mca", name, value]);
    }
    let environment = [
        ("FI_PROVIDER_PATH", place.to_str().unwrap()),
        ("FI_PROVIDER", provider),
        ("FI_OFI_RXM_SAR_LIMIT", "0"),
        ("RKEY_WIRE", "auto"),
        ("RKEY_LOG", "warn"),
    ];
    for (name, value) in environment {
        command.env(name, value).args(["-x", name]);
    }
    if std::env::var_os("LD_LIBRARY_PATH").is_some() {
        command.args(["-x", "LD_LIBRARY_PATH"]);
    }
    let where_to = format!("{}:2,{}:2", ADDRESSES[0][0], ADDRESSES[1][0]);
    command.args(["--host", &where_to, "--oversubscribe", "-np", "4"]);
    let output = command.arg(&program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("pairs: ok"),
        "{output:?}"
    );
}
