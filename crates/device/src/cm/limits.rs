//! How many links a connection manager keeps.
//!
//! Without room for a link, a message travels over a link that is closed right after it. So these limits
//! cost time, but lose nothing.

use rkey_link::peer::Credentials;

use crate::peers::link_limits::{LinkFiles, Party, files_of_links};

/// Limits for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The maximum number of links.
    pub(super) links: usize,
    /// The maximum number of links to or from one party.
    pub(super) per_party: usize,
    /// How many more descriptors links may use.
    pub(super) files_left: usize,
}

impl Limits {
    /// The limits under the current descriptor limit, with `reserved_files` descriptors reserved for the
    /// program.
    pub(super) fn now(reserved_files: u32) -> Self {
        let files = files_of_links(reserved_files);
        Self::of(files, LinkFiles::in_use())
    }

    fn of(files: usize, in_use: usize) -> Self {
        Self {
            links: (files / 4).max(1),
            per_party: (files / 16).max(1),
            files_left: files.saturating_sub(in_use),
        }
    }

    /// Whether there is room for a link in addition to those to or from the processes in `others`.
    pub(super) fn admit(
        &self,
        who: Credentials,
        others: impl ExactSizeIterator<Item = Credentials>,
    ) -> bool {
        if self.files_left == 0 || others.len() >= self.links {
            return false;
        }
        let is_ourselves = who.pid == Some(std::process::id());
        let party = Party::of(who);
        is_ourselves || others.filter(|it| Party::of(*it) == party).count() < self.per_party
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::link_limits::tests::who;

    #[test]
    fn the_link_limits_depend_on_the_descriptor_limit() {
        let usual = Limits::of(1024 - 256, 68);
        assert_eq!((usual.links, usual.per_party), (192, 48));
        assert_eq!(usual.files_left, 700);
        let few = Limits::of(3, 5);
        assert_eq!((few.links, few.per_party, few.files_left), (1, 1, 0));
    }

    #[test]
    fn a_party_cannot_use_up_the_links_of_other_parties() {
        let limits = Limits {
            links: 10,
            per_party: 3,
            files_left: 1,
        };
        // All processes of another user count as one party.
        let others = [who(7, true), who(7, true), who(7, true)];
        let users = [who(7, false), who(8, false), who(9, false)];
        let all = [others, users].concat();
        let admits = |who| limits.admit(who, all.iter().copied());
        assert!(!admits(who(7, true)) && !admits(who(10, false)));
        assert!(admits(who(8, true)));
        let own = [who(std::process::id(), true); 9];
        assert!(limits.admit(own[0], own.iter().copied()));
        let full = [who(7, true); 10];
        assert!(!limits.admit(who(8, true), full.into_iter()));
        let none_left = Limits {
            files_left: 0,
            ..limits
        };
        assert!(!none_left.admit(who(8, true), std::iter::empty()));
    }
}
