//! Connection managers that communicate through their sockets, and peers that violate the protocol.

mod inspections;

use super::packet::{CmPacket, LEN, Protection};
use super::*;
use crate::peers::{half_open, names};
use rkey_cm::address::PortSpace;
use rkey_cm::manager::{Accept, Connect, Kind, ListenOn, PathOptions, QueuePair};
use rkey_cm::wire::{Ece, MAD, Mad, Message, PrivateData, RejectReason, Transport};
use rustix::net::{AddressFamily, SendFlags, SocketType};

/// How long an event may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Messages are retransmitted so late that no test sees a retransmission.
const PATIENT: Timing = Timing {
    response: 26,
    retries: 15,
    service: 24,
};
/// Settings for a process that waits a long time.
pub(super) const SETTINGS: Settings = Settings {
    share: Share::User,
    timing: PATIENT,
    listener_wait: TIMEOUT,
    reserved_files: 256,
    wire: crate::config::WireConfig::OFF,
};
const HERE: &str = "127.0.0.1";

/// A front end that records its events.
#[derive(Default)]
pub(super) struct Program {
    events: Vec<Event>,
}

impl Handler for Program {
    fn event(&mut self, _: &mut Manager, _: Nanos, event: Event) {
        self.events.push(event);
    }
}

pub(super) fn start() -> Service<Program> {
    start_with(Duration::from_millis(20))
}

fn start_with(listener_wait: Duration) -> Service<Program> {
    let settings = Settings {
        timing: PATIENT,
        listener_wait,
        ..Settings::default()
    };
    Service::start(settings, Program::default()).unwrap()
}

/// Starts a process that keeps few links.
fn start_small() -> Service<Program> {
    let limits = || Limits {
        links: 3,
        per_party: 3,
        files_left: 1,
    };
    let settings = Settings {
        timing: PATIENT,
        ..Settings::default()
    };
    Service::start_within(settings, Box::new(limits), Program::default()).unwrap()
}

/// Waits for the first event for which `find` returns something.
pub(super) fn wait_for<R>(service: &Service<Program>, find: impl Fn(&Event) -> Option<R>) -> R {
    let begun = crate::time::now();
    loop {
        let found = service.with(|parts| parts.handler.events.iter().find_map(&find));
        if let Some(found) = found {
            return found;
        }
        let events = || service.with(|parts| format!("{:?}", parts.handler.events));
        assert!(crate::time::since(begun) < TIMEOUT, "only {}", events());
        crate::time::sleep(Duration::from_millis(1));
    }
}

/// Claims a port as soon as it is free. Children that other tests fork may briefly hold copies of its previous owner's socket.
pub(super) fn claim(service: &Service<Program>, at: ServiceId) {
    let begun = crate::time::now();
    while !service.with(|parts| parts.claim(at)).unwrap() {
        assert!(crate::time::since(begun) < TIMEOUT);
        crate::time::sleep(Duration::from_millis(1));
    }
}

/// Claims a free port and listens on it.
pub(super) fn listen(service: &Service<Program>, backlog: usize) -> ServiceId {
    loop {
        let port = random().unwrap() as u16;
        let at = ServiceId::new(PortSpace::Tcp, port.max(1));
        if service.with(|parts| parts.claim(at)).unwrap() {
            let kind = Kind::Connected(Transport::Rc);
            let listened =
                service.with(|parts| parts.manager.listen(ListenOn::Any, at, kind, backlog));
            if listened.is_ok() {
                service.with(|parts| parts.open(at)).unwrap();
                return at;
            }
            // This service was already listening on the port: release the second claim and try another port.
            service.with(|parts| parts.release(at));
        }
    }
}

fn queue_pair(qpn: u32) -> QueuePair {
    QueuePair {
        qpn,
        starting_psn: 7,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry: 7,
        srq: false,
        flow_control: false,
    }
}

/// A request for a connection, with a queue pair of this type and number.
pub(super) fn connect_with(
    from: SocketAddr,
    to: SocketAddr,
    transport: Transport,
    qpn: u32,
) -> Connect {
    Connect {
        from,
        to,
        space: PortSpace::Tcp,
        transport,
        queue_pair: queue_pair(qpn),
        path: PathOptions::default(),
        ece: Ece::default(),
        data: PrivateData::default(),
    }
}

pub(super) fn connect(service: &Service<Program>, to: ServiceId) -> ConnectionId {
    connect_from(service, 40_000, Transport::Rc, 0x11, to)
}

