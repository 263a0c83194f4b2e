//! Programs on two hosts.
//!
//! | file | programs |
//! | --- | --- |
//! | this | `rping`, `ucmatose`, `udaddy` |
//! | `stock` | rdma-core's other examples, and perftest |
//! | `rsockets` | programs that use rsockets |
//! | `others` | qperf, fio, UCX, providers of libfabric and uDAPL, librpma |
//! | `networks` | a bad network between the hosts |
//! | `absent` | a host at which no program uses RDMA |

mod absent;
mod networks;
mod others;
mod rsockets;
mod stock;

use crate::support::{PATIENCE, Running, Stage, listens_in};
use rkey_harness::hosts;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const ADDRESSES: [[&str; 2]; 2] = [["10.9.1.1", "fd09:1::1"], ["10.9.1.2", "fd09:1::2"]];
/// The IPv4 address of the server's host.
pub(crate) const SERVER: &str = ADDRESSES[0][0];
/// Any fixed port will do: no other program runs in these namespaces.
const PORT: u16 = 7174;

/// Two hosts, and programs on them.
pub(crate) struct Hosts(hosts::Hosts);

/// When a server is ready.
#[derive(Clone, Copy)]
pub(crate) enum Ready<'a> {
    /// It listens on a port of the connection manager, in this port space.
    Cm(u16, u16),
    /// It listens on a TCP port.
    Tcp(u16),
    /// It has printed this.
    Says(&'a str),
}

/// It listens on the usual port.
const LISTENS: Ready<'_> = Ready::Cm(TCP, PORT);

impl Hosts {
    /// Returns `None` if this machine does not permit network namespaces.
    pub(crate) fn new(mtu: u32) -> Option<Self> {
        hosts::Hosts::new(mtu, &ADDRESSES).map(Self)
    }

    /// A program on a host, without privileges, in a directory in which it may write.
    pub(crate) fn command(&self, stage: &Stage, at: usize, words: &[&str]) -> Command {
        let mut command = self.0.enter_unprivileged(at, stage.command("nsenter"));
        command.args(words).env("RKEY_WIRE", "auto");
        command.current_dir(open_folder(stage));
        command
    }

    fn start(&self, stage: &Stage, at: usize, words: &[&str], wire: &str) -> Running {
        let mut command = self.command(stage, at, words);
        command.env("RKEY_WIRE", wire);
        stage.start(command, ["server", "client"][at])
    }

    /// Starts a server on the first host, and waits until it is ready.
    fn server(&self, stage: &Stage, words: &[&str], ready: Ready<'_>) -> Running {
        let server = self.start(stage, 0, words, "auto");
        self.wait_until(ready, server)
    }

