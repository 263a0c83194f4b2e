//! The configuration of a device.
//!
//! A [`Config`] starts from the defaults, applies the `RKEY_*` environment variables ([`Config::from_env`]) and can then be
//! changed field by field. [`VARIABLES`] describes each variable once: its default, the values that it accepts and its
//! meaning. The documentation, the `rkey info` command and the error for a bad value all come from that table.

use std::path::PathBuf;
use std::time::Duration;

use rkey_core::{Api, Limits};
use serde::Serialize;

mod faults;
mod key;
mod values;
mod variables;
mod wire;

pub use faults::{Faults, Rate};
pub use key::WireKey;
pub use variables::VARIABLES;
use variables::WIRE_KEY;
pub use wire::{WireConfig, WireSetting};

/// Which processes on this host may connect to this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// Only processes of the same user ID (checked with `SO_PEERCRED` on both ends).
    User,
    /// Processes of any user in the same network namespace. Both ends need this setting.
    All,
}

/// Which peers learn why their requests were denied. The others get only the status of the operation, which is the same for
/// every reason; the owner of the memory has the reason in its log and in `rkey explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Explain {
    /// Processes of the same user ID.
    User,
    /// All peers.
    All,
    /// None except this process itself.
    None,
}

/// Whether payloads may be copied directly between two processes (`process_vm_readv`/`writev`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectCopy {
    /// Try it with each peer, and use it where the kernel allows it.
    Auto,
    /// Never; every payload goes through the ring.
    Off,
}

/// The configuration of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The limits of the protection table: regions, bytes, windows, domains, segments per region.
    pub limits: Limits,
    /// The maximum number of queue pairs.
    pub max_qps: u32,
    /// The maximum number of completion queues.
    pub max_cqs: u32,
    /// The maximum number of shared receive queues.
    pub max_srqs: u32,
    /// The maximum depth of a completion queue.
    pub max_cq_depth: u32,
    /// The maximum depth of a send, receive or shared receive queue.
    pub max_queue_depth: u32,
    /// The maximum number of scatter/gather entries of a work request.
    pub max_sge: u32,
    /// The maximum inline data of a request, in bytes.
    pub max_inline: u32,
    /// The maximum number of links to and from other devices together.
    pub max_links: u32,
    /// The maximum number of links that one other process may open.
    pub max_links_per_process: u32,
    /// The maximum number of links that all processes of one other user may open together.
    pub max_links_per_user: u32,
    /// The number of file descriptors of `RLIMIT_NOFILE` that the links leave to the program, at most half of them.
    pub reserved_files: u32,
    /// Which processes may connect to this device.
    pub share: Share,
    /// Which peers learn why their requests were denied.
    pub explain: Explain,
    /// How the device reaches other hosts.
    pub wire: WireConfig,
    /// Whether payloads may be copied directly between the two processes.
    pub direct_copy: DirectCopy,
    /// Whether writes go straight into the memory of a peer that polls it, and peers' writes into ours, without the target's engine.
    /// Needs `direct_copy`.
    pub push: bool,
    /// If the payload ring has no room for a payload of at least this many bytes, the rest is copied directly between the
    /// processes. Smaller payloads wait for room.
    pub remote_iovec_min: u32,
    /// The size of the payload ring of each direction of a link, in bytes. Two processes copy in and out of the ring at the same
    /// time, which is faster than one copy by one of them. Pages are allocated when they are first used.
    pub ring_bytes: u32,
    /// Lets any process of this user read and write our memory, even where Yama would deny that (`PR_SET_PTRACER_ANY`). Off by
    /// default.
    pub ptracer_any: bool,
    /// How long the engine thread, and a thread in [`Cq::wait`](crate::Cq::wait), polls before it sleeps.
    pub spin: Duration,
    /// The interval at which the engine thread checks whether the program still polls.
    pub tick: Duration,
    /// Transport timeout of queue pairs that do not set one: 4.096 us * 2^n, 0 = never.
    pub timeout: u8,
    /// Retries after a transport timeout for queue pairs that do not set them, 0 to 7.
    pub retry_count: u8,
    /// How often to retry when the peer has no receive posted: 0 to 6 times, or 7 for no limit.
    pub rnr_retry: u8,
    /// How long `connect` and the handshake of a connection may take if the caller sets no timeout.
    pub connect_timeout: Duration,
    /// The watcher's file (`rkey run --explain`): refusals are written there instead of to the log.
    pub report: Option<PathBuf>,
    /// Whether peers may access memory through an API other than the one that registered it. Within each API, domains stay
    /// separate. Off by default: a verbs domain and a libfabric domain are different domains.
    pub cross_api: bool,
    /// The program's API: denials name its access flags. Set by front ends; there is no variable for it.
    pub api: Api,
    /// Whether the front end logs the denials of its own requests in its own words
    /// ([`Device::log_own_denial`](crate::Device::log_own_denial)); the device then does not log them. Front ends set
    /// it; no variable does.
    pub logs_own_denials: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_qps: 65_536,
            max_cqs: 65_536,
            max_srqs: 65_536,
            max_cq_depth: 4_194_304,
            max_queue_depth: 32_768,
            max_sge: 32,
            max_inline: 1024,
            max_links: 4096,
            max_links_per_process: 256,
            max_links_per_user: 256,
            reserved_files: 256,
            share: Share::User,
            explain: Explain::User,
            wire: WireConfig::OFF,
            direct_copy: DirectCopy::Auto,
            push: true,
            remote_iovec_min: 32 * 1024,
            ring_bytes: 2 * 1024 * 1024,
            ptracer_any: false,
            spin: Duration::from_micros(40),
            tick: Duration::from_millis(10),
            timeout: 15,
            retry_count: 5,
            rnr_retry: 7,
            connect_timeout: Duration::from_secs(5),
            report: None,
            cross_api: false,
            api: Api::Native,
            logs_own_denials: false,
        }
    }
}

