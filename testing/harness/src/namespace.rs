//! Network namespaces: creates them, and runs programs in them. Without root they belong to a user namespace of their own.

use crate::UID;
use std::process::{Command, Stdio};

/// How this machine permits network namespaces.
#[derive(Clone, Copy)]
pub struct Namespaces {
    /// Whether they belong to a user namespace of their own, because we may not create interfaces in ours.
    are_ours: bool,
}

impl Namespaces {
    /// Returns `None` if this machine does not permit network namespaces with virtual interfaces.
    #[must_use]
    pub fn find() -> Option<Self> {
        let ways = [false, true].map(|are_ours| Self { are_ours });
        ways.into_iter().find(|way| {
            let mut command = way.create();
            command
                .args(["ip", "link", "add", "type", "veth"])
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        })
    }

    /// `unshare`, with the options that create a namespace. The program's words follow.
    #[must_use]
    pub fn create(self) -> Command {
        let mut command = Command::new("unshare");
        command.arg("--net");
        if self.are_ours {
            command.args(["--user", "--map-root-user"]);
        }
        command
    }

    /// Adds the options that make `nsenter` enter the namespace of a process, with the rights of the test. The program's words
    /// follow.
    #[must_use]
    pub fn enter(self, process: u32, mut nsenter: Command) -> Command {
        nsenter.args(["--target", &process.to_string(), "--net"]);
        if self.are_ours {
            nsenter.args(["--user", "--preserve-credentials"]);
        }
        nsenter
    }

    /// Like [`Namespaces::enter`], as an ordinary user.
    #[must_use]
    pub fn enter_unprivileged(self, process: u32, nsenter: Command) -> Command {
        let mut command = self.enter(process, nsenter);
        if !self.are_ours {
            let uid = UID.to_string();
            command.args(["setpriv", "--clear-groups", "--inh-caps=-all"]);
            command.args(["--reuid", &uid, "--regid", &uid]);
        }
        command
    }

    /// The user id of unprivileged programs in a namespace: root's, if it belongs to a user namespace of its own.
    #[must_use]
    pub fn user(self) -> u32 {
        if self.are_ours { 0 } else { UID }
    }
}
