//! Retries: how long to wait for a response, how often to send again, and when the window changes.

use super::Requester;
use super::congestion::Congestion;
use super::probe::Probe;
use super::window::Window;
use crate::transport::config::{Config, timeout_ns};
use crate::transport::deadline::earlier;
use crate::transport::event::Status;
use crate::transport::sequence::Sequence;
use crate::transport::step::{Output, Step};

/// The value of `rnr_retry` that means no limit.
const NO_LIMIT: u8 = 7;

/// How often the timeout doubles without progress: a response may take up to four times the timeout of the queue pair (IBA
/// volume 1, 9.7.6.1.3). A network or a peer that is overloaded gets fewer packets, and more time before the request fails.
const DOUBLINGS_MAX: u8 = 2;

/// Counters and timers of a requester.
#[derive(Debug)]
pub(super) struct Retry {
    /// The response timeout, in nanoseconds.
    timeout: Option<u64>,
    retry_count: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    /// How often the timeout has doubled since the last progress.
    doublings: u8,
    /// When the awaited response is overdue.
    deadline: Option<u64>,
    /// Whether a late timer has been forgiven since the last progress.
    is_forgiven: bool,
    /// Do not send before this time, because the peer had no receive.
    not_before: Option<u64>,
    /// The position that a response last made the requester go back to. Responses already in transit then repeat the same report.
    last_rewind: Option<Sequence>,
    /// The oldest packet whose repetition has restarted the timeout.
    last_repair: Option<Sequence>,
    pub(super) window: Window,
    /// A probe was sent since the last progress: until there is progress, the window is one packet.
    is_probing: bool,
    /// Whether the response to the last probe came too soon to answer it.
    came_too_soon: bool,
    pub(super) probe: Probe,
    congestion: Congestion,
    /// Lost packets before this position belong to a loss that has lowered the window: what had been sent when it was noticed.
    loss_end: Sequence,
    /// The window is not lowered further for that loss.
    loss_floor: u32,
    /// How many packets it has.
    loss_size: u32,
    /// The window before it.
    before_loss: Window,
}

impl Retry {
    pub(super) fn new(config: &Config) -> Self {
        let window = Window::new(config.window, config.longest_window);
        Self {
            timeout: timeout_ns(config.timeout),
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            retries_left: config.retry_count,
            rnr_retries_left: config.rnr_retry,
            doublings: 0,
            deadline: None,
            is_forgiven: false,
            not_before: None,
            last_rewind: None,
            last_repair: None,
            window,
            is_probing: false,
            came_too_soon: false,
            probe: Probe::new(config.probe_after),
            congestion: Congestion::new(Sequence::first(config.send_psn)),
            loss_end: Sequence::first(config.send_psn),
            loss_floor: 0,
            loss_size: 0,
            before_loss: window,
        }
    }

    /// Changes the timeout and the retry counts.
    pub(super) fn update(&mut self, config: &Config) {
        self.timeout = timeout_ns(config.timeout);
        self.retry_count = config.retry_count;
        self.rnr_retry = config.rnr_retry;
        self.retries_left = self.retries_left.min(config.retry_count);
        self.rnr_retries_left = self.rnr_retries_left.min(config.rnr_retry);
    }

    /// The maximum number of outstanding positions.
    pub(super) fn window(&self) -> u32 {
        if self.is_probing {
            1
        } else {
            self.window.size()
        }
    }

    /// After how many packets an acknowledgement is requested.
    pub(super) fn quarter(&self) -> u32 {
        if self.is_probing {
            1
        } else {
            self.window.quarter()
        }
    }

    /// Whether sending is paused: because the peer had no receive, or because a large window leaves in bursts.
    pub(super) fn is_waiting(&self, now: u64) -> bool {
        self.not_before.is_some_and(|time| now < time) || !self.window.may_send(now)
    }

    /// Records that a packet leaves that takes this many positions.
    pub(super) fn leaves(&mut self, now: u64, positions: u32) {
        self.window.sent(now, positions, self.probe.measured());
    }

    /// Records that a packet was sent.
    pub(super) fn sent(&mut self, now: u64) {
        self.not_before = None;
        self.probe.sent(now);
        if self.deadline.is_none() {
            self.watch(now, true);
        }
    }

