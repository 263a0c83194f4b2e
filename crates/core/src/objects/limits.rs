//! Limits of a device: numbers of objects, and bytes. Each limit has a name and, unless it is fixed, the name of the
//! setting that raises it, so that an error can say how to fix it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The limits of a device. The values are upper bounds, not reservations: nothing is allocated for them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// The maximum number of live regions.
    pub max_regions: u32,
    /// The maximum size of a region, in bytes.
    pub max_region_bytes: u64,
    /// The maximum total size of all live regions, in bytes (a byte that two regions cover counts twice).
    pub max_total_bytes: u64,
    /// The maximum number of live windows.
    pub max_windows: u32,
    /// The maximum number of open domains; at most 65,535.
    pub max_domains: u32,
    /// The maximum number of segments of a region.
    pub max_segments: u32,
    /// Key slots that regions and windows of type 1 and DAT share; at most [`Limits::KEY_SLOTS`]. With fewer slots,
    /// their generations wrap and local keys repeat sooner, which is useful only in tests.
    pub key_slots: u32,
}

impl Limits {
    /// The maximum number of key slots: 20 bits of a local key name a slot, and 32,768 of their values name none: the
    /// mask of local keys is one of them. Type 2 windows have slots of their own.
    pub const KEY_SLOTS: u32 = (1 << 20) - (1 << 15);
    /// The maximum number of live type 2 windows.
    pub const TYPE2_SLOTS: u32 = (1 << 15) - 1;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_regions: 1_000_000,
            max_region_bytes: 1 << 47,
            max_total_bytes: 1 << 56,
            max_windows: 32_767,
            max_domains: 4_096,
            max_segments: 1_024,
            key_slots: Self::KEY_SLOTS,
        }
    }
}

/// One limit, by name.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Limit {
    /// [`Limits::max_regions`].
    Regions,
    /// [`Limits::max_region_bytes`].
    RegionBytes,
    /// [`Limits::max_total_bytes`].
    TotalBytes,
    /// [`Limits::max_windows`].
    Windows,
    /// [`Limits::TYPE2_SLOTS`], which is fixed.
    Type2Windows,
    /// [`Limits::max_domains`].
    Domains,
    /// [`Limits::max_segments`].
    Segments,
    /// [`Limits::key_slots`].
    KeySlots,
}

impl Limit {
    /// Every limit.
    pub const ALL: [Self; 8] = [
        Self::Regions,
        Self::RegionBytes,
        Self::TotalBytes,
        Self::Windows,
        Self::Type2Windows,
        Self::Domains,
        Self::Segments,
        Self::KeySlots,
    ];

    /// The setting (an environment variable) that raises the limit; `None` if there is none.
    #[must_use]
    pub const fn setting(self) -> Option<&'static str> {
        match self {
            Self::Regions => Some("RKEY_MAX_REGIONS"),
            Self::RegionBytes => Some("RKEY_MAX_REGION_BYTES"),
            Self::TotalBytes => Some("RKEY_MAX_TOTAL_BYTES"),
            Self::Windows => Some("RKEY_MAX_WINDOWS"),
            Self::Domains => Some("RKEY_MAX_DOMAINS"),
            Self::Segments => Some("RKEY_MAX_SEGMENTS"),
            Self::Type2Windows | Self::KeySlots => None,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Regions => "live regions",
            Self::RegionBytes => "bytes in one region",
            Self::TotalBytes => "registered bytes",
            Self::Windows => "live windows",
            Self::Type2Windows => "live type 2 windows",
            Self::Domains => "open domains",
            Self::Segments => "segments in one scatter list",
            Self::KeySlots => "key slots",
        })
    }
}
