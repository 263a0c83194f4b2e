//! The Debian packages that the suite needs besides cargo: installs missing ones if it has the privilege, and otherwise
//! prints the command.

use crate::process;
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Duration;

/// A package and its purpose.
pub(crate) const NEEDED: &[(&str, &str)] = &[
    ("gcc", "links Rust programs and builds the peer benchmarks"),
    ("libc6-dev", "headers for the peer benchmarks"),
    ("libfabric-dev", "libfabric, a peer to compare with"),
    ("libfabric-bin", "fi_info, shows what libfabric offers"),
    ("libucx-dev", "UCX, a peer to compare with"),
    ("ucx-utils", "ucx_perftest, the peer's own benchmark"),
    ("util-linux", "taskset, unshare and related programs"),
    (
        "iproute2",
        "joins the network namespaces of tests with two hosts",
    ),
    ("nftables", "drops packets between two test hosts"),
    ("valgrind", "counts the instructions of the short paths"),
    ("rdma-core", "rdma-core's Python tests for verbs"),
    ("python3-pyverbs", "required by rdma-core's Python tests"),
    ("libibverbs-dev", "headers to compare our structures with"),
    (
        "ibverbs-utils",
        "ibv_devinfo and the ping-pongs, to run on the device",
    ),
    (
        "perftest",
        "ib_write_bw and related programs, to run on the device",
    ),
    (
        "rdmacm-utils",
        "rping, ucmatose and related programs, to run on the device",
    ),
    ("librdmacm-dev", "headers to compare our structures with"),
    ("qperf", "another benchmark to run on the device"),
    ("curl", "a program whose sockets move onto RDMA"),
    (
        "iperf3",
        "a program whose sockets move, and which uses select",
    ),
    ("fio", "fio's RDMA engine, to run on the device"),
    ("tgt", "an iSCSI target with RDMA, to run on the device"),
    ("libiscsi-bin", "initiators for it"),
    (
        "librpma-dev",
        "remote persistent memory, for a program of ours",
    ),
    (
        "qemu-system-x86",
        "QEMU, which migrates virtual machines over RDMA",
    ),
    ("dapl2-utils", "dtest, dapltest and other uDAPL programs"),
    ("libdapl2", "uDAPL's library, and its provider for verbs"),
    ("libdapl-dev", "headers to compare our structures with"),
    ("openmpi-bin", "an MPI to run on the device"),
    ("libopenmpi-dev", "Open MPI's compiler wrapper"),
    ("mpich", "another MPI to run on the device"),
    ("libmpich-dev", "MPICH's compiler wrapper"),
    (
        "python3-venv",
        "installs a third MPI, and mpi4py with its tests, from the Python package index",
    ),
    ("libcurl4", "the Mooncake transfer engine links it"),
    (
        "openssh-client",
        "Open MPI requires it before it starts anything",
    ),
];

/// Installs the missing packages. Returns a note for the table.
pub(crate) fn ensure(install: bool) -> Result<String> {
    if !process::exists("dpkg-query") {
        bail!(
            "this system has no dpkg-query: install the equivalents of these Debian packages: {}",
            names(NEEDED).join(" ")
        );
    }
    let missing = missing();
    if missing.is_empty() {
        return Ok(format!(
            "all {} Debian packages are installed",
            NEEDED.len()
        ));
    }
    let wanted = missing.join(" ");
    let by_hand = format!("apt-get install --no-install-recommends {wanted}");
    if !install {
        bail!("Debian packages are missing; run as root: {by_hand}");
    }
    let prefix: &[&str] = if process::is_root() {
        &[]
    } else if process::exists("sudo")
        && process::capture(Command::new("sudo").args(["-n", "true"])).is_ok()
    {
        &["sudo", "-n"]
    } else {
        bail!(
            "Debian packages are missing, and xtask cannot install them: it does not run as root, and sudo needs a password; run as root: {by_hand}"
        );
    };
    eprintln!("installing Debian packages: {wanted}");
    apt(prefix, &["update", "-q"])?;
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(missing.iter().copied());
    apt(prefix, &arguments)?;
    Ok(format!("installed {wanted}"))
}

/// The packages that are not installed.
pub(crate) fn missing() -> Vec<&'static str> {
    let installed = |package: &str| {
        process::capture(Command::new("dpkg-query").args(["-W", "-f", "${Status}", package]))
            .is_ok_and(|status| status.contains("ok installed"))
    };
    names(NEEDED)
        .into_iter()
        .filter(|package| !installed(package))
        .collect()
}

fn names(packages: &[(&'static str, &str)]) -> Vec<&'static str> {
    packages.iter().map(|(name, _)| *name).collect()
}

fn apt(prefix: &[&str], arguments: &[&str]) -> Result<()> {
    let mut words = prefix.to_vec();
    words.push("apt-get");
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let described = process::describe(&command);
    let outcome = process::run(command, Duration::from_secs(600))?;
    if !outcome.ok {
        bail!(
            "{described} failed; install these packages by hand: {}",
            names(NEEDED).join(" ")
        );
    }
    Ok(())
}
