//! Programs on two hosts.

use crate::support::{PATIENCE, Running, Stage, listens_in};
use rkey_harness::hosts;
use std::time::{Duration, Instant};

const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const ADDRESSES: [[&str; 2]; 2] = [["10.9.1.1", "fd09:1::1"], ["10.9.1.2", "fd09:1::2"]];
/// Any fixed port will do: no other program runs in these namespaces.
const PORT: u16 = 7174;

/// Two hosts, and programs on them.
struct Hosts(hosts::Hosts);

impl Hosts {
    /// Returns `None` if this machine does not permit network namespaces.
    fn new(mtu: u32) -> Option<Self> {
        hosts::Hosts::new(mtu, &ADDRESSES).map(Self)
    }

    /// Starts a program on a host, without privileges.
    fn start(&self, stage: &Stage, at: usize, words: &[&str], wire: &str) -> Running {
        let mut command = self.0.enter_unprivileged(at, stage.command("nsenter"));
        command.args(words).env("RKEY_WIRE", wire);
        stage.start(command, ["server", "client"][at])
    }

    /// Starts a server on the first host, and waits until it listens.
    fn server(&self, stage: &Stage, words: &[&str], space: u16) -> Running {
        let mut server = self.start(stage, 0, words, "auto");
        let user = self.0.user();
        let begun = Instant::now();
        while !listens_in(server.id(), user, space, PORT) && !server.has_ended() {
            assert!(begun.elapsed() < PATIENCE, "{}", server.text());
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Runs a server on the first host and a client on the second. Panics unless both succeed; returns their output.
    fn pair(&self, stage: &Stage, server: &[&str], client: &[&str], space: u16) -> [String; 2] {
        let mut server = self.server(stage, server, space);
        let mut client = self.start(stage, 1, client, "auto");
        let status = client.wait();
        if !status.is_some_and(|status| status.success()) {
            server.kill();
            let (said, other) = (client.text(), server.text());
            panic!("{status:?}\n{said}\nserver:\n{other}");
        }
        [server.succeed(), client.text()]
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Over IPv4 and IPv6, with path MTUs of 1024 and 4096 bytes.
#[test]
fn rping_runs_between_two_hosts() {
    for mtu in [1500, 4400] {
        let stage = Stage::new("rping-hosts");
        let Some(hosts) = Hosts::new(mtu) else { return };
        for server in ADDRESSES[0] {
            let options = format!("-a {server} -C 5 -v -V -S 20000 -p {PORT}");
            let [of_server, of_client] = ["-s", "-c"].map(|side| format!("rping {side} {options}"));
            let said = hosts.pair(&stage, &words(&of_server), &words(&of_client), TCP);
            let pings = said.map(|text| text.matches("ping data: rdma-ping").count());
            assert_eq!(pings, [5, 5], "{mtu} {server}");
        }
    }
}

/// `rping` compares what it reads with what it sent. The client exits without waiting until its last packets have arrived, so these may
/// be repeated but not lost.
#[test]
fn rping_runs_with_injected_faults() {
    let stage = Stage::new("rping-faults");
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    let options = format!("-a {} -C 40 -v -V -S 30000 -p {PORT}", ADDRESSES[0][1]);
    let faults = "loss=1%,duplicate=2%,reorder=5%,corrupt=1%,delay=300us,seed=1";
    let of_server = format!("env RKEY_FAULT={faults} rping -s {options}");
    let of_client = format!("env RKEY_FAULT=duplicate=5%,seed=2 rping -c {options}");
    let said = hosts.pair(&stage, &words(&of_server), &words(&of_client), TCP);
    for text in said {
        assert_eq!(text.matches("ping data: rdma-ping").count(), 40);
        assert!(text.contains("RKEY_FAULT is set"));
    }
}

#[test]
fn ucmatose_and_udaddy_run_between_two_hosts() {
    let stage = Stage::new("stock-hosts");
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    let port = PORT.to_string();
    // `udaddy` always uses this port.
    for (program, space) in [
        (format!("ucmatose -c 3 -C 5 -S 3000 -p {port}"), TCP),
        ("udaddy -c 3 -C 5 -S 500".to_owned(), UDP),
    ] {
        let server = words(&program);
        let mut client = server.clone();
        client.extend(["-s", ADDRESSES[0][0]]);
        let [_, said] = hosts.pair(&stage, &server, &client, space);
        assert!(said.contains("return status 0"), "{program}: {said}");
    }
}

#[test]
fn perftest_runs_between_two_hosts() {
    let stage = Stage::new("perftest-hosts");
    let Some(hosts) = Hosts::new(4400) else {
        return;
    };
    let port = PORT.to_string();
    for program in [
        "ib_write_bw -F -R -n 100",
        "ib_send_bw -F -R -n 100 -s 3000",
        "ib_read_lat -F -R -n 20",
    ] {
        let mut server = words(program);
        server.extend(["-p", &port]);
        let mut client = server.clone();
        client.push(ADDRESSES[0][0]);
        let [_, said] = hosts.pair(&stage, &server, &client, TCP);
        assert!(said.contains("rkey"), "{program}: {said}");
    }
}

/// Another process of the first host, which listens on another port, rejects the request at once.
#[test]
fn a_request_to_a_port_without_a_listener_is_refused() {
    let stage = Stage::new("refused-hosts");
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    let other = format!("rping -s -a {} -p {PORT}", ADDRESSES[0][0]);
    let mut other = hosts.server(&stage, &words(&other), TCP);
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
    let stage = Stage::new("off-hosts");
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    let line = format!("rping -c -a {} -C 1 -p {PORT}", ADDRESSES[0][0]);
    let mut client = hosts.start(&stage, 1, &words(&line), "off");
    let status = client.wait();
    let text = client.text();
    assert!(status.is_some_and(|status| !status.success()), "{text}");
    assert!(text.contains("RKEY_WIRE=auto"), "{text}");
}
