//! The settings of the wire; its addresses are those of `RKEY_WIRE`.

use std::net::IpAddr;
use std::path::PathBuf;

use super::Faults;

/// How a device reaches other hosts (RoCEv2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireConfig {
    /// The addresses on which the device accepts packets.
    pub addresses: WireSetting,
    /// The faults that are injected into the packets that the device sends.
    pub faults: Faults,
    /// The file to which the packets, and what passes links on this host, are captured; `%p` in its name stands for the process ID.
    pub capture: Option<PathBuf>,
}

impl WireConfig {
    /// The device does not reach other hosts.
    pub const OFF: Self = Self {
        addresses: WireSetting::Off,
        faults: Faults::NONE,
        capture: None,
    };
}

impl From<WireSetting> for WireConfig {
    /// These addresses, without faults.
    fn from(addresses: WireSetting) -> Self {
        Self {
            addresses,
            ..Self::OFF
        }
    }
}

/// The addresses on which a device accepts packets from other hosts (RoCEv2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WireSetting {
    /// None: the device communicates only with processes on this host.
    #[default]
    Off,
    /// The addresses of all interfaces that are up, except loopback and link-local ones.
    Auto,
    /// These addresses.
    Addresses(Vec<IpAddr>),
}

impl WireSetting {
    /// The maximum number of addresses.
    const MAX: usize = 64;

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => return Some(Self::Off),
            "auto" => return Some(Self::Auto),
            _ => {}
        }
        let mut addresses = Vec::new();
        for part in text.split(',') {
            let address = part.trim().parse::<IpAddr>().ok()?.to_canonical();
            if address.is_unspecified() || address.is_multicast() {
                return None;
            }
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        (addresses.len() <= Self::MAX).then_some(Self::Addresses(addresses))
    }
}
