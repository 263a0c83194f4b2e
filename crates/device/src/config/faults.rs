//! The setting of injected faults: `RKEY_FAULT`.

use std::fmt;
use std::time::Duration;

/// The faults that are injected into the packets that the wire sends, so that a program can be tested on a bad network. By
/// default, there are none.
///
/// The rates are probabilities, applied to each packet independently. The fate of the n-th packet depends only on the seed.
///
/// ```
/// # fn main() -> Result<(), rkey_device::ConfigError> {
/// let mut config = rkey_device::Config::default();
/// config.set("RKEY_FAULT", "loss=1%,corrupt=0.05%,delay=20ms,seed=7")?;
/// let faults = config.wire.faults;
/// assert_eq!((faults.loss.per_million(), faults.seed), (10_000, Some(7)));
/// assert_eq!(faults.to_string(), "loss=1%,corrupt=0.05%,delay=20ms,seed=7");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The probability that a packet is not sent.
    pub loss: Rate,
    /// The probability that a packet is sent twice.
    pub duplicate: Rate,
    /// The probability that a packet is delayed until one to eight later packets that are not delayed themselves have been sent,
    /// for at most 1 ms.
    pub reorder: Rate,
    /// The probability that one bit of a packet is flipped, which the invariant checksum lets the receiver detect.
    pub corrupt: Rate,
    /// The time by which each packet is delayed before it is sent.
    pub delay: Duration,
    /// The seed; `None`: a random one, which is logged.
    pub seed: Option<u64>,
}

/// A probability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

impl Rate {
    const MILLION: u32 = 1_000_000;

    /// A rate of `per_million` packets in a million; greater numbers mean all packets.
    #[must_use]
    pub const fn new(per_million: u32) -> Self {
        match per_million {
            0..Self::MILLION => Self(per_million),
            _ => Self(Self::MILLION),
        }
    }

    /// The number of packets in a million.
    #[must_use]
    pub const fn per_million(self) -> u32 {
        self.0
    }

    /// A percentage with up to four decimal places.
    fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        if part.len() > 4 {
            return None;
        }
        let whole = digits(whole)?.checked_mul(10_000)?;
        let part = digits(&format!("{part:0<4}"))?;
        let per_million = u32::try_from(whole.checked_add(part)?).ok()?;
        (!number.ends_with('.') && per_million <= Self::MILLION).then_some(Self(per_million))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        let part = format!(".{part:04}");
        write!(
            f,
            "{whole}{}%",
            part.trim_end_matches('0').trim_end_matches('.')
        )
    }
}

impl Faults {
    /// All packets are sent as they are.
    pub const NONE: Self = Self {
        loss: Rate(0),
        duplicate: Rate(0),
        reorder: Rate(0),
        corrupt: Rate(0),
        delay: Duration::ZERO,
        seed: None,
    };
    /// The longest delay.
    const MAX_DELAY: Duration = Duration::from_secs(10);
    pub(super) const ALLOWED: &str = "off, or some of loss=, duplicate=, reorder=, corrupt= (a percentage each, such as 1% or 0.01%), delay= (such as 500us, 20ms or 1s; at most 10s) and seed= (a whole number), separated by commas";

    /// Whether all packets are sent as they are.
    #[must_use]
    pub fn is_off(&self) -> bool {
        Self {
            seed: None,
            ..*self
        } == Self::NONE
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut faults = Self::NONE;
        if text == "off" {
            return Some(faults);
        }
        let mut known = Vec::new();
        for part in text.split(',') {
            let (name, value) = part.split_once('=')?;
            let (name, value) = (name.trim(), value.trim());
            match name {
                "loss" => faults.loss = Rate::parse(value)?,
                "duplicate" => faults.duplicate = Rate::parse(value)?,
                "reorder" => faults.reorder = Rate::parse(value)?,
                "corrupt" => faults.corrupt = Rate::parse(value)?,
                "delay" => faults.delay = time(value).filter(|it| *it <= Self::MAX_DELAY)?,
                "seed" => faults.seed = Some(digits(value)?),
                _ => return None,
            }
            if known.contains(&name) {
                return None;
            }
            known.push(name);
        }
        Some(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (name, rate) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ] {
            if rate > Rate::default() {
                parts.push(format!("{name}={rate}"));
            }
        }
        let delay = self.delay.as_micros();
        match (delay, delay % 1000) {
            (0, _) => {}
            (_, 0) => parts.push(format!("delay={}ms", delay / 1000)),
            _ => parts.push(format!("delay={delay}us")),
        }
        parts.extend(self.seed.map(|seed| format!("seed={seed}")));
        match self.is_off() {
            true => f.write_str("off"),
            false => f.write_str(&parts.join(",")),
        }
    }
}

/// A whole number without a sign.
fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// A time with its unit: `us`, `ms` or `s`.
fn time(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.find(|it: char| !it.is_ascii_digit())?)?;
    let number = digits(number)?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_setting_is_parsed_and_displayed() {
        let text = "loss=1%,duplicate=0.5%,reorder=12.0345%,corrupt=100%,delay=1500us,seed=9";
        let faults = Faults::parse(text).unwrap();
        assert_eq!(
            faults,
            Faults {
                loss: Rate::new(10_000),
                duplicate: Rate::new(5000),
                reorder: Rate::new(120_345),
                corrupt: Rate::new(u32::MAX),
                delay: Duration::from_micros(1500),
                seed: Some(9),
            }
        );
        assert_eq!(faults.to_string(), text);
        let spaced = Faults::parse(" delay = 2s , loss = 0.0001% ").unwrap();
        assert_eq!(spaced.to_string(), "loss=0.0001%,delay=2000ms");
        for off in ["off", "loss=0%", "delay=0ms,seed=3"] {
            let faults = Faults::parse(off).unwrap();
            assert!(faults.is_off() && faults.to_string() == "off", "{off}");
        }
    }

    #[test]
    fn invalid_fault_settings_are_refused() {
        for bad in [
            "loss",
            "loss=",
            "loss=1",
            "loss=%",
            "loss=.5%",
            "loss=1.%",
            "loss=+1%",
            "loss=-1%",
            "loss=100.1%",
            "loss=0.00001%",
            "loss=99999999999999999999%",
            "loss=1%,loss=2%",
            "loss=1%,",
            "loss=1%;delay=1ms",
            "delay=5",
            "delay=ms",
            "delay=11s",
            "delay=1m",
            "seed=0x1",
            "seed=99999999999999999999",
            "lost=1%",
            "on",
        ] {
            assert_eq!(Faults::parse(bad), None, "{bad}");
        }
    }
}
