//! A peer that is stopped in the middle of a request that names our memory.

#![allow(unsafe_code)]
// UNSAFETY: calls the C functions, and reads memory that the device writes.

use crate::world::*;
use ibverbs::memory::mr;
use ibverbs::queues::{creation, qp};
use ibverbs::sys::consts::*;
use ibverbs::sys::{Mr, Qp, QpAttr};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const PEER: &str = "RKEY_TEST_PEER";
/// Long enough that the peer itself copies into our memory.
const LONG: usize = 1 << 20;

/// Registers `LONG` bytes of this value.
pub(crate) fn register(world: &World, byte: u8) -> (Vec<u8>, *mut Mr) {
    let mut memory = vec![byte; LONG];
    // SAFETY: the memory stays as long as the region: both live to the end of the process.
    let region = unsafe { mr::reg_mr(world.pd, memory.as_mut_ptr().cast(), LONG, ALL as i32) };
    assert!(!region.is_null());
    (memory, region)
}

/// The other process offers memory filled with ones, then does nothing.
pub(crate) fn peer() {
    let world = World::new();
    let (memory, region) = register(&world, 1);
    let pair = world.qp(QPT_RC);
    // SAFETY: the objects are live.
    let (number, rkey) = unsafe { ((*pair).qp_num, (*region).rkey) };
    println!("\noffer {number} {} {rkey}", memory.as_ptr() as u64);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    world.connect(pair, QPT_RC, line.trim().parse().unwrap());
    println!("\nready");
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {}
}

pub(crate) struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Peer {
    /// Starts this test program as the other process. The closure returns its next line that begins with a
    /// word.
    pub(crate) fn start(test: &str) -> (Self, impl FnMut(&str) -> String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(PEER, "1")
            .env("RKEY_RING_BYTES", "64k")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut peer = Self(command.spawn().unwrap());
        let mut said = BufReader::new(peer.0.stdout.take().unwrap()).lines();
        let hear = move |word: &str| {
            let line = said.find(|line| line.as_ref().is_ok_and(|line| line.starts_with(word)));
            line.unwrap().unwrap()
        };
        (peer, hear)
    }

    /// The number of its queue pair, and address and key of its memory.
    pub(crate) fn offered(offer: &str) -> [u64; 3] {
        let mut numbers = offer.split(' ').skip(1).map(|n| n.parse::<u64>().unwrap());
        std::array::from_fn(|_| numbers.next().unwrap())
    }

    /// Sends the number of our queue pair to it.
    pub(crate) fn tell(&mut self, own: u32) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{own}").unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: touches no memory; the process is our child and has not been reaped.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    /// Stops it, and waits until all of its threads have stopped.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let end = Instant::now() + Duration::from_secs(60);
        while !has_stopped(self.0.id()) {
            assert!(Instant::now() < end, "the peer does not stop");
        }
    }
}

/// Whether every thread of a process is stopped.
fn has_stopped(pid: u32) -> bool {
    let fields = |place: PathBuf| {
        let stat = std::fs::read_to_string(place.join("stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields = after_name.split_ascii_whitespace().map(str::to_owned);
        Some(fields.collect::<Vec<_>>())
    };
    let process = Path::new("/proc").join(pid.to_string());
    let tasks = std::fs::read_dir(process.join("task")).unwrap();
    // A thread that ends meanwhile has no state, and ends the list early.
    let states: Vec<_> = tasks.filter_map(|task| fields(task.ok()?.path())).collect();
    let threads = fields(process).unwrap()[17].parse();
    threads == Ok(states.len()) && states.iter().all(|fields| fields[0] == "T")
}

/// However a queue pair ends, its peer loses access: a peer that was stopped before it copied the result of our read must not copy
/// it later, when the memory holds something else.
fn nothing_arrives_after(test: &str, end: fn(&World, *mut Qp) -> i32) {
    if std::env::var_os(PEER).is_some() {
        return peer();
    }
    let (mut other, mut hear) = Peer::start(test);
    let [number, addr, rkey] = Peer::offered(&hear("offer"));

    let world = World::new();
    let (memory, region) = register(&world, 0);
    let pair = world.qp(QPT_RC);
    // SAFETY: the objects are live.
    let (own, lkey) = unsafe { ((*pair).qp_num, (*region).lkey) };
    // 8 times 0.3 seconds.
    world.connect_with(pair, QPT_RC, number as u32, 16);
    other.tell(own);
    hear("ready");
    let mut few = sge(memory.as_ptr() as u64, 8, lkey);
    let mut read = remote(1, WR_RDMA_READ, &mut few, addr, rkey as u32);
    assert_eq!(world.run(pair, &mut read), WC_SUCCESS);

    other.stop();
    let mut all = sge(memory.as_ptr() as u64, LONG as u32, lkey);
    let mut read = remote(2, WR_RDMA_READ, &mut all, addr, rkey as u32);
    assert_eq!(send(pair, &mut read), (0, false));
    assert_eq!(end(&world, pair), 0);
    let byte = |at: usize| memory.as_ptr().wrapping_add(at).cast_mut();
    for at in 0..LONG {
        // SAFETY: our memory, which nothing else can access now.
        unsafe { byte(at).write_volatile(7) };
    }
    other.signal(libc::SIGCONT);
    // Gives a faulty peer time to copy. A correct one passes at any speed.
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: as above.
    let wrong = (0..LONG).find(|at| unsafe { byte(*at).read_volatile() } != 7);
    assert_eq!(wrong, None);
}

fn modify(pair: *mut Qp, qp_state: i32) -> i32 {
    let mut attr = QpAttr {
        qp_state,
        ..QpAttr::default()
    };
    // SAFETY: the queue pair is live.
    unsafe { qp::modify_qp(pair, &raw mut attr, QP_STATE as i32) }
}

#[test]
fn nothing_arrives_after_the_error_state() {
    nothing_arrives_after(
        "stopped::nothing_arrives_after_the_error_state",
        |_, pair| modify(pair, QPS_ERR),
    );
}

#[test]
fn nothing_arrives_after_a_reset() {
    nothing_arrives_after("stopped::nothing_arrives_after_a_reset", |_, pair| {
        modify(pair, QPS_RESET)
    });
}

#[test]
fn nothing_arrives_after_the_queue_pair_is_destroyed() {
    let test = "stopped::nothing_arrives_after_the_queue_pair_is_destroyed";
    // SAFETY: a live queue pair, which is not used afterwards.
    nothing_arrives_after(test, |_, pair| unsafe { creation::destroy_qp(pair) });
}

#[test]
fn nothing_arrives_after_a_timeout() {
    nothing_arrives_after("stopped::nothing_arrives_after_a_timeout", |world, _| {
        let wc = world.next();
        assert_eq!((wc.wr_id, wc.status), (2, WC_RETRY_EXC_ERR));
        0
    });
}
