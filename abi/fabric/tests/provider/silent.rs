//! Clients that begin to connect, and then send nothing, like a stopped process.

use crate::harness::*;
use crate::peer::{self, Peer, is_peer, until, word_of_name};
use crate::stopped::BOUNDED;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// A socket like a device's, and the name of a listener.
fn socket(address: SocketAddr) -> (OwnedFd, libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: no memory is passed; an address of zeros is valid.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let mut place: libc::sockaddr_un = std::mem::zeroed();
        place.sun_family = libc::AF_UNIX as _;
        let name = format!("\0rkey/1/{}/listen/{address}", libc::geteuid());
        for (to, from) in place.sun_path.iter_mut().zip(name.bytes()) {
            *to = from as _;
        }
        let len = size_of::<libc::sa_family_t>() + name.len();
        (OwnedFd::from_raw_fd(fd), place, len as _)
    }
}

/// The first message of a side that connects; a listener at its target receives it. Also returns a side that
/// listens there afterwards.
fn first_words_to(of: &Side) -> (Vec<u8>, Side) {
    let (client, _, port) = called(of);
    let words = heard_from(client);
    let wish = Wish::default();
    let side = Side::waiting(open_domain(wish.version, wish.info()), wish.info());
    assert_eq!(bind(side.ep.cast(), side.av.cast(), 0), 0);
    let mut name = name_at(port);
    let (at, len) = (name.as_mut_ptr().cast(), name.len());
    // SAFETY: a live handle, and a name of this length.
    let code = unsafe { ((*(*side.ep).cm).setname)(side.ep.cast(), at, len) };
    assert_eq!([code, side.enable()], [0; 2]);
    (words, side)
}

/// The first message of a side. Endpoints at other addresses refuse it.
pub(crate) fn first_words(of: &Side) -> Vec<u8> {
    heard_from(called(of).0)
}

fn heard_from(client: OwnedFd) -> Vec<u8> {
    let mut words = vec![0u8; 8192];
    // SAFETY: our own buffer.
    unsafe {
        let fd = client.as_raw_fd();
        let heard = libc::recv(fd, words.as_mut_ptr().cast(), words.len(), 0);
        words.truncate(usize::try_from(heard).unwrap());
    }
    words
}

/// Makes a side connect to a silent listener. Returns the listener's end, the side's number for it, and the port.
pub(crate) fn called(of: &Side) -> (OwnedFd, u64, u16) {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // The port is below those that endpoints choose, and different for each test and run.
    let number = std::process::id() * 8 + CALLS.fetch_add(1, Ordering::Relaxed);
    let port = 1024 + (number % 31_000) as u16;
    let (listener, place, len) = socket(SocketAddr::from(([127, 0, 0, 1], port)));
    let number = of.insert(&name_at(port));
    // SAFETY: an address of this length; our own memory.
    unsafe {
        let fd = listener.as_raw_fd();
        assert_eq!(libc::bind(fd, (&raw const place).cast(), len), 0);
        assert_eq!(libc::listen(fd, 1), 0);
        let inject = (*(*of.ep).msg).inject;
        assert_eq!(inject(of.ep, [1u8].as_ptr().cast(), 1, number), AGAIN);
        let client = libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut());
        assert!(client >= 0);
        (OwnedFd::from_raw_fd(client), number, port)
    }
}

const AGAIN: isize = -(libc::EAGAIN as isize);

/// Sends a message to another listener.
pub(crate) fn say(words: &[u8], address: SocketAddr) -> OwnedFd {
    let (client, place, len) = socket(address);
    // SAFETY: an address of this length, and our own bytes.
    unsafe {
        let fd = client.as_raw_fd();
        assert_eq!(libc::connect(fd, (&raw const place).cast(), len), 0);
        let sent = libc::send(fd, words.as_ptr().cast(), words.len(), 0);
        assert_eq!(sent, words.len() as isize);
    }
    client
}

#[test]
fn a_silent_client_does_not_delay_other_clients() {
    let (words, b) = first_words_to(&Side::open(&Wish::default()));
    let address = address_of(&name_of(b.ep));
    let silent: Vec<_> = (0..8).map(|_| say(&words, address)).collect();
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let started = Instant::now();
    for _ in 0..3 {
        let other = Side::open(&Wish::default());
        let number = other.peer(&b);
        assert_eq!(other.write(number, &[7; 8], 0, 1), 0);
    }
    // Each of the silent clients would have delayed them by five seconds.
    assert!(started.elapsed() < BOUNDED, "{:?}", started.elapsed());
    drop(silent);
    assert_eq!(mr.close(), 0);
}

/// Whether a client was refused because its process has too many incomplete connections.
fn is_refused(client: &OwnedFd) -> bool {
    let mut words = [0u8; 8192];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let at = words.as_mut_ptr().cast();
    // SAFETY: our own buffer.
    let len = unsafe { libc::recv(client.as_raw_fd(), at, words.len(), flags) };
    let heard = &words[..usize::try_from(len).unwrap_or(0)];
    let why = b"too many incomplete connections";
    heard.windows(why.len()).any(|some| some == why)
}

/// One process can have only a limited number of incomplete connections, so the listener still serves others.
#[test]
fn incomplete_connections_of_one_process_are_bounded() {
    const MANY: usize = 300;
    /// The maximum from one process (docs/api-fabric.md).
    const BOUND: usize = 256;
    if is_peer() {
        let name = peer::name_in(&peer::hear().unwrap());
        let side = Side::open(&Wish::default());
        let number = side.insert(&name);
        // SAFETY: a live handle, and a byte that is copied.
        let inject =
            || unsafe { ((*(*side.ep).msg).inject)(side.ep, [1u8].as_ptr().cast(), 1, number) };
        assert_eq!(again(inject), 0);
        return peer::say("reached");
    }
    let test = "silent::incomplete_connections_of_one_process_are_bounded";
    let mut other = Peer::start(test, &[]);
    let (words, b) = first_words_to(&Side::open(&Wish::default()));
    let address = address_of(&name_of(b.ep));
    let clients: Vec<_> = (0..MANY).map(|_| say(&words, address)).collect();
    let refused = || clients.iter().filter(|it| is_refused(it)).count();
    until("the refusals", || refused() >= MANY - BOUND);
    other.tell(&word_of_name(&b));
    assert_eq!(other.heard(), "reached");
    assert_eq!(refused(), MANY - BOUND);
}

/// A call does not wait for an absent peer. A repeated call reports the failure.
#[test]
fn a_call_to_an_absent_peer_returns_at_once() {
    let a = Side::open(&Wish::default());
    let number = a.insert(&name_at(1));
    let inject = || {
        // SAFETY: a live handle, and a byte that is copied.
        unsafe { ((*(*a.ep).msg).inject)(a.ep, [1u8].as_ptr().cast(), 1, number) }
    };
    let mut asked = 0;
    let code = loop {
        match inject() {
            AGAIN => asked += 1,
            code => break code,
        }
        assert!(asked < 200_000, "no answer");
        std::thread::sleep(std::time::Duration::from_micros(100));
    };
    assert_eq!(code, -(libc::ECONNREFUSED as isize));
    assert!(asked > 0, "a call waited");
}
