//! Builds and checks messages of peers' endpoints, for fuzz targets and for tests with hostile peers.

use crate::sys::{FI_ATOMIC_READ, FI_EP_RDM, FI_UINT64};
use rkey_device::link::NodeId;
use rkey_rdm::atomic::{self, Request};
use rkey_rdm::authorization::{self, Proof};
use rkey_rdm::commit;
use rkey_rdm::header::{Atomic, Header, Kind, MAX_LEN};
use rkey_rdm::hello::Hello;
use std::net::SocketAddr;

/// Whether a peer's hello is valid, and its name and data survive encoding and decoding.
pub(crate) fn hello(bytes: &[u8]) -> bool {
    let Some(hello) = Hello::decode(bytes) else {
        return false;
    };
    let again = Hello::decode(&hello.encode());
    again.is_some_and(|again| again.name == hello.name && again.data == hello.data)
}

/// The hello of an endpoint without an authorization key.
fn hello_of(name: SocketAddr, proof: Proof) -> Hello {
    Hello {
        ep_type: FI_EP_RDM as u8,
        device_keys: false,
        one_way: false,
        context: 0,
        proof,
        name,
        data: Vec::new(),
    }
}

/// The hello of the endpoint `name` on `device` when it connects to the peer at `port`. It has no authorization key.
pub(crate) fn asks(name: SocketAddr, device: NodeId, port: u16) -> Vec<u8> {
    asks_for(name, device, (port, 0), false)
}

/// Like [`asks`], but to receive context `context` at `port`. With `one_way`, the endpoint can only send.
pub(crate) fn asks_for(
    name: SocketAddr,
    device: NodeId,
    (port, context): (u16, u8),
    one_way: bool,
) -> Vec<u8> {
    let hello = Hello {
        one_way,
        context,
        ..hello_of(name, authorization::ask(&[], device, port))
    };
    hello.encode()
}

/// The answer of the endpoint `name` on `device` to a hello from [`asks`]; `None` if `asked` is not a valid hello.
pub(crate) fn answers(name: SocketAddr, device: NodeId, asked: &[u8]) -> Option<Vec<u8>> {
    let asked = Hello::decode(asked)?.proof;
    Some(hello_of(name, authorization::answer(&[], device, &asked)).encode())
}

/// Whether a peer's atomic is valid: decodes it and applies it to a scratch buffer.
fn atomic(it: &Atomic, payload: &[u8]) -> bool {
    Request::read(it, payload).is_ok_and(|request| {
        let mut values = vec![0x5a; request.len()];
        request.reads_only() || request.apply(&mut values).is_ok()
    })
}

/// Whether a peer's message is valid.
pub(crate) fn message(bytes: &[u8]) -> bool {
    match Header::decode(bytes) {
        None => false,
        Some((header, payload)) => match header.kind {
            Kind::Atomic(it) => atomic(&it, payload),
            Kind::Commit => commit::decode(payload).is_ok(),
            _ => true,
        },
    }
}

/// A message of every kind, with some bytes after its header.
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
        Kind::Rts { key: 5 },
        Kind::Fin,
        Kind::WriteData,
        Kind::Atomic(sum),
        Kind::AtomicResult,
        Kind::Bye,
        Kind::Credit,
        Kind::Commit,
        Kind::Chunk { signature: 9 },
        Kind::ChunkRts {
            signature: 9,
            key: 5,
        },
        Kind::Leave,
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

/// A request to read `count` numbers of 8 bytes from the start of a region.
pub(crate) fn reads(key: u64, count: u32) -> Vec<u8> {
    let atomic = Atomic {
        addr: 0,
        key,
        device_key: false,
        datatype: FI_UINT64 as u8,
        op: FI_ATOMIC_READ as u8,
        form: atomic::Kind::Fetch as u8,
        count,
    };
    let mut head = [0; MAX_LEN];
    let len = Header::new(Kind::Atomic(atomic)).encode(&mut head);
    head[..len].to_vec()
}

/// Valid hellos of endpoints that connect.
pub(crate) fn hellos() -> Vec<Vec<u8>> {
    let hello = Hello {
        data: vec![1, 2, 3],
        ..hello_of(([127, 0, 0, 1], 7471).into(), [7; 32])
    };
    vec![hello.encode()]
}