    /// Restarts the timer, or stops it if no response is awaited. On a path whose round trips are longer than the timeout, the timer
    /// waits for them, for up to four times the timeout.
    pub(super) fn watch(&mut self, now: u64, awaits_response: bool) {
        let timeout = self.timeout.filter(|_| awaits_response);
        self.deadline = timeout.map(|timeout| {
            let usual = self.probe.usual().unwrap_or(0);
            let least = usual.min(timeout << DOUBLINGS_MAX);
            now.saturating_add((timeout << self.doublings).max(least))
        });
        // A program that sets no timeout wants to wait for ever for a peer that has never responded.
        let may_probe = self.timeout.is_some() || self.probe.measured().is_some();
        match awaits_response && may_probe {
            true => self.probe.watch(now),
            false => self.probe.stop(),
        }
    }

    /// Records that the peer has executed `positions` packets, all those before `position`: resets the retry counts. The window
    /// may grow. Packets before `top` have been sent. Returns whether a probe seems to have replaced a lost packet: then the peer has
    /// none of the later ones.
    pub(super) fn progress(
        &mut self,
        now: u64,
        position: Sequence,
        positions: u32,
        top: Sequence,
    ) -> bool {
        self.probe.progress(now, position);
        self.retries_left = self.retry_count;
        self.rnr_retries_left = self.rnr_retry;
        self.doublings = 0;
        self.is_forgiven = false;
        self.not_before = None;
        let is_probing = std::mem::take(&mut self.is_probing);
        let replaced = is_probing && positions == 1 && self.has_replaced(now, position);
        let outstanding = top.since(position).saturating_add(positions);
        // A packet that was alone says nothing about the window.
        if replaced && self.probe.measured().is_some() && outstanding > 1 {
            self.shrink(top);
        }
        if !is_probing {
            self.came_too_soon = false;
        }
        self.congestion.acknowledged(position, top);
        let path = self.probe.measured();
        self.window.acknowledged(positions, outstanding, path);
        replaced
    }

    /// Whether the response that acknowledges the packet of a probe, and no later one, answers the probe. If it comes too soon, the
    /// probe was superfluous; but if the next one does, too, the path has become shorter. Before anything is measured, the
    /// response may answer the first copy: later packets are sent again all the same, because the next probe may be a second away.
    fn has_replaced(&mut self, now: u64, position: Sequence) -> bool {
        match self.probe.may_be_answered(now) {
            Some(true) => true,
            Some(false) => {
                self.probe.measure_first_copy(now, position);
                std::mem::replace(&mut self.came_too_soon, true)
            }
            None => true,
        }
    }

    /// Halves the window: a packet before `top` was lost, so the network or the peer's receive buffer holds less than a window.
    fn shrink(&mut self, top: Sequence) {
        self.window.halve();
        self.is_probing = false;
        self.congestion.lost(top);
    }

    /// Lowers the window, because so many packets were lost, the last of them at `last`. Packets that were outstanding when the first of them was
    /// noticed do not lower it to less than half.
    pub(super) fn lost(&mut self, packets: u32, last: Sequence, top: Sequence) {
        if last >= self.loss_end {
            self.loss_end = top;
            self.loss_floor = self.window.size() / 2;
            self.loss_size = 0;
            self.before_loss = self.window;
        }
        self.loss_size = self.loss_size.saturating_add(packets);
        let path = self.probe.measured();
        let (all, floor) = (self.loss_size, self.loss_floor);
        self.window.lost(packets, all, floor, path);
        self.congestion.lost(top);
    }

    /// So many packets that were taken for lost were only late. If all were, the window becomes what it was (as in RFC 4015).
    pub(super) fn were_late(&mut self, packets: u32) {
        self.loss_size = self.loss_size.saturating_sub(packets);
        if self.loss_size == 0 {
            self.window.restore(&self.before_loss);
        }
    }

    /// The packet at `unacked`, which is the oldest, is sent again, because it was lost. The first time, its timeout starts again.
    pub(super) fn repairs_oldest(&mut self, now: u64, unacked: Sequence) {
        if self.last_repair != Some(unacked) {
            self.last_repair = Some(unacked);
            self.watch(now, true);
        }
    }

