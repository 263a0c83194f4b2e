//! How programs find the front ends instead of the system's libraries: the environment that `rkey run` sets.
//!
//! One directory contains the libraries under the names that programs load. It comes first in `LD_LIBRARY_PATH`, for
//! programs that are linked with a library or load it at run time. A library that must also precede the C library
//! comes first in `LD_PRELOAD`. libfabric searches the directories of `FI_PROVIDER_PATH` for providers. `FI_PROVIDER` is
//! also set, unless the user has set it, so that programs that do not name a provider get ours instead of one of libfabric's
//! own. uDAPL's library looks up providers in a file (see [`dat_conf`]). Our own libfabric is in the directory only if the user
//! asks for it.

use crate::dat_conf;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// How programs find a front end.
#[derive(Clone, Copy, Debug)]
pub struct FrontEnd {
    /// The file that cargo builds.
    pub built: &'static str,
    /// The name that programs are linked with.
    pub file: &'static str,
    /// Further names by which programs load the front end.
    pub links: &'static [&'static str],
    /// Whether the front end's functions must precede those of the C library.
    pub preload: bool,
}

/// The file with all front ends that share the device of a process. The loader identifies a file by its inode, so it loads this
/// file only once, even if a process finds it under several names.
pub const LIBRARY: &str = "librkey_all.so";

/// Verbs. Some programs load the short name first. UCX looks for a device file with `stat` and `access`, which the
/// library intercepts.
pub const VERBS: FrontEnd = FrontEnd {
    built: LIBRARY,
    file: "libibverbs.so.1",
    links: &["libibverbs.so"],
    preload: true,
};

/// The connection manager.
pub const RDMACM: FrontEnd = FrontEnd {
    built: LIBRARY,
    file: "librdmacm.so.1",
    links: &["librdmacm.so"],
    preload: false,
};

/// libfabric's provider, under the name that libfabric expects.
pub const FABRIC: FrontEnd = FrontEnd {
    built: LIBRARY,
    file: "librkey-fi.so",
    links: &[],
    preload: false,
};

/// uDAPL's provider, which `libdat2.so.2` loads.
pub const UDAPL: FrontEnd = FrontEnd {
    built: LIBRARY,
    file: "libdaplrkey.so.2",
    links: &[],
    preload: false,
};

/// The library of uDAPL 1.2, for programs that are linked with it. It finds uDAPL's provider in its own directory.
pub const DAT1: FrontEnd = FrontEnd {
    built: "libdat.so",
    file: "libdat.so.1",
    links: &["libdat.so"],
    preload: false,
};

/// libfabric itself, to replace the system's. It has only our provider, which it finds in its own directory.
pub const OWN_LIBFABRIC: FrontEnd = FrontEnd {
    built: "libfabric.so",
    file: "libfabric.so.1",
    links: &["libfabric.so"],
    preload: false,
};

/// Variables of libfabric, unless the user has set them. With these values, libfabric offers only this provider and, to
/// programs that request it by name, its own layer over connected endpoints, `ofi_rxm`. By default, `ofi_rxm` sends
/// messages of 16 to 128 KiB in segments. Version 1.17 then never completes a message that is peeked at and claimed
/// before it is received, over any provider. With the limit 0, it reads such messages from the sender's memory, as it
/// does with longer ones.
const UNLESS_SET: &[(&str, &str)] = &[
    ("FI_PROVIDER", "rkey,ofi_rxm"),
    ("FI_OFI_RXM_SAR_LIMIT", "0"),
];

/// The front ends that every program gets.
pub const FRONT_ENDS: &[FrontEnd] = &[VERBS, RDMACM, FABRIC, UDAPL, DAT1];

/// The directories that may contain the libraries, relative to the `rkey` program's, in search order: cargo's `deps`
/// directory, which has the most recent build; the program's own directory; and the directory of an installed package.
pub const PLACES: &[&str] = &["deps", ".", "../lib/rkey"];

