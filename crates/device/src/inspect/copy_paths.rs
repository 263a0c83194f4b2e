//! The mechanisms for copying and waking that the kernel allows on this machine, found by trial.
//!
//! Files cannot answer this: a missing Yama file proves nothing, and no file shows a seccomp profile. So each mechanism
//! is tried, and the files only explain the result.

use serde::{Deserialize, Serialize};

/// One mechanism: whether it works, and why or why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The name of the mechanism.
    pub name: String,
    /// Whether the mechanism works here.
    pub works: bool,
    /// The attempt and its result, in one sentence.
    pub why: String,
}

/// The mechanisms for copying and waking, and whether each works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPaths {
    /// The mechanisms, most important first.
    pub paths: Vec<Path>,
}

/// Tries the mechanisms for copying and waking. Starts no thread and no process.
#[must_use]
pub fn copy_paths() -> CopyPaths {
    CopyPaths {
        paths: vec![remote_iovec(), segments(), barrier(), pidfd()],
    }
}

/// `process_vm_readv` and `process_vm_writev` on this process itself, which shows what a seccomp profile forbids. Yama and
/// other users matter only between two processes; each link tests them again.
fn remote_iovec() -> Path {
    let mut from = [0u8; 16];
    let secret = [0x5au8; 16];
    let pid = std::process::id();
    let (read, write) = try_process_vm(pid, &mut from, &secret);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let dumpable = rustix::process::dumpable_behavior();
    let mut why = match (&read, &write) {
        (Ok(()), Ok(())) if from == secret => {
            "process_vm_readv and process_vm_writev work on this process".to_owned()
        }
        (Err(error), _) | (_, Err(error)) => {
            format!(
                "process_vm_readv or process_vm_writev is refused even on this process ({error}); a seccomp profile may forbid such copies"
            )
        }
        _ => "process_vm_readv returned wrong data".to_owned(),
    };
    let works = read.is_ok() && write.is_ok() && from == secret;
    match scope.as_deref().map(str::trim) {
        None => why.push_str("; Yama is not enabled"),
        Some("0") => why.push_str("; Yama does not restrict such copies (ptrace_scope 0)"),
        Some("1") => why.push_str(
            "; Yama (ptrace_scope 1) refuses such copies between processes that are not parent and child, unless the \
             target sets RKEY_PTRACER=any",
        ),
        Some(other) => {
            why.push_str("; Yama (ptrace_scope ");
            why.push_str(other);
            why.push_str(") forbids such copies for all users but root");
        }
    }
    if let Ok(behavior) = dumpable
        && behavior != rustix::process::DumpableBehavior::Dumpable
    {
        why.push_str(
            "; this process is not dumpable (perhaps it has changed its user), so peers cannot copy to or from it",
        );
    }
    why.push_str(". Each link tries a copy in its own direction; if the copy is refused, payloads go through the ring.");
    Path {
        name: "direct copy between processes".to_owned(),
        works,
        why,
    }
}

#[allow(unsafe_code)]
// UNSAFETY: copies by address, between arrays that live here or in the caller.
fn try_process_vm(
    pid: u32,
    from: &mut [u8; 16],
    secret: &[u8; 16],
) -> (
    Result<(), rkey_base::process::CmaError>,
    Result<(), rkey_base::process::CmaError>,
) {
    let remote = secret.as_ptr() as u64;
    // SAFETY: `from` is valid for writes of its length, and `secret` for reads of it.
    let read = unsafe { rkey_base::process::cma_read(pid, from.as_mut_ptr(), remote, from.len()) };
    let mut target = [0u8; 16];
    let remote = target.as_mut_ptr() as u64;
    // SAFETY: `secret` is valid for reads of its length, and `target` for writes of it.
    let write =
        unsafe { rkey_base::process::cma_write(pid, secret.as_ptr(), remote, secret.len()) };
    (read, write)
}

/// Sealed memfds, which hold the memory of every link.
fn segments() -> Path {
    let result = rkey_base::segment::OwnSegment::create("rkey-try", 1 << 16);
    Path {
        name: "shared segments".to_owned(),
        works: result.is_ok(),
        why: match result {
            Ok(_) => {
                "a memfd can be created, mapped and sealed: links between processes work".to_owned()
            }
            Err(error) => {
                format!("a sealed memfd cannot be created ({error}): links between processes fail")
            }
        },
    }
}

/// membarrier, which saves a fence in every post.
fn barrier() -> Path {
    let works = rkey_base::barrier::register();
    Path {
        name: "membarrier".to_owned(),
        works,
        why: if works {
            "membarrier works: neither a post nor a copy through a lease needs a fence"
        } else {
            "membarrier is not available (old kernel or seccomp): posts and copies through leases need a fence, some nanoseconds each"
        }
        .to_owned(),
    }
}

/// pidfds, which report the end of a peer reliably.
fn pidfd() -> Path {
    let result = rkey_base::process::PidFd::open(std::process::id());
    Path {
        name: "process descriptors".to_owned(),
        works: result.is_ok(),
        why: match result {
            Ok(_) => "pidfd_open works: the exit of a peer is detected at once, even while a child of the peer still runs".to_owned(),
            Err(error) => format!("pidfd_open is refused ({error}): the exit of a peer is detected only when its socket closes"),
        },
    }
}

/// Lets every process of this user copy to and from this process, even where Yama would deny it.
#[allow(unsafe_code)]
// UNSAFETY: `prctl` has no safe wrapper for this option.
pub(crate) fn allow_any_tracer() {
    // SAFETY: this option takes one plain number and touches no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    if result != 0 {
        // EINVAL means a kernel without Yama, which needs no permission.
        tracing::debug!("the kernel refused PR_SET_PTRACER_ANY: it is probably built without Yama");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_path_explains_its_result() {
        let paths = copy_paths();
        assert_eq!(paths.paths.len(), 4);
        assert!(
            paths
                .paths
                .iter()
                .all(|p| p.why.len() > 20 && !p.name.is_empty())
        );
    }
}
