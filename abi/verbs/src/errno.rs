//! Errors of the device as error numbers, each in the way the kernel's drivers use them.

use rkey_device::DeviceError;
use rkey_device::core::CoreError;
use rkey_device::engine::{EngineError, PostError};
use rkey_kit::Errno;

/// The number for an error of the device. What the number cannot say is logged.
#[cold]
#[must_use]
pub fn of(error: &DeviceError) -> Errno {
    let errno = number(error);
    tracing::debug!(%error, ?errno, "a call failed");
    errno
}

/// For `map_err`.
#[cold]
pub fn from(error: DeviceError) -> Errno {
    of(&error)
}

fn number(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Config(_) | DeviceError::TooLarge { .. } | DeviceError::TooLong { .. } => {
            Errno::INVAL
        }
        DeviceError::Limit { .. } => Errno::NOMEM,
        DeviceError::Core(error) => core(error),
        DeviceError::Engine(error) => engine(error),
        DeviceError::Modify(_) | DeviceError::Unknown { .. } => Errno::INVAL,
        DeviceError::Post(error) => post(error),
        DeviceError::Busy { .. } => Errno::BUSY,
        DeviceError::Forked => Errno::NODEV,
        DeviceError::TimedOut { .. } => Errno::TIMEDOUT,
        DeviceError::Fault { .. } => Errno::FAULT,
        DeviceError::Io { source, .. } => Errno::from_raw(source.raw_os_error().unwrap_or(0)),
        _ => Errno::IO,
    }
}

/// Registration, windows, domains.
#[must_use]
pub fn core(error: &CoreError) -> Errno {
    match error {
        CoreError::LimitReached { .. } => Errno::NOMEM,
        CoreError::DomainBusy { .. } | CoreError::RegionBusy { .. } => Errno::BUSY,
        _ => Errno::INVAL,
    }
}

/// Objects of the engine.
#[must_use]
pub fn engine(error: &EngineError) -> Errno {
    match error {
        EngineError::Busy { .. } => Errno::BUSY,
        _ => Errno::INVAL,
    }
}

/// Posts.
#[must_use]
pub const fn post(error: &PostError) -> Errno {
    match error {
        PostError::QueueFull(_) => Errno::NOMEM,
        _ => Errno::INVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rkey_device::core::Limit;

    #[test]
    fn exhaustion_and_nonsense_differ() {
        let full = CoreError::LimitReached {
            limit: Limit::Regions,
            value: 1,
        };
        assert_eq!(core(&full), Errno::NOMEM);
        assert_eq!(core(&CoreError::Empty), Errno::INVAL);
        assert_eq!(core(&CoreError::UnknownAccess(1 << 30)), Errno::INVAL);
    }

    #[test]
    fn a_full_queue_is_no_nonsense() {
        assert_eq!(post(&PostError::QueueFull(3)), Errno::NOMEM);
        assert_eq!(post(&PostError::NoAddress), Errno::INVAL);
        assert_eq!(of(&DeviceError::Forked), Errno::NODEV);
    }
}
