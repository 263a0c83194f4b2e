//! Flips a bit of an IP packet.

/// The protocol numbers of IP.
const UDP: u8 = 17;
const TCP: u8 = 6;
const UDP_HEADER: usize = 8;

/// The protocol of an IP packet without extension headers, where its addresses and its transport header begin, and that header with
/// what follows. `None` for fragments and for what is no IP packet.
fn transport(packet: &[u8]) -> Option<(u8, &[u8], usize)> {
    let first = *packet.first()?;
    let (protocol, addresses, start) = match first >> 4 {
        4 => {
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]);
            if fragment & 0x3fff != 0 {
                return None;
            }
            (*packet.get(9)?, 12..20, usize::from(first & 15) * 4)
        }
        6 => (*packet.get(6)?, 8..40, 40),
        _ => return None,
    };
    packet.get(start..)?;
    Some((protocol, packet.get(addresses)?, start))
}

/// The TCP ports of an IP packet.
pub(super) fn tcp_ports(packet: &[u8]) -> Option<[u16; 2]> {
    let (protocol, _, start) = transport(packet)?;
    let ports = packet.get(start..start + 4).filter(|_| protocol == TCP)?;
    Some([[ports[0], ports[1]], [ports[2], ports[3]]].map(u16::from_be_bytes))
}

/// Flips one bit, which `number` selects.
pub(super) fn flip_any(packet: &mut [u8], number: u64) {
    if let Some(bits) = std::num::NonZeroU64::new(packet.len() as u64 * 8) {
        let bit = number % bits;
        packet[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// Flips one bit of the data of a UDP datagram, which `number` selects, and corrects the checksum. Returns false, and changes nothing, if
/// the packet is no datagram with data.
pub(super) fn flip_data(packet: &mut [u8], number: u64) -> bool {
    let Some((UDP, _, start)) = transport(packet) else {
        return false;
    };
    let Some(data) = packet
        .get_mut(start + UDP_HEADER..)
        .filter(|it| !it.is_empty())
    else {
        return false;
    };
    flip_any(data, number);
    let sum = packet
        .get(start + 6..start + UDP_HEADER)
        .map(<[u8]>::to_vec);
    // A datagram without a checksum stays so.
    if sum.is_some_and(|sum| sum != [0, 0]) {
        packet[start + 6..start + UDP_HEADER].fill(0);
        let sum = checksum(packet).unwrap_or_default();
        packet[start + 6..start + UDP_HEADER].copy_from_slice(&sum.to_be_bytes());
    }
    true
}

/// The UDP checksum of an IP packet whose checksum field is 0 (RFC 768).
fn checksum(packet: &[u8]) -> Option<u16> {
    let (protocol, addresses, start) = transport(packet)?;
    let datagram = &packet[start..];
    let words = |bytes: &[u8]| -> u64 {
        let words = bytes
            .chunks(2)
            .map(|it| u16::from_be_bytes([it[0], it.get(1).copied().unwrap_or(0)]));
        words.map(u64::from).sum()
    };
    let mut sum = words(addresses) + words(datagram) + u64::from(protocol) + datagram.len() as u64;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // 0 would mean that there is no checksum.
    Some(match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet with a UDP datagram; its IP checksum is not filled in.
    fn v4(data: &[u8]) -> Vec<u8> {
        let length = (28 + data.len()) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0x12, 0xb7, 0x12, 0xb7]);
        packet.extend((length - 20).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(data);
        let sum = checksum(&packet).unwrap();
        packet[26..28].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    fn v6(data: &[u8]) -> Vec<u8> {
        let length = (8 + data.len()) as u16;
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(length.to_be_bytes());
        packet.extend([UDP, 64]);
        packet.extend([7; 32]);
        packet.extend([0x12, 0xb7, 0x12, 0xb7]);
        packet.extend(length.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(data);
        let sum = checksum(&packet).unwrap();
        packet[46..48].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// Whether the receiver of a datagram accepts its checksum.
    fn is_right(packet: &[u8]) -> bool {
        let mut without = packet.to_vec();
        let (_, _, start) = transport(packet).unwrap();
        without[start + 6..start + 8].fill(0);
        checksum(&without).unwrap().to_be_bytes() == packet[start + 6..start + 8]
    }

    /// RFC 1071's rules, with an example computed by hand: the ones' complement sum of all words with the pseudo header is ffff.
    #[test]
    fn the_checksum_complements_the_sum() {
        let packet = v4(&[1, 2, 3]);
        // 0a00 0001 0a00 0002, 0011 000b, 12b7 12b7 000b, 0102 0300: the sum is 3d9a.
        assert_eq!(packet[26..28], (!0x3d9a_u16).to_be_bytes());
    }

    #[test]
    fn damage_behind_a_mended_checksum_changes_one_bit_of_the_data() {
        for packet in [v4(&[5; 99]), v6(&[5; 100])] {
            let data = transport(&packet).unwrap().2 + UDP_HEADER;
            for number in 0..5000 {
                let mut damaged = packet.clone();
                assert!(flip_data(&mut damaged, number));
                let changed = damaged.iter().zip(&packet).skip(data);
                let bits: u32 = changed.map(|(a, b)| (a ^ b).count_ones()).sum();
                assert!(
                    bits == 1 && is_right(&damaged) && damaged[..data - 2] == packet[..data - 2]
                );
                let mut damaged = packet.clone();
                flip_any(&mut damaged, number);
                let bits: u32 = damaged
                    .iter()
                    .zip(&packet)
                    .map(|(a, b)| (a ^ b).count_ones())
                    .sum();
                assert_eq!(bits, 1);
            }
        }
    }

    #[test]
    fn only_datagrams_with_data_are_damaged_behind_a_checksum() {
        let mut tcp = v4(&[1; 20]);
        tcp[9] = TCP;
        let mut fragment = v4(&[1; 20]);
        fragment[7] = 1;
        for mut packet in [
            tcp,
            fragment,
            v4(&[]),
            Vec::new(),
            vec![0x45],
            vec![0x65; 30],
        ] {
            let before = packet.clone();
            assert!(!flip_data(&mut packet, 3) && packet == before);
        }
        let mut unchecked = v4(&[1; 20]);
        unchecked[26..28].fill(0);
        assert!(flip_data(&mut unchecked, 3) && unchecked[26..28] == [0, 0]);
        flip_any(&mut [], 3);
    }

    #[test]
    fn tcp_packets_are_told_by_their_ports() {
        let mut packet = v6(&[0; 20]);
        assert_eq!(tcp_ports(&packet), None);
        packet[6] = TCP;
        assert_eq!(tcp_ports(&packet), Some([4791, 4791]));
        assert_eq!(tcp_ports(&packet[..42]), None);
    }
}
