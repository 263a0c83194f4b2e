//! MPICH, Intel MPI and mpi4py from the Python package index.

use crate::folder::once;
use crate::python::pip;
use anyhow::Result;
use rkey_harness::{Session, in_target, process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MPICH: &str = "mpich==5.0.2";
const INTEL: &str = "impi-rt==2021.18.1";
const MPI4PY: &str = "mpi4py==4.1.2";

/// The directory with MPICH, Intel MPI and mpi4py, which are downloaded if they are missing.
pub(crate) fn kept(session: &Session<'_>) -> Result<PathBuf> {
    let kept = in_target(session, "mpi")?;
    install(&kept)?;
    Ok(kept)
}

/// Downloads MPICH, Intel MPI, mpi4py and mpi4py's tests from the Python package index, once for a target directory.
fn install(kept: &Path) -> Result<()> {
    let wanted = format!("{MPICH} {INTEL} {MPI4PY}\n");
    once(kept, &wanted, || bring(kept))
}

fn bring(kept: &Path) -> Result<()> {
    pip(
        kept,
        "venv",
        &["install", "-q", "--only-binary", ":all:", MPICH, MPI4PY],
    )?;
    // Intel MPI has its own directory, because its files have the same names as MPICH's.
    pip(
        kept,
        "intel",
        &["install", "-q", "--only-binary", ":all:", INTEL],
    )?;
    pip(
        kept,
        "venv",
        &[
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            "mpi4py",
            MPI4PY,
        ],
    )?;
    let package = MPI4PY.replace("==", "-");
    let mut unpack = Command::new("tar");
    unpack
        .arg("-xzf")
        .arg(format!("{package}.tar.gz"))
        .current_dir(kept);
    process::capture(&mut unpack)?;
    fs::rename(kept.join(&package).join("test"), kept.join("tests"))?;
    Ok(())
}
