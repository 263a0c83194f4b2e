//! The programs, and their arguments on both sides.
//!
//! In arguments, `DEVICE` selects the guest's device and is left out on the host, `GID` is the index of the GID of the case's
//! address family, `MTU` is the network's path MTU, `PEER` is the server's IPv4 address, `ADDRESS` is the server's address in the case's
//! family, and `FAMILY` is that family's name.

/// A program that runs on both sides.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) program: &'static str,
    /// Arguments of both sides.
    pub(super) both: &'static str,
    /// Arguments of the server only.
    pub(super) server: &'static str,
    /// Arguments of the client only.
    pub(super) client: &'static str,
    /// Where the server listens.
    pub(super) listens: Listens,
}

/// How a client finds its server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Listens {
    /// On the TCP port [`PORT`].
    Tcp,
    /// On a port of the connection manager.
    ConnectionManager,
}

/// The TCP port of the ping-pongs and of perftest.
pub(super) const PORT: u16 = 18515;

/// A program that exchanges addresses over TCP.
const fn verbs(program: &'static str, both: &'static str) -> Case {
    Case {
        program,
        both,
        server: "",
        client: "PEER",
        listens: Listens::Tcp,
    }
}

/// A program that uses the connection manager.
const fn managed(
    program: &'static str,
    both: &'static str,
    server: &'static str,
    client: &'static str,
) -> Case {
    Case {
        program,
        both,
        server,
        client,
        listens: Listens::ConnectionManager,
    }
}

/// Over both address families, in both directions.
pub(super) const PINGS: &[Case] = &[
    verbs("ibv_rc_pingpong", "DEVICE -g GID -m MTU -n 100"),
    verbs("ibv_uc_pingpong", "DEVICE -g GID -m MTU -n 100"),
    verbs("ibv_ud_pingpong", "DEVICE -g GID -n 100"),
    verbs("ibv_srq_pingpong", "DEVICE -g GID -m MTU -n 100"),
];

/// Our program with windows, refused accesses, immediate data, and sends that cannot be received. Over both address families, in both directions.
pub(super) const OPERATIONS: &[Case] = &[verbs("operations", "DEVICE -g GID")];

/// Over both address families, in both directions. The timeout of four seconds (`-u 20`) is for a slow guest: if Soft-RoCE's timer expires while
/// acknowledgements are under way, Linux 6.1 can continue with an empty write, which the responder must refuse.
pub(super) const PERFTEST: &[Case] = &[
    verbs(
        "ib_write_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c RC",
    ),
    verbs(
        "ib_write_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c UC",
    ),
    verbs(
        "ib_write_lat",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c RC",
    ),
    verbs(
        "ib_write_lat",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c UC",
    ),
    verbs(
        "ib_read_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c RC",
    ),
    verbs(
        "ib_read_lat",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c RC",
    ),
    verbs(
        "ib_send_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c RC",
    ),
    verbs(
        "ib_send_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c UC",
    ),
    verbs("ib_send_bw", "DEVICE -F -u 20 -x GID -n 100 -s 1024 -c UD"),
    verbs(
        "ib_send_lat",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c RC",
    ),
    verbs(
        "ib_send_lat",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 8192 -c UC",
    ),
    verbs("ib_send_lat", "DEVICE -F -u 20 -x GID -n 100 -s 1024 -c UD"),
    verbs("ib_atomic_bw", "DEVICE -F -u 20 -x GID -m MTU -n 100"),
    verbs("ib_atomic_lat", "DEVICE -F -u 20 -x GID -m MTU -n 100"),
    verbs(
        "ib_send_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 64 -I 128",
    ),
    verbs(
        "ib_write_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 65536 -b",
    ),
    verbs(
        "ib_write_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 65536 -q 16",
    ),
];

/// In both directions, with either path MTU: messages of every size, up to 8 MiB.
pub(super) const SIZES: &[Case] = &[
    verbs("ib_write_bw", "DEVICE -F -u 20 -x GID -m MTU -n 20 -a"),
    verbs("ib_read_bw", "DEVICE -F -u 20 -x GID -m MTU -n 5 -a"),
    verbs("ib_send_bw", "DEVICE -F -u 20 -x GID -m MTU -n 5 -a"),
];

