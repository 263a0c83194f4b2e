//! The peers: libfabric and UCX, with the same operations in the same run. Their programs are small C files that are
//! embedded in this program and compiled when needed. Each configuration that might be a peer's fastest is a
//! contestant.

use super::contestant::Contestant;
use super::external::{External, Offer};
use super::perftest::Perftest;
use super::plan::Step;
use super::result::OURS;
use super::stop::Stop;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const COMMON: &str = include_str!("../../../benches/peers/common.h");
const LOOPS: &str = include_str!("../../../benches/peers/loops.h");
const FABRIC: &str = include_str!("../../../benches/peers/fabric.c");
const UCX: &str = include_str!("../../../benches/peers/ucx.c");
/// Transports for processes of one host.
pub(crate) const UCX_TLS: &str = "posix,cma,self";

/// The parameters of the peers' programs.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) sizes: Vec<u64>,
    pub(crate) cores: (usize, usize),
}

/// Operations that a peer's program supports.
const ALL: &[&str] = &["write", "read", "send", "atomic", "register"];
const MOVING: &[&str] = &["write", "read", "send", "atomic"];
const OVER_TCP: &[&str] = &["write", "read", "send"];
const OF_OWN_MEMORY: &[&str] = &["write", "read", "atomic"];

/// A program with options that might be its fastest.
struct Variant {
    name: &'static str,
    program: &'static str,
    operations: &'static [&'static str],
    memory: &'static str,
    options: &'static [&'static str],
}

const VARIANTS: &[Variant] = &[
    Variant {
        name: "libfabric shm",
        program: "fabric",
        operations: ALL,
        memory: "ordinary",
        options: &["--provider", "shm"],
    },
    Variant {
        name: "libfabric shm, ordered",
        program: "fabric",
        operations: MOVING,
        memory: "ordinary",
        options: &["--provider", "shm", "--ordered"],
    },
    Variant {
        name: "libfabric shm, delivery",
        program: "fabric",
        operations: MOVING,
        memory: "ordinary",
        options: &["--provider", "shm", "--completion", "delivery"],
    },
    Variant {
        name: "UCX, ordinary memory",
        program: "ucx",
        operations: ALL,
        memory: "ordinary",
        options: &["--memory", "ordinary"],
    },
    Variant {
        name: "UCX, its own memory",
        program: "ucx",
        operations: OF_OWN_MEMORY,
        memory: "own",
        options: &["--memory", "own"],
    },
];

const TCP: Variant = Variant {
    name: "libfabric tcp",
    program: "fabric",
    operations: OVER_TCP,
    memory: "ordinary",
    options: &["--provider", "tcp"],
};

/// Our own provider through libfabric: the same program as for its other providers.
const OWN_PROVIDER: Variant = Variant {
    name: "libfabric rkey",
    program: "fabric",
    operations: ALL,
    memory: "ordinary",
    options: &["--provider", "rkey"],
};

impl Variant {
    /// The steps that it can run.
    fn offer(&self, steps: &[Step]) -> Offer {
        let mut offer = Offer {
            operations: self.operations.to_vec(),
            memory: self.memory,
        };
        let asked: Vec<String> = steps
            .iter()
            .filter(|step| offer.has(step))
            .map(|step| step.subject().op)
            .collect();
        offer
            .operations
            .retain(|operation| asked.iter().any(|op| op == operation));
        offer
    }
}

