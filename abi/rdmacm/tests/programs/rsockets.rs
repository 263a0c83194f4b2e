//! rsockets: every call, rdma-core's programs, and ordinary programs with librspreload.

use crate::support::{Port, Running, Stage};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TCP: u16 = 0x0106;

/// Compiles and runs one of our programs.
fn succeeds(name: &str, source: &str) {
    let stage = Stage::new(name);
    stage.write("common.h", include_str!("common.h"));
    stage.write("sockets.h", include_str!("sockets.h"));
    let program = stage.compile(name, source, &["-lpthread"]);
    let said = stage.start(stage.command(&program), name).succeed();
    assert!(said.ends_with("done\n"), "{said}");
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
fn datagrams_arrive_with_their_senders() {
    succeeds("datagrams", include_str!("datagrams.c"));
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
fn rstream() {
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
fn rstream_without_options() {
    let [_, client] = pair("rstream", "-T v");
    assert!(
        client.contains("64_lat") && client.contains("1m_bw"),
        "{client}"
    );
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
    let own = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
    let own = own.and_then(|(_, value)| value).unwrap_or_default();
    let mut both = OsString::from(own);
    both.push(":");
    both.push(preload());
    command.env("LD_PRELOAD", both);
    command
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
