//! A process that tries to take all links, another process's identity, or a stream of new identities.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{LONG, Peer, Remote, Side, command, role, sleep_in_read};
use rkey_engine::Work;
use rkey_link::NodeId;
use rkey_link::shm::{Connector, HandshakeError, LinkConfig, LocalNode, ShmLink, Step};

/// The outcome of an attempt to get a link.
enum Outcome {
    Link(Box<ShmLink>),
    Refused(String),
    NoAnswer,
}

/// Requests a link as a device with this identity.
fn ask_as(node: NodeId, name: &str) -> Outcome {
    let local = LocalNode::new(node, LinkConfig::default()).unwrap();
    let deadline = Instant::now() + LONG / 2;
    let mut connector = loop {
        match Connector::start(name.as_bytes(), &local, b"") {
            Ok(connector) => break connector,
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return Outcome::NoAnswer,
        }
    };
    while Instant::now() < deadline {
        let socket = connector.socket().unwrap();
        let readable = rustix::event::PollFlags::IN;
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(socket, readable)];
        let pause = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        let _ = rustix::event::poll(&mut fds, Some(&pause));
        match connector.advance() {
            Ok(Step::Pending) => {}
            Ok(Step::Done(link)) => return Outcome::Link(Box::new(link)),
            Err(HandshakeError::Refused(why)) => return Outcome::Refused(why),
            Err(error) => return Outcome::Refused(format!("no answer: {error}")),
        }
    }
    Outcome::NoAnswer
}

fn own_node(nonce: u64) -> NodeId {
    NodeId {
        pid: std::process::id(),
        nonce,
    }
}

/// The name of the socket of a device.
fn socket_of(side: &Side) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let block = side.device.inspect().unwrap().blocks[0];
    format!("rkey/1/{uid}/qp/{block:04x}")
}

/// A child in a role, whose lines can be read.
struct Talker {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Talker {
    fn start(test: &str, role: &str) -> Self {
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let mut child = command(test, role, nowhere)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The rest of the next line that begins with this word.
    fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "it ended before {word}"
            );
            if let Some(rest) = line.trim().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str, what: &str) {
    // The test harness has written a part of a line.
    println!("\n{word} {what}");
    std::io::stdout().flush().unwrap();
}

fn heard() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Opens links until the device refuses one.
fn take_all_links() {
    let (name, mut links) = (heard(), Vec::new());
    let end = loop {
        match ask_as(own_node(links.len() as u64 + 1), &name) {
            Outcome::Link(link) => links.push(link),
            Outcome::Refused(why) => break why,
            Outcome::NoAnswer => break "no answer".to_owned(),
        }
    };
    say("END", &format!("{} {end}", links.len()));
    sleep_in_read();
}

/// An honest client: connects, and writes a word.
fn client() {
    let side = Side::open();
    let (qp, remote) = side.connect();
    side.set(0, 77);
    let write = Work::Write {
        remote: remote.at(1),
        imm: None,
    };
    side.run(&qp, write, &[side.sge(0, 8)]);
}

/// One process opens links until it is refused, with a message that names the limit and how to raise it. The device's program can
/// still open files, and other processes connect and work.
#[test]
fn one_process_cannot_use_up_the_descriptors_of_a_device() {
    const TEST: &str = "one_process_cannot_use_up_the_descriptors_of_a_device";
    match role().as_deref() {
        Some("attacker") => return take_all_links(),
        Some("client") => return client(),
        Some(_) => return with_few_descriptors(TEST),
        None => {}
    }
    // The test runs in its own process, because the limit of descriptors is per process.
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let status = command(TEST, "owner", nowhere).status().unwrap();
    assert!(status.success(), "{status}");
}

fn with_few_descriptors(test: &str) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(256);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let side = Side::open();
    let mut attacker = Talker::start(test, "attacker");
    attacker.tell(&socket_of(&side));
    let end = attacker.line("END");
    eprintln!("{test}: {end}");
    let (taken, why) = end.split_once(' ').unwrap();
    assert!(why.contains("RKEY_MAX_LINKS_PER_PROCESS"), "{why}");
    assert!(
        taken.parse::<usize>().unwrap() <= 16,
        "a quarter of what half of the descriptors allow"
    );
    let files: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
    let listener = side.listen();
    let client = Peer::start(test, "client", listener.local_address());
    let (_qp, _): (_, Remote) = side.accept(&listener);
    client.finish();
    assert_eq!(side.word(1), 77);
    drop(files);
}

