//! A server that runs in the background while its clients run.

use anyhow::{Context, Result};
use rkey_harness::process::{self, Outcome};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);

/// A running server.
pub(crate) struct Server {
    thread: JoinHandle<Result<Outcome>>,
    /// When the server's last client ended.
    over: Arc<OnceLock<Instant>>,
}

impl Server {
    /// Starts a server, which may run for `limit`, and for `grace` after its last client. `read` gets its output so far, again and
    /// again.
    pub(crate) fn start(
        command: Command,
        limit: Duration,
        grace: Duration,
        read: impl Fn(&str) + Send + 'static,
    ) -> Self {
        let over = Arc::new(OnceLock::<Instant>::new());
        let thread = thread::spawn({
            let over = Arc::clone(&over);
            let end = Instant::now() + limit;
            move || {
                process::run_while(command, false, move |said| {
                    read(said);
                    let goes_on = |over: &Instant| over.elapsed() < grace;
                    over.get().is_none_or(goes_on) && Instant::now() < end
                })
            }
        });
        Self { thread, over }
    }

    /// Waits until the server is ready, has ended, or `limit` has passed.
    pub(crate) fn wait_until(&self, is_ready: impl Fn() -> bool, limit: Duration) {
        let begun = Instant::now();
        while !is_ready() && !self.thread.is_finished() && begun.elapsed() < limit {
            thread::sleep(PAUSE);
        }
    }

    /// Waits for the server to end after its last client, and kills it if it does not.
    pub(crate) fn end(self) -> Result<Outcome> {
        let _ = self.over.set(Instant::now());
        let outcome = self.thread.join().ok();
        outcome.context("the server's thread panicked")?
    }
}
