//! Failures in the middle of traffic between two hosts: a process that is stopped, a cable that is pulled, an address that is removed, an
//! MTU that is lowered. A short failure does no harm. A long one ends operations with an error. Nothing hangs or spins, nothing leaks,
//! and the same processes connect again afterwards.

#[path = "../common/mod.rs"]
mod common;
mod measured;
mod programs;

use common::LONG;
use measured::assert_idle;
use programs::{
    ADDRESS, BEGIN, CLOSE, CLOSED, EXIT, FAILED, FREED, LISTENS, MANAGER, MOVES, READY, STOP,
    STOPPED,
};
use rkey_harness::hosts::Hosts;
use rkey_harness::key::KeyFile;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const ADDRESSES: [[&str; 2]; 2] = [["10.9.4.1", "fd09:4::1"], ["10.9.4.2", "fd09:4::2"]];
/// The hosts of the programs.
const OWNER: usize = 0;
const VISITOR: usize = 1;
const BOTH: [usize; 2] = [OWNER, VISITOR];
/// The MTUs of the interfaces: with a path MTU of 1024 bytes, and of 4096 bytes.
const USUAL: u32 = 1500;
const JUMBO: u32 = 4400;

/// How long requests are repeated.
#[derive(Clone, Copy)]
struct Retries {
    timeout: u32,
    count: u32,
}

impl Retries {
    /// For failures that last until the requests fail.
    const SHORT: Self = Self {
        timeout: 13,
        count: 5,
    };
    /// For failures that end before: about 40 s.
    const LONG: Self = Self {
        timeout: 19,
        count: 5,
    };

    /// A request is not repeated.
    const NONE: Self = Self {
        timeout: 18,
        count: 0,
    };

    /// When a request without a response fails, in milliseconds: the timeout doubles with the first two retries.
    fn milliseconds(self) -> u64 {
        let timeouts: u64 = (0..=self.count).map(|retry| 1 << retry.min(2)).sum();
        timeouts * (4096 << self.timeout) / 1_000_000
    }
}

/// A program on a host. It is killed at the end of the test, if it still runs.
struct Program {
    child: Child,
    /// What it prints and logs, by lines.
    lines: Receiver<String>,
    /// The lines so far.
    said: Vec<String>,
}

impl Program {
    /// Starts a test of `programs` as an ordinary user, with this pipe as its log; without one, the log is part of what it says.
    fn start(
        hosts: &Hosts,
        at: usize,
        settings: &[(&str, String)],
        log: Option<&PipeWriter>,
    ) -> Self {
        let name = ["programs::owner", "programs::visitor"][at];
        let mut command = hosts.enter_unprivileged(at, Command::new("nsenter"));
        command
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env("RKEY_WIRE", "auto")
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.map_or_else(Stdio::piped, |it| it.try_clone().unwrap().into()));
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        pass_lines(child.stdout.take().unwrap(), sender.clone());
        if let Some(log) = child.stderr.take() {
            pass_lines(log, sender);
        }
        Self {
            child,
            lines,
            said: Vec::new(),
        }
    }

    fn tell(&mut self, command: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
    }

    /// Waits for a line with these words, and returns what follows them.
    fn wait_for(&mut self, words: &str) -> String {
        let limit = Instant::now() + 2 * LONG;
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("it does not say {words:?}, but: {:#?}", self.said);
            };
            self.said.push(line.clone());
            if let Some((_, rest)) = line.split_once(words) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Waits until data moves now.
    fn wait_until_data_moves(&mut self) {
        self.said.extend(self.lines.try_iter());
        for _ in 0..3 {
            self.wait_for(MOVES);
        }
    }

    /// Waits until the connection is closed, which takes no time worth mentioning, and everything is freed.
    fn wait_until_closed(&mut self) {
        let time = self.wait_for(CLOSED);
        assert!(
            time.parse::<u64>().unwrap() < 3000,
            "closed after {time} ms"
        );
        self.wait_for(FREED);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Makes the program exit. Returns what it has said.
    fn end(mut self) -> Vec<String> {
        self.tell(EXIT);
        self.wait_for(CLOSED);
        assert!(self.child.wait().unwrap().success(), "{:#?}", self.said);
        self.said.extend(self.lines.iter());
        std::mem::take(&mut self.said)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pass_lines(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = to.send(line);
        }
    });
}

/// Two hosts with programs that have a connection, over which data moves.
struct Traffic {
    hosts: Hosts,
    owner: Program,
    visitor: Program,
    retries: Retries,
    _key: Option<KeyFile>,
}

