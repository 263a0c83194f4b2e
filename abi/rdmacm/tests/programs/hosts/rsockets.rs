//! Programs that use rsockets, with and without librspreload.

use super::{ADDRESSES, LISTENS, PORT, SERVER, open_folder, place, words};
use crate::rsockets::preload_after;

/// The programs compare the data (`-T v`).
#[test]
fn streams_run_between_two_hosts() {
    let Some((stage, hosts)) = place("rstream-hosts", 1500) else {
        return;
    };
    for (program, at) in [
        ("rstream -T v -I 20 -C 10 -S 100000", SERVER),
        ("rstream -f ip -T v -I 10 -C 10 -S 1000", ADDRESSES[0][1]),
        ("rstream -T b -T v -I 20 -C 10 -S 5000", SERVER),
        ("rstream -T n -T v -I 20 -C 10 -S 5000", SERVER),
        ("rstream -T a -T n -T v -I 20 -C 10 -S 64", SERVER),
        ("rstream -T v -I 10 -C 10 -S 50000 -B 8192", SERVER),
        ("riostream -T v -I 10 -C 10 -S 1000", SERVER),
        ("riostream -i 0 -T v -I 10 -C 10 -S 64", SERVER),
    ] {
        let server = format!("{program} -b {at} -p {PORT}");
        let client = format!("{program} -s {at} -p {PORT}");
        for said in hosts.lines(&stage, &server, &client, LISTENS) {
            assert!(said.contains("Gb/sec"), "{program}: {said}");
        }
    }
}

/// The server never ends.
#[test]
fn rcopy_copies_a_file_to_another_host() {
    let Some((stage, hosts)) = place("rcopy-hosts", 1500) else {
        return;
    };
    let folder = open_folder(&stage);
    let (source, copy) = (folder.join("source"), folder.join("copy"));
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(&source, &content).expect("a file can be written");
    let port = PORT.to_string();
    let mut server = hosts.server(&stage, &["rcopy", "-p", &port], LISTENS);
    let (from, to) = (source.display(), copy.display());
    let line = format!("rcopy {from} {SERVER}:{to} -p {port}");
    let said = hosts.client(&stage, &words(&line), &mut server);
    server.kill();
    assert!(said.contains("3000000 bytes"), "{said}");
    assert!(std::fs::read(&copy).expect("the server has made it") == content);
}

/// On an ordinary socket, the client would find no server.
#[test]
fn librspreload_moves_iperf3_onto_rdma_between_two_hosts() {
    let Some((stage, hosts)) = place("iperf3-hosts", 4400) else {
        return;
    };
    let moved = format!("env LD_PRELOAD={} iperf3 -p {PORT}", preload_after(&stage));
    for direction in ["", "-R -P 3"] {
        let client = format!("{moved} -c {SERVER} -n 5M {direction}");
        let server = format!("{moved} -s -1");
        let [server, client] = hosts.lines(&stage, &server, &client, LISTENS);
        assert!(client.contains("iperf Done."), "{direction:?}: {client}");
        assert!(
            server.contains("Accepted connection"),
            "{direction:?}: {server}"
        );
    }
}
