//! Which ports programs use. Reads the kernel's tables instead of connecting, which the programs would notice.

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
