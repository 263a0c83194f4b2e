//! How many links and descriptors other processes may use.
//!
//! Without limits, a process that may connect could open links until this process has no free descriptor. So there are limits for
//! the links of one process, for those of another user, and for the descriptors of all links together, which leaves some to the
//! program. A refused process is told which limit it hit and how to raise it.

use std::sync::atomic::{AtomicUsize, Ordering};

use rkey_link::peer::Credentials;
use rustix::process::{Resource, getrlimit};

use crate::config::Config;

/// How many descriptors a link that a peer opened uses: the socket and the pidfd.
const FILES_OF_RESPONDER: usize = 2;
/// How many descriptors a link that we opened uses: the socket, the pidfd and the permit.
const FILES_OF_REQUESTER: usize = 3;

/// How many descriptors the links of all devices of this process use, with their warrants, those of its connection manager, and TCP
/// connections to other hosts.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// The descriptors of one link or warrant, counted while it lives.
#[derive(Debug)]
pub(crate) struct LinkFiles(usize);

impl LinkFiles {
    pub(crate) fn of_link(requester: bool) -> Self {
        let files = match requester {
            true => FILES_OF_REQUESTER,
            false => FILES_OF_RESPONDER,
        };
        Self::add(files)
    }

    /// A link of the connection manager: a socket.
    pub(crate) fn of_messages() -> Self {
        Self::add(1)
    }

    /// A warrant: its permit. `None` if that would be one of the descriptors that are `reserved` for the program.
    pub(crate) fn of_warrant(reserved: u32) -> Option<Self> {
        let has_room = Self::in_use() < files_of_links(reserved);
        has_room.then(|| Self::add(1))
    }

    fn add(files: usize) -> Self {
        FILES.fetch_add(files, Ordering::Relaxed);
        Self(files)
    }

    /// How many descriptors all links and their warrants use.
    pub(crate) fn in_use() -> usize {
        FILES.load(Ordering::Relaxed)
    }
}

/// The descriptor of a TCP connection to another host, counted while it lives.
#[derive(Debug)]
pub(crate) struct StreamFile {
    _counted: LinkFiles,
    /// Whether the other host has made the connection.
    pub(crate) accepted: bool,
}

/// How many connections other hosts have made.
static ACCEPTED: AtomicUsize = AtomicUsize::new(0);

impl StreamFile {
    pub(crate) fn new(accepted: bool) -> Self {
        ACCEPTED.fetch_add(accepted.into(), Ordering::Relaxed);
        Self {
            _counted: LinkFiles::add(1),
            accepted,
        }
    }
}

impl Drop for StreamFile {
    fn drop(&mut self) {
        ACCEPTED.fetch_sub(self.accepted.into(), Ordering::Relaxed);
    }
}

impl Drop for LinkFiles {
    fn drop(&mut self) {
        FILES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// How many descriptors links may use, if `reserved` are left to the program: the current descriptor limit less those, or half
/// of it.
pub(crate) fn files_of_links(reserved: u32) -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    unreserved(reserved, usize::try_from(most).unwrap_or(usize::MAX))
}

/// Why another host may not have one more TCP connection, besides the `open` ones, without asking the program; `None` if it may. All
/// hosts together get half of the descriptors that are not reserved for the program, one host a quarter. The rest is for links on this
/// host.
pub(crate) fn refuses_stream(reserved: u32, open: usize) -> Option<&'static str> {
    let files = files_of_links(reserved);
    if open >= (files / 4).max(1) {
        return Some("the requester's host (or its /64 network) has too many connections");
    }
    let is_full = ACCEPTED.load(Ordering::Relaxed) >= files / 2 || LinkFiles::in_use() >= files;
    is_full.then_some("other hosts together have too many connections")
}

fn unreserved(reserved: u32, most: usize) -> usize {
    most - (reserved as usize).min(most / 2)
}

/// Processes that share one limit: each process of our own user alone, and all processes of another user together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// A process of our user; `None` if it has no PID in our PID namespace.
    Process(Option<u32>),
    /// All processes of another user.
    User(u32),
}

impl Party {
    pub(crate) fn of(who: Credentials) -> Self {
        if who.uid == rustix::process::geteuid().as_raw() {
            Self::Process(who.pid)
        } else {
            Self::User(who.uid)
        }
    }
}

/// The limits of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkLimits {
    /// The maximum number of links of this device.
    links: usize,
    /// The maximum number of links that one process opened.
    per_process: usize,
    /// The maximum number of links that all processes of one other user opened.
    per_user: usize,
    /// The maximum number of descriptors of the links of all devices of this process.
    files: usize,
}

