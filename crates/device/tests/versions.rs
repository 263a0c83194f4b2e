//! Processes with another version of rkey are reported as such everywhere.

mod common;

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::{LONG, Side};
use rkey_device::{Config, DeviceError, list_all};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recv, send, socket_with,
};

fn socket() -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Listens at an abstract name until the process ends, and answers each client's first packet with this one.
fn answer_at(name: &str, packet: &'static [u8]) -> std::io::Result<()> {
    let listener = socket();
    bind(
        &listener,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    listen(&listener, 16)?;
    std::thread::spawn(move || {
        while let Ok(client) = accept(&listener) {
            let _ = recv(&client, &mut [0; 8192], RecvFlags::empty());
            let _ = send(&client, packet, SendFlags::NOSIGNAL);
            // Wait until the client closes the connection, after it has read the answer.
            let _ = recv(&client, &mut [0; 8192], RecvFlags::empty());
        }
    });
    Ok(())
}

/// A device of version 2 that refuses every client.
fn old_device() -> u16 {
    for block in 0x7000u16.. {
        let name = format!("rkey/1/{}/qp/{block:04x}", uid());
        match answer_at(&name, b"rkey\x02\x00\x03\x00another version") {
            Ok(()) => return block,
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no free block")
}

/// A device that cannot be shown because of its version is listed with that version.
#[test]
fn a_device_of_another_version_is_listed_as_such() {
    old_device();
    let deadline = Instant::now() + LONG;
    let own = Some(std::process::id());
    let found = loop {
        let listing = list_all(&Config::default()).unwrap();
        let found = listing.other_versions.into_iter().find(|it| it.pid == own);
        if let Some(found) = found {
            break found;
        }
        assert!(Instant::now() < deadline, "it is not listed");
    };
    assert_eq!((found.uid, found.version), (uid(), 2));
    let text = found.to_string();
    assert!(
        text.contains("it uses link protocol 2, and this process uses 4"),
        "{text}"
    );
    assert!(
        text.contains(&format!("PID {}", std::process::id())),
        "{text}"
    );
}

/// The error of connecting to a listener of another version names the version.
#[test]
fn connecting_to_a_listener_of_another_version_names_the_version() {
    let side = Side::open();
    let address = side.listen().local_address();
    let name = format!("rkey/1/{}/listen/{address}", uid());
    answer_at(&name, b"rkeyCON1 and what else there may be").unwrap();
    let qp = side.qp();
    let error = side.device.connect(address, &[&qp], &[], LONG).unwrap_err();
    assert!(
        matches!(
            error,
            DeviceError::Version {
                there: 1,
                here: 5,
                ..
            }
        ),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("version 1") && text.contains("version 5"),
        "{text}"
    );
}

/// A client of another version gets an answer, so that it can name our version.
#[test]
fn a_client_of_another_version_learns_our_version() {
    let side = Side::open();
    let listener = side.listen();
    let name = format!("rkey/1/{}/listen/{}", uid(), listener.local_address());
    let client = socket();
    connect(
        &client,
        &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap(),
    )
    .unwrap();
    send(&client, b"rkeyCON1 hello", SendFlags::NOSIGNAL).unwrap();
    let none = listener.accept(Some(Duration::from_millis(200)));
    assert!(
        matches!(none, Err(DeviceError::TimedOut { .. })),
        "{none:?}"
    );
    let mut answer = [0; 8192];
    let (_, len) = recv(&client, &mut answer[..], RecvFlags::DONTWAIT).unwrap();
    assert!(
        answer[..len].starts_with(b"rkeyCON5"),
        "{:?}",
        &answer[..len]
    );
}
