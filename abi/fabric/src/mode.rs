//! The registration mode: which `mr_mode` bits the provider requires, and how it matches them with a program's hints.
//!
//! By default the provider requires none. `FI_RKEY_MR_MODE` names bits to require (and to enforce), and
//! `FI_RKEY_PROFILE` selects those of a known provider, to test a program against the rules of hardware that is not
//! available.

use crate::errno::FiError;
use crate::lenient;
use crate::sys::*;
use parking_lot::Mutex;
use rkey_kit::settings::{self, MR_MODE, PROFILE, STRICT, Setting};
use std::ffi::c_int;

/// The words of `FI_RKEY_MR_MODE`.
const NAMES: &[(&str, c_int)] = &[
    ("LOCAL", FI_MR_LOCAL),
    ("RAW", FI_MR_RAW),
    ("VIRT_ADDR", FI_MR_VIRT_ADDR),
    ("ALLOCATED", FI_MR_ALLOCATED),
    ("PROV_KEY", FI_MR_PROV_KEY),
    ("MMU_NOTIFY", FI_MR_MMU_NOTIFY),
    ("RMA_EVENT", FI_MR_RMA_EVENT),
    ("ENDPOINT", FI_MR_ENDPOINT),
    ("HMEM", FI_MR_HMEM),
    ("COLLECTIVE", FI_MR_COLLECTIVE),
    ("BASIC", BASIC),
    ("SCALABLE", 0),
    ("NONE", 0),
];

/// The bits that basic registration stands for (FI-250).
pub(crate) const BASIC: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// The one combination with `FI_MR_BASIC` that the 1.6.2 page allows (FI-252).
const BASIC_AND_LOCAL: c_int = FI_MR_BASIC | FI_MR_LOCAL;
/// Bits that concern only RMA and atomics, which are dropped when the hints request neither (FI-I16).
const TARGET: c_int = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;
/// Every single bit that the provider knows.
const ALL: c_int = FI_MR_LOCAL
    | BASIC
    | FI_MR_RAW
    | FI_MR_MMU_NOTIFY
    | FI_MR_RMA_EVENT
    | FI_MR_ENDPOINT
    | FI_MR_HMEM
    | FI_MR_COLLECTIVE;

/// The bits of known providers, as they report them for their usual endpoints.
const PROFILES: &[(&str, c_int)] = &[
    ("rkey", 0),
    ("tcp", 0),
    ("shm", 0),
    ("sockets", 0),
    ("verbs", FI_MR_LOCAL | BASIC),
    ("efa", BASIC),
    ("cxi", FI_MR_ENDPOINT | FI_MR_ALLOCATED),
];

/// The bits of an `FI_RKEY_MR_MODE`; `None` if one of its words is unknown.
fn parse(text: &str) -> Option<c_int> {
    settings::mode_words(text).try_fold(0, |mode, word| {
        let (_, bits) = NAMES.iter().find(|(known, _)| *known == word)?;
        Some(mode | bits)
    })
}

/// The bits of a profile.
fn profile(name: &str) -> Option<c_int> {
    let name = name.to_lowercase();
    PROFILES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bits)| *bits)
}

/// The bits that this process's environment requires. An invalid value is logged, and the provider then offers nothing
/// (`FI_ENODATA`): a program that is tested under a mode must not run without it.
pub(crate) fn required() -> Result<c_int, FiError> {
    let bits = |setting: Setting, meaning: fn(&str) -> Option<c_int>| match setting.value() {
        Ok(None) => Ok(0),
        Ok(Some(value)) => meaning(&value).ok_or(FiError::NODATA),
        Err(error) => {
            tracing::warn!("the provider offers nothing: {error}");
            Err(FiError::NODATA)
        }
    };
    // Only validates the value; `lenient` evaluates it.
    bits(STRICT, |_| Some(0))?;
    Ok(bits(PROFILE, profile)? | bits(MR_MODE, parse)?)
}

