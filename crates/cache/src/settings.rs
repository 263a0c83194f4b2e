//! The environment variables of `fi_mr(3)`, and the monitor that they choose. This module does not read the environment: a front
//! end passes the values.

use crate::cache::options::Options;
use crate::monitor::Monitor;
use crate::monitor::disabled::Disabled;
use crate::monitor::memhooks::Memhooks;
use crate::monitor::unneeded::Unneeded;
use crate::monitor::userfaultfd::{Reader, Userfaultfd};
use std::fmt;
use std::sync::Arc;

const MAX_COUNT: &str = "FI_MR_CACHE_MAX_COUNT";
const MAX_SIZE: &str = "FI_MR_CACHE_MAX_SIZE";
const MONITOR: &str = "FI_MR_CACHE_MONITOR";
const CUDA: &str = "FI_MR_CUDA_CACHE_MONITOR_ENABLED";
const ROCR: &str = "FI_MR_ROCR_CACHE_MONITOR_ENABLED";
const LEVEL_ZERO: &str = "FI_MR_ZE_CACHE_MONITOR_ENABLED";

/// The variables, and what each sets.
#[must_use]
pub fn variables() -> [(&'static str, &'static str); 6] {
    [
        (MAX_COUNT, "the maximum number of entries; 0: no cache"),
        (
            MAX_SIZE,
            "the maximum total size of the entries in bytes; unset: no limit",
        ),
        (MONITOR, "userfaultfd, memhooks or disabled"),
        (CUDA, "0: CUDA memory is not cached"),
        (ROCR, "0: ROCr memory is not cached"),
        (LEVEL_ZERO, "0: Level Zero memory is not cached"),
    ]
}

/// The monitors that `FI_MR_CACHE_MONITOR` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MonitorName {
    /// The kernel reports changes: [`Userfaultfd`].
    Userfaultfd,
    /// Calls are intercepted: [`Memhooks`].
    Memhooks,
    /// No cache: [`Disabled`].
    Disabled,
}

impl MonitorName {
    /// All monitors.
    pub const ALL: [Self; 3] = [Self::Userfaultfd, Self::Memhooks, Self::Disabled];

    /// The name, as in the variable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Userfaultfd => "userfaultfd",
            Self::Memhooks => "memhooks",
            Self::Disabled => "disabled",
        }
    }

    /// Starts the monitor and stops it again. Returns a description of what it would use on this host. The hooks of `memhooks`
    /// stay in place.
    ///
    /// # Errors
    /// Why it cannot be used on this host.
    pub fn probe(self) -> Result<String, String> {
        match self {
            Self::Userfaultfd => match Userfaultfd::open() {
                Ok((monitor, _)) => Ok(monitor.method().to_string()),
                Err(error) => Err(error.to_string()),
            },
            Self::Memhooks => match Memhooks::install() {
                Ok(monitor) => {
                    let paths = monitor.sees_paths();
                    let seen = paths.iter().filter(|(_, seen)| *seen).count();
                    let all = paths.len();
                    Ok(format!(
                        "intercepts {seen} of the {all} ways to change memory that the probe tested"
                    ))
                }
                Err(error) => Err(error.to_string()),
            },
            Self::Disabled => Ok("turns the cache off".to_owned()),
        }
    }
}

impl fmt::Display for MonitorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A value that is not allowed, so that the variable has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value} has no effect: {allowed}")]
pub struct Ignored {
    /// The variable.
    pub variable: &'static str,
    /// The value of the variable.
    pub value: String,
    /// The allowed values, in words.
    pub allowed: &'static str,
}

/// The values of the variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// `FI_MR_CACHE_MAX_COUNT`; unset: the default of [`Options`].
    pub max_count: Option<usize>,
    /// `FI_MR_CACHE_MAX_SIZE`, in bytes; unset: no limit.
    pub max_size: Option<u64>,
    /// `FI_MR_CACHE_MONITOR`; unset: `userfaultfd`.
    pub monitor: Option<MonitorName>,
    /// `FI_MR_CUDA_CACHE_MONITOR_ENABLED`: whether CUDA memory may be cached; unset: yes.
    pub cuda: Option<bool>,
    /// `FI_MR_ROCR_CACHE_MONITOR_ENABLED`, in the same way.
    pub rocr: Option<bool>,
    /// `FI_MR_ZE_CACHE_MONITOR_ENABLED`, in the same way.
    pub level_zero: Option<bool>,
    /// Values that are not allowed.
    pub ignored: Vec<Ignored>,
}

