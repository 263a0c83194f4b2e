//! qperf, fio, UCX, providers of libfabric and uDAPL, and librpma.

use super::{ADDRESSES, LISTENS, PORT, Ready, SERVER, place, words};
use crate::support::Stage;

/// The server starts a process for each test, which exits without closing its connection.
#[test]
fn qperf_runs_between_two_hosts() {
    let Some((stage, hosts)) = place("qperf-hosts", 1500) else {
        return;
    };
    let line = format!("qperf -lp {PORT}");
    let mut server = hosts.server(&stage, &words(&line), Ready::Tcp(PORT));
    for test in ["rc_lat", "rc_rdma_read_bw", "ver_rc_fetch_add"] {
        // By default, the client gives up on the server after five seconds.
        let line = format!("qperf -lp {PORT} -to 120 {SERVER} -cm1 -t 1 {test}");
        let said = hosts.client(&stage, &words(&line), &mut server);
        let results = ["bw  =", "latency  =", "msg_rate  ="];
        let measured = results.iter().any(|result| said.contains(result));
        let is_quiet = !said.contains("failed") && !said.contains("not used");
        assert!(
            measured && is_quiet,
            "{test}: {said}\nserver: {}",
            server.text()
        );
    }
    server.kill();
}

/// A client that sends messages gives its server half a second to post receives, so `verb=send` needs an idle machine.
#[test]
fn fio_writes_and_reads_memory_of_another_host() {
    let Some((stage, hosts)) = place("fio-hosts", 1500) else {
        return;
    };
    // Threads instead of processes, so that killing a side leaves no process behind.
    let both = format!(
        "[one]\nioengine=rdma\nthread=1\nport={PORT}\nbs=16k\nsize=256k\nverify=md5\nverify_state_save=0\n"
    );
    stage.write("server.fio", &format!("{both}rw=read\niodepth=32\n"));
    for verb in ["write", "read"] {
        let client = format!("hostname={SERVER}\nverb={verb}\nrw=write\niodepth=1\n");
        stage.write("client.fio", &format!("{both}{client}"));
        let [server, client] =
            ["server.fio", "client.fio"].map(|name| format!("fio {}", stage.path(name).display()));
        let [_, said] = hosts.lines(&stage, &server, &client, LISTENS);
        assert!(said.contains("WRITE: bw="), "{verb}: {said}");
        assert!(said.contains("err= 0"), "{verb}: {said}");
    }
}

/// Programs of ours on UCX and librpma, as on one host.
#[test]
fn programs_on_ucx_and_librpma_run_between_two_hosts() {
    let Some((stage, hosts)) = place("ucx-hosts", 1500) else {
        return;
    };
    let ucp = stage.compile("ucp", include_str!("../ucp.c"), &["-lucp", "-lucs"]);
    let rpma = stage.compile("rpma", include_str!("../rpma.c"), &["-lrpma"]);
    let settings = "UCX_SOCKADDR_TLS_PRIORITY=rdmacm UCX_TLS=rc UCX_NET_DEVICES=rkey0:1";
    for program in [ucp, rpma] {
        let program = format!("env {settings} {}", program.display());
        let [server, client] =
            ["server", "client"].map(|side| format!("{program} {side} {SERVER} {PORT}"));
        for said in hosts.lines(&stage, &server, &client, LISTENS) {
            assert!(said.ends_with("done\n"), "{program}: {said}");
        }
    }
}

/// The acknowledgement of a message that a program receives while it polls may wait for the program's answer, but not for ever: a program
/// that exits sends it.
#[test]
fn the_last_send_to_a_program_that_exits_after_answering_succeeds() {
    let Some((stage, hosts)) = place("answers-hosts", 1500) else {
        return;
    };
    // Nothing repeats an acknowledgement of a program that has exited.
    if hosts.0.is_unreliable() {
        return;
    }
    let program = stage.compile("answers", include_str!("../answers.c"), &[]);
    let [server, client] =
        ["server", "client"].map(|side| format!("{} {side} {SERVER} {PORT}", program.display()));
    for said in hosts.lines(&stage, &server, &client, LISTENS) {
        assert!(said.ends_with("done\n"), "{said}");
    }
}

/// Connected endpoints, and reliable datagrams over them.
#[test]
fn fi_pingpong_runs_over_libfabrics_verbs_provider_between_two_hosts() {
    let Some((stage, hosts)) = place("libfabric-hosts", 1500) else {
        return;
    };
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let names = provider.replace(';', ",");
        let program = format!(
            "env -u FI_PROVIDER_PATH FI_PROVIDER={names} fi_pingpong -p {provider} -e {endpoint} -c -I 20 -S 65536"
        );
        let server = format!("{program} -B {PORT}");
        let client = format!("{program} -P {PORT} {SERVER}");
        for said in hosts.lines(&stage, &server, &client, Ready::Tcp(PORT)) {
            assert!(said.contains("64k     20"), "{provider}: {said}");
        }
    }
}

/// The name of the entry in `dat.conf`.
const IA: &str = "ofa-v2-cma";

/// The environment of a uDAPL program on a host, with the provider that uses librdmacm.
fn daplofa(stage: &Stage, at: usize) -> String {
    let address = ADDRESSES[at][0];
    let entry =
        format!("{IA} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"{address} 0\" \"\"\n");
    let name = format!("{at}.conf");
    stage.write(&name, &entry);
    format!("env DAT_OVERRIDE={}", stage.path(&name).display())
}

#[test]
fn udapls_librdmacm_provider_runs_between_two_hosts() {
    /// The fixed port of `dtest`.
    const DTEST: u16 = 15_828;
    let Some((stage, hosts)) = place("daplofa-hosts", 1500) else {
        return;
    };
    let sides = [0, 1].map(|at| daplofa(&stage, at));
    let server = format!("{} dtest -P {IA} -b 4096 -B 20", sides[0]);
    let client = format!("{} dtest -P {IA} -b 4096 -B 20 -h {SERVER}", sides[1]);
    for said in hosts.lines(&stage, &server, &client, Ready::Tcp(DTEST)) {
        assert!(said.contains("DAPL Test Complete. PASSED"), "{said}");
    }
    let line = format!("{} stdbuf -oL dapltest -T S -D {IA}", sides[0]);
    let ready = Ready::Says("Service Point Ready");
    let mut server = hosts.server(&stage, &words(&line), ready);
    for (test, options) in [
        (
            "T",
            "-i 50 -t 2 -w 4 -V client SR 1024 3 server SR 256 3 client RW 4096 1 server RR 2048 4",
        ),
        ("P", "-i 1024 -m b RW 4096 2"),
    ] {
        let line = format!(
            "{} dapltest -T {test} -s {SERVER} -D {IA} {options}",
            sides[1]
        );
        let said = hosts.client(&stage, &words(&line), &mut server);
        let is_good = said.contains("End of Work") && !said.contains("rror");
        assert!(is_good, "{options}: {said}\nserver: {}", server.text());
    }
    let line = format!("{} dapltest -T Q -s {SERVER} -D {IA}", sides[1]);
    hosts.client(&stage, &words(&line), &mut server);
    let said = server.succeed();
    for finished in [
        "Transaction Test Finished for this client",
        "Finished performance test.  Exiting.",
    ] {
        assert_eq!(said.matches(finished).count(), 1, "{said}");
    }
}
