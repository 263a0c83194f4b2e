//! Capture files (`RKEY_CAPTURE`), for Wireshark: every packet that a process sends to other hosts or gets from them, and what passes
//! its links to processes of this host, as packets (`links.rs`, `packets.rs`).
//!
//! Packets go into a queue, from which a thread of its own writes the file, so that a slow disk does not stop the traffic. If the
//! queue is full, packets are left out. An error ends the capture, and the log says so. The file is opened with the first packet.
//! A process has one capture for each name, which lasts until the process ends.

mod links;
mod packets;
mod pcap;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rkey_roce::icrc::Flow;

use crate::ecn::Ecn;
use crate::{log_later, threads};
pub(crate) use links::LinkCapture;

/// The maximum number of bytes that wait to be written.
const MAX_BYTES: usize = 8 << 20;
/// How long to wait for the file when a wire closes, or while another thread looks up a capture.
const PATIENCE: Duration = Duration::from_secs(2);

/// The captures of this process and, in a forked child, of its parent.
static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

/// The capture file of a process.
#[derive(Debug)]
pub(crate) struct Capture {
    path: PathBuf,
    process: u32,
    queue: Mutex<Queue>,
    /// Notified when bytes have been added to the queue.
    filled: Condvar,
    /// Notified when all bytes have been written, or the capture has ended.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// How many packets did not fit into the queue.
    left_out: u64,
    state: CaptureState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CaptureState {
    /// No packet has been added yet, so there is no thread.
    #[default]
    New,
    /// The thread waits for packets.
    Idle,
    /// The thread writes to the file.
    Writing,
    /// An error has ended the capture.
    Ended,
}

impl Capture {
    /// The capture of this process in a file; `%p` in its name stands for the process id. `None` if another thread keeps the list
    /// of captures locked for too long.
    pub(crate) fn of_process(pattern: &Path) -> Option<Arc<Self>> {
        let process = std::process::id();
        let name = pattern.to_string_lossy();
        let path = PathBuf::from(name.replace("%p", &process.to_string()));
        let Some(mut known) = CAPTURES.try_lock_for(PATIENCE) else {
            tracing::warn!(
                "packets are not captured: this process was forked while another thread was starting a capture"
            );
            return None;
        };
        let is_it = |it: &&Arc<Self>| it.process == process && it.path == path;
        if let Some(capture) = known.iter().find(is_it) {
            return Some(Arc::clone(capture));
        }
        let capture = Arc::new(Self {
            path,
            process,
            queue: Mutex::default(),
            filled: Condvar::new(),
            written: Condvar::new(),
        });
        known.push(Arc::clone(&capture));
        Some(capture)
    }

    /// The name of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a received datagram.
    pub(crate) fn received(
        self: &Arc<Self>,
        (from, to): (SocketAddr, SocketAddr),
        ecn: Ecn,
        bytes: &[u8],
    ) {
        let opened = Flow::new(from, to).and_then(|flow| flow.open(bytes).ok());
        let identification = opened.and_then(|it| it.identification).unwrap_or(0);
        self.record((from, to), [(identification, ecn, bytes)]);
    }

    /// Adds datagrams that are about to be sent, with the identifications of their IPv4 headers.
    pub(crate) fn add<'a>(
        self: &Arc<Self>,
        flow: (SocketAddr, SocketAddr),
        datagrams: impl IntoIterator<Item = (u16, &'a [u8])>,
    ) {
        let with_bits = |(identification, bytes)| (identification, Ecn::of_packet(bytes), bytes);
        self.record(flow, datagrams.into_iter().map(with_bits));
    }

    fn record<'a>(
        self: &Arc<Self>,
        flow: (SocketAddr, SocketAddr),
        datagrams: impl IntoIterator<Item = (u16, Ecn, &'a [u8])>,
    ) {
        if self.process != std::process::id() {
            return;
        }
        let mut queue = self.queue.lock();
        // Under the lock, so that times increase from packet to packet.
        let now = crate::time::since_epoch();
        if queue.state == CaptureState::New {
            self.start(&mut queue);
        }
        if queue.state == CaptureState::Ended {
            return;
        }
        for (identification, ecn, datagram) in datagrams {
            let is_full = queue.bytes.len() + datagram.len() > MAX_BYTES;
            let bytes = &mut queue.bytes;
            if is_full || !pcap::append(bytes, now, flow, (identification, ecn), datagram) {
                queue.left_out += 1;
            }
        }
        self.filled.notify_one();
    }

