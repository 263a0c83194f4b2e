//! Inspections over the sockets: what other processes see, and peers that violate the protocol.

use super::*;
use crate::cm::inspect::{self, QUERY};
use crate::cm::{CmView, Why};
use crate::config::Config;

/// Inspects the process that listens at a port.
fn view(at: ServiceId) -> Option<CmView> {
    let port = format!(":{}", at.port());
    let listing = inspect::list(&Config::default()).unwrap();
    let is_it = |view: &CmView| {
        let mut ids = view.ids.iter();
        ids.any(|id| {
            let local = id.local.as_deref().unwrap_or_default();
            id.backlog.is_some() && local.ends_with(&port)
        })
    };
    listing.managers.into_iter().find(is_it)
}

/// Waits for an inspection for which `find` returns something.
fn wait_for_view<R>(at: ServiceId, find: impl Fn(&CmView) -> Option<R>) -> R {
    let begun = crate::time::now();
    loop {
        let found = view(at);
        if let Some(found) = found.as_ref().and_then(&find) {
            return found;
        }
        assert!(crate::time::since(begun) < TIMEOUT, "only {found:?}");
        crate::time::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_listener_and_its_pending_requests_are_listed() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    connect(&client, at);
    let view = wait_for_view(at, |view| (view.id_count == 2).then(|| view.clone()));
    let pid = std::process::id();
    assert_eq!((view.pid, view.refused), (pid, 0));
    assert_eq!(view.ids[0].backlog, Some((1, 16)));
    let request = &view.ids[1];
    assert_eq!(
        (request.name.as_str(), request.peer_pid),
        ("request", Some(pid))
    );
    assert_eq!(request.peer.as_deref(), Some("127.0.0.1:40000"));
    assert!(request.waits_for.is_some());
}

#[test]
fn the_passive_side_lists_a_refusal_because_of_a_full_backlog() {
    let (client, server) = (start(), start());
    let at = listen(&server, 1);
    connect(&client, at);
    // With another queue pair, so that the request does not count as a duplicate.
    connect_from(&client, 40_001, Transport::Rc, 0x12, at);
    let refusal = wait_for_view(at, |view| view.refusals.first().cloned());
    let fields = (refusal.side.as_str(), refusal.reason.as_str());
    assert_eq!(fields, ("was-asked", "backlog"), "{refusal:?}");
    assert_eq!(refusal.peer_pid, Some(std::process::id()));
    assert!(refusal.sentence.contains("backlog of 1 is full"));
}

#[test]
fn both_sides_know_that_the_listener_is_for_another_queue_pair_type() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    let id = connect_from(&client, 40_002, Transport::Uc, 0x13, at);
    wait_for(&client, |event| {
        matches!(event, Event::Rejected { .. }).then_some(())
    });
    let why = client.with(|parts| parts.refusal_of(id));
    assert_eq!(why, Some(Why::QueuePairType));
    let refusal = wait_for_view(at, |view| {
        let mut all = view.refusals.iter();
        all.find(|it| it.side == "was-asked").cloned()
    });
    assert_eq!(refusal.reason, "queue-pair-type", "{refusal:?}");
    assert_eq!(refusal.peer_pid, Some(std::process::id()));
}

#[test]
fn the_active_side_knows_why_it_was_refused() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    let id = connect(&client, at);
    request(&server);
    drop(server);
    let why = || client.with(|parts| parts.refusal_of(id));
    wait_for(&client, |event| {
        matches!(event, Event::Rejected { .. }).then_some(())
    });
    assert_eq!(why(), Some(Why::PeerGone));
    let unheard = connect(&client, at);
    wait_for(&client, |event| {
        let is_it = matches!(event, Event::Rejected { .. }) && event.connection() == unheard;
        is_it.then_some(())
    });
    let why = client.with(|parts| parts.refusal_of(unheard));
    assert_eq!(why, Some(Why::NothingListens));
}

#[test]
fn floods_of_queries_and_malformed_queries_are_harmless() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    let [active, passive] = establish_at(&client, &server, at);
    let name = block_name(&server);
    let connections: Vec<_> = (0..300)
        .map(|_| {
            let socket = raw_connection(&name);
            let _ = rustix::net::send(&socket, QUERY, SendFlags::NOSIGNAL);
            socket
        })
        .collect();
    assert!(wait_for_view(at, |view| Some(view.id_count)) >= 1);
    // Each query gets an answer, and its connection is closed.
    assert!(connections.iter().all(is_closed_after_answer));
    // Longer text is not a query.
    let other = raw_connection(&name);
    rustix::net::send(&other, b"rcm1 inspect!", SendFlags::NOSIGNAL).unwrap();
    assert!(is_closed(&other));
    end([(&client, active), (&server, passive)]);
}

/// Reads until the other side closes the connection.
fn is_closed_after_answer(socket: &OwnedFd) -> bool {
    let begun = crate::time::now();
    while crate::time::since(begun) < TIMEOUT {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(socket, &mut [0u8; 64][..], flags) {
            Ok((0, _)) => return true,
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => crate::time::sleep(Duration::from_millis(1)),
            Err(_) => return true,
        }
    }
    false
}

/// Owns a block's name and answers queries with garbage, or not at all.
#[test]
fn a_malformed_answer_to_an_inspection_query_is_ignored() {
    let (server, liar) = (start(), false_block());
    let at = listen(&server, 16);
    let answering = std::thread::spawn(move || {
        for answer in [&b"rcm1 inspection"[..], b"", b"nonsense"] {
            let Ok(socket) = rustix::net::accept(&liar) else {
                return;
            };
            let _ = rustix::net::send(&socket, answer, SendFlags::NOSIGNAL);
        }
    });
    // Without a file descriptor, none of the answers counts.
    for _ in 0..3 {
        wait_for_view(at, |_| Some(()));
    }
    answering.join().unwrap();
}

fn false_block() -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket(AddressFamily::UNIX, kind, None).unwrap();
    loop {
        let block = random().unwrap() as u16 | 1;
        let name = names::cm_name(scope(), block);
        let name = names::abstract_address(&name).unwrap();
        if rustix::net::bind(&socket, &name).is_ok() {
            rustix::net::listen(&socket, 8).unwrap();
            return socket;
        }
    }
}
