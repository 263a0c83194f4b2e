//! Clients that begin to connect and say no more, as one does that was stopped.

use crate::harness::*;
use crate::stopped::BOUNDED;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// A socket as devices have them, and the name of a listener.
fn socket(address: SocketAddr) -> (OwnedFd, libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: no memory is passed; an address of zeros is one.
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

/// What a side says first when it connects: whoever listens at the address that it is given hears it.
pub(crate) fn first_words(of: &Side) -> Vec<u8> {
    let (client, _) = called(of);
    let mut words = vec![0u8; 8192];
    // SAFETY: room of our own.
    unsafe {
        let fd = client.as_raw_fd();
        let heard = libc::recv(fd, words.as_mut_ptr().cast(), words.len(), 0);
        words.truncate(usize::try_from(heard).unwrap());
    }
    words
}

/// A side connects to somebody who says nothing: the other end of that, and the side's number for it.
pub(crate) fn called(of: &Side) -> (OwnedFd, u64) {
    // Below those that endpoints choose, and not that of another run of this test.
    let port = 1024 + (std::process::id() % 40_000) as u16;
    let (listener, place, len) = socket(SocketAddr::from(([127, 0, 0, 1], port)));
    let number = of.insert(&name_at(port));
    // SAFETY: an address of this length; room of our own.
    unsafe {
        let fd = listener.as_raw_fd();
        assert_eq!(libc::bind(fd, (&raw const place).cast(), len), 0);
        assert_eq!(libc::listen(fd, 1), 0);
        let inject = (*(*of.ep).msg).inject;
        assert_eq!(inject(of.ep, [1u8].as_ptr().cast(), 1, number), AGAIN);
        let client = libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut());
        assert!(client >= 0);
        (OwnedFd::from_raw_fd(client), number)
    }
}

const AGAIN: isize = -(libc::EAGAIN as isize);

/// Says the same to another listener.
pub(crate) fn say(words: &[u8], address: SocketAddr) -> OwnedFd {
    let (client, place, len) = socket(address);
    // SAFETY: an address of this length, and bytes of our own.
    unsafe {
        let fd = client.as_raw_fd();
        assert_eq!(libc::connect(fd, (&raw const place).cast(), len), 0);
        let sent = libc::send(fd, words.as_ptr().cast(), words.len(), 0);
        assert_eq!(sent, words.len() as isize);
    }
    client
}

#[test]
fn a_client_that_says_no_more_holds_up_no_other() {
    let (a, b) = (Side::open(&Wish::default()), Side::open(&Wish::default()));
    let words = first_words(&a);
    let name = name_of(b.ep);
    // A `sockaddr_in`: the port comes after the family.
    let port = u16::from_be_bytes([name[2], name[3]]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let silent: Vec<_> = (0..8).map(|_| say(&words, address)).collect();
    let mut buffer = vec![0u8; 8];
    let mr = b.reg(&mut buffer, REMOTE, 1, 0).unwrap();
    let started = Instant::now();
    for _ in 0..3 {
        let other = Side::open(&Wish::default());
        let number = other.peer(&b);
        assert_eq!(other.write(number, &[7; 8], 0, 1), 0);
    }
    // Each of the silent ones would have held them up for five seconds.
    assert!(started.elapsed() < BOUNDED, "{:?}", started.elapsed());
    drop(silent);
    assert_eq!(mr.close(), 0);
}

/// A call does not wait for a peer that is not there; it is told when it comes again.
#[test]
fn a_call_to_nobody_returns_at_once() {
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
