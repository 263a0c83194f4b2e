//! A responder that is stopped at any point of an access to the requester's memory: the requester can reuse its memory
//! at once, and nothing is written to it when the responder continues.

mod common;

use common::{LONG, local, unique_name, wait_readable};
use rkey_base::memory::ArenaMemory;
use rkey_base::process::{PidFd, no_thread_copies};
use rkey_link::shm::{Connector, Event, Greeting, LinkConfig, Listener, ShmLink, Step};
use rkey_link::{Header, Link as _, Op, Payload, PullError};
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::AsFd as _;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NAME: &str = "RKEY_LINK_TEST_NAME";
const ROUNDS: u64 = 150;
const WORDS: usize = 1 << 16;

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Runs in the child process; does nothing when the suite runs it as a test. For each link, takes one request and
/// writes to the memory that it names until that fails, with short or long pushes.
#[test]
fn code_of_the_child_process() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let listener = Listener::bind(name.as_bytes()).unwrap();
    let node = local(2, LinkConfig::default());
    let memory = ArenaMemory::new(0x1000, WORDS * 8);
    for round in 0.. {
        if !wait_readable(listener.as_fd()) {
            return;
        }
        let mut acceptor = listener.accept(&node).unwrap().unwrap();
        assert!(wait_readable(acceptor.socket().unwrap()));
        let Step::Done(Greeting::Link(request)) = acceptor.advance().unwrap() else {
            panic!("no hello")
        };
        let mut link = request.accept().unwrap();
        memory.write(0x1000, &vec![round as u8 | 1; WORDS * 8]);
        let list = loop {
            match link
                .next_request()
                .unwrap()
                .map(|incoming| incoming.payload)
            {
                Some(Payload::RemoteIovec(list)) => break list,
                _ => std::thread::yield_now(),
            }
        };
        let (start, len) = list.as_slice()[0];
        // With short pushes, the loop spends most of its time outside the kernel.
        let len = if round % 3 == 0 { len } else { 8 };
        let end = loop {
            if let Err(error) = link.push(&memory, start, 0x1000, len) {
                break error;
            }
        };
        assert_eq!(end, PullError::Gone);
        link.request_done();
    }
}

fn connect(name: &[u8]) -> ShmLink {
    let node = local(1, LinkConfig::default());
    let deadline = Instant::now() + LONG;
    let mut connector = loop {
        match Connector::start(name, &node, b"") {
            Ok(connector) => break connector,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    loop {
        assert!(wait_readable(connector.socket().unwrap()));
        if let Step::Done(link) = connector.advance().unwrap() {
            return link;
        }
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The requester takes its memory back from a responder that is stopped while it writes there. The responder is at rest
/// before it continues, and when it continues, it writes nothing.
#[test]
fn a_stopped_responder_writes_nothing_when_it_continues() {
    let name = unique_name();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "code_of_the_child_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(NAME, std::str::from_utf8(&name).unwrap())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let child = Running(child);
    let pid = child.0.id();
    let process = Pid::from_child(&child.0);
    let memory: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let place = (memory.as_ptr().expose_provenance() as u64, WORDS as u64 * 8);
    for round in 0..ROUNDS {
        let mut link = connect(&name);
        if !link.capabilities().remote_iovec {
            eprintln!("SKIP: the kernel does not permit copies between processes here");
            return;
        }
        let set = |value: u64| {
            memory
                .iter()
                .for_each(|w| w.store(value, Ordering::Relaxed))
        };
        set(0);
        let header = Header {
            total: WORDS as u32 * 8,
            ..Header::new(Op::Read)
        };
        link.send_remote_iovec(&header, &[place]).unwrap();
        link.end_burst();
        until("a write", || memory[0].load(Ordering::Relaxed) != 0);
        // The responder is stopped at a different point of its loop each time.
        for _ in 0..round * 7 {
            std::hint::spin_loop();
        }
        kill_process(process, Signal::STOP).unwrap();
        until("the stop", || no_thread_copies(pid).unwrap());
        let access = link.peer_access().unwrap();
        access.revoke();
        until("the end of the peer's access", || {
            access.is_at_rest(Instant::now() + LONG)
        });
        // The memory is ours again.
        set(round << 32);
        kill_process(process, Signal::CONT).unwrap();
        drop(access);
        let alive = PidFd::open(pid).unwrap();
        until("the end of the link", || {
            assert!(alive.is_alive(), "the other process failed");
            matches!(link.on_socket(), Some(Event::Gone))
        });
        let other = memory
            .iter()
            .position(|w| w.load(Ordering::Relaxed) != round << 32);
        assert_eq!(other, None, "round {round}: written by a stopped peer");
    }
}
