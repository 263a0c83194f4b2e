//! The programs on the two hosts. They obey commands, one per line, and say what happens.
//!
//! The owner serves one connection after the other. The visitor moves data, over a connection to the owner, until it is told to stop or
//! an operation fails; then it checks that everything is freed, and waits for the next command.

use crate::common::{ALL, LONG, device, pattern};
use crate::measured::{Holdings, assert_idle};
use rkey::{Device, Error, Region, RemoteKey, Result, cm};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The address at which the owner listens, and to which the visitor connects.
pub(crate) const ADDRESS: &str = "RKEY_TEST_FAILURES_ADDRESS";
/// How the programs connect, if it is set: through the connection manager.
pub(crate) const MANAGER: &str = "RKEY_TEST_FAILURES_MANAGER";

/// What the programs say: the owner listens, the visitor has no connection, data has moved, and what has become of a connection.
pub(crate) const LISTENS: &str = "listens";
pub(crate) const READY: &str = "ready";
pub(crate) const MOVES: &str = "data has moved";
pub(crate) const FAILED: &str = "failed after ms:";
pub(crate) const STOPPED: &str = "stopped without an error";
pub(crate) const CLOSED: &str = "closed within ms:";
pub(crate) const FREED: &str = "everything is freed";
/// The commands: begin and stop to move data (visitor), close the connection (owner), exit.
pub(crate) const BEGIN: &str = "begin";
pub(crate) const STOP: &str = "stop";
pub(crate) const CLOSE: &str = "close";
pub(crate) const EXIT: &str = "exit";

/// Longer than the longest packet, and not a multiple of it.
const LEN: usize = 100_003;
/// The owner's memory: a counter, and room for data.
const WORDS: usize = 1 + LEN.div_ceil(8);
/// Where the data begins.
const DATA: u64 = 8;
/// How much the resident memory may grow: less than a queue of packets, more than the allocators keep for reuse.
const GROWTH: u64 = 8 << 20;
const PAUSE: Duration = Duration::from_millis(5);

/// A connection of either kind.
enum Peer {
    Typed(rkey::Connection),
    Managed(cm::Connection),
}

/// Runs the same code with either kind of connection.
macro_rules! with {
    ($peer:expr, $it:ident => $run:expr) => {
        match $peer {
            Peer::Typed($it) => $run,
            Peer::Managed($it) => $run,
        }
    };
}

impl Peer {
    fn connect(device: &Device, address: &str) -> Result<Self> {
        match std::env::var_os(MANAGER) {
            None => device.connect(address).map(Self::Typed),
            Some(_) => device.connect_cm(address, b"").map(Self::Managed),
        }
    }

    fn send_key(&self, key: &RemoteKey) {
        match self {
            Self::Typed(it) => it.send(key),
            Self::Managed(it) => {
                let parts = [key.address(), key.len(), key.key()].map(u64::to_be_bytes);
                it.send(&parts.concat())
            }
        }
        .unwrap();
    }

    fn receive_key(&self) -> RemoteKey {
        match self {
            Self::Typed(it) => it.receive().unwrap(),
            Self::Managed(it) => {
                let parts = it.receive().unwrap().bytes;
                let word = |at: usize| u64::from_be_bytes(parts[at..at + 8].try_into().unwrap());
                RemoteKey::from_parts(word(0), word(8), word(16) as u32).unwrap()
            }
        }
    }

    /// Whether the peer is still connected, as far as this side knows.
    fn is_connected(&self) -> bool {
        match self {
            Self::Typed(it) => it.try_receive::<()>().is_ok(),
            Self::Managed(it) => it.try_receive().is_ok(),
        }
    }

    /// Writes to the owner's memory, reads back, and counts. Checks the data.
    fn round(&self, number: u64, ours: &Region<Vec<u8>>, key: &RemoteKey) -> Result<()> {
        let data = pattern(number as u8, LEN);
        ours.write(0, &data)?;
        with!(self, it => it.write(ours, .., key, DATA)?.wait())?;
        ours.write(0, &vec![0; LEN])?;
        with!(self, it => it.read(ours, .., key, DATA)?.wait())?;
        assert!(ours.read_vec(..)? == data, "round {number} has other data");
        let counted = with!(self, it => it.fetch_and_add(key, 0, 1)?.wait())?;
        assert_eq!(counted, number, "each operation is executed once");
        Ok(())
    }
}