impl Settings {
    /// Reads the variables.
    ///
    /// ```
    /// use rkey_cache::{MonitorName, Settings};
    ///
    /// let settings = Settings::read(|name| match name {
    ///     "FI_MR_CACHE_MONITOR" => Some("memhooks".to_owned()),
    ///     "FI_MR_CACHE_MAX_SIZE" => Some("lots".to_owned()),
    ///     _ => None,
    /// });
    /// assert_eq!(settings.monitor, Some(MonitorName::Memhooks));
    /// assert_eq!(
    ///     settings.ignored[0].to_string(),
    ///     "FI_MR_CACHE_MAX_SIZE=lots has no effect: give a number of bytes",
    /// );
    /// ```
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut ignored = Vec::new();
        let read = |name| variable(name).filter(|value| !value.trim().is_empty());
        let mut refuse = |variable, value: String, allowed| {
            ignored.push(Ignored {
                variable,
                value,
                allowed,
            });
        };
        let max_count = read(MAX_COUNT).and_then(|value| match value.trim().parse() {
            Ok(count) => Some(count),
            Err(_) => {
                refuse(MAX_COUNT, value, "give a number of entries");
                None
            }
        });
        let max_size = read(MAX_SIZE).and_then(|value| match value.trim().parse() {
            Ok(size) => Some(size),
            Err(_) => {
                refuse(MAX_SIZE, value, "give a number of bytes");
                None
            }
        });
        let monitor = read(MONITOR).and_then(|value| {
            let name = match value.trim() {
                // Libfabric accepts this short form too.
                "uffd" => "userfaultfd",
                name => name,
            };
            let found = MonitorName::ALL.into_iter().find(|it| it.as_str() == name);
            if found.is_none() {
                refuse(MONITOR, value, "choose userfaultfd, memhooks or disabled");
            }
            found
        });
        let mut switch = |variable| {
            read(variable).and_then(|value| match value.trim() {
                "0" => Some(false),
                "1" => Some(true),
                _ => {
                    refuse(variable, value, "choose 0 or 1");
                    None
                }
            })
        };
        let (cuda, rocr, level_zero) = (switch(CUDA), switch(ROCR), switch(LEVEL_ZERO));
        Self {
            max_count,
            max_size,
            monitor,
            cuda,
            rocr,
            level_zero,
            ignored,
        }
    }

    /// Options with these limits, and the defaults for everything else.
    #[must_use]
    pub fn options(&self) -> Options {
        let mut options = Options::default();
        options.max_count = self.max_count.unwrap_or(options.max_count);
        options.max_size = self.max_size;
        options
    }

    /// The monitor for a registrar that [follows addresses](crate::Follows::Addresses): none, because no change makes its
    /// entries stale; or [`Disabled`], if the variable says so.
    pub fn choose_none(&self) -> Chosen {
        let wanted = self.monitor.unwrap_or(MonitorName::Userfaultfd);
        let off = wanted == MonitorName::Disabled;
        Chosen {
            wanted,
            monitor: if off {
                Arc::new(Disabled)
            } else {
                Arc::new(Unneeded)
            },
            reader: None,
            refused: (!off).then(|| "not needed, because the device follows addresses".to_owned()),
        }
    }

    /// Starts the monitor that the variable names, `userfaultfd` if it is unset. If that is not possible here, the cache is
    /// disabled, and [`Chosen::refused`] says why.
    pub fn choose(&self) -> Chosen {
        let wanted = self.monitor.unwrap_or(MonitorName::Userfaultfd);
        let disabled = |refused: Option<String>| Chosen {
            wanted,
            monitor: Arc::new(Disabled),
            reader: None,
            refused,
        };
        match wanted {
            MonitorName::Userfaultfd => match Userfaultfd::open() {
                Ok((monitor, reader)) => Chosen {
                    wanted,
                    monitor: Arc::new(monitor),
                    reader: Some(reader),
                    refused: None,
                },
                Err(error) => disabled(Some(error.to_string())),
            },
            MonitorName::Memhooks => match Memhooks::install() {
                Ok(monitor) => Chosen {
                    wanted,
                    monitor: Arc::new(monitor),
                    reader: None,
                    refused: None,
                },
                Err(error) => disabled(Some(error.to_string())),
            },
            MonitorName::Disabled => disabled(None),
        }
    }
}

