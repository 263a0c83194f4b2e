//! Packets in a byte stream: each follows its length in two bytes.

use super::packet::PACKET_MAX;

/// The bytes that have arrived and do not form a whole packet yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Frames(Vec<u8>);

/// A length that no packet has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadLength;

impl Frames {
    /// A packet with its length; `None` if it is too long.
    pub(super) fn frame(packet: &[u8]) -> Option<Vec<u8>> {
        let len = u16::try_from(packet.len()).ok()?;
        Some([&len.to_be_bytes(), packet].concat())
    }

    /// Adds bytes that have arrived. Call [`Frames::next`] until it returns `None` before adding more.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole packet, if it has arrived.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, BadLength> {
        let Some((len, rest)) = self.0.split_first_chunk::<2>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes(*len));
        if len == 0 || len > PACKET_MAX {
            return Err(BadLength);
        }
        let Some(packet) = rest.get(..len).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.0.drain(..2 + len);
        Ok(Some(packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_assembled_however_the_stream_is_split() {
        let packets = [vec![1], vec![2; 300], vec![3; PACKET_MAX]];
        let bytes: Vec<u8> = (packets.iter().flat_map(|it| Frames::frame(it).unwrap())).collect();
        for size in [1, 2, 3, 299, 4096] {
            let mut frames = Frames::default();
            let mut arrived = Vec::new();
            for part in bytes.chunks(size) {
                frames.add(part);
                while let Some(packet) = frames.next().unwrap() {
                    arrived.push(packet);
                }
            }
            assert_eq!(arrived, packets);
            assert_eq!(frames, Frames::default());
        }
    }

    #[test]
    fn frames_with_impossible_lengths_are_refused() {
        for bytes in [[0, 0], (PACKET_MAX as u16 + 1).to_be_bytes()] {
            let mut frames = Frames::default();
            frames.add(&bytes);
            assert_eq!(frames.next(), Err(BadLength));
        }
        assert_eq!(Frames::frame(&[0; 1 << 16]), None);
    }
}
