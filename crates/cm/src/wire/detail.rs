//! Additional information in our refusals.
//!
//! InfiniBand has a single reason, "consumer", for a refusal by the program, a listener with another type of queue pair, and
//! more; the field for additional information is then unused. Our managers put a few bytes there, so that the user can be
//! told what is wrong. Other managers ignore them.

use super::{PrivateData, Rej, RejectReason, SidrRep, SidrStatus};

/// Details of a refusal with the reason [`RejectReason::CONSUMER`] or [`SidrStatus::REJECT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The listener is for queue pairs of another type.
    QueuePairType,
    /// The peer's process has ended. Never sent: the manager reports it to its own program.
    PeerEnded,
}

/// The first bytes of the information.
const MARK: [u8; 4] = *b"rkey";
const LEN: usize = MARK.len() + 1;

impl Detail {
    const fn code(self) -> u8 {
        match self {
            Self::QueuePairType => 1,
            Self::PeerEnded => 2,
        }
    }

    fn bytes(self) -> [u8; LEN] {
        let [a, b, c, d] = MARK;
        [a, b, c, d, self.code()]
    }

    fn read(info: &PrivateData<72>, len: u8) -> Option<Self> {
        let bytes = info.as_bytes().first_chunk::<LEN>()?;
        let fits = usize::from(len) == LEN && bytes.starts_with(&MARK);
        let all = [Self::QueuePairType, Self::PeerEnded];
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
        let has = self.reason == RejectReason::CONSUMER;
        Detail::read(&self.info, self.info_len).filter(|_| has)
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
        let has = self.status == SidrStatus::REJECT;
        Detail::read(&self.info, self.info_len).filter(|_| has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{About, Mad, Message};

    #[test]
    fn the_detail_of_a_rej_round_trips_and_other_bytes_are_ignored() {
        let bare = Rej::bare(1, 2, About::Req, RejectReason::CONSUMER);
        assert_eq!(bare.detail(), None);
        for detail in [Detail::QueuePairType, Detail::PeerEnded] {
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
        for info in [&b"rkey"[..], b"rkey\x03", b"RKEY\x01", b""] {
            assert_eq!(bare.with_info(info).detail(), None);
        }
    }
}
