//! DAT return codes of failed calls, and their names for the log.
//!
//! A return code has a class, a type (`DAT_INVALID_HANDLE`) and a subtype that says which argument or which resource
//! (dat_error.h).

use crate::sys::consts::*;
use crate::sys::{Return, consts};
use rkey_device::DeviceError;
use rkey_device::core::{BindError, CoreError};
use rkey_device::engine::PostError;
use rkey_kit::{Errno, contained};
use std::fmt;

/// A return code that is not `DAT_SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fail(Return);

/// The result of a call.
pub type Result<T = ()> = std::result::Result<T, Fail>;

impl Fail {
    /// The EVD has no event. Lacks the error class bit, as in Debian's providers: dtest compares the whole code.
    pub const EMPTY: Self = Self(QUEUE_EMPTY);
    /// The timeout expired.
    pub const TIMEOUT: Self = Self::new(TIMEOUT_EXPIRED, NO_SUBTYPE);
    /// This provider does not support this kind of object or operation.
    pub const NO_MODEL: Self = Self::new(MODEL_NOT_SUPPORTED, NO_SUBTYPE);
    /// A length does not fit.
    pub const LENGTH: Self = Self::new(LENGTH_ERROR, NO_SUBTYPE);
    /// The objects belong to different protection zones.
    pub const PROTECTION: Self = Self::new(PROTECTION_VIOLATION, NO_SUBTYPE);
    /// The device failed, or rkey has a bug.
    pub const INTERNAL: Self = Self::new(INTERNAL_ERROR, NO_SUBTYPE);

    /// An error of this type and subtype.
    #[must_use]
    pub const fn new(kind: dat_return_type, subtype: dat_return_subtype) -> Self {
        Self(CLASS_ERROR | kind | subtype)
    }

    /// The argument with this number (from 1) is not allowed.
    #[must_use]
    pub const fn argument(number: u32) -> Self {
        Self::new(INVALID_PARAMETER, INVALID_ARG1 + number - 1)
    }

    /// A handle does not name a live object of this kind.
    #[must_use]
    pub const fn handle(subtype: dat_return_subtype) -> Self {
        Self::new(INVALID_HANDLE, subtype)
    }

    /// An object is in a state that does not allow the call.
    #[must_use]
    pub const fn state(subtype: dat_return_subtype) -> Self {
        Self::new(INVALID_STATE, subtype)
    }

    /// No resource of this kind is left.
    #[must_use]
    pub const fn resource(subtype: dat_return_subtype) -> Self {
        Self::new(INSUFFICIENT_RESOURCES, subtype)
    }

    /// The code that the call returns.
    #[must_use]
    pub const fn code(self) -> Return {
        self.0
    }

    /// The type of the return code, as `DAT_GET_TYPE` returns it.
    #[must_use]
    pub const fn kind(self) -> dat_return_type {
        self.0 & TYPE_MASK
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |list: &[(u32, &'static str)], wanted| {
            let found = list.iter().find(|(number, _)| *number == wanted);
            found.map_or("?", |(_, name)| *name)
        };
        write!(out, "DAT_{}", name(consts::RETURN_TYPES, self.kind()))?;
        match self.0 & SUBTYPE_MASK {
            NO_SUBTYPE => Ok(()),
            subtype => write!(out, " (DAT_{})", name(consts::RETURN_SUBTYPES, subtype)),
        }
    }
}

impl fmt::Debug for Fail {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::INVAL => Self::new(INVALID_PARAMETER, NO_SUBTYPE),
            Errno::NOMEM => Self::resource(RESOURCE_MEMORY),
            _ => Self::INTERNAL,
        }
    }
}

impl From<DeviceError> for Fail {
    fn from(error: DeviceError) -> Self {
        let fail = of_device(&error);
        tracing::info!("{error} ({fail})");
        fail
    }
}

