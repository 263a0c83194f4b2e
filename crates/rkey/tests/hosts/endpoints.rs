//! Endpoints for reliable datagrams on two hosts.

use crate::common::{ALL, LONG, device, pattern};
use crate::{ADDRESSES, LISTENS, SLOWLY, address, run, run_with, start_server, with_key};
use rkey::endpoint::{Address, Endpoint};
use rkey::{Device, Error, RemoteKey};
use rkey_core::DomainId;
use rkey_device::{ConnectOptions, Cq, DeviceError, Qp, QpOptions};
use rkey_harness::hosts::Hosts;
use rkey_harness::key::KeyFile;
use rkey_rdm::hello::Admission;
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use std::net::SocketAddr;
use std::time::Duration;

/// Longer than any message that travels with its header.
const LEN: usize = 300_001;

/// How many descriptors a server may have.
const FILES: u64 = 600;

/// The next message without a tag.
fn next(endpoint: &Endpoint, from: Option<Address>) -> (Vec<u8>, Address) {
    let receive = endpoint.receive(from, vec![0; 64]).unwrap();
    let message = receive.wait().unwrap();
    (message.bytes, message.from)
}

fn send(endpoint: &Endpoint, to: Address, message: impl Into<Vec<u8>>) {
    endpoint.send(to, message).unwrap().wait().unwrap();
}

/// This is not a separate test but the server of [`endpoints_on_two_hosts_reach_each_other`].
#[test]
fn server() {
    let Some(address) = address() else { return };
    let files = Rlimit {
        current: Some(FILES),
        maximum: Some(FILES),
    };
    setrlimit(Resource::Nofile, files).unwrap();
    let device = device();
    let endpoint = device.endpoint_at(address.as_str()).unwrap();
    println!("{LISTENS}");
    let region = endpoint.register(vec![0u8; LEN], ALL).unwrap();
    let (hello, client) = next(&endpoint, None);
    assert_eq!(hello, b"hello");
    let ip = client.to_string().parse::<SocketAddr>().unwrap().ip();
    assert!(ADDRESSES[1].contains(&&*ip.to_string()), "{client}");
    send(&endpoint, client, region.key(..).unwrap().to_bytes());
    // The client reads a long message from our memory, and we read the answer from its memory.
    let posted = endpoint.receive_tagged(9, client, vec![0; LEN]).unwrap();
    let sending = endpoint.send_tagged(client, 8, pattern(8, LEN)).unwrap();
    sending.wait().unwrap();
    assert!(posted.wait().unwrap().bytes == pattern(9, LEN));
    assert_eq!(next(&endpoint, Some(client)).0, b"written");
    assert!(region.read_vec(..).unwrap() == pattern(7, LEN));
    // The refused access has ended a connection; the next one comes from the same endpoint.
    assert_eq!(next(&endpoint, Some(client)).0, b"refused");
    // The client kills itself when it has the message, perhaps before it acknowledges it.
    drop(endpoint.send(client, "the end").unwrap());
    let error = loop {
        let sent = endpoint.send(client, "anyone?").and_then(|it| it.wait());
        match sent {
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => break error,
        }
    };
    let gone = error.is_peer_gone() || matches!(error, Error::Unreachable { .. });
    assert!(gone, "{error}");
}

/// This is not a separate test but the client of [`endpoints_on_two_hosts_reach_each_other`].
#[test]
fn client() {
    let Some(address) = address() else { return };
    let server: Address = address.parse().unwrap();
    let device = device();
    // At the same kind of address as the server.
    let [v4, v6] = ADDRESSES[1];
    let ours = if address.starts_with('[') { v6 } else { v4 };
    let endpoint = device.endpoint_at((ours, 0)).unwrap();
    send(&endpoint, server, "hello");
    let key = RemoteKey::from_bytes(&next(&endpoint, Some(server)).0).unwrap();
    let received = endpoint.receive_tagged(8, server, vec![0; LEN]).unwrap();
    assert!(received.wait().unwrap().bytes == pattern(8, LEN));
    let sending = endpoint.send_tagged(server, 9, pattern(9, LEN)).unwrap();
    sending.wait().unwrap();
    let local = endpoint.register(pattern(7, LEN), ALL).unwrap();
    let written = endpoint.write(server, &local, .., &key, 0).unwrap();
    written.wait().unwrap();
    local.write(0, &vec![0; LEN]).unwrap();
    let read = endpoint.read(server, &local, .., &key, 0).unwrap();
    read.wait().unwrap();
    assert!(local.read_vec(..).unwrap() == pattern(7, LEN));
    send(&endpoint, server, "written");
    // A key that the server has not given out.
    let wrong = RemoteKey::from_parts(key.address(), 8, key.key() as u32 ^ 0x100).unwrap();
    let refused = endpoint.write(server, &local, ..8, &wrong, 0).unwrap();
    let error = refused.wait().unwrap_err();
    assert!(
        matches!(error, Error::Refused { .. } | Error::Denied(_)),
        "{error}"
    );
    send(&endpoint, server, "refused");
    assert_eq!(next(&endpoint, Some(server)).0, b"the end");
    kill_process(getpid(), Signal::KILL).unwrap();
}

