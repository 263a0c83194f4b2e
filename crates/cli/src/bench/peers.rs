//! The peers: libfabric and UCX on the same operations, in the same run. Their programs are small C
//! files that travel inside this one and are compiled when they are needed.

use super::result::{Measurement, OURS};
use crate::run;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const COMMON: &str = include_str!("../../../../benches/peers/common.h");
const LOOPS: &str = include_str!("../../../../benches/peers/loops.h");
const FABRIC: &str = include_str!("../../../../benches/peers/fabric.c");
const UCX: &str = include_str!("../../../../benches/peers/ucx.c");
/// Transports for processes of one host.
const UCX_TLS: &str = "posix,cma,self";

/// What the peers are to measure; the same as we.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) operations: Vec<String>,
    pub(crate) modes: Vec<String>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) cores: (usize, usize),
    pub(crate) repetitions: u32,
    pub(crate) seconds: f64,
}

/// The operations that a peer program knows.
const ALL: [&str; 5] = ["write", "read", "send", "atomic", "register"];

impl Order {
    /// Which of the operations that somebody knows are asked for.
    fn asked(&self, known: &[&'static str]) -> Vec<&'static str> {
        let wanted = |op: &&str| self.operations.iter().any(|o| o == op);
        known.iter().copied().filter(wanted).collect()
    }

    /// Arguments that the peer programs have in common.
    fn arguments(&self, operations: &[&str]) -> Vec<String> {
        let pairs = [
            ("--ops", operations.join(",")),
            ("--modes", self.modes.join(",")),
            ("--sizes", list(&self.sizes)),
            ("--cores", format!("{},{}", self.cores.0, self.cores.1)),
            ("--reps", self.repetitions.to_string()),
            ("--seconds", self.seconds.to_string()),
        ];
        pairs
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }
}

/// One run of one peer.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// For the progress bar.
    pub(crate) name: String,
    program: Program,
    arguments: Vec<String>,
    /// Variables that only this run has.
    environment: Vec<(&'static str, PathBuf)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Fabric,
    Ucx,
    Perftest,
}

/// The compiled programs; their directory goes away with this value.
#[derive(Debug)]
pub(crate) struct Peers {
    directory: PathBuf,
    /// Peers that cannot run here, and why.
    pub(crate) missing: Vec<String>,
    has: Vec<Program>,
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Peers {
    /// Compiles what can be compiled here.
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
            (
                Program::Fabric,
                "fabric",
                FABRIC,
                &["-lfabric"][..],
                "libfabric-dev",
            ),
            (
                Program::Ucx,
                "ucx",
                UCX,
                &["-lucp", "-lucs"][..],
                "libucx-dev",
            ),
        ];
        for (program, name, source, libraries, package) in wanted {
            match compile(&peers.directory, name, source, libraries) {
                Ok(()) => peers.has.push(program),
                Err(error) => peers.missing.push(format!(
                    "{name}: {error:#} (Debian packages: gcc {package})"
                )),
            }
        }
        match Command::new("ucx_perftest")
            .arg("-h")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
        {
            Ok(_) => peers.has.push(Program::Perftest),
            Err(error) => peers
                .missing
                .push(format!("ucx_perftest: {error} (Debian package: ucx-utils)")),
        }
        Ok(peers)
    }

    /// The runs that `order` asks for: every peer in every variant that might be its best.
    pub(crate) fn runs(&self, order: &Order, tcp: bool) -> Vec<Run> {
        let asked = |known: &[&'static str]| order.asked(known);
        let all = asked(&ALL);
        let moving = asked(&["write", "read", "send", "atomic"]);
        let over_tcp = if tcp {
            asked(&["write", "read", "send"])
        } else {
            Vec::new()
        };
        let direct = asked(&["direct"])
            .first()
            .map_or(Vec::new(), |_| vec!["write", "read", "atomic"]);
        let shm = ["--provider", "shm"];
        let variants: [(&str, Program, &[&str], &[&str]); 6] = [
            ("libfabric shm", Program::Fabric, &all, &shm),
            (
                "libfabric shm, ordered",
                Program::Fabric,
                &moving,
                &[shm[0], shm[1], "--ordered"],
            ),
            (
                "libfabric shm, delivery",
                Program::Fabric,
                &moving,
                &[shm[0], shm[1], "--completion", "delivery"],
            ),
            (
                "libfabric tcp",
                Program::Fabric,
                &over_tcp,
                &["--provider", "tcp"],
            ),
            (
                "UCX, ordinary memory",
                Program::Ucx,
                &all,
                &["--memory", "ordinary"],
            ),
            (
                "UCX, its own memory",
                Program::Ucx,
                &direct,
                &["--memory", "own"],
            ),
        ];
        let mut runs = Vec::new();
        for (name, program, operations, extra) in variants {
            if !operations.is_empty() && self.has.contains(&program) {
                let extra = extra.iter().map(|word| (*word).to_owned());
                let arguments = order
                    .arguments(operations)
                    .into_iter()
                    .chain(extra)
                    .collect();
                runs.push(Run {
                    name: name.into(),
                    program,
                    arguments,
                    environment: Vec::new(),
                });
            }
        }
        for (test, op, mode) in PERFTESTS {
            // Puts and gets go into UCX's own memory, so they are asked for by `direct`.
            let wanted = if *op == "send" {
                moving.contains(op)
            } else {
                direct.contains(op)
            };
            if wanted
                && order.modes.iter().any(|m| m == mode)
                && self.has.contains(&Program::Perftest)
            {
                runs.extend(order.sizes.iter().map(|size| Run {
                    name: format!("ucx_perftest {test} {size}"),
                    program: Program::Perftest,
                    arguments: vec![(*test).to_owned(), size.to_string()],
                    environment: Vec::new(),
                }));
            }
        }
        runs
    }

    /// Our own provider through libfabric: the same program as for its other providers.
    pub(crate) fn own_provider(&self, order: &Order) -> Result<Vec<Measurement>> {
        if !self.has.contains(&Program::Fabric) {
            bail!("--libfabric: {}", self.missing.join("; "));
        }
        let operations = order.asked(&ALL);
        let provider = ["--provider", "rkey"].map(str::to_owned);
        let run = Run {
            name: "libfabric rkey".into(),
            program: Program::Fabric,
            arguments: order
                .arguments(&operations)
                .into_iter()
                .chain(provider)
                .collect(),
            environment: vec![("FI_PROVIDER_PATH", run::front_ends()?)],
        };
        let mut figures = self.lines("fabric", &run)?;
        for figure in &mut figures {
            figure.peer = OURS.into();
            figure.completion = "delivery".into();
        }
        Ok(figures)
    }

    /// Runs one peer and reads its figures.
    pub(crate) fn measure(&self, run: &Run, order: &Order) -> Result<Vec<Measurement>> {
        match run.program {
            Program::Fabric => self.lines("fabric", run),
            Program::Ucx => self.lines("ucx", run),
            Program::Perftest => perftest(run, order).map(|figure| vec![figure]),
        }
    }

    fn lines(&self, program: &str, run: &Run) -> Result<Vec<Measurement>> {
        let output = Command::new(self.directory.join(program))
            .args(&run.arguments)
            .env("UCX_TLS", UCX_TLS)
            .envs(run.environment.iter().cloned())
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!(
                "{} failed: {}",
                run.name,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // UCX writes its warnings to standard output as well.
        let lines = text.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
            .collect()
    }
}

fn list(sizes: &[u64]) -> String {
    sizes
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

fn compile(directory: &Path, name: &str, source: &str, libraries: &[&str]) -> Result<()> {
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

/// Tests of `ucx_perftest` and what they are here: test, operation, mode.
const PERFTESTS: &[(&str, &str, &str)] = &[
    ("ucp_put_bw", "write", "stream"),
    ("ucp_put_lat", "write", "oneway"),
    ("ucp_get", "read", "stream"),
    ("tag_lat", "send", "oneway"),
];

/// Runs both sides of `ucx_perftest` and reads the line of figures.
fn perftest(run: &Run, order: &Order) -> Result<Measurement> {
    let [test, size] = &run.arguments[..] else {
        bail!("a perftest has a test and a size")
    };
    let size: u64 = size.parse()?;
    let Some((_, op, mode)) = PERFTESTS.iter().find(|(name, ..)| name == test) else {
        bail!("no perftest {test}")
    };
    let iterations = (200_000_000 / (size + 2_000))
        .clamp(500, 500_000)
        .to_string();
    let mut figures = Vec::new();
    for _ in 0..order.repetitions.min(3) {
        figures.push(perftest_once(test, size, &iterations, order)?);
    }
    figures.sort_by(f64::total_cmp);
    // Puts and gets go into memory that UCX allocated itself; tagged messages copy or use CMA.
    let memory = if *op == "send" { "ordinary" } else { "own" };
    Ok(Measurement {
        peer: "ucx_perftest".into(),
        version: perftest_version(),
        provider: UCX_TLS.into(),
        memory: memory.into(),
        completion: "default".into(),
        op: (*op).into(),
        mode: (*mode).into(),
        size,
        condition: "static".into(),
        live: 0,
        median_ns: figures[figures.len() / 2],
        min_ns: figures[0],
        max_ns: figures[figures.len() - 1],
        reps: u32::try_from(figures.len()).unwrap_or(u32::MAX),
        p99_ns: None,
    })
}

/// How long the two sides of `ucx_perftest` may take to meet, on a busy machine.
const MEETING: Duration = Duration::from_secs(30);

fn perftest_once(test: &str, size: u64, iterations: &str, order: &Order) -> Result<f64> {
    let side = |port: &str, core: usize| {
        let mut command = Command::new("ucx_perftest");
        command
            .args(["-p", port, "-c", &core.to_string()])
            .env("UCX_TLS", UCX_TLS);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let serve = || -> Result<(String, Child)> {
        let port = free_port()?.to_string();
        let server = side(&port, order.cores.1).stdout(Stdio::null()).spawn()?;
        Ok((port, server))
    };
    let (mut port, mut server) = serve()?;
    let size = size.to_string();
    let mut said = Err(anyhow::anyhow!(
        "ucx_perftest {test}: the two sides did not meet"
    ));
    let until = Instant::now() + MEETING;
    // The server needs a moment to listen, and a client that comes too early gives up. Somebody else may have taken the
    // port meanwhile: then the server has ended.
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        if !matches!(server.try_wait(), Ok(None)) {
            (port, server) = serve()?;
            continue;
        }
        let mut client = side(&port, order.cores.0);
        client.args([
            "127.0.0.1",
            "-t",
            test,
            "-s",
            &size,
            "-n",
            iterations,
            "-w",
            "1000",
            "-v",
            "-f",
        ]);
        let output = client.output()?;
        if output.status.success() {
            said = Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            break;
        }
    }
    let _ = server.kill();
    let _ = server.wait();
    parse_perftest(&said?)
}

/// Nanoseconds of one operation from the comma separated output: `overall_lat` is in microseconds.
fn parse_perftest(text: &str) -> Result<f64> {
    let mut lines = text
        .lines()
        .filter(|line| line.contains(',') && !line.starts_with('['));
    let head = lines.next().context("ucx_perftest printed nothing")?;
    let figures = lines.next().context("ucx_perftest printed no figures")?;
    let column = head
        .split(',')
        .position(|name| name == "overall_lat")
        .context("no column overall_lat")?;
    let value = figures
        .split(',')
        .nth(column)
        .context("a short line of figures")?;
    Ok(value.trim().parse::<f64>()? * 1000.0)
}

fn perftest_version() -> String {
    let said = Command::new("ucx_info").arg("-v").output().ok();
    let text = said
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let word = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().last());
    word.unwrap_or("unknown").to_owned()
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_run_what_was_asked_for() {
        let order = |operations: &[&str]| Order {
            operations: operations.iter().map(|op| (*op).to_owned()).collect(),
            modes: vec!["stream".into()],
            sizes: vec![8],
            cores: (0, 1),
            repetitions: 1,
            seconds: 0.1,
        };
        let peers = Peers {
            directory: std::env::temp_dir().join("rkey-peers-of-a-test"),
            missing: Vec::new(),
            has: vec![Program::Fabric, Program::Ucx, Program::Perftest],
        };
        let names = |operations: &[&str]| -> Vec<String> {
            peers
                .runs(&order(operations), false)
                .into_iter()
                .map(|run| run.name)
                .collect()
        };
        assert_eq!(names(&["check", "sleep"]), Vec::<String>::new());
        assert_eq!(
            names(&["register"]),
            ["libfabric shm", "UCX, ordinary memory"]
        );
        let own = [
            "UCX, its own memory",
            "ucx_perftest ucp_put_bw 8",
            "ucx_perftest ucp_get 8",
        ];
        assert_eq!(names(&["direct"]), own);
    }

    #[test]
    fn the_output_of_perftest_is_read() {
        let text = "[17] UCX WARN something, with a comma\n\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n50000,0.015,0.018,0.018,435.02\n";
        let ns = parse_perftest(text).expect("reads");
        assert!((ns - 18.0).abs() < 1e-9);
        assert!(parse_perftest("").is_err());
        assert!(parse_perftest("a,b\n1,2\n").is_err());
    }
}