/// The hints that matter for the mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The version that the program requested.
    pub(crate) version: u32,
    /// `mr_mode` of the hints; `None` without domain attributes.
    pub(crate) mr_mode: Option<c_int>,
    /// `mode` of the hints.
    pub(crate) mode: u64,
    /// The capabilities of the hints (0: any).
    pub(crate) caps: u64,
}

/// The result of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// The reported `mr_mode`.
    pub(crate) mr_mode: c_int,
    /// `FI_LOCAL_MR` or 0, for `fi_info.mode` (legacy, FI-254).
    pub(crate) mode: u64,
}

/// Decides whether a program with these hints can use a provider that requires `required`. A provider that `hides` the bit
/// `FI_MR_LOCAL` does not require it of programs that do not offer it: it registers their buffers itself.
pub(crate) fn negotiate(required: c_int, asked: &Request, hides: bool) -> Option<Granted> {
    let granted = granted(required, asked);
    match hides && required & FI_MR_LOCAL != 0 {
        true => granted.or_else(|| self::granted(required & !FI_MR_LOCAL, asked)),
        false => granted,
    }
}

/// Like [`negotiate`], without hiding anything.
fn granted(required: c_int, asked: &Request) -> Option<Granted> {
    let needed = needed(required, asked);
    let local = needed & FI_MR_LOCAL != 0;
    // `FI_LOCAL_MR`, the mode bit that stands for FI_MR_LOCAL before 1.5 (FI-I19).
    let legacy_local = || match (local, asked.mode & FI_LOCAL_MR != 0) {
        (false, _) => Some(0),
        (true, true) => Some(FI_LOCAL_MR),
        (true, false) => None,
    };
    let others = needed & !FI_MR_LOCAL;
    let basic = || {
        (others & !BASIC == 0).then_some(())?;
        Some(Granted {
            mr_mode: FI_MR_BASIC,
            mode: legacy_local()?,
        })
    };
    let scalable = || {
        (others == 0).then_some(())?;
        Some(Granted {
            mr_mode: FI_MR_SCALABLE,
            mode: legacy_local()?,
        })
    };
    let Some(offered) = asked.mr_mode else {
        // No domain attributes: every mode is acceptable.
        return Some(Granted {
            mr_mode: needed,
            mode: 0,
        });
    };
    if offered & (FI_MR_BASIC | FI_MR_SCALABLE) != 0 {
        // FI-253, FI-I18: since 1.5, basic and scalable cannot be combined with other bits. FI-252, FI-261: for earlier
        // versions the 1.6.2 page applies, which allows FI_MR_LOCAL with FI_MR_BASIC.
        return match offered {
            FI_MR_BASIC => basic(),
            FI_MR_SCALABLE => scalable(),
            BASIC_AND_LOCAL if asked.version < version(1, 5) => {
                (others & !BASIC == 0).then_some(Granted {
                    mr_mode: FI_MR_BASIC | needed & FI_MR_LOCAL,
                    mode: 0,
                })
            }
            _ => None,
        };
    }
    if asked.version < version(1, 5) {
        // FI-I17: basic or scalable, as the provider prefers; other bits did not exist.
        return if offered == 0 {
            scalable().or_else(basic)
        } else {
            None
        };
    }
    if asked.version < version(1, 7) && needed & FI_MR_HMEM != 0 {
        return None;
    }
    (needed & !offered == 0).then_some(Granted {
        mr_mode: needed,
        mode: 0,
    })
}

/// Required bits that were reported to the program: sets that its hints lacked, and whether it offered them later.
#[derive(Debug, Default)]
struct Reported(Vec<(c_int, bool)>);

impl Reported {
    /// Whether to report to the program that these bits are missing.
    fn lacks(&mut self, missing: c_int) -> bool {
        let news = missing != 0 && self.0.iter().all(|(told, _)| *told != missing);
        if news {
            self.0.push((missing, false));
        }
        news
    }

    /// Bits that were reported as missing and that the program now offers for the first time.
    fn offers(&mut self, granted: c_int) -> c_int {
        let mut news = 0;
        for (missing, again) in &mut self.0 {
            if !*again && *missing & !granted == 0 {
                *again = true;
                news |= *missing;
            }
        }
        news
    }
}

