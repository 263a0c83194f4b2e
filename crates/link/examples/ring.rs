//! Measures the shared-memory link alone. Two processes, pinned to two processors, do nothing but poll. The measurements are
//! streaming and one-way time for 8 bytes, throughput for 64 KiB in fragments and by remote iovec, and writes through a
//! direct lease.
//!
//! ```text
//! cargo run --release -p rkey-link --example ring [FILTER]
//! ```
//!
//! No key is checked and no completion is written, so the times are a lower bound for everything that uses the link. Buffers
//! are not accessed between operations, so the results for large buffers are better than those of real programs.

use rkey_base::hint;
use rkey_base::memory::ArenaMemory;
use rkey_base::segment::{Arena, Sharing};
use rkey_base::shared::OwnBytes;
use rkey_link::direct::LeaseOffer;
use rkey_link::shm::{
    Acceptor, Connector, Event, Greeting, LinkConfig, Listener, LocalNode, ShmLink, Step,
};
use rkey_link::{Header, HeaderFlags, Link, NodeId, Op, Payload, SendError};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::error::Error;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn Error>>;

/// The address and the size of the target's made-up memory.
const BASE: u64 = 0x10_0000;
const SIZE: usize = 1 << 20;

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("target") => target(&args.next().ok_or("no name")?),
        filter => initiator(filter.unwrap_or_default()),
    }
}

/// Pins this thread to the `n`-th of the processors that it may use.
fn pin(n: usize) -> Outcome {
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    let mut one = CpuSet::new();
    one.set(cpus[n % cpus.len()]);
    Ok(sched_setaffinity(None, &one)?)
}

fn node(number: u32) -> std::io::Result<LocalNode> {
    LocalNode::new(
        NodeId {
            pid: number,
            nonce: 0,
        },
        LinkConfig::default(),
    )
}