/// How the programs connect, and over which version of IP.
#[derive(Clone, Copy, Debug)]
struct Way {
    is_managed: bool,
    is_ipv6: bool,
    /// Whether packets are encrypted and authenticated.
    has_key: bool,
}

const WAYS: [Way; 3] = [
    Way {
        is_managed: true,
        is_ipv6: false,
        has_key: false,
    },
    Way {
        is_managed: false,
        is_ipv6: true,
        has_key: false,
    },
    Way {
        is_managed: true,
        is_ipv6: true,
        has_key: true,
    },
];

/// Each way, with each host as the one where something fails.
fn ways_and_hosts() -> impl Iterator<Item = (Way, usize)> {
    WAYS.into_iter().flat_map(|way| BOTH.map(|at| (way, at)))
}

impl Traffic {
    /// `None` if this machine does not permit network namespaces.
    fn start(way: Way, mtu: u32, retries: Retries) -> Option<Self> {
        Self::start_with_log(way, mtu, retries, None)
    }

    /// [`Traffic::start`] with this pipe as the visitor's log.
    fn start_with_log(
        way: Way,
        mtu: u32,
        retries: Retries,
        log: Option<&PipeWriter>,
    ) -> Option<Self> {
        let hosts = Hosts::new(mtu, &ADDRESSES)?;
        let ip = ADDRESSES[OWNER][usize::from(way.is_ipv6)];
        let address = if way.is_ipv6 {
            format!("[{ip}]:7471")
        } else {
            format!("{ip}:7471")
        };
        let mut settings = vec![
            (ADDRESS, address),
            ("RKEY_TIMEOUT", retries.timeout.to_string()),
            ("RKEY_RETRY_COUNT", retries.count.to_string()),
        ];
        if way.is_managed {
            settings.push((MANAGER, "1".to_owned()));
        }
        let key = way.has_key.then(|| KeyFile::new(&hosts, 7));
        if let Some(key) = &key {
            settings.push(("RKEY_WIRE_KEY", key.path().display().to_string()));
        }
        let mut owner = Program::start(&hosts, OWNER, &settings, None);
        owner.wait_for(LISTENS);
        let visitor = Program::start(&hosts, VISITOR, &settings, log);
        let mut traffic = Self {
            hosts,
            owner,
            visitor,
            retries,
            _key: key,
        };
        // The first connection allocates what the devices keep.
        traffic.visitor.wait_for(READY);
        traffic.begin();
        traffic.stop();
        traffic.begin();
        Some(traffic)
    }

    fn begin(&mut self) {
        self.visitor.tell(BEGIN);
        self.visitor.wait_until_data_moves();
    }

    /// Ends the connection, over which data still moves.
    fn stop(&mut self) {
        self.visitor.tell(STOP);
        self.visitor.wait_for(STOPPED);
        self.visitor.wait_until_closed();
        self.owner.wait_until_closed();
        self.visitor.wait_for(READY);
    }

    /// While a failure lasts, these programs do not spin.
    fn is_idle(&self, of: &[usize]) {
        for at in of {
            let program = [&self.owner, &self.visitor][*at];
            assert_idle(program.child.id(), "while the failure lasts");
        }
    }

    /// The visitor's operation fails, no earlier than its retries say.
    fn fails(&mut self) -> String {
        let said = self.visitor.wait_for(FAILED);
        let (time, error) = said.split_once(' ').unwrap();
        let (time, wanted) = (time.parse::<u64>().unwrap(), self.retries.milliseconds());
        assert!(
            (wanted..wanted + 20_000).contains(&time),
            "{said}, not after {wanted} ms"
        );
        self.visitor.wait_until_closed();
        error.to_owned()
    }

    /// The connection still works, and the processes can connect again.
    fn end(mut self) -> Said {
        self.visitor.wait_until_data_moves();
        self.stop();
        self.end_with_another()
    }

    /// The processes can connect again.
    fn end_with_another(mut self) -> Said {
        self.begin();
        self.stop();
        self.exit()
    }

    /// Neither needs the other one to exit.
    fn exit(self) -> Said {
        Said([self.owner.end(), self.visitor.end()])
    }
}

/// What the owner and the visitor have said.
struct Said([Vec<String>; 2]);

