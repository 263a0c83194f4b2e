//! Other programs and frameworks that connect through librdmacm, as Debian ships them: qperf, fio, UCX, and providers of libfabric
//! and uDAPL.

use crate::support::{Port, Running, Stage, listens, outside, turn};
use rkey_harness::ports::listens_on_tcp;
use std::process::Command;

const TCP: u16 = 0x0106;

/// Runs tests of qperf. It ignores `-cm1` in all tests but those of reliable connections.
fn qperf(tests: &[&str]) {
    let (stage, port) = (Stage::new("qperf"), Port::new());
    let number = port.number.to_string();
    let mut server = stage.command("qperf");
    server.args(["-lp", &number]);
    let server = stage.server_when(server, || listens_on_tcp(std::process::id(), port.number));
    for test in tests {
        let mut client = stage.command("qperf");
        // By default, the client gives up on the server after five seconds.
        let waits = ["-lp", &number, "-to", "120"];
        client.args(waits);
        client.args(["127.0.0.1", "-cm1", "-t", "1", test]);
        let said = stage.start(client, "client").succeed();
        let results = ["bw  =", "latency  =", "msg_rate  ="];
        let measured = results.iter().any(|result| said.contains(result));
        let is_quiet = !said.contains("failed") && !said.contains("not used");
        let server = server.text();
        assert!(measured && is_quiet, "{test}: {said}\nserver: {server}");
    }
}

#[test]
fn qperf_runs_over_reliable_connections() {
    qperf(&[
        "rc_bw",
        "rc_lat",
        "rc_bi_bw",
        "rc_rdma_write_bw",
        "rc_rdma_write_lat",
        "rc_rdma_read_bw",
        "rc_rdma_read_lat",
    ]);
}

/// The `ver_` tests compare what the atomics return.
#[test]
fn qperf_polls_memory_and_runs_atomics() {
    qperf(&[
        "rc_rdma_write_poll_lat",
        "rc_compare_swap_mr",
        "rc_fetch_add_mr",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ]);
}

/// Runs fio's RDMA engine, with verification where it supports it. Returns the output of the server and the client.
///
/// A client that sends messages gives its server half a second to post receives, and allows no RNR retry (`fio_rdmaio_connect` in
/// fio's source). On a busy machine, the server may be late; the client then reports it and hangs. Such a run is repeated.
fn fio(verb: &str) -> [String; 2] {
    const LATE: &str = "RNR retry counter exceeded";
    const TIMES: usize = 5;
    for _ in 0..TIMES {
        let (stage, port) = (Stage::new("fio"), Port::new());
        // Threads instead of processes, so that killing a side leaves no process behind. The client never has more requests
        // outstanding than the server has receives.
        let both = format!(
            "[one]\nioengine=rdma\nthread=1\nport={}\nbs=16k\nsize=256k\nverify=md5\nverify_state_save=0\n",
            port.number
        );
        let client = format!("hostname=127.0.0.1\nverb={verb}\nrw=write\niodepth=1\n");
        stage.write("server.fio", &format!("{both}rw=read\niodepth=32\n"));
        stage.write("client.fio", &format!("{both}{client}"));
        let side = |name: &str| {
            let mut command = stage.command("fio");
            command.arg(stage.file(name));
            command
        };
        let is_ready = || listens(TCP, port.number);
        let server = stage.server_when(side("server.fio"), is_ready);
        let mut client = stage.start(side("client.fio"), "client");
        client.wait_or(|said| said.contains(LATE));
        if !client.text().contains(LATE) {
            return [server.succeed(), client.succeed()];
        }
    }
    panic!("the server posted its receives too late in all {TIMES} runs");
}

#[test]
fn fio_writes_and_reads_memory() {
    for verb in ["write", "read"] {
        let [_, client] = fio(verb);
        assert!(client.contains("WRITE: bw="), "{verb}: {client}");
        assert!(client.contains("err= 0"), "{verb}: {client}");
    }
}

#[test]
fn fio_sends_messages() {
    let [server, client] = fio("send");
    assert!(client.contains("WRITE: bw="), "{client}");
    assert!(server.contains("READ: bw="), "{server}");
}

/// A program of ours on UCX, whose client connects to the server's socket address.
#[test]
fn a_ucx_program_connects_through_librdmacm() {
    let (stage, port) = (Stage::new("ucx"), Port::new());
    let number = port.number.to_string();
    let program = stage.compile("ucp", include_str!("ucp.c"), &["-lucp", "-lucs"]);
    let side = |side: &str| {
        let mut command = stage.command(&program);
        command
            .env("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm")
            .env("UCX_TLS", "rc")
            .env("UCX_NET_DEVICES", "rkey0:1")
            .args([side, "127.0.0.1", &number]);
        command
    };
    let server = stage.server_when(side("server"), || listens(TCP, port.number));
    for said in stage.client_of(server, side("client")) {
        assert!(said.ends_with("done\n"), "{said}");
    }
}