/// The address, if this process is one of the two programs, and its commands.
fn role() -> Option<(String, Receiver<String>)> {
    let address = std::env::var(ADDRESS).ok()?;
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.with_ansi(false).init();
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let _ = sender.send(line.unwrap());
        }
    });
    Some((address, commands))
}

/// Whether the next command is this one. Panics if it is another one, or if the test has ended.
fn is_told(commands: &Receiver<String>, wanted: &str, within: Duration) -> bool {
    match commands.recv_timeout(within) {
        Ok(command) => command == wanted || panic!("{command} instead of {wanted}"),
        Err(RecvTimeoutError::Timeout) => false,
        Err(RecvTimeoutError::Disconnected) => panic!("the test has ended"),
    }
}

fn next(commands: &Receiver<String>) -> String {
    commands.recv_timeout(3 * LONG).unwrap()
}

fn resident() -> u64 {
    rkey_device::base::resident().unwrap()
}

/// What a process without a connection holds.
struct Before(Holdings, u64);

impl Before {
    fn now() -> Self {
        Self(Holdings::settled(), resident())
    }

    fn check(&self, device: &Device) {
        self.0.wait_until_back();
        assert_idle(std::process::id(), "without a connection");
        let grown = resident().saturating_sub(self.1);
        assert!(grown < GROWTH, "the memory has grown by {grown} B");
        assert_eq!(device.inspect().unwrap().qps.len(), 0);
        println!("{FREED}");
    }
}

fn close<T>(it: T) {
    let begun = Instant::now();
    drop(it);
    println!("{CLOSED} {}", begun.elapsed().as_millis());
}

/// This is not a separate test but the program on the first host.
#[test]
fn owner() {
    let Some((address, commands)) = role() else {
        return;
    };
    let device = device();
    let domain = device.domain().unwrap();
    let accept: Box<dyn Fn() -> Result<Peer>> = match std::env::var_os(MANAGER) {
        None => {
            let listener = domain.listen(address.as_str()).unwrap();
            Box::new(move || listener.accept_timeout(PAUSE).map(Peer::Typed))
        }
        Some(_) => {
            let listener = domain.listen_cm(address.as_str()).unwrap();
            Box::new(move || {
                let request = listener.next_request_timeout(PAUSE)?;
                request.accept(b"").map(Peer::Managed)
            })
        }
    };
    println!("{LISTENS}");
    let mut before = None;
    loop {
        let peer = match accept() {
            Ok(peer) => peer,
            Err(Error::Timeout { .. }) if !is_told(&commands, EXIT, PAUSE) => continue,
            Err(Error::Timeout { .. }) => break,
            Err(error) => panic!("{error}"),
        };
        let region = domain.register(vec![0u64; WORDS], ALL).unwrap();
        peer.send_key(&region.key(..).unwrap());
        while peer.is_connected() && !is_told(&commands, CLOSE, PAUSE) {}
        close(peer);
        drop(region);
        before.get_or_insert_with(Before::now).check(&device);
    }
    drop((accept, domain));
    close(device);
}

/// This is not a separate test but the program on the second host.
#[test]
fn visitor() {
    let Some((address, commands)) = role() else {
        return;
    };
    let device = device();
    let domain = device.domain().unwrap();
    let ours = domain.register(vec![0u8; LEN], ALL).unwrap();
    let mut before = None;
    loop {
        println!("{READY}");
        if next(&commands) == EXIT {
            break;
        }
        let peer = Peer::connect(&device, &address).unwrap();
        let key = peer.receive_key();
        let (mut rounds, mut last, mut told) = (0, Instant::now(), None);
        loop {
            if let Err(error) = peer.round(rounds, &ours, &key) {
                println!("{FAILED} {} {error:?}", last.elapsed().as_millis());
                break;
            }
            (rounds, last) = (rounds + 1, Instant::now());
            // The pipe must not become full.
            if told.is_none_or(|time| last - time > 4 * PAUSE) {
                told = Some(last);
                println!("{MOVES}");
            }
            if is_told(&commands, STOP, Duration::ZERO) {
                println!("{STOPPED}");
                break;
            }
        }
        close(peer);
        before.get_or_insert_with(Before::now).check(&device);
    }
    drop((ours, domain));
    close(device);
}