#[test]
fn endpoints_on_two_hosts_reach_each_other() {
    run("endpoints::server", "endpoints::client", 1500);
}

#[test]
fn endpoints_on_two_hosts_that_share_a_key_reach_each_other() {
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    let key = KeyFile::new(&hosts, 1);
    let settings = with_key(&key);
    run_with(
        &hosts,
        "endpoints::server",
        "endpoints::client",
        [&settings; 2],
    );
}

/// A program that requests connections of an endpoint without being one.
struct Stranger {
    device: rkey_device::Device,
    domain: DomainId,
    cq: Cq,
}

impl Stranger {
    fn new() -> Self {
        let device = rkey_device::Device::open(rkey_device::Config::from_env().unwrap()).unwrap();
        Self {
            domain: device.create_domain().unwrap(),
            cq: device.create_cq(16, None).unwrap(),
            device,
        }
    }

    /// Requests a connection under this name. `Err`: the reason for which it is refused.
    fn connect(&self, server: SocketAddr, name: &str) -> Result<Qp, String> {
        let admission = Admission {
            ep_type: 3,
            device_keys: true,
            one_way: false,
            key: Vec::new(),
            device: self.device.node(),
        };
        let how = ConnectOptions {
            local: None,
            find: LONG,
            answer: LONG,
        };
        let options = QpOptions::new(self.domain, &self.cq);
        let qp = self.device.create_qp(&options).unwrap();
        let hello = admission
            .ask(name.parse().unwrap(), server.into(), &[])
            .encode();
        match (self.device).connect_as(&how, server, &[&qp], &hello, |_| Ok(())) {
            Ok(_) => Ok(qp),
            Err(DeviceError::Refused { reason }) => Err(reason),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// This is not a separate test but the client of [`an_endpoint_cannot_claim_the_address_of_another_host`].
#[test]
fn client_that_claims_another_address() {
    let Some(address) = address() else { return };
    let stranger = Stranger::new();
    let server = address.parse().unwrap();
    // The server's own address, that of a third host, and one that only the server's host can reach.
    for claimed in [&*address, "10.9.3.77:7471", "127.0.0.1:7471"] {
        let reason = stranger.connect(server, claimed).unwrap_err();
        assert!(
            reason.contains("the address that it claims"),
            "{claimed}: {reason}"
        );
    }
    drop(stranger);
    client();
}

/// This is not a separate test but the client of [`a_host_does_not_use_up_the_descriptors_of_an_endpoint`].
#[test]
fn client_that_makes_many_connections() {
    let Some(address) = address() else { return };
    let stranger = Stranger::new();
    let server: SocketAddr = address.parse().unwrap();
    let [v4, v6] = ADDRESSES[1];
    let ip = if server.is_ipv6() { v6 } else { v4 };
    let name = SocketAddr::new(ip.parse().unwrap(), 1000).to_string();
    let mut connections = Vec::new();
    let reason = loop {
        match stranger.connect(server, &name) {
            Ok(connection) => connections.push(connection),
            Err(reason) => break reason,
        }
    };
    assert!(reason.contains("too many connections"), "{reason}");
    let made = connections.len() as u64;
    assert!((10..FILES / 4).contains(&made), "{made} connections");
    drop(connections);
    // The server learns of their end a little later.
    let mut others = Vec::new();
    while others.len() < 10 {
        match stranger.connect(server, &name) {
            Ok(other) => others.push(other),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    client();
}

#[test]
fn a_host_does_not_use_up_the_descriptors_of_an_endpoint() {
    run(
        "endpoints::server",
        "endpoints::client_that_makes_many_connections",
        1500,
    );
}

/// Messages for the endpoint at the claimed address would go to the stranger.
#[test]
fn an_endpoint_cannot_claim_the_address_of_another_host() {
    run(
        "endpoints::server",
        "endpoints::client_that_claims_another_address",
        1500,
    );
}

/// This is not a separate test but the client of [`an_endpoint_that_other_hosts_do_not_reach_says_so`].
#[test]
fn client_at_a_local_address() {
    let Some(address) = address() else { return };
    let device = Device::builder().timeout(LONG).open().unwrap();
    let endpoint = device.endpoint_at("127.0.0.1:0").unwrap();
    let error = endpoint
        .send(address.parse().unwrap(), "hello")
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("RKEY_WIRE=auto"), "{text}");
    // An endpoint for which no address is given can.
    let endpoint = device.endpoint().unwrap();
    assert!(
        ADDRESSES[1]
            .iter()
            .any(|ip| endpoint.address().to_string().contains(ip))
    );
    let everywhere = device.endpoint_at("0.0.0.0:0").unwrap();
    assert!(
        everywhere
            .address()
            .to_string()
            .starts_with(ADDRESSES[1][0])
    );
}

#[test]
fn an_endpoint_that_other_hosts_do_not_reach_says_so() {
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    let address = format!("{}:7471", ADDRESSES[0][0]);
    let mut server = start_server(&hosts, "endpoints::server", &address, SLOWLY);
    let test = "endpoints::client_at_a_local_address";
    let client = crate::start(&hosts, 1, test, &address, SLOWLY);
    let client = client.wait_with_output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(client.status.success(), "{client:?}");
}
