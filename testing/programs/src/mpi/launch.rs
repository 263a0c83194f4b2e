//! How each MPI is started: its launcher, and the settings that leave the provider as the only transport between the
//! ranks.

use super::Workspace;
use super::runs::{Mpi, RANKS};
use crate::folder::run_as;
use anyhow::Result;
use rkey_harness::hosts::{Hosts, INTERFACES};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The addresses of two hosts.
pub(super) const ADDRESSES: [[&str; 2]; 2] = [["10.9.8.1", "fd09:8::1"], ["10.9.8.2", "fd09:8::2"]];

/// How long a run may take. It takes seconds, or many minutes on a busy machine, because Open MPI yields its processors to
/// spinning programs.
pub(super) const LIMIT_S: u64 = 900;

impl Workspace {
    /// Starts four ranks of a program.
    pub(super) fn launch(
        &self,
        mpi: Mpi,
        provider: &str,
        user: Option<u32>,
        direct: bool,
    ) -> Result<Command> {
        // SIGTERM lets a launcher end its ranks; SIGKILL would leave them running.
        let mut command = Command::new("timeout");
        command.arg("--kill-after=20").arg(LIMIT_S.to_string());
        run_as(&mut command, user, &self.folder)?;
        command
            .env("FI_PROVIDER_PATH", self.folder.join("lib"))
            .env("FI_PROVIDER", provider)
            .env("RKEY_LOG", "info")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        match mpi {
            Mpi::Open => {
                command.args(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]);
                let (btl, osc) = match direct {
                    true => ("self,ofi", "rdma"),
                    false => ("self", "sm,pt2pt"),
                };
                for (name, value) in [
                    ("pml", "cm"),
                    ("mtl", "ofi"),
                    ("btl", btl),
                    ("btl_ofi_provider_include", provider),
                    ("osc", osc),
                    ("mtl_ofi_provider_include", provider),
                    ("mtl_base_verbose", "1"),
                    ("mpi_yield_when_idle", "1"),
                ] {
                    command.args(["--mca", name, value]);
                }
                command
                    .env("MPI4PY_MPIABI", "openmpi")
                    // Open MPI's windows over messages support one thread at a time, and it never acknowledges a
                    // synchronous send that a matched probe has taken.
                    .env("MPI4PY_RC_THREAD_LEVEL", "serialized")
                    .env("MPI4PY_RC_RECV_MPROBE", "false");
            }
            Mpi::Mpich => {
                command
                    .arg(self.folder.join("venv/bin/mpiexec"))
                    .env("MPIR_CVAR_CH4_NETMOD", "ofi")
                    .env("MPIR_CVAR_NOLOCAL", "1")
                    .env("MPIR_CVAR_DEBUG_SUMMARY", "1")
                    .env("MPI4PY_MPIABI", "mpich")
                    .env("LD_LIBRARY_PATH", self.folder.join("venv/lib"));
            }
            Mpi::Intel => {
                let intel = self.folder.join("intel");
                command
                    .arg(intel.join("bin/mpiexec.hydra"))
                    .env("I_MPI_ROOT", &intel)
                    .env("I_MPI_HYDRA_BOOTSTRAP", "fork")
                    .env("I_MPI_FABRICS", "ofi")
                    .env("I_MPI_OFI_PROVIDER", provider)
                    .env("I_MPI_DEBUG", "2")
                    .env("MPI4PY_MPIABI", "impi")
                    .env("MPI4PY_LIBMPI", intel.join("lib/libmpi.so.12"))
                    .env("LD_LIBRARY_PATH", intel.join("lib"));
            }
        }
        command.args(["-n", RANKS]);
        Ok(command)
    }

    /// Starts four ranks of MPICH, two on each host. The launcher starts those of the second host with an agent.
    pub(super) fn launch_on(&self, hosts: &Hosts, provider: &str) -> Result<Command> {
        let agent = self.folder.join("agent");
        fs::write(&agent, hosts.agent(ADDRESSES[0][0]))?;
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755))?;
        let here = self.launch(Mpi::Mpich, provider, None, false)?;
        let mut command = hosts.enter(0, Command::new("nsenter"));
        command.arg(here.get_program()).args(here.get_args());
        for (name, value) in here.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let ranks = ADDRESSES.map(|[v4, _]| format!("{v4}:2")).join(",");
        command
            .args(["-launcher", "rsh", "-launcher-exec"])
            .arg(agent)
            .args(["-iface", INTERFACES[0], "-hosts", &ranks])
            .env("RKEY_WIRE", "auto");
        Ok(command)
    }
}
