//! Programs on two hosts, as ordinary users.

#[path = "../common/mod.rs"]
mod common;
mod endpoints;

use common::{ALL, LONG, device, pattern};
use rkey::{Device, Error, RemoteKey};
use rkey_harness::hosts::Hosts;
use rkey_harness::key::KeyFile;
use rkey_harness::network::{Conditions, role, serve};
use rustix::process::{Signal, getpid, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ADDRESSES: [[&str; 2]; 2] = [["10.9.3.1", "fd09:3::1"], ["10.9.3.2", "fd09:3::2"]];
/// The address at which the other process listens, or to which it connects.
const ADDRESS: &str = "RKEY_TEST_HOSTS_ADDRESS";
/// Set if the network loses, repeats or reorders packets.
const UNRELIABLE: &str = "RKEY_TEST_HOSTS_UNRELIABLE";
/// Longer than the longest packet, and not a multiple of it.
const LEN: usize = 100_003;
/// Packets are slower than TCP connections end.
const SLOW: &str = "delay=3ms";
/// What the server's counter is once its last message has been acknowledged.
const SENT: u64 = 99;
/// What a server prints when it listens.
const LISTENS: &str = "listens";

/// The settings of a program besides `RKEY_WIRE=auto`, which they can replace.
type Settings<'a> = &'a [(&'a str, &'a str)];

const SLOWLY: Settings<'_> = &[("RKEY_FAULT", SLOW)];

/// Runs a test of this file on a host.
fn start(hosts: &Hosts, at: usize, test: &str, address: &str, settings: Settings<'_>) -> Child {
    let mut command = hosts.enter_unprivileged(at, Command::new("nsenter"));
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ADDRESS, address)
        .env("RKEY_WIRE", "auto")
        .envs(hosts.is_unreliable().then_some((UNRELIABLE, "1")))
        .envs(settings.iter().copied())
        .stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Starts a server on the first host, and waits until it listens.
fn start_server(hosts: &Hosts, test: &str, address: &str, settings: Settings<'_>) -> Child {
    let mut server = start(hosts, 0, test, address, settings);
    let mut lines = BufReader::new(server.stdout.as_mut().unwrap()).lines();
    let listens = lines.any(|line| line.unwrap().contains(LISTENS));
    assert!(listens, "the server has failed");
    server
}

/// Runs a server on the first host and a client on the second, with IPv4 and IPv6. The client succeeds, or kills itself at its end.
fn run(server: &str, client: &str, mtu: u32) {
    if let Some(hosts) = Hosts::new(mtu, &ADDRESSES) {
        run_with(&hosts, server, client, [SLOWLY; 2]);
    }
}

/// Like [`run`], with these settings of the server and the client.
fn run_with(hosts: &Hosts, server: &str, client: &str, settings: [Settings<'_>; 2]) {
    let [v4, v6] = ADDRESSES[0];
    for address in [format!("{v4}:7471"), format!("[{v6}]:7471")] {
        let mut server = start_server(hosts, server, &address, settings[0]);
        let client = start(hosts, 1, client, &address, settings[1])
            .wait()
            .unwrap();
        let is_done = client.success() || client.signal() == Some(Signal::KILL.as_raw());
        if !is_done {
            server.kill().unwrap();
        }
        let server = server.wait().unwrap();
        assert!(is_done && server.success(), "{client}, {server}");
    }
}

/// The address, if this process is one of the two.
fn address() -> Option<String> {
    std::env::var(ADDRESS).ok()
}

/// This is not a separate test but the server of [`programs_on_two_hosts_connect_through_the_connection_manager`].
#[test]
fn cm_server_on_one_host() {
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
    // The client's next write will be refused, which ends this queue pair. The acknowledgement, which may be lost, comes first.
    region.write(0, &SENT.to_ne_bytes()).unwrap();
    assert!(peer.receive().unwrap_err().is_peer_gone());
}

/// This is not a separate test but the client of [`programs_on_two_hosts_connect_through_the_connection_manager`].
#[test]
fn cm_client_on_the_other_host() {
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
    while peer.fetch_and_add(&key, 0, 0).unwrap().wait().unwrap() != SENT {}
    // A key that the server has not given out.
    let wrong = RemoteKey::from_parts(key.address(), 8, key.key() as u32 ^ 0x100).unwrap();
    let refused = peer.write_bytes(b"x", &wrong, 0).unwrap().wait();
    // The server's last packet says that it refuses; nothing repeats it if it is lost.
    let loses = std::env::var_os(UNRELIABLE).is_some()
        || std::env::var("RKEY_FAULT").is_ok_and(|faults| faults.contains("loss"));
    assert!(match refused {
        Err(Error::Refused { .. } | Error::Denied(_)) => true,
        Err(error) => loses && error.is_peer_gone(),
        Ok(_) => false,
    });
}

/// With path MTUs of 1024 and 4096 bytes.
#[test]
fn programs_on_two_hosts_connect_through_the_connection_manager() {
    for mtu in [1500, 4400] {
        run("cm_server_on_one_host", "cm_client_on_the_other_host", mtu);
    }
}

/// This is not a separate test but the server of [`a_program_that_exits_ends_its_managed_connections`].
#[test]
fn cm_server_that_waits() {
    let Some(address) = address() else { return };
    let device = device();
    let listener = device.listen_cm(address.as_str()).unwrap();
    println!("{LISTENS}");
    let peer = listener.next_request().unwrap().accept(b"").unwrap();
    assert_eq!(peer.receive().unwrap().bytes, b"exits");
    // Nothing is outstanding, so only the connection manager can tell that the client has gone.
    let error = peer.receive_timeout(LONG).unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
}

/// This is not a separate test but the client of [`a_program_that_exits_ends_its_managed_connections`].
#[test]
fn cm_client_that_exits() {
    let Some(address) = address() else { return };
    let device = device();
    let peer = device.connect_cm(address.as_str(), b"").unwrap();
    peer.send(b"exits").unwrap();
    // Nothing is dropped.
    std::process::exit(0);
}

/// As a kernel driver does it for other devices.
#[test]
fn a_program_that_exits_ends_its_managed_connections() {
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    // Nothing repeats the last message of a program that has exited.
    if hosts.is_unreliable() {
        return;
    }
    run_with(
        &hosts,
        "cm_server_that_waits",
        "cm_client_that_exits",
        [&[]; 2],
    );
}

/// This is not a separate test but the server of [`programs_on_two_hosts_connect`].
#[test]
fn server_on_one_host() {
    let Some(address) = address() else { return };
    let device = device();
    let region = device
        .domain()
        .unwrap()
        .register(vec![0u64; LEN], ALL)
        .unwrap();
    let listener = device.listen(address.as_str()).unwrap();
    println!("{LISTENS}");
    let peer = listener.accept_timeout(LONG).unwrap();
    assert!(ADDRESSES[1].contains(&&*peer.peer().host.unwrap().to_string()));
    peer.send(&region.key(..).unwrap()).unwrap();
    assert_eq!(peer.receive::<String>().unwrap(), "written");
    assert_eq!(region.read_vec(8..8 + LEN as u64).unwrap(), pattern(7, LEN));
    let into = device.domain().unwrap();
    let into = into.register(vec![0u8; LEN], ALL).unwrap();
    let receiving = peer.receive_into(&into, ..).unwrap();
    peer.send("posted").unwrap();
    assert_eq!(receiving.wait().unwrap(), LEN);
    assert_eq!(into.read_vec(..).unwrap(), pattern(7, LEN));
    // The client's data queue pair fails by a refused access, and messages still arrive.
    assert_eq!(peer.receive::<String>().unwrap(), "refused");
    // The client is killed, so nothing but the end of its TCP connection shows that it has ended.
    assert!(peer.receive::<String>().unwrap_err().is_peer_gone());
}

/// This is not a separate test but the client of [`programs_on_two_hosts_connect`].
#[test]
fn client_on_the_other_host() {
    let Some(address) = address() else { return };
    let device = device();
    let local = device
        .domain()
        .unwrap()
        .register(vec![0u8; LEN], ALL)
        .unwrap();
    let peer = device.connect(address.as_str()).unwrap();
    let key: RemoteKey = peer.receive().unwrap();
    local.write(0, &pattern(7, LEN)).unwrap();
    peer.write(&local, .., &key, 8).unwrap().wait().unwrap();
    assert_eq!(peer.fetch_and_add(&key, 0, 5).unwrap().wait().unwrap(), 0);
    let copy = device.domain().unwrap();
    let copy = copy.register(vec![0u8; LEN], ALL).unwrap();
    peer.read(&copy, .., &key, 8).unwrap().wait().unwrap();
    assert_eq!(copy.read_vec(..).unwrap(), pattern(7, LEN));
    peer.send("written").unwrap();
    assert_eq!(peer.receive::<String>().unwrap(), "posted");
    peer.send_from(&local, ..).unwrap().wait().unwrap();
    // Memory is mapped only between processes of one host.
    assert!(matches!(peer.map(&key), Err(Error::NotMappable(_))));
    let wrong = RemoteKey::from_parts(key.address(), 8, key.key() as u32 ^ 0x100).unwrap();
    let refused = peer.write_bytes(b"x", &wrong, 0).unwrap().wait();
    assert!(matches!(
        refused,
        Err(Error::Refused { .. } | Error::Denied(_))
    ));
    peer.send("refused").unwrap();
    // End without destroying anything, like a program that is killed.
    kill_process(getpid(), Signal::KILL).unwrap();
}

#[test]
fn programs_on_two_hosts_connect() {
    run("server_on_one_host", "client_on_the_other_host", 1500);
}

/// This is not a separate test but the network of [`programs_connect_and_transfer_over_a_bad_network`], in a process of its own.
#[test]
fn the_network() {
    serve();
}

/// The network treats the packets of all senders alike: those of the TCP connections, too.
#[test]
fn programs_connect_and_transfer_over_a_bad_network() {
    let bad = Conditions {
        loss: Conditions::percent(1),
        corrupt: Conditions::percent(2),
        delay: Duration::from_millis(1),
        ..Conditions::ROUGH
    };
    let Some(hosts) = Hosts::over(&bad.both_ways(), &role("the_network"), 1500, &ADDRESSES) else {
        return;
    };
    let (server, client) = ("server_on_one_host", "client_on_the_other_host");
    for _ in 0..3 {
        run_with(&hosts, server, client, [&[], &[]]);
    }
    let counts = hosts.counts();
    let happened = (counts.iter()).all(|of| of.lost > 0 && of.corrupted > 0 && of.reordered > 0);
    assert!(happened, "{counts:?}");
}

/// This is not a separate test but the client of [`strangers_do_not_keep_a_client_from_a_listener`].
#[test]
fn client_among_strangers() {
    let Some(address) = address() else { return };
    let stranger = || TcpStream::connect(&address).unwrap();
    // Open more silent connections than the listener keeps.
    let silent: Vec<TcpStream> = (0..200).map(|_| stranger()).collect();
    let attacks: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0",
        b"\xff\xff",
        // The beginning of a packet, and a packet of another version.
        b"\0\x20rkeyCON5",
        b"\0\x09rkeyCON1\0",
    ];
    let attackers = attacks.map(|bytes| {
        let mut stream = stranger();
        stream.write_all(bytes).unwrap();
        stream
    });
    // Programs that request a connection and then say nothing.
    let requests = [(); 20].map(|()| {
        let mut stream = stranger();
        stream.write_all(&request(0x1234)).unwrap();
        let mut answer = [0; 11];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[2..], b"rkeyCON5\x01", "it is accepted");
        stream
    });
    // One with an impossible queue pair number.
    let mut stream = stranger();
    stream.write_all(&request(1 << 24)).unwrap();
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "it is dropped");
    client_on_the_other_host();
    drop((silent, attackers, requests));
}

