//! The view of endpoints in `rkey ls PID`: which endpoint waits for which peer.

use crate::harness::*;
use crate::messages::{trecv, tsend};
use crate::peer::{Peer, hear, is_peer, name_in, rerun, say, say_name, until, word_of_name};
use crate::shared::{Server, recv};
use rkey_device::describe::{EndpointView, PeerView, Traffic};
use rkey_device::{Config, list_devices};
use rkey_fi::sys::FI_EP_MSG;
use std::net::SocketAddr;

const LEN: usize = 64 << 10;
/// A tag for which the peer posts a receive only on request.
const UNEXPECTED: u64 = 9;

/// The endpoint at an address, as its process reports it.
fn shown(pid: u32, address: SocketAddr) -> Option<EndpointView> {
    let name = format!("fi_sockaddr_in://{address}");
    let all = list_devices(&Config::from_env().unwrap()).unwrap();
    let of_process = all.into_iter().filter(|device| device.pid == pid);
    of_process
        .flat_map(|device| device.endpoints)
        .find(|endpoint| endpoint.name.as_ref() == Some(&name))
}

/// Waits until the traffic of the endpoint at an address meets the condition. Returns the endpoint and its traffic.
fn traffic_when(
    pid: u32,
    address: SocketAddr,
    what: &str,
    mut is_so: impl FnMut(&Traffic) -> bool,
) -> (EndpointView, Traffic) {
    let mut found = None;
    until(what, || {
        found = shown(pid, address).and_then(|view| {
            let traffic = view.traffic.clone()?;
            is_so(&traffic).then_some((view, traffic))
        });
        found.is_some()
    });
    found.unwrap()
}

/// The peer posts two receives, and takes a third message on request.
fn waits() {
    let side = Side::open(&Wish::default());
    say_name(&side);
    let other = side.insert(&name_in(&hear().unwrap()));
    let (mut one, mut two, mut three) = ([0; 8], [0; 8], vec![0; LEN]);
    assert_eq!(recv(side.ep, &mut one, 1), 0);
    trecv(&side, other, &mut two, 7, 0, 2);
    say("posted");
    while let Some(word) = hear() {
        match word.as_str() {
            "look" => assert!(poll(side.cq).is_none()),
            "receive" => {
                trecv(&side, other, &mut three, UNEXPECTED, 0, 3);
                assert_eq!(side.completion(&[]).unwrap().op_context as usize, 3);
            }
            "close" => assert_eq!(close(side.ep.cast()), 0),
            _ => break,
        }
        say("done");
    }
}

#[test]
fn waiting_endpoints_are_shown_with_their_peers() {
    if is_peer() {
        return waits();
    }
    let mut peer = Peer::start(
        "described::waiting_endpoints_are_shown_with_their_peers",
        &[],
    );
    let side = Side::open(&Wish::default());
    let name = peer.name();
    let number = side.insert(&name);
    peer.tell(&word_of_name(&side));
    assert_eq!(peer.heard(), "posted");
    let (ours, theirs) = (address_of(&name_of(side.ep)), address_of(&name));
    let message = vec![3; LEN];
    tsend(&side, number, &message, UNEXPECTED, 1);

    let (view, traffic) = traffic_when(peer.pid(), theirs, "the message", |traffic| {
        peer.tell("look");
        let open = traffic.listed.iter().all(|peer| peer.connection == "open");
        peer.heard() == "done" && traffic.tagged_unexpected > 0 && open
    });
    assert_eq!(view.ep_type, "FI_EP_RDM");
    let us = PeerView {
        address: format!("fi_sockaddr_in://{ours}"),
        number: Some(0),
        connection: "open".to_owned(),
        qpn: traffic.listed[0].qpn,
        receives: 1,
        unexpected: 1,
        ..PeerView::default()
    };
    assert_eq!(traffic.listed, [us]);
    assert!(traffic.listed[0].qpn.is_some());
    let Traffic {
        receives,
        tagged_receives,
        unexpected,
        tagged_unexpected,
        unexpected_from,
        wanted_tags,
        unexpected_tags,
        operations,
        peers,
        ..
    } = traffic;
    assert_eq!((receives, tagged_receives), (1, 1));
    assert_eq!((unexpected, tagged_unexpected, unexpected_from), (0, 1, 1));
    assert_eq!(
        (wanted_tags, unexpected_tags),
        (vec![(7, 0)], vec![UNEXPECTED])
    );
    assert_eq!((operations, peers), (0, 1));

    // The sender waits for that program.
    let us = std::process::id();
    let (_, traffic) = traffic_when(us, ours, "the end of the request", |traffic| {
        assert!(poll(side.cq).is_none());
        traffic.listed.iter().all(|it| it.outstanding == 0)
    });
    let them = &traffic.listed[0];
    assert_eq!((traffic.operations, them.unanswered), (1, 1));
    assert!(them.connection == "open" && !them.out_of_credit, "{them:?}");

    // The send completes only when the peer has received.
    peer.tell("receive");
    assert_eq!(side.completion(&[]).unwrap().op_context as usize, 1);
    assert_eq!(peer.heard(), "done");
    let over = |traffic: &Traffic| traffic.tagged_unexpected == 0;
    let (_, traffic) = traffic_when(peer.pid(), theirs, "the receive", over);
    assert_eq!((traffic.receives, traffic.tagged_receives), (1, 1));
    let over = |traffic: &Traffic| traffic.listed[0].unanswered == 0;
    traffic_when(us, ours, "the answer", over);

    // A closed endpoint is not shown.
    peer.tell("close");
    assert_eq!(peer.heard(), "done");
    assert!(shown(peer.pid(), theirs).is_none());
    peer.finish();
    assert_eq!(close(side.ep.cast()), 0);
    side.close_rest();
}

