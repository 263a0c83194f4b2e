//! A process, named by a descriptor. The kernel reuses the PID of an ended process, but such a descriptor never refers
//! to another process.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that refers to one process forever. It becomes readable when the process ends.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// A descriptor for the process that has the PID `pid` now.
    ///
    /// # Errors
    ///
    /// `ESRCH` when there is none, `EINVAL` for 0 and for thread ids; `ENOSYS` before Linux 5.3.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(Self {
            fd: pidfd_open(pid, PidfdFlags::empty())?,
        })
    }

    /// A descriptor that came from elsewhere, for example from the socket option `SO_PEERPIDFD`.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Whether the process is alive (a zombie is not).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        // An error says nothing about the process, so the process is not reported as dead.
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }
}

impl From<OwnedFd> for PidFd {
    fn from(fd: OwnedFd) -> Self {
        Self::from_fd(fd)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn pidfds_report_whether_processes_are_alive() {
        assert!(PidFd::open(std::process::id()).unwrap().is_alive());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = PidFd::open(child.id()).unwrap();
        assert!(pidfd.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!pidfd.is_alive());
    }

    #[test]
    fn unused_pids_are_refused() {
        assert_eq!(
            PidFd::open(0).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        assert!(PidFd::open(u32::MAX).is_err());
        assert!(PidFd::open(i32::MAX as u32).is_err());
    }
}