/// A request to connect two queue pairs with this number, as `Device::connect` would send it.
fn request(qpn: u32) -> Vec<u8> {
    let varint = |number: u32| {
        let bytes = (0..5).map(move |at| (number >> (7 * at)) as u8 & 0x7f);
        let last = (31 - (number | 1).leading_zeros()) as usize / 7;
        bytes
            .take(last + 1)
            .enumerate()
            .map(move |(at, byte)| if at < last { byte | 0x80 } else { byte })
    };
    // The kind of packet, the device's process and nonce, and how many queue pairs there are.
    let mut packet = b"rkeyCON5\0\x07\x09\x02".to_vec();
    for _ in 0..2 {
        packet.extend(varint(qpn).chain(varint(5)));
    }
    // The greeting: version 3, and messages of 4096 bytes. Then the code of the path MTU.
    packet.extend([3, 3, 0x80, 0x20, 3]);
    let mut bytes = (packet.len() as u16).to_be_bytes().to_vec();
    bytes.extend(packet);
    bytes
}

#[test]
fn strangers_do_not_keep_a_client_from_a_listener() {
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    // The listener may drop the oldest strangers before packets that were lost arrive again.
    if hosts.is_unreliable() {
        return;
    }
    run_with(
        &hosts,
        "server_on_one_host",
        "client_among_strangers",
        [SLOWLY; 2],
    );
}

