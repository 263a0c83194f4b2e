//! The table of the `RKEY_*` variables.

use std::time::Duration;

use super::values::{parse_number, parse_switch, path_or_none};
use super::{DirectCopy, Explain, Faults, Share, Variable, WireKey, WireSetting};

/// The name of the variable that must not be empty.
pub(super) const WIRE_KEY: &str = "RKEY_WIRE_KEY";

/// One row of [`VARIABLES`] for a whole number: variable, field, range, default, meaning.
macro_rules! number {
    ($name:literal, $($field:ident).+, $min:literal ..= $max:literal, $default:literal, $meaning:literal) => {
        Variable {
            name: $name,
            default: $default,
            allowed: concat!("a whole number (k, M, G, T allowed as suffix) from ", $min, " to ", $max),
            meaning: $meaning,
            apply: |config, value| {
                let number = parse_number(value).filter(|n| ($min..=$max).contains(n))?;
                config.$($field).+ = number.try_into().ok()?;
                Some(())
            },
        }
    };
}

/// One row of [`VARIABLES`] for a time: variable, field, unit, range, default, meaning.
macro_rules! time {
    ($name:literal, $field:ident, $unit:ident, $min:literal ..= $max:literal, $default:literal, $meaning:literal) => {
        Variable {
            name: $name,
            default: $default,
            allowed: concat!("a whole number from ", $min, " to ", $max),
            meaning: $meaning,
            apply: |config, value| {
                let number = value.parse().ok().filter(|n| ($min..=$max).contains(n))?;
                config.$field = Duration::$unit(number);
                Some(())
            },
        }
    };
}