/// A receiver stores only a limited amount of unexpected messages of one peer.
#[test]
fn an_endpoint_without_credit_for_a_peer_is_shown() {
    let wish = Wish::default();
    let (a, b) = (Side::open(&wish), Side::open(&wish));
    let (to, here) = (a.peer(&b), address_of(&name_of(a.ep)));
    let bytes = [0u8; 8192];
    // 4 MiB, as the provider's documentation says.
    for _ in 0..512 {
        tsend(&a, to, &bytes, UNEXPECTED, 1);
        a.completion(&[&b]).unwrap();
    }
    let (_, traffic) = traffic_when(std::process::id(), here, "the end of credit", |traffic| {
        traffic.listed[0].outstanding == 0
    });
    assert!(traffic.listed[0].out_of_credit, "{traffic:?}");
    assert_eq!((traffic.operations, traffic.completions), (0, 0));
    for side in [a, b] {
        assert_eq!(close(side.ep.cast()), 0);
        side.close_rest();
    }
}

/// The endpoints of a process, once the condition holds.
fn endpoints_when(what: &str, mut is_so: impl FnMut(&[Traffic]) -> bool) -> Vec<EndpointView> {
    let mut found = Vec::new();
    until(what, || {
        let all = list_devices(&Config::from_env().unwrap()).unwrap();
        let own = all
            .into_iter()
            .filter(|device| device.pid == std::process::id());
        found = own.flat_map(|device| device.endpoints).collect();
        let traffic: Option<Vec<Traffic>> = found.iter().map(|it| it.traffic.clone()).collect();
        traffic.is_some_and(|traffic| is_so(&traffic))
    });
    found
}

/// This runs in its own process, because connected endpoints have no address that distinguishes them.
#[test]
fn connected_endpoints_and_their_shared_receives_are_shown() {
    let test = "described::connected_endpoints_and_their_shared_receives_are_shown";
    if !is_peer() {
        assert!(rerun(test).status().unwrap().success());
        return;
    }
    let wish = Wish {
        ep_type: FI_EP_MSG,
        ..Wish::default()
    };
    let server = Server::open(&wish);
    let (client, here) = server.connect(&wish);
    let mut buffers = [[0u8; 8]; 2];
    for (context, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(recv(server.srx, buffer, context), 0);
    }
    let open = |it: &Traffic| it.peers == 1 && it.listed[0].connection == "open";
    let shown = endpoints_when("two endpoints", |all| {
        all.len() == 2 && all.iter().all(open)
    });
    assert!(
        shown.iter().all(|it| it.ep_type == "FI_EP_MSG"),
        "{shown:?}"
    );
    let receives = |it: &EndpointView| {
        let traffic = it.traffic.as_ref().unwrap();
        (traffic.shared_receives, traffic.receives)
    };
    let mut all: Vec<_> = shown.iter().map(receives).collect();
    all.sort_unstable();
    assert_eq!(all, [(false, 0), (true, 2)]);

    assert_eq!(close(client.ep.cast()), 0);
    let lost = endpoints_when("the end", |all| {
        assert!(poll(here.cq).is_none());
        all.len() == 1 && all[0].listed.iter().all(|it| it.connection == "lost")
    });
    assert_eq!(receives(&lost[0]), (true, 2));
}
