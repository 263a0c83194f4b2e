//! UCX's own benchmark. The program cannot wait for its turn, so each repetition runs both sides.

use super::child::{self, Guard};
use super::contestant::{Contestant, Label, Sample};
use super::peers::UCX_TLS;
use super::plan::{Effort, Step};
use super::result::Subject;
use super::stop::Stop;
use anyhow::{Context, Result};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tests of `ucx_perftest` and their counterparts here: test, operation, mode, memory. Puts and gets go to
/// memory that UCX allocated itself; tagged messages copy or use CMA.
const TESTS: &[(&str, &str, &str, &str)] = &[
    ("ucp_put_bw", "write", "stream", "own"),
    ("ucp_put_lat", "write", "oneway", "own"),
    ("ucp_get", "read", "stream", "own"),
    ("tag_lat", "send", "oneway", "ordinary"),
];
/// Few, because starting both sides takes about a second.
const REPETITIONS: u32 = 3;

/// The program, if it is installed.
pub(crate) struct Perftest {
    cores: (usize, usize),
    version: String,
}

impl Perftest {
    /// Finds the program.
    ///
    /// # Errors
    /// It is not installed.
    pub(crate) fn find(cores: (usize, usize)) -> Result<Self> {
        Command::new("ucx_perftest")
            .arg("-h")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("cannot start ucx_perftest (Debian package: ucx-utils)")?;
        Ok(Self {
            cores,
            version: perftest_version(),
        })
    }
}

/// The test that measures a subject.
fn test_of(subject: &Subject) -> Option<&'static str> {
    let same = |(_, op, mode, memory): &&(&str, &str, &str, &str)| {
        subject.op == *op && subject.mode == *mode && subject.memory == *memory
    };
    let (test, ..) = TESTS.iter().find(same)?;
    (subject.condition == "static").then_some(test)
}

impl Contestant for Perftest {
    fn name(&self) -> String {
        "ucx_perftest".into()
    }

    fn takes(&self, step: &Step) -> bool {
        test_of(&step.subject()).is_some()
    }

    fn label(&self, _: &Step) -> Label {
        Label {
            peer: "ucx_perftest".into(),
            version: self.version.clone(),
            provider: UCX_TLS.into(),
            completion: "default".into(),
        }
    }

    fn prepare(&mut self, step: &Step, effort: &Effort, _: &Stop) -> Result<u64> {
        let size = step.subject().size;
        Ok((200_000_000 / (size + 2_000) / effort.fewer).clamp(500, 500_000))
    }

    fn run(&mut self, step: &Step, count: u64, stop: &Stop) -> Result<Sample> {
        let subject = step.subject();
        let test = test_of(&subject).context("no test of ucx_perftest measures this")?;
        let ns = perftest_once(test, subject.size, &count.to_string(), self.cores, stop)?;
        Ok(Sample::of(ns))
    }

    fn most_repetitions(&self, _: &Step) -> u32 {
        REPETITIONS
    }
}

/// How long the two sides of `ucx_perftest` may take to meet, on a busy machine.
const MEETING: Duration = Duration::from_secs(30);

/// How often a wait checks whether the benchmark should stop.
const LOOK: Duration = Duration::from_millis(10);

fn perftest_once(
    test: &str,
    size: u64,
    iterations: &str,
    cores: (usize, usize),
    stop: &Stop,
) -> Result<f64> {
    let side = |port: &str, core: usize| {
        let mut command = Command::new("ucx_perftest");
        command
            .args(["-p", port, "-c", &core.to_string()])
            .env("UCX_TLS", UCX_TLS);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    };
    let serve = || -> Result<(String, Guard)> {
        let port = free_port()?.to_string();
        let server = child::start(side(&port, cores.1).stdout(Stdio::null()))?;
        Ok((port, Guard(server)))
    };
    let (mut port, mut server) = serve()?;
    let size = size.to_string();
    let mut said = Err(anyhow::anyhow!(
        "ucx_perftest {test}: the two sides did not connect"
    ));
    let until = Instant::now() + MEETING;
    // The server needs a moment to listen, and a client that starts too early gives up. If another program has taken the
    // port in the meantime, the server has exited.
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        stop.check()?;
        if !matches!(server.0.try_wait(), Ok(None)) {
            (port, server) = serve()?;
            continue;
        }
        let mut client = side(&port, cores.0);
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
        if let Some(text) = output_of(&mut client, stop)? {
            said = Ok(text);
            break;
        }
    }
    drop(server);
    parse_perftest(&said?)
}

/// Runs a program to its end and returns its output; `None` if it failed.
///
/// # Errors
/// It cannot be started, or was killed because the benchmark stops.
fn output_of(command: &mut Command, stop: &Stop) -> Result<Option<String>> {
    let mut child = Guard(child::start(command.stdout(Stdio::piped()))?);
    let out = child.0.stdout.take();
    let mut out = out.context("the output of ucx_perftest is not piped")?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).map(|_| text)
    });
    let status = loop {
        match child.0.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(LOOK),
        }
        stop.check()?;
    };
    let text = reader
        .join()
        .map_err(|_| anyhow::anyhow!("the thread that reads ucx_perftest's output panicked"))??;
    Ok(status
        .success()
        .then(|| String::from_utf8_lossy(&text).into_owned()))
}

/// Nanoseconds of one operation from the comma-separated output; `overall_lat` is in microseconds.
fn parse_perftest(text: &str) -> Result<f64> {
    let mut lines = text
        .lines()
        .filter(|line| line.contains(',') && !line.starts_with('['));
    let head = lines.next().context("ucx_perftest printed nothing")?;
    let figures = lines.next().context("ucx_perftest printed no figures")?;
    let column = head
        .split(',')
        .position(|name| name == "overall_lat")
        .context("the output of ucx_perftest has no column overall_lat")?;
    let value = figures
        .split(',')
        .nth(column)
        .context("ucx_perftest printed no value for overall_lat")?;
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
    use super::super::rig::Kind;
    use super::*;

    #[test]
    fn benchmark_steps_map_to_perftest_tests() {
        let of = |step: Step| test_of(&step.subject());
        assert_eq!(
            of(Step::DirectStream(Kind::Write, 8, false)),
            Some("ucp_put_bw")
        );
        assert_eq!(of(Step::DirectStream(Kind::Write, 8, true)), None);
        assert_eq!(of(Step::Stream(Kind::Write, 8, false)), None);
        assert_eq!(of(Step::Messages(8)), Some("tag_lat"));
    }

    #[test]
    fn perftest_output_is_parsed() {
        let text = "[17] UCX WARN something, with a comma\n\
            iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n50000,0.015,0.018,0.018,435.02\n";
        let ns = parse_perftest(text).expect("reads");
        assert!((ns - 18.0).abs() < 1e-9);
        assert!(parse_perftest("").is_err());
        assert!(parse_perftest("a,b\n1,2\n").is_err());
    }
}
