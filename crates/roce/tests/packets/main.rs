//! Packets and checksums: against what Linux's Soft-RoCE sent, byte by byte, and against random and hostile bytes.

mod captures;
mod random;
