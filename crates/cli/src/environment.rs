//! Checks environment variables for invalid values and mistyped names.
//!
//! `rkey` passes its environment to the programs that it starts, where errors are easily overlooked. So it also checks the variables
//! of the front ends.

use crate::failure::hinted;
use crate::similar;
use rkey_device::config::VARIABLES;
use rkey_kit::settings::SETTINGS;

/// Variables of this project's own tests.
const OF_TESTS: &[&str] = &["RKEY_BIN", "RKEY_TEST_", "RKEY_FUZZ_"];

/// Checks all variables with our prefixes.
///
/// # Errors
/// An invalid value, or a mistyped name of one of our variables.
pub(crate) fn check() -> anyhow::Result<()> {
    const ADVICE: &str = "unset the variable, or set it to one of the values above";
    for setting in SETTINGS {
        setting.value().map_err(|error| hinted(error, ADVICE))?;
    }
    rkey::Config::from_env().map_err(|error| hinted(error, ADVICE))?;
    for (name, _) in std::env::vars_os() {
        match judge(&name.to_string_lossy()) {
            Verdict::Fine => {}
            Verdict::Mistyped(meant) => {
                let name = name.to_string_lossy();
                let error = anyhow::anyhow!("unknown variable {name}");
                return Err(hinted(
                    error,
                    format!("did you mean {meant}? `rkey info` lists all variables"),
                ));
            }
            Verdict::Unknown => eprintln!(
                "rkey: warning: unknown variable {}; it has no effect (`rkey info` lists all variables)",
                name.to_string_lossy()
            ),
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The name is known, or does not have our prefixes.
    Fine,
    /// The name is almost this one.
    Mistyped(&'static str),
    /// The name has one of our prefixes and resembles none of our names.
    Unknown,
}

fn judge(name: &str) -> Verdict {
    let upper = name.to_uppercase();
    let Some(rest) = stem(&upper) else {
        return Verdict::Fine;
    };
    let names = || {
        let of_device = VARIABLES.iter().map(|variable| variable.name);
        of_device.chain(SETTINGS.iter().map(|setting| setting.name))
    };
    if names().any(|known| known == name) || OF_TESTS.iter().any(|test| name.starts_with(test)) {
        return Verdict::Fine;
    }
    let stems = names().map(|name| (stem(name).unwrap_or(name), name));
    similar::closest(rest, stems).map_or(Verdict::Unknown, Verdict::Mistyped)
}

/// The name after the prefix of our variables.
fn stem(name: &str) -> Option<&str> {
    let name = name.strip_prefix("FI_").unwrap_or(name);
    name.strip_prefix("RKEY_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_variables_are_recognised() {
        for (name, meant) in [
            ("RKEY_SHRAE", "RKEY_SHARE"),
            ("RKEY_LOGS", "RKEY_LOG"),
            ("rkey_log", "RKEY_LOG"),
            ("RKEY_MR_MODE", "FI_RKEY_MR_MODE"),
            ("FI_RKEY_PROFIL", "FI_RKEY_PROFILE"),
            ("FI_RKEY_TIMEOUT", "RKEY_TIMEOUT"),
            ("RKEY_TICKMS", "RKEY_TICK_MS"),
        ] {
            assert_eq!(judge(name), Verdict::Mistyped(meant), "{name}");
        }
        for name in VARIABLES.iter().map(|v| v.name) {
            assert_eq!(judge(name), Verdict::Fine, "{name}");
        }
        for name in ["PATH", "RKEY", "FI_PROVIDER", "RKEY_BIN", "RKEY_REPORT"] {
            assert_eq!(judge(name), Verdict::Fine, "{name}");
        }
        assert_eq!(judge("RKEY_BANANA"), Verdict::Unknown);
    }
}