static REPORTED: Mutex<Reported> = Mutex::new(Reported(Vec::new()));

/// Whether the provider registers the buffers of a domain itself: the mode requires `FI_MR_LOCAL`, and the program, which did not
/// offer it, got a domain of this `mr_mode` without it (FI-048, FI-233).
pub(crate) fn is_hidden(mr_mode: c_int) -> bool {
    let required = required().is_ok_and(|bits| bits & FI_MR_LOCAL != 0);
    required && mr_mode & FI_MR_LOCAL == 0 && hides()
}

/// Whether programs may lack the bit `FI_MR_LOCAL` that the mode requires.
pub(crate) fn hides() -> bool {
    !lenient::is_strict()
}

/// Logs, once for each set, the required bits that a program does not offer.
pub(crate) fn explain(required: c_int, asked: &Request) {
    let required = match hides() {
        true => required & !FI_MR_LOCAL,
        false => required,
    };
    let missing = needed(required, asked) & !asked.mr_mode.unwrap_or(ALL);
    if REPORTED.lock().lacks(missing) {
        rkey_device::denials::refused(&format!(
            "no match: FI_RKEY_MR_MODE or FI_RKEY_PROFILE requires {}; add it to domain_attr->mr_mode of the hints",
            names(missing)
        ));
    }
}

/// Logs that a program whose hints lacked required bits offers them now: some programs copy the bits that the
/// provider reports (`fi_getinfo` without hints) without following them.
pub(crate) fn explain_match(asked: &Request, granted: Granted) {
    if asked.mr_mode.is_none() {
        return;
    }
    let offered = REPORTED.lock().offers(granted.mr_mode);
    if offered != 0 {
        tracing::warn!(
            "match: mr_mode of the hints now has {}; the program must follow the rules of these modes",
            names(offered)
        );
    }
}

/// The names of some bits.
fn names(bits: c_int) -> String {
    let single = NAMES.iter().filter(|(_, bit)| bit.count_ones() == 1);
    let known = single.filter(|(_, bit)| bits & bit != 0);
    let names: Vec<_> = known.map(|(name, _)| format!("FI_MR_{name}")).collect();
    names.join(", ")
}

/// The required bits that concern a program with these capabilities (FI-079, FI-086, FI-I16).
fn needed(required: c_int, asked: &Request) -> c_int {
    let mut needed = required & ALL;
    let remote = FI_REMOTE_READ | FI_REMOTE_WRITE;
    let rma = FI_RMA | FI_ATOMIC;
    // RMA without a side means both.
    let sides = asked.caps & (FI_READ | FI_WRITE | remote);
    let target = asked.caps == 0 || asked.caps & rma != 0 && (sides == 0 || sides & remote != 0);
    let initiator = asked.caps == 0 || asked.caps & rma != 0;
    if !target {
        needed &= !(FI_MR_RMA_EVENT | FI_MR_ENDPOINT | FI_MR_MMU_NOTIFY);
    }
    if !target && !initiator {
        needed &= !TARGET;
    }
    if asked.caps & FI_HMEM == 0 {
        needed &= !FI_MR_HMEM;
    }
    if asked.caps & FI_COLLECTIVE == 0 {
        needed &= !FI_MR_COLLECTIVE;
    }
    needed
}

