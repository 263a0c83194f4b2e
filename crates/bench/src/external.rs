//! A peer's program: a pair of processes of its own, which waits for orders on standard input and answers
//! each with a line. `benches/README.md` describes the lines.

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

/// How long a repetition may take beyond what was asked for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a wait looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
/// How long the program may take to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the program can be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) operations: Vec<&'static str>,
    /// `ordinary` or `own`.
    pub(crate) memory: &'static str,
}

/// Most regions that may live beside the one that is registered, and the only size: as in `common.h`.
const LIVE_MAX: u64 = 100_000;
const REGISTERED: u64 = 4096;

impl Offer {
    /// Whether a step is among it.
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

/// A program that is running.
pub(crate) struct External {
    name: String,
    label: Label,
    offer: Offer,
    child: Child,
    /// Closed, it tells the program to end.
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    /// What it says on standard error.
    complaints: Option<JoinHandle<String>>,
}

impl External {
    /// Starts a program and waits until both of its processes are connected.
    ///
    /// # Errors
    /// What the program says on standard error when it ends instead.
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
        let mut child =
            child::start(&mut command).with_context(|| format!("{name} cannot be started"))?;
        let (line, answers) = channel();
        let out = child.stdout.take().context("its standard output")?;
        std::thread::spawn(move || {
            // UCX writes its warnings to standard output as well.
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            for text in lines.filter(|text| text.starts_with('{')) {
                if line.send(text).is_err() {
                    return;
                }
            }
        });
        let mut err = child.stderr.take().context("its standard error")?;
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

    /// Shows its figures under another name and meaning of completion.
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
                        .with_context(|| format!("its answer {line:?} makes no sense"));
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

    /// It has ended: why.
    fn last_words(&mut self) -> String {
        let complaints = self.complaints.take();
        let said = complaints.and_then(|thread| thread.join().ok());
        match said.filter(|text| !text.is_empty()) {
            Some(text) => format!("it failed: {text}"),
            None => "it ended without a word".into(),
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
            None => bail!("it has failed before"),
        };
        let answer = match sent {
            Ok(()) => self.answer::<Answer>(stop),
            Err(_) => Err(anyhow::anyhow!(self.last_words())),
        };
        if answer.is_err() {
            // It may go on, and keep a core busy beside the others.
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
    fn orders_are_answered_in_turn() {
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
    fn the_end_of_a_program_is_told_in_its_own_words() {
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
    fn a_program_that_does_not_answer_is_left_when_the_time_is_up() {
        let mut peer = start(&format!("{GREETING}; exec sleep 60")).unwrap();
        let stop = Stop::after(Duration::ZERO).unwrap();
        assert!(peer.run(&Step::OneWay(8), 1, &stop).is_err());
    }
}