/// The compiled programs; dropping it removes their directory.
#[derive(Debug)]
pub(crate) struct Peers {
    directory: PathBuf,
    /// Peers that cannot run here, and why.
    pub(crate) missing: Vec<String>,
    has: Vec<&'static str>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Peers {
    /// Compiles the programs that can be compiled here.
    pub(crate) fn build() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("rkey-peers-{}", std::process::id()));
        std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let mut peers = Self {
            directory,
            missing: Vec::new(),
            has: Vec::new(),
        };
        for (name, text) in [("common.h", COMMON), ("loops.h", LOOPS)] {
            std::fs::write(peers.directory.join(name), text)?;
        }
        let wanted = [
            ("fabric", FABRIC, &["-lfabric"][..], "libfabric-dev"),
            ("ucx", UCX, &["-lucp", "-lucs"][..], "libucx-dev"),
        ];
        for (name, source, libraries, package) in wanted {
            match compile(&peers.directory, name, source, libraries) {
                Ok(()) => peers.has.push(name),
                Err(error) => peers.missing.push(format!(
                    "{name}: {error:#} (Debian packages: gcc {package})"
                )),
            }
        }
        Ok(peers)
    }

    /// Starts every peer that supports one of the steps. Those that do not start are listed as missing.
    pub(crate) fn start(
        &mut self,
        setup: &Setup,
        steps: &[Step],
        tcp: bool,
        stop: &Stop,
    ) -> Vec<Box<dyn Contestant>> {
        let mut started: Vec<Box<dyn Contestant>> = Vec::new();
        for variant in VARIANTS.iter().chain(tcp.then_some(&TCP)) {
            let offer = variant.offer(steps);
            if offer.operations.is_empty()
                || !self.has.contains(&variant.program)
                || stop.reason().is_some()
            {
                continue;
            }
            let command = self.command(variant, &offer, setup);
            match External::start(variant.name, command, offer, stop) {
                Ok(peer) => started.push(Box::new(peer)),
                Err(error) => self.missing.push(format!("{}: {error:#}", variant.name)),
            }
        }
        match Perftest::find(setup.cores) {
            Ok(perftest) if steps.iter().any(|step| perftest.takes(step)) => {
                started.push(Box::new(perftest));
            }
            Ok(_) => {}
            Err(error) => self.missing.push(format!("ucx_perftest: {error:#}")),
        }
        started
    }

    /// Starts our own libfabric provider from `front_ends`; it counts as us.
    pub(crate) fn start_own_provider(
        &self,
        setup: &Setup,
        steps: &[Step],
        stop: &Stop,
        front_ends: &Path,
    ) -> Result<External> {
        if !self.has.contains(&OWN_PROVIDER.program) {
            bail!("--libfabric: {}", self.missing.join("; "));
        }
        let offer = OWN_PROVIDER.offer(steps);
        let mut command = self.command(&OWN_PROVIDER, &offer, setup);
        command.env("FI_PROVIDER_PATH", front_ends);
        let own =
            External::start(OWN_PROVIDER.name, command, offer, stop).context(OWN_PROVIDER.name)?;
        Ok(own.counts_as(OURS, "delivery"))
    }

    fn command(&self, variant: &Variant, offer: &Offer, setup: &Setup) -> Command {
        let mut command = Command::new(self.directory.join(variant.program));
        command
            .args(["--ops", &offer.operations.join(",")])
            .args(["--sizes", &list(&setup.sizes)])
            .args(["--cores", &format!("{},{}", setup.cores.0, setup.cores.1)])
            .args(variant.options)
            .env("UCX_TLS", UCX_TLS);
        command
    }
}

fn list(sizes: &[u64]) -> String {
    sizes
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// Compiles a program, or says why that is not possible here.
pub(crate) fn compile(
    directory: &Path,
    name: &str,
    source: &str,
    libraries: &[&str],
) -> Result<()> {
    let file = directory.join(format!("{name}.c"));
    std::fs::write(&file, source)?;
    let output = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(directory.join(name))
        .arg(&file)
        .args(libraries)
        .output()
        .context("no C compiler")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!(
            "does not compile: {}",
            said.lines().next().unwrap_or("no message")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::plan::{self, MODES};
    use super::*;

    #[test]
    fn peer_variants_offer_only_the_requested_operations() {
        let words =
            |list: &[&str]| -> Vec<String> { list.iter().map(|word| (*word).to_owned()).collect() };
        let offers = |operations: &[&str]| -> Vec<(&str, Vec<&str>)> {
            let steps = plan::steps(&words(operations), &words(MODES), &[8, 4096], &[0]);
            VARIANTS
                .iter()
                .map(|variant| (variant.name, variant.offer(&steps).operations))
                .filter(|(_, operations)| !operations.is_empty())
                .collect()
        };
        assert!(offers(&["check", "sleep"]).is_empty());
        let registering = [
            ("libfabric shm", vec!["register"]),
            ("UCX, ordinary memory", vec!["register"]),
        ];
        assert_eq!(offers(&["register"]), registering);
        let direct = [("UCX, its own memory", vec!["write", "read", "atomic"])];
        assert_eq!(offers(&["direct"]), direct);
        assert_eq!(
            offers(&["send", "check"])[0],
            ("libfabric shm", vec!["send"])
        );
        assert_eq!(offers(&["send"]).len(), 4);
    }
}
