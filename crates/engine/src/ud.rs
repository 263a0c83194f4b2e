//! The global route header of datagrams (IBA 8.3).

use crate::Route;

/// The length of the global route header before a datagram, in bytes.
pub const GRH_LEN: u32 = 40;
/// The value of a GRH's next-header field if a base transport header follows (IBA 8.3.3).
const NEXT_IS_BTH: u8 = 0x1b;

impl Route {
    /// The global route header (IBA 8.3) of a datagram with `len` bytes of payload.
    #[must_use]
    pub fn grh(&self, len: u32) -> [u8; GRH_LEN as usize] {
        let mut grh = [0; GRH_LEN as usize];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        grh[..4].copy_from_slice(&first.to_be_bytes());
        grh[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        (grh[6], grh[7]) = (NEXT_IS_BTH, self.hop_limit);
        grh[8..24].copy_from_slice(&self.source);
        grh[24..].copy_from_slice(&self.target);
        grh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_header_matches_the_specification() {
        let route = Route {
            source: [1; 16],
            target: [2; 16],
            traffic_class: 0xab,
            flow_label: 0x12345,
            hop_limit: 64,
        };
        let grh = route.grh(300);
        assert_eq!(grh[..8], [0x6a, 0xb1, 0x23, 0x45, 1, 44, 0x1b, 64]);
        assert!(grh[8..24] == [1; 16] && grh[24..] == [2; 16]);
    }
}
