//! Helpers for tests of the shared-memory link: two sides in one process, names, waiting.
#![allow(dead_code, missing_docs, unreachable_pub)]

use rkey_link::direct::{LeaseBoard, LeaseId};
use rkey_link::shm::{
    Connector, Greeting, LinkConfig, LinkRequest, Listener, LocalNode, ShmLink, Step,
};
use rkey_link::{NodeId, Payload, ReceivedFragment};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub fn local(number: u32, config: LinkConfig) -> LocalNode {
    let id = NodeId {
        pid: number,
        nonce: u64::from(number) * 11,
    };
    LocalNode::new(id, config).unwrap()
}

pub fn unique_name() -> Vec<u8> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("rkey-test/{}/{number}", std::process::id()).into_bytes()
}

pub fn listen() -> (Listener, Vec<u8>) {
    let name = unique_name();
    (Listener::bind(&name).unwrap(), name)
}

pub fn connect(name: &[u8], number: u32, purpose: &[u8]) -> Connector {
    Connector::start(name, &local(number, LinkConfig::default()), purpose).unwrap()
}

pub fn accept_link(listener: &Listener, node: &LocalNode) -> LinkRequest {
    let mut acceptor = listener.accept(node).unwrap().unwrap();
    match acceptor.advance().unwrap() {
        Step::Done(Greeting::Link(request)) => request,
        other => panic!("{other:?}"),
    }
}

pub fn pair() -> (ShmLink, ShmLink) {
    pair_with(LinkConfig::default(), LinkConfig::default())
}

pub fn pair_with(requester: LinkConfig, responder: LinkConfig) -> (ShmLink, ShmLink) {
    let (listener, name) = listen();
    let mut connector = Connector::start(&name, &local(1, requester), b"").unwrap();
    assert!(matches!(connector.advance().unwrap(), Step::Pending));
    let responder = accept_link(&listener, &local(2, responder))
        .accept()
        .unwrap();
    match connector.advance().unwrap() {
        Step::Done(link) => (link, responder),
        Step::Pending => panic!("the welcome has been sent"),
    }
}

/// Only a hang takes longer.
pub const LONG: Duration = Duration::from_secs(60);

pub fn wait_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
        fd,
        rustix::event::PollFlags::IN,
    )];
    let limit = rustix::event::Timespec {
        tv_sec: LONG.as_secs() as i64,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut fds, Some(&limit)).unwrap() == 1
}

pub fn bytes_of(incoming: &ReceivedFragment<'_>) -> Vec<u8> {
    let Payload::Bytes(bytes) = incoming.payload else {
        panic!("not bytes")
    };
    let mut out = vec![0; bytes.len()];
    bytes.get(0, &mut out);
    out
}

/// Revokes leases by the three steps of the owner. Returns the first one that was still in use after `patience`.
pub fn revoke(board: &LeaseBoard, leases: &[LeaseId], patience: Duration) -> Result<(), LeaseId> {
    board.withdraw(leases);
    rkey_base::barrier::heavy();
    let start = Instant::now();
    for &lease in leases {
        while !board.has_no_copy(lease) {
            if start.elapsed() > patience {
                return Err(lease);
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}
