//! The header that endpoints put before every message: 32 bytes, and up to 40 more for some kinds. Headers of peers are
//! parsed here and nowhere else; invalid ones are rejected.

/// The length of a header, in bytes.
pub const LEN: usize = 32;
/// The maximum length of a header with the fields of its kind, in bytes.
pub const MAX_LEN: usize = LEN + ATOMIC_LEN;
/// How many bytes follow the header of an RTS: the key under which the payload can be read.
const RTS_LEN: usize = 8;
/// How many bytes follow the header of a chunk of a collective operation: its signature, and the key of a
/// [`Kind::ChunkRts`].
const CHUNK_LEN: usize = 8;
/// How many bytes follow the header of an atomic operation.
const ATOMIC_LEN: usize = 40;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message with its payload.
    Message,
    /// Ready to send: a message whose payload the receiver reads from the sender's memory (rendezvous).
    Rts {
        /// The key of the sender's region.
        key: u32,
    },
    /// The receiver's operation `id` is finished: its message was delivered, or its write is durable. `data` is 0 or an
    /// error number.
    Fin,
    /// Remote completion data of an earlier RMA write on the same connection.
    WriteData,
    /// An atomic operation on the receiver's memory; operands follow.
    Atomic(Atomic),
    /// The result of atomic operation `id`; `data` is 0 or an error number, old values follow.
    AtomicResult,
    /// The peer's endpoint is closing.
    Bye,
    /// Credit: the receiver may send `data` more messages and `len` more bytes.
    Credit,
    /// Requests that the writes of operation `id` be made durable; the ranges follow. The answer is `Fin`.
    Commit,
    /// A chunk of a collective operation with its payload. `tag` and the upper half of `data` identify the group; the
    /// lower half is the operation's number in it.
    Chunk {
        /// A hash of the operation's parameters, which must be the same at all members.
        signature: u32,
    },
    /// A chunk whose payload the receiver reads from the sender's memory.
    ChunkRts {
        /// A hash of the operation's parameters, which must be the same at all members.
        signature: u32,
        /// The key of the sender's region.
        key: u32,
    },
    /// The sender has left a group, or has failed in it: the lower half of `data` is 0 or an error number.
    Leave,
}

impl Kind {
    /// The same kind of message without its payload, which the peer reads under this key.
    #[must_use]
    pub fn rendezvous(self, key: u32) -> Self {
        match self {
            Self::Chunk { signature } => Self::ChunkRts { signature, key },
            _ => Self::Rts { key },
        }
    }
}

/// The operation and the target of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The target address, in the addressing of the key's region or window.
    pub addr: u64,
    /// The key of the memory.
    pub key: u64,
    /// Whether the receiver's device chose the key.
    pub device_key: bool,
    /// The data type.
    pub datatype: u8,
    /// The operation.
    pub op: u8,
    /// 0: no result, 1: old values, 2: old values of a comparison.
    pub form: u8,
    /// The number of elements.
    pub count: u32,
}

/// The fields of all kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the message.
    pub kind: Kind,
    /// Whether the message matches tagged receives.
    pub tagged: bool,
    /// Whether `data` is remote completion data.
    pub has_data: bool,
    /// Whether the sender wants a FIN when the message is delivered.
    pub confirm: bool,
    /// The sender's operation, or the receiver's operation that this answers.
    pub id: u64,
    /// The tag for matching receives.
    pub tag: u64,
    /// Remote completion data, an error number, or another value as the kind requires.
    pub data: u64,
    /// The length of the message in bytes (even if the payload is not included).
    pub len: u32,
}

const TAGGED: u8 = 1;
const HAS_DATA: u8 = 2;
const CONFIRM: u8 = 4;

/// The number of [`Kind::Bye`].
const BYE: u8 = 7;

/// Whether a message is the last from its sender.
#[must_use]
pub fn is_last(message: &[u8]) -> bool {
    message.first() == Some(&BYE)
}