/// This is not a separate test but the client of [`only_a_program_with_a_wire_listens_for_other_hosts`].
#[test]
fn client_without_a_listener() {
    let Some(address) = address() else { return };
    let device = Device::builder().timeout(Duration::from_millis(300));
    let error = device
        .open()
        .unwrap()
        .connect(address.as_str())
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("with RKEY_WIRE set on its host"), "{text}");
}

#[test]
fn only_a_program_with_a_wire_listens_for_other_hosts() {
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    let address = format!("{}:7471", ADDRESSES[0][0]);
    let mut server = start_server(
        &hosts,
        "server_on_one_host",
        &address,
        &[("RKEY_WIRE", "off")],
    );
    let client = start(&hosts, 1, "client_without_a_listener", &address, SLOWLY);
    let client = client.wait_with_output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(client.status.success(), "{client:?}");
}

/// How many connections [`sending_the_last_message_succeeds_although_its_receiver_exits`] makes.
const LAST_MESSAGES: usize = 40;

/// This is not a separate test but the server of [`sending_the_last_message_succeeds_although_its_receiver_exits`].
#[test]
fn server_that_exits() {
    let Some(address) = address() else { return };
    let device = device();
    let listener = device.listen(address.as_str()).unwrap();
    println!("{LISTENS}");
    let mut is_missing = [true; LAST_MESSAGES];
    for _ in 0..LAST_MESSAGES {
        // Connections come as their handshakes end. If a network loses the last packet of one, the next is earlier.
        let peer = listener.accept_timeout(LONG).unwrap();
        let number = peer.receive::<usize>().unwrap();
        assert!(mem::take(&mut is_missing[number]), "{number} came twice");
        // Dropping the connection ends its TCP connection, which overtakes the acknowledgement of the message.
    }
}

