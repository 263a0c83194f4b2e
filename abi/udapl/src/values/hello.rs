//! The messages that two providers exchange when EPs connect, when a connection ends, and when a datagram EP requests the address of
//! another. The program's private data is at the end of the message.

use rkey_device::DeviceError;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The maximum length of one side's private data. A rejection carries it as text of twice the length.
pub const MAX_PRIVATE_DATA: usize = 256;
const MAGIC: &[u8; 8] = b"rkeyDAT1";
/// The length of everything but the private data.
const LEN: usize = 8 + 4 + 2 + 16 + 16 + 8 + 4 + 4;

/// Why a message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// An EP requests a connection.
    Request = 1,
    /// An EP accepts a connection, or a datagram EP tells its address.
    Answer = 2,
    /// An EP has disconnected.
    Disconnect = 3,
    /// The connection of an EP broke.
    Break = 4,
    /// A datagram EP requests the address of another datagram EP.
    DatagramRequest = 5,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Why the message was sent.
    pub purpose: Purpose,
    /// The listener of the sender's IA, for [`Purpose::Disconnect`] and [`Purpose::Break`].
    pub control: SocketAddr,
    /// The address of the sender's IA.
    pub address: IpAddr,
    /// The connection qualifier that the sender uses.
    pub port: u64,
    /// The queue pair that the message is about: at the receiver if it says that a connection has ended, otherwise at the
    /// sender.
    pub qpn: u32,
    /// The first message number of that queue pair. It distinguishes queue pairs that use the same number one after the other.
    pub msn: u32,
    /// The program's private data.
    pub data: Vec<u8>,
}

impl Hello {
    /// Encodes the message for the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEN + self.data.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[self.purpose as u8, 0, 0, 0]);
        bytes.extend_from_slice(&self.control.port().to_be_bytes());
        bytes.extend_from_slice(&wide(self.control.ip()).octets());
        bytes.extend_from_slice(&wide(self.address).octets());
        bytes.extend_from_slice(&self.port.to_be_bytes());
        bytes.extend_from_slice(&self.qpn.to_be_bytes());
        bytes.extend_from_slice(&self.msn.to_be_bytes());
        bytes.extend_from_slice(&self.data);
        bytes
    }

    /// Decodes a peer's message; `None` if it is not a valid one. Private data beyond the maximum is truncated.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, data) = bytes.strip_prefix(MAGIC)?.split_at_checked(LEN - 8)?;
        let (purpose, rest) = fixed.split_first_chunk::<4>()?;
        let (control_port, rest) = rest.split_first_chunk::<2>()?;
        let (control_ip, rest) = rest.split_first_chunk::<16>()?;
        let (address, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk::<8>()?;
        let (qpn, rest) = rest.split_first_chunk::<4>()?;
        let (msn, _) = rest.split_first_chunk::<4>()?;
        let purpose = match purpose[0] {
            1 => Purpose::Request,
            2 => Purpose::Answer,
            3 => Purpose::Disconnect,
            4 => Purpose::Break,
            5 => Purpose::DatagramRequest,
            _ => return None,
        };
        let control_ip = Ipv6Addr::from(*control_ip).to_canonical();
        Some(Self {
            purpose,
            control: SocketAddr::new(control_ip, u16::from_be_bytes(*control_port)),
            address: Ipv6Addr::from(*address).to_canonical(),
            port: u64::from_be_bytes(*port),
            qpn: u32::from_be_bytes(*qpn),
            msn: u32::from_be_bytes(*msn),
            data: data.iter().copied().take(MAX_PRIVATE_DATA).collect(),
        })
    }
}

fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Encodes private data as the text of a rejection.
#[must_use]
pub fn to_text(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes private data from the text of a rejection; returns none if the text is anything else.
#[must_use]
pub fn from_text(text: &str) -> Vec<u8> {
    decode_text(text).unwrap_or_default()
}

/// Why a connection failed, for the log. The text of a rejection contains private data, which the log must not show.
#[must_use]
pub fn why(error: &DeviceError) -> String {
    let data = match error {
        DeviceError::Refused { reason } => decode_text(reason),
        _ => None,
    };
    match data.map(|data| data.len()) {
        None => error.to_string(),
        Some(0) => "the peer rejected the connection".to_owned(),
        Some(len) => format!("the peer rejected the connection, with {len} B of private data"),
    }
}

fn decode_text(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(purpose: Purpose) -> Hello {
        Hello {
            purpose,
            control: "127.0.0.1:4791".parse().unwrap(),
            address: "::1".parse().unwrap(),
            port: u64::MAX - 5,
            qpn: 0x0012_3456,
            msn: 0x00ab_cdef,
            data: vec![1, 2, 3],
        }
    }

    #[test]
    fn encoded_messages_survive_a_round_trip() {
        for purpose in [
            Purpose::Request,
            Purpose::Answer,
            Purpose::Disconnect,
            Purpose::Break,
            Purpose::DatagramRequest,
        ] {
            let hello = hello(purpose);
            let bytes = hello.encode();
            assert_eq!(bytes.len(), LEN + 3);
            assert_eq!(Hello::decode(&bytes), Some(hello));
        }
    }

    #[test]
    fn malformed_messages_are_not_decoded() {
        let bytes = hello(Purpose::Request).encode();
        for len in 0..LEN {
            assert_eq!(Hello::decode(&bytes[..len]), None);
        }
        let mut bad = bytes;
        bad[8] = 9;
        assert_eq!(Hello::decode(&bad), None);
    }

    #[test]
    fn private_data_survives_a_rejection() {
        let data: Vec<u8> = (0..=255).collect();
        let text = to_text(&data);
        assert_eq!(text.len(), 512);
        assert_eq!(from_text(&text), data);
        for other in ["", "no such service", "0", "+f"] {
            assert_eq!(from_text(other), Vec::<u8>::new(), "{other}");
        }
    }

    #[test]
    fn the_log_does_not_show_private_data() {
        let why = |reason: &str| {
            why(&DeviceError::Refused {
                reason: reason.to_owned(),
            })
        };
        let rejected = "the peer rejected the connection";
        assert_eq!(why(""), rejected);
        assert_eq!(why("00ff"), format!("{rejected}, with 2 B of private data"));
        assert!(why("no such service").ends_with("no such service"));
    }
}