    /// Waits, for a limited time, until everything that has been added is in the file.
    pub(crate) fn flush(&self) {
        if self.process != std::process::id() {
            return;
        }
        let mut queue = self.queue.lock();
        let waits = |queue: &mut Queue| {
            queue.state == CaptureState::Writing
                || queue.state == CaptureState::Idle && !queue.bytes.is_empty()
        };
        self.written.wait_while_for(&mut queue, waits, PATIENCE);
        let left_out = std::mem::take(&mut queue.left_out);
        drop(queue);
        if left_out > 0 {
            tracing::warn!(
                "the capture {} lacks {left_out} packets: the disk was too slow",
                self.path.display()
            );
        }
    }

    /// Starts the thread.
    fn start(self: &Arc<Self>, queue: &mut Queue) {
        queue.state = CaptureState::Idle;
        queue.bytes = pcap::header();
        let of_thread = Arc::clone(self);
        if let Err(error) = threads::spawn("rkey-capture", move || of_thread.main()) {
            self.end(queue);
            // The thread that sends holds the lock of the queue.
            let capture = Arc::clone(self);
            log_later::log(move || capture.log_end(&format!("cannot start a thread: {error}")));
        }
    }

    fn main(self: &Arc<Self>) {
        let written = open(&self.path).and_then(|file| {
            let capture = Arc::clone(self);
            log_later::log(move || {
                tracing::info!("capturing packets to {}", capture.path.display());
            });
            self.write_to(file)
        });
        if let Err(why) = written {
            self.end(&mut self.queue.lock());
            self.log_end(&why);
        }
    }

    /// Writes the queued bytes to the file, and waits for more. Returns only when writing fails.
    fn write_to(&self, mut file: impl Write) -> Result<(), String> {
        let mut bytes = Vec::new();
        loop {
            let mut queue = self.queue.lock();
            queue.state = CaptureState::Idle;
            if queue.bytes.is_empty() {
                self.written.notify_all();
            }
            self.filled
                .wait_while(&mut queue, |queue| queue.bytes.is_empty());
            std::mem::swap(&mut bytes, &mut queue.bytes);
            queue.state = CaptureState::Writing;
            drop(queue);
            file.write_all(&bytes).map_err(|error| error.to_string())?;
            bytes.clear();
        }
    }

    /// Ends the capture, because of an error.
    fn end(&self, queue: &mut Queue) {
        queue.state = CaptureState::Ended;
        queue.bytes = Vec::new();
        self.written.notify_all();
    }