impl FrontEnd {
    /// Looks for the library in [`PLACES`], relative to the directory `beside`.
    #[must_use]
    pub fn find(&self, beside: &Path) -> Option<PathBuf> {
        PLACES
            .iter()
            .map(|place| beside.join(place).join(self.built))
            .find(|path| path.exists())
    }

    /// Links `library` into a directory under the names of this front end. Keeps existing files.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn put_into(&self, folder: &Path, library: &Path) -> io::Result<()> {
        let link = |target: &Path, name: &str| match symlink(target, folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        };
        link(library, self.file)?;
        self.links
            .iter()
            .try_for_each(|name| link(Path::new(self.file), name))
    }
}

/// The variables to set so that a program finds the front ends in a directory, given their current values.
#[must_use]
pub fn environment(
    folder: &Path,
    now: impl Fn(&str) -> Option<OsString>,
) -> Vec<(&'static str, OsString)> {
    let mut preload = now("LD_PRELOAD");
    for front_end in FRONT_ENDS.iter().filter(|front_end| front_end.preload) {
        let file = folder.join(front_end.file);
        preload = Some(in_front(file.as_os_str(), preload));
    }
    let path = in_front(folder.as_os_str(), now("LD_LIBRARY_PATH"));
    let providers = in_front(folder.as_os_str(), now("FI_PROVIDER_PATH"));
    let mut all = vec![("LD_LIBRARY_PATH", path), ("FI_PROVIDER_PATH", providers)];
    all.extend(preload.map(|value| ("LD_PRELOAD", value)));
    let unset = UNLESS_SET.iter().filter(|(name, _)| now(name).is_none());
    all.extend(unset.map(|&(name, value)| (name, value.into())));
    if now(dat_conf::VARIABLE).is_none() {
        let file = folder.join(dat_conf::REGISTRY);
        all.push((dat_conf::VARIABLE, file.into()));
    }
    all
}

fn in_front(first: &OsStr, rest: Option<OsString>) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_directory_comes_before_existing_values_of_variables() {
        let set = |name: &str| match name {
            "LD_PRELOAD" => Some(OsString::from("/lib/other.so")),
            "FI_PROVIDER" => Some(OsString::from("shm")),
            _ => None,
        };
        let variables = environment(Path::new("/opt/rkey"), set);
        let preload = "/opt/rkey/libibverbs.so.1:/lib/other.so";
        assert_eq!(
            variables,
            [
                ("LD_LIBRARY_PATH", "/opt/rkey".into()),
                ("FI_PROVIDER_PATH", "/opt/rkey".into()),
                ("LD_PRELOAD", preload.into()),
                ("FI_OFI_RXM_SAR_LIMIT", "0".into()),
                ("DAT_OVERRIDE", "/opt/rkey/dat.conf".into()),
            ]
        );
        let variables = environment(Path::new("/opt/rkey"), |_| None);
        for &(name, value) in UNLESS_SET {
            assert!(variables.contains(&(name, value.into())), "{variables:?}");
        }
        let other = |name: &str| (name == "DAT_OVERRIDE").then(|| OsString::from("/etc/mine"));
        let variables = environment(Path::new("/opt/rkey"), other);
        assert!(variables.iter().all(|(name, _)| *name != "DAT_OVERRIDE"));
    }

    #[test]
    fn a_library_is_found_next_to_the_program_and_linked_under_its_names() {
        let folder = std::env::temp_dir().join(format!("rkey-delivery-{}", std::process::id()));
        let deps = folder.join("deps");
        // An earlier process with the same id, which was killed, may have left its directory behind.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&deps).unwrap();
        assert_eq!(VERBS.find(&folder), None);
        std::fs::write(folder.join(VERBS.built), "old").unwrap();
        std::fs::write(deps.join(VERBS.built), "new").unwrap();
        let found = VERBS.find(&folder).unwrap();
        assert_eq!(std::fs::read(&found).unwrap(), b"new");
        for _ in 0..2 {
            VERBS.put_into(&folder, &found).unwrap();
        }
        for name in VERBS.links.iter().chain([&VERBS.file]) {
            assert_eq!(std::fs::read(folder.join(name)).unwrap(), b"new");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
