//! `dat.conf`, the file in which `libdat2.so.2` looks up the uDAPL provider of an interface adapter (IA) by name.
//!
//! There is an IA for each interface of this host that has an IPv4 address: `rkey-lo`, `rkey-eth0`. The entries of the
//! system's own file follow, so its providers remain available.

use crate::delivery::UDAPL;
use rkey_base::interfaces::{Address, addresses};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// The name of the file.
pub const REGISTRY: &str = "dat.conf";
/// The environment variable with the path of the file, for `libdat2.so.2`.
pub const VARIABLE: &str = "DAT_OVERRIDE";
/// The file that `libdat2.so.2` reads if [`VARIABLE`] is not set.
const SYSTEM: &str = "/etc/dat.conf";

/// Writes `dat.conf` into a directory that contains the provider. The file is replaced atomically: a process that reads it at the
/// same time gets either the old or the new contents.
///
/// # Errors
/// The directory cannot be written.
pub fn put_into(folder: &Path) -> io::Result<()> {
    let system = fs::read(SYSTEM).unwrap_or_default();
    let text = entries(folder, &addresses(), &String::from_utf8_lossy(&system));
    let path = folder.join(REGISTRY);
    if fs::read(&path).is_ok_and(|now| now == text.as_bytes()) {
        return Ok(());
    }
    let new = folder.join(format!("{REGISTRY}.{}", std::process::id()));
    fs::write(&new, text)?;
    fs::rename(&new, &path)
}

/// The name of the IA on an interface.
#[must_use]
pub fn adapter(interface: &str) -> String {
    format!("rkey-{interface}")
}

/// The interfaces with an IPv4 address, without duplicates. Each is an IA.
#[must_use]
pub fn interfaces(addresses: &[Address]) -> Vec<&str> {
    let mut names = Vec::new();
    for Address { name, .. } in addresses.iter().filter(|address| address.ip.is_ipv4()) {
        if !names.contains(&name.as_str()) {
            names.push(name.as_str());
        }
    }
    names
}

/// Our entries, followed by those of the system.
fn entries(folder: &Path, addresses: &[Address], system: &str) -> String {
    let library = folder.join(UDAPL.file);
    let mut text = String::new();
    for name in interfaces(addresses) {
        let (ia, library) = (adapter(name), library.display());
        // Programs look an IA up by name, version and thread safety; these are the values in Debian's headers.
        let _ = writeln!(
            text,
            r#"{ia} u2.0 nonthreadsafe default "{library}" dapl.2.0 "{name} 0" """#
        );
    }
    text.push_str(system);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str, ip: &str) -> Address {
        Address {
            name: name.to_owned(),
            ip: ip.parse().unwrap(),
            index: 1,
            loopback: name == "lo",
            running: true,
        }
    }

    #[test]
    fn every_interface_with_an_ipv4_address_is_an_adapter() {
        let host = [
            address("lo", "127.0.0.1"),
            address("lo", "127.0.0.2"),
            address("eth0", "10.0.0.1"),
            address("eth1", "fe80::1"),
        ];
        let text = entries(Path::new("/run/a folder"), &host, "other\n");
        assert_eq!(
            text,
            "rkey-lo u2.0 nonthreadsafe default \"/run/a folder/libdaplrkey.so.2\" dapl.2.0 \"lo 0\" \"\"\n\
             rkey-eth0 u2.0 nonthreadsafe default \"/run/a folder/libdaplrkey.so.2\" dapl.2.0 \"eth0 0\" \"\"\n\
             other\n"
        );
    }

    #[test]
    fn dat_conf_is_replaced_without_leaving_temporary_files() {
        let folder = std::env::temp_dir().join(format!("rkey-registry-{}", std::process::id()));
        // An earlier process with the same id, which was killed, may have left its directory behind.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(REGISTRY), "old").unwrap();
        put_into(&folder).unwrap();
        put_into(&folder).unwrap();
        let text = fs::read_to_string(folder.join(REGISTRY)).unwrap();
        assert!(text.contains("u2.0 nonthreadsafe default"), "{text}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
