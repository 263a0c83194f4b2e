//! Programs on two hosts, as ordinary users.

mod common;

use common::{ALL, device, pattern};
use rkey::{Error, RemoteKey};
use rkey_harness::hosts::Hosts;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const ADDRESSES: [[&str; 2]; 2] = [["10.9.3.1", "fd09:3::1"], ["10.9.3.2", "fd09:3::2"]];
/// The address at which the other process listens, or to which it connects.
const ADDRESS: &str = "RKEY_TEST_HOSTS_ADDRESS";
/// Longer than the longest packet, and not a multiple of it.
const LEN: usize = 100_003;
/// What a server prints when it listens.
const LISTENS: &str = "listens";

/// Runs a test of this file on a host.
fn start(hosts: &Hosts, at: usize, test: &str, address: &str) -> Child {
    let mut command = hosts.enter_unprivileged(at, Command::new("nsenter"));
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ADDRESS, address)
        .env("RKEY_WIRE", "auto")
        .stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs a server on the first host and a client on the second, with IPv4 and IPv6.
fn run(server: &str, client: &str, mtu: u32) {
    let Some(hosts) = Hosts::new(mtu, &ADDRESSES) else {
        return;
    };
    let [v4, v6] = ADDRESSES[0];
    for address in [format!("{v4}:7471"), format!("[{v6}]:7471")] {
        let mut server = start(&hosts, 0, server, &address);
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap().contains(LISTENS)),
            "the server has failed"
        );
        let client = start(&hosts, 1, client, &address).wait().unwrap();
        if !client.success() {
            server.kill().unwrap();
        }
        let server = server.wait().unwrap();
        assert!(client.success() && server.success(), "{client}, {server}");
    }
}

/// The address, if this process is one of the two.
fn address() -> Option<String> {
    std::env::var(ADDRESS).ok()
}

/// This is not a separate test but the server of [`programs_on_two_hosts_connect_through_the_connection_manager`].
#[test]
fn cm_server() {
    let Some(address) = address() else { return };
    let device = device();
    let domain = device.domain().unwrap();
    let region = domain.register(vec![0u64; LEN], ALL).unwrap();
    let listener = device.listen_cm(address.as_str()).unwrap();
    println!("{LISTENS}");
    let request = listener.next_request().unwrap();
    assert!(request.private_data().starts_with(b"hello"));
    assert_eq!(request.local_address().to_string(), address);
    let peer = request.accept(b"welcome").unwrap();
    let key = region.key(..).unwrap();
    let parts = [key.address(), key.len(), key.key()].map(u64::to_be_bytes);
    peer.send(&parts.concat()).unwrap();
    assert_eq!(peer.receive().unwrap().bytes, b"written");
    assert_eq!(region.read_vec(8..8 + LEN as u64).unwrap(), pattern(7, LEN));
    peer.send(&pattern(9, 3000)).unwrap();
    assert!(peer.receive().unwrap_err().is_peer_gone());
}

/// This is not a separate test but the client of [`programs_on_two_hosts_connect_through_the_connection_manager`].
#[test]
fn cm_client() {
    let Some(address) = address() else { return };
    let device = device();
    let local = device
        .domain()
        .unwrap()
        .register(vec![0u8; LEN], ALL)
        .unwrap();
    let peer = device.connect_cm(address.as_str(), b"hello").unwrap();
    assert!(peer.private_data().starts_with(b"welcome"));
    assert!(!peer.local_address().ip().is_loopback());
    let told = peer.receive().unwrap().bytes;
    let word = |at: usize| u64::from_be_bytes(told[at..at + 8].try_into().unwrap());
    let key = RemoteKey::from_parts(word(0), word(8), word(16) as u32).unwrap();
    local.write(0, &pattern(7, LEN)).unwrap();
    peer.write(&local, .., &key, 8).unwrap().wait().unwrap();
    assert_eq!(peer.fetch_and_add(&key, 0, 5).unwrap().wait().unwrap(), 0);
    let old = peer.compare_and_swap(&key, 0, 5, 6).unwrap().wait();
    assert_eq!(old.unwrap(), 5);
    local.write(0, &vec![0; LEN]).unwrap();
    peer.read(&local, .., &key, 8).unwrap().wait().unwrap();
    assert_eq!(local.read_vec(..).unwrap(), pattern(7, LEN));
    peer.send(b"written").unwrap();
    assert_eq!(peer.receive().unwrap().bytes, pattern(9, 3000));
    // A key that the server has not given out.
    let wrong = RemoteKey::from_parts(key.address(), 8, key.key() as u32 ^ 0x100).unwrap();
    let refused = peer.write_bytes(b"x", &wrong, 0).unwrap().wait();
    assert!(matches!(
        refused,
        Err(Error::Refused { .. } | Error::Denied(_))
    ));
}

/// With path MTUs of 1024 and 4096 bytes.
#[test]
fn programs_on_two_hosts_connect_through_the_connection_manager() {
    for mtu in [1500, 4400] {
        run("cm_server", "cm_client", mtu);
    }
}