impl Said {
    /// The host at which something failed has logged the cause once, if it had to send: the visitor sends in any case.
    fn names_the_cause_once(&self, at: usize, cause: &str) {
        let said = &self.0[at];
        let lines = said.iter().filter(|line| line.contains("cannot be sent"));
        let lines: Vec<&String> = lines.collect();
        let least = usize::from(at == VISITOR);
        assert!((least..=1).contains(&lines.len()), "{at}: {said:#?}");
        assert!(lines.iter().all(|line| line.contains(cause)), "{lines:#?}");
        let others = &self.0[1 - at];
        let is_quiet = !others.iter().any(|line| line.contains("cannot be sent"));
        assert!(is_quiet, "{others:#?}");
    }
}

/// Runs a test for all cases at the same time, because it waits most of its time.
fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || test(case));
        }
    });
}

/// The error of an operation that the peer has not answered.
const UNANSWERED: &str = "it did not answer in time";

#[test]
fn a_peer_that_is_stopped_briefly_does_no_harm() {
    at_once(WAYS, |way| {
        let Some(mut traffic) = Traffic::start(way, USUAL, Retries::LONG) else {
            return;
        };
        traffic.owner.signal(Signal::STOP);
        traffic.is_idle(&[VISITOR]);
        traffic.owner.signal(Signal::CONT);
        traffic.visitor.wait_until_data_moves();
        traffic.visitor.signal(Signal::STOP);
        traffic.is_idle(&[OWNER]);
        traffic.visitor.signal(Signal::CONT);
        traffic.end();
    });
}

#[test]
fn a_peer_that_is_stopped_for_long_causes_an_error() {
    at_once(WAYS, |way| {
        let Some(mut traffic) = Traffic::start(way, USUAL, Retries::SHORT) else {
            return;
        };
        traffic.owner.signal(Signal::STOP);
        let error = traffic.fails();
        assert!(error.contains(UNANSWERED), "{error}");
        traffic.owner.signal(Signal::CONT);
        traffic.owner.wait_until_closed();
        traffic.visitor.wait_for(READY);
        traffic.end_with_another();
    });
}

/// Although its timer has expired, and it repeats no request: the answer has arrived in the meantime.
#[test]
fn a_requester_that_is_stopped_for_long_continues() {
    at_once(WAYS, |way| {
        let Some(mut traffic) = Traffic::start(way, USUAL, Retries::NONE) else {
            return;
        };
        for _ in 0..2 {
            traffic.visitor.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(2 * Retries::NONE.milliseconds()));
            traffic.visitor.signal(Signal::CONT);
            traffic.visitor.wait_until_data_moves();
        }
        traffic.end();
    });
}

/// A way in which a host is cut off, and the reverse.
type Cut = fn(&Hosts, usize);

/// Cuts each host off until both programs are idle. The visitor's operations succeed nevertheless.
fn survives(mtu: u32, cause: &str, cut: Cut, restore: Cut) {
    at_once(ways_and_hosts(), |(way, at)| {
        let Some(traffic) = Traffic::start(way, mtu, Retries::LONG) else {
            return;
        };
        cut(&traffic.hosts, at);
        traffic.is_idle(&BOTH);
        restore(&traffic.hosts, at);
        traffic.end().names_the_cause_once(at, cause);
    });
}

/// Cuts each host off. The visitor's operations fail, and both programs close their connection, or even exit, while the host is still
/// cut off.
fn fails(cause: &str, cut: Cut, restore: Cut) {
    at_once(ways_and_hosts(), |(way, at)| {
        let Some(mut traffic) = Traffic::start(way, USUAL, Retries::SHORT) else {
            return;
        };
        for round in 0..2 {
            cut(&traffic.hosts, at);
            let error = traffic.fails();
            assert!(error.contains(UNANSWERED), "{error}");
            traffic.visitor.wait_for(READY);
            traffic.owner.tell(CLOSE);
            traffic.owner.wait_until_closed();
            if round == 0 {
                restore(&traffic.hosts, at);
                traffic.begin();
            }
        }
        traffic.exit().names_the_cause_once(at, cause);
    });
}

/// The log of a host without an interface that is up, or without its address.
const NO_ADDRESS: &str = "no interface that is up has the address";

#[test]
fn a_cable_that_is_pulled_briefly_does_no_harm() {
    survives(USUAL, NO_ADDRESS, Hosts::unplug, Hosts::plug);
}

#[test]
fn a_cable_that_is_pulled_for_long_causes_an_error() {
    fails(NO_ADDRESS, Hosts::unplug, Hosts::plug);
}

