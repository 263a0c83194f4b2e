//! Which ports programs use, and turns for fixed ports. Reads the kernel's tables instead of connecting, which the programs
//! would notice.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

/// Whether a program listens on a TCP port in the network namespace of a process.
#[must_use]
pub fn listens_on_tcp(process: u32, port: u16) -> bool {
    has_socket(process, ["tcp", "tcp6"], port, "0A")
}

/// Whether a UDP socket has a port in the network namespace of a process.
#[must_use]
pub fn is_bound_to_udp(process: u32, port: u16) -> bool {
    has_socket(process, ["udp", "udp6"], port, "07")
}

/// Whether a socket with a port is in a state.
fn has_socket(process: u32, tables: [&str; 2], port: u16, wanted: &str) -> bool {
    let local = format!(":{port:04X}");
    let tables = tables.map(|name| std::fs::read_to_string(format!("/proc/{process}/net/{name}")));
    let mut lines = tables.iter().flatten().flat_map(|table| table.lines());
    lines.any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let address = words.next().unwrap_or_default();
        let state = words.nth(1).unwrap_or_default();
        address.ends_with(&local) && state == wanted
    })
}

/// Exclusive use of something that all programs on this host share, such as a fixed port. It is an abstract socket name, which
/// the kernel releases when the process exits.
pub struct Turn(#[expect(dead_code, reason = "holds the name")] UnixListener);

impl Turn {
    /// Waits until no other test uses it.
    ///
    /// # Errors
    ///
    /// The turn is not free within this time, or the name is too long.
    pub fn take(what: &str, patience: Duration) -> io::Result<Self> {
        let name = SocketAddr::from_abstract_name(format!("rkey-test/turn/{what}"))?;
        let started = Instant::now();
        loop {
            match UnixListener::bind_addr(&name) {
                Ok(held) => return Ok(Self(held)),
                Err(error) if started.elapsed() > patience => {
                    let waited = format!("{what} is still in use after {patience:?}: {error}");
                    return Err(io::Error::new(error.kind(), waited));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// How many UDP datagrams have arrived at the sockets of a process's network namespace, over IPv4 and IPv6.
pub(crate) fn datagrams(process: u32) -> u64 {
    let count = |file: &str, found: fn(&str) -> Option<&str>| {
        let text = std::fs::read_to_string(format!("/proc/{process}/net/{file}"));
        let text = text.expect("the kernel counts packets");
        let number = text.lines().find_map(found);
        number.map_or(0, |it| it.trim().parse().expect("a number"))
    };
    // The first line of IPv4 has the names: `Udp: InDatagrams NoPorts ...`
    let v4 = count("snmp", |line| {
        let first = line.strip_prefix("Udp: ")?.split_whitespace().next()?;
        first
            .starts_with(|it: char| it.is_ascii_digit())
            .then_some(first)
    });
    v4 + count("snmp6", |line| line.strip_prefix("Udp6InDatagrams"))
}
