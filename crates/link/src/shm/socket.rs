//! The control socket: packets with file descriptors between two processes on one host, and the credentials of the
//! other process.
//!
//! The names are abstract Unix addresses: they belong to a network namespace, disappear with the process and leave no
//! file. Nothing here blocks.
// UNSAFETY: uses two socket options that none of our dependencies wraps soundly: SO_PEERCRED, whose process id may be 0
// (rustix' type has no room for that), and SO_PEERPIDFD.
#![allow(unsafe_code)]

use rkey_base::process::PidFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The maximum length of a packet, in bytes.
pub const PACKET_MAX: usize = 16 << 10;
/// The maximum number of file descriptors of one packet.
pub const FDS_MAX: usize = 4;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The process at the other end of a socket, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process ID as we see it; `None` if it has none in our PID namespace.
    pub pid: Option<u32>,
    /// The effective user when the connection was made.
    pub uid: u32,
    /// The effective group when the connection was made.
    pub gid: u32,
}

impl Credentials {
    /// Whether the peer's effective user is ours.
    pub(crate) fn is_our_user(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Which processes are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Only processes of the same effective user.
    #[default]
    SameUser,
    /// Every process that can reach the socket, that is, every one in the same network namespace.
    Any,
}

impl Policy {
    /// Whether a process with these credentials is allowed.
    pub fn allows(self, who: &Credentials) -> bool {
        match self {
            Self::SameUser => who.is_our_user(),
            Self::Any => true,
        }
    }
}

/// One packet that arrived.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The result of reading the socket.
#[derive(Debug)]
pub(crate) enum Received {
    Packet(Packet),
    /// No packet has arrived.
    Nothing,
    /// The other side closed the connection, or its process ended.
    End,
}

/// A connected, non-blocking socket that preserves packet boundaries.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

fn new_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Binds an abstract name (without the leading NUL) and listens.
///
/// # Errors
/// `AddrInUse` if another process has the name; other errors of the kernel.
pub(crate) fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let fd = new_socket()?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Accepts the next connection, if one is waiting.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<Socket>> {
    loop {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => return Ok(Some(Socket(fd))),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

impl Socket {
    /// Connects to an abstract name (without the leading NUL).
    ///
    /// # Errors
    /// `ConnectionRefused` if the name does not exist; `WouldBlock` if its connection backlog is full (try again
    /// later); other errors of the kernel.
    pub(crate) fn connect(name: &[u8]) -> io::Result<Self> {
        let fd = new_socket()?;
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(Self(fd))
    }

    /// Takes over a connected, non-blocking socket of the right type.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Ends the connection for both sides, including copies of the descriptor elsewhere.
    pub(crate) fn shutdown(&self) {
        // Fails only if the connection has already ended.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Two sockets connected to each other.
    #[cfg(test)]
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        Ok((Self(a), Self(b)))
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// `WouldBlock` if the peer does not read; `BrokenPipe` or `ConnectionReset` if it has ended.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > PACKET_MAX || fds.len() > FDS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the packet is empty, too long, or has too many descriptors",
            ));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the packet has too many descriptors",
            ));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Rings the doorbell: a packet of one byte. If the socket's queue is full, the peer's doorbell has already been
    /// rung; if the peer has ended, that is detected elsewhere.
    pub(crate) fn ring_doorbell(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.0, &[0], flags);
    }

    /// Receives one packet.
    ///
    /// # Errors
    /// `InvalidData` for a packet that is too long; other errors of the kernel.
    pub(crate) fn receive(&self) -> io::Result<Received> {
        receive_before_end(
            || self.receive_once(),
            |received| matches!(received, Ok(Received::End)),
        )
    }

    fn receive_once(&self) -> io::Result<Received> {
        let mut bytes = vec![0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, &mut into, &mut ancillary, flags) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::CONNRESET) => return Ok(Received::End),
                Err(e) => return Err(e.into()),
            }
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            // The end of the connection looks like an empty packet, which no peer sends.
            return Ok(Received::End);
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the packet is too long",
            ));
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // This process has no free descriptor, or the peer has sent too many. The packet arrives without any.
            fds.clear();
        }
        bytes.truncate(received.bytes);
        Ok(Received::Packet(Packet { bytes, fds }))
    }

    /// The other side's credentials.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn credentials(&self) -> io::Result<Credentials> {
        peer_credentials(&self.0)
    }

    /// A descriptor of the other process, which cannot be confused with a later process with the same PID. `None` if
    /// neither the socket nor the PID yields one.
    pub(crate) fn process(&self) -> Option<PidFd> {
        const SO_PEERPIDFD: libc::c_int = 77;
        let mut fd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: both pointers are to locals, and `len` is the size of the first.
        let rc = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut fd).cast(),
                &raw mut len,
            )
        };
        if rc == 0 && fd >= 0 {
            // SAFETY: the kernel has just given us this descriptor.
            return Some(PidFd::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        // An older kernel: the PID may be reused between the two calls. In that case, the probe does not find the
        // nonce.
        PidFd::open(self.credentials().ok()?.pid?).ok()
    }
}

