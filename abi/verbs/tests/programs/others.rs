//! qperf, and the uDAPL provider that uses verbs.

use crate::support::{PATIENCE, Port, Running, Stage};
use rkey_harness::ports::Turn;
use std::time::{Duration, Instant};

/// Every test of qperf that uses verbs without the connection manager. Those for datagrams create address handles
/// without a global route, which `RKEY_LOCAL_ROUTES` allows.
#[test]
fn qperf_runs_without_the_connection_manager() {
    let tests = [
        "rc_bw",
        "rc_lat",
        "uc_bw",
        "uc_lat",
        "ud_bw",
        "ud_lat",
        "rc_rdma_write_bw",
        "rc_rdma_write_lat",
        "rc_rdma_write_poll_lat",
        "rc_rdma_read_bw",
        "rc_rdma_read_lat",
        "uc_rdma_write_bw",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ];
    let stage = Stage::new("qperf");
    let port = Port::new();
    let mut server = stage.command("qperf");
    server
        .env("RKEY_LOCAL_ROUTES", "1")
        .args(["-lp", &port.text()]);
    let mut server = stage.start(server, "server");
    server.wait_until_it_listens(port.number);
    for test in tests {
        let mut client = stage.command("qperf");
        client.env("RKEY_LOCAL_ROUTES", "1");
        // By default, the client gives up on the server after five seconds.
        client.args([
            "-lp",
            &port.text(),
            "-to",
            "120",
            "127.0.0.1",
            "-t",
            "1",
            test,
        ]);
        let text = stage.start(client, "client").succeed();
        let measured =
            text.contains("bw  =") || text.contains("latency  =") || text.contains("msg_rate  =");
        assert!(
            measured && !text.contains("failed"),
            "{test}: {text}\nserver: {}",
            server.text()
        );
    }
    server.kill();
}

/// Debian's test program for uDAPL, over its verbs provider with connections by sockets.
#[test]
fn dtest_runs_over_udapls_verbs_provider() {
    let turn = Turn::take(&DTEST_PORT.to_string(), PATIENCE);
    let _turn = turn.unwrap_or_else(|error| panic!("{error}"));
    let stage = Stage::new("dtest");
    let registry = stage.file("dat.conf");
    let entry =
        "ofa-v2-scm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"rkey0 1\" \"\"\n";
    std::fs::write(&registry, entry).expect("a file can be written");
    let side = |name: &str, more: &[&str]| {
        let mut command = stage.command("dtest");
        command.env("DAT_OVERRIDE", &registry);
        // By default, it uses the first other interface, and some machines have none.
        command.env("DAPL_SCM_NETDEV", "lo");
        command
            .args(["-P", "ofa-v2-scm", "-b", "4096", "-B", "20"])
            .args(more);
        stage.start(command, name)
    };
    let started = Instant::now();
    loop {
        let mut server = side("server", &[]);
        server.wait_until_it_listens(DTEST_PORT);
        let client = side("client", &["-h", "127.0.0.1"]);
        // The server's failure is the more likely cause.
        let [server, client] = [server, client].map(Running::end);
        // The provider listens on TCP port 46248, which the kernel may have given to another program's connection.
        if server.1.contains("DAT_CONN_QUAL_IN_USE") && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        for (status, text) in [server, client] {
            assert!(status.is_some_and(|status| status.success()), "{text}");
            assert!(text.contains("DAPL Test Complete. PASSED"), "{text}");
        }
        return;
    }
}

/// The fixed port of `dtest`.
const DTEST_PORT: u16 = 15_828;
