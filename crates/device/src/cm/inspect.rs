//! Inspecting connection managers: another process's query, and our answer.
//!
//! A process sends the query over a new connection to the name of a block of communication ids. The service's thread answers
//! with a file descriptor, so it answers even while its program sleeps or computes, and even before its program opens a device.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rkey_link::peer::Credentials;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::socket::{self, Reached};
use super::view::CmView;
use crate::config::Config;
use crate::error::DeviceError;
use crate::objects::event_queue::wait_readable;
use crate::peers::names::{self, Scope};

/// The query.
pub(super) const QUERY: &[u8] = b"rcm1 inspect";
/// The answer, sent with the descriptor.
const ANSWER: &[u8] = b"rcm1 inspection";
/// The maximum length of an inspection, in bytes.
const MAX_LEN: u64 = 16 << 20;
/// How long all processes together may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The connection managers on a host that this process may inspect.
#[derive(Clone, Debug, Default)]
pub struct CmListing {
    /// The managers that answered, by PID.
    pub managers: Vec<CmView>,
    /// The PIDs of the processes that did not answer in time.
    pub silent: Vec<u32>,
}

/// Lists the connection managers of this user's processes in this network namespace (with `RKEY_SHARE=all`: those that share
/// their devices with all users).
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn list(config: &Config) -> Result<CmListing, DeviceError> {
    let scope = Scope::of(config.share);
    let blocks =
        names::claimed_cm_blocks(scope).map_err(DeviceError::io("reading /proc/net/unix"))?;
    // Send all queries first, then wait for all answers together.
    let asked: Vec<(OwnedFd, Credentials)> = blocks
        .into_iter()
        .filter_map(|block| ask(scope, &names::cm_name(scope, block)))
        .collect();
    let until = Instant::now() + TIMEOUT;
    let mut listing = CmListing::default();
    for (socket, who) in asked {
        match receive(&socket, until) {
            Some(view) => listing.managers.push(CmView {
                pid: who.pid.unwrap_or(view.pid),
                uid: who.uid,
                ..view
            }),
            None => listing.silent.extend(who.pid),
        }
    }
    listing
        .managers
        .sort_by(|a, b| (a.pid, &a.api).cmp(&(b.pid, &b.api)));
    listing.silent.sort_unstable();
    listing.silent.dedup();
    Ok(listing)
}

fn ask(scope: Scope, name: &str) -> Option<(OwnedFd, Credentials)> {
    let Ok(Reached::Process(socket, who)) = socket::connect(scope, name) else {
        return None;
    };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::send(&socket, QUERY, flags).ok()?;
    Some((socket, who))
}

/// Receives an answer. `None` if it is malformed or late.
fn receive(socket: &OwnedFd, until: Instant) -> Option<CmView> {
    if !wait_readable(socket.as_fd(), Some(until)).unwrap_or(false) {
        return None;
    }
    let mut bytes = [0; ANSWER.len() + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let len = rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags)
        .ok()?
        .bytes;
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    let file = File::from(fds.next()?);
    // Accept only a file of bounded length: reading a pipe could block forever.
    let is_bounded = |m: std::fs::Metadata| m.is_file() && m.len() <= MAX_LEN;
    if bytes.get(..len) != Some(ANSWER) || !file.metadata().is_ok_and(is_bounded) {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_LEN).read_to_end(&mut text).ok()?;
    decode(&text)
}

/// Parses an inspection that another process wrote.
pub(crate) fn decode(text: &[u8]) -> Option<CmView> {
    serde_json::from_slice(text).ok()
}

/// Answers a query. Never blocks.
pub(super) fn answer(socket: &OwnedFd, view: &CmView) -> io::Result<()> {
    let text = serde_json::to_vec(view).map_err(io::Error::other)?;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::memfd_create("rkey-cm-inspection", flags)?);
    file.write_all(&text)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let fds = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(ANSWER)], &mut ancillary, flags)?;
    Ok(())
}
