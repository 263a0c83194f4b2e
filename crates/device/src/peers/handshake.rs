//! The link handshake: the only file in this crate that names the kind of link. The device's hello, its listening and
//! connecting sockets, and the steps of the handshake are those of the shared-memory link; once established, every link
//! is an [`AnyLink`](rkey_link::AnyLink).

pub(crate) use rkey_link::shm::{
    Acceptor, Connector, Greeting, HandshakeError, LinkConfig, LinkRequest, Listener, LocalNode,
    OtherConnection, PROTOCOL_VERSION, Policy, Step,
};
