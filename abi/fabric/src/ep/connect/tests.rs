//! Connections that fail, are late, or end before they are established.

use super::*;
use crate::connect_request::read_request;
use std::ptr::{null, null_mut};
use std::time::Instant;

const V1_17: u32 = version(1, 17);

/// Opens an endpoint of type `FI_EP_MSG`, and its event queue.
fn opened() -> (Arc<Endpoint>, *mut FidEq) {
    let (mut info, mut fabric, mut domain) = (null_mut(), null_mut(), null_mut());
    let (mut eq, mut cq, mut ep) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the entry point's structure, and handles that were just opened.
    unsafe {
        let provider = &*crate::fi_prov_ini();
        let mut attr: EpAttr = std::mem::zeroed();
        attr.ep_type = FI_EP_MSG;
        let mut hints: Info = std::mem::zeroed();
        hints.ep_attr = &mut attr;
        let getinfo = provider.getinfo;
        let codes = [
            getinfo(V1_17, null(), null(), 0, &hints, &mut info),
            (provider.fabric)((*info).fabric_attr, &mut fabric, null_mut()),
        ];
        assert_eq!(codes, [0; 2]);
        (*fabric).api_version = V1_17;
        let codes = [
            ((*(*fabric).ops).domain)(fabric, info, &mut domain, null_mut()),
            ((*(*fabric).ops).eq_open)(fabric, null_mut(), &mut eq, null_mut()),
            ((*(*domain).ops).cq_open)(domain, null_mut(), &mut cq, null_mut()),
            crate::ep::tables::object::endpoint(domain, info, &mut ep, null_mut()),
            binding::bind(ep.cast(), eq.cast(), 0),
            binding::bind(ep.cast(), cq.cast(), FI_SEND | FI_RECV),
        ];
        assert_eq!(codes, [0; 6]);
        let ep = Arc::clone(&find::<EpObject, _>(ep).unwrap().inner);
        ep.enable().unwrap();
        (ep, eq)
    }
}

/// Reads the next event: its number, or the error.
fn event(eq: *mut FidEq) -> std::result::Result<u32, i32> {
    let started = Instant::now();
    // SAFETY: the handle is live, and the memory is our own.
    unsafe {
        let ops = &*(*eq).ops;
        loop {
            let (mut event, mut room) = (0, [0u64; 8]);
            match (ops.read)(eq, &mut event, room.as_mut_ptr().cast(), 64, 0) {
                -259 => {
                    let mut error: EqErrEntry = std::mem::zeroed();
                    assert!((ops.readerr)(eq, &mut error, 0) > 0);
                    return Err(error.err);
                }
                code if code > 0 => return Ok(event),
                _ => assert!(started.elapsed() < ACCEPT_TIMEOUT, "no event"),
            }
            std::thread::yield_now();
        }
    }
}

fn none(eq: *mut FidEq) {
    // SAFETY: the handle is live.
    assert!(unsafe { crate::eq::trywait(eq.cast()) }.is_ok());
}

const STRANGER: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(
    std::net::Ipv4Addr::LOCALHOST,
    1,
));

#[test]
fn an_early_disconnection_is_reported_after_the_connection() {
    let (ep, eq) = opened();
    let live = ep.live().unwrap();
    let _qp = ep.only_connection(live, STRANGER).unwrap();
    live.state.lock().rdm.lose(&live.host, 0);
    none(eq);
    ep.connected(live, &[]);
    assert_eq!((event(eq), event(eq)), (Ok(FI_CONNECTED), Ok(FI_SHUTDOWN)));
    none(eq);
}

#[test]
fn a_connection_that_could_not_be_started_can_be_retried() {
    let (ep, eq) = opened();
    let live = ep.live().unwrap();
    let _qp = ep.only_connection(live, STRANGER).unwrap();
    // No thread can be created with such a large stack.
    let huge = thread("huge").stack_size(1 << 60);
    let made = ep.make_connection(live, huge, |_, _| Ok(Vec::new()));
    assert_eq!(made, Err(FiError::NOMEM));
    none(eq);
    let _qp = ep.only_connection(live, STRANGER).unwrap();
    let make = |_: &Endpoint, _: &Live| Ok(Vec::new());
    ep.make_connection(live, thread("usual"), make).unwrap();
    assert_eq!(event(eq), Ok(FI_CONNECTED));
}

/// The peer of a request waits until the program answers it.
#[test]
fn a_request_that_could_not_be_accepted_can_be_accepted_later() {
    let ((server, events), (client, theirs)) = (opened(), opened());
    let address = server.domain.format.loopback(0);
    let listener = server.domain.device.listen(address).unwrap();
    let (address, live) = (listener.local_address(), client.live().unwrap());
    let qp = client.only_connection(live, address).unwrap();
    let connect = move |ep: &Endpoint, live: &Live| ep.connect(live, &qp, address, &[]);
    client
        .make_connection(live, thread("client"), connect)
        .unwrap();
    let incoming = listener.accept(Some(ACCEPT_TIMEOUT)).unwrap();
    server.setup.lock().request = read_request(incoming).map(|(request, ..)| request);
    let live = server.live().unwrap();
    // The endpoint's only connection is in use.
    let _qp = server.only_connection(live, STRANGER).unwrap();
    assert_eq!(server.accept(live, &[]), Err(FiError::ISCONN));
    none(events);
    none(theirs);
    Endpoint::no_connection(live);
    server.accept(live, &[]).unwrap();
    assert_eq!(
        (event(events), event(theirs)),
        (Ok(FI_CONNECTED), Ok(FI_CONNECTED))
    );
    assert_eq!(server.accept(live, &[]), Err(FiError::INVAL));
}

#[test]
fn a_panic_while_connecting_is_reported_as_an_event() {
    let (ep, eq) = opened();
    let live = ep.live().unwrap();
    let _qp = ep.only_connection(live, STRANGER).unwrap();
    let make = |_: &Endpoint, _: &Live| panic!("simulates a bug");
    ep.make_connection(live, thread("panics"), make).unwrap();
    assert_eq!(event(eq), Err(FiError::IO.0));
}

/// A connecting thread may finish after its endpoint is closed.
#[test]
fn a_closed_endpoint_gets_no_connections() {
    let (ep, _) = opened();
    ep.shut();
    let live = ep.live().unwrap();
    let qp = live.new_qp(None).unwrap();
    let late = live.add_connection(&mut live.state.lock(), qp, STRANGER.into());
    assert_eq!(late.map_err(FiError::from), Err(FiError::SHUTDOWN));
    assert!(live.state.lock().rdm.connections().slots() == 0);
}

#[test]
fn the_data_of_a_refusal_survives_a_round_trip() {
    assert_eq!(rejected_with("00ff10"), [0, 255, 16]);
    assert!(rejected_with("not hexadecimal").is_empty());
}