/// libfabric's `verbs` provider: connected endpoints, and reliable datagrams over them. On a host with only loopback addresses, it
/// finds no address, and must fail.
#[test]
fn fi_pingpong_runs_over_libfabrics_verbs_provider() {
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let (stage, port) = (Stage::new("libfabric"), Port::new());
        let number = port.number.to_string();
        let side = |option: &str| {
            let mut command = stage.command("fi_pingpong");
            command
                .env("FI_PROVIDER", provider.replace(';', ","))
                .env_remove("FI_PROVIDER_PATH")
                .args(["-p", provider, "-e", endpoint, "-c"])
                .args(["-I", "20", "-S", "65536", option, &number]);
            command
        };
        let server = stage.server_when(side("-B"), || {
            listens_on_tcp(std::process::id(), port.number)
        });
        let mut client = side("-P");
        let Some(address) = outside() else {
            client.arg("127.0.0.1");
            fails(&stage, server, client);
            continue;
        };
        client.arg(address.to_string());
        for said in stage.client_of(server, client) {
            assert!(said.contains("64k     20"), "{provider}: {said}");
        }
    }
}

/// The name of the entry in `dat.conf`.
const DAPLOFA: &str = "ofa-v2-cma";

/// A stage on which uDAPL loads its provider that uses librdmacm. The provider does not open a loopback address.
fn daplofa(name: &str) -> Stage {
    let stage = Stage::new(name);
    let address = outside().map_or("lo".to_owned(), |address| address.to_string());
    let entry = format!(
        "{DAPLOFA} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"{address} 0\" \"\"\n"
    );
    stage.write("dat.conf", &entry);
    stage
}

fn daplofa_side(stage: &Stage, program: &str, words: &[&str]) -> Command {
    let mut command = stage.command(program);
    command.env("DAT_OVERRIDE", stage.file("dat.conf"));
    command.args(words);
    command
}

/// On a host with only loopback addresses, it must fail.
#[test]
fn dtest_runs_over_udapls_librdmacm_provider() {
    /// The fixed port of `dtest`.
    const PORT: u16 = 15_828;
    let _turn = turn(&PORT.to_string());
    let stage = daplofa("dtest");
    let side = |more: &[&str]| {
        let words = ["-P", DAPLOFA, "-b", "4096", "-B", "20"];
        daplofa_side(&stage, "dtest", &[&words, more].concat())
    };
    let server = stage.server_when(side(&[]), || listens_on_tcp(std::process::id(), PORT));
    let client = side(&["-h", "127.0.0.1"]);
    if outside().is_none() {
        return fails(&stage, server, client);
    }
    for said in stage.client_of(server, client) {
        assert!(said.contains("DAPL Test Complete. PASSED"), "{said}");
    }
}

/// Transactions (messages, RDMA reads and writes, with several threads and EPs, and verification), and performance tests.
#[test]
fn dapltest_runs_over_udapls_librdmacm_provider() {
    const CLIENTS: [(&str, &str, &str); 4] = [
        ("T", "-i 200 client SR 256 1 server SR 256 1", "Total Recv"),
        (
            "T",
            "-i 50 -t 2 -w 4 -V client SR 1024 3 server SR 256 3 client RW 4096 1 server RR 2048 4",
            "Total RDMA Read",
        ),
        ("P", "-i 1024 -m b RW 4096 2", "raw: RW"),
        ("P", "-i 1024 -m p RR 4096 2", "raw: RR"),
    ];
    // All servers of `dapltest` listen on the same port.
    let _turn = turn("dapltest");
    let stage = daplofa("dapltest");
    let server = daplofa_side(&stage, "dapltest", &["-T", "S", "-D", DAPLOFA]);
    let mut server = stage.start(server, "server");
    let Some(address) = outside() else {
        // It exits with status 0 nevertheless.
        return server.wait_for("Could not open ofa-v2-cma (DAT_INVALID_ADDRESS )");
    };
    let address = address.to_string();
    server.wait_for("Service Point Ready");
    let client = |test: &str, words: &str| {
        let both = ["-T", test, "-s", &address, "-D", DAPLOFA];
        let words = words.split_whitespace().collect::<Vec<_>>();
        let command = daplofa_side(&stage, "dapltest", &[&both, &words[..]].concat());
        stage.start(command, "client").succeed()
    };
    for (test, words, figure) in CLIENTS {
        let said = client(test, words);
        // `dapltest` prints no figures if the run was too short for its clock.
        let measured = said.contains(figure) || said.contains("enough time has lapsed");
        let is_good = measured && said.contains("End of Work") && !said.contains("rror");
        assert!(is_good, "{words}: {said}\nserver: {}", server.text());
    }
    client("Q", "");
    let said = server.succeed();
    let finished = |what: &str| said.matches(what).count();
    assert_eq!(
        finished("Transaction Test Finished for this client"),
        2,
        "{said}"
    );
    assert_eq!(
        finished("Finished performance test.  Exiting."),
        2,
        "{said}"
    );
}

/// Checks that both sides fail, and that neither hangs.
fn fails(stage: &Stage, mut server: Running, client: Command) {
    let mut client = stage.start(client, "client");
    for side in [&mut client, &mut server] {
        let status = side.wait();
        let said = side.text();
        let has_failed = status.is_some_and(|status| !status.success());
        assert!(has_failed, "{status:?}: {said}");
    }
}
