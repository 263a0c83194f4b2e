//! Log lines of the data path. Writing to the log may block, for example if standard error is a full pipe. A thread that sends
//! packets holds locks that others need, so it does not write itself: another thread does, which exists only while there are lines.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::Dispatch;
use tracing::dispatcher;

use crate::threads;

/// How many lines may wait. Further lines are counted and left out.
const MOST: usize = 64;
/// How long to wait for the lock, which is held only for an instant. If the process forks in that instant, nothing unlocks it in the
/// child, which loses its lines.
const PATIENCE: Duration = Duration::from_millis(10);

/// Writes a line, for the subscriber of the thread that has it.
type Line = (Dispatch, Box<dyn FnOnce() + Send>);

/// The lines that wait, oldest first.
struct Lines {
    /// The process that has them. A forked child must not write its parent's lines again.
    process: u32,
    waiting: VecDeque<Line>,
    left_out: u64,
    /// Whether there is a thread that writes them.
    is_writing: bool,
}

impl Lines {
    const fn of(process: u32) -> Self {
        Self {
            process,
            waiting: VecDeque::new(),
            left_out: 0,
            is_writing: false,
        }
    }

    /// Adds a line. Returns whether a thread must be started.
    fn add(&mut self, process: u32, line: Line) -> bool {
        if self.process != process {
            *self = Self::of(process);
        }
        if self.waiting.len() == MOST {
            self.left_out += 1;
            return false;
        }
        self.waiting.push_back(line);
        !std::mem::replace(&mut self.is_writing, true)
    }
}

static LINES: Mutex<Lines> = Mutex::new(Lines::of(0));

/// Lets another thread call `write`, which writes to the log. The calling thread may hold locks. Lines are written in order. Those that
/// wait when the process ends are lost.
#[cold]
pub(crate) fn log(write: impl FnOnce() + Send + 'static) {
    let line: Line = (dispatcher::get_default(Dispatch::clone), Box::new(write));
    let Some(mut lines) = LINES.try_lock_for(PATIENCE) else {
        return;
    };
    let must_start = lines.add(std::process::id(), line);
    drop(lines);
    if must_start && threads::spawn("rkey-log", write_all).is_err() {
        // The next line tries again.
        LINES.lock().is_writing = false;
    }
}

/// Writes all lines that wait.
fn write_all() {
    loop {
        let mut lines = LINES.lock();
        let left_out = std::mem::take(&mut lines.left_out);
        let Some((subscriber, write)) = lines.waiting.pop_front() else {
            lines.is_writing = false;
            return;
        };
        drop(lines);
        let written = || {
            write();
            if left_out > 0 {
                tracing::warn!("the log was too slow: {left_out} lines were left out");
            }
        };
        // A subscriber that panics must not end the thread, which would never be started again.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            dispatcher::with_default(&subscriber, written);
        }));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{ThreadId, current};

    /// Longer than anything takes.
    const LONG: Duration = Duration::from_secs(60);

    /// A log that blocks: each line waits until the test lets it pass, and is then passed on to the test.
    pub(crate) struct BlockedLog {
        pass: Mutex<Receiver<()>>,
        written: Sender<(ThreadId, String)>,
    }

    impl BlockedLog {
        /// A log, what lets a line pass, and the lines with the threads that write them.
        pub(crate) fn new() -> (Self, Sender<()>, Receiver<(ThreadId, String)>) {
            let ((passes, pass), (written, lines)) = (channel(), channel());
            let pass = Mutex::new(pass);
            (Self { pass, written }, passes, lines)
        }
    }

    impl tracing::Subscriber for BlockedLog {
        fn enabled(&self, it: &tracing::Metadata<'_>) -> bool {
            *it.level() <= tracing::Level::INFO
        }

        fn event(&self, event: &tracing::Event<'_>) {
            struct Text(String);
            impl tracing::field::Visit for Text {
                fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                    self.0 = format!("{value:?}");
                }
            }
            // An error: the test has ended, or it waits for this thread.
            let _ = self.pass.lock().recv_timeout(LONG);
            let mut text = Text(String::new());
            event.record(&mut text);
            let _ = self.written.send((current().id(), text.0));
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn a_log_that_blocks_does_not_block_who_logs() {
        let (blocked, pass, lines) = BlockedLog::new();
        let subscriber = Dispatch::new(blocked);
        dispatcher::with_default(&subscriber, || {
            for number in 0..3 {
                log(move || tracing::warn!("line {number}"));
            }
        });
        assert!(lines.try_recv().is_err());
        for number in 0..3 {
            pass.send(()).unwrap();
            let (thread, line) = lines.recv_timeout(LONG).unwrap();
            assert_eq!(line, format!("line {number}"));
            assert_ne!(thread, current().id());
        }
    }

    /// The lines of a process of its own, so that other tests do not add to them.
    #[test]
    fn the_number_of_waiting_lines_is_limited_and_a_child_has_none_of_its_parents() {
        let mut lines = Lines::of(0);
        let count = Arc::new(());
        let line = || -> Line {
            let count = Arc::clone(&count);
            (Dispatch::none(), Box::new(move || drop(count)))
        };
        assert!(lines.add(1, line()), "the first one starts the thread");
        for _ in 1..MOST + 10 {
            assert!(!lines.add(1, line()));
        }
        assert_eq!((lines.waiting.len(), lines.left_out), (MOST, 10));
        assert_eq!(Arc::strong_count(&count), MOST + 1);
        assert!(
            lines.add(2, line()),
            "the parent's thread is not the child's"
        );
        assert_eq!((lines.waiting.len(), lines.left_out), (1, 0));
    }

    #[test]
    fn a_line_that_panics_is_only_lost() {
        let (sender, done) = channel();
        log(|| panic!("a test: while a line is written"));
        log(move || sender.send(()).unwrap());
        done.recv_timeout(LONG).unwrap();
    }
}
