//! Shared memory between two processes of one host.
//!
//! # Protocol, version 2
//!
//! **Finding each other.** A device listens on an abstract Unix address ([`Listener`]); who wants
//! something from it connects to that ([`Connector`]). The socket is of type `SOCK_SEQPACKET`, and
//! nobody ever blocks on it. Both sides look at the other's credentials (`SO_PEERCRED`) before
//! they say anything.
//!
//! **Handshake.** Packets begin with `"rkey"`, the version (u16) and a kind (u16), little-endian;
//! bodies are postcard.
//!
//! | kind | from | body | descriptors |
//! | --- | --- | --- | --- |
//! | 1 hello | requester | node, sizes, membarrier?, probe, purpose | its segment; its permit, if its memory may be reached |
//! | 2 welcome | responder | node, sizes, membarrier?, probe, by reference?, least size for it | its segment |
//! | 3 refusal | responder | text | |
//! | 4 other | either, first or instead of a link | the devices' | the devices' |
//! | 5 control | either, later | the devices' | the devices', at most 4 |
//!
//! A packet of one byte, any time after the handshake, is the doorbell. The end of the connection
//! is the end of the link; a process that dies ends it without doing anything.
//!
//! **Probe.** A probe is the address of 16 random bytes and what they are. The other side tries to
//! read them with `process_vm_readv`; if it finds them, the kernel permits it, and it has the
//! right process. The responder's result is in the welcome: it decides whether payload can go by
//! reference.
//!
//! **Segments.** Each side makes one memfd, maps it, and seals it so that nobody, not even itself
//! by another mapping, can write or resize it; the other side maps it for reading. So everything
//! that a peer can change is in one place, and nobody can change what we have written.
//!
//! | offset | what | written |
//! | --- | --- | --- |
//! | 0 | identity: `"rkeyhalf"`; version (u32), slots (u32); payload ring bytes (u32), most bytes of a piece (u32) | once |
//! | 256 | ack word: pieces consumed (u32, low), responses sent by then (u32, high) | now and then |
//! | 384 | sleep word: epoch (u64), odd while the owner sleeps | around each sleep |
//! | 512 | no-more word (requester): 1 once nobody may reach into its memory | once |
//! | 640 | at-it word (responder): 1 while it reaches into the requester's memory | around each pull, push |
//! | 2048 | 256 lease generation words (u64): 0 or the generation of a valid lease | grant, revoke |
//! | 4096 | 256 lease in-use words (u64), 64 bytes apart: 0, or 1 + the number of the 256 KiB in which a copy begins | around each copy |
//! | 20480 | slots of 256 bytes | each piece |
//! | after them | payload ring | pieces of more than 208 bytes |
//!
//! **Slots.** The n-th piece (from 0) goes to slot n modulo the number of slots; its first word is
//! stored last and begins with n + 1 (u32), by which the reader knows it. Fields: see
//! `ring/slot.rs`. At most half of the slots are unacknowledged at a time. Payload of more than
//! 208 bytes lies in the payload ring in one stretch, aligned to 64 bytes; what is left at the end
//! of the ring is skipped. It is freed by the acknowledgement of its slot.
//!
//! **Acknowledgements.** The ack word is written when 16 pieces or a quarter of the payload ring
//! are unreported, when the reader has looked in vain 24 times, when a piece asks for it
//! (`ACK_NOW`), and before sleeping. A requester uses the count only after it has taken all the
//! responses that the same word announces.
//!
//! **Sleeping.** The sleeper makes its epoch odd, issues `membarrier(GLOBAL_EXPEDITED)`, looks at
//! everything once more, and waits for its sockets. A sender, after storing its slots or its ack
//! word, loads the epoch, and rings if it is odd and has not been rung yet. If one of the two
//! processes cannot take part in membarrier, the sender issues a full fence before it loads.
//!
//! **By reference.** The responder sets its at-it word, issues a full fence, looks at the
//! requester's no-more word, and only then pulls or pushes; then it clears its word. The requester
//! that wants its memory for itself again sets no-more, issues a full fence, and waits until at-it
//! is clear.
//!
//! The system call takes the list of the requester's addresses out of the requester's *permit*: a
//! memfd of one page, which both map, sealed against growing. The responder puts each list there;
//! the requester, which never looks at it, cuts it to nothing together with no-more. So a responder
//! that was stopped between its look and its call fails when it goes on, and the requester need not
//! wait for it: when at-it is set and all threads of the responder are stopped, nobody is in a call.
//!
//! Between two users nothing goes by reference, whatever the kernel permits: a privileged
//! responder would write where a process of less privilege tells it to, which may run another
//! program by then.
//!
//! **Strangers.** Every word of the peer's segment is copied out once, then checked. What makes no
//! sense (unknown operation, lengths that do not agree, offsets outside, acknowledgements of what
//! was never sent) is a [`Malformed`](crate::Malformed), and the link is dead. A wrong epoch can
//! only ring bells in vain. Payload may change while it is copied: it is the peer's own data.

mod accept;
mod cma;
mod connect;
mod hello;
mod line;
mod link;
mod local;
mod reach;
mod socket;

pub use crate::ring::Peek;
pub use cma::PeerProcess;
pub(crate) use hello::accepts;

pub use accept::{Acceptor, Greeting, LinkRequest, Listener, Stranger};
pub use connect::{Connector, HandshakeError, Step};
pub use hello::{CONTROL_MAX, PROTOCOL_VERSION, PURPOSE_MAX};
pub use line::{Control, Event, Line};
pub use link::ShmLink;
pub use local::{LinkConfig, LocalNode};
pub use reach::Reach;
pub use socket::{Credentials, FDS_MAX, PACKET_MAX, Policy, peer_credentials};
