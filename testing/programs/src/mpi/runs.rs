//! The runs of the C program: the MPI, the provider, the parts and the user of each.

/// The number of ranks of every run.
pub(super) const RANKS: &str = "4";

const EVERYTHING: &[&str] = &[
    "messages",
    "matched",
    "truncation",
    "collectives",
    "access",
    "windows",
];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mpi {
    Open,
    Mpich,
    Intel,
}

impl Mpi {
    pub(super) const ALL: [Self; 3] = [Self::Open, Self::Mpich, Self::Intel];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Open => "openmpi",
            Self::Mpich => "mpich",
            Self::Intel => "intel",
        }
    }

    /// The MPI whose compiler builds its programs: Intel MPI has no compiler and runs programs built for MPICH.
    pub(super) const fn compiled_by(self) -> Self {
        match self {
            Self::Open => Self::Open,
            Self::Mpich | Self::Intel => Self::Mpich,
        }
    }

    /// What the MPI prints when it uses the provider.
    pub(super) const fn proof(self) -> &'static str {
        match self {
            Self::Open => "mtl:ofi:provider: rkey0",
            Self::Mpich | Self::Intel => "libfabric provider: rkey",
        }
    }

    /// Tests of mpi4py that stop the others: with Open MPI, a send that cannot be canceled is an error, and its
    /// message then disturbs later tests, with every provider.
    pub(super) const fn left_out(self) -> &'static str {
        match self {
            Self::Open => "Cancel",
            Self::Mpich | Self::Intel => "",
        }
    }
}

/// A run of the C program.
pub(super) struct Run {
    pub(super) mpi: Mpi,
    pub(super) provider: &'static str,
    pub(super) environment: &'static [(&'static str, &'static str)],
    pub(super) parts: &'static [&'static str],
    pub(super) unprivileged: bool,
    /// Open MPI's windows use the provider's RMA instead of messages: `osc rdma` over `btl ofi`.
    pub(super) direct: bool,
}

const fn run(mpi: Mpi, provider: &'static str, parts: &'static [&'static str]) -> Run {
    Run {
        mpi,
        provider,
        environment: &[],
        parts,
        unprivileged: false,
        direct: false,
    }
}

/// The provider alone, and with libfabric's own layer on top.
pub(super) const PLAIN: &str = "rkey";
pub(super) const LAYERED: &str = "rkey;ofi_rxm";

/// A monitor of the registration cache, in a mode in which the provider registers the buffers of a program that does not offer
/// `FI_MR_LOCAL`.
pub(super) type Monitor = [(&'static str, &'static str); 2];

const USERFAULTFD: &Monitor = &with_monitor("userfaultfd");
const MEMHOOKS: &Monitor = &with_monitor("memhooks");
const DISABLED: &Monitor = &with_monitor("disabled");

pub(super) const MONITORS: [&Monitor; 3] = [USERFAULTFD, MEMHOOKS, DISABLED];

const fn with_monitor(name: &'static str) -> Monitor {
    [("FI_RKEY_MR_MODE", "LOCAL"), ("FI_MR_CACHE_MONITOR", name)]
}

const fn cached(monitor: &'static Monitor) -> Run {
    Run {
        environment: monitor,
        ..run(Mpi::Open, PLAIN, EVERYTHING)
    }
}

/// The line with which the provider reports the monitor, if the environment chooses one.
pub(super) fn monitor_line(environment: &[(&str, &str)]) -> Option<String> {
    let mut chosen = environment.iter();
    let (_, name) = chosen.find(|(variable, _)| *variable == "FI_MR_CACHE_MONITOR")?;
    Some(format!("registration cache: monitor {name}"))
}

pub(super) const RUNS: &[Run] = &[
    run(Mpi::Open, PLAIN, EVERYTHING),
    run(Mpi::Mpich, PLAIN, EVERYTHING),
    run(Mpi::Intel, PLAIN, EVERYTHING),
    // The ofi_rxm of libfabric 1.17 never completes a message that it sends in segments and a matched probe has taken,
    // over any provider. `rkey run` sets the variable for that.
    run(
        Mpi::Open,
        LAYERED,
        &["messages", "collectives", "access", "windows"],
    ),
    Run {
        environment: &[("FI_OFI_RXM_SAR_LIMIT", "0")],
        ..run(Mpi::Open, LAYERED, EVERYTHING)
    },
    // MPICH over ofi_rxm mishandles messages that are longer than their receives.
    run(
        Mpi::Mpich,
        LAYERED,
        &["messages", "matched", "collectives", "access", "windows"],
    ),
    Run {
        environment: &[("FI_RKEY_PROFILE", "efa")],
        ..run(Mpi::Mpich, PLAIN, &["messages", "access", "windows"])
    },
    Run {
        environment: &[("FI_RKEY_PROFILE", "efa")],
        ..run(Mpi::Intel, PLAIN, EVERYTHING)
    },
    Run {
        environment: &[("FI_RKEY_PROFILE", "cxi")],
        ..run(Mpi::Mpich, PLAIN, &["messages", "access", "windows"])
    },
    // Open MPI's `btl ofi` lacks some operations of accumulates, and crashes when a rank compares and swaps in its own
    // window.
    Run {
        direct: true,
        ..run(Mpi::Open, PLAIN, &["access"])
    },
    cached(USERFAULTFD),
    cached(MEMHOOKS),
    cached(DISABLED),
    Run {
        unprivileged: true,
        ..cached(USERFAULTFD)
    },
    Run {
        unprivileged: true,
        ..cached(MEMHOOKS)
    },
    Run {
        unprivileged: true,
        ..run(Mpi::Open, PLAIN, &["messages", "access", "windows"])
    },
    Run {
        unprivileged: true,
        ..run(Mpi::Mpich, PLAIN, &["messages", "access", "windows"])
    },
    Run {
        unprivileged: true,
        ..run(Mpi::Intel, PLAIN, &["messages", "access", "windows"])
    },
];
