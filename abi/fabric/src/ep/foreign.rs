//! What endpoints of other processes send, for fuzz targets and for tests with hostile peers.

use super::connection::Hello;
use super::header::{Atomic, Header, Kind, MAX_LEN};
use super::{atomic, commit};
use crate::sys::FI_EP_RDM;

/// What a peer says when it connects: whether it makes sense. What does is the same when it is written again.
pub(crate) fn hello(bytes: &[u8]) -> bool {
    let Some(hello) = Hello::decode(bytes) else {
        return false;
    };
    let again = Hello::decode(&hello.encode());
    again.is_some_and(|again| again.name == hello.name && again.data == hello.data)
}

/// A hello like another, from an endpoint with another name.
pub(crate) fn hello_from(name: std::net::SocketAddr, like: &[u8]) -> Option<Vec<u8>> {
    let hello = Hello::decode(like)?;
    Some(Hello { name, ..hello }.encode())
}

/// A message of a peer: whether it makes sense.
pub(crate) fn message(bytes: &[u8]) -> bool {
    match Header::decode(bytes) {
        None => false,
        Some((header, payload)) => match header.kind {
            Kind::Atomic(it) => atomic::makes_sense(&it, payload),
            Kind::Commit => commit::decode(payload).is_ok(),
            _ => true,
        },
    }
}

/// A message of every kind, with something behind it.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let sum = Atomic {
        addr: 0,
        key: 1,
        device_key: false,
        datatype: 7,
        op: 2,
        form: 1,
        count: 4,
    };
    let kinds = [
        Kind::Message,
        Kind::Announced { key: 5 },
        Kind::Done,
        Kind::WriteData,
        Kind::Atomic(sum),
        Kind::AtomicResult,
        Kind::Bye,
        Kind::Credit,
        Kind::Commit,
        Kind::Part { signature: 9 },
        Kind::AnnouncedPart {
            signature: 9,
            key: 5,
        },
        Kind::Apart,
    ];
    let message = |kind| {
        let header = Header {
            confirm: true,
            len: 32,
            ..Header::new(kind)
        };
        let mut head = [0; MAX_LEN];
        let len = header.encode(&mut head);
        [&head[..len], &[1; 32]].concat()
    };
    kinds.into_iter().map(message).collect()
}

/// What an endpoint says when it connects.
pub(crate) fn hellos() -> Vec<Vec<u8>> {
    let hello = Hello {
        ep_type: FI_EP_RDM as u8,
        device_keys: false,
        authorization: 7,
        name: ([127, 0, 0, 1], 7471).into(),
        data: vec![1, 2, 3],
    };
    vec![hello.encode()]
}