/// Writes to a pipe until it is full.
fn fill(pipe: &PipeWriter) {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut options = OpenOptions::new();
    let options = options
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let mut file = options.open(path).unwrap();
    while file.write(&[b'x'; 4096]).is_ok() {}
}

/// While the kernel refuses packets, the log has something to say. The traffic does not wait until it is said.
#[test]
fn a_full_log_does_not_hold_up_the_traffic() {
    at_once(WAYS, |way| {
        let (log, writer) = pipe().unwrap();
        let traffic = Traffic::start_with_log(way, USUAL, Retries::LONG, Some(&writer));
        let Some(mut traffic) = traffic else {
            return;
        };
        fill(&writer);
        drop(writer);
        traffic.hosts.unplug(VISITOR);
        traffic.is_idle(&BOTH);
        traffic.hosts.plug(VISITOR);
        traffic.visitor.wait_until_data_moves();
        let (sender, lines) = channel();
        pass_lines(log, sender);
        traffic.end();
        let lines: Vec<String> = lines.iter().collect();
        let causes = lines.iter().filter(|line| line.contains(NO_ADDRESS));
        assert_eq!(causes.count(), 1, "{lines:#?}");
    });
}

#[test]
fn an_address_that_is_removed_briefly_does_no_harm() {
    let (cut, restore) = (Hosts::remove_addresses, Hosts::add_addresses);
    survives(USUAL, NO_ADDRESS, cut, restore);
}

#[test]
fn an_address_that_is_removed_for_long_causes_an_error() {
    fails(NO_ADDRESS, Hosts::remove_addresses, Hosts::add_addresses);
}

/// The owner only answers requests. It closes its connection when the TCP connection of the handshake shows that the visitor's host is
/// gone, after 22 s.
#[test]
fn a_side_that_only_answers_notices_that_the_other_host_is_gone() {
    let way = Way {
        is_managed: false,
        is_ipv6: false,
        has_key: false,
    };
    let Some(mut traffic) = Traffic::start(way, USUAL, Retries::SHORT) else {
        return;
    };
    traffic.hosts.unplug(VISITOR);
    traffic.fails();
    traffic.owner.wait_until_closed();
    traffic.visitor.wait_for(READY);
    traffic.hosts.plug(VISITOR);
    traffic.end_with_another();
}

fn lower_mtu(hosts: &Hosts, at: usize) {
    hosts.set_mtu(at, USUAL);
}

fn raise_mtu(hosts: &Hosts, at: usize) {
    hosts.set_mtu(at, JUMBO);
}

/// The log of a host whose MTU was lowered.
const TOO_LONG: &str = "the MTU of the route is now 1500 B";

#[test]
fn an_mtu_that_is_lowered_briefly_does_no_harm() {
    survives(JUMBO, TOO_LONG, lower_mtu, raise_mtu);
}

#[test]
fn a_lower_mtu_causes_an_error_and_new_connections_use_it() {
    at_once(ways_and_hosts(), |(way, at)| {
        let Some(mut traffic) = Traffic::start(way, JUMBO, Retries::SHORT) else {
            return;
        };
        lower_mtu(&traffic.hosts, at);
        let error = traffic.fails();
        assert!(error.contains(UNANSWERED), "{error}");
        traffic.visitor.wait_for(READY);
        traffic.owner.wait_until_closed();
        if way.is_managed {
            // The connection manager uses the path MTU of the side that requests the connection.
            lower_mtu(&traffic.hosts, VISITOR);
        }
        traffic.begin();
        // Over connections that exist, a higher MTU changes nothing.
        for host in BOTH {
            raise_mtu(&traffic.hosts, host);
        }
        traffic.end().names_the_cause_once(at, TOO_LONG);
    });
}

/// The programs have opened their devices before.
#[test]
fn new_connections_use_a_higher_mtu() {
    at_once(WAYS, |way| {
        let Some(mut traffic) = Traffic::start(way, USUAL, Retries::LONG) else {
            return;
        };
        for at in BOTH {
            raise_mtu(&traffic.hosts, at);
        }
        traffic.visitor.wait_until_data_moves();
        traffic.stop();
        traffic.begin();
        // It was used if it is missed.
        lower_mtu(&traffic.hosts, VISITOR);
        traffic.is_idle(&BOTH);
        raise_mtu(&traffic.hosts, VISITOR);
        traffic.end().names_the_cause_once(VISITOR, TOO_LONG);
    });
}
