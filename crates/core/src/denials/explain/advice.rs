//! What the programmer can do about a denial.

use crate::denials::wording::{Channel, capital, with_article};
use crate::{Access, Api, Attempt, Denial, DomainId, Reason, WindowKind, Words};

impl Denial {
    /// What the programmer can do about the denial.
    #[must_use]
    pub fn advice(&self) -> String {
        if let Attempt::Local(_) = self.attempt
            && let Some(advice) = self.local_advice()
        {
            return advice;
        }
        let Words {
            region,
            window,
            key,
            rkey,
            deregister,
            ..
        } = self.words();
        match &self.reason {
            Reason::UnknownKey => format!(
                "Check that the {key} arrived intact and that the connection leads to the process that issued it."
            ),
            Reason::StaleKey { .. } => format!(
                "Ask the owner for the current {key}. Tell peers before you {deregister} or rebind."
            ),
            Reason::LocalKeyUsedRemotely => format!("Give the peer the {region}'s {rkey}."),
            Reason::RemoteKeyUsedLocally => self.name_locally(),
            Reason::OtherDomain { owner } => self.advice_on_domain(*owner),
            Reason::Disabled => format!("The owner must enable the {region} first."),
            Reason::Unbound => {
                format!("The owner must bind the {window} and hand out the {key} of that bind.")
            }
            Reason::Deregistering => {
                format!("Tell peers to stop before you {deregister} {}.", with_article(region))
            }
            Reason::WrongEndpoint { bound } => self.advice_on_endpoint(*bound),
            Reason::OtherPeer => {
                "Ask the owner to register the memory for this peer, or for all peers.".into()
            }
            Reason::NotAWindow | Reason::WindowKind(_) => self.advice_on_invalidation(),
            Reason::Fault { .. } => {
                format!("The owner must keep the memory mapped and {}.", self.usable())
            }
            Reason::Withheld => {
                "To see the reason, run `rkey explain` on the owner's host, or start the owner with RKEY_EXPLAIN=all.".into()
            }
            Reason::Other(_) => {
                "The peer runs a newer version of rkey: run `rkey explain` on its host.".into()
            }
            Reason::Right { missing, .. } | Reason::QueuePair { missing, .. } => {
                self.advice_on_rights(*missing)
            }
            Reason::OutOfRange { .. }
            | Reason::CrossesSegments
            | Reason::ZeroBased { .. }
            | Reason::NotZeroBased { .. }
            | Reason::Wraps
            | Reason::Misaligned => self.advice_on_range(),
        }
    }

    /// Advice if the memory is in another domain than the request.
    fn advice_on_domain(&self, owner: DomainId) -> String {
        let register = self.register();
        if self.is_of_other_api(owner) {
            let instead = match owner.is_exclusive() {
                true => "",
                false => ", or set RKEY_CROSS_API=on for the owner",
            };
            return format!("{register} the memory through the API of the connection{instead}.");
        }
        let Words {
            domain, queue_pair, ..
        } = self.words();
        format!(
            "{register} the memory in the {queue_pair}'s {domain}, or create the {queue_pair} in the memory's {domain}."
        )
    }

    /// Advice if the key is bound to an endpoint other than that of the request.
    fn advice_on_endpoint(&self, bound: Option<u32>) -> String {
        let (noun, endpoint) = (self.noun(), self.endpoint());
        match bound {
            Some(qp) => format!(
                "Use {}, or have the owner bind the {noun} to the {endpoint} of this request.",
                Channel(qp, self.words())
            ),
            None => format!("Have the owner bind the {noun} to the {endpoint} of this request."),
        }
    }

    /// Advice if the key cannot be invalidated.
    fn advice_on_invalidation(&self) -> String {
        const ONLY: &str = "Only type 2 windows can be invalidated.";
        match &self.reason {
            Reason::NotAWindow => {
                let words = self.words();
                let deregister = capital(words.deregister);
                format!(
                    "{deregister} the {} to revoke its {}; only type 2 windows can be invalidated.",
                    words.region, words.key
                )
            }
            Reason::WindowKind(WindowKind::Dat | WindowKind::Type1) => {
                format!("{ONLY} To unbind this one, bind 0 bytes.")
            }
            _ => ONLY.into(),
        }
    }

