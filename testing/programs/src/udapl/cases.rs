//! The programs, their arguments, and what they print on success.

use std::fmt;

/// A run of a client, or of a program that needs no server.
pub(super) struct Case {
    pub(super) program: &'static str,
    pub(super) words: &'static [&'static str],
    /// What the program prints on success; `|` separates alternatives.
    pub(super) says: &'static [&'static str],
    /// What the server prints on success.
    pub(super) server_says: &'static [&'static str],
    /// Lines that look like failures but are not.
    pub(super) may_say: &'static [&'static str],
    /// How many times the program prints [`PASS`].
    pub(super) passes: usize,
}

/// A server and its clients, which run one after the other.
pub(super) struct Scene {
    pub(super) program: &'static str,
    /// Arguments of both sides.
    pub(super) both: &'static [&'static str],
    /// Arguments of the server only.
    pub(super) server: &'static [&'static str],
    /// The TCP port on which the server listens when it is ready.
    pub(super) port: Option<u16>,
    /// What the server prints when it is ready, if it has no port.
    pub(super) ready: &'static str,
    pub(super) clients: &'static [Case],
}

/// What `dapltest` prints after a case that succeeds.
pub(super) const PASS: &str = "Result: PASS";
/// Successful programs print none of these.
pub(super) const COMPLAINTS: &[&str] = &[
    "rror",
    "ERR",
    "arning",
    "FAILED",
    "FAIL:",
    "failed",
    "fails",
    "Failed",
    "Result: FAIL",
];

/// The port on which `dtest` and related programs exchange addresses.
pub(super) const PORT: u16 = 15_828;

impl Case {
    /// A client on this host.
    pub(super) const CLIENT: Self = Self {
        program: "dtest",
        words: &["-h", "127.0.0.1"],
        says: &["DAPL Test Complete. PASSED"],
        server_says: &["DAPL Test Complete. PASSED"],
        may_say: &[],
        passes: 0,
    };

    /// A program without a server.
    const ALONE: Self = Self {
        server_says: &[],
        ..Self::CLIENT
    };
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.program, self.words.join(" "))
    }
}

/// `dtest` in one of its modes.
const fn dtest(both: &'static [&'static str]) -> Scene {
    Scene {
        program: "dtest",
        both,
        server: &["-s"],
        port: Some(PORT),
        ready: "",
        clients: &[Case::CLIENT],
    }
}

/// `dtestcm`, which connects many EPs at once.
const fn dtestcm(both: &'static [&'static str]) -> Scene {
    Scene {
        program: "dtestcm",
        clients: &[Case {
            program: "dtestcm",
            says: &["CONNECTED on Client!", "DAPL Connection Test Complete."],
            server_says: &["CONNECTED on Server!", "DAPL Connection Test Complete."],
            ..Case::CLIENT
        }],
        ..dtest(both)
    }
}

/// `dtestx`, the extensions for InfiniBand.
const fn dtestx(both: &'static [&'static str], says: &'static [Case]) -> Scene {
    Scene {
        program: "dtestx",
        clients: says,
        ..dtest(both)
    }
}

const EXTENDED: &[Case] = &[Case {
    program: "dtestx",
    says: EXTENSIONS,
    server_says: EXTENSIONS,
    ..Case::CLIENT
}];

const EXTENSIONS: &[&str] = &[
    "RDMA_WRITE_WITH_IMMEDIATE_DATA test - PASSED",
    "CMP_SWAP test - PASSED",
    "FETCH_ADD test - PASSED",
    "IB extension test - immed/atomic test PASSED",
];

/// Datagrams between two sides that both get each other's name as an argument.
const EXTENDED_UD: &[Case] = &[Case {
    program: "dtestx",
    words: &["-c", "-h", "127.0.0.1"],
    says: &["IB extension test - UD test PASSED"],
    server_says: &["IB extension test - UD test PASSED"],
    ..Case::CLIENT
}];

/// `dtestsrq`, receives that several EPs share.
const fn dtestsrq(both: &'static [&'static str]) -> Scene {
    Scene {
        program: "dtestsrq",
        port: None,
        ready: "ready on port",
        clients: &[Case {
            program: "dtestsrq",
            says: &["CONNECTED on client!", "SRQ Test Complete."],
            server_says: &["CONNECTED on server!", "SRQ Test Complete."],
            ..Case::CLIENT
        }],
        ..dtest(both)
    }
}