    /// Waits until a server on the first host is ready.
    pub(crate) fn wait_until(&self, ready: Ready<'_>, mut server: Running) -> Running {
        let user = self.0.user();
        let is_ready = |server: &Running| match ready {
            Ready::Cm(space, port) => listens_in(server.id(), user, space, port),
            Ready::Tcp(port) => self.0.listens(0, port),
            Ready::Says(words) => server.text().contains(words),
        };
        let begun = Instant::now();
        while !is_ready(&server) && !server.has_ended() {
            assert!(begun.elapsed() < PATIENCE, "{}", server.text());
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Runs a client of this server on the second host, and returns its output. Panics unless it succeeds.
    fn client(&self, stage: &Stage, words: &[&str], server: &mut Running) -> String {
        let mut client = self.start(stage, 1, words, "auto");
        let status = client.wait();
        let said = client.text();
        if !status.is_some_and(|status| status.success()) {
            server.kill();
            panic!("{words:?}: {status:?}\n{said}\nserver:\n{}", server.text());
        }
        said
    }

    /// Runs a server on the first host and a client on the second. Panics unless both succeed; returns their output.
    fn pair(
        &self,
        stage: &Stage,
        server: &[&str],
        client: &[&str],
        ready: Ready<'_>,
    ) -> [String; 2] {
        let mut server = self.server(stage, server, ready);
        let said = self.client(stage, client, &mut server);
        [server.succeed(), said]
    }

    /// Like [`Hosts::pair`], with the words of each program in a line.
    fn lines(&self, stage: &Stage, server: &str, client: &str, ready: Ready<'_>) -> [String; 2] {
        self.pair(stage, &words(server), &words(client), ready)
    }
}

/// A directory of the stage in which every user may write.
pub(crate) fn open_folder(stage: &Stage) -> PathBuf {
    let folder = stage.path("open");
    if !folder.exists() {
        std::fs::create_dir(&folder).expect("a directory can be made");
        let all = PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&folder, all).expect("the directory is ours");
    }
    folder
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Over IPv4 and IPv6, with path MTUs of 1024 and 4096 bytes.
#[test]
fn rping_runs_between_two_hosts() {
    for mtu in [1500, 4400] {
        let Some((stage, hosts)) = place("rping-hosts", mtu) else {
            return;
        };
        for server in ADDRESSES[0] {
            let options = format!("-a {server} -C 5 -v -V -S 20000 -p {PORT}");
            let [of_server, of_client] = ["-s", "-c"].map(|side| format!("rping {side} {options}"));
            let said = hosts.pair(&stage, &words(&of_server), &words(&of_client), LISTENS);
            let pings = said.map(|text| text.matches("ping data: rdma-ping").count());
            assert_eq!(pings, [5, 5], "{mtu} {server}");
        }
    }
}

/// A stage and two hosts; `None` if this machine does not permit network namespaces.
fn place(test: &str, mtu: u32) -> Option<(Stage, Hosts)> {
    let stage = Stage::new(test);
    Hosts::new(mtu).map(|hosts| (stage, hosts))
}

/// `rping` compares what it reads with what it sent. The client exits without waiting until its last packets have arrived, so these may
/// be repeated but not lost.
#[test]
fn rping_runs_with_injected_faults() {
    let Some((stage, hosts)) = place("rping-faults", 1500) else {
        return;
    };
    let options = format!("-a {} -C 40 -v -V -S 30000 -p {PORT}", ADDRESSES[0][1]);
    let faults = "loss=1%,duplicate=2%,reorder=5%,corrupt=1%,delay=300us,seed=1";
    let of_server = format!("env RKEY_FAULT={faults} rping -s {options}");
    let of_client = format!("env RKEY_FAULT=duplicate=5%,seed=2 rping -c {options}");
    let said = hosts.pair(&stage, &words(&of_server), &words(&of_client), LISTENS);
    for text in said {
        assert_eq!(text.matches("ping data: rdma-ping").count(), 40);
        assert!(text.contains("RKEY_FAULT is set"));
    }
}

#[test]
fn ucmatose_and_udaddy_run_between_two_hosts() {
    let Some((stage, hosts)) = place("stock-hosts", 1500) else {
        return;
    };
    let port = PORT.to_string();
    // `udaddy` always uses this port.
    for (program, space) in [
        (format!("ucmatose -c 3 -C 5 -S 3000 -p {port}"), TCP),
        (format!("ucmatose -c 3 -m -t 8 -a 17 -p {port}"), TCP),
        ("udaddy -c 3 -C 5 -S 500".to_owned(), UDP),
    ] {
        // Nothing repeats datagrams.
        if space == UDP && hosts.0.is_unreliable() {
            continue;
        }
        let server = words(&program);
        let mut client = server.clone();
        client.extend(["-s", ADDRESSES[0][0]]);
        let [_, said] = hosts.pair(&stage, &server, &client, Ready::Cm(space, PORT));
        assert!(said.contains("return status 0"), "{program}: {said}");
    }
}

/// Another process of the first host, which listens on another port, rejects the request at once.
#[test]
fn a_request_to_a_port_without_a_listener_is_refused() {
    let Some((stage, hosts)) = place("refused-hosts", 1500) else {
        return;
    };
    let other = format!("rping -s -a {} -p {PORT}", ADDRESSES[0][0]);
    let mut other = hosts.server(&stage, &words(&other), LISTENS);
    let line = format!("rping -c -a {} -C 1 -p {}", ADDRESSES[0][0], PORT + 1);
    let mut client = hosts.start(&stage, 1, &words(&line), "auto");
    let status = client.wait();
    let text = client.text();
    assert!(status.is_some_and(|status| !status.success()), "{text}");
    assert!(text.contains("RDMA_CM_EVENT_REJECTED"), "{text}");
    other.kill();
}

/// Without `RKEY_WIRE`, addresses of other hosts do not resolve, and the log says what to set.
#[test]
fn without_the_wire_addresses_of_other_hosts_do_not_resolve() {
    let Some((stage, hosts)) = place("off-hosts", 1500) else {
        return;
    };
    let line = format!("rping -c -a {} -C 1 -p {PORT}", ADDRESSES[0][0]);
    let mut client = hosts.start(&stage, 1, &words(&line), "off");
    let status = client.wait();
    let text = client.text();
    assert!(status.is_some_and(|status| !status.success()), "{text}");
    assert!(text.contains("RKEY_WIRE=auto"), "{text}");
}
