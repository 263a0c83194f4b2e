//! Why an operation failed. Peers exchange errors as numbers of 12 bits: Linux's `errno`, and two more that
//! libfabric added. Every error has such a number, so the program sees the peer's error unchanged.

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Why a call or an operation failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Error {
            $($(#[$doc])* $name,)*
            /// An error that has no name here, by its number.
            Other(u16),
        }

        impl Error {
            /// The number that stands for the error in messages. Never 0.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$name => $number,)*
                    Self::Other(number) => number,
                }
            }

            /// The error with this number; `None` for 0.
            #[must_use]
            pub const fn of(number: u16) -> Option<Self> {
                Some(match number {
                    0 => return None,
                    $($number => Self::$name,)*
                    other => Self::Other(other),
                })
            }
        }
    };
}

errors! {
    /// There is no room at the moment: retry.
    Again = 11,
    /// There is not enough memory.
    NoMemory = 12,
    /// The memory's rights do not allow the access.
    Denied = 13,
    /// The memory cannot be accessed.
    Fault = 14,
    /// The arguments are invalid, or differ from the peer's.
    Invalid = 22,
    /// No such message exists.
    NoMessage = 42,
    /// The message is too long.
    TooLong = 90,
    /// No such operation exists.
    Unsupported = 95,
    /// The connection failed, the peer closed it, or the peer exited.
    ConnectionReset = 104,
    /// There is no connection.
    NotConnected = 107,
    /// The endpoint, or the group, is closed.
    Shutdown = 108,
    /// The peer did not answer in time.
    TimedOut = 110,
    /// The peer failed without giving a reason.
    Remote = 121,
    /// The program canceled the operation.
    Canceled = 125,
    /// The message is longer than its receive.
    Truncated = 265,
    /// No region has this key.
    UnknownKey = 266,
}

impl Error {
    /// The error that a peer reports by a number; `None` if it reports success.
    #[must_use]
    pub fn reported(number: u64) -> Option<Self> {
        match number {
            0 => None,
            1..=4095 => Self::of(number as u16),
            _ => Some(Self::Remote),
        }
    }
}

impl From<crate::atomic::AtomicError> for Error {
    fn from(error: crate::atomic::AtomicError) -> Self {
        match error {
            crate::atomic::AtomicError::Unsupported => Self::Unsupported,
            crate::atomic::AtomicError::Malformed => Self::Invalid,
        }
    }
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed, with details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub error: Error,
    /// A message for the log and the program; may be empty.
    pub detail: String,
    /// The vendor code of the failed request's completion, which identifies the denial to the device; 0 if there is
    /// none.
    pub vendor: u32,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            detail: String::new(),
            vendor: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_round_trip() {
        assert_eq!(Error::of(0), None);
        for number in 1..4096 {
            assert_eq!(Error::of(number).map(Error::number), Some(number));
        }
    }

    #[test]
    fn a_peer_cannot_report_an_invalid_error_number() {
        assert_eq!(Error::reported(0), None);
        assert_eq!(Error::reported(265), Some(Error::Truncated));
        assert_eq!(Error::reported(4096), Some(Error::Remote));
        assert_eq!(Error::reported(u64::MAX), Some(Error::Remote));
    }
}
