//! Entry points for fuzz targets: everything in this crate that parses another process's bytes. Each function returns whether the
//! bytes are valid, and must not panic on any.

/// Parses a packet at a listener, or the answer to one.
#[must_use]
pub fn connect(bytes: &[u8]) -> bool {
    crate::connect::decodes(bytes)
}

/// Parses a packet between the connection managers of two processes.
#[must_use]
pub fn cm_packet(bytes: &[u8]) -> bool {
    let packet = crate::cm::packet::CmPacket::decode(bytes);
    if let Some(packet) = &packet {
        assert_eq!(
            crate::cm::packet::CmPacket::decode(&packet.encode()).as_ref(),
            Some(packet)
        );
    }
    packet.is_some()
}

/// Parses the inspection of another device, or of another connection manager.
#[must_use]
pub fn inspection(bytes: &[u8]) -> bool {
    crate::inspect::decode(bytes).is_some() || crate::cm::inspect::decode(bytes).is_some()
}

/// Parses a message about leases from the device at the other end of a link.
#[must_use]
pub fn lease(bytes: &[u8]) -> bool {
    crate::reclaim::lease_messages::decodes(bytes)
}

/// Parses a datagram from another host, both as it is and with a corrected checksum, without which nearly all inputs would be
/// dropped at once. Also parses a message from another process that forwards datagrams.
#[must_use]
pub fn datagram(bytes: &[u8]) -> bool {
    crate::wire::would_accept(bytes)
}