    /// The peer reports congestion. Returns whether that has lowered the window.
    pub(super) fn notified(&mut self, unacked: Sequence, top: Sequence) -> bool {
        let before = self.window.size();
        if let Some(size) = self.congestion.notified(before, unacked, top) {
            self.window.lower(size);
        }
        self.window.size() < before
    }

    /// Uses up a retry, if one is left.
    fn take(&mut self) -> bool {
        let left = self.retries_left.checked_sub(1);
        self.retries_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Whether to send once more although no retry is left, because the timer runs late by more than half the timeout: this side
    /// did not run in the meantime (its process was stopped, or the machine was suspended), so the response may have arrived, and waits to
    /// be received. Only once without progress.
    fn forgives(&mut self, now: u64) -> bool {
        let late = self.deadline.map_or(0, |it| now.saturating_sub(it));
        let is_late = self.timeout.is_some_and(|timeout| late > timeout / 2);
        is_late && !std::mem::replace(&mut self.is_forgiven, true)
    }

    /// Pauses because the peer has no receive, if an RNR retry is left.
    pub(super) fn wait_for_receive(&mut self, now: u64, delay: u64) -> bool {
        if self.rnr_retry != NO_LIMIT {
            let Some(left) = self.rnr_retries_left.checked_sub(1) else {
                return false;
            };
            self.rnr_retries_left = left;
        }
        self.not_before = Some(now.saturating_add(delay));
        self.deadline = None;
        self.probe.stop();
        true
    }

    /// Stops all timers.
    pub(super) fn stop(&mut self) {
        (self.deadline, self.not_before) = (None, None);
        self.probe.stop();
        self.window.stop();
    }

    /// When the next timer expires.
    fn next_deadline(&self) -> Option<u64> {
        let (probe, resumes) = (self.probe.deadline(), self.window.resumes_at());
        let own = earlier(self.deadline, self.not_before);
        earlier(own, earlier(probe, resumes))
    }
}

impl Requester {
    /// A response has shown that the packet or the response at `unacked` was lost: sends again from there on.
    pub(super) fn go_back<H>(&mut self, step: &mut Step<'_, H>) {
        let is_repeated = self.retry.last_rewind == Some(self.unacked);
        if is_repeated || self.next == self.unacked {
            return;
        }
        if !self.retry.take() {
            self.fail(Status::RetryExceeded, step.out);
            return;
        }
        self.retry.last_rewind = Some(self.unacked);
        self.retry.shrink(self.top);
        self.rewind();
        self.retry.watch(step.now, true);
    }

    /// When [`on_time`](Self::on_time) has something to do, or when packets may be sent again.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        earlier(self.retry.next_deadline(), self.lost_at())
    }

    /// Sends again, or gives up, if the response is overdue.
    pub(crate) fn on_time(&mut self, now: u64, out: &mut Output) {
        if self.retry.not_before.is_some_and(|time| time <= now) {
            self.retry.not_before = None;
        }
        self.retry.window.advance(now);
        self.request_lost(now, out);
        if self.retry.deadline.is_none_or(|deadline| now < deadline) {
            if (self.retry.probe.deadline()).is_some_and(|deadline| deadline <= now) {
                self.send_probe(now, out);
            }
            return;
        }
        out.counters.timeouts += 1;
        if !self.retry.take() && !self.retry.forgives(now) {
            self.fail(Status::RetryExceeded, out);
            return;
        }
        self.retry.last_rewind = None;
        let is_first = self.retry.doublings == 0;
        self.retry.doublings = (self.retry.doublings + 1).min(DOUBLINGS_MAX);
        self.retry.shrink(self.top);
        // If the peer has kept later packets, a repair was probably lost.
        if !is_first || !self.repairs_again() {
            self.rewind();
        }
        self.retry.watch(now, true);
    }

    /// Sends the oldest packet again, because its response is later than usual.
    fn send_probe(&mut self, now: u64, out: &mut Output) {
        out.counters.probes += 1;
        self.retry.last_rewind = Some(self.unacked);
        self.retry.is_probing = true;
        self.sends_probe = self.next > self.unacked;
        self.retry.probe.probed(now);
    }
}
