//! The environment variables of the front ends. Those of the device itself are in its configuration.

/// One environment variable.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What holds without it, in the form one would write it.
    pub default: &'static str,
    /// What is accepted, in words.
    pub allowed: &'static str,
    /// What it does, in a sentence.
    pub meaning: &'static str,
}

/// What is logged.
pub const LOG: Setting = Setting {
    name: "RKEY_LOG",
    default: "warn",
    allowed: "off, error, warn, info, debug, trace, or a filter of the crate tracing-subscriber",
    meaning: "what programs on the device write to standard error: warn explains refused accesses, info also why calls failed, off is silence",
};

/// Verbs: address handles need no global route.
pub const LOCAL_ROUTES: Setting = Setting {
    name: "RKEY_LOCAL_ROUTES",
    default: "0",
    allowed: "0 or 1",
    meaning: "verbs: 1 takes address handles without a global route, which qperf makes, as ones on this host",
};

/// Libfabric: the bits that the provider requires.
pub const MR_MODE: Setting = Setting {
    name: "FI_RKEY_MR_MODE",
    default: "none",
    allowed: "names of mr_mode bits, separated by commas, with or without FI_MR_",
    meaning: "libfabric: mode bits of registration that the provider requires and behaves by (LOCAL, PROV_KEY, ...)",
};

/// Libfabric: the bits of a known provider.
pub const PROFILE: Setting = Setting {
    name: "FI_RKEY_PROFILE",
    default: "rkey",
    allowed: "rkey, tcp, shm, sockets, verbs, efa or cxi",
    meaning: "libfabric: requires the mode bits that this provider requires",
};

/// All of them.
pub const SETTINGS: &[Setting] = &[LOG, LOCAL_ROUTES, MR_MODE, PROFILE];
