//! Additional information in our refusals.
//!
//! InfiniBand has a single reason, "consumer", for a refusal by the program, a listener with another type of queue pair, and
//! more; the field for additional information is then unused. Our managers put a few bytes there, so that the user can be
//! told what is wrong. Other managers ignore them.

use super::{PrivateData, Rej, RejectReason, SidrRep, SidrStatus};

/// Details of a refusal, with the reason that each belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The listener is for queue pairs of another type. With [`RejectReason::CONSUMER`] or [`SidrStatus::REJECT`].
    QueuePairType,
    /// The peer's process has ended. With the same reasons. Never sent: the manager reports it to its own program.
    PeerEnded,
    /// No device listens at the peer's address. With [`RejectReason::SERVICE_ID`] or [`SidrStatus::UNSUPPORTED`]. Never sent, either.
    NoDevice,
}

/// The first bytes of the information.
const MARK: [u8; 4] = *b"rkey";
const LEN: usize = MARK.len() + 1;

impl Detail {
    const fn code(self) -> u8 {
        match self {
            Self::QueuePairType => 1,
            Self::PeerEnded => 2,
            Self::NoDevice => 3,
        }
    }

    /// The reason of a REJ, and the status of a SIDR_REP, that this detail belongs to.
    const fn reasons(self) -> (RejectReason, SidrStatus) {
        match self {
            Self::QueuePairType | Self::PeerEnded => (RejectReason::CONSUMER, SidrStatus::REJECT),
            Self::NoDevice => (RejectReason::SERVICE_ID, SidrStatus::UNSUPPORTED),
        }
    }

    fn bytes(self) -> [u8; LEN] {
        let [a, b, c, d] = MARK;
        [a, b, c, d, self.code()]
    }

    fn read(info: &PrivateData<72>, len: u8) -> Option<Self> {
        let bytes = info.as_bytes().first_chunk::<LEN>()?;
        let fits = usize::from(len) == LEN && bytes.starts_with(&MARK);
        let all = [Self::QueuePairType, Self::PeerEnded, Self::NoDevice];
        all.into_iter().find(|it| fits && *bytes == it.bytes())
    }
}

impl Rej {
    /// Adds a detail.
    #[must_use]
    pub fn with_detail(self, detail: Detail) -> Self {
        self.with_info(&detail.bytes())
    }

    /// The detail, if there is one.
    #[must_use]
    pub fn detail(&self) -> Option<Detail> {
        let found = Detail::read(&self.info, self.info_len);
        found.filter(|detail| detail.reasons().0 == self.reason)
    }
}

impl SidrRep {
    /// Adds a detail.
    #[must_use]
    pub fn with_detail(mut self, detail: Detail) -> Self {
        let bytes = detail.bytes();
        self.info.0[..LEN].copy_from_slice(&bytes);
        self.info_len = LEN as u8;
        self
    }

    /// The detail, if there is one.
    #[must_use]
    pub fn detail(&self) -> Option<Detail> {
        let found = Detail::read(&self.info, self.info_len);
        found.filter(|detail| detail.reasons().1 == self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{About, Mad, Message};

    #[test]
    fn the_detail_of_a_rej_round_trips_and_other_bytes_are_ignored() {
        let bare_with = |reason| Rej::bare(1, 2, About::Req, reason);
        for detail in [Detail::QueuePairType, Detail::PeerEnded, Detail::NoDevice] {
            let bare = bare_with(detail.reasons().0);
            assert_eq!(bare.detail(), None);
            let sent = Mad::new(7, Message::Rej(bare.with_detail(detail))).encode();
            let Ok(Mad {
                message: Message::Rej(rej),
                ..
            }) = Mad::decode(&sent)
            else {
                panic!("a REJ")
            };
            assert_eq!(rej.detail(), Some(detail));
            let other = Rej {
                reason: RejectReason::GID,
                ..rej
            };
            assert_eq!(other.detail(), None);
            let longer = Rej { info_len: 6, ..rej };
            assert_eq!(longer.detail(), None);
        }
        let bare = bare_with(RejectReason::CONSUMER);
        for info in [&b"rkey"[..], b"rkey\x03", b"rkey\x04", b"RKEY\x01", b""] {
            assert_eq!(bare.with_info(info).detail(), None);
        }
    }
}