/// The process at the other end of a connected Unix socket.
///
/// # Errors
/// Errors of the kernel.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut ucred = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to locals, and `len` is the size of the first.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut ucred).cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(ucred.pid).ok().filter(|&pid| pid != 0);
    Ok(Credentials {
        pid,
        uid: ucred.uid,
        gid: ucred.gid,
    })
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Receives from a connected `SOCK_SEQPACKET` socket without losing the peer's last packet. `receive` reads once;
/// `is_end` recognises the end of the connection, or a reset.
///
/// Linux can report the end, or a reset, although the peer sent a packet before it closed the socket: the packet and the end
/// may arrive between the kernel's check of the queue and its check of the socket. Once the end has been reported, the packet
/// is in the queue, so a second read returns it.
///
/// # Example
/// ```
/// let mut reads = [0, 7].into_iter(); // The end is reported first, then a packet of 7 B.
/// let len = rkey_link::peer::receive_before_end(|| reads.next(), |len| *len == Some(0));
/// assert_eq!(len, Some(7));
/// ```
pub fn receive_before_end<R>(mut receive: impl FnMut() -> R, is_end: impl Fn(&R) -> bool) -> R {
    let first = receive();
    if !is_end(&first) {
        return first;
    }
    let second = receive();
    if is_end(&second) { first } else { second }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_boundaries_and_descriptors() {
        let (a, b) = Socket::pair().unwrap();
        a.send(b"one", &[]).unwrap();
        a.send(b"second", &[a.as_fd(), b.as_fd()]).unwrap();
        let Received::Packet(first) = b.receive().unwrap() else {
            panic!("no packet")
        };
        assert_eq!((first.bytes.as_slice(), first.fds.len()), (&b"one"[..], 0));
        let Received::Packet(second) = b.receive().unwrap() else {
            panic!("no packet")
        };
        assert_eq!(
            (second.bytes.as_slice(), second.fds.len()),
            (&b"second"[..], 2)
        );
        assert!(matches!(b.receive().unwrap(), Received::Nothing));
        drop(second);
        drop(a);
        assert!(matches!(b.receive().unwrap(), Received::End));
    }

    #[test]
    fn the_last_packet_of_a_peer_that_never_reads_arrives() {
        let (a, b) = Socket::pair().unwrap();
        b.ring_doorbell();
        a.send(b"last", &[]).unwrap();
        // The kernel reports a reset first, because the peer has not read all packets.
        drop(a);
        assert!(matches!(b.receive().unwrap(), Received::Packet(last) if last.bytes == b"last"));
        assert!(matches!(b.receive().unwrap(), Received::End));
    }

    #[test]
    fn the_doorbell_never_blocks_and_packet_sizes_are_limited() {
        let (a, b) = Socket::pair().unwrap();
        for _ in 0..10_000 {
            a.ring_doorbell();
        }
        assert_eq!(
            a.send(b"x", &[]).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        assert!(a.send(&[], &[]).is_err());
        assert!(a.send(&vec![1; PACKET_MAX + 1], &[]).is_err());
        drop(b);
        a.ring_doorbell();
    }

    /// As if this process had no free descriptor.
    #[test]
    fn a_packet_whose_descriptors_do_not_fit_arrives_without_them() {
        let (a, b) = Socket::pair().unwrap();
        let many = [a.as_fd(); FDS_MAX + 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&many)));
        let bytes = [IoSlice::new(b"with descriptors")];
        let flags = SendFlags::empty();
        rustix::net::sendmsg(&a, &bytes, &mut ancillary, flags).unwrap();
        a.send(b"next", &[]).unwrap();
        let next = || match b.receive() {
            Ok(Received::Packet(packet)) => packet,
            other => panic!("{other:?}"),
        };
        let first = next();
        assert_eq!(
            (&first.bytes[..], first.fds.len()),
            (&b"with descriptors"[..], 0)
        );
        assert_eq!(next().bytes, b"next");
    }

    #[test]
    fn socket_credentials_name_this_process_and_user() {
        let (a, _b) = Socket::pair().unwrap();
        let who = a.credentials().unwrap();
        assert_eq!(who.pid, Some(std::process::id()));
        assert!(Policy::SameUser.allows(&who));
        assert!(!Policy::SameUser.allows(&Credentials {
            uid: who.uid.wrapping_add(1),
            ..who
        }));
    }
}