/// Requests a connection from this port, with a queue pair of this type and number.
fn connect_from(
    service: &Service<Program>,
    port: u16,
    transport: Transport,
    qpn: u32,
    to: ServiceId,
) -> ConnectionId {
    let request = connect_with(
        format!("{HERE}:{port}").parse().unwrap(),
        format!("{HERE}:{}", to.port()).parse().unwrap(),
        transport,
        qpn,
    );
    service
        .with(|parts| parts.manager.connect(parts.now, &request))
        .unwrap()
}

/// Accepts the server's next request.
fn request(server: &Service<Program>) -> ConnectionId {
    let id = wait_for(server, |event| match event {
        Event::ConnectRequest(it) => Some(it.connection),
        _ => None,
    });
    server.with(|parts| parts.manager.take_request(id)).unwrap();
    id
}

/// Connects two programs; returns the connection on each side.
pub(super) fn establish(client: &Service<Program>, server: &Service<Program>) -> [ConnectionId; 2] {
    establish_at(client, server, listen(server, 16))
}

fn establish_at(
    client: &Service<Program>,
    server: &Service<Program>,
    at: ServiceId,
) -> [ConnectionId; 2] {
    for service in [client, server] {
        service.with(|parts| parts.handler.events.clear());
    }
    let active = connect(client, at);
    let passive = request(server);
    let accept = Accept {
        queue_pair: queue_pair(0x22),
        ece: Ece::default(),
        data: PrivateData::default(),
    };
    server
        .with(|parts| parts.manager.accept(parts.now, passive, &accept))
        .unwrap();
    wait_for(client, |event| {
        matches!(event, Event::ConnectResponse { .. }).then_some(())
    });
    client
        .with(|parts| parts.manager.establish(parts.now, active))
        .unwrap();
    wait_for(server, |event| {
        matches!(event, Event::Established { .. }).then_some(())
    });
    [active, passive]
}

pub(super) fn disconnected(event: &Event) -> Option<()> {
    matches!(event, Event::Disconnected { .. }).then_some(())
}

/// Waits for the end of a connection.
fn wait_for_end(service: &Service<Program>, id: ConnectionId) {
    wait_for(service, |event| {
        disconnected(event).filter(|()| event.connection() == id)
    });
}

/// Disconnects from the first side; both programs see the end.
fn end([first, second]: [(&Service<Program>, ConnectionId); 2]) {
    first
        .0
        .with(|parts| parts.manager.disconnect(parts.now, first.1))
        .unwrap();
    wait_for_end(second.0, second.1);
    second
        .0
        .with(|parts| parts.manager.disconnect(parts.now, second.1))
        .unwrap();
    wait_for_end(first.0, first.1);
}

/// Connects to a name without using a connection manager.
fn raw_connection(name: &str) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &names::abstract_address(name).unwrap()).unwrap();
    socket
}

fn scope() -> Scope {
    Scope::of(Share::User)
}

fn block_name(service: &Service<Program>) -> String {
    let block = service.with(|parts| parts.carrier.block());
    names::cm_name(scope(), block)
}

/// Waits for the other side to close a connection. Returns whether it did so in time.
fn is_closed(socket: &OwnedFd) -> bool {
    let begun = crate::time::now();
    while crate::time::since(begun) < TIMEOUT {
        let flags = rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(socket, &mut [0u8; 1][..], flags) {
            Err(rustix::io::Errno::AGAIN) => crate::time::sleep(Duration::from_millis(1)),
            _ => return true,
        }
    }
    false
}

#[test]
fn two_processes_connect_and_disconnect() {
    let (client, server) = (start(), start());
    let [active, passive] = establish(&client, &server);
    end([(&client, active), (&server, passive)]);
}

/// All connections have queue pairs with the same numbers, and each begins while the previous one is in time wait.
#[test]
fn a_queue_pair_can_reconnect_at_once() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    for _ in 0..50 {
        let [active, passive] = establish_at(&client, &server, at);
        end([(&client, active), (&server, passive)]);
    }
}

#[test]
fn processes_beyond_the_link_limit_connect_and_notice_each_others_end() {
    const CLIENTS: usize = 8;
    let server = start_small();
    let clients: Vec<_> = (0..CLIENTS).map(|_| start()).collect();
    let at = listen(&server, 16);
    let connect = |client| (client, establish_at(client, &server, at));
    let mut all: Vec<_> = clients.iter().map(connect).collect();
    for (client, [active, passive]) in &all {
        let state = |it: &Service<Program>, id| it.with(|parts| parts.manager.state(id));
        assert_eq!(state(client, *active), Some(State::Established));
        assert_eq!(state(&server, *passive), Some(State::Established));
    }
    // Every second connection, from either side.
    for number in (0..CLIENTS / 2).rev() {
        let (client, [active, passive]) = all.remove(2 * number);
        let mut ends = [(client, active), (&server, passive)];
        if number % 2 == 0 {
            ends.reverse();
        }
        end(ends);
    }
    let left: Vec<_> = all.iter().map(|(_, ids)| *ids).collect();
    let mut clients: Vec<_> = clients.into_iter().map(Some).collect();
    clients[1] = None;
    wait_for_end(&server, left[0][1]);
    drop(server);
    for (number, [active, _]) in left.into_iter().enumerate().skip(1) {
        wait_for_end(clients[2 * number + 1].as_ref().unwrap(), active);
    }
}