    /// Logs why the capture has ended. The caller must not hold the lock of the queue.
    fn log_end(&self, why: &str) {
        tracing::error!(
            "the capture to {} has ended: {why}; packets are still sent and received",
            self.path.display()
        );
    }
}

/// Opens a file for one process, and empties it.
fn open(path: &Path) -> Result<File, String> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    if getuid() != geteuid() || getgid() != getegid() {
        return Err("set-user-ID and set-group-ID programs do not capture packets".to_owned());
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    // Without `O_NONBLOCK`, opening a FIFO would wait for a reader.
    options.custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|it| it.is_file()) {
        return Err("the file is not a regular file".to_owned());
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(
                "another process is writing to this file; add %p (the process ID) to the file name"
                    .to_owned(),
            );
        }
        Err(TryLockError::Error(error)) => return Err(error.to_string()),
    }
    file.set_len(0).map_err(|error| error.to_string())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_later::tests::BlockedLog;
    use rkey_harness::pcap::read;

    fn flow() -> (SocketAddr, SocketAddr) {
        let pair = ["10.0.0.1:4791", "10.0.0.2:4791"].map(|it| it.parse().unwrap());
        (pair[0], pair[1])
    }

    /// A name that no other test uses.
    fn file(name: &str) -> PathBuf {
        let name = format!("rkey-capture-{name}-{}", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn is_over(capture: &Capture) -> bool {
        capture.queue.lock().state == CaptureState::Ended
    }

    #[test]
    fn captured_packets_are_written_in_order() {
        let path = file("%p");
        let capture = Capture::of_process(&path).unwrap();
        let path = PathBuf::from(
            path.to_str()
                .unwrap()
                .replace("%p", &capture.process.to_string()),
        );
        capture.flush();
        assert!(!path.exists(), "no packet has come");
        capture.add(flow(), (0..3).map(|n| (n, &b"sent"[..])));
        capture.flush();
        assert!(Arc::ptr_eq(&capture, &Capture::of_process(&path).unwrap()));
        capture.add(flow(), [(0, &b"again"[..])]);
        capture.flush();
        let records = read(&std::fs::read(&path).unwrap());
        let numbers: Vec<u16> = records.iter().map(|it| it.identification).collect();
        assert_eq!(numbers, [0, 1, 2, 0]);
        assert_eq!(records[3].datagram, b"again");
        assert!(records.iter().all(|it| it.flow == flow()));
        assert!(records.is_sorted_by_key(|it| it.at));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_child_leaves_its_parents_capture_alone() {
        let path = file("parent");
        let capture = Capture::of_process(&path).unwrap();
        let _held = capture.queue.lock();
        let done = crate::cm::fork::tests::succeeds_in_child(|| {
            // Nothing would unlock the queue.
            capture.add(flow(), [(0, &b"data"[..])]);
            capture.flush();
            let own = Capture::of_process(&path).unwrap();
            !Arc::ptr_eq(&own, &capture)
        });
        assert!(done && !path.exists());
    }

    #[test]
    fn a_write_error_ends_the_capture() {
        let capture = Capture::of_process(&file("full")).unwrap();
        capture.queue.lock().state = CaptureState::Idle;
        capture.queue.lock().bytes = vec![7; 100];
        // Has room for ten bytes.
        capture.write_to(&mut [0; 10][..]).unwrap_err();
        capture.end(&mut capture.queue.lock());
        capture.add(flow(), [(0, &b"data"[..])]);
        capture.flush();
        assert!(is_over(&capture) && capture.queue.lock().bytes.is_empty());
    }

    #[test]
    fn the_traffic_does_not_wait_for_the_log_when_a_capture_ends() {
        let capture = Capture::of_process(Path::new("/nowhere/at/all")).unwrap();
        let (log, pass, lines) = BlockedLog::new();
        let of_thread = Arc::clone(&capture);
        let thread = threads::spawn("rkey-test", move || {
            tracing::subscriber::with_default(log, || of_thread.main());
        });
        crate::wire::tests::wait_until(|| is_over(&capture));
        capture.add(flow(), [(0, &b"data"[..])]);
        assert!(lines.try_recv().is_err());
        pass.send(()).unwrap();
        thread.unwrap().join().unwrap();
        assert!(
            lines
                .recv()
                .unwrap()
                .1
                .contains("/nowhere/at/all has ended")
        );
    }

    #[test]
    fn packets_are_left_out_of_a_capture_whose_queue_is_full() {
        let capture = Capture::of_process(&file("slow")).unwrap();
        // Without a thread, nothing is written.
        capture.queue.lock().state = CaptureState::Idle;
        capture.add(flow(), (0..3000).map(|_| (0, &[0; 4096][..])));
        let queue = capture.queue.lock();
        assert!(queue.bytes.len() < MAX_BYTES + 4096);
        assert!(queue.left_out > 900, "{}", queue.left_out);
    }

    #[test]
    fn a_capture_needs_a_regular_file_that_no_other_process_writes() {
        let path = file("taken");
        let held = open(&path).unwrap();
        (&held).write_all(b"theirs").unwrap();
        assert!(open(&path).unwrap_err().contains("%p"));
        let capture = Capture::of_process(&path).unwrap();
        capture.add(flow(), [(0, &b"data"[..])]);
        crate::wire::tests::wait_until(|| is_over(&capture));
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        drop(held);
        assert_eq!(open(&path).unwrap().metadata().unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
        for other in ["/dev/null", "/", "/nowhere/at/all"] {
            assert!(open(Path::new(other)).is_err(), "{other}");
        }
    }
}