/// The individual bits in force in a domain with this `mr_mode`.
pub(crate) fn effective(mr_mode: c_int, mode: u64) -> c_int {
    match mr_mode {
        FI_MR_BASIC | FI_MR_SCALABLE => {
            let local = if mode & FI_LOCAL_MR != 0 {
                FI_MR_LOCAL
            } else {
                0
            };
            local | if mr_mode == FI_MR_BASIC { BASIC } else { 0 }
        }
        BASIC_AND_LOCAL => BASIC | FI_MR_LOCAL,
        bits => bits & ALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V14: u32 = version(1, 4);
    const V15: u32 = version(1, 5);
    const V122: u32 = version(1, 22);

    fn ask(version: u32, mr_mode: c_int) -> Request {
        Request {
            version,
            mr_mode: Some(mr_mode),
            mode: 0,
            caps: 0,
        }
    }

    fn bits(required: c_int, asked: &Request) -> Option<c_int> {
        granted(required, asked).map(|granted| granted.mr_mode)
    }

    #[test]
    fn local_registration_can_be_hidden_from_programs_that_do_not_offer_it() {
        let local = FI_MR_LOCAL;
        for (version, offered) in [(V15, 0), (V122, BASIC), (V14, FI_MR_BASIC), (V14, 0)] {
            let asked = ask(version, offered);
            for others in [0, BASIC] {
                let hidden = negotiate(local | others, &asked, true);
                assert_eq!(hidden, granted(others, &asked));
                assert_eq!(negotiate(local | others, &asked, false), None);
                assert_eq!(negotiate(others, &asked, true), granted(others, &asked));
            }
        }
        // Programs that offer it get it, and other bits stay required.
        let asked = ask(V122, local);
        assert_eq!(negotiate(local, &asked, true), granted(local, &asked));
        assert_eq!(negotiate(local | FI_MR_RAW, &asked, true), None);
    }

    #[test]
    fn names_of_mode_bits_are_parsed() {
        assert_eq!(
            parse("local,FI_MR_VIRT_ADDR | prov_key"),
            Some(FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)
        );
        assert_eq!(parse("BASIC"), Some(BASIC));
        assert_eq!(parse("SCALABLE"), Some(0));
        assert_eq!(parse("LOCAL,NONSENSE"), None);
        assert_eq!(profile("verbs"), Some(FI_MR_LOCAL | BASIC));
        assert_eq!(profile("unknown"), None);
    }

    #[test]
    fn every_documented_mode_word_and_profile_has_its_bits() {
        let names =
            |of: &[(&'static str, c_int)]| -> Vec<_> { of.iter().map(|(n, _)| *n).collect() };
        assert_eq!(names(NAMES), settings::MODE_WORDS);
        assert_eq!(names(PROFILES), settings::PROFILES);
    }

    /// Proves: FI-037, FI-038, FI-039
    #[test]
    fn required_mode_bits_stay_and_other_bits_are_cleared() {
        for required in [0, FI_MR_LOCAL, BASIC, FI_MR_ENDPOINT | FI_MR_RAW] {
            assert_eq!(bits(required, &ask(V15, ALL)), Some(required));
            assert_eq!(bits(required, &ask(V15, required)), Some(required));
            for missing in NAMES
                .iter()
                .map(|(_, bit)| *bit)
                .filter(|bit| required & bit != 0)
            {
                assert_eq!(bits(required, &ask(V15, required & !missing)), None);
            }
        }
    }

    /// Proves: FI-251, FI-253, FI-I18
    #[test]
    fn basic_mode_is_granted_unchanged_and_only_alone() {
        for version in [V14, V15, V122] {
            assert_eq!(bits(0, &ask(version, FI_MR_BASIC)), Some(FI_MR_BASIC));
            assert_eq!(bits(BASIC, &ask(version, FI_MR_BASIC)), Some(FI_MR_BASIC));
            if version >= V15 {
                assert_eq!(bits(0, &ask(version, FI_MR_BASIC | FI_MR_LOCAL)), None);
            }
            assert_eq!(bits(0, &ask(version, FI_MR_BASIC | FI_MR_SCALABLE)), None);
            assert_eq!(
                bits(0, &ask(version, FI_MR_SCALABLE | FI_MR_PROV_KEY)),
                None
            );
            assert_eq!(bits(FI_MR_ENDPOINT, &ask(version, FI_MR_BASIC)), None);
        }
    }

    /// Proves: FI-028, FI-029, FI-I17
    #[test]
    fn before_1_5_only_basic_and_scalable_exist() {
        assert_eq!(bits(0, &ask(V14, FI_MR_SCALABLE)), Some(FI_MR_SCALABLE));
        assert_eq!(bits(0, &ask(V122, FI_MR_SCALABLE)), Some(FI_MR_SCALABLE));
        assert_eq!(bits(0, &ask(V14, 0)), Some(FI_MR_SCALABLE));
        assert_eq!(bits(BASIC, &ask(V14, 0)), Some(FI_MR_BASIC));
        assert_eq!(bits(BASIC, &ask(V14, FI_MR_SCALABLE)), None);
        assert_eq!(effective(FI_MR_SCALABLE, 0), 0);
    }

    /// Proves: FI-252, FI-261
    #[test]
    fn before_1_5_basic_may_be_combined_with_local() {
        let both = FI_MR_BASIC | FI_MR_LOCAL;
        for (required, granted) in [(BASIC | FI_MR_LOCAL, both), (BASIC, FI_MR_BASIC)] {
            assert_eq!(bits(required, &ask(V14, both)), Some(granted));
            assert_eq!(bits(required, &ask(V15, both)), None);
        }
        assert_eq!(bits(FI_MR_ENDPOINT, &ask(V14, both)), None);
        for other in [FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MR_SCALABLE] {
            assert_eq!(bits(BASIC, &ask(V14, both | other)), None);
        }
        assert_eq!(effective(both, 0), BASIC | FI_MR_LOCAL);
    }

    /// Proves: FI-050, FI-254, FI-I19
    #[test]
    fn fi_local_mr_counts_only_for_programs_before_1_5() {
        let with = |version, mr_mode, mode| Request {
            version,
            mr_mode: Some(mr_mode),
            mode,
            caps: 0,
        };
        let local = FI_MR_LOCAL;
        assert_eq!(granted(local, &with(V14, FI_MR_BASIC, 0)), None);
        let legacy = Granted {
            mr_mode: FI_MR_BASIC,
            mode: FI_LOCAL_MR,
        };
        assert_eq!(
            granted(local, &with(V14, FI_MR_BASIC, FI_LOCAL_MR)),
            Some(legacy)
        );
        assert_eq!(effective(legacy.mr_mode, legacy.mode), BASIC | FI_MR_LOCAL);
        let new = Granted {
            mr_mode: local,
            mode: 0,
        };
        for mode in [0, FI_LOCAL_MR] {
            assert_eq!(granted(local, &with(V15, local, mode)), Some(new));
            assert_eq!(granted(local, &with(V15, 0, mode)), None);
        }
    }

    /// Proves: FI-079, FI-086
    #[test]
    fn mode_bits_of_unrequested_capabilities_are_dropped() {
        let required = FI_MR_HMEM | FI_MR_COLLECTIVE | FI_MR_PROV_KEY;
        let with = |caps| Request {
            version: V122,
            mr_mode: Some(ALL),
            mode: 0,
            caps,
        };
        assert_eq!(bits(required, &with(FI_MSG | FI_RMA)), Some(FI_MR_PROV_KEY));
        assert_eq!(
            bits(required, &with(FI_MSG | FI_RMA | FI_HMEM)),
            Some(FI_MR_PROV_KEY | FI_MR_HMEM)
        );
        assert_eq!(bits(required, &with(FI_MSG)), Some(0));
        assert_eq!(
            bits(required, &with(FI_MSG | FI_COLLECTIVE)),
            Some(FI_MR_COLLECTIVE)
        );
    }

    #[test]
    fn mode_bits_that_are_offered_after_a_refusal_are_reported_once() {
        let mut told = Reported::default();
        assert!(!told.lacks(0));
        assert!(told.lacks(FI_MR_LOCAL | FI_MR_RAW));
        assert!(!told.lacks(FI_MR_LOCAL | FI_MR_RAW));
        assert_eq!(told.offers(FI_MR_LOCAL), 0, "a bit is still missing");
        let all = FI_MR_LOCAL | FI_MR_RAW;
        assert_eq!(told.offers(all | FI_MR_ENDPOINT), all);
        assert_eq!(told.offers(all), 0, "already reported");
    }

    /// Proves: FI-250
    #[test]
    fn basic_mode_means_virt_addr_allocated_and_prov_key() {
        assert_eq!(
            effective(FI_MR_BASIC, 0),
            FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY
        );
        assert_eq!(
            effective(FI_MR_LOCAL | FI_MR_RAW, 0),
            FI_MR_LOCAL | FI_MR_RAW
        );
    }
}
