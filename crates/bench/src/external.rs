//! A peer's program: a separate pair of processes that reads commands from standard input and answers each with a line.
//! `benches/README.md` describes the lines.

use super::child;
use super::contestant::{Contestant, Label, Sample};
use super::plan::Step;
use super::stop::Stop;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the program may take to answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a wait checks whether the benchmark should stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long the program may take to exit.
const FAREWELL: Duration = Duration::from_secs(2);

/// The steps that the program can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) operations: Vec<&'static str>,
    /// `ordinary` or `own`.
    pub(crate) memory: &'static str,
}

/// The maximum number of live regions besides the registered one, as in `common.h`.
const LIVE_MAX: u64 = 100_000;
/// The only size of a region that is registered, as in `common.h`.
const REGISTERED: u64 = 4096;

impl Offer {
    /// Whether the offer includes a step.
    pub(crate) fn has(&self, step: &Step) -> bool {
        let subject = step.subject();
        let register = subject.op == "register";
        self.operations.contains(&subject.op.as_str())
            && subject.memory == self.memory
            && (!register || subject.size == REGISTERED && subject.live <= LIVE_MAX)
    }
}

/// The first line of a program.
#[derive(Debug, Deserialize)]
struct Greeting {
    peer: String,
    version: String,
    provider: String,
    completion: String,
}

/// The answer to an order.
#[derive(Debug, Deserialize)]
struct Answer {
    ns: f64,
}

/// A running program.
pub(crate) struct External {
    name: String,
    label: Label,
    offer: Offer,
    child: Child,
    /// The program's standard input; closing it makes the program exit.
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The output on standard error.
    complaints: Option<JoinHandle<String>>,
}

impl External {
    /// Starts a program and waits until both of its processes are connected.
    ///
    /// # Errors
    /// The program's standard error, if it exits instead.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        offer: Offer,
        stop: &Stop,
    ) -> Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = child::start(&mut command);
        let mut child = started.with_context(|| format!("cannot start {name}"))?;
        let (line, answers) = channel();
        let out = child.stdout.take().context("stdout is not piped")?;
        std::thread::spawn(move || {
            // UCX also writes warnings to standard output.
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            for text in lines.filter(|text| text.starts_with('{')) {
                if line.send(text).is_err() {
                    return;
                }
            }
        });
        let mut err = child.stderr.take().context("stderr is not piped")?;
        let complaints = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = err.read_to_end(&mut text);
            String::from_utf8_lossy(&text).trim().to_owned()
        });
        let mut external = Self {
            name: name.to_owned(),
            label: Label {
                peer: String::new(),
                version: String::new(),
                provider: String::new(),
                completion: String::new(),
            },
            offer,
            orders: child.stdin.take(),
            child,
            answers,
            complaints: Some(complaints),
        };
        let greeting: Greeting = external.answer(stop)?;
        external.label = Label {
            peer: greeting.peer,
            version: greeting.version,
            provider: greeting.provider,
            completion: greeting.completion,
        };
        Ok(external)
    }

    /// Reports the program's figures under another name and completion semantics.
    pub(crate) fn counts_as(mut self, peer: &str, completion: &str) -> Self {
        self.label.peer = peer.to_owned();
        self.label.completion = completion.to_owned();
        self
    }

    fn answer<T: for<'a> Deserialize<'a>>(&mut self, stop: &Stop) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => {
                    return serde_json::from_str(&line)
                        .with_context(|| format!("cannot parse its answer {line:?}"));
                }
                Err(RecvTimeoutError::Disconnected) => bail!(self.last_words()),
                Err(RecvTimeoutError::Timeout) => {
                    stop.check()?;
                    ensure!(
                        Instant::now() < until,
                        "it has not answered for {} s",
                        PATIENCE.as_secs()
                    );
                }
            }
        }
    }

    /// Why the program has exited.
    fn last_words(&mut self) -> String {
        let complaints = self.complaints.take();
        let said = complaints.and_then(|thread| thread.join().ok());
        match said.filter(|text| !text.is_empty()) {
            Some(text) => format!("it failed: {text}"),
            None => "it exited without a message".into(),
        }
    }
}

