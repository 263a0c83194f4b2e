//! Error numbers of libfabric (those of the C library, and its own from 256 on), and their mapping from the
//! device's errors and statuses.

use rkey_device::DeviceError;
use rkey_device::core::{CoreError, Denial, Reason};
use rkey_device::engine::{PostError, Status};
use rkey_kit::Errno;
use rkey_rdm::atomic::AtomicError;
use rkey_rdm::commit::CommitError;
use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Arguments;

/// A positive error number; calls return it negated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FiError(pub(crate) i32);

pub(crate) type Result<T> = std::result::Result<T, FiError>;

macro_rules! from_libc {
    ($($name:ident = $number:ident),* $(,)?) => {
        impl FiError { $(pub(crate) const $name: Self = Self(libc::$number);)* }
    };
}
from_libc!(
    PERM = EPERM,
    NOENT = ENOENT,
    IO = EIO,
    AGAIN = EAGAIN,
    NOMEM = ENOMEM,
    ACCES = EACCES,
    FAULT = EFAULT,
    BUSY = EBUSY,
    INVAL = EINVAL,
    NOSYS = ENOSYS,
    NODATA = ENODATA,
    MSGSIZE = EMSGSIZE,
    OPNOTSUPP = EOPNOTSUPP,
    ADDRINUSE = EADDRINUSE,
    ISCONN = EISCONN,
    NOTCONN = ENOTCONN,
    SHUTDOWN = ESHUTDOWN,
    TIMEDOUT = ETIMEDOUT,
    CONNREFUSED = ECONNREFUSED,
    HOSTUNREACH = EHOSTUNREACH,
    CANCELED = ECANCELED,
    KEYREJECTED = EKEYREJECTED,
    NOMSG = ENOMSG,
    CONNRESET = ECONNRESET,
);

impl FiError {
    pub(crate) const TOOSMALL: Self = Self(257);
    pub(crate) const OPBADSTATE: Self = Self(258);
    pub(crate) const AVAIL: Self = Self(259);
    pub(crate) const BADFLAGS: Self = Self(260);
    pub(crate) const NOEQ: Self = Self(261);
    pub(crate) const NOCQ: Self = Self(263);
    pub(crate) const TRUNC: Self = Self(265);
    pub(crate) const NOKEY: Self = Self(266);
    pub(crate) const NOAV: Self = Self(267);
    pub(crate) const NORX: Self = Self(269);

    /// Returns the number, and logs the details that it cannot express (`RKEY_LOG=info`).
    #[cold]
    pub(crate) fn because(self, why: Arguments<'_>) -> Self {
        tracing::info!("call refused: {why}");
        self
    }

    /// The return value of a call.
    pub(crate) const fn code(self) -> i32 {
        -self.0
    }
}

impl std::fmt::Debug for FiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.0, text(self.0).to_string_lossy())
    }
}

impl From<std::io::Error> for FiError {
    fn from(error: std::io::Error) -> Self {
        Errno::from(&error).into()
    }
}

impl From<Errno> for FiError {
    fn from(errno: Errno) -> Self {
        Self(errno.raw())
    }
}

impl From<rkey_rdm::error::Error> for FiError {
    #[inline]
    fn from(error: rkey_rdm::error::Error) -> Self {
        Self(error.number().into())
    }
}

impl From<FiError> for rkey_rdm::error::Error {
    #[cold]
    fn from(error: FiError) -> Self {
        let number = u16::try_from(error.0).ok();
        number.and_then(Self::of).unwrap_or(Self::Remote)
    }
}

impl From<AtomicError> for FiError {
    fn from(error: AtomicError) -> Self {
        match error {
            AtomicError::Unsupported => Self::OPNOTSUPP,
            AtomicError::Malformed => Self::INVAL,
        }
    }
}

impl From<CommitError> for FiError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Malformed => Self::INVAL,
            CommitError::UnknownKey => Self::NOKEY,
        }
    }
}

impl From<DeviceError> for FiError {
    fn from(error: DeviceError) -> Self {
        tracing::info!(%error, "call refused");
        of_device(&error)
    }
}

/// The number for an error of the device.
pub(crate) fn of_device(error: &DeviceError) -> FiError {
    match error {
        DeviceError::Core(error) => of_core(error),
        DeviceError::Limit { .. } => FiError::NOMEM,
        DeviceError::Config(_) | DeviceError::TooLarge { .. } | DeviceError::TooLong { .. } => {
            FiError::INVAL
        }
        DeviceError::Busy { .. } => FiError::BUSY,
        DeviceError::Post(PostError::QueueFull(_)) => FiError::AGAIN,
        DeviceError::Post(PostError::TooLong(_)) => FiError::MSGSIZE,
        DeviceError::Post(PostError::WrongState(_)) => FiError::NOTCONN,
        DeviceError::NotThisHost { .. } | DeviceError::NoRoute { .. } => FiError::HOSTUNREACH,
        DeviceError::NotListening { .. } | DeviceError::Refused { .. } => FiError::CONNREFUSED,
        DeviceError::AddressInUse { .. } => FiError::ADDRINUSE,
        DeviceError::OtherUser { .. } => FiError::PERM,
        DeviceError::TimedOut { .. } => FiError::TIMEDOUT,
        DeviceError::Handshake(_) | DeviceError::Version { .. } => FiError::CONNRESET,
        DeviceError::NotConnected { .. } => FiError::NOTCONN,
        DeviceError::Fault { .. } => FiError::FAULT,
        DeviceError::Io { source, .. } => Errno::from(source).into(),
        DeviceError::Forked | DeviceError::Failed(_) => FiError::IO,
        _ => FiError::INVAL,
    }
}