/// A transaction test of `dapltest`.
const fn transaction(words: &'static [&'static str]) -> Case {
    Case {
        program: "dapltest",
        words,
        // `dapltest` prints no figures if the run was too short for its clock.
        says: &[
            "----- Stats ---- :|----- Test completed successfully",
            "Total WQE|----- enough time has lapsed",
            "End of Work",
        ],
        server_says: &["Server: Transaction Test Finished for this client"],
        ..Case::CLIENT
    }
}

/// A performance test of `dapltest`.
const fn performance(words: &'static [&'static str]) -> Case {
    Case {
        program: "dapltest",
        words,
        says: &["Operation Throughput", "raw: R", "End of Work"],
        server_says: &["Server: Finished performance test."],
        ..Case::CLIENT
    }
}

/// The server of `dapltest`, with all its clients; the last one shuts it down.
const DAPLTEST: Scene = Scene {
    program: "dapltest",
    both: &[],
    server: &["-T", "S", "-D", "rkey-lo"],
    port: None,
    ready: "Service Point Ready",
    clients: &[
        transaction(&[
            "-T",
            "T",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "200",
            "client",
            "SR",
            "256",
            "1",
            "server",
            "SR",
            "256",
            "1",
        ]),
        transaction(&[
            "-T",
            "T",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "100",
            "-t",
            "2",
            "-w",
            "4",
            "-V",
            "client",
            "SR",
            "1024",
            "3",
            "server",
            "SR",
            "256",
            "3",
            "client",
            "RW",
            "4096",
            "1",
            "server",
            "RR",
            "2048",
            "4",
        ]),
        transaction(&[
            "-T",
            "T",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "100",
            "-t",
            "4",
            "-w",
            "2",
            "-P",
            "client",
            "SR",
            "1024",
            "server",
            "SR",
            "1024",
            "server",
            "RW",
            "65536",
            "client",
            "RR",
            "65536",
        ]),
        transaction(&[
            "-T",
            "T",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "100",
            "-t",
            "1",
            "-w",
            "8",
            "-V",
            "-r",
            "client",
            "SR",
            "4096",
            "2",
            "server",
            "SR",
            "4096",
            "2",
            "client",
            "RR",
            "8192",
            "2",
        ]),
        transaction(&[
            "-T",
            "T",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "100",
            "-t",
            "2",
            "-w",
            "2",
            "client",
            "SR",
            "1024",
            "1",
            "-f",
            "server",
            "SR",
            "1024",
            "1",
            "-f",
            "client",
            "RW",
            "4096",
        ]),
        transaction(&[
            "-T",
            "T",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "20",
            "-t",
            "1",
            "-w",
            "1",
            "-V",
            "client",
            "SR",
            "1048576",
            "server",
            "SR",
            "1048576",
            "client",
            "RW",
            "1048576",
            "server",
            "RR",
            "1048576",
        ]),
        performance(&[
            "-T",
            "P",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "2048",
            "-m",
            "b",
            "RW",
            "4096",
            "2",
        ]),
        performance(&[
            "-T",
            "P",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "2048",
            "-m",
            "b",
            "RR",
            "4096",
            "2",
        ]),
        performance(&[
            "-T",
            "P",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "2048",
            "-m",
            "p",
            "RW",
            "4096",
            "2",
        ]),
        performance(&[
            "-T",
            "P",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "2048",
            "-m",
            "p",
            "RR",
            "4096",
            "2",
        ]),
        performance(&[
            "-T",
            "P",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "2048",
            "-p",
            "1",
            "-m",
            "p",
            "RW",
            "8",
            "1",
        ]),
        performance(&[
            "-T",
            "P",
            "-s",
            "127.0.0.1",
            "-D",
            "rkey-lo",
            "-i",
            "256",
            "-m",
            "b",
            "RW",
            "1048576",
            "1",
        ]),
        Case {
            program: "dapltest",
            words: &["-T", "Q", "-s", "127.0.0.1", "-D", "rkey-lo"],
            says: &[],
            server_says: &["Exiting."],
            ..Case::CLIENT
        },
    ],
};

