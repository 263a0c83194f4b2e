//! Opcodes: the operation of a packet, in one byte.

use core::fmt;

/// The type of queue pair that a packet is for: bits 7 to 5 of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification. It names the queue pair that should slow down; the queue pair's queues do not see it.
    Cnp,
    /// Extended reliable connection.
    Xrc,
}

/// A packet's position in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Whether the packet starts a message.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the packet ends a message.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The opcode of a packet (IBA volume 1, 9.2, table "OpCode field"). Only opcodes of a [`Class`] exist: those of
/// reliable datagrams do not, nor do the flushes and atomic writes of annex A19.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// The opcode with this byte; `None` if it is unknown.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let code = byte & CODE;
        let exists = match byte >> CLASS {
            RC | XRC => code <= SEND_ONLY_INVALIDATE && code != RESERVED,
            UC => code <= WRITE_ONLY_IMMEDIATE,
            UD => code == SEND_ONLY || code == SEND_ONLY_IMMEDIATE,
            CNP => code == NOTIFICATION,
            _ => false,
        };
        if exists { Some(Self(byte)) } else { None }
    }

    /// The byte.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        self.0
    }

    /// The type of queue pair.
    #[must_use]
    pub const fn class(self) -> Class {
        match self.0 >> CLASS {
            UC => Class::Uc,
            UD => Class::Ud,
            CNP => Class::Cnp,
            XRC => Class::Xrc,
            _ => Class::Rc,
        }
    }

    /// Whether a responder sends packets with this opcode: read responses and acknowledgements.
    #[must_use]
    pub const fn is_response(self) -> bool {
        let code = self.code();
        READ_RESPONSE_FIRST <= code && code <= ATOMIC_ACKNOWLEDGE
    }

    /// Whether this is an acknowledgement without data, which may be a NAK.
    #[must_use]
    pub const fn is_acknowledge(self) -> bool {
        self.code() == ACKNOWLEDGE && !matches!(self.class(), Class::Cnp)
    }

    /// The name in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.class() {
            Class::Cnp => "CNP",
            _ => NAMES[self.code() as usize],
        }
    }

    /// The operation within the class.
    pub(super) const fn code(self) -> u8 {
        self.0 & CODE
    }

    /// The opcode of an operation in a class, if it exists.
    pub(super) const fn of(class: Class, code: u8) -> Option<Self> {
        let class = match class {
            Class::Rc => RC,
            Class::Uc => UC,
            Class::Ud => UD,
            Class::Cnp => CNP,
            Class::Xrc => XRC,
        };
        Self::from_byte(class << CLASS | code)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class() {
            Class::Cnp => f.write_str(self.name()),
            class => write!(f, "{class} {}", self.name()),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x} ({self})", self.0)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
        })
    }
}

/// The bits of the operation code.
const CODE: u8 = 0x1f;
/// The position of the class bits.
const CLASS: u8 = 5;

const RC: u8 = 0;
const UC: u8 = 1;
const UD: u8 = 3;
const CNP: u8 = 4;
const XRC: u8 = 5;

pub(super) const SEND_FIRST: u8 = 0x00;
pub(super) const SEND_MIDDLE: u8 = 0x01;
pub(super) const SEND_LAST: u8 = 0x02;
pub(super) const SEND_LAST_IMMEDIATE: u8 = 0x03;
pub(super) const SEND_ONLY: u8 = 0x04;
pub(super) const SEND_ONLY_IMMEDIATE: u8 = 0x05;
pub(super) const WRITE_FIRST: u8 = 0x06;
pub(super) const WRITE_MIDDLE: u8 = 0x07;
pub(super) const WRITE_LAST: u8 = 0x08;
pub(super) const WRITE_LAST_IMMEDIATE: u8 = 0x09;
pub(super) const WRITE_ONLY: u8 = 0x0a;
pub(super) const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
pub(super) const READ_REQUEST: u8 = 0x0c;
pub(super) const READ_RESPONSE_FIRST: u8 = 0x0d;
pub(super) const READ_RESPONSE_MIDDLE: u8 = 0x0e;
pub(super) const READ_RESPONSE_LAST: u8 = 0x0f;
pub(super) const READ_RESPONSE_ONLY: u8 = 0x10;
pub(super) const ACKNOWLEDGE: u8 = 0x11;
pub(super) const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
pub(super) const COMPARE_SWAP: u8 = 0x13;
pub(super) const FETCH_ADD: u8 = 0x14;
const RESERVED: u8 = 0x15;
pub(super) const SEND_LAST_INVALIDATE: u8 = 0x16;
pub(super) const SEND_ONLY_INVALIDATE: u8 = 0x17;
/// The only operation of class CNP.
pub(super) const NOTIFICATION: u8 = 0x01;

const NAMES: [&str; 24] = [
    "SEND First",
    "SEND Middle",
    "SEND Last",
    "SEND Last with Immediate",
    "SEND Only",
    "SEND Only with Immediate",
    "RDMA WRITE First",
    "RDMA WRITE Middle",
    "RDMA WRITE Last",
    "RDMA WRITE Last with Immediate",
    "RDMA WRITE Only",
    "RDMA WRITE Only with Immediate",
    "RDMA READ Request",
    "RDMA READ response First",
    "RDMA READ response Middle",
    "RDMA READ response Last",
    "RDMA READ response Only",
    "Acknowledge",
    "ATOMIC Acknowledge",
    "CmpSwap",
    "FetchAdd",
    "reserved",
    "SEND Last with Invalidate",
    "SEND Only with Invalidate",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA volume 1, 9.2, table "OpCode field"; annexes A14 (XRC) and A17 (the notification).
    #[test]
    fn exactly_the_specified_opcodes_exist() {
        let reliable = (0x00..=0x14).chain(0x16..=0x17);
        let bytes = reliable
            .clone()
            .chain(0x20..=0x2b)
            .chain(0x64..=0x65)
            .chain([0x81])
            .chain(reliable.map(|code| 0xa0 | code));
        let found = (0..=u8::MAX).filter(|&byte| Opcode::from_byte(byte).is_some());
        assert!(found.eq(bytes));
    }

    #[test]
    fn an_opcode_names_its_class_and_operation() {
        for (byte, class, name) in [
            (0x00, Class::Rc, "RC SEND First"),
            (0x17, Class::Rc, "RC SEND Only with Invalidate"),
            (0x2b, Class::Uc, "UC RDMA WRITE Only with Immediate"),
            (0x65, Class::Ud, "UD SEND Only with Immediate"),
            (0x81, Class::Cnp, "CNP"),
            (0xb4, Class::Xrc, "XRC FetchAdd"),
        ] {
            let opcode = Opcode::from_byte(byte).expect("an opcode");
            assert_eq!((opcode.class(), opcode.to_byte()), (class, byte));
            assert_eq!(opcode.to_string(), name);
            assert_eq!(Opcode::of(class, opcode.code()), Some(opcode));
        }
    }

    #[test]
    fn only_read_responses_and_acknowledgements_are_responses() {
        for byte in (0..=u8::MAX).filter_map(Opcode::from_byte) {
            let wanted = byte.name().contains("response") || byte.name().contains("Acknowledge");
            assert_eq!(byte.is_response(), wanted, "{byte:?}");
        }
    }
}
