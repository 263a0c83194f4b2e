//! Emulated files, which a kernel device would have and programs look for: its character device in `/dev` and its links
//! in sysfs. The links lead to `/sys/devices/virtual`, as those of other software devices do (rxe, siw). The contents
//! of the directory are not emulated.

use crate::device::devices::{DEV_NAME, NAME};
use std::ffi::CString;

const DEV: &str = "/dev/infiniband";
/// The directory of each sysfs class, and the directory into which its links lead.
const CLASSES: [(&str, &str); 2] = [
    ("/sys/class/infiniband", "/sys/devices/virtual/infiniband"),
    (
        "/sys/class/infiniband_verbs",
        "/sys/devices/virtual/infiniband_verbs",
    ),
];

/// The emulated file that a nonexistent path refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// The character device.
    Device,
    /// A link to this directory.
    Link(CString),
    /// This directory of the device.
    Folder(CString),
    /// An unrelated file, reached through one of the device's links.
    Other(CString),
}

/// The emulated file at a path, or the file that the path reaches through one.
#[must_use]
pub fn find(path: &[u8]) -> Option<File> {
    let path = std::str::from_utf8(path).ok()?;
    let (own, dev) = (NAME.to_str().ok()?, DEV_NAME.to_str().ok()?);
    let in_dev = path
        .strip_prefix(DEV)
        .and_then(|rest| rest.strip_prefix('/'));
    if in_dev == Some(dev) {
        return Some(File::Device);
    }
    in_sysfs(path, [own, dev])
}

fn in_sysfs(path: &str, names: [&str; 2]) -> Option<File> {
    for ((class, folder), name) in CLASSES.iter().zip(names) {
        for (start, is_link) in [(class, true), (folder, false)] {
            let rest = path
                .strip_prefix(start)
                .and_then(|rest| rest.strip_prefix('/'))
                .and_then(|rest| rest.strip_prefix(name));
            if let Some(rest) = rest
                && (rest.is_empty() || rest.starts_with('/'))
            {
                return at(&format!("{folder}/{name}"), rest, is_link);
            }
        }
    }
    None
}

/// The file at a path relative to a directory of the device.
fn at(folder: &str, rest: &str, is_link: bool) -> Option<File> {
    let mut parts: Vec<&str> = folder.split('/').skip(1).collect();
    let own = parts.len();
    let mut stayed = true;
    for part in rest.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
                stayed = false;
            }
            // No file inside the directory is emulated.
            _ if parts.len() == own && stayed => return None,
            name => parts.push(name),
        }
    }
    let path = format!("/{}", parts.join("/"));
    let parent = folder.rsplit_once('/').map(|(parent, _)| parent);
    let (is_own, is_parent) = (path == folder, Some(path.as_str()) == parent);
    let is_inside = path
        .strip_prefix(folder)
        .is_some_and(|inside| inside.starts_with('/'));
    let path = CString::new(path).ok()?;
    if is_inside {
        None
    } else if is_own && is_link && rest.is_empty() {
        Some(File::Link(path))
    } else if is_own || is_parent {
        Some(File::Folder(path))
    } else {
        Some(File::Other(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(path: &str) -> CString {
        CString::new(path).unwrap()
    }

    #[test]
    fn paths_of_the_device_are_recognized() {
        let own = "/sys/devices/virtual/infiniband/rkey0";
        for (path, expected) in [
            ("/dev/infiniband/uverbs-rkey0", Some(File::Device)),
            ("/dev/infiniband/uverbs-rkey", None),
            ("/dev/infiniband/uverbs-rkey0/", None),
            ("/dev/infiniband", None),
            ("/sys/class/infiniband/rkey0", Some(File::Link(c(own)))),
            ("/sys/class/infiniband/rkey0/", Some(File::Folder(c(own)))),
            ("/sys/class/infiniband/rkey0/.", Some(File::Folder(c(own)))),
            (
                "/sys/class/infiniband/rkey0/..",
                Some(File::Folder(c("/sys/devices/virtual/infiniband"))),
            ),
            (
                "/sys/class/infiniband/rkey0/../..",
                Some(File::Other(c("/sys/devices/virtual"))),
            ),
            (
                "/sys/class/infiniband/rkey0/../../net/lo",
                Some(File::Other(c("/sys/devices/virtual/net/lo"))),
            ),
            (
                "/sys/class/infiniband/rkey0/../rkey0",
                Some(File::Folder(c(own))),
            ),
            (
                "/sys/class/infiniband/rkey0/../../../../../../..",
                Some(File::Other(c("/"))),
            ),
            ("/sys/class/infiniband/rkey0/device", None),
            ("/sys/class/infiniband/rkey0/../rkey0/device", None),
            ("/sys/class/infiniband/rkey00", None),
            ("/sys/class/infiniband/mlx5_0", None),
            (own, Some(File::Folder(c(own)))),
            (
                "/sys/class/infiniband_verbs/uverbs-rkey0",
                Some(File::Link(c(
                    "/sys/devices/virtual/infiniband_verbs/uverbs-rkey0",
                ))),
            ),
            ("", None),
            ("rkey0", None),
        ] {
            assert_eq!(find(path.as_bytes()), expected, "{path}");
        }
        assert_eq!(find(b"/sys/class/infiniband/rkey0\xff"), None);
    }
}