/// Over both address families, in both directions.
pub(super) const MANAGED: &[Case] = &[
    managed("rping", "-a ADDRESS -C 10 -v -V", "-s", "-c"),
    managed("rping", "-a ADDRESS -C 10 -v -V -q", "-s", "-c"),
    managed(
        "ucmatose",
        "-f FAMILY -c 4 -C 20",
        "-b ADDRESS",
        "-s ADDRESS",
    ),
    managed("udaddy", "-c 2", "-b ADDRESS", "-s ADDRESS"),
    managed("rdma_server", "-s ADDRESS", "", ""),
];

/// rsockets, whose protocol both sides' librdmacm must speak: data that are compared, through each of the programs' interfaces. Over
/// both address families, in both directions.
pub(super) const STREAMS: &[Case] = &[
    managed(
        "rstream",
        "-f FAMILY -T v -S 65536 -C 20",
        "-b ADDRESS",
        "-s ADDRESS",
    ),
    managed(
        "rstream",
        "-f FAMILY -T a -T v -S 1000 -C 20",
        "-b ADDRESS",
        "-s ADDRESS",
    ),
    managed(
        "riostream",
        "-f FAMILY -T v -S 65536 -C 20",
        "-b ADDRESS",
        "-s ADDRESS",
    ),
];

/// perftest with librdmacm, which resolves only IPv4 addresses; the host serves. The client connects twice, and does not wait until the server listens again. rkey holds
/// such a request for a moment; Soft-RoCE rejects it.
pub(super) const MANAGED_PERFTEST: &[Case] = &[
    managed("ib_write_bw", "-R -F -n 100 -s 4096", "", "PEER"),
    managed("ib_read_bw", "-R -F -n 100 -s 4096", "", "PEER"),
    managed("ib_send_bw", "-R -F -n 100 -s 4096", "", "PEER"),
    managed("ib_send_lat", "-R -F -n 100 -s 4096", "", "PEER"),
    managed("ib_atomic_bw", "-R -F -n 100", "", "PEER"),
];

/// In both directions, with a path MTU of 4096.
pub(super) const JUMBO: &[Case] = &[
    verbs("ibv_rc_pingpong", "DEVICE -g GID -m MTU -n 100 -s 65536"),
    verbs("ibv_uc_pingpong", "DEVICE -g GID -m MTU -n 100 -s 65536"),
    verbs(
        "ib_write_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 65536",
    ),
    verbs(
        "ib_read_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 65536",
    ),
    verbs(
        "ib_send_bw",
        "DEVICE -F -u 20 -x GID -m MTU -n 100 -s 65536",
    ),
    verbs("ib_atomic_bw", "DEVICE -F -u 20 -x GID -m MTU -n 100"),
];

/// In both directions, with either path MTU, while the network loses packets, and while rkey injects faults.
pub(super) const LOSSY: &[Case] = &[
    verbs("ibv_rc_pingpong", "DEVICE -g GID -m MTU -n 300 -s 8192"),
    verbs("ib_write_bw", "DEVICE -F -x GID -m MTU -n 200 -s 16384"),
    verbs("ib_read_bw", "DEVICE -F -x GID -m MTU -n 200 -s 16384"),
    verbs("ib_read_bw", "DEVICE -F -x GID -m MTU -n 10 -s 262144"),
    verbs("ib_send_bw", "DEVICE -F -x GID -m MTU -n 200 -s 16384"),
    verbs("ib_atomic_bw", "DEVICE -F -x GID -m MTU -n 200"),
];

/// This machine's programs that the guest needs.
pub(super) fn programs() -> Vec<&'static str> {
    let all = [
        PINGS,
        PERFTEST,
        SIZES,
        MANAGED,
        STREAMS,
        MANAGED_PERFTEST,
        JUMBO,
        LOSSY,
    ];
    let mut names: Vec<_> = all
        .iter()
        .copied()
        .flatten()
        .map(|case| case.program)
        .collect();
    names.push("rdma_client");
    names.sort_unstable();
    names.dedup();
    names
}

impl Case {
    /// The name of the client's program.
    pub(super) fn client_program(&self) -> &'static str {
        match self.program {
            "rdma_server" => "rdma_client",
            name => name,
        }
    }
}