impl Contestant for External {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn takes(&self, step: &Step) -> bool {
        self.orders.is_some() && self.offer.has(step)
    }

    fn label(&self, _: &Step) -> Label {
        self.label.clone()
    }

    fn run(&mut self, step: &Step, count: u64, stop: &Stop) -> Result<Sample> {
        let s = step.subject();
        let order = format!(
            "run {} {} {} {} {} {count}\n",
            s.op, s.mode, s.size, s.condition, s.live
        );
        let sent = match &mut self.orders {
            Some(orders) => orders.write_all(order.as_bytes()),
            None => bail!("it failed earlier"),
        };
        let answer = match sent {
            Ok(()) => self.answer::<Answer>(stop),
            Err(_) => Err(anyhow::anyhow!(self.last_words())),
        };
        if answer.is_err() {
            // The program may still be running, and would keep a core busy while others are measured.
            self.orders = None;
            child::kill(&mut self.child);
        }
        Ok(Sample::of(answer?.ns))
    }
}

impl Drop for External {
    fn drop(&mut self) {
        self.orders = None;
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child::kill(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::Kind;
    use super::*;

    fn start(script: &str) -> Result<External> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let offer = Offer {
            operations: vec!["write", "register"],
            memory: "ordinary",
        };
        let stop = Stop::after(Duration::MAX)?;
        External::start("a peer", command, offer, &stop)
    }

    const GREETING: &str = r#"echo a warning; echo '{"peer":"p","version":"1","provider":"x","completion":"default"}'"#;

    #[test]
    fn an_external_program_answers_commands_in_turn() {
        let script = format!(
            r#"{GREETING}; while read line; do echo "$line" >&2; echo '{{"ns":7.5}}'; done"#
        );
        let mut peer = start(&script).unwrap();
        let step = Step::Stream(Kind::Write, 4096, true);
        assert!(peer.takes(&step) && !peer.takes(&Step::Messages(8)));
        assert!(peer.takes(&Step::Register(4096, 0)) && !peer.takes(&Step::Register(1 << 20, 0)));
        assert!(!peer.takes(&Step::DirectOneWay(8)));
        assert_eq!(peer.label(&step).peer, "p");
        let stop = Stop::after(Duration::MAX).unwrap();
        for _ in 0..3 {
            let sample = peer.run(&step, 77, &stop).unwrap();
            assert!((sample.ns - 7.5).abs() < 1e-9);
        }
        peer.orders = None;
        assert_eq!(peer.child.wait().unwrap().code(), Some(0));
        let order = "run write stream 4096 rotating 0 77";
        assert_eq!(
            peer.last_words(),
            format!("it failed: {}", [order; 3].join("\n"))
        );
    }

    #[test]
    fn a_program_that_exits_is_reported_with_its_message() {
        let why = start("echo no such provider >&2; exit 1").err().unwrap();
        assert!(why.to_string().contains("no such provider"), "{why}");
        let mut peer = start(&format!("{GREETING}; read line; echo broken >&2")).unwrap();
        let stop = Stop::after(Duration::MAX).unwrap();
        let step = Step::OneWay(8);
        let why = peer.run(&step, 1, &stop).err().unwrap().to_string();
        assert!(why.contains("broken"), "{why}");
        assert!(!peer.takes(&step) && peer.run(&step, 1, &stop).is_err());
    }

    #[test]
    fn a_program_that_does_not_answer_is_abandoned_at_the_time_limit() {
        let mut peer = start(&format!("{GREETING}; exec sleep 60")).unwrap();
        let stop = Stop::after(Duration::ZERO).unwrap();
        assert!(peer.run(&Step::OneWay(8), 1, &stop).is_err());
    }
}
