//! Path MTUs: how much of a message a packet carries.

/// The path MTU: the payload of every packet of a message but the last, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256,
    /// 512 bytes.
    Bytes512,
    /// 1024 bytes.
    Bytes1024,
    /// 2048 bytes.
    Bytes2048,
    /// 4096 bytes.
    Bytes4096,
}

impl Mtu {
    /// All path MTUs, in ascending order.
    pub const ALL: [Self; 5] = [
        Self::Bytes256,
        Self::Bytes512,
        Self::Bytes1024,
        Self::Bytes2048,
        Self::Bytes4096,
    ];

    /// The path MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self.code()
    }

    /// The code in verbs (`enum ibv_mtu`) and in messages of the connection manager: 1 to 5.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Bytes256 => 1,
            Self::Bytes512 => 2,
            Self::Bytes1024 => 3,
            Self::Bytes2048 => 4,
            Self::Bytes4096 => 5,
        }
    }

    /// The path MTU with this code; `None` if the code is invalid.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return None,
        })
    }

    /// How many packets a message of this many bytes takes. An empty message takes one.
    ///
    /// ```
    /// use rkey_roce::packet::Mtu;
    ///
    /// assert_eq!(Mtu::Bytes1024.packets(0), 1);
    /// assert_eq!(Mtu::Bytes1024.packets(1024), 1);
    /// assert_eq!(Mtu::Bytes1024.packets(1025), 2);
    /// ```
    #[must_use]
    pub const fn packets(self, length: u32) -> u32 {
        if length == 0 {
            1
        } else {
            length.div_ceil(self.bytes() as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_and_sizes_match_verbs() {
        let bytes = Mtu::ALL.map(Mtu::bytes);
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
        let found = (0..=u8::MAX).filter_map(Mtu::from_code);
        assert!(found.eq(Mtu::ALL));
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu.code()), Some(mtu));
        }
    }

    #[test]
    fn long_messages_are_split_into_packets_of_the_mtu() {
        assert_eq!(Mtu::Bytes256.packets(u32::MAX), 1 << 24);
        assert_eq!(Mtu::Bytes4096.packets(1 << 31), 1 << 19);
    }
}
