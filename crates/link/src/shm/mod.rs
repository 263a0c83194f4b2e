//! Shared memory between two processes on one host.
//!
//! # Protocol, version 4
//!
//! **Connecting.** A device listens on an abstract Unix address ([`Listener`]), to which others connect ([`Connector`]). The
//! socket is of type `SOCK_SEQPACKET`, and no call blocks on it. Both sides check the other's credentials (`SO_PEERCRED`) before
//! they send anything.
//!
//! **Handshake.** Packets start with `"rkey"`, the version (u16) and a kind (u16), little-endian; bodies are postcard.
//!
//! | kind | from | body | descriptors |
//! | --- | --- | --- | --- |
//! | 1 hello | requester | node, sizes, membarrier?, probe, purpose | its segment; its permit, if its memory may be accessed |
//! | 2 welcome | responder | node, sizes, membarrier?, probe, remote iovecs?, minimum size for them | its segment |
//! | 3 refusal | responder | text | |
//! | 4 other | either, as the first packet or instead of a link | the devices' | the devices' |
//! | 5 control | either, later | the devices' | the devices', at most 4 |
//!
//! A packet of one byte at any time after the handshake is the doorbell. The link ends when the connection or the
//! process ends.
//!
//! **Probe.** A probe is the address of 16 random bytes and their value. The other side tries to read them with
//! `process_vm_readv`; if they match, the kernel permits the access, and the process is the right one. The responder's result is
//! in the welcome and determines whether remote iovecs can be used.
//!
//! **Segments.** Each side creates one memfd, maps it, and seals it so that nothing can resize it and no further
//! mapping can write to it, not even one of its own; the other side maps it read-only. So a peer can change only its
//! own segment, and never what we have written.
//!
//! | offset | what | written |
//! | --- | --- | --- |
//! | 0 | identity: `"rkeyhalf"`; version (u32), slots (u32); payload ring bytes (u32), maximum bytes of a fragment (u32) | once |
//! | 256 | ack word: fragments consumed (u32, low), responses sent by then (u32, high) | occasionally |
//! | 384 | sleep word: epoch (u64), odd while the owner sleeps | around each sleep |
//! | 512 | revoked word (requester): 1 once the peer may not access its memory | once |
//! | 640 | busy word; responder: 1 while it copies from or to the requester's memory; requester: the number of a warrant while it copies with it | around each pull, push; around each write under a warrant |
//! | 768 | warrants (responder): bit n modulo 64 is set while warrant n is valid | issue, revoke |
//! | 2048 | 256 lease generation words (u64): 0 or the generation of a valid lease | grant, revoke |
//! | 4096 | 256 lease in-use words (u64), 64 bytes apart: 0, or 1 + the number of the 256 KiB in which a copy begins | around each copy |
//! | 20480 | slots of 256 bytes | each fragment |
//! | after them | payload ring | fragments of more than 208 bytes |
//!
//! **Slots.** The n-th fragment (from 0) goes to slot n modulo the number of slots; its first word is stored last and
//! begins with n + 1 (u32), which tells the reader that the slot is new. Fields: see `ring/slot.rs`. At most half of
//! the slots are unacknowledged at a time. Payload of more than 208 bytes is contiguous in the payload ring, aligned to
//! 64 bytes; if it does not fit before the end of the ring, the rest of the ring is skipped. The acknowledgement of its
//! slot frees it.
//!
//! **Acknowledgements.** The ack word is written when 16 fragments or more than a quarter of the payload ring are
//! unreported, after 24 polls without success, when a fragment requests it (`ACK_NOW`), and before sleeping. A
//! requester uses the count only after it has taken all the responses that the same word announces.
//!
//! **Sleeping.** The sleeper makes its epoch odd, issues `membarrier(GLOBAL_EXPEDITED)`, checks everything once more,
//! and waits on its sockets. A sender, after storing its slots or its ack word, loads the epoch, and rings the doorbell
//! if the epoch is odd and the doorbell has not been rung for it yet. If one of the two processes cannot take part in
//! membarrier, the sender issues a full fence before it loads.
//!
//! **Remote iovecs.** The responder sets its busy word, issues a full fence, checks the requester's revoked word, and only then
//! pulls or pushes; afterwards it clears its word. A requester that wants its memory back sets revoked, issues a full fence, and
//! waits until busy is clear.
//!
//! The system call reads the list of the requester's addresses from the requester's *permit*: a
//! memfd of one page, which both map, sealed against growing. The responder writes each list there;
//! the requester, which never reads it, truncates it to zero together with setting revoked. So a responder that was
//! stopped between its check and its call fails when it continues, and the requester need not wait for it: if busy is
//! set and all threads of the responder are stopped, none is in a call.
//!
//! Between two users remote iovecs are never used, even if the kernel permits them: a privileged responder would write to
//! addresses that a less privileged process chose, and by then that process may be running another program.
//!
//! **Warrants.** In the other direction, the requester copies its writes into the responder's memory, if the responder's device
//! has issued a *warrant*: a number, and a permit of its own. The requester sets its busy word to the number, issues a full
//! fence, checks the warrant's bit, and copies; afterwards it clears its word. A responder that wants its memory back clears the
//! bit, truncates the permit, issues a full fence, and waits until the busy word is not the number. Without the bit, each
//! revocation would cost the requester a fault. The devices' control messages carry warrants.
//!
//! **Untrusted input.** Every word of the peer's segment is copied out once, then checked. An invalid value (unknown operation,
//! inconsistent lengths, offsets out of range, acknowledgements of fragments that were never sent) is a
//! [`Malformed`](crate::Malformed) error, and the link is down. A wrong epoch only causes useless doorbells. Payload may change
//! while it is copied because it is the peer's own data.

mod accept;
mod cma;
mod connect;
mod hello;
mod line;
mod link;
mod local;
mod peer_access;
mod socket;
mod warrant;

pub use crate::ring::PollView;
pub use cma::PeerProcess;
pub(crate) use hello::accepts;

pub use accept::{Acceptor, Greeting, LinkRequest, Listener, OtherConnection};
pub use connect::{Connector, HandshakeError, Step};
pub use hello::{CONTROL_MAX, PROTOCOL_VERSION, PURPOSE_MAX};
pub use line::{Control, ControlLine, Event};
pub use link::ShmLink;
pub use local::{LinkConfig, LocalNode};
pub use peer_access::PeerAccess;
pub use socket::{Credentials, FDS_MAX, PACKET_MAX, Policy, peer_credentials, receive_before_end};
pub use warrant::{OwnWarrant, PeerWarrant, Stall, WARRANT_WRITE_MAX, WarrantIssuer, WarrantTaker};
