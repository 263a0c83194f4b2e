//! Warrants: peers write to our memory themselves, and we to theirs, without the target's engine.
//!
//! The engine decides for what a warrant is issued, and uses those that it has; see `rkey_engine`'s `warrants.rs` and
//! `requester/push.rs`. This module exchanges the messages, and waits for peers that are copying when a right ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rkey_base::range::VaRange;
use rkey_engine::{LinkId, WarrantRequest, WarrantScope, WarrantedRegion};
use rkey_link::Link;
use rkey_link::peer::{ControlLine, OwnWarrant, RemotePeer};

use super::Reclaim;
use super::lease_messages::{IssuedWarrant, Message, WarrantAsk, encode, key_of, number_of};
use super::outbox::LeaseAnswer;
use super::remote_copies::{CHECK_LIMIT, LIMIT};
use crate::peers::link_limits::LinkFiles;
use crate::progress::{Backoff, EngineDriver};

impl Reclaim {
    /// Asks peers for the warrants that the engine wants. For the engine thread.
    pub(crate) fn ask_for_warrants(&self, driver: &EngineDriver) {
        for (link, request) in driver.requests.take_warrants() {
            let Some(peer) = peer_of(driver, link) else {
                continue;
            };
            let (requested, key) = number_of(request.key);
            let ask = Message::AskWarrant(WarrantAsk {
                qpn: request.qpn,
                src_qpn: request.src_qpn,
                requested,
                key,
                addr: request.addr,
                len: request.len,
            });
            // If it cannot be sent, the engine asks again after more slow writes.
            let _ = self.send(link, peer.line, &ask, None);
        }
    }

    /// Answers a peer that asks for a warrant, unless it asks too often.
    pub(super) fn issue_warrant(&self, driver: &EngineDriver, link: LinkId, ask: &WarrantAsk) {
        if !self.ask_limit.admits(link, crate::time::now()) {
            return;
        }
        let Some(files) = LinkFiles::of_warrant(self.reserved_files) else {
            tracing::debug!(
                ?link,
                "no warrant: the other descriptors are reserved for the program"
            );
            return;
        };
        let request = WarrantRequest {
            qpn: ask.qpn,
            src_qpn: ask.src_qpn,
            key: key_of(ask.requested, ask.key),
            addr: ask.addr,
            len: ask.len,
        };
        let now = driver.schedule.refresh_clock();
        let issued =
            driver.command(|engine| engine.issue_warrant(link, &request, now, Box::new(files)));
        let Some((warrant, region)) = issued else {
            return;
        };
        let answer = Message::Warrant(IssuedWarrant {
            number: warrant.number(),
            qpn: ask.src_qpn,
            src_qpn: ask.qpn,
            requested: ask.requested,
            key: ask.key,
            base: region.base,
            start: region.memory.start(),
            len: region.memory.len(),
            canary: warrant.canary(),
        });
        let is_sent = peer_of(driver, link).is_some_and(|peer| {
            let fd = warrant.fd().try_clone_to_owned();
            fd.is_ok_and(|fd| self.send(link, peer.line, &answer, Some(fd)))
        });
        if !is_sent {
            driver.command(|engine| engine.withdraw_warrant(&warrant));
        }
    }

    /// Takes over a warrant from a peer.
    pub(super) fn take_warrant(
        driver: &EngineDriver,
        link: LinkId,
        issued: &IssuedWarrant,
        fd: OwnedFd,
    ) {
        let Some(memory) = VaRange::new(issued.start, issued.len) else {
            return;
        };
        let peer = peer_of(driver, link);
        let taker = peer.as_ref().and_then(RemotePeer::warrant_taker);
        let Some(Ok(warrant)) = taker.map(|taker| taker.take(issued.number, issued.canary, fd))
        else {
            return;
        };
        let region = WarrantedRegion {
            qpn: issued.qpn,
            peer_qpn: issued.src_qpn,
            key: key_of(issued.requested, issued.key),
            base: issued.base,
            memory,
        };
        driver.command(|engine| engine.take_warrant(link, &region, warrant));
    }

    /// Returns false if the message is dropped.
    fn send(
        &self,
        link: LinkId,
        line: Arc<ControlLine>,
        message: &Message,
        fd: Option<OwnedFd>,
    ) -> bool {
        let bytes = encode(message);
        self.leases
            .outbox
            .send(link, line, LeaseAnswer { bytes, fd })
    }

    /// Revokes warrants, and waits until no peer copies with one of them. Call it after the engine's lock has been taken since the
    /// right ended.
    #[inline]
    pub(crate) fn end_warrants(&self, driver: &EngineDriver, scope: WarrantScope) {
        if self.exposure.is_warranted() {
            let copying = wait_for_warrants(driver, scope, LIMIT);
            give_up(driver, copying);
        }
    }

    /// Checks the warrants that were revoked while their peers were copying. Returns whether any of these peers may still be
    /// copying.
    pub(super) fn recheck_warrants(&self, driver: &EngineDriver) -> bool {
        self.exposure.is_warranted() && {
            let mut copying =
                driver.command(|engine| engine.revoke_warrants(WarrantScope::Revoked));
            forget_at_rest(driver, &mut copying, Instant::now() + CHECK_LIMIT);
            !copying.is_empty()
        }
    }
}

fn peer_of(driver: &EngineDriver, link: LinkId) -> Option<RemotePeer> {
    driver.lock().link(link)?.peer()
}

/// Revokes warrants, and waits until no peer copies with one of them, for at most `limit`. Returns those with which peers may
/// still be copying; the engine keeps them.
#[cold]
pub(super) fn wait_for_warrants(
    driver: &EngineDriver,
    scope: WarrantScope,
    limit: Duration,
) -> Vec<(LinkId, OwnWarrant)> {
    let mut copying = driver.command(|engine| engine.revoke_warrants(scope));
    let deadline = Instant::now() + limit;
    let mut backoff = Backoff::new();
    loop {
        forget_at_rest(driver, &mut copying, deadline);
        if copying.is_empty() || Instant::now() >= deadline {
            return copying;
        }
        backoff.sleep();
    }
}

/// Forgets revoked warrants with which peers may still be copying, and cuts the links of these peers.
fn give_up(driver: &EngineDriver, copying: Vec<(LinkId, OwnWarrant)>) {
    for (link, warrant) in copying {
        let peer = crate::peers::process::name_of(warrant.peer_pid());
        tracing::error!(
            peer,
            "giving up on a peer: {} ms after its warrant was revoked, it may still be in a system call that writes up to \
             256 KiB to the region of the warrant",
            LIMIT.as_millis()
        );
        driver.command(|engine| engine.forget_warrant(&warrant));
        driver.cut_links("it may be writing under a revoked warrant", &[link]);
    }
}

/// Removes those warrants whose peers are not copying.
fn forget_at_rest(
    driver: &EngineDriver,
    copying: &mut Vec<(LinkId, OwnWarrant)>,
    deadline: Instant,
) {
    copying.retain(|(_, warrant)| {
        let is_over = warrant.is_at_rest(deadline);
        if is_over {
            driver.command(|engine| engine.forget_warrant(warrant));
        }
        !is_over
    });
}

#[cfg(all(test, not(miri)))]
mod tests;
