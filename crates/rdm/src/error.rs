//! Why an operation failed. Peers tell each other errors as numbers of 12 bits: `errno` of Linux, and two more that
//! libfabric added. Every error has such a number, so that a peer's error comes out as it went in.

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
            /// Its number, which peers tell each other. Never 0.
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
    /// There is no room now: call again.
    Again = 11,
    /// There is no memory for it.
    NoMemory = 12,
    /// The memory does not allow it.
    Denied = 13,
    /// The memory cannot be touched.
    Fault = 14,
    /// The arguments make no sense, or differ from those of the peer.
    Invalid = 22,
    /// No such message is here.
    NoMessage = 42,
    /// The message is too long.
    TooLong = 90,
    /// There is no such operation.
    Unsupported = 95,
    /// The connection failed, or the peer has gone.
    ConnectionReset = 104,
    /// There is no connection.
    NotConnected = 107,
    /// The endpoint, or the group, is closed.
    Shutdown = 108,
    /// The peer did not answer in time.
    TimedOut = 110,
    /// The peer failed and did not say how.
    Remote = 121,
    /// The program took it back.
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

/// Why an operation failed, and what there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub error: Error,
    /// A text for people; may be empty.
    pub detail: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let detail = String::new();
        Self { error, detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_survive_the_way() {
        assert_eq!(Error::of(0), None);
        for number in 1..4096 {
            assert_eq!(Error::of(number).map(Error::number), Some(number));
        }
    }

    #[test]
    fn a_peer_cannot_report_what_is_no_error_number() {
        assert_eq!(Error::reported(0), None);
        assert_eq!(Error::reported(265), Some(Error::Truncated));
        assert_eq!(Error::reported(4096), Some(Error::Remote));
        assert_eq!(Error::reported(u64::MAX), Some(Error::Remote));
    }
}
