//! rsockets: every call, rdma-core's programs, and ordinary programs with librspreload.

use crate::support::{Port, Running, Stage};
use rkey_harness::ports::{is_bound_to_udp, listens_on_tcp};
use std::path::{Path, PathBuf};
use std::process::Command;

const TCP: u16 = 0x0106;

/// Compiles and runs one of our programs. Returns the output of the program and of the library.
fn succeeds(name: &str, source: &str) -> String {
    let stage = Stage::new(name);
    stage.write("common.h", include_str!("common.h"));
    stage.write("sockets.h", include_str!("sockets.h"));
    stage.write("victims.h", include_str!("victims.h"));
    let program = stage.compile(name, source, &["-lpthread"]);
    let said = stage.start(stage.command(&program), name).succeed();
    assert!(said.ends_with("done\n"), "{said}");
    said
}

#[test]
fn socket_calls_return_what_the_manual_pages_say() {
    succeeds("sockets", include_str!("sockets.c"));
}

#[test]
fn streams_deliver_data_in_order() {
    succeeds("streams", include_str!("streams.c"));
}

#[test]
fn a_peer_that_breaks_the_protocol_is_refused() {
    succeeds("hostile", include_str!("hostile.c"));
}

#[test]
fn closing_a_listener_does_not_wait_for_its_clients() {
    succeeds("pending", include_str!("pending.c"));
}

/// All 1000 requests are refused, but only a few lines per second are logged.
#[test]
fn log_lines_about_refused_peers_are_rate_limited() {
    let said = succeeds("complaints", include_str!("complaints.c"));
    let lines = said.matches("the peer is not an rsocket").count();
    assert!((1..900).contains(&lines), "{lines} lines");
}

#[test]
fn datagrams_arrive_with_their_senders() {
    succeeds("datagrams", include_str!("datagrams.c"));
}

#[test]
fn repoll_reports_sockets_and_other_descriptors() {
    succeeds("repoll", include_str!("repoll.c"));
}

#[test]
fn ports_and_connections_end_with_their_process_although_a_child_still_runs() {
    succeeds("forks", include_str!("forks.c"));
}

/// While it connects, transfers and closes. One row waits until `rclose` gives up, which takes ten seconds.
#[test]
fn rsockets_whose_peer_is_killed_or_stopped_do_not_hang() {
    succeeds("socket_states", include_str!("socket_states.c"));
}

/// Runs a program as a server and as a client, with the same options. Returns their output.
fn pair(program: &str, options: &str) -> [String; 2] {
    let (stage, port) = (Stage::new(program), Port::new());
    let number = port.number.to_string();
    let mut server: Vec<&str> = options.split_whitespace().collect();
    server.extend(["-p", &number]);
    let client = [&server[..], &["-s", "127.0.0.1"]].concat();
    stage.pair([program; 2], &server, &client, (TCP, port.number))
}

/// Blocking, non-blocking and with `poll`; with verification; with small and large messages and buffers.
#[test]
fn rstream_runs_with_its_options() {
    for options in [
        "-T v -I 10 -C 10 -S 1000",
        "-T b -T v -I 20 -C 10 -S 100000",
        "-T n -T v -I 20 -C 10 -S 5000",
        "-T a -T v -I 20 -C 10 -S 5000",
        "-T a -T n -T v -I 20 -C 10 -S 64",
        "-T r -T v -I 10 -C 10 -S 1000",
        "-T v -I 10 -C 10 -S 300000 -B 8192",
        "-f ip -T v -I 10 -C 10 -S 1000",
        "-i 0 -T v -I 10 -C 10 -S 1",
    ] {
        for said in pair("rstream", options) {
            assert!(said.contains("Gb/sec"), "{options}: {said}");
        }
    }
}

#[test]
fn rstream_runs_without_options() {
    let [_, client] = pair("rstream", "-T v");
    assert!(
        client.contains("64_lat") && client.contains("1m_bw"),
        "{client}"
    );
}

/// The same with data that is written to an offset of the peer's memory.
#[test]
fn riostream_runs_with_its_options() {
    for options in [
        "-T v -I 10 -C 10 -S 1000",
        "-T b -T v -I 20 -C 10 -S 100000",
        "-T n -T v -I 20 -C 10 -S 5000",
        "-i 0 -T v -I 10 -C 10 -S 64",
    ] {
        for said in pair("riostream", options) {
            assert!(said.contains("Gb/sec"), "{options}: {said}");
        }
    }
}

/// Copies a file. The server never ends.
#[test]
fn rcopy_copies_a_file() {
    let (stage, port) = (Stage::new("rcopy"), Port::new());
    let number = port.number.to_string();
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let (source, copy) = (stage.path("source"), stage.path("copy"));
    std::fs::write(&source, &content).expect("a file can be written");
    let mut server = stage.server("rcopy", &["-p", &number], TCP, port.number);
    let mut command = stage.command("rcopy");
    command
        .arg(&source)
        .arg(format!("127.0.0.1:{}", copy.display()))
        .args(["-p", &number]);
    let said = stage.start(command, "client").succeed();
    assert!(said.contains("3000000 bytes"), "{said}");
    server.kill();
    assert!(std::fs::read(&copy).expect("the server has made it") == content);
}

/// How many times `udpong` may fail: if an answer takes longer than its timeouts (1 ms, 1 s), it mistakes the late answer for the
/// next one, and may wait forever. That also happens on ordinary sockets.
const TRIES: usize = 5;