impl Config {
    /// The defaults, changed by the `RKEY_*` environment variables of this process.
    ///
    /// # Errors
    /// The first variable whose value is not allowed, with the allowed values.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::default().with_env()
    }

    /// This configuration, changed by the `RKEY_*` environment variables of this process. An empty variable counts as
    /// unset, except `RKEY_WIRE_KEY`, which must not be empty.
    ///
    /// # Errors
    /// Same as [`Config::from_env`].
    pub fn with_env(self) -> Result<Self, ConfigError> {
        self.with_variables(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// The defaults, changed by the variables for which `lookup` returns a value. An empty variable counts as unset.
    ///
    /// # Errors
    /// Same as [`Config::from_env`].
    pub fn from_variables(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::default().with_variables(lookup)
    }

    fn with_variables(
        mut self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        for variable in VARIABLES {
            let value = lookup(variable.name);
            // An empty key is a mistake (`RKEY_WIRE_KEY=$UNSET`) that must not turn encryption off.
            let counts = |value: &String| !value.trim().is_empty() || variable.name == WIRE_KEY;
            if let Some(value) = value.filter(counts) {
                self.set(variable.name, &value)?;
            }
        }
        Ok(self)
    }

    /// Whether a front end with the configuration `other` can share a device that has this one: they may differ only in
    /// the values that each opening of the device keeps for itself.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let other = Self {
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            connect_timeout: self.connect_timeout,
            api: self.api,
            logs_own_denials: self.logs_own_denials,
            ..other.clone()
        };
        *self == other
    }

    /// Sets one value by the name of its variable, as the environment would.
    ///
    /// # Errors
    /// The variable is unknown, or the value is not one that it accepts.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let Some(variable) = VARIABLES.iter().find(|v| v.name == name) else {
            return Err(ConfigError {
                variable: name.to_owned(),
                value: value.to_owned(),
                allowed: format!("one of the variables {}", names_of_variables()),
            });
        };
        (variable.apply)(self, value.trim()).ok_or_else(|| ConfigError {
            variable: name.to_owned(),
            value: value.to_owned(),
            allowed: variable.allowed.to_owned(),
        })
    }
}

/// A value that a variable does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not allowed: it must be {allowed}")]
pub struct ConfigError {
    /// The variable.
    pub variable: String,
    /// The given value.
    pub value: String,
    /// A description of the allowed values.
    pub allowed: String,
}

/// One environment variable.
pub struct Variable {
    /// The name of the variable, including the prefix `RKEY_`.
    pub name: &'static str,
    /// The default in the syntax of the variable.
    pub default: &'static str,
    /// A description of the accepted values.
    pub allowed: &'static str,
    /// The meaning of the variable, as a phrase.
    pub meaning: &'static str,
    apply: fn(&mut Config, &str) -> Option<()>,
}

fn names_of_variables() -> String {
    let names: Vec<&str> = VARIABLES.iter().map(|v| v.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests;
