//! The environment variables of the front ends. (The device's own are in its configuration.)
//!
//! An empty value counts as unset, and an invalid one is reported.

use std::ffi::OsStr;

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name of the variable.
    pub name: &'static str,
    /// The default value, as a user would write it.
    pub default: &'static str,
    /// The allowed values, in words.
    pub allowed: &'static str,
    /// The effect of the variable, in a sentence.
    pub meaning: &'static str,
    /// Whether a value is allowed.
    accepts: fn(&str) -> bool,
}

impl Setting {
    /// The value in the environment of this process, or `None` if the variable is unset or empty.
    ///
    /// # Errors
    /// The value is not allowed.
    pub fn value(&self) -> Result<Option<String>, BadValue> {
        let value = std::env::var_os(self.name);
        self.check(value.as_deref().unwrap_or_default())
    }

    fn check(&self, value: &OsStr) -> Result<Option<String>, BadValue> {
        let value = value.to_string_lossy().trim().to_owned();
        if value.is_empty() {
            Ok(None)
        } else if (self.accepts)(&value) {
            Ok(Some(value))
        } else {
            Err(BadValue {
                variable: self.name,
                value,
                allowed: self.allowed,
            })
        }
    }
}

/// A value that a variable does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not allowed: it must be {allowed}")]
pub struct BadValue {
    variable: &'static str,
    value: String,
    allowed: &'static str,
}

/// What the front ends log.
pub const LOG: Setting = Setting {
    name: "RKEY_LOG",
    default: "warn",
    allowed: "off, error, warn, info, debug, trace (or 0 to 5), or a filter such as rkey_fi=debug,warn",
    meaning: "what programs on the device log to standard error: warn logs refused accesses, info also failed calls, and off nothing",
    accepts: |value| crate::log::filter(value).is_some(),
};

/// Verbs: whether address handles may lack a global route.
pub const LOCAL_ROUTES: Setting = Setting {
    name: "RKEY_LOCAL_ROUTES",
    default: "0",
    allowed: "0 or 1",
    meaning: "verbs: 1 accepts address handles without a global route (as qperf creates them) for peers on this host",
    accepts: |value| matches!(value, "0" | "1"),
};

/// The names that [`MR_MODE`] accepts, without `FI_MR_`.
pub const MODE_WORDS: &[&str] = &[
    "LOCAL",
    "RAW",
    "VIRT_ADDR",
    "ALLOCATED",
    "PROV_KEY",
    "MMU_NOTIFY",
    "RMA_EVENT",
    "ENDPOINT",
    "HMEM",
    "COLLECTIVE",
    "BASIC",
    "SCALABLE",
    "NONE",
];

/// The names in a value of [`MR_MODE`], in the form of [`MODE_WORDS`]; separated by `,`, `|`, `+` or blanks.
pub fn mode_words(value: &str) -> impl Iterator<Item = String> {
    let words = value.split([',', '|', ' ', '+']);
    words.filter(|word| !word.is_empty()).map(|word| {
        let name = word.to_uppercase();
        name.strip_prefix("FI_MR_").unwrap_or(&name).to_owned()
    })
}

/// libfabric: the `mr_mode` bits that the provider requires.
pub const MR_MODE: Setting = Setting {
    name: "FI_RKEY_MR_MODE",
    default: "none",
    allowed: "names of mr_mode bits, separated by commas: LOCAL, RAW, VIRT_ADDR, ALLOCATED, PROV_KEY, MMU_NOTIFY, RMA_EVENT, ENDPOINT, HMEM, COLLECTIVE, BASIC, SCALABLE or NONE",
    meaning: "libfabric: mr_mode bits that the provider requires and enforces (LOCAL, PROV_KEY, ...)",
    accepts: |value| mode_words(value).all(|word| MODE_WORDS.contains(&&*word)),
};

/// The names that [`PROFILE`] accepts.
pub const PROFILES: &[&str] = &["rkey", "tcp", "shm", "sockets", "verbs", "efa", "cxi"];

/// libfabric: the provider whose mode bits are required.
pub const PROFILE: Setting = Setting {
    name: "FI_RKEY_PROFILE",
    default: "rkey",
    allowed: "rkey, tcp, shm, sockets, verbs, efa or cxi",
    meaning: "libfabric: requires the mode bits that the named provider requires",
    accepts: |value| PROFILES.contains(&&*value.to_lowercase()),
};

/// libfabric: whether calls that a manual page forbids are refused.
pub const STRICT: Setting = Setting {
    name: "FI_RKEY_STRICT",
    default: "0",
    allowed: "0 or 1",
    meaning: "libfabric: 1 refuses calls that a manual page forbids and other providers accept; by default they succeed with a warning",
    accepts: |value| matches!(value, "0" | "1"),
};

const YES: [&str; 4] = ["1", "yes", "true", "on"];
const NO: [&str; 4] = ["0", "no", "false", "off"];

/// Whether libfabric would read this value of one of its variables as yes.
pub fn is_yes(value: &str) -> bool {
    YES.contains(&&*value.to_lowercase())
}

/// libfabric: whether peer-to-peer transfers with accelerator memory are forbidden.
pub const DISABLE_P2P: Setting = Setting {
    name: "FI_HMEM_DISABLE_P2P",
    default: "0",
    allowed: "0, no, false, off, 1, yes, true or on",
    meaning: "libfabric: 1 forbids peer-to-peer transfers with accelerator memory; rkey makes none, so endpoints only report the setting",
    accepts: |value| NO.contains(&&*value.to_lowercase()) || is_yes(value),
};

/// All variables.
pub const SETTINGS: &[Setting] = &[LOG, LOCAL_ROUTES, MR_MODE, PROFILE, STRICT, DISABLE_P2P];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_accepts_its_default_and_refuses_invalid_values() {
        for setting in SETTINGS {
            let check = |value: &str| setting.check(value.as_ref());
            assert_eq!(check(setting.default), Ok(Some(setting.default.into())));
            for none in ["", " "] {
                assert_eq!(check(none), Ok(None), "{}", setting.name);
            }
            for bad in ["banana", "-1", "7", "!!", "local,banana"] {
                let error = check(bad).unwrap_err().to_string();
                let told = format!("{}={bad:?} is not allowed", setting.name);
                assert!(error.starts_with(&told), "{error}");
                assert!(error.ends_with(setting.allowed), "{error}");
            }
        }
    }

    #[test]
    fn mode_names_may_have_any_case_prefix_or_separator() {
        let words: Vec<String> = mode_words("local,FI_MR_VIRT_ADDR | prov_key").collect();
        assert_eq!(words, ["LOCAL", "VIRT_ADDR", "PROV_KEY"]);
        assert!((PROFILE.accepts)("Verbs"));
        // The messages list the names that are accepted.
        for word in MODE_WORDS {
            assert!(MR_MODE.allowed.contains(word), "{word}");
        }
        for name in PROFILES {
            assert!(PROFILE.allowed.contains(name), "{name}");
        }
    }
}