fn accept(listener: &Listener, local: &LocalNode) -> Result<ShmLink, Box<dyn Error>> {
    let mut acceptor: Acceptor = loop {
        match listener.accept(local)? {
            Some(acceptor) => break acceptor,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    loop {
        match acceptor.advance()? {
            Step::Done(Greeting::Link(request)) => return Ok(request.accept()?),
            Step::Done(Greeting::Other(_)) => return Err("not a link".into()),
            Step::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Executes writes and answers reads until the initiator ends.
fn target(name: &str) -> Outcome {
    pin(1)?;
    let local = node(2)?;
    let listener = Listener::bind(name.as_bytes())?;
    let mut link = accept(&listener, &local)?;
    let memory = ArenaMemory::new(BASE, SIZE);
    // Memory that the initiator may write directly.
    let arena = Arena::create("ring-example", SIZE, Sharing::ReadWrite)?;
    let board = link.lease_board().ok_or("not the responder")?;
    let grant = board.grant(0, SIZE as u64, true).ok_or("no lease")?;
    link.send_control(&grant.to_bytes(), &[arena.fd()])?;
    let mut idle = 0u32;
    let mut words = vec![0; SIZE];
    loop {
        if let Some(incoming) = link.next_request()? {
            idle = 0;
            let header = incoming.header;
            match (header.op, incoming.payload) {
                (Op::Write, Payload::Bytes(bytes)) => {
                    // The lower bound: a plain copy into our own memory.
                    let at = (header.addr - BASE) as usize;
                    bytes.get(0, &mut words[at..at + bytes.len()]);
                }
                (Op::Write, Payload::RemoteIovec(list)) => {
                    let mut at = header.addr;
                    for &(va, len) in list.as_slice() {
                        link.pull(&memory, at, va, len)?;
                        at += len;
                    }
                }
                (Op::Read, _) => {
                    let answer = Header {
                        len: header.total,
                        ..Header::new(Op::ReadData)
                    };
                    let value = &words[..8];
                    link.send_response(&answer, |mut place| {
                        place.put(0, value);
                        Ok(())
                    })?;
                }
                _ => return Err("unexpected request".into()),
            }
            link.request_done();
        } else {
            link.end_burst();
            hint::pause();
            idle += 1;
            if idle.is_multiple_of(1 << 16) && matches!(link.on_socket(), Some(Event::Gone)) {
                return Ok(());
            }
        }
    }
}

struct Initiator {
    link: ShmLink,
}

impl Initiator {
    /// Sends `count` writes of `len` bytes as fast as acknowledgements allow.
    fn stream(&mut self, count: u64, len: usize) -> Result<Duration, Box<dyn Error>> {
        let fragment = (self.link.capabilities().fragment_max as usize).min(len);
        let bytes = vec![1; fragment];
        let start = Instant::now();
        let mut last = 0;
        for _ in 0..count {
            for offset in (0..len).step_by(fragment) {
                let header = Header {
                    len: fragment as u32,
                    addr: BASE + offset as u64,
                    ..Header::new(Op::Write)
                };
                last = self.send_request(&header, |mut place| {
                    place.put(0, &bytes);
                })?;
            }
        }
        self.wait_for(last)?;
        Ok(start.elapsed())
    }

    #[inline(always)]
    fn send_request(
        &mut self,
        header: &Header,
        fill: impl Fn(OwnBytes<'_>),
    ) -> Result<u64, Box<dyn Error>> {
        loop {
            let sent = self.link.send_request(header, |place| {
                fill(place);
                Ok(())
            });
            match sent {
                Ok(ticket) => {
                    self.link.end_burst();
                    return Ok(ticket);
                }
                Err(SendError::Full) => hint::pause(),
                Err(e) => return Err(e.into()),
            }
            self.link.acknowledged()?;
        }
    }

    fn wait_for(&mut self, ticket: u64) -> Outcome {
        while self.link.acknowledged()? <= ticket {
            if self.link.next_response()?.is_some() {
                self.link.response_done();
            }
            self.link.end_burst();
            hint::pause();
        }
        Ok(())
    }

    /// One 8-byte read at a time: a request and its response.
    fn ping_pong(&mut self, count: u64) -> Result<Duration, Box<dyn Error>> {
        let header = Header {
            total: 8,
            addr: BASE,
            ..Header::new(Op::Read)
        };
        let start = Instant::now();
        for i in 0..count {
            self.send_request(&header, |_| ())?;
            while self.link.next_response()?.is_none() {
                hint::pause();
            }
            self.link.response_done();
            // Checks the acknowledgements only after every eighth request: the other side writes their cache line, and
            // each load of it costs a transfer.
            if i.is_multiple_of(8) {
                self.link.acknowledged()?;
            }
        }
        Ok(start.elapsed())
    }

    /// One write at a time, acknowledged at once.
    fn write_and_wait(&mut self, count: u64) -> Result<Duration, Box<dyn Error>> {
        let mut header = Header {
            len: 8,
            addr: BASE,
            ..Header::new(Op::Write)
        };
        header.flags |= HeaderFlags::ACK_NOW;
        let start = Instant::now();
        for i in 0..count {
            let ticket = self.send_request(&header, |mut place| place.put(0, &i.to_le_bytes()))?;
            while self.link.acknowledged()? <= ticket {
                hint::pause();
            }
        }
        Ok(start.elapsed())
    }

    fn remote_iovec(&mut self, count: u64, len: usize) -> Result<Duration, Box<dyn Error>> {
        let bytes = vec![1u8; len];
        let header = Header {
            len: len as u32,
            addr: BASE,
            ..Header::new(Op::Write)
        };
        let remote_iovec = [(bytes.as_ptr() as u64, len as u64)];
        let start = Instant::now();
        let mut last = 0;
        for _ in 0..count {
            last = loop {
                match self.link.send_remote_iovec(&header, &remote_iovec) {
                    Ok(ticket) => break ticket,
                    Err(SendError::Full) => drop(self.link.acknowledged()?),
                    Err(e) => return Err(e.into()),
                }
            };
            self.link.end_burst();
        }
        self.wait_for(last)?;
        Ok(start.elapsed())
    }
}

fn initiator(filter: &str) -> Outcome {
    let name = format!("rkey-ring-example/{}", std::process::id());
    let mut child = std::process::Command::new(std::env::current_exe()?)
        .args(["target", &name])
        .spawn()?;
    pin(0)?;
    let local = node(1)?;
    let start = Instant::now();
    let mut connector = loop {
        match Connector::start(name.as_bytes(), &local, b"") {
            Ok(connector) => break connector,
            Err(e) if start.elapsed() > Duration::from_secs(5) => return Err(e.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let link = loop {
        match connector.advance()? {
            Step::Done(link) => break link,
            Step::Pending => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let mut initiator = Initiator { link };
    let result = measure(
        &mut initiator,
        &Report {
            filter: filter.to_owned(),
        },
    );
    drop(initiator);
    child.wait()?;
    result
}

/// The best of several runs of `count` operations, in nanoseconds per operation.
fn best(
    runs: u32,
    count: u64,
    mut run: impl FnMut(u64) -> Result<Duration, Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..runs {
        times.push(run(count)?.as_nanos() as f64 / count as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[0], times[times.len() / 2]))
}

/// Runs the measurements that match the filter and prints a line for each.
struct Report {
    filter: String,
}

impl Report {
    fn times(
        &self,
        what: &str,
        scale: f64,
        run: impl FnOnce() -> Result<(f64, f64), Box<dyn Error>>,
    ) -> Outcome {
        if what.contains(&self.filter) {
            let (best, median) = run()?;
            let (best, median) = (best * scale, median * scale);
            println!("{what:<44} best {best:>9.1} ns   median {median:>9.1} ns");
        }
        Ok(())
    }

    fn rate(
        &self,
        what: &str,
        len: usize,
        run: impl FnOnce() -> Result<(f64, f64), Box<dyn Error>>,
    ) -> Outcome {
        if what.contains(&self.filter) {
            let (best, median) = run()?;
            let (best, median) = (len as f64 / best, len as f64 / median);
            println!("{what:<44} best {best:>9.2} GB/s median {median:>9.2} GB/s");
        }
        Ok(())
    }
}

fn measure(it: &mut Initiator, report: &Report) -> Outcome {
    for (len, runs, count) in [
        (8, 99, 50_000),
        (64, 49, 20_000),
        (200, 49, 20_000),
        (4096, 49, 5000),
    ] {
        let what = format!("{len} B write, streaming");
        report.times(&what, 1.0, || best(runs, count, |n| it.stream(n, len)))?;
    }
    report.times("8 B request and response, one way", 0.5, || {
        best(49, 10_000, |n| it.ping_pong(n))
    })?;
    report.times("8 B write until acknowledged", 1.0, || {
        best(49, 10_000, |n| it.write_and_wait(n))
    })?;
    let len = 64 << 10;
    report.rate("64 KiB write in fragments", len, || {
        best(19, 1000, |n| it.stream(n, len))
    })?;
    if it.link.capabilities().remote_iovec {
        report.rate(
            "64 KiB write by remote iovec (through a buffer)",
            len,
            || best(19, 1000, |n| it.remote_iovec(n, len)),
        )?;
    }
    let Some(Event::Control(control)) = it.link.on_socket() else {
        return Err("no lease arrived".into());
    };
    let grant = LeaseOffer::from_bytes(&control.bytes)?;
    let fd = control.fds.into_iter().next().ok_or("no descriptor")?;
    let mut map = it
        .link
        .lease_client()
        .ok_or("not the requester")?
        .open(&grant, fd)?;
    let mut direct = |count: u64, len: usize| -> Result<Duration, Box<dyn Error>> {
        let bytes = vec![1u8; len];
        let start = Instant::now();
        for i in 0..count {
            let offset = ((i * 64) % (SIZE - len + 1) as u64) & !63;
            map.write(offset, std::hint::black_box(&bytes))?;
        }
        Ok(start.elapsed())
    };
    report.times("8 B write through a lease", 1.0, || {
        best(99, 100_000, |n| direct(n, 8))
    })?;
    report.rate("64 KiB write through a lease", len, || {
        best(19, 2000, |n| direct(n, len))
    })?;
    Ok(())
}
