//! UCX, alone and below two MPIs.

use super::{ADDRESSES, GIDS, Hosts, PORT};
use crate::support::{DEVICE, Stage};
use crate::ucx::only;
use rkey_harness::hosts::INTERFACES;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Messages, puts, gets and atomics over both transports. UCX sets up its connections with datagrams.
#[test]
fn ucx_perftest_runs_between_two_hosts() {
    let lines = [
        ("rc", "rc_verbs", "tag_lat -n 20 -w 2"),
        ("rc", "rc_verbs", "tag_bw -s 100000 -n 20 -w 2"),
        ("rc", "rc_verbs", "ucp_put_bw -s 65536 -n 20 -w 2"),
        ("rc", "rc_verbs", "ucp_get -s 4096 -n 20 -w 2"),
        ("rc", "rc_verbs", "ucp_fadd -n 20 -w 2"),
        ("ud_verbs", "ud_verbs", "tag_lat -n 20 -w 2"),
    ];
    let stage = Stage::new("hosts-ucx");
    stage.copy_libraries();
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    for ((transports, shown, test), gid) in lines.iter().flat_map(|it| GIDS.map(|gid| (it, gid))) {
        let line = format!(
            "env UCX_NET_DEVICES={DEVICE}:1 UCX_TLS={transports} UCX_IB_GID_INDEX={gid} UCX_LOG_LEVEL=info \
             ucx_perftest -p {PORT} -t {test}"
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, said] = hosts.pair(&stage, &words, ADDRESSES[0][0]);
        let way = format!("{shown}/{DEVICE}:1");
        assert!(said.contains("Final:"), "{line}: {said}");
        assert!(said.contains(&way), "{line} did not go over {way}: {said}");
    }
}

/// Runs four ranks of the same program as on one host, two of them on each host. They choose the GID themselves.
fn four_ranks(name: &str, compiler: &str, launcher: impl Fn(&mut Command, &str)) {
    let stage = Stage::new(name);
    let Some(hosts) = Hosts::new(1500) else {
        return;
    };
    let (source, program, agent) = (
        stage.file("ring.c"),
        stage.file("ring"),
        stage.file("agent"),
    );
    std::fs::write(&source, include_str!("../ring.c")).expect("a file can be written");
    let mut compile = Command::new(compiler);
    compile.arg("-O1").arg("-o").arg(&program).arg(&source);
    stage.start(compile, "compiler").succeed();
    std::fs::write(&agent, hosts.hosts.agent(ADDRESSES[0][0])).expect("a file can be written");
    std::fs::set_permissions(&agent, Permissions::from_mode(0o755)).expect("the file is ours");
    // The launcher needs the rights to enter the other host.
    let mut command = hosts.hosts.enter(0, stage.command("nsenter"));
    command.env("RKEY_WIRE", "auto").args(["timeout", "300"]);
    only("rc,self")(&mut command);
    launcher(&mut command, &agent.display().to_string());
    command.arg(&program);
    let said = stage.start(command, "launcher").succeed();
    assert!(said.contains("4 ranks agree"), "{said}");
    let (way, other) = (format!("rc_verbs/{DEVICE}:1"), "[second:");
    let is_there = |line: &&str| line.contains(other) && line.contains(&way);
    assert!(
        said.lines().any(|line| is_there(&line)),
        "no rank on the second host used {way}: {said}"
    );
}

fn ranks() -> String {
    ADDRESSES.map(|[v4, _]| format!("{v4}:2")).join(",")
}

#[test]
fn open_mpi_runs_over_ucx_on_two_hosts() {
    four_ranks("hosts-openmpi", "mpicc.openmpi", |command, agent| {
        let words = "mpirun.openmpi --allow-run-as-root --oversubscribe -np 4 --mca pml ucx --mca osc ucx \
                     --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include 10.9.0.0/24 --mca plm_rsh_agent";
        command.args(words.split_whitespace()).arg(agent);
        command.args(["--host", &ranks()]);
        let names: Vec<_> = command
            .get_envs()
            .map(|(name, _)| name.to_owned())
            .collect();
        for name in names {
            command.arg("-x").arg(name);
        }
    });
}

#[test]
fn mpich_runs_over_ucx_on_two_hosts() {
    four_ranks("hosts-mpich", "mpicc.mpich", |command, agent| {
        let words = "mpirun.mpich -np 4 -launcher rsh -launcher-exec";
        command.args(words.split_whitespace()).arg(agent);
        command.args(["-iface", INTERFACES[0], "-hosts", &ranks()]);
    });
}