/// The monitor in effect.
#[must_use = "the reader needs a thread that runs it"]
pub struct Chosen {
    /// The monitor that the settings name.
    pub wanted: MonitorName,
    /// The monitor in effect: the one that the settings name, `disabled`, or `none`.
    pub monitor: Arc<dyn Monitor>,
    /// Reads the events of `userfaultfd`: start a thread that calls [`Reader::run`].
    pub reader: Option<Reader>,
    /// Why the wanted monitor is not in effect.
    pub refused: Option<String>,
}

impl fmt::Display for Chosen {
    /// `userfaultfd`, or `disabled (userfaultfd: ...)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.monitor.name())?;
        match &self.refused {
            Some(reason) => write!(f, " ({}: {reason})", self.wanted),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chosen({self})")
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Settings {
        Settings::read(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    /// Proves partly: FI-234, FI-235, FI-237, FI-238 (the variables as a library reads them)
    #[test]
    fn limits_that_are_not_numbers_are_ignored() {
        let none = read(&[]);
        assert_eq!(none, Settings::default());
        assert_eq!(none.options(), Options::default());
        assert_eq!(none.options().max_size, None);
        let both = read(&[(MAX_COUNT, "0"), (MAX_SIZE, " 4096 ")]);
        assert_eq!((both.max_count, both.max_size), (Some(0), Some(4096)));
        assert_eq!(both.options().max_count, 0);
        let absurd = read(&[(MAX_COUNT, "-1"), (MAX_SIZE, "1e9"), (MONITOR, "")]);
        assert_eq!((absurd.max_count, absurd.max_size), (None, None));
        assert_eq!(absurd.ignored.len(), 2);
        let beyond_64_bits = read(&[
            (MAX_COUNT, "18446744073709551616"),
            (MAX_SIZE, "99999999999999999999"),
        ]);
        assert_eq!(
            (beyond_64_bits.max_count, beyond_64_bits.max_size),
            (None, None)
        );
        assert_eq!(beyond_64_bits.ignored.len(), 2);
    }

    /// Proves partly: FI-244, FI-245, FI-246 (the variables as a library reads them)
    #[test]
    fn the_monitors_of_accelerators_take_0_or_1() {
        type Field = fn(&Settings) -> Option<bool>;
        let fields: [(&str, Field); 3] = [
            (CUDA, |it| it.cuda),
            (ROCR, |it| it.rocr),
            (LEVEL_ZERO, |it| it.level_zero),
        ];
        for (variable, field) in fields {
            for (value, expected) in [("0", Some(false)), (" 1", Some(true)), ("", None)] {
                let settings = read(&[(variable, value)]);
                assert_eq!(field(&settings), expected);
                assert_eq!(settings.ignored, []);
            }
            for value in ["2", "yes", "-1", "01"] {
                let settings = read(&[(variable, value)]);
                assert_eq!(field(&settings), None);
                let message = format!("{variable}={value} has no effect: choose 0 or 1");
                assert_eq!(settings.ignored[0].to_string(), message);
            }
        }
    }

    /// Proves partly: FI-239, FI-240, FI-I47 (the variables as a library reads them)
    #[test]
    fn each_monitor_can_be_chosen_and_an_unknown_one_is_ignored() {
        for name in MonitorName::ALL {
            let chosen = read(&[(MONITOR, name.as_str())]).choose();
            assert_eq!(chosen.wanted, name);
            match &chosen.refused {
                None => assert_eq!(chosen.monitor.name(), name.as_str()),
                Some(reason) => {
                    assert_eq!(chosen.monitor.name(), "disabled");
                    assert!(chosen.to_string().contains(reason));
                }
            }
            println!("{chosen}");
        }
        assert_eq!(
            read(&[(MONITOR, "uffd")]).monitor,
            Some(MonitorName::Userfaultfd)
        );
        // A registrar that follows addresses needs none of them, and `disabled` still turns its cache off.
        for name in MonitorName::ALL {
            let chosen = read(&[(MONITOR, name.as_str())]).choose_none();
            let off = name == MonitorName::Disabled;
            let expected = if off { "disabled" } else { "none" };
            assert_eq!(chosen.monitor.name(), expected);
            assert!(chosen.to_string().contains(name.as_str()));
            assert!(chosen.reader.is_none());
            println!("{name}: {:?}", name.probe());
        }
        let unknown = read(&[(MONITOR, "kdreg3")]);
        assert_eq!(unknown.monitor, None);
        assert_eq!(
            unknown.ignored[0].to_string(),
            "FI_MR_CACHE_MONITOR=kdreg3 has no effect: choose userfaultfd, memhooks or disabled"
        );
    }
}