fn of_device(error: &DeviceError) -> Fail {
    match error {
        DeviceError::Limit { .. } | DeviceError::TooLarge { .. } => Fail::resource(RESOURCE_DEVICE),
        DeviceError::Core(error) => of_core(error),
        DeviceError::Bind(error) => of_bind(error),
        DeviceError::Post(error) => of_post(error),
        DeviceError::Busy { .. } => Fail::state(NO_SUBTYPE),
        DeviceError::NotThisHost { .. } | DeviceError::NoRoute { .. } => {
            Fail::new(INVALID_ADDRESS, INVALID_ADDRESS_UNREACHABLE)
        }
        DeviceError::AddressInUse { .. } => Fail::new(CONN_QUAL_IN_USE, NO_SUBTYPE),
        DeviceError::TooLong { .. } => Fail::new(INVALID_PARAMETER, NO_SUBTYPE),
        DeviceError::TimedOut { .. } => Fail::TIMEOUT,
        _ => Fail::INTERNAL,
    }
}

fn of_core(error: &CoreError) -> Fail {
    match error {
        CoreError::LimitReached { .. } => Fail::resource(RESOURCE_MEMORY_REGION),
        CoreError::Empty | CoreError::Wraps { .. } => Fail::LENGTH,
        CoreError::AccessNeeds { .. } | CoreError::UnknownAccess(_) => {
            Fail::new(PRIVILEGES_VIOLATION, NO_SUBTYPE)
        }
        CoreError::DomainBusy { .. } => Fail::state(INVALID_STATE_PZ_IN_USE),
        CoreError::RegionBusy { .. } => Fail::state(INVALID_STATE_LMR_IN_USE),
        _ => Fail::handle(NO_SUBTYPE),
    }
}

fn of_bind(error: &BindError) -> Fail {
    match error {
        BindError::NoSuchWindow(_) => Fail::handle(INVALID_HANDLE_RMR),
        BindError::NoKeySlot(_) => Fail::resource(RESOURCE_MEMORY_REGION),
        BindError::OtherDomain { .. } => Fail::PROTECTION,
        BindError::RegionLacks { .. } | BindError::NotRemote(_) => {
            Fail::new(PRIVILEGES_VIOLATION, NO_SUBTYPE)
        }
        _ => Fail::new(INVALID_PARAMETER, NO_SUBTYPE),
    }
}

fn of_post(error: &PostError) -> Fail {
    match error {
        PostError::QueueFull(_) => Fail::resource(RESOURCE_TEP),
        PostError::WrongState(_) => Fail::state(NO_SUBTYPE),
        PostError::TooManySges { .. } => Fail::argument(2),
        PostError::TooLong(_) => Fail::LENGTH,
        PostError::NotSupported(_) | PostError::UsesSrq | PostError::NoAddress => Fail::NO_MODEL,
        _ => Fail::INTERNAL,
    }
}

/// Runs the body of a DAT call: nothing unwinds out of it, and its result becomes a return code.
#[inline]
pub fn call(name: &'static str, body: impl FnOnce() -> Result) -> Return {
    match contained(body) {
        Ok(()) => SUCCESS,
        Err(fail) => failed(name, fail),
    }
}

#[cold]
fn failed(name: &'static str, fail: Fail) -> Return {
    if !matches!(fail.kind(), QUEUE_EMPTY | TIMEOUT_EXPIRED) {
        tracing::info!("{name}: {fail}");
    }
    fail.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn return_codes_have_class_type_and_subtype() {
        let fail = Fail::argument(3);
        assert_eq!(fail.code(), 0x8006_0027);
        assert_eq!(fail.kind(), INVALID_PARAMETER);
        assert_eq!(fail.to_string(), "DAT_INVALID_PARAMETER (DAT_INVALID_ARG3)");
        assert_eq!(Fail::EMPTY.to_string(), "DAT_QUEUE_EMPTY");
    }

    #[test]
    fn a_panic_becomes_an_internal_error() {
        assert_eq!(call("dat_test", || panic!("a bug")), Fail::INTERNAL.code());
        assert_eq!(call("dat_test", || Ok(())), SUCCESS);
    }
}
