//! What the connection manager's thread does with the shared state: it turns events of connections into events for
//! programs.

use crate::state::hub::{Hub, IdKey, PendingEvent, Phase, Remote, Request};
use crate::state::view;
use rkey_cm::Manager;
use rkey_cm::manager::Event;
use rkey_cm::time::Nanos;
use rkey_device::cm::{Handler, OwnId};

impl Hub {
    /// Updates an identifier for an event of the connection manager. Returns the event for the program, if there is one.
    fn update(&mut self, key: IdKey, event: Event) -> Option<PendingEvent> {
        let entry = self.entries.get_mut(&key)?;
        // If the peer gives up before the program accepts, the program gets no event; `rdma_accept` fails.
        if entry.phase == Phase::Requested {
            return None;
        }
        Some(match event {
            Event::ConnectResponse { rep, ece, .. } => {
                let qpn = rep.queue_pair(entry.transport());
                let starting_psn = rep.starting_psn;
                entry.remote = Some(Remote { qpn, starting_psn });
                entry.remote_ece = ece;
                PendingEvent::Response(rep)
            }
            Event::Established { .. } => {
                entry.phase = Phase::Connected;
                PendingEvent::Established
            }
            Event::Rejected { rej, options, .. } => {
                entry.phase = Phase::Ended;
                entry.remote_ece.options = options;
                PendingEvent::Rejected(rej)
            }
            Event::Unreachable { .. } => {
                entry.phase = Phase::Ended;
                PendingEvent::Unreachable
            }
            Event::Disconnected { .. } => {
                entry.phase = Phase::Ended;
                match entry.has_failed {
                    true => return None,
                    false => PendingEvent::Disconnected(None),
                }
            }
            Event::TimeWaitExit { .. } => PendingEvent::TimeWaitExit,
            Event::DatagramResponse { rep, .. } => {
                entry.phase = match rep.checked_status() {
                    rkey_cm::wire::SidrStatus::VALID => Phase::Connected,
                    _ => Phase::Ended,
                };
                PendingEvent::Datagram(rep)
            }
            Event::ConnectRequest(_) | Event::DatagramRequest(_) => return None,
        })
    }
}

impl Handler for Hub {
    fn api(&self) -> &'static str {
        "librdmacm"
    }

    fn ids(&self) -> Vec<OwnId> {
        view::ids(self)
    }

    fn failed(&mut self) {
        for queue in self.channels.values() {
            queue.event_fd.signal();
        }
    }

    fn event(&mut self, manager: &mut Manager, now: Nanos, event: Event) {
        let (listener, request) = match event {
            Event::ConnectRequest(it) => (it.listener, Request::Connection(it)),
            Event::DatagramRequest(it) => (it.listener, Request::Datagram(it)),
            event => {
                if let Some(&key) = self.connections.get(&event.connection())
                    && let Some(pending) = self.update(key, event)
                {
                    self.push(key, pending);
                }
                return;
            }
        };
        match self.listeners.get(&listener) {
            Some(&key) => self.push(key, PendingEvent::Request(request)),
            None => {
                // The program has destroyed the listener.
                let _ = manager.close(now, request.connection());
            }
        }
    }
}