/// The number for a refusal by the protection table (FI-225, FI-226, FI-229, FI-I34).
pub(crate) fn of_core(error: &CoreError) -> FiError {
    match error {
        CoreError::KeyTaken(_) => FiError::NOKEY,
        CoreError::KeyReserved(_) => FiError::KEYREJECTED,
        CoreError::DomainBusy { .. } | CoreError::RegionBusy { .. } => FiError::BUSY,
        CoreError::AlreadyBound { .. } => FiError::BUSY,
        CoreError::AlreadyEnabled(_) | CoreError::NeedsEndpoint(_) => FiError::OPBADSTATE,
        CoreError::LimitReached { .. } => FiError::NOMEM,
        _ => FiError::INVAL,
    }
}

/// The `err` of a completion (FI-I36). A fault is `FI_EFAULT`. A refused remote access is `FI_ENOKEY` if the
/// key is known to be unknown, stale or of another domain, and otherwise `FI_EACCES`.
pub(crate) fn of_status(status: Status, denial: Option<&Denial>) -> FiError {
    if let Some(Reason::Fault { .. }) = denial.map(|denial| denial.reason) {
        return FiError::FAULT;
    }
    match status {
        Status::Success => FiError(0),
        Status::LocalLength => FiError::TRUNC,
        Status::LocalProtection => match denial.map(|denial| denial.reason) {
            Some(_) => FiError::ACCES,
            None => FiError::FAULT,
        },
        Status::Flushed => FiError::CANCELED,
        Status::RemoteAccess => match denial.map(|denial| denial.reason) {
            Some(Reason::UnknownKey | Reason::StaleKey { .. } | Reason::OtherDomain { .. }) => {
                FiError::NOKEY
            }
            _ => FiError::ACCES,
        },
        Status::RemoteInvalidRequest | Status::LocalQpOperation => FiError::INVAL,
        Status::RemoteOperation | Status::RemoteAborted => FiError(libc::EREMOTEIO),
        Status::RetryExceeded | Status::RnrRetryExceeded => FiError::HOSTUNREACH,
        _ => FiError::IO,
    }
}

/// The text for one of libfabric's own error numbers, or for 0; `None` for those of the C library.
#[must_use]
pub fn own_text(number: i32) -> Option<&'static CStr> {
    Some(match number {
        0 => c"Success",
        256 => c"Unspecified error",
        257 => c"Provided buffer is too small",
        258 => c"Operation not permitted in current state",
        259 => c"Error available",
        260 => c"Flags not supported",
        261 => c"Missing or unavailable event queue",
        262 => c"Invalid resource domain",
        263 => c"Missing or unavailable completion queue",
        264 => c"CRC error",
        265 => c"Truncation error",
        266 => c"Required key not available",
        267 => c"Missing or unavailable address vector",
        268 => c"Queue has been overrun",
        269 => c"Receiver not ready, no receive buffers available",
        _ => return None,
    })
}

/// The text for a positive error number.
pub(crate) fn text(number: i32) -> Cow<'static, CStr> {
    if let Some(own) = own_text(number) {
        return own.into();
    }
    let words = std::io::Error::from_raw_os_error(number).to_string();
    let words = words.split(" (os error").next().unwrap_or("").to_owned();
    std::ffi::CString::new(words).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_codes_of_the_manual_page() {
        assert_eq!(of_core(&CoreError::KeyTaken(1)).code(), -266);
        assert_eq!(of_core(&CoreError::KeyReserved(u64::MAX)).code(), -129);
        assert_eq!(FiError::BUSY.code(), -16);
        assert_eq!(FiError::BADFLAGS.code(), -260);
        assert_eq!(FiError::TOOSMALL.code(), -257);
    }

    #[test]
    fn every_error_number_has_a_text() {
        // Linux has no errors 41 and 58.
        let system = (1..=libc::EHWPOISON).filter(|number| ![41, 58].contains(number));
        let fabric = 256..=FiError::NORX.0;
        for number in system.chain(fabric) {
            let text = text(number).into_owned().into_string().expect("UTF-8");
            assert!(
                !text.is_empty() && !text.starts_with("Unknown error"),
                "{number}: {text}"
            );
        }
        assert_eq!(text(0).to_str(), Ok("Success"));
        assert_eq!(text(13).to_str(), Ok("Permission denied"));
        assert_eq!(text(266).to_str(), Ok("Required key not available"));
    }
}