    /// Advice if a right is missing.
    fn advice_on_rights(&self, missing: Access) -> String {
        let missing = self.api.names(missing);
        let Words { region, window, .. } = self.words();
        if !matches!(self.reason, Reason::QueuePair { .. }) {
            return match self.window {
                true => format!("Bind the {window} with {missing} as well."),
                false => format!("{} the {region} with {missing} as well.", self.register()),
            };
        }
        match self.api {
            Api::Native => {
                format!("Add {missing} to the access flags of the target's queue pair.")
            }
            Api::Verbs => format!("Add {missing} to qp_access_flags of the target's queue pair."),
            Api::Libfabric => {
                format!("Add {missing} to the capabilities of the target's endpoint.")
            }
            // Should not happen: uDAPL endpoints always grant all remote access, so only the memory can refuse.
            Api::Udapl => format!("Allow {missing} on the target's EP."),
        }
    }

    /// Advice if the address or the length is wrong.
    fn advice_on_range(&self) -> String {
        match &self.reason {
            Reason::OutOfRange { memory, .. } if self.misses_zero_base() => {
                format!(
                    "Use an offset below {:#x} instead of an address.",
                    memory.end()
                )
            }
            Reason::OutOfRange {
                memory,
                before,
                after,
            } => self.advice_on_bounds(memory.len(), *before, *after),
            Reason::CrossesSegments => "Split the request at the segment boundaries.".into(),
            Reason::ZeroBased { offset, .. } => format!("Use offset {offset:#x}."),
            Reason::NotZeroBased { memory } => {
                format!("Use address {:#x}.", memory.start().wrapping_add(self.addr))
            }
            Reason::Wraps => {
                "Check the address and the length: one of them was probably negative.".into()
            }
            Reason::Misaligned => "Use an address that is a multiple of 8.".into(),
            _ => String::new(),
        }
    }

    /// Advice if bytes of the request are outside the memory.
    fn advice_on_bounds(&self, memory: u64, before: u64, after: u64) -> String {
        let register = if self.window {
            "bind"
        } else {
            self.words().register
        };
        match (before, after) {
            (0, after) if after < self.len => {
                let fits = self.len - after;
                format!("Access at most {fits} B here, or {register} {after} B more.")
            }
            (before, 0) if before < self.len => {
                format!("Start {before} B later, or {register} from {before} B earlier.")
            }
            _ => format!(
                "Use addresses inside the {memory} B of the {}.",
                self.noun()
            ),
        }
    }

    /// Advice if the request named local memory wrongly. It is the same for a reader on either side.
    fn local_advice(&self) -> Option<String> {
        let words = self.words();
        let a_region = with_article(words.region);
        Some(match &self.reason {
            Reason::UnknownKey if self.api == Api::Udapl => {
                "Name local memory by the LMR context that dat_lmr_create returned.".into()
            }
            Reason::UnknownKey => {
                "Name local memory by the lkey of a region that this process has registered.".into()
            }
            Reason::StaleKey { .. } | Reason::Deregistering => format!(
                "{} {a_region} only after all requests that use it have completed.",
                capital(words.deregister)
            ),
            Reason::Disabled => format!("Enable the {} first.", words.region),
            Reason::Fault { .. } => format!(
                "Keep the memory of a request mapped and {} until the request completes.",
                self.usable()
            ),
            _ => return None,
        })
    }

    /// Advice on how to name local memory.
    fn name_locally(&self) -> String {
        match self.api {
            Api::Udapl => "Use the LMR context in local triplets.".into(),
            _ => "Use the region's lkey in scatter/gather entries.".into(),
        }
    }

    /// "Register", as the first word of a sentence.
    fn register(&self) -> String {
        capital(self.words().register)
    }
}