/// A process without room for all links also closes links of living processes.
#[test]
fn closing_a_link_ends_no_connection() {
    let (client, server) = (start(), start_small());
    let [active, passive] = establish(&client, &server);
    let connections: Vec<OwnedFd> = (0..300)
        .map(|_| {
            let socket = raw_connection(&block_name(&server));
            let here = HERE.parse().unwrap();
            let packet = CmPacket {
                from: here,
                to: here,
                protection: Protection::default(),
                mad: [0; MAD],
            };
            rustix::net::send(&socket, &packet.encode(), SendFlags::empty()).unwrap();
            socket
        })
        .collect();
    assert!(is_closed(&connections[299]));
    end([(&server, passive), (&client, active)]);
}

/// A handler that panics.
struct Panics;

impl Handler for Panics {
    fn event(&mut self, _: &mut Manager, _: Nanos, _: Event) {
        panic!("a bug");
    }
}

#[test]
fn no_call_waits_for_a_service_thread_that_has_panicked() {
    let server = Service::start(Settings::default(), Panics).unwrap();
    let at = loop {
        let at = ServiceId::new(PortSpace::Tcp, random().unwrap() as u16 | 1);
        if server.with(|parts| parts.claim(at)).unwrap() {
            break at;
        }
    };
    let kind = Kind::Connected(Transport::Rc);
    server
        .with(|parts| parts.manager.listen(ListenOn::Any, at, kind, 8))
        .unwrap();
    server.with(|parts| parts.open(at)).unwrap();
    assert!(!server.has_failed());
    let client = start();
    connect(&client, at);
    assert!(!server.wait_until(|_| false));
    assert!(server.has_failed());
}

#[test]
fn the_end_of_a_process_ends_its_connections() {
    for client_ends in [true, false] {
        let (client, server) = (start(), start());
        establish(&client, &server);
        let (ends, stays) = match client_ends {
            true => (client, server),
            false => (server, client),
        };
        drop(ends);
        wait_for(&stays, disconnected);
    }
}

#[test]
fn a_request_to_a_process_that_ends_is_refused() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    connect(&client, at);
    // The server has the request and has not answered.
    request(&server);
    drop(server);
    let reason = wait_for(&client, |event| match event {
        Event::Rejected { rej, .. } => Some(rej.reason),
        _ => None,
    });
    assert_eq!(reason, RejectReason::CONSUMER);
}

#[test]
fn a_request_to_a_port_without_a_listener_is_refused() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    drop(server);
    claim(&client, at);
    client.with(|parts| parts.release(at));
    connect(&client, at);
    let reason = wait_for(&client, |event| match event {
        Event::Rejected { rej, .. } => Some(rej.reason),
        _ => None,
    });
    assert_eq!(reason, RejectReason::SERVICE_ID);
}

/// perftest exchanges addresses, and then both sides proceed at the same time.
#[test]
fn a_request_waits_for_its_listener() {
    for is_claimed in [false, true] {
        let (client, server) = (start_with(TIMEOUT), start());
        let at = listen(&server, 16);
        drop(server);
        let server = start();
        if is_claimed {
            claim(&server, at);
        }
        connect(&client, at);
        if !is_claimed {
            claim(&server, at);
        }
        let kind = Kind::Connected(Transport::Rc);
        server
            .with(|parts| parts.manager.listen(ListenOn::Any, at, kind, 1))
            .unwrap();
        server.with(|parts| parts.open(at)).unwrap();
        request(&server);
    }
}

#[test]
fn a_port_belongs_to_one_process_until_it_ends() {
    let (one, other) = (start(), start());
    let at = listen(&one, 16);
    assert!(!other.with(|parts| parts.claim(at)).unwrap());
    assert!(one.with(|parts| parts.claim(at)).unwrap());
    one.with(|parts| parts.release(at));
    assert!(!other.with(|parts| parts.claim(at)).unwrap());
    drop(one);
    claim(&other, at);
    other.with(|parts| parts.release(at));
    claim(&other, at);
}

