//! `--sockets`: the library that turns a program's socket calls into rsocket calls. It is rdma-core's, and calls our librdmacm.so.1 as
//! it would any other.

use crate::failure::hinted;
use anyhow::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name in the directories below.
const NAME: &str = "rsocket/librspreload.so";
/// Where distributions put libraries; some have a directory for each processor.
const PLACES: &[&str] = &["/usr/lib", "/usr/lib64", "/usr/local/lib"];

/// Appends the library to `LD_PRELOAD`.
///
/// # Errors
/// The library is not installed; or there is a key (`RKEY_WIRE_KEY`): where RDMA does not reach a peer, the library uses plain TCP.
pub(super) fn add(variables: &mut [(&'static str, OsString)]) -> Result<()> {
    if std::env::var_os("RKEY_WIRE_KEY").is_some_and(|key| key != "none") {
        let error = anyhow::anyhow!("--sockets with RKEY_WIRE_KEY");
        let hint = "librspreload falls back to TCP without encryption; unset RKEY_WIRE_KEY if that is acceptable";
        return Err(hinted(error, hint));
    }
    let library = find(PLACES).ok_or_else(|| {
        let error = anyhow::anyhow!("{NAME} was not found in {}", PLACES.join(", "));
        hinted(error, "it is part of rdma-core: apt-get install librdmacm1")
    })?;
    let preload = variables.iter_mut().find(|(name, _)| *name == "LD_PRELOAD");
    if let Some((_, value)) = preload {
        value.push(":");
        value.push(library);
    }
    Ok(())
}

fn find(places: &[&str]) -> Option<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = places.iter().map(Path::new);
    folders
        .flat_map(|folder| [folder.join(&triplet).join(NAME), folder.join(NAME)])
        .find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn librspreload_is_found_in_plain_and_multiarch_directories() {
        let base = std::env::temp_dir().join(format!("rkey-sockets-{}", std::process::id()));
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        let place = base.to_str().unwrap();
        assert_eq!(find(&[place]), None);
        for folder in [base.clone(), base.join(triplet)] {
            std::fs::create_dir_all(folder.join("rsocket")).unwrap();
            std::fs::write(folder.join(NAME), "").unwrap();
            assert_eq!(find(&["/nowhere", place]), Some(folder.join(NAME)));
        }
        std::fs::remove_dir_all(&base).unwrap();
    }
}
