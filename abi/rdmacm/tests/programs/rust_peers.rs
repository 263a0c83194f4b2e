//! The Rust API and librdmacm as peers, in two processes: the Rust and the C side of the example `c_peer`.

#[path = "../../../../crates/rkey/examples/c_peer.rs"]
mod c_peer;

use crate::support::{PATIENCE, Running, Stage};
use rkey::cm::Refusal;
use rkey::{Device, Error, cm};
use rkey_device::cm::CmView;
use std::time::Instant;

const C: &str = include_str!("../../../../crates/rkey/examples/c_peer.c");
const TCP: u16 = 0x0106;

fn device() -> Device {
    Device::builder().timeout(PATIENCE).open().unwrap()
}

/// Starts a program with arguments.
fn start(stage: &Stage, program: &std::path::Path, words: &[&str]) -> Running {
    let mut command = stage.command(program);
    command.args(words);
    stage.start(command, "peer")
}

/// Starts a Rust server, and a C program that connects to it.
fn serve(mode: &str, name: &str) -> (Stage, cm::Listener, Running) {
    let stage = Stage::new(name);
    let program = stage.compile("c_peer", C, &[]);
    let listener = device().listen_cm("127.0.0.1:0").unwrap();
    let port = listener.address().port().to_string();
    let peer = start(&stage, &program, &[mode, "127.0.0.1", &port]);
    (stage, listener, peer)
}

#[test]
fn a_c_client_uses_the_memory_of_a_rust_server() {
    let (_stage, listener, peer) = serve("visitor", "rust-owner");
    assert_eq!(c_peer::own(&listener).unwrap(), "hello from C");
    peer.succeed();
}

/// Starts a C program that listens. Its port number is one that the kernel has assigned to us for TCP, so no other test uses it.
fn own(mode: &str, name: &str) -> (Stage, String, Running) {
    let (stage, port) = (Stage::new(name), crate::support::Port::new());
    let program = stage.compile("c_peer", C, &[]);
    let number = port.number.to_string();
    let words = [mode, "127.0.0.1", &number];
    let peer = stage.server(program.to_str().unwrap(), &words, TCP, port.number);
    (stage, format!("127.0.0.1:{number}"), peer)
}

#[test]
fn a_rust_client_uses_the_memory_of_a_c_server() {
    let (_stage, address, peer) = own("owner", "c-owner");
    c_peer::visit(&device(), &address).unwrap();
    let said = peer.succeed();
    assert!(said.contains("hello from Rust"), "{said}");
}

#[test]
fn a_rejection_carries_private_data_to_and_from_c() {
    let (_stage, listener, peer) = serve("refused", "rust-refuses");
    let request = listener.next_request_timeout(PATIENCE).unwrap();
    request.reject(b"no room").unwrap();
    let said = peer.succeed();
    assert!(said.contains("refused: no room"), "{said}");

    let (_stage, address, peer) = own("refuse", "c-refuses");
    let error = device().connect_cm(address.as_str(), b"visitor");
    match error.unwrap_err() {
        Error::ConnectionRefused {
            why: Refusal::Program(28),
            private_data,
            ..
        } => assert!(private_data.starts_with(b"go away\0")),
        other => panic!("{other}"),
    }
    peer.succeed();
}

#[test]
fn killing_a_c_client_disconnects_the_rust_server() {
    let (_stage, listener, mut peer) = serve("stay", "c-killed");
    let request = listener.next_request_timeout(PATIENCE).unwrap();
    let visitor = request.accept(&[0; 20]).unwrap();
    peer.wait_for("connected");
    peer.kill();
    visitor.wait_disconnected(PATIENCE).unwrap();
    let error = visitor.receive().unwrap_err();
    assert!(error.is_peer_gone(), "{error}");
}

/// rdma-core's example programs send 16 bytes each way.
#[test]
fn rdma_client_and_rdma_server_connect_to_rust_peers() {
    let stage = Stage::new("rust-rdma-client");
    let listener = device().listen_cm("127.0.0.1:0").unwrap();
    let port = listener.address().port().to_string();
    let client = "rdma_client".as_ref();
    let peer = start(&stage, client, &["-s", "127.0.0.1", "-p", &port]);
    let request = listener.next_request_timeout(PATIENCE).unwrap();
    let client = request.accept(b"").unwrap();
    assert_eq!(client.receive().unwrap().bytes.len(), 16);
    client.send(&[7; 16]).unwrap();
    let said = peer.succeed();
    assert!(said.contains("rdma_client: end 0"), "{said}");

    let port = crate::support::Port::new();
    let number = port.number.to_string();
    let words = ["-s", "127.0.0.1", "-p", &number];
    let peer = stage.server("rdma_server", &words, TCP, port.number);
    let server = device()
        .connect_cm(("127.0.0.1", port.number), b"")
        .unwrap();
    server.send(&[7; 16]).unwrap();
    assert_eq!(server.receive().unwrap().bytes.len(), 16);
    drop(server);
    let said = peer.succeed();
    assert!(said.contains("rdma_server: end 0"), "{said}");
}

/// The list that `rkey ls` and `rkey explain` read has the identifiers of C programs with their states, and the refusals.
#[test]
fn identifiers_of_c_programs_are_listed_with_what_they_wait_for() {
    let (_stage, listener, peer) = serve("refused", "c-listed");
    let request = listener.next_request_timeout(PATIENCE).unwrap();
    // On a busy machine, the process may answer the query late.
    let managers = || {
        rkey_device::cm::list(&rkey::Config::default())
            .unwrap()
            .managers
    };
    let begun = Instant::now();
    let view = loop {
        let of_peer = |it: &CmView| it.pid == peer.id() && it.api == "librdmacm";
        if let Some(view) = managers().into_iter().find(of_peer) {
            break view;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", managers());
    };
    let [id] = view.ids.as_slice() else {
        panic!("{view:?}")
    };
    assert_eq!((id.qp_type.as_str(), id.space.as_str()), ("RC", "TCP"));
    assert_eq!(
        (id.state.as_str(), id.peer_pid),
        ("connecting", Some(std::process::id()))
    );
    let waits = format!("process {}, to accept or reject", std::process::id());
    assert_eq!(id.waits_for.as_deref(), Some(waits.as_str()));
    assert!(id.queue_pair.is_some());
    request.reject(b"").unwrap();
    peer.succeed();
    // A call of our own fails before anything is sent. The device remembers it as long as it is open.
    let caller = device();
    assert!(caller.connect_cm(listener.address(), &[0; 57]).is_err());
    let is_told = |side: &str, reason: &str| {
        let ours = managers().into_iter();
        let mut ours = ours.filter(|it| it.pid == std::process::id());
        ours.any(|it| {
            let mut all = it.refusals.iter();
            all.any(|refusal| refusal.side == side && refusal.reason == reason)
        })
    };
    for (side, reason) in [("was-asked", "program"), ("call", "private-data")] {
        while !is_told(side, reason) {
            assert!(begun.elapsed() < PATIENCE, "{reason}: {:?}", managers());
        }
    }
}