/// Blocking, non-blocking, with `poll`; datagrams in one direction, and there and back. The server never ends.
#[test]
fn udpong_exchanges_datagrams() {
    for (server, client, transfers) in [
        ("-T b", "-T b -C 100 -S 64", "100"),
        ("", "-C 100 -S 1000", "100"),
        ("-T a", "-T a -C 100 -S 1500", "100"),
        ("-T b", "-T b -T e -C 20 -S 64", "40"),
        ("-T a", "-T a -T e -C 20 -S 2000", "40"),
    ] {
        let mut said = Vec::new();
        while said.len() < TRIES {
            let text = ping_datagrams(server, client);
            let has_succeeded = text.lines().any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.first() == Some(&"custom") && words.get(2) == Some(&transfers)
            });
            if has_succeeded {
                break;
            }
            said.push(text);
        }
        assert!(said.len() < TRIES, "{client}: {said:#?}");
    }
}

/// Runs a server and a client of `udpong`. Returns the client's output.
fn ping_datagrams(server: &str, client: &str) -> String {
    let (stage, port) = (Stage::new("udpong"), Port::new());
    let number = port.number.to_string();
    let command = |program: &[&str], options: &str| {
        let mut command = stage.command(program[0]);
        command.args(&program[1..]);
        command
            .args(options.split_whitespace())
            .args(["-p", &number]);
        command
    };
    // Without an address, the server would choose `::1`.
    let server = command(&["udpong", "-b", "127.0.0.1"], server);
    let mut server = stage.server_when(server, || is_bound_to_udp(std::process::id(), port.number));
    let client = command(&["timeout", "60", "udpong", "-s", "127.0.0.1"], client);
    let mut client = stage.start(client, "client");
    client.wait();
    server.kill();
    client.text()
}

/// The path of rdma-core's library that turns socket calls into rsockets calls.
fn preload() -> PathBuf {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let library = Path::new("/usr/lib")
        .join(triplet)
        .join("rsocket/librspreload.so");
    assert!(
        library.exists(),
        "librspreload.so is missing: install Debian's librdmacm1, which rdmacm-utils depends on"
    );
    library
}

/// A command that runs with librspreload, which moves its sockets onto RDMA.
fn moved(stage: &Stage, program: impl AsRef<Path>) -> Command {
    let mut command = stage.command(program);
    command.env("LD_PRELOAD", preload_after(stage));
    command
}

/// The value of `LD_PRELOAD` with librspreload after the libraries of the stage.
pub(crate) fn preload_after(stage: &Stage) -> String {
    let command = stage.command("true");
    let own = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
    let own = own.and_then(|(_, value)| value).unwrap_or_default();
    format!("{}:{}", own.display(), preload().display())
}

fn curl(stage: &Stage, port: u16, path: &str, name: &str) -> Running {
    let mut command = moved(stage, "curl");
    command
        .args(["-sS", "--fail", "--noproxy", "*", "-o"])
        .arg(stage.path("answer"))
        .arg(format!("http://127.0.0.1:{port}/{path}"));
    stage.start(command, name)
}

/// The test also holds the TCP port with the same number, where nothing listens: on an ordinary socket, curl would get no answer.
#[test]
fn librspreload_moves_ordinary_programs_onto_rdma() {
    let (stage, port) = (Stage::new("moved"), Port::new());
    let program = stage.compile("http", include_str!("http.c"), &[]);
    let mut server = moved(&stage, program);
    server.arg(port.number.to_string());
    let server = stage.serve(server, TCP, port.number);
    for size in [10, 100_000, 900_000] {
        curl(&stage, port.number, &size.to_string(), "curl").succeed();
        let answer = std::fs::read(stage.path("answer")).expect("curl has written it");
        assert_eq!(answer, vec![b'x'; size]);
    }
    assert_eq!(server.succeed(), "served\n");
}

/// If the server uses ordinary sockets, so does the connection. The client's other connections may use RDMA.
#[test]
fn librspreload_falls_back_to_ordinary_sockets() {
    let (stage, port) = (Stage::new("ordinary"), Port::new());
    let program = stage.compile("http", include_str!("http.c"), &[]);
    let mut server = stage.command(program);
    server.arg(port.number.to_string());
    let is_ready = || listens_on_tcp(std::process::id(), port.number);
    let server = stage.server_when(server, is_ready);
    for size in [10, 100_000, 900_000] {
        curl(&stage, port.number, &size.to_string(), "curl").succeed();
        let answer = std::fs::read(stage.path("answer")).expect("curl has written it");
        assert_eq!(answer, vec![b'x'; size]);
    }
    assert_eq!(server.succeed(), "served\n");
}

/// Uses `select`, non-blocking sockets and options of TCP. As above, ordinary sockets would get no answer.
#[test]
fn librspreload_moves_iperf3_onto_rdma() {
    for direction in [&[][..], &["-R"], &["-P", "3"]] {
        let (stage, port) = (Stage::new("iperf3"), Port::new());
        let number = port.number.to_string();
        let mut server = moved(&stage, "iperf3");
        server.args(["-s", "-1", "-p", &number]);
        let server = stage.serve(server, TCP, port.number);
        let mut client = moved(&stage, "iperf3");
        client
            .args(["-c", "127.0.0.1", "-n", "20M", "-p", &number])
            .args(direction);
        let [server, client] = stage.client_of(server, client);
        assert!(client.contains("iperf Done."), "{direction:?}: {client}");
        assert!(
            server.contains("Accepted connection"),
            "{direction:?}: {server}"
        );
    }
}
