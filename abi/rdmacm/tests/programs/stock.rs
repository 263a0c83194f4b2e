//! Programs of rdma-core and perftest. They run only a few rounds: this shows behaviour, not speed.

use crate::support::{Port, Stage};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

/// Runs a program as a server and as a client, with the options of each. Both get the same free port.
fn pair(program: &str, server: &str, client: &str) -> [String; 2] {
    let (stage, port) = (Stage::new(program), Port::new());
    let number = port.number.to_string();
    let [server, client] = [server, client].map(|options| {
        let options = options.split_whitespace();
        options.chain(["-p", &number]).collect::<Vec<&str>>()
    });
    stage.pair([program; 2], &server, &client, (TCP, port.number))
}

#[test]
fn rping() {
    let [server, client] = pair(
        "rping",
        "-s -a 127.0.0.1 -C 5 -v -V",
        "-c -a 127.0.0.1 -C 5 -v -V",
    );
    assert_eq!(server.matches("server ping data").count(), 5, "{server}");
    assert_eq!(
        client.matches("ping data: rdma-ping").count(),
        5,
        "{client}"
    );
}

/// The program makes its queue pairs itself, and asks for their attributes.
#[test]
fn rping_with_its_own_queue_pairs() {
    let [_, client] = pair(
        "rping",
        "-s -a 127.0.0.1 -C 5 -v -q",
        "-c -a 127.0.0.1 -C 5 -v -q",
    );
    assert_eq!(
        client.matches("ping data: rdma-ping").count(),
        5,
        "{client}"
    );
}

/// A server that never ends, with a thread for each client. `rping` forgets one of two simultaneous requests, so the clients run one
/// after the other.
#[test]
fn rping_persistent() {
    let (stage, port) = (Stage::new("rping-P"), Port::new());
    let number = port.number.to_string();
    let words = ["-s", "-P", "-a", "0.0.0.0", "-p", &number];
    let _server = stage.server("rping", &words, TCP, port.number);
    for index in 0..4 {
        let mut command = stage.command("rping");
        command.args(["-c", "-a", "127.0.0.1", "-C", "5", "-v", "-p", &number]);
        let said = stage.start(command, &format!("client{index}")).succeed();
        assert_eq!(said.matches("ping data: rdma-ping").count(), 5, "{said}");
    }
}

#[test]
fn ucmatose() {
    for options in ["-c 20", "-c 20 -m", "-c 1 -t 8 -a 17"] {
        let client = format!("-s 127.0.0.1 {options}");
        for said in pair("ucmatose", &format!("-b 127.0.0.1 {options}"), &client) {
            assert!(said.contains("test complete"), "{options}: {said}");
            assert!(said.contains("return status 0"), "{options}: {said}");
        }
    }
}

#[test]
fn rdma_server_and_rdma_client() {
    let (stage, port) = (Stage::new("endpoints"), Port::new());
    let number = port.number.to_string();
    let server = ["-s", "127.0.0.1", "-p", &number];
    let programs = ["rdma_server", "rdma_client"];
    let [server, client] = stage.pair(programs, &server, &server, (TCP, port.number));
    assert!(server.contains("rdma_server: end 0"), "{server}");
    assert!(client.contains("rdma_client: end 0"), "{client}");
}

/// `udaddy` has a fixed port, so test runs take turns: each binds an abstract socket name first.
#[test]
fn udaddy() {
    const PORT: u16 = 7174;
    let user = rustix::process::geteuid().as_raw();
    let name = SocketAddr::from_abstract_name(format!("rkey-test/udaddy/{user}"));
    let name = name.expect("a short name");
    let _turn = loop {
        match UnixListener::bind_addr(&name) {
            Ok(held) => break held,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    };
    let stage = Stage::new("udaddy");
    let (server, client) = (["-c", "5"], ["-s", "127.0.0.1", "-c", "5"]);
    for said in stage.pair(["udaddy"; 2], &server, &client, (UDP, PORT)) {
        assert!(said.contains("test complete"), "{said}");
        assert!(said.contains("return status 0"), "{said}");
    }
}

/// With `-R`, perftest's programs connect through the connection manager.
#[test]
fn perftest() {
    for (program, options) in [
        ("ib_write_bw", "-R -n 100"),
        ("ib_read_bw", "-R -n 100"),
        ("ib_send_bw", "-R -n 100"),
        ("ib_send_lat", "-R -n 20 -e"),
        ("ib_atomic_bw", "-R -n 100"),
    ] {
        let client = format!("{options} 127.0.0.1");
        for said in pair(program, options, &client) {
            assert!(said.contains("rdma_cm QPs\t : ON"), "{program}: {said}");
        }
    }
}

/// When a program is killed, its peer ends too; a client without a server is refused.
#[test]
fn a_killed_side_ends_the_other() {
    let (stage, port) = (Stage::new("killed"), Port::new());
    let number = port.number.to_string();
    let words = ["-s", "-a", "127.0.0.1", "-v", "-p", &number];
    for server_dies in [true, false] {
        let mut server = stage.server("rping", &words, TCP, port.number);
        let mut command = stage.command("rping");
        command.args(["-c", "-a", "127.0.0.1", "-C", "1000000000", "-p", &number]);
        let mut client = stage.start(command, "client");
        server.wait_for("server ping data");
        let (dies, ends) = match server_dies {
            true => (&mut server, &mut client),
            false => (&mut client, &mut server),
        };
        dies.kill();
        assert!(ends.wait().is_some(), "it hangs: {}", ends.text());
        // The peer learns of the end from the event, or from a request that fails because of it.
        let said = ends.text();
        let learns = ["DISCONNECT", "cq completion failed"];
        assert!(learns.iter().any(|word| said.contains(word)), "{said}");
    }
    let mut command = stage.command("rping");
    command.args(["-c", "-a", "127.0.0.1", "-C", "1", "-p", &number]);
    let mut client = stage.start(command, "refused");
    let status = client.wait().expect("it does not hang");
    assert!(!status.success());
    let said = client.text();
    assert!(said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{said}");
}
