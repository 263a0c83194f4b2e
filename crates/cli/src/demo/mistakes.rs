//! Ten classic mistakes. Each uses its own connection because a refused access breaks a reliable connection, and each must
//! be refused with the reason that names the mistake.

use super::ask::{Ask, Bait, Owner};
use super::report::Report;
use anyhow::ensure;
use rkey::{Access, Device, Error, Reason, RemoteKey};

struct Mistake {
    /// The program's mistake.
    title: &'static str,
    bait: Bait,
    /// How the mistaken program changes the key that it got.
    spoil: fn(RemoteKey) -> rkey::Result<RemoteKey>,
    attempt: Attempt,
    /// Whether a reason names the mistake.
    names_it: fn(&Reason) -> bool,
}

#[derive(Clone, Copy)]
enum Attempt {
    /// Write all bytes that the changed key covers.
    Write,
    Read,
    Add,
}

const MISTAKES: [Mistake; 10] = [
    Mistake {
        title: "a mistyped key",
        bait: Bait::Plain,
        spoil: |key| {
            RemoteKey::from_parts(key.address(), key.len(), key.key() as u32 ^ 0x0f0f_f000)
        },
        attempt: Attempt::Write,
        names_it: |reason| matches!(reason, Reason::UnknownKey | Reason::StaleKey { .. }),
    },
    Mistake {
        title: "a key of deregistered memory",
        bait: Bait::Freed,
        spoil: Ok,
        attempt: Attempt::Read,
        names_it: |reason| matches!(reason, Reason::StaleKey { .. }),
    },
    Mistake {
        title: "a stale key, with other memory at its address",
        bait: Bait::Replaced,
        spoil: Ok,
        attempt: Attempt::Write,
        names_it: |reason| matches!(reason, Reason::StaleKey { .. }),
    },
    Mistake {
        title: "an old key of a rebound window",
        bait: Bait::Rebound,
        spoil: Ok,
        attempt: Attempt::Read,
        names_it: |reason| matches!(reason, Reason::StaleKey { .. }),
    },
    Mistake {
        title: "memory of another protection domain",
        bait: Bait::OtherDomain,
        spoil: Ok,
        attempt: Attempt::Write,
        names_it: |reason| matches!(reason, Reason::OtherDomain { .. }),
    },
    Mistake {
        title: "a key of another device of the owner",
        bait: Bait::OtherDevice,
        spoil: Ok,
        attempt: Attempt::Read,
        names_it: |reason| matches!(reason, Reason::UnknownKey | Reason::StaleKey { .. }),
    },
    Mistake {
        title: "the local key sent instead of the remote one",
        bait: Bait::LKey,
        spoil: Ok,
        attempt: Attempt::Write,
        names_it: |reason| matches!(reason, Reason::LocalKeyUsedRemotely),
    },
    Mistake {
        title: "one byte past the end",
        bait: Bait::Plain,
        spoil: |key| RemoteKey::from_parts(key.address(), key.len() + 1, key.key() as u32),
        attempt: Attempt::Write,
        names_it: |reason| {
            matches!(
                reason,
                Reason::OutOfRange {
                    before: 0,
                    after: 1,
                    ..
                }
            )
        },
    },
    Mistake {
        title: "an atomic on read-only memory",
        bait: Bait::ReadOnly,
        spoil: Ok,
        attempt: Attempt::Add,
        names_it: |reason| matches!(reason, Reason::Right { missing, .. } if missing.contains(Access::REMOTE_ATOMIC)),
    },
    Mistake {
        title: "a virtual address for zero-based memory",
        bait: Bait::ZeroBased,
        spoil: Ok,
        attempt: Attempt::Read,
        names_it: |reason| matches!(reason, Reason::ZeroBased { .. } | Reason::OutOfRange { .. }),
    },
];

/// Makes all ten, then checks that the owner's device recorded all ten.
pub(super) fn make_all(device: &Device, owner: &Owner, report: &mut Report) {
    report.say("\nNow ten classic mistakes. Each must be refused, with its reason.\n");
    let before = owner.number(&Ask::Refused);
    for (mistake, number) in MISTAKES.iter().zip(1..) {
        report.row(&format!("mistake {number}: {}", mistake.title), "", || {
            mistake.make(device, owner)
        });
    }
    report.row("the owner's device recorded all ten refusals", "", || {
        let recorded = owner.number(&Ask::Refused)?.saturating_sub(before?);
        ensure!(
            recorded == MISTAKES.len() as u64,
            "the owner's device recorded {recorded} of {} refusals",
            MISTAKES.len()
        );
        Ok(format!("{recorded} of {}", MISTAKES.len()))
    });
}

impl Mistake {
    /// Makes the mistake, and returns the explanation.
    fn make(&self, device: &Device, owner: &Owner) -> anyhow::Result<String> {
        let key = (self.spoil)(owner.key(&Ask::Bait(self.bait))?)?;
        let connection = device.connect(owner.address)?;
        // Larger than the memory of any key here, so that only the owner can refuse the access.
        let local = device
            .domain()?
            .register(vec![0xeeu8; 8192], Access::empty())?;
        let outcome = match self.attempt {
            Attempt::Write => connection.write(&local, ..key.len(), &key, 0)?.wait(),
            Attempt::Read => connection.read(&local, ..key.len(), &key, 0)?.wait(),
            Attempt::Add => connection.fetch_and_add(&key, 0, 1)?.wait().map(|_| ()),
        };
        let untouched = local.read_vec(..)?.iter().all(|byte| *byte == 0xee);
        match outcome {
            Ok(()) => anyhow::bail!("the access was allowed"),
            Err(Error::Denied(denial)) => {
                ensure!(
                    (self.names_it)(&denial.reason),
                    "the reason does not match the mistake: {denial}"
                );
                ensure!(untouched, "a refused access changed the local memory");
                Ok(denial.explain())
            }
            Err(other) => anyhow::bail!("the access failed without a denial: {other}"),
        }
    }
}
