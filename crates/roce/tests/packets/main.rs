//! Packets and checksums, compared with Linux's Soft-RoCE byte by byte, and random and hostile bytes.

mod captures;
mod random;
