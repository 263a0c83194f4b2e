//! Requests of other threads to the engine thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rkey_engine::{Group, LinkId, QpId, WarrantRequest};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::DeviceError;

/// A queue pair whose peer does not respond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnresponsivePeer {
    pub(crate) qp: QpId,
    /// The link to the peer, if any.
    pub(crate) link: Option<LinkId>,
    /// The queue pair number of the peer.
    pub(crate) peer: u32,
}

/// Lists of work for the engine thread, and the doorbell that wakes it. Any thread may add to them.
#[derive(Debug)]
pub(crate) struct ThreadRequests {
    doorbell: OwnedFd,
    /// Whether there are packets for other hosts to send.
    packets: AtomicBool,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    links: Vec<(QpId, u32)>,
    groups: Vec<(QpId, Group)>,
    unresponsive: Vec<UnresponsivePeer>,
    broken: Vec<LinkId>,
    cut: Vec<LinkId>,
    warrants: Vec<(LinkId, WarrantRequest)>,
}

impl ThreadRequests {
    /// No requests.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(DeviceError::io("creating the engine's doorbell"))?;
        Ok(Self {
            doorbell,
            packets: AtomicBool::new(false),
            lists: Mutex::default(),
        })
    }

    /// Wakes the engine thread. Never blocks.
    pub(crate) fn wake_engine_thread(&self) {
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// Makes the doorbell unreadable until it is rung again; for the engine thread.
    pub(crate) fn acknowledge(&self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0u8; 8]);
    }

    fn add(&self, add: impl FnOnce(&mut Lists)) {
        add(&mut self.lists.lock());
        self.wake_engine_thread();
    }

    /// Requests a link for a queue pair to the device that owns the number `peer`.
    pub(crate) fn connect(&self, qp: QpId, peer: u32) {
        self.add(|lists| lists.links.push((qp, peer)));
    }

    /// Requests a search for the devices of a group, to which a queue pair sends.
    pub(crate) fn find_group(&self, qp: QpId, group: Group) {
        self.add(|lists| lists.groups.push((qp, group)));
    }

    /// Requests a check of whether a peer that does not respond could have responded.
    pub(crate) fn judge(&self, peer: UnresponsivePeer) {
        self.add(|lists| lists.unresponsive.push(peer));
    }

    /// Requests the removal of a broken link.
    pub(crate) fn remove_link(&self, link: LinkId) {
        self.add(|lists| lists.broken.push(link));
    }

    /// Requests the removal of working links.
    pub(crate) fn cut_links(&self, links: &[LinkId]) {
        self.add(|lists| lists.cut.extend_from_slice(links));
    }

    /// Requests a warrant from the peer at the other end of a link.
    pub(crate) fn ask_for_warrant(&self, link: LinkId, request: WarrantRequest) {
        self.add(|lists| lists.warrants.push((link, request)));
    }

    /// Asks the engine thread to send the packets for other hosts.
    pub(crate) fn send_packets(&self) {
        self.packets.store(true, Ordering::Release);
        self.wake_engine_thread();
    }

    /// Whether packets must be sent. For the engine thread, which then sends them.
    #[inline]
    pub(crate) fn take_packets(&self) -> bool {
        self.packets.load(Ordering::Relaxed) && self.packets.swap(false, Ordering::AcqRel)
    }

    /// Takes the list. This method and those below are for the engine thread.
    pub(crate) fn take_links(&self) -> Vec<(QpId, u32)> {
        std::mem::take(&mut self.lists.lock().links)
    }

    pub(crate) fn take_groups(&self) -> Vec<(QpId, Group)> {
        std::mem::take(&mut self.lists.lock().groups)
    }

    pub(crate) fn take_unresponsive(&self) -> Vec<UnresponsivePeer> {
        std::mem::take(&mut self.lists.lock().unresponsive)
    }

    pub(crate) fn take_broken(&self) -> Vec<LinkId> {
        std::mem::take(&mut self.lists.lock().broken)
    }

    pub(crate) fn take_warrants(&self) -> Vec<(LinkId, WarrantRequest)> {
        std::mem::take(&mut self.lists.lock().warrants)
    }

    pub(crate) fn take_cut(&self) -> Vec<LinkId> {
        std::mem::take(&mut self.lists.lock().cut)
    }
}

impl AsFd for ThreadRequests {
    /// The doorbell: readable when it has been rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::reactor::{Reactor, Token};
    use rkey_core::RKey;
    use std::time::Duration;

    #[test]
    fn every_request_rings_the_doorbell_and_is_taken_once() {
        let requests = ThreadRequests::new().unwrap();
        let reactor = Reactor::new().unwrap();
        reactor.add(&requests, Token::DOORBELL).unwrap();
        let qp = QpId::from((1, 1));
        let link = LinkId::from((2, 1));
        let rings = || {
            let rung = reactor.wait(Some(Duration::ZERO)) == [Token::DOORBELL];
            requests.acknowledge();
            rung
        };
        assert!(!rings());
        requests.connect(qp, 256);
        assert!(rings());
        requests.find_group(qp, Group::RawFrames);
        assert!(rings());
        requests.judge(UnresponsivePeer {
            qp,
            link: None,
            peer: 256,
        });
        assert!(rings());
        requests.remove_link(link);
        assert!(rings());
        requests.cut_links(&[link, link]);
        assert!(rings() && !rings());
        let request = WarrantRequest {
            qpn: 256,
            src_qpn: 257,
            key: RKey::Requested(1),
            addr: 2,
            len: 3,
        };
        requests.ask_for_warrant(link, request);
        assert!(rings());
        requests.send_packets();
        assert!(rings() && requests.take_packets() && !requests.take_packets());
        assert_eq!(requests.take_links(), [(qp, 256)]);
        assert_eq!(requests.take_groups(), [(qp, Group::RawFrames)]);
        assert_eq!(requests.take_unresponsive().len(), 1);
        assert_eq!(requests.take_broken(), [link]);
        assert_eq!(requests.take_cut(), [link, link]);
        assert_eq!(requests.take_warrants(), [(link, request)]);
        assert!(requests.take_links().is_empty() && requests.take_cut().is_empty());
    }
}