/// The cases that need two processes.
pub(super) const SCENES: &[Scene] = &[
    dtest(&["-P", "rkey-lo", "-b", "64"]),
    dtest(&["-P", "rkey-lo", "-b", "64", "-c"]),
    dtest(&["-P", "rkey-lo", "-b", "64", "-p"]),
    dtest(&["-P", "rkey-lo", "-b", "64", "-v"]),
    dtest(&["-P", "rkey-lo", "-b", "4096", "-w"]),
    dtest(&["-P", "rkey-lo", "-b", "4096", "-w", "-u"]),
    dtest(&["-P", "rkey-lo", "-b", "4096", "-W"]),
    dtest(&["-P", "rkey-lo", "-b", "4096", "-W", "-D"]),
    dtest(&["-P", "rkey-lo", "-b", "65536", "-W", "-a"]),
    dtest(&["-P", "rkey-lo", "-b", "4096", "-B", "100"]),
    dtest(&["-P", "rkey-lo", "-b", "1048576", "-B", "20", "-t"]),
    dtestcm(&["-P", "rkey-lo", "-c", "1000"]),
    dtestcm(&["-P", "rkey-lo", "-c", "200", "-m"]),
    dtestcm(&["-P", "rkey-lo", "-c", "200", "-w"]),
    dtestx(&["-P", "rkey-lo"], EXTENDED),
    dtestx(&["-P", "rkey-lo", "-p"], EXTENDED),
    Scene {
        server: &["-s", "-h", "127.0.0.1"],
        ..dtestx(&["-P", "rkey-lo", "-u"], EXTENDED_UD)
    },
    Scene {
        server: &["-s", "-h", "127.0.0.1"],
        ..dtestx(&["-P", "rkey-lo", "-U", "4"], EXTENDED_UD)
    },
    dtestsrq(&["-P", "rkey-lo", "-c", "10", "-b", "2048"]),
    dtestsrq(&["-P", "rkey-lo", "-c", "100", "-b", "2048", "-B", "4"]),
    dtestsrq(&["-P", "rkey-lo", "-c", "10", "-b", "2048", "-S", "0"]),
    DAPLTEST,
];

/// A limit test of `dapltest`: creates up to this many objects of each kind.
const fn limit(words: &'static [&'static str]) -> Case {
    Case {
        program: "dapltest",
        words,
        says: &[
            "IAs opened: 100",
            "PZs created: 100",
            "CNOs created: 100",
            "EVDs created: 100",
            "EPs created: 100",
            "RSPs created: 100",
            "PSPs created: 100",
            "LMRs created: 100",
            "LMR of 0x40000000 bytes OK - stopping now.",
        ],
        // The test posts until the queue is full.
        may_say: &["dat_ep_post_recv fails: DAT_INSUFFICIENT_RESOURCES"],
        ..Case::ALONE
    }
}

/// A functional test of `dapltest`, and how many of its cases succeed.
const fn functional(passes: usize, words: &'static [&'static str]) -> Case {
    Case {
        program: "dapltest",
        words,
        says: &[],
        // One of the cases tests exactly this failure.
        may_say: &["Querying fails with"],
        passes,
        ..Case::ALONE
    }
}

/// The cases that need one process.
pub(super) const ALONE: &[Case] = &[
    limit(&["-T", "L", "-D", "rkey-lo", "-w", "8", "-m", "100"]),
    functional(
        4,
        &[
            "-T",
            "F",
            "-D",
            "rkey-lo",
            "-s",
            "127.0.0.1",
            "-f",
            "hwconn",
        ],
    ),
    functional(
        3,
        &[
            "-T",
            "F",
            "-D",
            "rkey-lo",
            "-s",
            "127.0.0.1",
            "-f",
            "endpoint",
        ],
    ),
    functional(
        3,
        &["-T", "F", "-D", "rkey-lo", "-s", "127.0.0.1", "-f", "pz"],
    ),
    functional(
        5,
        &["-T", "F", "-D", "rkey-lo", "-s", "127.0.0.1", "-f", "mem"],
    ),
    functional(
        2,
        &[
            "-T",
            "F",
            "-D",
            "rkey-lo",
            "-s",
            "127.0.0.1",
            "-f",
            "connmgt",
        ],
    ),
    // Cases 13 and 15 pass the handle of an IA where another handle belongs, which crashes libdat2 itself.
    functional(
        15,
        &[
            "-T",
            "F",
            "-D",
            "rkey-lo",
            "-s",
            "127.0.0.1",
            "-f",
            "queryinfo",
            "case0",
            "case1",
            "case2",
            "case3",
            "case4",
            "case5",
            "case6",
            "case7",
            "case8",
            "case9",
            "case10",
            "case11",
            "case12",
            "case14",
            "case16",
            "case17",
        ],
    ),
    Case {
        program: "dtestx",
        words: &["-P", "rkey-lo", "-q"],
        says: &["Open_Query"],
        ..Case::ALONE
    },
];
