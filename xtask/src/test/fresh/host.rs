//! The variables, configuration files and certificates that a fresh root inherits from this machine, to reach the same
//! package registries. No registry is named in this code.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Variables that configure access to registries, by their prefix.
const PREFIXES: &[&str] = &[
    "PIP_",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
];

/// Such variables, by name.
const NAMES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
];

/// The configuration of apt's sources, for a machine that runs the same system as the root: others have different
/// packages.
const APT: &[&str] = &["/etc/apt", "/usr/share/keyrings"];

/// Files and directories of the system; those that exist are mounted read-only at the same place.
const SYSTEM: &[&str] = &["/etc/pip.conf", "/etc/resolv.conf", "/etc/hosts"];

/// Files and directories below the user's home.
const HOME: &[&str] = &[".pip/pip.conf", ".config/pip/pip.conf"];

/// Files and directories below cargo's home.
const CARGO: &[&str] = &["config.toml", "config", "credentials.toml"];

/// Certificates. They are copied because packages add to them.
pub(super) const CERTIFICATES: &[&str] = &["/etc/ssl/certs", "/usr/local/share/ca-certificates"];

/// The home of the first user of the fresh root.
pub(super) const NEW_HOME: &str = "/root";

/// The parts of this machine that the root inherits.
pub(super) struct Host {
    /// Variables and their values.
    pub(super) variables: Vec<(String, OsString)>,
    /// Paths of this machine and where they appear in the root.
    pub(super) binds: BTreeMap<PathBuf, PathBuf>,
}

impl Host {
    /// Selects the variables of `environment`, and the files for which `exists` returns true. Includes apt's
    /// configuration only if the root has the same system as this machine.
    pub(super) fn of(
        environment: impl Iterator<Item = (OsString, OsString)>,
        exists: impl Fn(&Path) -> bool,
        same_system: bool,
    ) -> Self {
        let environment: BTreeMap<OsString, OsString> = environment.collect();
        let folder = |name: &str| environment.get(&OsString::from(name)).map(PathBuf::from);
        let home = folder("HOME").unwrap_or_else(|| NEW_HOME.into());
        let cargo = folder("CARGO_HOME").unwrap_or_else(|| home.join(".cargo"));
        let new_home = Path::new(NEW_HOME);
        let mut wanted: Vec<(PathBuf, PathBuf)> = Vec::new();
        let apt = APT.iter().filter(|_| same_system);
        wanted.extend(apt.chain(SYSTEM).map(|path| (path.into(), path.into())));
        wanted.extend(HOME.iter().map(|p| (home.join(p), new_home.join(p))));
        wanted.extend(
            CARGO
                .iter()
                .map(|p| (cargo.join(p), new_home.join(".cargo").join(p))),
        );
        let mut variables = Vec::new();
        for (name, value) in &environment {
            let Some(text) = name.to_str().filter(|name| is_handed_over(name)) else {
                continue;
            };
            variables.push((text.to_owned(), value.clone()));
            // A variable may name a file or a directory, which the root needs as well.
            let path = PathBuf::from(value);
            let copied = |path: &Path| CERTIFICATES.iter().any(|folder| path.starts_with(folder));
            // The root shares these with the machine, so nothing may be created or removed in them.
            let of_kernel = |path: &Path| KERNEL.iter().any(|folder| path.starts_with(folder));
            if path.is_absolute() && !copied(&path) && !of_kernel(&path) {
                wanted.push((path.clone(), path));
            }
        }
        let binds = wanted.into_iter().filter(|(from, _)| exists(from));
        Self {
            variables,
            binds: binds.collect(),
        }
    }
}

/// Directories that the kernel serves.
const KERNEL: &[&str] = &["/dev", "/proc", "/sys"];

fn is_handed_over(name: &str) -> bool {
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(variables: &[(&str, &str)], files: &[&str]) -> Host {
        host_of_system(variables, files, true)
    }

    fn host_of_system(variables: &[(&str, &str)], files: &[&str], same: bool) -> Host {
        let environment = variables.iter().map(|(n, v)| (n.into(), v.into()));
        let exists = |path: &Path| files.iter().any(|f| Path::new(f) == path);
        Host::of(environment, exists, same)
    }

    #[test]
    fn another_systems_apt_configuration_is_not_inherited() {
        let binds = |same| {
            let host = host_of_system(&[], &["/etc/apt", "/etc/hosts"], same);
            host.binds.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(
            binds(true),
            [Path::new("/etc/apt"), Path::new("/etc/hosts")]
        );
        assert_eq!(binds(false), [Path::new("/etc/hosts")]);
    }

    #[test]
    fn only_variables_for_registry_access_are_inherited() {
        let host = host(
            &[
                ("https_proxy", "http://p:1"),
                ("PIP_CERT", "/c"),
                ("RKEY_LOG", "debug"),
            ],
            &[],
        );
        let names: Vec<&str> = host
            .variables
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["PIP_CERT", "https_proxy"]);
        assert!(host.binds.is_empty(), "none of its files exist");
    }

    #[test]
    fn a_file_that_a_variable_names_is_inherited() {
        let host = host(
            &[
                ("PIP_CERT", "/opt/ca.pem"),
                ("SSL_CERT_DIR", "/etc/ssl/certs"),
            ],
            &["/opt/ca.pem", "/etc/ssl/certs"],
        );
        assert_eq!(
            host.binds[Path::new("/opt/ca.pem")],
            Path::new("/opt/ca.pem")
        );
        assert_eq!(host.binds.len(), 1, "certificates are copied");
    }

    #[test]
    fn cargo_and_pip_find_their_configuration_in_the_new_home() {
        let files = [
            "/data/user/.pip/pip.conf",
            "/data/cargo/config.toml",
            "/etc/apt",
        ];
        let host = host(
            &[("HOME", "/data/user"), ("CARGO_HOME", "/data/cargo")],
            &files,
        );
        let at = |from: &str| host.binds.get(Path::new(from)).map(PathBuf::as_path);
        let home = Path::new(NEW_HOME);
        assert_eq!(at(files[0]), Some(home.join(".pip/pip.conf").as_path()));
        assert_eq!(
            at(files[1]),
            Some(home.join(".cargo/config.toml").as_path())
        );
        assert_eq!(at(files[2]), Some(Path::new("/etc/apt")));
    }
}
