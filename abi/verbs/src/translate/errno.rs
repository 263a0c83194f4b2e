//! Maps the device's errors to the error numbers that the kernel's drivers use.

use crate::translate::flags;
use rkey_device::DeviceError;
use rkey_device::core::{Access, CoreError};
use rkey_device::engine::{EngineError, PostError};
use rkey_kit::Errno;

/// The error number for an error of the device. Logs the details that the number cannot express.
#[cold]
#[must_use]
pub fn of(error: &DeviceError) -> Errno {
    let errno = number(error);
    tracing::debug!(%error, ?errno, "a call failed");
    errno
}

/// Like [`of`], for `map_err`.
#[cold]
pub fn from(error: DeviceError) -> Errno {
    of(&error)
}

/// Like [`of`], for a registration. Logs a violated rule in terms of verbs, at the default level, because `EINVAL` alone
/// does not explain it.
#[cold]
#[must_use]
pub fn of_registration(call: &str, error: &DeviceError) -> Errno {
    match broken_rule(error) {
        Some(rule) => rkey_device::denials::refused(&format!("{call} refused: {rule}")),
        None => tracing::info!("{call}: {error}"),
    }
    of(error)
}

/// "IBV_ACCESS_REMOTE_WRITE needs IBV_ACCESS_LOCAL_WRITE"
fn broken_rule(error: &DeviceError) -> Option<String> {
    let DeviceError::Core(CoreError::AccessNeeds { asked, missing }) = error else {
        return None;
    };
    // Only these rights require another right (VB-014, VB-015).
    let writing = *asked & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let [asked, missing] = [writing, *missing].map(flags::names);
    Some(format!("{asked} needs {missing}"))
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
        DeviceError::Io { source, .. } => source.into(),
        _ => Errno::IO,
    }
}

/// The error number for an error of registration, windows or domains.
#[must_use]
pub fn core(error: &CoreError) -> Errno {
    match error {
        CoreError::LimitReached { .. } => Errno::NOMEM,
        CoreError::DomainBusy { .. } | CoreError::RegionBusy { .. } => Errno::BUSY,
        _ => Errno::INVAL,
    }
}

/// The error number for an error of queue pairs, completion queues or shared receive queues.
#[must_use]
pub fn engine(error: &EngineError) -> Errno {
    match error {
        EngineError::Busy { .. } => Errno::BUSY,
        _ => Errno::INVAL,
    }
}

/// The error number for a work request that cannot be posted.
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
    fn an_exhausted_limit_gives_enomem() {
        let full = CoreError::LimitReached {
            limit: Limit::Regions,
            value: 1,
        };
        assert_eq!(core(&full), Errno::NOMEM);
        assert_eq!(core(&CoreError::Empty), Errno::INVAL);
        assert_eq!(core(&CoreError::UnknownAccess(1 << 30)), Errno::INVAL);
    }

    #[test]
    fn a_missing_right_is_named_by_its_flag() {
        let rule = |asked| {
            broken_rule(&DeviceError::Core(CoreError::AccessNeeds {
                asked,
                missing: Access::LOCAL_WRITE,
            }))
        };
        let asked = Access::REMOTE_WRITE | Access::REMOTE_READ;
        assert_eq!(
            rule(asked).unwrap(),
            "IBV_ACCESS_REMOTE_WRITE needs IBV_ACCESS_LOCAL_WRITE"
        );
        assert_eq!(
            rule(asked | Access::REMOTE_ATOMIC).unwrap(),
            "IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC needs IBV_ACCESS_LOCAL_WRITE"
        );
        assert_eq!(broken_rule(&DeviceError::Core(CoreError::Empty)), None);
    }

    #[test]
    fn a_full_queue_gives_enomem() {
        assert_eq!(post(&PostError::QueueFull(3)), Errno::NOMEM);
        assert_eq!(post(&PostError::NoAddress), Errno::INVAL);
        assert_eq!(of(&DeviceError::Forked), Errno::NODEV);
    }
}