/// This is not a separate test but the client of [`sending_the_last_message_succeeds_although_its_receiver_exits`].
#[test]
fn client_of_a_server_that_exits() {
    let Some(address) = address() else { return };
    let device = device();
    for number in 0..LAST_MESSAGES {
        device
            .connect(address.as_str())
            .unwrap()
            .send(&number)
            .unwrap();
    }
}

#[test]
fn sending_the_last_message_succeeds_although_its_receiver_exits() {
    run("server_that_exits", "client_of_a_server_that_exits", 1500);
}

/// The receiver sends nothing but acknowledgements, and the network loses all of them.
#[test]
fn sending_the_last_message_succeeds_although_its_acknowledgement_is_lost() {
    let (server, client) = ("server_that_exits", "client_of_a_server_that_exits");
    if let Some(hosts) = Hosts::new(1500, &ADDRESSES) {
        run_with(
            &hosts,
            server,
            client,
            [&[("RKEY_FAULT", "loss=100%")], SLOWLY],
        );
    }
}

/// The settings of a program with this key, on a bad network.
fn with_key(key: &KeyFile) -> [(&str, &str); 2] {
    [
        ("RKEY_WIRE_KEY", key.path().to_str().unwrap()),
        ("RKEY_FAULT", "delay=1ms,reorder=5%,duplicate=5%,loss=1%"),
    ]
}

#[test]
fn programs_on_two_hosts_that_share_a_key_connect() {
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    let key = KeyFile::new(&hosts, 1);
    let settings = with_key(&key);
    for (server, client) in [
        ("server_on_one_host", "client_on_the_other_host"),
        ("cm_server_on_one_host", "cm_client_on_the_other_host"),
    ] {
        run_with(&hosts, server, client, [&settings; 2]);
    }
}

/// This is not a separate test but the client of [`programs_without_the_key_do_not_connect`].
#[test]
fn client_without_the_key() {
    let Some(address) = address() else { return };
    let device = Device::builder().timeout(Duration::from_secs(3));
    let device = device.open().unwrap();
    let error = device.connect(address.as_str()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("RKEY_WIRE_KEY"), "{text}");
    // Its messages to queue pair 1 get no answer.
    device.connect_cm(address.as_str(), b"hello").unwrap_err();
    println!("{REFUSED}");
}

/// What [`client_without_the_key`] prints at its end.
const REFUSED: &str = "both connections were refused";

#[test]
fn programs_without_the_key_do_not_connect() {
    let Some(hosts) = Hosts::new(1500, &ADDRESSES) else {
        return;
    };
    let (ours, other) = (KeyFile::new(&hosts, 1), KeyFile::new(&hosts, 2));
    let address = format!("{}:7471", ADDRESSES[0][0]);
    let settings = with_key(&ours);
    let mut server = start_server(&hosts, "server_on_one_host", &address, &settings);
    for strangers in [&with_key(&other)[..1], &[]] {
        let client = start(&hosts, 1, "client_without_the_key", &address, strangers);
        let said = client.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.contains(REFUSED), "{text}");
    }
    // The server still waits for its client.
    let client = start(&hosts, 1, "client_on_the_other_host", &address, &settings);
    let client = client.wait_with_output().unwrap();
    assert_eq!(
        client.status.signal(),
        Some(Signal::KILL.as_raw()),
        "{client:?}"
    );
    assert!(server.wait().unwrap().success());
}
