//! rdma-core's examples and perftest.

use super::{ADDRESSES, LISTENS, PORT, SERVER, place, words};

#[test]
fn rdma_cores_examples_run_between_two_hosts() {
    let Some((stage, hosts)) = place("examples-hosts", 1500) else {
        return;
    };
    let options = format!("-s {SERVER} -p {PORT}");
    let [server, client] = hosts.lines(
        &stage,
        &format!("rdma_server {options}"),
        &format!("rdma_client {options}"),
        LISTENS,
    );
    assert!(server.contains("rdma_server: end 0"), "{server}");
    assert!(client.contains("rdma_client: end 0"), "{client}");
    let [server, client] = hosts.lines(
        &stage,
        &format!("rdma_xserver -p {PORT} -c r"),
        &format!("rdma_xclient {options} -c r"),
        LISTENS,
    );
    assert!(server.contains("rdma_xserver: end 0"), "{server}");
    assert!(client.contains("rdma_xclient: end 0"), "{client}");
    let options = format!("-a {SERVER} -p {PORT} -C 5 -v -q");
    let sides = ["-s", "-c"].map(|side| format!("rping {side} {options}"));
    for said in hosts.lines(&stage, &sides[0], &sides[1], LISTENS) {
        assert_eq!(said.matches("ping data: rdma-ping").count(), 5, "{said}");
    }
}

/// The server never exits.
#[test]
fn cmtime_connects_between_two_hosts() {
    let Some((stage, hosts)) = place("cmtime-hosts", 1500) else {
        return;
    };
    for server in ADDRESSES[0] {
        let line = format!("cmtime -b {server} -p {PORT}");
        let mut running = hosts.server(&stage, &words(&line), LISTENS);
        let line = format!("cmtime -s {server} -c 100 -p {PORT}");
        let said = hosts.client(&stage, &words(&line), &mut running);
        running.kill();
        for step in ["connect", "disconnect", "destroy"] {
            let start = format!("{step} ");
            let line = said.lines().find(|line| line.starts_with(&start));
            assert!(line.is_some_and(|line| line.contains(':')), "{said}");
        }
        let complains = ["event:", "error"].map(|word| said.contains(word));
        assert_eq!(complains, [false; 2], "{said}");
    }
}

#[test]
fn perftest_runs_between_two_hosts() {
    let Some((stage, hosts)) = place("perftest-hosts", 4400) else {
        return;
    };
    for program in [
        "ib_write_bw -F -R -n 100",
        "ib_write_bw -F -R -n 50 -b -q 4",
        "ib_send_bw -F -R -n 100 -s 3000",
        "ib_send_bw -F -R -n 50 --use-srq -b -q 4",
        "ib_send_bw -F -R -n 100 -c UD -s 1024",
        "ib_read_lat -F -R -n 20",
        "ib_atomic_bw -F -R -n 50",
        "ib_atomic_lat -F -R -n 5 -e",
    ] {
        // Nothing repeats the packets of this transport.
        if hosts.0.is_unreliable() && program.contains("-c UD") {
            continue;
        }
        let server = format!("{program} -p {PORT}");
        let client = format!("{server} {SERVER}");
        let [_, said] = hosts.lines(&stage, &server, &client, LISTENS);
        assert!(said.contains("rkey"), "{program}: {said}");
    }
}

/// Each side exits without a call as soon as it is connected. The other side would wait forever if nothing told it.
#[test]
fn a_program_that_exits_ends_its_connections_to_other_hosts() {
    let Some((stage, hosts)) = place("leaves-hosts", 1500) else {
        return;
    };
    // A program that has exited cannot repeat what it told the other side.
    if hosts.0.is_unreliable() {
        return;
    }
    let program = stage.compile("leaves", include_str!("../leaves.c"), &[]);
    let program = program.display();
    for (of_server, of_client) in [("waits", "leaves"), ("leaves", "waits")] {
        let [server, client] = hosts.lines(
            &stage,
            &format!("{program} server {SERVER} {PORT} {of_server}"),
            &format!("{program} client {SERVER} {PORT} {of_client}"),
            LISTENS,
        );
        let event = "RDMA_CM_EVENT_DISCONNECTED\n";
        let expected = |does: &str| if does == "waits" { event } else { "" };
        assert_eq!(server, expected(of_server));
        assert_eq!(client, expected(of_client));
    }
}
