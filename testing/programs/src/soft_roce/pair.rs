//! Runs a program on both sides of the network.

use super::cases::{Case, Listens, PORT};
use super::guest::{GUEST, Guest, HOST, Said};
use crate::server::Server;
use anyhow::Result;
use rkey_harness::ports::listens_on_tcp;
use rkey_harness::process;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long a program may run. It takes seconds, and a minute with all message sizes, but longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
/// How long a server may run after its client.
const GRACE: Duration = Duration::from_secs(30);

/// Selects the guest's device.
const DEVICE: &str = "-d rxe0";

/// A guest, and what this host's programs need.
pub(super) struct Pair<'a> {
    pub(super) guest: Guest,
    /// The directory with the libraries, and with our own program.
    pub(super) libraries: &'a Path,
    /// The path MTU of queue pairs.
    pub(super) path_mtu: &'static str,
    /// `RKEY_FAULT` for this host's programs; empty for none.
    pub(super) faults: &'a str,
}

/// The side that runs the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
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
        &self,
        case: &Case,
        server: Serves,
        family: Family,
    ) -> Result<Result<(), String>> {
        let (lines, said) = match server {
            Serves::Host => self.serve_on_host(case, family)?,
            Serves::Guest => self.serve_in_guest(case, family)?,
        };
        if said.iter().all(|side| side.succeeded) {
            return Ok(Ok(()));
        }
        let mut text = lines.client;
        for (name, side) in ["server", "client"].into_iter().zip(said) {
            let how = if side.succeeded {
                "succeeded"
            } else {
                "failed"
            };
            let output = side.output;
            text.push_str(&format!("\n-- the {name} {how}:\n{output}"));
        }
        Ok(Err(text))
    }

    /// Runs a case whose server is on this host. Returns what the server and the client said.
    fn serve_on_host(&self, case: &Case, family: Family) -> Result<(Lines, [Said; 2])> {
        let lines = lines(case, Serves::Host, family, self.path_mtu);
        let server = Server::start(self.on_host(&lines.server), 2 * LIMIT, GRACE, |_| {});
        server.wait_until(|| self.listens_on_host(case), LIMIT);
        let line = format!("timeout {} {} 2>&1", LIMIT.as_secs(), lines.client);
        let client = self.guest.run(&line, 2 * LIMIT)?;
        Ok((lines, [server.end()?.into(), client]))
    }

    /// Runs a case whose server is in the guest. Returns what the server and the client said.
    fn serve_in_guest(&self, case: &Case, family: Family) -> Result<(Lines, [Said; 2])> {
        let lines = lines(case, Serves::Guest, family, self.path_mtu);
        let listens = match case.listens {
            Listens::Tcp => format!("ss -Htln | grep -q ':{PORT} '"),
            // The kernel shows this state shortly before it accepts requests.
            Listens::ConnectionManager => {
                "rdma resource show cm_id | grep -q LISTEN && sleep 1".to_owned()
            }
        };
        // The server leaves its status when it ends.
        let seconds = LIMIT.as_secs();
        let line = &lines.server;
        let serve = format!(
            "rm -f /tmp/status; (timeout {seconds} {line} >/tmp/said 2>&1; echo $? >/tmp/status) >/dev/null 2>&1 & \
             until {listens} || [ -e /tmp/status ]; do sleep 0.05; done"
        );
        self.guest.run(&serve, LIMIT)?;
        let client = process::run_unseen(self.on_host(&lines.client), LIMIT)?;
        // A server that does not end is shown with the place in the kernel where it waits, and killed.
        let (program, grace) = (case.program, GRACE.as_secs());
        let tenths = 10 * grace;
        let end = format!(
            "for i in $(seq {tenths}); do [ -e /tmp/status ] && break; sleep 0.1; done; \
             if ! [ -e /tmp/status ]; then \
               for server in $(pidof {program}); do \
                 echo \"did not end within {grace} s\"; cat /proc/$server/status /proc/$server/stack; \
               done; dmesg | tail -n 20; killall -9 {program}; sleep 1; \
             fi; cat /tmp/said; [ \"$(cat /tmp/status)\" = 0 ]"
        );
        if !client.ok {
            self.guest.run(&format!("killall {program}"), LIMIT)?;
        }
        let server = self.guest.run(&end, LIMIT)?;
        Ok((lines, [server, client.into()]))
    }

    /// A command line on the host's end of the network, as an ordinary user.
    fn on_host(&self, line: &str) -> Command {
        let mut command = self.guest.host_unprivileged();
        let own = self.libraries.display();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(line.split_whitespace())
            .env("PATH", format!("{own}:{path}"))
            .env("LD_LIBRARY_PATH", self.libraries)
            .env("RKEY_FAULT", self.faults)
            .env("RKEY_WIRE", HOST.join(","))
            .env("RKEY_LOG", "warn");
        command
    }

    /// Whether the host's server can be reached.
    fn listens_on_host(&self, case: &Case) -> bool {
        let process = self.guest.process();
        match case.listens {
            Listens::Tcp => listens_on_tcp(process, PORT),
            Listens::ConnectionManager => {
                let sockets = std::fs::read_to_string(format!("/proc/{process}/net/unix"));
                sockets.is_ok_and(|sockets| sockets.contains("/cm/port/"))
            }
        }
    }
}

/// The command lines of a case.
struct Lines {
    server: String,
    client: String,
}

fn lines(case: &Case, server: Serves, family: Family, path_mtu: &str) -> Lines {
    let ([ipv4, ipv6], [served, other]) = match server {
        Serves::Host => (HOST, ["", DEVICE]),
        Serves::Guest => (GUEST, [DEVICE, ""]),
    };
    let (address, gid, name) = match family {
        Family::V4 => (ipv4, "1", "ip"),
        Family::V6 => (ipv6, "2", "ip6"),
    };
    let line = |program: &str, own: &str, device: &str| {
        format!("{program} {} {own}", case.both)
            .replace("DEVICE", device)
            .replace("GID", gid)
            .replace("MTU", path_mtu)
            .replace("PEER", ipv4)
            .replace("ADDRESS", address)
            .replace("FAMILY", name)
    };
    Lines {
        server: line(case.program, case.server, served),
        client: line(case.client_program(), case.client, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft_roce::cases::{MANAGED, PINGS};

    #[test]
    fn each_side_gets_its_own_arguments() {
        let ping = lines(&PINGS[0], Serves::Host, Family::V6, "1024");
        assert_eq!(ping.server, "ibv_rc_pingpong  -g 2 -m 1024 -n 100 ");
        assert_eq!(
            ping.client,
            "ibv_rc_pingpong -d rxe0 -g 2 -m 1024 -n 100 10.77.0.1"
        );
        let managed = lines(&MANAGED[2], Serves::Guest, Family::V6, "1024");
        assert_eq!(managed.server, "ucmatose -f ip6 -c 4 -C 20 -b fd77::2");
        assert_eq!(managed.client, "ucmatose -f ip6 -c 4 -C 20 -s fd77::2");
    }
}
