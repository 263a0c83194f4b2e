//! Runs a program on both sides of the network.

use super::cases::{Case, Listens, PORT};
use super::guest::{GUEST, Guest, HOST};
use anyhow::{Context, Result};
use rkey_harness::ports::listens_on_tcp;
use rkey_harness::process;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may run. It takes seconds, and a minute with all message sizes, but longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(10);

/// A guest, and the directory with the library for this host's programs.
pub(super) struct Pair<'a> {
    pub(super) guest: Guest,
    pub(super) libraries: &'a Path,
}

/// The side that runs the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    Host,
    Guest,
}

/// The address family of the traffic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Pair<'_> {
    /// Runs a case. Returns what both sides printed if one of them fails.
    pub(super) fn play(
        &mut self,
        case: &Case,
        server: Server,
        family: Family,
    ) -> Result<Result<(), String>> {
        let (host, guest) = match server {
            Server::Host => self.serve_on_host(case, family)?,
            Server::Guest => self.serve_in_guest(case, family)?,
        };
        if host.0 && guest.0 {
            return Ok(Ok(()));
        }
        let (client, _) = words(case, Server::Guest, server, family);
        let serves = match server {
            Server::Host => "host",
            Server::Guest => "guest",
        };
        let of = |succeeded: bool| if succeeded { "succeeded" } else { "failed" };
        Ok(Err(format!(
            "{client}, the {serves} serves\n-- the host's side {}:\n{}\n-- the guest's side {}:\n{}",
            of(host.0),
            host.1,
            of(guest.0),
            guest.1
        )))
    }

    fn serve_on_host(
        &mut self,
        case: &Case,
        family: Family,
    ) -> Result<((bool, String), (bool, String))> {
        let (client, server) = words(case, Server::Guest, Server::Host, family);
        let command = self.on_host(&server);
        let thread = thread::spawn(move || process::run_unseen(command, LIMIT));
        let begun = Instant::now();
        while !self.listens_on_host(case)? && !thread.is_finished() && begun.elapsed() < LIMIT {
            thread::sleep(PAUSE);
        }
        let seconds = LIMIT.as_secs();
        let line = format!("timeout {seconds} {client} 2>&1");
        let guest = self.guest.run(&line, 2 * LIMIT)?;
        let host = thread
            .join()
            .ok()
            .context("the server's thread panicked")??;
        Ok(((host.ok, host.output), guest))
    }

    fn serve_in_guest(
        &mut self,
        case: &Case,
        family: Family,
    ) -> Result<((bool, String), (bool, String))> {
        let (client, server) = words(case, Server::Host, Server::Guest, family);
        let seconds = LIMIT.as_secs();
        let listens = match case.listens {
            Listens::Tcp => format!("ss -Htln | grep -q ':{PORT} '"),
            Listens::ConnectionManager => "rdma resource show cm_id | grep -q LISTEN".to_owned(),
        };
        // The server leaves its status when it ends.
        let serve = format!(
            "rm -f /tmp/status; (timeout {seconds} {server} >/tmp/said 2>&1; echo $? >/tmp/status) & \
             until {listens} || [ -e /tmp/status ]; do sleep 0.05; done"
        );
        self.guest.run(&serve, LIMIT)?;
        let host = process::run_unseen(self.on_host(&client), LIMIT)?;
        if !host.ok {
            let name = case.program;
            self.guest.run(&format!("killall {name}"), LIMIT)?;
        }
        let end = "until [ -e /tmp/status ]; do sleep 0.05; done; cat /tmp/said; [ $(cat /tmp/status) = 0 ]";
        let guest = self.guest.run(end, 2 * LIMIT)?;
        Ok(((host.ok, host.output), guest))
    }

    /// A command line on the host's end of the network, as an ordinary user.
    fn on_host(&self, line: &str) -> std::process::Command {
        let mut command = self.guest.host_unprivileged();
        command
            .args(line.split_whitespace())
            .env("LD_LIBRARY_PATH", self.libraries)
            .env("RKEY_WIRE", HOST.join(","))
            .env("RKEY_LOG", "warn");
        command
    }

    /// Whether the host's server can be reached.
    fn listens_on_host(&self, case: &Case) -> Result<bool> {
        let process = self.guest.process();
        Ok(match case.listens {
            Listens::Tcp => listens_on_tcp(process, PORT),
            Listens::ConnectionManager => {
                let sockets = std::fs::read_to_string(format!("/proc/{process}/net/unix"))?;
                sockets.contains("/cm/port/")
            }
        })
    }
}

/// The command lines of a case: the client's, which runs on `client`, and the server's.
fn words(case: &Case, client: Server, server: Server, family: Family) -> (String, String) {
    let [ipv4, ipv6] = match server {
        Server::Host => HOST,
        Server::Guest => GUEST,
    };
    let (address, gid, name) = match family {
        Family::V4 => (ipv4, "1", "ip"),
        Family::V6 => (ipv6, "2", "ip6"),
    };
    let line = |program: &str, own: &str, side: Server| {
        let device = match side {
            Server::Host => "",
            Server::Guest => "-d rxe0",
        };
        format!("{program} {} {own}", case.both)
            .replace("DEVICE", device)
            .replace("GID", gid)
            .replace("PEER", ipv4)
            .replace("ADDRESS", address)
            .replace("FAMILY", name)
    };
    (
        line(case.client_program(), case.client, client),
        line(case.program, case.server, server),
    )
}