impl LinkLimits {
    /// The limits for a configuration and the current descriptor limit.
    pub(crate) fn now(config: &Config) -> Self {
        Self::of(config, files_of_links(config.reserved_files))
    }

    fn of(config: &Config, files: usize) -> Self {
        let quarter = (files / FILES_OF_RESPONDER / 4).max(1);
        Self {
            links: config.max_links as usize,
            per_process: (config.max_links_per_process as usize).min(quarter),
            per_user: (config.max_links_per_user as usize).min(quarter),
            files,
        }
    }

    /// Checks whether a process may open one more link. The device has `links` links; `opened` names the process of each link
    /// that a peer opened.
    ///
    /// # Errors
    /// The limit that is reached, and how to raise it, as text.
    pub(crate) fn admit(
        &self,
        who: Credentials,
        links: usize,
        opened: impl Iterator<Item = Credentials> + Clone,
    ) -> Result<(), String> {
        let Self {
            links: limit,
            per_process,
            per_user,
            files,
        } = *self;
        let ourselves = who.pid == Some(std::process::id());
        // Processes without a PID here cannot be distinguished: together they have the limit of a user.
        let per_process = match who.pid {
            Some(_) => per_process,
            None => per_user.max(per_process),
        };
        let of_process = opened.clone().filter(|it| *it == who).count();
        if !ourselves && of_process >= per_process {
            return Err(format!(
                "this process already has {of_process} links to the device, the most that one process may have \
                 (RKEY_MAX_LINKS_PER_PROCESS and RLIMIT_NOFILE of the device's process set the limit)"
            ));
        }
        if let Party::User(uid) = Party::of(who) {
            let of_user = opened.filter(|it| it.uid == uid).count();
            if of_user >= per_user {
                return Err(format!(
                    "user {uid} already has {of_user} links to the device, the most that another user may have \
                     (RKEY_MAX_LINKS_PER_USER and RLIMIT_NOFILE of the device's process set the limit)"
                ));
            }
        }
        if links >= limit {
            return Err(format!(
                "the limit of {limit} links is reached (RKEY_MAX_LINKS of the device's process raises it)"
            ));
        }
        let used = FILES.load(Ordering::Relaxed);
        if used.saturating_add(FILES_OF_RESPONDER) > files {
            return Err(format!(
                "links use {used} descriptors of the device's process, and the rest is reserved for its program \
                 (a higher RLIMIT_NOFILE or a lower RKEY_RESERVED_FILES there allows more)"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A process of this user or of another one.
    pub(crate) fn who(pid: u32, ours: bool) -> Credentials {
        let own = rustix::process::geteuid().as_raw();
        let uid = if ours { own } else { own + 1 };
        Credentials {
            pid: Some(pid),
            uid,
            gid: 0,
        }
    }

    #[test]
    fn the_link_limits_leave_descriptors_to_the_program() {
        let config = Config::default();
        let usual = LinkLimits::of(&config, 1024 - 256);
        assert_eq!((usual.per_process, usual.per_user), (96, 96));
        assert_eq!(usual.files, 1024 - 256);
        let few = LinkLimits::of(&config, 32);
        assert_eq!((few.per_process, few.per_user, few.files), (4, 4, 32));
        assert_eq!((unreserved(256, 1024), unreserved(256, 64)), (768, 32));
        let many = LinkLimits::of(&config, usize::MAX);
        assert_eq!((many.per_process, many.per_user), (256, 256));
    }

    #[test]
    fn a_refusal_names_the_link_limit_that_was_reached() {
        let allowance = LinkLimits::of(&Config::default(), 1024 - 256);
        let process = vec![who(7, true); 96];
        let refused = |who, links, opened: &[Credentials]| {
            let opened = opened.iter().copied();
            allowance.admit(who, links, opened).unwrap_err()
        };
        let why = refused(who(7, true), 96, &process);
        assert!(why.contains("RKEY_MAX_LINKS_PER_PROCESS"), "{why}");
        let others = process.iter().copied();
        assert_eq!(allowance.admit(who(8, true), 96, others), Ok(()));
        let of_user: Vec<_> = (0..96).map(|pid| who(pid, false)).collect();
        let why = refused(who(200, false), 96, &of_user);
        assert!(why.contains("RKEY_MAX_LINKS_PER_USER"), "{why}");
        assert!(
            allowance
                .admit(who(8, true), 96, of_user.into_iter())
                .is_ok()
        );
        let why = refused(who(8, true), 4096, &[]);
        assert!(why.contains("(RKEY_MAX_LINKS of"), "{why}");
    }
}