/// Claims the device whose PID and nonce the test sends.
fn squat() {
    let name = heard();
    let (pid, nonce) = (heard(), heard());
    let node = NodeId {
        pid: pid.parse().unwrap(),
        nonce: nonce.parse().unwrap(),
    };
    let outcome = match ask_as(node, &name) {
        Outcome::Link(_) => "a link".to_owned(),
        Outcome::Refused(why) => why,
        Outcome::NoAnswer => "no answer".to_owned(),
    };
    say("END", &outcome);
    sleep_in_read();
}

/// A process that claims another process's device first is refused, and the owner is served.
#[test]
fn no_process_takes_the_identity_of_another() {
    const TEST: &str = "no_process_takes_the_identity_of_another";
    match role().as_deref() {
        Some("squatter") => return squat(),
        Some(_) => {
            let side = Side::open();
            say("NONCE", &side.device.node().nonce.to_string());
            let address = heard().parse().unwrap();
            let qp = side.qp();
            let peer = side
                .device
                .connect(address, &[&qp], &side.invitation(), LONG)
                .unwrap();
            let remote = Remote::from(&peer.private_data[..]);
            side.set(0, 77);
            let write = Work::Write {
                remote: remote.at(1),
                imm: None,
            };
            side.run(&qp, write, &[side.sge(0, 8)]);
            say("DONE", "");
            return sleep_in_read();
        }
        None => {}
    }
    let side = Side::open();
    let mut victim = Talker::start(TEST, "victim");
    let nonce = victim.line("NONCE");
    let mut squatter = Talker::start(TEST, "squatter");
    let pid = victim.child.id().to_string();
    for line in [&socket_of(&side), &pid, &nonce] {
        squatter.tell(line);
    }
    let end = squatter.line("END");
    assert!(end.contains("belongs to another process"), "{end}");
    let listener = side.listen();
    victim.tell(&listener.local_address().to_string());
    let (_qp, _): (_, Remote) = side.accept(&listener);
    victim.line("DONE");
    assert_eq!(side.word(1), 77);
}

/// Opens links with new identities until the test ends it.
fn flood() {
    let name = heard();
    let (mut made, mut refused) = (0u64, 0u64);
    let end = std::thread::spawn(sleep_in_read);
    while !end.is_finished() {
        match ask_as(own_node(made + refused + 1), &name) {
            Outcome::Link(_) => made += 1,
            _ => refused += 1,
        }
        if made == 2000 {
            say("FLOODED", "");
        }
    }
}

/// A process that keeps claiming new identities does not keep others from being served.
#[test]
fn a_flood_of_identities_delays_no_other_client() {
    const TEST: &str = "a_flood_of_identities_delays_no_other_client";
    match role().as_deref() {
        Some("flood") => return flood(),
        Some(_) => return client(),
        None => {}
    }
    let side = Side::open();
    let mut attacker = Talker::start(TEST, "flood");
    attacker.tell(&socket_of(&side));
    attacker.line("FLOODED");
    let listener = side.listen();
    for round in 0..3 {
        side.set(1, 0);
        let started = Instant::now();
        let client = Peer::start(TEST, "client", listener.local_address());
        let (_qp, _): (_, Remote) = side.accept(&listener);
        client.finish();
        assert_eq!(side.word(1), 77);
        eprintln!("{TEST}: round {round}: served in {:.1?}", started.elapsed());
    }
}
