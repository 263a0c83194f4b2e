//! The process that passes packets between two network namespaces.

use super::path::Path;
use super::{COUNTED, Conditions, Counts, tun};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// What the process does: the names of both interfaces, the id of a process in the second namespace, and the conditions of both
/// directions, separated by commas.
const ROLE: &str = "RKEY_TEST_NETWORK";
/// Begins the lines that the process prints. The test program around it prints others.
const MARK: &str = "network: ";
/// Longer than every packet.
const PACKET: usize = 1 << 16;
/// How many packets to read before those that are due leave.
const BATCH: usize = 64;

/// The process, while it runs.
pub(crate) struct Forwarder {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Forwarder {
    /// Starts the process with a command that calls [`serve`] in the first namespace, and returns when the interfaces exist. `second` is
    /// a process in the second namespace.
    pub(crate) fn start(
        mut command: Command,
        interfaces: [&str; 2],
        second: u32,
        conditions: &[Conditions; 2],
    ) -> Self {
        let [first_name, second_name] = interfaces;
        let [forth, back] = conditions;
        let role = format!("{first_name},{second_name},{second},{forth},{back}");
        command.env(ROLE, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("util-linux has nsenter");
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.expect("both are pipes");
        let output = BufReader::new(output);
        let mut forwarder = Self {
            child,
            input,
            output,
        };
        if forwarder.answer().is_none() {
            panic!("the network has ended: {:?}", forwarder.child.wait());
        }
        forwarder
    }

    /// The process's next line; `None` if it has ended.
    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some((_, answer)) = line.split_once(MARK) {
                return Some(answer.trim_end().to_owned());
            }
        }
    }

    /// What has happened to the packets from the first host, and to those from the second.
    pub(crate) fn counts(&mut self) -> [Counts; 2] {
        self.last_counts().expect("the network runs")
    }

    /// Like [`Forwarder::counts`]; `None` if the process has ended.
    fn last_counts(&mut self) -> Option<[Counts; 2]> {
        self.input.write_all(b"\n").ok()?;
        let answer = self.answer()?;
        let (forth, back) = answer.split_once(',')?;
        Some([forth.parse().ok()?, back.parse().ok()?])
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // A network that has ended, which is a failure of its own, has no counts.
        if let Some(file) = std::env::var_os(COUNTED)
            && let Some([forth, back]) = self.last_counts()
        {
            // Each network appends with one call, so that lines of two stay whole.
            let file = File::options().append(true).create(true).open(file);
            let _ = file.and_then(|mut it| it.write_all(format!("{forth}\n{back}\n").as_bytes()));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns, unless this process has been started as the network between two hosts: then it passes packets until its input ends, and
/// exits. A test that tests nothing else calls this, or the start of a program without tests.
///
/// # Panics
/// This machine does not permit such interfaces.
pub fn serve() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if let Err(error) = run(&role) {
        eprintln!("no network between the hosts: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn run(role: &str) -> io::Result<()> {
    let words: Vec<&str> = role.split(',').collect();
    let [first, second, process, forth, back] = words[..] else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let conditions = |text: &str| -> io::Result<Conditions> {
        (text.parse()).map_err(|_| io::ErrorKind::InvalidInput.into())
    };
    let paths = [conditions(forth)?, conditions(back)?];
    let paths = paths.map(|it| Arc::new(Mutex::new(Path::new(it))));
    let first = Arc::new(tun::create(first)?);
    // This thread stays in the second namespace.
    let namespace = File::open(format!("/proc/{process}/ns/net"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let second = Arc::new(tun::create(second)?);
    let started = Instant::now();
    let ends = [(&first, &second), (&second, &first)];
    for ((from, to), path) in ends.into_iter().zip(&paths) {
        let (from, to, path) = (Arc::clone(from), Arc::clone(to), Arc::clone(path));
        std::thread::spawn(move || forward(&from, &to, &path, started));
    }
    say("ready")?;
    for line in io::stdin().lock().lines() {
        line?;
        let [forth, back] = paths.each_ref().map(|path| path.lock().counts);
        say(&format!("{forth},{back}"))?;
    }
    Ok(())
}

/// Prints a line, also in a test program that captures its output.
fn say(words: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    // The test program may have begun a line.
    writeln!(output, "\n{MARK}{words}")?;
    output.flush()
}

/// Passes packets in one direction until an interface is gone.
fn forward(from: &OwnedFd, to: &OwnedFd, path: &Mutex<Path>, started: Instant) {
    let now = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut buffer = vec![0; PACKET];
    loop {
        let next = path.lock().next();
        let timeout = next.map(|next| next.saturating_sub(now()));
        let timeout = timeout.map(|left| Timespec {
            tv_sec: (left / 1_000_000_000) as i64,
            tv_nsec: (left % 1_000_000_000) as i64,
        });
        if poll(&mut [PollFd::new(from, PollFlags::IN)], timeout.as_ref()).is_err() {
            continue; // a signal
        }
        let mut path = path.lock();
        for _ in 0..BATCH {
            match rustix::io::read(from, &mut buffer) {
                Ok(length) => path.push(now(), buffer[..length].to_vec()),
                Err(rustix::io::Errno::AGAIN) => break,
                // The interface is down, or gone.
                Err(_) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    break;
                }
            }
        }
        while let Some(packet) = path.due(now()) {
            // The kernel refuses damaged headers, and everything while the interface is down.
            let _ = rustix::io::write(to, &packet);
        }
    }
}