/// All environment variables that a device understands.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "RKEY_SHARE",
        default: "user",
        allowed: "user or all",
        meaning: "which processes may reach this device: those of the same user, or of all users (both ends must set all)",
        apply: |config, value| {
            config.share = match value {
                "user" => Share::User,
                "all" => Share::All,
                _ => return None,
            };
            Some(())
        },
    },
    Variable {
        name: "RKEY_EXPLAIN",
        default: "user",
        allowed: "user, all or none",
        meaning: "which peers learn why their requests were denied: those of the same user, all, or none; the others get only the status",
        apply: |config, value| {
            config.explain = match value {
                "user" => Explain::User,
                "all" => Explain::All,
                "none" => Explain::None,
                _ => return None,
            };
            Some(())
        },
    },
    Variable {
        name: "RKEY_CROSS_API",
        default: "off",
        allowed: "off or on",
        meaning: "on: peers may reach memory of this process through an API other than the one that registered it",
        apply: |config, value| {
            config.cross_api = parse_switch(value)?;
            Some(())
        },
    },
    Variable {
        name: "RKEY_WIRE",
        default: "off",
        allowed: "off, auto, or addresses of this host, separated by commas (at most 64, no wildcard, no multicast)",
        meaning: "the addresses on which this device receives packets from other hosts (RoCEv2, UDP port 4791); \
                  auto: all but loopback and link-local ones",
        apply: |config, value| {
            config.wire.addresses = WireSetting::parse(value)?;
            Some(())
        },
    },
    Variable {
        name: WIRE_KEY,
        default: "none",
        allowed: "none, or the absolute path of a file with 32 to 4096 random bytes that only its owner (you or root) can read and write",
        meaning: "a secret that hosts share: packets and handshakes between them are encrypted and authenticated with it, and \
                  others are dropped",
        apply: |config, value| {
            config.wire.key = match path_or_none(value)? {
                Some(path) => Some(WireKey::read(&path)?),
                None => None,
            };
            Some(())
        },
    },
    Variable {
        name: "RKEY_FAULT",
        default: "off",
        allowed: Faults::ALLOWED,
        meaning: "for tests: lose, duplicate, reorder, corrupt or delay packets that this device sends to other hosts; \
                  each side sets its own",
        apply: |config, value| {
            config.wire.faults = Faults::parse(value)?;
            Some(())
        },
    },
    Variable {
        name: "RKEY_CAPTURE",
        default: "none",
        allowed: "none or an absolute path",
        meaning: "a file that captures what the program sends and receives, on this host and others (pcap, for Wireshark); %p in its name stands for the process ID",
        apply: |config, value| {
            config.wire.capture = path_or_none(value)?;
            Some(())
        },
    },
    Variable {
        name: "RKEY_DIRECT_COPY",
        default: "auto",
        allowed: "auto or off",
        meaning: "auto: copy large payloads directly between the processes where the kernel allows it; off: never",
        apply: |config, value| {
            config.direct_copy = match value {
                "auto" => DirectCopy::Auto,
                "off" => DirectCopy::Off,
                _ => return None,
            };
            Some(())
        },
    },
    Variable {
        name: "RKEY_PUSH",
        default: "on",
        allowed: "on or off",
        meaning: "off: no writes go straight into memory that a peer polls (ib_write_lat, mailboxes), and no peer's writes into ours: all wait for \
                  the target's engine",
        apply: |config, value| {
            config.push = parse_switch(value)?;
            Some(())
        },
    },
    Variable {
        name: "RKEY_PTRACER",
        default: "off",
        allowed: "off or any",
        meaning: "any: let every process of this user read and write the memory of this process, even where Yama would deny it",
        apply: |config, value| {
            config.ptracer_any = match value {
                "off" => false,
                "any" => true,
                _ => return None,
            };
            Some(())
        },
    },
    number!(
        "RKEY_REFERENCE_MIN",
        remote_iovec_min,
        4096..=4294967295,
        "32k",
        "payloads of at least this many bytes are copied directly between the processes if the ring is full"
    ),
    number!(
        "RKEY_RING_BYTES",
        ring_bytes,
        65536..=67108864,
        "2m",
        "bytes in the payload ring of each direction of a link"
    ),
    number!(
        "RKEY_MAX_REGIONS",
        limits.max_regions,
        1..=1015808,
        "1000000",
        "memory regions that may exist at once"
    ),
    number!(
        "RKEY_MAX_REGION_BYTES",
        limits.max_region_bytes,
        1..=9223372036854775807,
        "128T",
        "bytes in one memory region"
    ),
    number!(
        "RKEY_MAX_TOTAL_BYTES",
        limits.max_total_bytes,
        1..=9223372036854775807,
        "65536T",
        "bytes in all memory regions together"
    ),
    number!(
        "RKEY_MAX_WINDOWS",
        limits.max_windows,
        1..=1048576,
        "32767",
        "memory windows that may exist at once"
    ),
    number!(
        "RKEY_MAX_DOMAINS",
        limits.max_domains,
        1..=65535,
        "4k",
        "protection domains that may exist at once"
    ),
    number!(
        "RKEY_MAX_SEGMENTS",
        limits.max_segments,
        1..=65536,
        "1k",
        "segments that one memory region may have"
    ),
    number!(
        "RKEY_MAX_QPS",
        max_qps,
        1..=1048576,
        "64k",
        "queue pairs that may exist at once"
    ),
    number!(
        "RKEY_MAX_CQS",
        max_cqs,
        1..=1048576,
        "64k",
        "completion queues that may exist at once"
    ),
    number!(
        "RKEY_MAX_SRQS",
        max_srqs,
        1..=1048576,
        "64k",
        "shared receive queues that may exist at once"
    ),
    number!(
        "RKEY_MAX_CQ_DEPTH",
        max_cq_depth,
        1..=16777216,
        "4M",
        "completions that one completion queue may hold"
    ),
    number!(
        "RKEY_MAX_QUEUE_DEPTH",
        max_queue_depth,
        1..=1048576,
        "32k",
        "requests that one send, receive or shared receive queue may hold"
    ),
    number!(
        "RKEY_MAX_SGE",
        max_sge,
        1..=256,
        "32",
        "scatter/gather entries of one request"
    ),
    number!(
        "RKEY_MAX_INLINE",
        max_inline,
        0..=4096,
        "1k",
        "bytes of inline data of one request"
    ),
    number!(
        "RKEY_MAX_LINKS",
        max_links,
        1..=65536,
        "4k",
        "links to and from other processes that may exist at once"
    ),
    number!(
        "RKEY_MAX_LINKS_PER_PROCESS",
        max_links_per_process,
        1..=65536,
        "256",
        "links that one other process may open to this device; at most a quarter of what RLIMIT_NOFILE allows"
    ),
    number!(
        "RKEY_MAX_LINKS_PER_USER",
        max_links_per_user,
        1..=65536,
        "256",
        "links that all processes of one other user may open together (RKEY_SHARE=all)"
    ),
    number!(
        "RKEY_RESERVED_FILES",
        reserved_files,
        0..=1048576,
        "256",
        "file descriptors of RLIMIT_NOFILE reserved for the program, at most half of them; each link uses two or three"
    ),
    number!(
        "RKEY_TIMEOUT",
        timeout,
        0..=31,
        "15",
        "transport timeout if the program sets none: 4.096 us * 2^n, 0 = never; the default for libfabric programs is 19"
    ),
    number!(
        "RKEY_RETRY_COUNT",
        retry_count,
        0..=7,
        "5",
        "retries after a transport timeout if the program sets none"
    ),
    number!(
        "RKEY_RNR_RETRY",
        rnr_retry,
        0..=7,
        "7",
        "retries after RNR (no receive posted) if the program sets none, 7 = forever"
    ),
    time!(
        "RKEY_SPIN_US",
        spin,
        from_micros,
        0..=10_000_000,
        "40",
        "microseconds that the engine thread, or a thread waiting for completions, polls before it sleeps"
    ),
    time!(
        "RKEY_TICK_MS",
        tick,
        from_millis,
        1..=60_000,
        "10",
        "milliseconds after which the engine thread checks again whether the program still polls"
    ),
    time!(
        "RKEY_CONNECT_TIMEOUT_MS",
        connect_timeout,
        from_millis,
        1..=3_600_000,
        "5000",
        "milliseconds that connecting may take if the program sets no timeout"
    ),
    Variable {
        name: "RKEY_REPORT",
        default: "none",
        allowed: "none or an absolute path",
        meaning: "an existing file to which refused accesses are appended instead of being logged",
        apply: |config, value| {
            config.report = path_or_none(value)?;
            Some(())
        },
    },
];
