//! Runs a server and its clients, one after the other.

use super::cases::{Case, Scene};
use super::{IA, LIMIT};
use crate::folder::run_as;
use crate::server::Server;
use anyhow::{Context, Result};
use rkey_harness::ports::listens_on_tcp;
use rkey_harness::process::{self, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a server may run after its last client. In this time, the server frees up to a thousand EPs.
const GRACE: Duration = Duration::from_secs(120);

/// What the programs of a case printed.
pub(super) struct Said {
    pub(super) client: String,
    pub(super) server: String,
    /// Whether all programs exited in time.
    pub(super) in_time: bool,
}

/// The provider's directory, and the user id under which the programs run.
pub(super) struct Place {
    folder: PathBuf,
    user: Option<u32>,
}

impl Place {
    pub(super) fn new(folder: &Path, user: Option<u32>) -> Self {
        let folder = folder.to_owned();
        Self { folder, user }
    }

    /// A command that finds the provider. Its output is line-buffered, so that it can be read while it runs.
    fn command(&self, program: &str, words: &[&str]) -> Result<Command> {
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "-eL", program]).args(words);
        run_as(&mut command, self.user, &self.folder)?;
        command
            .env("DAT_OVERRIDE", self.folder.join("dat.conf"))
            .env("RKEY_LOG", "warn");
        Ok(command)
    }

    /// Runs a scene; returns what the programs of each case printed.
    pub(super) fn play(&self, scene: &'static Scene) -> Result<Vec<(&'static Case, Said)>> {
        let mut all = Vec::new();
        let server = self.serve(scene)?;
        let mut in_time = true;
        for case in scene.clients {
            let words: Vec<&str> = scene.both.iter().chain(case.words).copied().collect();
            let client = process::run_unseen(self.command(case.program, &words)?, LIMIT)?;
            in_time &= !client.timed_out;
            all.push((case, client));
        }
        let server = server.end();
        let server = server.with_context(|| format!("a server on {IA} failed"))?;
        let whole = |(case, client): (&'static Case, Outcome)| {
            let said = Said {
                client: client.output,
                server: server.output.clone(),
                in_time: in_time && !server.timed_out,
            };
            (case, said)
        };
        Ok(all.into_iter().map(whole).collect())
    }

    /// Runs a program that needs no server.
    pub(super) fn alone(&self, case: &'static Case) -> Result<Said> {
        let outcome = process::run_unseen(self.command(case.program, case.words)?, LIMIT)?;
        Ok(Said {
            client: outcome.output,
            server: String::new(),
            in_time: !outcome.timed_out,
        })
    }

    /// Starts a server and waits until it can be reached.
    fn serve(&self, scene: &Scene) -> Result<Server> {
        let words: Vec<&str> = scene.both.iter().chain(scene.server).copied().collect();
        let command = self.command(scene.program, &words)?;
        let ready = Arc::new(AtomicBool::new(false));
        let server = Server::start(command, 10 * LIMIT, GRACE, {
            let (ready, sign) = (Arc::clone(&ready), scene.ready);
            move |said| {
                if said.contains(sign) {
                    ready.store(true, Ordering::Release);
                }
            }
        });
        let is_ready = || match scene.port {
            Some(port) => listens_on_tcp(std::process::id(), port),
            None => ready.load(Ordering::Acquire),
        };
        server.wait_until(is_ready, LIMIT);
        Ok(server)
    }
}
