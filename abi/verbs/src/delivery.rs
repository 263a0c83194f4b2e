//! How a program is made to find this library instead of the system's: what `rkey run` sets.
//!
//! One folder holds the library under the names that programs ask for ([`LINKS`]). It goes in front of
//! `LD_LIBRARY_PATH`, which serves programs that are linked with the library and those that load it by
//! name later; and the library goes in front of `LD_PRELOAD`, so that its `stat` and `access` are found
//! before those of the C library (UCX needs that).

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name of the library's file.
pub const FILE: &str = "libibverbs.so.1";
/// Names in the same folder that are links to it. Some programs load the second form first.
pub const LINKS: &[&str] = &["libibverbs.so"];

/// The variables to set for a program, given what they are now.
#[must_use]
pub fn environment(
    folder: &Path,
    now: impl Fn(&str) -> Option<OsString>,
) -> [(&'static str, OsString); 2] {
    let file = folder.join(FILE);
    [
        (
            "LD_LIBRARY_PATH",
            in_front(folder.as_os_str(), now("LD_LIBRARY_PATH")),
        ),
        ("LD_PRELOAD", in_front(file.as_os_str(), now("LD_PRELOAD"))),
    ]
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
    fn what_was_set_stays_behind_it() {
        let set = |name: &str| (name == "LD_PRELOAD").then(|| OsString::from("/lib/other.so"));
        let [path, preload] = environment(Path::new("/opt/rkey"), set);
        assert_eq!(path, ("LD_LIBRARY_PATH", "/opt/rkey".into()));
        assert_eq!(
            preload,
            (
                "LD_PRELOAD",
                "/opt/rkey/libibverbs.so.1:/lib/other.so".into()
            )
        );
    }
}