#[test]
fn both_sides_of_a_connection_may_be_in_one_process() {
    let service = start();
    let [active, passive] = establish(&service, &service);
    service
        .with(|parts| parts.manager.disconnect(parts.now, active))
        .unwrap();
    wait_for(&service, disconnected);
    service
        .with(|parts| parts.manager.disconnect(parts.now, passive))
        .unwrap();
    for id in [active, passive] {
        let state = service.with(|parts| parts.manager.state(id));
        // `None` means that time wait is over.
        assert!(matches!(state, None | Some(State::TimeWait)), "{state:?}");
    }
}

#[test]
fn a_process_that_sends_garbage_loses_only_its_connection() {
    let (client, server) = (start(), start());
    let at = listen(&server, 16);
    let port_name = names::cm_port_name(scope(), at.0);
    for name in [block_name(&server), port_name] {
        for garbage in [
            &[0xff; 1][..],
            &[0xff; LEN],
            &[0xff; LEN + 1],
            &[0xff; 4096],
        ] {
            let socket = raw_connection(&name);
            rustix::net::send(&socket, garbage, SendFlags::empty()).unwrap();
            assert!(is_closed(&socket), "{} B to {name}", garbage.len());
        }
    }
    establish(&client, &server);
}

#[test]
fn messages_from_unrelated_processes_change_no_connection() {
    let (client, server) = (start(), start());
    let [active, passive] = establish(&client, &server);
    let here = HERE.parse().unwrap();
    let socket = raw_connection(&block_name(&server));
    for attribute in 0..=0x20u8 {
        for fill in [0, 0x55, 0xff] {
            let mut mad = [fill; MAD];
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, attribute]);
            let packet = CmPacket {
                from: here,
                to: here,
                protection: Protection::default(),
                mad,
            };
            rustix::net::send(&socket, &packet.encode(), SendFlags::empty()).unwrap();
        }
    }
    // An address that does not belong to this host.
    let elsewhere = CmPacket {
        from: "192.0.2.1".parse().unwrap(),
        to: here,
        protection: Protection::default(),
        mad: [0; MAD],
    };
    rustix::net::send(&socket, &elsewhere.encode(), SendFlags::empty()).unwrap();
    // The server closes the connection because of this packet, after it has read all earlier ones.
    rustix::net::send(&socket, b"end", SendFlags::empty()).unwrap();
    assert!(is_closed(&socket));
    let state = |service: &Service<Program>, id| service.with(|parts| parts.manager.state(id));
    assert_eq!(state(&server, passive), Some(State::Established));
    assert_eq!(state(&client, active), Some(State::Established));
}

/// A flood of REQs, each from a nonexistent connection.
fn flood(socket: &OwnedFd, at: ServiceId, count: u32) {
    let here = HERE.parse().unwrap();
    let mut manager = Manager::new(Config::new(Guid([9; 8]), 9));
    for number in 0..count {
        let request = Connect {
            from: format!("{HERE}:40000").parse().unwrap(),
            to: format!("{HERE}:{}", at.port()).parse().unwrap(),
            space: PortSpace::Tcp,
            transport: Transport::Rc,
            queue_pair: queue_pair(0x100 + number),
            path: PathOptions::default(),
            ece: Ece::default(),
            data: PrivateData::default(),
        };
        manager.connect(0, &request).unwrap();
        let mad = manager.next_transmit().unwrap().mad;
        assert!(matches!(
            Mad::decode(&mad).unwrap().message,
            Message::Req(_)
        ));
        let packet = CmPacket {
            from: here,
            to: here,
            protection: Protection::default(),
            mad,
        };
        rustix::net::send(socket, &packet.encode(), SendFlags::empty()).unwrap();
    }
}

#[test]
fn a_flood_of_requests_fills_only_the_backlog_of_its_listener() {
    const BACKLOG: usize = 8;
    let (client, server) = (start(), start());
    let at = listen(&server, BACKLOG);
    let socket = raw_connection(&names::cm_port_name(scope(), at.0));
    flood(&socket, at, 2000);
    rustix::net::send(&socket, b"end", SendFlags::empty()).unwrap();
    assert!(is_closed(&socket));
    let known = server.with(|parts| parts.manager.connections().count());
    assert_eq!(known, BACKLOG);
    server.with(|parts| parts.handler.events.clear());
    // Another port of the process is not affected.
    establish(&client, &server);
}

#[test]
fn the_oldest_silent_links_are_closed_when_there_are_too_many() {
    let (client, server) = (start(), start());
    let name = block_name(&server);
    const EVICTED: usize = 100;
    let idle = (0..half_open::MAX + EVICTED).map(|_| raw_connection(&name));
    let idle: Vec<OwnedFd> = idle.collect();
    // All connections come from the client's process, so the oldest are closed. Once this one is closed, all have been accepted.
    assert!(is_closed(&idle[EVICTED - 1]));
    establish(&client, &server);
    drop(idle);
}
