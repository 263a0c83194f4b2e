//! qperf, and the uDAPL provider that is written on verbs.

use crate::support::{Stage, free_port};

/// Every test of qperf's that uses verbs and not the connection manager. Those for datagrams make address
/// handles without a global route, which has to be allowed.
#[test]
fn qperf() {
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
    let port = free_port();
    let mut server = stage.command("qperf");
    server
        .env("RKEY_LOCAL_ROUTES", "1")
        .args(["-lp", &port.to_string()]);
    let mut server = stage.start(server, "server");
    server.wait_until_it_listens(port);
    for test in tests {
        let mut client = stage.command("qperf");
        client.env("RKEY_LOCAL_ROUTES", "1");
        client.args(["-lp", &port.to_string(), "127.0.0.1", "-t", "1", test]);
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

/// Debian's own program for uDAPL over its verbs provider with connections over sockets.
#[test]
fn dtest_of_the_verbs_provider() {
    let stage = Stage::new("dtest");
    let registry = stage.file("dat.conf");
    let entry =
        "ofa-v2-scm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"rkey0 1\" \"\"\n";
    std::fs::write(&registry, entry).expect("a file can be written");
    let side = |name: &str, more: &[&str]| {
        let mut command = stage.command("dtest");
        command.env("DAT_OVERRIDE", &registry);
        command
            .args(["-P", "ofa-v2-scm", "-b", "4096", "-B", "20"])
            .args(more);
        stage.start(command, name)
    };
    let mut server = side("server", &[]);
    server.wait_until_it_listens(DTEST_PORT);
    let client = side("client", &["-h", "127.0.0.1"]).succeed();
    for text in [client, server.succeed()] {
        assert!(text.contains("DAPL Test Complete. PASSED"), "{text}");
    }
}

/// Where `dtest` listens; there is no option for it.
const DTEST_PORT: u16 = 15_828;
