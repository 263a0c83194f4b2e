//! Programs of rdma-core and perftest. They run few iterations, as these tests check behaviour, not performance.

use crate::support::{Port, Stage, turn};

const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const IB: u16 = 0x013f;

/// Runs a program as a server and as a client, each with its own options. Both get the same free port.
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
fn rping_runs() {
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

/// The program creates its queue pairs itself, and gets their attributes from `rdma_init_qp_attr`.
#[test]
fn rping_runs_with_its_own_queue_pairs() {
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

/// A server that never exits, with a thread for each client. `rping` loses one of two simultaneous requests, so the clients run one
/// after the other.
#[test]
fn a_persistent_rping_server_serves_several_clients() {
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
fn ucmatose_runs() {
    for options in ["-c 20", "-c 20 -m", "-c 1 -t 8 -a 17"] {
        let client = format!("-s 127.0.0.1 {options}");
        for said in pair("ucmatose", &format!("-b 127.0.0.1 {options}"), &client) {
            assert!(said.contains("test complete"), "{options}: {said}");
            assert!(said.contains("return status 0"), "{options}: {said}");
        }
    }
}

#[test]
fn rdma_server_and_rdma_client_run() {
    let (stage, port) = (Stage::new("endpoints"), Port::new());
    let number = port.number.to_string();
    let server = ["-s", "127.0.0.1", "-p", &number];
    let programs = ["rdma_server", "rdma_client"];
    let [server, client] = stage.pair(programs, &server, &server, (TCP, port.number));
    assert!(server.contains("rdma_server: end 0"), "{server}");
    assert!(client.contains("rdma_client: end 0"), "{client}");
}

/// `udaddy` has a fixed port, so concurrent test runs take turns.
#[test]
fn udaddy_runs() {
    const PORT: u16 = 7174;
    let user = rustix::process::geteuid().as_raw();
    let _turn = turn(&format!("udaddy/{user}"));
    let stage = Stage::new("udaddy");
    let (server, client) = (["-c", "5"], ["-s", "127.0.0.1", "-c", "5"]);
    for said in stage.pair(["udaddy"; 2], &server, &client, (UDP, PORT)) {
        assert!(said.contains("test complete"), "{said}");
        assert!(said.contains("return status 0"), "{said}");
    }
}

/// `r` is a reliable connection; `x` is an extended one, whose receiving half has a shared receive queue.
#[test]
fn rdma_xserver_and_rdma_xclient_run() {
    for (kind, space) in [("r", TCP), ("x", IB)] {
        let (stage, port) = (Stage::new("xserver"), Port::new());
        let number = port.number.to_string();
        let server = ["-p", &number, "-c", kind];
        let client = ["-s", "127.0.0.1", "-p", &number, "-c", kind];
        let programs = ["rdma_xserver", "rdma_xclient"];
        let [server, client] = stage.pair(programs, &server, &client, (space, port.number));
        assert!(server.contains("rdma_xserver: end 0"), "{kind}: {server}");
        assert!(client.contains("rdma_xclient: end 0"), "{kind}: {client}");
    }
}

/// A receiver and a sender, which share only the group's address. The sender waits for three seconds before it sends, and starts
/// after the receiver has joined.
#[test]
fn mckey_sends_to_a_multicast_group() {
    // Concurrent test runs take turns, as they use the same groups.
    let user = rustix::process::geteuid().as_raw();
    let _turn = turn(&format!("mckey/{user}"));
    for (group, dgid, sender) in [
        ("239.1.2.3", "::ffff:239.1.2.3", "-s"),
        ("ff0e::77", "ff0e::77", "-s -o -c 2"),
    ] {
        let stage = Stage::new("mckey");
        let start = |name: &str, more: &str| {
            let mut command = stage.command("stdbuf");
            command.args(["-oL", "mckey", "-m", group]);
            command.args(more.split_whitespace());
            stage.start(command, name)
        };
        let mut receiver = start("receiver", "");
        receiver.wait_for("joined dgid");
        let sender = start("sender", sender).succeed();
        for said in [sender, receiver.succeed()] {
            assert!(said.contains(&format!("joined dgid: {dgid}")), "{said}");
            assert!(said.contains("data transfers complete"), "{said}");
            assert!(said.contains("return status 0"), "{said}");
        }
    }
}

/// A thousand simultaneous connections. The server never exits.
#[test]
fn cmtime_makes_a_thousand_connections() {
    let (stage, port) = (Stage::new("cmtime"), Port::new());
    let number = port.number.to_string();
    let _server = stage.server("cmtime", &["-p", &number], TCP, port.number);
    let mut command = stage.command("cmtime");
    command.args(["-s", "127.0.0.1", "-c", "1000", "-p", &number]);
    let said = stage.start(command, "client").succeed();
    for step in ["connect", "disconnect", "destroy"] {
        let line = said
            .lines()
            .find(|line| line.starts_with(&format!("{step} ")));
        assert!(line.is_some_and(|line| line.contains(':')), "{said}");
    }
}

/// perftest's programs with `-R`, which connects through librdmacm, over RC and UD. perftest itself refuses UC and XRC with `-R`, and
/// shared receive queues (`--use-srq`) except with sends.
#[test]
fn perftest_connects_through_librdmacm() {
    for (program, options) in [
        ("ib_write_bw", "-F -R -n 100"),
        ("ib_read_bw", "-F -R -n 100"),
        ("ib_send_bw", "-F -R -n 100"),
        ("ib_atomic_bw", "-F -R -n 100"),
        ("ib_send_bw", "-F -R -n 100 -c UD -s 1024"),
        ("ib_write_bw", "-F -R -n 100 -b -q 4"),
        ("ib_read_bw", "-F -R -n 100 -b"),
        ("ib_send_bw", "-F -R -n 100 -b"),
        ("ib_atomic_bw", "-F -R -n 100 -b"),
        ("ib_send_bw", "-F -R -n 100 -b -c UD -s 1024"),
        ("ib_send_bw", "-F -R -n 100 --use-srq"),
        ("ib_send_bw", "-F -R -n 100 --use-srq -b -q 4"),
        ("ib_send_bw", "-F -R -n 100 --use-srq -c UD -s 1024"),
        ("ib_send_lat", "-F -R -n 20 --use-srq"),
        ("ib_write_lat", "-F -R -n 5"),
        ("ib_read_lat", "-F -R -n 5 -e"),
        ("ib_atomic_lat", "-F -R -n 5 -e"),
        ("ib_send_lat", "-F -R -n 20 -e"),
        ("ib_send_lat", "-F -R -n 5 -e -c UD -s 1024"),
    ] {
        let client = format!("{options} 127.0.0.1");
        for said in pair(program, options, &client) {
            assert!(said.contains("rdma_cm QPs\t : ON"), "{program}: {said}");
        }
    }
}

/// If a program is killed, its peer exits too. A client without a server is refused.
#[test]
fn killing_one_side_of_rping_ends_the_other() {
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
        assert!(ends.wait().is_some(), "the peer hangs: {}", ends.text());
        // The peer notices it by an event, or by a request that fails.
        let said = ends.text();
        let learns = ["DISCONNECT", "cq completion failed"];
        assert!(learns.iter().any(|word| said.contains(word)), "{said}");
    }
    let mut command = stage.command("rping");
    command.args(["-c", "-a", "127.0.0.1", "-C", "1", "-p", &number]);
    let mut client = stage.start(command, "refused");
    let status = client.wait().expect("the client must not hang");
    assert!(!status.success());
    let said = client.text();
    assert!(said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{said}");
}