/// The little-endian words of a header.
#[inline]
fn words_of(header_bytes: &[u8; LEN]) -> [u64; LEN / 8] {
    let mut words = [0; LEN / 8];
    for (word, bytes) in words.iter_mut().zip(header_bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Writes the bytes after the header of a chunk.
fn chunk(into: &mut [u8; MAX_LEN], signature: u32, key: u32) -> usize {
    into[LEN..LEN + 4].copy_from_slice(&signature.to_le_bytes());
    into[LEN + 4..LEN + 8].copy_from_slice(&key.to_le_bytes());
    CHUNK_LEN
}

impl Header {
    /// A header of this kind with all other fields zero.
    #[inline]
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            tagged: false,
            has_data: false,
            confirm: false,
            id: 0,
            tag: 0,
            data: 0,
            len: 0,
        }
    }

    /// Encodes the header; returns its length.
    #[inline]
    pub fn encode(&self, into: &mut [u8; MAX_LEN]) -> usize {
        let (number, more) = match self.kind {
            Kind::Message => (1, 0),
            Kind::Rts { key } => {
                into[LEN..LEN + 4].copy_from_slice(&key.to_le_bytes());
                into[LEN + 4..LEN + 8].fill(0);
                (2, RTS_LEN)
            }
            Kind::Fin => (3, 0),
            Kind::WriteData => (4, 0),
            Kind::Atomic(atomic) => {
                into[LEN..LEN + 8].copy_from_slice(&atomic.addr.to_le_bytes());
                into[LEN + 8..LEN + 16].copy_from_slice(&atomic.key.to_le_bytes());
                into[LEN + 16..LEN + 20].copy_from_slice(&atomic.count.to_le_bytes());
                into[LEN + 20] = atomic.datatype;
                into[LEN + 21] = atomic.op;
                into[LEN + 22] = atomic.form;
                into[LEN + 23] = u8::from(atomic.device_key);
                into[LEN + 24..LEN + ATOMIC_LEN].fill(0);
                (5, ATOMIC_LEN)
            }
            Kind::AtomicResult => (6, 0),
            Kind::Bye => (BYE, 0),
            Kind::Credit => (9, 0),
            Kind::Commit => (8, 0),
            Kind::Chunk { signature } => (10, chunk(into, signature, 0)),
            Kind::ChunkRts { signature, key } => (11, chunk(into, signature, key)),
            Kind::Leave => (12, 0),
        };
        into[..LEN].copy_from_slice(&self.encode_fields(number));
        LEN + more
    }

    /// Encodes the header if it is that of an eager message.
    #[inline]
    #[must_use]
    pub fn encode_message(&self) -> Option<[u8; LEN]> {
        matches!(self.kind, Kind::Message).then(|| self.encode_fields(1))
    }

    /// Encodes the number of the kind, and the fields that all kinds have.
    #[inline]
    fn encode_fields(&self, number: u8) -> [u8; LEN] {
        let mut flags = 0;
        for (set, flag) in [
            (self.tagged, TAGGED),
            (self.has_data, HAS_DATA),
            (self.confirm, CONFIRM),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let mut into = [0; LEN];
        into[..4].copy_from_slice(&[number, flags, 0, 0]);
        into[4..8].copy_from_slice(&self.len.to_le_bytes());
        into[8..16].copy_from_slice(&self.id.to_le_bytes());
        into[16..24].copy_from_slice(&self.tag.to_le_bytes());
        into[24..].copy_from_slice(&self.data.to_le_bytes());
        into
    }

    /// Parses the header of an eager message with a payload of this length, from its little-endian words; `None` for
    /// anything else.
    #[inline]
    pub fn of_message(words: [u64; LEN / 8], payload: usize) -> Option<Self> {
        let header = Self::fields(words, Kind::Message);
        (words[0] as u8 == 1 && header.len as usize == payload).then_some(header)
    }

    /// Parses the fields of all kinds.
    #[inline]
    fn fields([first, id, tag, data]: [u64; LEN / 8], kind: Kind) -> Self {
        let flags = (first >> 8) as u8;
        Self {
            kind,
            tagged: flags & TAGGED != 0,
            has_data: flags & HAS_DATA != 0,
            confirm: flags & CONFIRM != 0,
            id,
            tag,
            data,
            len: (first >> 32) as u32,
        }
    }

    /// Parses a peer's message: the header, and the payload after it.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header_bytes, rest) = bytes.split_first_chunk::<LEN>()?;
        let (kind, payload) = match header_bytes[0] {
            1 => (Kind::Message, rest),
            2 => {
                let (more, rest) = rest.split_first_chunk::<RTS_LEN>()?;
                let key = u32::from_le_bytes([more[0], more[1], more[2], more[3]]);
                (Kind::Rts { key }, rest)
            }
            3 => (Kind::Fin, rest),
            4 => (Kind::WriteData, rest),
            5 => {
                let (more, rest) = rest.split_first_chunk::<ATOMIC_LEN>()?;
                let word = |at: usize| {
                    let mut word = [0; 8];
                    word.copy_from_slice(&more[at..at + 8]);
                    u64::from_le_bytes(word)
                };
                let atomic = Atomic {
                    addr: word(0),
                    key: word(8),
                    count: word(16) as u32,
                    datatype: more[20],
                    op: more[21],
                    form: more[22],
                    device_key: more[23] != 0,
                };
                (Kind::Atomic(atomic), rest)
            }
            6 => (Kind::AtomicResult, rest),
            BYE => (Kind::Bye, rest),
            8 => (Kind::Commit, rest),
            9 => (Kind::Credit, rest),
            10 | 11 => {
                let (more, rest) = rest.split_first_chunk::<CHUNK_LEN>()?;
                let signature = u32::from_le_bytes([more[0], more[1], more[2], more[3]]);
                let key = u32::from_le_bytes([more[4], more[5], more[6], more[7]]);
                let kind = match header_bytes[0] {
                    10 => Kind::Chunk { signature },
                    _ => Kind::ChunkRts { signature, key },
                };
                (kind, rest)
            }
            12 => (Kind::Leave, rest),
            _ => return None,
        };
        let header = Self::fields(words_of(header_bytes), kind);
        let has_payload = matches!(kind, Kind::Message | Kind::Chunk { .. });
        let whole = !has_payload || payload.len() == header.len as usize;
        whole.then_some((header, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> [Kind; 12] {
        let atomic = Atomic {
            addr: 7,
            key: u64::MAX - 1,
            device_key: true,
            datatype: 3,
            op: 18,
            form: 2,
            count: 99,
        };
        [
            Kind::Message,
            Kind::Rts { key: 0xdead_beef },
            Kind::Fin,
            Kind::WriteData,
            Kind::Atomic(atomic),
            Kind::AtomicResult,
            Kind::Bye,
            Kind::Commit,
            Kind::Credit,
            Kind::Chunk {
                signature: 0x1234_5678,
            },
            Kind::ChunkRts {
                signature: u32::MAX,
                key: 7,
            },
            Kind::Leave,
        ]
    }

    #[test]
    fn headers_round_trip() {
        for kind in kinds() {
            let header = Header {
                tagged: true,
                confirm: true,
                id: 1 << 40,
                tag: u64::MAX,
                data: 5,
                len: 3,
                ..Header::new(kind)
            };
            let mut bytes = [0xff; MAX_LEN];
            let len = header.encode(&mut bytes);
            let mut message = bytes[..len].to_vec();
            assert_eq!(is_last(&message), kind == Kind::Bye);
            let short = header.encode_message();
            assert_eq!(short.is_some(), kind == Kind::Message);
            assert!(short.is_none_or(|short| message == short));
            message.extend([1, 2, 3]);
            assert_eq!(Header::decode(&message), Some((header, &[1u8, 2, 3][..])));
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        for kind in kinds() {
            let mut bytes = [0; MAX_LEN];
            let len = Header {
                len: 9,
                ..Header::new(kind)
            }
            .encode(&mut bytes);
            for cut in 0..len {
                assert_eq!(Header::decode(&bytes[..cut]), None);
            }
        }
        assert_eq!(Header::decode(&[0; MAX_LEN]), None);
        let mut bytes = [0; MAX_LEN];
        for kind in [Kind::Message, Kind::Chunk { signature: 1 }] {
            Header {
                len: 9,
                ..Header::new(kind)
            }
            .encode(&mut bytes);
            assert_eq!(
                Header::decode(&bytes),
                None,
                "a payload of another length was accepted"
            );
        }
    }
}
