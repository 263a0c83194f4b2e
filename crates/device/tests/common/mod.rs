//! Two processes from one test: a test starts its own binary again to run only itself, in another role.
#![allow(dead_code, unreachable_pub, unsafe_code)]

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rkey_base::range::VaRange;
use rkey_core::{Access, DomainId, RKey, Region, RegionSpec};
use rkey_device::{Config, Cq, Device, Listener, Qp, QpOptions};
use rkey_engine::{Completion, RecvRequest, SendRequest, Sge, Status, Target, Work};

/// The longest time for any step of a test.
pub const LONG: Duration = Duration::from_secs(60);

const ROLE: &str = "RKEY_TEST_ROLE";
const ADDRESS: &str = "RKEY_TEST_ADDRESS";

/// The role of this process; `None` in the test itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The address that the test listens at.
pub fn address() -> SocketAddr {
    std::env::var(ADDRESS).unwrap().parse().unwrap()
}

/// A command that runs only `test` of this binary, in a role.
pub fn command(test: &str, role: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            test,
            "--nocapture",
            "--test-threads=1",
            "--include-ignored",
        ])
        .env(ROLE, role)
        .env(ADDRESS, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    command
}

/// A child that does not outlive the test.
pub struct Peer(pub Child);

impl Peer {
    pub fn start(test: &str, role: &str, address: SocketAddr) -> Self {
        Self(command(test, role, address).spawn().unwrap())
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill touches none of our memory; the process is our child and not yet waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Stops the peer, and waits until all its threads have stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        until("the stop", || has_stopped(self.0.id()));
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Closes the peer's standard input and waits until it has exited with success.
    pub fn finish(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the peer failed: {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether every thread of a process is stopped.
fn has_stopped(pid: u32) -> bool {
    let fields = |place: std::path::PathBuf| {
        let stat = std::fs::read_to_string(place.join("stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        Some(
            after_name
                .split_ascii_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    };
    let process = std::path::Path::new("/proc").join(pid.to_string());
    let tasks = std::fs::read_dir(process.join("task")).unwrap();
    // A thread that ends in the meantime has no state, and is missing in the list.
    let states: Vec<_> = tasks.filter_map(|task| fields(task.ok()?.path())).collect();
    let threads = fields(process).unwrap()[17].parse();
    threads == Ok(states.len()) && states.iter().all(|fields| fields[0] == "T")
}

/// Blocks without RDMA calls until standard input ends.
pub fn sleep_in_read() {
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {}
}

/// A device with a domain, a completion queue and memory that is registered with all rights.
pub struct Side {
    pub region: Region,
    pub memory: Box<[AtomicU64]>,
    pub cq: Cq,
    pub domain: DomainId,
    pub device: Device,
}

pub const WORDS: usize = 1 << 15;

impl Side {
    /// A side whose requests do not time out while a test waits: a peer that does not respond is either busy or has ended, which the
    /// device notices.
    pub fn open() -> Self {
        let mut config = Config::from_env().unwrap();
        config.timeout = 21;
        Self::with(config)
    }

    /// A side with the default timeouts, for a peer that will not respond.
    pub fn hasty() -> Self {
        Self::with(Config::from_env().unwrap())
    }

    pub fn with(config: Config) -> Self {
        let device = Device::open(config).unwrap();
        let domain = device.create_domain().unwrap();
        let memory: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let cq = device.create_cq(4096, None).unwrap();
        let region = register(&device, domain, &memory);
        Self {
            region,
            memory,
            cq,
            domain,
            device,
        }
    }

    pub fn qp(&self) -> Qp {
        self.device
            .create_qp(&QpOptions::new(self.domain, &self.cq))
            .unwrap()
    }

    /// Registers the same memory again under other keys. The caller deregisters it before dropping the side.
    pub fn another_region(&self) -> Region {
        register(&self.device, self.domain, &self.memory)
    }

    pub fn address_of(&self, word: usize) -> u64 {
        &raw const self.memory[word] as u64
    }

    pub fn sge(&self, word: usize, len: u32) -> Sge {
        Sge {
            addr: self.address_of(word),
            len,
            key: self.region.local_key,
        }
    }

    pub fn word(&self, word: usize) -> u64 {
        self.memory[word].load(Ordering::Acquire)
    }

    pub fn set(&self, word: usize, value: u64) {
        self.memory[word].store(value, Ordering::Release);
    }

    /// What a peer needs to access our memory.
    pub fn invitation(&self) -> Vec<u8> {
        let mut bytes = self.address_of(0).to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.region.key.0.to_le_bytes());
        bytes
    }

    /// Polls for the next completion.
    pub fn next(&self) -> Completion {
        self.next_within(LONG).expect("no completion came")
    }

    pub fn next_within(&self, time: Duration) -> Option<Completion> {
        let until = Instant::now() + time;
        let mut one = [Completion::default()];
        while Instant::now() < until {
            if self.cq.poll(&mut one).unwrap() == 1 {
                return Some(one[0]);
            }
        }
        None
    }

    /// Sleeps until the next completion.
    pub fn next_asleep(&self) -> Completion {
        assert!(self.cq.wait(Some(LONG)).unwrap(), "no completion came");
        let mut one = [Completion::default()];
        assert_eq!(self.cq.poll(&mut one).unwrap(), 1);
        one[0]
    }

    /// Posts, polls, and asserts success.
    pub fn run(&self, qp: &Qp, work: Work, sges: &[Sge]) -> Completion {
        qp.post_send(&SendRequest::new(77, work, sges)).unwrap();
        let completion = self.next();
        assert_eq!(
            (completion.id, completion.status),
            (77, Status::Success),
            "{completion:?}"
        );
        completion
    }

    pub fn receive(&self, qp: &Qp, id: u64, word: usize, len: u32) {
        let sges = [self.sge(word, len)];
        qp.post_recv(&RecvRequest { id, sges: &sges }).unwrap();
    }

    pub fn listen(&self) -> Listener {
        self.device.listen("127.0.0.1:0".parse().unwrap()).unwrap()
    }

    /// Connects a new queue pair to the test that started this process.
    pub fn connect(&self) -> (Qp, Remote) {
        let qp = self.qp();
        let peer = self
            .device
            .connect(address(), &[&qp], &self.invitation(), LONG)
            .unwrap();
        (qp, Remote::from(&peer.private_data[..]))
    }

    /// Accepts the connection of a peer with a new queue pair.
    pub fn accept(&self, listener: &Listener) -> (Qp, Remote) {
        let qp = self.qp();
        let incoming = listener.accept(Some(LONG)).unwrap();
        let peer = incoming.accept(&[&qp], &self.invitation()).unwrap();
        (qp, Remote::from(&peer.private_data[..]))
    }
}

/// Registers the memory of a side with all rights.
fn register(device: &Device, domain: DomainId, memory: &[AtomicU64]) -> Region {
    let range = VaRange::new(memory.as_ptr() as u64, WORDS as u64 * 8).unwrap();
    let ranges = [range];
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE | Access::BIND;
    let spec = RegionSpec::new(domain, &ranges, access);
    // SAFETY: the memory is accessed only through atomics, and lives until its regions are deregistered.
    unsafe { device.register(&spec) }.unwrap()
}

impl Drop for Side {
    fn drop(&mut self) {
        match self.device.revoke_and_deregister(self.region) {
            Ok(()) | Err(rkey_device::DeviceError::Forked) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The memory of a peer.
#[derive(Clone, Copy)]
pub struct Remote {
    pub base: u64,
    pub key: RKey,
}

impl From<&[u8]> for Remote {
    fn from(bytes: &[u8]) -> Self {
        let base = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let key = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        Self {
            base,
            key: RKey::Device(rkey_core::Key(key)),
        }
    }
}

impl Remote {
    pub fn at(&self, word: usize) -> Target {
        Target {
            addr: self.base + 8 * word as u64,
            key: self.key,
        }
    }
}

/// Waits until a condition holds.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(200));
    }
}
